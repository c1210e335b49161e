"""What heads weigh, against what each measure is by definition: naive loops, finite differences, stock modules."""

from dataclasses import replace

import jobs
import pytest
import torch
from sizes import CHANNELS, HEADS, LAYERS, TRAIN
from test_decoders import stock, texts
from torch.nn.functional import cross_entropy

import papa
from papa.data.tokens import Tokens
from papa.files import provenance_of, read_table
from papa.method import head_weights
from papa.method.labelled import GoldLabels, Labelled
from papa.method.probes import ProbeSizes
from papa.model.load import load_model

SEED, BATCH = 3, 5
HOW = jobs.training(batch_size=BATCH)
STEP = 1 / 32
BY_PROBE = {"constant": "average", "seed": SEED, "training": HOW, "encoder_dropout": False}


@pytest.fixture
def constants(tiny, corpus, data):
    """The file of the averages."""
    jobs.average(tiny, data["tokens"], corpus / "average.h5")
    return corpus / "average.h5"


def weighed(tiny, path, by, told=None, **inputs):
    """Weights `[layer, head]` as a job writes them."""
    jobs.weigh(tiny, path, by, told, **inputs)
    table = read_table(path)
    frame = table.to_pandas()
    assert set(frame["epoch"]) == {1}
    own = frame.sort_values(["layer", "head"])["value"].to_numpy()
    return torch.tensor(own).view(int(frame["layer"].max()) + 1, -1), provenance_of(table)


class Lossy:
    """The loss of the original's own probe on batches of training examples, one example of which may be changed."""

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
    found, about = weighed(tiny, corpus / "gradient-3.parquet", "gradient", BY_PROBE, constants=constants, **data)
    assert about["unit_size"] == 1 and found.shape == (LAYERS, HEADS)
    expected = torch.zeros(LAYERS, HEADS, dtype=torch.float64)
    with torch.no_grad():
        for examples in torch.arange(TRAIN).split(BATCH):
            own = [lossy.states(int(example)) for example in examples]
            for layer, head in [(0, 1), (1, 4), (2, 0)]:
                for place, example in enumerate(examples):
                    losses = []
                    for steps in range(3):
                        mixing = torch.ones(LAYERS, HEADS)
                        mixing[layer, head] -= steps * STEP
                        changed = lossy.states(int(example), constants=lossy.mean, mixing=mixing)
                        losses.append(lossy.loss(examples, [*own[:place], changed, *own[place + 1 :]]))
                    slope = (3 * losses[0] - 4 * losses[1] + losses[2]) / (2 * STEP)
                    expected[layer, head] += abs(slope) * len(examples) / TRAIN
    some = expected > 0
    assert int(some.sum()) == 3 and bool((found > 0).all())
    torch.testing.assert_close(found.double()[some], expected[some], rtol=0.05, atol=1e-5)


@pytest.mark.parametrize(("by", "corpus"), [("gradient", "text"), ("leave-one-out", "words")], indirect=["corpus"])
def test_the_probe_may_read_stored_states(by, tiny, corpus, data, constants):
    """They are those of the model as it goes, and the probe and its loss are the same."""
    inputs = {"constants": constants, **data}
    streamed, _ = weighed(tiny, corpus / "streamed.parquet", by, BY_PROBE, **inputs)
    index = corpus / "1of1.json"
    jobs.store(tiny, index, tokens=data["tokens"])
    read, _ = weighed(tiny, corpus / "read.parquet", by, BY_PROBE, index=index, **inputs)
    torch.testing.assert_close(read, streamed, rtol=1e-3, atol=1e-6)
    jobs.store(tiny, index, "zeros/all", tokens=data["tokens"])
    with pytest.raises(papa.DamagedArtefact, match="belongs to hidden states with constant zeros instead of None"):
        weighed(tiny, corpus / "read.parquet", by, BY_PROBE, index=index, **inputs)


