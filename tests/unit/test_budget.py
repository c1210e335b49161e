"""Passes over a corpus in groups and parts: the same numbers, whatever the parts, and less memory where it runs out."""

import json
import logging
import weakref
from itertools import pairwise

import pytest
import torch
from sizes import CHANNELS, HEADS, LAYERS, TRAIN, VALIDATION

import papa
from papa.config.variant import parts_of, rows_of
from papa.data.tokens import Tokens, TokensFile
from papa.errors import DamagedArtefact, InputError
from papa.files import write_json
from papa.method.averages import Averaging, average_corpus, merge_averages
from papa.method.features import extract_features
from papa.method.hidden import HiddenStates
from papa.method.training import train_probe
from papa.model.budget import TokenBudget
from papa.model.load import model_of

ROWS = TRAIN + VALIDATION


def test_groups_hold_every_row_once(corpus):
    whole = Tokens.read(corpus / "tokens.parquet")
    with TokensFile.opened(corpus / "tokens.parquet") as file:
        assert file.rows == ROWS and len(file.groups) == 3
        assert [own.tokens for own in file.splits.values()] == [len(part.ids) for part in whole.values()]
        groups = [group for _, group in file.between(0, ROWS)]
        assert torch.equal(torch.cat([group.ids for group in groups]), torch.cat([part.ids for part in whole.values()]))
        assert [group.rows for group in groups] == [(own.first, own.rows) for own in file.groups]
        some = [group for _, group in file.between(TRAIN - 3, TRAIN + 2)]
        assert [(group.split, group.rows) for group in some] == [("train", (TRAIN - 3, 3)), ("validation", (TRAIN, 2))]
        assert torch.equal(some[0].ids, whole["train"].ids[whole["train"].offsets[-4] :])
        assert file.tokens_before(TRAIN - 3) == int(whole["train"].offsets[-4])
        assert [number for number, _ in file.between(0, ROWS, group=2)] == [2]


def test_parts_cover_all_rows_and_none_is_empty():
    for shards in (1, 2, 7):
        bounds = [rows_of(part, 11) for part in parts_of(shards)]
        assert (
            bounds[0][0] == 0 and bounds[-1][1] == 11 and all(end == begin for (_, end), (begin, _) in pairwise(bounds))
        )
    with pytest.raises(InputError, match="3 examples cannot be cut in 5 parts; lower shards"):
        rows_of("1of5", 3)


def test_averages_of_parts_add_up_to_those_of_the_whole(tiny, corpus):
    tokens, places = corpus / "tokens.parquet", [corpus / f"{part}.h5" for part in parts_of(3)]
    average_corpus(tiny, tokens, corpus / "whole.h5")
    for part, place in zip(parts_of(3), places, strict=True):
        average_corpus(tiny, tokens, place, part)
    merge_averages(places, corpus / "merged.h5")
    whole, merged = (papa.ConstantMatrices.load(corpus / f"{name}.h5") for name in ("whole", "merged"))
    assert (merged.examples, merged.about) == (TRAIN, whole.about) and torch.equal(merged.count, whole.count)
    torch.testing.assert_close(merged.sum, whole.sum, atol=1e-5, rtol=1e-6)
    # one unit in the last place of a weight of 1: sums in another order may round to the next float32
    torch.testing.assert_close(merged.mean, whole.mean, atol=torch.finfo(torch.float32).eps, rtol=0)
    for wrong in (places[:2], [places[0], places[0], places[1]], [corpus / "whole.h5"] * 3):
        with pytest.raises(InputError, match=r"The averages of . parts are needed"):
            merge_averages(wrong, corpus / "wrong.h5")
    with pytest.raises(InputError, match="is the average over a part of a corpus, 1of3"):
        extract_features(tiny, tokens, corpus / "x", corpus / "y", places[0], fraction="0")


def stored(tiny, corpus, shards, **settings):
    """The hidden states of a corpus in so many parts: the files, and their indices."""
    files = [[corpus / f"{part}.{form}" for part in parts_of(shards)] for form in ("hidden", "json")]
    for part, hidden, index in zip(parts_of(shards), *files, strict=True):
        extract_features(tiny, corpus / "tokens.parquet", hidden, index, part=part, **settings)
    return files


