"""Outcomes of predictions, their counts for each text, and the contribution of each text to a score.

The metrics in `papa.config.measures` turn outcomes into counts, and summed counts into scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from papa.config.measures import MEASURES, OUTCOME_TYPES, Measure
from papa.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Counts = np.ndarray
"""The counts of a metric: float64 `[..., unit, count]`, or `[..., count]` summed over units."""


@dataclass(frozen=True)
class Outcomes:
    """Right and predicted labels of words or of texts; or, for each text, the number of tokens and their summed loss.

    Args:
        gold: `[item]`, the right label, or the number of tokens.
        predicted: `[item]`, the predicted label, or the summed loss.
        unit: `[item]`, the index of the text or sentence of each item, in ascending order.
        names: the label names; empty if there are no labels.
    """

    gold: np.ndarray
    predicted: np.ndarray
    unit: np.ndarray
    names: Sequence[str]

    @classmethod
    def of(
        cls, measure: Measure, items: Mapping[str, np.ndarray], predicted: np.ndarray, names: Sequence[str]
    ) -> Outcomes:
        """Combine `predicted` `[item]`, such as the measure's column of `items`, with the other columns of `items`."""
        if measure.target.labelled and not names:
            raise InputError(f"The metric {measure.name} counts labels, but they have no names; give the label names.")
        right = measure.target.right
        integers = {name: OUTCOME_TYPES[name].startswith("int") for name in (right, measure.column)}
        gold, predicted = (
            values.astype(np.int64 if integers[name] else np.float64)
            for name, values in ((right, items[right]), (measure.column, predicted))
        )
        return cls(gold, predicted, items["example"].astype(np.int64), names)

    def __post_init__(self) -> None:
        labels = len(self.names)
        if not len(self.gold) == len(self.predicted) == len(self.unit):
            raise InputError("Labels, predictions and units differ in length; give one of each for every item.")
        if not labels:
            return
        if not len(self.gold):
            raise InputError("There is nothing to score, because no example has a label; label some examples.")
        values = np.concatenate([self.gold, self.predicted])
        if values.min() < 0 or values.max() >= labels:
            raise InputError(f"Labels and predictions must be indices of the {labels} label names.")

    def summed(self, *values: np.ndarray) -> Counts:
        """Sum values over the items of each unit, `[unit, count]`."""
        _, index = np.unique(self.unit, return_inverse=True)
        return np.stack([np.bincount(index, column) for column in values], axis=1)


def counts_of(metric: str, outcomes: pa.Table, names: Sequence[str], epoch: int | None = None) -> Counts:
    """Return the counts of each text, `[text, count]`, from the outcomes of a split after an epoch (None: the last)."""
    columns = {name: outcomes.column(name).to_numpy() for name in outcomes.column_names if name != "split"}
    measure = MEASURES[metric]
    counted = measure.column if epoch is None else f"{measure.column}_{epoch}"
    return measure.counts(Outcomes.of(measure, columns, columns[counted], names))


def score_of_table(metric: str, outcomes: pa.Table, names: Sequence[str]) -> float:
    """Return the score of the validation split in a table of outcomes."""
    import pyarrow.compute as pc

    counts = counts_of(metric, outcomes.filter(pc.equal(outcomes["split"], "validation")), names)
    return float(MEASURES[metric].score(counts.sum(0)))


def pseudo_values(measure: Measure, counts: Counts) -> np.ndarray:
    """Return each unit's contribution to the score of `counts` `[..., unit, count]` (Tukey's jackknife), `[..., unit]`.

    Their mean is the score.
    """
    units = counts.shape[-2]
    total = counts.sum(-2, keepdims=True)
    score = measure.score(total)  # [..., 1]
    if units < 2:
        return np.broadcast_to(score, counts.shape[:-1]).copy()
    values = units * score - (units - 1) * measure.score(total - counts)
    centred: np.ndarray = values - values.mean(-1, keepdims=True) + score
    return centred
