"""The figure of a grid: scores against the number of heads replaced (the paper's Figures 2, 5 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

import altair as alt
import pandas as pd

from papa.config.measures import MEASURES, METRICS
from papa.errors import InputError, count
from papa.method.pictures import HEIGHT, PANELS_PER_ROW, WIDTH, inline, styled
from papa.results.losses import COUNTS
from papa.results.outcomes import ALL, is_probed
from papa.results.panels import (
    COLORS,
    CURVE_KEYS,
    FLOOR_WORDS,
    GREY,
    MARK,
    RULE,
    domain_of,
    heads_axis,
    labels_of,
    leaders,
    line_legend,
    without_overlap,
)
from papa.results.phrases import MORE_THAN_ALL, floor_name
from papa.results.table import metric_name
from papa.results.views import GridView

DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
SUBSET_COLORS = {ALL: COLORS[-1], "position": COLORS[0], "lookup": COLORS[1]}
"""The colours of subsets if there is only one line; other subsets have the remaining colours."""
MAXIMUM_BANDS = 2
"""With more curves than this, intervals are drawn as bars, because bands would cover each other."""
CURVES_IN_WORDS = 18
"""The maximum number of curves that the alternative text of a figure describes."""


def grid_figure(frame: pd.DataFrame, grid: GridView) -> tuple[alt.ConcatChart, str]:
    """Draw a grid's rows; return the figure and its alternative text.

    Each task has a panel. If there is one line, each subset of the examples has a colour. If there are several, each
    line has a colour, and each subset a dash pattern. A panel has at most two dashed lines, floors that all curves
    share; each has a label on the right.
    """
    points = _points(frame)
    if points.empty:
        raise InputError(f"{grid.title} has no score to draw; pass rows with scores.")
    lines, tasks = points["line"].unique().tolist(), points["task"].unique().tolist()
    subsets = sorted(points["subset"].unique(), key=lambda subset: subset != ALL)
    field, names = ("line", lines) if len(lines) > 1 else ("subset", subsets)
    colors = _colors(lines, subsets)
    points["color"] = points[field].map(dict(zip(names, colors, strict=True)))
    points = points.sort_values("replaced", kind="stable")
    x = heads_axis(points)
    title = " / ".join(grid.varied) if field == "line" else "examples"
    scale = alt.Scale(domain=names, range=colors)
    curve: list[alt.Color | alt.StrokeDash] = [alt.Color(f"{field}:N", scale=scale, legend=line_legend(title, names))]
    if field == "line":
        dashes = alt.Scale(domain=subsets, range=[DASHES[index % len(DASHES)] for index in range(len(subsets))])
        curve.append(alt.StrokeDash("subset:N", scale=dashes, legend=line_legend("examples", subsets)))
    # floors use Stroke, because Color has the legend of the curves
    stroke = alt.Stroke("color:N", scale=None)
    key = alt.Legend(title=None, symbolStrokeColor=GREY)
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=[MARK], range=["diamond"]), legend=key)
    labels_by_task = {task: labels_of(rows, field, HEIGHT) for task, rows in points.groupby("task")}
    barred = len(points.groupby(CURVE_KEYS)) > MAXIMUM_BANDS

    def panel(task: str) -> alt.LayerChart | alt.FacetChart:
        rows = points[points["task"] == task]
        domain = domain_of(rows, labels_by_task[task])
        scale = alt.Scale(domain=domain, nice=False, zero=False)
        title = metric_name(*rows[["metric", "positive"]].iloc[0])
        y, low, end, at = (
            alt.Y(f"{name}:Q", title=title, axis=alt.Axis(format=".2f"), scale=scale)
            for name in ("mean", "low", "end", "y")
        )
        base = alt.Chart(inline(rows)).encode(x, y, *curve, detail="subset:N")
        intervals = base.transform_filter("isValid(datum.low)").encode(low, alt.Y2("high:Q"))
        bars = intervals.mark_rule(strokeWidth=1.2, strokeDash=[1, 0], opacity=0.8)
        labels = without_overlap(labels_by_task[task], domain, HEIGHT)
        labelled = alt.Chart(inline(labels)).encode(end)
        line_width, dot_size = (1.4, 18) if barred else (1.8, 30)
        drawn_as = {kind: labelled.transform_filter(alt.datum.kind == kind) for kind in (RULE, MARK)}
        rules = drawn_as[RULE].mark_rule(strokeDash=[4, 3]).encode(stroke)
        marks = drawn_as[MARK].mark_point(size=50, strokeWidth=1.6).encode(x, stroke, shape)
        characters = WIDTH // 7
        status = rows.loc[rows["subset"] == ALL, "status"].dropna().unique().tolist()
        excluded = bool(status) and COUNTS not in status
        reason = wrap(f"Excluded: {'; '.join(status)}.", characters + characters // 4) if excluded else alt.Undefined
        return alt.layer(
            rules,
            bars if barred else intervals.mark_area(opacity=0.15),
            base.mark_line(strokeWidth=line_width),
            base.mark_circle(size=dot_size, opacity=1),
            *([marks] if labels["kind"].eq(MARK).any() else []),
            *leaders(labelled, x, at, stroke),
            title=alt.Title(wrap(rows["title"].iloc[0], characters), subtitle=reason),
            width=WIDTH,
            height=HEIGHT,
        )

    columns = min(PANELS_PER_ROW, len(tasks))
    longest = max((len(text) for labels in labels_by_task.values() for text in labels["text"]), default=0)
    room = columns * (WIDTH + 66 + 5 * min(34, max(18, longest)))
    subtitle = wrap(grid.common_settings, room // 6)
    heading = alt.Title(wrap(grid.title, room // 9), subtitle=subtitle, fontSize=15, offset=14)
    figure = (
        styled(alt.concat(*map(panel, tasks), columns=columns, spacing=24, title=heading))
        .configure_axisX(labelAngle=0, labelOverlap=False, labelBound=False, labelFlush=False, grid=False)
        .configure_axisY(minExtent=36, tickCount=5)
        .configure_legend(orient="bottom", columns=max(1, room // (60 + 6 * max(map(len, names)))), labelFontSize=12)
    )
    return figure, _in_words(points)


def _in_words(points: pd.DataFrame) -> str:
    curves = [curve for _, curve in points.groupby(["task", *CURVE_KEYS], sort=False)]
    several, sentences = points["line"].nunique() > 1, list[str]()
    for curve in curves[:CURVES_IN_WORDS]:
        first, last = curve.iloc[0], curve.iloc[-1]
        names = [first["title"], *([first["line"]] if several else [])]
        names += [first["subset"]] if first["subset"] != ALL else []
        ends = dict.fromkeys(f"{point['score']} with {point['kept']} heads kept" for point in (first, last))
        floor = first["contextless"]
        known = [] if pd.isna(floor) else [f"context-free floor {floor:.3f}"]
        sentences.append(f"{', '.join(names)}: {', '.join([*ends, *known])}.")
    if len(curves) > CURVES_IN_WORDS:
        sentences.append(f"{count(len(curves) - CURVES_IN_WORDS, 'more curve')}.")
    return " ".join(sentences)


def figure_note(frame: pd.DataFrame) -> str:
    """Return the caption of a grid's figure, which explains axes, intervals, seeds and floors."""
    rows = frame[frame["main"] & frame["mean"].notna()]
    probed = is_probed(rows["metric"])
    shape, intervals = "bars" if len(rows.groupby(CURVE_KEYS)) > MAXIMUM_BANDS else "bands", list[str]()
    if probed.any():
        seed_counts = rows.loc[probed, "seeds"]
        seeds = " to ".join(dict.fromkeys(f"{number:.0f}" for number in (seed_counts.min(), seed_counts.max())))
        over = f"{shape} are 95 % Student-t intervals over {seeds} probe seeds, cut to the metric's range"
        intervals.append("one probe seed, so no interval" if seeds == "1" else over)
    for name, measure in METRICS.items():
        if not measure.target.probed and rows["metric"].eq(name).any():
            intervals.append(f"{shape} of {measure.title.lower()} are 95 % intervals over texts and orders")
    floors = " ".join(["", *_floors_in_words(frame)])
    above = f" A loss above 100 %: {MORE_THAN_ALL}." if (rows["loss"] > 1).any() else ""
    return f"Mean validation score by the number of replaced heads; {'; '.join(intervals)}.{floors}{above}"


