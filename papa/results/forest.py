"""A forest plot: what is lost with every head replaced, and reliance, on each task and on its subsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from papa.config.margin import Margin
from papa.method.pictures import inline, styled
from papa.results.figures import COLORS, GREY
from papa.results.finished import Finished
from papa.results.outcomes import ALL
from papa.results.phrases import (
    amounts_text,
    effect_texts,
    effects_note,
    floor_name,
    reliance_text,
)
from papa.results.reliance import CONTRIBUTED, LOST, RELIANCE
from papa.results.section import Section
from papa.results.table import Row, Table, metric_name, used_columns
from papa.results.views import grid_views, rows_of

SCORES = ("original", "constants", "context_free")
AMOUNTS = (*LOST[:3], *CONTRIBUTED, *RELIANCE[:3])
COLUMNS = dict.fromkeys(("line", "task", "subset", "metric", "positive"), "string")
COLUMNS |= dict.fromkeys((*SCORES, *AMOUNTS), "float64")
MEAN = "mean reliance"
"""The task of the row with the mean reliance."""
TITLE = "What is lost with every head replaced"
CAPTION = (
    "Each dot is a reliance. 0%: a score like that of the original; 100%: a score like that of the context-free floor. "
    "Lines are 95% intervals; one that is cut at the edge ends in a triangle. Right: what is lost, with its 95% "
    "interval, of what attention contributes."
)
LINE_HEIGHT = 18
INTERVAL_HEIGHT = 18
FOREST_WIDTH = 460
"""The heights of a line of text and of an interval below it, and the width of the plot, in pixels."""
LABEL_WIDTH = 230
"""The width of the names of tasks in pixels; the amounts have the rest."""
AXIS = (-0.25, 1.5)
"""The reliances that the axis shows; intervals are cut at its edges."""


def reliance(finished: Finished) -> Section | None:
    """Show what is lost in `run` with every head replaced, and mark the margin of the study."""
    if "0" not in finished.config.run.fractions:
        return None
    [grid, *_] = grid_views(finished.config)
    claims = finished.claims
    main = finished.summary[finished.summary["main"]]
    keys = ["model", "task", "subset"]
    scores = main[main["fraction"].eq("1")].drop_duplicates(keys).set_index(keys)["mean"]
    end = rows_of(grid, main[main["fraction"].eq("0")]).rename(columns={"mean": "constants"})
    end = end.join(scores.rename("original"), on=keys)
    rows = effects_of(end, claims[claims["grid"].eq(grid.name)])
    return Section(
        "reliance",
        TITLE,
        rows,
        COLUMNS,
        [table_of(rows)],
        effects_note(finished.covered),
        chart=figure_of(rows, finished.config.margin[0]),
        alternative=f"{TITLE}. {_in_words(rows)}",
        caption=CAPTION,
    )


def table_of(rows: pd.DataFrame) -> Table:
    """Return the table of what is lost; columns of names that say nothing are left out."""
    text = rows[["line", "task", "subset"]].fillna("").astype("str")
    text["metric"] = [
        "" if pd.isna(row["metric"]) else metric_name(row["metric"], row["positive"])
        for row in rows.to_dict("records")
    ]
    hidden = [] if rows["line"].nunique() > 1 else ["line"]
    names = used_columns(text.drop(columns=hidden))
    scores = rows[[*SCORES]].map(lambda score: "" if pd.isna(score) else f"{score:.3f}")
    text = names.join(scores.rename(columns=floor_name)).join(effect_texts(rows))
    return Table("", text, names.shape[1])


def effects_of(rows: pd.DataFrame, claims: pd.DataFrame) -> pd.DataFrame:
    """Return a row, with `COLUMNS`, for the mean of each line of a grid, and for each of its tasks and subsets.

    Args:
        rows: the summary rows of the grid with main scores, with every head replaced, with their `line`, and with the
            score of the `original` next to that of the `constants`.
        claims: the claims about the grid.
    """
    joint = claims[claims["task"].isna() & claims["replaced"].eq(claims["heads"])]
    # the mean of a single task would repeat its row
    means = joint[joint["averaged"].gt(1)].assign(task=MEAN).drop_duplicates("line")
    part = rows["subset"].ne(ALL)
    place = pd.factorize(rows["title"])[0]
    known = rows.assign(
        subset=rows["subset"].where(part), task=rows["title"], part=part, place=place
    )
    known = known.sort_values(["place", "part"])
    records = []
    for line in dict.fromkeys(known["line"]):
        records += means[means["line"].eq(line)].to_dict("records")
        records += known[known["line"].eq(line)].to_dict("records")
    return pd.DataFrame(records, columns=list(COLUMNS))


def _in_words(rows: pd.DataFrame) -> str:
    sentences = []
    for row in rows.to_dict("records"):
        names = [row[name] for name in ("line", "task", "subset")]
        label = ", ".join(name for name in names if isinstance(name, str))
        sentences.append(f"{label}: {amounts_text(row)}, {reliance_text(row)}.")
    return " ".join(sentences)


def _laid_out(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the rows with their places in the figure, in pixels from its top, and the height of all.

    Rows of a task follow one another. A row has a line of text (`text`) and, below it, an interval (`bar`). If there
    are several lines, the task's name is above its rows (`heading`), which have the names of lines. Without a reliance,
    `instead` says what attention contributes.
    """
    labels = rows["task"] + rows["subset"].map(", {}".format, na_action="ignore").fillna("")
    several = rows["line"].nunique() > 1
    placed = []
    top = 0
    for label in dict.fromkeys(labels):
        heading = label if several else None
        top += LINE_HEIGHT if several else 0
        for row in rows[labels.eq(label)].to_dict("records"):
            name = row["line"] if several else label
            middle = top + LINE_HEIGHT / 2
            place = {"heading": heading, "label": name, "line": row["line"], "text": middle}
            place |= {"above": middle - LINE_HEIGHT, "bar": middle + INTERVAL_HEIGHT}
            amounts = {"amounts": amounts_text(row), "instead": ""}
            if pd.isna(row["reliance"]):
                amounts["instead"] = reliance_text(row).removeprefix("-")
            place |= {name: text.replace("-", "−") for name, text in amounts.items()}
            placed.append(place | {name: row[name] for name in RELIANCE[:3]})
            heading = None
            top += LINE_HEIGHT + INTERVAL_HEIGHT
    return pd.DataFrame(placed), top


