import copy

import pytest
import torch
from sizes import EXAMPLES, SLOTS

import papa
from papa.errors import DamagedArtefact
from papa.files import write_tensors


@pytest.fixture
def constants(model, inputs):
    average = papa.average_attention(papa.Model(copy.deepcopy(model)), [inputs])
    average.about = {"model": "tiny", "slots": str(SLOTS)}
    return average


def test_what_is_saved_is_what_is_loaded(tmp_path, constants):
    path = tmp_path / "average.safetensors"
    constants.save(path)
    loaded = papa.Constants.load(path)
    assert torch.equal(loaded.sum, constants.sum) and torch.equal(loaded.count, constants.count)
    assert loaded.sum.dtype == torch.float64 and loaded.count.dtype == torch.int64
    assert loaded.about == constants.about and loaded.examples == EXAMPLES
    assert torch.equal(loaded.constants, constants.mean) and loaded.constants.dtype == torch.float32


TENSORS = {"sum": torch.rand(2, 3, 5, 5, dtype=torch.double), "count": torch.ones(5, 5, dtype=torch.long)}


@pytest.mark.parametrize(
    ("tensors", "facts", "message"),
    [
        (TENSORS, {"examples": 1, "kind": "other"}, "other does not have counts"),
        (TENSORS, {"examples": 1, "kind": "mean-output"}, "mean-output does not have counts"),
        (TENSORS, {}, "'examples'"),
        (TENSORS | {"count": torch.ones(4, 4)}, {"examples": 1}, "average does not have counts"),
        ({"sum": torch.ones(2)}, {"examples": 1}, "'count'"),
        (None, {}, "cannot be read as safetensors"),
    ],
)
def test_what_is_no_average_is_refused(tmp_path, tensors, facts, message):
    path = tmp_path / "average.safetensors"
    with pytest.raises(papa.InputError, match="does not exist; average"):
        papa.Constants.load(path)
    write_tensors(tensors or {}, path, facts)
    if tensors is None:
        path.write_bytes(path.read_bytes()[:9])
    with pytest.raises(DamagedArtefact, match=message):
        papa.Constants.load(path)


def test_no_batch_one_batch_and_changing_layouts_are_refused(model, inputs):
    encoder = papa.Model(model)
    with pytest.raises(papa.InputError, match="the list was empty"):
        papa.average_attention(encoder, [])
    with pytest.raises(papa.InputError, match="takes a list of batches, but a single batch was given; put it into"):
        papa.average_attention(encoder, inputs)
    with pytest.raises(papa.InputError, match=r"A papa\.Model is needed"):
        papa.average_attention(model, [inputs])
    shorter = {name: values[:, :5] for name, values in inputs.items()}
    keep = shorter["attention_mask"].any(dim=1)
    shorter = {name: values[keep] for name, values in shorter.items()}
    with pytest.raises(papa.InputError, match="5 slots, but earlier ones have 23"):
        papa.average_attention(encoder, [inputs, shorter])
