"""Results that an earlier version finished stay fresh, except claims, and their tables have the same values today.

Only the claims are out of date: they now also have claims about single tasks. Their other values are the same.

`finished_at_11dd431.tar.xz` is a finished study with its config, texts and models: an encoder with a task of texts and
one of words, a decoder, three seeds, two λ, halves of texts, a subset, random orders, rungs of the ladder and patterns.
Figures are empty and the report is its head, because only their presence and provenance count.
"""

import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

from papa.config.freshness import FRESH, MISSING
from papa.config.job import AnyJob
from papa.config.reading import read_config
from papa.config.study import Study
from papa.data.local_digests import LocalSourceDigests
from papa.files import read_json, read_table
from papa.jobs.stage import performed

ARCHIVE = Path(__file__).with_name("finished_at_11dd431.tar.xz")
JOBS = {"prepare_texts": 3, "prepare_labels": 2, "prepare_subsets": 1, "summarise": 1, "claims": 1, "analysis": 2}
JOBS |= {"drawn_analysis": 5, "describe_patterns": 1, "page": 1}
OUTDATED = {
    "tables/claims.parquet": "it was made by stage claims, version 4, but the current one is claims, version 6",
    "tables/losses.parquet": MISSING,
    "report/index.html": "it was made by stage page, version 1, but the current one is page, version 2",
}
"""Claims are rebuilt, and the report that shows them: they now judge single tasks and state their assumptions, and sums
over tasks count the seeds and examples that tasks share. The forest plot of losses is new."""
TABLES = ("summarise", "claims", "analysis", "drawn_analysis")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PAPA_MACHINE", raising=False)
    config = read_config("config.yaml")
    return Study(config, "results/finished", LocalSourceDigests(config.machine))


def test_finished_results_stay_finished_except_claims(study):
    rules = Counter(job.rule for job in study.jobs())
    assert {rule: rules[rule] for rule in JOBS} == JOBS
    assert {job.main: state for job in study.jobs() if (state := study.state(job)) != FRESH} == OUTDATED


def test_tables_have_the_same_values(study, tmp_path):
    compared = Counter[str]()
    for job in (job for job in study.jobs() if job.rule in TABLES and study.state(job) != MISSING):
        here = with_outputs(job, study.results, tmp_path / "now")
        with patch("papa.results.analysis.save_figure"):
            performed(here)
        for name, path in job.outputs.items():
            if path.endswith(".parquet"):
                before, now = (read_table(file).to_pandas() for file in (study.results / path, here.outputs[name]))
                if job.rule == "claims":
                    now = now[now["task"].isna()].reset_index(drop=True)
                pd.testing.assert_frame_equal(now[list(before)], before, check_exact=True, obj=path)
                compared[job.rule] += len(before)
            elif path.endswith(".json"):
                before, now = (dict(values_in(read_json(file))) for file in (study.results / path, here.outputs[name]))
                assert {place: now.get(place) for place in before} == before
    assert set(compared) == set(TABLES)


def with_outputs(job: AnyJob, results: Path, folder: Path) -> AnyJob:
    inputs = {name: tuple(str(results / path) for path in paths) for name, paths in job.inputs.items()}
    return replace(job, inputs=inputs, outputs={name: str(folder / path) for name, path in job.outputs.items()})


def values_in(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    """The numbers and truth values in JSON by their place; sentences may be reworded."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from values_in(part, f"{place}.{key}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from values_in(part, f"{place}[{number}]")
    elif isinstance(value, int | float | np.number):
        yield place, value


@pytest.mark.slow
def test_the_workflow_plans_only_the_claims_and_the_report(study):
    command = [sys.executable, "-m", "papa.cli", "run", "config.yaml", "-n"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert process.returncode == 0, process.stdout + process.stderr
    planned = re.findall(r"^(\w+) +\d+$", process.stdout + process.stderr, re.MULTILINE)
    assert set(planned) == {"claims", "drawn_analysis", "page", "all", "total"}
