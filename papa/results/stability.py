"""Agreement of orders of heads: between seeds, halves of the texts, kinds of weights, and tasks.

Only the order of weights matters, so it is orders that are compared: by Kendall's τ over all heads, and by the share of
the kept heads that two orders have in common at each fraction.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from math import floor

import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf
from papa.config.variant import parts_of
from papa.errors import count
from papa.files import provenance_of, read_table
from papa.results.analysis import Analysis, Computed
from papa.results.phrases import constant_name, order_name
from papa.results.table import Table

PAIR = ["between", "model", "task", "title", "constant", "order", "seed", "a", "b"]
"""The columns that identify a pair of orders; a value in which the two differ is null."""
COLUMNS = dict.fromkeys((*PAIR, "fraction"), "string")
COLUMNS |= dict.fromkeys(("tau", "overlap", "by_chance"), "float64")
TITLE = "Stability of orders"
NOTE = (
    "Kendall's τ between two weights of heads over all heads: 1 for the same order, 0 for unrelated ones. Kept in "
    "common: of the heads that both would keep at a fraction, the share that is the same; by chance it would be the "
    "fraction itself. Halves: λ learned on each of two random halves of the training texts. Orders of several seeds "
    "are compared seed by seed, and what is shown is the mean over these pairs, with the smallest and the largest τ."
)


class Stability(Analysis):
    """Compare orders of heads in pairs.

    Args:
        learned: the model, task, constant, order, seed and part of each file of weights, and the title of the task.
        fractions: the shares of kept heads that are compared.
    """

    columns = COLUMNS
    title_text = TITLE
    note_text = NOTE

    learned: tuple[dict[str, str], ...]
    fractions: tuple[str, ...]

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Compare the `lambdas`."""
        learned = pd.DataFrame(self.learned).assign(path=job.inputs["lambdas"])
        return Computed(stability_of(learned, self.fractions), {"table": "stability"})

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Return τ and the heads kept in common: of seeds and halves, of orders, and of tasks."""
        return tables_of(rows)

    def sentence(self, rows: pd.DataFrame) -> str:
        """Return the range of τ."""
        if rows.empty:
            return "one order of each kind, so none to compare"
        taus = rows.drop_duplicates(PAIR)["tau"]
        return f"{count(len(taus), 'pair')} of orders: Kendall's τ {taus.min():.2f} to {taus.max():.2f}"


def stability_of(learned: pd.DataFrame, fractions: tuple[str, ...]) -> pd.DataFrame:
    """A row for each pair of weights and each fraction, with `COLUMNS`.

    Args:
        learned: `model`, `task`, its `title`, `constant`, `order`, `seed` (null if it has none), `part` (null for all
            texts) and `path` of each file of weights. Compared are the seeds of an order; the halves of a seed; the
            orders of a task, with the same seed if both have one; and the same order and seed on two tasks.
        fractions: the shares of kept heads.
    """
    from scipy.stats import kendalltau

    known = learned.reindex(columns=["model", "task", "title", "constant", "order", "seed", "part", "path"])
    known = known.astype(object).where(known.notna(), None)
    weights = {path: _last(path) for path in known["path"]}
    rows = []
    for about, first_path, second_path in _pairs(known):
        first, second = weights[first_path], weights[second_path]
        about["tau"] = float(kendalltau(first, second).statistic)
        for fraction in fractions:
            kept = floor(Fraction(fraction) * len(first))
            if kept:
                both = set(first.nlargest(kept).index) & set(second.nlargest(kept).index)
                chance = kept / len(first)
                rows.append(about | {"fraction": fraction, "overlap": len(both) / kept, "by_chance": chance})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _pairs(known: pd.DataFrame) -> Iterator[tuple[dict[str, object], str, str]]:
    """All pairs to compare: the values of `PAIR`, and the two files."""
    halves = parts_of(2)
    for a, b in combinations(known.to_dict("records"), 2):
        differ = {key for key in ("model", "task", "constant", "order", "seed", "part") if a[key] != b[key]}
        whole = a["part"] is None and b["part"] is None
        same_seed = "seed" not in differ or None in (a["seed"], b["seed"])
        seed = a["seed"] or b["seed"]
        about = {key: a[key] for key in ("model", "task", "title", "constant", "order")} | {"seed": None}
        if differ == {"seed"} and whole:
            names = f"seed {a['seed']}", f"seed {b['seed']}"
            about |= {"between": "seeds"}
        elif differ == {"part"} and {a["part"], b["part"]} == set(halves):
            names = f"half 1, seed {seed}", f"half 2, seed {seed}"
            about |= {"between": "halves"}
        elif "order" in differ and differ <= {"order", "seed"} and same_seed and whole:
            names = a["order"], b["order"]
            about |= {"between": "orders", "order": None, "seed": seed}
        elif differ == {"task"} and whole:
            names = a["title"], b["title"]
            about |= {"between": "tasks", "task": None, "title": None, "seed": seed}
        else:
            continue
        yield about | dict(zip("ab", names, strict=True)), a["path"], b["path"]


def _last(path: str) -> pd.Series[float]:
    """The weight of each head, or of each unit of heads, after the last epoch, in the order of layers and heads."""
    table = read_table(path)
    rows, size = table.to_pandas(), int(provenance_of(table).get("unit_size", 1))
    rows = rows[rows["epoch"] == rows["epoch"].max()].sort_values(["layer", "head"])
    return pd.Series(rows["value"].to_numpy()[::size])


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """Kendall's τ and overlaps as people read them: pairs of seeds and halves, of orders, and of tasks."""
    within = frame["between"].isin(["seeds", "halves"])
    tables = []
    for title, rows in (
        ("Seeds and halves", frame[within]),
        ("Orders", frame[frame["between"].eq("orders")]),
        ("Tasks", frame[frame["between"].eq("tasks")]),
    ):
        if len(rows):
            tables.append(Table(title, _text_of(rows), 5))
    return tables


def _text_of(rows: pd.DataFrame) -> pd.DataFrame:
    """A line for each pair and fraction, with the mean over seeds if a pair has several."""
    keys = [name for name in (*PAIR, "fraction") if name != "seed"]
    means = rows.groupby(keys, sort=False, dropna=False).agg(
        tau=("tau", "mean"),
        least=("tau", "min"),
        most=("tau", "max"),
        pairs=("tau", "size"),
        overlap=("overlap", "mean"),
        by_chance=("by_chance", "first"),
    )
    means = means.reset_index()
    spread = means["least"].map("{:.2f}".format) + " to " + means["most"].map("{:.2f}".format)
    several = means["pairs"].gt(1)
    pairs = means["a"].map(order_name) + " and " + means["b"].map(order_name)
    return pd.DataFrame(
        {
            "task": means["title"].fillna("–"),
            "model": means["model"],
            "constants": means["constant"].map(constant_name),
            "order": means["order"].map(order_name, na_action="ignore").fillna("–"),
            "compared": pairs.where(means["between"].eq("orders"), means["a"] + " and " + means["b"]),
            "τ": means["tau"].map("{:.2f}".format).replace("nan", "–") + (" (" + spread + ")").where(several, ""),
            "fraction kept": means["fraction"],
            "kept in common": means["overlap"].map("{:.0%}".format),
            "by chance": means["by_chance"].map("{:.0%}".format),
        }
    )
