"""The scores of all runs of a study as one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from papa.config.measures import MEASURES, positive_class
from papa.config.settings import SPLITS
from papa.config.variant import Order
from papa.results.outcomes import RUN_KEYS, VARIANT_KEYS, TaskOutcomes
from papa.results.table import Row

SETTING_COLUMNS = dict.fromkeys(("model", "task", "title", *VARIANT_KEYS), "string")
SETTING_COLUMNS |= {"kept": "int64", "heads": "int64"}
METRIC_COLUMNS = {"metric": "string", "positive": "string", "main": "bool", "subset": "string"}
SPLIT_COUNTS = ("rows", "rows_available", "cut")
IDENTITY = ("model", "task", *RUN_KEYS)
"""The columns that identify a run."""
DATA_COLUMNS = dict.fromkeys(
    ("examples", *(f"{name}_{split}" for name in SPLIT_COUNTS for split in SPLITS)), "int64"
)
TRAINING_COLUMNS = {"learning_rate": "float64", "batch_size": "int64", "epochs": "int64"}
RECIPE_COLUMNS = TRAINING_COLUMNS | {"style": "string"}
"""The training of probes and the layout of texts."""
RUN_COLUMNS = SETTING_COLUMNS | {"seed": "int64"} | METRIC_COLUMNS | {"score": "float64"}
RUN_COLUMNS |= DATA_COLUMNS | RECIPE_COLUMNS


def collect_runs(
    runs: Sequence[Row],
    task_outcomes: Iterable[TaskOutcomes],
    titles: Mapping[str, str],
) -> pd.DataFrame:
    """Return the scores of all runs as a table with `RUN_COLUMNS`: a row for each run, metric and subset.

    The score on all validation examples has the subset "all", and `main` marks the task's main metric. Subsets and
    further splits are scored by the main metric only.
    """
    by_identity = {tuple(run[name] for name in IDENTITY): run for run in runs}
    rows = []
    for outcomes in task_outcomes:
        task = outcomes.task
        scored = []
        for subset, metric, mask in outcomes.scored():
            scores = MEASURES[metric].score(outcomes.counts(metric, mask).sum(1))
            about: Row = {
                "title": titles[task],
                "metric": metric,
                "subset": subset,
                "positive": positive_class(metric, outcomes.names),
                "main": metric == outcomes.metric,
                "examples": outcomes.items.loc[mask, "example"].nunique(),
            }
            scored.append((about, scores.tolist()))
        for index, identity in enumerate(outcomes.runs[RUN_KEYS].itertuples(index=False)):
            if identity[-1]:  # a sample of the training rows, which has no part in scores
                continue
            run = by_identity[(outcomes.model, task, *identity)]
            rows += [{**run, **about, "score": scores[index]} for about, scores in scored]
    return pd.DataFrame(rows, columns=list(RUN_COLUMNS))


def without_draws(runs: pd.DataFrame) -> pd.DataFrame:
    """Remove the draw from the names of orders."""
    orders = runs["order"].map(lambda order: Order.parse(order).base, na_action="ignore")
    return runs.assign(
        order=orders.astype("str").where(orders.notna())
    )  # the type also if no run has an order
