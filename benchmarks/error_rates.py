"""Error rates of claims: simulated studies of tasks with known true reliance, judged by papa.

    python benchmarks/error_rates.py             # 2,000 studies per case: half an hour on two free cores
    python benchmarks/error_rates.py --quick     # 200 studies of a few cases: a minute
    python benchmarks/error_rates.py --outcomes results/NAME --cluster ner=10     # accuracy and F1 only

A task is a population: it has a true score for the original, for each context-free floor and for the replaced heads,
and a study draws training rows, seeds, orders of heads and examples from it. Its true reliance is against the highest
floor. Claims are about a share of attention's contribution, and about as many points. Everything that is judged goes
through `papa.results`; nothing is written twice. Prints Markdown tables; docs/error-rates.md explains them.

With `--outcomes`, studies are drawn from the real outcomes of a finished study with many seeds. The original's seeds
are split in two: one half is the original, the other half is the replaced heads, so their true reliance is 0. If a
known share of correct answers is then flipped, the true reliance is known too. Clusters of examples are drawn as a
whole.
"""

from __future__ import annotations

import argparse
import math
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import ndtri

from papa.config.margin import POINTS, SHARE, Margin
from papa.config.measures import MEASURES, Counts
from papa.config.variant import CONTEXT_FREE
from papa.results.claims import corrected_p_values
from papa.results.compare import read_outcomes
from papa.results.outcomes import ALL, ORIGINALS, Sample, Setting, TaskOutcomes
from papa.results.reliance import SIGNIFICANT, Claim, Effect, effect_of, mean_reliance
from papa.results.statistics import LEVEL

MARGIN = 0.1
SHARE_MARGIN = Margin(100 * MARGIN, SHARE)
WITHOUT_CONTRIBUTION = 0.25
"""If attention contributes nothing, margins and losses are shares of this difference in score instead."""
REPLACED = Setting("average", "lambda", "1/2")
FLOORS = tuple(Setting(name, fraction="0") for name in CONTEXT_FREE)
AT_ONCE = 100
"""The number of studies that one call of a process simulates."""


@dataclass(frozen=True)
class World:
    """A task as a population of seeds, orders and examples.

    A probe is right about an example if a normal number of variance 1 exceeds a threshold, which depends on seed and
    order. So the share of examples, seeds and orders for which it is right is known exactly.

    Args:
        reliance: the true reliance of the replaced heads, against the highest floor; see `WITHOUT_CONTRIBUTION`.
        original, context_free: how often the original and the highest floor are right about class 0 and class 1.
        gaps: how much less often each further floor is right; floors make similar errors, see `shared`.
        majority: the share of class 1.
        metric: one of `MEASURES`.
        seed, rows, order: standard deviation of the accuracy over seeds and over samples of training rows (half of
            either variance is common to all settings), and over orders of the same number of heads.
        shared: how much of what makes an example hard is common to all settings, as a part of the variance.
        kept: how much more of it original and replaced heads have in common.
        noise: how much is different for each probe; the rest is different for each setting.
    """

    reliance: float = 0.0
    original: tuple[float, float] = (0.85, 0.85)
    context_free: tuple[float, float] = (0.60, 0.60)
    gaps: tuple[float, ...] = ()
    majority: float = 0.5
    metric: str = "accuracy"
    seed: float = 0.0075
    rows: float = 0.0
    order: float = 0.01
    shared: float = 0.55
    kept: float = 0.35
    noise: float = 0.06

    @property
    def floors(self) -> list[tuple[float, float]]:
        """Rates of correct answers of each floor, the highest first."""
        first, second = self.context_free
        return [self.context_free, *((first - gap, second - gap) for gap in self.gaps)]

    @cached_property
    def replaced(self) -> tuple[float, float]:
        """Rates of correct answers with replaced heads, between the original and the floor, for the true reliance."""
        first = np.array(self.original)
        last = np.array(self.context_free)
        if self.original == self.context_free:
            last = first - WITHOUT_CONTRIBUTION
        whole = self.scale

        def missed(way: float) -> float:
            return (
                self.score(self.original)
                - self.score(tuple(first + way * (last - first)))
                - self.reliance * whole
            )

        place = float(brentq(missed, 0, 1, xtol=1e-12))
        return tuple((first + place * (last - first)).tolist())

    @property
    def scale(self) -> float:
        """What attention contributes to the score; see `WITHOUT_CONTRIBUTION`."""
        contributed = self.score(self.original) - self.score(self.context_free)
        return contributed or WITHOUT_CONTRIBUTION

    @property
    def points(self) -> Margin:
        """The margin in points that is as large as the share."""
        return Margin(100 * MARGIN * self.scale, POINTS)

    @property
    def loses_margin(self) -> bool:
        """Whether the margin or more is lost."""
        return self.reliance >= MARGIN

    @property
    def has_skill(self) -> bool:
        """Whether the original is better than the guess that everything is of class 1."""
        return self.score(self.original) > self.score((0.0, 1.0))

    def score(self, rates: Sequence[float]) -> float:
        """Return the score of the population from the rate of correct answers in each class."""
        gold = np.array([0, 0, 1, 1])
        right = np.array([True, False, True, False])
        shares = np.array([rates[0], 1 - rates[0], rates[1], 1 - rates[1]])
        shares *= np.array([1 - self.majority] * 2 + [self.majority] * 2)
        counts = counts_of(self.metric, gold, right)
        return float(MEASURES[self.metric].score((counts * shares[:, None]).sum(0)))


