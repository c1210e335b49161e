"""Corrections for several claims, against the closed test of all their intersections and by simulation."""

from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from papa.results.claims import corrected_margins, corrected_p_values, p_values_of

ERROR = 0.05


def closed(sequences, place, number):
    """Whether a claim passes because every intersection of hypotheses that contains its own is rejected.

    A hypothesis says that the reliance is too large with this number of heads or with a smaller one. So the true ones
    of a sequence are those from some number on, and an intersection is the first true number of each sequence in it.
    """
    firsts = [[None, *range(len(values))] for values in sequences]
    for first in product(*firsts):
        if first[place] is None or first[place] > number:
            continue
        p = [values[at] for values, at in zip(sequences, first, strict=True) if at is not None]
        if min(p) >= ERROR / len(p):
            return False
    return True


@pytest.mark.parametrize("seed", range(23))
def test_a_corrected_claim_passes_the_closed_test(seed):
    chance = np.random.default_rng(seed)
    sequences = [
        np.maximum.accumulate(chance.uniform(0, 0.04, size) ** 1.5).tolist()
        for size in (3, 1, 2, 3)
    ]
    passes = [[p < ERROR for p in values] for values in corrected_p_values(sequences)]
    assert passes == [
        [closed(sequences, place, number) for number in range(len(values))]
        for place, values in enumerate(sequences)
    ]


class NormalLoss(NamedTuple):
    """A claim about a loss with a normal error, in multiples of a margin."""

    mean: float
    error: float = 0.1
    margin: float = 1.0

    def bound(self, level):
        return float(self.mean + stats.norm.ppf(level) * self.error)

    @property
    def p(self):
        return float(stats.norm.cdf((self.mean - self.margin) / self.error))


@pytest.mark.parametrize("seed", range(11))
def test_margins_and_p_values_are_of_the_same_test(seed):
    chance = np.random.default_rng(seed)
    sizes = (2, 1, 3, 1, 2)
    losses = [NormalLoss(chance.uniform(-0.5, 1.2), chance.uniform(0.1, 0.4)) for _ in sizes]

    def claims(margin):
        at = [loss._replace(margin=margin) for loss in losses]
        return [[[claim]] * size for claim, size in zip(at, sizes, strict=True)]

    for place, margins in enumerate(corrected_margins(claims(1.0))):
        for number, least in enumerate(margins):
            for margin, passes in ((least + 1e-6, True), (least - 1e-6, False)):
                corrected = corrected_p_values([p_values_of(each) for each in claims(margin)])
                assert (corrected[place][number] < ERROR) == (passes or least == 0)


def test_a_claim_includes_those_before_it_and_all_tasks():
    claims = [
        [NormalLoss(0.7), NormalLoss(0.5)],
        [NormalLoss(0.0), NormalLoss(0.1)],
        [NormalLoss(0.0), None],
    ]
    largest = NormalLoss(0.7)
    assert p_values_of(claims) == [largest.p, largest.p, 1]
    assert corrected_margins([claims]) == [[largest.bound(0.95)] * 2 + [np.inf]]
    assert corrected_p_values([[0.01, 0.02]]) == [[0.01, 0.02]]
    assert corrected_p_values([]) == []
