"""Error rates of claims: simulated studies of tasks with known true loss, judged by papa.

    python benchmarks/error_rates.py             # 2,000 studies per case: a quarter of an hour on two free cores
    python benchmarks/error_rates.py --quick     # 200 studies of a few cases: a minute
    python benchmarks/error_rates.py --outcomes results/NAME --cluster mnli=data/mnli.parquet:premise ner=10

A task is a population: it has a true score for the original, the contextless floor and the replaced heads, and a study
draws seeds, orders of heads and examples from it. Everything that is judged goes through `papa.results`; nothing is
written twice. Prints Markdown tables; docs/statistics.md explains them.

With `--outcomes`, studies are drawn from the real outcomes of a finished study with many seeds. The original's seeds
are split in two: one half is the original, the other half is the replaced heads, so their true loss is 0. If a known
share of correct answers is then flipped, the true loss is known too. Clusters of examples are drawn as a whole.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from subprocess import run
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

from papa.config.artefacts import ARTEFACTS
from papa.config.measures import MEASURES
from papa.errors import count
from papa.method.metrics import Counts, pseudo_values
from papa.results.compare import read_outcomes
from papa.results.losses import ContributionShare, Term, difference, lost_score, sum_of_shares
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, Sample, Setting, TaskOutcomes, by_cluster
from papa.results.simultaneous import corrected_p_values
from papa.results.statistics import LEVEL, combine

MARGIN = 0.1
LOSSES = (0.0, MARGIN / 2, MARGIN, 2 * MARGIN)
REPLACED = Setting("average", "lambda", "1/2")
SECOND_LINE = Setting("uniform", "lambda", "1/2")
RUNS = pd.DataFrame()
"""No facts of runs are needed, because `Study` has their places."""
LONGEST = 25
"""The number of words in the longest sentence; the shortest has 3."""
AT_ONCE = 100
"""The number of studies that one call of a process simulates."""
TWICE = 20
"""One in this many studies is also judged by its intervals, which takes longer."""


@dataclass(frozen=True)
class World:
    """A task as a population of seeds, orders and examples.

    A probe is right about an example if a normal number of variance 1 exceeds a threshold, which depends on seed and
    order. So the share of examples, seeds and orders for which it is right is known exactly.

    Args:
        loss: the true loss of the replaced heads.
        original, contextless: how often each is right about examples of class 0 and of class 1.
        majority: the share of class 1.
        metric: one of `MEASURES`.
        seed, order: standard deviation of the accuracy over seeds (half of its variance is common to all settings), and
            over orders of the same number of heads.
        shared: how much of what makes an example hard is common to all settings, as a part of the variance.
        kept: how much more of it original and replaced heads have in common.
        noise: how much is different for each probe; the rest is different for each setting.
        skewed: whether a few seeds and orders are much worse than the rest, instead of equally many better and worse.
        words: whether examples are sentences, half of what makes their words hard being common to a sentence.
        documents: the smallest and the largest number of examples in a document. All examples of a document are
            answered alike, which is the strongest dependence there is.
        clustered: whether papa knows the documents, and resamples them instead of examples.
    """

    loss: float = 0.0
    original: tuple[float, float] = (0.85, 0.85)
    contextless: tuple[float, float] = (0.60, 0.60)
    majority: float = 0.5
    metric: str = "accuracy"
    seed: float = 0.0075
    order: float = 0.01
    shared: float = 0.55
    kept: float = 0.35
    noise: float = 0.06
    skewed: bool = False
    words: bool = False
    documents: tuple[int, int] = (1, 1)
    clustered: bool = True

    @cached_property
    def replaced(self) -> tuple[float, float]:
        """Rates of correct answers with replaced heads, between the original and the floor, for the true loss."""
        first, last = np.array(self.original), np.array(self.contextless)
        if self.loss in (0, 1):
            return self.contextless if self.loss else self.original
        whole = self.score(self.original) - self.score(self.contextless)

        def missed(way: float) -> float:
            return self.score(self.original) - self.score(tuple(first + way * (last - first))) - self.loss * whole

        place = float(brentq(missed, 0, 1, xtol=1e-12)) if whole else self.loss
        return tuple((first + place * (last - first)).tolist())

    def score(self, rates: Sequence[float]) -> float:
        """Return the score of the population from the rate of correct answers in each class."""
        gold, right = np.array([0, 0, 1, 1]), np.array([True, False, True, False])
        shares = np.array([rates[0], 1 - rates[0], rates[1], 1 - rates[1]])
        shares *= np.array([1 - self.majority] * 2 + [self.majority] * 2)
        counts = counts_of(self.metric, gold, right)
        return float(MEASURES[self.metric].score((counts * shares[:, None]).sum(0)))


def counts_of(metric: str, gold: np.ndarray, right: np.ndarray) -> Counts:
    """Return the counts of each item for a metric, `[..., item, count]`, for two classes."""
    if metric in ("accuracy", "token_accuracy"):
        counts = [right, np.ones_like(right)]
    else:
        predicted = right == (gold == 1)
        pairs = [(gold == which) & (predicted == other) for which in (0, 1) for other in (0, 1)]
        counts = (
            pairs
            if metric == "matthews_correlation"
            else [pairs[3], predicted, np.broadcast_to(gold == 1, right.shape)]
        )
    return np.moveaxis(
        np.stack(counts).astype(float), 0, -1
    )  # items of one count are adjacent in memory, which is faster


@dataclass(frozen=True)
class Size:
    """The size of a study."""

    seeds: int
    examples: int
    orders: int = 1
    lines: int = 1


@dataclass(frozen=True)
class Study(Sample):
    """The measurements of a study on a task; `places` are those of the runs of each setting."""

    places: dict[Setting, pd.DataFrame] = field(default_factory=dict)

    def runs_of(self, setting: Setting) -> pd.DataFrame:
        return self.places[setting]


@cache
def places_of(size: Size) -> dict[Setting, pd.DataFrame]:
    """Return the places of the runs of each setting: originals, then contextless ones, then each order."""
    rows = np.arange((2 + size.lines * size.orders) * size.seeds).reshape(-1, size.seeds)
    lines = [pd.DataFrame(rows[first : first + size.orders]) for first in range(2, len(rows), size.orders)]
    replaced = dict(zip((REPLACED, SECOND_LINE), lines, strict=False))
    return {ORIGINALS: pd.DataFrame(rows[:1]), FLOOR: pd.DataFrame(rows[1:2])} | replaced


@dataclass(frozen=True)
class Dependence:
    """The dependence between the tasks of a study.

    Args:
        seeds: the correlation of a seed's effects on two tasks, and of an order's effects.
        examples: the correlation of an example's ease on the first two tasks, which then are on one corpus.
    """

    seeds: float = 0.0
    examples: float = 0.0

    def corpus(self, task: int) -> int:
        """Return the number of a task's corpus."""
        return 0 if task == 1 and self.examples else task


