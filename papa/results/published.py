"""Comparison with the paper's values (Tables 1, 2, 4 and 5: fractions 1 and 0 of RoBERTa BASE and LARGE).

`papa/data/published.csv` has a row for each table, model, setting and task. Two tables print scores for averages over
the texts of the task: Tables 1 and 2 for BASE, Tables 4 and 5 for LARGE. On MRPC, Tables 4 and 5 disagree (0.81 and
0.80), so every printed value has a row.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf
from papa.data.local_digests import PUBLISHED
from papa.errors import InputError, count
from papa.results.analysis import Analysis, Computed
from papa.results.grids import ORIGINAL
from papa.results.outcomes import ALL
from papa.results.summary import read_summary
from papa.results.table import Table, metric_name, score_text, texts, used

ROUNDING = 0.005
"""The largest rounding error of a published value; the paper prints two decimals."""

NOTE = (
    "Ours: mean validation score over seeds ± half-width of the 95 % Student-t interval. Difference: ours - published. "
    f"Inside: whether our interval contains a number that rounds to the published value (± {ROUNDING}); - if there is "
    "only one seed, so no interval. Two of the paper's tables can print different values for a setting, so each value "
    "has a row."
)
EMPTY_NOTE = "None of these models, tasks and settings is in the paper's tables."
SETTINGS: dict[str, tuple[str, ...]] = {
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

COLUMNS = dict.fromkeys(("table", "model", "published_model", "task", "title", "published_task"), "string")
COLUMNS |= dict.fromkeys(("setting", "constant", "metric"), "string")
COLUMNS |= dict.fromkeys(("published", "ours", "half_width", "difference"), "float64")
COLUMNS |= {"inside": "bool", "seeds": "int64", "rows_train": "int64", "rows_available_train": "int64"}


class Published(Analysis):
    """Compare a summary with the published values.

    Args:
        models: the hub id of each model, or its last part, which is the published name; others are left out.
        tasks: the published name of each task: cola, mrpc, sst2, mnli_mismatched, ner or pos.
        more_settings: the published setting of each constant that was averaged over another corpus.
        values: the digest of the published values.
    """

    columns = COLUMNS
    title_text = "Comparison with the published values"

    models: dict[str, str | None]
    tasks: dict[str, str]
    more_settings: dict[str, str]
    values: str

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Join the rows of the `summary` with the published values of the same model, task and setting.

        `difference` is ours - published. `inside` tells whether our 95 % interval contains a number that rounds to the
        published value; it is null if there is only one seed, so no interval. Raise `InputError` if a model, task or
        setting is unknown, or if a task was not measured by the published metric.
        """
        ours = read_summary(job.input("summary"))
        published = published_values()
        settings = SETTINGS | {constant: (setting,) for constant, setting in self.more_settings.items()}
        _check("model", self.models, ours["model"], "The summary has")
        _check("task", self.tasks, ours["task"], "The summary has")
        _check("task", self.tasks.values(), published["task"], "The paper prints")
        _check("setting", self.more_settings.values(), published["setting"], "The paper prints")
        names = {name: (hub or "").rsplit("/", 1)[-1] for name, hub in self.models.items()}
        replaced = ours["constant"].map(settings).where(ours["fraction"].eq("0"))
        ours = ours.assign(
            published_model=ours["model"].map(names).astype("str"),
            published_task=ours["task"].map(self.tasks).astype("str"),
            setting=replaced.where(ours["constant"].notna(), ORIGINAL),
        )
        published = published.rename(
            columns={"model": "published_model", "task": "published_task", "value": "published"}
        )
        published["metric"] = published["published_task"].map(METRIC_NAMES).fillna(published["metric"])
        keys = ["published_model", "published_task", "setting"]
        both = published.merge(ours.explode("setting"), on=keys, suffixes=("", "_measured"))
        for task, group in both.groupby("task", sort=False):
            measured = ours.loc[ours["task"] == task, "metric"].unique()
            if (metric := group["metric"].iloc[0]) not in measured:
                raise InputError(
                    f"Task {task} cannot be compared with the published {group['published_task'].iloc[0]}, whose "
                    f"metric is {metric}; the summary scores it by {', '.join(measured)}."
                )
        both = both[both["metric"].eq(both["metric_measured"]) & both["subset"].eq(ALL)].dropna(subset="mean")
        near = both["published"].between(both["low"] - ROUNDING, both["high"] + ROUNDING).astype(object)
        rows = both.assign(
            ours=both["mean"], difference=both["mean"] - both["published"], inside=near.where(both["low"].notna(), None)
        ).reset_index(drop=True)[list(COLUMNS)]
        return Computed(rows, {"table": "published", "rounding": ROUNDING})

    def note(self, rows: pd.DataFrame) -> str:
        return NOTE if len(rows) else EMPTY_NOTE

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Return a table for each of the paper's tables and each of our models."""
        frame = pd.DataFrame(
            {
                "setting": rows["setting"].str.replace("_", " "),
                "task": rows["title"],
                "metric": rows["metric"].map(metric_name),
                "published": rows["published"].map("{:.2f}".format),
                "ours": texts(score_text, rows, "ours", "half_width"),
                "difference": [f"{shift:+.3f}".replace("-0.000", "+0.000") for shift in rows["difference"]],
                "inside": rows["inside"].map({True: "yes", False: "no"}).fillna("-"),
                "training rows": texts(used, rows, "rows_train", "rows_available_train"),
            }
        )
        return [
            Table(f"Table {number}: {group['published_model'].iloc[0]}, ours: {model}", frame.loc[group.index], 3)
            for (number, model), group in rows.groupby(["table", "model"], sort=False)
        ]

    def sentence(self, rows: pd.DataFrame) -> str:
        known = rows["inside"].dropna()
        return f"{count(len(rows), 'published value')} compared; {int(known.sum())} of {len(known)} inside our interval"


def published_values() -> pd.DataFrame:
    """Read the published values: `table` (as text), `model`, `setting`, `task`, `metric` and `value`."""
    return pd.read_csv(PUBLISHED, dtype={"table": "str"})


def _check(kind: str, names: Iterable[str], column: pd.Series[str], source_has: str) -> None:
    known = column.unique()
    for name in names:
        if name not in known:
            raise InputError(f"{source_has} no {kind} {name!r}; choose from {', '.join(known)}.")
