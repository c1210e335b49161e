"""The agreement between orders of heads: across seeds, halves of the texts, kinds of weights, and tasks.

Only the order of weights matters, so orders are compared: by Kendall's τ over all heads, and by the share of kept heads
that two orders have in common at each fraction. A τ in the range of τ between random orders is compatible with
chance; in these orders all heads change places, or heads do so only within their layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import floor

import numpy as np
import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf
from papa.config.variant import Order, is_list, part_names
from papa.errors import count
from papa.files import PathLike, provenance_of, read_table
from papa.method.orders import smallest_first, tied_across, tied_ranks
from papa.results.analysis import Analysis, Computed
from papa.results.phrases import constant_name, order_name
from papa.results.table import Table, read_frame, texts

PAIR = ["between", "model", "task", "title", "constant", "order", "seed", "a", "b"]
"""The columns that identify a pair of orders. A column in which the two orders differ is null."""
TABLES = {"seeds": "Seeds and halves", "halves": "Seeds and halves", "orders": "Orders", "tasks": "Tasks"}
TABLES |= {"draws": "Equal scores in lists"}
"""The title of the table that shows each kind of pair."""
COLUMNS = dict.fromkeys((*PAIR, "fraction"), "string")
COLUMNS |= dict.fromkeys(("tau", "overlap", "by_chance"), "float64")
FIRST_COLUMNS = dict(COLUMNS)
"""The columns of tables that were computed before there were ranges by chance and ties."""
CHANCE, CHANCE_IN_LAYERS = ("chance_low", "chance_high"), ("layers_low", "layers_high")
"""The columns with the 95 % range of τ if all units change places at random, or those of each layer do."""
TIES = ("tied", "undecided")
"""The columns with the number of units that share their weight with another, and of those tied across the cut."""
COLUMNS |= dict.fromkeys((*CHANCE, *CHANCE_IN_LAYERS), "float64") | dict.fromkeys(TIES, "int64")
PERMUTATIONS = 999
"""The number of random permutations from which ranges of τ are computed."""


class Stability(Analysis):
    """Compare pairs of orders of heads.

    Args:
        learned: the model, task, title of the task, constant, order, seed and part of each file of weights.
        fractions: the fractions at which kept heads are compared.
    """

    columns = COLUMNS
    title_text = "Stability of orders"
    note_text = (
        "τ: Kendall's τ between two orders of all heads, 1 for the same order and 0 for unrelated orders. By chance: "
        "the range of 95 % of all τ if the heads of one order change places at random. In layers: the same if heads "
        "change places only within their layers, so a larger τ shows agreement about single heads and not only about "
        "layers. Kept in common: of the heads kept at a fraction, the share that both orders keep; by chance, this is "
        "the fraction itself. Halves: λ learned on each of two random halves of the training texts. Orders with "
        "several seeds are compared seed by seed; the table shows means over these pairs, with the smallest and the "
        "largest τ. Draws: two orders of one list, which differ in the random order of equal scores. Tied: the number "
        "of heads that share their weight with another, in the order with more of them. "
        "This table puts them in random order, although a study's orders that an earlier version finished have them by "
        "layer and head. Undecided heads are tied with heads on the other side of the fraction."
    )

    learned: tuple[dict[str, str], ...]
    fractions: tuple[str, ...]

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Compare the orders of the weights in the input `lambdas`."""
        learned = pd.DataFrame(self.learned).assign(path=job.inputs["lambdas"])
        return Computed(stability_of(learned, self.fractions), {"table": "stability"})

    def read(self, path: PathLike) -> pd.DataFrame:
        """Read the rows; columns that a table from an earlier version lacks are empty."""
        rows = read_frame(path, FIRST_COLUMNS, f"table of {self.heading()}", empty=True)
        return rows.reindex(columns=list(COLUMNS))

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return tables_of(rows)

    def sentence(self, rows: pd.DataFrame) -> str:
        """Return the range of τ."""
        if rows.empty:
            return "no two orders can be compared"
        pairs = rows.drop_duplicates(PAIR)
        taus, tied = pairs["tau"], int(pairs["tied"].gt(0).sum())
        sentence = f"{count(len(taus), 'pair')} of orders: Kendall's τ {taus.min():.2f} to {taus.max():.2f}"
        return f"{sentence}; heads have equal weights in {count(tied, 'pair')}" if tied else sentence


