"""The weights of heads, against the definition of each: naive loops, finite differences, stock modules."""

from dataclasses import replace
from itertools import product

import jobs
import pytest
import torch
from families import close, rows_of, stock, texts
from refusals import input_error
from sizes import HEADS, LAYERS, TRAIN
from torch.nn.functional import cross_entropy

import papa
from papa.data.tokens import Tokens
from papa.files import read_table
from papa.method import head_weights
from papa.method.objectives import GoldLabels, Labelled, ProbeSizes
from papa.model.load import load_model

SEED = 3
BATCH = 5
HOW = jobs.training(batch_size=BATCH)
STEP = 1 / 32
BY_PROBE = {"how": HOW, "seed": SEED}


@pytest.fixture
def constants(tiny, corpus, data):
    jobs.average(tiny, data["tokens"], corpus / "average.h5")
    return corpus / "average.h5"


def weighed(tiny, path, more, **inputs):
    """Weights `[layer, head]` as a job writes them."""
    jobs.weigh(tiny, path, **more, **inputs)
    frame = read_table(path).to_pandas()
    assert set(frame["epoch"]) == {1}
    values = frame.sort_values(["layer", "head"])["value"].to_numpy()
    return torch.tensor(values).view(int(frame["layer"].max()) + 1, -1)


class Lossy:
    """The loss of the original's own probe on batches of training examples; one example may be changed."""

    def __init__(self, model, data, state, mean):
        self.model = model
        self.mean = mean
        self.split = Tokens.read(data["tokens"], "train")
        self.objective = Labelled(
            self.split,
            ProbeSizes.of(self.model),
            GoldLabels.read(data["labels"], "label t", self.split["train"]),
        )
        self.objective.probe.load_state_dict(state)
        self.objective.probe.eval()

    def states(self, example, **changed):
        inputs = jobs.dense(self.split["train"].batch(torch.tensor([example])))
        hidden = self.model.hidden_states(inputs, **changed)  # [1, L+1, slot, hidden]
        return hidden[0][:, inputs["attention_mask"][0].bool()].transpose(0, 1)

    def loss(self, examples, states):
        batch = self.objective.batch(examples)
        every = torch.cat(states)
        return float(
            self.objective.loss(batch, every if batch.positions is None else every[batch.positions])
        )


@pytest.fixture
def lossy(tiny, corpus, data, constants, loaded):
    state = jobs.trained(tiny, corpus / "original.parquet", HOW, SEED, **data)
    return Lossy(loaded, data, state, papa.Constants.load(constants).mean)


def test_a_gradient_is_the_slope_of_the_loss_of_each_example(lossy, tiny, corpus, data, constants):
    actual = weighed(tiny, corpus / "gradient-3.parquet", BY_PROBE, constants=constants, **data)
    assert actual.shape == (LAYERS, HEADS)
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
                        losses.append(
                            lossy.loss(examples, [*states[:place], changed, *states[place + 1 :]])
                        )
                    slope = (3 * losses[0] - 4 * losses[1] + losses[2]) / (2 * STEP)
                    expected[layer, head] += abs(slope) * len(examples) / TRAIN
    some = expected > 0
    assert int(some.sum()) == 3
    assert bool((actual > 0).all())
    close(actual.double()[some], expected[some], rtol=0.05, atol=1e-5)


def test_the_probe_may_read_stored_states(tiny, corpus, data, constants):
    """They are those of the model as it goes, and the probe and its loss are the same."""
    inputs = {"constants": constants, **data}
    streamed = weighed(tiny, corpus / "streamed.parquet", BY_PROBE, **inputs)
    jobs.store(tiny, corpus / "states.hidden", tokens=data["tokens"])
    read = weighed(
        tiny, corpus / "read.parquet", BY_PROBE, states=corpus / "states.hidden", **inputs
    )
    close(read, streamed, rtol=1e-3, atol=1e-6)


def test_weights_that_are_not_finite_are_refused(tiny, corpus, data, constants, monkeypatch):
    monkeypatch.setattr(
        head_weights, "gate_slopes", lambda *_: torch.full((LAYERS, HEADS), torch.nan)
    )
    with input_error("The gradient of a head of tiny is not finite; lower the learning"):
        jobs.weigh(tiny, corpus / "w.parquet", HOW, constants=constants, **data)


@pytest.mark.parametrize("name", ["distilbert", "deberta-v2", "t5"])
def test_each_example_of_a_batch_can_have_gates_of_its_own(name):
    """In a packed row, in DeBERTa's own attention, and in models that take padded batches."""
    model = papa.Model(stock(name))
    inputs = texts()
    packed = model.pack(inputs)
    matrices = torch.rand(
        model.layers, model.heads, packed.n, packed.n, generator=torch.Generator().manual_seed(2)
    )
    gates = torch.rand(
        model.layers, len(packed.lengths), model.heads, generator=torch.Generator().manual_seed(3)
    )
    mixes = model.replacement(matrices, mixing=torch.ones(model.layers, model.heads))
    with torch.no_grad():
        actual = model.run(
            packed, [replace(mix, weights=gate) for mix, gate in zip(mixes, gates, strict=True)]
        )[-1]
        alone = [
            model.run(
                model.pack(rows_of(inputs, [row])),
                model.replacement(matrices, mixing=gates[:, row]),
            )[-1]
            for row in range(len(packed.lengths))
        ]
    close(actual, torch.cat(alone), rtol=1e-4)


LENGTH = 7
FINE = 1 / 128
DIRECT = {"how": jobs.training(batch_size=5, epochs=0), "metric": "log_likelihood"}


@pytest.fixture
def grouped(tmp_path, tiny_decoder):
    """A decoder in which two heads share their keys, and a corpus of random tokens."""
    ids = jobs.write_tokens(tmp_path, LENGTH, train=12)
    return tiny_decoder, tmp_path / "tokens.parquet", ids


def losses_of(model, ids, **changed):
    """The loss of each text, `[example]`."""
    logits = model.logits({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, **changed)
    return cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def test_the_head_of_a_decoder_needs_no_probe(grouped, tmp_path):
    """By the own head of a decoder; Toeplitz matrices are used only below the diagonal."""
    identity, tokens, ids = grouped
    model = load_model(tmp_path / "tiny", device="cpu")
    toeplitz = papa.Constants.of("toeplitz", model.layers, model.heads, LENGTH)
    slopes = torch.zeros(model.layers, model.heads)
    with torch.no_grad():
        usual = losses_of(model, ids)
        for layer, head in product(range(model.layers), range(model.heads)):
            mixing = torch.ones(2, model.layers, model.heads)
            mixing[:, layer, head] -= torch.tensor([FINE, 2 * FINE])
            one, two = (losses_of(model, ids, constants=toeplitz, mixing=gates) for gates in mixing)
            slopes[layer, head] = ((3 * usual - 4 * one + two) / (2 * FINE)).abs().mean()
    actual = weighed(
        identity, tmp_path / "weights.parquet", DIRECT | {"constant": "toeplitz"}, tokens=tokens
    )
    close(actual, slopes, rtol=0.05, atol=1e-3)
