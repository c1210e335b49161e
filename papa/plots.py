"""Figures from the summary: one Altair specification each, written as SVG, PNG and a page that works from disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from papa.artefacts import PathLike, replacing
from papa.errors import InputError
from papa.summary import ALL, Row, fractions_of, metric_name, read_rows, series, unique

if TYPE_CHECKING:
    import altair as alt

STYLE = {"width": 220, "height": 160, "scale": 2}
"""Width and height of one panel in pixels, and pixels of the PNG per pixel."""

COLUMNS = 3
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, told apart by colour-blind readers; yellow, which vanishes in print, is left out."""
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])


def plot_score_by_fraction(
    summary: PathLike, svg: PathLike, png: PathLike, html: PathLike, style: Mapping[str, Any]
) -> str:
    """Score against the fraction of input-dependent heads, a panel per task, a line per model (the paper's Figure 2).

    Bands are the 95 % intervals of the summary; where there is one seed there is none. Subsets of a task are dashed
    lines in its panel. `style` may have `width` and `height` of a panel and the `scale` of the PNG.
    """
    style = full_style(style)
    rows = [row for row in read_rows(summary) if row["main"] and row["mean"] is not None]
    if not rows:
        raise InputError(f"{summary} has no score to plot; rebuild it from runs that have one.")
    save_figure(_figure(_points(rows), fractions_of(rows), style), svg, png, html, style["scale"])
    tasks, lines = unique(row["task"] for row in rows), unique(row["model"] for row in rows)
    return f"score by fraction: {len(tasks)} tasks, {len(lines)} models, as SVG, PNG and HTML"


def save_figure(figure: alt.TopLevelMixin, svg: PathLike, png: PathLike, html: PathLike, scale: float) -> None:
    """Write one figure as SVG, as PNG with `scale` pixels per pixel, and as a page that needs no network."""
    with replacing(svg) as temporary:
        figure.save(str(temporary), format="svg")
    with replacing(png) as temporary:
        figure.save(str(temporary), format="png", scale_factor=scale)
    with replacing(html) as temporary:
        figure.save(str(temporary), format="html", inline=True)


def full_style(style: Mapping[str, Any]) -> dict[str, float]:
    """`STYLE` with what `style` says otherwise; raises `InputError` for an unknown name and for a size not above 0."""
    for name, value in style.items():
        if name not in STYLE:
            raise InputError(f"The plots' style has no {name!r}; it has {', '.join(STYLE)}.")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise InputError(f"The plots' {name} is {value!r}; give a number above 0.")
    return STYLE | dict(style)


def _points(rows: Sequence[Row]) -> list[Row]:
    """The rows to draw, each with the name of its line; a point that bounds several series is in each of them."""
    drawn = []
    several = len(series(rows)) > 1
    for words, own in series(rows):
        for row in own:
            line = f"{row['model']}, {words}" if several else row["model"]
            names = ("task", "title", "metric", "subset", "fraction", "mean", "low", "high", "seeds")
            known = row["half_width"] is not None
            interval = f"{row['low']:.3f} to {row['high']:.3f}" if known else "none: one seed"
            said = {"line": line, "kept": f"{row['kept']} of {row['heads']}", "interval": interval}
            drawn.append({name: row[name] for name in names} | said)
    return drawn


def _figure(points: Sequence[Row], fractions: list[str], style: Mapping[str, float]) -> alt.ConcatChart:
    """A panel per task; in the page, a click on a legend entry fades all other models or subsets."""
    import altair as alt

    lines = unique(point["line"] for point in points)
    subsets = sorted(unique(point["subset"] for point in points), key=lambda subset: subset != ALL)
    clicked = [alt.selection_point(name="models", fields=["line"], bind="legend")]
    stroke = None
    if len(subsets) > 1:
        clicked.append(alt.selection_point(name="subsets", fields=["subset"], bind="legend"))
        stroke = alt.Legend(title="examples", symbolType="stroke", symbolSize=400)
    chosen = reduce(and_, clicked)
    color = alt.Color(
        "line:N",
        scale=alt.Scale(domain=lines, range=_cycle(COLORS, lines)),
        legend=alt.Legend(title="model", symbolOpacity=1, symbolType="stroke", symbolSize=400),
    )
    dash = alt.StrokeDash("subset:N", scale=alt.Scale(domain=subsets, range=_cycle(DASHES, subsets)), legend=stroke)
    x = alt.X("fraction:O", title="fraction of heads input-dependent", scale=alt.Scale(domain=fractions))
    tooltip = [
        alt.Tooltip("line:N", title="model"),
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
        .configure_axis(labelFontSize=11, titleFontSize=11, titleFontWeight="normal", gridColor="#e6e6e6")
        .configure_axisX(labelAngle=0)
        .configure_axisY(minExtent=36, tickCount=5)
        .configure_title(fontSize=13, anchor="start", frame="group")
        .configure_legend(orient="bottom", columns=across, labelFontSize=12, labelLimit=400)
        .configure_view(stroke=None)
    )


def _cycle(values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    return [values[number % len(values)] for number in range(len(names))]
