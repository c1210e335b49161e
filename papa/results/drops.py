"""Compare models' original scores with their drops when every head is replaced (paper, Figure 3)."""

from __future__ import annotations

from textwrap import wrap

import altair as alt
import pandas as pd

from papa.method.pictures import HEIGHT, WIDTH, inline, styled
from papa.results.figures import COLORS
from papa.results.finished import Finished
from papa.results.phrases import constant_name
from papa.results.section import Section
from papa.results.summary import DROP_NOTE, has_drop, is_main
from papa.results.table import Table, mean_text, score_text, texts
from papa.results.views import grid_views, rows_of

DROP = "mean_relative_drop"
COLUMNS = {
    "model": "string",
    "constant": "string",
    "mean_original": "float64",
    "tasks": "int64",
    DROP: "float64",
    "tasks_with_drop": "int64",
    "tasks_without_drop": "string",
}

TITLE = "Original score and drop with every head replaced"
NOTE = (
    "Mean original score: over all tasks except those with a log-scale score (masked language modelling). Mean drop: "
    f"with every head replaced, over the tasks that have one. {DROP_NOTE}"
)
CAPTION = "Each point is a model with its constants: mean original score and relative drop with every head replaced."


def drops(finished: Finished) -> Section | None:
    """Compare the original scores of models with their drops when every head is replaced."""
    if not {"0", "1"} <= set(finished.config.run.fractions):
        return None
    rows = drops_of(rows_of(grid_views(finished.config)[0], finished.summary))
    frame = pd.DataFrame(
        {
            "model": rows["model"],
            "constants": rows["constant"].map(constant_name),
            "mean original score": rows["mean_original"].map(score_text),
            "tasks": rows["tasks"],
            "mean drop": rows["mean_relative_drop"].map(mean_text),
            "tasks with a drop": rows["tasks_with_drop"],
            "tasks without": rows["tasks_without_drop"].fillna(""),
        }
    )
    chart, alternative = drop_figure(rows)
    return Section(
        "score_and_drop",
        TITLE,
        rows,
        COLUMNS,
        [Table("", frame, 2)],
        NOTE,
        chart=chart,
        alternative=alternative,
        caption=CAPTION,
        in_report=len(rows) > 1,
    )


def drops_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Average the original scores, and the drops with every head replaced, for each model and constant of a grid.

    Tasks with a log-scale score are excluded from the means of scores and drops; tasks without a defined drop are
    listed. A mean over no tasks is null.
    """
    # the rows at fractions 0 and 1 are repeated for each order
    rows = rows.drop_duplicates(["model", "task", "constant", "fraction", "metric", "subset"])
    rows = rows[is_main(rows)]
    with_drop = has_drop(rows["metric"])
    originals = rows[with_drop & rows["fraction"].eq("1")].set_index(["model", "task"])["mean"]
    ends = rows[rows["fraction"].eq("0")].join(originals.rename("original"), on=["model", "task"])
    ends["without"] = ends["title"].where(with_drop[ends.index] & ends["relative_drop"].isna())
    means = ends.groupby(["model", "constant"], sort=False).agg(
        mean_original=("original", "mean"),
        tasks=("original", "count"),
        mean_relative_drop=("relative_drop", "mean"),
        tasks_with_drop=("relative_drop", "count"),
        tasks_without_drop=("without", lambda titles: ", ".join(titles.dropna()) or None),
    )
    return means.reset_index()


def drop_figure(frame: pd.DataFrame) -> tuple[alt.Chart | None, str]:
    """Draw the mean drop, every head replaced, against the mean original score (Figure 3), with its alternative text.

    With fewer than two drops, there is nothing to compare, and no figure.
    """
    names = frame["model"]
    if frame["constant"].nunique() > 1:
        names = names + " / " + frame["constant"].map(constant_name)
    frame = frame.assign(
        text=names,
        score=frame["mean_original"].map("{:.3f}".format),
        drop=frame[DROP].map(mean_text),
    )
    points = frame.dropna(subset=DROP).sort_values(DROP, kind="stable")
    undefined = frame.loc[frame[DROP].isna(), "text"]
    missing = f"No drop is defined for {', '.join(undefined)}." if len(undefined) else ""
    alternative = f"{TITLE}: " + "; ".join(
        texts("{}: score {}, drop {}".format, points, "text", "score", "drop")
    )
    if len(points) < 2:
        return None, alternative
    across = _padded_range(points["mean_original"])
    # with 0 on the axis, small drops do not look large
    up = _padded_range(pd.Series([0.0, *points[DROP]]))
    scale = alt.Scale(domain=across, nice=False, zero=False)
    ticks = alt.Axis(tickCount=5, labelFlush=False)
    rising = alt.Scale(domain=up, nice=False)
    percents = alt.Axis(format=".1%", tickCount=6)
    dots = alt.Chart(inline(points)).mark_point(size=70, filled=True, opacity=1)
    figure = dots.encode(
        alt.X("mean_original:Q", title="mean original score", scale=scale, axis=ticks),
        alt.Y(
            f"{DROP}:Q",
            title="mean relative drop with every head replaced",
            scale=rising,
            axis=percents,
        ),
        alt.Color("text:N", title=None, sort=None, scale=alt.Scale(range=COLORS)),
        alt.Shape("text:N", title=None, sort=None),
    ).properties(
        title=alt.Title(TITLE, subtitle=wrap(missing, 2 * WIDTH // 6), offset=14),
        width=2 * WIDTH,
        height=2 * HEIGHT,
    )
    return styled(figure), alternative


def _padded_range(values: pd.Series[float]) -> list[float]:
    """Return the ends of an axis slightly beyond all values, even if these are nearly the same."""
    margin = 0.1 * max(0.05, values.max() - values.min())
    return [values.min() - margin, values.max() + margin]
