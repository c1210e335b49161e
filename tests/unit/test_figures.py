"""Figures: what is in the files, what they were told to draw, and which slots and numbers pictures of heads have."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import papa
from papa.config.settings import Plots
from papa.config.stages import GridOf
from papa.errors import InputError
from papa.results.drops import COLUMNS as DROP_COLUMNS
from papa.results.figures import MOST_SLOTS, draw_drops, draw_grid, draw_patterns, drawn_slots, grid_figure
from papa.results.grids import GRID_COLUMNS

LAYERS, HEADS, N = 3, 5, 7
FRACTIONS = {"1": 24, "1/2": 12, "0": 0}
FORMS = ("svg", "png", "html")


def row(model: str, task: str, fraction: str, mean: float | None, **other: Any) -> dict[str, Any]:
    known = {"half_width": 0.01, "low": mean - 0.01, "high": mean + 0.01} if mean is not None else {}
    setting = {
        "line": model,
        "model": model,
        "task": task,
        "title": f"Title of {task}",
        "constant": None if fraction == "1" else "average",
        "order": "lambda" if fraction == "1/2" else None,
        "fraction": fraction,
        "kept": FRACTIONS[fraction],
        "heads": 24,
    }
    return (
        dict.fromkeys(GRID_COLUMNS)
        | setting
        | {
            "metric": "entity_f1",
            "main": True,
            "subset": "all",
            "mean": mean,
            "seeds": 3,
            **known,
            **other,
        }
    )


def outputs(folder: Path) -> dict[str, str]:
    """The paths of a job that also writes a table."""
    return {"table": str(folder / "table.parquet")} | {form: str(folder / f"figure.{form}") for form in FORMS}


def grid_of(rows: list[dict[str, Any]], **plots: Any) -> GridOf:
    return GridOf(
        name="figure-2a",
        title="Figure 2a: BASE",
        models=tuple(dict.fromkeys(row["model"] for row in rows)),
        constants=("average",),
        orders=("lambda",),
        fractions=tuple(FRACTIONS),
        tasks={row["task"]: "texts" for row in rows},
        plots=Plots(**plots),
        drawn=True,
    )


def plot(folder: Path, rows: list[dict[str, Any]], **plots: Any) -> dict[str, Path]:
    draw_grid(pd.DataFrame(rows), grid_of(rows, **plots), outputs(folder))
    return {form: folder / f"figure.{form}" for form in FORMS}


def size_of_png(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def specification(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    spec, _ = json.JSONDecoder().raw_decode(text, text.index("const spec = ") + len("const spec = "))
    return spec


def drawn(page: Path) -> list[dict[str, Any]]:
    return [point for points in specification(page)["datasets"].values() for point in points]


def test_files_show_models_tasks_and_subsets(tmp_path: Path) -> None:
    rows = [
        row(model, task, fraction, 0.9 - kept / 100, subset=subset)
        for model in ("first", "second")
        for task in ("ner", "names")
        for subset in ("all", "lookup")
        for fraction, kept in FRACTIONS.items()
    ]
    files = plot(tmp_path, rows)
    svg = files["svg"].read_text(encoding="utf-8")
    for text in ("Figure 2a: BASE", "Title of ner", "Title of names", "Entity F1", "first", "second", "lookup", "1/2"):
        assert f">{text}<" in svg
    page = files["html"].read_text(encoding="utf-8")
    assert not re.search(r"<(script|link)[^>]*(src|href)=", page)
    assert "vegaEmbed" in page
    points = drawn(files["html"])
    assert len(points) == len(rows)
    assert points[0]["interval"] == "0.650 to 0.670"
    assert points[0]["kept"] == "24 of 24"
    clicks = {parameter["name"] for parameter in specification(files["html"])["params"]}
    assert clicks == {"lines", "subsets"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.html", "figure.png", "figure.svg"]


def test_style_sets_the_size(tmp_path: Path) -> None:
    rows = [row("m", "t", fraction, 0.5) for fraction in FRACTIONS]
    small = size_of_png(plot(tmp_path, rows, width=200, height=100, scale=1)["png"])
    wide = size_of_png(plot(tmp_path, rows, width=300, height=150, scale=1)["png"])
    sharp = size_of_png(plot(tmp_path, rows, width=200, height=100, scale=3)["png"])
    assert (wide[0] - small[0], wide[1] - small[1]) == (100, 50)
    assert sharp == (3 * small[0], 3 * small[1])
    assert small[0] > 200


def test_missing_intervals_and_scores(tmp_path: Path) -> None:
    nothing = {"half_width": None, "low": None, "high": None, "seeds": 1}
    rows = [row("m", "t", "1", 0.5, **nothing), row("m", "t", "0", None), row("m", "t", "1/2", 0.4, main=False)]
    [point] = drawn(plot(tmp_path, rows)["html"])
    assert point["interval"] == "none: one seed"
    assert point["low"] is None


def test_lines_and_panels_in_the_order_of_the_table(tmp_path: Path) -> None:
    rows = [row(model, task, "1", 0.5) for task in ("t", "a") for model in ("z", "m")]
    figure = specification(plot(tmp_path, rows)["html"])
    assert [panel["title"] for panel in figure["concat"]] == [["Title of t"], ["Title of a"]]
    color = figure["concat"][0]["layer"][0]["encoding"]["color"]
    assert (color["scale"]["domain"], color["legend"]["title"]) == (["z", "m"], "model")


def test_without_scores_nothing_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Figure 2a: BASE has no score to draw"):
        plot(tmp_path, [row("m", "t", "1", None)])
    assert not list(tmp_path.iterdir())


def test_more_points_than_altair_takes_by_itself() -> None:
    rows = [row("m", "t", "1", 0.5)] * 5003
    figure, shown = grid_figure(pd.DataFrame(rows), grid_of(rows))
    assert len(next(iter(figure.to_dict()["datasets"].values()))) == 5003
    assert shown == "1 task, 1 line"


def plot_drops(folder: Path, *points: tuple[str, str, float | None, float | None]) -> dict[str, Path]:
    names = ("model", "constant", "mean_original", "mean_relative_drop")
    values = [dict.fromkeys(DROP_COLUMNS) | dict(zip(names, point, strict=True)) for point in points]
    draw_drops(pd.DataFrame(values), Plots(width=200, height=150), outputs(folder))
    return {form: folder / f"figure.{form}" for form in FORMS}


def test_every_model_with_a_drop_is_a_labelled_point(tmp_path: Path) -> None:
    points = [("first", "average", 0.8, 0.1), ("second", "average", 0.8, 0.1), ("third", "average", 0.7, None)]
    files = plot_drops(tmp_path, *points)
    svg = files["svg"].read_text(encoding="utf-8")
    for text in ("first", "second", "No drop is defined for third."):
        assert f">{text}<" in svg
    assert [point["mean_relative_drop"] for point in drawn(files["html"])] == [0.1, 0.1]
    labels = [layer["mark"] for layer in specification(files["html"])["layer"][1:]]
    # points at one place: the second label gives way
    assert [(label["align"], label["dx"], label["dy"]) for label in labels] == [("left", 9, 0), ("right", -9, 0)]


def test_no_drop_at_all_is_said(tmp_path: Path) -> None:
    files = plot_drops(tmp_path, ("m", "average", None, None), ("m", "zeros", 0.7, None))
    assert drawn(files["html"]) == []
    assert ">No drop is defined for m / average, m / zeros.<" in files["svg"].read_text(encoding="utf-8")


def averages(uses: list[int], layers: int = LAYERS) -> papa.ConstantMatrices:
    """Averages whose slot s is used by `uses[s]` examples, the last by all, with an entry of its own for each cell."""
    use = torch.tensor(uses)
    count = torch.minimum(use[:, None], use)
    mean = torch.arange(layers * HEADS * len(uses) ** 2).view(layers, HEADS, len(uses), len(uses)) / 1000
    return papa.ConstantMatrices((mean * count).double(), count, max(uses))


def draw(
    folder: Path, constants: papa.ConstantMatrices, heads: list[tuple[int, int]], **plots: Any
) -> tuple[str, dict[str, Path]]:
    said = draw_patterns(constants, heads, Plots(**plots), outputs(folder))
    return said, {form: folder / f"figure.{form}" for form in FORMS}


def test_pictures_of_chosen_heads(tmp_path: Path) -> None:
    constants = averages([101, 101, 53, 1, 0, 0, 101])
    said, files = draw(tmp_path, constants, heads=[(0, 4), (2, 1)], scale=1.0)
    assert said == "2 heads drawn in 4 of 5 used slots"
    svg = files["svg"].read_text(encoding="utf-8")
    assert all(f">{text}<" in svg for text in ("layer 0, head 4", "layer 2, head 1", "query slot", "key slot", "6"))
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    values = drawn(files["html"])
    cells = {(cell["query"], cell["key"]): cell for cell in values}
    assert len(cells) == len(values) == 4 * 4
    assert cells[2, 6] == {
        "query": 2,
        "key": 6,
        "examples": 53,
        "0_4": pytest.approx(float(constants.mean[0, 4, 2, 6]), abs=1e-4),
        "2_1": pytest.approx(float(constants.mean[2, 1, 2, 6]), abs=1e-4),
    }
    [first, _] = specification(files["html"])["concat"]
    # rows are queries and columns keys, slot 0 in the upper left corner
    assert (first["encoding"]["y"]["field"], first["encoding"]["x"]["field"]) == ("query", "key")


def test_pairs_of_slots_that_no_example_has_are_no_cells(tmp_path: Path) -> None:
    constants = averages([5, 5, 5, 5, 5, 5, 5])
    constants.count[2, 3] = constants.count[3, 2] = 0
    page = draw(tmp_path, constants, heads=[(0, 0)])[1]["html"].read_text(encoding="utf-8")
    assert page.count('"examples": 5') == N * N - 2


def test_slots_in_most_use_are_drawn() -> None:
    n = 131
    uses = [200 - slot for slot in range(n)]
    uses[n - 1], uses[97] = 200, 199
    slots = drawn_slots(averages(uses, layers=1))
    assert slots == [*range(MOST_SLOTS - 2), 97, n - 1]
    with pytest.raises(papa.InputError, match="over no token"):
        drawn_slots(averages([0, 0, 0]))


def test_heads_that_do_not_exist_are_named(tmp_path: Path) -> None:
    constants = averages([3] * N)
    with pytest.raises(papa.InputError, match=r"no head \[0, 11\].*layers are 0 to 2 and heads 0 to 4"):
        draw(tmp_path, constants, [(1, 1), (0, 11)])
    with pytest.raises(papa.InputError, match=r"no head \[-1, 2\]"):
        draw(tmp_path, constants, [(-1, 2)])
    assert not list(tmp_path.iterdir())


def test_one_head_is_called_one(tmp_path: Path) -> None:
    assert draw(tmp_path, averages([3] * N), [(2, 4)])[0] == "1 head drawn in 7 of 7 used slots"
