"""The map of heads in the HTML report: λ of every head, and the matrix that replaces the chosen one.

Matrices in float32 would make the report too large, so each entry is stored in a byte: the square root of its share of
the head's largest entry, in 254 steps. The error is below a 250th of the largest entry, and smaller for small entries.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from itertools import product
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import pandas as pd
import torch

from papa.config.variant import TIED, Constant
from papa.data.tokens import TokensFile
from papa.files import PathLike
from papa.method.averages import Constants
from papa.method.patterns import special_slots
from papa.method.pictures import MAXIMUM_SLOTS, drawn_slots
from papa.method.variants import last_weights, smallest_first
from papa.plan.jobs import AnyJob
from papa.results.attention_patterns import tokens_of
from papa.results.phrases import constant_name
from papa.results.views import grid_views

if TYPE_CHECKING:
    from papa.results.finished import Finished

STEPS, NEVER = 254, 255
"""The byte of a head's largest entry, and the byte of a pair of slots that never occurs."""
MAXIMUM_BYTES = 5_000_000
"""The maximum size of all matrices of a report; if they would exceed it, fewer slots are shown."""
SPECIAL_SAMPLE_SIZE = 1000
"""The number of training examples that determine the slots of special tokens."""


HEAD_COLUMNS = dict.fromkeys(("model", "task", "constant", "order"), "string") | dict.fromkeys(
    ("seed", "layer", "head"), "int64"
)
HEAD_COLUMNS |= {"value": "float64", "rank": "int64"}


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


def head_maps(finished: Finished) -> tuple[list[HeadMap], dict[str, MapMatrices]]:
    """Return a map for each model, task and constant of `run` with λ or averages, and the matrices by key.

    If λ was learned with several seeds, only the first seed is shown.
    """
    config, grid = finished.config, grid_views(finished.config)[0]
    maps, averages = list[HeadMap](), dict[str, tuple[AnyJob, str]]()
    for model, task, name in product(grid.models, grid.tasks, grid.constants):
        corpus, seed = grid.tasks[task], config.ranking.seeds[0]
        constant = Constant.parse(name).for_corpus(corpus)
        about = {"model": model, "corpus": constant.corpus or corpus, "slots": config.corpora[corpus].slots}
        has_pairs = not constant.data_free and constant.start != "mean-output"
        averaged = next(iter(finished.of_stage("average", **about, kind="average") if has_pairs else ()), None)
        about = {"model": model, "task": task, "constant": constant.untrained}
        learned = next(iter(finished.of_stage("learn_lambda", **about, order="lambda", seed=seed)), None)
        if averaged is None and learned is None:
            continue
        title = f"{config.tasks[task].title or task}, {model}, {constant_name(name)}"
        head_map: HeadMap = {"title": title, "layers": 0, "heads": 0, "weights": None, "matrices": None}
        if averaged is not None:
            head_map["matrices"] = key = f"{Path(averaged.output).stem}:{constant.start}"
            averages[key] = averaged, constant.start
        if learned is not None:
            weights = sorted(last_weights(learned.output).items())
            head_map["weights"] = [round(value, 4) for _, value in weights]
            head_map["layers"], head_map["heads"] = (number + 1 for number in weights[-1][0])
        maps.append(head_map)
    numbers = finished.summary.groupby("model")["heads"].first()
    maximum = maximum_slots([int(numbers[job.about["model"]]) for job, _ in averages.values()])
    sets = dict[str, MapMatrices]()
    for key, (job, kind) in averages.items():
        constants = Constants.load(job.output)
        constants = constants.tied(kind) if kind in TIED else constants
        sets[key] = matrices_of(constants, special_slots_of(tokens_of(finished, job).output), maximum)
        for head_map in maps:
            if head_map["matrices"] == key:
                head_map["layers"], head_map["heads"] = constants.sum.shape[:2]
    return maps, sets


def heads_of(jobs: Iterable[AnyJob]) -> pd.DataFrame:
    """Return the weight and the rank of every head in each learned order; the head of rank 0 is replaced first."""
    rows = []
    for job in jobs:
        if job.stage == "learn_lambda":
            about = {name: job.about[name] for name in ("model", "task", "constant", "order", "seed")}
            weights = last_weights(job.output)
            ranks = {head: rank for rank, head in enumerate(smallest_first(weights, "{order}-{seed}".format(**about)))}
            rows += [(*about.values(), *head, weights[head], ranks[head]) for head in sorted(weights)]
    return pd.DataFrame(rows, columns=list(HEAD_COLUMNS))


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
