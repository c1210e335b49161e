"""Several context-free floors: a claim holds against every one of them, and a task counts only if it beats them all."""

import math
from dataclasses import replace
from itertools import product

import builders
import numpy as np
import pytest
from builders import claims_on, concluded, grid_view, labelled, summary_of, texts

from papa.config.variant import CONTEXT_FREE
from papa.results.claims import samples_of, tasks_of
from papa.results.outcomes import ORIGINALS, Setting
from papa.results.reliance import (
    NOT_SIGNIFICANT,
    SIGNIFICANT,
    effect_of,
    effects_of,
    mean_reliance,
    replaceable,
)

SIZE = 2003
REPLACED = ("average", None, "0")
ZEROS, IDENTITY, MEAN_OUTPUT = ((name, None, "0") for name in CONTEXT_FREE)


def right(share):
    """Three seeds that are right about the same share of examples, but for one example each."""
    examples = np.arange(SIZE)
    return np.stack(
        [(examples * 7 % SIZE < share * SIZE) ^ (examples == seed) for seed in range(3)]
    )


def task(floors=CONTEXT_FREE, replaced=0.8, original=0.9, name="t"):
    runs = {
        ORIGINALS: right(original),
        ZEROS: right(0.5),
        IDENTITY: right(0.7),
        REPLACED: right(replaced),
    }
    return labelled(runs, floors=floors, task=name)


SHARES = {
    ORIGINALS: 0.85,
    ZEROS: 0.6,
    IDENTITY: 0.62,
    MEAN_OUTPUT: 0.61,
    ("average", "lambda-0", "1/2"): 0.845,
    ("average", "lambda-0", "1/8"): 0.83,
    REPLACED: 0.8,
}
"""The scores of a task with three floors that are close."""


def drawn(seed, name="t"):
    return builders.drawn(SHARES, seed, seeds=5, examples=400, task=name)


def sample_of(outcomes, *floors):
    return builders.sample_of(replace(outcomes, floors=floors or CONTEXT_FREE))


@pytest.mark.parametrize(
    ("floors", "status"),
    [
        (("zeros",), SIGNIFICANT),
        (("identity",), NOT_SIGNIFICANT),
        (("zeros", "identity"), NOT_SIGNIFICANT),
        (CONTEXT_FREE, NOT_SIGNIFICANT),
    ],
)
def test_a_loss_is_against_the_highest_floor_and_a_task_counts_if_it_beats_every_one(
    floors, status
):
    rows = effects_of([task(floors)]).set_index(["constant"])
    score = 0.7 if "identity" in floors else 0.5
    assert rows.loc["average", "reliance"] == pytest.approx(0.1 / (0.9 - score), abs=0.01)
    assert rows.loc["average", "context_free"] == pytest.approx(score, abs=0.002)
    runs = {ORIGINALS: right(0.9), ZEROS: right(0.5), IDENTITY: right(0.9), REPLACED: right(0.8)}
    assert effects_of([labelled(runs, floors=floors)])["status"].iloc[0] == status


def test_an_interval_runs_from_the_smallest_lower_to_the_largest_upper_bound():
    outcomes = drawn(1)
    every = effect_of(sample_of(outcomes), Setting(*REPLACED)).reliance()
    single = {
        name: effect_of(sample_of(outcomes, name), Setting(*REPLACED)).reliance()
        for name in CONTEXT_FREE
    }
    highest = max(
        CONTEXT_FREE, key=lambda name: sample_of(outcomes).mean(Setting(name, fraction="0"))
    )
    assert every.mean == pytest.approx(single[highest].mean)
    ends = [(interval.low, interval.high, interval.bound) for interval in single.values()]
    lows, highs, bounds = zip(*ends, strict=True)
    assert every[1:] == pytest.approx((min(lows), max(highs), max(bounds)), abs=1e-6)
    assert len({round(low, 4) for low in lows}) == 3


@pytest.mark.parametrize("margin", ["10%", "30%"])
@pytest.mark.parametrize("seed", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_heads_are_replaceable_if_they_are_against_each_floor(seed, margin):
    """The number of heads is the smallest of those against a single floor, together and for each task by itself."""
    tasks = [drawn(seed, "a"), drawn(seed + 100, "b")]

    def against(*floors):
        return concluded([replace(task, floors=floors) for task in tasks], margin)

    every, conclusion = against(*CONTEXT_FREE)
    single = [against(name) for name in CONTEXT_FREE]
    for task in (None, "A", "B"):
        of_every = claims_on(every, task)
        of_single = [claims_on(claims, task) for claims, _ in single]
        assert replaceable(of_every) == min(map(replaceable, of_single))
        if task is not None:
            p_values = [claims["p"].tolist() for claims in of_single]
            assert of_every["p"].tolist() == pytest.approx(np.max(p_values, axis=0))
    assert f"zeros {sample_of(tasks[0], 'zeros').floor:.3f}" in str(conclusion["notes"])
    assert "floors" not in str(single[0][1]["notes"])


@pytest.mark.parametrize(("first", "second", "missed"), [(3, 4, 1e-2), (5, 6, 2e-3)])
def test_a_mean_over_tasks_covers_nearly_every_choice_of_floors(first, second, missed):
    """It has the extreme floors of each task; in 20 pairs of tasks, another choice was wider by at most 0.009."""
    tasks = [drawn(first, "a"), drawn(second, "b")]

    def mean(*floors):
        samples = [sample_of(task, *of) for task, of in zip(tasks, floors, strict=True)]
        return mean_reliance([(sample, "c", Setting(*REPLACED)) for sample in samples])

    every = mean((), ())
    chosen = [mean((first,), (second,)) for first, second in product(CONTEXT_FREE, repeat=2)]
    assert every.low <= min(interval.low for interval in chosen) + missed
    assert every.high >= max(interval.high for interval in chosen) - missed
    assert any(every.mean == pytest.approx(interval.mean) for interval in chosen)


@pytest.mark.parametrize(
    ("floors", "floor", "reliance", "scores", "guess"),
    [
        (("identity", "zeros"), -3.5, 0.5, "identity -3.500, zeros -9.000", -4.0),
        (("zeros",), -4.0, 0.25, "zeros -9.000", -4.0),
        ((), None, None, "", math.nan),
    ],
)
def test_a_blind_guess_replaces_a_floor_of_a_head_that_does_worse(
    floors, floor, reliance, scores, guess
):
    nats = {ORIGINALS: np.full(101, 3.0), ZEROS: np.full(101, 9.0), IDENTITY: np.full(101, 3.5)}
    nats[REPLACED] = 3.25 + np.linspace(-0.1, 0.1, 101)
    measured = texts(nats, np.full(101, 7), floors=floors)
    sample = builders.sample_of(measured, "log_likelihood")
    assert sample.guesses == ({Setting(*ZEROS)} if "zeros" in floors else set())
    assert sample.floor == (floor and pytest.approx(floor))
    if floors:
        assert effect_of(sample, Setting(*REPLACED)).reliance().mean == pytest.approx(reliance)
        # as a constant, it loses what its own scores say
        assert effect_of(sample, Setting(*ZEROS)).lost().mean == pytest.approx(6)
    measured.values["kl"] = np.zeros_like(measured.values["loss"])
    [row] = tasks_of(grid_view(), summary_of([measured]), samples_of([measured]), ("10%",)).to_dict(
        "records"
    )
    assert row["guess"] == pytest.approx(guess, nan_ok=True)
    assert row["floors"] == scores