class Draws:
    """Normal numbers of one task; those of another task in the same study are correlated with them.

    Args:
        chance: draws what belongs to the task.
        common: the seed of what belongs to all tasks of the study.
        correlations: of the numbers of seeds and orders, and of the numbers of examples.
    """

    def __init__(self, chance: np.random.Generator, common: int = 0, correlations: tuple[float, float] = (0.0, 0.0)):
        self.chance, self.correlations = chance, correlations
        self.common = [np.random.default_rng((common, part)) for part in range(2)]

    def effects(self, *shape: int, skewed: bool = False) -> np.ndarray:
        """Return effects of seeds or orders; a few are much smaller than the rest if they are skewed."""
        drawn = 1 - self.chance.exponential(size=shape) if skewed else self.chance.standard_normal(shape)
        return self._mixed(drawn, 0)

    def examples(self, *shape: int) -> np.ndarray:
        """Return numbers of examples, as float32."""
        return self._mixed(self.chance.standard_normal(shape, np.float32), 1)

    def _mixed(self, drawn: np.ndarray, part: int) -> np.ndarray:
        correlation = self.correlations[part]
        if not correlation:
            return drawn
        common = self.common[part].standard_normal(drawn.shape, drawn.dtype.type)
        mixed: np.ndarray = math.sqrt(correlation) * common + math.sqrt(1 - correlation) * drawn
        return mixed


def drawn(world: World, size: Size, chance: np.random.Generator, draws: Draws | None = None) -> Study:
    """A study of a task.

    With one order, it is of that order, which has no effect then; with several, each is one of all orders.

    Args:
        world: the task.
        size: the size of the study.
        chance: the source of everything that is drawn.
        draws: normal numbers that are correlated with those of other tasks; by default those of `chance`.
    """
    draws = draws or Draws(chance)
    drawn_units = round(2 * size.examples / sum(world.documents))
    lengths = chance.integers(3, LONGEST + 1, drawn_units) if world.words else np.ones(drawn_units, int)
    starts, items = np.cumsum(lengths) - lengths, int(lengths.sum())
    gold = (chance.random(items) < world.majority).astype(np.int64)

    def normal(*shape: int) -> np.ndarray:
        return draws.examples(*shape, items)

    hard = normal()
    if world.words:
        sentence = chance.standard_normal(drawn_units, np.float32)
        hard = math.sqrt(0.5) * (hard + np.repeat(sentence, lengths))

    def effect(*shape: int) -> np.ndarray:
        return draws.effects(*shape, skewed=world.skewed)

    kept, common = normal(), effect(size.seeds)
    outcomes = []
    settings = [(world.original, 1, 1), (world.contextless, 1, 0), *[(world.replaced, size.orders, 1)] * size.lines]
    for rates, orders, like in settings:
        moved = world.seed * math.sqrt(0.5) * (common + effect(size.seeds))
        if orders > 1:
            moved = moved + world.order * effect(orders, 1)
        setting_share = max(1 - world.shared - like * world.kept - world.noise, 0.0)
        z = math.sqrt(world.shared) * hard + math.sqrt(like * world.kept) * kept
        if orders > 1:  # half of what is a setting's own is that of an order
            z = z + math.sqrt(setting_share / 2) * normal() + math.sqrt(setting_share / 2) * normal(orders)[:, None]
        elif setting_share:
            z = z + math.sqrt(setting_share) * normal()
        if world.noise:
            z = z + math.sqrt(world.noise) * normal(orders, size.seeds)
        least = -ndtri((np.array(rates) + np.atleast_2d(moved)[..., None]).clip(1e-9, 1 - 1e-9)).astype(np.float32)
        right = z > (least[..., gold] if rates[0] != rates[1] else least[..., :1])
        outcomes.append(np.broadcast_to(right, (orders, size.seeds, items)).reshape(-1, items))
    right = np.concatenate(outcomes)

    def by_unit(right: np.ndarray) -> Counts:
        counts = counts_of(world.metric, gold, right)
        return np.add.reduceat(counts, starts, axis=-2) if world.words else counts

    metric, places = MEASURES[world.metric], places_of(size)
    counts, trivial, clusters = by_unit(right), by_unit((gold == 1)[None]), None
    if world.documents != (1, 1):
        sizes = chance.integers(world.documents[0], world.documents[1] + 1, drawn_units)
        counts, trivial = (np.repeat(units, sizes, axis=1) for units in (counts, trivial))
        clusters = np.repeat(np.arange(drawn_units), sizes) if world.clustered else None
    return Study(
        metric=metric,
        counts=counts,
        scores=metric.score(counts.sum(1)),
        values=pseudo_values(metric, by_cluster(counts, clusters)),
        trivial_values=pseudo_values(metric, by_cluster(trivial, clusters))[0],
        settings={setting: [] for setting in places},
        runs=RUNS,
        trivial=float(metric.score(trivial.sum(1))[0]),
        by_word=None,
        clusters=clusters,
        places=places,
    )


