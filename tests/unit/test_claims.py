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

from papa.files import Trace, read_table, write_table
from papa.results.claims import Line, claims_of, lines_of, tables_of
from papa.results.conclusion import Conclusion
from papa.results.losses import COUNTS, Term, difference, lost_score, mean_share, share_of, sum_of_shares
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
        ends = {"1": [ORIGINALS], "0": [Setting("average", None, "0")], "floor": [FLOOR]}
        for place, setting in enumerate(ends.get(fraction, [Setting("average", order, fraction) for order in orders])):
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
    return without_recipe(concluded(outcomes, **options)[1]["sentence"])


def without_recipe(conclusion: str) -> str:
    """A conclusion without its last sentence, which names the recipe of the probes."""
    assert conclusion.count(RECIPE) == 1
    return conclusion.partition(RECIPE)[0]


RECIPE = " The results hold for the paper's layout and the paper's probe, trained "


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
    frame = frame[frame["task"].isna()]
    [line] = claims["lines"]
    assert (line["replaceable"], line["measured"], line["tasks"]) == (8, [8, 14, 16], ["A", "B"])
    assert line["half_margin"] == pytest.approx(frame["margin"].iloc[0]) and frame["margin"].is_monotonic_increasing
    for words in ("8 of 16 heads are replaceable at a margin of 10 %", "With 14 replaced", "50 %"):
        assert words in line["sentence"]
    wide = only_line(*tasks, margin=0.9)
    assert wide["replaceable"] == 16 and "In the order of λ, all 16 heads are replaceable" in wide["sentence"]


def test_one_task_that_loses_is_enough_and_a_later_number_that_passes_does_not_help():
    words = (
        "In the order of λ, no number of heads was shown to be replaceable at a margin of 10 %: with 8 replaced, the"
    )
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
    assert claims["sentence"].startswith(f"{nothing} B: {why}. On B, the original minus the ")
    assert claims["lines"][0]["replaceable"] is None and frame["loss"].isna().all()
    line = only_line(measured("a"), excluded)
    assert (line["replaceable"], line["tasks"]) == (8, ["A"])
    [exclusion] = line["without"]
    assert (exclusion["task"], exclusion["why"], exclusion["needed"]["examples"]) == ("B", why, EXAMPLES)


def without(outcomes: TaskOutcomes, fraction: str, order: str | None = None) -> TaskOutcomes:
    """Outcomes without the runs at a fraction, in one order or in all."""
    kept = (outcomes.runs["fraction"] != fraction) | ((order is not None) & (outcomes.runs["order"] != order))
    runs = outcomes.runs[kept].reset_index(drop=True)
    return replace(outcomes, runs=runs, values={"predicted": outcomes.values["predicted"][kept.to_numpy()]})


def test_a_task_that_was_not_run_at_a_number_of_heads_may_lose_all_there():
    frame, claims = concluded([measured("a"), without(measured("b"), "1/2")])
    assert claims["lines"][0]["replaceable"] == 0
    assert "with 8 replaced, the loss on B cannot be bounded" in claims["sentence"]
    assert frame["bound"].tolist()[0] == math.inf and frame["tasks"].tolist()[:3] == [1, 2, 2]


def test_a_number_of_heads_that_was_run_with_other_seeds_shows_nothing():
    task = measured("a")
    seeds = task.runs["seed"].where(task.runs["fraction"] != "1/2", task.runs["seed"] + 100)
    frame, claims = concluded([replace(task, runs=task.runs.assign(seed=seeds))])
    frame = frame[frame["task"].isna()]
    assert claims["lines"][0]["replaceable"] == 0
    assert frame["loss"].isna().tolist() == [True, False, False] and frame["margin"].tolist()[0] == math.inf


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
    assert (
        "A: one validation example, so no interval. The results are based on 5 seeds and 1 validation example."
        in sentence(single)
    )


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


ROSE = "Scores were still rising when training ended; train longer or set `patience`."
SMALLER = "replaced heads were still improving, so the loss may be smaller than measured"