def test_hidden_states_of_parts_are_those_of_the_whole(tiny, corpus):
    whole, _ = HiddenStates.opened(*stored(tiny, corpus, 1))
    parts = stored(tiny, corpus, 5)
    split, _ = HiddenStates.opened(*(files[::-1] for files in parts))  # in any order
    for tokens in Tokens.read(corpus / "tokens.parquet").values():
        chosen = torch.randperm(len(tokens))
        torch.testing.assert_close(split.read(chosen, tokens), whole.read(chosen, tokens), atol=2e-3, rtol=1e-3)
    with pytest.raises(DamagedArtefact, match=r"4of5\.hidden begins with row 58 where 39 was expected"):
        HiddenStates.opened(*([*files[:2], *files[3:]] for files in parts))
    with pytest.raises(DamagedArtefact, match="not all rows are there"):
        HiddenStates.opened(*(files[:-1] for files in parts))


def test_damaged_hidden_states_are_found_when_they_are_read(tiny, corpus):
    [hidden], [index] = stored(tiny, corpus, 1)
    content, train = hidden.read_bytes(), Tokens.read(corpus / "tokens.parquet")["train"]
    row = (LAYERS + 1) * HEADS * CHANNELS * 2
    place = int(train.offsets[5]) * row + 3
    hidden.write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
    states, _ = HiddenStates.opened([hidden], [index])
    states.read(torch.tensor([4, 6]), train)
    with pytest.raises(DamagedArtefact, match=r"1of1\.hidden is damaged: the hidden states of row 5 are not"):
        states.read(torch.tensor([5]), train)
    hidden.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedArtefact, match=r"1of1\.hidden is damaged or of other hidden states"):
        HiddenStates.opened([hidden], [index])


@pytest.mark.parametrize(
    ("about", "what"),
    [
        ({"model": "other"}, "model tiny where other was"),
        ({"constant": "average"}, "constant zeros where average was"),
        ({"fraction": "1/2"}, "kept 0 where 7 was"),
        ({"order": "lambda"}, "order None where lambda was"),
    ],
)
def test_hidden_states_of_another_job_are_refused(tiny, corpus, about, what):
    files = stored(tiny, corpus, 1, fraction="0", kind="zeros")
    own = {"model": "tiny", "constant": "zeros", "order": None, "fraction": "0"}
    task = {"metric": "accuracy", "learning_rate": 1e-2, "batch_size": 5, "epochs": 1}
    out = corpus / "run.json", corpus / "probe.safetensors"
    with pytest.raises(DamagedArtefact, match=f"1of1.json holds hidden states with {what} expected"):
        train_probe(corpus / "tokens.parquet", corpus / "labels.parquet", *files, *out, task, 1, own | about)


class Scarce:
    """An encoder that has no memory for more than `most` tokens at once, from its layer `layer` on."""

    def __init__(self, encoder, most, layer=0):
        self.encoder, self.most, self.layer, self.failed = encoder, most, layer, []
        self.alive_at_next_attempt = []

    def __getattr__(self, name):
        return getattr(self.encoder, name)

    def observe(self, batch, observer):
        self.alive_at_next_attempt.append(sum(reference() is not None for reference in self.failed))

        def short(layer, attention, examples):
            if layer == self.layer and len(batch.ids) > self.most:
                self.failed.append(weakref.ref(attention))
                raise torch.OutOfMemoryError("out of memory")
            observer(layer, attention, examples)

        self.encoder.observe(batch, short)


