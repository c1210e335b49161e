"""The changes that docs/extending.md shows apply to one copy of the project, which passes its checks with them."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from tiny import (
    CONFIG,
    REPOSITORY,
    copy_of_repository,
    in_python,
    succeeded,
    with_keys,
    write_inputs,
)

from papa.files import read_facts, read_table

PAGE = (REPOSITORY / "docs/extending.md").read_text()
DIFFS = re.findall("```diff\n(.*?)```", PAGE, re.DOTALL)
KEYS = {
    "tasks.animals.metric": "balanced_accuracy",
    "run.tasks": ["animals"],
    "run.constants": ["previous"],
    "run.orders": ["lambda", "layers-in-turn"],
    "run.fractions": ["1", "1/2", "0"],
}
"""The keys of a config that use the changes."""
ROWS = [
    ("summary", {"metric": "balanced_accuracy", "constant": "previous", "fraction": "0"}),
    ("summary", {"order": "layers-in-turn"}),
    ("lambdas", {"task": "animals", "constant": "previous", "layer": 1, "head": 1}),
]
"""Tables of the study with rows that have these values."""
CHECKS = [
    "ruff check .",
    "ruff format --check .",
    "mypy",
    "pytest -q tests/unit/test_size.py tests/unit/test_house.py "
    "tests/unit/test_metrics.py tests/unit/test_constants_and_orders.py",
    "pytest -q tests/unit/test_decoders.py -k olmo2",
]
"""Commands that have to succeed in the extended project."""
COMPUTE = """
from papa.config.reading import read_config
from papa.commands.measure import run_here
from papa.plan.study import Plan

run_here(Plan(read_config("config.yaml"), "results/tiny"))
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the project to which all diffs of the page are applied in turn, with a tiny model and data."""
    workflow = copy_of_repository(tmp_path_factory.mktemp("extended") / "papa")
    for part in ("docs", "tests", "benchmarks"):
        shutil.copytree(
            REPOSITORY / part,
            workflow.folder / part,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    (workflow.folder / "results").mkdir()
    for file in ("pyproject.toml", "results/README.md"):
        shutil.copy2(REPOSITORY / file, workflow.folder / file)
    for diff in DIFFS:
        applied = {"input": diff, "cwd": workflow.folder, "capture_output": True, "text": True}
        succeeded(subprocess.run(["git", "apply", "-"], **applied))
    write_inputs(workflow.folder)
    return workflow


def test_all_changes_apply_to_one_copy(extended):
    assert (extended.folder / "papa/results/lambdas.py").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_the_extended_project_passes_its_checks(extended, check):
    if check == "mypy":  # with what `make lint` stored, it reads only what is new
        for stored in REPOSITORY.glob(".mypy_cache"):
            shutil.copytree(stored, extended.folder / stored.name)
    environment = os.environ | {"PYTHONPATH": str(extended.folder)}
    command = [sys.executable, "-m", *check.split()]
    succeeded(
        subprocess.run(
            command, cwd=extended.folder, env=environment, capture_output=True, text=True
        )
    )


@pytest.mark.slow
def test_a_task_has_its_labels(extended):
    for split in ("train", "validation"):
        rows = ["is the cat here,animals", "is the red here,colours"] * 4
        text = "\n".join(["question,topic", *rows]) + "\n"
        (extended.folder / f"data/questions.{split}.csv").write_text(text)
    config = yaml.safe_load((extended.folder / "config/config.yaml").read_text())
    config["models"]["minilm"] = CONFIG["models"]["tiny"]
    extended.planned(config)
    [table] = extended.folder.glob("results/cache/data/questions-*.parquet")
    assert read_facts(table)["labels"]["topics"]["names"] == ["animals", "colours"]


@pytest.mark.slow
def test_a_study_with_the_changes_has_their_rows_and_its_report(extended):
    extended.write(with_keys(CONFIG, KEYS))
    succeeded(in_python(COMPUTE, folder=extended.folder, PYTHONPATH=str(extended.folder)))
    results = extended.folder / "results/tiny"
    for table, expected in ROWS:
        rows = read_table(results / f"tables/{table}.parquet").to_pylist()
        assert any(row.items() >= expected.items() for row in rows), expected
    assert "λ of 4 heads" in (results / "report/index.html").read_text()
