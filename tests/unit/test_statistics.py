"""Intervals and tests against plain t intervals, tables worked out by hand, a bootstrap, and known studies."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchmarks.error_rates import (
    ALIKE,
    BASE,
    CHANCE,
    MARGIN,
    MATTHEWS,
    NOTHING,
    Case,
    Size,
    batch,
    rates_of,
)
from papa.config.measures import MEASURES, Outcomes, pseudo_values
from papa.results.statistics import (
    SOURCES,
    UNSEEN_UNITS,
    Estimate,
    Interval,
    PseudoValues,
    Spread,
    holm,
    smallest_margin,
)

LOST = [1.0, -1.0]


def by_quantity(*values):
    """A value for each quantity, to add to those of `crossed`."""
    return np.array(values)[:, None, None, None]


def crossed(seed, sizes, spreads=(0.3, 0.2, 1.0, 0.5)):
    """Values `[quantity, order, seed, unit]` of orders, seeds, units, and of what they make together."""
    chance = np.random.default_rng(seed)
    quantities, orders, seeds, units = sizes
    shapes = ((orders, 1, 1), (1, seeds, 1), (1, 1, units), (orders, seeds, units))
    parts = [
        spread * chance.normal(size=(quantities, *shape))
        for spread, shape in zip(spreads, shapes, strict=True)
    ]
    return sum(parts, by_quantity(*range(quantities, 0, -1)))


def plain(values, level=0.95):
    half = (
        stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    )
    return float(values.mean() - half), float(values.mean() + half)


def spread_of(values, step=0.0, seeded=True):
    return Spread.over([[PseudoValues(values, step, seeded)]])


def of_seeds(*values):
    """The spread of quantities that only vary with the seed: all examples count the same."""
    return spread_of(np.repeat(np.stack(values)[:, None, :, None], 5, axis=3))


def test_if_only_seeds_vary_the_interval_is_that_of_t():
    values = np.array([0.81, 0.84, 0.79, 0.86])
    estimate = of_seeds(values).estimate([1.0])
    assert estimate.freedom == pytest.approx(3)
    assert estimate.interval()[1:3] == pytest.approx(plain(values))
    assert estimate.interval().bound == pytest.approx(plain(values, 0.9)[1])
    for shift in (0.0, 0.8):
        shifted = of_seeds(values - shift).estimate([1.0])
        assert shifted.p() == pytest.approx(stats.ttest_1samp(values, shift).pvalue, rel=1e-6)
        assert shifted.above() == (
            stats.ttest_1samp(values, shift, alternative="greater").pvalue < 0.05
        )
    # the same of examples, if they lean to no side
    values = np.array([-3.0, -1.0, -0.5, 0.5, 1.0, 3.0]) + 7
    estimate = spread_of(np.broadcast_to(values, (1, 4, 3, 6))).estimate([1.0])
    assert estimate.interval()[1:3] == pytest.approx(plain(values))
    assert estimate.shares == {"order": 0, "seed": 0, "examples": 1, "rows": 0}


def test_the_variance_of_two_ways_is_the_classical_one():
    # three seeds (rows) with the means 5, 6 and 7, and four examples (columns) with the means 6, 9, 6 and 3
    table = np.array([[5.0, 7.0, 6.0, 2.0], [4.0, 9.0, 7.0, 4.0], [9.0, 11.0, 5.0, 3.0]])
    spread = spread_of(table[None, None])
    # mean squares, worked out on paper: of rows, of columns, and of what is left
    assert spread.squares[:, 0, 0] * 12 == pytest.approx(np.array([4, 18, 3]))
    assert spread.freedoms.tolist() == [2, 3, 6]
    assert spread.signs.tolist() == [1, 1, -1]
    assert spread.estimate([1.0]).variance == pytest.approx((4 + 18 - 3) / 12)
    # two seeds that only differ in their effect on examples: the sum is less than what only examples explain
    swapped = np.array([[5.0, 7.0, 6.0, 2.0], [7.0, 5.0, 2.0, 6.0]])
    assert spread_of(swapped[None, None]).estimate([1.0]).variance == pytest.approx(
        swapped.mean(0).var(ddof=1) / 4
    )


def test_the_variance_of_three_ways_is_unbiased():
    parts = (0.5, 0.4, 0.6, 0.8)
    spreads = [spread_of(crossed(seed, (1, 4, 5, 30), parts)) for seed in range(300)]
    signed = np.mean([spread.squares[:, 0, 0] @ spread.signs for spread in spreads])
    assert signed == pytest.approx(0.25 / 4 + 0.16 / 5 + 0.36 / 30 + 0.64 / 600, rel=0.08)
    assert np.var([spread.means[0] for spread in spreads]) == pytest.approx(signed, rel=0.25)


def test_a_ratio_has_fiellers_closed_interval():
    chance = np.random.default_rng(5)
    below = 4 + chance.normal(size=8)
    above = 0.5 * below + chance.normal(size=8)
    ratio = of_seeds(above, below).ratio([1, 0], [0, 1])
    a = above.mean()
    b = below.mean()
    t = stats.t.ppf([0.975, 0.95], 7)
    (v_a, v_ab), (_, v_b) = np.cov(above, below) / 8
    # (a - r b)² = t² (v_a - 2 r v_ab + r² v_b), solved for r
    middle = a * b - t**2 * v_ab
    square = b * b - t**2 * v_b
    root = np.sqrt(middle**2 - square * (a * a - t**2 * v_a))
    expected = Interval(a / b, ((middle - root) / square)[0], *((middle + root) / square))
    assert ratio == pytest.approx(expected, abs=1e-4)


def test_a_bound_is_below_a_margin_where_the_contrast_is_below_0():
    above = np.array([1.0, 0.0, -1.0])
    below = np.array([1.0, -1.0, 0.0])
    verdicts = set()
    for seed in range(40):
        values = crossed(seed, (3, 2, 3, 80), (0.02, 0.02, 0.3, 0.2))
        values[:, :, :, :3] += by_quantity(0.0, 0.0, -5.0) * (seed % 2)  # few examples are lost
        values += by_quantity(-2.0, -4.5, 0.0)
        spread = spread_of(values, 1.0)
        bound = spread.ratio(above, below).bound
        for margin in (0.02, 0.05, 0.1):
            contrast = spread.estimate(above - margin * below).interval()
            assert (bound < margin) == (contrast.bound < 0) or abs(bound - margin) < 1e-3
            verdicts.add(bound < margin)
    assert verdicts == {True, False}


def random_counts(metric, units=60):
    """Counts `[run, unit, count]` of two runs."""
    chance = np.random.default_rng(3)
    if MEASURES[metric].column != "predicted":
        tokens = chance.integers(1, 9, units).astype(float)
        return np.stack(
            [np.stack([tokens * chance.exponential(2, units), tokens], axis=1) for _ in range(2)]
        )
    names = ["O", "B-X", "I-X", "B-Y"][: 2 if metric == "f1" else 4]
    unit = np.repeat(np.arange(units), chance.integers(1, 6, units))
    gold = chance.integers(0, len(names), len(unit))
    guesses = chance.integers(0, len(names), (2, len(unit)))
    runs = np.where(chance.random((2, len(unit))) < 0.7, gold, guesses)
    return np.stack([MEASURES[metric].counts(Outcomes(gold, run, unit, names)) for run in runs])


@pytest.mark.parametrize("metric", MEASURES)
def test_pseudo_values_have_the_score_as_their_mean(metric):
    measure = MEASURES[metric]
    counts = random_counts(metric)
    values = pseudo_values(measure, counts)
    assert values.shape == counts.shape[:2]
    assert values.mean(1) == pytest.approx(measure.score(counts.sum(1)), abs=1e-12)
    # what one unit adds is what is lost without it
    without = [measure.score(np.delete(counts[0], unit, axis=0).sum(0)) for unit in range(60)]
    assert np.ptp(values[0] + 59 * np.array(without)) == pytest.approx(0, abs=1e-9)
    # the only unit has the score
    assert (
        pseudo_values(measure, counts[:, :1])[:, 0].tolist() == measure.score(counts[:, 0]).tolist()
    )


def errors(seeds):
    """The error rates of one-sided and two-sided tests of normal values, by the share of seeds in the variance."""
    freedom = seeds - 1.0
    # from the distribution of the mean square of seeds: a sum over its quantiles
    points, weights = np.polynomial.legendre.leggauss(60)
    squares = stats.chi2.ppf((points + 1) / 2, freedom) / freedom
    about = np.array([freedom, 1e6]), np.eye(4, dtype=bool)[1:3], seeds
    one_sided = []
    two_sided = []
    for share in (0.1, 0.3, 0.6, 0.8, 0.9, 0.95, 1.0):
        parts = np.stack([squares * share, np.full_like(squares, 1 - share)], axis=1)
        intervals = [
            Spread(np.zeros(1), part[:, None, None], *about).estimate([1.0]).interval()
            for part in parts
        ]
        one_sided.append(
            float(weights / 2 @ stats.norm.sf([interval.bound for interval in intervals]))
        )
        two_sided.append(float(weights @ stats.norm.sf([interval.high for interval in intervals])))
    return one_sided, two_sided


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_no_share_of_seeds_makes_tests_err_more_often_than_they_say(seeds):
    one_sided, two_sided = errors(seeds)
    assert max(one_sided) < 0.0505
    assert max(two_sided) < 0.0535
    assert min(one_sided) > 0.03


def test_that_none_of_few_examples_differs_is_no_proof():
    estimate = spread_of(np.ones((2, 1, 3, 100)), 1.0).estimate(LOST)
    # about 3 of 100 may be lost where none was: 1 - 0.97 ** 100 is 95%
    assert 0.02 < estimate.interval().bound < 0.05
    assert estimate.variance == pytest.approx(2 * UNSEEN_UNITS / 100**2)


def test_few_lost_examples_widen_the_interval_to_their_side_as_wilsons_does():
    values = np.zeros((1, 1, 3, 1000))
    values[..., :10] = 1
    interval = spread_of(values).estimate([1.0]).interval()
    wilson = stats.binomtest(10, 1000).proportion_ci(0.9, "wilson").high
    assert interval.high - interval.mean > 1.2 * (interval.mean - interval.low)
    assert interval.bound == pytest.approx(wilson, rel=0.05)
    assert interval.bound > plain(values[0, 0, 0], 0.9)[1]


UNBOUNDED = (-math.inf, math.inf, math.inf)


@pytest.mark.parametrize("sizes", [(2, 3, 1, 20), (2, 3, 4, 1), (2, 1, 1, 1)])
def test_one_seed_or_one_example_has_no_bounds(sizes):
    spread = spread_of(crossed(11, sizes), 1.0)
    estimate = spread.estimate(LOST)
    assert estimate.interval()[1:] == UNBOUNDED
    assert not spread.known
    assert not estimate.freedom
    assert math.isnan(estimate.p())
    assert not estimate.above()
    assert spread.ratio([1, -1], [1, 0])[1:] == UNBOUNDED
    assert estimate.minus(Estimate(0.0, 1.0, 3.0, {})).interval().high == math.inf
    # tasks are known only if each has several units
    tables = [[PseudoValues(crossed(25, (1, *sizes[1:3], size)))] for size in (20, sizes[3])]
    assert not Spread.over(tables).known


def test_what_is_known_has_an_interval_of_no_width_and_a_share_of_nothing_has_no_bounds():
    equal = spread_of(np.full((2, 2, 3, 10), 0.5))
    estimate = equal.estimate([1, 0])
    assert estimate.interval() == (0.5, 0.5, 0.5, 0.5)
    assert estimate.p() == 0
    assert estimate.above()
    assert set(estimate.shares.values()) == {0.0}
    assert equal.estimate(LOST).p() == 1
    constant = spread_of(np.broadcast_to(by_quantity(0.1, 0.7, 0.4), (3, 1, 3, 7)))
    assert constant.ratio([0, 1, -1], [-1, 1, 0]) == pytest.approx(Interval(0.5, 0.5, 0.5, 0.5))
    values = crossed(12, (3, 1, 4, 50)) + by_quantity(3.0, 0.0, 0.0)
    ratio = spread_of(values, 1.0).ratio([0.5, -0.5, 0], [1, -1, 0])
    assert ratio == pytest.approx(Interval(0.5, 0.5, 0.5, 0.5))
    values[1] = values[0]  # context_free probes predict the same as the original
    lost = [1, 0, -1]
    contributed = [1, -1, 0]
    ratio = spread_of(values, 1.0).ratio(lost, contributed)
    assert math.isnan(ratio.mean)
    assert ratio[1:] == UNBOUNDED
    values[1] += np.random.default_rng(0).normal(size=values[1].shape)
    ratio = spread_of(values, 1.0).ratio(lost, contributed)
    assert ratio[1:] == UNBOUNDED


def test_independent_estimates_add_their_variances():
    first, second = (spread_of(crossed(seed, (2, 1, 4, 30))).estimate(LOST) for seed in (13, 14))
    both = second.minus(first)
    assert both.mean == pytest.approx(second.mean - first.mean)
    assert both.variance == pytest.approx(first.variance + second.variance)
    task = Estimate(0.1, 0.01, 2.0, dict.fromkeys(SOURCES, 0.0))
    assert task.minus(task).freedom == pytest.approx(4), (
        "alike estimates add their degrees of freedom"
    )


def by_hand(tables, weights, shared):
    """The variance of a sum of weighted means over tables `[quantity, 1, seed, unit]` with the same seeds.

    It is that of seeds, plus that of units, minus that of both together; `shared` units are those of one corpus.
    """
    sums = [
        np.einsum("q,qsu->su", part, table[:, 0])
        for part, table in zip(weights, tables, strict=True)
    ]
    blocks = [sum(sums[1:], sums[0])] if shared else sums
    variance = sum(block.mean(1) for block in sums).var(ddof=1) / len(sums[0])
    for block in blocks:
        seeds, units = block.shape
        variance += block.mean(0).var(ddof=1) / units
        rest = block - block.mean(0) - block.mean(1, keepdims=True) + block.mean()
        variance -= (rest**2).sum() / ((seeds - 1) * (units - 1)) / (seeds * units)
    return float(variance)


@pytest.mark.parametrize("shared", [True, False])
def test_a_sum_over_tasks_adds_the_effects_of_a_seed_before_it_squares_them(shared):
    second = 31 if shared else 43
    tables = [
        crossed(seed, (quantities, 1, 5, size))
        for seed, quantities, size in ((21, 2, 31), (22, 3, second))
    ]
    tables[1] += 0.8 * tables[0].mean((0, 1, 3))[None, None, :, None]
    weights = [[1.0, -0.5], [0.3, -1.0, 2.0]]
    corpora = [[PseudoValues(table)] for table in tables]
    spread = Spread.over([[*corpora[0], *corpora[1]]] if shared else corpora)
    assert [spread.means[task].size for task in spread.tasks] == [2, 3]
    estimate = spread.estimate([*weights[0], *weights[1]])
    assert estimate.variance == pytest.approx(by_hand(tables, weights, shared), rel=1e-12)
    assert estimate.variance > 1.2 * sum(
        by_hand([table], [part], False) for table, part in zip(tables, weights, strict=True)
    )


def test_a_task_with_missing_units_keeps_its_mean_and_its_variance():
    whole = crossed(23, (2, 1, 5, 60))
    part = crossed(24, (2, 1, 5, 53))
    units = np.delete(np.arange(60), [1, 2, 3, 5, 7, 11, 13])
    spread = Spread.over([[PseudoValues(whole), PseudoValues(part, units=units)]])
    for task, table in zip(spread.tasks, (whole, part), strict=True):
        weights = np.zeros(4)
        weights[task] = LOST
        estimate = spread.estimate(weights.tolist())
        alone = spread_of(table).estimate(LOST)
        assert (estimate.mean, estimate.variance) == pytest.approx(
            (alone.mean, alone.variance), rel=0.01
        )
    # the units that both tasks have are paired by their index
    same = Spread.over([[PseudoValues(whole), PseudoValues(whole[..., units], units=units)]])
    assert same.estimate([1, 0, -1, 0]).variance < 0.3 * same.estimate([1, 0, 0, 0]).variance


def test_what_was_not_tested_is_none_of_the_tests():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.04, math.nan, 0.01, 0.03]) == pytest.approx(
        [0.06, math.nan, 0.03, 0.06], nan_ok=True
    )
    assert holm([]) == []


def test_the_smallest_margin_shrinks_with_seeds_and_passes_as_often_as_it_says():
    margins = [smallest_margin(seeds, 0.1, 0.02) for seeds in (3, 5, 10, 100)]
    assert margins == sorted(margins, reverse=True)
    assert smallest_margin(5, 0.0, 0.02) == pytest.approx(
        (stats.norm.ppf(0.95) + stats.norm.ppf(0.8)) * 0.02
    )
    chance = np.random.default_rng(16)
    values = chance.normal(0, 0.1, (2000, 5))
    bounds = values.mean(1) + stats.t.ppf(0.95, 4) * values.std(1, ddof=1) / math.sqrt(5)
    assert np.mean(bounds < smallest_margin(5, 0.1, 1e-9)) == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize(
    "world",
    [
        BASE,
        MATTHEWS,
        replace(BASE, rows=0.03),
        *(replace(BASE, gaps=(0.0, 0.0), **like) for like in ({}, ALIKE)),
    ],
    ids=["one floor", "Matthews", "training rows differ", "three floors", "three floors, alike"],
)
def test_few_claims_are_wrong_and_most_intervals_hold_the_reliance(world):
    """Several floors are equally high, and the true reliance is the margin against each of them."""
    size = Size(3, 200, resamples=5 if world.rows else 0)
    rates = rates_of(batch((Case((replace(world, reliance=MARGIN),), size), 300, (18,))))
    assert rates.wrong <= 0.08
    assert rates.held >= 0.9
    assert rates.counts > 0.95
    assert rates.in_points_wrong <= 0.08
    assert rates.lost_held >= 0.9
    assert rates_of(batch((Case((world,), size), 50, (19,)))).claimed > 2 * rates.wrong


def test_few_claims_in_points_are_wrong_where_attention_contributes_nothing():
    """A probe at chance loses nothing, so it must not pass; see `Claim.p`."""
    size = Size(3, 200)
    at_margin = rates_of(batch((Case((replace(NOTHING, reliance=MARGIN),), size), 300, (20,))))
    assert at_margin.in_points_wrong <= 0.08
    assert at_margin.lost_held >= 0.9
    without_loss = rates_of(batch((Case((NOTHING,), size), 50, (21,))))
    assert without_loss.in_points > 2 * at_margin.in_points_wrong
    assert not without_loss.claimed
    at_chance = rates_of(batch((Case((CHANCE,), size), 300, (22,))))
    assert at_chance.in_points == at_chance.in_points_wrong <= 0.08
