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


def units_of(unit: Unit, heads: int, key_heads: int) -> int:
    """Return the number of units in a layer, from its numbers of heads and of key heads."""
    return {"head": heads, "group": key_heads, "layer": 1}[unit]


def rank_heads(job: Job[OrderFromWeights]) -> str:
    """Stage *rank*: order heads by their weights; the head of rank 0 is replaced first.

    `lambda-SEED` sorts the heads of all layers by λ after the last epoch, in ascending order (Sec. 3.2); heads with
    equal λ are sorted by layer and head. `lambda-reversed-SEED` is its reverse. Orders by other weights also start with
    the smallest.

    Raises:
        InputError: the order is not based on weights.
    """
    name = job.settings.order
    if not Order.parse(name).by_weight:
        raise InputError(
            f"The order {name!r} is not based on λ or other weights; those that are: "
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

    `random-1`, `random-2`, … are determined by their number and the seed.

    Raises:
        InputError: the order is based on weights, or there is no such order.
    """
    from papa.data.tokenize import shape_of_model

    settings, order = job.settings, Order.parse(job.settings.order)
    if order.by_weight:
        raise InputError(f"The order {order.name!r} needs λ or other weights of heads, which depend on a task.")
    layers, heads, key_heads = shape_of_model(settings.model, job.machine)
    units = units_of(settings.unit, heads, key_heads)
    listed = [(layer, unit) for layer in range(layers) for unit in range(units)]
    if order.base in BY_POSITION:
        listed.sort(key=lambda unit: BY_POSITION[order.base](*unit))
    elif order.draw is not None:
        import torch

        seed = sha256(f"{settings.seed}/{order.draw}".encode()).digest()[:6]
        generator = torch.Generator().manual_seed(int.from_bytes(seed))
        listed = [listed[index] for index in torch.randperm(len(listed), generator=generator).tolist()]
    digest, size = weights_digest(settings.model, job.machine), heads // units
    about = {"model": settings.model.name, "weights": digest, "order": order.name, "unit_size": size}
    trace = job.trace(**sources_of(settings.model, digest, job.machine))
    heads_in_order = [(layer, unit * size + member) for layer, unit in listed for member in range(size)]
    return _write_order(heads_in_order, job.output("order"), about, trace)


def smallest_first(weights: Mapping[Head, float]) -> list[Head]:
    """Sort heads by weight, in the order of their replacement; heads of equal weight by layer, then head."""
    return sorted(weights, key=lambda head: (weights[head], head))


def _write_order(heads: list[Head], path: PathLike, about: Mapping[str, object], trace: Trace) -> str:
    import pyarrow as pa

    columns = {"rank": range(len(heads)), "layer": [head[0] for head in heads], "head": [head[1] for head in heads]}
    write_table(pa.table(columns), path, about, trace)
    return f"{len(heads)} heads ranked; layer {heads[0][0]}, head {heads[0][1]} is first"


def heads_to_replace(order: PathLike, variant: Variant, model: Model) -> list[Head]:
    """Return the heads that a variant replaces: the first of an order, which must belong to the model and variant."""
    table = read_table(order)
    facts = provenance_of(table)
    must_agree(order, facts, {"weights": model.weights, "order": variant.order and variant.order.name})
    ranked = list(zip(table.column("layer").to_pylist(), table.column("head").to_pylist(), strict=True))
    check_ranked(ranked, model, str(order))
    size = int(facts.get("unit_size", 1))
    if size not in (1, model.heads // model.groups, model.heads):
        raise InputError(
            f"{order} has units of {size} heads, but in this model groups of {model.heads // model.groups} of the "
            f"{model.heads} heads in a layer share their keys; rank by head or by layer (`ranking.unit`)."
        )
    return heads_replaced(ranked, variant, size)


def check_ranked(ranked: Sequence[Head], model: Model, name: str) -> None:
    """Raise `InputError` unless an order contains each head of a model once; `name` is its name in the error."""
    if sorted(ranked) != [(layer, head) for layer in range(model.layers) for head in range(model.heads)]:
        raise InputError(
            f"{name} does not order the heads of this model, which has {model.layers} layers of {model.heads} heads; "
            "rank the heads of this model again."
        )


def heads_replaced(ranked: Sequence[Head], variant: Variant, size: int = 1) -> list[Head]:
    """Return the heads that a variant replaces: the first units of a ranking, each of `size` heads."""
    return list(ranked[: len(ranked) - size * variant.kept_count(len(ranked) // size)])
