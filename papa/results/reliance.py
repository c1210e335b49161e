"""Reliances, on a scale from the original (0) to the context-free floor (1), a model in which no token sees another.

Reliance = (original - score) / (original - floor), the share of attention's contribution to a task that is gone when
attention no longer depends on the input. A task has a reliance only if its original beats every context-free floor that
was run, and the best guess that ignores the input. `reliance_of` estimates the reliance on one task, and
`mean_reliance` the mean over tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd

from papa.config.measures import MEASURES
from papa.results.outcomes import (
    ORIGINALS,
    VARIANT_KEYS,
    Sample,
    Setting,
    TaskOutcomes,
    spread_over,
)
from papa.results.statistics import LEVEL, SOURCES, Estimate, Interval, Spread, smallest_margin

RELIANCE_COLUMNS = dict.fromkeys(("trivial", "context_free"), "float64") | {"status": "string"}
RELIANCE_COLUMNS |= dict.fromkeys(
    ("reliance", "reliance_low", "reliance_high", "reliance_bound"), "float64"
)
RELIANCE_COLUMNS |= {f"share_{name}": "float64" for name in SOURCES}

COUNTS = "counts"
"""The status of a task whose original beats all floors; such a task has a reliance and counts in claims."""

WIDEST_INTERVAL = 0.5
"""The width beyond which an interval of a reliance is inconclusive: half of all that attention contributes."""


def conclusive(low: float | None, high: float | None) -> bool:
    """Whether an interval of a reliance has two ends and is at most `WIDEST_INTERVAL` wide."""
    return low is not None and high is not None and high - low <= WIDEST_INTERVAL


def narrow(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return whether the interval from `low` to `high` of each row is conclusive."""
    return (rows["high"] - rows["low"]).le(WIDEST_INTERVAL)


def replaceable(rows: pd.DataFrame, margin: float, column: str = "margin") -> int:
    """Return the largest number of replaced heads whose claim passes at a margin, of one line's claims; 0 if none."""
    return int(max(rows.loc[rows[column] < margin, "replaced"], default=0))


@dataclass(frozen=True)
class Reliance:
    """The drop in score in a setting, as a share of attention's contribution, which differs between floors.

    Its value is the share against the floor with the highest score. Whatever is claimed must hold against every floor:
    an intersection-union test, which needs no correction. So intervals run from the smallest lower to the largest upper
    bound, and it makes no difference which floor has the highest score.

    Args:
        spread: the joint spread of these scores.
        drop: `[score]`, their coefficients in the original minus the setting.
        contributions: `[floor, score]`, those in the original minus each floor, the one with the highest score first.
    """

    spread: Spread
    drop: np.ndarray
    contributions: np.ndarray

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the reliance; its Fieller intervals against all floors are joined."""
        return joined(
            [
                self.spread.ratio(self.drop, contribution, level)
                for contribution in self.contributions
            ]
        )

    def bound(self, level: float) -> float:
        """Return the one-sided upper bound; infinite unless the contribution against every floor is above 0 there."""
        return self.interval(level).bound

    def p_below(self, margin: float) -> float:
        """Return the p value of the claim that attention contributes something and that the reliance is below `margin`.

        This is the test behind `bound`: the p value is below 1 - level if the bound at this level is below `margin`.
        It is 1 if the variance is unknown.
        """
        if not self.spread.known:
            return 1.0
        values = []
        for contribution in self.contributions:
            values.append(self.spread.estimate(contribution).p_beyond(1))
            values.append(self.spread.estimate(self.drop - margin * contribution).p_beyond(-1))
        return max(values)


def joined(intervals: Sequence[Interval]) -> Interval:
    """Return the value of the first interval, from the smallest lower to the largest upper bound of all."""
    _, lows, highs, bounds = zip(*intervals, strict=True)
    return Interval(intervals[0].mean, min(lows), max(highs), max(bounds))


Terms = Sequence[tuple[Sample, str, Setting]]
"""The settings whose reliances count, one for each task: the task's sample, its corpus, and the setting."""


def _reliances_on(terms: Terms) -> list[Reliance] | None:
    """Estimate reliance on several tasks; None if their runs have no seed or no draw in common.

    All tasks have the same seeds, and tasks on one corpus have the same examples. So one spread covers all of them.
    """
    by_corpus: dict[str, list[tuple[Sample, Setting, list[Setting]]]] = {}
    for sample, corpus, setting in terms:
        settings = list(dict.fromkeys([ORIGINALS, *sample.floor_settings, setting]))
        by_corpus.setdefault(corpus, []).append((sample, setting, settings))
    scores = [
        [[(sample, name) for name in names] for sample, _, names in tasks]
        for tasks in by_corpus.values()
    ]
    spread, reliances = spread_over(scores), list[Reliance]()
    if spread is None:
        return None
    for place, (sample, setting, settings) in zip(
        spread.tasks, chain(*by_corpus.values()), strict=True
    ):
        coefficients = np.zeros((1 + len(sample.floor_settings), len(spread.means)))
        for row, name in zip(coefficients, (setting, *sample.floor_settings), strict=True):
            # the original minus a setting; the trivial classifier comes first
            row[place] = [
                0.0,
                *(float(other == ORIGINALS) - float(other == name) for other in settings),
            ]
        reliances.append(Reliance(spread, coefficients[0], coefficients[1:]))
    return reliances


def reliance_of(sample: Sample, setting: Setting) -> Reliance | None:
    """Estimate the reliance in a setting; None if there is no floor, or if the runs of the settings do not match."""
    reliances = _reliances_on([(sample, "", setting)]) if sample.floor_settings else None
    return reliances[0] if reliances else None


