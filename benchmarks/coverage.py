"""Coverage of intervals when another sample of training rows is drawn, too: simulated studies with papa's own probes.

    python benchmarks/coverage.py                      # 400 studies a case: an hour and a half on one core
    python benchmarks/coverage.py --studies 40 --cases 1

A study draws training and validation rows, and orders of heads. Texts are points around the mean of their class; the
original sees all features of a point, the replaced heads some of them, and the floor fewer. Probes are those of
`papa.method.objectives`, but many are trained at once, which a test compares with `papa.method.training`.
The truth is the value for probes that are trained on this number of rows: the mean over all studies, on rows that no
study has. Everything that is judged goes through `papa.results`. Prints the percentage of 95% intervals that hold it,
and of studies that claim a reliance below the true one, as if this was the margin: at most 5% should.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from papa.config.margin import SHARE, Margin
from papa.config.measures import MEASURES
from papa.method.objectives import SequenceProbe, TokenProbe
from papa.method.training import drawn_rows
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, RUN_KEYS, Setting, TaskOutcomes
from papa.results.reliance import Claim, effect_of
from papa.results.statistics import LEVEL

LAYERS = 2
SLOTS = 2
HIDDEN = 12
WORDS = 6
FEATURES = LAYERS * HIDDEN
LEARNING_RATE = 5e-3
REPLACED = Setting("average", "lambda", "0")
Variant = tuple[str | None, str | None, str]
"""A constant, an order with its draw, and a fraction."""
UNSEEN = 2000
"""The number of rows on which the truth is measured, in each study."""
RESAMPLES = (0, 5, 10)
POPULATION = np.random.default_rng(7).standard_normal((3, FEATURES))


@dataclass(frozen=True)
class Case:
    """A kind of study.

    Args:
        metric: the metric of the task; entity F1 has words, the others have texts.
        train, validation: numbers of rows.
        seeds, orders: numbers of probe seeds, and of orders of heads.
        cluster: the number of consecutive rows that resemble each other.
        distance: the distance between the means of two classes.
        share: the share of the second class.
        epochs: passes over the training rows.
        kept: the number of features that replaced heads see, between the floor's 8 and all.
    """

    metric: str = "accuracy"
    train: int = 150
    validation: int = 5000
    seeds: int = 5
    orders: int = 1
    cluster: int = 1
    distance: float = 1.8
    share: float = 0.5
    epochs: int = 10
    kept: int = 16

    @property
    def per_word(self) -> bool:
        return self.metric == "entity_f1"

    @property
    def names(self) -> tuple[str, ...]:
        return ("O", "B-x", "I-x") if self.per_word else ("a", "b")

    @property
    def means(self) -> np.ndarray:
        """The mean of each class, `[label, feature]`."""
        classes: np.ndarray = POPULATION[: len(self.names)]
        return classes * self.distance / np.linalg.norm(classes[1] - classes[0])


CASES = (
    Case(),
    Case(validation=400),
    Case(seeds=20),
    Case(orders=4),
    Case(train=300, validation=2000, cluster=5),
    Case("matthews_correlation", share=0.3),
    Case("matthews_correlation", validation=400, seeds=20, share=0.3),
    Case("entity_f1", train=100, validation=1000, distance=3.0),
    Case("entity_f1", train=100, validation=150, seeds=20, distance=3.0),
    Case(train=1000, epochs=4),
    Case(train=1000, seeds=20, epochs=4),
    Case("matthews_correlation", orders=4, share=0.3),
    Case("matthews_correlation", train=300, validation=2000, cluster=5, share=0.3),
    Case("matthews_correlation", train=1000, seeds=20, share=0.3, epochs=4),
    Case("entity_f1", train=300, validation=1000, orders=4, cluster=5, distance=3.0),
    Case("entity_f1", train=1000, validation=1000, seeds=20, distance=3.0, epochs=4),
    Case(kept=22),
    Case(validation=400, kept=22),
)


@dataclass(frozen=True)
class Rows:
    """Rows of a study: `gold` and `points` `[row, word]` and `[row, word, feature]`, and noise that slots add."""

    gold: np.ndarray
    points: np.ndarray
    noise: np.ndarray

    @classmethod
    def drawn(cls, case: Case, size: int, chance: np.random.Generator) -> Rows:
        words = WORDS if case.per_word else 1
        gold = (chance.random((size, words)) < (0.2 if case.per_word else case.share)).astype(
            np.int64
        )
        for word in range(1, words):  # an entity goes on
            follows = (gold[:, word - 1] > 0) & (gold[:, word] == 0) & (chance.random(size) < 0.4)
            gold[follows, word] = 2
        points = case.means[gold] + chance.standard_normal((size, words, FEATURES))
        if case.cluster > 1:
            common = 0.7 * chance.standard_normal((size // case.cluster + 1, 1, FEATURES))
            points += common[np.arange(size) // case.cluster]
        return cls(gold, points, chance.standard_normal((size, FEATURES)))

    def states(self, case: Case, seen: np.ndarray) -> Tensor:
        """Return hidden states of what is seen: `[row, slot, layer, hidden]`, or of words `[row, word, feature]`."""
        states = torch.from_numpy((self.points * seen).astype(np.float32))
        if case.per_word:
            return states
        noise = torch.from_numpy(0.5 * self.noise.astype(np.float32)).view(-1, LAYERS, HIDDEN)
        return states.view(-1, 1, LAYERS, HIDDEN) + torch.stack([noise, -noise], 1)


@dataclass
class Probes:
    """Many probes of papa; each parameter has a first axis for them."""

    parameters: list[Tensor]
    per_word: bool

    @classmethod
    def new(cls, case: Case, seeds: Sequence[int]) -> Probes:
        made = {}
        for seed in set(seeds):
            torch.manual_seed(seed)
            sizes = (
                (LAYERS, HIDDEN, len(case.names))
                if case.per_word
                else (LAYERS, SLOTS, HIDDEN, len(case.names))
            )
            made[seed] = [
                values.detach()
                for values in (TokenProbe if case.per_word else SequenceProbe)(*sizes).parameters()
            ]
        return cls(
            [torch.stack(values) for values in zip(*(made[seed] for seed in seeds), strict=True)],
            case.per_word,
        )

    def logits(self, states: Tensor) -> Tensor:
        """Return `[probe, item, label]` from the states of each probe's items, `[probe, item, …]`."""
        *weights, dense, bias, output, output_bias = self.parameters
        if weights:
            states = torch.einsum("pls,pislh->pilh", weights[0], states).flatten(2)
        hidden = torch.tanh(torch.baddbmm(bias[:, None], states, dense.transpose(1, 2)))
        return torch.baddbmm(output_bias[:, None], hidden, output.transpose(1, 2))

    def predicted(self, which: Sequence[int], states: Tensor) -> np.ndarray:
        """Return the labels that some probes predict for rows, `[probe, item]`."""
        some = Probes([values[list(which)] for values in self.parameters], self.per_word)
        if not self.per_word:  # the sum over slots is small; the states of all probes would not be
            pooled = torch.einsum("pls,islh->pilh", some.parameters[0], states).flatten(2)
            some.parameters = some.parameters[1:]
        else:
            pooled = states.flatten(0, 1).expand(len(which), -1, -1)
        return some.logits(pooled).argmax(-1).numpy()


