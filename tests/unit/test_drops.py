"""Original scores with mean drops: which tasks are in which mean."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import analysis_job, summary_row, write_rows

from papa.files import read_table
from papa.results.analysis import analyse
from papa.results.drops import COLUMNS
from papa.results.grids import GRID_COLUMNS

LOG_SCALED = {"metric": "negative_log_perplexity"}


def row(task: str, fraction: str, mean: float, drop: float | None, **columns: Any) -> dict[str, Any]:
    return summary_row(fraction, mean, **{"line": "a", "task": task, "relative_drop": drop} | columns)


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[pd.DataFrame]:
    """The rows of each figure; figures have other tests, which take long."""
    frames: list[pd.DataFrame] = []
    monkeypatch.setattr("papa.results.drops.drop_figure", lambda rows: frames.append(rows) or (None, ""))
    monkeypatch.setattr("papa.results.analysis.save_figure", lambda figure, outputs: None)
    return frames


def analysed(folder: Path, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    grid = write_rows(rows, folder / "grid.parquet", GRID_COLUMNS)
    message = analyse(analysis_job("score_and_drop", {}, {"grid": grid}, folder / "d", drawn=True))
    assert message == ("2 mean drops" if len({row["model"] for row in rows}) == 2 else "1 mean drop")
    lines = (folder / "d.md").read_text(encoding="utf-8").splitlines()
    assert r"\toprule" in (folder / "d.tex").read_text(encoding="utf-8")
    return read_table(folder / "d.parquet").to_pylist(), [line for line in lines if line.startswith("| ")][2:]


def test_means_over_tasks(tmp_path, drawn):
    rows = [row("a", "1", 0.9, 0), row("b", "1", 0.5, 0), row("c", "1", 0.1, None)]
    rows += [row("a", "0", 0.8, 0.1), row("b", "0", 0.4, 0.2), row("c", "0", 0.1, None)]
    rows += [row("mlm", "1", -2.0, None, **LOG_SCALED), row("mlm", "0", -3.0, None, **LOG_SCALED)]
    rows += [row("a", "1/2", 0.7, 0.9), row("a", "0", 0.1, 0.9, main=False)]
    rows += [r | {"line": "b"} for r in rows if r["fraction"] != "1/2"]  # both ends are in every line
    [mean], [line] = analysed(tmp_path, rows)
    expected = ("m", "average", pytest.approx(0.5), 3, pytest.approx(0.15), 2, "C", None, 0)
    assert mean == dict(zip(COLUMNS, expected, strict=True))
    assert line == "| m | average | 0.500 | 3 | 15.0 % | 2 | C | - | 0 |"
    assert [len(rows) for rows in drawn] == [1]


def test_losses_are_means_over_the_tasks_that_count(tmp_path):
    rows = [row("a", "1", 0.9, 0), row("a", "0", 0.8, 0.1, loss=0.2)]
    rows += [row("mlm", "0", -3.0, None, loss=0.5, **LOG_SCALED), row("b", "0", 0.8, 0.1, loss=float("nan"))]
    rows += [row("c", "0", 0.8, 0.1, loss=0.9, status="attention contributes nothing measurable")]
    rows += [row("a", "0", 0.8, 0.1, loss=0.9, subset="lookup"), row("a", "1/2", 0.8, 0.1, loss=0.9)]
    rows += [row("a", "0", 0.8, 0.1, loss=0.9, metric="accuracy", main=False)]
    [mean], [line] = analysed(tmp_path, rows)
    assert (mean["mean_loss"], mean["tasks_with_loss"]) == (pytest.approx(0.35), 2)
    assert line.endswith("| 35.0 % | 2 |")


def test_without_a_defined_drop_there_is_none(tmp_path):
    rows = [row("a", "1", 0.9, None), row("a", "0", 0.8, None)]
    rows += [row("mlm", fraction, -2.0, None, model="n", **LOG_SCALED) for fraction in ("1", "0")]
    means, lines = analysed(tmp_path, rows)
    assert [mean["mean_relative_drop"] for mean in means] == [mean["mean_loss"] for mean in means] == [None, None]
    assert lines == ["| m | average | 0.900 | 1 | - | 0 | A | - | 0 |", "| n | average | - | 0 | - | 0 |  | - | 0 |"]
