"""Figures: what is in the files, and what they were told to draw."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from papa.results.analyses import GRID_COLUMNS

from papa.errors import DamagedArtefact, InputError
from papa.files import write_table
from papa.results.drops import COLUMNS as DROP_COLUMNS
from papa.results.plots import plot_grid, plot_score_and_drop

FRACTIONS = {"1": 24, "1/2": 12, "0": 0}


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


def plot(folder: Path, rows: list[dict[str, Any]], **style: float) -> dict[str, Path]:
    schema = pa.schema(list(GRID_COLUMNS.items()))
    about = {"title": "Figure 2a: BASE", "lines": "model"}
    write_table(pa.Table.from_pylist(rows, schema=schema), folder / "grid.parquet", about)
    files = {kind: folder / f"figure.{kind}" for kind in ("svg", "png", "html")}
    plot_grid(folder / "grid.parquet", **files, style=style)
    return files


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
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "figure.html",
        "figure.png",
        "figure.svg",
        "grid.parquet",
    ]


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


@pytest.mark.parametrize(
    ("style", "message"), [({"colour": 1}, "no 'colour'; it has width, height, scale"), ({"width": 0}, "width is 0")]
)
def test_bad_style(tmp_path: Path, style: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plot(tmp_path, [row("m", "t", "1", 0.5)], **style)
    assert not (tmp_path / "figure.svg").exists()


def test_bad_summary(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no score to plot"):
        plot(tmp_path, [row("m", "t", "1", None)])
    with pytest.raises(DamagedArtefact, match="has no rows"):
        plot(tmp_path, [])
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DamagedArtefact, match=r"broken\.parquet cannot be read"):
        plot_grid(tmp_path / "broken.parquet", tmp_path / "a", tmp_path / "b", tmp_path / "c", {})


def plot_drops(folder: Path, *points: tuple[str, str, float | None, float | None]) -> dict[str, Path]:
    values = [
        dict.fromkeys(DROP_COLUMNS)
        | {"model": model, "constant": constant, "mean_original": original, "mean_relative_drop": drop}
        for model, constant, original, drop in points
    ]
    schema = pa.schema(list(DROP_COLUMNS.items()))
    write_table(pa.Table.from_pylist(values, schema=schema), folder / "drops.parquet", {})
    files = {kind: folder / f"figure.{kind}" for kind in ("svg", "png", "html")}
    plot_score_and_drop(folder / "drops.parquet", **files, style={"width": 200, "height": 150})
    return files


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
