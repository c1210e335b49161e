"""Every byte of every kind of artefact counts: what is cut, flipped or written over is found before it is used."""

import os
import resource
import shutil
import subprocess
import sys

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from papa.errors import DamagedArtefact, InputError
from papa.files import UNSEALED, check_seal, provenance_of, read_json, read_table, write_json, write_table
from papa.method.averages import ConstantMatrices
from papa.method.training import save_state


def write(kind, path):
    if kind == "parquet":
        write_table(pa.table({"text": ["one", "two"], "number": [3, 5]}), path, {"source": "here"})
    elif kind == "json":
        write_json({"score": 0.5, "curve": [1, 2]}, path)
    elif kind == "h5":
        ConstantMatrices(torch.rand(1, 2, 3, 3).double(), torch.full((3, 3), 2), 2, {"model": "m"}).save(path)
    else:
        save_state({"weight": torch.rand(3, 5)}, path)


KINDS = ["parquet", "json", "h5", "safetensors"]


@pytest.mark.parametrize("kind", KINDS)
def test_any_flipped_byte_is_found(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    write(kind, path)
    check_seal(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 499)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedArtefact, match=f"a.{kind} cannot be read: .*delete it and run the workflow again"):
            check_seal(path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_cut_file_is_found(tmp_path, kind, share):
    path = tmp_path / f"a.{kind}"
    write(kind, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DamagedArtefact, match=f"a.{kind} cannot be read"):
        check_seal(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(DamagedArtefact, match=f"a.{kind} cannot be read"):
        check_seal(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_moved_file_is_whole_and_the_same_content_has_the_same_bytes(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    torch.manual_seed(0)
    write(kind, path)
    shutil.copy(path, tmp_path / "elsewhere")
    check_seal(tmp_path / "elsewhere")
    torch.manual_seed(0)
    write(kind, path)
    assert path.read_bytes() == (tmp_path / "elsewhere").read_bytes()


def test_sealed_files_read_as_ever(tmp_path):
    for kind in KINDS:
        write(kind, tmp_path / kind)
    assert read_json(tmp_path / "json") == {"score": 0.5, "curve": [1, 2]}
    table = read_table(tmp_path / "parquet")
    assert table.to_pydict() == {"text": ["one", "two"], "number": [3, 5]}
    assert provenance_of(table) == {"source": "here"}
    assert ConstantMatrices.load(tmp_path / "h5").about == {"model": "m"}
    assert load_file(tmp_path / "safetensors")["weight"].shape == (3, 5)


def test_texts_may_look_like_a_seal(tmp_path):
    write_json({"first": UNSEALED, "zzz": UNSEALED.replace("0", "f")}, tmp_path / "a.json")
    assert read_json(tmp_path / "a.json") == {"first": UNSEALED, "zzz": UNSEALED.replace("0", "f")}
    write_table(pa.table({"text": [UNSEALED]}), tmp_path / "a.parquet", {})
    assert read_table(tmp_path / "a.parquet").to_pydict() == {"text": [UNSEALED]}


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(DamagedArtefact, match=r"none\.json cannot be read \(No such file or directory\)"):
        read_json(tmp_path / "none.json")
    with pytest.raises(DamagedArtefact, match="cannot be read"):
        read_table(tmp_path)


def test_what_a_killed_process_left_goes_with_the_next_that_writes(tmp_path):
    for name in (".a.json.77.partial", ".b.json.77.partial"):
        (tmp_path / name).write_text("half of")
    write_json({}, tmp_path / "a.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.json.77.partial", "a.json"]


def test_nothing_is_left_behind_where_writing_fails(tmp_path):
    with pytest.raises(ValueError, match="Out of range"):
        write_json({"score": float("nan")}, tmp_path / "a.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="could not be written"):
        write_json({}, tmp_path / "file/a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_belongs_in_one_place_of_the_results(tmp_path, kind):
    one, two = (tmp_path / f"results/tiny/tasks/{task}/a.{kind}" for task in ("one", "two"))
    write(kind, one)
    check_seal(one)
    two.parent.mkdir()
    shutil.copy(one, two)
    with pytest.raises(DamagedArtefact, match=f"two/a.{kind} was written as tasks/one/a.{kind} and does not belong"):
        check_seal(two)
    for elsewhere in (tmp_path / "results/other/tasks/one/a", tmp_path / "mine/a"):
        elsewhere.parent.mkdir(parents=True)
        shutil.copy(one, elsewhere.with_suffix(f".{kind}"))
        check_seal(elsewhere.with_suffix(f".{kind}"))


def test_a_whole_file_of_another_form(tmp_path):
    write("parquet", tmp_path / "a.json")
    with pytest.raises(DamagedArtefact, match=r"a\.json cannot be read as JSON"):
        read_json(tmp_path / "a.json")
    write("json", tmp_path / "a.h5")
    with pytest.raises(DamagedArtefact, match=r"a\.h5 is damaged"):
        ConstantMatrices.load(tmp_path / "a.h5")
    with pytest.raises(DamagedArtefact, match=r"a\.h5 cannot be read as Parquet"):
        read_table(tmp_path / "a.h5")


@pytest.mark.parametrize("kind", KINDS)
def test_no_room_is_said_and_nothing_left(tmp_path, kind):
    """In a process of its own, which a library might take down at its exit."""
    script = f"import pathlib, test_artefacts; test_artefacts.write({kind!r}, pathlib.Path({str(tmp_path / kind)!r}))"
    folder = os.path.dirname(__file__)
    process = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([folder, os.path.dirname(os.path.dirname(folder))])},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40)),
        capture_output=True,
        text=True,
    )
    reason = f"{tmp_path / kind} could not be written (File too large), and nothing of it was left"
    assert process.returncode == 1 and f"InputError: {reason}" in process.stderr, process.stderr
    assert not list(tmp_path.iterdir())


def test_what_a_killed_writer_left_goes_with_the_next(tmp_path):
    (tmp_path / ".a.json.123.partial").write_text("half")
    (tmp_path / ".b.json.123.partial").write_text("of another file")
    write_json({}, tmp_path / "a.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.json.123.partial", "a.json"]
