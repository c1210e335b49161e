"""Orders compared with random orders: how many of them lose less.

The area under the loss is computed for every random order. If an order were no better than a random one, its area
would be equally likely to have any rank among them. So p = (1 + the number of random orders with no larger area) /
(1 + the number of random orders). An order by weights with several seeds is represented by the order of the first seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf, GridView, TaskOf
from papa.config.variant import BY_LAMBDA, RANDOM, RANDOM_BY_LAYER, SEEDED, SHUFFLED, Order, is_drawn, is_list
from papa.errors import count
from papa.files import read_table
from papa.results.analysis import Analysis, Computed
from papa.results.claims import Line, lines_of
from papa.results.outcomes import ORIGINALS, outcomes_in
from papa.results.phrases import constant_name, order_name, percent
from papa.results.summary import read_summary
from papa.results.table import Table

COLUMNS = dict.fromkeys(("grid", "model", "constant", "order", "among"), "string")
COLUMNS |= dict.fromkeys(("draws", "smaller", "tasks"), "int64")
COLUMNS |= dict.fromkeys(("area", "least", "median", "most", "p"), "float64")
ROUNDING = 1e-9
"""Areas that differ by no more than this are equal."""


class RandomOrders(Analysis):
    """Find the place of each order's area among those of random orders.

    Args:
        grids: the grids of the config.
        tasks: title and metric of each task.
        first_seed: the seed of the weights of an order.
    """

    columns = COLUMNS
    title_text = "Orders and random orders"
    note_text = (
        "Area: the integral of the loss over the share of replaced heads, averaged over the tasks that count. Random: "
        "all heads are in random order. Random by layer: each layer has the same number of replaced heads as in the "
        "order of λ, but a layer's heads are drawn at random; a shuffled list is the same for the order of a list. "
        "So the first comparison shows whether an order is better than chance, and the second whether it captures more "
        "than each layer's importance. No larger: the number of random orders with an area that is no larger. p: "
        "one-sided, (1 + this number) / (1 + all random orders); it is not corrected for several comparisons."
    )

    grids: tuple[GridView, ...]
    tasks: dict[str, TaskOf]
    first_seed: int

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Compare the lines of each grid, from `summary` and `all_outcomes`."""
        summary = read_summary(job.input("summary"))
        metrics = {name: task.metric for name, task in self.tasks.items()}
        outcomes = list(outcomes_in(read_table(job.input("all_outcomes")), metrics))
        rows = [
            row
            for grid in self.grids
            for row in compared_with_random(lines_of(grid, summary, outcomes), self.first_seed)
        ]
        return Computed(pd.DataFrame(rows, columns=list(COLUMNS)), {"table": "random_orders"})

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return tables_of(rows)

    def sentence(self, rows: pd.DataFrame) -> str:
        return sentence_of(rows)


def compared_with_random(lines: Sequence[Line], first_seed: int) -> Iterator[dict[str, object]]:
    """Yield a row with `COLUMNS` for each order and each kind of random orders with the same model and constant."""
    for line in lines:
        base = line.value("order")
        if base is None or is_drawn(base):
            continue
        order = Order(base, first_seed if base in SEEDED else 1 if is_list(base) else None).name
        chance = {RANDOM, base + SHUFFLED} | ({RANDOM_BY_LAYER} if base == BY_LAMBDA[0] else set())
        area = areas_of(line).get(order)
        for among in lines:
            drawn = among.value("order")
            same = all(line.value(name) == among.value(name) for name in ("model", "constant"))
            if area is None or not same or drawn not in chance:
                continue
            areas = pd.Series(areas_of(among))
            if areas.empty or line.counting != among.counting:
                continue
            smaller = int((areas <= area + ROUNDING).sum())
            yield {
                "grid": line.grid,
                "model": line.value("model"),
                "constant": line.value("constant"),
                "order": base,
                "among": drawn,
                "draws": len(areas),
                "smaller": smaller,
                "tasks": len(line.counting),
                "area": area,
                "least": areas.min(),
                "median": areas.median(),
                "most": areas.max(),
                "p": (1 + smaller) / (1 + len(areas)),
            }


def areas_of(line: Line) -> dict[str, float]:
    """Return the area under the loss for each order of a line, averaged over the tasks that count, by its full name.

    An order without an area on some task is left out.
    """
    by_task = [_areas_of_task(line, task) for task in line.counting]
    names = set.intersection(*map(set, by_task)) if by_task else set[str]()
    return {name: sum(areas[name] for areas in by_task) / len(by_task) for name in sorted(names)}


def _areas_of_task(line: Line, task: str) -> dict[str, float]:
    weights, sample = line.area_weights(task), line.samples[task]
    original, floor = sample.mean(ORIGINALS), sample.floor
    if weights is None or original is None or floor is None or original <= floor:
        return {}
    frames = []
    for setting, weight in weights.items():
        runs = sample.runs_of(setting)
        losses = (original - sample.scores[runs.to_numpy()].mean(axis=1)) / (original - floor)
        frames.append((pd.Series(weight * losses, runs.index), setting[1]))
    shared = sum(float(areas.iloc[0]) for areas, order in frames if order is None)  # all heads, in any order
    by_order = [areas for areas, order in frames if order is not None]
    if not by_order:
        return {}
    total = pd.concat(by_order, axis=1).dropna().sum(axis=1) + shared
    return {str(name): float(area) for name, area in total.items()}


def tables_of(rows: pd.DataFrame) -> list[Table]:
    """Return a table for each grid."""
    tables = []
    for grid, group in rows.groupby("grid", sort=False):
        text = pd.DataFrame(
            {
                "model": group["model"],
                "constants": group["constant"].map(constant_name),
                "order": group["order"].map(order_name),
                "compared with": group["among"].map(order_name),
                "orders": group["draws"],
                "area": group["area"].map(percent),
                "least": group["least"].map(percent),
                "median": group["median"].map(percent),
                "most": group["most"].map(percent),
                "no larger": group["smaller"],
                "p": group["p"].map("{:.3f}".format),
            }
        )
        tables.append(Table(str(grid).replace("_", " ").capitalize(), text, 4))
    return tables


def sentence_of(rows: pd.DataFrame) -> str:
    """Describe the place of the order of λ among random orders."""
    sentences = []
    several = rows[["grid", "model", "constant"]].drop_duplicates().shape[0] > 1
    for row in rows[rows["order"].eq(BY_LAMBDA[0])].to_dict("records"):
        within = " within layers" if row["among"] != RANDOM else ""
        where = f" ({row['model']}, {constant_name(row['constant'])}, {row['grid']})" if several else ""
        orders = count(row["draws"], f"random order{within}", f"random orders{within}")
        sentences.append(f"{row['smaller']} of {orders} lose no more than λ's order{where}, p = {row['p']:.3f}")
    return "; ".join(sentences) + "." if sentences else "No order of λ can be compared with random orders."