def train(
    case: Case, states: Tensor, gold: Tensor, rows: Sequence[Tensor], seeds: Sequence[int]
) -> Probes:
    """Train many probes as `papa.method.training` does: AdamW without decay, the gradient norm clipped at 1.

    Args:
        case: gives the probe and the number of epochs; batches have 16 rows.
        states, gold: those of each probe's rows, `[probe, row, …]` and `[probe, row, word]`.
        rows: the training rows of each probe, all of one number.
        seeds: the seed of each probe.
    """
    probes = Probes.new(case, seeds)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    every = torch.arange(len(rows))[:, None]
    size = len(rows[0])
    step = 0
    means, squares = ([torch.zeros_like(values) for values in probes.parameters] for _ in range(2))
    for _ in range(case.epochs):
        order = torch.stack(
            [
                each[torch.randperm(size, generator=g)]
                for each, g in zip(rows, generators, strict=True)
            ]
        )
        for batch in order.split(16, dim=1):
            for values in probes.parameters:
                values.requires_grad_(True)
            given = states[every, batch]
            logits = probes.logits(given.flatten(1, 2) if case.per_word else given)
            labels = gold[every, batch].flatten(1)
            losses = (
                cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
                .view(labels.shape)
                .mean(1)
            )
            gradients = torch.autograd.grad(losses.sum(), probes.parameters)
            norms = (
                torch.stack([each.flatten(1).square().sum(1) for each in gradients]).sum(0).sqrt()
            )
            scale = 1 / (norms + 1e-6).clamp(min=1)
            step = step + 1
            for values, gradient, mean, square in zip(
                probes.parameters, gradients, means, squares, strict=True
            ):
                values.requires_grad_(False)
                clipped = gradient * scale.view(-1, *[1] * (gradient.ndim - 1))
                mean.lerp_(clipped, 0.1)
                square.mul_(0.999).addcmul_(clipped, clipped, value=0.001)
                values -= (
                    LEARNING_RATE
                    / (1 - 0.9**step)
                    * mean
                    / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
                )
    return probes


