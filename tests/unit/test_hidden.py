"""Hidden states: what is stored is what the model computes, and damage is found."""

import errno
import hashlib
from collections import namedtuple
from unittest.mock import Mock, call

import jobs
import pytest
import torch
from families import only, real
from refusals import damage_error, input_error
from sizes import CHANNELS, CORPUS_SLOTS, HEADS, LAYERS, VOCABULARY
from tiny import with_a_flipped_bit

import papa
from papa.data.tokens import Tokens
from papa.method.hidden import StoredStates, _moved, read_index
from papa.method.objectives import Batch
from papa.method.states import StreamedStates


@pytest.fixture
def tokens(corpus):
    return corpus / "tokens.parquet"


def stored(tiny, corpus, **given):
    jobs.store(tiny, corpus / "states.hidden", tokens=corpus / "tokens.parquet", **given)
    return corpus / "states.hidden"


@pytest.mark.parametrize("name", ["average", "identity", "toeplitz", "zeros"])
def test_hidden_states_are_those_of_the_model(tiny, corpus, tokens, name):
    average = corpus / "average.h5"
    jobs.average(tiny, tokens, average)
    given = {"constants": average} if name == "average" else {}  # others are read from no file
    model = papa.load_model(tiny, device="cpu")
    constants = (
        papa.Constants.load(average)
        if given
        else papa.Constants.of(name, LAYERS, HEADS, CORPUS_SLOTS)
    )
    with StoredStates.opened(stored(tiny, corpus, variant=f"{name}/all", **given)) as hidden:
        sizes = [hidden.index[key] for key in ("layers", "hidden", "kept")]
        assert sizes == [LAYERS + 1, HEADS * CHANNELS, 0]
        for part in Tokens.read(tokens).values():
            chosen = torch.tensor([7, 2, 19])
            inputs = jobs.dense(part.batch(chosen))
            expected = real(model.hidden_states(inputs, constants), inputs)
            torch.testing.assert_close(hidden.read(chosen, part), expected, atol=5e-3, rtol=1e-3)
            places = torch.tensor([5, 0, 3])
            assert torch.equal(hidden.read(chosen, part, places), hidden.read(chosen, part)[places])


@jobs.TEXTS
def test_damage_is_found_when_hidden_states_are_read(tiny, corpus, tokens):
    path = stored(tiny, corpus)
    train = Tokens.read(tokens)["train"]
    content = path.read_bytes()
    row = (LAYERS + 1) * HEADS * CHANNELS * 2
    place = int(train.offsets[5]) * row + 3
    facts, _ = read_index(path)
    end = facts["tokens"] * row
    sums = hashlib.blake2b(content[end : end + 4 * facts["rows"]], digest_size=20)
    assert facts["checksums"] == sums.hexdigest()
    with pytest.raises(OSError, match="of another file"), StoredStates.opened(path):
        raise OSError(errno.ENOSPC, "no space left for an output, of another file")

    path.write_bytes(with_a_flipped_bit(content, place))
    with StoredStates.opened(path) as states:
        states.read(torch.tensor([4, 6]), train)
        with damage_error(r"states\.hidden is damaged: the hidden states of row 5 are not"):
            states.read(torch.tensor([5]), train)
    read_index(path)  # only checksums of the whole
    path.write_bytes(with_a_flipped_bit(content, end + 1))
    with (
        damage_error(r"is damaged \(its checksums have changed"),
        StoredStates.opened(path),
    ):
        pass
    for damaged, said in (
        (content[:-2], "its end is missing"),
        (content[2:], r"s\.hidden has"),
        (b"", "its end is missing"),
    ):
        path.write_bytes(damaged)
        with damage_error(said):
            read_index(path)


@jobs.TEXTS
def test_a_disk_too_small_is_found_before_anything_is_written(tiny, corpus, tokens, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("papa.method.hidden.shutil.disk_usage", lambda path: usage(10, 9, 1))
    with input_error(r"the disk of .* has only 1 B free"):
        jobs.store(tiny, corpus / "x" / "states.hidden", tokens=tokens)
    assert list((corpus / "x").iterdir()) == []


@only("bert")
@jobs.TEXTS
@pytest.mark.parametrize(("factor", "scaled"), [(2.0**13, False), (3e4, True), (1e30, True)])
def test_states_beyond_the_range_of_float16_come_back_as_precisely(
    loaded, tiny, corpus, tokens, monkeypatch, factor, scaled
):
    """The states of a few tokens are beyond, so the first batches of a corpus may be within."""
    table = torch.randn(VOCABULARY, LAYERS + 1, HEADS * CHANNELS)
    table[:6, 1] *= factor
    monkeypatch.setattr(
        "papa.method.states.Model.run", lambda _, packed, *more: [*table[packed.ids].unbind(1)]
    )
    split = Tokens.read(tokens)["validation"]
    examples = torch.tensor([7, 2, 19])
    batch = Batch(split, examples, split.batch(examples), gold=examples)
    with StoredStates.opened(stored(tiny, corpus)) as hidden:
        assert hidden.index.get("scaled", False) is scaled
        read = hidden.read(examples, split)
    assert torch.equal(read, StreamedStates(loaded, lambda: None, rounded=True)(batch))
    exact = table[batch.packed.ids]
    within = exact.half().isfinite().all(-1)
    assert bool(within.all()) is not scaled
    assert torch.equal(read[within], exact.half().float()[within])
    largest = exact.abs().amax(-1, keepdim=True)
    allowed = torch.maximum(exact.abs() * 2.0**-11, largest * 2.0**-38)
    assert bool(((read - exact).abs() <= allowed)[~within].all())


def test_a_call_that_moves_only_a_part_is_repeated():
    one_byte = Mock(return_value=1)
    assert _moved(one_byte, 0, memoryview(b"ab"), 5)
    assert one_byte.call_args_list == [call(0, [b"ab"], 5), call(0, [b"b"], 6)]


@only("bert")
@jobs.TEXTS
def test_states_that_are_no_numbers_are_not_stored(tiny, corpus, monkeypatch):
    infinite = [torch.full((1, 4), torch.inf)]
    monkeypatch.setattr("papa.method.states.Model.run", lambda *_: infinite)
    with input_error("state of this model is NaN or infinite"):
        stored(tiny, corpus)
