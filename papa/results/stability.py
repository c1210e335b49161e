"""The agreement between orders of heads whose weights were learned with different seeds, by Kendall's τ."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pandas as pd

from papa.files import read_table
from papa.plan.jobs import LearnLambda
from papa.results.phrases import constant_name, order_name
from papa.results.section import Section
from papa.results.table import Table

if TYPE_CHECKING:
    from papa.results.finished import Finished

ORDER = ["model", "task", "title", "constant", "order"]
"""The columns that name an order without its seed; `title` is that of the task."""
COLUMNS = dict.fromkeys((*ORDER, "a", "b"), "string") | {"tau": "float64"}


NOTE = (
    "τ: Kendall's τ between two orders of all heads, 1 for the same order and 0 for unrelated orders. It is the "
    "mean over all pairs of seeds, with the smallest and the largest τ."
)


def stability(finished: Finished) -> Section | None:
    """Compare orders of heads, seed by seed; None if there is one seed, or no weights of heads were learned."""
    jobs, tasks = finished.of_stage(LearnLambda.stage), finished.config.tasks
    if len(finished.config.ranking.seeds) < 2 or not jobs:
        return None
    learned = pd.DataFrame(
        [
            {**{name: job.about[name] for name in ("model", "task", "constant", "order", "seed")}, "path": job.output}
            for job in jobs
        ]
    )
    learned = learned.assign(seed=learned["seed"].map(str), title=learned["task"].map(lambda t: tasks[t].title or t))
    rows = stability_of(learned)
    return Section("stability", "Stability of orders", rows, COLUMNS, [table_of(rows)], NOTE)


def stability_of(learned: pd.DataFrame) -> pd.DataFrame:
    """Return a row with `COLUMNS` for each pair of seeds of an order; `learned` also has the `path` of each file."""
    from scipy.stats import kendalltau

    rows = []
    for order, group in learned.groupby(ORDER, sort=False):
        weights = {seed: _weights(path) for seed, path in zip(group["seed"], group["path"], strict=True)}
        for a, b in combinations(weights, 2):
            rows.append([*order, a, b, float(kendalltau(weights[a], weights[b]).statistic)])
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _weights(path: str) -> list[float]:
    rows = read_table(path).to_pandas()
    return list(rows[rows["epoch"] == rows["epoch"].max()].sort_values(["layer", "head"])["value"])


def table_of(rows: pd.DataFrame) -> Table:
    """Return a table with a row for each order, averaged over its pairs of seeds."""
    by_order = rows.groupby(ORDER, sort=False)
    means = by_order["tau"].agg(["mean", "min", "max"]).reset_index()
    seeds = by_order[["a", "b"]].agg(set)
    cells = {
        "task": means["title"],
        "model": means["model"],
        "constants": means["constant"].map(constant_name),
        "order": means["order"].map(order_name),
        "seeds": [", ".join(sorted(a | b, key=int)) for a, b in zip(seeds["a"], seeds["b"], strict=True)],
        "τ": means["mean"].map("{:.2f}".format),
        "smallest": means["min"].map("{:.2f}".format),
        "largest": means["max"].map("{:.2f}".format),
    }
    return Table("", pd.DataFrame(cells), 5)