class Verdict(NamedTuple):
    """What is said of a task.

    Attributes:
        counts: whether the original beats both floors.
        passes: whether it does, and the loss is below the margin beyond doubt.
        held: whether the interval of the loss holds the true one, which is when a test keeps it; nan if there is none.
        lost: whether the old rule sees a loss: the paired t-interval over seeds of what is lost lies above 0.
        loss: the loss, which can be tested at any level.
    """

    counts: bool
    passes: bool
    held: float
    lost: bool
    loss: ContributionShare


def judged(study: Study, world: World, size: Size, twice: bool = False) -> Verdict:
    """Return the conclusions of papa and of the old rule on a task; `twice` adds Fieller's interval."""
    spread = study.spread(ORIGINALS, FLOOR, REPLACED)
    assert spread is not None
    above, below = np.array([0, 1, 0, -1]), np.array([0, 1, -1, 0])
    counts = spread.estimate([-1, 1, 0, 0]).above() and spread.estimate(below.tolist()).above()
    passes = counts and spread.estimate((above - MARGIN * below).tolist()).interval().bound < 0
    tested = spread.estimate((above - world.loss * below).tolist()).interval()
    held = tested.low <= 0 <= tested.high
    if counts and twice:
        loss = spread.ratio(above.tolist(), below.tolist())
        assert not held or loss.low - 1e-4 <= world.loss <= loss.high + 1e-4, (loss, tested)
        assert passes == (loss.bound < MARGIN) or abs(loss.bound - MARGIN) < 1e-4, (loss, passes)
    table = study.scores.reshape(-1, size.seeds)
    lost = table[0] - table[2 : 2 + size.orders].mean(0)
    half = stdtrit(size.seeds - 1, (1 + LEVEL) / 2) * lost.std(ddof=1) / math.sqrt(size.seeds)
    share = ContributionShare(spread, above.tolist(), below.tolist())
    return Verdict(counts, passes, float(held) if counts else math.nan, bool(lost.mean() - half > 0), share)


@dataclass(frozen=True)
class Case:
    """One kind of study: its tasks and its size; `apart` also judges sums as if tasks were independent."""

    tasks: tuple[World, ...]
    size: Size
    dependence: Dependence = Dependence()
    apart: bool = False


class Rates(NamedTuple):
    """What is said of a study, 1 or 0, or how often it is in many; nan is what was not said.

    Attributes:
        counts: the first task counts.
        claimed: the heads are replaceable: some task counts, and all that count pass.
        wrong: they are said to be, and a task that counts loses the margin or more.
        held: the interval of the first task holds its loss.
        mean_held: all tasks count, and the interval of their mean loss holds it.
        free: by the old rule, no task lost.
        differ: all tasks count, and two lines with the same loss differ at 5 %.
        mean_held_apart, differ_apart: the same, if tasks are taken as independent.
        alone: how many of the tasks that count pass, each by itself.
        alone_wrong: one of them passes by itself and loses the margin or more.
        corrected: how many of them pass after the correction for all of them.
        corrected_wrong: one of them passes after the correction and loses the margin or more.
    """

    counts: float
    claimed: float
    wrong: float
    held: float
    mean_held: float
    free: float
    differ: float = math.nan
    mean_held_apart: float = math.nan
    differ_apart: float = math.nan
    alone: float = math.nan
    alone_wrong: float = math.nan
    corrected: float = math.nan
    corrected_wrong: float = math.nan