@dataclass(frozen=True)
class Study:
    """One study: its rows, and what each setting sees; `number` determines all of it."""

    case: Case
    number: int
    rows: Mapping[str, Rows] = field(default_factory=dict)

    @cached_property
    def seen(self) -> dict[Variant, np.ndarray]:
        """The features that each setting sees: all; 8; and some that differ between orders of heads."""
        chance = np.random.default_rng([self.number, 1])
        features = np.arange(FEATURES)
        seen: dict[Variant, np.ndarray] = {(*ORIGINALS,): features >= 0, (*FLOOR,): features < 8}
        for order in range(self.case.orders):
            chosen = features if self.case.orders == 1 else chance.permutation(FEATURES)
            seen["average", f"lambda-{order}", "0"] = np.isin(features, chosen[: self.case.kept])
        return seen

    @cached_property
    def runs(self) -> list[tuple[Variant, int, int]]:
        """The variant, seed and sample of all runs."""
        numbers = [(seed, 0) for seed in range(self.case.seeds)]
        numbers += [(100 + sample, sample) for sample in range(1, max(RESAMPLES) + 1)]
        return [(variant, *number) for variant, number in product(self.seen, numbers)]

    def trained(self) -> Probes:
        case = self.case
        train_rows = self.rows["train"]
        clusters = torch.arange(case.train) // case.cluster
        drawn = {
            sample: drawn_rows(clusters, 1000 * self.number + sample)
            for sample in range(1, max(RESAMPLES) + 1)
        }
        rows = [drawn.get(sample, torch.arange(case.train)) for _, _, sample in self.runs]
        states = {setting: train_rows.states(case, seen) for setting, seen in self.seen.items()}
        given = torch.stack([states[variant] for variant, _, _ in self.runs])
        gold = torch.from_numpy(train_rows.gold).expand(len(rows), -1, -1)
        return train(
            case, given, gold, rows, [10_000 * (self.number + 1) + seed for _, seed, _ in self.runs]
        )

    def outcomes(self, probes: Probes, split: str) -> TaskOutcomes:
        case = self.case
        rows = self.rows[split]
        values = []
        for variant, seen in self.seen.items():
            which = [place for place, run in enumerate(self.runs) if run[0] == variant]
            values.append(probes.predicted(which, rows.states(case, seen)))
        size, words = rows.gold.shape
        example = np.repeat(np.arange(size), words)
        items = pd.DataFrame(
            {"split": "validation", "example": example, "gold": rows.gold.flatten()}
        )
        if case.per_word:
            items["word"] = np.tile(np.arange(words), size)
        if case.cluster > 1:
            items["cluster"] = example // case.cluster
        counts = tuple(
            np.bincount(self.rows["train"].gold.flatten(), minlength=len(case.names)).tolist()
        )
        runs = pd.DataFrame(
            [(*variant, *number) for variant, *number in self.runs], columns=RUN_KEYS, dtype=object
        )
        about = ("m", "t", case.metric, case.names, counts)
        return TaskOutcomes(
            *about, runs, items, {"predicted": np.concatenate(values)}, (FLOOR.constant or "",)
        )


