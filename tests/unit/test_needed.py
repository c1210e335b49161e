"""The sample that would show a contribution: outcomes drawn in this number show it as often as the power says."""

import numpy as np
import pytest
from builders import labelled
from scipy.stats import norm

from papa.results.conclusion import Exclusion, NeededSample
from papa.results.losses import is_counted
from papa.results.needed import POWER, needed_sample
from papa.results.outcomes import FLOOR, ORIGINALS, Sample
from papa.results.phrases import needed

EXAMPLES, SEEDS, DRAWS = 307, 5, 200
CONTRIBUTION = 0.05


def sample(original: np.ndarray, floor: np.ndarray) -> Sample:
    task = labelled({ORIGINALS: original, FLOOR: floor})
    return task.sample("accuracy", np.ones(original.shape[1], bool))


def drawn(chance: np.random.Generator, examples: int, contribution: float = CONTRIBUTION) -> Sample:
    """Original and floor are right on 80 % of the examples; the original also on `contribution` of the others.

    Independent noise of 7 % changes outcomes in both directions. Seeds have the same outcomes on most examples.
    """
    ease = chance.random(examples)
    flips = chance.random((2, SEEDS, examples)) < 0.07
    return sample((ease < 0.8 + contribution) ^ flips[0], (ease < 0.8) ^ flips[1])


def test_a_sample_of_the_needed_size_shows_the_difference_as_often_as_the_power_says():
    chance = np.random.default_rng(0)
    size = 61
    while (needs := needed_sample(small := drawn(chance, size))) is None or abs(needs.difference - 0.0430) > 0.003:
        pass  # a sample whose difference is about the true one, 0.05 · (1 - 2 · 0.07)
    assert (needs.floor, needs.examples, needs.seeds) == ("context-free", small.examples, SEEDS)
    assert needs.needed_seeds == SEEDS and size < needs.needed_examples < 20 * size
    shown = np.mean([is_counted(drawn(chance, needs.needed_examples)) for _ in range(DRAWS)])
    assert shown > POWER - 0.15  # the formula is conservative with few units: each score counts half a unit more
    fewer = np.mean([is_counted(drawn(chance, needs.needed_examples // 5)) for _ in range(DRAWS)])
    assert fewer < 0.6 < shown


def test_without_seeds_the_number_is_that_of_the_textbook():
    """Examples only: n = (z of 95 % + z of the power)² · variance / difference²."""
    rows = np.arange(EXAMPLES)
    right = {ORIGINALS: rows % 10 < 7, FLOOR: (rows % 10 < 6) ^ (rows % 7 == 0)}
    pair = sample(*(np.tile(row, (SEEDS, 1)) for row in right.values()))
    estimate = pair.spread(ORIGINALS, FLOOR).estimate([0, 1, -1])
    expected = (norm.ppf(0.95) + norm.ppf(POWER)) ** 2 * estimate.variance * EXAMPLES / estimate.mean**2
    needs = needed_sample(pair)
    assert needs.needed_examples == pytest.approx(expected, rel=0.02)
    assert (needs.low, needs.high) == estimate.interval()[1:3]


def test_more_seeds_are_suggested_if_scores_vary_most_with_seeds():
    rows = np.arange(EXAMPLES)
    original = np.stack([rows < 220 + 20 * (seed - 2) for seed in range(SEEDS)])
    floor = np.tile(rows < 196, (SEEDS, 1))
    needs = needed_sample(sample(original, floor))
    assert needs.needed_seeds > SEEDS
    assert f"with {needs.needed_seeds} seeds would show it" in needed(Exclusion(task="T", why="w", needed=needs))


def test_a_difference_below_zero_needs_no_number():
    rows = np.arange(EXAMPLES)
    worse, better = (np.stack([rows < number + seed for seed in range(SEEDS)]) for number in (200, 210))
    needs = needed_sample(sample(worse, better))
    assert needs.needed_examples is None and needs.needed_seeds is None
    assert "More examples are unlikely to help" in needed(Exclusion(task="T", why="w", needed=needs))


def test_nothing_is_suggested_from_a_single_seed():
    rows = np.arange(EXAMPLES) < 200
    assert needed_sample(sample(rows[None], ~rows[None])) is None
    assert needed(Exclusion(task="T", why="one seed, so no interval")) == ""


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (
            (0.028, 5, 100, 5, 412),
            "420 validation examples with 5 seeds would show it{}100.",
        ),
        (
            (0.028, 5, 100, 10, 95),
            "95 validation examples with 10 seeds would show it{}100 with 5.",
        ),
        (
            (0.028, None, 100, None, 1234),
            "about 1,300 validation examples would show it{}100.",
        ),
        ((0.0001, 5, 100, None, None), "no affordable number of examples or seeds would show it."),
    ],
)
def test_a_null_result_says_what_would_help(numbers, words):
    names = ("difference", "seeds", "examples", "needed_seeds", "needed_examples")
    fixed = {"floor": "context-free", "low": -0.01, "high": 0.066, "power": POWER}
    value = NeededSample.model_validate(dict(zip(names, numbers, strict=True)) | fixed)
    said = needed(Exclusion(task="style", why="attention contributes nothing measurable", needed=value))
    interval = f"the original minus the context-free floor is {numbers[0]:.3f} (95 % interval -0.010 to 0.066)."
    assert said.startswith(f"On style, {interval}") and said.endswith(words.format(" with 80 % power; there were "))
