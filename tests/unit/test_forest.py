"""The forest plot: the mean loss, and the losses of tasks and subsets, in the order in which readers need them."""

import math
from types import SimpleNamespace

import pytest
from builders import line_claim

from papa.config.settings import RUN
from papa.results.conclusion import EndLoss, Exclusion, SubsetLosses, TaskLoss
from papa.results.forest import MEAN, figure_of, losses, losses_of

A = TaskLoss(task="A", loss=0.82, low=0.73, high=0.93)
B = TaskLoss(task="B", loss=-0.02, low=-0.9, high=0.07)
EASY = SubsetLosses(
    subset="easy",
    tasks=(TaskLoss(task="A", loss=0.11, low=0.05, high=math.inf),),
    excluded=(Exclusion(task="B", why="attention contributes nothing measurable"),),
)
END = EndLoss(loss=0.4, low=0.31, high=0.52, tasks=(A, B), subsets=(EASY,))
LINE = line_claim(at_end=END, excluded=(Exclusion(task="C", why="at chance"),))


def section_of(*lines):
    """The section of lines of the first grid."""
    grid = SimpleNamespace(fractions=["1", "0"])
    config = SimpleNamespace(run=grid, floors=("zeros",), margin=0.1)
    claims = SimpleNamespace(lines=[line.model_copy(update={"grid": RUN}) for line in lines])
    return losses(SimpleNamespace(config=config, conclusion=claims))


def test_the_mean_comes_first_and_subsets_follow_their_task():
    rows = losses_of([LINE])
    places = [*zip(rows["task"], rows["subset"].fillna(""), strict=True)]
    assert places == [(MEAN, ""), ("A", ""), ("A", "easy"), ("B", ""), ("B", "easy"), ("C", "")]
    assert rows["loss"].tolist()[:4] == [0.4, 0.82, 0.11, -0.02] and rows["loss"].isna().tolist()[4:] == [True, True]
    assert rows["excluded"].tolist()[4:] == ["attention contributes nothing measurable", "at chance"]
    section = section_of(LINE)
    [table] = section.tables
    assert table.header == ["task", "subset", "loss", "excluded because"]
    texts = ["40 % (31 to 52)", "82 % (73 to 93)", "11 %", "-2 % (-90 to 7)", "-", "-"]
    assert [row[2] for row in table.rows] == texts


def test_a_single_task_has_no_mean_and_without_a_loss_the_figure_says_so():
    lines = [
        LINE.model_copy(update={"at_end": END.model_copy(update={"tasks": tasks, "subsets": ()})})
        for tasks in ((A,), ())
    ]
    single, none = (losses_of([line]) for line in lines)
    of_none = section_of(lines[1])
    assert single["task"].tolist() == ["A", "C"]
    # read from a file, a column without values is one of numbers
    figure = figure_of(single.astype({"subset": "float64"}), 0.1).to_dict()
    assert '["A", "C"][datum.value]' in str(figure).replace("\\", "")
    assert losses_of([line_claim(at_end=None)]).empty
    assert "No task has a loss" in str(figure_of(none, 0.1).to_dict()) and not of_none.in_report
    assert of_none.caption == ""


@pytest.mark.parametrize("lines", [1, 2])
def test_the_figure_shows_each_loss_once_and_cuts_long_intervals(lines):
    several = [LINE.model_copy(update={"line": f"line {number}"}) for number in range(lines)]
    rows, drawing = losses_of(several), section_of(*several)
    assert "cut at -50 % and 150 %" in drawing.caption
    assert drawing.alternative.endswith("C: excluded, at chance.")
    figure = figure_of(rows, 0.1).to_dict()
    marks, points = sorted(figure["datasets"].values(), key=len)
    of_dots = [row for row in points if row["loss"] is not None]
    assert sorted({(row["place"], row["line"]) for row in of_dots}) == [
        (place, f"line {number}") for place in range(4) for number in range(lines)
    ]
    assert min(row["low"] for row in of_dots) == -0.5 and max(row["high"] for row in of_dots) == 1.5
    assert [mark["at"] for mark in marks] == [0.1, 1.0]