def test_what_is_left_out_raises_the_loss_by_its_weight(lossy, tiny, corpus, data, constants, monkeypatch):
    monkeypatch.setattr(head_weights, "LEAVE_ONE_OUT_EXAMPLES", 11)
    found, _ = weighed(tiny, corpus / "leave-one-out-3.parquet", "leave-one-out", BY_PROBE, constants=constants, **data)
    sample = torch.randperm(TRAIN, generator=torch.Generator().manual_seed(SEED))[:11].sort().values

    def mean_loss(**changed):
        parts = [
            lossy.loss(own, [lossy.states(int(example), **changed) for example in own]) * len(own) / 11
            for own in sample.split(BATCH)
        ]
        return sum(parts)

    with torch.no_grad():
        expected = torch.tensor(
            [
                [mean_loss(constants=lossy.mean, heads=[(layer, head)]) - mean_loss() for head in range(HEADS)]
                for layer in range(LAYERS)
            ]
        )
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_variance_is_the_squared_distance_of_rows_to_the_constant(tiny, corpus, data, constants, loaded):
    inputs = {"constants": constants, "tokens": data["tokens"]}
    found, _ = weighed(tiny, corpus / "variance.parquet", "variance", {"constant": "average"}, **inputs)
    tokens = Tokens.read(data["tokens"], "train")["train"]
    mean = papa.ConstantMatrices.load(constants).mean
    expected, rows = torch.zeros(LAYERS, HEADS, dtype=torch.float64), 0
    for example in range(TRAIN):
        batch = tokens.batch(torch.tensor([example]))
        rows += len(batch.slots)

        def see(layer, attention, _, batch=batch):
            for head in range(HEADS):
                own = mean[layer, head][batch.slots][:, batch.slots]
                own = own / own.sum(1, keepdim=True)
                expected[layer, head] += ((attention[0, head] - own) ** 2).sum()

        with torch.no_grad():
            loaded.observe(batch, see)
    torch.testing.assert_close(found.double(), expected / rows, rtol=1e-4, atol=1e-7)


def test_output_norm_is_that_of_what_goes_into_the_output_projection(tiny, corpus, data, model):
    found, _ = weighed(tiny, corpus / "output-norm.parquet", "output-norm", tokens=data["tokens"])
    tokens, sums, rows = Tokens.read(data["tokens"], "train")["train"], torch.zeros(LAYERS, HEADS), 0
    contexts = {}
    for layer, block in enumerate(model.encoder.layer):
        block.attention.output.dense.register_forward_pre_hook(
            lambda _, given, layer=layer: contexts.update({layer: given[0]})
        )
    for example in range(TRAIN):
        inputs = jobs.dense(tokens.batch(torch.tensor([example])))
        real = inputs["attention_mask"][0].bool()
        with torch.no_grad():
            model(**inputs)
        rows += int(real.sum())
        for layer in range(LAYERS):
            heads = contexts[layer][0, real].view(-1, HEADS, CHANNELS)
            sums[layer] += heads.norm(dim=2).sum(0)
    torch.testing.assert_close(found, sums / rows, rtol=1e-4, atol=1e-6)


def test_orders_go_from_the_smallest_weight_up(tiny, corpus, data):
    path, order = corpus / "output-norm.parquet", corpus / "order.parquet"
    found, _ = weighed(tiny, path, "output-norm", tokens=data["tokens"])
    jobs.rank(path, order, "output-norm")
    ranked = read_table(order).to_pandas()
    values = [float(found[pair]) for pair in zip(ranked["layer"], ranked["head"], strict=True)]
    assert values == sorted(found.flatten().tolist()) and provenance_of(read_table(order))["order"] == "output-norm"


@pytest.mark.parametrize("by", ["gradient", "leave-one-out"])
def test_a_probe_needs_a_seed(by, tiny, corpus, data):
    with pytest.raises(papa.InputError, match=f"The weights {by} require a trained probe, and a probe needs a seed"):
        jobs.weigh(tiny, corpus / "w.parquet", by, {"constant": "zeros"}, **data)


def test_weights_that_are_not_finite_are_refused(tiny, corpus, data, monkeypatch):
    monkeypatch.setattr(head_weights, "norms_of_contexts", lambda layer, attention: attention.sum(-1) / 0)
    with pytest.raises(papa.InputError, match="The output-norm of a head of tiny is not finite; lower the learning"):
        jobs.weigh(tiny, corpus / "w.parquet", "output-norm", tokens=data["tokens"])


@pytest.mark.parametrize("name", ["distilbert", "deberta-v2", "t5"])
def test_each_example_of_a_batch_can_have_gates_of_its_own(name):
    """In a packed row, in DeBERTa's own attention, and in models that take padded batches."""
    model, inputs = papa.Model(stock(name)), texts()
    packed = model.pack(inputs)
    matrices = torch.rand(model.layers, model.heads, packed.n, packed.n, generator=torch.Generator().manual_seed(2))
    gates = torch.rand(model.layers, len(packed.lengths), model.heads, generator=torch.Generator().manual_seed(3))
    own = model.replacement(matrices, mixing=torch.ones(model.layers, model.heads))
    with torch.no_grad():
        found = model.run(packed, [replace(mix, weights=gate) for mix, gate in zip(own, gates, strict=True)])[-1]
        alone = [
            model.run(
                model.pack({key: values[row : row + 1] for key, values in inputs.items()}),
                model.replacement(matrices, mixing=gates[:, row]),
            )[-1]
            for row in range(len(packed.lengths))
        ]
    torch.testing.assert_close(found, torch.cat(alone), rtol=1e-4, atol=1e-4)


