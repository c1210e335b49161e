"""The orders in which heads are replaced: by λ or other weights, by layer, by a list, or random (Sec. 3.2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from papa.config.variant import BY_POSITION, SEEDED, Order, Variant
from papa.data.weights import sources_of, weights_digest
from papa.errors import InputError, count, first_line
from papa.files import PathLike, Trace, must_agree, provenance_of, read_table, write_table

if TYPE_CHECKING:
    from papa.config.job import Job
    from papa.config.stages import OrderFromModel, OrderFromWeights
    from papa.model.model import Model
    from papa.model.replacement import Head


def rank_heads(job: Job[OrderFromWeights]) -> str:
    """Stage *rank*: order heads by their weights; the head of rank 0 is replaced first.

    `lambda-SEED` sorts the heads of all layers by λ after the last epoch, in ascending order (Sec. 3.2).
    `lambda-reversed-SEED` is its reverse. Orders by other weights also start with the smallest. Heads of equal weight
    are in random order, which the name of the order determines.
    """
    name, order = job.settings.order, Order.parse(job.settings.order)
    if not order.by_weight:
        raise InputError(f"The order {name!r} is not based on λ or other weights; those that are: {', '.join(SEEDED)}.")
    table = read_table(job.input("lambdas"))
    rows = list(zip(*(table.column(key).to_pylist() for key in ("epoch", "value", "layer", "head")), strict=True))
    last = max(row[0] for row in rows)
    weights = {(layer, head): value for epoch, value, layer, head in rows if epoch == last}
    heads = smallest_first(weights, name.replace("lambda-reversed", "lambda"))
    if order.base == "lambda-reversed":
        heads = heads[::-1]
    return _write_order(heads, job.output("order"), {**provenance_of(table), "order": name}, job.trace())


def order_heads(job: Job[OrderFromModel]) -> str:
    """Stage *order*: write an order that needs no data (Figure 5): one of `BY_POSITION`, a list, or random.

    `random-1`, `random-2`, … are determined by their number and the seed.
    """
    from papa.data.tokenize import sizes_of_model

    settings, order = job.settings, Order.parse(job.settings.order)
    if order.by_weight:
        raise InputError(f"The order {order.name!r} needs λ or other weights of heads, which depend on a task.")
    sizes = sizes_of_model(settings.model, job.machine)
    layers, heads = sizes["layers"], sizes["heads"]
    listed = list(product(range(layers), range(heads)))
    if settings.file:
        listed = listed_heads(settings.file, layers, heads)
    elif order.base in BY_POSITION:
        listed.sort(key=lambda head: BY_POSITION[order.base](*head))
    elif order.draw is not None:
        import torch

        seed = sha256(f"{settings.seed}/{order.draw}".encode()).digest()[:6]
        generator = torch.Generator().manual_seed(int.from_bytes(seed))
        listed = [listed[index] for index in torch.randperm(len(listed), generator=generator).tolist()]
    digest = weights_digest(settings.model, job.machine)
    about = {"model": settings.model.name, "weights": digest, "order": order.name}
    trace = job.trace(**sources_of(settings.model, digest, job.machine))
    return _write_order(listed, job.output("order"), about, trace)


def listed_heads(path: str, layers: int, heads: int) -> list[Head]:
    """Return the heads of a model in the order in which they are replaced, from a CSV with the columns layer and head.

    The first line of the file is the head that is replaced last. Heads that are not listed are replaced before all
    listed ones, from the first layer on.
    """
    try:
        header, *lines = Path(path).read_text(encoding="utf-8-sig").splitlines() or [""]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({first_line(error)}); give a CSV with the heads.") from error
    if header.replace(" ", "") != "layer,head":
        raise InputError(f"{path} begins with {header!r}; a list of heads begins with the line layer,head.")
    best: list[Head] = []
    for line in filter(str.strip, lines):
        numbers = re.fullmatch(r"\s*([0-9]+)\s*,\s*([0-9]+)\s*", line)
        if numbers is None:
            raise InputError(f"{path} has the line {line!r}; name a head by two numbers, layer and head, such as 4,7.")
        best.append((int(numbers[1]), int(numbers[2])))
    every = list(product(range(layers), range(heads)))
    for place, (layer, head) in enumerate(best):
        if (layer, head) not in every:
            has = f"the model has {count(layers, 'layer')} of {count(heads, 'head')}, counted from 0"
            raise InputError(f"{path} lists head {head} of layer {layer}, but {has}; use a list for this model.")
        if (layer, head) in best[:place]:
            raise InputError(f"{path} lists head {head} of layer {layer} twice; list each head once.")
    return [head for head in every if head not in best] + best[::-1]


def smallest_first(weights: Mapping[Head, float], name: str) -> list[Head]:
    """Sort heads by weight, in the order of their replacement; its `name` determines the order of equal weights."""

    def chance(layer: int, head: int) -> bytes:
        return sha256(f"{name}/{layer}/{head}".encode()).digest()

    return sorted(weights, key=lambda head: (weights[head], chance(*head), head))


def _write_order(heads: list[Head], path: PathLike, about: Mapping[str, object], trace: Trace) -> str:
    import pyarrow as pa

    columns = {"rank": range(len(heads)), "layer": [head[0] for head in heads], "head": [head[1] for head in heads]}
    write_table(pa.table(columns), path, about, trace)
    return f"{len(heads)} heads ranked; layer {heads[0][0]}, head {heads[0][1]} is first"


def heads_to_replace(order: PathLike, variant: Variant, model: Model) -> list[Head]:
    """Return the heads that a variant replaces: the first of an order, which must belong to the model and variant."""
    table = read_table(order)
    must_agree(order, provenance_of(table), {"weights": model.weights, "order": variant.order and variant.order.name})
    ranked = list(zip(table.column("layer").to_pylist(), table.column("head").to_pylist(), strict=True))
    if sorted(ranked) != [(layer, head) for layer in range(model.layers) for head in range(model.heads)]:
        raise InputError(
            f"{order} does not order the heads of this model, which has {model.layers} layers of {model.heads} heads; "
            "rank the heads of this model again."
        )
    return ranked[: len(ranked) - variant.kept_count(len(ranked))]
