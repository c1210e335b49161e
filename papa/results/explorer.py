"""What the report's attention explorer shows: each head's λ, rank, drop and pattern, and its constant matrix.

A page cannot carry float32 matrices of all heads, so each head travels as bytes: entry / largest entry of the head, in
254 steps. What a reader sees is off by at most a five-hundredth of the largest entry.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import isqrt
from pathlib import Path
from typing import Any

import torch

from papa.config.graph import Graph
from papa.config.kinds import RANDOM, kind_of, on_corpus
from papa.data.tokens import TokensFile
from papa.files import PathLike, read_table
from papa.method.averages import ConstantMatrices
from papa.method.patterns import measure_patterns, special_slots
from papa.results.heatmaps import MOST_SLOTS, drawn_slots
from papa.results.summary import Row, is_main

STEPS, NEVER = 254, 255
"""The byte of a head's largest entry, and that of a pair of slots that no example has."""
MOST_BYTES = 5_000_000
"""Bytes of all matrices of a page together; fewer slots are drawn where they would be more."""
LOOKED_AT = 1000
"""Examples that tell which slots hold special tokens."""


def explored(results: Path, graph: Graph, grid: Mapping[str, Any], summary: Sequence[Row]) -> dict[str, Any]:
    """What the explorer shows of one grid of finished results.

    `sets` has each file of averages once, by its path below the results, as `matrices_of` gives it; `entries` one for
    each model, task, constant and order (but random ones, of which a head has several ranks) with `heads_of` its heads
    and the set (None for constants that need no text) that its matrices are in.
    """
    there = set(graph.artefacts())
    orders = [order for order in grid["orders"] if order != RANDOM] if set(grid["fractions"]) - {"0", "1"} else []
    entries: list[dict[str, Any]] = []
    for model, task, constant in product(grid["models"], grid["tasks"], grid["constants"]):
        name = on_corpus(constant, graph.corpus_of(task))
        with TokensFile.opened(_place(results, graph.tokens(model, task))) as tokens:
            sizes = tokens.provenance["sizes"]
        own = [row for row in summary if (row["model"], row["task"]) == (model, task) and is_main(row)]
        averages = graph.constants(model, graph.corpus_of(task), name)
        held = averages if isinstance(averages, str) and averages in there else None
        for order in orders or [None]:
            lambdas = f"<results>/models/{model}/tasks/{task}/{kind_of(name).name}/lambda.parquet"
            ranked = order and graph.order(model, task, name, order)
            rows = [row for row in own if row["constant"] == name and row["order"] in (None, order)]
            heads = heads_of(
                rows,
                _place(results, lambdas) if lambdas in there else None,
                _place(results, ranked) if ranked else None,
                (sizes["layers"], sizes["heads"]),
            )
            entries.append(
                {"model": model, "task": task, "constant": constant, "order": order, "title": own[0]["title"]}
                | {"layers": sizes["layers"], "heads": sizes["heads"], "set": held, "of": heads}
            )
    sizes_of_sets = {entry["set"]: entry["layers"] * entry["heads"] for entry in entries if entry["set"]}
    most = most_slots(list(sizes_of_sets.values()))
    sets = {}
    for path in sizes_of_sets:
        average = _place(results, path)
        special = special_slots_of(average.with_name("tokens.parquet"))
        sets[path] = matrices_of(ConstantMatrices.load(average), special, most)
    return {"entries": entries, "sets": sets}


def _place(results: Path, path: str) -> Path:
    """Where a path of the graph is."""
    return results / path.removeprefix("<results>/")


def matrices_of(averages: ConstantMatrices, special: Sequence[int], most: int = MOST_SLOTS) -> dict[str, Any]:
    """The average attention of all heads, ready for a page.

    `cells` is base64 of uint8 `[layer, head, query, key]` over `slots`: 0 to `STEPS` in shares of `largest`
    `[layer * heads + head]`, or `NEVER`. `slots` are those of `drawn_slots`, `used` how many hold a token
    in some example; `patterns` are the rows of `papa.method.patterns.measure_patterns`.
    """
    slots = drawn_slots(averages, most)
    count = averages.count[slots][:, slots]
    mean = averages.mean[:, :, slots][:, :, :, slots]
    largest = mean.amax((2, 3), keepdim=True)
    steps = (mean / largest.clamp(min=1e-12) * STEPS).round().masked_fill(count == 0, NEVER)
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
        parts = [part for _, part in file.between(first, first + LOOKED_AT) if part.split == "train"]
    found = [set(special_slots(part)) for part in parts if len(part)]
    return sorted(set.intersection(*found))


def most_slots(heads: Sequence[int]) -> int:
    """How many slots of each set of matrices fit into a page; `heads` are how many heads each set has."""
    return max(1, min(MOST_SLOTS, isqrt(MOST_BYTES // max(1, sum(heads)))))


def heads_of(
    rows: Sequence[Row], lambdas: PathLike | None, order: PathLike | None, shape: tuple[int, int]
) -> dict[str, list[float | int | str | None]]:
    """λ, rank and drop of every head of one model, task, constant and order, in lists `[layer * heads + head]`.

    `rank` 0 is replaced first. `drop` is the relative drop of the run at the largest measured fraction at which the
    head is replaced, `replaced_at` that fraction: what the least replacement that includes this head costs, with all
    that are replaced before it. `rows` are the summary's of the task's own metric on all examples. Lists of what is not
    known hold None.
    """
    layers, per_layer = shape
    number = layers * per_layer
    value: list[float | None] = [None] * number
    rank: list[int | None] = [None] * number
    if lambdas is not None:
        learned = read_table(lambdas).to_pylist()
        last = max(row["epoch"] for row in learned)
        for row in learned:
            if row["epoch"] == last:
                value[row["layer"] * per_layer + row["head"]] = round(row["value"], 4)
    if order is not None:
        for row in read_table(order).to_pylist():
            rank[row["layer"] * per_layer + row["head"]] = row["rank"]
    least = [_least(rows, own) for own in rank]
    return {
        "lambda": list(value),
        "rank": list(rank),
        "drop": [row["relative_drop"] if row else None for row in least],
        "replaced_at": [row["fraction"] if row else None for row in least],
    }


def _least(rows: Sequence[Row], rank: int | None) -> Row | None:
    """The row of `rows` with the fewest heads replaced, that of `rank` among them; without a rank, all of them."""
    there = [row for row in rows if (row["heads"] - row["kept"] > rank if rank is not None else not row["kept"])]
    return max(there, key=lambda row: Fraction(row["fraction"]), default=None)