@pytest.mark.parametrize(
    ("settings", "right", "words"),
    [
        ([FLOOR], RIGHT, "the context-free floor were still improving, so the loss may be larger than measured"),
        ([Setting("average", "lambda-0", "1/8")], RIGHT, SMALLER),
        ([Setting("average", None, "0")], RIGHT, SMALLER),
        (
            [ORIGINALS, Setting("average", "lambda-0", "1/2")],
            RIGHT,
            "the original and replaced heads were still improving, so the loss may be larger or smaller than measured",
        ),
        (
            [ORIGINALS],
            RIGHT | {"0": 100},
            "the original were still improving, so the loss may be larger or smaller than measured",
        ),
        ([ORIGINALS], FLAT, "the original were still improving"),
        ([Setting("toeplitz", None, "0"), Setting("average", "random-1", "1/8")], RIGHT, None),
    ],
)
def test_what_still_rises_is_named_with_what_it_means(settings, right, words):
    """Runs of other lines, with another constant or order, mean nothing to a line."""
    curves = curves_of(settings, [0.5, 0.5, 0.6, 0.7], lambda seed, epoch: seed / 1000)
    conclusion = sentence(measured("a", right), curves=curves)
    assert ("still rising" in conclusion) == (words is not None)
    assert words is None or f"{ROSE} On A, the probes of {words}." in conclusion


@pytest.mark.parametrize(
    ("constant", "words"),
    [
        ("zeros", "the context-free floor"),
        ("identity", "another context-free floor"),
        ("toeplitz", None),
    ],
)
def test_a_floor_that_was_not_chosen_may_still_rise(constant, words):
    """With longer training, it might have been the best."""
    curves = curves_of([Setting(constant, None, "0")], [0.5, 0.5, 0.6, 0.7], lambda seed, epoch: seed / 1000)
    conclusion = sentence(measured("a", floors=("zeros", "identity")), curves=curves)
    assert ("still rising" in conclusion) == (words is not None)
    larger = "were still improving, so the loss may be larger than measured"
    assert words is None or f"{ROSE} On A, the probes of {words} {larger}." in conclusion


def test_a_loss_above_all_that_attention_contributes_is_explained():
    means = " Above 100 %, more is lost than attention contributes: worse than no context at all."
    worse = measured("b", RIGHT | {"0": 180})
    both = sentence(measured("a"), worse)
    assert f"Most is lost on B (112 %), least on A (50 %).{means} In the order of" in both
    assert f"is lost on B.{means} In the order of" in sentence(worse)


def test_several_orders_of_lambda_count_as_one_line():
    line = only_line(measured("a", orders=("lambda-0", "lambda-1", "lambda-2")))
    assert line["orders"] == 3 and "Averaged over 3 orders of λ, " in line["sentence"]


# -- each task by itself ----------------------------------------------------------------------------------------------

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
    for task in (a, b, c):
        for step in task["steps"]:
            assert (step["corrected_margin"] < 0.1) == (step["corrected_p"] < 0.05)
            assert (step["margin"] < 0.1) == (step["p"] < 0.05)
    assert (
        "Each task by itself, corrected for 3 claims: all 16 heads are replaceable on C; 8 heads are replaceable on A; "
        "no number of heads was shown to be replaceable on B."
    ) in claims["sentence"]
    rows = frame[frame["task"].notna()]
    assert rows["task"].tolist() == [*"AAABBBCCC"] and set(rows["claims"]) == {3}
    assert rows["corrected_p"].tolist() == [step["corrected_p"] for task in (a, b, c) for step in task["steps"]]
    [(_, alone)] = tables_of(frame, 0.1).values()
    assert [row[2:4] for row in alone.rows] == [["8 of 16"] * 2, ["8 of 16", "none shown"], ["16 of 16"] * 2]
    assert "for all 3 claims" in alone.note and "this does not show that it is not" in alone.note


