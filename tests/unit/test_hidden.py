"""Hidden states: what is stored is what the model computes, whatever the parts, and damage is found."""

import json
import os
from collections import namedtuple
from contextlib import ExitStack

import jobs
import pytest
import torch
from families import real
from sizes import CHANNELS, CORPUS_SLOTS, HEADS, LAYERS

import papa
from papa.config.variant import part_names
from papa.data.tokens import Tokens
from papa.errors import DamagedArtefact
from papa.files import write_json
from papa.method.hidden import HiddenStates, check_part


@pytest.fixture
def tokens(corpus):
    return corpus / "tokens.parquet"


@pytest.fixture
def opened():
    with ExitStack() as stack:
        yield lambda indices: stack.enter_context(HiddenStates.opened(indices))


def stored(tiny, corpus, shards=1, **given):
    """The indices of the hidden states of a corpus in parts."""
    indices = [corpus / f"{part}.json" for part in part_names(shards)]
    for part, index in zip(part_names(shards), indices, strict=True):
        jobs.store(tiny, index, part=part, tokens=corpus / "tokens.parquet", **given)
    return indices


def test_hidden_states_are_those_of_the_model(tiny, corpus, tokens, opened):
    average = corpus / "average.h5"
    jobs.average(tiny, tokens, average)
    hidden = opened(stored(tiny, corpus, variant="average/all", constants=average))
    assert (hidden.index["layers"], hidden.index["hidden"], hidden.index["kept"]) == (LAYERS + 1, HEADS * CHANNELS, 0)
    model = papa.load_model(str(corpus / "tiny"), device="cpu")
    for part in Tokens.read(tokens).values():
        chosen = torch.tensor([7, 2, 19])
        batch = part.batch(chosen)
        inputs = jobs.dense(batch)
        expected = real(model.hidden_states(inputs, papa.ConstantMatrices.load(average)), inputs)
        torch.testing.assert_close(hidden.read(chosen, part), expected, atol=5e-3, rtol=1e-3)
        places = torch.tensor([5, 0, 3])
        assert torch.equal(hidden.read(chosen, part, places), hidden.read(chosen, part)[places])


@pytest.mark.parametrize("name", ["identity", "toeplitz", "zeros"])
@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_constants_that_need_no_text_are_read_from_no_file(tiny, corpus, tokens, opened, name):
    hidden = opened(stored(tiny, corpus, variant=f"{name}/all"))
    model = papa.load_model(str(corpus / "tiny"), device="cpu")
    part, chosen = Tokens.read(tokens)["validation"], torch.tensor([3, 0])
    matrices = papa.constant_matrices(name, LAYERS, HEADS, CORPUS_SLOTS)
    expected = torch.stack(model.run(model.pack(part.batch(chosen)), model.replacement(matrices)), dim=1)
    torch.testing.assert_close(hidden.read(chosen, part), expected, atol=5e-3, rtol=1e-3)


def test_hidden_states_of_parts_are_those_of_all(tiny, corpus, tokens, opened):
    together = opened(stored(tiny, corpus))
    parts = stored(tiny, corpus, 5)
    apart = opened(parts[::-1])  # in any order
    for split in Tokens.read(tokens).values():
        chosen = torch.randperm(len(split))
        torch.testing.assert_close(apart.read(chosen, split), together.read(chosen, split), atol=2e-3, rtol=1e-3)
    with pytest.raises(DamagedArtefact, match=r"4of5\.hidden begins at row 58 and not 39"):
        opened([*parts[:2], *parts[3:]])
    with pytest.raises(DamagedArtefact, match="but there are more"):
        opened(parts[:-1])


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_files_are_closed(tiny, corpus, tokens):
    before = len(os.listdir("/proc/self/fd"))
    with HiddenStates.opened(stored(tiny, corpus, 3)):
        assert len(os.listdir("/proc/self/fd")) == before + 3
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_damage_is_found_when_hidden_states_are_read(tiny, corpus, tokens, opened):
    [index] = stored(tiny, corpus)
    hidden, train = index.with_suffix(".hidden"), Tokens.read(tokens)["train"]
    content, row = hidden.read_bytes(), (LAYERS + 1) * HEADS * CHANNELS * 2
    place = int(train.offsets[5]) * row + 3
    hidden.write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
    states = opened([index])
    states.read(torch.tensor([4, 6]), train)
    with pytest.raises(DamagedArtefact, match=r"1of1\.hidden is damaged: the hidden states of row 5 are not"):
        states.read(torch.tensor([5]), train)
    check_part(index)
    with pytest.raises(DamagedArtefact, match=r"the hidden states of row 5 are not"):
        check_part(index, train.lengths.tolist())
    hidden.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedArtefact, match=r"1of1\.hidden is damaged or does not match its index"):
        opened([index])
    hidden.write_bytes(content[:-2])
    with pytest.raises(DamagedArtefact, match=r"1of1\.hidden has"):
        check_part(index)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_indices_of_different_hidden_states_do_not_go_together(tiny, corpus, tokens, opened):
    indices = stored(tiny, corpus, 2)
    about = json.loads(indices[1].read_text()) | {"weights": "other"}
    del about["papa"]
    write_json(about, indices[1])
    with pytest.raises(DamagedArtefact, match=r"2of2\.json and .*1of2\.json differ in weights"):
        opened(indices)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_a_disk_too_small_is_found_before_anything_is_written(tiny, corpus, tokens, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("papa.method.hidden.shutil.disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(papa.InputError, match=r"the disk of .* has only 0\.0 kB free"):
        jobs.store(tiny, corpus / "x" / "1of1.json", tokens=tokens)
    assert list((corpus / "x").iterdir()) == []


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_averages_of_other_weights_layouts_or_texts_are_refused(tiny, corpus, tokens):
    jobs.average(tiny, tokens, corpus / "average.h5")
    average = papa.ConstantMatrices.load(corpus / "average.h5")
    for key in ("weights", "style", "slots", "corpus"):
        other = papa.ConstantMatrices(average.sum, average.count, 1, average.about | {key: "other"})
        other.save(corpus / "other.h5")
        with pytest.raises(papa.InputError, match=rf"other\.h5 was made with {key} other, but .* is needed"):
            stored(tiny, corpus, variant="average/all", constants=corpus / "other.h5")
        assert not (corpus / "1of1.json").exists()
    stored(tiny, corpus, variant="average-of-g/all", constants=corpus / "other.h5")  # the corpus alone is another


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
    with pytest.raises(DamagedArtefact, match=rf"1of1.json belongs to hidden states with {what};"):
        jobs.probe(tiny, corpus / "run.json", variant=variant, **given)
    with pytest.raises(DamagedArtefact, match="with model tiny instead of other"):
        jobs.probe("other", corpus / "run.json", variant="zeros/all", **given)
