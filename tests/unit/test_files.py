"""Files are intact or absent, say what made them, and are refused where they are not what was written."""

import fcntl
import os
import platform
import stat
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from refusals import damage_error, input_error
from tiny import with_a_flipped_bit

from papa import files
from papa.errors import DamagedArtefact
from papa.method import hdf5
from papa.run.start import locked

RECORD = files.Record("average", 3, {"model": {"name": "é"}, "part": "1of1"}, {"tokens": "abc"})
TABLE = pa.table(
    {
        "number": [1, None, 3],
        "text": ["x", "é\n", None],
        "lists": [[1, 2], [], None],
        "words": [["a"], ["b", "c"], []],
        "flag": [True, None, False],
        "score": [0.5, 1.0, None],
        "none": pa.array([None, None, None], pa.string()),
    }
)
TENSORS = {
    "w": torch.arange(15.0).view(3, 5),
    "n": torch.arange(3),
    "h": torch.zeros(2, dtype=torch.bfloat16),
}
ARRAYS = {"sum": np.arange(7.0), "count": np.arange(5)}
FORMATS = {
    "a.parquet": (
        lambda path: files.write_table(TABLE, path, {"n": 1}, RECORD),
        lambda path: files.read_table(path).to_pylist(),
    ),
    "a.json": (
        lambda path: files.write_json({"z": 1, "a": [1.5, "é"]}, path, RECORD),
        files.read_json,
    ),
    "a.safetensors": (
        lambda path: files.write_tensors(TENSORS, path, {"n": 2}, RECORD),
        lambda path: str(
            sorted((name, values.tolist()) for name, values in files.read_tensors(path)[0].items())
        ),
    ),
    "a.h5": (
        lambda path: hdf5.write_arrays(
            {name: values[None] for name, values in ARRAYS.items()}, path, {"n": 7}, RECORD
        ),
        lambda path: str(hdf5.read_arrays(path, ARRAYS)),
    ),
}
EACH_FORMAT = pytest.mark.parametrize("name", FORMATS)


@EACH_FORMAT
def test_a_file_says_what_made_it(name, tmp_path):
    write, read = FORMATS[name]
    path = tmp_path / name
    write(path)
    first = read(path)
    provenance = files.read_provenance(path)
    assert provenance.record == RECORD
    assert provenance.packages.keys() == {"papa", *files.PACKAGES}
    write(path)
    assert read(path) == first
    assert files.read_provenance(path) == provenance


@EACH_FORMAT
def test_a_file_with_the_name_of_another_key_is_refused(name, tmp_path):
    """A key depends on each part of a record, and on nothing else."""
    write, read = FORMATS[name]
    keys = [
        RECORD.key,
        replace(RECORD, stage="probe").key,
        replace(RECORD, version=4).key,
        replace(RECORD, settings={}).key,
        replace(RECORD, inputs={"tokens": "abd"}).key,
    ]
    assert len(set(keys)) == 5
    assert replace(RECORD, inputs={"tokens": "abc"}).key == RECORD.key
    own, other = (tmp_path / name.replace("a.", f"é-{key[:16]}.") for key in keys[:2])
    write(own)
    read(own)
    own.rename(other)
    with damage_error(f"contains the artefact with the key {RECORD.key}; delete it"):
        read(other)


