"""Every figure is one Altair specification, saved as SVG, as PNG and as a page that works without a network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import and_
from pathlib import PurePath
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from papa.config.settings import Plots
from papa.config.stages import GridOf
from papa.errors import InputError, count
from papa.files import PathLike, replacing
from papa.method.averages import ConstantMatrices
from papa.results.drops import TITLE
from papa.results.grids import constant_name, varied
from papa.results.runs import ALL
from papa.results.summary import fractions_of
from papa.results.table import metric_name

if TYPE_CHECKING:
    import altair as alt

PANELS = 3
"""How many panels stand side by side."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers tell apart; without yellow, which vanishes in print."""
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])

MOST_SLOTS = 64
LEAST_USE = 0.02
"""The share of the examples that must use a slot before a picture of a head shows the slot."""

Place = tuple[Literal["left", "center", "right"], float, float]
"""Where a label stands beside its point: alignment, and shifts in pixels."""


def draw_grid(frame: pd.DataFrame, grid: GridOf, outputs: Mapping[str, PathLike]) -> str:
    """Draw scores against the fraction of input-dependent heads (the paper's Figures 2, 5 and 6).

    Args:
        frame: the rows of the grid, with the column `line`.
        grid: what the grid is called, and the size of a panel.
        outputs: the paths of the job; the figure goes to those that end in .svg, .png and .html.

    Returns:
        What the figure shows, in words.
    """
    figure, shown = grid_figure(frame, grid)
    save_figure(figure, outputs, grid.plots)
    return shown


def draw_drops(frame: pd.DataFrame, plots: Plots, outputs: Mapping[str, PathLike]) -> str:
    """Draw the mean drop at fraction 0 against the mean original score, a point for each model (Figure 3).

    Args:
        frame: the rows of `score_and_drop`.
        plots: the size of a panel; this figure is twice as wide and high.
        outputs: the paths of the job; the figure goes to those that end in .svg, .png and .html.

    Returns:
        What the figure shows, in words.
    """
    figure, shown = drop_figure(frame, plots)
    save_figure(figure, outputs, plots)
    return shown


def draw_patterns(
    averages: ConstantMatrices, heads: Sequence[tuple[int, int]], plots: Plots, outputs: Mapping[str, PathLike]
) -> str:
    """Draw the average attention of `heads`, in the slots that examples use (Figure 4).

    Args:
        averages: the attention of all heads.
        heads: (layer, head) of each picture, counted from 0.
        plots: about the `width` of a picture, which is square.
        outputs: the paths of the job; the figure goes to those that end in .svg, .png and .html.

    Returns:
        What the figure shows, in words.

    Raises:
        InputError: there are no such heads.
    """
    layers, per_layer = averages.sum.shape[:2]
    for layer, head in heads:
        if not (0 <= layer < layers and 0 <= head < per_layer):
            raise InputError(
                f"There is no head {[layer, head]} in these constants; give heads as [layer, head], "
                f"layers are 0 to {layers - 1} and heads 0 to {per_layer - 1}."
            )
    slots = drawn_slots(averages)
    save_figure(_pictures(averages, heads, slots, plots.width), outputs, plots)
    used = int((averages.count.diagonal() > 0).sum())
    return f"{count(len(heads), 'head')} drawn in {len(slots)} of {count(used, 'used slot')}"


def save_figure(figure: alt.TopLevelMixin, outputs: Mapping[str, PathLike], plots: Plots) -> None:
    """Write a figure as SVG, as PNG with `plots.scale` pixels per pixel, and as a page of HTML."""
    options: dict[str, dict[str, Any]] = {
        ".svg": {"format": "svg"},
        ".png": {"format": "png", "scale_factor": plots.scale},
        ".html": {"format": "html", "inline": True, "json_kwds": {"cls": _ForPages}},
    }
    for path in outputs.values():
        if own := options.get(PurePath(path).suffix):
            with replacing(path) as temporary:
                figure.save(str(temporary), **own)


