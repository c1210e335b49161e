"""Scores of predictions, as functions of counts: what each text or sentence adds to them can be told apart.

A metric counts something of every unit (a text, or a sentence with all its words) and makes a score of the sums. So the
score of any part of the units, and what it would be without one of them, follow from the same counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from papa.config.measures import MEASURES, Measure
from papa.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Counts = np.ndarray
"""What a metric counts: float64 `[..., unit, count]`, or `[..., count]` when it is summed over units."""


@dataclass(frozen=True)
class Outcomes:
    """What probes made of the same words or texts.

    Args:
        gold: `[item]`, the right label.
        predicted: `[item]`, the label that was given.
        unit: `[item]`, the number of the text or sentence that an item belongs to, rising.
        names: what the labels are called.
    """

    gold: np.ndarray
    predicted: np.ndarray
    unit: np.ndarray
    names: Sequence[str]

    def __post_init__(self) -> None:
        labels = len(self.names)
        if not len(self.gold) == len(self.predicted) == len(self.unit):
            raise InputError("There must be one prediction and one unit for each label; they differ in length.")
        if not len(self.gold):
            raise InputError("There is nothing to score: no example has a label.")
        values = np.concatenate([self.gold, self.predicted])
        if values.min() < 0 or values.max() >= labels:
            raise InputError(f"Labels and predictions must be indices of the {labels} label names.")

    def where(self, chosen: np.ndarray) -> Outcomes:
        """The outcomes of some items, bool `[item]`."""
        return Outcomes(self.gold[chosen], self.predicted[chosen], self.unit[chosen], self.names)

    def summed(self, *values: np.ndarray) -> Counts:
        """Sums over the items of each unit, `[unit, count]`."""
        _, place = np.unique(self.unit, return_inverse=True)
        return np.stack([np.bincount(place, own) for own in values], axis=1)


def counts_of(metric: str, outcomes: pa.Table, names: Sequence[str], epoch: int | None = None) -> Counts:
    """What each text adds to a metric, `[text, count]`, from a table of outcomes (`papa.method.objective.OUTCOMES`).

    Args:
        metric: one of `MEASURES`.
        outcomes: the rows of one split.
        names: what the labels are called; of no use for losses.
        epoch: after which epoch; None stands for the last.
    """
    suffix = "" if epoch is None else f"_{epoch}"
    columns = {name: outcomes.column(name).to_numpy() for name in outcomes.column_names if name != "split"}
    if "tokens" in columns:
        return np.stack([columns[f"{MEASURES[metric].column}{suffix}"], columns["tokens"].astype(float)], axis=1)
    own = f"{MEASURES[metric].column}{suffix}"
    gold, predicted, unit = (columns[name].astype(np.int64) for name in ("gold", own, "example"))
    return MEASURES[metric].counts(Outcomes(gold, predicted, unit, names))


def score_of_table(metric: str, outcomes: pa.Table, names: Sequence[str]) -> float:
    """The score of the validation split in a table of outcomes."""
    import pyarrow.compute as pc

    counts = counts_of(metric, outcomes.filter(pc.equal(outcomes["split"], "validation")), names)
    return float(MEASURES[metric].score(counts.sum(0)))


def pseudo_values(measure: Measure, counts: Counts) -> np.ndarray:
    """Values `[..., unit]` whose mean is the score: how much each unit adds to it (Tukey's jackknife).

    Args:
        measure: how sums of counts are scored.
        counts: `[..., unit, count]`.
    """
    units = counts.shape[-2]
    total = counts.sum(-2, keepdims=True)
    score = measure.score(total)  # [..., 1]
    if units < 2:
        return np.broadcast_to(score, counts.shape[:-1]).copy()
    values = units * score - (units - 1) * measure.score(total - counts)
    centred: np.ndarray = values - values.mean(-1, keepdims=True) + score
    return centred