def counts_of(metric: str, gold: np.ndarray, right: np.ndarray) -> Counts:
    """Return the counts of each item for a metric, `[..., item, count]`, for two classes."""
    if metric == "accuracy":
        counts = [right, np.ones_like(right)]
    else:
        true = np.broadcast_to(gold == 1, right.shape)
        predicted = right == (gold == 1)
        counts = [right & true, predicted, true]
        if metric == "matthews_correlation":
            counts = [right & ~true, right & true, ~true, true, ~predicted, predicted]
    return np.moveaxis(
        np.stack(counts).astype(float), 0, -1
    )  # items of one count are adjacent, which is faster


@dataclass(frozen=True)
class Size:
    """The size of a study."""

    seeds: int
    examples: int
    orders: int = 1
    resamples: int = 0


def study_of(
    metric: str,
    counts: Counts,
    trivial: Counts,
    clusters: np.ndarray | None,
    *orders: int,
    resamples: int = 0,
) -> Sample:
    """Score runs: `orders` is the number of orders of the original, of each floor, and of the replaced heads.

    The last runs of an order are those on samples of training rows.
    """
    runs = len(counts) // sum(orders)
    places, drawn = places_of(runs, runs - resamples, orders)
    sample = Sample(
        metric=MEASURES[metric],
        counts=counts,
        trivial_counts=trivial,
        settings={setting: table.to_numpy().ravel().tolist() for setting, table in places.items()},
        runs=pd.DataFrame(
            {"sample": np.tile(np.arange(runs) - runs + resamples + 1, sum(orders)).clip(0)}
        ),
        resampled={setting: table.to_numpy().ravel().tolist() for setting, table in drawn.items()},
        clusters=clusters,
    )
    # as if they had been looked up, which would take longer than the estimates
    vars(sample)["runs_of"] = places
    return sample


@cache
def places_of(runs: int, seeds: int, orders: tuple[int, ...]) -> list[dict[Setting, pd.DataFrame]]:
    """Return the places of the runs of each setting by order and seed, and by order and sample of training rows."""
    parts = np.split(np.arange(sum(orders) * runs).reshape(-1, runs), np.cumsum(orders)[:-1])
    settings = (ORIGINALS, *FLOORS[: len(orders) - 2], REPLACED)
    return [
        {
            setting: pd.DataFrame(part[:, chosen])
            for setting, part in zip(settings, parts, strict=True)
        }
        for chosen in (slice(seeds), slice(seeds, runs))
    ]


class Draws:
    """Normal numbers of one task, some of them correlated with those of the other tasks of a study.

    Args:
        chance: draws what belongs to the task.
        common: the seed of what belongs to all tasks of the study.
        correlations: of the effects of seeds and orders, and of the ease of examples.
    """

    def __init__(self, chance: np.random.Generator, common: int, correlations: tuple[float, float]):
        self.chance = chance
        self.correlations = correlations
        self.common = [np.random.default_rng((common, part)) for part in range(2)]

    def effects(self, *shape: int, part: int = 0) -> np.ndarray:
        """Return effects of seeds or orders; with part 1, numbers of examples."""
        r = self.correlations[part]
        own = self.chance.standard_normal(shape, np.float32)
        if r:
            own = (
                math.sqrt(r) * self.common[part].standard_normal(shape, np.float32)
                + math.sqrt(1 - r) * own
            )
        return own

    def examples(self, *shape: int) -> np.ndarray:
        """Return numbers of examples."""
        return self.effects(*shape, part=1)


