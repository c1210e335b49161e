"""The explorer of heads in the HTML report: each head's λ, rank, pattern and constant matrix.

Matrices in float32 would make the report too large, so each entry is stored in a byte: the square root of its share of
the head's largest entry, in 254 steps. The error is below a 250th of the largest entry, and smaller for small entries.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from itertools import product
from math import isqrt
from typing import TypedDict

import pandas as pd
import torch

from papa.config.job import AnyJob
from papa.config.stages import GridView
from papa.config.study import Study
from papa.config.variant import RANDOM, Constant, Order, Variant
from papa.data.tokens import TokensFile
from papa.files import PathLike, read_table
from papa.method.averages import ConstantMatrices
from papa.method.patterns import measure_patterns, special_slots
from papa.method.pictures import MAXIMUM_SLOTS, drawn_slots
from papa.results.grids import END_FRACTIONS, has_between
from papa.results.phrases import constant_name, order_name

STEPS, NEVER = 254, 255
"""The byte of a head's largest entry, and the byte of a pair of slots that never occurs."""
MAXIMUM_BYTES = 5_000_000
"""The maximum size of all matrices of a report; if they would exceed it, fewer slots are shown."""
SPECIAL_SAMPLE_SIZE = 1000
"""The number of training examples that determine the slots of special tokens."""


Matrices = dict[str, object]
"""The average attention of all heads in the format of the report; see `matrices_of`."""
ByHead = list[float | None]
"""A value for each head, `[layer * heads + head]`; None if it is unknown."""


class HeadChoice(TypedDict):
    """A choice of model, task, constant and order; `matrices` is the key of its matrices, if it has any.

    `kept` is the number of heads that keep their attention at each measured fraction between 0 and 1, if heads have an
    order.
    """

    model: str
    task: str
    title: str
    constant: str
    order: str | None
    words: str
    layers: int
    heads: int
    kept: dict[str, int]
    matrices: str | None
    values: dict[str, ByHead]


def explorer_data(study: Study, grid: GridView, summary: pd.DataFrame) -> tuple[list[HeadChoice], dict[str, Matrices]]:
    """Collect what the explorer shows for one grid of finished results.

    Args:
        study: the study with the paths of the results.
        grid: the grid to show. Random orders are left out, because a head has several ranks in them. If an order was
            learned with several seeds, only the first seed is shown.
        summary: the rows of the summary.

    Returns:
        An entry for each model, task, constant and order for which heads have values; and the matrices, by the path
        of the averages.
    """
    jobs = {job.main for job in study.jobs()}
    grid_orders = study.orders(study.grids[grid.name]) if has_between(grid.fractions) else []
    first_seed = {order.base: order for order in reversed(grid_orders) if order.base != RANDOM}
    orders: list[Order | None] = [first_seed[base] for base in grid.orders if base in first_seed]
    entries: list[HeadChoice] = []
    averages: dict[str, AnyJob] = {}
    for model, (task, corpus), name, order in product(
        grid.models, grid.tasks.items(), grid.constants, orders or [None]
    ):
        constant = Constant.parse(name).for_corpus(corpus)
        with TokensFile.opened(study.results / study.path("tokens", model=model, laid_out=corpus)) as tokens:
            sizes = tokens.provenance["sizes"]
        candidates = [] if constant.start == "mean-output" else study.constants(model, corpus, constant)
        averaged = {job.main: job for job in candidates if job.main in jobs}
        averages |= averaged
        seed = order.draw if order and order.by_lambda else study.config.ranking.seeds[0]
        learned = study.path("lambda", model=model, task=task, constant=constant.untrained, seed=str(seed))
        ranked = study.order(model, task, constant, order).main if order else None
        if not (averaged or ranked or learned in jobs):
            continue
        unknown: ByHead = [None] * (sizes["layers"] * sizes["heads"])
        between = [fraction for fraction in grid.fractions if order and fraction not in END_FRACTIONS]
        rows = summary[summary["model"].eq(model) & summary["task"].eq(task)]
        entries.append(
            {
                "model": model,
                "task": task,
                "title": rows["title"].iloc[0],
                "constant": name,
                "order": order.base if order else None,
                "words": constant_name(name) + (f", {order_name(order.base)} order" if order else ""),
                "layers": sizes["layers"],
                "heads": sizes["heads"],
                "kept": {name: Variant.of(constant, order, name).kept_count(len(unknown)) for name in between},
                "matrices": next(iter(averaged), None),
                "values": {
                    "lambda": _by_head(study.results / learned, "value") if learned in jobs else unknown,
                    "rank": _by_head(study.results / ranked, "rank") if ranked else unknown,
                },
            }
        )
    heads = {entry["matrices"]: entry["layers"] * entry["heads"] for entry in entries}
    maximum = maximum_slots([heads[path] for path in averages])
    sets = {}
    for path, job in averages.items():
        constants = ConstantMatrices.load(study.results / path).by_pair()
        tokens_path = study.results / study.path("tokens", **job.wildcards)
        sets[path] = matrices_of(constants, special_slots_of(tokens_path), maximum)
    return entries, sets


def matrices_of(averages: ConstantMatrices, special: Sequence[int], maximum: int = MAXIMUM_SLOTS) -> Matrices:
    """Convert the average attention of all heads, in at most `maximum` slots, to the format of the report.

    `cells` is base64 of uint8 `[layer, head, query, key]` over `slots`. A byte b is `NEVER`, or stands for the entry
    (b / `STEPS`)² · `largest` `[layer * heads + head]`. `used` is the number of slots that contain a token in at least
    one example; `special` maps the slots of special tokens to their names; `patterns` are the rows of
    `measure_patterns`.
    """
    slots = drawn_slots(averages, maximum)
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
        "special": {slot: "[SEP]" if index else "[CLS]" for index, slot in enumerate(special)},
        "largest": [float(f"{value:.4g}") for value in largest.flatten().tolist()],
        "cells": b64encode(steps.to(torch.uint8).numpy().tobytes()).decode(),
        "patterns": measure_patterns(averages, special),
    }


def special_slots_of(tokens: PathLike) -> list[int]:
    """Return the slots that hold special tokens in all of the first training examples of a tokens file."""
    with TokensFile.opened(tokens) as file:
        first = file.extent("train").first
        blocks = [block for _, block in file.between(first, first + SPECIAL_SAMPLE_SIZE) if block.split == "train"]
    slots = [set(special_slots(block)) for block in blocks if len(block)]
    return sorted(set.intersection(*slots))


def maximum_slots(heads: Sequence[int]) -> int:
    """Return how many slots can be shown within `MAXIMUM_BYTES`; `heads` is the number of heads in each set."""
    return max(1, min(MAXIMUM_SLOTS, isqrt(MAXIMUM_BYTES // max(1, sum(heads)))))


def _by_head(path: PathLike, column: str) -> ByHead:
    rows = read_table(path).to_pandas()
    if "epoch" in rows:
        rows = rows[rows["epoch"] == rows["epoch"].max()]
    return [round(value, 4) for value in rows.sort_values(["layer", "head"])[column].tolist()]