def _floors_in_words(frame: pd.DataFrame) -> list[str]:
    """Return sentences that name the floors in the figure and say how to read them; empty if there are none."""
    points = _points(frame).assign(color=GREY)
    field = "line" if points["line"].nunique() > 1 else "subset"
    labels = pd.concat([labels_of(rows, field, 10_000) for _, rows in points.groupby("task")])
    rules = " ".join(labels.loc[labels["kind"].eq(RULE), "text"])
    dashed = [f"{name} ({FLOOR_WORDS[key]})" for key in FLOOR_WORDS if (name := floor_name(key)) in rules]
    sentences = [f"Dashed: {'; '.join(dashed)}."] if dashed else []
    if labels["kind"].eq(MARK).any():
        sentences.append(f"Diamonds: the context-free floor of one curve ({FLOOR_WORDS['contextless']}).")
    if points["contextless"].notna().any():
        sentences.append("A curve that falls to its context-free floor has lost all that attention contributes.")
    return sentences


def _colors(lines: Sequence[str], subsets: Sequence[str]) -> list[str]:
    if len(lines) > 1 or len(subsets) == 1:
        return [COLORS[index % len(COLORS)] for index in range(len(lines))]
    known = [SUBSET_COLORS.get(subset) for subset in subsets]
    left = [color for color in COLORS if color not in known] or [GREY]
    return [color or left[index % len(left)] for index, color in enumerate(known)]


def _points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the points of a figure.

    `replaced` is the number of heads replaced, or their share if models have different numbers of heads. `whole` is
    the number (or share) of all heads, and `edge` is the right end of the axis. A point is drawn at `at`, which is
    `replaced`, shifted by a few pixels if there are error bars. Intervals are cut at the metric's range.
    """
    rows = frame[frame["main"] & frame["mean"].notna()]
    columns = ["line", "model", "task", "title", "metric", "positive", "subset", "fraction", "mean", "status"]
    points = rows[[*columns, *FLOOR_WORDS]]
    several = rows["heads"].nunique() > 1
    share = 1 - rows["kept"] / rows["heads"]
    low, high = (rows["metric"].map(lambda name, end=end: getattr(MEASURES[name], end)) for end in ("low", "high"))
    curve = points.groupby(CURVE_KEYS, sort=False).ngroup()
    shift = curve - curve.max() / 2 if len(rows.groupby(CURVE_KEYS)) > MAXIMUM_BANDS else 0 * curve
    whole = 1 if several else rows["heads"]
    replaced = share if several else rows["heads"] - rows["kept"]
    return points.assign(
        replaced=replaced,
        whole=whole,
        edge=whole * (1 + 8 / WIDTH),
        at=replaced + shift * min(2.5, 10 / max(1, curve.max())) * whole / WIDTH,
        low=rows["low"].astype("float64").clip(low, high),
        high=rows["high"].astype("float64").clip(low, high),
        kept=rows["kept"].astype(str) + " of " + rows["heads"].astype(str),
        score=rows["mean"].map("{:.3f}".format),
    )
