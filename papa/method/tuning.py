"""Choices by scores on inner folds of the training rows: the best learning rate, and the best context-free floor."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypedDict, cast

from papa.config.variant import Variant
from papa.errors import DamagedArtefact, InputError
from papa.files import REBUILD, PathLike, provenance_of, read_table

log = logging.getLogger(__name__)

FOLD_COLUMNS = {"learning_rate": "float64", "fold": "int64", "rows": "int64", "score": "float64"}
"""The columns of a table of folds: learning rate, fold (from 1), rows that were scored, and their score."""


class FoldRow(TypedDict):
    """A row of a table of folds; the score is None if training diverged."""

    learning_rate: float
    fold: int
    rows: int
    score: float | None


@dataclass(frozen=True)
class BestRate:
    """The best learning rate of a variant, by the mean score over inner folds.

    Args:
        learning_rate: the best learning rate; of equally good ones, the smallest.
        score: the mean score.
        at_end: whether this is the smallest or the largest of several learning rates, so a better one may lie beyond.
    """

    learning_rate: float
    score: float
    at_end: bool

    @classmethod
    def of(cls, rows: Sequence[FoldRow]) -> BestRate:
        """Choose from the rows of a table of folds; a learning rate without a score on some fold is left out.

        Raises:
            InputError: no learning rate has a score on every fold.

        >>> scores = (0.1, 0.5), (0.1, 0.7), (0.2, 0.9), (0.2, None)
        >>> BestRate.of([FoldRow(learning_rate=rate, fold=1, rows=9, score=score) for rate, score in scores])
        BestRate(learning_rate=0.1, score=0.6, at_end=True)
        """
        means = mean_scores(rows)
        if not means:
            raise InputError("Training diverged at every learning rate; lower the learning rates.")
        best = max(sorted(means), key=lambda rate: means[rate])
        tried = sorted({row["learning_rate"] for row in rows})
        return cls(best, means[best], len(tried) > 1 and best in (tried[0], tried[-1]))


def mean_scores(rows: Sequence[FoldRow]) -> dict[float, float]:
    """Return the mean score of each learning rate that has a score on every fold."""
    scores: dict[float, list[float]] = {}
    for row in rows:
        score = row["score"]
        scores.setdefault(row["learning_rate"], []).append(math.nan if score is None else score)
    return {rate: fmean(values) for rate, values in scores.items() if not any(map(math.isnan, values))}


def read_folds(path: PathLike) -> tuple[dict[str, str], list[FoldRow]]:
    """Read a table of folds, and the model, task, variant and metric that it belongs to.

    Raises:
        DamagedArtefact: the file contains something else.
    """
    table = read_table(path)
    facts = provenance_of(table)
    if facts.get("table") != "folds":
        raise DamagedArtefact(f"{path} has no scores of inner folds; {REBUILD}.")
    return {name: str(facts[name]) for name in ("model", "task", "variant", "metric")}, cast(
        list[FoldRow], table.to_pylist()
    )


def best_floors(paths: Sequence[PathLike], floors: Sequence[str]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Rank the context-free floors of each model and task by their scores on inner folds, best first.

    Floors with equal scores keep their order in `floors`. A floor whose training diverged is left out, with a warning.

    Args:
        paths: the tables of folds, which may include those of other variants.
        floors: the constants of the floors.

    Raises:
        InputError: the training of every floor of a task diverged.
    """
    constant_of = {Variant.floor(constant).path: constant for constant in floors}
    scores: dict[tuple[str, str], dict[str, float]] = {}
    for facts, rows in map(read_folds, paths):
        if facts["variant"] in constant_of:
            known = scores.setdefault((facts["model"], facts["task"]), {})
            if means := mean_scores(rows):
                known[constant_of[facts["variant"]]] = max(means.values())
            else:
                log.warning(
                    "The floor %s of %s on %s is left out, because its training diverged on inner folds; lower the "
                    "learning rate to include it.",
                    constant_of[facts["variant"]],
                    facts["model"],
                    facts["task"],
                )
    for (model, task), known in scores.items():
        if not known:
            raise InputError(
                f"The training of every context-free floor of {model} on {task} diverged on inner folds; lower the "
                "learning rate."
            )
    return {
        pair: tuple(sorted((floor for floor in floors if floor in known), key=known.__getitem__, reverse=True))
        for pair, known in scores.items()
    }