def drawn(world: World, size: Size, draws: Draws) -> Sample:
    """Draw a study of a task; with one order, it is of that order, which has no effect then."""
    units = size.examples
    runs = size.seeds + size.resamples
    gold = (draws.chance.random(units) < world.majority).astype(np.int64)
    hard = draws.examples(units)
    kept = draws.examples(units)
    common = draws.effects(runs)
    outcomes = []
    orders = (1, *[1] * len(world.floors), size.orders)
    of_rows = np.zeros(
        (len(orders), 1 + size.resamples)
    )  # of all training rows, and of samples of them
    if world.rows:
        of_rows += math.sqrt(0.5) * (
            draws.examples(1 + size.resamples) + draws.examples(*of_rows.shape)
        )
    for place, rates in enumerate((world.original, *world.floors, world.replaced)):
        like = world.kept * (place in (0, len(orders) - 1))
        moved = world.seed * math.sqrt(0.5) * (common + draws.effects(runs))
        moved = moved + world.rows * (
            of_rows[place, 0] + np.append(np.zeros(size.seeds), of_rows[place, 1:])
        )
        if orders[place] > 1:
            moved = moved + world.order * draws.effects(orders[place], 1)
        own = max(1 - world.shared - like - world.noise, 0.0)
        z = math.sqrt(world.shared) * hard + math.sqrt(like) * kept
        if orders[place] > 1:  # half of what is a setting's own is that of an order
            z = z + math.sqrt(own / 2) * (
                draws.examples(units) + draws.examples(orders[place], units)[:, None]
            )
        elif own:
            z = z + math.sqrt(own) * draws.examples(units)
        if world.noise:
            z = z + math.sqrt(world.noise) * draws.examples(orders[place], runs, units)
        least = -ndtri(
            (np.array(rates) + np.atleast_2d(moved)[..., None]).clip(1e-9, 1 - 1e-9)
        ).astype(np.float32)
        right = z > (least[..., gold] if rates[0] != rates[1] else least[..., :1])
        outcomes.append(np.broadcast_to(right, (orders[place], runs, units)).reshape(-1, units))

    counts, trivial = (
        counts_of(world.metric, gold, right)
        for right in (np.concatenate(outcomes), (gold == 1)[None])
    )
    return study_of(world.metric, counts, trivial, None, *orders, resamples=size.resamples)


class Verdict(NamedTuple):
    """What is said of a task.

    Attributes:
        counts: whether claims about a share are about it.
        passes: whether less than the share is lost.
        held: whether the interval of the reliance holds the truth.
        passes_in_points: whether less than the margin in points is lost.
        lost_held: whether the interval of what is lost holds the truth.
        effect: the estimates.
    """

    counts: bool
    passes: bool
    held: float
    passes_in_points: bool
    lost_held: float
    effect: Effect


def judged(study: Sample, true_reliance: float, points: Margin) -> Verdict:
    """Return the conclusions of papa on a task; an interval holds a reliance if a test against some floor keeps it.

    `points` is the margin in points that is as large as the share.
    """
    effect = effect_of(study, REPLACED)
    assert effect is not None
    counts = effect.status(study, "a guess") == SIGNIFICANT
    contrasts = [effect.drop - true_reliance * each for each in effect.contributions]
    tested = [effect.spread.estimate(contrast).interval() for contrast in contrasts]
    held = any(each.low <= 0 for each in tested) and any(each.high >= 0 for each in tested)
    lost = effect.lost()
    return Verdict(
        counts,
        counts and Claim(effect, SHARE_MARGIN).p < 1 - LEVEL,
        float(held) if counts else math.nan,
        Claim(effect, points).p < 1 - LEVEL,
        float(lost.low <= true_reliance * points.size / MARGIN <= lost.high),
        effect,
    )


