"""The points lost when heads are replaced, those that attention contributes, and their ratio, the reliance.

Three models are scored: the original, the one with constants, and context-free floors, in which no token sees another.
Lost = original - constants. Contributed by attention = original - floor. Reliance = lost / contributed: 0 if constants
do as well as attention, 1 if they do no better than the floor. The first two are in units of the score and always have
a number; a reliance is defined only if attention contributes significantly. `effect_of` estimates all three on one
task, and `mean_reliance` the mean reliance over tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import pandas as pd

from papa.config.margin import Margin
from papa.config.measures import MEASURES
from papa.results.outcomes import (
    ORIGINALS,
    VARIANT_KEYS,
    Sample,
    Setting,
    TaskOutcomes,
    joint_spread,
    spread_over,
)
from papa.results.statistics import LEVEL, SOURCES, Estimate, Interval, Spread, smallest_margin
from papa.results.table import Row

LOST = ("lost", "lost_low", "lost_high", "lost_bound")
CONTRIBUTED = ("contributed", "contributed_low", "contributed_high")
RELIANCE = ("reliance", "reliance_low", "reliance_high", "reliance_bound")
EFFECT_COLUMNS = dict.fromkeys(("trivial", "context_free"), "float64") | {"status": "string"}
EFFECT_COLUMNS |= dict.fromkeys((*LOST, *CONTRIBUTED, *RELIANCE), "float64")
EFFECT_COLUMNS |= {f"share_{name}": "float64" for name in SOURCES}

SIGNIFICANT = "significant"
"""The status of a task to which attention contributes significantly; such a task has a reliance."""
NOT_SIGNIFICANT = "attention's contribution is not significant"
NO_FLOOR = "no context-free floor was measured"
UNMATCHED = "the original and its floors were not run with a common seed"
BEATS_GUESS = (SIGNIFICANT, NOT_SIGNIFICANT, NO_FLOOR)
"""The statuses of tasks whose original beats the best guess that ignores the input."""


def tested(statuses: pd.Series[str], margin: Margin) -> pd.Series[bool]:
    """Select the statuses of tasks that a claim with this margin is about.

    A share needs a significant contribution of attention. Points need assay sensitivity: an original that beats the
    best guess that ignores the input, because a probe at chance loses nothing.
    """
    return statuses.isin(BEATS_GUESS if margin.in_points else [SIGNIFICANT])


def replaceable(rows: pd.DataFrame, column: str = "p") -> int:
    """Return the largest number of replaced heads whose claim passes, of one line's claims; 0 if none."""
    # p values never fall with the number of heads, so a number that passes after a failure does not count
    return int(max(rows.loc[rows[column] < 1 - LEVEL, "replaced"], default=0))


