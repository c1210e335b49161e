"""Figures from the summary: one Altair specification each, written as SVG, PNG and a page that works from disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from papa.errors import InputError
from papa.files import PathLike, provenance_of, read_table, replacing
from papa.results.analyses import GRID_COLUMNS, constant_name
from papa.results.drops import COLUMNS as DROP_COLUMNS
from papa.results.drops import TITLE
from papa.results.summary import ALL, Row, fractions_of, metric_name, read_rows, unique

if TYPE_CHECKING:
    import altair as alt

STYLE = {"width": 220, "height": 160, "scale": 2}
"""Width and height of one panel in pixels, and pixels of the PNG per pixel."""

COLUMNS = 3
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, told apart by colour-blind readers; yellow, which vanishes in print, is left out."""
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])

Side = Literal["left", "center", "right"]


def plot_grid(table: PathLike, svg: PathLike, png: PathLike, html: PathLike, style: Mapping[str, Any]) -> str:
    """Score against the fraction of input-dependent heads, a panel for each task (the paper's Figures 2, 5 and 6).

    `table` is that of a grid and says what is called how and what makes a line: a model, an order. Bands are 95 %
    intervals; where there is one seed there is none. Subsets of a task are dashed lines in its panel. `style` may have
    `width` and `height` of a panel and the `scale` of the PNG.
    """
    style = full_style(style)
    figure, shown = grid_figure(table, style)
    save_figure(figure, svg, png, html, style["scale"])
    return f"{shown}, as SVG, PNG and HTML"


def grid_figure(table: PathLike, style: Mapping[str, float]) -> tuple[alt.ConcatChart, str]:
    """The figure of `plot_grid`, and what it shows in words."""
    rows = [row for row in read_rows(table, GRID_COLUMNS) if row["main"] and row["mean"] is not None]
    if not rows:
        raise InputError(f"{table} has no score to plot; rebuild it from runs that have one.")
    about = provenance_of(read_table(table))
    tasks, lines = unique(row["task"] for row in rows), unique(row["line"] for row in rows)
    shown = f"{about['title']}: {len(tasks)} tasks, {len(lines)} lines"
    return _figure(_points(rows), about, fractions_of(rows), style), shown


def save_figure(figure: alt.TopLevelMixin, svg: PathLike, png: PathLike, html: PathLike, scale: float) -> None:
    """Write one figure as SVG, as PNG with `scale` pixels per pixel, and as a page that needs no network."""
    with replacing(svg) as temporary:
        figure.save(str(temporary), format="svg")
    with replacing(png) as temporary:
        figure.save(str(temporary), format="png", scale_factor=scale)
    with replacing(html) as temporary:
        figure.save(str(temporary), format="html", inline=True, json_kwds={"cls": _ForPages})


class _ForPages(json.JSONEncoder):
    """JSON inside a page: no text in it, a name of a subset from some data for one, can begin or end a script."""

    def encode(self, o: Any) -> str:
        return super().encode(o).replace("<", "\\u003c")


def full_style(style: Mapping[str, Any]) -> dict[str, float]:
    """`STYLE` with what `style` says otherwise; raises `InputError` for an unknown name and for a size not above 0."""
    for name, value in style.items():
        if name not in STYLE:
            raise InputError(f"The plots' style has no {name!r}; it has {', '.join(STYLE)}.")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise InputError(f"The plots' {name} is {value!r}; give a number above 0.")
    return STYLE | dict(style)


def _points(rows: Sequence[Row]) -> list[Row]:
    """The rows to draw, with what the page says of them."""
    names = ("line", "task", "title", "metric", "subset", "fraction", "mean", "low", "high", "seeds")
    return [
        {name: row[name] for name in names}
        | {
            "kept": f"{row['kept']} of {row['heads']}",
            "interval": "none: one seed" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}",
        }
        for row in rows
    ]


