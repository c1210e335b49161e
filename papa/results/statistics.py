"""Estimates: numbers with their variance over probe seeds, orders of heads and validation examples.

All three are samples, and they are crossed: every probe is scored on the same examples. A score is the mean of a table
of pseudo-values [order, seed, unit] (Tukey's jackknife, so F1 and correlations are means too). The variance of any
linear combination of scores follows from the mean squares of that table. Its degrees of freedom are Satterthwaite's,
with a correction for few seeds. If few examples differ, and all in the same direction, the interval is wider on the
side where unseen examples may also differ. Shares of attention's contribution are tested as linear contrasts, and
their intervals are Fieller's.

Several tasks have the same probe seeds, and tasks on one corpus have the same examples, so their scores are not
independent. Their tables form one spread, in which a seed's effects are added over tasks before they are squared.
docs/error-rates.md has the error rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

LEVEL = 0.95
"""The confidence level of two-sided intervals and of one-sided bounds."""
SOURCES = ("order", "seed", "examples", "rows")
"""The sources of variance: the axes of a table of pseudo-values in their order, and the choice of training rows."""
UNITS = 2
"""The axis of units in a table of pseudo-values."""
UNSEEN_UNITS = 0.5
"""The number of unseen units added to the variance of each score. The difference of two scores thus counts one more
unit than those that differ, because the absence of differences among few examples proves nothing."""
SMALL_SAMPLE_PENALTY = 4.0
"""In the degrees of freedom of a sum, a source with f of them counts 1 + SMALL_SAMPLE_PENALTY / f times, because a few
seeds may show much less variance than there is. At 4, tests keep their level whatever share of the variance is due to
seeds."""
LARGEST_RELIANCE = 64.0
"""An interval beyond this reliance is unbounded: attention's contribution cannot be distinguished from 0."""


class Interval(NamedTuple):
    """A value with its two-sided interval and its one-sided upper bound; infinite if the data do not bound it."""

    mean: float
    low: float
    high: float
    bound: float


