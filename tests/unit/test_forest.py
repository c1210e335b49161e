"""The forest plot: the mean reliance, and reliance of tasks and subsets, in the order in which readers need them."""

import math
from types import SimpleNamespace
from unittest.mock import patch

import pandas as pd
import pytest
from builders import frame_of, grid_view, summary_row

from papa.results.claims import CLAIM_COLUMNS
from papa.results.forest import MEAN, figure_of, reliance, reliances_of
from papa.results.grids import GRID_COLUMNS


def row(task, reliance=None, low=None, high=None, subset="all", status="counts", line="l"):
    """A row of a grid with every head replaced."""
    interval = {"reliance": reliance, "reliance_low": low, "reliance_high": high}
    return summary_row(
        "0", 0.5, task=task, subset=subset, status=status, line=line, context_free=0.4, **interval
    )


A, B = row("a", 0.82, 0.73, 0.93), row("b", -0.02, -0.9, 0.07)
NOTHING = "attention's contribution is not significant"
SUBSETS = [row("a", 0.11, 0.05, math.inf, subset="easy"), row("b", subset="easy", status=NOTHING)]
EXCLUDED = [row("c", status="at chance"), row("c", subset="easy", status="at chance")]
ROWS = [EXCLUDED[0], A, SUBSETS[0], B, *SUBSETS[1:], EXCLUDED[1]]


def found(rows=ROWS, lines=("l",)):
    """The rows and the claims of a grid with some lines, each with the same rows."""
    frame = frame_of([{**each, "line": line} for line in lines for each in rows], GRID_COLUMNS)
    frame = frame.assign(original=0.8, constants=frame["mean"])
    claim = {
        "grid": "grid",
        "replaced": 24,
        "heads": 24,
        "reliance": 0.4,
        "low": 0.31,
        "high": 0.52,
    }
    return frame, pd.DataFrame(
        [claim | {"line": line} for line in lines], columns=list(CLAIM_COLUMNS)
    )


def section_of(frame, claims):
    """The section of the first grid."""
    config = SimpleNamespace(
        run=SimpleNamespace(fractions=["1", "0"]), floors=("zeros",), margin=0.1
    )
    originals = frame.drop_duplicates(["model", "task", "subset"]).assign(fraction="1", mean=0.8)
    summary = pd.concat([frame, originals]).drop(columns=["original", "constants"])
    study = SimpleNamespace(config=config, summary=summary, claims=claims)
    with (
        patch("papa.results.forest.grid_views", return_value=[grid_view()]),
        patch("papa.results.forest.rows_of", side_effect=lambda grid, rows: rows),
    ):
        return reliance(study)


def test_the_mean_comes_first_and_subsets_follow_their_task():
    rows = reliances_of(*found())
    places = [*zip(rows["task"], rows["subset"].fillna(""), strict=True)]
    assert places == [(MEAN, ""), ("A", ""), ("A", "easy"), ("B", ""), ("B", "easy"), ("C", "")]
    assert (
        rows["reliance"].tolist()[:4] == [0.4, 0.82, 0.11, -0.02]
        and rows["reliance"][4:].isna().all()
    )
    assert rows["excluded"].tolist()[4:] == [NOTHING, "at chance"]
    section = section_of(*found())
    [table] = section.tables
    scores = ["original", "constants", "context-free"]
    assert table.header == ["task", "subset", "metric", *scores, "reliance", "excluded because"]
    assert [row[6] for row in table.rows[2:4]] == [
        "inconclusive (unbounded)",
        "inconclusive (-90 to 7)",
    ]
    assert [row[2:6] for row in table.rows][:2] == [[""] * 4, ["F1", "0.800", "0.500", "0.400"]]


def test_a_single_task_has_no_mean_and_without_a_loss_the_figure_says_so():
    only_a, nothing = [A, EXCLUDED[0]], [EXCLUDED[0]]
    single, none = (
        reliances_of(*found(only_a)),
        reliances_of(found(nothing)[0], found(nothing, lines=())[1]),
    )
    of_none = section_of(found(nothing)[0], found(nothing, lines=())[1])
    assert single["task"].tolist() == ["A", "C"] and none.empty
    # read from a file, a column without values is one of numbers
    figure = figure_of(single.astype({"subset": "float64"}), 0.1).to_dict()
    [*_, points] = sorted(figure["datasets"].values(), key=len)
    assert [row["label"] for row in points] == ["A", "C"]
    assert not of_none.in_report and of_none.chart is None


@pytest.mark.parametrize("lines", [1, 2])
def test_the_figure_shows_each_narrow_interval_once(lines):
    several = found(lines=[f"line {number}" for number in range(lines)])
    rows, drawing = reliances_of(*several), section_of(*several)
    assert drawing.alternative.endswith("C: inconclusive, at chance.")
    figure = figure_of(rows, 0.1).to_dict()
    marks, points = sorted(figure["datasets"].values(), key=len)
    of_dots = [row for row in points if row["reliance"] is not None]
    assert sorted(row["row"] for row in of_dots) == [*range(2 * lines)], (
        "each line of a task has a row"
    )
    assert [row["label"] for row in of_dots if row["label"]] == [MEAN, "A"]
    first = "line 0  " * (lines > 1)
    assert [row["scores"] for row in of_dots][::lines] == [first, f"{first}0.800 → 0.500 (0.400)"]
    of_second = (
        figure_of(rows[rows["line"].ne("line 0") | rows["task"].ne(MEAN)], 0.1)
        .to_dict()["datasets"]
        .values()
    )
    assert MEAN in {row["label"] for row in max(of_second, key=len)} or lines == 1, (
        "a later line names its rows"
    )
    assert (
        min(row["low"] for row in of_dots) == 0.31 and max(row["high"] for row in of_dots) == 0.93
    )
    assert [mark["at"] for mark in marks] == [0.1, 1.0]
