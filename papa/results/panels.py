"""The panels of figures: axes, legends, floors, and labels on the right that never overlap."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fractions import Fraction
from textwrap import wrap

import altair as alt
import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from papa.config.measures import MEASURES
from papa.method.pictures import WIDTH, styled
from papa.results.outcomes import ALL
from papa.results.phrases import floor_name
from papa.results.summary import fractions_of

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can distinguish; yellow is omitted: it is faint in print."""
GREY = "#858585"
"""A grey with the same contrast on white paper and on a dark background."""
FLOOR_WORDS = {
    "contextless": "the best model tried in which no token sees another",
    "trivial": "the best guess that ignores the input",
}
"""The floors that figures show, at most one reference line each; tables also have other floors."""
RULE, MARK, CURVE = "shared floor", "context-free floor", "curve"
"""The kinds of labels: of a floor that all curves share, of the floor of one curve (as legends name it), of a curve."""
MINIMUM_SPAN = 0.05
"""The smallest range of scores in a panel; in a smaller range, noise looks like a drop, and tick labels repeat."""
CURVE_KEYS = ["line", "subset"]
"""The columns that identify a curve in a panel."""
LABEL_HEIGHT = 11
"""The height of a label on the right of a panel, in pixels."""
LABEL_COLUMNS = ("text", "end", "at", "kind", "color")


def line_legend(title: str, names: Sequence[str]) -> alt.Legend | None:
    """Return the legend of lines; None if there is only one line."""
    return alt.Legend(title=title, symbolType="stroke", symbolSize=400, symbolOpacity=1) if len(names) > 1 else None