@dataclass(frozen=True)
class Case:
    """One kind of study.

    Args:
        tasks: its tasks; with `means`, their mean reliance is judged, not each by itself.
        size: its size.
        alike: the correlation of a seed's effects, and of an order's, on two tasks.
        corpus_alike: the correlation of an example's ease on the first two tasks, which then are on one corpus.
    """

    tasks: tuple[World, ...]
    size: Size
    alike: float = 0.0
    corpus_alike: float = 0.0
    means: bool = False

    def corpus(self, task: int) -> int:
        """Return the number of a task's corpus."""
        return 0 if task == 1 and self.corpus_alike else task


class Rates(NamedTuple):
    """What is said of a study, 1 or 0, or how often it is in many; nan is what was not said.

    Attributes:
        counts: the first task counts.
        claimed: the heads are replaceable: some task counts, and all that count pass.
        wrong: they are said to be, and a task that counts loses the margin or more.
        held: the interval of the first task holds its reliance.
        mean_held: all tasks count, and the interval of their mean reliance holds it.
        alone_wrong: a task passes by itself and loses the margin or more.
        corrected: how many of the tasks that count pass after the correction for all of them.
        corrected_wrong: one of these loses the margin or more.
        in_points: less than the margin in points is lost on all tasks that beat the best guess.
        in_points_wrong: this is said, and one of them loses the margin or more, or is no better than the best guess.
        in_points_corrected_wrong: after the correction, a task passes that loses the margin or more.
        lost_held: the interval of the first task holds what is lost.
    """

    counts: float
    claimed: float
    wrong: float
    held: float
    mean_held: float = math.nan
    alone_wrong: float = math.nan
    corrected: float = math.nan
    corrected_wrong: float = math.nan
    in_points: float = math.nan
    in_points_wrong: float = math.nan
    in_points_corrected_wrong: float = math.nan
    lost_held: float = math.nan


def studied(case: Case, chance: np.random.Generator) -> Rates:
    """Simulate a study, and judge it."""
    common = int(chance.integers(2**32))
    studies = list[Sample]()
    for task, world in enumerate(case.tasks):
        correlations = case.alike, case.corpus_alike if case.corpus(task) == 0 else 0.0
        studies.append(drawn(world, case.size, Draws(chance, common, correlations)))
    verdicts = [
        judged(study, world.reliance, world.points)
        for study, world in zip(studies, case.tasks, strict=True)
    ]
    judgements = list(zip(verdicts, case.tasks, strict=True))
    counting = [(verdict, world) for verdict, world in judgements if verdict.counts]
    claimed = bool(counting) and all(verdict.passes for verdict, _ in counting)
    wrong = claimed and any(world.loses_margin for _, world in counting)
    rates = Rates(verdicts[0].counts, claimed, wrong, verdicts[0].held)
    if case.means:
        mean = mean_reliance(
            [(study, str(case.corpus(task)), REPLACED) for task, study in enumerate(studies)]
        )
        assert mean is not None
        true_reliance = sum(world.reliance for world in case.tasks) / len(studies)
        held = (
            mean.low <= true_reliance <= mean.high if len(counting) == len(verdicts) else math.nan
        )
        return rates._replace(mean_held=held)
    p_values = [[Claim(verdict.effect, SHARE_MARGIN).p] for verdict, _ in counting]
    passed = [p < 1 - LEVEL for [p] in corrected_p_values(p_values)]
    at_margin = [world.loses_margin for _, world in counting]
    rates = rates._replace(
        alone_wrong=any(verdict.passes and world.loses_margin for verdict, world in counting),
        corrected=sum(passed) / len(passed) if passed else math.nan,
        corrected_wrong=any(map(operator.and_, passed, at_margin)),
    )
    skilled = [
        (verdict, world) for verdict, world in judgements if verdict.effect.over_guess.above()
    ]
    in_points = bool(skilled) and all(verdict.passes_in_points for verdict, _ in skilled)
    errors = [world.loses_margin or not world.has_skill for _, world in skilled]
    p_values = [[Claim(verdict.effect, world.points).p] for verdict, world in skilled]
    passed = [p < 1 - LEVEL for [p] in corrected_p_values(p_values)]
    return rates._replace(
        in_points=in_points,
        in_points_wrong=in_points and any(errors),
        in_points_corrected_wrong=any(map(operator.and_, passed, errors)),
        lost_held=verdicts[0].lost_held,
    )


def batch(work: tuple[Case, int, Sequence[int]]) -> np.ndarray:
    """Return the conclusions of simulated studies of a case, `[study, rate]`."""
    case, number, seed = work
    chance = np.random.default_rng(seed)
    return np.array([studied(case, chance) for _ in range(number)], float)


