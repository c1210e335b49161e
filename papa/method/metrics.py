"""Scores of predictions, as functions of counts: what each text or sentence adds to them can be told apart.

A metric counts something of every unit (a text, or a sentence with all its words) and makes a score of the sums. So the
score of any part of the units, and what it would be without one of them, follow from the same counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from papa.config.settings import METRICS
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


@dataclass(frozen=True)
class Metric:
    """A way to score labels.

    Args:
        counts: from outcomes to what each unit adds, `[unit, count]`.
        score: from sums `[..., count]` to scores `[...]`; 0 where the score is not defined.
        low, high: what scores can be at least and at most.
        column: the column of outcomes that is counted; see `papa.method.objectives.OUTCOMES`.
        floors: whether more is better, so that a score has floors, and what is lost between them can be told.
    """

    counts: Callable[[Outcomes], Counts]
    score: Callable[[Counts], np.ndarray]
    low: float = 0.0
    high: float = 1.0
    column: str = "predicted"
    floors: bool = True


def score_of(metric: str, outcomes: Outcomes) -> float:
    """The score of outcomes by a metric of `READINGS`."""
    own = READINGS[metric]
    return float(own.score(own.counts(outcomes).sum(0)))


def counts_of(metric: str, outcomes: pa.Table, names: Sequence[str], epoch: int | None = None) -> Counts:
    """What each text adds to a metric, `[text, count]`, from a table of outcomes (`papa.method.objectives.OUTCOMES`).

    Args:
        metric: one of `READINGS`.
        outcomes: the rows of one split.
        names: what the labels are called; of no use for losses.
        epoch: after which epoch; None stands for the last.
    """
    suffix = "" if epoch is None else f"_{epoch}"
    columns = {name: outcomes.column(name).to_numpy() for name in outcomes.column_names if name != "split"}
    if "tokens" in columns:
        return np.stack([columns[f"{READINGS[metric].column}{suffix}"], columns["tokens"].astype(float)], axis=1)
    own = f"{READINGS[metric].column}{suffix}"
    gold, predicted, unit = (columns[name].astype(np.int64) for name in ("gold", own, "example"))
    return READINGS[metric].counts(Outcomes(gold, predicted, unit, names))


def score_of_table(metric: str, outcomes: pa.Table, names: Sequence[str]) -> float:
    """The score of the validation split in a table of outcomes."""
    import pyarrow.compute as pc

    counts = counts_of(metric, outcomes.filter(pc.equal(outcomes["split"], "validation")), names)
    return float(READINGS[metric].score(counts.sum(0)))


def pseudo_values(metric: Metric, counts: Counts) -> np.ndarray:
    """Values `[..., unit]` whose mean is the score: how much each unit adds to it (Tukey's jackknife).

    Args:
        metric: how sums of counts are scored.
        counts: `[..., unit, count]`.
    """
    units = counts.shape[-2]
    total = counts.sum(-2, keepdims=True)
    score = metric.score(total)  # [..., 1]
    if units < 2:
        return np.broadcast_to(score, counts.shape[:-1]).copy()
    values = units * score - (units - 1) * metric.score(total - counts)
    centred: np.ndarray = values - values.mean(-1, keepdims=True) + score
    return centred


def _right(outcomes: Outcomes) -> Counts:
    return outcomes.summed(outcomes.gold == outcomes.predicted, np.ones(len(outcomes.gold)))


def _share(counts: Counts) -> np.ndarray:
    return _divided(counts[..., 0], counts[..., 1])


def _binary(outcomes: Outcomes) -> Counts:
    """Of the class with index 1: right, predicted and gold."""
    gold, predicted = outcomes.gold == 1, outcomes.predicted == 1
    return outcomes.summed(gold & predicted, predicted, gold)


def _f1(counts: Counts) -> np.ndarray:
    """From right, predicted and gold."""
    return _divided(2 * counts[..., 0], counts[..., 1] + counts[..., 2])


def _confusion(outcomes: Outcomes) -> Counts:
    """How often each pair of labels stands together, `[unit, gold * predicted]`."""
    labels = len(outcomes.names)
    pair = outcomes.gold * labels + outcomes.predicted
    return outcomes.summed(*(pair == number for number in range(labels**2)))


def _matthews(counts: Counts) -> np.ndarray:
    labels = round(counts.shape[-1] ** 0.5)
    table = counts.reshape(*counts.shape[:-1], labels, labels)
    right, total = table.trace(axis1=-2, axis2=-1), counts.sum(-1)
    gold, predicted = table.sum(-1), table.sum(-2)
    spread = (total**2 - (gold**2).sum(-1)) * (total**2 - (predicted**2).sum(-1))
    correlation: np.ndarray = _divided(right * total - (gold * predicted).sum(-1), np.sqrt(spread))
    return correlation


def _entities(outcomes: Outcomes) -> Counts:
    """Entities as seqeval's default mode finds them: right ones, predicted ones and those in the gold labels."""
    # the name of a label is a mark (B, I, E, S, O or ".") and a type, of which a bare tag has the rest of its name
    marks = np.array([name[:1] for name in outcomes.names])
    types = np.array([name[1:].split("-", maxsplit=1)[-1] or "_" for name in outcomes.names])
    kinds = np.unique(types, return_inverse=True)[1]
    ends = np.flatnonzero(np.diff(outcomes.unit, append=outcomes.unit[-1] + 1))
    gaps = np.arange(len(outcomes.gold)) + np.searchsorted(ends, np.arange(len(outcomes.gold)))
    found = []
    for labels in (outcomes.gold, outcomes.predicted):
        # sentences with a word outside of every entity after each, as seqeval reads them
        mark, kind = np.full(len(labels) + len(ends) + 1, "O"), np.full(len(labels) + len(ends) + 1, -1)
        mark[gaps + 1], kind[gaps + 1] = marks[labels], kinds[labels]
        before, now, other = mark[:-1], mark[1:], kind[:-1] != kind[1:]
        inside = np.isin(now, ["E", "I"])
        start = np.isin(now, ["B", "S"]) | (np.isin(before, ["E", "S", "O"]) & inside)
        start |= ~np.isin(now, ["O", "."]) & other
        end = np.isin(before, ["E", "S"]) | (np.isin(before, ["B", "I"]) & np.isin(now, ["B", "S", "O"]))
        end |= ~np.isin(before, ["O", "."]) & other
        begun = np.maximum.accumulate(np.where(start, np.arange(len(start)), 0))
        begin = np.concatenate([[0], begun[:-1]])
        found.append((end, begin, kind[:-1]))
    (gold, *of_gold), (predicted, *of_predicted) = found
    right = gold & predicted & np.all([one == other for one, other in zip(of_gold, of_predicted, strict=True)], axis=0)
    # an entity is counted at its last word, which stands one place before its end
    return outcomes.summed(*(own[gaps + 1] for own in (right, predicted, gold)))


def _nats(counts: Counts) -> np.ndarray:
    """Minus the mean loss, from summed losses and numbers of tokens."""
    return -_divided(counts[..., 0], counts[..., 1])


def _perplexity(counts: Counts) -> np.ndarray:
    """Of a token: e to its mean loss."""
    found: np.ndarray = np.exp(_share(counts))
    return found


def _no_labels(outcomes: Outcomes) -> Counts:
    raise InputError("A task without labels has losses, and no labels to count.")


def _divided(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """A quotient; 0 where there is nothing below."""
    lower = np.asarray(below, float)
    quotient: np.ndarray = np.divide(above, lower, out=np.zeros_like(lower), where=lower != 0)
    return quotient


READINGS: dict[str, Metric] = {
    "accuracy": Metric(_right, _share),
    "f1": Metric(_binary, _f1),
    "matthews_correlation": Metric(_confusion, _matthews, low=-1.0),
    "entity_f1": Metric(_entities, _f1),
    "token_accuracy": Metric(_right, _share),
    "chunk_f1": Metric(_entities, _f1),
    "negative_log_perplexity": Metric(_no_labels, _nats, low=-np.inf, high=0.0, column="loss"),
    "log_likelihood": Metric(_no_labels, _nats, low=-np.inf, high=0.0, column="loss"),
    "perplexity": Metric(_no_labels, _perplexity, low=1.0, high=np.inf, column="loss", floors=False),
    "kl_to_original": Metric(_no_labels, _share, high=np.inf, column="kl", floors=False),
    "choice_accuracy": Metric(_right, _share),
    "normalised_choice_accuracy": Metric(_right, _share, column="normalised"),
}
"""All metrics by name. `chunk_f1` takes label names as they are, bare tags too, as the published code does. Those of
texts without labels are of a token, in nats: a mean log-likelihood, and the mean divergence from the original."""

BESIDE = {
    "f1": ("accuracy",),
    "matthews_correlation": ("accuracy",),
    "entity_f1": ("token_accuracy",),
    "token_accuracy": ("chunk_f1",),
    "log_likelihood": ("perplexity", "kl_to_original"),
    "choice_accuracy": ("normalised_choice_accuracy",),
}
"""Further readings of the same outcomes."""


def readings_of(metric: str) -> tuple[str, ...]:
    """The metric of a task, and further readings of the same outcomes."""
    if metric not in METRICS:
        raise InputError(f"There is no metric {metric!r}; there are {', '.join(METRICS)}.")
    return (metric, *BESIDE.get(metric, ()))
