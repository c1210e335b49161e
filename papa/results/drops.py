"""Do better models drop more? Original scores beside what is lost without any attention to the input (Figure 3)."""

from __future__ import annotations

from statistics import fmean

import pandas as pd

from papa.config.stages import DropsOf
from papa.config.study import Job
from papa.errors import count
from papa.results.grids import GRID_COLUMNS
from papa.results.losses import COUNTS
from papa.results.phrases import ABOUT_LOSS, constant_name, mean_text
from papa.results.summary import ABOUT_DROPS, ABOUT_MEANS, has_drop, is_main
from papa.results.table import Table, read_frame, score_text, write_frame, write_pages

COLUMNS = {"model": "string", "constant": "string", "mean_original": "float64", "tasks": "int64"}
COLUMNS |= {"mean_relative_drop": "float64", "tasks_with_drop": "int64", "tasks_without_drop": "string"}
COLUMNS |= {"mean_loss": "float64", "tasks_with_loss": "int64"}

TITLE = "Original score and drop at fraction 0"
NOTE = (
    "Mean original score: over all tasks but those with a log-scale score (masked language modelling). Mean drop: at"
    f" fraction 0, where every head is replaced. {ABOUT_DROPS} {ABOUT_MEANS} Mean loss: there too, over the tasks that"
    f" have one. {ABOUT_LOSS}"
)


def score_and_drop(job: Job[DropsOf]) -> str:
    """Stage *drops*: write what `drops_of` makes of a `grid` with fractions 1 and 0, and draw it.

    Raises:
        DamagedArtefact: The file is no intact table of a grid.
    """
    from papa.results.figures import draw_drops

    drops = drops_of(read_frame(job.input("grid"), GRID_COLUMNS, "table of a grid"))
    write_frame(drops, COLUMNS, job.output("table"), {"table": "score_and_drop"}, job.trace())
    write_pages(TITLE, tables_of(drops), NOTE, job.output("markdown"), job.output("latex"))
    return f"{count(len(drops), 'mean drop')}; drawn: {draw_drops(drops, job.settings.plots, job.outputs)}"


def drops_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean original score, mean relative drop and mean loss at fraction 0 of each model and constant of a grid.

    Tasks with a log-scale score are not in the first two, and tasks without a defined drop are named. The mean
    loss is over all tasks with the status `COUNTS`. A mean over no task is null.
    """
    # a grid has its ends once for each order
    rows = rows.drop_duplicates(["model", "task", "constant", "fraction", "metric", "subset"])
    counted = is_main(rows) & has_drop(rows["metric"])
    originals = rows[counted & rows["fraction"].eq("1")].set_index(["model", "task"])["mean"]
    found = []
    for (model, constant), every in rows[rows["fraction"] == "0"].groupby(["model", "constant"], sort=False):
        own = every[counted[every.index]]
        scores = originals.reindex([(model, task) for task in own["task"]]).dropna()
        drops = own["relative_drop"].dropna()
        losses = every.loc[is_main(every) & every["status"].eq(COUNTS), "loss"].dropna()
        without = own.loc[own["relative_drop"].isna(), "title"]
        found.append(
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
    return pd.DataFrame(found, columns=list(COLUMNS))


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
