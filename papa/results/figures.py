"""The figure of a grid: scores against the number of heads replaced (the paper's Figures 2, 5 and 6)."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from textwrap import wrap

import altair as alt
import pandas as pd

from papa.config.measures import MEASURES
from papa.errors import InputError, count
from papa.method.pictures import HEIGHT, PANELS_PER_ROW, WIDTH, inline, styled
from papa.results.outcomes import ALL
from papa.results.phrases import ABOVE_ALL, floor_name
from papa.results.table import Row, metric_name, texts
from papa.results.views import GridView

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can distinguish; yellow is omitted: it is faint in print."""
GREY = "#858585"
"""A grey with the same contrast on white paper and on a dark background."""
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
FLOOR_WORDS = {
    "context_free": "the best model tried in which no token sees another, or a blind guess if it scores higher",
    "trivial": "the best guess that ignores the input",
}
"""The floors that figures show."""
SHARED = {
    f"{floor_name(name)} floor": color
    for name, color in zip(FLOOR_WORDS, ("#444444", "#a8a8a8"), strict=True)
}
"""The colours of floors that all curves of a panel share."""
MARK = "context-free floor of a curve"
FLOORS_NOTE = (
    f"Dashed lines: floors; context-free is {FLOOR_WORDS['context_free']}, trivial is {FLOOR_WORDS['trivial']}. "
    "A diamond is the context-free floor of one curve. A curve at its context-free floor has a reliance of 100%."
)
MINIMUM_SPAN = 0.05
"""The smallest range of scores in a panel; in a smaller range, noise looks like a drop, and tick labels repeat."""
CURVE_KEYS = ["line", "subset"]
"""The columns that identify a curve in a panel."""
MAXIMUM_BANDS = 2
"""With more curves than this, intervals are drawn as bars, because bands would cover each other."""
CURVES_IN_WORDS = 18
"""The maximum number of curves that the alternative text of a figure describes."""


