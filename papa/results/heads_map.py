"""The map of heads in the HTML report: λ of every head, and the matrix that replaces the chosen one.

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

from papa.config.settings import RUN
from papa.config.study import Plan
from papa.config.variant import TIED, Constant
from papa.data.tokens import TokensFile
from papa.files import PathLike, read_table
from papa.method.averages import Constants
from papa.method.patterns import special_slots
from papa.method.pictures import MAXIMUM_SLOTS, drawn_slots
from papa.results.phrases import constant_name

STEPS, NEVER = 254, 255
"""The byte of a head's largest entry, and the byte of a pair of slots that never occurs."""
MAXIMUM_BYTES = 5_000_000
"""The maximum size of all matrices of a report; if they would exceed it, fewer slots are shown."""
SPECIAL_SAMPLE_SIZE = 1000
"""The number of training examples that determine the slots of special tokens."""


class MapMatrices(TypedDict):
    """The average attention of all heads over some slots.

    `cells` is base64 of uint8 `[layer, head, query, key]`. A byte b is `NEVER`, or stands for the entry
    (b / `STEPS`)² · `largest` `[layer * heads + head]`. `special` maps the slots of special tokens to their names.
    """

    slots: list[int]
    examples: int
    special: dict[int, str]
    largest: list[float]
    cells: str


class HeadMap(TypedDict):
    """The heads of a model on a task: their λ `[layer * heads + head]`, and the key of their matrices, if known."""

    title: str
    layers: int
    heads: int
    weights: list[float] | None
    matrices: str | None


def head_maps(study: Plan, summary: pd.DataFrame) -> tuple[list[HeadMap], dict[str, MapMatrices]]:
    """Return a map for each model, task and constant of `run` with λ or averages, and the matrices by key.

    If λ was learned with several seeds, only the first seed is shown.
    """
    grid, jobs = study.grids[RUN], {job.main for job in study.jobs()}
    head_counts = summary.groupby("model")["heads"].first()
    maps, tokens, needed = list[HeadMap](), dict[str, PathLike](), dict[str, int]()
    for model, task, name in product(grid.models, grid.tasks, grid.constants):
        corpus = study.config.tasks[task].corpus
        constant = Constant.parse(name).for_corpus(corpus)
        candidates = [] if constant.start == "mean-output" else study.constants(model, corpus, constant)
        averaged = next((job for job in candidates if job.main in jobs), None)
        seed = str(study.config.ranking.seeds[0])
        learned = study.path("lambda", model=model, task=task, constant=constant.untrained, seed=seed)
        if averaged is None and learned not in jobs:
            continue
        key = None
        if averaged is not None:
            key = f"{averaged.main}:{constant.start}"
            tokens[key] = study.results / study.path("tokens", **averaged.wildcards)
            needed[key] = int(head_counts[model])
        title = f"{study.config.tasks[task].title or task}, {model}, {constant_name(name)}"
        maps.append({"title": title, "layers": 0, "heads": 0, "weights": None, "matrices": key})
        if learned in jobs:
            rows = read_table(study.results / learned).to_pandas()
            rows = rows[rows["epoch"] == rows["epoch"].max()].sort_values(["layer", "head"])
            maps[-1]["weights"] = [round(value, 4) for value in rows["value"]]
            maps[-1]["layers"], maps[-1]["heads"] = int(rows["layer"].max()) + 1, int(rows["head"].max()) + 1
    maximum, sets = maximum_slots(list(needed.values())), dict[str, MapMatrices]()
    for key in needed:
        path, kind = key.rsplit(":", 1)
        constants = Constants.load(study.results / path)
        constants = constants.tied(kind) if kind in TIED else constants
        sets[key] = matrices_of(constants, special_slots_of(tokens[key]), maximum)
        for head_map in maps:
            if head_map["matrices"] == key:
                head_map["layers"], head_map["heads"] = constants.sum.shape[:2]
    return maps, sets


def matrices_of(averages: Constants, special: Sequence[int], maximum: int = MAXIMUM_SLOTS) -> MapMatrices:
    """Convert the average attention of all heads, in at most `maximum` slots, to the format of the report."""
    slots = drawn_slots(averages, maximum)
    count = averages.count[slots][:, slots]
    mean = averages.mean[:, :, slots][:, :, :, slots]
    largest = mean.amax((2, 3), keepdim=True)
    steps = ((mean / largest.clamp(min=1e-12)).sqrt() * STEPS).round().masked_fill(count == 0, NEVER)
    return {
        "slots": slots,
        "examples": averages.examples,
        "special": {slot: "[SEP]" if index else "[CLS]" for index, slot in enumerate(special)},
        "largest": [float(f"{value:.4g}") for value in largest.flatten().tolist()],
        "cells": b64encode(steps.to(torch.uint8).numpy().tobytes()).decode(),
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
