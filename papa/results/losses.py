"""Losses between two ends: the original, and the context-free floor, a model in which no token sees another.

Loss = (original - score) / (original - floor): the share of attention's contribution to a task that is lost if
attention cannot depend on its input. A task has a loss only if its original beats both the context-free floor and the
best guess that ignores the input. `share_of` estimates all losses, areas and steps of the ladder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from papa.config.measures import MEASURES
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, Sample, Setting, TaskOutcomes
from papa.results.statistics import SOURCES, Estimate, Interval, Spread, together

LOSS_COLUMNS = dict.fromkeys(("trivial", "contextless", "by_word"), "float64") | {"status": "string"}
LOSS_COLUMNS |= dict.fromkeys(("loss", "loss_low", "loss_high", "loss_bound"), "float64")
LOSS_COLUMNS |= {f"share_{name}": "float64" for name in SOURCES}

COUNTS = "counts"
"""The status of a task whose original beats both floors, so that it has a loss and counts in claims."""
CEILING = 0.995
"""A score above this share of the metric's range is at its ceiling."""

Weights = Mapping[Setting, float]
"""The weights of scores in a sum, by setting."""
CONTRIBUTION: Weights = {ORIGINALS: 1.0, FLOOR: -1.0}
"""Attention's contribution: the original minus the floor."""


@dataclass(frozen=True)
class ContributionShare:
    """A sum of scores as a share of attention's contribution: a loss, an area under it, or a step between constants.

    Args:
        spread: how these scores vary together.
        numerator, denominator: the weights of the scores in the sum and in the contribution.
    """

    spread: Spread
    numerator: Sequence[float]
    denominator: Sequence[float]

    def interval(self) -> Interval:
        """Return the share with Fieller's interval."""
        return self.spread.ratio(self.numerator, self.denominator)

    def estimate(self) -> Estimate:
        """Return the share as an estimate that can be averaged with others."""
        return self.spread.share(self.numerator, self.denominator)

    def in_scores(self) -> Estimate:
        """Return the sum itself, in units of the score."""
        return self.spread.estimate(self.numerator)

    @property
    def contribution(self) -> float:
        """Attention's contribution, in units of the score."""
        return float(np.asarray(self.denominator) @ self.spread.means)


def share_of(sample: Sample, weights: Weights) -> ContributionShare | None:
    """Estimate a sum of scores as a share of attention's contribution; None if these were not all run together.

    A setting that is both in the sum and in the contribution is a single quantity. So is a setting that two lines have
    in common, such as the model with every head replaced, which is the same in every order.
    """
    settings = list(dict.fromkeys([*CONTRIBUTION, *(setting for setting, weight in weights.items() if weight)]))
    spread = sample.spread(*settings)
    if spread is None:
        return None
    numerator, denominator = ([0.0, *(part.get(name, 0.0) for name in settings)] for part in (weights, CONTRIBUTION))
    return ContributionShare(spread, numerator, denominator)


def loss_of(sample: Sample, weights: Weights) -> ContributionShare | None:
    """Estimate the weighted sum of the losses of several settings as a single share."""
    return share_of(sample, lost(weights))


def lost(weights: Weights) -> Weights:
    """The weights of scores in a weighted sum of what is lost: of the original minus each score."""
    return difference({ORIGINALS: sum(weights.values())}, weights)


def interval_of(sample: Sample, weights: Weights) -> Sequence[float]:
    """Return a sum of scores as a share of attention's contribution, with its interval; empty if it is not known."""
    if weights == CONTRIBUTION:  # all of it, by definition
        return Interval(1.0, 1.0, 1.0, 1.0)
    if not any(weights.values()):
        return Interval(0.0, 0.0, 0.0, 0.0)
    share = share_of(sample, weights)
    return () if share is None else share.interval()


def difference(minuend: Weights, subtrahend: Weights) -> Weights:
    """The weights of a difference between two sums of scores."""
    settings = {**minuend, **subtrahend}
    return {setting: minuend.get(setting, 0.0) - subtrahend.get(setting, 0.0) for setting in settings}


