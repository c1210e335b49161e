"""Heads for other tools: which are kept and which are replaced at a fraction, and what each weighs.

DuoAttention and its like read a table of one number for each layer and head of keys; head pruning reads the heads of
each layer. Both follow from an order of heads and the weights that it is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING

from papa.config.artefacts import ARTEFACTS
from papa.config.settings import fraction as fraction_of
from papa.errors import InputError
from papa.files import JSON, PathLike, provenance_of, read_table

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Found:
    """An order of the results: `path` of its file, and what it is of."""

    path: Path
    model: str
    task: str
    constant: str
    order: str


def heads_of(results: PathLike, of: str | None = None, order: str | None = None, fraction: str = "1/2") -> JSON:
    """The heads of one order, in plain values.

    Args:
        results: a folder of results.
        of: MODEL, or MODEL/TASK, or MODEL/TASK/CONSTANT; needed where the results have orders of several.
        order: such as `lambda-0`; needed where there are several.
        fraction: the share of heads that is kept.

    Returns:
        `model`, `task`, `constant`, `order`, `fraction`; `kept` and `replaced`, pairs (layer, head); `prune`, the
        replaced heads of each layer; `values` `[layer][head]`, what each head weighs; `unit_size`, how many heads are
        replaced at once.

    Raises:
        InputError: there is no such order, or there are several.
    """
    own = _chosen(_orders(Path(results)), of, order)
    table = read_table(own.path)
    facts = provenance_of(table)
    ranked = list(zip(table.column("layer").to_pylist(), table.column("head").to_pylist(), strict=True))
    kept, size = Fraction(fraction_of(fraction)), int(facts.get("unit_size", 1))
    number = len(ranked) - size * floor(kept * (len(ranked) // size))
    replaced, stay = sorted(ranked[:number]), sorted(ranked[number:])
    layers = 1 + max(layer for layer, _ in ranked)
    prune = {str(layer): [head for one, head in replaced if one == layer] for layer in range(layers)}
    return {
        "model": own.model,
        "task": own.task,
        "constant": own.constant,
        "order": own.order,
        "fraction": str(kept),
        "kept": stay,
        "replaced": replaced,
        "prune": {layer: heads for layer, heads in prune.items() if heads},
        "values": _values(own, ranked),
        "unit_size": size,
    }


def _orders(results: Path) -> list[Found]:
    """All orders that are made of weights, in a folder of results."""
    names = ("model", "task", "constant", "order")
    pattern = ARTEFACTS["order"].path(**dict.fromkeys(names, "*"))
    places = [part for part, own in enumerate(Path(pattern).parts) if own == "*"]
    found = []
    for path in sorted(results.glob(pattern)):
        parts = path.relative_to(results).parts
        found.append(Found(path, **dict(zip(names, (parts[place] for place in places), strict=True))))
    if not found:
        raise InputError(f"{results} has no order of heads; give a folder of results with fractions between 0 and 1.")
    return found


def _chosen(orders: Sequence[Found], of: str | None, order: str | None) -> Found:
    wanted = (of or "").split("/") if of else []
    fitting = [
        own
        for own in orders
        if [own.model, own.task, own.constant][: len(wanted)] == wanted and order in (None, own.order)
    ]
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(f"{own.model}/{own.task}/{own.constant} {own.order}" for own in (fitting or orders)[:8])
    more = ", …" if len(fitting or orders) > 8 else ""
    what = "There are several such orders" if fitting else "There is no such order"
    raise InputError(f"{what}; name one by --of MODEL/TASK/CONSTANT and --order: {listed}{more}.")


def _values(own: Found, ranked: Sequence[tuple[int, int]]) -> list[list[float]]:
    """What each head weighs, `[layer][head]`: λ after the last epoch, or what else the order is made of."""
    seed = own.order.rpartition("-")[2]
    about = {"model": own.model, "task": own.task, "constant": own.constant}
    if own.order.startswith("lambda"):
        place = ARTEFACTS["lambda"].path(**about, seed=seed)
    else:
        place = ARTEFACTS["weights"].path(**about, weights=own.order)
    levels = len(Path(ARTEFACTS["order"].path(**about, order=own.order)).parts)
    rows = read_table(own.path.parents[levels - 1] / place).to_pandas()
    rows = rows[rows["epoch"] == rows["epoch"].max()].set_index(["layer", "head"])["value"]
    layers, heads = (1 + max(pair[axis] for pair in ranked) for axis in (0, 1))
    return [[float(rows[layer, head]) for head in range(heads)] for layer in range(layers)]


def as_tsv(found: Mapping[str, JSON]) -> str:
    """What each head weighs as DuoAttention reads it: a line for each layer, a column for each head, tabs between."""
    return "\n".join("\t".join(f"{value:.6f}" for value in row) for row in found["values"])


def print_heads(found: Mapping[str, JSON], out: Console) -> None:
    """Print which heads of each layer are kept, and which replaced."""
    about = f"{found['model']} on {found['task']}, {found['constant']} constants, order {found['order']}"
    total = len(found["kept"]) + len(found["replaced"])
    out.print(f"{about}: {len(found['kept'])} of {total} heads kept")
    for layer, row in enumerate(found["values"]):
        stay = {head for one, head in found["kept"] if one == layer}
        marks = " ".join(f"{head}" if head in stay else "·" * len(str(head)) for head in range(len(row)))
        out.print(f"  layer {layer}: {marks}")
