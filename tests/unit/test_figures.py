"""Figures: what is in the files, what they draw, and which slots and numbers pictures of heads have."""

from typing import Any

import pandas as pd
import pytest
import torch
from builders import grid_view, summary_row
from refusals import input_error

import papa
from papa.method.pictures import drawn_slots, pictures
from papa.results.drops import COLUMNS as DROP_COLUMNS
from papa.results.drops import drop_figure
from papa.results.figures import grid_figure
from papa.results.section import draw

LAYERS = 3
HEADS = 5
FRACTIONS = ("1", "1/2", "0")
SUBSETS = ("all", "lookup", "position")
Rows = list[dict[str, Any]]


def row(fraction, mean, **columns):
    about = {
        "line": columns.get("model", "m"),
        "title": f"Title of {columns.get('task', 't')}",
        "metric": "entity_f1",
    }
    return summary_row(
        fraction, mean, **about | {"half": 0.01, "trivial": 0.2, "context_free": 0.3} | columns
    )


def curve(*means, **columns):
    return [
        row(fraction, mean, **columns)
        for fraction, mean in zip(FRACTIONS, means or (0.9, 0.8, 0.7), strict=True)
    ]


def lines(names, rows):
    return [row | {"line": name} for name in names for row in rows]


def figure_of(rows):
    """The figure of a grid of these rows, and its alternative text."""
    several = ("models", "fractions", "tasks")
    fields = {
        name: tuple(dict.fromkeys(row[name.removesuffix("s")] for row in rows)) for name in several
    }
    return grid_figure(
        pd.DataFrame(rows), grid_view(name="figure-2a", title="Figure 2a: BASE", **fields)
    )


def drawn(figure):
    return [point for points in figure.to_dict()["datasets"].values() for point in points]


def save(folder, figure):
    """Write a figure; return the SVG."""
    svg = draw(figure, folder / "figure.svg", folder / "figure.png")
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "figure.svg").read_text() == svg
    return svg


def test_files_show_models_tasks_and_subsets(tmp_path):
    names = [
        (model, task, subset)
        for model in ("first", "second")
        for task in ("ner", "names")
        for subset in SUBSETS
    ]
    rows = [
        part
        for model, task, subset in names
        for part in curve(model=model, task=task, subset=subset)
    ]
    svg = save(tmp_path, figure_of(rows)[0])
    texts = (
        "Figure 2a: BASE",
        "Title of ner",
        "Title of names",
        "Entity F1",
        "first",
        "second",
        "lookup",
        "12",
    )
    for text in (*texts, "trivial floor", "context-free floor", "Constants: average; order: λ."):
        assert f">{text}<" in svg


class Panel:
    """The content of the first panel of a figure."""

    def __init__(self, rows):
        self.figure = figure_of(rows)[0].to_dict()
        self.content = self.figure["concat"][0]
        self.marks = [layer["mark"]["type"] for layer in self.content["layer"]]
        self.points = self.rows("circle")
        self.x, self.y = (self.layer("circle")["encoding"][axis] for axis in "xy")

    def layer(self, mark):
        return self.content["layer"][self.marks.index(mark)]

    def rows(self, mark):
        return self.figure["datasets"][self.layer(mark)["data"]["name"]]


