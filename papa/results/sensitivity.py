"""Sensitivity to the floor: every loss with all heads replaced, against each context-free floor that was run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf, TaskOf
from papa.errors import count
from papa.files import read_table
from papa.results.analysis import Analysis, Computed
from papa.results.losses import COUNTS, interval_of, lost_score, status_of
from papa.results.outcomes import ALL, Setting, TaskOutcomes, outcomes_in
from papa.results.phrases import constant_name, loss_text
from papa.results.table import Table, score_text, texts

LOSS = ("loss", "low", "high", "bound")
COLUMNS = dict.fromkeys(("model", "task", "title", "metric", "constant", "floor"), "string")
COLUMNS |= {"used": "bool", "score": "float64", "status": "string"} | dict.fromkeys(LOSS, "float64")
NOTE = (
    "Loss with every head replaced, against each context-free floor: a model in which no token sees another. Floor: "
    "the best one on inner folds of the training rows, which all other tables use. If a model's "
    "own head scores lower with a floor than a blind guess on the validation examples, score and loss are those "
    "against the guess. In brackets: 95 % intervals. No loss (-): the original does not beat this floor or the best "
    "guess that ignores the input."
)


class Sensitivity(Analysis):
    """Measure losses against each context-free floor.

    Args:
        tasks: title and metric of each task.
    """

    columns = COLUMNS
    title_text = "Sensitivity to the context-free floor"
    note_text = NOTE

    tasks: dict[str, TaskOf]

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Compute the losses from `all_outcomes`."""
        metrics = {name: task.metric for name, task in self.tasks.items()}
        outcomes = outcomes_in(read_table(job.input("all_outcomes")), metrics)
        rows = sensitivity_of(outcomes, {name: task.title for name, task in self.tasks.items()})
        return Computed(rows, {"table": "floor_sensitivity"})

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return tables_of(rows)

    def sentence(self, rows: pd.DataFrame) -> str:
        return sentence_of(rows)


def sensitivity_of(task_outcomes: Iterable[TaskOutcomes], titles: dict[str, str]) -> pd.DataFrame:
    """Return a row for each model, task, constant and floor, with `COLUMNS`; the floor in use comes first.

    Args:
        task_outcomes: all outcomes.
        titles: the title of each task.
    """
    rows = [row for outcomes in task_outcomes for row in _rows(outcomes, titles[outcomes.task])]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(outcomes: TaskOutcomes, title: str) -> Iterator[dict[str, object]]:
    sample = outcomes.sample(outcomes.metric, outcomes.subsets()[ALL])
    common = {"model": outcomes.model, "task": outcomes.task, "title": title, "metric": outcomes.metric}
    at_end = [setting for setting in sample.settings if setting == Setting(setting.constant, fraction="0")]
    settings = [setting for setting in at_end if setting.constant not in outcomes.floors]
    for setting in settings:
        for floor in outcomes.floors:
            against = sample.against(floor)
            row: dict[str, object] = common | {
                "constant": setting[0],
                "floor": floor,
                "used": floor == sample.floors[0],
            }
            row |= {"score": against.floor, "status": status_of(against, outcomes, outcomes.metric)}
            if row["status"] == COUNTS:
                row |= dict(zip(LOSS, interval_of(against, lost_score({setting: 1.0})), strict=False))
            yield row


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """Return a table for each model, with a row for each task and constant, and a column for each floor."""
    tables, keys = [], ["task", "title", "constant"]
    for model, rows in frame.groupby("model", sort=False):
        scores = [score_text(score, float("nan")) for score in rows["score"]]
        cells = rows.assign(score_text=scores, loss_text=texts(loss_text, rows, *LOSS[:3]))
        index = pd.MultiIndex.from_frame(rows[keys].drop_duplicates())
        used = rows[rows["used"]].set_index(keys)["floor"].reindex(index)
        text = pd.DataFrame(
            {
                "task": index.get_level_values("title"),
                "constants": index.get_level_values("constant").map(constant_name),
                "floor": used.to_numpy(),
            }
        )
        for floor in sorted(rows["floor"].unique()):
            of_floor = cells[cells["floor"].eq(floor)].set_index(keys).reindex(index)
            text[f"score of {floor}"] = of_floor["score_text"].fillna("").to_numpy()
            text[f"loss against {floor}"] = of_floor["loss_text"].fillna("").to_numpy()
        tables.append(Table(str(model), text, 3))
    return tables


def sentence_of(frame: pd.DataFrame) -> str:
    """Return the loss whose value depends most on the floor."""
    losses = frame.dropna(subset="loss").groupby(["model", "title", "constant"], sort=False)["loss"].agg(["min", "max"])
    if losses.empty:
        return "no loss is known against any context-free floor"
    widest = losses.reset_index().loc[(losses["max"] - losses["min"]).to_numpy().argmax()]
    low, high = widest["min"], widest["max"]
    where = f"{widest['title']} ({widest['model']}, {constant_name(str(widest['constant']))})"
    return (
        f"{count(len(losses), 'loss', 'losses')} against {count(frame['floor'].nunique(), 'floor')}; the largest range "
        f"is {100 * low:.0f} to {100 * high:.0f} %, on {where}"
    )