def _figure(
    points: Sequence[Row], about: Mapping[str, str], fractions: list[str], style: Mapping[str, float]
) -> alt.ConcatChart:
    """A panel per task; in the page, a click on a legend entry fades all other lines or subsets."""
    import altair as alt

    lines = unique(point["line"] for point in points)
    subsets = sorted(unique(point["subset"] for point in points), key=lambda subset: subset != ALL)
    clicked = [alt.selection_point(name="lines", fields=["line"], bind="legend")]
    stroke = None
    if len(subsets) > 1:
        clicked.append(alt.selection_point(name="subsets", fields=["subset"], bind="legend"))
        stroke = alt.Legend(title="examples", symbolType="stroke", symbolSize=400)
    chosen = reduce(and_, clicked)
    colors = {"range": COLORS[: len(lines)]} if len(lines) <= len(COLORS) else {"scheme": "tableau20"}
    color = alt.Color(
        "line:N",
        scale=alt.Scale(domain=lines, **colors),
        legend=alt.Legend(title=about["lines"], symbolOpacity=1, symbolType="stroke", symbolSize=400),
    )
    dash = alt.StrokeDash("subset:N", scale=alt.Scale(domain=subsets, range=_cycle(DASHES, subsets)), legend=stroke)
    x = alt.X("fraction:O", title="fraction of heads input-dependent", scale=alt.Scale(domain=fractions))
    tooltip = [
        alt.Tooltip("line:N", title=about["lines"]),
        alt.Tooltip("subset:N", title="examples"),
        alt.Tooltip("fraction:N"),
        alt.Tooltip("kept:N", title="heads kept"),
        alt.Tooltip("mean:Q", format=".3f"),
        alt.Tooltip("interval:N", title="95 % interval"),
        alt.Tooltip("seeds:Q"),
    ]

    def unless_faded(opacity: float) -> Any:
        return alt.when(chosen).then(alt.value(opacity)).otherwise(alt.value(opacity / 12))

    def panel(task: str, clicked: Sequence[alt.Parameter] = ()) -> alt.LayerChart | alt.FacetChart:
        own = [point for point in points if point["task"] == task]
        score = alt.Scale(zero=False, padding=4)
        y = alt.Y("mean:Q", title=metric_name(own[0]["metric"]), scale=score)
        base = alt.Chart(alt.InlineData(values=own)).encode(x, y, color, detail="subset:N")
        interval = base.transform_filter("isValid(datum.low)").encode(alt.Y("low:Q", scale=score), alt.Y2("high:Q"))
        return alt.layer(
            interval.mark_area().encode(opacity=unless_faded(0.15)),
            base.mark_line(strokeWidth=1.8).encode(dash, opacity=unless_faded(1)).add_params(*clicked),
            base.mark_circle(size=36).encode(opacity=unless_faded(1), tooltip=tooltip),
            title=wrap(own[0]["title"], max(12, int(style["width"] / 7))),
            width=style["width"],
            height=style["height"],
        )

    # One panel's lines carry the clicks for all panels: they share the legends.
    first, *others = unique(point["task"] for point in points)
    across = min(COLUMNS, 1 + len(others))
    return (
        alt.concat(panel(first, clicked), *map(panel, others), columns=across, spacing=24)
        .properties(title=alt.Title(wrap(about["title"], int(across * style["width"] / 8)), fontSize=15, offset=14))
        .configure_axis(labelFontSize=11, titleFontSize=11, titleFontWeight="normal", gridColor="#e6e6e6")
        .configure_axisX(labelAngle=0)
        .configure_axisY(minExtent=36, tickCount=5, labelFlush=True)
        .configure_title(fontSize=13, anchor="start", frame="group")
        .configure_legend(orient="bottom", columns=across, labelFontSize=12, labelLimit=400)
        .configure_view(stroke=None)
    )


def plot_score_and_drop(table: PathLike, svg: PathLike, png: PathLike, html: PathLike, style: Mapping[str, Any]) -> str:
    """Mean relative drop at fraction 0 against the mean original score, a point for each model (the paper's Figure 3).

    `table` is that of `drops`; what has no mean drop is named above instead. The figure is twice as wide and high
    as a panel of `style`.
    """
    style = full_style(style)
    figure, shown = drop_figure(table, style)
    save_figure(figure, svg, png, html, style["scale"])
    return f"{shown}, as SVG, PNG and HTML"


