"""Comparison with the paper's values (Tables 1, 2, 4 and 5: fractions 1 and 0 of RoBERTa BASE and LARGE).

`papa/data/published.csv` has a row for each table, model, setting and task. Two tables print scores for averages over
the texts of the task: Tables 1 and 2 for BASE, Tables 4 and 5 for LARGE. On MRPC, Tables 4 and 5 disagree (0.81 and
0.80), so every printed value has a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from papa.config.variant import AVERAGE_OF
from papa.results.finished import Finished
from papa.results.grids import ORIGINAL
from papa.results.outcomes import ALL
from papa.results.section import Section
from papa.results.table import Table, metric_name, score_text, texts, used

PUBLISHED = Path(__file__).parents[1] / "data" / "published.csv"
"""The file with the numbers of the paper's tables."""
ROUNDING = 0.005
"""The largest rounding error of a published value; the paper prints two decimals."""

NOTE = (
    "Ours: mean validation score over seeds ± half-width of the 95% interval. Difference: ours - published. "
    f"Inside: whether our interval contains a number that rounds to the published value (± {ROUNDING}); - if there is "
    "only one seed, so no interval. A task has rows only if its metric is the published one. Two of the paper's "
    "tables can print different values for a setting, so each value has a row."
)
EMPTY_NOTE = "None of these models, tasks, metrics and settings is in the paper's tables."
SETTINGS = {
    "average": ("average", "per_task"),
    "average-trained": ("average_trained",),
    "identity": ("identity",),
    "toeplitz": ("toeplitz",),
    "toeplitz-trained": ("toeplitz_trained",),
    "zeros": ("zeros",),
}
"""Maps our constants at fraction 0 to published settings. Tables 2 and 5 call averages `per_task`."""

METRIC_NAMES = {"ner": "entity_f1", "pos": "chunk_f1"}
"""Maps published tasks to our metrics if their names differ; the published F1 of POS is seqeval's for bare tags."""

COLUMNS = dict.fromkeys(
    [
        "table",
        "model",
        "published_model",
        "task",
        "title",
        "published_task",
        "setting",
        "constant",
        "metric",
    ],
    "string",
)
COLUMNS |= dict.fromkeys(("published", "ours", "half_width", "difference"), "float64")
COLUMNS |= {"inside": "bool"}
COLUMNS |= dict.fromkeys(("seeds", "rows_train", "rows_available_train"), "int64")


def published(finished: Finished) -> Section | None:
    """Compare the study with the published values; None if the config names no published task."""
    config = finished.config
    tasks = {
        name: task for _, name in config.pairs if (task := config.tasks[name].published) is not None
    }
    if not tasks:
        return None
    mnli = {task.corpus for task in config.tasks.values() if task.published == "mnli_mismatched"}
    rows = compared(
        finished.summary,
        {name: config.models[name].hub for name, _ in config.pairs},
        tasks,
        {f"{AVERAGE_OF}{corpus}": "mnli" for corpus in sorted(mnli)},
    )
    return Section(
        "published",
        "Comparison with the published values",
        rows,
        COLUMNS,
        _tables(rows),
        NOTE if len(rows) else EMPTY_NOTE,
        {"rounding": ROUNDING},
        in_report=len(rows) > 0,
    )


def compared(
    ours: pd.DataFrame,
    models: Mapping[str, str | None],
    tasks: Mapping[str, str],
    more_settings: Mapping[str, str],
) -> pd.DataFrame:
    """Join the rows of a summary with the published values of the same model, task and setting.

    `difference` is ours - published. `inside` tells whether our 95% interval contains a number that rounds to the
    published value; it is null if there is only one seed, so no interval.

    Args:
        ours: the summary.
        models: the hub id of each model; its last part is the published name. Others are left out.
        tasks: the published name of each task: cola, mrpc, sst2, mnli_mismatched, ner or pos.
        more_settings: the published setting of each constant that was averaged over another corpus.
    """
    published = published_values()
    settings = SETTINGS | {constant: (setting,) for constant, setting in more_settings.items()}
    names = {name: (hub or "").rsplit("/", 1)[-1] for name, hub in models.items()}
    replaced = ours["constant"].map(settings).where(ours["fraction"].eq("0"))
    ours = ours.assign(
        published_model=ours["model"].map(names).astype("str"),
        published_task=ours["task"].map(tasks).astype("str"),
        setting=replaced.where(ours["constant"].notna(), ORIGINAL),
    )
    published = published.rename(
        columns={"model": "published_model", "task": "published_task", "value": "published"}
    )
    published["metric"] = published["published_task"].map(METRIC_NAMES).fillna(published["metric"])
    keys = ["published_model", "published_task", "setting"]
    both = published.merge(ours.explode("setting"), on=keys, suffixes=("", "_measured"))
    both = both[both["metric"].eq(both["metric_measured"]) & both["subset"].eq(ALL)].dropna(
        subset="mean"
    )
    # as objects, because a column of booleans has no null
    near = both["published"].between(both["low"] - ROUNDING, both["high"] + ROUNDING).astype(object)
    return both.assign(
        ours=both["mean"],
        difference=both["mean"] - both["published"],
        inside=near.where(both["low"].notna(), None),
    ).reset_index(drop=True)[list(COLUMNS)]


def _tables(rows: pd.DataFrame) -> list[Table]:
    """Return a table for each of the paper's tables and each of our models."""
    frame = pd.DataFrame(
        {
            "setting": rows["setting"].str.replace("_", " "),
            "task": rows["title"],
            "metric": rows["metric"].map(metric_name),
            "published": rows["published"].map("{:.2f}".format),
            "ours": texts(score_text, rows, "ours", "half_width"),
            # a difference that rounds to 0 has no sign to show
            "difference": [
                f"{shift:+.3f}".replace("-0.000", "+0.000") for shift in rows["difference"]
            ],
            "inside": rows["inside"].map({True: "yes", False: "no"}).fillna("-"),
            "training rows": texts(used, rows, "rows_train", "rows_available_train"),
        }
    )
    return [
        Table(
            f"Table {number}: {group['published_model'].iloc[0]}, ours: {model}",
            frame.loc[group.index],
            3,
        )
        for (number, model), group in rows.groupby(["table", "model"], sort=False)
    ]


def published_values() -> pd.DataFrame:
    """Read the published values: `table` (as text), `model`, `setting`, `task`, `metric` and `value`."""
    return pd.read_csv(PUBLISHED, dtype={"table": "str"})