def studied(case: Case, chance: np.random.Generator, twice: bool = False) -> Rates:
    """Simulate a study; `twice` checks that losses and their bounds agree with tests."""
    size, dependence = case.size, case.dependence
    common = int(chance.integers(2**32)) if dependence != Dependence() else 0
    correlations = [
        (dependence.seeds, dependence.examples if dependence.corpus(task) == 0 else 0.0)
        for task in range(len(case.tasks))
    ]
    studies = [
        drawn(world, size, chance, Draws(chance, common, correlation))
        for world, correlation in zip(case.tasks, correlations, strict=True)
    ]
    verdicts = [judged(study, world, size, twice) for study, world in zip(studies, case.tasks, strict=True)]
    counting = [(verdict, world) for verdict, world in zip(verdicts, case.tasks, strict=True) if verdict.counts]
    claimed = bool(counting) and all(verdict.passes for verdict, _ in counting)
    means = pooled(studies, case)
    wrong = claimed and any(world.loss >= MARGIN for _, world in counting)
    free = not any(verdict.lost for verdict in verdicts)
    tested = counting if size.lines == 1 else []  # sums over tasks are judged in studies with two lines
    p_values = corrected_p_values([[verdict.loss.p_below(MARGIN)] for verdict, _ in tested])
    corrected = [p < 1 - LEVEL for [p] in p_values]
    passes = ([verdict.passes for verdict, _ in counting], corrected)
    by_task = [
        rate
        for passed in passes
        for rate in (
            sum(passed) / len(passed) if passed else math.nan,
            any(passed and world.loss >= MARGIN for passed, (_, world) in zip(passed, counting, strict=False)),
        )
    ]
    mean_held, differ, mean_held_apart, differ_apart = means if len(counting) == len(verdicts) else (math.nan,) * 4
    single = (verdicts[0].counts, claimed, wrong, verdicts[0].held)
    return Rates(*single, mean_held, free, differ, mean_held_apart, differ_apart, *by_task)


def pooled(studies: Sequence[Study], case: Case) -> tuple[float, float, float, float]:
    """Return `mean_held` and `differ` of a study, and both if tasks are taken as independent."""
    if len(studies) == 1 or case.size.lines == 1:
        return (math.nan,) * 4
    lines = [lost_score({line: 1.0}) for line in (REPLACED, SECOND_LINE)]
    true_loss = sum(world.loss for world in case.tasks) / len(studies)
    held = [[math.nan, math.nan], [math.nan, math.nan]]
    for place, combination in enumerate([lines[0], difference(*lines)]):
        terms = [
            Term(study, str(case.dependence.corpus(task)), combination, 1 / len(studies))
            for task, study in enumerate(studies)
        ]
        estimates = [sum_of_shares(terms)]
        if case.apart:
            alone = [estimate for term in terms if (estimate := sum_of_shares([term])) is not None]
            estimates.append(combine(alone, [1.0] * len(alone)))
        for column, estimate in enumerate(estimates):
            assert estimate is not None
            interval = estimate.interval()
            held[place][column] = float(interval.low <= (true_loss, 0.0)[place] <= interval.high)
    (mean, mean_apart), (equal, equal_apart) = held
    return mean, 1 - equal, mean_apart, 1 - equal_apart


def batch(work: tuple[Case, int, Sequence[int]]) -> np.ndarray:
    """Return the conclusions of simulated studies of a case, `[study, rate]`."""
    case, number, seed = work
    chance = np.random.default_rng(seed)
    return np.array([studied(case, chance, study % TWICE == 0) for study in range(number)], float)


def rates_of(rates: np.ndarray) -> Rates:
    """Return the rate of each conclusion."""
    known = ~np.isnan(rates)
    return Rates(*(float(rate[ok].mean()) if ok.any() else math.nan for rate, ok in zip(rates.T, known.T, strict=True)))


def at(world: World, *losses: float) -> list[tuple[World, ...]]:
    """Return single tasks with each of these losses."""
    return [(replace(world, loss=loss),) for loss in losses]


def guessing(majority: float, right: float) -> tuple[float, float]:
    """Return rates with no gain over the majority class, though not all predictions are that class."""
    return majority * (1 - right) / (1 - majority), right


