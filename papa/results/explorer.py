"""The explorer of heads in the HTML report: each head's λ, rank and pattern, and its constant matrix.

Float32 matrices of all heads would make the report too large, so each head is stored as bytes: the square root of
entry / largest entry of the head, in 254 steps. An entry is wrong by less than a 250th of the largest entry, and by
less if it is small.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from itertools import product
from math import isqrt
from pathlib import Path
from typing import TypedDict

import pandas as pd
import torch

from papa.config.stages import GridView
from papa.config.study import Study
from papa.config.variant import RANDOM, Constant, Order
from papa.data.tokens import TokensFile
from papa.files import PathLike, read_table
from papa.method.averages import ConstantMatrices
from papa.method.patterns import measure_patterns, special_slots
from papa.method.pictures import MAXIMUM_SLOTS, drawn_slots
from papa.results.phrases import constant_name, order_name

STEPS, NEVER = 254, 255
"""The byte of a head's largest entry, and that of a pair of slots that no example has."""
MAXIMUM_BYTES = 5_000_000
"""Bytes of all matrices of a report together; fewer slots are shown if all slots would need more."""
SPECIAL_SAMPLE = 1000
"""Training examples from which the slots of special tokens are read."""


Matrices = dict[str, object]
"""The average attention of all heads, ready for the report; see `matrices_of`."""
Heads = dict[str, list[float | None] | list[int | None]]
"""`lambda` and `rank` of every head; see `heads_of`."""


class HeadChoice(TypedDict):
    """A model, a task, a constant and an order that can be chosen together; `set` names the matrices, if any."""

    model: str
    task: str
    title: str
    constant: str
    order: str | None
    words: str
    layers: int
    heads: int
    set: str | None
    of: Heads


def explored(study: Study, grid: GridView, summary: pd.DataFrame) -> tuple[list[HeadChoice], dict[str, Matrices]]:
    """Collect what the explorer shows for one grid of finished results.

    Args:
        study: knows where the results are.
        grid: what is shown. Random orders are not, because a head has several ranks in them. Of the orders that λ gives
            with several seeds, the first is shown.
        summary: the rows of the summary.

    Returns:
        An entry for each model, task, constant and order if something is known about single heads; and the matrices of
        each set, by the path of their averages.
    """
    there = {job.main for job in study.jobs()}
    first = {order.base: order for order in reversed(study.orders(study.grids[grid.name])) if order.base != RANDOM}
    between = set(grid.fractions) - {"0", "1"}
    orders: list[Order | None] = [first[base] for base in grid.orders if base in first and between]
    entries: list[HeadChoice] = []
    averages: dict[str, Path] = {}
    for model, (task, corpus), name in product(grid.models, grid.tasks.items(), grid.constants):
        constant = Constant.parse(name).on(corpus)
        with TokensFile.opened(study.results / study.path("tokens", model=model, laid_out=corpus)) as tokens:
            shape = tokens.provenance["sizes"]["layers"], tokens.provenance["sizes"]["heads"]
        rows = summary[summary["model"].eq(model) & summary["task"].eq(task)]
        pictured = [] if constant.start == "mean-output" else study.constants(model, corpus, constant)
        averaged = [job.main for job in pictured if job.main in there]
        averages |= {path: study.results / path for path in averaged}
        for order in orders or [None]:
            seed = order.draw if order and order.by_lambda else study.config.ranking.seeds[0]
            about = {"model": model, "task": task, "constant": constant.untrained, "seed": str(seed)}
            learned = study.path("lambda", **about)
            ranked = study.order(model, task, constant, order).main if order else None
            if not (averaged or ranked or learned in there):
                continue
            words = constant_name(name) + (f", {order_name(order.base)} order" if order else "")
            entries.append(
                {
                    "model": model,
                    "task": task,
                    "title": rows["title"].iloc[0],
                    "constant": name,
                    "order": order.base if order else None,
                    "words": words,
                    "layers": shape[0],
                    "heads": shape[1],
                    "set": next(iter(averaged), None),
                    "of": heads_of(
                        study.results / learned if learned in there else None,
                        study.results / ranked if ranked else None,
                        shape,
                    ),
                }
            )
    sizes = {entry["set"]: entry["layers"] * entry["heads"] for entry in entries}
    most = most_slots([sizes[path] for path in averages])
    sets = {
        path: matrices_of(
            ConstantMatrices.load(place).by_pair(), special_slots_of(place.with_name("tokens.parquet")), most
        )
        for path, place in averages.items()
    }
    return entries, sets


def matrices_of(averages: ConstantMatrices, special: Sequence[int], most: int = MAXIMUM_SLOTS) -> Matrices:
    """The average attention of all heads in at most `most` slots, ready for the report.

    `cells` is base64 of uint8 `[layer, head, query, key]` over `slots`: 0 to `STEPS`, whose squares are in shares of
    `largest` `[layer * heads + head]`, or `NEVER`. `used` is how many slots contain a token in some example; `special`
    names the slots of special tokens; `patterns` are the rows of `measure_patterns`.
    """
    slots = drawn_slots(averages, most)
    count = averages.count[slots][:, slots]
    mean = averages.mean[:, :, slots][:, :, :, slots]
    largest = mean.amax((2, 3), keepdim=True)
    steps = ((mean / largest.clamp(min=1e-12)).sqrt() * STEPS).round().masked_fill(count == 0, NEVER)
    return {
        "layers": mean.shape[0],
        "heads": mean.shape[1],
        "slots": slots,
        "used": int((averages.count.diagonal() > 0).sum()),
        "examples": averages.examples,
        "special": {slot: "[SEP]" if place else "[CLS]" for place, slot in enumerate(special)},
        "largest": [float(f"{value:.4g}") for value in largest.flatten().tolist()],
        "cells": b64encode(steps.to(torch.uint8).numpy().tobytes()).decode(),
        "patterns": measure_patterns(averages, special),
    }


def special_slots_of(tokens: PathLike) -> list[int]:
    """The slots of special tokens in a tokens file, read off its first training examples."""
    with TokensFile.opened(tokens) as file:
        first = file.extent("train").first
        parts = [part for _, part in file.between(first, first + SPECIAL_SAMPLE) if part.split == "train"]
    slots = [set(special_slots(part)) for part in parts if len(part)]
    return sorted(set.intersection(*slots))


def most_slots(heads: Sequence[int]) -> int:
    """The number of slots of each set of matrices that fit into the report; `heads` are the heads of each set."""
    return max(1, min(MAXIMUM_SLOTS, isqrt(MAXIMUM_BYTES // max(1, sum(heads)))))


def heads_of(lambdas: PathLike | None, order: PathLike | None, shape: tuple[int, int]) -> Heads:
    """λ and rank of every head of one model, task, constant and order.

    Args:
        lambdas: the file of λ; the last epoch counts.
        order: the file of the order.
        shape: how many layers there are, and how many heads in each.

    Returns:
        Lists `[layer * heads + head]`, of None for what is not known. `rank` 0 is replaced first.
    """
    layers, per_layer = shape
    value: list[float | None] = [None] * (layers * per_layer)
    rank: list[int | None] = [None] * (layers * per_layer)
    if lambdas is not None:
        learned = read_table(lambdas).to_pandas()
        for row in learned[learned["epoch"] == learned["epoch"].max()].itertuples():
            value[row.layer * per_layer + row.head] = round(row.value, 4)
    if order is not None:
        for row in read_table(order).to_pandas().itertuples():
            rank[row.layer * per_layer + row.head] = row.rank
    return {"lambda": value, "rank": rank}
