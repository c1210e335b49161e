"""The parts of a study on a loaded model, without files: to the same numbers as a study, and errors of one sentence."""

import pandas as pd
import pytest
import torch
from sizes import HEADS, LAYERS
from test_measure import QUICK, decoder, folder, texts_of  # noqa: F401  fixtures
from transformers import AutoTokenizer

import papa
from papa.files import read_tensors

SLOTS = 13
NUMBERS = ["mean", "low", "high", "trivial", "contextless", "loss", "loss_low", "loss_high", "loss_bound"]


def batched(inputs, size=17):
    begins = range(0, len(inputs["input_ids"]), size)
    return [{name: values[begin : begin + size] for name, values in inputs.items()} for begin in begins]


@pytest.fixture
def given(folder):  # noqa: F811
    """Model, and both splits with their labels, as a notebook has them."""
    tokenizer, (texts, labels), (others, right) = AutoTokenizer.from_pretrained(folder), texts_of(60), texts_of(40, 1)
    train, validation = (batched(papa.lay_out(tokenizer, split, slots=SLOTS)) for split in (texts, others))
    return papa.load_model(folder, device="cpu"), (train, labels), (validation, right)


@pytest.fixture
def recipe():
    return papa.Recipe(learning_rate=1e-2, epochs=2, seeds=(1, 2), fractions=("1", "1/2", "0"))


