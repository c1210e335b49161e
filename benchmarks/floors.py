"""Error rates of claims if the context-free floor is chosen from several: on training folds, or on validation outcomes.

    python benchmarks/floors.py             # 2,000 studies a case: some minutes on one core
    python benchmarks/floors.py --quick     # 200 studies a case

A task is a population with an original, three floors and replaced heads. The true loss is measured against the best
floor. A study draws probe seeds and examples, chooses a floor, and is judged by papa. Prints a Markdown table;
docs/statistics.md explains it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri

from papa.config.variant import CONTEXT_FREE
from papa.results.losses import interval_of, is_counted, lost_score
from papa.results.outcomes import ORIGINALS, RUN_KEYS, Sample, Setting, TaskOutcomes

MARGIN, STUDIES = 0.1, 2000
REPLACED = Setting("average", fraction="0")
SHARED = 0.7
"""The share of an example's difficulty that is the same in every setting."""


@dataclass(frozen=True)
class Task:
    """A task and the size of a study of it.

    Args:
        original, floor: the true scores of the original and of the best floor.
        gaps: how much lower the other two floors score.
        loss: the true loss with replaced heads, against the best floor.
        seeds, examples, train_rows: the size of a study.
        seed: the standard deviation of a score over probe seeds.
    """

    original: float = 0.85
    floor: float = 0.60
    gaps: tuple[float, float] = (0.0, 0.0)
    loss: float = MARGIN
    seeds: int = 5
    examples: int = 1000
    train_rows: int = 2000
    seed: float = 0.005

    @property
    def scores(self) -> dict[Setting, float]:
        """The true score of each setting; the best floor is the last one that is listed."""
        floors = (self.floor - self.gaps[0], self.floor - self.gaps[1], self.floor)
        scores: dict[Setting, float] = {ORIGINALS: self.original}
        scores |= {Setting(name, fraction="0"): score for name, score in zip(CONTEXT_FREE, floors, strict=True)}
        return scores | {REPLACED: self.original - self.loss * (self.original - self.floor)}


def right(task: Task, seeds: int, examples: int, chance: np.random.Generator) -> dict[Setting, np.ndarray]:
    """Draw whether each example is right, bool `[seed, example]` by setting."""
    hard = chance.standard_normal(examples)
    drawn = {}
    for setting, score in task.scores.items():
        specific = chance.standard_normal(examples)
        least = -ndtri(score + task.seed * chance.standard_normal((seeds, 1)))
        drawn[setting] = math.sqrt(SHARED) * hard + math.sqrt(1 - SHARED) * specific > least
    return drawn


def sample_of(drawn: Mapping[Setting, np.ndarray]) -> Sample:
    """Return the scores of a study from whether each validation example is right; labels take turns."""
    examples = next(iter(drawn.values())).shape[1]
    gold = np.arange(examples) % 2
    runs = [(*setting, seed) for setting, rows in drawn.items() for seed in range(len(rows))]
    outcomes = TaskOutcomes(
        "model",
        "task",
        "accuracy",
        ("no", "yes"),
        (1, 1),
        pd.DataFrame(runs, columns=RUN_KEYS, dtype=object),
        pd.DataFrame({"split": "validation", "example": np.arange(examples), "gold": gold}),
        {"predicted": np.concatenate([np.where(rows, gold, 1 - gold) for rows in drawn.values()])},
        CONTEXT_FREE,
    )
    return outcomes.sample("accuracy", np.ones(examples, bool))


def on_folds(task: Task, sample: Sample, chance: np.random.Generator) -> str:
    """Choose the floor with the best score on training rows, each scored once by a probe of one seed."""
    folds = [right(task, 1, task.train_rows // 2, chance) for _ in range(2)]
    return max(CONTEXT_FREE, key=lambda name: np.mean([fold[Setting(name, fraction="0")].mean() for fold in folds]))


def on_validation(task: Task, sample: Sample, chance: np.random.Generator) -> str:
    """Choose the floor with the best score on validation outcomes, which biases the loss."""
    return max(CONTEXT_FREE, key=lambda name: sample.mean(Setting(name, fraction="0")) or 0.0)


def on_margin(task: Task, sample: Sample, chance: np.random.Generator) -> str:
    """Choose the floor with the smallest upper bound of the loss, as an analyst does who wants to claim something."""
    return min(CONTEXT_FREE, key=lambda name: _bound(sample.against(name)))


def _bound(sample: Sample) -> float:
    return interval_of(sample, lost_score({REPLACED: 1.0}))[3] if is_counted(sample) else math.inf


Rule = Callable[[Task, Sample, np.random.Generator], str]
RULES: dict[str, Rule] = {"folds": on_folds, "validation scores": on_validation, "smallest bound": on_margin}


class Rates(NamedTuple):
    """What is said of many studies.

    Attributes:
        counts: share of studies in which the task counts.
        claimed: share in which the heads are replaceable at `MARGIN`.
        held: share of intervals that hold the true loss.
        bias: mean of loss - true loss.
        best: share in which the floor is the best one, or as good.
    """

    counts: float
    claimed: float
    held: float
    bias: float
    best: float


def rates_of(task: Task, rule: Rule, studies: int, seed: int = 0) -> Rates:
    """Simulate studies of a task whose floor is chosen by a rule."""
    return Rates(*np.nanmean([list(_judged(task, rule, chance)) for chance in _chances(studies, seed)], axis=0))


def _chances(studies: int, seed: int) -> Iterator[np.random.Generator]:
    return map(np.random.default_rng, np.random.SeedSequence(seed).spawn(studies))


def _judged(task: Task, rule: Rule, chance: np.random.Generator) -> Rates:
    sample = sample_of(right(task, task.seeds, task.examples, chance))
    floor = rule(task, sample, chance)
    best = task.scores[Setting(floor, fraction="0")] == task.floor
    sample = sample.against(floor)
    if not is_counted(sample):
        return Rates(0.0, 0.0, math.nan, math.nan, best)
    loss, low, high, bound = interval_of(sample, lost_score({REPLACED: 1.0}))[:4]
    return Rates(1.0, bound < MARGIN, low <= task.loss <= high, loss - task.loss, best)


CASES = {
    "three equal floors": Task(),
    "three equal floors, 200 training rows": Task(train_rows=200),
    "others lower by 0.01": Task(gaps=(0.01, 0.01)),
    "others lower by 0.01, 200 training rows": Task(gaps=(0.01, 0.01), train_rows=200),
    "others lower by 0.03": Task(gaps=(0.03, 0.03)),
    "others lower by 0.03, 200 training rows": Task(gaps=(0.03, 0.03), train_rows=200),
    "others lower by 0.1, 200 training rows": Task(gaps=(0.1, 0.1), train_rows=200),
    "little is contributed, equal": Task(original=0.80, floor=0.75),
    "little is contributed, lower by 0.01": Task(original=0.80, floor=0.75, gaps=(0.01, 0.01)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 studies a case")
    studies = STUDIES // 10 if parser.parse_args().quick else STUDIES
    print("| case | floor chosen by | best floor | counts | **replaceable at loss δ** | intervals | bias of the loss |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for case, task in CASES.items():
        for name, rule in RULES.items():
            rates = rates_of(task, rule, studies)
            cells = [
                f"{100 * value:.1f}" for value in (rates.best, rates.counts, rates.claimed, rates.held, rates.bias)
            ]
            print(f"| {case} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
