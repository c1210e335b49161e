"""Arrays in HDF5 files.

Files may be untrusted. So reading follows no links to other files and never allocates more than a file can contain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from papa.files import (
    KEY,
    Json,
    PathLike,
    Record,
    damaged,
    hashing,
    reading,
    replacing,
    sealed,
    unsealed,
)

if TYPE_CHECKING:
    import h5py

LARGEST_INFLATION = 1100
"""Maximum ratio of a dataset's size to its file's size: deflate cannot compress any content further."""
KNOWN_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32"}
"""The HDF5 filters that papa applies, by number; each at most once."""


def write_arrays(
    arrays: Mapping[str, np.ndarray],
    path: PathLike,
    facts: Json,
    record: Record | None = None,
) -> None:
    """Write arrays as compressed datasets, with facts and record as an attribute."""
    import h5py

    # build the file in memory, because the library aborts the process at exit if the disk is full
    content = BytesIO()
    with h5py.File(content, "w") as store:
        digests = {name: digest_of_array(values) for name, values in arrays.items()}
        store.attrs[KEY] = sealed({**facts, "arrays": digests}, record)
        for name, values in arrays.items():
            chunks = (1,) * (values.ndim - 2) + tuple(values.shape[-2:])
            store.create_dataset(
                name,
                data=values,
                chunks=chunks,
                compression="gzip",
                compression_opts=1,
                # floats compress better if bytes of the same significance are next to each other
                shuffle=True,
                fletcher32=True,
            )
    with replacing(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def read_arrays(path: PathLike, names: Iterable[str]) -> tuple[dict[str, np.ndarray], Json]:
    """Read the named datasets and the facts of a file.

    Raises:
        DamagedArtefact: the file is no HDF5 file made by papa, or a dataset differs from the one that was written.
        InputError: the system refused to read the file.
    """
    import h5py

    # damage can make the library raise any error; it is told not to lock, because some file systems have no locks
    with (
        reading(path, "averages made by papa", Exception),
        h5py.File(path, "r", locking=False) as store,
    ):
        size = Path(path).stat().st_size
        arrays = {name: _dataset(store, name, size) for name in names}
        facts = dict(unsealed(path, str(store.attrs[KEY])).facts)
        digests = facts.pop("arrays", {})
        for name, values in arrays.items():
            if digests.get(name) != digest_of_array(values):
                raise damaged(path, f"is damaged ({name} has changed since it was written)")
        return arrays, facts


def digest_of_array(values: np.ndarray) -> str:
    """Return the digest of an array's type, shape and values."""
    digest = hashing()
    digest.update(f"{values.dtype.str} {list(values.shape)}\n".encode())
    # flat, because NumPy views no array without dimensions as bytes
    digest.update(np.ascontiguousarray(values).reshape(-1).view("u1").data)
    return digest.hexdigest()


def _dataset(store: h5py.File, name: str, size: int) -> np.ndarray:
    """Read a dataset; raise ValueError if a file of `size` bytes cannot contain it."""
    import h5py

    # before it is opened, because that would follow the link
    if not isinstance(store.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{name} is missing or a link")
    dataset = store[name]
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        raise ValueError(f"the values of {name} are in another file")
    created = dataset.id.get_create_plist()
    filters = [created.get_filter(index)[0] for index in range(created.get_nfilters())]
    # other filters may be plugins, which are code; with deflate twice, the maximum ratio would be its square
    if len(filters) != len(set(filters)) or not set(filters) <= KNOWN_FILTERS.keys():
        raise ValueError(f"{name} has filters that papa does not apply")
    # nbytes says nothing about values of variable length
    if dataset.dtype.kind not in "fi" or dataset.nbytes > LARGEST_INFLATION * size:
        raise ValueError(
            f"{name} is declared as {list(dataset.shape)}, which {size:,} bytes cannot contain"
        )
    values: np.ndarray = dataset[()]
    return values
