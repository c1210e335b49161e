import copy

import h5py
import pytest
import torch
from sizes import EXAMPLES, HEADS, LAYERS, SLOTS

import papa
from papa.model.model import Model


@pytest.fixture
def constants(model, inputs):
    average = papa.average_attention(Model(copy.deepcopy(model)), [inputs])
    average.about = {"model": "tiny", "slots": str(SLOTS)}
    return average


def test_what_is_saved_is_what_is_loaded(tmp_path, constants):
    constants.save(tmp_path / "average.h5")
    loaded = papa.ConstantMatrices.load(tmp_path / "average.h5")
    assert torch.equal(loaded.sum, constants.sum) and torch.equal(loaded.count, constants.count)
    assert loaded.sum.dtype == torch.float64 and loaded.count.dtype == torch.int64
    assert loaded.about == constants.about and loaded.examples == EXAMPLES
    with h5py.File(tmp_path / "average.h5") as store:
        assert store["mean"].shape == (LAYERS, HEADS, SLOTS, SLOTS) and store.attrs["n"] == SLOTS
        assert store.attrs["papa_version"] == papa.__version__
    assert [path.name for path in tmp_path.iterdir()] == ["average.h5"]


def test_parts_of_a_corpus_merge_to_the_whole(model, inputs, constants):
    encoder = Model(model)
    parts = [{name: values[part] for name, values in inputs.items()} for part in (slice(0, 3), slice(3, None))]
    first, second = (papa.average_attention(encoder, [part]) for part in parts)
    merged = first.merge(second)
    torch.testing.assert_close(merged.sum, constants.sum, atol=1e-5, rtol=0)
    assert torch.equal(merged.count, constants.count) and merged.examples == constants.examples


def test_averages_of_different_kinds_do_not_merge(constants):
    other = papa.ConstantMatrices(constants.sum, constants.count, 1, {"model": "other", "slots": str(SLOTS)})
    with pytest.raises(papa.InputError, match="differ in model"):
        constants.merge(other)


def test_a_damaged_or_foreign_file_is_named(tmp_path, constants):
    path = tmp_path / "average.h5"
    constants.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(papa.DamagedArtefact, match=r"average\.h5 cannot be read: it is damaged"):
        papa.ConstantMatrices.load(path)
    with h5py.File(path, "w") as store:
        store["sum"] = [1.0]
    with pytest.raises(papa.DamagedArtefact, match="it has no seal"):
        papa.ConstantMatrices.load(path)
    path.write_text("no HDF5")
    with pytest.raises(papa.DamagedArtefact, match="damaged"):
        papa.ConstantMatrices.load(path)
    with pytest.raises(papa.InputError, match="does not exist"):
        papa.ConstantMatrices.load(tmp_path / "none.h5")


def test_a_flipped_bit_in_the_numbers_is_found(tmp_path, constants):
    path = tmp_path / "average.h5"
    constants.save(path)
    with h5py.File(path) as store:
        place = store["sum"].id.get_chunk_info(0).byte_offset + 40
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    with pytest.raises(papa.DamagedArtefact, match="damaged"):
        papa.ConstantMatrices.load(path)


def test_no_batch_and_changing_layouts_are_refused(model, inputs):
    encoder = Model(model)
    with pytest.raises(papa.InputError, match="no batch"):
        papa.average_attention(encoder, [])
    shorter = {name: values[:, :5] for name, values in inputs.items()}
    keep = shorter["attention_mask"].any(dim=1)
    shorter = {name: values[keep] for name, values in shorter.items()}
    with pytest.raises(papa.InputError, match="5 slots after batches of 23"):
        papa.average_attention(encoder, [inputs, shorter])
