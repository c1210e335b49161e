"""Do better models drop more? Original scores, and what is lost without attention to the input (Figure 3)."""

from __future__ import annotations

from statistics import fmean
from textwrap import wrap
from typing import TYPE_CHECKING

import pandas as pd

from papa.config.job import Job
from papa.config.settings import Plots
from papa.config.stages import AnalysisOf
from papa.errors import count
from papa.method.pictures import inline, styled
from papa.results.analysis import Analysis, Computed, Drawing
from papa.results.grids import GRID_COLUMNS
from papa.results.losses import COUNTS
from papa.results.panels import COLORS, GREY, around, leaders, placed, tooltips, words_only
from papa.results.phrases import ABOUT_LOSS, constant_name, mean_text
from papa.results.summary import ABOUT_DROPS, ABOUT_MEANS, has_drop, is_main
from papa.results.table import Table, read_frame, score_text

if TYPE_CHECKING:
    import altair as alt

COLUMNS = {"model": "string", "constant": "string", "mean_original": "float64", "tasks": "int64"}
COLUMNS |= {"mean_relative_drop": "float64", "tasks_with_drop": "int64", "tasks_without_drop": "string"}
COLUMNS |= {"mean_loss": "float64", "tasks_with_loss": "int64"}

TITLE = "Original score and drop at fraction 0"
NOTE = (
    "Mean original score: over all tasks but those with a log-scale score (masked language modelling). Mean drop: at"
    f" fraction 0, where every head is replaced. {ABOUT_DROPS} {ABOUT_MEANS} Mean loss: there too, over the tasks that"
    f" have one. {ABOUT_LOSS}"
)
CAPTION = "A point for each model: its mean original score, and the mean relative drop with every head replaced."


class Drops(Analysis):
    """Compare the original scores of models with what they lose when every head is replaced.

    Args:
        plots: the size of a panel; this figure is twice as wide and high.
    """

    columns = COLUMNS
    title_text = TITLE
    note_text = NOTE

    plots: Plots

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Compute the means from a `grid` with fractions 1 and 0."""
        rows = drops_of(read_frame(job.input("grid"), GRID_COLUMNS, "table of a grid"))
        return Computed(rows, {"table": "score_and_drop"})

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Return a line for each model and constant."""
        return tables_of(rows)

    def drawing(self, rows: pd.DataFrame, job: Job[AnalysisOf]) -> Drawing:
        """Draw drops against scores."""
        several = rows["mean_relative_drop"].notna().sum() > 1
        return Drawing(*drop_figure(rows, self.plots), CAPTION if several else "")

    def comparable(self, rows: pd.DataFrame) -> bool:
        """Whether there are several models or constants."""
        return len(rows) > 1

    def sentence(self, rows: pd.DataFrame) -> str:
        """Return how many means there are."""
        return count(len(rows), "mean drop")


def drops_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean original score, mean relative drop and mean loss at fraction 0 of each model and constant of a grid.

    Tasks with a log-scale score are not in the first two, and tasks without a defined drop are named. The mean
    loss is over all tasks with the status `COUNTS`. A mean over no task is null.
    """
    # a grid has its ends once for each order
    rows = rows.drop_duplicates(["model", "task", "constant", "fraction", "metric", "subset"])
    counted = is_main(rows) & has_drop(rows["metric"])
    originals = rows[counted & rows["fraction"].eq("1")].set_index(["model", "task"])["mean"]
    means = []
    for (model, constant), every in rows[rows["fraction"] == "0"].groupby(["model", "constant"], sort=False):
        rows_with_drop = every[counted[every.index]]
        scores = originals.reindex([(model, task) for task in rows_with_drop["task"]]).dropna()
        drops = rows_with_drop["relative_drop"].dropna()
        losses = every.loc[is_main(every) & every["status"].eq(COUNTS), "loss"].dropna()
        without = rows_with_drop.loc[rows_with_drop["relative_drop"].isna(), "title"]
        means.append(
            {
                "model": model,
                "constant": constant,
                "mean_original": fmean(scores) if len(scores) else None,
                "tasks": len(scores),
                "mean_relative_drop": fmean(drops) if len(drops) else None,
                "tasks_with_drop": len(drops),
                "tasks_without_drop": ", ".join(without) or None,
                "mean_loss": fmean(losses) if len(losses) else None,
                "tasks_with_loss": len(losses),
            }
        )
    return pd.DataFrame(means, columns=list(COLUMNS))


def tables_of(drops: pd.DataFrame) -> list[Table]:
    """The rows of `drops_of` as people read them."""
    frame = pd.DataFrame(
        {
            "model": drops["model"],
            "constants": drops["constant"].map(constant_name),
            "mean original score": [score_text(mean, float("nan")) for mean in drops["mean_original"]],
            "tasks": drops["tasks"],
            "mean drop": drops["mean_relative_drop"].map(mean_text),
            "tasks with a drop": drops["tasks_with_drop"],
            "tasks without": drops["tasks_without_drop"].fillna(""),
            "mean loss": drops["mean_loss"].map(mean_text),
            "tasks with a loss": drops["tasks_with_loss"],
        }
    )
    return [Table("", frame, 2)]


def drop_figure(frame: pd.DataFrame, plots: Plots) -> tuple[alt.TopLevelMixin, str]:
    """The mean drop at fraction 0 against the mean original score (Figure 3), and its alternative text.

    With fewer than two drops there is nothing to compare, and the figure says so in words.
    """
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
        sentences = [
            f"One model, nothing to compare. {name}: mean relative drop {drop:.1%}, mean original score {score:.3f}."
            for name, drop, score in points[["text", "end", "at"]].itertuples(index=False)
        ]
        return words_only(TITLE, " ".join([*sentences, missing]).strip(), width), shown
    columns = {"text": "model", "tasks_with_drop": "tasks with a drop", "tasks_without_drop": "tasks without"}
    tooltip = tooltips(columns)
    tooltip.insert(1, alt.Tooltip("at:Q", title="mean original score", format=".3f"))
    tooltip.insert(2, alt.Tooltip("end:Q", title="mean relative drop", format=".1%"))
    across, up = around(points["at"]), around(pd.Series([0.0, *points["end"]]))
    scale, ticks = alt.Scale(domain=across, nice=False, zero=False), alt.Axis(tickCount=5, labelFlush=False)
    x = alt.X("at:Q", title="mean original score", scale=scale, axis=ticks)
    title, axis = "mean relative drop with every head replaced", alt.Axis(format=".1%", tickCount=6)
    y, at = (
        alt.Y(f"{name}:Q", title=title, axis=axis, scale=alt.Scale(domain=up, nice=False)) for name in ("end", "y")
    )
    labels = alt.Chart(inline(placed(points, up, height))).encode(y)
    dots = alt.Chart(inline(points)).mark_circle(size=70, color=COLORS[0], opacity=1)
    figure = alt.layer(
        *leaders(labels, x, at, alt.StrokeValue(GREY), dash=[1, 3]),
        dots.encode(x, y, tooltip=tooltip),
        title=alt.Title(wrap(TITLE, width // 8), subtitle=wrap(missing, width // 6), offset=14),
        width=width,
        height=height,
    )
    return styled(figure.properties(usermeta={"margin": 90 + 6 * min(30, names.map(len).max())})), shown