def rates_of(rates: np.ndarray) -> Rates:
    """Return the rate of each conclusion."""
    known = ~np.isnan(rates)
    return Rates(
        *(
            float(rate[ok].mean()) if ok.any() else math.nan
            for rate, ok in zip(rates.T, known.T, strict=True)
        )
    )


# -- cases ------------------------------------------------------------------------------------------------------------

BASE = World()
LITTLE = World(original=(0.80, 0.80), context_free=(0.77, 0.77))
"""A task to which attention contributes little, so chance decides whether it counts."""
TASKS = (
    BASE,
    World(original=(0.90, 0.90), context_free=(0.70, 0.70), majority=0.52),
    World(original=(0.75, 0.90), context_free=(0.30, 0.90), majority=0.66),
    World(original=(0.82, 0.80), context_free=(0.55, 0.50), noise=0.1, kept=0.3),
    World(original=(0.88, 0.92), context_free=(0.60, 0.70), majority=0.6, seed=0.01),
    World(original=(0.80, 0.80), context_free=(0.65, 0.65), seed=0.005),
)
NOTHING = World(original=(0.70, 0.70), context_free=(0.70, 0.70))
"""A task to which attention contributes nothing; claims about it can only be in points."""
CHANCE = World(original=(0.50, 0.50), context_free=(0.50, 0.50))
"""A task on which no probe has learned anything, so every claim in points is wrong, even if nothing is lost."""
EQUAL = (0.0, 0.0)
LOWER = (0.01, 0.03)
ALIKE = {"shared": 0.9, "kept": 0.05, "noise": 0.03}
F1 = World(metric="f1", original=(0.70, 0.90), context_free=(0.30, 0.80), majority=0.66)
MATTHEWS = World(
    metric="matthews_correlation", original=(0.60, 0.90), context_free=(0.20, 0.90), majority=0.7
)
RARE = World(original=(0.95, 0.95), context_free=(0.85, 0.85), shared=1, kept=0, noise=0, seed=0)
SMALL = Size(3, 200)
USUAL = Size(5, 2000)
ROWS = 0.015
SAMPLED = Size(5, 2000, resamples=5)
"""A standard deviation over samples of training rows, and the size of a study that has such samples."""
OF_ONE: dict[str, tuple[World, Sequence[Size]]] = {
    "one floor": (BASE, [SMALL, Size(10, 50), USUAL, Size(10, 2000), Size(5, 2000, 3)]),
    "three equal floors": (replace(BASE, gaps=EQUAL), [SMALL, USUAL]),
    "three equal floors, alike": (replace(BASE, gaps=EQUAL, **ALIKE), [SMALL, USUAL]),
    "others lower by 0.01 and 0.03": (replace(BASE, gaps=LOWER), [SMALL, USUAL]),
    "attention contributes little": (LITTLE, [USUAL]),
    "attention contributes little, three equal floors": (replace(LITTLE, gaps=EQUAL), [USUAL]),
    "F1": (F1, [SMALL, USUAL]),
    "F1, others lower": (replace(F1, gaps=LOWER), [SMALL, USUAL]),
    "Matthews correlation": (MATTHEWS, [SMALL, USUAL]),
    "few examples differ, the same for all seeds": (RARE, [SMALL, USUAL]),
    "large differences between orders": (World(order=0.03), [Size(3, 2000, 3), Size(5, 2000, 5)]),
    "two seeds": (BASE, [Size(2, 200), Size(2, 2000)]),
    "training rows differ as much as seeds": (replace(BASE, rows=BASE.seed), [SAMPLED]),
    "training rows differ twice as much": (
        replace(BASE, rows=ROWS),
        [
            USUAL,
            SAMPLED,
            replace(SAMPLED, examples=200),
            replace(SAMPLED, seeds=20),
            replace(SAMPLED, orders=3),
        ],
    ),
    "the same, others lower by 0.01 and 0.03": (replace(BASE, rows=ROWS, gaps=LOWER), [SAMPLED]),
    "the same, F1": (replace(F1, rows=ROWS), [SAMPLED]),
    "the same, Matthews correlation": (replace(MATTHEWS, rows=ROWS), [SAMPLED]),
}
IN_POINTS: dict[str, tuple[World, Sequence[Size]]] = {
    "one floor": OF_ONE["one floor"],
    "attention contributes little": OF_ONE["attention contributes little"],
    "attention contributes nothing": (NOTHING, [SMALL, USUAL]),
    "the original is at chance": (CHANCE, [SMALL, USUAL]),
    "F1": OF_ONE["F1"],
    "Matthews correlation": OF_ONE["Matthews correlation"],
    "few examples differ, the same for all seeds": (RARE, [SMALL, USUAL]),
    "large differences between orders": (World(order=0.03), [Size(3, 2000, 3), Size(5, 2000, 5)]),
    "two seeds": OF_ONE["two seeds"],
    "training rows differ twice as much as seeds": (replace(BASE, rows=ROWS), [USUAL, SAMPLED]),
}
Row = tuple[str, Size, Sequence[Case]]
Column = tuple[str, int, str]
"""The name of a column, and the case and the rate that it shows."""
SIZES = "seeds", "orders", "examples", "samples of rows"
OF_ONE_TASK: tuple[Column, ...] = (
    ("counts", 1, "counts"),
    ("replaceable: reliance 0", 0, "claimed"),
    ("**reliance δ**", 1, "wrong"),
    ("intervals contain the reliance: 0", 0, "held"),
    ("δ", 1, "held"),
)
OF_POINTS: tuple[Column, ...] = (
    ("replaceable: lost 0", 0, "in_points"),
    ("**lost δ**", 1, "in_points_wrong"),
    ("intervals contain what is lost: 0", 0, "lost_held"),
    ("δ", 1, "lost_held"),
)
OF_SIX: tuple[Column, ...] = (
    ("all lose 0: joint claim", 0, "claimed"),
    ("corrected: a task passes", 0, "corrected"),
    ("**one loses δ: joint claim wrong**", 1, "wrong"),
    ("**all lose δ: joint claim wrong**", 2, "wrong"),
    ("a task by itself wrong", 2, "alone_wrong"),
    ("**corrected: any task wrong**", 2, "corrected_wrong"),
)
OF_SIX_IN_POINTS: tuple[Column, ...] = (
    ("all lose 0: joint claim", 0, "in_points"),
    ("**one loses δ: joint claim wrong**", 1, "in_points_wrong"),
    ("**all lose δ: joint claim wrong**", 2, "in_points_wrong"),
    ("**corrected: any task wrong**", 2, "in_points_corrected_wrong"),
)
CORRELATIONS = (0.0, 0.4, 0.8)
OF_MEANS = tuple(
    (f"mean held: r = {r:.1f}", case, "mean_held") for case, r in enumerate(CORRELATIONS)
)