def mean_of(shares: Sequence[ContributionShare]) -> Interval:
    """Average the shares of several tasks. The interval of a single share is Fieller's."""
    if len(shares) == 1:
        return shares[0].interval()
    return together([share.estimate() for share in shares], [1 / len(shares)] * len(shares)).interval()


def losses_of(measured: Iterable[TaskOutcomes]) -> pd.DataFrame:
    """Return floors, losses and their intervals, with `LOSS_COLUMNS`: a row for each model, task, metric and setting.

    `status` is `COUNTS`, or the reason why the task has no loss. `loss_low` and `loss_high` are the 95 % interval,
    `loss_bound` the one-sided 95 % upper bound. `share_order`, `share_seed` and `share_examples` are the parts of each
    source in the variance of original - score. `half` is half of the 95 % interval of a score without seeds.
    """
    rows = [row for outcomes in measured for row in _rows(outcomes)]
    return pd.DataFrame(
        rows, columns=["model", "task", "metric", "subset", "constant", "order", "fraction", *LOSS_COLUMNS, "half"]
    )


def _rows(measured: TaskOutcomes) -> Iterator[dict[str, object]]:
    for name, part in measured.subsets().items():
        for metric in measured.readings if name == ALL else measured.readings[:1]:
            if not part.any() or not MEASURES[metric].has_floors:
                continue
            sample = measured.sample(metric, part)
            status = status_of(sample, measured, metric)
            about: dict[str, object] = {
                "model": measured.model,
                "task": measured.task,
                "metric": metric,
                "subset": name,
                "status": status,
            }
            about |= {"trivial": sample.trivial, "contextless": sample.mean(FLOOR), "by_word": sample.by_word}
            for setting in sample.settings:
                names = dict(zip(("constant", "order", "fraction"), setting, strict=True))
                yield about | names | _loss(sample, setting, status) | _half_width(sample, setting)


def _loss(sample: Sample, setting: Setting, status: str) -> dict[str, object]:
    """Return the loss of a setting, and the parts of each source in the variance of original - score."""
    if setting == ORIGINALS or (spread := sample.spread(ORIGINALS, setting)) is None:
        return {}
    parts = spread.estimate([0, 1, -1]).shares
    row: dict[str, object] = {f"share_{name}": parts[name] for name in SOURCES}
    if status == COUNTS:
        names = ("loss", "loss_low", "loss_high", "loss_bound")
        row |= dict(zip(names, interval_of(sample, lost({setting: 1.0})), strict=False))
    return row


def _half_width(sample: Sample, setting: Setting) -> dict[str, object]:
    """Return half of the interval of a score without seeds; with seeds the summary has Student's, as in the paper."""
    spread = None if sample.seeded else sample.spread(setting)
    half = spread.estimate([0, 1]).half() if spread is not None and spread.known else np.nan
    return {"half": half}


def status_of(sample: Sample, measured: TaskOutcomes, metric: str) -> str:
    """Return `COUNTS` if the original beats both floors significantly; otherwise the reason why it does not count."""
    spread = sample.spread(ORIGINALS, FLOOR)
    original = sample.mean(ORIGINALS)
    if spread is None or original is None:
        return "no context-free floor was measured"
    if spread.seeds < 2 and spread.seeded:
        return "one seed, so no interval"
    if not spread.known:
        return "one validation example, so no interval"
    if not spread.estimate([-1, 1, 0]).above():
        what = "probe" if measured.probed else "model"
        return f"the {what} is no better than {measured.guess(metric).words} ({sample.trivial:.3f})"
    if not spread.estimate([0, 1, -1]).above():
        return "attention contributes nothing measurable"
    return COUNTS


def at_ceiling(sample: Sample) -> bool:
    """Whether the original score could hardly be higher."""
    original, measure = sample.mean(ORIGINALS), sample.metric
    if original is None or not np.isfinite(measure.low):
        return False
    return original >= measure.low + CEILING * (measure.high - measure.low)
