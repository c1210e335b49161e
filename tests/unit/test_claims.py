"""Claims from outcomes whose losses are known by construction."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builders import grid_view, labelled, summary_of
from scipy.stats import norm

from papa.files import Trace, read_table, write_table
from papa.results.claims import Line, claims_of, lines_of, tables_of
from papa.results.conclusion import Conclusion
from papa.results.losses import COUNTS, difference, lost_score, share_of
from papa.results.outcomes import FLOOR, ORIGINALS, VARIANT_KEYS, Setting, TaskOutcomes, outcomes_in, table_of
from papa.results.statistics import Estimate
from papa.results.summary import CURVE_COLUMNS

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
        ends = {"1": [ORIGINALS], "0": [("average", None, "0")], "floor": [FLOOR]}
        for place, setting in enumerate(ends.get(fraction, [("average", order, fraction) for order in orders])):
            rows[setting] = [number + seed % 3 - 1 - 3 * place > EASE for seed in range(seeds)]
    return labelled(rows, gold=np.arange(EXAMPLES) % 5 > 2, task=task, train_counts=(60, 40), **fields)


def summary(outcomes: Sequence[TaskOutcomes]) -> pd.DataFrame:
    return summary_of(outcomes, heads=HEADS)


def concluded(
    outcomes: Sequence[TaskOutcomes], margin: float = 0.1, curves: pd.DataFrame | None = None, **grid: Any
) -> Any:
    """The claims of one grid: the table, and the conclusion as JSON."""
    fields = {"fractions": ("1", "1/2", "1/8", "0"), "tasks": [task.task for task in outcomes]} | grid
    return claimed(lines_of(grid_view(**fields), summary(outcomes), outcomes), margin, curves)


def claimed(lines: list[Line], margin: float = 0.1, curves: pd.DataFrame | None = None) -> Any:
    """The table of claims, and the conclusion as JSON, which is the same after it is read."""
    frame, conclusion = claims_of(
        lines, margin, pd.DataFrame(columns=list(CURVE_COLUMNS)) if curves is None else curves
    )
    content = conclusion.to_json()
    assert Conclusion.from_json(content).to_json() == content
    return frame, content


def only_line(*outcomes: TaskOutcomes, **options: Any) -> Any:
    [line] = concluded(outcomes, **options)[1]["lines"]
    return line


def sentence(*outcomes: TaskOutcomes, **options: Any) -> str:
    return str(concluded(outcomes, **options)[1]["sentence"])


def test_losses_are_shares_of_what_attention_contributes():
    rows = summary([measured("a")]).set_index(["fraction", "constant"])
    assert rows.loc["1/2"]["loss"].iloc[0] == pytest.approx(2 / 160, rel=0.1)
    assert rows.loc["1/8"]["loss"].iloc[0] == pytest.approx(60 / 160, rel=0.01)
    end = rows.loc[("0", "average")]
    assert end["loss"] == pytest.approx(0.5) and end["loss_low"] < 0.5 < end["loss_bound"] < end["loss_high"]
    assert end["trivial"] == 0.6 and end["contextless"] == pytest.approx(0.5, abs=0.005)
    assert set(rows["status"]) == {COUNTS}


def test_heads_are_replaceable_up_to_the_first_number_at_which_a_task_may_lose_more():
    tasks = [measured("a"), measured("b")]
    frame, claims = concluded(tasks)
    [line] = claims["lines"]
    assert (line["replaceable"], line["measured"], line["tasks"]) == (8, [8, 14, 16], ["A", "B"])
    assert line["half_margin"] == pytest.approx(frame["margin"].iloc[0]) and frame["margin"].is_monotonic_increasing
    for words in ("8 of 16 heads are replaceable at a margin of 10 %", "with 14 replaced", "50 %"):
        assert words in line["sentence"]
    wide = only_line(*tasks, margin=0.9)
    assert wide["replaceable"] == 16 and "In the order of λ, all 16 heads are replaceable" in wide["sentence"]


def test_one_task_that_loses_is_enough_and_a_later_number_that_passes_does_not_help():
    words = "In the order of λ, no measured number of heads is replaceable at a margin of 10 %: with 8 replaced, the"
    line = only_line(measured("a"), measured("b", RIGHT | {"1/2": 330}))
    assert line["replaceable"] == 0 and words in line["sentence"]
    assert only_line(measured("a", RIGHT | {"1/2": 300, "1/8": 360}))["replaceable"] == 0


@pytest.mark.parametrize(
    ("right", "why"),
    [
        (FLAT, "the probe is no better than the majority class, no (0.600)"),
        (dict.fromkeys(RIGHT, 396), "attention contributes nothing measurable"),
    ],
)
def test_a_task_that_does_not_beat_both_floors_is_excluded(right, why):
    excluded = measured("b", right)
    frame, claims = concluded([excluded])
    nothing = "Nothing can be concluded about m with heads replaced by average constants in the order of λ."
    assert claims["sentence"].startswith(f"{nothing} B: {why}. From")
    assert claims["lines"][0]["replaceable"] is None and frame["loss"].isna().all()
    line = only_line(measured("a"), excluded)
    assert (line["replaceable"], line["tasks"], line["without"]) == (8, ["A"], [{"task": "B", "why": why}])


def without(outcomes: TaskOutcomes, fraction: str, order: str | None = None) -> TaskOutcomes:
    """Outcomes without the runs at a fraction, in one order or in all."""
    kept = (outcomes.runs["fraction"] != fraction) | ((order is not None) & (outcomes.runs["order"] != order))
    runs = outcomes.runs[kept].reset_index(drop=True)
    return replace(outcomes, runs=runs, values={"predicted": outcomes.values["predicted"][kept.to_numpy()]})


def test_a_task_that_was_not_run_at_a_number_of_heads_may_lose_all_there():
    frame, claims = concluded([measured("a"), without(measured("b"), "1/2")])
    assert claims["lines"][0]["replaceable"] == 0
    assert "with 8 replaced, the loss on B has no upper bound" in claims["sentence"]
    assert frame["bound"].tolist()[0] == math.inf and frame["tasks"].tolist() == [1, 2, 2]


def test_a_number_of_heads_that_was_run_with_other_seeds_shows_nothing():
    task = measured("a")
    seeds = task.runs["seed"].where(task.runs["fraction"] != "1/2", task.runs["seed"] + 100)
    frame, claims = concluded([replace(task, runs=task.runs.assign(seed=seeds))])
    assert claims["lines"][0]["replaceable"] == 0 and claims["lines"][0]["area"] is None
    assert frame["loss"].isna().tolist() == [True, False, False] and frame["margin"].tolist()[0] == math.inf


def test_only_orders_that_were_run_everywhere_are_compared():
    """A λ that was not run everywhere is left out, and no other replaces it."""
    orders = ("lambda-0", "lambda-1", "lambda-2")

    def score(outcomes):
        """The mean score of all orders at 1/2; None if none was run at both fractions."""
        sample = outcomes.sample("accuracy", ALL)
        spread = sample.spread(("average", "lambda", "1/2"), ("average", "lambda", "1/8"))
        return None if spread is None else float(spread.means[1])

    every = measured("a", orders=orders)
    some = without(every, "1/8", "lambda-0")
    assert score(every) == pytest.approx((358 - 3) / 400, abs=1e-3)
    assert score(some) == pytest.approx((358 - 4.5) / 400, abs=1e-3)
    assert score(without(without(some, "1/8", "lambda-1"), "1/2", "lambda-2")) is None, "none in common"


def test_the_interval_of_one_task_is_that_of_its_loss():
    task = measured("a")
    frame, claims = concluded([task])
    losses = summary([task]).set_index("fraction").loc[["1/2", "1/8"], ["loss", "loss_low", "loss_high"]]
    assert frame[["loss", "low", "high"]].to_numpy()[:2] == pytest.approx(losses.to_numpy())
    end = claims["lines"][0]["at_end"]
    assert (end["low"], end["high"]) == (end["tasks"][0]["low"], end["tasks"][0]["high"])


def test_one_seed_or_one_example_concludes_nothing():
    words = sentence(measured("a", seeds=1))
    assert words.startswith("Nothing can be concluded about m ") and "A: one seed, so no" in words
    task = measured("a")
    single = replace(task, items=task.items[:1], values={"predicted": task.values["predicted"][:, :1]})
    assert "A: one validation example, so no interval. From 5 seeds and 1 validation example." in sentence(single)


def test_a_task_at_its_ceiling_is_named():
    assert only_line(measured("a", RIGHT | {"1": 399, "1/2": 399}))["ceiling"] == ["A"]


def curves_of(settings: Sequence[Setting], scores: Sequence[float], noise: Callable[[int, int], float]) -> pd.DataFrame:
    """Learning curves of three seeds; `noise` depends on the seed and the epoch."""
    rows = [
        {"model": "m", "task": "a", "seed": seed, "epoch": epoch, "loss": 1.0, "score": score + noise(seed, epoch)}
        | dict(zip(VARIANT_KEYS, setting, strict=True))
        for setting in settings
        for seed in range(3)
        for epoch, score in enumerate(scores, start=1)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("scores", "rising", "noise"),
    [
        ([0.52, 0.54], True, 0.0),
        ([0.52, 0.54], False, 0.03),
        ([0.54, 0.544], False, 0.0),
        ([0.5, 0.5, 0.6, 0.604], False, 0.0),
        ([0.5, 0.5, 0.6, 0.61], True, 0.0),
        ([0.50, 0.52, 0.54, 0.56, 0.58, 0.60, 0.62, 0.64], True, 0.0),
        ([0.50, 0.52, 0.54, 0.56, 0.58, 0.60, 0.64, 0.64], False, 0.0),  # the gain is over
        ([0.60, 0.60, 0.60, 0.60, 0.64, 0.60, 0.60, 0.62], False, 0.0),  # up and down
    ],
)
def test_probes_that_still_gain_are_named(scores, rising, noise):
    curves = curves_of([ORIGINALS], scores, lambda seed, epoch: (seed - 1) * (0.001 if epoch % 2 else noise))
    expected = {"task": "A", "runs": ["original"], "loss": "larger"}
    assert only_line(measured("a"), curves=curves)["rising"] == [expected] * rising


@pytest.mark.parametrize(
    ("settings", "right", "words"),
    [
        ([FLOOR], RIGHT, "A (context-free floor: its loss may be larger than measured)"),
        ([("average", "lambda-0", "1/8")], RIGHT, "A (replaced heads: its loss may be smaller than measured)"),
        ([("average", None, "0")], RIGHT, "A (replaced heads: its loss may be smaller than measured)"),
        (
            [ORIGINALS, ("average", "lambda-0", "1/2")],
            RIGHT,
            "A (original and replaced heads: its loss may be larger or smaller than measured)",
        ),
        ([ORIGINALS], RIGHT | {"0": 100}, "A (original: its loss may be larger or smaller than measured)"),
        ([ORIGINALS], FLAT, "A (original)"),
        ([("toeplitz", None, "0"), ("average", "random-1", "1/8")], RIGHT, None),
    ],
)
def test_what_still_rises_is_named_with_what_it_means(settings, right, words):
    """Runs of other lines, with another constant or order, mean nothing to a line."""
    curves = curves_of(settings, [0.5, 0.5, 0.6, 0.7], lambda seed, epoch: seed / 1000)
    conclusion = sentence(measured("a", right), curves=curves)
    assert ("Still rising" in conclusion) == (words is not None)
    assert words is None or f"Still rising, train longer: {words}." in conclusion


def test_a_loss_above_all_that_attention_contributes_is_explained():
    means = " Above 100 %, more is lost than attention contributes: worse than no context at all."
    worse = measured("b", RIGHT | {"0": 180})
    both = sentence(measured("a"), worse)
    assert f"Most is lost on B (112 %), least on A (50 %).{means} In the order of" in both
    assert f"is lost on B.{means} In the order of" in sentence(worse)


def test_the_area_is_that_under_the_loss():
    steps = np.array([0, 8, 14, 16]) / 16
    losses = np.array([0, 2 / 160, 60 / 160, 80 / 160])
    area = float(np.sum(np.diff(steps) * (losses[1:] + losses[:-1]) / 2))
    assert only_line(measured("a"))["area"]["mean"] == pytest.approx(area, rel=0.02)


def test_orders_are_compared_in_pairs():
    both = measured("a", orders=("lambda-0", "first-layer-first"))
    worse = (both.runs["order"] == "first-layer-first").to_numpy()
    values = both.values["predicted"].copy()
    values[worse, ::10] = 1 - both.items["gold"].to_numpy()[::10]
    orders = ("lambda", "first-layer-first")
    [pair] = concluded([replace(both, values={"predicted": values})], orders=orders)[1]["areas"]
    assert pair["verdict"] == "differs" and pair["difference"] < 0 and pair["high"] < 0
    # the second order has three right examples fewer with 8 and with 14 heads replaced, which weigh 7/16 and 4/16
    [pair] = concluded([both], orders=orders)[1]["areas"]
    assert pair["difference"] == pytest.approx(-3 / 160 * 11 / 16) and pair["low"] < pair["difference"] < pair["high"]
    assert pair["verdict"] == "differs" and 0.01 < pair["p"] < 0.05


def test_several_orders_of_lambda_count_as_one_line():
    line = only_line(measured("a", orders=("lambda-0", "lambda-1", "lambda-2")))
    assert line["orders"] == 3 and "Averaged over 3 orders of λ, " in line["sentence"]


# -- sentences ---------------------------------------------------------------------------------------------


def test_of_one_task():
    assert sentence(measured("a")) == (
        "With all 16 heads of m replaced by average constants, 50 % (95 % interval 42 to 58 %) of what attention "
        "contributes is lost on A. In the order of λ, 8 of 16 heads are replaceable at a margin of 10 %; with 14 "
        "replaced, the upper bound of the loss on A is 44 % (tried: 8, 14 and 16). From 5 seeds and 400 validation "
        "examples."
    )


def test_of_two_orders_each_is_named_and_what_they_share_is_said_once():
    both = measured("a", orders=("lambda-0", "lambda-reversed-0"))
    _, claims = concluded([both], orders=("lambda", "lambda-reversed"))
    assert [line["orders"] for line in claims["lines"]] == [1, 1]
    stopped = "8 of 16 heads are replaceable at a margin of 10 %; with 14 replaced, the upper bound of the loss …"
    stopped += " (tried: 8, 14 and 16)."
    assert re.sub(r"\d+ to \d+ %|on A is \d+ %", "…", claims["sentence"]) == (
        "With all 16 heads of m replaced by average constants, 50 % (95 % interval …) of what attention contributes is "
        f"lost on A. In the order of λ, {stopped} In the reverse order of λ, {stopped} From 5 seeds and 400 validation "
        "examples."
    )
    forward, reverse = (line["sentence"] for line in claims["lines"])
    assert "In the order of λ, 8 of 16" in forward and "In the reverse order of λ, 8 of 16" in reverse
    orders = ("lambda", "first-layer-first")
    _, nothing = concluded([measured("a", FLAT, orders=("lambda-0", "first-layer-first"))], orders=orders)
    assert "in the order of λ or from the first layer to the last. A: the probe is" in nothing["sentence"]
    assert len({line["sentence"] for line in nothing["lines"]}) == 2


def test_of_two_models_each_is_named():
    models = [measured("a"), measured("a", model="n")]
    _, claims = concluded(models, models=("m", "n"))
    sentences = [part for line in claims["lines"] for part in line["sentence"].split(". ")]
    assert len(claims["lines"]) == 2 and claims["sentence"] == " ".join(line["sentence"] for line in claims["lines"])
    assert len(set(sentences)) == len(sentences) - 1, "except the numbers of seeds and examples"
    assert all(f"8 of 16 heads of {name} are replaceable by average constants" in claims["sentence"] for name in "mn")
    # they also read differently if not all heads were ever replaced
    assert sentence(*models, models=("m", "n"), fractions=("1", "1/2")) == " ".join(
        f"In the order of λ, 8 of 16 heads of {name} are replaceable by average constants at a margin of 10 % "
        "(tried: 8). From 5 seeds and 400 validation examples."
        for name in "mn"
    )


def test_of_zeros_all_is_lost_by_definition():
    all_lost = "With all 16 heads of m replaced by zeros, all that attention contributes is lost, by definition."
    assert sentence(drawn(), fractions=("1", "1/2", "0"), constants=("zeros",)).startswith(all_lost)


def test_losses_are_reported_by_subset():
    """The first 200 examples to be right are so without any attention: what it contributes is in the other subset."""
    subset = np.where(EASE >= 203, "hard", "easy")
    task = measured("a", subset=subset)
    words = "By subset: on easy attention contributes nothing measurable; on hard 51 % (95 % interval "
    assert words in sentence(task)
    words = "on easy 50 % (1 task; in 1 more attention contributes nothing measurable)"
    assert words in sentence(task, measured("b", subset="easy"))
    _, claims = concluded([task, measured("b", RIGHT | {"0": 360}, subset=subset), measured("c")])
    words = "By subset: on easy attention contributes nothing measurable; on hard 0 to 51 % (2 tasks)."
    assert words in claims["sentence"]
    easy, hard = claims["lines"][0]["at_end"]["subsets"]
    assert [excluded["task"] for excluded in easy["without"]] == ["A", "B"] and not easy["tasks"]
    assert [loss["task"] for loss in hard["tasks"]] == ["A", "B"]
    # a loss may be unknown for a subset that counts: its runs have no seed in common with those of the floor
    rows = summary([task])
    rows.loc[rows["subset"].eq("hard"), ["loss", "loss_low", "loss_high"]] = math.nan
    _, claims = claimed(lines_of(grid_view("a", fractions=("1", "1/2", "1/8", "0")), rows, [task]))
    assert "; on hard nothing can be concluded." in claims["sentence"]


def test_a_title_that_is_a_question_ends_its_sentence():
    rows = summary([drawn()]).assign(title="Is it so?")
    _, claims = claimed(lines_of(grid_view("a"), rows, [drawn()]))
    assert "is lost on Is it so? In the order of λ" in claims["sentence"]


def test_outcomes_come_back_from_their_table(tmp_path):
    before = measured("a")
    table, facts = table_of([before])
    write_table(table, tmp_path / "outcomes.parquet", facts, Trace("summary", 1, {}, {}))
    [after] = outcomes_in(read_table(tmp_path / "outcomes.parquet"), {"a": "accuracy"})
    assert (after.values["predicted"] == before.values["predicted"]).all() and after.names == before.names
    pd.testing.assert_frame_equal(after.runs, before.runs, check_dtype=False)


def test_the_table_reads_well():
    frame, _ = concluded([measured("a"), measured("b", FLAT)])
    [table] = tables_of(frame)
    assert table.rows[0][:3] == ["m", "8 of 16", "1"]
    assert not any("nan" in cell for line in table.rows for cell in line)


# -- areas against a bootstrap ----------------------------------------------------------------------------------------

SKILLS: dict[Setting, float] = {
    ORIGINALS: 0.8,
    FLOOR: 0.55,
    ("zeros", "lambda-0", "1/2"): 0.7,
    ("average", "lambda-0", "1/2"): 0.77,
    ("average", None, "0"): 0.7,
}
WORSE: dict[Setting, float] = {
    ("average", "first-layer-first", "1/2"): 0.71,
    ("zeros", "first-layer-first", "1/2"): 0.63,
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


def lines(outcomes: TaskOutcomes) -> dict[str, Line]:
    orders = tuple(dict.fromkeys(order.removesuffix("-0") for order in outcomes.runs["order"].dropna()))
    view = grid_view("a", orders=orders, constants=("average", "zeros"))
    return {line.name: line for line in lines_of(view, summary([outcomes]), [outcomes])}


def right_by_setting(outcomes: TaskOutcomes) -> dict[Setting, np.ndarray]:
    """Whether each example is right with each seed, `[seed, example]`."""
    right = outcomes.values["predicted"] == outcomes.items["gold"].to_numpy()
    settings = outcomes.runs[VARIANT_KEYS].apply(tuple, axis=1)
    return {setting: right[[other == setting for other in settings]] for setting in settings}


Means = dict[Setting, float]


def bootstrapped(outcomes: TaskOutcomes, area: Callable[[Means], float]) -> float:
    """The standard deviation of a number that depends on mean scores, by drawing seeds, examples, and both.

    Drawing both counts three times what seeds and examples make together, which drawing one of them counts once.
    """
    tables, chance = right_by_setting(outcomes), np.random.default_rng(6)
    seeds = np.arange(len(tables[ORIGINALS]))
    examples, variances = np.arange(EXAMPLES), []
    for of_seeds, of_examples in ((True, False), (False, True), (True, True)):
        areas = []
        for _ in range(800):
            rows = chance.choice(seeds, len(seeds)) if of_seeds else seeds
            columns = chance.choice(examples, EXAMPLES) if of_examples else examples
            areas.append(area({setting: float(table[rows][:, columns].mean()) for setting, table in tables.items()}))
        variances.append(np.var(areas))
    return math.sqrt(2 * (variances[0] + variances[1]) - variances[2])


def area_of(means: Means, constant: str) -> float:
    """The area under straight lines through (0, 0), half of the heads and all of them."""
    original, floor = means[ORIGINALS], means[FLOOR]
    half, end = ((original - means[constant, *at]) / (original - floor) for at in (("lambda-0", "1/2"), (None, "0")))
    return half / 4 + (half + end) / 4


def estimated(line: Line, subtracted: Line | None = None) -> Estimate:
    """The estimate of the area of a line, or of the difference between two."""
    weights = [line.area_weights("a") or {}, {} if subtracted is None else subtracted.area_weights("a") or {}]
    share = share_of(line.samples["a"], difference(*map(lost_score, weights)))
    assert share is not None
    return share.estimate()


@pytest.mark.parametrize(
    ("names", "area"),
    [
        (["average"], lambda means: area_of(means, "average")),
        (["zeros"], lambda means: area_of(means, "zeros")),
        (["average", "zeros"], lambda means: area_of(means, "average") - area_of(means, "zeros")),
    ],
)
def test_an_area_or_a_difference_varies_as_in_a_bootstrap(names, area):
    """In the difference, the floor is in what is lost, at the end of one line, and in what attention contributes."""
    outcomes = drawn()
    estimate = estimated(*(lines(outcomes)[name] for name in names))
    means = {setting: float(right.mean()) for setting, right in right_by_setting(outcomes).items()}
    assert estimate.mean == pytest.approx(area(means))
    assert math.sqrt(estimate.variance) == pytest.approx(bootstrapped(outcomes, area), rel=0.1)


def numbers(estimate: Estimate) -> list[float]:
    return [estimate.mean, estimate.variance, estimate.freedom, *estimate.skews]


def test_a_score_that_is_in_a_sum_twice_counts_once():
    """By hand: the line of zeros ends at the floor, and two orders end at the same runs."""
    outcomes = drawn(SKILLS | WORSE)
    sample, by_name = outcomes.sample("accuracy", ALL), lines(outcomes)
    zeros = sample.spread(ORIGINALS, ("zeros", "lambda", "1/2"), FLOOR)
    assert zeros is not None
    expected = zeros.share([0, 3 / 4, -1 / 2, -1 / 4], [0.0, 1.0, 0.0, -1.0])
    assert numbers(estimated(by_name["zeros / λ"])) == pytest.approx(numbers(expected))
    both = sample.spread(ORIGINALS, *(("average", order, "1/2") for order in ("lambda", "first-layer-first")), FLOOR)
    assert both is not None
    expected = both.share([0, 0, -1 / 2, 1 / 2, 0], [0, 1, 0, 0, -1])
    estimate = estimated(by_name["average / λ"], by_name["average / first layer first"])
    assert numbers(estimate) == pytest.approx(numbers(expected))
