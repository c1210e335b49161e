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

import pandas as pd
import torch

from papa.config.variant import Constant
from papa.method.averages import Constants
from papa.method.pictures import MAXIMUM_SLOTS, drawn_slots
from papa.method.variants import last_weights, smallest_first
from papa.results.attention_patterns import special_slots_of
from papa.results.finished import Finished
from papa.results.phrases import constant_name
from papa.results.table import Row
from papa.results.views import grid_views
from papa.stages import AnyJob, LearnLambda

STEPS = 254
NEVER = 255
"""The byte of a head's largest entry, and the byte of a pair of slots that never occurs."""
MAXIMUM_BYTES = 5_000_000
"""The maximum size of all matrices of a report; if they would exceed it, fewer slots are shown."""
HEAD_COLUMNS = dict.fromkeys(("model", "task", "constant", "order"), "string") | dict.fromkeys(
    ("seed", "layer", "head"), "int64"
)
HEAD_COLUMNS |= {"value": "float64", "rank": "int64"}


def head_maps(finished: Finished) -> tuple[list[Row], dict[str, Row]]:
    """Return a map for each model, task and constant of `run` with λ or averages, and the matrices by key.

    A map has `title`, `layers`, `heads`, λ as `weights` `[layer * heads + head]`, and the key of its `matrices`; both
    are None if unknown. If λ was learned with several seeds, only the first seed is shown.
    """
    config = finished.config
    grid = grid_views(config)[0]
    maps = []
    sets = dict[str, Row]()
    sizes = dict[str | None, Sequence[int]]()
    number = int(finished.summary.drop_duplicates("model")["heads"].sum())
    number *= len(set(grid.tasks.values())) * len(grid.constants)
    # a matrix has a byte for each pair of slots
    maximum = max(1, min(MAXIMUM_SLOTS, isqrt(MAXIMUM_BYTES // number)))
    for model, task, name in product(grid.models, grid.tasks, grid.constants):
        corpus = grid.tasks[task]
        constant = Constant.parse(name).for_corpus(corpus)
        # outputs of heads have no entries for pairs of slots
        has_pairs = constant.averaged != "mean-output"
        averaged = finished.averages(model, corpus, constant) if has_pairs else None
        learned = finished.only(
            LearnLambda.stage,
            model=model,
            task=task,
            constant=constant.untrained,
            order="lambda",
            seed=config.ranking.seeds[0],
        )
        if averaged is None and learned is None:
            continue
        key = None
        if averaged:
            key = f"{Path(averaged.output).stem}:{constant.start}"
            if key not in sets:
                constants = Constants.load(averaged.output, constant.start)
                sizes[key] = constants.sum.shape[:2]
                special = special_slots_of(averaged.reads["tokens"])
                sets[key] = matrices_of(constants, special, maximum)
        weights = sorted(last_weights(learned.output).items()) if learned else []
        layers, heads = (number + 1 for number in weights[-1][0]) if weights else sizes[key]
        maps.append(
            {
                "title": f"{config.titles[task]}, {model}, {constant_name(name)}",
                "layers": layers,
                "heads": heads,
                "weights": [round(value, 4) for _, value in weights] or None,
                "matrices": key,
            }
        )
    return maps, sets


def heads_of(jobs: Iterable[AnyJob]) -> pd.DataFrame:
    """Return the weight and the rank of every head in each learned order; the head of rank 0 is replaced first."""
    rows = []
    for job in jobs:
        if job.stage == "learn_lambda":
            about = [job.about[name] for name in ("model", "task", "constant", "order", "seed")]
            weights = last_weights(job.output)
            # equal weights are ordered by this name, as they were when heads were replaced
            ranked = smallest_first(weights, f"{job.about['order']}-{job.about['seed']}")
            rows += [(*about, *head, weights[head], ranked.index(head)) for head in sorted(weights)]
    return pd.DataFrame(rows, columns=list(HEAD_COLUMNS))


def matrices_of(averages: Constants, special: Sequence[int], maximum: int = MAXIMUM_SLOTS) -> Row:
    """Return the average attention of all heads in at most `maximum` slots, as the report has it.

    `cells` is base64 of uint8 `[layer, head, query, key]`. A byte b is `NEVER`, or stands for the entry
    (b / `STEPS`)² · `largest` `[layer * heads + head]`. `special` has the slots of special tokens.
    """
    slots = drawn_slots(averages, maximum)
    count = averages.count[slots][:, slots]
    mean = averages.mean[:, :, slots][:, :, :, slots]
    largest = mean.amax((2, 3), keepdim=True)
    steps = ((mean / largest.clamp(min=1e-12)).sqrt() * STEPS).round()
    steps = steps.masked_fill(count == 0, NEVER)
    return {
        "slots": slots,
        "examples": averages.examples,
        "special": special,
        "largest": [float(f"{value:.4g}") for value in largest.flatten().tolist()],
        "cells": b64encode(steps.to(torch.uint8).numpy().tobytes()).decode(),
    }
