"""Every figure is one Altair specification, saved as SVG, as PNG and as a page that works without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import pandas as pd

from papa.config.measures import MEASURES, METRICS
from papa.config.settings import Plots
from papa.config.stages import GridOf
from papa.errors import InputError, count
from papa.files import PathLike, replacing
from papa.method.averages import ConstantMatrices
from papa.method.pictures import PANELS, drawn_slots, inline, pictures, styled
from papa.results.drops import TITLE
from papa.results.grids import once, varied
from papa.results.losses import COUNTS
from papa.results.outcomes import ALL, is_probed
from papa.results.panels import CURVE, FLOORS, GREY, around, domain_of, heads_axis, labels_of, leaders, placed, short
from papa.results.phrases import MORE_THAN_ALL, constant_name, loss_text
from papa.results.table import metric_name

if TYPE_CHECKING:
    import altair as alt

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers tell apart; without yellow, which vanishes in print."""
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
OF_SUBSETS = {ALL: COLORS[-1], "position": COLORS[0], "lookup": COLORS[1]}
"""Colours of subsets where there is one line alone; others have colours that are left."""
UNDRAWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that XML, and so SVG, cannot contain; at one of them vl-convert ends the whole process."""
MOST_BANDS = 2
"""More curves than this have error bars, because bands would cover each other."""


def draw_grid(frame: pd.DataFrame, grid: GridOf, outputs: Mapping[str, PathLike]) -> str:
    """Draw scores against the number of heads replaced (the paper's Figures 2, 5 and 6), and say what was drawn.

    Args:
        frame: the rows of the grid, with the column `line`.
        grid: what the grid is called, and the size of a panel.
        outputs: the paths of the job; the figure goes to those that end in .svg, .png and .html.
    """
    figure, shown = grid_figure(frame, grid)
    save_figure(figure, outputs, grid.plots)
    return shown


def draw_drops(frame: pd.DataFrame, plots: Plots, outputs: Mapping[str, PathLike]) -> str:
    """Draw the mean drop at fraction 0 against the mean original score (Figure 3), and say what was drawn.

    Args:
        frame: the rows of `score_and_drop`.
        plots: the size of a panel; this figure is twice as wide and high.
        outputs: the paths of the job; the figure goes to those that end in .svg, .png and .html.
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
    slots = drawn_slots(averages)
    save_figure(pictures(averages, heads, plots.width), outputs, plots)
    used = int((averages.count.diagonal() > 0).sum())
    return f"{count(len(heads), 'head')} drawn in {len(slots)} of {count(used, 'used slot')}"


def save_figure(figure: alt.TopLevelMixin, outputs: Mapping[str, PathLike], plots: Plots) -> None:
    """Write a figure as SVG, as PNG with `plots.scale` pixels per pixel, and as a page of HTML."""
    options: dict[str, dict[str, Any]] = {
        ".svg": {"format": "svg"},
        ".png": {"format": "png", "scale_factor": plots.scale},
        ".html": {"format": "html", "inline": True, "json_kwds": {"cls": _ForPages}},
    }
    if bad := next((text for text in _texts_of(figure.to_dict()) if UNDRAWABLE.search(text)), None):
        raise InputError(
            f"The text {bad!r} has a control character, which no figure can show; remove it from the data."
        )
    for path in outputs.values():
        if own := options.get(PurePath(path).suffix):
            with replacing(path) as temporary:
                figure.save(str(temporary), **own)


def _texts_of(spec: object) -> Iterator[str]:
    if isinstance(spec, str):
        yield spec
    elif isinstance(spec, Mapping | list):
        for value in spec.values() if isinstance(spec, Mapping) else spec:
            yield from _texts_of(value)


class _ForPages(json.JSONEncoder):
    """JSON inside a page, where no text (the name of a subset, for one) may begin or end a script."""

    def encode(self, o: object) -> str:
        return super().encode(o).replace("<", "\\u003c")


def grid_figure(frame: pd.DataFrame, grid: GridOf) -> tuple[alt.ConcatChart, str]:
    """The figure of `draw_grid`, and what it shows in words; `figure_note` explains it.

    A task has a panel. One line alone has a colour for each subset of the examples; of several lines each has a colour,
    and subsets have dashes. In the page, a click on an entry of a legend fades all other lines or subsets. A panel
    needs `usermeta.margin` pixels beside its width, for its axis and for the labels at its right.
    """
    import altair as alt

    width, height = grid.plots.width, grid.plots.height
    points = _points(frame, width)
    if points.empty:
        raise InputError(f"{grid.title} has no score to draw; make it from runs that have one.")
    lines, tasks = points["line"].unique().tolist(), points["task"].unique().tolist()
    subsets = sorted(points["subset"].unique(), key=lambda subset: subset != ALL)
    field, names = ("line", lines) if len(lines) > 1 else ("subset", subsets)
    colors = _colors(lines, subsets)
    points["color"] = points[field].map(dict(zip(names, colors, strict=True)))
    x = heads_axis(points, width)
    told = {"line": " / ".join(varied(grid)), "subset": "examples", "fraction": "fraction kept", "kept": "heads kept"}
    told |= {"score": "mean", "interval": "95 % interval", "seeds": "seeds", "floors": "trivial, contextless"}
    tooltip = [alt.Tooltip(f"{name}:N", title=title) for name, title in (told | {"lost": "loss"}).items()]

    def legend(name: str, values: list[str]) -> alt.Legend | None:
        if len(values) < 2:
            return None
        return alt.Legend(title=told[name], symbolOpacity=1, symbolType="stroke", symbolSize=400)

    # a selection without a legend is there for what the page chooses, and for no click
    lines_clicked: dict[str, Any] = {"bind": "legend"} if len(lines) > 1 else {"on": "never"}
    clicks = [alt.selection_point("lines", fields=["line"], **lines_clicked)]
    if len(subsets) > 1:
        clicks.append(alt.selection_point("subsets", fields=["subset"], bind="legend"))
    chosen = {"or": ["!datum.line", {"and": [{"param": click.name} for click in clicks]}]}
    scale = alt.Scale(domain=names, range=colors)
    curve: list[alt.Color | alt.StrokeDash] = [alt.Color(f"{field}:N", scale=scale, legend=legend(field, names))]
    if field == "line":
        dashes = alt.Scale(domain=subsets, range=[DASHES[number % len(DASHES)] for number in range(len(subsets))])
        curve.append(alt.StrokeDash("subset:N", scale=dashes, legend=legend("subset", subsets)))
    # as a colour it would keep clicks from the legend of the curves, which are drawn after the rules of the floors
    own_color, thick = alt.Stroke("color:N", scale=None), alt.StrokeWidth("thick:Q", scale=None)
    barred = len(points.groupby(CURVE)) > MOST_BANDS

    def faded(opacity: float) -> alt.OpacityValue:
        return alt.OpacityValue(opacity / 12, condition={"test": chosen, "value": opacity})

    def panel(task: str, clicks: Sequence[alt.Parameter] = ()) -> alt.LayerChart | alt.FacetChart:
        own = points[points["task"] == task].sort_values("replaced", kind="stable")
        domain = domain_of(own)
        scale = alt.Scale(domain=domain, nice=False, zero=False)
        title = metric_name(own["metric"].iloc[0])
        y, low, end, at = (
            alt.Y(f"{name}:Q", title=title, axis=alt.Axis(format=".2f"), scale=scale)
            for name in ("mean", "low", "end", "y")
        )
        base = alt.Chart(inline(own)).encode(x, y, *curve, detail="subset:N")
        sure = base.transform_filter("isValid(datum.low)").encode(low, alt.Y2("high:Q"))
        bars = sure.mark_rule(strokeWidth=1.2, strokeDash=[1, 0]).encode(opacity=faded(0.8))
        labels = labels_of(own, field, domain, height)
        beside = alt.Chart(inline(labels)).encode(end, opacity=faded(1))
        rules = beside.transform_filter("datum.floor").mark_rule(strokeDash=[4, 3]).encode(own_color, thick)
        wide = max(12, width // 7)
        why = own.loc[own["subset"] == ALL, "status"].dropna().unique().tolist()
        silent = wrap(f"No loss: {'; '.join(why)}.", wide + wide // 4) if why and COUNTS not in why else alt.Undefined
        return alt.layer(
            rules,
            bars if barred else sure.mark_area().encode(opacity=faded(0.15)),
            base.mark_line(strokeWidth=1.4 if barred else 1.8).encode(opacity=faded(1)).add_params(*clicks),
            base.mark_circle(size=18 if barred else 30).encode(opacity=faded(1), tooltip=tooltip),
            *leaders(beside, x, at, own_color),
            title=alt.Title(wrap(own["title"].iloc[0], wide), subtitle=silent),
            width=width,
            height=height,
        )

    # the lines of one panel carry the clicks for all panels, because all share the legends
    first, *others = tasks
    columns = min(PANELS, len(tasks))
    margin = 90 + 5 * min(34, max([18, *map(len, names)]))
    room = columns * (width + margin - 24)
    title = alt.Title(wrap(grid.title, room // 9), subtitle=wrap(once(grid), room // 6), fontSize=15, offset=14)
    panels = alt.concat(panel(first, clicks), *map(panel, others), columns=columns, spacing=24, title=title)
    figure = (
        styled(panels.properties(usermeta={"margin": margin}))
        .configure_axisX(labelAngle=0, labelOverlap=False, labelBound=False, labelFlush=False, grid=False)
        .configure_axisY(minExtent=36, tickCount=5)
        .configure_legend(orient="bottom", columns=max(1, room // (60 + 6 * max(map(len, names)))), labelFontSize=12)
    )
    return figure, f"{count(len(tasks), 'task')}, {count(len(lines), 'line')}"


def figure_note(frame: pd.DataFrame) -> str:
    """What the figure of a grid's rows, or of `score_and_drop`, shows: axes, intervals, seeds and floors."""
    if "mean_original" in frame:
        return "A point for each model: its mean original score, and the mean relative drop with every head replaced."
    rows = frame[frame["main"] & frame["mean"].notna()]
    probed = is_probed(rows["metric"])
    shape, sure = "bars" if len(rows.groupby(CURVE)) > MOST_BANDS else "bands", list[str]()
    if probed.any():
        own = rows.loc[probed, "seeds"]
        seeds = " to ".join(dict.fromkeys(f"{number:.0f}" for number in (own.min(), own.max())))
        over = f"{shape} are 95 % Student-t intervals over {seeds} probe seeds, cut at the metric's ends"
        sure.append("one probe seed, so no interval" if seeds == "1" else over)
    for name, measure in METRICS.items():
        if not measure.target.probed and rows["metric"].eq(name).any():
            over = f"{measure.target.examples} and orders"
            sure.append(f"{shape} of {measure.title.lower()} are 95 % intervals over {over}")
    floors = [f"{name.replace('_', ' ')} ({words})" for name, words in FLOORS.items() if rows[name].notna().any()]
    dashed = f" Dashed floors: {'; '.join(floors)}." if floors else ""
    above = f" A loss above 100 %: {MORE_THAN_ALL}." if (rows["loss"] > 1).any() else ""
    return f"Mean validation score by the number of heads that constants replace; {'; '.join(sure)}.{dashed}{above}"


def _colors(lines: Sequence[str], subsets: Sequence[str]) -> list[str]:
    """A colour for each line, or if there is but one, for each subset."""
    if len(lines) > 1 or len(subsets) == 1:
        return [COLORS[number % len(COLORS)] for number in range(len(lines))]
    own = [OF_SUBSETS.get(subset) for subset in subsets]
    left = [color for color in COLORS if color not in own] or [GREY]
    return [color or left[number % len(left)] for number, color in enumerate(own)]


def _points(frame: pd.DataFrame, width: float) -> pd.DataFrame:
    """The points of a figure.

    `replaced` is the number of heads replaced, or their share if models have different numbers of heads, `whole` is all
    of them and `edge` the right end of the axis. `at` is where the point is drawn: with error bars, some pixels beside
    that. Intervals end where the metric does.
    """
    rows = frame[frame["main"] & frame["mean"].notna()]
    points = rows[
        ["line", "model", "task", "title", "metric", "subset", "fraction", "mean", "seeds", "status", *FLOORS]
    ]
    several = rows["heads"].nunique() > 1
    share = 1 - rows["kept"] / rows["heads"]
    low, high = (rows["metric"].map(lambda name, end=end: getattr(MEASURES[name], end)) for end in ("low", "high"))
    number = points.groupby(CURVE, sort=False).ngroup()
    beside = number - number.max() / 2 if len(rows.groupby(CURVE)) > MOST_BANDS else 0 * number
    whole = 1 if several else rows["heads"]
    replaced = share if several else rows["heads"] - rows["kept"]
    three = zip(rows["loss"], rows["loss_low"], rows["loss_high"], strict=True)
    return points.assign(
        replaced=replaced,
        whole=whole,
        edge=whole * (1 + 8 / width),
        at=replaced + beside * min(2.5, 10 / max(1, number.max())) * whole / width,
        low=rows["low"].astype("float64").clip(low, high),
        high=rows["high"].astype("float64").clip(low, high),
        kept=rows["kept"].astype(str) + " of " + rows["heads"].astype(str),
        score=rows["mean"].map("{:.3f}".format),
        interval=[
            "none: one seed" if pd.isna(low) else f"{low:.3f} to {high:.3f}"
            for low, high in zip(rows["low"], rows["high"], strict=True)
        ],
        floors=[", ".join(map(short, both)) for both in zip(rows["trivial"], rows["contextless"], strict=True)],
        lost=[loss_text(*loss) for loss in three],
    )


def drop_figure(frame: pd.DataFrame, plots: Plots) -> tuple[alt.TopLevelMixin, str]:
    """The figure of `draw_drops`, and what it shows in words; fewer than two drops are told in words alone."""
    import altair as alt

    several = frame["constant"].nunique() > 1
    names = frame["model"] + " / " + frame["constant"].map(constant_name) if several else frame["model"]
    frame = frame.assign(text=names, end=frame["mean_relative_drop"], at=frame["mean_original"])
    points = frame[frame["end"].notna()].sort_values("end", kind="stable")
    width, height = 2 * plots.width, 2 * plots.height
    without = frame.loc[frame["end"].isna(), "text"]
    missing = f"No drop is defined for {', '.join(without)}." if len(without) else ""
    shown = f"{count(len(points), 'mean drop')} against original scores"
    if len(points) < 2:
        said = [
            f"One model, nothing to compare. {name}: mean relative drop {drop:.1%}, mean original score {score:.3f}."
            for name, drop, score in points[["text", "end", "at"]].itertuples(index=False)
        ]
        text = alt.Data(values=[{"text": "\n".join(wrap(" ".join([*said, missing]), width // 6))}])
        words = alt.Chart(text, title=TITLE, width=width, height=40).encode(text="text:N")
        return styled(words.mark_text(align="left", baseline="top", x=0, y=0, fontSize=12, lineBreak="\n")), shown
    told = {"text": "model", "tasks_with_drop": "tasks with a drop", "tasks_without_drop": "tasks without"}
    tooltip = [alt.Tooltip(f"{name}:N", title=words) for name, words in told.items()]
    tooltip.insert(1, alt.Tooltip("at:Q", title="mean original score", format=".3f"))
    tooltip.insert(2, alt.Tooltip("end:Q", title="mean relative drop", format=".1%"))
    across, up = around(points["at"]), around(pd.Series([0.0, *points["end"]]))
    scale, ticks = alt.Scale(domain=across, nice=False, zero=False), alt.Axis(tickCount=5, labelFlush=False)
    x = alt.X("at:Q", title="mean original score", scale=scale, axis=ticks)
    title, axis = "mean relative drop with every head replaced", alt.Axis(format=".1%", tickCount=6)
    y, at = (
        alt.Y(f"{name}:Q", title=title, axis=axis, scale=alt.Scale(domain=up, nice=False)) for name in ("end", "y")
    )
    beside = alt.Chart(inline(placed(points, up, height))).encode(y)
    dots = alt.Chart(inline(points)).mark_circle(size=70, color=COLORS[0], opacity=1)
    figure = alt.layer(
        *leaders(beside, x, at, alt.StrokeValue(GREY), dash=[1, 3]),
        dots.encode(x, y, tooltip=tooltip),
        title=alt.Title(wrap(TITLE, width // 8), subtitle=wrap(missing, width // 6), offset=14),
        width=width,
        height=height,
    )
    return styled(figure.properties(usermeta={"margin": 90 + 6 * min(30, names.map(len).max())})), shown
