"""The weights of heads, against the definition of each: naive loops, finite differences, stock modules."""

from dataclasses import replace

import jobs
import pytest
import torch
from sizes import HEADS, LAYERS, TRAIN
from test_decoders import stock, texts
from torch.nn.functional import cross_entropy

import papa
from papa.config.settings import Machine
from papa.config.variant import Variant
from papa.data.tokens import Tokens
from papa.files import provenance_of, read_table, write_table
from papa.method import head_weights
from papa.method.labelled import GoldLabels, Labelled
from papa.method.orders import heads_to_replace
from papa.method.probes import ProbeSizes
from papa.model.load import load_model, model_of

SEED, BATCH = 3, 5
HOW = jobs.training(batch_size=BATCH)
STEP = 1 / 32
BY_PROBE = {"constant": "average", "seed": SEED, "training": HOW, "encoder_dropout": False}


@pytest.fixture
def constants(tiny, corpus, data):
    jobs.average(tiny, data["tokens"], corpus / "average.h5")
    return corpus / "average.h5"


def weighed(tiny, path, more, **inputs):
    """Weights `[layer, head]` as a job writes them."""
    jobs.weigh(tiny, path, more, **inputs)
    table = read_table(path)
    frame = table.to_pandas()
    assert set(frame["epoch"]) == {1}
    values = frame.sort_values(["layer", "head"])["value"].to_numpy()
    return torch.tensor(values).view(int(frame["layer"].max()) + 1, -1), provenance_of(table)


class Lossy:
    """The loss of the original's own probe on batches of training examples; one example may be changed."""

    def __init__(self, model, data, run, mean):
        self.model, self.mean = model, mean
        self.split = Tokens.read(data["tokens"], "train")
        self.objective = Labelled(
            self.split, ProbeSizes.of(self.model, self.split["train"].n), GoldLabels.read(self.split, data["labels"])
        )
        self.objective.probe.load_state_dict(jobs.state_of(run, SEED))
        self.objective.probe.eval()

    def states(self, example, **changed):
        inputs = jobs.dense(self.split["train"].batch(torch.tensor([example])))
        hidden = self.model.hidden_states(inputs, **changed)  # [1, L+1, slot, hidden]
        return hidden[0][:, inputs["attention_mask"][0].bool()].transpose(0, 1)

    def loss(self, examples, states):
        batch = self.objective.batch(examples)
        every = torch.cat(states)
        return float(self.objective.loss(batch, every if batch.positions is None else every[batch.positions]))


@pytest.fixture
def lossy(tiny, corpus, data, metric, constants, loaded):
    jobs.probe(tiny, corpus / "original.json", metric, HOW, SEED, **data)
    return Lossy(loaded, data, corpus / "original.json", papa.ConstantMatrices.load(constants).mean)


def test_a_gradient_is_the_slope_of_the_loss_of_each_example(lossy, tiny, corpus, data, constants):
    actual, about = weighed(tiny, corpus / "gradient-3.parquet", BY_PROBE, constants=constants, **data)
    assert about["unit_size"] == 1 and actual.shape == (LAYERS, HEADS)
    expected = torch.zeros(LAYERS, HEADS, dtype=torch.float64)
    with torch.no_grad():
        for examples in torch.arange(TRAIN).split(BATCH):
            states = [lossy.states(int(example)) for example in examples]
            for layer, head in [(0, 1), (1, 4), (2, 0)]:
                for place, example in enumerate(examples):
                    losses = []
                    for steps in range(3):
                        mixing = torch.ones(LAYERS, HEADS)
                        mixing[layer, head] -= steps * STEP
                        changed = lossy.states(int(example), constants=lossy.mean, mixing=mixing)
                        losses.append(lossy.loss(examples, [*states[:place], changed, *states[place + 1 :]]))
                    slope = (3 * losses[0] - 4 * losses[1] + losses[2]) / (2 * STEP)
                    expected[layer, head] += abs(slope) * len(examples) / TRAIN
    some = expected > 0
    assert int(some.sum()) == 3 and bool((actual > 0).all())
    torch.testing.assert_close(actual.double()[some], expected[some], rtol=0.05, atol=1e-5)