@dataclass(frozen=True)
class Effect:
    """The effect of replaced heads on the score of a task.

    The contribution and the reliance differ between floors. Their values are those against the floor with the highest
    score. Whatever is claimed must hold against every floor: an intersection-union test, which needs no correction. So
    intervals run from the smallest lower to the largest upper bound, and it makes no difference which floor has the
    highest score.

    Args:
        spread: the joint spread of these scores.
        skill: `[score]`, their coefficients in the original minus the best guess that ignores the input.
        drop: `[score]`, those in the original minus the setting.
        contributions: `[floor, score]`, those in the original minus each floor, the one with the highest score first.
    """

    spread: Spread
    skill: np.ndarray
    drop: np.ndarray
    contributions: np.ndarray

    def lost(self, level: float = LEVEL) -> Interval:
        """Return what is lost, in units of the score."""
        return self.spread.estimate(self.drop).interval(level)

    def contributed(self) -> Interval:
        """Return what attention contributes, in units of the score; there must be a floor."""
        return joined([each.interval() for each in self.over_floors])

    def reliance(self, level: float = LEVEL) -> Interval:
        """Return the reliance; its Fieller intervals against all floors are joined."""
        return joined(self.reliances(level))

    def reliances(self, level: float = LEVEL) -> list[Interval]:
        """Return the reliance with its Fieller interval against each floor."""
        return [self.spread.ratio(self.drop, floor, level) for floor in self.contributions]

    @property
    def over_guess(self) -> Estimate:
        """The original minus the best guess that ignores the input."""
        return self.spread.estimate(self.skill)

    @property
    def over_floors(self) -> list[Estimate]:
        """The original minus each context-free floor, the one with the highest score first."""
        return [self.spread.estimate(contribution) for contribution in self.contributions]

    def status(self, sample: Sample, guess: str) -> str:
        """Return `SIGNIFICANT`, or the reason why a task has no reliance; `guess` is what ignores the input."""
        if self.spread.seeds < 2 and self.spread.seeded:
            return "one seed, so no interval"
        if not self.spread.known:
            clustered = sample.clusters is not None
            unit = "cluster of validation examples" if clustered else "validation example"
            return f"one {unit}, so no interval"
        if not self.over_guess.above():
            predictor = "probe" if sample.seeded else "model"
            better = f"the {predictor} is not significantly better than {guess}"
            return f"{better} ({sample.trivial:.3f})"
        if not len(self.contributions):
            return NO_FLOOR
        return SIGNIFICANT if all(each.above() for each in self.over_floors) else NOT_SIGNIFICANT

    def examples_needed(self, examples: int, in_points: bool) -> int | None:
        """Return the number of validation examples that would show that the original beats the guess and all floors.

        For a margin in points, it only has to beat the guess. The difference that is hardest to show counts, as if the
        measured one were true, with a power of 80% and the same seeds. None if it is unknown or already shown, or if a
        thousand times as many examples would not be enough.
        """
        if not self.spread.known:
            return None
        floors = [] if in_points else self.over_floors
        hardest = max([self.over_guess, *floors], key=lambda each: each.p_beyond(1))
        if hardest.above():
            return None
        seeds = self.spread.seeds if self.spread.seeded else 1
        of_examples = hardest.variance * hardest.shares["examples"]
        of_rows = hardest.variance * hardest.shares["rows"]
        of_seeds = max(hardest.variance - of_examples - of_rows, 0.0) * seeds
        of_seeds *= self.spread.seeded
        for factor in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
            # more validation examples average out neither seeds nor training rows
            error = math.sqrt(of_rows + of_examples / factor)
            if smallest_margin(seeds, math.sqrt(of_seeds), error) < hardest.mean:
                return factor * examples
        return None


class Claim(NamedTuple):
    """The claim that a task loses less than a margin, and that it can show this.

    A share needs a contribution of attention that is significant against every floor. Points need an original that
    significantly beats the best guess.
    """

    effect: Effect
    margin: Margin

    def bound(self, level: float = LEVEL) -> float:
        """Return the one-sided upper bound of what is lost, in multiples of the margin; it may be infinite."""
        if not self.margin.in_points:
            return self.effect.reliance(level).bound / self.margin.size
        if not self.effect.over_guess.above(level):
            return math.inf
        return self.effect.lost(level).bound / self.margin.size

    @property
    def p(self) -> float:
        """The p value: it is below 5% if the bound is below 1. It is 1 if the variance is unknown."""
        spread = self.effect.spread
        drop = self.effect.drop
        if not spread.known:
            return 1.0
        if self.margin.in_points:
            lost = spread.estimate(drop)
            beyond = [replace(lost, mean=lost.mean - self.margin.size)]
            shown = [self.effect.over_guess]
        else:
            floors = self.effect.contributions
            beyond = [spread.estimate(drop - self.margin.size * floor) for floor in floors]
            shown = self.effect.over_floors
        values = [each.p_beyond(1) for each in shown] + [each.p_beyond(-1) for each in beyond]
        # all of these tests have to reject (intersection-union), so the largest p value needs no correction
        return max(values)


def joined(intervals: Sequence[Interval]) -> Interval:
    """Return the value of the first interval, from the smallest lower to the largest upper bound of all."""
    _, lows, highs, bounds = zip(*intervals, strict=True)
    return Interval(intervals[0].mean, min(lows), max(highs), max(bounds))


Terms = Sequence[tuple[Sample, str, Setting]]
"""The settings whose effects count, one for each task: the task's sample, its corpus, and the setting."""


def _effects_on(terms: Terms) -> list[Effect] | None:
    """Estimate the effects on several tasks; None if their runs have no seed or no draw in common.

    All tasks have the same seeds, and tasks on one corpus have the same examples. So one spread covers all of them.
    """
    by_corpus: dict[str, list[tuple[Sample, list[Setting]]]] = {}
    for sample, corpus, setting in terms:
        settings = [ORIGINALS, *sample.floor_settings, setting]
        by_corpus.setdefault(corpus, []).append((sample, settings))
    scores = [
        [[(sample, name) for name in dict.fromkeys(settings)] for sample, settings in tasks]
        for tasks in by_corpus.values()
    ]
    spread = spread_over(scores)
    if spread is None:
        return None
    effects = []
    for place, (sample, settings) in zip(spread.tasks, chain(*by_corpus.values()), strict=True):
        # the best guess comes first, then the original
        names = [None, *dict.fromkeys(settings)]
        floors = [None if floor in sample.guesses else floor for floor in sample.floor_settings]
        minuses = [None, settings[-1], *floors]
        coefficients = np.zeros((len(minuses), len(spread.means)))
        for row, name in zip(coefficients, minuses, strict=True):
            row[place.start + names.index(ORIGINALS)] += 1
            row[place.start + names.index(name)] -= 1
        effects.append(Effect(spread, coefficients[0], coefficients[1], coefficients[2:]))
    return effects