class _ForPages(json.JSONEncoder):
    """JSON inside a page, where no text (the name of a subset, for one) may begin or end a script."""

    def encode(self, o: object) -> str:
        return super().encode(o).replace("<", "\\u003c")


def grid_figure(frame: pd.DataFrame, grid: GridOf) -> tuple[alt.ConcatChart, str]:
    """The figure of `draw_grid`, and what it shows in words.

    A task has a panel, and a subset of its examples a dashed line there. Bands are 95 % intervals, which one seed has
    none of. In the page, a click on an entry of the legend fades all other lines or subsets.
    """
    import altair as alt

    rows = frame[frame["main"] & frame["mean"].notna()]
    if rows.empty:
        raise InputError(f"{grid.title} has no score to draw; make it from runs that have one.")
    interval = [
        "none: one seed" if pd.isna(low) else f"{low:.3f} to {high:.3f}"
        for low, high in zip(rows["low"], rows["high"], strict=True)
    ]
    kept = rows["kept"].astype(str) + " of " + rows["heads"].astype(str)
    names = ["line", "task", "title", "metric", "subset", "fraction", "mean", "low", "high", "seeds"]
    points = rows[names].assign(kept=kept, interval=interval)
    lines_title = " / ".join(varied(grid))
    lines, tasks = points["line"].unique().tolist(), points["task"].unique().tolist()
    subsets = sorted(points["subset"].unique(), key=lambda subset: subset != ALL)

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
        legend=alt.Legend(title=lines_title, symbolOpacity=1, symbolType="stroke", symbolSize=400),
    )
    dashes = [DASHES[number % len(DASHES)] for number in range(len(subsets))]
    dash = alt.StrokeDash("subset:N", scale=alt.Scale(domain=subsets, range=dashes), legend=stroke)
    fractions = alt.Scale(domain=fractions_of(points))
    x = alt.X("fraction:O", title="fraction of heads input-dependent", scale=fractions)
    tooltip = [
        alt.Tooltip("line:N", title=lines_title),
        alt.Tooltip("subset:N", title="examples"),
        alt.Tooltip("fraction:N"),
        alt.Tooltip("kept:N", title="heads kept"),
        alt.Tooltip("mean:Q", format=".3f"),
        alt.Tooltip("interval:N", title="95 % interval"),
        alt.Tooltip("seeds:Q"),
    ]
    width, height = grid.plots.width, grid.plots.height

    def unless_faded(opacity: float) -> Any:
        return alt.when(chosen).then(alt.value(opacity)).otherwise(alt.value(opacity / 12))

    def panel(task: str, clicked: Sequence[alt.Parameter] = ()) -> alt.LayerChart | alt.FacetChart:
        own = points[points["task"] == task]
        score = alt.Scale(zero=False, padding=4)
        y = alt.Y("mean:Q", title=metric_name(own["metric"].iloc[0]), scale=score)
        base = alt.Chart(_values(own)).encode(x, y, color, detail="subset:N")
        band = base.transform_filter("isValid(datum.low)").encode(alt.Y("low:Q", scale=score), alt.Y2("high:Q"))
        return alt.layer(
            band.mark_area().encode(opacity=unless_faded(0.15)),
            base.mark_line(strokeWidth=1.8).encode(dash, opacity=unless_faded(1)).add_params(*clicked),
            base.mark_circle(size=36).encode(opacity=unless_faded(1), tooltip=tooltip),
            title=wrap(own["title"].iloc[0], max(12, int(width / 7))),
            width=width,
            height=height,
        )

    # the lines of one panel carry the clicks for all panels, because all share the legends
    first, *others = tasks
    across = min(PANELS, len(tasks))
    figure = (
        alt.concat(panel(first, clicked), *map(panel, others), columns=across, spacing=24)
        .properties(title=alt.Title(wrap(grid.title, int(across * width / 8)), fontSize=15, offset=14))
        .configure_axis(labelFontSize=11, titleFontSize=11, titleFontWeight="normal", gridColor="#e6e6e6")
        .configure_axisX(labelAngle=0)
        .configure_axisY(minExtent=36, tickCount=5, labelFlush=True)
        .configure_title(fontSize=13, anchor="start", frame="group")
        .configure_legend(orient="bottom", columns=across, labelFontSize=12, labelLimit=400)
        .configure_view(stroke=None)
    )
    return figure, f"{count(len(tasks), 'task')}, {count(len(lines), 'line')}"


