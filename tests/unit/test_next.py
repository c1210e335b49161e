"""Language modelling by a decoder's own head: losses against the stock model, floors, λ, what is refused."""

import copy

import jobs
import numpy as np
import pytest
import torch
import transformers
from builders import texts
from random_models import random_model
from refusals import input_error
from sizes import VOCABULARY
from torch.nn.functional import cross_entropy

import papa
from papa.data.tokens import Tokens
from papa.files import read_facts, read_table
from papa.method.head_weights import gate_slopes
from papa.method.states import StreamedStates
from papa.method.token_prediction import MaskedTokens, NextTokens
from papa.method.training import TrainingTask
from papa.results.outcomes import FLOOR, ORIGINALS, Setting
from papa.results.reliance import SIGNIFICANT, effects_of
from papa.stages import OfTask, Training

SLOTS = 13
TRAIN = 41
VALIDATION = 19
METRIC = "log_likelihood"


@pytest.fixture
def tokens(tmp_path, tiny_decoder):
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, SLOTS + 1, (TRAIN + VALIDATION,), generator=generator).tolist()
    drawn = [torch.randint(8, (length,), generator=generator).tolist() for length in lengths]
    letters = [" ".join("abcdefgh"[letter] for letter in text) for text in drawn]
    jobs.write_texts(tmp_path, train=letters[:TRAIN], validation=letters[TRAIN:])
    return jobs.lay_out(tiny_decoder, tmp_path, SLOTS)


@pytest.fixture
def decoder(tiny_decoder):
    return papa.load_model(tiny_decoder, device="cpu")


def measure(tokens, name, **options):
    """Outcomes of the model's own head, a row for each predicted token of a validation text."""
    run = tokens.parent / f"{name}.parquet"
    jobs.probe(
        tokens.parent / "tiny",
        run,
        jobs.training(epochs=0),
        0,
        metric=METRIC,
        tokens=tokens,
        **options,
    )
    return read_table(run).to_pandas()


