"""A pass over a corpus in groups and parts: the same numbers, whatever the parts, and less memory if it runs out."""

import weakref

import jobs
import pytest
import torch
from families import close
from refusals import input_error
from sizes import LAYERS, TRAIN, VALIDATION

import papa
from papa.data.tokens import Tokens
from papa.files import read_table
from papa.method.averaging import Averaging
from papa.method.hidden import StoredStates
from papa.model.budget import TokenBudget
from papa.model.model import Model

ROWS = TRAIN + VALIDATION


class Scarce:
    """A model that has no memory for more than `most` tokens at once in a layer, from the query `from_query` on."""

    def __init__(self, model, most, layer=0, from_query=0):
        self.model = model
        self.most = most
        self.layer = layer
        self.from_query = from_query
        self.failed = []
        self.alive_at_next_attempt = []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def watch(self, batch, observer, at_once=None):
        self.alive_at_next_attempt.append(sum(reference() is not None for reference in self.failed))

        def short(layer, attention, begin):
            if (
                layer.index == self.layer
                and len(batch.ids) > self.most
                and begin >= self.from_query
            ):
                self.failed.append(weakref.ref(attention))
                raise torch.OutOfMemoryError("out of memory")
            observer(layer, attention, begin)

        self.model.watch(batch, short, at_once)


@pytest.fixture
def train(corpus):
    return Tokens.read(corpus / "tokens.parquet")["train"]


def same(first, second):
    assert first.examples == second.examples == TRAIN
    assert torch.equal(first.count, second.count)
    close(first.sum, second.sum, atol=1e-5, rtol=1e-6)


@jobs.TEXTS
@pytest.mark.parametrize(
    ("layer", "from_query"), [(0, 0), (LAYERS - 1, 0), (0, 3), (LAYERS - 1, 3)]
)
def test_less_memory_gives_the_same_averages(loaded, train, layer, from_query, caplog, monkeypatch):
    """Halves resume at the layer, and at the block of queries, that was not added."""
    sums = []
    if from_query:
        monkeypatch.setattr("papa.method.averaging.OBSERVED_AT_ONCE", 1)
    for scarce in (Scarce(loaded, 10**9), Scarce(loaded, 20, layer, from_query)):
        budget = TokenBudget(100)
        averaging = Averaging(scarce, train.n)
        done = budget.run(
            scarce,
            train,
            lambda _, batch, first, to=averaging: to.add(batch, first),
            lambda to=averaging: to.added,
        )
        assert torch.cat(list(done)).sort().values.tolist() == list(range(TRAIN))
        sums.append(averaging.averages())
    assert scarce.failed
    assert not any(scarce.alive_at_next_attempt)
    assert 5 <= budget.tokens <= 20
    assert "is out of memory with" in caplog.text
    same(*sums)


@jobs.TEXTS
@pytest.mark.parametrize("number", [0, 1, LAYERS])
def test_a_layer_that_cannot_be_added_is_not_counted(loaded, train, monkeypatch, number):
    sums = []
    calls = []
    plain = torch.Tensor.index_add_

    def failing(self, *arguments):
        calls.append(1)
        if sums and len(calls) == number + 1:
            raise torch.OutOfMemoryError("out of memory")
        return plain(self, *arguments)

    monkeypatch.setattr(torch.Tensor, "index_add_", failing)
    for _ in range(2):
        calls.clear()
        averaging = Averaging(loaded, train.n)
        list(averaging.add_group(train, TokenBudget(100)))
        sums.append(averaging.averages())
    same(*sums)


@pytest.fixture
def scarce(monkeypatch):
    """Let a model run out of memory with more than this number of tokens; returns the sizes of all passes."""

    def make(most, run=Model.run):
        sizes = []

        def short(self, packed, *options):
            sizes.append(len(packed.ids))
            if len(packed.ids) > most:
                raise torch.OutOfMemoryError("out of memory")
            return run(self, packed, *options)

        monkeypatch.setattr(Model, "run", short)
        return sizes

    return make


@pytest.mark.parametrize(
    ("corpus", "weights"), [("words", "lambda"), ("words", "gradient")], indirect=["corpus"]
)
def test_less_memory_gives_the_same_weights_of_heads(
    model, place_tiny, data, corpus, weights, scarce, caplog
):
    """A batch is halved, and its parts count by their number of labels, which differ between texts of words."""
    model.config.hidden_dropout_prob = 0.0  # a probe's dropout draws other values for parts
    tiny = place_tiny(model)
    how = jobs.training(batch_size=13, epochs=1)

    def weigh(path):
        jobs.learn(tiny, path, how, constant="toeplitz", seed=1, weights=weights, **data)
        return torch.tensor(read_table(path).to_pandas()["value"].to_numpy())

    whole = weigh(corpus / "whole.parquet")
    sizes = scarce(41)
    halved = weigh(corpus / "halved.parquet")
    assert max(sizes) > 41
    assert "is out of memory with 13 examples at once; continuing with 7" in caplog.text
    assert float(whole.std()) > 1e-6
    close(halved, whole, rtol=1e-3)


@jobs.TEXTS
def test_a_training_example_that_does_not_fit_is_an_error(tiny, corpus, data, scarce):
    scarce(2)
    with input_error("is too small for one training example; use fewer slots"):
        jobs.learn(
            tiny, corpus / "lambda.parquet", jobs.training(epochs=1), constant="toeplitz", **data
        )


def states_of(index, tokens):
    with StoredStates.opened(index) as hidden:
        return hidden.read(torch.arange(TRAIN), tokens)


@jobs.TEXTS
def test_less_memory_gives_the_same_hidden_states(tiny, corpus, train, scarce, caplog):
    index = corpus / "states.hidden"
    jobs.store(tiny, index, tokens=corpus / "tokens.parquet")
    expected = states_of(index, train)
    scarce(17)
    jobs.store(tiny, index, tokens=corpus / "tokens.parquet")
    assert "continuing with token_budget" in caplog.text
    close(states_of(index, train), expected, atol=2e-3, rtol=1e-3)


@jobs.TEXTS
def test_a_smaller_precision_is_near_and_not_the_same(tiny, corpus):
    within = 0.1
    tokens = corpus / "tokens.parquet"
    averages = []
    read = []
    for name in ("float32", "bfloat16"):
        jobs.average(tiny, tokens, corpus / f"{name}.h5", precision=name)
        averages.append(papa.Constants.load(corpus / f"{name}.h5"))
        given = {"tokens": tokens, "constants": corpus / "float32.h5"}
        jobs.store(tiny, corpus / f"{name}.hidden", "average/all", precision=name, **given)
        read.append(states_of(corpus / f"{name}.hidden", Tokens.read(tokens)["train"]))
    exact, rough = averages
    assert rough.sum.dtype == torch.float64
    assert 0 < float((rough.mean - exact.mean).abs().max()) < within
    assert 1e-5 < float((read[1] - read[0]).norm() / read[0].norm()) < within


@jobs.TEXTS
def test_a_batch_that_cannot_be_moved_is_still_averaged(loaded, train, monkeypatch):
    sums = []
    plain = Model.pack

    def short(self, packed):
        if sums and len(packed.lengths) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return plain(self, packed)

    monkeypatch.setattr(Model, "pack", short)
    for _ in range(2):
        averaging = Averaging(loaded, train.n)
        list(averaging.add_group(train, TokenBudget(20)))
        sums.append(averaging.averages())
    same(*sums)