@dataclass(frozen=True)
class Estimate:
    """A number with its variance over seeds, orders and examples; it determines every interval, bound and p value.

    A mean score, a reliance and a difference of two of these are all estimates. `Spread.estimate` and
    `Spread.shares` derive estimates from scores.

    Args:
        mean: the measured value.
        variance: the squared standard error, over orders, seeds and examples.
        freedom: the degrees of freedom of the variance; 0 if the variance is unknown, as with one seed or one unit.
        shares: the share of the variance due to each of `SOURCES`; the rest is due to interactions. It is empty for a
            difference of independent estimates.
        skews: the growth of the variance below and above the mean, per unit of a normal quantile; see
            `Spread._skews`.
    """

    mean: float
    variance: float
    freedom: float
    shares: dict[str, float]
    skews: tuple[float, float] = (0.0, 0.0)

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the two-sided interval and the one-sided upper bound at a confidence level."""
        low, high = (self.mean + side * self._beyond((1 - level) / 2, side) for side in (-1, 1))
        return Interval(self.mean, low, high, self.mean + self._beyond(1 - level, 1))

    def above(self, level: float = LEVEL) -> bool:
        """Whether the mean is significantly above 0 (one-sided)."""
        return self.mean - self._beyond(1 - level, -1) > 0

    def minus(self, other: Estimate) -> Estimate:
        """Return the difference from an independent estimate."""
        parts = np.array([self.variance, other.variance])
        freedoms = np.array([self.freedom, other.freedom])
        total = parts.sum()
        freedom = _freedom(total, parts, freedoms) if freedoms.all() else 0.0
        # crossed, because the lower side of the difference is the upper side of what is subtracted
        skews = self.skews[0] + other.skews[1], self.skews[1] + other.skews[0]
        return Estimate(self.mean - other.mean, total, freedom, {}, skews)

    def p(self) -> float:
        """Return the two-sided p value of the test that the true value is 0."""
        return 2 * self._tail(0.0)

    def p_beyond(self, side: int) -> float:
        """Return the one-sided p value of the test that the true value is not above (1) or below (-1) 0."""
        return self._tail(0.0) if side * self.mean > 0 or not self.freedom else 1.0

    def p_within(self, delta: float) -> float:
        """Return the p value of the test that the true value is outside -delta to delta (two one-sided tests)."""
        if not abs(self.mean) < delta:
            return 1.0
        return max(self._tail(-delta), self._tail(delta))

    def _tail(self, at: float) -> float:
        """Return the one-sided p value of the test that the true value is on the other side of `at`, at most 1/2."""
        if not self.freedom:
            return math.nan
        if not self.variance:
            return float(self.mean == at) / 2
        side = -1 if self.mean > at else 1
        least = -300.0
        most = math.log(0.5)

        # no closed form: the variance itself depends on the quantile (`skews`); in log p, tiny values are found, too
        def beyond(log_p: float) -> float:
            return self._beyond(math.exp(log_p), side) - abs(self.mean - at)

        return math.exp(brentq(beyond, least, most)) if beyond(least) > 0 else 0.0

    def _beyond(self, tail: float, side: int) -> float:
        """Return the distance from the mean to where a tail with this probability begins on one side."""
        if not self.freedom:
            return math.inf
        wider = self.variance + self.skews[(1 + side) // 2] * max(-ndtri(tail), 0.0)
        return -float(stdtrit(self.freedom, tail)) * math.sqrt(wider)


@dataclass(frozen=True)
class PseudoValues:
    """The pseudo-values of several scores on one task.

    Args:
        values: `[quantity, order, seed, unit]`.
        step: the change of a pseudo-value in a unit whose outcome depends on attention.
        seeded: whether any value depends on a seed; if not, one seed is enough.
        units: `[unit]`, the index of each unit in the corpus, ascending; by default 0, 1, 2, …
        resampled: `[quantity, sample, unit]`, of probes on samples of the training rows; None if there are none.
    """

    values: np.ndarray
    step: float = 0.0
    seeded: bool = True
    units: np.ndarray | None = None
    resampled: np.ndarray | None = None

    @property
    def corpus_units(self) -> np.ndarray:
        """The index of each unit in the corpus."""
        return np.arange(self.values.shape[3]) if self.units is None else self.units

    @property
    def samples(self) -> int:
        return 0 if self.resampled is None else self.resampled.shape[1]

    def on(self, units: np.ndarray) -> np.ndarray:
        """Return the values on more units of the corpus, with the same means and the same variances of the means.

        Added units are equal to the mean over units; to compensate, the deviations of the other units are scaled up.
        """
        own = self.corpus_units
        if len(own) == len(units):
            return self.values
        means = self.values.mean(3, keepdims=True)
        values = np.repeat(means, len(units), axis=3)
        scale = len(units) / len(own)
        values[..., np.searchsorted(units, own)] += (self.values - means) * scale
        return values


@dataclass(frozen=True)
class VarianceTerm:
    """The part of the variance of means that is due to a source, or to an interaction of several sources.

    Args:
        members: the sources: one for a main effect, several for an interaction.
        square: mean squares and products, divided by the number of values, `[quantity, quantity]`.
        freedom: degrees of freedom.
    """

    members: tuple[str, ...]
    square: np.ndarray
    freedom: float


@dataclass(frozen=True)
class Spread:
    """Mean squares of several quantities that were measured with the same orders and seeds.

    The quantities of one corpus were also measured on the same units. Units of different corpora are independent.

    Args:
        means: `[quantity]`.
        squares: mean squares and products `[effect, quantity, quantity]`, divided by the number of values.
        freedoms: `[effect]`, degrees of freedom.
        members: bool `[effect, source]`, the sources of each effect: one for a main effect, several for an interaction.
        seeds: the number of seeds.
        units: `[quantity, unit]`, the deviation that each unit adds to the means; None with a single unit.
        unseen: the squared deviation that unseen units may add to a mean, for each task.
        seeded: whether any value depends on a seed.
        tasks: the quantities of each task.
    """

    means: np.ndarray
    squares: np.ndarray
    freedoms: np.ndarray
    members: np.ndarray
    seeds: int
    units: np.ndarray | None = None
    unseen: tuple[float, ...] = (0.0,)
    seeded: bool = True
    tasks: tuple[slice, ...] = (slice(None),)

    @classmethod
    def over(cls, corpora: Sequence[Sequence[PseudoValues]]) -> Spread:
        """Return the joint spread of several tasks, which have the same orders and seeds.

        Effects of orders and seeds are common to all tasks. Effects that involve units are common to the tasks on one
        corpus. Quantities and `tasks` follow in the order of the tables. With one order, the variance over orders is
        unknown, and the result holds only for this order; with one seed or one unit, the whole variance is unknown.
        """
        tables = [table for of_corpus in corpora for table in of_corpus]
        blocks = [_on_common_units(of_corpus) for of_corpus in corpora]
        places = _consecutive([len(block) for block in blocks])
        sizes = [len(table.values) for table in tables]
        tasks = _consecutive(sizes)
        unseen = [0.0] * len(tables)
        units = None
        if UNITS in _varied_axes(blocks):
            unseen = [UNSEEN_UNITS * (table.step / table.values.shape[3]) ** 2 for table in tables]
            units = _deviations_of_units(blocks, places)
        by_quantity = np.repeat(unseen, sizes)
        terms = [*_crossed_terms(blocks, places, by_quantity)]
        for place, of_corpus in zip(places, corpora, strict=True):
            terms += _row_terms(of_corpus, place.start, len(by_quantity))
        squares = np.array([term.square for term in terms])
        names = [[source in term.members for source in SOURCES] for term in terms]
        members = np.array(names, bool).reshape(-1, len(SOURCES))
        return cls(
            means=np.concatenate([block.mean((1, 2, 3)) for block in blocks]),
            squares=squares.reshape(-1, len(by_quantity), len(by_quantity)),
            freedoms=np.array([term.freedom for term in terms], float),
            members=members,
            seeds=blocks[0].shape[2],
            units=units,
            unseen=tuple(unseen),
            seeded=any(table.seeded for table in tables),
            tasks=tuple(tasks),
        )

    @property
    def known(self) -> bool:
        """Whether there are enough seeds and units to estimate how much they vary."""
        return bool(self._single("examples").any()) and (self.seeds > 1 or not self.seeded)

    @cached_property
    def signs(self) -> np.ndarray:
        """The sign of each effect in the variance of a mean, `[effect]`."""
        # every interaction is also in the mean squares of its sources, so signs alternate (inclusion-exclusion)
        return np.where(self.members.sum(1) % 2, 1.0, -1.0)

    def _of(self, source: str) -> np.ndarray:
        """Select the effects of a source and its interactions, bool `[effect]`."""
        return self.members[:, SOURCES.index(source)]

    def _single(self, source: str) -> np.ndarray:
        """Select the main effects of a source, bool `[effect]`."""
        single: np.ndarray = self._of(source) & (self.members.sum(1) == 1)
        return single

    def estimate(self, weights: ArrayLike) -> Estimate:
        """Estimate a linear combination of the quantities.

        The signed sum of mean squares is an unbiased estimate of the variance. If by chance it is smaller than the mean
        square of a single source, that mean square is used. Interactions reduce the variance, but have no degrees of
        freedom here, so intervals are slightly too wide if there is no other variance. The variance between samples of
        training rows is common to all seeds, so it is added once; its sum over corpora is at least 0.

        The variance between samples also contains that of each sample's own seed. It is subtracted if several corpora
        are combined. In a single corpus, the difference of two variances with few degrees of freedom is too uncertain,
        so intervals there are too wide.
        """
        combination = np.asarray(weights, float)
        rows = self._of("rows")
        squares = np.einsum("eij,i,j->e", self.squares, combination, combination)
        signed = squares * self.signs
        single = self.members.sum(1) == 1
        main = single & ~rows
        largest = (squares[main] @ self.members[main]).max(initial=0)
        variance = max(signed[~rows].sum(), largest) + max(signed[rows].sum(), 0)
        if np.count_nonzero(squares[rows & single]) > 1:
            variance = max(variance - self._seeds_of_samples(combination), largest)
        freedom = _freedom(variance, squares[single], self.freedoms[single]) if self.known else 0.0
        mean = combination @ self.means
        skews = self._skews(squares, combination)
        return Estimate(mean, variance, freedom, self._shares(signed), skews)

    def ratio(self, numerator: ArrayLike, denominator: ArrayLike, level: float = LEVEL) -> Interval:
        """Return the ratio of two linear combinations with Fieller's interval.

        The interval contains all ratios r for which a test does not reject that numerator - r · denominator is 0. It is
        unbounded if the denominator is not significantly above 0, and with one seed or one unit.
        """
        first = np.asarray(numerator, float)
        second = np.asarray(denominator, float)
        top = first @ self.means
        bottom = second @ self.means
        middle = top / bottom if bottom else math.nan
        if not self.estimate(second).above(level):
            return Interval(middle, -math.inf, math.inf, math.inf)
        # a share that is known, such as the reliance of the floor
        if np.allclose(first, middle * second):
            return Interval(middle, middle, middle, middle)

        def end(tail: float, side: int) -> float:
            def excess(distance: float) -> float:
                """Return a number above 0 if the test rejects the ratio at this distance from the measured one."""
                contrast = self.estimate(first - (middle + side * distance) * second)
                return -side * contrast.mean - contrast._beyond(tail, side)

            if excess(LARGEST_RELIANCE) <= 0:
                return side * math.inf
            if excess(0) >= 0:  # no variance
                return middle
            return middle + side * float(brentq(excess, 0, LARGEST_RELIANCE))

        both = (1 - level) / 2
        return Interval(middle, end(both, -1), end(both, 1), end(1 - level, 1))

    def shares(self, terms: Sequence[tuple[float, np.ndarray, np.ndarray]]) -> Estimate:
        """Estimate a sum of ratios by the delta method, from the weight, numerator and denominator of each."""
        parts = []
        contrast = np.zeros(len(self.means))
        for weight, numerator, denominator in terms:
            bottom = denominator @ self.means
            ratio = numerator @ self.means / bottom
            parts.append(weight * ratio)
            contrast += weight * (numerator - ratio * denominator) / bottom
        return replace(self.estimate(contrast), mean=math.fsum(parts))

    def _seeds_of_samples(self, combination: np.ndarray) -> float:
        """Return the variance of one seed, at least 0, summed over corpora that have samples of the training rows."""
        seeded = self._of("seed")
        of_one_seed = self.seeds * np.einsum("e,eij->ij", self.signs[seeded], self.squares[seeded])
        on_one_corpus = self.squares[self._of("rows")].any(0)
        of_seed = float(combination @ np.where(on_one_corpus, of_one_seed, 0) @ combination)
        return max(of_seed, 0.0)

    def _skews(self, squares: np.ndarray, combination: np.ndarray) -> tuple[float, float]:
        """Return the growth of the variance below and above the mean, per unit of a normal quantile.

        If the true mean lay farther in the direction of rare units, more of them would occur, and the variance would be
        larger. The growth follows from the third moment, as in Wilson's interval for a share. It is positive if rare
        units lie in this direction.
        """
        deviation = math.sqrt(max(squares[self._single("examples")].sum(), 0))
        if self.units is None or not deviation:
            return 0.0, 0.0
        cube = ((combination @ self.units) ** 3).sum()
        lengths = np.array([combination[task] @ combination[task] for task in self.tasks])
        unseen = ((lengths * np.array(self.unseen)) ** 1.5).sum()
        return max(unseen - cube, 0) / deviation, max(unseen + cube, 0) / deviation

    def _shares(self, signed: np.ndarray) -> dict[str, float]:
        """Return the share of the variance due to each source, without interactions."""
        rows = self._of("rows")
        total = signed[~rows].sum() + max(signed[rows].sum(), 0)
        parts = dict[str, float]()
        for name in SOURCES:
            effects = rows if name == "rows" else self._of(name) & ~rows
            # differences of mean squares may be negative by chance, but no share of a variance is
            parts[name] = max(signed[effects].sum(), 0.0)
        total = max(total, sum(parts.values()))
        return {name: part / total if total else 0.0 for name, part in parts.items()}


def _consecutive(sizes: Sequence[int]) -> list[slice]:
    stops = np.cumsum([0, *sizes]).tolist()
    return [slice(start, stop) for start, stop in pairwise(stops)]


def _on_common_units(tables: Sequence[PseudoValues]) -> np.ndarray:
    """Return the values of all tables of a corpus on all of their units, `[quantity, order, seed, unit]`."""
    every_unit = np.unique(np.concatenate([table.corpus_units for table in tables]))
    return np.concatenate([table.on(every_unit) for table in tables])


def _varied_axes(blocks: Sequence[np.ndarray]) -> list[int]:
    """Return the axes of orders, seeds and units (0, 1 and 2) that have several values in every block."""
    return [axis for axis in range(3) if min(block.shape[axis + 1] for block in blocks) > 1]


def _crossed_terms(
    blocks: Sequence[np.ndarray], places: Sequence[slice], unseen: np.ndarray
) -> Iterator[VarianceTerm]:
    """Yield the terms of orders, seeds and units, and of their interactions.

    A value is the sum of the mean and of one effect for each subset A of the axes (analysis of variance, without
    replication). An effect of A has E entries, one for each combination of its indices, and each belongs to N / E of
    the N values. As effects sum to 0 along each axis of A, f = Π (size - 1) entries are free. Hence the mean square is
    (N / E) Σ effect² / f, and its part of the variance of the mean is that divided by N.

    Args:
        blocks: values of each corpus, `[quantity, order, seed, unit]`.
        places: the quantities of each corpus.
        unseen: the squared deviation that unseen units may add, `[quantity]`.
    """
    varied = _varied_axes(blocks)
    subsets = [axes for size in range(len(varied)) for axes in combinations(varied, size + 1)]
    by_block = [_effects(block, subsets) for block in blocks]
    every = range(len(blocks))
    for axes in subsets:
        # corpora have orders and seeds in common, but no units
        for chosen in [[index] for index in every] if UNITS in axes else [[*every]]:
            entries = np.concatenate([by_block[index][axes] for index in chosen])
            flat = entries.reshape(len(entries), -1)
            shape = blocks[chosen[0]].shape[1:]
            total = math.prod(shape)
            freedom = math.prod(shape[axis] - 1 for axis in axes)
            place = slice(places[chosen[0]].start, places[chosen[-1]].stop)
            square = np.zeros((len(unseen), len(unseen)))
            square[place, place] = flat @ flat.T * (total / flat.shape[1]) / freedom / total
            if axes == (UNITS,):
                square[place, place] += np.diag(unseen[place])
            yield VarianceTerm(tuple(SOURCES[axis] for axis in axes), square, freedom)


def _deviations_of_units(blocks: Sequence[np.ndarray], places: Sequence[slice]) -> np.ndarray:
    """Return what each unit adds to the mean of each quantity, `[quantity, unit]`; 0 for units of other corpora."""
    columns = _consecutive([block.shape[3] for block in blocks])
    deviations = np.zeros((places[-1].stop, columns[-1].stop))
    for block, place, column in zip(blocks, places, columns, strict=True):
        of_units = block.mean((1, 2)) - block.mean((1, 2, 3))[:, None]
        deviations[place, column] = of_units / block.shape[3]
    return deviations


def _row_terms(
    tables: Sequence[PseudoValues], first: int, quantities: int
) -> Iterator[VarianceTerm]:
    """Yield the term of the choice of training rows of a corpus, and its part that is due to units.

    Both follow from the predictions of probes on R samples of the rows, which take the place of seeds. The first is the
    covariance of the R means. The second, the interaction of samples and units, is subtracted from it, because how
    samples differ on units is part of how units differ. Either includes the effect of one seed.

    Args:
        tables: the tables of the corpus, the first of whose quantities is number `first` of all `quantities`.
    """
    drawn = [table for table in tables if table.samples > 1]
    if not drawn:
        return
    samples = min(table.samples for table in drawn)
    resampled = [
        replace(table, values=table.resampled[:, None, :samples])
        for table in drawn
        if table.resampled is not None
    ]
    block = _on_common_units(resampled)
    sizes = [len(table.values) for table in tables]
    sampled = first + np.flatnonzero(np.repeat([table.samples > 1 for table in tables], sizes))
    for term in _crossed_terms([block], [slice(len(block))], np.zeros(len(block))):
        if "seed" in term.members:
            whole = np.zeros((quantities, quantities))
            # the rows of a study are one sample, and not a mean over all
            whole[np.ix_(sampled, sampled)] = samples * term.square
            yield VarianceTerm(("rows", *term.members[1:]), whole, term.freedom)


def _effects(
    values: np.ndarray, subsets: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], np.ndarray]:
    """Return the effects of orders, seeds and units (0, 1 and 2), and of subsets of them, on each quantity."""
    effects: dict[tuple[int, ...], np.ndarray] = {(): values.mean((1, 2, 3), keepdims=True)}
    for axes in subsets:
        over = tuple(axis + 1 for axis in range(3) if axis not in axes)
        inner = (part for size in range(len(axes)) for part in combinations(axes, size))
        # a mean over no axis is the values themselves
        effects[axes] = values.mean(over, keepdims=True) - sum(effects[part] for part in inner)
    return effects


def holm(values: Sequence[float]) -> list[float]:
    """Return the p values in the same order, corrected by Holm's method; NaN (not tested) stays NaN."""
    # NaN is last
    order = np.argsort(values, kind="stable")
    adjusted = np.empty(len(values))
    # what was not tested is none of the tests
    factors = np.arange(len(values), 0, -1) - np.count_nonzero(np.isnan(values))
    # a larger p value must not become the smaller one
    adjusted[order] = np.maximum.accumulate(np.asarray(values)[order] * factors).clip(max=1)
    return adjusted.tolist()


