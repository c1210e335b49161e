"""The scores of all runs of a study as one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from papa.config.measures import MEASURES
from papa.config.variant import Order
from papa.files import PathLike
from papa.method.runs import IDENTITY_FIELDS, SPLITS, Run, check_comparable
from papa.results.outcomes import ALL, TaskOutcomes

SETTING_COLUMNS = dict.fromkeys(("model", "task", "title", "constant", "order", "fraction"), "string")
SETTING_COLUMNS |= {"kept": "int64", "heads": "int64"}
READING_COLUMNS = {"metric": "string", "main": "bool", "subset": "string"}
COUNTS = ("rows", "rows_available", "cut")
DATA_COLUMNS = dict.fromkeys(("examples", *(f"{name}_{split}" for name in COUNTS for split in SPLITS)), "int64")
TRAINING_COLUMNS = {"learning_rate": "float64", "batch_size": "int64", "epochs": "int64"}
RUN_COLUMNS = SETTING_COLUMNS | {"seed": "int64"} | READING_COLUMNS | {"score": "float64"}
RUN_COLUMNS |= DATA_COLUMNS | TRAINING_COLUMNS


def collect_runs(
    runs: Sequence[tuple[Run, PathLike]], measured: Iterable[TaskOutcomes], titles: Mapping[str, str]
) -> pd.DataFrame:
    """Return the scores of all runs as a table with `RUN_COLUMNS`: a row for each run, metric and subset.

    The score on all validation examples has the subset "all", and `main` marks the task's own metric. Only that metric
    scores subsets and further splits.

    Args:
        runs: each run, and the file that it is in.
        measured: the outcomes of these runs.
        titles: the titles of tasks by name.

    Raises:
        InputError: the runs cannot be averaged or compared; see `check_comparable`.
    """
    check_comparable(runs)
    by_identity = {tuple(getattr(run, name) for name in IDENTITY_FIELDS): run for run, _ in runs}
    rows: list[dict[str, object]] = []
    for task in measured:
        scores = {
            (metric, name): (MEASURES[metric].score(task.counts(metric, part).sum(1)), task.examples(part))
            for name, part in task.subsets().items()
            for metric in (task.readings if name == ALL else task.readings[:1])
            if part.any()
        }
        for place, setting in enumerate(task.runs[["constant", "order", "fraction", "seed"]].itertuples(index=False)):
            run = by_identity[(task.model, task.task, *setting)]
            row = run.model_dump(include=set(RUN_COLUMNS)) | {"title": titles.get(task.task, task.task)}
            row |= {f"{name}_{split}": getattr(getattr(run, name), split) for name in COUNTS for split in SPLITS}
            for (metric, name), (score, examples) in scores.items():
                reading = {"metric": metric, "main": metric == task.metric, "subset": name}
                rows.append(row | reading | {"score": float(score[place]), "examples": examples})
    return pd.DataFrame(rows, columns=list(RUN_COLUMNS))


def without_draws(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the draw removed from the names of their orders."""
    orders = runs["order"].map(lambda order: Order.parse(order).base, na_action="ignore")
    return runs.assign(order=orders.astype("str"))  # also if no run has an order