def test_lines_are_corrected_for_all_lines_of_a_grid():
    both = measured("b", CLOSE, orders=("lambda-0", "first-layer-first"))
    _, claims = concluded([both], orders=("lambda", "first-layer-first"))
    first, second = claims["lines"]
    assert (first["replaceable"], first["corrected"], first["lines"]) == (8, 0, 2)
    assert second["corrected"] == 0 and first["steps"][0]["corrected_margin"] > first["steps"][0]["margin"]
    assert "Corrected for 2 lines: no number of heads was shown to be replaceable." in first["sentence"]
    single = only_line(measured("b", CLOSE))
    assert (single["replaceable"], single["corrected"], single["lines"]) == (8, 8, 1)
    assert "Corrected for" not in single["sentence"]


# -- sentences ---------------------------------------------------------------------------------------------


def test_of_one_task():
    assert sentence(measured("a")) == (
        "With all 16 heads of m replaced by average constants, 50 % (95 % interval 42 to 58 %) of what attention "
        "contributes is lost on A. In the order of λ, 8 of 16 heads are replaceable at a margin of 10 % (smallest "
        "margin that passes: 4 %). With 14 replaced, the one-sided upper bound of the loss on A is 44 % (tried: 8, 14 "
        "and 16). The results are based on 5 seeds and 400 validation examples."
    )


