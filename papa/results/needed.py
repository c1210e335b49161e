"""The numbers of examples and seeds that would show that attention contributes to an excluded task."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from papa.results.conclusion import NeededSample
from papa.results.outcomes import ORIGINALS, Sample
from papa.results.statistics import Estimate, smallest_loss

POWER = 0.8
"""Statistical power: the probability that a contribution as large as the measured one is shown."""
SEED_FACTORS = (1, 2, 4, 8)
"""The numbers of seeds that are tried, as multiples of the measured number."""
MAXIMUM_EXAMPLES = 10**6
"""A larger number of examples is not suggested."""


def needed_sample(sample: Sample) -> NeededSample | None:
    """Return the difference that excluded a task, and the smallest sample that would show one of this size.

    It is the original minus the best blind guess if that is not significant, and otherwise the original minus the
    context-free floor. None if a difference or its variance is unknown.
    """
    spread = sample.spread(ORIGINALS, sample.floor_setting)
    if spread is None or not spread.known or (spread.seeds < 2 and spread.seeded):
        return None
    over_guess, over_floor = spread.estimate([-1, 1, 0]), spread.estimate([0, 1, -1])
    decisive = over_floor if over_guess.above() else over_guess
    interval, seeds = decisive.interval(), (spread.seeds if spread.seeded else None)
    enough = _smallest(decisive, seeds, sample.examples)
    return NeededSample(
        floor="context-free" if decisive is over_floor else "trivial",
        difference=decisive.mean,
        low=interval.low,
        high=interval.high,
        seeds=seeds,
        examples=sample.examples,
        needed_seeds=enough and seeds and enough[0],
        needed_examples=enough and enough[1],
        power=POWER,
    )


def _smallest(difference: Estimate, seeds: int | None, examples: int) -> tuple[int, int] | None:
    """Return the numbers of seeds and examples with the smallest product that would show a difference; None if none.

    The variances over seeds (with orders), over examples, and of their interaction are those that were measured.
    """
    if not difference.mean > 0:
        return None
    of_examples = difference.variance * difference.shares["examples"] * examples
    of_seeds = difference.variance * (difference.shares["seed"] + difference.shares["order"]) * (seeds or 1)
    both = max(difference.variance - of_examples / examples - of_seeds / (seeds or 1), 0.0) * examples * (seeds or 1)

    def shows(number: int, seeds: int) -> bool:
        error = math.sqrt((of_examples + both / seeds) / number)
        return smallest_loss(seeds, math.sqrt(of_seeds), error, POWER) < difference.mean

    tried = [factor * (seeds or 1) for factor in (SEED_FACTORS if seeds else SEED_FACTORS[:1])]
    enough = [(number, _first(partial(shows, seeds=number))) for number in tried]
    known = [(number, examples) for number, examples in enough if examples is not None]
    return min(known, key=lambda numbers: numbers[0] * numbers[1], default=None)


def _first(holds: Callable[[int], bool]) -> int | None:
    """Return the smallest number up to `MAXIMUM_EXAMPLES` for which a condition holds from there on; None if none."""
    if not holds(MAXIMUM_EXAMPLES):
        return None
    low, high = 1, MAXIMUM_EXAMPLES
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high