def drop_figure(frame: pd.DataFrame, plots: Plots) -> tuple[alt.LayerChart, str]:
    """The figure of `draw_drops`, and what it shows in words; the title names what has no mean drop."""
    import altair as alt

    several = frame["constant"].nunique() > 1
    names = frame["model"] + " / " + frame["constant"].map(constant_name) if several else frame["model"]
    frame = frame.assign(name=names)
    points = frame[frame["mean_relative_drop"].notna()]
    width, height = 2 * plots.width, 2 * plots.height
    x, across = _axis(points["mean_original"], "mean original score", width, "")
    y, up = _axis(points["mean_relative_drop"], "mean relative drop with every head replaced", height, ".1%")
    tooltip = [
        alt.Tooltip("name:N", title="model"),
        alt.Tooltip("mean_original:Q", title="mean original score", format=".3f"),
        alt.Tooltip("mean_relative_drop:Q", title="mean relative drop", format=".1%"),
        alt.Tooltip("tasks_with_drop:Q", title="tasks with a drop"),
        alt.Tooltip("tasks_without_drop:N", title="tasks without"),
    ]
    base = alt.Chart(_values(points)).encode(alt.X(**x), alt.Y(**y))
    labels = [
        base.transform_filter(alt.datum.name == name)
        .mark_text(align=align, baseline="middle", dx=dx, dy=dy, fontSize=12)
        .encode(text="name:N")
        for name, (align, dx, dy) in zip(points["name"], _labels(points["name"], across, up, width), strict=True)
    ]
    without = frame.loc[frame["mean_relative_drop"].isna(), "name"]
    missing = f"No drop is defined for {', '.join(without)}." if len(without) else ""
    title = alt.Title(wrap(TITLE, int(width / 8)), subtitle=wrap(missing, int(width / 6)), offset=14)
    figure = (
        alt.layer(base.mark_circle(size=70, color=COLORS[0], opacity=1).encode(tooltip=tooltip), *labels)
        .properties(width=width, height=height, title=title)
        .configure_axis(labelFontSize=11, titleFontSize=12, titleFontWeight="normal", gridColor="#e6e6e6")
        .configure_title(fontSize=15, subtitleFontSize=12, anchor="start", frame="group")
        .configure_view(stroke=None)
    )
    return figure, f"{count(len(points), 'mean drop')} against original scores"


def _axis(values: pd.Series[float], title: str, size: float, form: str) -> tuple[dict[str, Any], list[float]]:
    """The settings of an axis of `size` pixels, and where on the axis the points stand, in pixels."""
    import altair as alt

    least, most = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    space = 0.15 * (most - least) or 0.05
    low, high = least - space, most + space
    settings = {
        "shorthand": f"{values.name}:Q",
        "title": title,
        "scale": alt.Scale(domain=[low, high], nice=False, zero=False),
        "axis": alt.Axis(format=form, tickCount=6),
    }
    return settings, (size * (values - low) / (high - low)).tolist()


