"""Several claims at once: the chance of any wrong claim is at most 5 %.

A sequence holds the claims of one line about one task, or about all its tasks together: "the loss is below the margin
with k heads replaced, and with every smaller measured number". A claim includes those before it, so the numbers of
heads of a sequence need no correction (fixed sequence). Holm's method corrects for the sequences. A sequence leaves the
correction only when its last number passes; until then, one of its claims may still be wrong. This is the closed test
of all claims with Bonferroni's test of each intersection, so it holds for any dependence between tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import inf

from papa.results.losses import Loss
from papa.results.statistics import LEVEL, holm


@dataclass(frozen=True)
class ClaimSequence:
    """The claims of one line: with each of the ascending `numbers`, all losses are below the margin (None: unknown)."""

    numbers: Sequence[int]
    losses: Sequence[Sequence[Loss | None]]

    def p_values(self, margin: float) -> list[float]:
        """Return the p value of the claim at each number, without a correction for other sequences."""
        values = [max(1.0 if loss is None else loss.p_below(margin) for loss in losses) for losses in self.losses]
        return list(accumulate(values, max))

    def smallest_margins(self, level: float) -> list[float]:
        """Return the margin above which the claim at each number passes at a confidence level."""
        bounds = [max(inf if loss is None else loss.bound(level) for loss in losses) for losses in self.losses]
        return list(accumulate(bounds, max, initial=0.0))[1:]

    def passed(self, margins: Sequence[float], margin: float) -> int:
        """Return the largest number whose smallest margin is below `margin`; 0 if there is none."""
        return max((number for number, least in zip(self.numbers, margins, strict=True) if least < margin), default=0)


def corrected_p_values(sequences: Sequence[Sequence[float]]) -> list[list[float]]:
    """Correct the p values of several sequences; each sequence's p values never fall."""
    last = [values[-1] for values in sequences]
    return [
        [holm([*last[:place], value, *last[place + 1 :]])[place] for value in values]
        for place, values in enumerate(sequences)
    ]


def corrected_margins(sequences: Sequence[ClaimSequence]) -> list[list[float]]:
    """Return the margin above which the claim at each number of each sequence passes after the correction.

    This is the same test as `corrected_p_values`: a claim passes at a margin if its corrected p value is below 5 %.
    """
    margins = [cache(sequence.smallest_margins) for sequence in sequences]
    return [
        [_corrected(place, number, margins) for number in range(len(sequence.numbers))]
        for place, sequence in enumerate(sequences)
    ]


def _corrected(place: int, number: int, margins: Sequence[Callable[[float], list[float]]]) -> float:
    """Return the smallest margin of one claim.

    With n sequences left, a claim passes at 5 % / n, unless another of these n sequences passes completely.
    """
    smallest = 0.0
    for left in range(len(margins), 0, -1):
        level = 1 - (1 - LEVEL) / left
        bound = margins[place](level)[number]
        others = sorted((other(level)[-1] for index, other in enumerate(margins) if index != place), reverse=True)
        completed = others[left - 2] if left > 1 else inf
        smallest = max(smallest, min(bound, completed))
        if bound <= completed:  # with fewer sequences left, the bound is only lower
            break
    return smallest
