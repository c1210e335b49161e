"""Original scores beside mean drops: which tasks are in which mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import analyses
import pandas as pd
import pyarrow as pa
import pytest

from papa.config.settings import Plots
from papa.files import read_table, write_table
from papa.results.analysis import analyse
from papa.results.drops import COLUMNS
from papa.results.grids import GRID_COLUMNS

MLM = {"metric": "negative_log_perplexity"}


def row(model: str, task: str, fraction: str, mean: float, drop: float | None, **other: Any) -> dict[str, Any]:
    setting = {"line": "a", "model": model, "task": task, "title": task.upper(), "fraction": fraction, "metric": "f1"}
    setting |= {"constant": "average" if fraction == "0" else None, "main": True, "subset": "all", "mean": mean}
    return dict.fromkeys(GRID_COLUMNS) | setting | {"relative_drop": drop, "status": "counts"} | other


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[pd.DataFrame]:
    """What is drawn; figures have tests of their own, which take long."""
    frames: list[pd.DataFrame] = []
    monkeypatch.setattr("papa.results.drops.drop_figure", lambda rows, plots: frames.append(rows) or (None, ""))
    monkeypatch.setattr("papa.results.analysis.save_figure", lambda figure, outputs, plots: None)
    return frames


def made(folder: Path, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(GRID_COLUMNS.items()))), folder / "grid.parquet", {})
    made_of, parameters = {"grid": folder / "grid.parquet"}, {"plots": Plots().model_dump()}
    said = analyse(analyses.job("score_and_drop", parameters, made_of, folder / "d", drawn=True))
    assert said == ("2 mean drops" if len({row["model"] for row in rows}) == 2 else "1 mean drop")
    lines = (folder / "d.md").read_text(encoding="utf-8").splitlines()
    assert r"\toprule" in (folder / "d.tex").read_text(encoding="utf-8")
    return read_table(folder / "d.parquet").to_pylist(), [line for line in lines if line.startswith("| ")][2:]


def test_means_over_tasks(tmp_path: Path, drawn: list[pd.DataFrame]) -> None:
    rows = [row("m", "a", "1", 0.9, 0), row("m", "b", "1", 0.5, 0), row("m", "c", "1", 0.1, None)]
    rows += [row("m", "a", "0", 0.8, 0.1), row("m", "b", "0", 0.4, 0.2), row("m", "c", "0", 0.1, None)]
    rows += [row("m", "mlm", "1", -2.0, None, **MLM), row("m", "mlm", "0", -3.0, None, **MLM)]
    rows += [row("m", "a", "1/2", 0.7, 0.9), row("m", "a", "0", 0.1, 0.9, main=False)]
    rows += [r | {"line": "b"} for r in rows if r["fraction"] != "1/2"]  # the ends stand once in each line
    [found], [line] = made(tmp_path, rows)
    about = ("m", "average", pytest.approx(0.5), 3, pytest.approx(0.15), 2, "C", None, 0)
    assert found == dict(zip(COLUMNS, about, strict=True))
    assert line == "| m | average | 0.500 | 3 | 15.0 % | 2 | C | - | 0 |"
    assert [len(rows) for rows in drawn] == [1]


def test_losses_are_means_over_the_tasks_that_count(tmp_path: Path) -> None:
    nan = float("nan")
    rows = [row("m", "a", "1", 0.9, 0), row("m", "a", "0", 0.8, 0.1, loss=0.2)]
    rows += [row("m", "mlm", "0", -3.0, None, loss=0.5, **MLM), row("m", "b", "0", 0.8, 0.1, loss=nan)]
    rows += [row("m", "c", "0", 0.8, 0.1, loss=0.9, status="attention contributes nothing measurable")]
    rows += [row("m", "a", "0", 0.8, 0.1, loss=0.9, subset="lookup"), row("m", "a", "1/2", 0.8, 0.1, loss=0.9)]
    rows += [row("m", "a", "0", 0.8, 0.1, loss=0.9, metric="accuracy", main=False)]
    [found], [line] = made(tmp_path, rows)
    assert (found["mean_loss"], found["tasks_with_loss"]) == (pytest.approx(0.35), 2)
    assert line.endswith("| 35.0 % | 2 |")


def test_without_a_defined_drop_there_is_none(tmp_path: Path) -> None:
    rows = [row("m", "a", "1", 0.9, None), row("m", "a", "0", 0.8, None)]
    rows += [row("n", "mlm", "1", -2.0, None, **MLM), row("n", "mlm", "0", -3.0, None, **MLM)]
    found, lines = made(tmp_path, rows)
    assert [r["mean_relative_drop"] for r in found] == [r["mean_loss"] for r in found] == [None, None]
    ends = ["| m | average | 0.900 | 1 | - | 0 | A | - | 0 |", "| n | average | - | 0 | - | 0 |  | - | 0 |"]
    assert lines == ends
