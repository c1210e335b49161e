"""Panels of figures: axes, legends, floors, and labels on the right that never overlap."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from papa.config.measures import MEASURES
from papa.method.pictures import PANELS_PER_ROW, styled
from papa.results.outcomes import ALL
from papa.results.summary import fractions_of

if TYPE_CHECKING:
    import altair as alt

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can distinguish; without yellow, which vanishes in print."""
GREY = "#858585"
"""A grey with the same contrast to white paper and to a dark background."""
FLOOR_WORDS = {
    "trivial": "the best guess that ignores the input",
    "contextless": "the same probe with zeros in place of all attention, so no token sees another",
    "by_word": "a tagger that knows the most frequent label of each word",
}
MINIMUM_SPAN = 0.05
"""The smallest range of scores in a panel; in a smaller range noise looks like a fall, and ticks repeat."""
CURVE = ["line", "subset"]
LABEL = 11
"""The height of a label on the right of a panel, in pixels."""
LABELS = ("text", "end", "at", "floor", "color", "thick", "line", "subset")
PAGE_LEGEND = {"columns": PANELS_PER_ROW, "labelFontSize": 12, "labelLimit": 400}
"""The legends of figures that only the HTML report has."""
Layers = list["alt.Chart"]
"""Layers of an Altair chart."""


@dataclass(frozen=True)
class PanelGrid:
    """The size and the arrangement of panels, the title above all, and the look of the legend."""

    width: float
    height: float
    columns: int = PANELS_PER_ROW
    title: str = ""
    legend: Mapping[str, Any] = field(default_factory=dict)


def tooltips(titles: Mapping[str, str]) -> list[alt.Tooltip]:
    """Return a tooltip that shows these columns as text under these titles."""
    import altair as alt

    return [alt.Tooltip(f"{column}:N", title=title) for column, title in titles.items()]


def line_legend(title: str, names: Sequence[str], **look: Any) -> alt.Legend | None:
    """Return the legend of lines; None if there is only one line."""
    import altair as alt

    return alt.Legend(title=title, symbolType="stroke", symbolSize=400, **look) if len(names) > 1 else None


def percent_axis(ticks: int) -> alt.Axis:
    """Return an axis of shares in percent."""
    import altair as alt

    return alt.Axis(labelExpr="format(100 * datum.value, '.0f') + ' %'", tickCount=ticks)


def curves(base: alt.Chart, tooltip: Sequence[alt.Tooltip], line: Mapping[str, Any], dot: Mapping[str, Any]) -> Layers:
    """Return a line through the points of a chart, and dots with tooltips."""
    return [base.mark_line(**line), base.mark_circle(**dot).encode(tooltip=tooltip)]


