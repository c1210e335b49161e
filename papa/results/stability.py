"""The agreement between orders of heads: across seeds, halves of the texts, kinds of weights, and tasks.

Only the order of weights matters, so orders are compared: by Kendall's τ over all heads, and by the share of kept heads
that two orders have in common at each fraction.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from math import floor

import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf
from papa.config.variant import part_names
from papa.errors import count
from papa.files import provenance_of, read_table
from papa.results.analysis import Analysis, Computed
from papa.results.phrases import constant_name, order_name
from papa.results.table import Table

PAIR = ["between", "model", "task", "title", "constant", "order", "seed", "a", "b"]
"""The columns that identify a pair of orders. A column in which the two orders differ is null."""
TABLES = {"seeds": "Seeds and halves", "halves": "Seeds and halves", "orders": "Orders", "tasks": "Tasks"}
"""The title of the table that shows each kind of pair."""
COLUMNS = dict.fromkeys((*PAIR, "fraction"), "string")
COLUMNS |= dict.fromkeys(("tau", "overlap", "by_chance"), "float64")


class Stability(Analysis):
    """Compare pairs of orders of heads.

    Args:
        learned: the model, task, title of the task, constant, order, seed and part of each file of weights.
        fractions: the fractions at which kept heads are compared.
    """

    columns = COLUMNS
    title_text = "Stability of orders"
    note_text = (
        "τ: Kendall's τ between two orders of all heads, 1 for the same order and 0 for unrelated orders. Kept in "
        "common: of the heads kept at a fraction, the share that both orders keep; by chance, this is the fraction "
        "itself. Halves: λ learned on each of two random halves of the training texts. Orders with several seeds are "
        "compared seed by seed; the table shows the mean over these pairs, with the smallest and the largest τ."
    )

    learned: tuple[dict[str, str], ...]
    fractions: tuple[str, ...]

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Compare the orders of the weights in the input `lambdas`."""
        learned = pd.DataFrame(self.learned).assign(path=job.inputs["lambdas"])
        return Computed(stability_of(learned, self.fractions), {"table": "stability"})

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return tables_of(rows)

    def sentence(self, rows: pd.DataFrame) -> str:
        """Return the range of τ."""
        if rows.empty:
            return "no two orders can be compared"
        taus = rows.drop_duplicates(PAIR)["tau"]
        return f"{count(len(taus), 'pair')} of orders: Kendall's τ {taus.min():.2f} to {taus.max():.2f}"


def stability_of(learned: pd.DataFrame, fractions: tuple[str, ...]) -> pd.DataFrame:
    """Return a row for each pair of files of weights and each fraction, with `COLUMNS`.

    There are four kinds of pairs: two seeds of an order; the two halves of the texts with one seed; two orders for a
    task, with the same seed if both have one; and two tasks with the same order and seed.

    Args:
        learned: a row for each file of weights: `model`, `task`, `title` (of the task), `constant`, `order`, `seed`
            (null if it has none), `part` (null for all texts) and `path`.
        fractions: the fractions at which kept heads are compared.
    """
    from scipy.stats import kendalltau

    known = learned.reindex(columns=["model", "task", "title", "constant", "order", "seed", "part", "path"])
    known = known.astype(object).where(known.notna(), None)
    weights = {path: _last_weights(path) for path in known["path"]}
    rows = []
    for pair, first_path, second_path in _pairs(known):
        first, second = weights[first_path], weights[second_path]
        pair["tau"] = float(kendalltau(first, second).statistic)
        for fraction in fractions:
            kept = floor(Fraction(fraction) * len(first))
            if kept:
                both = set(first.nlargest(kept).index) & set(second.nlargest(kept).index)
                chance = kept / len(first)
                rows.append(pair | {"fraction": fraction, "overlap": len(both) / kept, "by_chance": chance})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _pairs(known: pd.DataFrame) -> Iterator[tuple[dict[str, object], str, str]]:
    """Yield the values of `PAIR` and the two paths of each pair to compare."""
    halves = set(part_names(2))
    for a, b in combinations(known.to_dict("records"), 2):
        differ = {key for key in ("model", "task", "constant", "order", "seed", "part") if a[key] != b[key]}
        whole = a["part"] is None and b["part"] is None
        same_seed = "seed" not in differ or None in (a["seed"], b["seed"])
        seed = a["seed"] or b["seed"]
        if differ == {"seed"} and whole:
            names = {"between": "seeds", "a": f"seed {a['seed']}", "b": f"seed {b['seed']}", "seed": None}
        elif differ == {"part"} and {a["part"], b["part"]} == halves:
            names = {"between": "halves", "a": f"half 1, seed {seed}", "b": f"half 2, seed {seed}", "seed": None}
        elif "order" in differ and differ <= {"order", "seed"} and same_seed and whole:
            names = {"between": "orders", "a": a["order"], "b": b["order"], "order": None, "seed": seed}
        elif differ == {"task"} and whole:
            names = {"between": "tasks", "a": a["title"], "b": b["title"], "task": None, "title": None, "seed": seed}
        else:
            continue
        yield {key: a[key] for key in ("model", "task", "title", "constant", "order")} | names, a["path"], b["path"]


def _last_weights(path: str) -> pd.Series[float]:
    """Return the weight of each head, or of each unit of heads, after the last epoch, sorted by layer and head."""
    table = read_table(path)
    rows, size = table.to_pandas(), int(provenance_of(table).get("unit_size", 1))
    rows = rows[rows["epoch"] == rows["epoch"].max()].sort_values(["layer", "head"])
    return pd.Series(rows["value"].to_numpy()[::size])


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """Return tables of Kendall's τ and overlaps: for seeds and halves, for orders, and for tasks."""
    titles = frame["between"].map(TABLES)
    return [
        Table(title, _cells(frame[titles.eq(title)]), 5)
        for title in dict.fromkeys(TABLES.values())
        if title in set(titles)
    ]


def _cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the table's cells: a row for each pair and fraction, averaged over seeds."""
    keys = [name for name in (*PAIR, "fraction") if name != "seed"]
    means = (
        rows.groupby(keys, sort=False, dropna=False)
        .agg(
            tau=("tau", "mean"),
            lowest=("tau", "min"),
            highest=("tau", "max"),
            pairs=("tau", "size"),
            overlap=("overlap", "mean"),
            by_chance=("by_chance", "first"),
        )
        .reset_index()
    )
    tau_range = means["lowest"].map("{:.2f}".format) + " to " + means["highest"].map("{:.2f}".format)
    several = means["pairs"].gt(1)
    pairs = means["a"].map(order_name) + " and " + means["b"].map(order_name)
    return pd.DataFrame(
        {
            "task": means["title"].fillna("–"),
            "model": means["model"],
            "constants": means["constant"].map(constant_name),
            "order": means["order"].map(order_name, na_action="ignore").fillna("–"),
            "compared": pairs.where(means["between"].eq("orders"), means["a"] + " and " + means["b"]),
            "τ": means["tau"].map("{:.2f}".format).replace("nan", "–") + (" (" + tau_range + ")").where(several, ""),
            "fraction kept": means["fraction"],
            "kept in common": means["overlap"].map("{:.0%}".format),
            "by chance": means["by_chance"].map("{:.0%}".format),
        }
    )
