"""Claims from outcomes whose losses are known by construction."""

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

from papa.results.claims import Line, claims_of, lines_of, tables_of
from papa.results.conclusion import Conclusion
from papa.results.losses import loss_of, mean_loss
from papa.results.outcomes import FLOOR, ORIGINALS, VARIANT_KEYS, Sample, Setting, TaskOutcomes

EXAMPLES, HEADS = 400, 16
ALL = np.ones(EXAMPLES, bool)
EASE = np.arange(EXAMPLES) * 7 % EXAMPLES
"""The rank of each example: of k right examples, these are the ones of rank below k."""
RIGHT = {"1": 360, "1/2": 358, "1/8": 300, "0": 280, "floor": 200}
"""The number of right examples: attention contributes 160 of 400; 1 %, 38 % and 50 % of these are lost."""
FLAT = dict.fromkeys(RIGHT, 240)
"""Probes that always say the more frequent label."""


def measured(
    task: str, right: dict[str, int] = RIGHT, seeds: int = 5, orders: Sequence[str] = ("lambda-0",), **fields: Any
) -> TaskOutcomes:
    """Outcomes of a task with two labels; 60 % of the rows have the first; seeds differ a little."""
    rows: dict[Setting, list[np.ndarray]] = {}
    for fraction, number in right.items():
        ends = {"1": [ORIGINALS], "0": [Setting("average", None, "0")], "floor": [FLOOR]}
        for place, setting in enumerate(ends.get(fraction, [Setting("average", order, fraction) for order in orders])):
            rows[setting] = [number + seed % 3 - 1 - 3 * place > EASE for seed in range(seeds)]
    return labelled(rows, gold=np.arange(EXAMPLES) % 5 > 2, task=task, train_counts=(60, 40), **fields)


def summary(outcomes: Sequence[TaskOutcomes]) -> pd.DataFrame:
    return summary_of(outcomes, heads=HEADS)


def concluded(outcomes: Sequence[TaskOutcomes], margin: float = 0.1, **grid: Any) -> Any:
    """The claims of one grid: the table, and the conclusion as JSON."""
    fields = {"fractions": ("1", "1/2", "1/8", "0"), "tasks": [task.task for task in outcomes]} | grid
    return claimed(lines_of(grid_view(**fields), summary(outcomes), outcomes), margin)


def claimed(lines: list[Line], margin: float = 0.1) -> Any:
    """The table of claims, and the conclusion as JSON, which is the same after it is read."""
    frame, conclusion = claims_of(lines, margin)
    content = conclusion.to_json()
    assert Conclusion.model_validate(content).to_json() == content
    return frame, content


def only_line(*outcomes: TaskOutcomes, **options: Any) -> Any:
    [line] = concluded(outcomes, **options)[1]["lines"]
    return line


def sentence(*outcomes: TaskOutcomes, **options: Any) -> str:
    return str(concluded(outcomes, **options)[1]["sentence"])


@pytest.mark.parametrize(
    ("others", "margin", "replaceable", "words"),
    [
        ([RIGHT], 0.1, 8, r"50 %.*8 of 16 heads are replaceable at a margin of 10 %.*With 14 replaced"),
        ([RIGHT], 0.9, 16, "In the order of λ, all 16 heads are replaceable"),
        ([RIGHT | {"1/2": 330}], 0.1, 0, "In the order of λ, no number of heads was shown .* with 8 replaced, the"),
        ([], 0.1, 8, "8 of 16"),
    ],
)
def test_heads_are_replaceable_up_to_the_first_number_at_which_a_task_may_lose_more(others, margin, replaceable, words):
    """One task that loses is enough."""
    tasks = [measured("a"), *(measured("b", right) for right in others)]
    frame, claims = concluded(tasks, margin)
    [line] = claims["lines"]
    assert (line["replaceable"], line["tasks"]) == (replaceable, ["A", "B"][: len(tasks)])
    assert frame[frame["task"].isna()]["margin"].is_monotonic_increasing
    assert [step["replaced"] for step in line["steps"]] == [8, 14, 16] and re.search(words, line["sentence"])


def test_a_later_number_that_passes_does_not_help():
    line = only_line(measured("a", RIGHT | {"1/2": 300, "1/8": 360}))
    [task] = line["by_task"]
    margins = [step["margin"] for step in task["steps"]]
    assert line["replaceable"] == task["replaceable"] == 0 and margins == sorted(margins)


@pytest.mark.parametrize(
    ("right", "why"),
    [
        (FLAT, "the probe is no better than the majority class, no (0.600)"),
        (dict.fromkeys(RIGHT, 396), "attention contributes nothing measurable"),
    ],
)
def test_a_task_that_does_not_beat_all_floors_is_excluded(right, why):
    excluded = measured("b", right)
    frame, claims = concluded([excluded])
    nothing = "Nothing can be concluded about m with heads replaced by average constants in the order of λ."
    assert claims["sentence"].startswith(f"{nothing} B: {why}")
    assert claims["lines"][0]["replaceable"] is None and frame["loss"].isna().all()
    line = only_line(measured("a"), excluded)
    assert (line["replaceable"], line["tasks"]) == (8, ["A"])
    assert [(exclusion["task"], exclusion["why"]) for exclusion in line["excluded"]] == [("B", why)]


