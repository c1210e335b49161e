"""Our numbers with those of the paper: which are joined, and what a comparison is called."""

from pathlib import Path
from typing import Any

import pytest
from builders import analysis_job, summary_row, write_rows

from papa.config.job import Job
from papa.config.measures import METRICS as TASK_METRICS
from papa.config.settings import Machine
from papa.config.stages import AnalysisOf
from papa.data import local_digests
from papa.errors import DamagedArtefact, InputError
from papa.files import provenance_of, read_table, trace_of
from papa.results.analysis import analyse
from papa.results.published import COLUMNS, METRIC_NAMES, SETTINGS, published_values

LARGE = {"big": "FacebookAI/roberta-large"}


def row(fraction: str, mean: float | None, **columns: Any) -> dict[str, Any]:
    about = {"model": "big", "task": "para", "title": "MRPC", "rows_train": 3001, "rows_available_train": 3668}
    return summary_row(fraction, mean, **about | columns)


def job(folder: Path, **options: Any) -> Job[AnalysisOf]:
    parameters = {"models": LARGE, "tasks": {"para": "mrpc"}, "more_settings": {}, "values": "v"} | options
    return analysis_job("published", parameters, {"summary": folder / "summary.parquet"}, folder / "p")


def compare(folder: Path, rows: list[dict[str, Any]], **options: Any) -> tuple[list[dict[str, Any]], str, str]:
    write_rows(rows, folder / "summary.parquet")
    message = analyse(job(folder, **options))
    return read_table(folder / "p.parquet").to_pylist(), message, (folder / "p.md").read_text(encoding="utf-8")


def test_the_values_are_those_of_the_tables_and_an_edited_one_is_noticed(tmp_path, monkeypatch):
    values = published_values()
    assert len(values) == 104
    tables = {("1", "roberta-base"), ("2", "roberta-base"), ("4", "roberta-large"), ("5", "roberta-large")}
    assert set(zip(values["table"], values["model"], strict=True)) == tables
    assert {name for names in SETTINGS.values() for name in names} | {"original", "mnli"} == set(values["setting"])
    assert set(METRIC_NAMES.values()) - {"chunk_f1"} <= set(TASK_METRICS)
    digest = local_digests.LocalSourceDigests(Machine.current()).published
    before, edited = digest(), local_digests.PUBLISHED.read_text(encoding="utf-8").replace("0.47", "0.48")
    monkeypatch.setattr(local_digests, "PUBLISHED", tmp_path / "published.csv")
    local_digests.PUBLISHED.write_text(edited, encoding="utf-8")
    assert digest() != before


def test_tables_are_joined_one_by_one(tmp_path):
    rows, message, page = compare(tmp_path, [row("1", 0.9), row("1/2", 0.85), row("0", 0.79)])
    # the same setting under two names, and two values: 0.81 and 0.80
    assert [(r["table"], r["setting"], r["published"], r["ours"], r["inside"]) for r in rows] == [
        ("4", "original", 0.87, 0.9, False),
        ("4", "average", 0.81, 0.79, False),
        ("5", "per_task", 0.80, 0.79, True),
    ]
    assert [r["difference"] for r in rows] == pytest.approx([0.03, -0.02, -0.01])
    assert list(rows[0]) == list(COLUMNS)
    assert message == "3 published values compared; 1 of 3 inside our interval"
    assert "## Table 4: roberta-large, ours: big" in page
    assert "| per task | MRPC | F1 | 0.80 | 0.790 ±.013 | -0.010 | yes | 3,001 of 3,668 |" in page
    assert provenance_of(read_table(tmp_path / "p.parquet"))["table"] == "published"
    assert trace_of(tmp_path / "p.parquet") == job(tmp_path).trace()


@pytest.mark.parametrize(
    ("mean", "half", "inside"),
    [(0.8519, 0.013, False), (0.8521, 0.013, True), (0.8879, 0.013, True), (0.8881, 0.013, False), (0.87, None, None)],
)
def test_inside_means_a_number_that_rounds_to_the_published_one(tmp_path, mean, half, inside):
    [comparison], message, page = compare(tmp_path, [row("1", mean, half=half)])  # 0.87, so 0.865 to 0.875
    assert comparison["inside"] is inside and comparison["ours"] == mean
    assert message.endswith(f"{int(inside or False)} of {int(half is not None)} inside our interval")
    assert half is not None or "| 0.870 | +0.000 | - |" in page


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, [("4", "zeros", "zeros")]),
        ({"more_settings": {"average_of_mnli": "mnli"}}, [("4", "zeros", "zeros"), ("5", "mnli", "average_of_mnli")]),
        *(({"models": {"big": hub}}, []) for hub in (None, "x/MiniLM")),
        ({"tasks": {}}, []),
    ],
)
def test_other_constants_are_named_by_the_caller_and_nothing_to_compare_is_an_empty_table(tmp_path, options, settings):
    ours = [row("0", 0.8, constant=constant) for constant in ("average_of_mnli", "zeros")]
    rows, message, page = compare(tmp_path, [*ours, row("1", None)], **options)
    assert [(r["table"], r["setting"], r["constant"]) for r in rows] == settings
    assert message.startswith(f"{len(rows)} published value") and ("None of these" in page) == (not rows)


def test_the_published_reading_is_compared(tmp_path):
    ours = [("token_accuracy", 0.95, {}), ("chunk_f1", 0.93, {"main": False})]
    ours += [("chunk_f1", 0.80, {"main": False, "subset": "hard"})]
    rows = [row("1", mean, metric=metric, task="pos", **columns) for metric, mean, columns in ours]
    [comparison], _, _ = compare(tmp_path, rows, tasks={"pos": "pos"})
    assert (comparison["metric"], comparison["ours"], comparison["published"]) == ("chunk_f1", 0.93, 0.93)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": {"small": None}}, "The summary has no model 'small'; choose from big"),
        ({"tasks": {"para": "MRPC"}}, "The paper prints no task 'MRPC'; choose from cola, mrpc"),
        ({"tasks": {"para": "cola"}}, "whose metric is matthews_correlation; the summary scores it by f1"),
    ],
)
def test_wrong_names_are_refused(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        compare(tmp_path, [row("1", 0.9)], **options)
    assert not (tmp_path / "p.parquet").exists()
    (tmp_path / "summary.parquet").write_text("no Parquet")
    with pytest.raises(DamagedArtefact, match=r"summary\.parquet cannot be read"):
        analyse(job(tmp_path))
