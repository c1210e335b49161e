import tracemalloc

import h5py
import numpy as np
import pytest
import torch
from refusals import damage_error, input_error
from sizes import EXAMPLES, SLOTS

import papa
from papa.files import KEY, sealed
from papa.method.hdf5 import digest_of_array


@pytest.fixture
def constants(ours, inputs):
    average = papa.average_attention(ours, [inputs])
    average.about = {"model": "tiny", "slots": str(SLOTS)}
    return average


@pytest.fixture
def saved(tmp_path, constants):
    """The file of the constants."""
    path = tmp_path / "average.h5"
    constants.save(path)
    return path


def test_what_is_saved_is_what_is_loaded(saved, constants):
    loaded = papa.Constants.load(saved)
    assert torch.equal(loaded.sum, constants.sum)
    assert torch.equal(loaded.count, constants.count)
    assert loaded.sum.dtype == torch.float64
    assert loaded.count.dtype == torch.int64
    assert loaded.about == constants.about
    assert loaded.examples == EXAMPLES
    with input_error("are 'by_distance', but .* has average; write sink or by-distance"):
        papa.Constants.load(saved, "by_distance")
    mean = papa.Constants.load_constants(saved)
    assert torch.equal(mean, constants.mean)
    assert mean.dtype == torch.float32


@pytest.mark.parametrize("name", ["sum", "count", "mean"])
def test_changed_numbers_are_found(saved, name):
    with h5py.File(saved, "r+") as store:
        store[name][..., 3, 5] += 1
    with damage_error(f"{name} has changed since it was written"):
        papa.Constants.load(saved)


def written(path, constants, **datasets):
    """A file of averages, self-consistent in its digests, in which some datasets are made by functions of the store."""
    arrays = {
        "sum": constants.sum.numpy(),
        "count": constants.count.numpy(),
        "mean": constants.mean.numpy(),
    }
    arrays |= {name: values for name, values in datasets.items() if isinstance(values, np.ndarray)}
    facts = {"examples": 1, "shape": list(arrays["sum"].shape)}
    with h5py.File(path, "w") as store:
        facts["arrays"] = {name: digest_of_array(values) for name, values in arrays.items()}
        store.attrs[KEY] = sealed(facts, None)
        for name, values in arrays.items():
            make = datasets.get(name)
            if callable(make):
                make(store, name, values)
            else:
                store.create_dataset(name, data=values)
    return path


def outside(kind):
    """A function that stores values in another place than the dataset of a file."""

    def make(store, name, values):
        other = store.filename + ".other"
        if kind == "raw":
            values.tofile(other)
            store.create_dataset(
                name, values.shape, values.dtype, external=[(other, 0, h5py.h5f.UNLIMITED)]
            )
            return
        with h5py.File(other, "w") as file:
            file["values"] = values
        store[name] = h5py.ExternalLink(other, "values")

    return make


@pytest.mark.parametrize("kind", ["raw", "linked"])
def test_nothing_is_read_from_outside_of_the_file(tmp_path, constants, kind):
    path = written(tmp_path / "average.h5", constants, mean=outside(kind))
    with h5py.File(path) as store:  # the library itself would follow
        np.testing.assert_array_equal(store["mean"][...], constants.mean)
    for load in (papa.Constants.load, papa.Constants.load_constants):
        with damage_error(
            r"mean is missing or a link|the values of mean are in another file",
        ):
            load(path)


def test_sizes_that_a_file_cannot_contain_are_refused_before_they_are_read(tmp_path, constants):
    def declared(store, name, values):
        store.create_dataset(
            name, (6, 8, 4096, 4096), "f4", chunks=(1, 1, 64, 64), compression="gzip"
        )

    path = written(tmp_path / "average.h5", constants, mean=declared)
    tracemalloc.start()
    with damage_error(r"declared as \[6, 8, 4096, 4096\], which .* cannot contain"):
        papa.Constants.load_constants(path)
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()
    # averages of few examples compress well, and are read
    count = torch.zeros(331, 331, dtype=torch.long)
    papa.Constants(torch.zeros(3, 5, 331, 331, dtype=torch.float64), count, 0).save(path)
    assert not papa.Constants.load(path).mean.any()


NO = (1e30, 1.01, -0.01, float("nan"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda path, _: path.write_bytes(path.read_bytes()[:999]),
            "cannot be read as averages made by papa",
        ),
        *(
            (
                lambda path, given, no=no: written(path, given, mean=given.mean.numpy() * 0 + no),
                "not in .0, 1",
            )
            for no in NO
        ),
        (
            lambda path, given: written(path, given, count=-given.count.numpy()),
            "a count of examples is negative",
        ),
        (lambda path, given: written(path, given, mean=given.mean.numpy() / 2), "do not agree"),
        (
            lambda path, given: written(path, given, count=given.count.numpy()[1:]),
            "do not have the shape",
        ),
    ],
)
def test_what_is_no_average_is_refused(saved, constants, damage, message):
    damage(saved, constants)
    with input_error(message):
        papa.Constants.load(saved)


def test_no_batch_one_batch_and_changing_layouts_are_refused(model, inputs):
    encoder = papa.Model(model)
    with input_error("the list was empty"):
        papa.average_attention(encoder, [])
    with input_error("takes a list of batches, but a single batch was given; put it into"):
        papa.average_attention(encoder, inputs)
    with input_error(r"A papa\.Model is needed"):
        papa.average_attention(model, [inputs])
    shorter = {name: values[:, :5] for name, values in inputs.items()}
    keep = shorter["attention_mask"].any(dim=1)
    shorter = {name: values[keep] for name, values in shorter.items()}
    with input_error("5 slots, but earlier ones have 23"):
        papa.average_attention(encoder, [inputs, shorter])