def same(actual, study):
    """Whether a sweep has the numbers of a study's curve."""
    curve = study.curve[study.curve["constant"].ne("zeros").fillna(True)].set_index("fraction")
    actual = actual.set_index("fraction")
    assert list(actual.index) == list(curve.index) and len(actual) == 3
    assert actual["kept"].tolist() == curve["kept"].tolist() and actual["status"].equals(curve["status"])
    pd.testing.assert_frame_equal(actual[NUMBERS], curve[NUMBERS], check_exact=False, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("no_figures")
def test_parts_give_the_numbers_of_a_study(given, folder, recipe, tmp_path):  # noqa: F811
    model, train, validation = given
    settings = QUICK | {"corpora": {"slots": SLOTS}, "device": "cpu"}  # as the model of the single steps
    study = papa.measure(folder, *texts_of(60), texts_of(40, 1), settings, tmp_path / "study")
    constants = papa.average_attention(model, train[0])
    weights = papa.learn_lambda(model, constants, *train, recipe)
    expected = study.heads.sort_values(["layer", "head"])["value"].to_numpy().reshape(LAYERS, HEADS)
    assert weights.numpy() == pytest.approx(expected, abs=1e-6) and weights.std() > 1e-3
    same(papa.sweep(model, constants, weights, train, validation, recipe), study)
    probe = papa.fit_probe(model, *train, model.replacement(constants), recipe, seed=2)
    (path,) = study.folder.rglob("average/all/probes.safetensors")
    state = {name.removeprefix("seed-2/"): values for name, values in read_tensors(path)[0].items() if "seed-2" in name}
    assert state.keys() == probe.state_dict().keys()
    for name, values in probe.state_dict().items():
        torch.testing.assert_close(values, state[name], atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("no_figures")
def test_a_decoder_is_measured_by_its_own_head(decoder, recipe, tmp_path):  # noqa: F811
    (texts, _), (others, _) = texts_of(60), texts_of(40, 1)
    settings = {"run": {"fractions": ["1", "1/2", "0"]}, "corpora": {"slots": SLOTS, "blocks": False}}
    settings |= {"tasks": {"learning_rate": 1e-2, "epochs": 2, "batch_size": 16}, "device": "cpu"}
    study = papa.measure(decoder, texts, None, others, settings, tmp_path / "study")
    tokenizer, model = AutoTokenizer.from_pretrained(decoder), papa.load_model(decoder, device="cpu")
    train, validation = (batched(papa.lay_out(tokenizer, split, slots=SLOTS)) for split in (texts, others))
    constants = papa.average_attention(model, train)
    weights = papa.learn_lambda(model, constants, train, recipe=recipe)
    expected = study.heads.sort_values(["layer", "head"])["value"].to_numpy().reshape(weights.shape)
    assert weights.numpy() == pytest.approx(expected, abs=1e-6) and weights.std() > 1e-4
    same(papa.sweep(model, constants, weights, train, validation, recipe), study)


def test_a_probe_reads_given_hidden_states_and_labels_of_tokens(given):
    model, (train, _), (validation, _) = given
    ids, others = (torch.cat([batch["input_ids"] for batch in split]) for split in (train, validation))
    labels, right = (torch.where(values > 3, values % 2, -100) for values in (ids, others))  # what a token itself says
    hidden = torch.cat([model.hidden_states(batch) for batch in train])
    how = papa.Recipe(learning_rate=1e-2, epochs=12, seeds=(1, 2), fractions=("0",))
    probe = papa.fit_probe(hidden, train, labels, recipe=how)
    assert isinstance(probe, papa.TokenProbe) and not probe.training
    states = torch.cat([model.hidden_states(batch) for batch in validation])
    shown = right >= 0
    assert (probe(states).argmax(-1) == right)[shown].float().mean() > 0.9
    # rounded hidden states of the model itself are the same up to float16, and the random draws too
    other = papa.fit_probe(model, train, labels, recipe=how)
    assert (other(states).argmax(-1) == probe(states).argmax(-1))[shown].float().mean() > 0.95
    constants = papa.average_attention(model, train)
    heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    (row,) = papa.sweep(model, constants, heads, (train, labels), (validation, right), how).to_dict("records")
    assert row["fraction"] == "0" and row["mean"] > 0.9 and row["trivial"] < 0.7
    assert row["status"] == "attention contributes nothing measurable"
    f1 = papa.Recipe(learning_rate=1e-2, epochs=1, seeds=(1,), fractions=("0",), metric="f1")
    with pytest.raises(papa.InputError, match="metric f1 is for tasks with one label per text"):
        papa.sweep(model, constants, heads, (train, labels), (validation, right), f1)


def test_an_order_of_heads_and_its_weights_are_the_same(given):
    model, train, validation = given
    constants = papa.average_attention(model, train[0])
    how = papa.Recipe(learning_rate=1e-2, seeds=(1,), epochs=6, fractions=("1/2",))
    weights = torch.rand(LAYERS, HEADS)
    heads = sorted(((n, head) for n in range(LAYERS) for head in range(HEADS)), key=lambda place: weights[place])
    by_weight, by_heads, back = (
        papa.sweep(model, constants, order, train, validation, how) for order in (weights, heads, heads[::-1])
    )
    assert by_weight.equals(by_heads) and not by_weight.equals(back)
    assert by_weight["status"].tolist() == ["one seed, so no interval"] and by_weight["low"].isna().all()


def sentences(model, train, constants, weights):
    """Wrong uses, each with what its sentence says."""
    (batches, labels), stock = train, model.full
    half = [{name: values[:, :7] for name, values in batch.items()} for batch in batches]
    maskless = [{"input_ids": batch["input_ids"]} for batch in batches]
    learn = [
        ((batches[0], labels), "learn_lambda takes a list of batches, but a single batch was given; put it into"),
        (([], labels), "learn_lambda takes a list of batches, but the list was empty"),
        ((maskless, labels), "have no attention_mask; lay_out returns"),
        ((batches[:1] + half[1:], labels), "A batch has 7 slots, but earlier ones have 13; learn_lambda needs"),
        ((batches, labels[:-1]), "There are 60 train examples and 59 labels"),
        ((batches, ["yes"] * 60), "All training examples have the label yes"),
        ((batches, [0.5] * 60), "Labels must be texts or whole numbers.*the first is a float"),
        ((batches, torch.zeros(60, 7).long()), r"\[example, slot\] = \[60, 13\], but int64 \[60, 7\]"),
        ((batches, torch.ones(60, 13).long()), "slots without a token have labels; give -100"),
        ((batches, None), "No labels were given, and BertModel sees later tokens"),
    ]
    for given, said in learn:
        yield lambda given=given: papa.learn_lambda(model, constants, *given), said
    yield lambda: papa.learn_lambda(model, constants, half, labels), "constants have 13 slots but the inputs 7"
    yield lambda: papa.sweep(model, constants, weights, (half, labels), (half, labels)), "13 slots but the inputs 7"
    yield lambda: papa.learn_lambda(model, batches[0], *train), "The constants are dict; this model needs"
    yield lambda: model.hidden_states(half[0], constants), "constants have 13 slots but the inputs 7"
    yield lambda: model.hidden_states(batches, constants), "a list was given; pass several batches as a list of such"
    yield (
        lambda: papa.sweep(model, constants, [3], train, train),
        r"must be a list of all heads \(layer, head\)",
    )
    yield lambda: papa.sweep(model, constants, [(0, 0)], train, train), "does not order the heads of this model"
    yield (
        lambda: papa.sweep(model, constants, torch.rand(2, 2), train, train),
        r"have the shape \[2, 2\]",
    )
    yield lambda: papa.sweep(model, constants, weights, train, batches), "Labels were given for train only"
    yield lambda: papa.sweep(model, constants, weights, train, (half, labels)), "13 in train and 7 in validation slots"
    other = batches, ["maybe"] * 60
    yield lambda: papa.sweep(model, constants, weights, train, other), "label 'maybe' occurs only in validation"
    for call in (papa.learn_lambda, papa.sweep):
        asked = (*train, None) if call is papa.learn_lambda else (weights, train, train)
        yield lambda call=call, asked=asked: call(stock, constants, *asked), "papa.Model is needed, but a BertModel"
    yield lambda: papa.average_attention(stock, batches), "papa.Model is needed, but a BertModel was given"
    yield lambda: papa.fit_probe(stock, *train), "papa.Model is needed, but a BertModel was given"
    yield lambda: papa.fit_probe(model, batches, None), "fit_probe needs labels"
    yield lambda: papa.fit_probe(torch.zeros(60, 3, 7, 5), *train), "60 examples of 13 slots; give"
    yield (
        lambda: papa.fit_probe(torch.zeros(60, 3, 13, 5), *train, model.replacement()),
        "A replacement was given with hidden states",
    )
    yield lambda: papa.Model(model), "a papa.Model, whose methods already take constants, was given"
    yield lambda: papa.measure(model, *texts_of(20)), "a papa.Model was given"
    yield lambda: papa.Recipe(fractions=("8",)), r"fractions is \('8',\); a recipe needs"
    yield lambda: papa.Recipe(epochs=0), "epochs is 0; a recipe needs"
    yield lambda: constants.plot(0, 99), r"There is no head \[0, 99\] in these constants"


def test_wrong_use_gets_one_sentence(given):
    model, train, _ = given
    constants, weights = papa.average_attention(model, train[0]), torch.rand(LAYERS, HEADS)
    for call, said in sentences(model, train, constants, weights):
        with pytest.raises(papa.InputError, match=said) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_constants_and_models_say_what_they_are_and_are_drawn(given):
    model, (batches, _), _ = given
    constants = papa.average_attention(model, batches)
    size = f"{LAYERS} layers of {HEADS} heads in {SLOTS} slots, over 60 examples"
    assert repr(constants) == f"<papa.ConstantMatrices: {size}>" and size in constants._repr_html_()
    assert "BertModel" in model._repr_html_() and "\n" not in repr(model)
    drawn = constants.plot(1, 2).to_dict()
    assert drawn["concat"][0]["title"] == "layer 1, head 2"
    cells = drawn["datasets"][drawn["data"]["name"]] if "name" in drawn["data"] else drawn["data"]["values"]
    assert len(cells) == int((constants.count > 0).sum())
    for cell in cells:
        assert cell["1_2"] == pytest.approx(float(constants.mean[1, 2, cell["query"], cell["key"]]), abs=1e-4)
    tied = papa.average_attention(model, batches, kind="by-distance")
    assert "by-distance of" in repr(tied) and tied.plot(0, 0).to_dict()["concat"]
    with pytest.raises(papa.InputError, match="The average output of a head has no entries for pairs"):
        papa.average_attention(model, batches, kind="mean-output").plot(0, 0)
