"""How sure a number is that was measured with some seeds, some orders of heads and some validation examples.

All three are samples, and they are crossed: every probe is scored on the same examples. A score becomes a table of
pseudo-values [order, seed, unit] whose mean it is (Tukey's jackknife, so that F1 and correlations are means too). The
variance of any linear combination of scores follows from the mean squares of that table, its degrees of freedom from
Satterthwaite's approximation, made safe for few seeds. Where few examples differ, all one way, the side on which more
of them may be unseen is wider. Shares of attention's contribution are tested as linear contrasts, and their intervals
are Fieller's; see docs/statistics.md, which has the error rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.95
"""Of two-sided intervals, and of one-sided bounds."""
SOURCES = ("order", "seed", "examples")
"""What varies, in the order of the axes of a table of pseudo-values."""
RARE = 0.5
"""How much of the square of one unit's part each score adds to the variance that units make: a difference of two scores
counts one unit more than was seen to differ, because that none of few differs is no proof."""
FEW = 4.0
"""A source with f degrees of freedom counts 1 + FEW / f times among the degrees of freedom of a sum: few seeds may vary
much more than is seen. With 4, tests do not err more often than they say, whatever share seeds have in the variance."""
WIDE = 64.0
"""Losses beyond this are no numbers any more: the contribution of attention is not told from nothing."""


class Interval(NamedTuple):
    """What is estimated, between which bounds, and the one-sided upper bound; infinite where the data set none."""

    mean: float
    low: float
    high: float
    bound: float


@dataclass(frozen=True)
class Estimate:
    """A mean, the variance of its estimate, and the degrees of freedom of that.

    Args:
        mean: what was measured.
        variance: its squared standard error, over orders, seeds and examples.
        freedom: degrees of freedom; 0 if one seed or one unit leaves the variance unknown.
        shares: the part that each of `SOURCES` has in the variance; the rest is what they make together.
        skews: how much wider it is below and above the mean: what is added to the variance for each unit of a normal
            quantile; see `Spread._skews`.
    """

    mean: float
    variance: float
    freedom: float
    shares: dict[str, float]
    skews: tuple[float, float] = (0.0, 0.0)

    def half(self, level: float = LEVEL) -> float:
        """The longer half of the two-sided interval."""
        return max(self._beyond((1 - level) / 2, side) for side in (-1, 1))

    def interval(self, level: float = LEVEL) -> Interval:
        """The two-sided interval, and the upper bound that is exceeded in 1 - level of all studies."""
        low, high = (self.mean + side * self._beyond((1 - level) / 2, side) for side in (-1, 1))
        return Interval(self.mean, low, high, self.mean + self._beyond(1 - level, 1))

    def above(self, least: float = 0.0, level: float = LEVEL) -> bool:
        """Whether the mean lies above `least` beyond chance (one-sided)."""
        return self.mean - self._beyond(1 - level, -1) > least

    def p(self) -> float:
        """The two-sided p of a mean of 0: 1 minus the level of the widest interval that does not hold 0."""
        return 2 * self._tail(0.0)

    def p_within(self, delta: float) -> float:
        """The p of a mean that is -delta or less, or delta or more: the larger one of two one-sided tests."""
        if not abs(self.mean) < delta:
            return 1.0
        return max(self._tail(-delta), self._tail(delta))

    def _tail(self, at: float) -> float:
        """The one-sided p of a mean on the other side of `at`, at most a half: what lies beyond `at`."""
        if not self.freedom:
            return math.nan
        if not self.variance:
            return float(self.mean == at) / 2
        side, low, high = (-1 if self.mean > at else 1), -300.0, math.log(0.5)  # of the logarithm of p
        for _ in range(60):
            middle = (low + high) / 2
            held = self._beyond(math.exp(middle), side) >= abs(self.mean - at)
            low, high = (middle, high) if held else (low, middle)
        return math.exp(high)

    def _beyond(self, tail: float, side: int) -> float:
        """How far from the mean, on one side, the point is beyond which so much lies."""
        if not self.freedom:
            return math.inf
        return float(_half(tail, self.variance, self.freedom, self.skews[(1 + side) // 2]))


@dataclass(frozen=True)
class Spread:
    """The mean squares of several quantities that were measured with the same orders, seeds and units.

    Args:
        means: `[quantity]`.
        squares: mean squares and products `[effect, quantity, quantity]`, divided by the number of values.
        signs: `[effect]`, how each enters the variance of a mean.
        freedoms: `[effect]`.
        members: bool `[effect, source]`, the sources of each effect: one, or several for an interaction.
        seeds: how many seeds there are.
        units: `[quantity, unit]`, what each unit adds to the means beside their mean; None if that is not known.
        unseen: the square of what a unit that was not seen may add to a mean.
        seeded: whether anything depends on a seed.
    """

    means: np.ndarray
    squares: np.ndarray
    signs: np.ndarray
    freedoms: np.ndarray
    members: np.ndarray
    seeds: int
    units: np.ndarray | None = None
    unseen: float = 0.0
    seeded: bool = True

    @classmethod
    def of(cls, values: np.ndarray, step: float = 0.0, seeded: bool = True) -> Spread:
        """Mean squares of `values` [quantity, order, seed, unit].

        Args:
            values: pseudo-values. One order says nothing of the variance of others; what is found then holds for it
                alone. One seed or one unit says nothing at all.
            step: how much a unit moves a score at least, times the number of units, if it counts at all.
            seeded: whether anything depends on a seed; if not, one seed says all.
        """
        sizes = values.shape[1:]
        varied = [axis for axis, size in enumerate(sizes) if size > 1]
        subsets = [own for number in range(1, len(varied) + 1) for own in combinations(varied, number)]
        total, squares, freedoms = math.prod(sizes), [], []
        effects: dict[tuple[int, ...], np.ndarray] = {(): values.mean((1, 2, 3), keepdims=True)}
        for own in subsets:
            over = tuple(axis + 1 for axis in range(3) if axis not in own)
            effect = values.mean(over, keepdims=True) if over else values
            effect = effect - sum(effects[inner] for size in range(len(own)) for inner in combinations(own, size))
            effects[own] = effect
            flat = effect.reshape(len(values), -1)
            freedom = math.prod(sizes[axis] - 1 for axis in own)
            squares.append(flat @ flat.T * (total / flat.shape[1]) / freedom / total)
            freedoms.append(freedom)
        units, unseen = None, 0.0
        if 2 in varied:
            units, unseen = effects[2,].reshape(len(values), -1) / sizes[2], RARE * (step / sizes[2]) ** 2
            squares[subsets.index((2,))] += np.eye(len(values)) * unseen
        return cls(
            effects[()].reshape(-1),
            np.array(squares).reshape(len(subsets), len(values), len(values)),
            np.array([(-1.0) ** (len(own) + 1) for own in subsets]),
            np.array(freedoms, float),
            np.array([[axis in own for axis in range(3)] for own in subsets], bool).reshape(-1, 3),
            sizes[1],
            units,
            unseen,
            seeded,
        )

    @property
    def known(self) -> bool:
        """Whether there are seeds and units enough to say how much they vary."""
        return (self.seeds > 1 or not self.seeded) and bool(self.members[:, 2].any())

    def estimate(self, weights: Sequence[float]) -> Estimate:
        """The estimate of a linear combination of the quantities."""
        own = np.asarray(weights, float)
        mean = float(own @ self.means)
        squares = np.einsum("eij,i,j->e", self.squares, own, own)
        variance, freedom = _combined(squares[None], self)
        cube = 0.0 if self.units is None else ((own @ self.units) ** 3).sum()
        skews = [float(self._skews(squares[None], np.array([side * cube]), own @ own)[0]) for side in (-1, 1)]
        known = float(freedom[0]) if self.known else 0.0
        return Estimate(mean, float(variance[0]), known, self._shares(squares), (skews[0], skews[1]))

    def ratio(self, above: Sequence[float], below: Sequence[float], level: float = LEVEL) -> Interval:
        """A ratio of two linear combinations, and Fieller's interval.

        The interval has all ratios r that a test of `above` - r · `below` keeps. It is not bounded where `below` is not
        told from 0; a ratio with one seed or one unit has no bounds.
        """
        first, second = np.asarray(above, float), np.asarray(below, float)
        top, bottom = float(first @ self.means), float(second @ self.means)
        if not self.known or not self.estimate(second.tolist()).above(0, level):
            return Interval(top / bottom if bottom else math.nan, -math.inf, math.inf, math.inf)
        if np.allclose(first, top / bottom * second):  # a share that is known, such as what the floor itself loses
            return Interval(*[top / bottom] * 4)
        products = [np.einsum("eij,i,j->e", self.squares, *pair) for pair in ((first, first), (first, second))]
        products.append(np.einsum("eij,i,j->e", self.squares, second, second))
        units = np.zeros((2, 1)) if self.units is None else np.array([first, second]) @ self.units
        cubes = [(units[0] ** (3 - power) * units[1] ** power).sum() for power in range(4)]

        def rejected(ratios: np.ndarray, tail: float, side: int) -> np.ndarray:
            squares = products[0] - 2 * ratios[:, None] * products[1] + ratios[:, None] ** 2 * products[2]
            cube = cubes[0] - 3 * ratios * cubes[1] + 3 * ratios**2 * cubes[2] - ratios**3 * cubes[3]
            length = first @ first - 2 * ratios * (first @ second) + ratios**2 * (second @ second)
            half = _half(tail, *_combined(squares, self), self._skews(squares, side * cube, length))
            return side * (ratios * bottom - top) > half

        middle = top / bottom
        return Interval(
            middle,
            _last(lambda ratios: rejected(ratios, (1 - level) / 2, -1), middle, -1),
            _last(lambda ratios: rejected(ratios, (1 - level) / 2, 1), middle, 1),
            _last(lambda ratios: rejected(ratios, 1 - level, 1), middle, 1),
        )

    def share(self, above: Sequence[float], below: Sequence[float]) -> Estimate:
        """A ratio of two linear combinations as an estimate that can be averaged with others (delta method)."""
        first, second = np.asarray(above, float), np.asarray(below, float)
        bottom = float(second @ self.means)
        ratio = float(first @ self.means) / bottom
        own = self.estimate((first - ratio * second).tolist())
        skews = tuple(skew / bottom**2 for skew in own.skews[:: 1 if bottom > 0 else -1])
        return Estimate(ratio, own.variance / bottom**2, own.freedom, own.shares, (skews[0], skews[1]))

    def _skews(self, squares: np.ndarray, cubes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """How much the variance grows for each unit of a normal quantile in the direction that rare units move a mean.

        Were the mean farther out by some of its spread, there would be more of the units that are rare now, and their
        variance with them: by the third moment, as in Wilson's interval for a share.

        Args:
            squares: mean squares `[row, effect]` of some combinations of the quantities.
            cubes: third moments of their units, `[row]`, positive if rare units are those in this direction.
            lengths: the sums of their squared weights, `[row]`.
        """
        alone = self.members[:, 2] & (self.members.sum(1) == 1)
        if self.units is None or not alone.any():
            return np.zeros(len(squares))
        more = np.maximum(cubes + (lengths * self.unseen) ** 1.5, 0)
        spread = np.sqrt(np.maximum(squares[:, alone][:, 0], 0))
        found: np.ndarray = np.divide(more, spread, out=np.zeros_like(spread), where=spread > 0)
        return found

    def _shares(self, squares: np.ndarray) -> dict[str, float]:
        """The parts of the variance that are of one source alone; what sources make together is nobody's."""
        signed, total = squares * self.signs, float(squares @ self.signs)
        own = [max(float(signed[self.members[:, axis]].sum()), 0.0) for axis in range(3)]
        total = max(total, sum(own))
        return {name: part / total if total else 0.0 for name, part in zip(SOURCES, own, strict=True)}