def test_the_probe_may_read_stored_states(tiny, corpus, data, constants):
    """They are those of the model as it goes, and the probe and its loss are the same."""
    inputs = {"constants": constants, **data}
    streamed, _ = weighed(tiny, corpus / "streamed.parquet", BY_PROBE, **inputs)
    index = corpus / "states.json"
    jobs.store(tiny, index, tokens=data["tokens"])
    read, _ = weighed(tiny, corpus / "read.parquet", BY_PROBE, index=index, **inputs)
    torch.testing.assert_close(read, streamed, rtol=1e-3, atol=1e-6)
    jobs.store(tiny, index, "zeros/all", tokens=data["tokens"])
    with pytest.raises(papa.DamagedArtefact, match="belongs to hidden states with constant zeros instead of None"):
        weighed(tiny, corpus / "read.parquet", BY_PROBE, index=index, **inputs)


def test_orders_go_from_the_smallest_weight_up(tiny, corpus, data, constants):
    path, order = corpus / "gradient.parquet", corpus / "order.parquet"
    actual, _ = weighed(tiny, path, BY_PROBE, constants=constants, **data)
    jobs.rank(path, order, "gradient-3")
    ranked = read_table(order).to_pandas()
    values = [float(actual[pair]) for pair in zip(ranked["layer"], ranked["head"], strict=True)]
    assert values == sorted(actual.flatten().tolist()) and provenance_of(read_table(order))["order"] == "gradient-3"


def test_weights_that_are_not_finite_are_refused(tiny, corpus, data, constants, monkeypatch):
    monkeypatch.setattr(head_weights, "gate_slopes", lambda *_: torch.full((LAYERS, HEADS), torch.nan))
    with pytest.raises(papa.InputError, match="The gradient of a head of tiny is not finite; lower the learning"):
        jobs.weigh(tiny, corpus / "w.parquet", BY_PROBE, constants=constants, **data)


@pytest.mark.parametrize("name", ["distilbert", "deberta-v2", "t5"])
def test_each_example_of_a_batch_can_have_gates_of_its_own(name):
    """In a packed row, in DeBERTa's own attention, and in models that take padded batches."""
    model, inputs = papa.Model(stock(name)), texts()
    packed = model.pack(inputs)
    matrices = torch.rand(model.layers, model.heads, packed.n, packed.n, generator=torch.Generator().manual_seed(2))
    gates = torch.rand(model.layers, len(packed.lengths), model.heads, generator=torch.Generator().manual_seed(3))
    mixes = model.replacement(matrices, mixing=torch.ones(model.layers, model.heads))
    with torch.no_grad():
        actual = model.run(packed, [replace(mix, weights=gate) for mix, gate in zip(mixes, gates, strict=True)])[-1]
        alone = [
            model.run(
                model.pack({key: values[row : row + 1] for key, values in inputs.items()}),
                model.replacement(matrices, mixing=gates[:, row]),
            )[-1]
            for row in range(len(packed.lengths))
        ]
    torch.testing.assert_close(actual, torch.cat(alone), rtol=1e-4, atol=1e-4)


# -- decoders, and units of heads --------------------------------------------------------------------------------------


LENGTH, FINE = 7, 1 / 128
UNITS = pytest.mark.parametrize(("unit", "size"), [("head", 1), ("group", 2), ("layer", 4)])
DIRECT = {"seed": 0, "training": jobs.training(batch_size=5, epochs=0), "encoder_dropout": False}
DIRECT["metric"] = "log_likelihood"


@pytest.fixture
def grouped(tmp_path, tiny_decoder):
    """A decoder in which two heads share their keys, and a corpus of random tokens."""
    ids = jobs.write_tokens(tmp_path, LENGTH, train=12)
    return tiny_decoder, tmp_path / "tokens.parquet", ids