def figure_of(rows: pd.DataFrame, margin: str) -> alt.TopLevelMixin:
    """Draw reliance of tasks and, below each, of its subsets, next to what is lost; a share is marked as the margin."""
    points, height = _laid_out(rows)
    value, low, high = (points.pop(name).astype("float64") for name in RELIANCE[:3])
    points["from"] = low.clip(*AXIS)
    points["to"] = high.clip(*AXIS)
    points["dot"] = value.where(value.between(*AXIS))
    points["left"] = points["from"].where(low < points["from"])
    points["right"] = points["to"].where(high > points["to"])
    lines = list(dict.fromkeys(points["line"]))
    color = alt.Color("line:N", scale=alt.Scale(domain=lines, range=COLORS), legend=None)
    scale = alt.Scale(domain=AXIS, nice=False)
    percents = alt.Axis(labelExpr="format(100 * datum.value, '.0f') + '%'", tickCount=7, grid=False)
    title = "reliance: share of attention's contribution that is lost"
    x = {
        name: alt.X(f"{name}:Q", title=title, scale=scale, axis=percents)
        for name in ("from", "dot", "left", "right")
    }
    down = alt.Scale(domain=[0, height], reverse=True, nice=False)
    at = {
        name: alt.Chart(inline(points)).encode(alt.Y(f"{name}:Q", scale=down, axis=None))
        for name in ("text", "bar", "above")
    }
    intervals = _known(at["bar"], "from").mark_rule(strokeWidth=1.6)
    dots = _known(at["bar"], "dot").mark_circle(size=60, opacity=1)
    marks = [intervals.encode(x["from"], alt.X2("to:Q"), color), dots.encode(x["dot"], color)]
    for name, angle in (("left", 270), ("right", 90)):
        triangle = _known(at["bar"], name).mark_point(
            shape="triangle", angle=angle, size=60, filled=True, opacity=1
        )
        marks.append(triangle.encode(x[name], color))
    allowed = Margin.parse(margin)
    rules = _rule(1.0, "context-free floor", "left", scale)
    rules += [] if allowed.in_points else _rule(allowed.size, f"margin {margin}", "right", scale)
    halos = _words(at, stroke="white", strokeWidth=5)  # they hide rules behind words
    layers = alt.layer(*rules, *halos, *marks, *_words(at))
    heading = alt.Title(
        TITLE, subtitle="Right: lost (95% interval), of what attention contributes", offset=10
    )
    return styled(layers.properties(title=heading, width=FOREST_WIDTH, height=height))


def _known(chart: alt.Chart, name: str) -> alt.Chart:
    """Leave out rows without a value."""
    return chart.transform_filter(f"isValid(datum['{name}'])")


def _words(at: Mapping[str, alt.Chart], **halo: Any) -> list[alt.Chart]:
    """Return the names of rows and headings, and their amounts, from charts by the heights at which these are."""
    label: Row = {"align": "left", "x": 0, "fontSize": 12, **halo}
    labels = at["text"].mark_text(limit=LABEL_WIDTH, **label)
    headings = _known(at["above"], "heading").mark_text(
        limit=FOREST_WIDTH, fontWeight="bold", **label
    )
    amounts = at["text"].mark_text(align="right", x=FOREST_WIDTH, fontSize=12, **halo)
    instead = at["bar"].mark_text(align="left", fontSize=11, **halo)
    return [
        labels.encode(text="label:N"),
        headings.encode(text="heading:N"),
        amounts.encode(text="amounts:N"),
        instead.encode(alt.XDatum(0), text="instead:N"),
    ]


def _rule(place: float, name: str, align: Any, scale: alt.Scale) -> list[alt.Chart]:
    """Return a vertical rule and its name, which is on its left or right."""
    rule = alt.Chart(inline(pd.DataFrame([{"at": place, "text": name}])))
    rule = rule.encode(alt.X("at:Q", scale=scale))
    label = rule.mark_text(align=align, baseline="bottom", dy=-2, fontSize=11)
    line = rule.mark_rule(strokeDash=[4, 3], color=GREY)
    return [line, label.encode(alt.YValue(0), text="text:N")]