def drop_figure(table: PathLike, style: Mapping[str, float]) -> tuple[alt.LayerChart, str]:
    """The figure of `plot_score_and_drop`, and what it shows in words."""
    rows = read_rows(table, DROP_COLUMNS)
    several = len(unique(row["constant"] for row in rows)) > 1
    for row in rows:
        row["name"] = f"{row['model']} / {constant_name(row['constant'])}" if several else row["model"]
    points = [row for row in rows if row["mean_relative_drop"] is not None]
    without = [row["name"] for row in rows if row["mean_relative_drop"] is None]
    shown = f"{len(points)} mean drops against original scores"
    return _scatter(points, without, 2 * style["width"], 2 * style["height"]), shown


def _scatter(points: Sequence[Row], without: Sequence[str], width: float, height: float) -> alt.LayerChart:
    import altair as alt

    def axis(name: str, title: str, size: float, form: str) -> tuple[dict[str, Any], list[float]]:
        """The settings of an axis, and where on it the points are, in pixels."""
        values = [point[name] for point in points] or [0.0, 1.0]
        space = 0.15 * (max(values) - min(values)) or 0.05
        low, high = min(values) - space, max(values) + space
        scale = alt.Scale(domain=[low, high], nice=False, zero=False)
        settings = {
            "shorthand": f"{name}:Q",
            "title": title,
            "scale": scale,
            "axis": alt.Axis(format=form, tickCount=6),
        }
        return settings, [size * (point[name] - low) / (high - low) for point in points]

    x, across = axis("mean_original", "mean original score", width, "")
    y, up = axis("mean_relative_drop", "mean relative drop with every head replaced", height, ".1%")
    tooltip = [
        alt.Tooltip("name:N", title="model"),
        alt.Tooltip("mean_original:Q", title="mean original score", format=".3f"),
        alt.Tooltip("mean_relative_drop:Q", title="mean relative drop", format=".1%"),
        alt.Tooltip("tasks_with_drop:Q", title="tasks with a drop"),
        alt.Tooltip("tasks_without_drop:N", title="tasks without"),
    ]
    base = alt.Chart(alt.InlineData(values=list(points))).encode(alt.X(**x), alt.Y(**y))
    names = [point["name"] for point in points]
    labels = [
        base.transform_filter(alt.datum.name == name)
        .mark_text(align=align, baseline="middle", dx=dx, dy=dy, fontSize=12)
        .encode(text="name:N")
        for name, (align, dx, dy) in zip(names, _labels(names, across, up, width), strict=True)
    ]
    missing = f"No drop is defined for {', '.join(without)}." if without else ""
    title = alt.Title(wrap(TITLE, int(width / 8)), subtitle=wrap(missing, int(width / 6)), offset=14)
    return (
        alt.layer(base.mark_circle(size=70, color=COLORS[0], opacity=1).encode(tooltip=tooltip), *labels)
        .properties(width=width, height=height, title=title)
        .configure_axis(labelFontSize=11, titleFontSize=12, titleFontWeight="normal", gridColor="#e6e6e6")
        .configure_title(fontSize=15, subtitleFontSize=12, anchor="start", frame="group")
        .configure_view(stroke=None)
    )


def _labels(
    names: Sequence[str], across: Sequence[float], up: Sequence[float], width: float
) -> list[tuple[Side, float, float]]:
    """For each point (in pixels) where its label stands: alignment and shifts, where it covers nothing if it can."""
    taken = [(x - 5, x + 5, y - 5, y + 5) for x, y in zip(across, up, strict=True)]
    places: list[tuple[Side, float, float]] = []
    for name, x, y in zip(names, across, up, strict=True):
        long = 7 * len(name)
        boxes: dict[tuple[Side, float, float], tuple[float, float, float, float]] = {
            ("left", 9.0, 0.0): (x + 8, x + 9 + long, y - 7, y + 7),
            ("right", -9.0, 0.0): (x - 9 - long, x - 8, y - 7, y + 7),
            ("center", 0.0, -15.0): (x - long / 2, x + long / 2, y + 8, y + 22),
            ("center", 0.0, 15.0): (x - long / 2, x + long / 2, y - 22, y - 8),
        }
        free = [
            place
            for place, (left, right, low, high) in boxes.items()
            if left >= 0 and right <= width
            if not any(left < x2 and right > x1 and low < y2 and high > y1 for x1, x2, y1, y2 in taken)
        ]
        places.append(free[0] if free else ("left", 9.0, 0.0))
        taken.append(boxes[places[-1]])
    return places


def _cycle(values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    return [values[number % len(values)] for number in range(len(names))]
