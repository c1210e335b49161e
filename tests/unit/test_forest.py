"""The forest plot: mean reliance, and what is lost on tasks and subsets, in the order in which readers need them."""

import math
from types import SimpleNamespace
from unittest.mock import patch

import pandas as pd
import pytest
from builders import frame_of, grid_view, summary_row

from papa.results.claims import CLAIM_COLUMNS
from papa.results.forest import AXIS, MEAN, effects_of, figure_of, reliance, table_of
from papa.results.grids import GRID_COLUMNS


def row(task, reliance=None, low=None, high=None, subset="all", line="l", lost=0.048):
    """A row of a grid with every head replaced."""
    effect = {
        "reliance": reliance,
        "reliance_low": low,
        "reliance_high": high,
        "lost": lost,
        "lost_low": lost - 0.01,
        "lost_high": lost + 0.01,
        "contributed": 0.055,
        "contributed_low": -0.02,
        "contributed_high": 0.069,
    }
    about = {"task": task, "subset": subset, "line": line, "context_free": 0.4}
    return summary_row("0", 0.5, **about, **effect)


A = row("a", 0.82, 0.73, 0.93)
B = row("b", -0.02, -0.9, 0.07)
SUBSETS = [row("a", 0.11, 0.05, math.inf, subset="easy"), row("b", 2.6, 2.4, 2.8, subset="easy")]
NO_SHARE = row("c")
ROWS = [NO_SHARE, A, SUBSETS[0], B, SUBSETS[1]]


def found(rows=ROWS, lines=("l",)):
    """The rows and the claims of a grid with some lines, each with the same rows."""
    frame = frame_of([{**each, "line": line} for line in lines for each in rows], GRID_COLUMNS)
    frame = frame.assign(original=0.8, constants=frame["mean"])
    interval = {"reliance": 0.4, "reliance_low": 0.31, "reliance_high": 0.52}
    claim = {"grid": "grid", "replaced": 24, "heads": 24, "averaged": 2} | interval
    claims = [claim | {"line": line} for line in lines]
    return frame, pd.DataFrame(claims, columns=list(CLAIM_COLUMNS))


def section_of(frame, claims):
    """The section of the first grid."""
    run = SimpleNamespace(fractions=["1", "0"])
    config = SimpleNamespace(run=run, floors=("zeros",), margin=("10%",))
    originals = frame.drop_duplicates(["model", "task", "subset"]).assign(fraction="1", mean=0.8)
    summary = pd.concat([frame, originals]).drop(columns=["original", "constants"])
    study = SimpleNamespace(config=config, summary=summary, claims=claims, covered="seeds")
    with (
        patch("papa.results.forest.grid_views", return_value=[grid_view()]),
        patch("papa.results.forest.rows_of", side_effect=lambda grid, rows: rows),
    ):
        return reliance(study)


def points_of(figure):
    """The rows of the figure's data, which are more than those of its rules."""
    return max(figure.to_dict()["datasets"].values(), key=len)


def test_the_mean_comes_first_and_subsets_follow_their_task():
    rows = effects_of(*found())
    places = [*zip(rows["task"], rows["subset"].fillna(""), strict=True)]
    assert places == [(MEAN, ""), ("C", ""), ("A", ""), ("A", "easy"), ("B", ""), ("B", "easy")]
    section = section_of(*found())
    [table] = section.tables
    header = ["task", "subset", "metric", "original", "constants", "context-free"]
    effects = ["lost", "attention contributes", "reliance"]
    assert table.header == header + effects
    lost = "4.8 (3.8 to 5.8)"
    contributed = "5.5 (-2.0 to 6.9)"
    assert table.rows[0] == [MEAN, *[""] * 5, "-", "-", "40% (31 to 52)"]
    assert table.rows[1] == [
        "C",
        "",
        "F1",
        "0.800",
        "0.500",
        "0.400",
        lost,
        contributed,
        "no share",
    ]
    assert [row[-1] for row in table.rows[2:]] == [
        "82% (73 to 93)",
        "11% (5% or more)",
        "-2% (-90 to 7)",
        "260% (240 to 280)",
    ]
    no_share = "attention contributes 5.5 points (-2.0 to 6.9)"
    assert f"C: 4.8 points (3.8 to 5.8), {no_share}." in section.alternative


def test_a_study_without_a_share_still_says_what_is_lost():
    frame, _ = found([NO_SHARE])
    section = section_of(frame, found(lines=())[1])
    assert section.in_report
    assert section.frame["task"].tolist() == ["C"]
    # read from a file, a column without values is one of numbers
    figure = figure_of(section.frame.astype({"subset": "float64"}), "10%").to_dict()
    [point] = (row for rows in figure["datasets"].values() for row in rows if "label" in row)
    assert (point["label"], point["amounts"]) == ("C", "4.8 points (3.8 to 5.8)")
    assert point["instead"] == "attention contributes 5.5 points (−2.0 to 6.9)"
    assert point["dot"] is None
    assert point["from"] is None


@pytest.mark.parametrize("lines", [1, 2])
def test_every_interval_is_drawn_and_cut_by_a_mark_at_the_edge(lines):
    rows = effects_of(*found(lines=[f"line {number}" for number in range(lines)]))
    assert "margin" not in str(figure_of(rows, "1 point").to_dict()["datasets"]), (
        "only a share has a place"
    )
    points = points_of(figure_of(rows, "10%"))
    assert len(points) == 6 * lines
    assert len({point["text"] for point in points}) == 6 * lines
    drawn = [point for point in points if point["from"] is not None][::lines]
    ends = [(point["from"], point["to"]) for point in drawn]
    low, high = AXIS
    assert ends == [(0.31, 0.52), (0.73, 0.93), (0.05, high), (low, 0.07), (high, high)]
    assert [point["left"] for point in drawn] == [None, None, None, low, None]
    assert [point["right"] for point in drawn] == [None, None, high, None, high]
    assert [point["dot"] for point in drawn] == [0.4, 0.82, 0.11, -0.02, None]
    assert [point["amounts"] for point in drawn][:2] == ["", "4.8 points (3.8 to 5.8) of 5.5"]
    headings = [point["heading"] for point in points]
    if lines == 1:
        assert headings == [None] * 6
        assert points[1]["label"] == "C"
    else:
        assert headings[:4] == [MEAN, None, "C", None]
        assert [point["label"] for point in points[:2]] == ["line 0", "line 1"]


def test_a_study_without_originals_has_a_table():
    rows = effects_of(*found([NO_SHARE])).assign(original=math.nan)
    table = table_of(rows)
    assert "constants" in table.header
    assert len(table.rows) == len(rows)