def stock_logits(tokens, example):
    """Ids of a validation text, and what the model that papa has never touched makes of them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tokens.parent / "tiny", attn_implementation="eager"
    )
    split = Tokens.read(tokens, "validation")["validation"]
    ids = split.ids[split.offsets[example] : split.offsets[example + 1]].long()
    with torch.no_grad():
        return ids, model.eval()(ids[None]).logits[0]


def test_at_fraction_1_losses_are_those_of_the_stock_model(tokens):
    measured = measure(tokens, "original")
    assert list(measured) == ["split", "example", "position", "loss", "trivial"]
    assert set(measured["split"]) == {"validation"}
    assert set(measured["example"]) == set(range(VALIDATION))
    for example, rows in measured.groupby("example"):
        ids, logits = stock_logits(tokens, example)
        assert rows["position"].tolist() == list(range(1, len(ids)))
        expected = cross_entropy(logits[:-1], ids[1:], reduction="none").tolist()
        assert rows["loss"].tolist() == pytest.approx(expected, rel=1e-5)


def test_the_trivial_guess_knows_how_frequent_tokens_are(tokens):
    after = {
        name: [
            part.ids[begin + 1 : end].tolist()
            for begin, end in zip(part.offsets, part.offsets[1:], strict=False)
        ]
        for name, part in Tokens.read(tokens).items()
    }
    seen = np.ones(VOCABULARY)
    for ids in after["train"]:
        np.add.at(seen, ids, 1)
    expected = [-np.log(seen / seen.sum())[ids] for ids in after["validation"]]
    np.testing.assert_allclose(
        measure(tokens, "original")["trivial"], np.concatenate(expected), rtol=1e-6
    )


@pytest.mark.parametrize("constant", ["zeros", "average"])
def test_losses_with_constants_are_those_of_the_models_logits(tokens, decoder, constant):
    made = tokens.parent / "average.h5"
    jobs.average(tokens.parent / "tiny", tokens, made)
    matrices = papa.Constants.load(made).mean
    matrices, more = (
        (matrices, {"constants": made}) if constant == "average" else (0 * matrices, {})
    )
    measured = measure(tokens, "run", variant=f"{constant}/all", **more)
    split = Tokens.read(tokens)["validation"]
    for example in (0, 5):
        ids, _ = stock_logits(tokens, example)
        replaced = decoder.logits(jobs.dense(split.batch(torch.tensor([example]))), matrices)[
            0, : len(ids)
        ]
        assert measured["loss"][measured["example"] == example].tolist() == pytest.approx(
            cross_entropy(replaced[:-1], ids[1:], reduction="none").tolist(), rel=1e-5
        )
    assert read_facts(tokens.parent / "run.parquet") == {"kept": 0, "heads": 12, "curve": []}


def test_lambda_is_learned_on_the_models_own_loss(tokens, decoder):
    """After one step of AdamW λ has moved by the learning rate against its gradient, worked out by differences."""
    identity = tokens.with_name("tiny")
    made = tokens.with_name("a.h5")
    lambdas = tokens.with_name("l.parquet")
    jobs.average(identity, tokens, made)
    how = jobs.training(learning_rate=1e-3, batch_size=TRAIN, epochs=1)
    jobs.learn(identity, lambdas, how, tokens=tokens, constants=made, metric=METRIC)
    mean = papa.Constants.load(made).mean
    objective = NextTokens(Tokens.read(tokens, "train"), decoder)
    batch = objective.batch(torch.arange(TRAIN))
    moved = read_table(lambdas).to_pandas().set_index(["layer", "head"])

    def loss(raw):
        replacement = decoder.replacement(mean, mixing=raw.sigmoid())
        return objective.loss(
            batch, decoder.scores(decoder.pack(batch.packed), replacement).double()
        )

    for head in [(0, 0), (1, 3)]:
        step = torch.zeros(3, 4)
        step[head] = 1e-1
        change = moved["value"][head] - 0.5
        assert np.sign(change) == -np.sign(float(loss(step) - loss(-step)))
        assert abs(change) == pytest.approx(1e-3 / 4, rel=1e-2)


def test_encoders_and_decoders_are_asked_only_for_what_they_can_predict(
    tmp_path, model, decoder, tokens
):
    model.save_pretrained(tmp_path / "encoder")
    with input_error(r"sees later tokens.* needs a decoder"):
        NextTokens(Tokens.read(tokens), papa.load_model(tmp_path / "encoder", device="cpu"))
    with input_error(r"sees no later tokens.*log_likelihood"):
        MaskedTokens(Tokens.read(tokens), decoder, None, 1)


def test_a_task_that_needs_a_missing_head_is_named(tokens):
    bare = papa.Model(transformers.AutoModel.from_pretrained(tokens.parent / "tiny"))
    with input_error("has no language-modelling head, which task stories"):
        NextTokens(Tokens.read(tokens), bare, "task stories")


def reliances(*means):
    """Reliance in a study with these mean losses in nats, on texts that differ a little; nothing has a seed."""
    settings = (ORIGINALS, FLOOR, Setting("average", None, "0"))
    wave = 0.05 * np.cos(np.arange(200))
    nats = {
        setting: mean + place * wave
        for place, (setting, mean) in enumerate(zip(settings, means, strict=True))
    }
    return effects_of([texts(nats, 5 + np.arange(200) % 7)]).set_index("constant", drop=False)


def test_floors_of_losses_are_the_zeros_or_else_a_guess_and_no_seed_is_needed(recwarn):
    measured = reliances(1.0, 3.0, 2.0)
    assert measured["metric"].eq(METRIC).all(), "a perplexity has no floors"
    row = measured.loc["average"]
    assert row["status"] == SIGNIFICANT
    assert row["reliance"] == pytest.approx(0.5, abs=0.01)
    assert 0.4 < row["reliance_low"] < row["reliance"] < row["reliance_high"] < 0.6
    assert 1.97 * 0.1 * (0.5 / 200) ** 0.5 < row["half_width"] < 0.03, (
        "at least that of Student's t over texts"
    )
    assert row["share_examples"] == pytest.approx(1)
    measured = reliances(5.0, 9.0, 6.0)  # the guess beats the model
    why = "the model is not significantly better than a guess from how frequent tokens are (-4.000)"
    assert measured["status"].eq(why).all()
    assert measured["reliance"].isna().all()
    measured = effects_of([texts({ORIGINALS: np.ones(20)}, np.full(20, 5))])
    assert measured["status"].tolist() == ["no context-free floor was measured"]
    assert not recwarn.list


def test_neither_tokenizer_nor_model_needs_an_id_of_padding():
    """GPT-2 has none: the mask says what is real, and no id of padding enters a packed row."""
    folder = random_model("gpt2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    plain = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    tokenizer.pad_token = plain.config.pad_token_id = None
    inputs = papa.lay_out(
        tokenizer, ["the old nurse near the doctors sees the cat", "who is that ?"], slots=23
    )
    logits = papa.Model(copy.deepcopy(plain)).logits(inputs)
    for row, mask in enumerate(inputs["attention_mask"].bool()):
        with torch.no_grad():
            expected = plain(inputs["input_ids"][row : row + 1, mask]).logits[0]
        torch.testing.assert_close(logits[row, mask], expected, atol=1e-4, rtol=1e-4)


ONE_BATCH = OfTask(
    kind="next", training=Training(learning_rate=0.1, batch_size=TRAIN, epochs=1), seed=1
)


def test_few_logits_at_once_change_neither_losses_nor_the_gradient_of_a_batch(
    tokens, decoder, monkeypatch
):
    splits = Tokens.read(tokens)
    constants = torch.zeros(decoder.layers, decoder.heads, SLOTS, SLOTS)
    found = []
    for limit in (1 << 27, 29 * VOCABULARY):
        monkeypatch.setattr("papa.method.token_prediction.LOGITS_AT_ONCE", limit)
        objective = NextTokens(splits, decoder)
        mixing = torch.full((decoder.layers, decoder.heads), 0.5, requires_grad=True)

        def mixed(mixing=mixing):
            return decoder.replacement(constants, mixing=mixing)

        states = StreamedStates(decoder, mixed, probed=False)
        loss = TrainingTask("t", [], objective, states).backward([torch.arange(TRAIN)])
        batches = [batch.packed.lengths.sum() for batch in objective.scored()]
        losses = objective.outcomes_on(states)["validation"]
        slopes = gate_slopes(decoder, constants, objective, ONE_BATCH)
        found.append((loss, mixing.grad, losses, slopes))
    assert max(batches) <= 29
    assert len(objective.divided(torch.arange(TRAIN))) > 9
    for whole, divided in zip(*found, strict=True):
        torch.testing.assert_close(divided, whole, rtol=1.3e-6, atol=1e-6)