@pytest.fixture
def decoder(tiny_decoder):
    return model_of(jobs.encoding(tiny_decoder), Machine.current())


def losses_of(model, ids, **changed):
    """The loss of each text, `[example]`."""
    logits = model.logits({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, **changed)
    texts = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return texts.view(len(ids), -1).mean(1)


def spread(model, layer, unit, size, value):
    """Ones `[layer, head]` but for the heads of a unit."""
    mixing = torch.ones(model.layers, model.heads)
    mixing[layer, unit * size : (unit + 1) * size] = value
    return mixing


@UNITS
def test_a_unit_has_one_gate(unit, size, grouped, tmp_path):
    """By the own head of a decoder, whose loss needs no probe; Toeplitz matrices are used only below the diagonal."""
    identity, tokens, ids = grouped
    model = load_model(tmp_path / "tiny", device="cpu")
    units = model.heads // size
    more = DIRECT | {"constant": "toeplitz", "unit": unit}
    toeplitz = papa.constant_matrices("toeplitz", model.layers, model.heads, LENGTH)
    slopes = torch.zeros(model.layers, units)
    with torch.no_grad():
        usual = losses_of(model, ids)
        for layer in range(model.layers):
            for number in range(units):
                values = (1 - FINE, 1 - 2 * FINE)
                one, two = (
                    losses_of(model, ids, constants=toeplitz, mixing=spread(model, layer, number, size, value))
                    for value in values
                )
                slopes[layer, number] = ((3 * usual - 4 * one + two) / (2 * FINE)).abs().mean()
    actual, about = weighed(identity, tmp_path / "weights.parquet", more, tokens=tokens)
    assert about["unit_size"] == size
    torch.testing.assert_close(actual, slopes.repeat_interleave(size, dim=1), rtol=0.05, atol=1e-3)


@UNITS
def test_heads_of_a_unit_are_kept_together(unit, size, tiny_decoder, decoder, tmp_path):
    path, total = tmp_path / "order.parquet", decoder.layers * decoder.heads
    jobs.put_in_order(tiny_decoder, path, "random-1", unit=unit)
    for kept in ("1of2", "1of3", "7of8"):
        variant = Variant.parse(f"zeros/random-1/kept-{kept}")
        replaced = heads_to_replace(path, variant, decoder)
        assert (total - len(replaced)) == size * int(variant.fraction * (total // size))
        units = {(layer, head // size) for layer, head in replaced}
        assert len(units) * size == len(replaced), "no unit is cut in two"


@UNITS
def test_one_lambda_for_a_unit_is_learned_from_all_its_heads(unit, size, tiny_decoder, tmp_path):
    jobs.write_tokens(tmp_path, train=12, validation=3)
    path, tokens = tmp_path / "lambda.parquet", tmp_path / "tokens.parquet"
    settings = {"metric": "log_likelihood", "unit": unit}
    jobs.learn(tiny_decoder, path, jobs.training(batch_size=12, epochs=2), 0, "toeplitz", more=settings, tokens=tokens)
    table = read_table(path)
    assert provenance_of(table)["unit_size"] == size
    last = table.to_pandas().query("epoch == 2").sort_values(["layer", "head"])["value"].to_numpy().reshape(-1, size)
    assert (last == last[:, :1]).all() and len(set(last[:, 0].tolist())) == len(last)


def test_an_order_of_other_units_than_the_model_has_is_refused(tiny_decoder, decoder, tmp_path):
    path = tmp_path / "order.parquet"
    jobs.put_in_order(tiny_decoder, path, "random-1")
    table = read_table(path)
    write_table(table, path, provenance_of(table) | {"unit_size": 3})
    with pytest.raises(papa.InputError, match=r"has units of 3 heads, but in this model groups of 2 of the 4 heads"):
        heads_to_replace(path, Variant.parse("zeros/random-1/kept-1of2"), decoder)