@dataclass(frozen=True)
class RankedUnits:
    """Units of heads and their weights.

    Args:
        layers, weights: the layer and the weight of each unit, sorted by layer and unit.
        ranked: the indices of all units, in the order of their replacement.
    """

    layers: np.ndarray
    weights: np.ndarray
    ranked: Sequence[int]

    @classmethod
    def read(cls, path: str, name: str) -> RankedUnits:
        """Read weights after the last epoch; `name` determines the random order of equal weights.

        The order that a study replaces heads in may be another one: earlier versions put equal weights in order of
        layer and head. Halves of the texts have no such order at all.
        """
        table = read_table(path)
        rows, size = table.to_pandas(), int(provenance_of(table).get("unit_size", 1))
        rows = rows[rows["epoch"] == rows["epoch"].max()].sort_values(["layer", "head"])[::size]
        units = list(zip(rows["layer"], rows["head"] // size, strict=True))
        places = {unit: place for place, unit in enumerate(units)}
        ranked = smallest_first(dict(zip(units, rows["value"], strict=True)), name)
        return cls(rows["layer"].to_numpy(), rows["value"].to_numpy(), [places[unit] for unit in ranked])

    @property
    def tied(self) -> list[tuple[int, int]]:
        """The ranks of equal weights."""
        return tied_ranks(self.weights[self.ranked].tolist())

    def ties(self, kept: int) -> tuple[int, int]:
        """Return how many units share their weight with another, and how many of these `kept` units leave undecided."""
        number = sum(last - first + 1 for first, last in self.tied)
        return number, tied_across(self.tied, len(self.ranked) - kept)


def stability_of(learned: pd.DataFrame, fractions: tuple[str, ...]) -> pd.DataFrame:
    """Return a row for each pair of files of weights and each fraction, with `COLUMNS`.

    There are five kinds of pairs: two seeds of an order; the two halves of the texts with one seed; two orders for a
    task, with the same seed if both have one; two tasks with the same order and seed; and two orders of a list, which
    differ in the random order of equal scores.

    Args:
        learned: a row for each file of weights: `model`, `task`, `title` (of the task), `constant`, `order`, `seed`
            (null if it has none), `part` (null for all texts) and `path`.
        fractions: the fractions at which kept heads are compared.
    """
    from scipy.stats import kendalltau

    known = learned.reindex(columns=["model", "task", "title", "constant", "order", "seed", "part", "path"])
    known = known.astype(object).where(known.notna(), None)
    names = map(_name_of, known["order"], known["seed"], known["part"])
    orders = {path: RankedUnits.read(path, name) for path, name in zip(known["path"], names, strict=True)}
    rows = []
    compared = [(pair, orders[first], orders[second]) for pair, first, second in _pairs(known)]
    for pair, first, second in (*compared, *_draws(known, orders)):
        pair["tau"] = float(kendalltau(first.weights.astype(float), second.weights.astype(float)).statistic)
        pair |= dict(zip(CHANCE, tau_by_chance(first, second), strict=True))
        pair |= dict(zip(CHANCE_IN_LAYERS, tau_by_chance(first, second, in_layers=True), strict=True))
        for fraction in fractions:
            kept = floor(Fraction(fraction) * len(first.ranked))
            if kept:
                both = set(first.ranked[-kept:]) & set(second.ranked[-kept:])
                chance = kept / len(first.ranked)
                row = {"fraction": fraction, "overlap": len(both) / kept, "by_chance": chance}
                ties = zip(TIES, map(max, first.ties(kept), second.ties(kept)), strict=True)
                rows.append(pair | row | dict(ties))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _name_of(order: str, seed: str | None, part: str | None) -> str:
    """Return the name of an order; that of a half of the texts also has the name of the half."""
    if is_list(order):
        return Order(order, 1).name
    name = Order(order, None if seed is None else int(seed)).name
    return name if part is None else f"{name}/{part}"


def tau_by_chance(first: RankedUnits, second: RankedUnits, in_layers: bool = False) -> tuple[float, float]:
    """Return the range of 95 % of all τ between two orders if the units of the second change places at random.

    Args:
        first, second: the orders.
        in_layers: whether units change places only within their layers.
    """
    chance = np.random.default_rng(0)
    layers = second.layers if in_layers else np.zeros_like(second.layers)
    signs = [np.sign(order.weights[:, None] - order.weights).astype(np.int8) for order in (first, second)]
    pairs = np.sqrt(np.prod([np.count_nonzero(sign) for sign in signs], dtype=float))
    if not pairs:
        return np.nan, np.nan
    taus = []
    for _ in range(PERMUTATIONS):
        shuffled = np.lexsort((chance.random(len(layers)), layers))  # sorted by layer, as all units are
        taus.append(np.sum(signs[0] * signs[1][np.ix_(shuffled, shuffled)], dtype=np.int64) / pairs)
    low, high = np.quantile(taus, (0.025, 0.975))
    return float(low), float(high)


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
        elif differ == {"task"} and whole and not is_list(a["order"]):
            names = {"between": "tasks", "a": a["title"], "b": b["title"], "task": None, "title": None, "seed": seed}
        else:
            continue
        yield {key: a[key] for key in ("model", "task", "title", "constant", "order")} | names, a["path"], b["path"]


def _draws(
    known: pd.DataFrame, orders: Mapping[str, RankedUnits]
) -> Iterator[tuple[dict[str, object], RankedUnits, RankedUnits]]:
    """Yield the values of `PAIR` and two orders of each list that has equal scores."""
    for row in known.to_dict("records"):
        if is_list(row["order"]) and orders[row["path"]].tied:
            names = {"between": "draws", "a": "draw 1", "b": "draw 2", "seed": None}
            pair = {key: row[key] for key in ("model", "task", "title", "constant", "order")} | names
            yield pair, orders[row["path"]], RankedUnits.read(row["path"], Order(row["order"], 2).name)


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """Return tables of Kendall's τ and overlaps: for seeds and halves, for orders, for tasks, and for lists."""
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
            **{name: (name, "mean") for name in (*CHANCE, *CHANCE_IN_LAYERS)},
            **{name: (name, "max") for name in TIES},
        )
        .reset_index()
    )
    tau_range = means["lowest"].map("{:.2f}".format) + " to " + means["highest"].map("{:.2f}".format)
    several = means["pairs"].gt(1)
    pairs = means["a"].map(order_name) + " and " + means["b"].map(order_name)
    cells = pd.DataFrame(
        {
            "task": means["title"].fillna("–"),
            "model": means["model"],
            "constants": means["constant"].map(constant_name),
            "order": means["order"].map(order_name, na_action="ignore").fillna("–"),
            "compared": pairs.where(means["between"].eq("orders"), means["a"] + " and " + means["b"]),
            "τ": means["tau"].map("{:.2f}".format).replace("nan", "–") + (" (" + tau_range + ")").where(several, ""),
            "by chance": texts(_range_text, means, *CHANCE),
            "in layers": texts(_range_text, means, *CHANCE_IN_LAYERS),
            "fraction kept": means["fraction"],
            "kept in common": means["overlap"].map("{:.0%}".format),
            "common by chance": means["by_chance"].map("{:.0%}".format),
        }
    )
    return cells.assign(tied=means["tied"], undecided=means["undecided"]) if means["tied"].gt(0).any() else cells


def _range_text(low: float, high: float) -> str:
    return "–" if np.isnan(low) else f"{low:.2f} to {high:.2f}"
