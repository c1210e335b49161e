"""What a checked config runs: its grids, and which models, tasks and texts they bring together."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from papa.config.kinds import kind_of

Config = dict[str, Any]

RUN = "score_by_fraction"
"""What the table and figure of `run` are called, beside those of the named grids."""


def analyses(config: Config) -> dict[str, dict[str, Any]]:
    """The grids of runs of a checked config by name: `run`, then `grids`, where what one leaves out is as in `run`."""
    return {RUN: config["run"]} | {name: config["run"] | grid for name, grid in config["grids"].items()}


def grids(config: Config) -> list[dict[str, Any]]:
    """The same grids without their names."""
    return list(analyses(config).values())


def pairs(config: Config) -> list[tuple[str, str]]:
    """The models and tasks that are run together, each pair once."""
    return list(dict.fromkeys(pair for grid in grids(config) for pair in product(grid["models"], grid["tasks"])))


def is_masked(task: Mapping[str, Any]) -> bool:
    """Whether a task is masked language modelling: one without labels."""
    return "label" not in task


def corpora_of_runs(config: Config) -> list[str]:
    """The corpora of the tasks that are run, and those that averages are made of, each once."""
    used = [config["tasks"][task]["corpus"] for grid in grids(config) for task in grid["tasks"]]
    used += [corpus for grid in grids(config) for name in grid["constants"] if (corpus := kind_of(name).corpus)]
    return list(dict.fromkeys(used))
