"""`papa inspect`: what a file is, what it was made from and whether it is intact; results; models."""

import json

import pyarrow as pa
import pytest
import torch
from builders import run_record
from finished import page_job, write_results
from tiny import write_model
from typer.testing import CliRunner

from papa.cli import app
from papa.files import REBUILD, Trace, write_json, write_page, write_table, write_tensors
from papa.method.averages import Constants
from papa.results.conclusion import Conclusion
from papa.results.page import write_report

LAYERS, HEADS, SLOTS, EXAMPLES = 2, 3, 7, 5


def trace(stage, **settings):
    return Trace(stage, 1, settings, {"tokens": "0123456789abcdef"})


def averages(path):
    count = torch.full((SLOTS, SLOTS), EXAMPLES)
    count[3] = count[:, 3] = 0
    total = torch.rand(LAYERS, HEADS, SLOTS, SLOTS, dtype=torch.double) * (count > 0)
    Constants(total, count, EXAMPLES, {"model": "tiny"}).save(path, trace("average"))


def texts(path):
    rows = {"split": ["train"] * 11, "row": [*range(11)], "first": [f"text {row}" for row in range(11)]}
    write_table(pa.table(rows), path, {"rows": {"train": 11}}, trace("texts", corpus={"first": "sentence"}))


def table(stage, **columns):
    rows = {"model": ["tiny"], "task": ["t"], "constant": ["average"]} | columns
    return lambda path: write_table(pa.table(rows), path, {"table": path.stem}, trace(stage))


RUNS = [run_record(seed=seed, kept=0.75, curve=[{"epoch": 1, "loss": 0.5 / seed}]) for seed in (1, 2)]
FILES = {
    "texts.parquet": texts,
    "runs.json": lambda path: write_json({"runs": RUNS}, path, trace("probe")),
    "tables/outcomes.parquet": table("summary", predicted=[1]),
    "curves.parquet": table("summary", epoch=[1], loss=[0.5]),
    "claims.parquet": table("claims", margin=[0.05]),
    "claims.json": lambda path: write_json({"sentence": "tiny keeps up."}, path, trace("claims")),
    "stability.parquet": table("stability", tau=[0.75]),
    "probes.safetensors": lambda path: write_tensors({"seed-1/dense": torch.ones(3, 5)}, path, {}, trace("probe")),
    "average.h5": averages,
    "index.html": lambda path: write_page("<head></head>", path, trace("page")),
}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "tables").mkdir()
    return lambda name: FILES[name](tmp_path / name) or tmp_path / name


def inspect(*arguments, code=0):
    result = CliRunner().invoke(app, ["inspect", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def content_of(path, *options, code=0):
    return json.loads(inspect(path, *options, "--json", code=code).stdout)


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_what_made_it_and_whether_it_is_damaged(file, name):
    path = file(name)
    content, text = content_of(path), inspect(path).stdout
    assert content["intact"] and content["bytes"] == path.stat().st_size
    assert content["made"]["version"] == 1 and content["inputs"] == {"tokens": "0123456789abcdef"}
    for words in ("Intact", "tokens  0123456789ab\n", f"Made by stage {content['made']['stage']}"):
        assert words in text
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    content = content_of(path, code=1)
    assert content["intact"] is False and REBUILD in content["damage"] and "\n" not in content["damage"]
    assert REBUILD in " ".join(inspect(path, code=1).stdout.split())


def test_results_show_their_claims_and_kept_heads(tmp_path):
    study = write_results(tmp_path)
    write_report(page_job(study))
    sentence = Conclusion.read(study.results / "tables/claims.json").sentence
    shown = inspect(study.results, "--kept", tmp_path / "kept")
    assert " ".join(sentence.split()) in " ".join(shown.stdout.split())
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept and all(f"Kept heads: {tmp_path / 'kept' / name}" in shown.stdout for name in kept)
    assert content_of(study.results)["sentence"] == sentence
    (study.results / "report/index.html").unlink()
    assert "finish its study with `papa run`" in inspect(study.results, code=2).stderr


def test_a_model_is_checked(tmp_path):
    write_model(tmp_path / "model")
    check = content_of(tmp_path / "model")
    assert (check["form"], check["layers"], check["heads"]) == ("packed", 2, 2) and check["all"] < 1e-5
    assert "2 × 2 (2)" in inspect(tmp_path / "model").stdout
    assert len(inspect("nowhere/at-all/ever", code=2).stderr.splitlines()) == 1
