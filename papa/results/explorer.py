"""The explorer of heads in the HTML report: each head's λ, rank and pattern, and its constant matrix.

Float32 matrices of all heads would make the report too large. So each entry is a byte: the square root of its share of
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
from papa.config.variant import RANDOM, Constant, Order
from papa.data.tokens import TokensFile
from papa.files import PathLike, read_table
from papa.method.averages import ConstantMatrices
from papa.method.patterns import measure_patterns, special_slots
from papa.method.pictures import MAXIMUM_SLOTS, drawn_slots
from papa.results.grids import has_between
from papa.results.phrases import constant_name, order_name

STEPS, NEVER = 254, 255
"""The byte of a head's largest entry, and the byte of a pair of slots that no example has."""
MAXIMUM_BYTES = 5_000_000
"""Bytes of all matrices of a report together; fewer slots are shown if all slots would need more."""
SPECIAL_SAMPLE = 1000
"""Training examples from which the slots of special tokens are read."""


Matrices = dict[str, object]
"""The average attention of all heads, ready for the report; see `matrices_of`."""
ByHead = list[float | None]
"""A number for each head, `[layer * heads + head]`; None if it is not known."""


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
    of: dict[str, ByHead]


def explored(study: Study, grid: GridView, summary: pd.DataFrame) -> tuple[list[HeadChoice], dict[str, Matrices]]:
    """Collect what the explorer shows for one grid of finished results.

    Args:
        study: knows the paths of the results.
        grid: what is shown. Random orders are not, because a head has several ranks in them. If λ was learned with
            several seeds, the order of the first seed is shown.
        summary: the rows of the summary.

    Returns:
        An entry for each model, task, constant and order if something is known about single heads; and the matrices of
        each set, by the path of their averages.
    """
    jobs = {job.main for job in study.jobs()}
    first = {order.base: order for order in reversed(study.orders(study.grids[grid.name])) if order.base != RANDOM}
    between = has_between(grid.fractions)
    orders: list[Order | None] = [first[base] for base in grid.orders if base in first and between]
    entries: list[HeadChoice] = []
    averages: dict[str, AnyJob] = {}
    for model, (task, corpus), name, order in product(
        grid.models, grid.tasks.items(), grid.constants, orders or [None]
    ):
        constant = Constant.parse(name).for_corpus(corpus)
        with TokensFile.opened(study.results / study.path("tokens", model=model, laid_out=corpus)) as tokens:
            sizes = tokens.provenance["sizes"]
        drawn = [] if constant.start == "mean-output" else study.constants(model, corpus, constant)
        averaged = {job.main: job for job in drawn if job.main in jobs}
        averages |= averaged
        seed = order.draw if order and order.by_lambda else study.config.ranking.seeds[0]
        learned = study.path("lambda", model=model, task=task, constant=constant.untrained, seed=str(seed))
        ranked = study.order(model, task, constant, order).main if order else None
        if not (averaged or ranked or learned in jobs):
            continue
        unknown: ByHead = [None] * (sizes["layers"] * sizes["heads"])
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
                "set": next(iter(averaged), None),
                "of": {
                    "lambda": _by_head(study.results / learned, "value") if learned in jobs else unknown,
                    "rank": _by_head(study.results / ranked, "rank") if ranked else unknown,
                },
            }
        )
    shown = {entry["set"]: entry["layers"] * entry["heads"] for entry in entries}
    most = most_slots([shown[path] for path in averages])
    sets = {}
    for path, job in averages.items():
        constants = ConstantMatrices.load(study.results / path).by_pair()
        tokens_path = study.results / study.path("tokens", **job.wildcards)
        sets[path] = matrices_of(constants, special_slots_of(tokens_path), most)
    return entries, sets


def matrices_of(averages: ConstantMatrices, special: Sequence[int], most: int = MAXIMUM_SLOTS) -> Matrices:
    """Return the average attention of all heads in at most `most` slots, ready for the report.

    `cells` is base64 of uint8 `[layer, head, query, key]` over `slots`. A byte is `NEVER`, or a number from 0 to
    `STEPS` whose square is a share of `largest` `[layer * heads + head]`. `used` is the number of slots that contain a
    token in some example; `special` names the slots of special tokens; `patterns` are the rows of `measure_patterns`.
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
    """Return the slots of special tokens, which the first training examples of a tokens file show."""
    with TokensFile.opened(tokens) as file:
        first = file.extent("train").first
        parts = [part for _, part in file.between(first, first + SPECIAL_SAMPLE) if part.split == "train"]
    slots = [set(special_slots(part)) for part in parts if len(part)]
    return sorted(set.intersection(*slots))


def most_slots(heads: Sequence[int]) -> int:
    """Return the number of slots at which all sets of matrices fit into the report; `heads` are those of each set."""
    return max(1, min(MAXIMUM_SLOTS, isqrt(MAXIMUM_BYTES // max(1, sum(heads)))))


def _by_head(path: PathLike, column: str) -> ByHead:
    rows = read_table(path).to_pandas()
    if "epoch" in rows:
        rows = rows[rows["epoch"] == rows["epoch"].max()]
    return [round(value, 4) for value in rows.sort_values(["layer", "head"])[column].tolist()]