def sections(quick: bool = False) -> Sequence[tuple[str, Sequence[Column], list[Row]]]:
    """Return the title, columns and rows of each table, or a few rows of each."""

    def losing(worlds: Iterable[World], *reliances: float) -> tuple[World, ...]:
        return tuple(
            replace(world, reliance=reliance)
            for world, reliance in zip(worlds, reliances, strict=True)
        )

    def single(worlds: dict[str, tuple[World, Sequence[Size]]]) -> list[Row]:
        return [
            (name, size, [Case(losing([world], reliance), size) for reliance in (0.0, MARGIN)])
            for name, (world, sizes) in worlds.items()
            for size in (sizes[:1] if quick else sizes)
        ]

    of_six = list[Row]()
    of_means = list[Row]()
    kinds = (
        ("one floor", (), 0.0),
        ("three floors", LOWER, 0.0),
        ("one floor, training rows differ", (), ROWS),
    )
    for name, gaps, rows in kinds:
        worlds = [replace(world, gaps=gaps, rows=rows) for world in TASKS]
        usual = SAMPLED if rows else USUAL
        size = replace(usual, examples=1000 if quick else usual.examples)
        reliances = [[0.0] * 6, [MARGIN, *[0.0] * 5], [MARGIN] * 6]
        of_six.append((name, size, [Case(losing(worlds, *each), size, 0.3) for each in reliances]))
        for tasks, examples in ((2, 0.0), (6, 0.5)):
            size = replace(usual, examples=500)
            varied = [replace(world, seed=0.02) for world in worlds[:tasks]]
            of_tasks = losing(varied, *[MARGIN] * tasks)
            cases = [Case(of_tasks, size, alike, examples, means=True) for alike in CORRELATIONS]
            of_means.append(
                (f"{tasks} tasks, {name}{', two on one corpus' * bool(examples)}", size, cases)
            )
    return [
        ("One task", OF_ONE_TASK, single(OF_ONE)),
        ("One task, in points", OF_POINTS, single(IN_POINTS)),
        ("Six tasks", OF_SIX, of_six),
        ("Six tasks, in points", OF_SIX_IN_POINTS, of_six),
        ("Mean reliance", OF_MEANS, of_means),
    ]


