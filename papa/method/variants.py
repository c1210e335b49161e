"""The constants of a variant, and the heads that it replaces, in their order (Sec. 3.1, 3.2, 5.2).

Heads are ordered by λ or other weights, by layer, by a list, or at random.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from hashlib import sha256
from itertools import product
from math import floor

import torch

from papa.config.variant import BY_POSITION, TIED, Order
from papa.errors import InputError, count
from papa.files import PathLike, read_table
from papa.method.averages import Constants, data_free_matrix
from papa.model.model import Model
from papa.model.replacement import Head, Loaded
from papa.stages import HiddenStates, Job, Settings


def replaced_by(
    job: Job[Settings], variant: HiddenStates, model: Model, slots: int
) -> tuple[Loaded | None, list[Head] | None]:
    """Return the constants of a variant (None if nothing is replaced) and the replaced heads (None for all).

    `job` reads the files of the variant; `slots` is the number of slots of its tokens.
    """
    if variant.constant is None:
        return None, None
    constants = constants_for(variant.constant, job.reads.get("constants"), model, slots)
    if variant.order is None and variant.heads is None:
        return constants, None
    ranked = ordered_heads(job, variant, model)
    # a Fraction, because a float just below a whole number would keep one head less
    return constants, ranked[: len(ranked) - floor(Fraction(variant.fraction) * len(ranked))]


def constants_for(kind: str, averages: PathLike | None, model: Model, slots: int) -> Loaded:
    """Return the constants of a kind (`Constant.start`); those of texts are read from a file of `averages`."""
    if averages is None:
        return data_free_matrix(kind, slots).expand(model.layers, model.heads, -1, -1)
    if kind in TIED:
        return Constants.load(averages, kind).mean
    return Constants.load_constants(averages)


def ordered_heads(job: Job[Settings], variant: HiddenStates, model: Model) -> list[Head]:
    """Return the heads of a model in the order in which a variant replaces them.

    `lambda-SEED` sorts the heads of all layers by λ after the last epoch, in ascending order (Sec. 3.2);
    `lambda-reversed-SEED` is its reverse. Orders by other weights also start with the smallest. Heads of equal weight
    are in random order, which the name of the order determines. Orders by position, by a list and random ones need no
    data (Figure 5). `random-1`, `random-2`, … are determined by their number and the seed.
    """
    every = list(product(range(model.layers), range(model.heads)))
    if variant.heads is not None:
        for layer, head in variant.heads:
            if (layer, head) not in every:
                has = f"{count(model.layers, 'layer')} of {count(model.heads, 'head')}, counted from 0"
                raise InputError(
                    f"A list has head {head} of layer {layer}, but the model has {has}; use a list for this model."
                )
        # a list begins with its most important head, which is replaced last
        return [head for head in every if head not in variant.heads] + list(variant.heads[::-1])
    order = Order.parse(variant.order or "")
    if order.by_weight:
        # ties are broken by the same name, so an order and its reverse are exact opposites
        heads = smallest_first(
            last_weights(job.reads["weights"]), order.name.replace("lambda-reversed", "lambda")
        )
        return heads[::-1] if order.base == "lambda-reversed" else heads
    if order.base in BY_POSITION:
        return sorted(every, key=lambda head: BY_POSITION[order.base](*head))
    # Python's hash of a text differs from process to process
    seed = sha256(f"{variant.order_seed}/{order.draw}".encode()).digest()[:6]
    generator = torch.Generator().manual_seed(int.from_bytes(seed))
    return [every[index] for index in torch.randperm(len(every), generator=generator).tolist()]


def last_weights(path: PathLike) -> dict[Head, float]:
    """Read the weight of each head after the last epoch."""
    rows = read_table(path).to_pylist()
    last = max(row["epoch"] for row in rows)
    return {(row["layer"], row["head"]): row["value"] for row in rows if row["epoch"] == last}


def smallest_first(weights: Mapping[Head, float], name: str) -> list[Head]:
    """Sort heads by weight, in the order of their replacement; its `name` determines the order of equal weights."""
    return sorted(
        weights,
        key=lambda head: (weights[head], sha256(f"{name}/{head[0]}/{head[1]}".encode()).digest()),
    )