def grid_figure(frame: pd.DataFrame, grid: GridView) -> tuple[alt.ConcatChart, str]:
    """Draw a grid's rows; return the figure and its alternative text.

    Each task has a panel. If there is one line, each subset of the examples has a colour. If there are several, each
    line has a colour, and each subset a dash pattern. Floors that all curves of a panel share are dashed lines.
    """
    points = _points(frame)
    if points.empty:
        raise InputError(f"{grid.title} has no score to draw; pass rows with scores.")
    names = {name: points[name].unique().tolist() for name in ("task", "line", "subset")}
    names["subset"].sort(key=lambda subset: subset != ALL)
    points = points.sort_values("replaced", kind="stable")
    panels = {task: points[points["task"] == task] for task in names["task"]}
    floors = {task: _floors(rows) for task, rows in panels.items()}
    channels = _curve_channels(names, " / ".join(grid.varied))
    channels |= _floor_channels(pd.concat(floors.values())["kind"]) | {"x": _heads_axis(points)}
    barred = len(points.groupby(CURVE_KEYS)) > MAXIMUM_BANDS
    drawn = [_panel(rows, floors[task], channels, barred) for task, rows in panels.items()]
    columns = min(PANELS_PER_ROW, len(panels))
    room = max(2, columns) * (WIDTH + 66)
    subtitle = wrap(grid.common_settings, room // 6)
    heading = alt.Title(wrap(grid.title, room // 9), subtitle=subtitle, fontSize=15, offset=14)
    longest = max(map(len, names["line"] if len(names["line"]) > 1 else names["subset"]))
    figure = (
        styled(alt.concat(*drawn, columns=columns, spacing=24, title=heading))
        .configure_axisX(labelAngle=0, labelOverlap="greedy", labelFlush=False, grid=False)
        # labels differ in width, but panels below each other should line up
        .configure_axisY(minExtent=36, tickCount=5)
        .configure_legend(
            orient="bottom", columns=max(1, room // (60 + 6 * longest)), labelFontSize=12
        )
    )
    return figure, _in_words(points)


def _curve_channels(names: Mapping[str, list[str]], line_title: str) -> Row:
    """Return the colours and the dash patterns of curves, by channel."""
    titles = {"line": line_title, "subset": "examples"}
    colored = "line" if len(names["line"]) > 1 else "subset"
    legends = {name: _line_legend(title, names[name]) for name, title in titles.items()}
    colors = alt.Scale(domain=names[colored], range=COLORS)
    channels: Row = {"color": alt.Color(f"{colored}:N", scale=colors, legend=legends[colored])}
    if colored == "line":
        dashes = alt.Scale(domain=names["subset"], range=DASHES)
        channels["strokeDash"] = alt.StrokeDash("subset:N", scale=dashes, legend=legends["subset"])
    return channels


def _floor_channels(kinds: pd.Series[str]) -> Row:
    """Return the strokes of floors that all curves share, and the shape of other floors, by channel."""
    shared = {kind: color for kind, color in SHARED.items() if kinds.eq(kind).any()}
    # floors have Stroke, because Color has the legend of the curves
    key = alt.Legend(title=None, symbolType="stroke", symbolSize=400, symbolDash=[4, 3])
    strokes = alt.Scale(domain=[*shared], range=[*shared.values()])
    shapes = alt.Scale(domain=[MARK], range=["diamond"])
    return {
        "stroke": alt.Stroke("kind:N", scale=strokes, legend=key),
        "shape": alt.Shape(
            "kind:N", scale=shapes, legend=alt.Legend(title=None, symbolStrokeColor=GREY)
        ),
    }


def _panel(
    rows: pd.DataFrame, floors: pd.DataFrame, channels: Row, barred: bool
) -> alt.LayerChart | alt.FacetChart:
    """Draw the curves of a task with their intervals, and its floors."""
    scale = alt.Scale(domain=_domain_of(rows, floors), nice=False, zero=False)
    title = metric_name(*rows[["metric", "positive"]].iloc[0])
    y = {
        name: alt.Y(f"{name}:Q", title=title, axis=alt.Axis(format=".2f"), scale=scale)
        for name in ("mean", "low", "end")
    }
    x = channels["x"]
    curve = {name: channels[name] for name in ("color", "strokeDash") if name in channels}
    base = alt.Chart(inline(rows)).encode(x, y["mean"], **curve, detail="subset:N")
    intervals = base.transform_filter("isValid(datum.low)").encode(y["low"], alt.Y2("high:Q"))
    layers = [
        intervals.mark_area(opacity=0.15),
        base.mark_line(strokeWidth=1.8),
        base.mark_circle(size=30, opacity=1),
    ]
    if barred:
        layers = [
            intervals.mark_rule(strokeWidth=1.2, strokeDash=[1, 0], opacity=0.8),
            base.mark_line(strokeWidth=1.4),
            base.mark_circle(size=18, opacity=1),
        ]
    marked = floors["kind"] == MARK
    if not marked.all():
        rules = alt.Chart(inline(floors[~marked])).mark_rule(strokeDash=[4, 3])
        layers.insert(0, rules.encode(y["end"], channels["stroke"]))
    if marked.any():
        marks = alt.Chart(inline(floors[marked])).mark_point(size=50, strokeWidth=1.6)
        layers.append(marks.encode(x, y["end"], channels["color"], channels["shape"]))
    heading = alt.Title(wrap(rows["title"].iloc[0], WIDTH // 7))
    return alt.layer(*layers, title=heading, width=WIDTH, height=HEIGHT)


def _line_legend(title: str, names: list[str]) -> alt.Legend | None:
    """Return the legend of lines; None if there is only one line."""
    if len(names) == 1:
        return None
    return alt.Legend(title=title, symbolType="stroke", symbolSize=400, symbolOpacity=1)


def _heads_axis(points: pd.DataFrame) -> alt.X:
    """Return a linear axis of replaced heads, on which each measured number has a tick.

    If models have different numbers of heads, the axis shows shares, with a tick at the exact share of each fraction.
    """
    whole, edge = points[["whole", "edge"]].iloc[0].tolist()
    title = f"heads replaced, of {whole:.0f}"
    ticks = alt.Axis(values=sorted({*points["replaced"].tolist()}), format="d")
    if whole == 1:
        title = "heads replaced"
        shares = {float(1 - Fraction(name)) for name in points["fraction"]}
        ticks = alt.Axis(values=sorted(shares), format=".0%")
    scale = alt.Scale(domain=[whole - edge, edge], nice=False, zero=False)
    return alt.X("at:Q", title=title, scale=scale, axis=ticks)


def _domain_of(rows: pd.DataFrame, floors: pd.DataFrame) -> list[float]:
    """Return the range of a panel's score axis: all points and floors plus a margin, cut to the metric's range."""
    metric = MEASURES[rows["metric"].iloc[0]]
    drawn = pd.concat([rows["mean"], rows["low"], rows["high"], floors["end"]]).astype("float64")
    low = float(drawn.min())
    high = float(drawn.max())
    margin = max(0.04 * (high - low), (MINIMUM_SPAN - (high - low)) / 2)
    low = max(metric.low, low - margin)
    high = min(metric.high, high + margin)
    return [
        max(metric.low, min(low, high - MINIMUM_SPAN)),
        min(metric.high, max(high, low + MINIMUM_SPAN)),
    ]


def _floors(points: pd.DataFrame) -> pd.DataFrame:
    """Return the floors in a panel, at the score `end`: of all curves (`SHARED`), or of a curve, at its right edge.

    Floors are shared if they differ by less than a reader can see. Only tables have trivial floors that are not shared
    and, if there are several lines, floors of subsets.
    """
    if points["line"].nunique() > 1:
        points = points[points["subset"] == ALL]
    drawn = points[["mean", *FLOOR_WORDS]].astype("float64")
    tolerance = float(drawn.max().max() - drawn.min().min()) / 50
    parts = []
    for name in FLOOR_WORDS:
        curves = points.dropna(subset=name).drop_duplicates(CURVE_KEYS)
        floors = curves.assign(at=curves["edge"], end=curves[name], kind=MARK)
        if floors["end"].max() - floors["end"].min() <= tolerance:
            floors = floors[:1].assign(kind=f"{floor_name(name)} floor")
        elif name == "trivial":
            floors = floors[:0]
        parts.append(floors[[*CURVE_KEYS, "at", "end", "kind"]])
    return pd.concat(parts)


def _in_words(points: pd.DataFrame) -> str:
    curves = [curve for _, curve in points.groupby(["task", *CURVE_KEYS], sort=False)]
    several = points["line"].nunique() > 1
    sentences = []
    for curve in curves[:CURVES_IN_WORDS]:
        first = curve.iloc[0]
        names = [first["title"]]
        names += [first["line"]] if several else []
        names += [first["subset"]] if first["subset"] != ALL else []
        ends = curve.iloc[[0, -1]].drop_duplicates("number")
        numbers = texts("{} with {} heads replaced".format, ends, "score", "number")
        floor = first["context_free"]
        numbers += [] if pd.isna(floor) else [f"context-free floor {floor:.3f}"]
        sentences.append(f"{', '.join(names)}: {', '.join(numbers)}.")
    if len(curves) > CURVES_IN_WORDS:
        sentences.append(f"{count(len(curves) - CURVES_IN_WORDS, 'more curve')}.")
    return " ".join(sentences)


def figure_note(frame: pd.DataFrame) -> str:
    """Return the caption of a grid's figure, which explains axes, intervals and floors."""
    rows = frame[frame["main"] & frame["mean"].notna()]
    intervals = "a single seed or example has no interval"
    if rows["low"].notna().any():
        shape = "bars" if len(rows.groupby(CURVE_KEYS)) > MAXIMUM_BANDS else "bands"
        intervals = f"{shape} are 95% intervals, cut to the metric's range"
    sentences = [f"Mean validation score by the number of replaced heads; {intervals}."]
    sentences += [FLOORS_NOTE] if rows["context_free"].notna().any() else []
    sentences += [ABOVE_ALL] if (rows["reliance"] > 1).any() else []
    return " ".join(sentences)


def _points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the points of a figure.

    `replaced` is the number of heads replaced, or their share if models have different numbers of heads. `whole` is
    the number (or share) of all heads, and `edge` is the right end of the axis. A point is drawn at `at`, which is
    `replaced`, shifted by a few pixels if there are error bars. Intervals are cut at the metric's range.
    """
    rows = frame[frame["main"] & frame["mean"].notna()]
    columns = ["line", "model", "task", "title", "metric", "positive", "subset", "fraction", "mean"]
    points = rows[[*columns, *FLOOR_WORDS]]
    several = rows["heads"].nunique() > 1
    share = 1 - rows["kept"] / rows["heads"]
    lowest = rows["metric"].map(lambda name: MEASURES[name].low)
    highest = rows["metric"].map(lambda name: MEASURES[name].high)
    curve = points.groupby(CURVE_KEYS, sort=False).ngroup()
    shift = curve - curve.max() / 2 if curve.max() >= MAXIMUM_BANDS else 0 * curve
    whole = 1 if several else rows["heads"]
    number = rows["heads"] - rows["kept"]
    replaced = share if several else number
    return points.assign(
        replaced=replaced,
        whole=whole,
        edge=whole * (1 + 8 / WIDTH),
        at=replaced + shift * min(2.5, 10 / max(1, curve.max())) * whole / WIDTH,
        **rows[["low", "high"]].astype("float64").clip(lowest, highest, axis=0),
        number=number.astype(str) + " of " + rows["heads"].astype(str),
        score=rows["mean"].map("{:.3f}".format),
    )