def tables(number: int, processes: int, quick: bool) -> Iterator[str]:
    """Yield the tables as Markdown, computed from a number of studies of each case."""
    with get_context("spawn").Pool(processes, os.nice, (10,)) as pool:
        for place, (title, columns, rows) in enumerate(sections(quick)):
            work = [
                (case, min(AT_ONCE, number - first), (place, line, column, first))
                for line, (_, _, cases) in enumerate(rows)
                for column, case in enumerate(cases)
                for first in range(0, number, AT_ONCE)
            ]
            made = iter(pool.imap(batch, work))
            yield f"## {title}\n\n{_row('case', *SIZES, *(name for name, _, _ in columns))}"
            yield "|---" + "|--:" * (len(SIZES) + len(columns)) + "|"
            for name, size, cases in rows:
                rates = [
                    rates_of(np.concatenate([next(made) for _ in range(0, number, AT_ONCE)]))
                    for _ in cases
                ]
                cells = [_percent(getattr(rates[case], rate)) for _, case, rate in columns]
                yield _row(
                    name, size.seeds, size.orders, f"{size.examples:,}", size.resamples, *cells
                )
            yield ""


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


# -- studies from real outcomes ---------------------------------------------------------------------------------------

FLIPPED_METRICS = ("accuracy", "token_accuracy", "f1", "entity_f1", "chunk_f1")
"""Metrics that are proportional to the number of correct answers, which is their first count."""


@dataclass(frozen=True)
class Population:
    """The counts `[seed, example, count]` of a task with many seeds, the same for all, and the cluster of each example.

    Studies draw seeds and clusters of examples from it.
    """

    task: str
    metric: str
    originals: Counts
    floors: Sequence[Counts]
    trivial: Counts
    clusters: np.ndarray

    @classmethod
    def of(cls, outcomes: TaskOutcomes, cluster: int | None) -> Population:
        """Take the original and all floors; `cluster` is a number of consecutive examples, instead of the clusters."""
        mask = outcomes.subsets()[ALL]
        sample = outcomes.sample(outcomes.metric, mask)
        examples = outcomes.items.loc[mask].drop_duplicates("example")
        numbers = examples["example"].to_numpy()
        known = (
            examples["cluster"].to_numpy() if "cluster" in examples else np.arange(len(examples))
        )
        tables = [sample.runs_of[setting] for setting in (ORIGINALS, *sample.floor_settings)]
        seeds = sorted(set.intersection(*(set(table.columns) for table in tables)))
        original, *floors = (
            outcomes.counts(outcomes.metric, mask)[table[seeds].to_numpy()[0]] for table in tables
        )
        trivial = outcomes.trivial(outcomes.metric, mask)[0]
        clusters = known if cluster is None else numbers // cluster
        return cls(outcomes.task, outcomes.metric, original, floors, trivial, clusters)

    @cached_property
    def members(self) -> list[np.ndarray]:
        """The examples of each cluster."""
        order = np.argsort(self.clusters, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.clusters[order])) + 1)

    @cached_property
    def scores(self) -> list[float]:
        """The mean scores of the original and of each floor."""
        score = MEASURES[self.metric].score
        return [float(score(counts.sum(1)).mean()) for counts in (self.originals, *self.floors)]

    @property
    def contributed(self) -> float:
        """What attention contributes to the score, against the highest floor."""
        return self.scores[0] - max(self.scores[1:])

    def flipped_share(self, reliance: float) -> float:
        """Return the share of the original's correct answers to flip for this reliance against the highest floor."""
        return reliance * self.contributed / self.scores[0]


class Design(NamedTuple):
    """A study from a population: its seeds, and whether answers are flipped and intervals resample in clusters."""

    seeds: int
    flipped_clusters: bool = False
    resampled: bool = True