BASE = World()
LITTLE = World(original=(0.80, 0.80), contextless=(0.77, 0.77))
"""A task to which attention contributes little, so chance decides whether it counts."""
RARE_ONES = World(original=(0.95, 0.95), contextless=(0.85, 0.85), shared=1, kept=0, noise=0, seed=0)
TASKS = (
    BASE,
    World(original=(0.90, 0.90), contextless=(0.70, 0.70), majority=0.52),
    World(original=(0.75, 0.90), contextless=(0.30, 0.90), majority=0.66),
    World(original=(0.82, 0.80), contextless=(0.55, 0.50), noise=0.1, kept=0.3),
    World(original=(0.88, 0.92), contextless=(0.60, 0.70), majority=0.6, seed=0.01),
    World(original=(0.80, 0.80), contextless=(0.65, 0.65), seed=0.005),
)
METRICS = {
    "F1": World(metric="f1", original=(0.70, 0.90), contextless=(0.30, 0.80), majority=0.66),
    "Matthews correlation": World(
        metric="matthews_correlation", original=(0.60, 0.90), contextless=(0.20, 0.90), majority=0.7
    ),
    "accuracy over words, sentences as examples": World(
        metric="token_accuracy", original=(0.93, 0.93), contextless=(0.83, 0.83), words=True
    ),
}
HARD = {
    "few examples differ, the same for all seeds": (RARE_ONES, Size(3, 200), Size(5, 2000)),
    "large differences between seeds, small between examples": (
        World(original=(0.95, 0.95), contextless=(0.80, 0.80), seed=0.015, shared=0.7, kept=0.29, noise=0.005),
        Size(3, 2000),
        Size(5, 2000),
    ),
    "small differences between seeds, errors on different examples": (
        World(shared=0.4, kept=0.3, noise=0.3, seed=0.002),
        Size(3, 200),
        Size(5, 2000),
    ),
    "large differences between orders": (World(order=0.03), Size(3, 2000, 3), Size(5, 2000, 5)),
    "a few seeds and orders are much worse": (
        World(seed=0.01, order=0.02, skewed=True),
        Size(3, 2000, 3),
        Size(10, 2000),
    ),
    "attention contributes little": (LITTLE, Size(3, 200), Size(5, 2000)),
    "close to the ceiling": (
        World(original=(0.99, 0.99), contextless=(0.94, 0.94), seed=0.002),
        Size(3, 200),
        Size(5, 2000),
    ),
    "two seeds": (BASE, Size(2, 200), Size(2, 2000)),
    "50 examples": (World(contextless=(0.35, 0.35)), Size(3, 50), Size(10, 50)),
}
DOCUMENTS = {
    "documents of 10": (World(documents=(10, 10)), Size(5, 1000), Size(5, 5000)),
    "documents of 1 to 19": (World(documents=(1, 19)), Size(5, 1000), Size(5, 5000)),
    "documents of 1 to 19, F1": (replace(METRICS["F1"], documents=(1, 19)), Size(5, 1000), Size(5, 5000)),
}
NO_SAY = {
    "original = contextless": World(original=(0.80, 0.80), contextless=(0.80, 0.80)),
    "original = contextless, few examples differ": World(
        original=(0.9, 0.9), contextless=(0.9, 0.9), shared=0.97, kept=0, noise=0.01, seed=0.001
    ),
    "original = majority class": World(original=guessing(0.65, 0.97), contextless=guessing(0.6, 0.93), majority=0.65),
    "original = majority class, few examples differ": World(
        original=guessing(0.65, 0.995), contextless=guessing(0.6, 0.98), majority=0.65, seed=0.001
    ),
}


@dataclass(frozen=True)
class Row:
    """A row of a table: its heading, and the studies of its columns."""

    head: tuple[str, ...]
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Section:
    """A table: its title, the headings of rows, and the name, case and value of each column."""

    title: str
    heads: tuple[str, ...]
    columns: tuple[tuple[str, int, str], ...]
    rows: tuple[Row, ...]


SIZE = ("seeds", "orders", "examples")
OF_LOSSES = (
    ("replaceable: loss 0", 0, "claimed"),
    ("δ/2", 1, "claimed"),
    ("**δ**", 2, "claimed"),
    ("2δ", 3, "claimed"),
    ("intervals contain the loss: loss 0", 0, "held"),
    ("δ", 2, "held"),
    ("2δ", 3, "held"),
    ("old rule, free: loss 0", 0, "free"),
    ("δ/2", 1, "free"),
    ("**δ**", 2, "free"),
    ("**2δ**", 3, "free"),
)
OF_TASKS = (
    ("replaceable: all lose 0", 0, "claimed"),
    ("all lose δ/2", 1, "claimed"),
    ("**one loses δ**", 2, "wrong"),
    ("**all lose δ**", 3, "wrong"),
    ("**one loses 2δ**", 4, "wrong"),
    ("old rule, free: all lose 0", 0, "free"),
    ("**one loses δ**", 2, "free"),
    ("**all lose δ**", 3, "free"),
    ("**one loses 2δ**", 4, "free"),
)
OF_EACH_TASK = (
    ("all lose δ: a task passes", 0, "alone"),
    ("**wrong on any task**", 0, "alone_wrong"),
    ("**corrected: wrong on any task**", 0, "corrected_wrong"),
    ("**joint claim wrong**", 0, "wrong"),
    ("half lose δ, half 0: **corrected: wrong on any task**", 1, "corrected_wrong"),
    ("all lose 0: a task passes", 2, "alone"),
    ("corrected: a task passes", 2, "corrected"),
    ("joint claim", 2, "claimed"),
)
OF_HARD = (
    ("counts", 1, "counts"),
    ("replaceable: loss 0", 0, "claimed"),
    ("**δ**", 1, "claimed"),
    ("intervals contain the loss: loss 0", 0, "held"),
    ("δ", 1, "held"),
    ("old rule, free: loss 0", 0, "free"),
    ("**δ**", 1, "free"),
)
CORRELATIONS = (0.0, 0.3, 0.6, 0.9)
"""The correlations between two tasks of the effects of a seed."""
COMPARED = 0.6
"""The correlation at which sums are also judged as if tasks were independent."""
OF_SEVERAL = (
    ("intervals contain the mean loss: r = 0", 0, "mean_held"),
    *((f"r = {CORRELATIONS[place]:g}", place, "mean_held") for place in (1, 2, 3)),
    ("**false difference between lines**: r = 0", 0, "differ"),
    *((f"**r = {CORRELATIONS[place]:g}**", place, "differ") for place in (1, 2, 3)),
    ("as if independent, r = 0.6: intervals", 2, "mean_held_apart"),
    ("false difference between lines", 2, "differ_apart"),
)
SUMS = [
    (tasks, Size(seeds, 500, lines=2), examples) for tasks in (2, 6) for examples in (0.0, 0.5) for seeds in (3, 5, 10)
]
"""The number of tasks, the size, and the correlation of examples on the first two tasks."""
SUMS += [(6, Size(5, 500, 3, lines=2), 0.0)]
OF_NO_SAY = (("**counts**", 0, "counts"), ("**replaceable**", 0, "claimed"), ("old rule, free", 0, "free"))


