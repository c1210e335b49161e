"""Losses, on a scale from the original (0) to the context-free floor (1), a model in which no token sees another.

Loss = (original - score) / (original - floor), the share of attention's contribution to a task that is lost if
attention cannot depend on its input. A task has a loss only if its original beats both the context-free floor and the
best guess that ignores the input. `share_of` estimates all losses on one task, and
`sum_of_shares` their sums over tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from papa.config.measures import MEASURES
from papa.results.outcomes import ALL, ORIGINALS, VARIANT_KEYS, Sample, Setting, TaskOutcomes, spread_over
from papa.results.statistics import SOURCES, Estimate, Interval, Spread

LOSS_COLUMNS = dict.fromkeys(("trivial", "contextless", "by_word"), "float64") | {"status": "string"}
LOSS_COLUMNS |= dict.fromkeys(("loss", "loss_low", "loss_high", "loss_bound"), "float64")
LOSS_COLUMNS |= {f"share_{name}": "float64" for name in SOURCES}

COUNTS = "counts"
"""The status of a task whose original beats both floors; such a task has a loss and counts in claims."""
CEILING_SHARE = 0.995
"""A score is at its ceiling if it exceeds this share of the metric's range."""

Combination = Mapping[Setting, float]
"""A linear combination of scores: the coefficient of each setting's score."""


@dataclass(frozen=True)
class ContributionShare:
    """A combination of scores as a share of attention's contribution: a loss, or part of one.

    Args:
        spread: the joint spread of these scores.
        numerator, denominator: their coefficients in the combination and in the contribution.
    """

    spread: Spread
    numerator: Sequence[float]
    denominator: Sequence[float]

    def interval(self) -> Interval:
        """Return the share with Fieller's interval."""
        return self.spread.ratio(self.numerator, self.denominator)

    def bound(self, level: float) -> float:
        """Return the one-sided upper bound at a confidence level; infinite unless the contribution is above 0 there."""
        return self.spread.ratio(self.numerator, self.denominator, level).bound

    def p_below(self, margin: float) -> float:
        """Return the p value of the claim that attention contributes something and that the share is below `margin`.

        This is the test behind `bound`: the p value is below 1 - level if the bound at this level is below `margin`.
        It is 1 if the variance is unknown.
        """
        if not self.spread.known:
            return 1.0
        contrast = np.asarray(self.numerator) - margin * np.asarray(self.denominator)
        contribution = self.spread.estimate(self.denominator).p_above()
        return max(self.spread.estimate(contrast.tolist()).p_below(), contribution)

    def estimate(self) -> Estimate:
        """Return the share as an estimate, by the delta method."""
        return self.spread.share(self.numerator, self.denominator)

    def in_scores(self) -> Estimate:
        """Return the combination itself, in units of the score."""
        return self.spread.estimate(self.numerator)

    @property
    def contribution(self) -> float:
        """Attention's contribution, in units of the score."""
        return float(np.asarray(self.denominator) @ self.spread.means)


def contribution_of(sample: Sample) -> Combination:
    """Return attention's contribution: the original minus the context-free floor of a sample."""
    return {ORIGINALS: 1.0, sample.floor_setting: -1.0}


def share_of(sample: Sample, combination: Combination) -> ContributionShare | None:
    """Estimate a combination of scores as a share of attention's contribution; None if their runs do not match.

    A setting that occurs several times is a single quantity: in the combination and in the contribution, or in two
    curves that share it, such as the model with every head replaced, which is the same in every order.
    """
    settings = _settings_of(sample, combination)
    spread = sample.spread(*settings)
    if spread is None:
        return None
    numerator, denominator = (_coefficients(sums, settings) for sums in (combination, contribution_of(sample)))
    return ContributionShare(spread, numerator, denominator)


def _settings_of(sample: Sample, combination: Combination) -> list[Setting]:
    """Return the settings of the contribution and of a combination."""
    contribution = contribution_of(sample)
    return list(dict.fromkeys([*contribution, *(setting for setting, weight in combination.items() if weight)]))