def smallest_margin(
    seeds: int, seed_spread: float, example_spread: float, power: float = 0.8
) -> float:
    """Return the smallest margin at which a reliance of 0 can be shown to be acceptable with this `power`.

    `seed_spread` is the standard deviation of the reliance over seeds, `example_spread` its standard error due to
    examples.
    """
    from scipy.stats import t

    from_seeds = seed_spread**2 / seeds
    total = from_seeds + example_spread**2
    freedom = math.inf
    if from_seeds:
        freedom = _freedom(total, np.array([from_seeds]), np.array([seeds - 1.0]))
    # the bound is above the estimate by the first; with this power, the estimate is above 0 by the second at most
    return float((t.ppf(LEVEL, freedom) + t.ppf(power, freedom)) * math.sqrt(total))


def _freedom(variance: float, parts: np.ndarray, freedoms: np.ndarray) -> float:
    """Return Satterthwaite's degrees of freedom, with `SMALL_SAMPLE_PENALTY` for sources that have few of them.

    What the total variance has above the sum of its `parts` `[source]` has infinite degrees of freedom.
    """
    penalised = parts * (1 + SMALL_SAMPLE_PENALTY / freedoms)
    denominator = float((penalised**2 / freedoms).sum())
    least = float(freedoms.min(initial=math.inf))
    if not denominator:
        return least
    # interactions are subtracted from the variance only, which could give fewer than the least certain source has
    return max(float((variance + (penalised - parts).sum()) ** 2) / denominator, least)
