"""Our summary and the values that the paper prints (Tables 1, 2, 4 and 5, fractions 1 and 0 of RoBERTa BASE and LARGE).

The published values are in `papa/data/published.csv`, one line per table, model, setting and task. The paper's tables
are joined one by one: Tables 1 and 2 (4 and 5) both print RoBERTa BASE's (LARGE's) scores with averages over the task's
own texts, and for LARGE on MRPC they disagree, 0.81 and 0.80. Each value is a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf
from papa.data.local_digests import PUBLISHED
from papa.errors import InputError, count
from papa.results.analysis import Analysis, Computed
from papa.results.grids import ORIGINAL
from papa.results.outcomes import ALL
from papa.results.summary import read_summary
from papa.results.table import Table, metric_name, score_text, used

ROUNDING = 0.005
"""The paper prints two decimals, so the true value is this close."""

NOTE = (
    "Ours: mean over seeds ± half width of the 95 % Student-t interval, of validation scores. Difference: ours - "
    f"published. Inside: our interval contains a number that rounds to the published one (± {ROUNDING}); - if there is "
    "one seed and so no interval. Two tables that print the same setting can differ; each value has its own line."
)
TITLE = "Comparison with the published values"
NOTHING = "None of these models, tasks and settings is in the paper's tables."
SETTINGS: dict[str, tuple[str, ...]] = {
    "average": ("average", "per_task"),
    "average-trained": ("average_trained",),
    "identity": ("identity",),
    "toeplitz": ("toeplitz",),
    "toeplitz-trained": ("toeplitz_trained",),
    "zeros": ("zeros",),
}
"""Published settings of our constants, at fraction 0; Tables 2 and 5 call averages `per_task`, and others `mnli`."""

METRIC_NAMES = {"ner": "entity_f1", "pos": "chunk_f1"}
"""Our names of metrics that differ from the published ones; the published F1 of POS is seqeval's for bare tags."""

COLUMNS = dict.fromkeys(("table", "model", "published_model", "task", "title", "published_task"), "string")
COLUMNS |= dict.fromkeys(("setting", "constant", "metric"), "string")
COLUMNS |= dict.fromkeys(("published", "ours", "half_width", "difference"), "float64")
COLUMNS |= {"inside": "bool", "seeds": "int64", "rows_train": "int64", "rows_available_train": "int64"}


class Published(Analysis):
    """Compare a summary with the published values.

    Args:
        models: the hub id of each model.
        tasks: the published task of each task.
        more_settings: published settings of constants that were averaged over another corpus.
        values: the digest of the published values.
    """

    columns = COLUMNS
    title_text = TITLE

    models: dict[str, str | None]
    tasks: dict[str, str]
    more_settings: dict[str, str]
    values: str

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Join the `summary` with the published values; see `compared`."""
        rows = compared(read_summary(job.input("summary")), self.models, self.tasks, self.more_settings)
        return Computed(rows, {"table": "published", "rounding": ROUNDING})

    def note(self, rows: pd.DataFrame) -> str:
        """Return what the columns mean."""
        return NOTE if len(rows) else NOTHING

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Return a table for each table of the paper and each model."""
        return tables_of(rows)

    def sentence(self, rows: pd.DataFrame) -> str:
        """Return how many published values lie inside our intervals."""
        known = rows["inside"].dropna()
        return f"{count(len(rows), 'published value')} with ours; {known.sum()} of {len(known)} inside our interval"


def published_values() -> pd.DataFrame:
    """The published values: `table` (a text), `model`, `setting`, `task`, `metric` and `value`."""
    return pd.read_csv(PUBLISHED, dtype={"table": "str"})


def compared(
    ours: pd.DataFrame, models: Mapping[str, str | None], tasks: Mapping[str, str], more_settings: Mapping[str, str]
) -> pd.DataFrame:
    """Join a summary with the published values wherever both exist.

    `difference` is ours - published. `inside` says whether our 95 % interval contains a number that rounds to the
    published one; null if there is one seed and so no interval.

    Args:
        ours: The rows of a summary.
        models: The hub id of each of our models, or its last part, which is the published name. Models without
            published values are left out.
        tasks: The published task of each of our tasks: cola, mrpc, sst2, mnli_mismatched, ner or pos.
        more_settings: Published settings of our constants that `SETTINGS` does not have. Fraction 1 is always
            `original`.

    Raises:
        InputError: The summary has no such model or task, the paper has no such task or setting, or the published
            metric of a task was not measured.
    """
    published = published_values()
    settings = SETTINGS | {constant: (setting,) for constant, setting in more_settings.items()}
    _check("model", models, ours["model"], "The summary has")
    _check("task", tasks, ours["task"], "The summary has")
    _check("task", tasks.values(), published["task"], "The paper prints")
    _check("setting", more_settings.values(), published["setting"], "The paper prints")
    ours = ours.assign(
        published_model=ours["model"]
        .map({name: (hub or "").rsplit("/", 1)[-1] for name, hub in models.items()})
        .astype("str"),
        published_task=ours["task"].map(tasks).astype("str"),
        setting=ours["constant"].map(settings).where(ours["fraction"].eq("0")),
    )
    ours["setting"] = ours["setting"].where(ours["constant"].notna(), ORIGINAL)
    published = published.rename(columns={"model": "published_model", "task": "published_task", "value": "published"})
    published["metric"] = published["published_task"].map(METRIC_NAMES).fillna(published["metric"])
    keys = ["published_model", "published_task", "setting"]
    both = published.merge(ours.explode("setting"), on=keys, suffixes=("", "_measured"))
    for task, group in both.groupby("task", sort=False):
        measured = ours.loc[ours["task"] == task, "metric"].unique()
        if (metric := group["metric"].iloc[0]) not in measured:
            raise InputError(
                f"Task {task} cannot be compared with the published {group['published_task'].iloc[0]}, whose metric is "
                f"{metric}; the summary has {', '.join(measured)} of it."
            )
    both = both[both["metric"].eq(both["metric_measured"]) & both["subset"].eq(ALL)].dropna(subset="mean")
    near = both["published"].between(both["low"] - ROUNDING, both["high"] + ROUNDING).astype(object)
    return both.assign(
        ours=both["mean"],
        difference=both["mean"] - both["published"],
        inside=near.where(both["low"].notna(), None),
    ).reset_index(drop=True)[list(COLUMNS)]


def _check(what: str, given: Iterable[str], known: pd.Series[str], who: str) -> None:
    for name in given:
        if name not in (there := known.unique()):
            raise InputError(f"{who} no {what} {name!r}; there are {', '.join(there)}.")


def tables_of(rows: pd.DataFrame) -> list[Table]:
    """A table for each of the paper's tables and each of our models."""
    frame = pd.DataFrame(
        {
            "setting": rows["setting"].str.replace("_", " "),
            "task": rows["title"],
            "metric": rows["metric"].map(metric_name),
            "published": rows["published"].map("{:.2f}".format),
            "ours": [score_text(*pair) for pair in zip(rows["ours"], rows["half_width"], strict=True)],
            "difference": [f"{shift:+.3f}".replace("-0.000", "+0.000") for shift in rows["difference"]],
            "inside": rows["inside"].map({True: "yes", False: "no"}).fillna("-"),
            "training rows": [
                used(*pair) for pair in zip(rows["rows_train"], rows["rows_available_train"], strict=True)
            ],
        }
    )
    return [
        Table(f"Table {number}: {group['published_model'].iloc[0]}, ours: {model}", frame.loc[group.index], 3)
        for (number, model), group in rows.groupby(["table", "model"], sort=False)
    ]