@pytest.mark.parametrize("layer", [0, 1, LAYERS - 1])
def test_less_memory_gives_the_same_averages(tiny, corpus, layer, caplog):
    train = Tokens.read(corpus / "tokens.parquet")["train"]
    encoder = model_of(tiny)
    sums = []
    for scarce in (Scarce(encoder, 10**9), Scarce(encoder, 20, layer)):
        budget, averaging = TokenBudget(100), Averaging(scarce, train.n)
        done = budget.run(
            scarce, train, lambda _, batch, first, own=averaging: own.add(batch, first), lambda own=averaging: own.added
        )
        assert torch.cat(list(done)).sort().values.tolist() == list(range(TRAIN))
        sums.append(averaging.constants())
    assert scarce.failed and not any(scarce.alive_at_next_attempt)
    assert 5 <= budget.tokens <= 20 and "is out of memory with" in caplog.text
    assert sums[0].examples == sums[1].examples == TRAIN and torch.equal(sums[0].count, sums[1].count)
    torch.testing.assert_close(sums[0].sum, sums[1].sum, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("number", [0, 1, LAYERS])
def test_a_layer_that_cannot_be_added_is_not_counted(tiny, corpus, monkeypatch, number):
    train, encoder = Tokens.read(corpus / "tokens.parquet")["train"], model_of(tiny)
    sums, calls, plain = [], [], torch.Tensor.index_add_

    def failing(self, *arguments):
        calls.append(1)
        if len(sums) == 1 and len(calls) == number + 1:
            raise torch.OutOfMemoryError("out of memory")
        return plain(self, *arguments)

    monkeypatch.setattr(torch.Tensor, "index_add_", failing)
    for _ in range(2):
        calls.clear()
        averaging = Averaging(encoder, train.n)
        list(averaging.over(train, TokenBudget(100)))
        sums.append(averaging.constants())
    assert sums[0].examples == sums[1].examples and torch.equal(sums[0].count, sums[1].count)
    torch.testing.assert_close(sums[0].sum, sums[1].sum, atol=1e-5, rtol=1e-6)


def test_less_memory_gives_the_same_hidden_states(tiny, corpus, monkeypatch, caplog):
    [hidden], [index] = stored(tiny, corpus, 1)
    whole, _ = HiddenStates.opened([hidden], [index])
    train = Tokens.read(corpus / "tokens.parquet")["train"]
    expected = whole.read(torch.arange(TRAIN), train)
    run = papa.Model.run

    def short(self, batch, *options):
        if len(batch.ids) > 17:
            raise torch.OutOfMemoryError("out of memory")
        return run(self, batch, *options)

    monkeypatch.setattr("papa.model.model.Model.run", short)
    monkeypatch.setattr("papa.model.load.check", lambda *_: None)
    with caplog.at_level(logging.WARNING):
        files = stored(tiny, corpus, 1)
    assert "going on with token_budget" in caplog.text
    again, _ = HiddenStates.opened(*files)
    torch.testing.assert_close(again.read(torch.arange(TRAIN), train), expected, atol=2e-3, rtol=1e-3)


def test_an_example_that_does_not_fit_is_an_error(tiny, corpus):
    train = Tokens.read(corpus / "tokens.parquet")["train"]
    scarce = Scarce(model_of(tiny), 2)
    averaging = Averaging(scarce, train.n)
    with pytest.raises(InputError, match=r"does not do for one example of . tokens; take fewer slots"):
        list(averaging.over(train, TokenBudget(100)))


@pytest.mark.parametrize(("precision", "within"), [("bfloat16", 0.1), ("float16", 0.02)])
def test_a_smaller_precision_is_near_and_not_the_same(tiny, corpus, precision, within):
    tokens = Tokens.read(corpus / "tokens.parquet")["train"]
    average_corpus(tiny, corpus / "tokens.parquet", corpus / "exact.h5")
    average_corpus(tiny | {"precision": precision}, corpus / "tokens.parquet", corpus / "rough.h5")
    exact, rough = (papa.ConstantMatrices.load(corpus / f"{name}.h5") for name in ("exact", "rough"))
    assert rough.sum.dtype == torch.float64 and rough.about["precision"] == precision
    assert 0 < float((rough.mean - exact.mean).abs().max()) < within
    behind = {"constants": corpus / "exact.h5", "fraction": "0"}
    read = []
    for model in (tiny, tiny | {"precision": precision}):
        states, _ = HiddenStates.opened(*stored(model, corpus, 1, **behind))
        read.append(states.read(torch.arange(TRAIN), tokens))
    difference = float((read[1] - read[0]).norm() / read[0].norm())
    assert 1e-5 < difference < within


def test_indices_of_different_hidden_states_do_not_go_together(tiny, corpus):
    files = stored(tiny, corpus, 2)
    about = json.loads(files[1][1].read_text()) | {"weights": "other"}
    write_json(about, files[1][1])
    with pytest.raises(DamagedArtefact, match=r"2of2\.json and .*1of2\.json differ in weights"):
        HiddenStates.opened(*files)
