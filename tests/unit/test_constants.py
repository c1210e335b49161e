import copy
import os
import tracemalloc

import h5py
import numpy as np
import pytest
import torch
from sizes import EXAMPLES, SLOTS
from tiny import in_python

import papa
from papa.errors import DamagedArtefact
from papa.files import KEY, provenance_of_arrays, read_provenance


@pytest.fixture
def constants(model, inputs):
    average = papa.average_attention(papa.Model(copy.deepcopy(model)), [inputs])
    average.about = {"model": "tiny", "slots": str(SLOTS)}
    return average


def test_what_is_saved_is_what_is_loaded(tmp_path, constants):
    path = tmp_path / "average.h5"
    constants.save(path)
    loaded = papa.Constants.load(path)
    assert torch.equal(loaded.sum, constants.sum) and torch.equal(loaded.count, constants.count)
    assert loaded.sum.dtype == torch.float64 and loaded.count.dtype == torch.int64
    assert loaded.about == constants.about and loaded.examples == EXAMPLES
    mean, about = papa.Constants.load_constants(path)
    assert torch.equal(mean, constants.mean) and mean.dtype == torch.float32
    assert about == constants.about | {"kind": "average"}
    assert read_provenance(path).facts["examples"] == EXAMPLES
    assert [path.name for path in tmp_path.iterdir()] == ["average.h5"]


def test_a_damaged_or_foreign_file_is_named(tmp_path, constants):
    path = tmp_path / "average.h5"
    constants.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedArtefact, match=r"average\.h5 contains no averages made by papa"):
        papa.Constants.load(path)
    with h5py.File(path, "w") as store:
        store["sum"] = [1.0]
    with pytest.raises(DamagedArtefact, match="contains no averages made by papa"):
        papa.Constants.load(path)
    path.write_text("no HDF5")
    with pytest.raises(DamagedArtefact, match="contains no averages made by papa"):
        papa.Constants.load_constants(path)
    with pytest.raises(papa.InputError, match="does not exist"):
        papa.Constants.load(tmp_path / "none.h5")


@pytest.mark.parametrize("name", ["sum", "count", "mean"])
def test_changed_numbers_are_found(tmp_path, constants, name):
    path = tmp_path / "average.h5"
    constants.save(path)
    with h5py.File(path, "r+") as store:
        store[name][..., 3, 5] += 1
    with pytest.raises(DamagedArtefact, match=f"{name} has changed since it was written"):
        papa.Constants.load(path)
    if name == "mean":
        with pytest.raises(DamagedArtefact, match="mean has changed since it was written"):
            papa.Constants.load_constants(path)


def written(path, constants, **datasets):
    """A file of averages, self-consistent in its digests, in which some datasets are made by functions of the store."""
    arrays = {"sum": constants.sum.numpy(), "count": constants.count.numpy(), "mean": constants.mean.numpy()}
    arrays |= {name: values for name, values in datasets.items() if isinstance(values, np.ndarray)}
    facts = {"examples": 1, "shape": list(arrays["sum"].shape)}
    with h5py.File(path, "w") as store:
        store.attrs[KEY] = provenance_of_arrays(facts, None, arrays)
        for name, values in arrays.items():
            make = datasets.get(name)
            if callable(make):
                make(store, name, values)
            else:
                store.create_dataset(name, data=values)
    return path


def raw(store, name, values):
    place = os.path.join(os.path.dirname(store.filename), "raw")
    values.tofile(place)
    store.create_dataset(name, values.shape, values.dtype, external=[(place, 0, h5py.h5f.UNLIMITED)])


def linked(store, name, values):
    with h5py.File(store.filename + ".other", "w") as other:
        other["values"] = values
    store[name] = h5py.ExternalLink(store.filename + ".other", "values")


def soft(store, name, values):
    store["elsewhere"] = values
    store[name] = h5py.SoftLink("/elsewhere")


def virtual(store, name, values):
    with h5py.File(store.filename + ".source", "w") as other:
        other["values"] = values
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource(store.filename + ".source", "values", values.shape)
    store.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("make", [raw, linked, soft, virtual])
@pytest.mark.parametrize("load", [papa.Constants.load, papa.Constants.load_constants])
def test_nothing_is_read_from_outside_of_the_file(tmp_path, constants, make, load):
    path = written(tmp_path / "average.h5", constants, mean=make)
    with h5py.File(path) as store:  # the library itself would follow
        np.testing.assert_array_equal(store["mean"][...], constants.mean)
    with pytest.raises(DamagedArtefact, match=r"mean is missing or a link|the values of mean are in another file"):
        load(path)


def test_sizes_that_a_file_cannot_contain_are_refused_before_they_are_read(tmp_path, constants):
    def declared(store, name, values):
        store.create_dataset(name, (6, 8, 4096, 4096), "f4", chunks=(1, 1, 64, 64), compression="gzip")

    path = written(tmp_path / "average.h5", constants, mean=declared)
    tracemalloc.start()
    with pytest.raises(DamagedArtefact, match=r"declared as \[6, 8, 4096, 4096\], which .* cannot contain"):
        papa.Constants.load_constants(path)
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


def test_averages_of_few_examples_compress_well_and_are_read(tmp_path):
    slots = 331
    count = torch.zeros(slots, slots, dtype=torch.long)
    empty = papa.Constants(torch.zeros(3, 5, slots, slots, dtype=torch.float64), count, 0)
    empty.save(tmp_path / "average.h5")
    assert not papa.Constants.load(tmp_path / "average.h5").mean.any()


def test_numbers_that_are_no_averages_are_refused(tmp_path, constants):
    path, mean = tmp_path / "average.h5", constants.mean.numpy()
    for wrong in (1e30, 1.01, -0.01, float("nan")):
        changed = mean.copy()
        changed[1, 2, 3, 5] = wrong
        with pytest.raises(DamagedArtefact, match=r"a mean of attention is not in \[0, 1\]"):
            papa.Constants.load_constants(written(path, constants, mean=changed))
    with pytest.raises(DamagedArtefact, match="a count of examples is negative"):
        papa.Constants.load(written(path, constants, count=-constants.count.numpy()))
    with pytest.raises(DamagedArtefact, match="do not agree"):
        papa.Constants.load(written(path, constants, mean=mean / 2))
    with pytest.raises(DamagedArtefact, match="its datasets do not have the shape"):
        papa.Constants.load(written(path, constants, count=constants.count.numpy()[1:]))


def test_loading_only_the_mean_needs_a_fraction_of_the_memory(tmp_path):
    slots, path = 101, tmp_path / "average.h5"
    total = torch.rand(13, 17, slots, slots, dtype=torch.float64)
    papa.Constants(total, torch.ones(slots, slots, dtype=torch.long), 1).save(path)
    script = (
        "import resource, sys, torch, h5py, papa; from papa.method.averages import Constants;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; Constants.load_constants(sys.argv[1]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    assert int(in_python(script, path).stdout) * 1024 < 2 * 4 * total.numel()


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