def sections(quick: bool = False) -> list[Section]:
    """Return all tables, or a few rows of each."""
    sizes = [Size(seeds, examples) for seeds in (3, 5, 10) for examples in (200, 2000)]
    of_six = list(sizes)
    sizes += [Size(3, 200, 3), Size(3, 2000, 3), Size(5, 2000, 3)]
    of_metrics, places = [Size(3, 200), Size(5, 2000)], slice(None)
    if quick:
        sizes, of_six, of_metrics, places = [Size(3, 200), Size(3, 200, 3)], [Size(3, 200)], [Size(3, 200)], slice(1)
    six = [[0.0] * 6, [MARGIN / 2] * 6, [MARGIN, *[0.0] * 5], [MARGIN] * 6, [2 * MARGIN, *[0.0] * 5]]
    of_documents = [
        (f"{name}, {'resampled' if clustered else 'ignored'}", replace(world, clustered=clustered), size)
        for name, (world, *own_sizes) in DOCUMENTS.items()
        for size in own_sizes[places]
        for clustered in (False, True)
    ]
    return [
        Section("One task", SIZE, OF_LOSSES, tuple(_row((), size, at(BASE, *LOSSES)) for size in sizes)),
        Section(
            "Six tasks",
            SIZE,
            OF_TASKS,
            tuple(_row((), size, [tuple(map(_with, TASKS, losses)) for losses in six]) for size in of_six),
        ),
        Section(
            "Other metrics",
            ("metric", *SIZE),
            OF_HARD,
            tuple(
                _row((name,), size, at(world, 0.0, MARGIN)) for name, world in METRICS.items() for size in of_metrics
            ),
        ),
        Section(
            "Hard cases",
            ("case", *SIZE),
            OF_HARD,
            tuple(
                _row((name,), size, at(world, 0.0, MARGIN))
                for name, (world, *own_sizes) in HARD.items()
                for size in own_sizes[places]
            ),
        ),
        Section(
            "Tasks that are excluded",
            ("case", *SIZE),
            OF_NO_SAY,
            tuple(_row((name,), size, at(world, MARGIN)) for name, world in NO_SAY.items() for size in of_metrics),
        ),
        Section(
            "Each task by itself",
            ("tasks", "r", *SIZE),
            OF_EACH_TASK,
            tuple(
                _row((name, f"{correlation:g}"), size, _each_task(tasks), Dependence(correlation))
                for name, tasks, size in _several_tasks(quick)
                for correlation in (0.0, 0.3)
            ),
        ),
        Section(
            "Sums over tasks",
            ("tasks", "corpora", *SIZE),
            OF_SEVERAL,
            tuple(_several(*row) for row in (SUMS[:1] if quick else SUMS)),
        ),
        Section(
            "Examples in documents",
            ("case", *SIZE),
            OF_HARD,
            tuple(_row((name,), size, at(world, 0.0, MARGIN)) for name, world, size in of_documents),
        ),
    ]


def _several_tasks(quick: bool) -> list[tuple[str, Sequence[World], Size]]:
    """Return the tasks of studies that judge each task by itself, with their names and sizes."""
    if quick:
        return [("4", TASKS[:4], Size(5, 1000))]
    few, many = (("4", TASKS[:4]), ("6", TASKS))
    little = ("6, to which attention contributes little", [LITTLE] * 6, Size(5, 1000))
    return [*((*tasks, Size(seeds, 1000)) for tasks in (few, many) for seeds in (5, 10)), little]


def _each_task(tasks: Sequence[World]) -> list[tuple[World, ...]]:
    """Return tasks that all lose the margin, of which half lose it, and that lose nothing."""
    some = [MARGIN if place % 2 else 0.0 for place in range(len(tasks))]
    return [tuple(map(_with, tasks, losses)) for losses in ([MARGIN] * len(tasks), some, [0.0] * len(tasks))]


def _several(tasks: int, size: Size, examples: float) -> Row:
    """Return studies of several tasks whose effects of seeds have each of `CORRELATIONS`, with two equal lines."""
    worlds = tuple(replace(world, loss=MARGIN, seed=0.02) for world in TASKS[:tasks])
    corpora = tasks - 1 if examples else tasks
    head = tuple(f"{number:,}" for number in (tasks, corpora, size.seeds, size.orders, size.examples))
    cases = (Case(worlds, size, Dependence(seeds, examples), seeds == COMPARED) for seeds in CORRELATIONS)
    return Row(head, tuple(cases))


def _with(world: World, loss: float) -> World:
    return replace(world, loss=loss)