def _coefficients(combination: Combination, settings: Sequence[Setting]) -> list[float]:
    """Return the coefficients of the trivial classifier, which is 0, and of each setting."""
    return [0.0, *(combination.get(setting, 0.0) for setting in settings)]


def loss_of(sample: Sample, weights: Combination) -> ContributionShare | None:
    """Estimate a weighted sum of the losses of several settings."""
    return share_of(sample, lost_score(weights))


def lost_score(weights: Combination) -> Combination:
    """Return the weighted sum of the score lost in each setting, which is the original minus the setting's score."""
    return difference({ORIGINALS: sum(weights.values())}, weights)


def interval_of(sample: Sample, combination: Combination) -> Sequence[float]:
    """Return a combination as a share of attention's contribution, with its interval; empty if it is unknown."""
    if combination == contribution_of(sample):  # all of it, by definition
        return Interval(1.0, 1.0, 1.0, 1.0)
    if not any(combination.values()):
        return Interval(0.0, 0.0, 0.0, 0.0)
    share = share_of(sample, combination)
    return () if share is None else share.interval()


def difference(minuend: Combination, subtrahend: Combination) -> Combination:
    """Subtract one combination of scores from another."""
    settings = {**minuend, **subtrahend}
    return {setting: minuend.get(setting, 0.0) - subtrahend.get(setting, 0.0) for setting in settings}


@dataclass(frozen=True)
class Term:
    """A weighted share of attention's contribution to one task, in a sum over tasks or over the lines of two models.

    Args:
        sample: the scores of a model on the task.
        corpus: the corpus of the task; tasks on one corpus have the same examples.
        combination: the combination of scores whose share counts.
        weight: its weight in the sum.
    """

    sample: Sample
    corpus: str
    combination: Combination
    weight: float = 1.0


def sum_of_shares(terms: Sequence[Term]) -> Estimate | None:
    """Estimate a weighted sum of shares; None if the runs of all terms have no seed or no draw in common.

    All terms have the same seeds, and terms of one corpus have the same examples. So one spread covers all of them, and
    the sum of their contrasts is tested; nothing is taken as independent except examples of different corpora.

    Args:
        terms: the shares; each has another sample.
    """
    by_corpus: dict[str, list[Term]] = {}
    for term in terms:
        by_corpus.setdefault(term.corpus, []).append(term)
    settings = [
        [(term.sample, _settings_of(term.sample, term.combination)) for term in part] for part in by_corpus.values()
    ]
    spread = spread_over(settings)
    if spread is None:
        return None
    ordered = [term for part in by_corpus.values() for term in part]
    flat = [names for part in settings for _, names in part]

    def placed(combination: Combination, task: int) -> list[float]:
        vector = np.zeros(len(spread.means))
        vector[spread.tasks[task]] = _coefficients(combination, flat[task])
        return list(vector.tolist())

    shares = [
        (term.weight, placed(term.combination, task), placed(contribution_of(term.sample), task))
        for task, term in enumerate(ordered)
    ]
    return spread.shares(shares)


def mean_share(terms: Sequence[Term]) -> Interval | None:
    """Average the shares of several tasks; the interval of a single share is Fieller's."""
    if len(terms) == 1:
        share = share_of(terms[0].sample, terms[0].combination)
        return None if share is None else share.interval()
    mean = sum_of_shares([replace(term, weight=1 / len(terms)) for term in terms])
    return None if mean is None else mean.interval()


