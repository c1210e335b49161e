"""Coverage of intervals if the training rows are drawn again: simulated studies with four ways to choose the rows.

    python benchmarks/training_samples.py             # 400 studies of each way: four minutes
    python benchmarks/training_samples.py --quick     # 100 studies of each way: a minute

A study has a pool of training rows, five probe seeds and fresh validation examples. Texts are points around the mean of
their class. A probe classifies by the nearer class mean of the rows it learned from, and its seed adds a little noise.
The original sees all features, replaced heads see some of them, and the floor sees few. The truth is the expected score
over pools, rows and seeds, for probes with this number of rows. Losses are judged by `papa.results`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from papa.results.losses import lost_score, share_of
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, RUN_KEYS, Setting, TaskOutcomes
from papa.results.table import Table

POOL, SEEDS, EXAMPLES = 250, 5, 4000
"""Rows of the pool of a study, probe seeds, and validation examples."""
FEATURES, DISTANCE, SEED_NOISE = 40, 1.6, 0.02
"""Number of features, distance between the class means over all features, and standard deviation of a seed's noise."""
REPLACED = Setting("average", None, "0")
SEEN: Mapping[Setting, int] = {ORIGINALS: FEATURES, REPLACED: 30, FLOOR: 12}
"""The number of features that each setting sees."""

Choice = Callable[[np.random.Generator], Sequence[np.ndarray]]
"""Draws the rows of the pool that each seed learns from."""


def _fixed(chance: np.random.Generator) -> Sequence[np.ndarray]:
    return [chance.permutation(POOL)[: POOL // SEEDS]] * SEEDS


def _own_parts(chance: np.random.Generator) -> Sequence[np.ndarray]:
    return np.split(chance.permutation(POOL), SEEDS)


def _halves(chance: np.random.Generator) -> Sequence[np.ndarray]:
    return [chance.permutation(POOL)[: POOL // 2] for _ in range(SEEDS)]


def _with_replacement(chance: np.random.Generator) -> Sequence[np.ndarray]:
    return [chance.integers(0, POOL, POOL) for _ in range(SEEDS)]


WAYS: Mapping[str, Choice] = {
    "one sample for all seeds (default)": _fixed,
    "own part for each seed (`resample_training`)": _own_parts,
    "random half for each seed": _halves,
    "drawn with replacement for each seed": _with_replacement,
}


class Coverage(NamedTuple):
    """Percent of studies whose 95 % interval has the truth, for the original's score and for the loss."""

    score: float
    loss: float


def points(chance: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw labels `[row]` and features `[row, feature]`."""
    gold = chance.integers(0, 2, number)
    step = DISTANCE / np.sqrt(FEATURES)
    return gold, chance.standard_normal((number, FEATURES)) + step * (gold[:, None] - 0.5)


def predicted(
    pool: tuple[np.ndarray, np.ndarray], rows: np.ndarray, noise: np.ndarray, texts: np.ndarray
) -> dict[Setting, np.ndarray]:
    """Return the labels that the probes of one seed predict for `texts`, by setting."""
    gold, features = pool[0][rows], pool[1][rows]
    means = np.stack([features[gold == label].mean(0) for label in (0, 1)]) + noise
    distances = (texts[:, None] - means) ** 2  # [text, label, feature]
    return {setting: distances[:, :, :seen].sum(2).argmin(1) for setting, seen in SEEN.items()}


def study(choose: Choice, chance: np.random.Generator) -> TaskOutcomes:
    """Simulate the outcomes of a study."""
    pool, (gold, texts) = points(chance, POOL), points(chance, EXAMPLES)
    runs, values = [], []
    for seed, rows in enumerate(choose(chance), start=1):
        noise = SEED_NOISE * chance.standard_normal((2, FEATURES))
        for setting, labels in predicted(pool, rows, noise, texts).items():
            runs.append((*setting, seed))
            values.append(labels)
    items = pd.DataFrame({"split": "validation", "example": np.arange(EXAMPLES), "gold": gold})
    frame = pd.DataFrame(runs, columns=RUN_KEYS, dtype=object)
    counts = tuple(np.bincount(pool[0], minlength=2).tolist())
    return TaskOutcomes("m", "t", "accuracy", ("a", "b"), counts, frame, items, {"predicted": np.stack(values)})


def truth(choose: Choice, chance: np.random.Generator, pools: int = 300) -> dict[Setting, float]:
    """Return the expected accuracy of each setting over pools, rows, seeds and examples."""
    sums = dict.fromkeys(SEEN, 0.0)
    for _ in range(pools):
        pool, (gold, texts) = points(chance, POOL), points(chance, EXAMPLES)
        noise = SEED_NOISE * chance.standard_normal((2, FEATURES))
        for setting, labels in predicted(pool, choose(chance)[0], noise, texts).items():
            sums[setting] += float((labels == gold).mean()) / pools
    return sums


def coverage(way: str, studies: int, pools: int = 300) -> Coverage:
    """Simulate studies, and count those whose intervals have the truth."""
    chance = np.random.default_rng(list(WAYS).index(way))
    expected = truth(WAYS[way], chance, pools)
    loss = (expected[ORIGINALS] - expected[REPLACED]) / (expected[ORIGINALS] - expected[FLOOR])
    hits = np.zeros(2)
    for _ in range(studies):
        outcomes = study(WAYS[way], chance)
        sample = outcomes.sample("accuracy", outcomes.subsets()[ALL])
        share = share_of(sample, lost_score({REPLACED: 1.0}))
        if share is None:
            raise AssertionError("a simulated study has every setting")
        score, lost = share.spread.estimate([0.0, 1.0, 0.0, 0.0]).interval(), share.interval()
        hits += [score.low < expected[ORIGINALS] < score.high, lost.low < loss < lost.high]
    return Coverage(*(100 * hits / studies).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="simulate 100 studies of each way")
    studies = 100 if parser.parse_args().quick else 400
    rows = [{"training rows": way} | coverage(way, studies)._asdict() for way in WAYS]
    frame = pd.DataFrame(rows).round(1).astype(str)
    print(Table("", frame.rename(columns={"score": "original's score", "loss": "loss"}), 1).markdown())


if __name__ == "__main__":
    main()