def _row(
    head: tuple[str, ...], size: Size, worlds: Iterable[tuple[World, ...]], dependence: Dependence = Dependence()
) -> Row:
    sizes = tuple(f"{number:,}" for number in (size.seeds, size.orders, size.examples))
    return Row(head + sizes, tuple(Case(tasks, size, dependence) for tasks in worlds))


# -- studies from real outcomes ---------------------------------------------------------------------------------------

FLIPPED_METRICS = ("accuracy", "token_accuracy", "f1", "entity_f1", "chunk_f1")
"""Metrics that are proportional to the number of correct answers, which is their first count."""


@dataclass(frozen=True)
class Population:
    """The outcomes of a task with many seeds, from which studies draw seeds and clusters of examples.

    Args:
        task, metric: their names.
        originals, floors: counts `[seed, example, count]`; seed i is the same in both.
        trivial: counts `[example, count]` of the trivial classifier.
        clusters: the cluster of each example `[example]`.
    """

    task: str
    metric: str
    originals: Counts
    floors: Counts
    trivial: Counts
    clusters: np.ndarray

    @cached_property
    def members(self) -> list[np.ndarray]:
        """The examples of each cluster."""
        order = np.argsort(self.clusters, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.clusters[order])) + 1)

    def flipped_share(self, loss: float) -> float:
        """Return the share of the original's correct answers to flip, so its loss is this one."""
        score = MEASURES[self.metric].score
        original, floor = (float(score(counts.sum(1)).mean()) for counts in (self.originals, self.floors))
        return loss * (original - floor) / original


@dataclass(frozen=True)
class Design:
    """How studies are drawn from a population, and judged.

    Args:
        seeds: the number of seeds; a population needs twice this number.
        clusters: the number of clusters that are drawn; the default is all.
        flipped_clusters: whether answers are flipped in whole clusters, instead of single examples.
        resampled: whether papa knows the clusters, so its intervals resample them instead of examples.
    """

    seeds: int
    clusters: int | None = None
    flipped_clusters: bool = False
    resampled: bool = True


def drawn_from(population: Population, loss: float, design: Design, chance: np.random.Generator) -> Study:
    """Draw a study with this true loss from a population.

    Half of the drawn seeds are the original, with the floor of the same seeds. The other half are the replaced heads.
    An answer is flipped in all seeds or in none, like that of an example that needs the attention that was replaced.
    """
    metric, members = MEASURES[population.metric], population.members
    clusters = chance.integers(len(members), size=design.clusters or len(members))
    sizes = np.array([len(members[cluster]) for cluster in clusters])
    examples = np.concatenate([members[cluster] for cluster in clusters])
    seeds = chance.permutation(len(population.originals))
    first, second = seeds[: design.seeds], seeds[design.seeds : 2 * design.seeds]
    replaced = population.originals[second][:, examples]
    share = population.flipped_share(loss)
    if design.flipped_clusters:
        flipped = np.repeat(chance.random(len(clusters)) < share, sizes)
    else:
        flipped = chance.random(len(examples)) < share
    replaced[:, flipped, 0] = 0
    counts = np.concatenate([population.originals[first][:, examples], population.floors[first][:, examples], replaced])
    trivial = population.trivial[None, examples]
    if design.resampled:
        counts, trivial = (np.add.reduceat(units, np.cumsum(sizes) - sizes, axis=1) for units in (counts, trivial))
    places = places_of(Size(design.seeds, len(clusters)))
    return Study(
        metric=metric,
        counts=counts,
        scores=metric.score(counts.sum(1)),
        values=pseudo_values(metric, counts),
        trivial_values=pseudo_values(metric, trivial)[0],
        settings={setting: [] for setting in places},
        runs=RUNS,
        trivial=float(metric.score(trivial.sum(1))[0]),
        by_word=None,
        places=places,
    )


def real_rates(population: Population, loss: float, design: Design, studies: int, seed: int = 0) -> Rates:
    """Return the rates of what is said of studies with a true loss."""
    chance, size, world = np.random.default_rng(seed), Size(design.seeds, 0), World(loss=loss)
    verdicts = [judged(drawn_from(population, loss, design, chance), world, size) for _ in range(studies)]
    rates = [
        Rates(row.counts, row.passes, row.passes and loss >= MARGIN, row.held, math.nan, not row.lost)
        for row in verdicts
    ]
    return rates_of(np.array(rates, float))


def population_of(outcomes: TaskOutcomes, cluster: str | None) -> Population:
    """Return the population of a task.

    Args:
        outcomes: all outcomes of the task, with the original and the floor for the same seeds.
        cluster: the number of consecutive examples in a cluster; or FILE:COLUMN, a column of a Parquet file with a row
            for each validation example. By default the cluster in the outcomes, or each example by itself.
    """
    if outcomes.metric not in FLIPPED_METRICS:
        raise SystemExit(
            f"Task {outcomes.task} is scored by {outcomes.metric}; known are {', '.join(FLIPPED_METRICS)}."
        )
    mask = outcomes.subsets()[ALL]
    sample, items = outcomes.sample(outcomes.metric, mask), outcomes.items.loc[mask]
    examples = items.drop_duplicates("example")
    if cluster is None:
        clusters = examples["cluster"].to_numpy() if "cluster" in examples else np.arange(len(examples))
    elif cluster.isdigit():
        clusters = examples["example"].to_numpy() // int(cluster)
    else:
        file, _, column = cluster.rpartition(":")
        clusters = pd.factorize(pd.read_parquet(file)[column])[0][examples["example"].to_numpy()]
    runs = sample.runs_of(ORIGINALS), sample.runs_of(FLOOR)
    seeds = [seed for seed in runs[0].columns if seed in runs[1].columns]
    originals, floors = (outcomes.counts(outcomes.metric, mask)[table[seeds].to_numpy()[0]] for table in runs)
    trivial = outcomes.trivial(outcomes.metric, mask)[0]
    return Population(outcomes.task, outcomes.metric, originals, floors, trivial, clusters)