def test_of_two_orders_each_is_named_and_what_they_share_is_said_once():
    both = measured("a", orders=("lambda-0", "lambda-reversed-0"))
    _, claims = concluded([both], orders=("lambda", "lambda-reversed"))
    assert [line["orders"] for line in claims["lines"]] == [1, 1]
    stopped = (
        "8 of 16 heads are replaceable at a margin of 10 % (…). With 14 replaced, the one-sided upper bound of the "
    )
    stopped += "loss … (tried: 8, 14 and 16)."
    numbers = r"\d+ to \d+ %|on A is \d+ %|smallest margin that passes: \d+ %"
    assert re.sub(numbers, "…", without_recipe(claims["sentence"])) == (
        "With all 16 heads of m replaced by average constants, 50 % (95 % interval …) of what attention contributes is "
        f"lost on A. In the order of λ, {stopped} In the reverse order of λ, {stopped} The results are based on 5 "
        "seeds and 400 validation examples."
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
    assert len(claims["lines"]) == 2 and without_recipe(claims["sentence"]) == " ".join(
        line["sentence"] for line in claims["lines"]
    )
    assert len(set(sentences)) == len(sentences) - 2, "except the bounds, and the numbers of seeds and examples"
    assert all(f"8 of 16 heads of {name} are replaceable by average constants" in claims["sentence"] for name in "mn")
    # they also read differently if not all heads were ever replaced
    words = sentence(*models, models=("m", "n"), fractions=("1", "1/2"))
    assert re.sub(r" \(smallest margin [^)]*\)", "", words) == " ".join(
        f"In the order of λ, 8 of 16 heads of {name} are replaceable by average constants at a margin of 10 % "
        "(tried: 8). The results are based on 5 seeds and 400 validation examples."
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
    words = "on easy 50 % (1 task; on 1 more, attention contributes nothing measurable)"
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
    [(joint, alone)] = tables_of(frame, 0.1).values()
    assert joint.rows[0][:3] == ["m", "8 of 16", "1"] and "corrected for lines" not in joint.header
    assert alone.rows[0][:4] == ["m", "A", "8 of 16", "8 of 16"] and alone.rows[0][-1].startswith("14: ")
    assert not any("nan" in cell for table in (joint, alone) for line in table.rows for cell in line)


# -- shares against a bootstrap ---------------------------------------------------------------------------------------

SKILLS: dict[Setting, float] = {
    ORIGINALS: 0.8,
    FLOOR: 0.55,
    Setting("zeros", "lambda-0", "1/2"): 0.7,
    Setting("average", "lambda-0", "1/2"): 0.77,
    Setting("average", None, "0"): 0.7,
}
WORSE: dict[Setting, float] = {
    Setting("average", "first-layer-first", "1/2"): 0.71,
    Setting("zeros", "first-layer-first", "1/2"): 0.63,
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


Means = dict[Setting, float]


def bootstrapped(outcomes: TaskOutcomes, total: Callable[[Means], float]) -> float:
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


def halves(constant: str, order: str = "lambda") -> dict[Setting, float]:
    """Half of the loss with half of the heads replaced, and a quarter of the loss with all of them."""
    return {Setting(constant, order, "1/2"): 1 / 2, Setting(constant, fraction="0"): 1 / 4}


def estimated(outcomes: TaskOutcomes, *weights: dict[Setting, float]) -> Estimate:
    """The estimate of a sum of losses, or of the difference between two."""
    lost = [lost_score(part) for part in weights]
    share = share_of(outcomes.sample("accuracy", ALL), lost[0] if len(lost) == 1 else difference(*lost))
    assert share is not None
    return share.estimate()


def sum_of(means: Means, constant: str) -> float:
    original, floor = means[ORIGINALS], means[FLOOR]
    return sum(
        weight * (original - means[at]) / (original - floor) for at, weight in halves(constant, "lambda-0").items()
    )


@pytest.mark.parametrize(
    ("names", "total"),
    [
        (["average"], lambda means: sum_of(means, "average")),
        (["zeros"], lambda means: sum_of(means, "zeros")),
        (["average", "zeros"], lambda means: sum_of(means, "average") - sum_of(means, "zeros")),
    ],
)
def test_a_sum_of_losses_or_a_difference_varies_as_in_a_bootstrap(names, total):
    """In the difference, the floor is in what is lost, at the end of one line, and in what attention contributes."""
    outcomes = drawn()
    estimate = estimated(outcomes, *map(halves, names))
    means = {setting: float(right.mean()) for setting, right in right_by_setting(outcomes).items()}
    assert estimate.mean == pytest.approx(total(means))
    assert math.sqrt(estimate.variance) == pytest.approx(bootstrapped(outcomes, total), rel=0.1)


def numbers(estimate: Estimate) -> list[float]:
    return [estimate.mean, estimate.variance, estimate.freedom, *estimate.skews]


def test_a_score_that_is_in_a_sum_twice_counts_once():
    """By hand: the line of zeros ends at the floor, and two orders end at the same runs."""
    outcomes = drawn(SKILLS | WORSE)
    sample = outcomes.sample("accuracy", ALL)
    zeros = sample.spread(ORIGINALS, Setting("zeros", "lambda", "1/2"), FLOOR)
    assert zeros is not None
    expected = zeros.share([0, 3 / 4, -1 / 2, -1 / 4], [0.0, 1.0, 0.0, -1.0])
    assert numbers(estimated(outcomes, halves("zeros"))) == pytest.approx(numbers(expected))
    both = sample.spread(
        ORIGINALS, *(Setting("average", order, "1/2") for order in ("lambda", "first-layer-first")), FLOOR
    )
    assert both is not None
    expected = both.share([0, 0, -1 / 2, 1 / 2, 0], [0, 1, 0, 0, -1])
    estimate = estimated(outcomes, halves("average"), halves("average", "first-layer-first"))
    assert numbers(estimate) == pytest.approx(numbers(expected))


# -- sums over tasks --------------------------------------------------------------------------------------------------

END = Setting("average", fraction="0")


def summed(*terms: Term) -> Estimate:
    """The estimate of a sum of shares."""
    estimate = sum_of_shares(terms)
    assert estimate is not None
    return estimate


def test_a_second_task_with_the_same_outcomes_adds_nothing():
    chance = np.random.default_rng(9)
    ease, by_seed = chance.normal(size=EXAMPLES), chance.normal(0, 0.4, (11, 1))
    rows = {
        setting: ease < norm.ppf(skill) + moved
        for setting, skill, moved in ((ORIGINALS, 0.8, 0 * by_seed), (FLOOR, 0.5, 0 * by_seed), (END, 0.7, by_seed))
    }
    sample = labelled(rows, task="a").sample("accuracy", ALL)
    term = Term(sample, "texts", lost_score({END: 1.0}), 0.5)
    alone, twice = summed(replace(term, weight=1.0)), summed(term, term)
    assert twice.mean == pytest.approx(alone.mean) and twice.variance == pytest.approx(alone.variance, rel=0.02)
    other = summed(term, replace(term, corpus="other"))  # other examples, but the same seeds
    assert 0.8 * alone.variance < other.variance < alone.variance and alone.shares["seed"] > 0.8
    assert mean_share([term, term]) == twice.interval()
    fieller = share_of(sample, lost_score({END: 1.0}))
    assert fieller is not None and mean_share([term]) == fieller.interval()


def test_a_mean_over_tasks_uses_the_seeds_that_all_of_them_have():
    outcomes = drawn(seeds=7)
    fewer = outcomes.runs["seed"].ge(outcomes.runs["seed"].min() + 3)
    values = {name: rows[fewer.to_numpy()] for name, rows in outcomes.values.items()}
    rest = replace(outcomes, runs=outcomes.runs[fewer].reset_index(drop=True), values=values)
    samples = [part.sample("accuracy", ALL) for part in (outcomes, rest)]
    both = summed(*(Term(sample, "texts", lost_score({END: 1.0}), 0.5) for sample in samples))
    assert both.mean == pytest.approx(summed(Term(samples[1], "texts", lost_score({END: 1.0}))).mean)
    none = outcomes.runs["seed"].eq(outcomes.runs["seed"].min())
    values = {name: rows[none.to_numpy()] for name, rows in outcomes.values.items()}
    first = replace(outcomes, runs=outcomes.runs[none].reset_index(drop=True), values=values)
    terms = [Term(part.sample("accuracy", ALL), "texts", lost_score({END: 1.0})) for part in (rest, first)]
    assert sum_of_shares(terms) is None


def test_a_task_without_seeds_adds_only_the_variance_of_its_examples():
    chance = np.random.default_rng(8)
    ease = chance.normal(3, 0.3, 53)
    losses = {ORIGINALS: ease, FLOOR: ease + 1 + chance.normal(0, 0.1, 53), END: ease + 0.3 + chance.normal(0, 0.1, 53)}
    own_head = texts(losses, np.full(53, 7), guess=9.0).sample("log_likelihood", np.ones(53, bool))
    probed = drawn().sample("accuracy", ALL)
    terms = [Term(sample, corpus, lost_score({END: 1.0})) for sample, corpus in ((own_head, "a"), (probed, "b"))]
    both, parts = summed(*terms), [summed(term) for term in terms]
    assert not own_head.seeded and probed.seeded
    assert both.mean == pytest.approx(sum(part.mean for part in parts))
    assert both.variance == pytest.approx(sum(part.variance for part in parts))


# -- recipes ----------------------------------------------------------------------------------------


def test_scores_rise_with_patience_only_if_most_probes_reached_the_last_epoch():
    """The curves end with the epoch that is used; `epochs` is the maximum."""
    outcomes = [measured("a")]
    rows = summary(outcomes).assign(patience=2.0, epochs=9)
    curves = curves_of([ORIGINALS, FLOOR], [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.96, 0.97], lambda seed, epoch: 0.0)
    ends = {"original": (8, 8, 5), "floor": (8, 7, 7)}  # 8 + 2 > 9, but 7 + 2 = 9
    last = [
        ends["floor" if constant == "zeros" else "original"][seed]
        for constant, seed in zip(curves["constant"], curves["seed"], strict=True)
    ]
    curves = curves[curves["epoch"] <= last]
    fields = {"fractions": ("1", "1/2", "1/8", "0"), "tasks": ["a"]}
    frame, content = claimed(lines_of(grid_view(**fields), rows, outcomes), curves=curves)
    [line] = content["lines"]
    assert [task["runs"] for task in line["rising"]] == [["original"]] and len(frame)
    [training] = content["training"]
    assert training["patience"] == 2 and training["maximum"] == 9 and training["rows"] == 1000
    assert content["sentence"].endswith(
        "trained until the held-out loss stopped falling (1 epoch) at a learning rate of 0.001 on one sample of 1,000 "
        "rows."
    )


def test_the_conclusion_names_one_recipe_for_each_task():
    both = concluded([measured("a"), measured("b")])[1]
    assert [training["task"] for training in both["training"]] == ["A", "B"]
    assert both["sentence"].endswith(
        "The results hold for the paper's layout and the paper's probe, trained for 4 epochs at a learning rate of "
        "0.001 on one sample of 1,000 rows."
    )