def drawn(case: Case, number: int) -> Study:
    chance = np.random.default_rng(
        [number, case.train, case.validation, case.seeds, case.orders, case.cluster]
    )
    sizes = {"train": case.train, "validation": case.validation, "unseen": UNSEEN}
    return Study(
        case, number, {split: Rows.drawn(case, size, chance) for split, size in sizes.items()}
    )


def coverage(case: Case, studies: int) -> tuple[list[float], dict[int, list[float]]]:
    """Return the true scores of the settings, and the shares of intervals that hold the truth, by resamples.

    The shares are those of the original's score and of the reliance, and of claims that it is below its true value.
    """
    truths = []
    found = []
    for number in range(studies):
        study = drawn(case, number)
        probes = study.trained()
        unseen = study.outcomes(probes, "unseen")
        outcomes = study.outcomes(probes, "validation")
        scores = MEASURES[case.metric].score(
            unseen.counts(case.metric, unseen.subsets()[ALL]).sum(1)
        )
        truths.append([float(np.mean(scores[places])) for places in unseen.settings().values()])
        found.append(outcomes)
    original, floor, replaced = np.mean(truths, axis=0).tolist()
    share = (original - replaced) / (original - floor)
    held = dict[int, list[float]]()
    for resamples in RESAMPLES:
        rows = []
        for outcomes in found:
            kept = (outcomes.runs["sample"] <= resamples).to_numpy(bool)
            runs = outcomes.runs[kept].reset_index(drop=True)
            values = outcomes.values["predicted"][kept]
            sample = replace(outcomes, runs=runs, values={"predicted": values}).sample(
                case.metric, outcomes.subsets()[ALL]
            )
            effect = effect_of(sample, REPLACED)
            assert effect is not None
            spread = effect.spread
            lost = effect.drop
            contribution = effect.contributions[0]
            score = np.eye(len(spread.means))[1]
            tested = (score, original), (lost - share * contribution, 0.0)
            intervals = [(spread.estimate(weights).interval(), value) for weights, value in tested]
            of_intervals = [interval.low <= value <= interval.high for interval, value in intervals]
            rows.append([*of_intervals, Claim(effect, Margin(100 * share, SHARE)).p < 1 - LEVEL])
        held[resamples] = np.mean(rows, axis=0).tolist()
    return [original, floor, replaced], held


def table(cases: Sequence[Case], studies: int) -> Iterator[str]:
    columns = (
        "metric",
        "training rows",
        "validation",
        "seeds",
        "orders",
        "cluster",
        "true reliance",
        "resamples",
    )
    yield f"| {' | '.join(columns)} | score | reliance | wrong claim |"
    yield "|---" + "|--:" * 10 + "|"
    for case in cases:
        (original, floor, replaced), held = coverage(case, studies)
        about = (case.metric, case.train, case.validation, case.seeds, case.orders, case.cluster)
        share = f"{(original - replaced) / (original - floor):.2f}"
        for resamples, shares in held.items():
            yield f"| {' | '.join(map(str, (*about, share, resamples, *(f'{100 * each:.1f}' for each in shares))))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--studies", type=int, default=400)
    parser.add_argument(
        "--cases", type=int, nargs="*", default=range(len(CASES)), help="numbers of cases, from 0"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    for line in table([CASES[number] for number in given.cases], given.studies):
        print(line, flush=True)


if __name__ == "__main__":
    main()
