"""The agreement between orders of heads whose weights were learned with different seeds, by Kendall's τ."""

from __future__ import annotations

from itertools import combinations

import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf
from papa.errors import count
from papa.files import read_table
from papa.results.analysis import Analysis, Computed
from papa.results.phrases import constant_name, order_name
from papa.results.table import Table

ORDER = ["model", "task", "title", "constant", "order"]
"""The columns that name an order without its seed; `title` is that of the task."""
COLUMNS = dict.fromkeys((*ORDER, "a", "b"), "string") | {"tau": "float64"}


class Stability(Analysis):
    """Compare orders of heads, seed by seed; `learned` has the columns of `ORDER` and the seed of each file."""

    columns = COLUMNS
    title_text = "Stability of orders"
    note_text = (
        "τ: Kendall's τ between two orders of all heads, 1 for the same order and 0 for unrelated orders. It is the "
        "mean over all pairs of seeds, with the smallest and the largest τ."
    )

    learned: tuple[dict[str, str], ...]

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Compare the orders of the weights in the input `lambdas`."""
        learned = pd.DataFrame(self.learned).assign(path=job.inputs["lambdas"])
        return Computed(stability_of(learned), {"table": "stability"})

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return [table_of(rows)]

    def sentence(self, rows: pd.DataFrame) -> str:
        pairs = count(len(rows), "pair")
        return f"{pairs} of seeds: Kendall's τ {rows['tau'].min():.2f} to {rows['tau'].max():.2f}"


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
