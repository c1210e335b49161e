"""Error rates of claims if the context-free floor is chosen from several: on training folds, or on validation outcomes.

    python benchmarks/floors.py                   # 2,000 studies per case: half an hour on one core
    python benchmarks/floors.py --choice          # only how often folds choose the best floor: seconds

A task is a population with an original, three floors and replaced heads. The true loss is measured against the best
floor. A study draws probe seeds and examples, chooses a floor, and is judged by papa. Prints a Markdown table;
docs/statistics.md explains it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri

from papa.config.stages import INNER_FOLDS, SCORED_FOLDS
from papa.config.variant import CONTEXT_FREE
from papa.results.losses import interval_of, is_counted, lost_score
from papa.results.outcomes import ORIGINALS, RUN_KEYS, Sample, Setting, TaskOutcomes
from papa.results.statistics import Interval

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

    def bias_against(self, gap: float) -> float:
        """Return by how much the loss against a floor differs from the true loss, if it scores `gap` less."""
        return -self.loss * gap / (self.original - self.floor + gap)


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


@dataclass(frozen=True)
class Study:
    """A simulated study of a task, with the verdict against each floor."""

    task: Task
    sample: Sample
    chance: np.random.Generator

    @cached_property
    def verdicts(self) -> dict[str, Interval | None]:
        """The loss of the replaced heads against each floor; None if the task does not count."""
        by_floor = {name: self.sample.against(name) for name in CONTEXT_FREE}
        return {
            name: Interval(*interval_of(sample, lost_score({REPLACED: 1.0}))[:4]) if is_counted(sample) else None
            for name, sample in by_floor.items()
        }


def known(study: Study) -> str:
    """Choose the floor that is truly best, which no study knows."""
    return CONTEXT_FREE[-1]


def on_folds(task: Task, chance: np.random.Generator) -> str:
    """Choose the floor with the best score on the scored inner folds, each scored by one probe."""
    folds = [right(task, 1, task.train_rows // INNER_FOLDS, chance) for _ in range(SCORED_FOLDS)]
    return max(CONTEXT_FREE, key=lambda name: np.mean([fold[Setting(name, fraction="0")].mean() for fold in folds]))


def on_validation(study: Study) -> str:
    """Choose the floor with the best score on validation outcomes, which biases the loss."""
    return max(CONTEXT_FREE, key=lambda name: study.sample.mean(Setting(name, fraction="0")) or 0.0)


def on_margin(study: Study) -> str:
    """Choose the floor with the smallest upper bound of the loss, as an analyst does who wants to claim something."""
    return min(CONTEXT_FREE, key=lambda name: math.inf if (loss := study.verdicts[name]) is None else loss.bound)


Rule = Callable[[Study], str]
RULES: dict[str, Rule] = {"truth": known, "folds": lambda study: on_folds(study.task, study.chance)}
RULES |= {"validation scores": on_validation, "smallest bound": on_margin}


class Rates(NamedTuple):
    """The conclusions of a study, or their rates in many studies.

    Attributes:
        best: the chosen floor is the best one, or as good.
        counts: the task counts.
        claimed: the heads are replaceable at `MARGIN`.
        held: the interval holds the true loss.
        bias: the loss minus the true loss.
        choice: the part of the bias that is due to a floor below the best one.
    """

    best: float
    counts: float
    claimed: float
    held: float
    bias: float
    choice: float


def rates_of(task: Task, studies: int, seed: int = 0) -> dict[str, Rates]:
    """Simulate studies of a task, and return the rates for each rule that chooses a floor."""
    judged = [_judged(task, chance) for chance in _chances(studies, seed)]
    return {rule: Rates(*np.nanmean([by_rule[rule] for by_rule in judged], axis=0)) for rule in RULES}


def choices_of(task: Task, studies: int, seed: int = 0) -> tuple[float, float]:
    """Return how often folds choose the best floor, and the bias by the choice; this needs no validation outcomes."""
    gaps = dict(zip(CONTEXT_FREE, (*task.gaps, 0.0), strict=True))
    chosen = [gaps[on_folds(task, chance)] for chance in _chances(studies, seed)]
    return float(np.mean([gap == 0 for gap in chosen])), float(np.mean([task.bias_against(gap) for gap in chosen]))


def _chances(studies: int, seed: int) -> Iterator[np.random.Generator]:
    return map(np.random.default_rng, np.random.SeedSequence(seed).spawn(studies))


def _judged(task: Task, chance: np.random.Generator) -> dict[str, Rates]:
    study = Study(task, sample_of(right(task, task.seeds, task.examples, chance)), chance)
    return {name: _judged_against(rule(study), study) for name, rule in RULES.items()}


def _judged_against(floor: str, study: Study) -> Rates:
    task, loss = study.task, study.verdicts[floor]
    gap = task.floor - task.scores[Setting(floor, fraction="0")]
    choice = task.bias_against(gap)
    if loss is None:
        return Rates(gap == 0, 0.0, 0.0, math.nan, math.nan, choice)
    held = loss.low <= task.loss <= loss.high
    return Rates(gap == 0, 1.0, loss.bound < MARGIN, held, loss.mean - task.loss, choice)


LITTLE = Task(original=0.80, floor=0.75)
LARGE = Task(seeds=10, examples=10_000)
CASES = {
    "three equal floors": Task(),
    "others lower by 0.01": Task(gaps=(0.01, 0.01)),
    "others lower by 0.03": Task(gaps=(0.03, 0.03)),
    "attention contributes little, equal": LITTLE,
    "attention contributes little, lower by 0.01": replace(LITTLE, gaps=(0.01, 0.01)),
    "large study, lower by 0.01": replace(LARGE, gaps=(0.01, 0.01)),
    "large study, lower by 0.03": replace(LARGE, gaps=(0.03, 0.03)),
}
FEW_ROWS = 200
CASES |= {
    f"{name}, {FEW_ROWS} training rows": replace(task, train_rows=FEW_ROWS)
    for name, task in CASES.items()
    if name not in ("three equal floors", "attention contributes little, equal")
}
COLUMNS = ("case", "floor chosen by", "best floor", "counts", "**replaceable at loss δ**", "intervals contain the loss")
COLUMNS += ("bias, points", "bias by the choice, points")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=STUDIES, help="studies of each case")
    parser.add_argument("--cases", nargs="+", default=[*CASES], metavar="CASE", help="only these cases")
    parser.add_argument("--choice", action="store_true", help="only the choice on folds, which takes seconds")
    given = parser.parse_args()
    if given.choice:
        print("| case | best floor | bias by the choice, points |\n|---|--:|--:|")
        for case in given.cases:
            best, bias = choices_of(CASES[case], given.studies)
            print(f"| {case} | {100 * best:.1f} | {100 * bias:.2f} |", flush=True)
        return
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---|---|" + "--:|" * (len(COLUMNS) - 2))
    for case in given.cases:
        for rule, rates in rates_of(CASES[case], given.studies).items():
            print(f"| {case} | {rule} | {' | '.join(f'{100 * value:.1f}' for value in rates)} |", flush=True)


if __name__ == "__main__":
    main()