def panels(rows: pd.DataFrame, draw: Callable[[pd.DataFrame], Layers], look: PanelGrid) -> Any:
    """Draw a panel for each model and task of `rows`, with the legend below all.

    Args:
        rows: `model`, `task`, `title` and the columns that `draw` reads.
        draw: the layers of a panel from its rows.
        look: size and arrangement.
    """
    import altair as alt

    several = rows["model"].nunique() > 1
    charts = [
        alt.layer(
            *draw(group),
            title=wrap(f"{title} ({model})" if several else str(title), max(12, int(look.width // 7))),
            width=look.width,
            height=look.height,
        )
        for (model, _, title), group in rows.groupby(["model", "task", "title"], sort=False)
    ]
    heading = {"title": look.title} if look.title else {}
    figure = styled(alt.concat(*charts, columns=look.columns, spacing=24, **heading))
    return figure.configure_legend(orient="bottom", **look.legend)


def words_only(title: str, text: str, width: float) -> Any:
    """Return a figure that says in words why there is nothing to draw."""
    import altair as alt

    data = alt.Data(values=[{"text": wrap(text, int(width // 6))}])
    chart = alt.Chart(data, title=title, width=width, height=40).encode(text="text:N")
    return styled(chart.mark_text(align="left", baseline="top", x=0, y=0, fontSize=12))


def heads_axis(points: pd.DataFrame, width: float) -> alt.X:
    """Return the axis of replaced heads, to scale, with a tick at each measured number and its fraction below.

    If models have different numbers of heads, the axis shows shares, with a tick at the exact place of each fraction.

    Args:
        points: `fraction`, `replaced`, `whole` and `edge` of all points of a figure.
        width: of a panel, in pixels.
    """
    import altair as alt

    whole, edge = points[["whole", "edge"]].iloc[0].tolist()
    shares = whole == 1
    texts: dict[float, list[str]] = {}
    for fraction in fractions_of(points):
        replaced = points.loc[points["fraction"] == fraction, "replaced"].iloc[0]
        texts.setdefault(float(1 - Fraction(fraction)) if shares else int(replaced), []).append(fraction)
    labels = [[f"{100 * at:.0f}" if shares else str(at), ", ".join(fractions)] for at, fractions in texts.items()]
    rows = tick_rows([width * at / whole for at in texts], [max(map(len, label)) for label in labels])
    shown = [label if row is not None else "" for label, row in zip(labels, rows, strict=True)]
    of_tick = f"[indexof({list(texts)}, datum.value)]"
    lower = {"condition": {"test": f"{json.dumps(rows)}{of_tick} === 1", "value": 29}, "value": 2}
    return alt.X(
        "at:Q",
        title=wrap(f"heads replaced{', %' if shares else ''} (fraction kept below)", max(16, int(width / 5))),
        scale=alt.Scale(domain=[whole - edge, edge], nice=False, zero=False),
        axis=alt.Axis(values=list(texts), labelExpr=f"{json.dumps(shown)}{of_tick}", labelPadding=lower),
    )


def tick_rows(places: Sequence[float], letters: Sequence[int]) -> list[int | None]:
    """Return the row of each tick's label below an axis: 1 if it would touch another in row 0; None if in both rows.

    The first and the last of the ticks, which are at `places` in pixels, choose first.
    """
    chosen: list[int | None] = [None] * len(places)
    for tick in dict.fromkeys([0, len(places) - 1, *range(len(places))]):
        touched = {
            row
            for row, place, long in zip(chosen, places, letters, strict=True)
            if abs(places[tick] - place) < 3.1 * (letters[tick] + long) + 4
        }
        chosen[tick] = next((row for row in (0, 1) if row not in touched), None)
    return chosen


def domain_of(rows: pd.DataFrame) -> list[float]:
    """Return the range of scores in a panel: around everything that is drawn, within the range of the metric."""
    metric = MEASURES[rows["metric"].iloc[0]]
    drawn = rows[["mean", "low", "high", *FLOOR_WORDS]].astype("float64")
    low, high = float(drawn.min().min()), float(drawn.max().max())
    space = max(0.04 * (high - low), (MINIMUM_SPAN - (high - low)) / 2)
    low, high = max(metric.low, low - space), min(metric.high, high + space)
    return [max(metric.low, min(low, high - MINIMUM_SPAN)), min(metric.high, max(high, low + MINIMUM_SPAN))]


def labels_of(rows: pd.DataFrame, field: str, domain: Sequence[float], height: float) -> pd.DataFrame:
    """Return the labels on the right of a panel: the floors, and the names of curves if there is room for all.

    Curves are called by their `field`, `line` or `subset`; with several lines, only curves of all examples are named.
    The `text` of a label belongs to the score `end` and is drawn at `y`; its leader starts at `at`.
    """
    main = rows[rows["subset"].eq(ALL) | (field == "subset")]
    curves = [curve for _, curve in main.groupby(CURVE, sort=False)]
    curves.sort(key=lambda curve: curve["mean"].tolist()[::-1])  # curves that end together keep the order of before
    named = [
        {"text": "all examples" if last[field] == ALL else last[field], "end": last["mean"], "floor": False, "thick": 1}
        | {key: last[key] for key in ("at", "color", "line", "subset")}
        for last in (curve.iloc[-1] for curve in curves)
        if field == "line" or len(curves) > 1
    ]
    floors = _floors(main, (domain[1] - domain[0]) / 50)
    most = int(height / LABEL) + 1
    labels = [*floors, *named] if len(floors) + len(named) <= most else floors[:most]
    return placed(pd.DataFrame(labels, columns=[*LABELS]), domain, height)


def _floors(points: pd.DataFrame, same: float) -> list[dict[str, object]]:
    """Return the floors of a panel: grey if they differ by at most `same`, otherwise in the colour of their curve.

    Lines of one model share a floor; with several models, the label names the model.
    """
    first = points.drop_duplicates(["model", "subset"])
    crowded = points["line"].nunique() > points["model"].nunique()
    labels: list[dict[str, object]] = []
    for name in FLOOR_WORDS:
        there = first[first[name].notna()]
        shared = name == "by_word" or there[name].max() - there[name].min() <= same
        for row in there[: 1 if shared else None].to_dict("records"):
            model = f" ({row['model']})" if crowded and not shared else ""
            text = f"{name.replace('_', ' ')} {short(row[name])}{model}"
            about = {"text": text, "end": row[name], "at": row["edge"], "floor": True, "color": GREY}
            about |= {"thick": 0.6 if name == "by_word" else 1.2}
            labels.append(
                about if shared or crowded else about | {key: row[key] for key in ("color", "line", "subset")}
            )
    return labels


def placed(labels: pd.DataFrame, domain: Sequence[float], height: float) -> pd.DataFrame:
    """Return labels with the `y` at which they are drawn: as near to their `end` as possible, without overlap."""
    low, high = domain
    rows = labels.sort_values("end", kind="stable")
    places = spread_out((height * (rows["end"] - low) / (high - low)).tolist(), LABEL, height)
    return rows.assign(y=[low + place * (high - low) / height for place in places])


def spread_out(wanted: Sequence[float], gap: float, most: float) -> list[float]:
    """Return places with at least `gap` between them, from 0 to `most`, as near to the rising `wanted` as possible."""
    from scipy.optimize import isotonic_regression

    if not wanted:
        return []
    steps = gap * np.arange(len(wanted))
    near = isotonic_regression(np.asarray(wanted) - steps).x
    places: list[float] = (np.clip(near, 0, max(0, most - steps[-1])) + steps).tolist()
    return places


def leaders(
    labels: alt.Chart, x: alt.X, y: alt.Y, stroke: Any, dash: Sequence[int] = (1, 0)
) -> tuple[alt.Chart, alt.Chart]:
    """Return lines that lead to labels at the right edge, and the labels, from a chart whose y is the `end` of each."""
    import altair as alt

    leader = labels.mark_rule(x2Offset=9, strokeDash=[*dash]).encode(x, alt.X2(value="width"), alt.Y2("y:Q"), stroke)
    text = labels.mark_text(align="left", baseline="middle", dx=12, fontSize=LABEL - 1, limit=170)
    return leader, text.encode(alt.XValue("width"), y, text="text:N")


def short(score: float) -> str:
    """Return a score without the leading zero: .535."""
    return "-" if pd.isna(score) else re.sub(r"\b0\.", ".", f"{score:.3f}").replace("-", "−")


def around(values: pd.Series[float]) -> list[float]:
    """Return the ends of an axis beyond all values, a little farther if they are nearly the same."""
    space = 0.1 * max(0.05, values.max() - values.min())
    return [values.min() - space, values.max() + space]