# -- decoders, and units of heads --------------------------------------------------------------------------------------


LENGTH, FINE = 7, 1 / 128
DIRECT = {
    "seed": 0,
    "training": jobs.training(batch_size=5, epochs=0),
    "encoder_dropout": False,
    "metric": "log_likelihood",
}


@pytest.fixture
def grouped(tmp_path, tiny_decoder):
    """A decoder in which two heads share their keys, and a corpus of random tokens."""
    ids = jobs.write_tokens(tmp_path, LENGTH, train=12)
    return tiny_decoder, tmp_path / "tokens.parquet", ids


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


@pytest.mark.parametrize(("unit", "size"), [("head", 1), ("group", 2), ("layer", 4)])
def test_a_unit_has_one_gate_and_is_left_out_as_one(unit, size, grouped, tmp_path):
    """By the own head of a decoder, whose loss needs no probe; Toeplitz matrices are used below the diagonal alone."""
    identity, tokens, ids = grouped
    model = load_model(tmp_path / "tiny", device="cpu")
    units = model.heads // size
    told = DIRECT | {"constant": "toeplitz", "unit": unit}
    toeplitz = papa.constant_matrices("toeplitz", model.layers, model.heads, LENGTH)
    slopes, rises = (torch.zeros(model.layers, units) for _ in range(2))
    with torch.no_grad():
        usual = losses_of(model, ids)
        for layer in range(model.layers):
            for own in range(units):
                values = (1 - FINE, 1 - 2 * FINE)
                one, two = (
                    losses_of(model, ids, constants=toeplitz, mixing=spread(model, layer, own, size, value))
                    for value in values
                )
                slopes[layer, own] = ((3 * usual - 4 * one + two) / (2 * FINE)).abs().mean()
                heads = [(layer, head) for head in range(own * size, (own + 1) * size)]
                rises[layer, own] = (losses_of(model, ids, constants=toeplitz, heads=heads) - usual).mean()
    for by, expected in (("gradient", slopes), ("leave-one-out", rises)):
        found, about = weighed(identity, tmp_path / "weights.parquet", by, told, tokens=tokens)
        assert about["unit_size"] == size
        near = {"rtol": 0.05, "atol": 1e-3} if by == "gradient" else {"rtol": 1e-3, "atol": 1e-4}
        torch.testing.assert_close(found, expected.repeat_interleave(size, dim=1), **near)


@pytest.mark.parametrize("by", ["variance", "output-norm"])
def test_what_is_seen_of_a_unit_is_the_mean_over_its_heads(by, grouped, tmp_path):
    identity, tokens, _ = grouped
    told = {"constant": "toeplitz"} if by == "variance" else {}
    alone, _ = weighed(identity, tmp_path / "one.parquet", by, told, tokens=tokens)
    for unit, size in (("group", 2), ("layer", 4)):
        found, about = weighed(identity, tmp_path / "unit.parquet", by, told | {"unit": unit}, tokens=tokens)
        means = alone.view(len(alone), -1, size).mean(2)
        torch.testing.assert_close(found, means.repeat_interleave(size, dim=1))
        assert about["unit_size"] == size


def test_a_decoder_is_as_far_from_a_constant_as_it_uses_of_it(grouped, tmp_path):
    """A query of a decoder sees its own and earlier slots, and a constant is cut and divided likewise."""
    identity, tokens, ids = grouped
    found, _ = weighed(identity, tmp_path / "w.parquet", "variance", {"constant": "toeplitz"}, tokens=tokens)
    plain = stock("llama")
    with torch.no_grad():
        attention = torch.stack(plain(ids, output_attentions=True).attentions)  # [layer, example, head, query, key]
    own = papa.constant_matrices("toeplitz", 1, 1, LENGTH)[0, 0].tril()
    own = own / own.sum(1, keepdim=True)
    torch.testing.assert_close(found, (attention - own).square().sum(-1).mean((1, 3)), rtol=1e-4, atol=1e-6)