def mean_reliance(terms: Terms) -> Interval | None:
    """Average reliance on several tasks; None if their runs have no seed or no draw in common.

    The sum of the tasks' contrasts is tested; nothing is taken as independent except examples of different corpora. The
    value has each task's floor with the highest score. The interval also covers the floors with each task's smallest
    lower bound, and those with its largest upper bound. That of a single task is Fieller's.
    """
    reliances = _reliances_on(terms)
    if reliances is None or len(reliances) == 1:
        return reliances[0].interval() if reliances else None
    tasks = []
    for reliance in reliances:
        by_floor = [
            reliance.spread.ratio(reliance.drop, contribution)
            for contribution in reliance.contributions
        ]
        chosen = (
            0,
            int(np.argmin([each.low for each in by_floor])),
            int(np.argmax([each.high for each in by_floor])),
        )
        tasks.append(
            [(1 / len(reliances), reliance.drop, reliance.contributions[floor]) for floor in chosen]
        )
    return joined(
        [reliances[0].spread.shares(ratios).interval() for ratios in zip(*tasks, strict=True)]
    )


def reliances_of(task_outcomes: Iterable[TaskOutcomes]) -> pd.DataFrame:
    """Return floors, reliance and their intervals, with `RELIANCE_COLUMNS`: a row for each model, task, metric and
    setting.

    `status` is `COUNTS`, or the reason why the task has no reliance. `reliance_low` and `reliance_high` bound the 95%
    interval; `reliance_bound` is the one-sided 95% upper bound. `share_order`, `share_seed`, `share_examples` and
    `share_rows` are the shares of the variance of original - score that are due to each source. `half_width` is that of
    the score's 95% interval.
    """
    rows = [row for outcomes in task_outcomes for row in _rows(outcomes)]
    keys = ["model", "task", "metric", "subset", *VARIANT_KEYS]
    return pd.DataFrame(rows, columns=[*keys, *RELIANCE_COLUMNS, "half_width"])


def _rows(outcomes: TaskOutcomes) -> Iterator[dict[str, object]]:
    for subset, metric, mask in outcomes.scored():
        if MEASURES[metric].has_floors:
            sample = outcomes.sample(metric, mask)
            status = status_of(sample, outcomes, metric)
            common: dict[str, object] = {
                "model": outcomes.model,
                "task": outcomes.task,
                "metric": metric,
            }
            common |= {"subset": subset, "status": status, "trivial": sample.trivial}
            common["context_free"] = sample.floor
            for setting in sample.settings:
                spread = sample.spread(setting)
                score = (
                    spread.estimate([0, 1]).interval()
                    if spread is not None and spread.known
                    else None
                )
                common["half_width"] = (
                    max(score.mean - score.low, score.high - score.mean) if score else None
                )
                yield common | setting._asdict() | _reliance(sample, setting, status)


def _reliance(sample: Sample, setting: Setting, status: str) -> dict[str, object]:
    if setting == ORIGINALS or (spread := sample.spread(ORIGINALS, setting)) is None:
        return {}
    shares = spread.estimate([0, 1, -1]).shares
    row: dict[str, object] = {f"share_{name}": shares[name] for name in SOURCES}
    if status == COUNTS and (reliance := reliance_of(sample, setting)):
        names = ("reliance", "reliance_low", "reliance_high", "reliance_bound")
        row |= dict(zip(names, reliance.interval(), strict=True))
    return row


def status_of(sample: Sample, outcomes: TaskOutcomes, metric: str) -> str:
    """Return `COUNTS` if the original beats all floors significantly; otherwise the reason why it does not count."""
    spread = sample.spread(ORIGINALS, *sample.floor_settings) if sample.floor_settings else None
    if spread is None:
        return "no context-free floor was measured"
    if spread.seeds < 2 and spread.seeded:
        return "one seed, so no interval"
    if not spread.known:
        unit = "validation example" if sample.clusters is None else "cluster of validation examples"
        return f"one {unit}, so no interval"
    over_guess, *over_floors = over_all_floors(sample, spread)
    if not over_guess.above():
        guess = outcomes.guess(metric).words
        return f"the {sample.metric.target.predictor} is not significantly better than {guess} ({sample.trivial:.3f})"
    return (
        COUNTS
        if all(each.above() for each in over_floors)
        else "attention's contribution is not significant"
    )


def over_all_floors(sample: Sample, spread: Spread) -> list[Estimate]:
    """Return the original minus the trivial classifier, and minus each context-free floor of a spread of all these."""
    floors = np.eye(len(sample.floor_settings) + 1)
    return [spread.estimate([-floor[0], 1.0, *-floor[1:]]) for floor in floors]


def examples_needed(sample: Sample) -> int | None:
    """Return the number of validation examples that would show that the original beats all floors.

    The difference that is hardest to show counts, as if the measured one were true, with a power of 80% and the same
    seeds. None if it is unknown, or if a thousand times as many examples would not be enough.
    """
    spread = sample.spread(ORIGINALS, *sample.floor_settings) if sample.floor_settings else None
    if spread is None or not spread.known:
        return None
    hardest = max(over_all_floors(sample, spread), key=lambda each: each.p_beyond(1))
    seeds = spread.seeds if spread.seeded else 1
    of_examples, of_rows = (
        hardest.variance * hardest.shares[name] for name in ("examples", "rows")
    )
    of_seeds = max(hardest.variance - of_examples - of_rows, 0.0) * seeds if spread.seeded else 0.0
    for factor in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        if (
            smallest_margin(seeds, math.sqrt(of_seeds), math.sqrt(of_rows + of_examples / factor))
            < hardest.mean
        ):
            return factor * sample.examples
    return None