def effect_of(sample: Sample, setting: Setting) -> Effect | None:
    """Estimate the effect of a setting; None if its runs do not match those of the original and the floors."""
    effects = _effects_on([(sample, "", setting)])
    return effects[0] if effects else None


def mean_reliance(terms: Terms) -> Interval | None:
    """Average reliance on several tasks; None if their runs have no seed or no draw in common.

    The sum of the tasks' contrasts is tested; nothing is taken as independent except examples of different corpora. The
    value has each task's floor with the highest score. The interval also covers the floors with each task's smallest
    lower bound, and those with its largest upper bound. That of a single task is Fieller's.
    """
    effects = _effects_on(terms)
    if not effects:
        return None
    if len(effects) == 1:
        return effects[0].reliance()
    weight = 1 / len(effects)
    tasks = []
    for effect in effects:
        by_floor = effect.reliances()
        lowest = int(np.argmin([each.low for each in by_floor]))
        highest = int(np.argmax([each.high for each in by_floor]))
        floors = effect.contributions[[0, lowest, highest]]
        tasks.append([(weight, effect.drop, floor) for floor in floors])
    spread = effects[0].spread
    return joined([spread.shares(ratios).interval() for ratios in zip(*tasks, strict=True)])


def effects_of(task_outcomes: Iterable[TaskOutcomes]) -> pd.DataFrame:
    """Return floors, what is lost and contributed, and reliance, with their intervals, with `EFFECT_COLUMNS`.

    There is a row for each model, task, metric, subset and setting. `status` is `SIGNIFICANT`, or the reason why the
    task has no reliance. Columns in `_low` and `_high` bound 95% intervals, those in `_bound` are one-sided 95% upper
    bounds. `share_order`, `share_seed`, `share_examples` and `share_rows` are the shares of the variance of what is
    lost that are due to each source. `half_width` is that of the score's 95% interval.
    """
    rows = [row for outcomes in task_outcomes for row in _rows(outcomes)]
    keys = ["model", "task", "metric", "subset", *VARIANT_KEYS]
    return pd.DataFrame(rows, columns=[*keys, *EFFECT_COLUMNS, "half_width"])


def _rows(outcomes: TaskOutcomes) -> Iterator[Row]:
    for subset, metric, mask in outcomes.scored():
        if not MEASURES[metric].has_floors:
            continue
        sample = outcomes.sample(metric, mask)
        original = effect_of(sample, ORIGINALS)
        common: Row = {
            "model": outcomes.model,
            "task": outcomes.task,
            "metric": metric,
            "subset": subset,
            "trivial": sample.trivial,
            "context_free": sample.floor,
        }
        status = UNMATCHED
        if original is not None:
            status = original.status(sample, outcomes.guess(metric).words)
            if sample.floor_settings:
                # without the one-sided bound, which no claim is about
                common |= zip(CONTRIBUTED, original.contributed(), strict=False)
        common["status"] = status
        for setting in sample.settings:
            row = common | setting._asdict()
            row["half_width"] = _half_width(sample, setting)
            if setting != ORIGINALS and (effect := effect_of(sample, setting)) is not None:
                shares = effect.spread.estimate(effect.drop).shares
                row |= {f"share_{name}": shares[name] for name in SOURCES}
                row |= zip(LOST, effect.lost(), strict=True)
                if status == SIGNIFICANT:
                    row |= zip(RELIANCE, effect.reliance(), strict=True)
            yield row


def _half_width(sample: Sample, setting: Setting) -> float | None:
    """Return the larger half-width of a score's 95% interval; None if it is unknown."""
    spread = joint_spread([(sample, setting)])
    if spread is None or not spread.known:
        return None
    score = spread.estimate([0, 1]).interval()
    # a table has room for one number, which must be too small for neither side
    return max(score.mean - score.low, score.high - score.mean)