@EACH_FORMAT
def test_damage_is_refused_or_changes_no_value(name, tmp_path):
    write, read = FORMATS[name]
    path = tmp_path / name
    write(path)
    content = path.read_bytes()
    expected = read(path)
    damaged = tmp_path / f"damaged.{name}"
    places = range(0, len(content), max(1, len(content) // 211))
    attempts = [with_a_flipped_bit(content, place) for place in places]
    attempts += [content[:-1], content[: len(content) // 2], b"", b"\0" * len(content)]
    refused = 0
    for attempt in attempts:
        damaged.write_bytes(attempt)
        try:
            assert read(damaged) == expected
        except DamagedArtefact:
            refused += 1
    assert refused > len(attempts) // 10  # HDF5 has much room that nothing reads


def test_the_digest_of_a_table_is_one_of_values():
    parts = [TABLE.slice(0, 1), TABLE.slice(1)]
    assert files.digest_of_table(pa.concat_tables(parts)) == files.digest_of_table(TABLE)
    for column in TABLE.column_names:
        turned = pa.concat_arrays([TABLE[column].chunk(0)[::-1]])
        other = TABLE.set_column(TABLE.column_names.index(column), column, turned)
        if column != "none":
            assert files.digest_of_table(other) != files.digest_of_table(TABLE), column
    moved = (
        pa.table({"a": [["x", "y"], ["z"]]}),
        pa.table({"a": [["x"], ["y", "z"]]}),
        pa.table({"a": [["xy"], ["z"]]}),
    )
    empty = pa.table({"a": [1, 0]}), pa.table({"a": [1, None]})
    assert len(set(map(files.digest_of_table, (*moved, *empty)))) == 5


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path):
    path = tmp_path / "a.json"
    files.write_json({"a": 1}, path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json({"a": float("nan")}, path)
    begin = f".a.json.{platform.node()}@"
    (tmp_path / f"{begin}{2**22 + 1}.partial").write_text("left by a job that was killed")
    running = tmp_path / f"{begin}1.partial"
    running.write_text("of a job that makes the same file")
    with pytest.raises(RuntimeError), files.replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert {file.name for file in tmp_path.iterdir()} == {"a.json", running.name}
    assert files.read_json(path) == {"a": 1}
    with input_error(r"a\.json/c could not be written \(.*\), and the partial file was removed"):
        files.write_json({}, path / "c")


def test_no_file_is_written_through_a_link_with_the_name_of_a_temporary_file(tmp_path):
    other = tmp_path / "other"
    other.write_text("of somebody else")
    (tmp_path / f".a.json.{platform.node()}@{os.getpid()}.partial").symlink_to(other)
    files.write_json({"a": 1}, tmp_path / "a.json")
    assert other.read_text() == "of somebody else"
    assert not (tmp_path / "a.json").is_symlink()


def test_a_record_that_was_edited_says_nothing(tmp_path):
    path = tmp_path / "a.json"
    files.write_json({"a": 1}, path, RECORD)
    path.write_text(path.read_text().replace('"part": "1of1"', '"part": "1of2"'))
    assert files.read_provenance(path) is None


def test_files_of_others_say_nothing(tmp_path):
    for name in (*FORMATS, "a.html"):
        (tmp_path / name).write_text("{}")
        assert files.read_provenance(tmp_path / name) is None
    assert files.read_provenance(tmp_path / "missing.json") is None
    pq.write_table(TABLE, tmp_path / "b.parquet")
    with damage_error("has no record of how it was made"):
        files.read_table(tmp_path / "b.parquet")


@EACH_FORMAT
def test_a_file_that_the_system_does_not_open_is_neither_damaged_nor_outdated(name, tmp_path):
    """A link to itself can be opened by nobody, not even by root."""
    (tmp_path / name).symlink_to(tmp_path / name)
    for read in (FORMATS[name][1], files.read_provenance):
        with input_error(r"cannot be read \(Too many levels .*\); fix the cause") as refused:
            read(tmp_path / name)
        assert not isinstance(refused.value, DamagedArtefact)


def test_averages_are_read_without_the_lock_that_somebody_else_holds(tmp_path):
    write, read = FORMATS["a.h5"]
    path = tmp_path / "a.h5"
    write(path)
    with open(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert files.read_provenance(path).record == RECORD
        assert read(path) == str(hdf5.read_arrays(path, ARRAYS))


@pytest.mark.parametrize(("folder_mode", "mode"), [(0o2770, 0o660), (0o770, 0o600)])
def test_in_the_folder_of_a_group_its_members_may_change_files(tmp_path, folder_mode, mode):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(folder_mode)
    before = os.umask(0o077)
    try:
        files.write_json({}, cache / "probe/some.json")
        os.close(locked(cache, fcntl.LOCK_SH, ""))
    finally:
        os.umask(before)
    made = [cache / "probe/some.json", cache / ".lock"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [mode, mode]
    assert bool((cache / "probe").stat().st_mode & stat.S_IWGRP) == (mode == 0o660)