@pytest.mark.parametrize("character", ["\x1b", "\0", "\uffff"])
def test_a_character_that_would_end_the_process_is_refused(tmp_path, character):
    with input_error("contains a control character, which cannot be drawn"):
        save(tmp_path, figure_of(curve() + curve(subset=f"of{character}ten"))[0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("metric", "scores", "floors", "limits"),
    [
        ("accuracy", [0.97, 0.99, 0.985], (0.5, 0.6), (0.0, 1.0)),
        ("entity_f1", [0.02, 0.01, 0.0], (0.0, 0.0), (0.0, 1.0)),
        ("matthews_correlation", [0.1, -0.02, 0.04], (0.0, -0.05), (-1.0, 1.0)),
        ("negative_log_perplexity", [-0.05, -2.5, -3.0], (-7.2, -6.3), (float("-inf"), 0.0)),
    ],
)
def test_scores_stay_within_the_range_of_the_metric(metric, scores, floors, limits):
    panel = Panel(
        curve(*scores, metric=metric, half=0.09, trivial=floors[0], context_free=floors[1])
    )
    low, high = panel.y["scale"]["domain"]
    assert limits[0] <= low < high <= limits[1]
    for point in panel.points:
        assert low <= point["low"] <= point["mean"] <= point["high"] <= high
    # a panel begins at its lower floor or just below, or at its lowest interval
    begin = max(limits[0], min(*floors, min(scores) - 0.09))
    assert begin - 0.05 * (high - low) <= low <= begin


@pytest.mark.parametrize(
    ("context_free", "kinds"),
    [
        ((0.3, 0.301), ["context-free floor", "trivial floor"]),
        ((0.3, 0.4), ["context-free floor of a curve"] * 2 + ["trivial floor"]),
        ((None, None), ["trivial floor"]),
    ],
)
def test_floors_that_curves_share_are_lines_and_others_marks_of_their_curves(context_free, kinds):
    rows = [
        row | {"line": name}
        for name, floor in zip("ab", context_free, strict=True)
        for row in curve(context_free=floor)
    ]
    panel = Panel(rows)
    drawn = [row for mark in ("rule", "point") if mark in panel.marks for row in panel.rows(mark)]
    assert sorted(row["kind"] for row in drawn if "kind" in row) == kinds


LOOKUP = curve(0.8, 0.7, 0.6, subset="lookup", context_free=0.45)


def test_the_alternative_text_has_the_ends_and_floors_of_curves():
    assert figure_of(curve() + LOOKUP)[1] == (
        "Title of t: 0.900 with 0 of 24 heads replaced, 0.700 with 24 of 24 heads replaced, context-free floor 0.300. "
        "Title of t, lookup: 0.800 with 0 of 24 heads replaced, 0.600 with 24 of 24 heads replaced, context-free floor "
        "0.450."
    )


def test_every_model_with_a_drop_is_a_point(tmp_path):
    names = ["model", "constant", "mean_original", "mean_relative_drop"]
    points = [
        ("first", "average", 0.8, 0.1),
        ("second", "average", 0.8, 0.1),
        ("third", "average", 0.7, None),
    ]
    figure, _ = drop_figure(pd.DataFrame(points, columns=names).reindex(columns=DROP_COLUMNS))
    assert ">No drop is defined for third.<" in save(tmp_path, figure)
    shown = {point["text"]: point["mean_relative_drop"] for point in drawn(figure)}
    assert shown == {"first": 0.1, "second": 0.1}
    low, high = figure.to_dict()["encoding"]["y"]["scale"]["domain"]
    assert low < 0 < high


def averages(uses):
    """Averages whose slot s is used by `uses[s]` examples, the last by all; every cell has another entry."""
    use = torch.tensor(uses)
    count = torch.minimum(use[:, None], use)
    mean = (
        torch.arange(LAYERS * HEADS * len(uses) ** 2).view(LAYERS, HEADS, len(uses), len(uses))
        / 1000
    )
    return papa.Constants((mean * count).double(), count, max(uses))


def test_pictures_of_chosen_heads(tmp_path):
    constants = averages([101, 101, 53, 1, 0, 0, 101])
    figure = pictures(constants, [(0, 4), (2, 1)])
    assert drawn_slots(constants) == [0, 1, 2, 6], "of five that are used one is rare"
    svg = save(tmp_path, figure)
    assert all(
        f">{text}<" in svg
        for text in ("layer 0, head 4", "layer 2, head 1", "query slot", "key slot", "6")
    )
    values = drawn(figure)
    cells = {(cell.pop("query"), cell.pop("key")): cell for cell in values}
    assert len(cells) == len(values) == 4 * 4
    entries = {
        f"{layer}_{head}": float(constants.mean[layer, head, 2, 6])
        for layer, head in ((0, 4), (2, 1))
    }
    assert cells[2, 6] == pytest.approx(entries, abs=1e-4)
    [first, _] = figure.to_dict()["concat"]
    # rows are queries and columns keys
    assert (first["encoding"]["y"]["field"], first["encoding"]["x"]["field"]) == ("query", "key")
    # each head up to the maximum of its entries, by the square root
    color = first["encoding"]["color"]
    largest = max(cell["0_4"] for cell in values)
    assert color["scale"]["type"] == "sqrt"
    assert color["scale"]["domain"] == [
        0,
        largest / 4,
        largest,
    ]