def losses_of(task_outcomes: Iterable[TaskOutcomes]) -> pd.DataFrame:
    """Return floors, losses and their intervals, with `LOSS_COLUMNS`: a row for each model, task, metric and setting.

    `status` is `COUNTS`, or the reason why the task has no loss. `loss_low` and `loss_high` bound the 95 % interval;
    `loss_bound` is the one-sided 95 % upper bound. `share_order`, `share_seed` and `share_examples` are the shares of
    the variance of original - score that are due to each source. If scores have no seeds, `half_width_without_seeds`
    is the half-width of their 95 % interval.
    """
    rows = [row for outcomes in task_outcomes for row in _rows(outcomes)]
    keys = ["model", "task", "metric", "subset", *VARIANT_KEYS]
    return pd.DataFrame(rows, columns=[*keys, *LOSS_COLUMNS, "half_width_without_seeds"])


def _rows(outcomes: TaskOutcomes) -> Iterator[dict[str, object]]:
    for subset, mask in outcomes.subsets().items():
        for metric in outcomes.reported_metrics if subset == ALL else (outcomes.metric,):
            if not mask.any() or not MEASURES[metric].has_floors:
                continue
            sample = outcomes.sample(metric, mask)
            status = status_of(sample, outcomes, metric)
            common: dict[str, object] = {
                "model": outcomes.model,
                "task": outcomes.task,
                "metric": metric,
                "subset": subset,
                "status": status,
            }
            common |= {
                "trivial": sample.trivial,
                "contextless": sample.mean(sample.floor_setting),
                "by_word": sample.by_word,
            }
            for setting in sample.settings:
                names = setting._asdict()
                width = {"half_width_without_seeds": _half_width(sample, setting)}
                yield common | names | _loss(sample, setting, status) | width


def _loss(sample: Sample, setting: Setting, status: str) -> dict[str, object]:
    """Return the loss in a setting, and the share of the variance of original - score due to each source."""
    if setting == ORIGINALS or (spread := sample.spread(ORIGINALS, setting)) is None:
        return {}
    shares = spread.estimate([0, 1, -1]).shares
    row: dict[str, object] = {f"share_{name}": shares[name] for name in SOURCES}
    if status == COUNTS:
        names = ("loss", "loss_low", "loss_high", "loss_bound")
        row |= dict(zip(names, interval_of(sample, lost_score({setting: 1.0})), strict=False))
    return row


def _half_width(sample: Sample, setting: Setting) -> float:
    """Return the half-width of the interval of a score without seeds; with seeds, the summary uses Student's t."""
    spread = None if sample.seeded else sample.spread(setting)
    return spread.estimate([0, 1]).half_width() if spread is not None and spread.known else np.nan


def status_of(sample: Sample, outcomes: TaskOutcomes, metric: str) -> str:
    """Return `COUNTS` if the original beats both floors significantly; otherwise the reason why it does not count."""
    if is_counted(sample):
        return COUNTS
    spread = sample.spread(ORIGINALS, sample.floor_setting)
    if spread is None:
        return "no context-free floor was measured"
    if spread.seeds < 2 and spread.seeded:
        return "one seed, so no interval"
    if not spread.known:
        unit = "validation example" if sample.clusters is None else "cluster of validation examples"
        return f"one {unit}, so no interval"
    if not spread.estimate([-1, 1, 0]).above():
        guess = outcomes.guess(metric).words
        return f"the {sample.metric.target.predictor} is no better than {guess} ({sample.trivial:.3f})"
    return "attention contributes nothing measurable"


def is_counted(sample: Sample) -> bool:
    """Return whether the original beats both floors significantly, so a task has losses and counts in claims."""
    spread = sample.spread(ORIGINALS, sample.floor_setting)
    if spread is None or not spread.known or (spread.seeds < 2 and spread.seeded):
        return False
    return spread.estimate([-1, 1, 0]).above() and spread.estimate([0, 1, -1]).above()


def at_ceiling(sample: Sample) -> bool:
    """Whether the original's score could hardly be higher."""
    original, measure = sample.mean(ORIGINALS), sample.metric
    if original is None or not np.isfinite(measure.low):
        return False
    return original >= measure.low + CEILING_SHARE * (measure.high - measure.low)
