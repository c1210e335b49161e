"""Hidden states: what is stored is what the model computes, and damage is found."""

import errno
import hashlib
from collections import namedtuple

import jobs
import pytest
import torch
from families import real
from sizes import CHANNELS, CORPUS_SLOTS, HEADS, LAYERS

import papa
from papa.data.tokens import Tokens
from papa.errors import DamagedArtefact
from papa.files import read_json
from papa.method.hidden import HiddenStates, check_hidden


@pytest.fixture
def tokens(corpus):
    return corpus / "tokens.parquet"


def stored(tiny, corpus, **given):
    jobs.store(tiny, corpus / "states.json", tokens=corpus / "tokens.parquet", **given)
    return corpus / "states.json"


@pytest.mark.parametrize("variant", ["average/all", "identity/all", "toeplitz/all", "zeros/all"])
def test_hidden_states_are_those_of_the_model(tiny, corpus, tokens, variant):
    name, average = variant.removesuffix("/all"), corpus / "average.h5"
    jobs.average(tiny, tokens, average)
    given = {"constants": average} if name == "average" else {}  # others are read from no file
    model = papa.load_model(str(corpus / "tiny"), device="cpu")
    constants = papa.Constants.load(average) if given else papa.Constants.of(name, LAYERS, HEADS, CORPUS_SLOTS)
    with HiddenStates.opened(stored(tiny, corpus, variant=variant, **given)) as hidden:
        sizes = [hidden.index[key] for key in ("layers", "hidden", "kept")]
        assert sizes == [LAYERS + 1, HEADS * CHANNELS, 0]
        for part in Tokens.read(tokens).values():
            chosen = torch.tensor([7, 2, 19])
            inputs = jobs.dense(part.batch(chosen))
            expected = real(model.hidden_states(inputs, constants), inputs)
            torch.testing.assert_close(hidden.read(chosen, part), expected, atol=5e-3, rtol=1e-3)
            places = torch.tensor([5, 0, 3])
            assert torch.equal(hidden.read(chosen, part, places), hidden.read(chosen, part)[places])


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_averages_of_other_weights_layouts_or_texts_are_refused(tiny, corpus, tokens):
    jobs.average(tiny, tokens, corpus / "average.h5")
    average = papa.Constants.load(corpus / "average.h5")
    for key in ("kind", "weights", "style", "slots", "corpus"):
        other = papa.Constants(average.sum, average.count, 1, average.about | {key: "sink"})
        other.save(corpus / "other.h5")
        with pytest.raises(papa.InputError, match=rf"other\.h5 was made with {key} sink, but .* is needed"):
            stored(tiny, corpus, variant="average/all", constants=corpus / "other.h5")
        assert not (corpus / "states.json").exists()
    stored(tiny, corpus, variant="average-of-g/all", constants=corpus / "other.h5")  # the corpus alone is another


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_damage_is_found_when_hidden_states_are_read(tiny, corpus, tokens):
    index = stored(tiny, corpus)
    hidden, train = index.with_suffix(".hidden"), Tokens.read(tokens)["train"]
    content, row = hidden.read_bytes(), (LAYERS + 1) * HEADS * CHANNELS * 2
    place = int(train.offsets[5]) * row + 3
    sums = hashlib.blake2b(content[-4 * read_json(index)["rows"] :], digest_size=20)
    assert read_json(index)["checksums"] == sums.hexdigest()  # also in files of earlier versions
    with pytest.raises(OSError, match="of another file"), HiddenStates.opened(index):
        raise OSError(errno.ENOSPC, "no space left for an output, of another file")
    hidden.write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
    with HiddenStates.opened(index) as states:
        states.read(torch.tensor([4, 6]), train)
        with pytest.raises(DamagedArtefact, match=r"states\.hidden is damaged: the hidden states of row 5 are not"):
            states.read(torch.tensor([5]), train)
    check_hidden(index)  # only checksums of the whole
    hidden.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    damaged = pytest.raises(DamagedArtefact, match=r"states\.hidden is damaged or does not match its index")
    with damaged, HiddenStates.opened(index):
        pass
    hidden.write_bytes(content[:-2])
    with pytest.raises(DamagedArtefact, match=r"states\.hidden has"):
        check_hidden(index)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_a_disk_too_small_is_found_before_anything_is_written(tiny, corpus, tokens, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("papa.method.hidden.shutil.disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(papa.InputError, match=r"the disk of .* has only 1 B free"):
        jobs.store(tiny, corpus / "x" / "states.json", tokens=tokens)
    assert list((corpus / "x").iterdir()) == []


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
@pytest.mark.parametrize(
    ("variant", "what"),
    [
        ("average/all", "constant zeros instead of average"),
        ("zeros/lambda-0/kept-1of2", "order None instead of lambda-0"),
        ("original", "constant zeros instead of None"),
    ],
)
def test_hidden_states_of_another_job_are_refused(tiny, corpus, tokens, variant, what):
    index = stored(tiny, corpus, variant="zeros/all")
    given = {"tokens": tokens, "labels": corpus / "labels.parquet", "index": index}
    with pytest.raises(DamagedArtefact, match=rf"states.json belongs to hidden states with {what};"):
        jobs.probe(tiny, corpus / "run.json", variant=variant, **given)
    with pytest.raises(DamagedArtefact, match="with model tiny instead of other"):
        jobs.probe("other", corpus / "run.json", variant="zeros/all", **given)