def only(outcomes: TaskOutcomes, kept: pd.Series) -> TaskOutcomes:
    values = {name: rows[kept.to_numpy()] for name, rows in outcomes.values.items()}
    return replace(outcomes, runs=outcomes.runs[kept].reset_index(drop=True), values=values)


def without(outcomes: TaskOutcomes, fraction: str, order: str | None = None) -> TaskOutcomes:
    """Outcomes without the runs at a fraction, in one order or in all."""
    others = (outcomes.runs["fraction"] != fraction) | ((order is not None) & (outcomes.runs["order"] != order))
    return only(outcomes, others)


def test_a_task_that_was_not_run_at_a_number_of_heads_or_with_other_seeds_may_lose_all_there():
    task = measured("b")
    seeds = task.runs["seed"].where(task.runs["fraction"] != "1/2", task.runs["seed"] + 100)
    for unknown in (without(task, "1/2"), replace(task, runs=task.runs.assign(seed=seeds))):
        frame, claims = concluded([measured("a"), unknown])
        joint = frame[frame["task"].isna()]
        assert claims["lines"][0]["replaceable"] == 0 and joint["margin"].tolist()[0] == math.inf
        assert "with 8 replaced, the loss on B cannot be bounded" in claims["sentence"]
        assert not joint["loss"].isna().tolist()[1]


def test_only_orders_that_were_run_everywhere_are_compared():
    """A λ that was not run everywhere is left out, and no other replaces it."""
    orders = ("lambda-0", "lambda-1", "lambda-2")

    def score(outcomes):
        """The mean score of all orders at 1/2; None if none was run at both fractions."""
        sample = outcomes.sample("accuracy", ALL)
        spread = sample.spread(Setting("average", "lambda", "1/2"), Setting("average", "lambda", "1/8"))
        return None if spread is None else float(spread.means[1])

    every = measured("a", orders=orders)
    some = without(every, "1/8", "lambda-0")
    assert score(every) == pytest.approx((358 - 3) / 400, abs=1e-3)
    assert score(some) == pytest.approx((358 - 4.5) / 400, abs=1e-3)
    assert score(without(without(some, "1/8", "lambda-1"), "1/2", "lambda-2")) is None, "none in common"


CLOSE = RIGHT | {"1/2": 351}
"""A loss of 6 %, whose bound is below 10 % only if no other claim is made."""


def test_each_task_by_itself_is_corrected_for_all_claims():
    tasks = [measured("a"), measured("b", CLOSE), measured("c", dict.fromkeys(RIGHT, 360) | {"floor": 200})]
    frame, claims = concluded(tasks)
    [line] = claims["lines"]
    a, b, c = line["by_task"]
    assert (line["replaceable"], line["task_claims"]) == (8, 3)
    assert [(task["replaceable"], task["corrected"]) for task in (a, b, c)] == [(8, 8), (8, 0), (16, 16)]
    # c passes completely, so the others are corrected for two claims; margins and p values are of the same test
    lines_of_tasks = lines_of(grid_view("abc", fractions=("1", "1/2", "1/8", "0")), summary(tasks), tasks)
    bounds = [lines_of_tasks[0].losses[name][0].bound(1 - 0.05 / 2) for name in "ab"]
    assert [task["steps"][0]["corrected_margin"] for task in (a, b)] == pytest.approx(bounds)
    for step in (step for task in (a, b, c) for step in task["steps"]):
        assert (step["corrected_margin"] < 0.1) == (step["corrected_p"] < 0.05)
        assert (step["margin"] < 0.1) == (step["p"] < 0.05)
    assert (
        "Each task by itself, corrected for 3 claims: all 16 heads are replaceable on C; 8 heads are replaceable on A; "
        "no number of heads was shown to be replaceable on B."
    ) in claims["sentence"]
    rows = frame[frame["task"].notna()]
    assert rows["task"].tolist() == [*"AAABBBCCC"] and set(rows["claims"]) == {3}
    assert rows["corrected_p"].tolist() == [step["corrected_p"] for task in (a, b, c) for step in task["steps"]]
    [(joint, alone)] = tables_of(frame, 0.1).values()
    assert joint.rows[0][:3] == ["m", "8 of 16", "3"]
    assert [row[2:4] for row in alone.rows] == [["8 of 16"] * 2, ["8 of 16", "none shown"], ["16 of 16"] * 2]


