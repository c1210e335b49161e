"""The changes that docs/extending.md shows apply unchanged, and do what it says."""

import copy
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from tiny import CONFIG, REPOSITORY, copy_of_repository, write_data, write_model

from papa.files import provenance_of, read_table

PAGE = (REPOSITORY / "docs/extending.md").read_text(encoding="utf-8")
DIFFS = {
    heading: re.findall("```diff\n(.*?)```", section, re.DOTALL)
    for heading, section in re.findall("^## (.*?)\n(.*?)(?=^## |\\Z)", PAGE, re.DOTALL | re.MULTILINE)
}


@pytest.fixture
def applied(tmp_path):
    """From a heading of the page to a copy of the project with the change below it."""

    def apply(heading):
        workflow = copy_of_repository(tmp_path / "papa")
        for part in ("docs", "tests/unit"):
            shutil.copytree(REPOSITORY / part, workflow.folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        (workflow.folder / "results").mkdir()
        helpers = [f"tests/{path.name}" for path in (REPOSITORY / "tests").glob("*.py")]
        for part in (*helpers, "results/README.md", "pyproject.toml"):
            shutil.copy2(REPOSITORY / part, workflow.folder / part)
        (diff,) = DIFFS[heading]
        process = subprocess.run(["git", "apply", "-"], input=diff, cwd=workflow.folder, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        return workflow

    return apply


@pytest.fixture
def changed(applied):
    """The same with the tiny model and its data, to run something on."""

    def apply(heading):
        workflow = applied(heading)
        write_model(workflow.folder / "models/tiny")
        write_data(workflow.folder / "data")
        return workflow

    return apply


def passes(workflow, *arguments):
    """Run tests of a copy on the copy's own code; the number of those that passed."""
    environment = os.environ | {"PYTHONPATH": str(workflow.folder)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    process = subprocess.run(command, cwd=workflow.folder, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return int(re.search("([0-9]+) passed", process.stdout)[1])


def tiny_with(**run):
    config = copy.deepcopy(CONFIG)
    config["run"] |= {"tasks": ["animals"]} | run
    return config


HEADINGS = ["A model", "A task", "A metric", "A constant", "An order of heads", "An analysis"]


def test_every_change_has_a_test():
    assert [heading for heading, diffs in DIFFS.items() if diffs] == HEADINGS


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_change_applies(applied, heading):
    applied(heading)


@pytest.mark.slow
def test_a_model(changed):
    workflow = changed("A model")
    assert passes(workflow, "tests/unit/test_decoders.py", "-k", "olmo2") >= 8


@pytest.mark.slow
def test_a_task(changed):
    workflow = changed("A task")
    for split in ("train", "validation"):
        rows = ["is the cat here,animals", "is the red here,colours"] * 4
        text = "\n".join(["question,topic", *rows]) + "\n"
        (workflow.folder / f"data/questions.{split}.csv").write_text(text, encoding="utf-8")
    config = yaml.safe_load((workflow.folder / "config/config.yaml").read_text(encoding="utf-8"))
    config["models"]["minilm"] = CONFIG["models"]["tiny"]
    run = "results/demo/models/minilm/tasks/topics/runs/average/all/runs.json"
    workflow.run(run, "--cores", "1", "--configfile", workflow.write(config))
    labels = read_table(workflow.folder / "results/demo/tasks/topics/labels.parquet")
    assert provenance_of(labels)["label_names"] == ["animals", "colours"] and (workflow.folder / run).exists()


@pytest.mark.slow
def test_a_metric(changed):
    workflow = changed("A metric")
    assert passes(workflow, "tests/unit/test_metrics.py", "-k", "scikit or every") >= 15
    config = tiny_with(fractions=["1", "0"], seeds=[1, 2])
    config["tasks"]["animals"]["metric"] = "balanced_accuracy"
    workflow.run("--cores", "1", "--configfile", workflow.write(config))
    results = workflow.folder / "results/tiny"
    rows = [row for row in read_table(results / "tables/summary.parquet").to_pylist() if row["main"]]
    assert {(row["metric"], row["trivial"]) for row in rows if row["subset"] == "all"} == {("balanced_accuracy", 0.5)}
    assert (results / "tables/claims.json").exists()
    assert "Balanced accuracy" in (results / "report/index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_constant(changed):  # with no head, half of the heads and all replaced, and the contextless floor
    workflow = changed("A constant")
    assert passes(workflow, "tests/unit/test_constants_and_orders.py") >= 7
    planned = workflow.planned(tiny_with(constants=["uniform"]))
    assert planned["train_lambda"] == 1 and planned["probe"] == 4 and "average" not in planned


@pytest.mark.slow
def test_an_order(changed):
    workflow = changed("An order of heads")
    assert passes(workflow, "tests/unit/test_constants_and_orders.py") >= 6
    config = tiny_with(orders=["layers-in-turn"])
    planned = workflow.planned(config)
    assert planned["order_heads"] == 1 and planned["probe"] == 4 and "train_lambda" not in planned
    workflow.run("--cores", "1", "--configfile", workflow.write(config))
    report = (workflow.folder / "results/tiny/report/index.html").read_text(encoding="utf-8")
    assert "layers in turn" in report


@pytest.mark.slow
def test_an_analysis(changed):
    workflow = changed("An analysis")
    assert passes(workflow, "tests/unit/test_lambdas.py") == 1
    workflow.run("--cores", "1", "--configfile", workflow.write(tiny_with()))
    results = workflow.folder / "results/tiny"
    rows = read_table(results / "tables/lambdas.parquet").to_pylist()
    heads = [("animals", layer, head) for layer in range(2) for head in range(2)]
    assert [(row["task"], row["layer"], row["head"]) for row in rows] == heads
    assert all(0.4 < row["lambda"] < 0.6 for row in rows)
    assert "## " not in (results / "tables/lambdas.md").read_text(encoding="utf-8")
    report = (results / "report/index.html").read_text(encoding="utf-8")
    assert '<section id="section-lambdas">' in report and "λ of 4 heads" in report
    again = workflow.snakemake("--cores", "1", "--configfile", "config.yaml")
    assert "Nothing to be done" in again.stdout + again.stderr
