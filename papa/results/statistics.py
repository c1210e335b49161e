"""Estimates: numbers with their variance over probe seeds, orders of heads and validation examples.

All three are samples, and they are crossed: every probe is scored on the same examples. A score becomes a table of
pseudo-values [order, seed, unit] whose mean it is (Tukey's jackknife, so that F1 and correlations are means too). The
variance of any linear combination of scores follows from the mean squares of that table. Its degrees of freedom are
Satterthwaite's, made safe for few seeds. If few examples differ, and all in the same direction, the interval is wider
on the side where more of them may be unseen. Shares of attention's contribution are tested as linear contrasts, and
their intervals are Fieller's. docs/statistics.md has the error rates.
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
"""The level of two-sided intervals, and of one-sided bounds."""
SOURCES = ("order", "seed", "examples")
"""The sources of variance, in the order of the axes of a table of pseudo-values."""
UNSEEN_UNITS = 0.5
"""The number of unseen units that each score adds to its variance. A difference of two scores so counts one more unit
than the units that differ, because no difference among few examples proves nothing."""
SMALL_SAMPLE_PENALTY = 4.0
"""A source with f degrees of freedom weighs 1 + SMALL_SAMPLE_PENALTY / f times in the degrees of freedom of a sum,
because few seeds may vary much more than they show. With 4, tests keep their level at any share of seeds in the
variance."""
LARGEST_LOSS = 64.0
"""Losses beyond this are unbounded, because the contribution of attention cannot be distinguished from 0."""


class Interval(NamedTuple):
    """An estimate with its two-sided interval and its one-sided upper bound; infinite if the data set no bound."""

    mean: float
    low: float
    high: float
    bound: float


@dataclass(frozen=True)
class Estimate:
    """A number with its variance over seeds, orders and examples; every interval, bound and p follows from one.

    A mean score, a loss, the area under losses and a difference of two of these are all estimates. `Spread.estimate`
    and `Spread.share` make them of scores, and `together` makes a new one of several that are independent.

    Args:
        mean: the measured value.
        variance: the squared standard error, over orders, seeds and examples.
        freedom: the degrees of freedom of the variance; 0 if one seed or one unit leaves it unknown.
        shares: the part of the variance that each of `SOURCES` has; the rest is their interactions.
        skews: the growth of the variance below and above the mean, for each unit of a normal quantile; see
            `Spread._skews`.
    """

    mean: float
    variance: float
    freedom: float
    shares: dict[str, float]
    skews: tuple[float, float] = (0.0, 0.0)

    def half(self, level: float = LEVEL) -> float:
        """Return the longer half of the two-sided interval."""
        return max(self._beyond((1 - level) / 2, side) for side in (-1, 1))

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the two-sided interval, and the upper bound that 1 - level of all studies exceed."""
        low, high = (self.mean + side * self._beyond((1 - level) / 2, side) for side in (-1, 1))
        return Interval(self.mean, low, high, self.mean + self._beyond(1 - level, 1))

    def above(self, least: float = 0.0, level: float = LEVEL) -> bool:
        """Whether the mean is significantly above `least` (one-sided)."""
        return self.mean - self._beyond(1 - level, -1) > least

    def p(self) -> float:
        """Return the two-sided p of a mean of 0: 1 minus the level of the widest interval without 0."""
        return 2 * self._tail(0.0)

    def p_within(self, delta: float) -> float:
        """Return the p of a mean outside -delta to delta: the larger p of two one-sided tests."""
        if not abs(self.mean) < delta:
            return 1.0
        return max(self._tail(-delta), self._tail(delta))

    def _tail(self, at: float) -> float:
        """Return the one-sided p of a mean on the other side of `at`, at most a half."""
        if not self.freedom:
            return math.nan
        if not self.variance:
            return float(self.mean == at) / 2
        side, low, high = (-1 if self.mean > at else 1), -300.0, math.log(0.5)  # low and high are logarithms of p
        for _ in range(60):
            middle = (low + high) / 2
            within = self._beyond(math.exp(middle), side) >= abs(self.mean - at)
            low, high = (middle, high) if within else (low, middle)
        return math.exp(high)

    def _beyond(self, tail: float, side: int) -> float:
        """Return the distance from the mean, on one side, beyond which a tail of this size lies."""
        if not self.freedom:
            return math.inf
        return float(_half(tail, self.variance, self.freedom, self.skews[(1 + side) // 2]))


@dataclass(frozen=True)
class Spread:
    """Mean squares of several quantities that were measured with the same orders, seeds and units.

    Args:
        means: `[quantity]`.
        squares: mean squares and products `[effect, quantity, quantity]`, divided by the number of values.
        signs: `[effect]`, the sign with which each enters the variance of a mean.
        freedoms: `[effect]`.
        members: bool `[effect, source]`, the sources of each effect: a single one, or several for an interaction.
        seeds: the number of seeds.
        units: `[quantity, unit]`, the deviation that each unit adds to the means; None if it is unknown.
        unseen: the squared deviation that an unseen unit may add to a mean.
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
        """Return the mean squares of `values` [quantity, order, seed, unit].

        Args:
            values: pseudo-values. With one order, the variance over orders is unknown, and the result holds for this
                order only. With one seed or one unit, the whole variance is unknown.
            step: the least that a unit moves a score if attention decides it, times the number of units.
            seeded: whether anything depends on a seed; if not, one seed is enough.
        """
        sizes = values.shape[1:]
        varied = [axis for axis, size in enumerate(sizes) if size > 1]
        subsets = [axes for number in range(1, len(varied) + 1) for axes in combinations(varied, number)]
        total, squares, freedoms = math.prod(sizes), [], []
        effects: dict[tuple[int, ...], np.ndarray] = {(): values.mean((1, 2, 3), keepdims=True)}
        for axes in subsets:
            over = tuple(axis + 1 for axis in range(3) if axis not in axes)
            effect = values.mean(over, keepdims=True) if over else values
            effect = effect - sum(effects[inner] for size in range(len(axes)) for inner in combinations(axes, size))
            effects[axes] = effect
            flat = effect.reshape(len(values), -1)
            freedom = math.prod(sizes[axis] - 1 for axis in axes)
            squares.append(flat @ flat.T * (total / flat.shape[1]) / freedom / total)
            freedoms.append(freedom)
        units, unseen = None, 0.0
        if 2 in varied:
            units, unseen = effects[2,].reshape(len(values), -1) / sizes[2], UNSEEN_UNITS * (step / sizes[2]) ** 2
            squares[subsets.index((2,))] += np.eye(len(values)) * unseen
        return cls(
            effects[()].reshape(-1),
            np.array(squares).reshape(len(subsets), len(values), len(values)),
            np.array([(-1.0) ** (len(axes) + 1) for axes in subsets]),
            np.array(freedoms, float),
            np.array([[axis in axes for axis in range(3)] for axes in subsets], bool).reshape(-1, 3),
            sizes[1],
            units,
            unseen,
            seeded,
        )

    @property
    def known(self) -> bool:
        """Whether there are enough seeds and units to estimate how much they vary."""
        return (self.seeds > 1 or not self.seeded) and bool(self.members[:, 2].any())

    def estimate(self, weights: Sequence[float]) -> Estimate:
        """Return the estimate of a linear combination of the quantities."""
        combination = np.asarray(weights, float)
        mean = float(combination @ self.means)
        squares = np.einsum("eij,i,j->e", self.squares, combination, combination)
        variance, freedom = _combined(squares[None], self)
        cube = 0.0 if self.units is None else ((combination @ self.units) ** 3).sum()
        length = combination @ combination
        skews = [float(self._skews(squares[None], np.array([side * cube]), length)[0]) for side in (-1, 1)]
        known = float(freedom[0]) if self.known else 0.0
        return Estimate(mean, float(variance[0]), known, self._shares(squares), (skews[0], skews[1]))

    def ratio(self, above: Sequence[float], below: Sequence[float], level: float = LEVEL) -> Interval:
        """Return a ratio of two linear combinations with Fieller's interval.

        The interval has all ratios r for which a test of `above` - r · `below` does not reject 0. It is unbounded if
        `below` is not significantly above 0, and with one seed or one unit.
        """
        first, second = np.asarray(above, float), np.asarray(below, float)
        top, bottom = float(first @ self.means), float(second @ self.means)
        if not self.known or not self.estimate(second.tolist()).above(0, level):
            return Interval(top / bottom if bottom else math.nan, -math.inf, math.inf, math.inf)
        if np.allclose(first, top / bottom * second):  # a share that is known, such as the loss of the floor
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
        """Return a ratio of two linear combinations as an estimate that can be averaged (delta method)."""
        first, second = np.asarray(above, float), np.asarray(below, float)
        bottom = float(second @ self.means)
        ratio = float(first @ self.means) / bottom
        contrast = self.estimate((first - ratio * second).tolist())
        skews = tuple(skew / bottom**2 for skew in contrast.skews[:: 1 if bottom > 0 else -1])
        return Estimate(ratio, contrast.variance / bottom**2, contrast.freedom, contrast.shares, (skews[0], skews[1]))

    def _skews(self, squares: np.ndarray, cubes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the growth of the variance, per unit of a normal quantile, in the direction in which rare units pull.

        If the true mean lay farther out, more of the units that are rare now would be seen, and the variance would be
        larger. The growth follows from the third moment, as in Wilson's interval for a share.

        Args:
            squares: mean squares `[row, effect]` of some combinations of the quantities.
            cubes: third moments of their units, `[row]`, positive if the rare units lie in this direction.
            lengths: the sums of their squared weights, `[row]`.
        """
        examples = self.members[:, 2] & (self.members.sum(1) == 1)
        if self.units is None or not examples.any():
            return np.zeros(len(squares))
        more = np.maximum(cubes + (lengths * self.unseen) ** 1.5, 0)
        spread = np.sqrt(np.maximum(squares[:, examples][:, 0], 0))
        growth: np.ndarray = np.divide(more, spread, out=np.zeros_like(spread), where=spread > 0)
        return growth

    def _shares(self, squares: np.ndarray) -> dict[str, float]:
        """Return the part of the variance that each source explains by itself; interactions belong to no source."""
        signed, total = squares * self.signs, float(squares @ self.signs)
        parts = [max(float(signed[self.members[:, axis]].sum()), 0.0) for axis in range(3)]
        total = max(total, sum(parts))
        return {name: part / total if total else 0.0 for name, part in zip(SOURCES, parts, strict=True)}


def together(estimates: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """Return a linear combination of estimates that are independent of each other."""
    parts = np.array([weight**2 * estimate.variance for weight, estimate in zip(weights, estimates, strict=True)])
    mean = math.fsum(weight * estimate.mean for weight, estimate in zip(weights, estimates, strict=True))
    freedoms = np.array([estimate.freedom for estimate in estimates])
    if not freedoms.all():
        return Estimate(mean, float(parts.sum()), 0.0, {})
    total = float(parts.sum())
    freedom = float(_freedom(np.array([total]), parts[None], freedoms)[0])
    shares = {
        name: sum(part * estimate.shares[name] for part, estimate in zip(parts, estimates, strict=True)) / total
        for name in (SOURCES if total else ())
    }
    sides = [estimate.skews[:: 1 if weight > 0 else -1] for weight, estimate in zip(weights, estimates, strict=True)]
    skews = np.array(weights) ** 2 @ np.array(sides)
    return Estimate(mean, total, freedom, shares, (float(skews[0]), float(skews[1])))


def holm(values: Sequence[float]) -> list[float]:
    """Return p values corrected by Holm, in the same order: all below a level together err at most at that level.

    NaN stands for a test that was not made, and does not count among the tests.
    """
    order, adjusted = np.argsort(values, kind="stable"), np.empty(len(values))  # nan is last
    times = np.arange(len(values), 0, -1) - np.count_nonzero(np.isnan(values))
    adjusted[order] = np.maximum.accumulate(np.asarray(values)[order] * times).clip(max=1)
    return list(adjusted.tolist())


def smallest_loss(seeds: int, seed_spread: float, example_spread: float, power: float = 0.8) -> float:
    """Return the margin at which a true loss of 0 passes with this power.

    Args:
        seeds: the number of seeds, at least 2.
        seed_spread: standard deviation over seeds of the contrast, as a share of attention's contribution.
        example_spread: its standard error from validation examples, in the same unit.
        power: how often a model that loses nothing shall pass.
    """
    from scipy.stats import t

    part, total = seed_spread**2 / seeds, seed_spread**2 / seeds + example_spread**2
    freedom = float(_freedom(np.array([total]), np.array([[part]]), np.array([seeds - 1.0]))[0]) if part else math.inf
    return float((t.ppf(LEVEL, freedom) + t.ppf(power, freedom)) * math.sqrt(total))


def _combined(squares: np.ndarray, spread: Spread) -> tuple[np.ndarray, np.ndarray]:
    """Return variances and degrees of freedom from rows of squares [row, effect].

    The signed sum of mean squares estimates the variance without bias. If chance makes it smaller than the part of a
    single source, that part is used. Interactions reduce the variance and have no degrees of freedom, so intervals are
    somewhat wide if there is nothing else.
    """
    single = spread.members.sum(1) == 1
    parts = squares[:, single]
    variance = np.maximum(squares @ spread.signs, parts.max(1, initial=0))
    return variance, _freedom(variance, parts, spread.freedoms[single])


def _freedom(variance: np.ndarray, parts: np.ndarray, freedoms: np.ndarray) -> np.ndarray:
    """Return Satterthwaite's degrees of freedom, with `SMALL_SAMPLE_PENALTY` for sources that have few of them.

    Args:
        variance: `[row]`; the rest beyond the parts has infinite degrees of freedom.
        parts: `[row, source]`.
        freedoms: `[source]`.
    """
    more = parts * (1 + SMALL_SAMPLE_PENALTY / freedoms)
    below, least = (more**2 / freedoms).sum(1), freedoms.min(initial=math.inf)
    above = (variance + (more - parts).sum(1)) ** 2
    freedom: np.ndarray = np.maximum(np.divide(above, below, out=np.full_like(above, least), where=below > 0), least)
    return freedom


def _last(rejects: Callable[[np.ndarray], np.ndarray], middle: float, side: int) -> float:
    """Return the farthest ratio on one side that is not rejected; infinite beyond `LARGEST_LOSS`."""
    low, high = 0.0, LARGEST_LOSS
    for _ in range(3):  # each time on a small part of the last range
        steps = np.linspace(low, high, 257)
        kept = np.flatnonzero(~rejects(middle + side * steps))
        if not len(kept):
            return middle + side * low
        if kept[-1] == len(steps) - 1:
            return side * math.inf if high == LARGEST_LOSS else middle + side * high
        low, high = float(steps[kept[-1]]), float(steps[kept[-1] + 1])
    return middle + side * high


def _half(tail: float, variance: ArrayLike, freedom: ArrayLike, skew: ArrayLike) -> np.ndarray:
    """Return the distance from the mean beyond which a tail of this size lies; see `Spread._skews`."""
    from scipy.special import ndtri, stdtrit

    wider = np.asarray(variance) + np.asarray(skew) * max(-float(ndtri(tail)), 0.0)
    distance: np.ndarray = -stdtrit(freedom, tail) * np.sqrt(wider)
    return distance