def drawn_from(
    population: Population, reliance: float, design: Design, chance: np.random.Generator
) -> Sample:
    """Draw a study with this true reliance from a population.

    Half of the drawn seeds are the original, with the floors of the same seeds. The other half are the replaced heads.
    An answer is flipped in all seeds or in none, like that of an example that needs the attention that was replaced.
    """
    members = population.members
    clusters = chance.integers(len(members), size=len(members))
    sizes = [len(members[each]) for each in clusters]
    examples = np.concatenate([members[each] for each in clusters])
    seeds = chance.permutation(len(population.originals))
    first = seeds[: design.seeds]
    second = seeds[design.seeds : 2 * design.seeds]
    replaced = population.originals[second][:, examples]
    share = population.flipped_share(reliance)
    whole = np.repeat(chance.random(len(clusters)), sizes)
    replaced[:, (whole if design.flipped_clusters else chance.random(len(examples))) < share, 0] = 0
    ends = [counts[first][:, examples] for counts in (population.originals, *population.floors)]
    numbers = np.repeat(np.arange(len(clusters)), sizes) if design.resampled else None
    counts = np.concatenate([*ends, replaced])
    orders = (1, *[1] * len(population.floors), 1)
    return study_of(population.metric, counts, population.trivial[None, examples], numbers, *orders)


def real_rates(
    population: Population, reliance: float, design: Design, studies: int, seed: int = 0
) -> Rates:
    """Return the rates of what is said of studies with a true reliance."""
    chance = np.random.default_rng(seed)
    points = Margin(100 * MARGIN * population.contributed, POINTS)
    rates = []
    for _ in range(studies):
        verdict = judged(drawn_from(population, reliance, design, chance), reliance, points)
        claimed = verdict.passes
        in_points = verdict.passes_in_points
        at_margin = reliance >= MARGIN
        said = Rates(verdict.counts, claimed, claimed and at_margin, verdict.held)
        rates.append(
            said._replace(
                in_points=in_points,
                in_points_wrong=in_points and at_margin,
                lost_held=verdict.lost_held,
            )
        )
    return rates_of(np.array(rates, float))


def real_table(populations: Iterable[Population], studies: int) -> Iterator[str]:
    """Yield the lines of the table of error rates on real outcomes."""
    yield _row(
        "task",
        "floors",
        "flipped",
        "intervals resample",
        "seeds",
        "clusters",
        *(name for name, *_ in (*OF_ONE_TASK, *OF_POINTS)),
    )
    yield "|---" * 4 + "|--:" * (2 + len(OF_ONE_TASK) + len(OF_POINTS)) + "|"
    for population in populations:
        whole = len(population.members)
        most = len(population.originals) // 2
        choices = (False, True) if whole < len(population.clusters) else (False,)
        for flipped, seeds, resampled in product(choices, sorted({min(3, most), most}), choices):
            design = Design(seeds, flipped, resampled)
            rates = [
                real_rates(population, reliance, design, studies) for reliance in (0.0, MARGIN)
            ]
            names = ["clusters" if chosen else "examples" for chosen in (flipped, resampled)]
            cells = [
                _percent(getattr(rates[case], rate)) for _, case, rate in (*OF_ONE_TASK, *OF_POINTS)
            ]
            yield _row(population.task, len(population.floors), *names, seeds, f"{whole:,}", *cells)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="200 studies of a few cases")
    parser.add_argument(
        "--studies", type=int, help="studies of each case; default: 2000, or 200 with --quick"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--outcomes",
        type=Path,
        metavar="FOLDER",
        help="draw studies from its outcomes (accuracy and F1)",
    )
    parser.add_argument(
        "--cluster",
        nargs="+",
        default=[],
        metavar="TASK=N",
        help="with --outcomes: clusters of N rows",
    )
    given = parser.parse_args(arguments)
    number = given.studies or (200 if given.quick else 2000)
    print(
        f"{number:,} studies per case, in percent; one of 5 has a standard error of {math.sqrt(475 / number):.1f}.\n"
    )
    if given.outcomes:
        clusters = {task: int(size) for task, size in (each.split("=") for each in given.cluster)}
        outcomes, _ = read_outcomes(given.outcomes / "tables" / "outcomes.parquet")
        usable = (task for task in outcomes.values() if task.metric in FLIPPED_METRICS)
        known = [Population.of(task, clusters.get(task.task)) for task in usable]
        lines = real_table(known, number)
    else:
        lines = tables(number, given.processes, given.quick)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