def words_only(title: str, text: str) -> alt.Chart:
    """Return a figure that explains in words why there is nothing to draw."""
    data = alt.Data(values=[{"text": wrap(text, 2 * WIDTH // 6)}])
    chart = alt.Chart(data, title=title, width=2 * WIDTH, height=40).encode(text="text:N")
    words: alt.Chart = styled(chart.mark_text(align="left", baseline="top", x=0, y=0, fontSize=12))
    return words


def heads_axis(points: pd.DataFrame) -> alt.X:
    """Return a linear axis of replaced heads, on which each measured number has a tick.

    If models have different numbers of heads, the axis shows shares, with a tick at the exact share of each fraction.
    """
    whole, edge = points[["whole", "edge"]].iloc[0].tolist()
    shares, replaced = whole == 1, points.groupby("fraction")["replaced"].first()
    places = [float(1 - Fraction(name)) if shares else int(replaced[name]) for name in fractions_of(points)]
    ticks = list(dict.fromkeys(places))
    labels = [f"{100 * at:.0f}" if shares else str(at) for at in ticks]
    rows = tick_rows([WIDTH * at / whole for at in ticks], list(map(len, labels)))
    shown = [label if row is not None else "" for label, row in zip(labels, rows, strict=True)]
    at_tick = f"[indexof({ticks}, datum.value)]"
    lower = {"condition": {"test": f"{json.dumps(rows)}{at_tick} === 1", "value": 15}, "value": 2}
    axis = alt.Axis(values=ticks, labelExpr=f"{json.dumps(shown)}{at_tick}", labelPadding=lower)
    return alt.X(
        "at:Q",
        title=f"heads replaced, {'%' if shares else f'of {whole:.0f}'}",
        scale=alt.Scale(domain=[whole - edge, edge], nice=False, zero=False),
        axis=axis,
    )


def tick_rows(positions: Sequence[float], lengths: Sequence[int]) -> list[int | None]:
    """Return a row, 0 or 1, for each tick label, so labels do not touch; None if a label fits in neither row.

    The labels of the first and the last tick are placed first. Positions are in pixels, lengths in characters.
    """
    chosen: list[int | None] = [None] * len(positions)
    for tick in dict.fromkeys([0, len(positions) - 1, *range(len(positions))]):
        taken = {
            row
            for row, position, length in zip(chosen, positions, lengths, strict=True)
            if abs(positions[tick] - position) < 3.1 * (lengths[tick] + length) + 4
        }
        chosen[tick] = next((row for row in (0, 1) if row not in taken), None)
    return chosen


def domain_of(rows: pd.DataFrame, labels: pd.DataFrame) -> list[float]:
    """Return the range of a panel's score axis: all points and labels plus a margin, cut to the metric's range."""
    metric = MEASURES[rows["metric"].iloc[0]]
    drawn = pd.concat([rows["mean"], rows["low"], rows["high"], labels["end"]]).astype("float64")
    low, high = float(drawn.min()), float(drawn.max())
    margin = max(0.04 * (high - low), (MINIMUM_SPAN - (high - low)) / 2)
    low, high = max(metric.low, low - margin), min(metric.high, high + margin)
    return [max(metric.low, min(low, high - MINIMUM_SPAN)), min(metric.high, max(high, low + MINIMUM_SPAN))]


def labels_of(rows: pd.DataFrame, field: str, height: float) -> pd.DataFrame:
    """Return the labels on the right of a panel: the floors, and the names of curves if there is room for all.

    The label of a curve is its `field`, `line` or `subset`. Curves of subsets have no label if `field` is `line`. A
    leader begins at the right end of the curve or floor, (`at`, `end`).
    """
    main = rows[rows["subset"].eq(ALL) | (field == "subset")]
    curves = [curve for _, curve in main.groupby(CURVE_KEYS, sort=False)]
    curves.sort(key=lambda curve: curve["mean"].tolist()[::-1])  # curves with the same end keep their previous order
    names = [
        {"text": _curve_name(last[field]), "end": last["mean"], "kind": CURVE}
        | {"at": last["at"], "color": last["color"]}
        for last in (curve.iloc[-1] for curve in curves)
        if field == "line" or len(curves) > 1
    ]
    floors, maximum = _floors(main, field), int(height / LABEL_HEIGHT) + 1
    labels = [*floors, *names] if len(floors) + len(names) <= maximum else floors[:maximum]
    return pd.DataFrame(labels, columns=[*LABEL_COLUMNS])


def _curve_name(name: str) -> str:
    return "all examples" if name == ALL else name


def _floors(points: pd.DataFrame, field: str) -> list[dict[str, object]]:
    """Return the labels of floors: a floor that all curves share is a rule, so a panel has at most two rules.

    A context-free floor that curves do not share is a mark in the colour of its curve, or a grey mark with the model's
    name if models have several lines. A trivial floor that they do not share is only in tables. Floors are the same if
    they differ by less than a reader can see.
    """
    first = points.drop_duplicates(["model", "subset"])
    crowded = points["line"].nunique() > points["model"].nunique()
    drawn = points[["mean", *FLOOR_WORDS]].astype("float64")
    tolerance = float(drawn.max().max() - drawn.min().min()) / 50
    labels: list[dict[str, object]] = []
    for name in FLOOR_WORDS:
        known = first[first[name].notna()]
        if len(known) and known[name].max() - known[name].min() <= tolerance:
            end, edge = known[[name, "edge"]].iloc[0]
            text = f"{floor_name(name)} {short_score(end)}"
            labels.append({"text": text, "end": end, "at": edge, "kind": RULE, "color": GREY})
        elif name == "contextless":
            for row in known.to_dict("records"):
                owner = row["model"] if crowded else _curve_name(row[field])
                label = {"text": f"{owner} floor {short_score(row[name])}", "end": row[name], "at": row["edge"]}
                labels.append(label | {"kind": MARK, "color": GREY if crowded else row["color"]})
    return labels


def without_overlap(labels: pd.DataFrame, domain: Sequence[float], height: float) -> pd.DataFrame:
    """Add the `y` at which each label is drawn: as close to its `end` as possible, without overlap."""
    low, high = domain
    rows = labels.sort_values("end", kind="stable")
    positions = spread_out((height * (rows["end"] - low) / (high - low)).tolist(), LABEL_HEIGHT, height)
    return rows.assign(y=[low + position * (high - low) / height for position in positions])


def spread_out(wanted: Sequence[float], gap: float, end: float) -> list[float]:
    """Return positions from 0 to `end`, close to `wanted` (in ascending order), with gaps of at least `gap`."""
    if not wanted:
        return []
    steps = gap * np.arange(len(wanted))
    nearest = isotonic_regression(np.asarray(wanted) - steps).x
    positions: list[float] = (np.clip(nearest, 0, max(0, end - steps[-1])) + steps).tolist()
    return positions


def leaders(
    labels: alt.Chart, x: alt.X, y: alt.Y, stroke: alt.Stroke | alt.StrokeValue, dash: Sequence[int] = (1, 0)
) -> tuple[alt.Chart, alt.Chart]:
    """Draw labels at the right edge, and leader lines to them from the ends of the curves."""
    leader = labels.mark_rule(x2Offset=9, strokeDash=[*dash]).encode(x, alt.X2(value="width"), alt.Y2("y:Q"), stroke)
    text = labels.mark_text(align="left", baseline="middle", dx=12, fontSize=LABEL_HEIGHT - 1, limit=170)
    return leader, text.encode(alt.XValue("width"), y, text="text:N")


def short_score(score: float) -> str:
    """Format a score without a leading zero: .535."""
    return "-" if pd.isna(score) else re.sub(r"\b0\.", ".", f"{score:.3f}").replace("-", "−")


def padded_range(values: pd.Series[float]) -> list[float]:
    """Return the ends of an axis slightly beyond all values, even if these are nearly the same."""
    margin = 0.1 * max(0.05, values.max() - values.min())
    return [values.min() - margin, values.max() + margin]
