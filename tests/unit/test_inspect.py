"""`papa inspect`: what a file is, what it was made from and whether it is intact; results; models."""

import json
from functools import partial

import pyarrow as pa
import pytest
import torch
from command import invoke, refusal
from finished import page_of, write_results
from tiny import write_model

from papa.data.tokens import Tokens
from papa.files import REBUILD, Record, write_json, write_table, write_tensors
from papa.method.averages import Constants
from papa.method.hidden import writing_hidden

LAYERS = 2
HEADS = 3
SLOTS = 7
EXAMPLES = 5


RECORD = Record("average", 1, {"kind": "average"}, {"tokens": "0123456789abcdef"})


def averages(path):
    count = torch.full((SLOTS, SLOTS), EXAMPLES)
    count[3] = count[:, 3] = 0
    total = torch.rand(LAYERS, HEADS, SLOTS, SLOTS, dtype=torch.double) * (count > 0)
    Constants(total, count, EXAMPLES, {}).save(path, RECORD)


def hidden(path):
    with writing_hidden(path, {"rows": 1, "tokens": 1, "layers": 1, "hidden": 2}, RECORD) as writer:
        group = Tokens(
            {name: torch.zeros(1, dtype=torch.int32) for name in PARTS},
            torch.ones(1),
            "train",
            0,
            1,
        )
        writer.write(group, 0, torch.arange(1), torch.ones(1, 1, 2, dtype=torch.float16))


FILES = {
    "texts.parquet": lambda path: write_table(
        pa.table({"row": [*range(11)]}), path, {"rows": {"train": 11}}, RECORD
    ),
    "made-from.json": lambda path: write_json({"config": {"name": "tiny"}}, path, RECORD),
    "state.safetensors": lambda path: write_tensors({"dense": torch.ones(3, 5)}, path, {}, RECORD),
    "average.h5": averages,
    "states.hidden": hidden,
}
PARTS = ("ids", "slots", "segments")


@pytest.fixture
def file(tmp_path):
    return lambda name: FILES[name](tmp_path / name) or tmp_path / name


inspect = partial(invoke, "inspect")


def content_of(path, *options, code=0):
    return json.loads(inspect(path, *options, "--json", code=code).stdout)


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_what_made_it_and_whether_it_is_damaged(file, name):
    path = file(name)
    content = content_of(path)
    text = inspect(path).stdout
    assert content["intact"]
    assert content["bytes"] == path.stat().st_size
    assert content["made"]["version"] == 1
    assert content["inputs"] == {"tokens": "0123456789abcdef"}
    assert content["made"]["key"] == RECORD.key
    assert torch.__version__.startswith(content["packages"]["torch"])
    for words in ("Intact", "tokens: 0123456789abcdef", "stage: average"):
        assert words in text
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    content = content_of(path, code=1)
    assert content["intact"] is False
    assert REBUILD in content["damage"]
    assert "\n" not in content["damage"]
    assert REBUILD in " ".join(inspect(path, code=1).stdout.split())


def test_results_show_their_claims_and_kept_heads(tmp_path):
    study = write_results(tmp_path)
    page_of(study)
    sentences = study.conclusion["sentences"]
    shown = inspect(study.folder, "--kept", tmp_path / "kept")
    assert " ".join(" ".join(sentences).split()) in " ".join(shown.stdout.split())
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept
    assert all(f"Kept heads: {tmp_path / 'kept' / name}" in shown.stdout for name in kept)
    assert content_of(study.folder)["sentences"] == sentences
    (study.folder / "report/index.html").unlink()
    assert "finish its study with `papa run`" in refusal("inspect", study.folder)


def test_a_model_is_checked(tmp_path):
    write_model(tmp_path / "model")
    check = content_of(tmp_path / "model")
    assert (check["form"], check["layers"], check["heads"]) == ("packed", 2, 2)
    assert check["all"] < 1e-5
    (tmp_path / "model/modules.json").touch()
    shown = inspect(tmp_path / "model").stdout
    assert "2 × 2 (2)" in shown
    assert "has no prediction head (BertModel)" in shown
    assert "It is a sentence encoder (modules.json)." in shown
    refusal("inspect", "nowhere/at-all/ever")