def test_lines_are_corrected_for_all_lines_of_a_grid():
    both = measured("b", CLOSE, orders=("lambda-0", "first-layer-first"))
    _, claims = concluded([both], orders=("lambda", "first-layer-first"))
    first, second = claims["lines"]
    assert (first["replaceable"], first["corrected"], first["lines"]) == (8, 0, 2)
    assert second["corrected"] == 0 and first["steps"][0]["corrected_margin"] > first["steps"][0]["margin"]
    single = only_line(measured("b", CLOSE))
    assert (single["replaceable"], single["corrected"], single["lines"]) == (8, 8, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {},
            "With all 16 heads of m replaced by average constants, 50 % (95 % interval 42 to 58 %) of what attention "
            "contributes is lost on A. In the order of λ, 8 of 16 heads are replaceable at a margin of 10 % (smallest "
            "margin that passes: 4 %). With 14 replaced, the one-sided upper bound of the loss on A is 44 % (tried: 8, "
            "14 and 16). The results are based on 5 seeds and 400 validation examples.",
        ),
        ({"seeds": 1}, "A: one seed, so no interval."),
        ({"right": RIGHT | {"0": 180}}, " is lost on A. Above 100 %, more is lost than attention contributes: worse"),
        ({"orders": ("lambda-0", "lambda-1", "lambda-2")}, "Averaged over 3 orders of λ, "),
    ],
)
def test_of_one_task(options, words):
    assert words in sentence(measured("a", **options))


def test_losses_are_reported_by_subset():
    """The first 200 examples to be right are so without any attention: what it contributes is in the other subset."""
    subset = np.where(EASE >= 203, "hard", "easy")
    tasks = [measured("a", subset=subset), measured("b", RIGHT | {"0": 360}, subset=subset), measured("c")]
    easy, hard = only_line(*tasks)["at_end"]["subsets"]
    assert [excluded["task"] for excluded in easy["excluded"]] == ["A", "B"] and not easy["tasks"]
    assert [loss["task"] for loss in hard["tasks"]] == ["A", "B"]
    assert [loss["loss"] for loss in hard["tasks"]] == pytest.approx([0.5, 0.0], abs=0.02)


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
            totals.append(total({setting: float(table[rows][:, columns].mean()) for setting, table in tables.items()}))
        variances.append(np.var(totals))
    return math.sqrt(2 * (variances[0] + variances[1]) - variances[2])


@pytest.mark.parametrize("constant", ["average", "zeros"])
def test_a_loss_varies_as_in_a_bootstrap(constant):
    outcomes, setting = drawn(), Setting(constant, "lambda", "1/2")
    share = loss_of(outcomes.sample("accuracy", ALL), setting)
    assert share is not None
    estimate = share.spread.shares([(1.0, share.lost, share.contributions[0])])

    def loss(means: dict[Setting, float]) -> float:
        lost = means[ORIGINALS] - means[setting._replace(order="lambda-0")]
        return lost / (means[ORIGINALS] - means[FLOOR])

    means = {setting: float(right.mean()) for setting, right in right_by_setting(outcomes).items()}
    assert estimate.mean == pytest.approx(loss(means)) and estimate.mean == share.interval().mean
    assert math.sqrt(estimate.variance) == pytest.approx(bootstrapped(outcomes, loss), rel=0.1)


END = Setting("average", fraction="0")


def term(sample: Sample, corpus: str = "texts") -> tuple[Sample, str, Setting]:
    return (sample, corpus, END)


def half_width(*terms: tuple[Sample, str, Setting]) -> float:
    interval = mean_loss(terms)
    assert interval is not None
    return (interval.high - interval.low) / 2


def test_a_mean_over_tasks_uses_the_seeds_that_all_of_them_have():
    outcomes = drawn(seeds=7)
    seeds = outcomes.runs["seed"] - outcomes.runs["seed"].min()
    rest, first = (only(outcomes, kept).sample("accuracy", ALL) for kept in (seeds >= 3, seeds == 0))
    both, last = mean_loss([term(outcomes.sample("accuracy", ALL)), term(rest)]), mean_loss([term(rest)])
    assert both is not None and last is not None and both.mean == pytest.approx(last.mean)
    assert mean_loss([term(rest), term(first)]) is None


def test_a_task_without_seeds_adds_only_the_variance_of_its_examples():
    chance = np.random.default_rng(8)
    ease = chance.normal(3, 0.3, 53)
    losses = {ORIGINALS: ease, FLOOR: ease + 1 + chance.normal(0, 0.1, 53), END: ease + 0.3 + chance.normal(0, 0.1, 53)}
    own_head = texts(losses, np.full(53, 7), guess=9.0).sample("log_likelihood", np.ones(7 * 53, bool))
    probed = drawn().sample("accuracy", ALL)
    terms = [term(own_head, "a"), term(probed, "b")]
    assert not own_head.seeded and probed.seeded
    expected = math.hypot(half_width(terms[0]), half_width(terms[1])) / 2
    assert half_width(*terms) == pytest.approx(expected, rel=0.05)