def together(estimates: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """A linear combination of estimates that are independent of each other."""
    own = np.array([weight**2 * estimate.variance for weight, estimate in zip(weights, estimates, strict=True)])
    mean = math.fsum(weight * estimate.mean for weight, estimate in zip(weights, estimates, strict=True))
    freedoms = np.array([estimate.freedom for estimate in estimates])
    if not freedoms.all():
        return Estimate(mean, float(own.sum()), 0.0, {})
    total = float(own.sum())
    freedom = float(_freedom(np.array([total]), own[None], freedoms)[0])
    shares = {
        name: sum(part * estimate.shares[name] for part, estimate in zip(own, estimates, strict=True)) / total
        for name in (SOURCES if total else ())
    }
    sides = [estimate.skews[:: 1 if weight > 0 else -1] for weight, estimate in zip(weights, estimates, strict=True)]
    skews = np.array(weights) ** 2 @ np.array(sides)
    return Estimate(mean, total, freedom, shares, (float(skews[0]), float(skews[1])))


def holm(values: Sequence[float]) -> list[float]:
    """The p values, in their order, such that all under a level together err no more often than that level says.

    What was not tested, and so has no number, is not counted among the tests.
    """
    order, adjusted = np.argsort(values, kind="stable"), np.empty(len(values))  # nan stands last
    times = np.arange(len(values), 0, -1) - np.count_nonzero(np.isnan(values))
    adjusted[order] = np.maximum.accumulate(np.asarray(values)[order] * times).clip(max=1)
    return list(adjusted.tolist())


def smallest_loss(seeds: int, seed_spread: float, example_spread: float, power: float = 0.8) -> float:
    """The margin at which a true loss of 0 passes with this power.

    Args:
        seeds: how many there are, at least 2.
        seed_spread: standard deviation over seeds of the contrast, as a share of attention's contribution.
        example_spread: its standard error from validation examples, in the same unit.
        power: how often a model that loses nothing is to pass.
    """
    from scipy.stats import t

    part, total = seed_spread**2 / seeds, seed_spread**2 / seeds + example_spread**2
    freedom = float(_freedom(np.array([total]), np.array([[part]]), np.array([seeds - 1.0]))[0]) if part else math.inf
    return float((t.ppf(LEVEL, freedom) + t.ppf(power, freedom)) * math.sqrt(total))


def _combined(squares: np.ndarray, spread: Spread) -> tuple[np.ndarray, np.ndarray]:
    """Variances and degrees of freedom from rows of squares [row, effect].

    The sum of mean squares with their signs estimates the variance without bias. Where few members make it smaller than
    what one source alone explains, that source counts. What sources make together takes from the variance, and has no
    degrees of freedom of its own: where it is all there is, intervals are somewhat wide.
    """
    single = spread.members.sum(1) == 1
    own = squares[:, single]
    variance = np.maximum(squares @ spread.signs, own.max(1, initial=0))
    return variance, _freedom(variance, own, spread.freedoms[single])


def _freedom(variance: np.ndarray, parts: np.ndarray, freedoms: np.ndarray) -> np.ndarray:
    """Satterthwaite's degrees of freedom, in which the parts of sources with few of them weigh more; see `FEW`.

    Args:
        variance: `[row]`; what is in none of the parts has endless degrees of freedom.
        parts: `[row, source]`.
        freedoms: `[source]`.
    """
    more = parts * (1 + FEW / freedoms)
    below, least = (more**2 / freedoms).sum(1), freedoms.min(initial=math.inf)
    above = (variance + (more - parts).sum(1)) ** 2
    found: np.ndarray = np.maximum(np.divide(above, below, out=np.full_like(above, least), where=below > 0), least)
    return found


def _last(rejects: Callable[[np.ndarray], np.ndarray], middle: float, side: int) -> float:
    """The ratio farthest from `middle` on one side that is not rejected; infinite if there is none within `WIDE`."""
    low, high = 0.0, WIDE
    for _ in range(3):  # each time on a hundredth of the last range
        steps = np.linspace(low, high, 257)
        kept = np.flatnonzero(~rejects(middle + side * steps))
        if not len(kept):
            return middle + side * low
        if kept[-1] == len(steps) - 1:
            return side * math.inf if high == WIDE else middle + side * high
        low, high = float(steps[kept[-1]]), float(steps[kept[-1] + 1])
    return middle + side * high


def _half(tail: float, variance: ArrayLike, freedom: ArrayLike, skew: ArrayLike) -> np.ndarray:
    """How far from the mean the point is beyond which so much lies; see `Spread._skews`."""
    from scipy.special import ndtri, stdtrit

    wider = np.asarray(variance) + np.asarray(skew) * max(-float(ndtri(tail)), 0.0)
    found: np.ndarray = -stdtrit(freedom, tail) * np.sqrt(wider)
    return found
