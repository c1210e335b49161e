"""The agreement between orders of heads whose weights were learned with different seeds, by Kendall's τ."""

from __future__ import annotations

from itertools import combinations

import pandas as pd

from papa.results.finished import Finished
from papa.results.heads_map import heads_of
from papa.results.phrases import constant_name, order_name
from papa.results.section import Section
from papa.results.table import Table

ORDER = ["model", "task", "title", "constant", "order"]
"""The columns that name an order without its seed; `title` is that of the task."""
COLUMNS = dict.fromkeys((*ORDER, "a", "b"), "string") | {"tau": "float64"}


NOTE = (
    "τ: Kendall's τ between two orders of all heads, 1 for the same order and 0 for unrelated orders. It is the "
    "mean over all pairs of seeds, with the smallest and the largest τ."
)


def stability(finished: Finished) -> Section | None:
    """Compare orders of heads, seed by seed; None if there is one seed, or no weights of heads were learned."""
    heads = heads_of(finished.jobs)
    if len(finished.config.ranking.seeds) < 2 or heads.empty:
        return None
    rows = stability_of(heads.assign(title=heads["task"].map(finished.config.titles)))
    return Section("stability", "Stability of orders", rows, COLUMNS, [table_of(rows)], NOTE)


def stability_of(heads: pd.DataFrame) -> pd.DataFrame:
    """Return a row with `COLUMNS` for each pair of seeds of an order, from the weights of heads (`HEAD_COLUMNS`)."""
    rows = []
    for order, group in heads.groupby(ORDER, sort=False):
        weights = group.pivot(index=["layer", "head"], columns="seed", values="value")
        taus = weights.corr("kendall")
        rows += [
            [*order, str(a), str(b), taus.loc[a, b]]
            for a, b in combinations(weights.columns.tolist(), 2)
        ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def table_of(rows: pd.DataFrame) -> Table:
    """Return a table with a row for each order, averaged over its pairs of seeds."""
    by_order = rows.groupby(ORDER, sort=False)
    means = by_order["tau"].agg(["mean", "min", "max"]).map("{:.2f}".format).reset_index()
    seeds = [{*group["a"], *group["b"]} for _, group in by_order]
    cells = {
        "task": means["title"],
        "model": means["model"],
        "constants": means["constant"].map(constant_name),
        "order": means["order"].map(order_name),
        # as texts, seed 10 would precede seed 2
        "seeds": [", ".join(sorted(names, key=int)) for names in seeds],
        "τ": means["mean"],
        "smallest": means["min"],
        "largest": means["max"],
    }
    return Table("", pd.DataFrame(cells), 5)