REAL_COLUMNS = (
    "task",
    "flipped",
    "intervals resample",
    "seeds",
    "clusters",
    "examples",
    "counts",
    "replaceable: loss 0",
)
REAL_COLUMNS += ("**δ**", "intervals contain the loss: loss 0", "δ")


def real_table(populations: Iterable[Population], studies: int) -> Iterator[str]:
    """Yield the lines of the table of error rates on real outcomes."""
    yield f"| {' | '.join(REAL_COLUMNS)} |"
    yield "|" + "--:|" * len(REAL_COLUMNS)
    for population in populations:
        whole, most = len(population.members), len(population.originals) // 2
        mean_size = len(population.clusters) / whole
        clustered = whole < len(population.clusters)
        for whole_clusters, seeds, number in product(
            (False, True) if clustered else (False,), sorted({min(3, most), most}), (whole // 5, whole)
        ):
            for resampled in (False, True) if clustered else (True,):
                design = Design(seeds, number, whole_clusters, resampled)
                none, margin = (real_rates(population, loss, design, studies) for loss in (0.0, MARGIN))
                cells = (margin.counts, none.claimed, margin.wrong, none.held, margin.held)
                names = (
                    "clusters" if whole_clusters else "examples",
                    "clusters" if resampled and clustered else "examples",
                )
                sizes = (f"{seeds}", f"{number:,}", f"{round(number * mean_size):,}")
                yield f"| {' | '.join((population.task, *names, *sizes, *map(_percent, cells)))} |"


def tables(sections: Mapping[int, Section], number: int, processes: int) -> Iterator[str]:
    """Yield the tables as Markdown, computed from a number of studies of each case."""
    with get_context("spawn").Pool(processes, os.nice, (10,)) as pool:
        for place, section in sections.items():
            names = (*section.heads, *(name for name, _, _ in section.columns))
            lines = [f"### {section.title}", "", f"| {' | '.join(names)} |", "|--:" * len(names) + "|"]
            work = [
                (case, min(AT_ONCE, number - first), (place, line, column, first))
                for line, row in enumerate(section.rows)
                for column, case in enumerate(row.cases)
                for first in range(0, number, AT_ONCE)
            ]
            made = iter(pool.imap(batch, work))
            for row in section.rows:
                rates = []
                for _ in row.cases:
                    rates.append(rates_of(np.concatenate([next(made) for _ in range(0, number, AT_ONCE)])))
                cells = [_percent(getattr(rates[case], rate)) for _, case, rate in section.columns]
                lines.append(f"| {' | '.join((*row.head, *cells))} |")
            yield "\n".join((*lines, ""))
        pool.close()
        pool.join()


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 studies of a few cases")
    parser.add_argument("--studies", type=int, help="studies of each case; default: 2000, or 200 with --quick")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--outcomes", type=Path, metavar="FOLDER", help="draw studies from the outcomes of this study")
    parser.add_argument(
        "--cluster", nargs="+", default=[], metavar="TASK=N", help="with --outcomes: TASK=N or TASK=FILE.parquet:COLUMN"
    )
    parser.add_argument("--tables", nargs="+", type=int, help="print only these tables, counted from 1")
    given = parser.parse_args(arguments)
    number, begin = given.studies or (200 if given.quick else 2000), time.perf_counter()
    error = 196 * math.sqrt(0.05 * 0.95 / number)
    commit = run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent)
    print(f"Commit {commit.stdout.strip() or 'unknown'}, {number:,} studies per case, {given.processes} processes.")
    print(f"All in percent; one of 5 is off by {error:.1f} in 5 of 100 cases. δ = {MARGIN}.\n")
    if given.outcomes:
        clusters = dict(name.split("=", maxsplit=1) for name in given.cluster)
        outcomes, _ = read_outcomes(given.outcomes / ARTEFACTS["all_outcomes"].path())
        populations = [population_of(task, clusters.get(task.task)) for task in outcomes.values()]
        for line in real_table(populations, number):
            print(line, flush=True)
        return
    chosen = {
        place: section
        for place, section in enumerate(sections(given.quick), start=1)
        if not given.tables or place in given.tables
    }
    for table in tables(chosen, number, given.processes):
        print(table, flush=True)
    minutes, used = (time.perf_counter() - begin) / 60, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{count(round(minutes), 'minute')}, and {(used.ru_utime + used.ru_stime) / 60:.0f} of a processor.")


if __name__ == "__main__":
    main()
