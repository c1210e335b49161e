"""The changes that docs/extending.md shows apply unchanged, and do what it says."""

import re
import shutil
import subprocess

import pytest
import yaml
from tiny import (
    CONFIG,
    REPOSITORY,
    copy_of_repository,
    in_python,
    with_keys,
    write_inputs,
)

from papa.files import read_facts, read_table

PAGE = (REPOSITORY / "docs/extending.md").read_text(encoding="utf-8")
DIFFS = {
    heading: re.findall("```diff\n(.*?)```", section, re.DOTALL)
    for heading, section in re.findall(
        "^## (.*?)\n(.*?)(?=^## |\\Z)", PAGE, re.DOTALL | re.MULTILINE
    )
}
CHANGES = {
    "A metric": (
        {"tasks.animals.metric": "balanced_accuracy"},
        "summary",
        {"metric": "balanced_accuracy"},
    ),
    "A constant": (
        {"run.constants": ["previous"]},
        "summary",
        {"constant": "previous", "fraction": "0"},
    ),
    "An order of heads": (
        {"run.orders": ["layers-in-turn"]},
        "summary",
        {"order": "layers-in-turn"},
    ),
    "An analysis": ({}, "lambdas", {"task": "animals", "layer": 1, "head": 1}),
}
"""For a heading, the keys of a config that use the change, and a table with a row that has these values."""
COMPUTE = """
from papa.config.reading import read_config
from papa.commands.measure import run_here
from papa.plan.study import Plan

run_here(Plan(read_config("config.yaml"), "results/tiny"))
"""


@pytest.fixture
def changed(tmp_path):
    """From a heading of the page to a copy of the project with the change below it, a tiny model and data."""

    def apply(heading):
        workflow = copy_of_repository(tmp_path / "papa")
        for part in ("docs", "tests/unit"):
            shutil.copytree(
                REPOSITORY / part,
                workflow.folder / part,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        (workflow.folder / "results").mkdir()
        shutil.copy2(REPOSITORY / "results/README.md", workflow.folder / "results")
        (diff,) = DIFFS[heading]
        process = subprocess.run(
            ["git", "apply", "-"], input=diff, cwd=workflow.folder, capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr
        write_inputs(workflow.folder)
        return workflow

    return apply


@pytest.mark.parametrize("heading", [heading for heading, diffs in DIFFS.items() if diffs])
def test_a_change_applies(changed, heading):
    changed(heading)


@pytest.mark.slow
def test_a_task_has_its_labels(changed):
    workflow = changed("A task")
    for split in ("train", "validation"):
        rows = ["is the cat here,animals", "is the red here,colours"] * 4
        text = "\n".join(["question,topic", *rows]) + "\n"
        (workflow.folder / f"data/questions.{split}.csv").write_text(text, encoding="utf-8")
    config = yaml.safe_load((workflow.folder / "config/config.yaml").read_text(encoding="utf-8"))
    config["models"]["minilm"] = CONFIG["models"]["tiny"]
    workflow.planned(config)
    [table] = workflow.folder.glob("results/cache/data/questions-*.parquet")
    assert read_facts(table)["labels"]["topics"]["names"] == ["animals", "colours"]


@pytest.mark.slow
@pytest.mark.parametrize("heading", CHANGES)
def test_a_study_with_a_change_has_its_rows_and_its_report(changed, heading):
    keys, table, expected = CHANGES[heading]
    workflow = changed(heading)
    workflow.write(
        with_keys(CONFIG, {"run.tasks": ["animals"], "run.fractions": ["1", "1/2", "0"]} | keys)
    )
    process = in_python(COMPUTE, folder=workflow.folder, PYTHONPATH=str(workflow.folder))
    assert process.returncode == 0, process.stderr
    results = workflow.folder / "results/tiny"
    assert any(
        row.items() >= expected.items()
        for row in read_table(results / f"tables/{table}.parquet").to_pylist()
    )
    page = (results / "report/index.html").read_text(encoding="utf-8")
    assert ("λ of 4 heads" in page) == (table == "lambdas")
