"""The orders in which heads are replaced: by λ or other weights, by layer, or random (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from papa.config.variant import BY_LAMBDA, BY_POSITION, FROM_ACTIVATIONS, FROM_LOSS, Order, Variant
from papa.data.weights import sources_of, weights_digest
from papa.errors import InputError
from papa.files import PathLike, Trace, must_agree, provenance_of, read_table, write_table

if TYPE_CHECKING:
    from papa.config.job import Job
    from papa.config.stages import OrderFromModel, OrderFromWeights, Unit
    from papa.model.model import Model
    from papa.model.replacement import Head


def units_of(unit: Unit, heads: int, groups: int) -> int:
    """Return the number of units in a layer, from its numbers of heads and of groups that share their keys."""
    return {"head": heads, "group": groups, "layer": 1}[unit]


def rank_heads(job: Job[OrderFromWeights]) -> str:
    """Stage *rank*: order heads by their weights; the head of rank 0 is replaced first.

    `lambda-SEED` starts with the smallest λ after the last epoch, over all layers; heads with equal λ are in the order
    of layers, then heads (the paper's order, Sec. 3.2). `lambda-reversed-SEED` is its reverse. Orders by other weights
    also start with the smallest.

    Raises:
        InputError: the order does not follow from weights.
    """
    name = job.settings.order
    if not Order.parse(name).by_weight:
        raise InputError(
            f"The order {name!r} does not follow from λ or other weights; those that do are "
            f"{', '.join((*BY_LAMBDA, *FROM_LOSS, *FROM_ACTIVATIONS))}."
        )
    table = read_table(job.input("lambdas"))
    rows = list(zip(*(table.column(key).to_pylist() for key in ("epoch", "value", "layer", "head")), strict=True))
    last = max(row[0] for row in rows)
    heads = smallest_first({(layer, head): value for epoch, value, layer, head in rows if epoch == last})
    heads = heads[::-1] if Order.parse(name).base == "lambda-reversed" else heads
    return _write_order(heads, job.output("order"), {**provenance_of(table), "order": name}, job.trace())


def order_heads(job: Job[OrderFromModel]) -> str:
    """Stage *order*: write an order that needs no data (Figure 5): one of `BY_POSITION`, or random.

    `random-1`, `random-2`, … follow from their number and the seed.

    Raises:
        InputError: the order follows from weights, or there is no such order.
    """
    from papa.data.tokenize import shape_of_model

    settings, order = job.settings, Order.parse(job.settings.order)
    if order.by_weight:
        raise InputError(f"The order {order.name!r} needs λ or other weights of heads, which depend on a task.")
    layers, heads, groups = shape_of_model(settings.model, job.machine)
    units = units_of(settings.unit, heads, groups)
    listed = [(layer, unit) for layer in range(layers) for unit in range(units)]
    if order.base in BY_POSITION:
        listed.sort(key=lambda unit: BY_POSITION[order.base](*unit))
    elif order.draw is not None:
        import torch

        drawn = sha256(f"{settings.seed}/{order.draw}".encode()).digest()[:6]
        generator = torch.Generator().manual_seed(int.from_bytes(drawn))
        listed = [listed[place] for place in torch.randperm(len(listed), generator=generator).tolist()]
    weights, size = weights_digest(settings.model, job.machine), heads // units
    about = {"model": settings.model.name, "weights": weights, "order": order.name, "unit_size": size}
    trace = job.trace(**sources_of(settings.model, weights, job.machine))
    heads_in_order = [(layer, unit * size + member) for layer, unit in listed for member in range(size)]
    return _write_order(heads_in_order, job.output("order"), about, trace)


def smallest_first(weights: Mapping[Head, float]) -> list[Head]:
    """Return heads by increasing weight, the order in which they are replaced; equal ones by layer, then head."""
    return sorted(weights, key=lambda head: (weights[head], head))


def _write_order(heads: list[Head], path: PathLike, about: Mapping[str, object], trace: Trace) -> str:
    import pyarrow as pa

    columns = {"rank": range(len(heads)), "layer": [head[0] for head in heads], "head": [head[1] for head in heads]}
    write_table(pa.table(columns), path, about, trace)
    return f"{len(heads)} heads ranked; layer {heads[0][0]}, head {heads[0][1]} goes first"


def heads_to_replace(order: PathLike, variant: Variant, model: Model) -> list[Head]:
    """Return the first heads of an order, which a variant replaces; raise `InputError` if the order does not fit."""
    table = read_table(order)
    facts = provenance_of(table)
    must_agree(order, facts, {"weights": model.weights, "order": variant.order and variant.order.name})
    ranked = list(zip(table.column("layer").to_pylist(), table.column("head").to_pylist(), strict=True))
    check_ranked(ranked, model, str(order))
    size = int(facts.get("unit_size", 1))
    if size not in (1, model.heads // model.groups, model.heads):
        raise InputError(
            f"{order} takes {size} heads at once, but in this model {model.heads // model.groups} of the {model.heads} "
            "heads of a layer share their keys; rank by head or by layer (`ranking.unit`)."
        )
    return heads_replaced(ranked, variant, size)


def check_ranked(ranked: Sequence[Head], model: Model, name: str) -> None:
    """Raise `InputError` unless an order, called `name` in errors, has each head of a model once."""
    if sorted(ranked) != [(layer, head) for layer in range(model.layers) for head in range(model.heads)]:
        raise InputError(
            f"{name} does not order the heads of this model, which has {model.layers} layers of {model.heads} heads; "
            "rank the heads of this model again."
        )


def heads_replaced(ranked: Sequence[Head], variant: Variant, size: int = 1) -> list[Head]:
    """Return the first heads of a ranking, which a variant replaces; a unit has `size` heads."""
    return list(ranked[: len(ranked) - size * variant.kept_count(len(ranked) // size)])
