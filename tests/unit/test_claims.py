"""Claims from outcomes whose reliances are known by construction."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builders import grid_view, labelled, summary_of, texts
from scipy.stats import norm

from papa.results.claims import claims_of, conclusion_of, samples_of, tables_of, tasks_of
from papa.results.outcomes import FLOOR, ORIGINALS, VARIANT_KEYS, Sample, Setting, TaskOutcomes
from papa.results.reliance import mean_reliance, reliance_of, replaceable

EXAMPLES, HEADS = 400, 16
ALL = np.ones(EXAMPLES, bool)
EASE = np.arange(EXAMPLES) * 7 % EXAMPLES
"""The rank of each example: of k right examples, these are the ones of rank below k."""
RIGHT = {"1": 360, "1/2": 358, "1/8": 300, "0": 280, "floor": 200}
"""The number of right examples: attention contributes 160 of 400; 1%, 38% and 50% of these are lost."""
FLAT = dict.fromkeys(RIGHT, 240)
"""Probes that always say the more frequent label."""


def measured(
    task: str,
    right: dict[str, int] = RIGHT,
    seeds: int = 5,
    orders: Sequence[str] = ("lambda-0",),
    **fields: Any,
) -> TaskOutcomes:
    """Outcomes of a task with two labels; 60% of the rows have the first; seeds differ a little."""
    rows: dict[Setting, list[np.ndarray]] = {}
    for fraction, number in right.items():
        ends = {"1": [ORIGINALS], "0": [Setting("average", None, "0")], "floor": [FLOOR]}
        for place, setting in enumerate(
            ends.get(fraction, [Setting("average", order, fraction) for order in orders])
        ):
            rows[setting] = [number + seed % 3 - 1 - 3 * place > EASE for seed in range(seeds)]
    return labelled(
        rows, gold=np.arange(EXAMPLES) % 5 > 2, task=task, train_counts=(60, 40), **fields
    )


def summary(outcomes: Sequence[TaskOutcomes]) -> pd.DataFrame:
    return summary_of(outcomes, heads=HEADS)


def concluded(outcomes: Sequence[TaskOutcomes], margin: float = 0.1, **grid: Any) -> Any:
    """The claims of one grid: the table, and the conclusion."""
    fields = {
        "fractions": ("1", "1/2", "1/8", "0"),
        "tasks": [task.task for task in outcomes],
    } | grid
    view, scores, samples = grid_view(**fields), summary(outcomes), samples_of(outcomes)
    frame = claims_of(view, scores, samples, margin)
    return frame, conclusion_of(frame, tasks_of(view, scores, samples), margin)


def joint(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["task"].isna()]


def by_task(frame: pd.DataFrame, task: str) -> pd.DataFrame:
    return frame[frame["task"].eq(task)]


@pytest.mark.parametrize(
    ("others", "margin", "number", "words"),
    [
        (
            [RIGHT],
            0.1,
            8,
            r"50%.*8 of 16 heads are replaceable at a margin of 10% .*; with 14 replaced, the one-sided",
        ),
        ([RIGHT], 0.9, 16, r"In the order of λ, all 16 heads are replaceable at a margin of 90% "),
        (
            [RIGHT | {"1/2": 330}],
            0.1,
            0,
            "In the order of λ, no number of heads was shown .* with 8 replaced, the",
        ),
        ([], 0.1, 8, "8 of 16"),
    ],
)
def test_heads_are_replaceable_up_to_the_first_number_at_which_a_task_may_lose_more(
    others, margin, number, words
):
    """One task that loses is enough."""
    tasks = [measured("a"), *(measured("b", right) for right in others)]
    frame, conclusion = concluded(tasks, margin)
    claims = joint(frame)
    assert replaceable(claims, margin) == number and set(claims["tasks"]) == {len(tasks)}
    assert claims["margin"].is_monotonic_increasing and claims["replaced"].tolist() == [8, 14, 16]
    assert re.search(words, " ".join(conclusion["sentences"]))


def test_a_later_number_that_passes_does_not_help():
    frame, _ = concluded([measured("a", RIGHT | {"1/2": 300, "1/8": 360})])
    alone = by_task(frame, "A")
    assert (
        replaceable(joint(frame), 0.1) == replaceable(alone, 0.1) == 0
        and alone["margin"].is_monotonic_increasing
    )


@pytest.mark.parametrize(
    ("right", "why"),
    [
        (FLAT, "the probe is not significantly better than the majority class, no (0.600)"),
        (dict.fromkeys(RIGHT, 396), "attention's contribution is not significant"),
    ],
)
def test_a_task_that_does_not_beat_all_floors_is_excluded(right, why):
    excluded = measured("b", right)
    frame, conclusion = concluded([excluded])
    nothing, because = conclusion["sentences"]
    assert nothing == "Nothing can be concluded, because no task counts." and because.startswith(
        f"B is excluded: {why}"
    )
    assert frame["reliance"].isna().all() and frame["margin"].isna().all()
    frame, conclusion = concluded([measured("a"), excluded])
    assert replaceable(joint(frame), 0.1) == 8 and set(frame["task"].dropna()) == {"A"}
    assert [task["excluded"] for task in conclusion["tasks"]] == [None, why]
    assert len(conclusion["sentences"]) == 3


def only(outcomes: TaskOutcomes, kept: pd.Series) -> TaskOutcomes:
    values = {name: rows[kept.to_numpy()] for name, rows in outcomes.values.items()}
    return replace(outcomes, runs=outcomes.runs[kept].reset_index(drop=True), values=values)


def without(outcomes: TaskOutcomes, fraction: str, order: str | None = None) -> TaskOutcomes:
    """Outcomes without the runs at a fraction, in one order or in all."""
    others = (outcomes.runs["fraction"] != fraction) | (
        (order is not None) & (outcomes.runs["order"] != order)
    )
    return only(outcomes, others)


def test_a_task_that_was_not_run_at_a_number_of_heads_or_with_other_seeds_may_lose_all_there():
    task = measured("b")
    seeds = task.runs["seed"].where(task.runs["fraction"] != "1/2", task.runs["seed"] + 100)
    for unknown in (without(task, "1/2"), replace(task, runs=task.runs.assign(seed=seeds))):
        frame, conclusion = concluded([measured("a"), unknown])
        together = joint(frame)
        assert replaceable(together, 0.1) == 0 and together["margin"].iloc[0] == math.inf
        assert conclusion["sentences"][1].endswith("; with 8 replaced, reliance on B is unbounded.")
        assert together["reliance"].notna().iloc[1] and conclusion["claims"][0]["margin"] is None


def test_only_orders_that_were_run_everywhere_are_compared():
    """A λ that was not run everywhere is left out, and no other replaces it."""
    orders = ("lambda-0", "lambda-1", "lambda-2")

    def score(outcomes):
        """The mean score of all orders at 1/2; None if none was run at both fractions."""
        sample = outcomes.sample("accuracy", ALL)
        spread = sample.spread(
            Setting("average", "lambda", "1/2"), Setting("average", "lambda", "1/8")
        )
        return None if spread is None else float(spread.means[1])

    every = measured("a", orders=orders)
    some = without(every, "1/8", "lambda-0")
    assert score(every) == pytest.approx((358 - 3) / 400, abs=1e-3)
    assert score(some) == pytest.approx((358 - 4.5) / 400, abs=1e-3)
    assert score(without(without(some, "1/8", "lambda-1"), "1/2", "lambda-2")) is None, (
        "none in common"
    )


CLOSE = RIGHT | {"1/2": 351}
"""A reliance of 6%, whose bound is below 10% only if no other claim is made."""


def test_each_task_by_itself_is_corrected_for_all_claims():
    tasks = [
        measured("a"),
        measured("b", CLOSE),
        measured("c", dict.fromkeys(RIGHT, 360) | {"floor": 200}),
    ]
    frame, conclusion = concluded(tasks)
    a, b, c = (by_task(frame, task) for task in "ABC")
    assert replaceable(joint(frame), 0.1) == 8 and set(pd.concat([a, b, c])["claims"]) == {3}
    numbers = [
        [replaceable(task, 0.1, name) for name in ("margin", "corrected_margin")]
        for task in (a, b, c)
    ]
    assert numbers == [[8, 8], [8, 0], [16, 16]]
    # c passes completely, so the others are corrected for two claims; margins and p values are of the same test
    setting = Setting("average", "lambda", "1/2")
    reliances = [reliance_of(task.sample("accuracy", ALL), setting) for task in tasks[:2]]
    bounds = [reliance.bound(1 - 0.05 / 2) for reliance in reliances if reliance is not None]
    assert [task["corrected_margin"].iloc[0] for task in (a, b)] == pytest.approx(bounds)
    for prefix in ("", "corrected_"):
        alone = frame[frame["task"].notna()]
        assert ((alone[f"{prefix}margin"] < 0.1) == (alone[f"{prefix}p"] < 0.05)).all()
    assert (
        "Each task by itself, corrected for 3 claims: all 16 heads are replaceable on C; 8 of 16 heads are replaceable "
        "on A; no number of heads was shown to be replaceable on B."
    ) in conclusion["notes"]
    assert frame["task"].dropna().tolist() == [*"AAABBBCCC"]
    together, alone = tables_of(frame, 0.1)
    assert together.rows[0][:3] == ["m", "8 of 16", "3"]
    assert conclusion["table"]["data"] == together.frame.values.tolist()
    assert [row[2] for row in alone.rows][:2] == ["4 points of accuracy"] * 2
    assert [row[3:5] for row in alone.rows] == [
        ["8 of 16"] * 2,
        ["8 of 16", "none shown"],
        ["16 of 16"] * 2,
    ]


def test_lines_are_corrected_for_all_lines_of_a_grid():
    both = measured("b", CLOSE, orders=("lambda-0", "first-layer-first"))
    frame, conclusion = concluded([both], orders=("lambda", "first-layer-first"))
    first, second = (joint(frame[frame["line"].eq(line)]) for line in ("λ", "first layer first"))
    assert (replaceable(first, 0.1), replaceable(first, 0.1, "corrected_margin")) == (8, 0)
    assert replaceable(second, 0.1, "corrected_margin") == 0 and set(joint(frame)["claims"]) == {2}
    assert (first["corrected_margin"] > first["margin"]).iloc[0]
    shown = "no number of heads was shown to be replaceable for λ or first layer first."
    assert (
        conclusion["sentences"][1]
        == f"At a margin of 10% of attention's contribution (4 points of accuracy), corrected for 2 lines: {shown}"
    )
    single = joint(concluded([measured("b", CLOSE)])[0])
    assert replaceable(single, 0.1, "corrected_margin") == 8 and set(single["claims"]) == {1}


def test_of_one_task():
    _, conclusion = concluded([measured("a")])
    assert conclusion["sentences"] == [
        "With all 16 heads of m replaced by average constants, reliance is 50% (95% interval 42 to 58%) on A.",
        "In the order of λ, 8 of 16 heads are replaceable at a margin of 10% of attention's contribution (4 points of "
        "accuracy); with 14 replaced, the one-sided upper bound of the reliance on A is 44%.",
    ]
    assert conclusion["notes"] == [
        "The results are based on 5 seeds and 400 validation examples.",
        "Intervals do not cover the choice of training rows.",
    ]


def test_of_several_tasks_models_and_orders():
    tasks = [
        measured("a"),
        measured("b", RIGHT | {"0": 180}),
        *(measured(name, seeds=1) for name in "cd"),
    ]
    reliance, _, excluded = concluded(tasks)[1]["sentences"]
    assert reliance.endswith("on average over 2 tasks: highest on B (112%), lowest on A (50%).")
    assert excluded == "C and D are excluded: one seed, so no interval."
    notes = concluded(tasks)[1]["notes"]
    assert notes[0] == "The results are based on 1 to 5 seeds and 400 validation examples per task."
    assert notes[-1].startswith("Above 100%, constants are worse than no context")
    models = [measured("a"), measured("a", RIGHT | {"0": 300}, model="other")]
    reliance, _ = concluded(models, tasks=["a"], models=("m", "other"))[1]["sentences"]
    assert reliance == (
        "With every head replaced, reliance is from 37% (95% interval 30 to 45%) in other with average constants "
        "to 50% (95% interval 42 to 58%) in m with average constants."
    )
    drawn_orders = measured("a", orders=("lambda-0", "lambda-1", "lambda-2"))
    assert concluded([drawn_orders])[1]["sentences"][1].startswith("Averaged over 3 orders (λ), ")


SKILLS: dict[Setting, float] = {
    ORIGINALS: 0.8,
    FLOOR: 0.55,
    Setting("zeros", "lambda-0", "1/2"): 0.7,
    Setting("average", "lambda-0", "1/2"): 0.77,
    Setting("average", None, "0"): 0.7,
}


def drawn(skills: dict[Setting, float] = SKILLS, seeds: int = 14) -> TaskOutcomes:
    """Outcomes of probes: examples are more or less hard, each setting changes some, and seeds differ a little."""
    chance = np.random.default_rng(5)
    hard, by_seed = chance.normal(size=EXAMPLES), chance.normal(0, 0.15, (seeds, 1))
    rows = {
        setting: hard + chance.normal(0, 0.5, (seeds, EXAMPLES))
        < norm.ppf(skill) + chance.normal(0, 0.5, EXAMPLES) + by_seed
        for setting, skill in skills.items()
    }
    return labelled(rows, task="a")


def right_by_setting(outcomes: TaskOutcomes) -> dict[Setting, np.ndarray]:
    """Whether each example is right with each seed, `[seed, example]`."""
    right = outcomes.values["predicted"] == outcomes.items["gold"].to_numpy()
    settings = outcomes.runs[VARIANT_KEYS].apply(tuple, axis=1)
    return {setting: right[[other == setting for other in settings]] for setting in settings}


def bootstrapped(outcomes: TaskOutcomes, total: Callable[[dict[Setting, float]], float]) -> float:
    """The standard deviation of a number that depends on mean scores, by drawing seeds, examples, and both.

    Drawing both counts three times what seeds and examples make together, which drawing one of them counts once.
    """
    tables, chance = right_by_setting(outcomes), np.random.default_rng(6)
    seeds = np.arange(len(tables[ORIGINALS]))
    examples, variances = np.arange(EXAMPLES), []
    for of_seeds, of_examples in ((True, False), (False, True), (True, True)):
        totals = []
        for _ in range(800):
            rows = chance.choice(seeds, len(seeds)) if of_seeds else seeds
            columns = chance.choice(examples, EXAMPLES) if of_examples else examples
            totals.append(
                total(
                    {
                        setting: float(table[rows][:, columns].mean())
                        for setting, table in tables.items()
                    }
                )
            )
        variances.append(np.var(totals))
    return math.sqrt(2 * (variances[0] + variances[1]) - variances[2])


@pytest.mark.parametrize("constant", ["average", "zeros"])
def test_a_loss_varies_as_in_a_bootstrap(constant):
    outcomes, setting = drawn(), Setting(constant, "lambda", "1/2")
    share = reliance_of(outcomes.sample("accuracy", ALL), setting)
    assert share is not None
    estimate = share.spread.shares([(1.0, share.drop, share.contributions[0])])

    def reliance(means: dict[Setting, float]) -> float:
        lost = means[ORIGINALS] - means[setting._replace(order="lambda-0")]
        return lost / (means[ORIGINALS] - means[FLOOR])

    means = {setting: float(right.mean()) for setting, right in right_by_setting(outcomes).items()}
    assert (
        estimate.mean == pytest.approx(reliance(means)) and estimate.mean == share.interval().mean
    )
    assert math.sqrt(estimate.variance) == pytest.approx(bootstrapped(outcomes, reliance), rel=0.1)


END = Setting("average", fraction="0")


def term(sample: Sample, corpus: str = "texts") -> tuple[Sample, str, Setting]:
    return (sample, corpus, END)


def half_width(*terms: tuple[Sample, str, Setting]) -> float:
    interval = mean_reliance(terms)
    assert interval is not None
    return (interval.high - interval.low) / 2


def test_a_mean_over_tasks_uses_the_seeds_that_all_of_them_have():
    outcomes = drawn(seeds=7)
    seeds = outcomes.runs["seed"] - outcomes.runs["seed"].min()
    rest, first = (
        only(outcomes, kept).sample("accuracy", ALL) for kept in (seeds >= 3, seeds == 0)
    )
    both, last = (
        mean_reliance([term(outcomes.sample("accuracy", ALL)), term(rest)]),
        mean_reliance([term(rest)]),
    )
    assert both is not None and last is not None and both.mean == pytest.approx(last.mean)
    assert mean_reliance([term(rest), term(first)]) is None


def test_a_task_without_seeds_adds_only_the_variance_of_its_examples():
    chance = np.random.default_rng(8)
    ease = chance.normal(3, 0.3, 53)
    nats = {
        ORIGINALS: ease,
        FLOOR: ease + 1 + chance.normal(0, 0.1, 53),
        END: ease + 0.3 + chance.normal(0, 0.1, 53),
    }
    own_head = texts(nats, np.full(53, 7), guess=9.0).sample(
        "log_likelihood", np.ones(7 * 53, bool)
    )
    probed = drawn().sample("accuracy", ALL)
    terms = [term(own_head, "a"), term(probed, "b")]
    assert not own_head.seeded and probed.seeded
    expected = math.hypot(half_width(terms[0]), half_width(terms[1])) / 2
    assert half_width(*terms) == pytest.approx(expected, rel=0.05)
