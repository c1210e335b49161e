"""A forest plot: the reliance with every head replaced, on average, on each task and on its subsets."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import pandas as pd

from papa.method.pictures import inline, styled
from papa.results.figures import COLORS, GREY
from papa.results.outcomes import ALL
from papa.results.phrases import (
    COVERED,
    FORMULA,
    INCONCLUSIVE,
    floor_name,
    interval_text,
    reliance_text,
)
from papa.results.reliance import COUNTS, narrow
from papa.results.section import Section
from papa.results.table import Table, metric_name, percent, texts
from papa.results.views import grid_views, rows_of

if TYPE_CHECKING:
    import altair as alt

    from papa.results.finished import Finished

RELIANCE = ("reliance", "low", "high")
SCORES = ("original", "constants", "context_free")
COLUMNS = dict.fromkeys(("line", "task", "subset", "metric", "excluded"), "string")
COLUMNS |= dict.fromkeys((*SCORES, *RELIANCE), "float64")
MEAN = "mean of the tasks that count"
"""The task of the row with the mean reliance."""
TITLE = "Reliance with every head replaced"
CAPTION = (
    "Each dot is a reliance. 0%: a score like that of the original; 100%: a score like that of the context-free floor. "
    "Lines are 95% intervals."
)
NOTE = (
    f"{FORMULA} In brackets: 95% intervals over {COVERED}. Inconclusive: the task is excluded, or the "
    "interval is wider than 50 percentage points."
)
ROW_HEIGHT, FOREST_WIDTH = 36, 440
"""The height of a row and the width of the plot in pixels; the HTML report scales them to the width of a page."""


def reliance(finished: Finished) -> Section | None:
    """Show reliance of `run` with every head replaced, and mark the margin of the study."""
    if "0" not in finished.config.run.fractions or not finished.config.floors:
        return None
    [grid, *_], summary, claims = grid_views(finished.config), finished.summary, finished.claims
    main = summary[summary["main"]]
    keys, scores = (
        ["model", "task", "subset"],
        main[main["fraction"].eq("1")].rename(columns={"mean": "original"}),
    )
    end = rows_of(grid, main[main["fraction"].eq("0")]).rename(columns={"mean": "constants"})
    end = end.merge(scores[[*keys, "original"]].drop_duplicates(keys), how="left", on=keys)
    rows = reliances_of(end, claims[claims["grid"].eq(grid.name)])
    known = bool(rows["reliance"].notna().any())
    return Section(
        "reliance",
        TITLE,
        rows,
        COLUMNS,
        [_table(rows)],
        NOTE,
        chart=figure_of(rows, finished.config.margin) if known else None,
        alternative=f"{TITLE}. {_in_words(rows)}",
        caption=CAPTION,
        in_report=known,
    )


def _table(rows: pd.DataFrame) -> Table:
    text = rows[["line", "task", "subset", "metric"]].fillna("").astype("str")
    text = text.join(
        rows[[*SCORES]]
        .map(lambda score: "" if pd.isna(score) else f"{score:.3f}")
        .rename(columns=floor_name)
    )
    text["reliance"] = _reliance_texts(rows)
    text["excluded because"] = rows["excluded"].fillna("")
    empty = [name for name in ("subset", "excluded because") if text[name].eq("").all()]
    several = rows["line"].nunique() > 1
    text = text.drop(columns=[*empty, *([] if several else ["line"])])
    return Table("", text, list(text).index("original"))


def _reliance_texts(rows: pd.DataFrame) -> pd.Series[str]:
    shown = texts(reliance_text, rows, *RELIANCE)
    return pd.Series(shown, rows.index, "str").mask(rows["excluded"].notna(), INCONCLUSIVE)


def reliances_of(rows: pd.DataFrame, claims: pd.DataFrame) -> pd.DataFrame:
    """Return a row, with `COLUMNS`, for the mean of each line of a grid, and for each of its tasks and subsets.

    Args:
        rows: the summary rows of the grid with main scores, with every head replaced, with their `line`, and with the
            score of the `original` next to that of the `constants`.
        claims: the claims about the grid.
    """
    joint = claims[
        claims["task"].isna() & claims["replaced"].eq(claims["heads"]) & claims["reliance"].notna()
    ]
    records = list[dict[Hashable, object]]()
    for line, mean in joint.assign(task=MEAN).groupby("line", sort=False):
        whole, counts = rows["subset"].eq(ALL), rows["status"].eq(COUNTS)
        counting = rows.loc[rows["line"].eq(line) & whole & counts, "task"].tolist()
        if len(counting) > 1:
            records += mean[["line", "task", *RELIANCE]].to_dict("records")
        shown = rows["line"].eq(line) & (
            whole | (rows["task"].isin(counting) & (rows["reliance"].notna() | ~counts))
        )
        metrics = texts(metric_name, rows, "metric", "positive")
        excluded = rows["status"].mask(counts)
        known = rows.assign(subset=rows["subset"].mask(whole), excluded=excluded, metric=metrics)[
            shown
        ]
        place = known["task"].map([*counting, *known["task"]].index)
        known = known.assign(place=place, on_subset=~whole).sort_values(
            ["place", "on_subset"], kind="stable"
        )
        columns = ["line", "title", "subset", "metric", "excluded", *SCORES]
        columns += ["reliance", "reliance_low", "reliance_high"]
        records += known[columns].set_axis(list(COLUMNS), axis=1).to_dict("records")
    return pd.DataFrame(records, columns=list(COLUMNS))


def _in_words(rows: pd.DataFrame) -> str:
    names = (
        rows[["line", "task", "subset"]] if rows["line"].nunique() > 1 else rows[["task", "subset"]]
    )
    labels = [
        ", ".join(name for name in row if isinstance(name, str))
        for row in names.itertuples(index=False)
    ]
    reliances = _reliance_texts(rows) + rows["excluded"].map(
        ", {}".format, na_action="ignore"
    ).fillna("")
    return " ".join(
        f"{label}: {reliance}." for label, reliance in zip(labels, reliances, strict=True)
    )


def _shown(original: float, constants: float, floor: float) -> str:
    known = not any(map(pd.isna, (original, constants, floor)))
    return f"{original:.3f} → {constants:.3f} ({floor:.3f})".replace("-", "−") if known else ""


def figure_of(rows: pd.DataFrame, margin: float) -> alt.TopLevelMixin:
    """Draw reliance of tasks and, below each, of its subsets, with rules at the margin and at the floor."""
    import altair as alt

    label = rows["task"] + rows["subset"].map(", {}".format, na_action="ignore").fillna("")
    wide = pd.Series(texts(interval_text, rows, "low", "high"), rows.index, "str").map(
        "95% interval {}".format
    )
    why = rows["excluded"].astype("object").where(narrow(rows) | rows["reliance"].isna(), wide)
    points = (
        rows[["line"]]
        .join(rows[[*RELIANCE]].astype("float64").where(narrow(rows)))
        .assign(label=label)
    )
    points["excluded"] = why.map("inconclusive: {}".format, na_action="ignore")
    points["scores"] = texts(_shown, rows, *SCORES)
    lines, places = (list(dict.fromkeys(points[name])) for name in ("line", "label"))
    # a row is a line of text and, below it, an interval; rows of a task follow one another, and the first has its name
    points["row"] = points["label"].map(places.index) * len(lines) + points["line"].map(lines.index)
    points = points.sort_values("row", kind="stable")
    points["label"] = points["label"].mask(points["label"].duplicated(), "")
    points["scores"] = (points["line"] + "  " if len(lines) > 1 else "") + points["scores"]
    text, bar = points["row"] + 0.35, points["row"] + 0.78
    legend = alt.Legend(title=None, symbolType="circle") if len(lines) > 1 else None
    palette = alt.Scale(
        domain=lines, range=[COLORS[number % len(COLORS)] for number in range(len(lines))]
    )
    color = alt.Color("line:N", scale=palette, legend=legend)
    down = alt.Scale(domain=[0, len(lines) * len(places)], reverse=True, nice=False)
    low = min(-0.1, points["low"].min())
    scale = alt.Scale(domain=[low, max(1.1, points["high"].max())], nice=False)
    percents = alt.Axis(labelExpr="format(100 * datum.value, '.0f') + '%'", tickCount=7, grid=False)
    x = alt.X(
        "reliance:Q",
        title="reliance: share of attention's contribution",
        scale=scale,
        axis=percents,
    )
    chart = alt.Chart(inline(points.assign(text=text, bar=bar)))
    above, base = (
        chart.encode(alt.Y(f"{name}:Q", scale=down, axis=None)) for name in ("text", "bar")
    )
    counted = base.transform_filter("isValid(datum.reliance)").encode(color)
    intervals = counted.mark_rule(strokeWidth=1.6).encode(
        alt.X("low:Q", scale=scale), alt.X2("high:Q")
    )
    dots = counted.mark_circle(size=60, opacity=1).encode(x)
    excluded = base.transform_filter("isValid(datum.excluded)").encode(
        alt.XDatum(0), text="excluded:N"
    )

    def texts_of(**halo: Any) -> list[alt.Chart]:
        labels = above.mark_text(
            align="left", x=0, fontSize=12, limit=FOREST_WIDTH - 150, **halo
        ).encode(text="label:N")
        scores = above.mark_text(align="right", x=FOREST_WIDTH, fontSize=12, **halo).encode(
            text="scores:N"
        )
        return [labels, scores, excluded.mark_text(align="left", fontSize=11, **halo)]

    marks = pd.DataFrame(
        {"at": [margin, 1.0], "text": [f"margin {percent(margin, None)}", "context-free floor"]}
    )
    rules = alt.Chart(inline(marks)).encode(alt.X("at:Q", scale=scale))
    ruled = rules.mark_rule(strokeDash=[4, 3], color=GREY)
    named = rules.mark_text(baseline="bottom", dy=-2, fontSize=11).encode(
        alt.YValue(0), text="text:N"
    )
    halos = texts_of(stroke="white", strokeWidth=5)  # they hide rules behind words
    layers = alt.layer(ruled, named, *halos, intervals, dots, *texts_of())
    title = alt.Title(
        TITLE,
        subtitle="Right: score of the original → with constants (context-free floor)",
        offset=10,
    )
    height = ROW_HEIGHT * len(lines) * len(places)
    layers = styled(layers.properties(title=title, width=FOREST_WIDTH, height=height))
    figure: alt.LayerChart = layers.configure_legend(orient="bottom")
    return figure