def _labels(names: Iterable[str], across: Sequence[float], up: Sequence[float], width: float) -> list[Place]:
    """Where the label of each point (in pixels) stands, so that the label covers nothing if it can."""
    taken = [(x - 5, x + 5, y - 5, y + 5) for x, y in zip(across, up, strict=True)]
    places: list[Place] = []
    for name, x, y in zip(names, across, up, strict=True):
        long = 7 * len(name)
        boxes: dict[Place, tuple[float, float, float, float]] = {
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


def drawn_slots(averages: ConstantMatrices, most: int = MOST_SLOTS) -> list[int]:
    """The slots that a picture shows, in rising order.

    Args:
        averages: the attention of all heads.
        most: how many slots at most; those in most use are shown, and of equals the earlier ones.

    Raises:
        InputError: no example went into the averages.
    """
    uses = averages.count.diagonal().tolist()
    enough = [slot for slot, use in enumerate(uses) if use and use >= LEAST_USE * averages.examples]
    if not enough:
        raise InputError("These constants are an average over no token; average the attention of a corpus.")
    return sorted(sorted(enough, key=lambda slot: -uses[slot])[:most])


def _pictures(
    averages: ConstantMatrices, heads: Sequence[tuple[int, int]], slots: list[int], side: float
) -> alt.ConcatChart:
    """A picture for each head: rows are queries, columns keys, grey is a pair of slots that no example has.

    Each head has its own scale of colours, from 0 to its largest entry, because a diagonal of 0.2 would vanish beside
    a [SEP] of 0.9.
    """
    import altair as alt

    mean, seen = averages.mean, averages.count
    pairs = [(query, key) for query in slots for key in slots if seen[query, key]]
    cells = pd.DataFrame(
        {
            "query": [query for query, _ in pairs],
            "key": [key for _, key in pairs],
            "examples": [int(seen[pair]) for pair in pairs],
        }
        | {f"{layer}_{head}": [round(float(mean[layer, head, *pair]), 4) for pair in pairs] for layer, head in heads}
    )
    # slots are names here and not numbers, so that a slot which is left out takes no place
    step = 1 + len(slots) // 16
    labelled = [*slots[: -step or None : step], slots[-1]]
    scale = alt.Scale(domain=slots)
    axis = alt.Axis(values=labelled, labelAngle=0, labelOverlap=False, ticks=False, domain=False)
    side = max(1, round(side / len(slots))) * len(slots)  # cells of a part of a pixel would have seams between them
    x = alt.X("key:O", title="key slot", scale=scale, axis=axis)
    y = alt.Y("query:O", title="query slot", scale=scale, axis=axis)

    def picture(layer: int, head: int) -> alt.Chart:
        value = f"{layer}_{head}"
        largest = cells[value].max() or 1
        color = alt.Color(
            f"{value}:Q",
            scale=alt.Scale(range=["white", "#0072B2", "#00213a"], domain=[0, largest / 2, largest], interpolate="rgb"),
            legend=alt.Legend(title=None, gradientLength=side, tickCount=4),
        )
        tooltip = [
            alt.Tooltip("query:O", title="query slot"),
            alt.Tooltip("key:O", title="key slot"),
            alt.Tooltip(f"{value}:Q", title="mean attention", format=".4f"),
            alt.Tooltip("examples:Q", title="examples with both"),
        ]
        chart = alt.Chart(width=side, height=side, title=f"layer {layer}, head {head}")
        drawn: alt.Chart = chart.mark_rect(aria=False).encode(x, y, color, tooltip=tooltip)
        return drawn

    pictures: alt.ConcatChart = (
        alt.concat(*(picture(*head) for head in heads), columns=min(PANELS, len(heads)), data=_values(cells))
        .resolve_scale(color="independent")
        .configure_axis(labelFontSize=10, titleFontSize=11, titleFontWeight="normal", grid=False)
        .configure_title(fontSize=13, anchor="start", frame="group")
        .configure_view(stroke=None, fill="#e6e6e6")
    )
    return pictures


def _values(frame: pd.DataFrame) -> alt.InlineData:
    """The rows of a frame as data of a figure, however many rows there are; Altair itself stops at 5,000."""
    import altair as alt

    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return alt.InlineData([{str(name): value for name, value in row.items()} for row in rows])
