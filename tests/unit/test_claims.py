"""Claims from outcomes whose reliances are known by construction."""

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from builders import claims_on, concluded, drawn, labelled, sample_of, texts

from papa.results.claims import tables_of
from papa.results.outcomes import (
    FLOOR,
    ORIGINALS,
    VARIANT_KEYS,
    Setting,
    joint_spread,
)
from papa.results.reliance import effect_of, mean_reliance, replaceable

EXAMPLES = 400
EASE = np.arange(EXAMPLES) * 7 % EXAMPLES
"""The rank of each example: of k right examples, these are the ones of rank below k."""
RIGHT = {"1": 360, "1/2": 358, "1/8": 300, "0": 280, "floor": 200}
"""The number of right examples: attention contributes 160 of 400; 1%, 38% and 50% of these are lost."""
FLAT = dict.fromkeys(RIGHT, 240)
"""Probes that always say the more frequent label."""


def measured(task, right=RIGHT, seeds=5, orders=("lambda-0",), **fields):
    """Outcomes of a task with two labels; 60% of the rows have the first; seeds differ a little."""
    rows = {}
    for fraction, number in right.items():
        ends = {"1": [ORIGINALS], "0": [Setting("average", None, "0")], "floor": [FLOOR]}
        for place, setting in enumerate(
            ends.get(fraction, [Setting("average", order, fraction) for order in orders])
        ):
            rows[setting] = [number + seed % 3 - 1 - 3 * place > EASE for seed in range(seeds)]
    return labelled(
        rows, gold=np.arange(EXAMPLES) % 5 > 2, task=task, train_counts=(60, 40), **fields
    )


@pytest.mark.parametrize(
    ("others", "margin", "number", "words"),
    [
        (
            [RIGHT],
            "10%",
            8,
            r"50%.*8 of 16 heads are replaceable: no task loses .*, with an upper .*, up to 44% may be lost on A",
        ),
        ([RIGHT], "90%", 16, "In the order of λ, all 16 heads are replaceable: no task loses more"),
        (
            [RIGHT | {"1/2": 330}],
            "10%",
            0,
            "In the order of λ, no number of heads was shown .*: with 8 replaced, up to",
        ),
        ([], "10%", 8, "8 of 16"),
        (
            [RIGHT],
            "4 points",
            8,
            "no task loses more than 4 points of accuracy, with .*; with 14 .* to 18.2 points may be lost on A",
        ),
        (
            [RIGHT],
            "0.1 points",
            0,
            "at a margin of 0.1 points of accuracy: with 8 replaced, up to 1.* points",
        ),
    ],
)
def test_heads_are_replaceable_up_to_the_first_number_at_which_a_task_may_lose_more(
    others, margin, number, words
):
    """One task that loses is enough."""
    tasks = [measured("a"), *(measured("b", right) for right in others)]
    frame, conclusion = concluded(tasks, margin)
    claims = claims_on(frame)
    assert replaceable(claims) == number
    assert set(claims["tasks"]) == {len(tasks)}
    assert claims["p"].is_monotonic_increasing
    assert claims["replaced"].tolist() == [8, 14, 16]
    assert re.search(words, " ".join(conclusion["sentences"]))


def test_a_later_number_that_passes_does_not_help():
    frame, _ = concluded([measured("a", RIGHT | {"1/2": 300, "1/8": 360})])
    alone = claims_on(frame, "A")
    assert replaceable(claims_on(frame)) == replaceable(alone) == 0
    assert alone["p"].is_monotonic_increasing


AT_CHANCE = "the probe is not significantly better than the majority class, no (0.600)"
NOTHING = "attention's contribution is not significant"


@pytest.mark.parametrize(
    ("right", "margin", "why"),
    [
        (FLAT, "10%", AT_CHANCE),
        (FLAT, "1 point", AT_CHANCE),
        (dict.fromkeys(RIGHT, 396), "10%", NOTHING),
        (dict.fromkeys(RIGHT, 396), "1 point", None),
    ],
)
def test_a_task_that_cannot_show_a_loss_is_not_tested_but_says_what_is_lost(right, margin, why):
    """A share needs a contribution of attention; points need a probe that has learned something."""
    special = measured("b", right)
    frame, conclusion = concluded([special], margin)
    how_much, claimed = conclusion["sentences"]
    assert ("B the margin, 1 point, is more than the 0.0" in conclusion["notes"][-1]) == (not why)
    lost = r"loses 0.0 points of accuracy on B \(-?[0-9.]+ to [0-9.]+\), where attention contributes 0.0"
    assert re.search(lost, how_much)
    assert frame["reliance"].isna().all()
    if why is None:
        assert "all 16 heads are replaceable: no task loses more than 1 point" in claimed
    else:
        advice = "; a margin in points can test it" if why == NOTHING else ""
        assert claimed == f"Nothing is claimed, because no task allows a test: B ({why}{advice})."
        assert frame["p"].isna().all()
    frame, conclusion = concluded([measured("a"), special], "10%" if "%" in margin else "4 points")
    assert replaceable(claims_on(frame)) == 8
    assert set(frame["task"].dropna()) == {"A", "B"}
    untested = [task["untested"] for task in conclusion["tasks"]]
    assert untested == [None, why]


END = Setting("average", fraction="0")


def own_head(noise):
    """Outcomes of a model's own head: attention contributes 1 nat per token, of which averages lose 0.3."""
    chance = np.random.default_rng(8)
    ease = chance.normal(3, 0.3, 53)
    lost = {ORIGINALS: 0.0, FLOOR: 1.0, END: 0.3}
    nats = {setting: ease + mean + chance.normal(0, noise, 53) for setting, mean in lost.items()}
    return texts(nats, np.full(53, 7), guess=9.0, task="b")


def test_points_and_nats_have_margins_of_their_own_in_one_claim():
    """The worst task is the one whose bound is the largest multiple of its margin."""
    tasks = [measured("a"), own_head(noise=0.01)]
    frame, conclusion = concluded(tasks, "30 points", "0.2 nats", fractions=("1", "0"))
    [together] = claims_on(frame).to_dict("records")
    assert (together["worst"], together["margin"], together["p"] > 0.05) == ("B", "0.2 nats", True)
    assert 0.3 < together["bound"] < 0.36
    [sentence] = [each for each in conclusion["sentences"] if "replaceable" in each]
    assert "at a margin of 30 points or 0.2 nats: with 16 replaced" in sentence
    assert sentence.endswith("nats may be lost on B (one-sided 95% bound).")
    assert (
        replaceable(claims_on(concluded(tasks, "30 points", "0.5 nats", fractions=("1", "0"))[0]))
        == 16
    )
    lost = conclusion["sentences"][0]
    assert "20.0 points of accuracy on A" in lost
    assert "; and 0.3" in lost


def test_few_clusters_at_stake_are_named_next_to_the_claim():
    """A margin of 0.06 is worth 2.7 of 40 clusters, if 0.9 of the answers are right; points need no floor."""
    clustered = measured("a")
    items = clustered.items.assign(cluster=np.arange(EXAMPLES) // 10)
    clustered = replace(clustered, items=items, floors=())
    warning = "Few clusters: the margin is worth about 2.7 of 40 on A; where it was worth 1.6, 12%"
    assert warning in " ".join(concluded([clustered], "6 points")[1]["sentences"])
    for tasks, margin in (([clustered], "7 points"), ([measured("a")], "6 points")):
        assert "Few clusters" not in " ".join(concluded(tasks, margin)[1]["sentences"])


def only(outcomes, kept):
    values = {name: rows[kept.to_numpy()] for name, rows in outcomes.values.items()}
    return replace(outcomes, runs=outcomes.runs[kept].reset_index(drop=True), values=values)


def without(outcomes, fraction, order):
    """Outcomes without the runs at a fraction in an order."""
    return only(
        outcomes, (outcomes.runs["fraction"] != fraction) | (outcomes.runs["order"] != order)
    )


def test_a_task_that_was_run_with_other_seeds_at_a_number_of_heads_may_lose_all_there():
    task = measured("b")
    seeds = task.runs["seed"].where(task.runs["fraction"] != "1/2", task.runs["seed"] + 100)
    unknown = replace(task, runs=task.runs.assign(seed=seeds))
    frame, conclusion = concluded([measured("a"), unknown])
    together = claims_on(frame)
    assert replaceable(together) == 0
    assert together["bound"].iloc[0] == math.inf
    sentence = conclusion["sentences"][2]
    assert ": with 8 replaced, any amount may be lost on B" in sentence
    assert together["reliance"].notna().iloc[1]
    assert conclusion["claims"][0]["bound"] is None


def test_only_orders_that_were_run_everywhere_are_compared():
    """A λ that was not run everywhere is left out, and no other replaces it."""
    orders = ("lambda-0", "lambda-1", "lambda-2")

    def score(outcomes):
        """The mean score of all orders at 1/2; None if none was run at both fractions."""
        sample = sample_of(outcomes)
        settings = [Setting("average", "lambda", fraction) for fraction in ("1/2", "1/8")]
        spread = joint_spread([(sample, setting) for setting in settings])
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
    a, b, c = (claims_on(frame, task) for task in "ABC")
    assert replaceable(claims_on(frame)) == 8
    assert set(pd.concat([a, b, c])["claims"]) == {3}
    numbers = [[replaceable(task, name) for name in ("p", "corrected_p")] for task in (a, b, c)]
    assert numbers == [[8, 8], [8, 0], [16, 16]]
    alone = frame[frame["task"].notna()]
    # the bound of a number includes no smaller number, but here bounds rise
    assert ((alone["bound"] < 0.1) == (alone["p"] < 0.05)).all()
    in_points, _ = concluded(tasks, "4 points")
    assert ((in_points["bound"] < 0.04) == (in_points["p"] < 0.05)).all()
    assert frame["task"].dropna().tolist() == [*"AAABBBCCC"]
    assert (
        "Each task by itself, corrected for 3 claims: all 16 heads are replaceable on C; 8 of 16 heads are replaceable "
        "on A; no number of heads was shown to be replaceable on B."
    ) in conclusion["notes"]
    # c passes completely, so the others are corrected for two claims
    setting = Setting("average", "lambda", "1/2")
    effects = [effect_of(sample_of(task), setting) for task in tasks[:2]]
    bounds = [effect.reliance(1 - 0.05 / 2).bound for effect in effects if effect is not None]
    assert [task["corrected_margin"].iloc[0] for task in (a, b)] == pytest.approx(bounds)
    lost, claims = tables_of(frame)
    assert lost.rows[0] == ["mean", "8 of 16", "-", "-", "2% (1 to 4)"]
    assert lost.rows[5][3:] == ["40.0 (35.2 to 44.9)", "50% (42 to 58)"]
    assert conclusion["table"]["data"] == lost.frame.values.tolist()
    assert claims.rows[0] == ["all tested tasks", "8 of 16", "10%", "9.3%", "B", "9.3%"]
    assert claims.rows[6][:3] == ["B", "8 of 16", "4 points of accuracy"]


def test_lines_are_corrected_for_all_lines_of_a_grid():
    both = measured("b", CLOSE, orders=("lambda-0", "first-layer-first"))
    frame, conclusion = concluded([both], orders=("lambda", "first-layer-first"))
    first, second = (
        claims_on(frame[frame["line"].eq(line)]) for line in ("λ", "first layer first")
    )
    assert (replaceable(first), replaceable(first, "corrected_p")) == (8, 0)
    assert replaceable(second, "corrected_p") == 0
    assert set(claims_on(frame)["claims"]) == {2}
    shown = "no number of heads was shown to be replaceable for λ or first layer first."
    assert (
        conclusion["sentences"][1]
        == f"At a margin of 10% of attention's contribution (4 points of accuracy), corrected for 2 lines: {shown}"
    )
    single = claims_on(concluded([measured("b", CLOSE)])[0])
    assert replaceable(single, "corrected_p") == 8
    assert set(single["claims"]) == {1}


def test_of_one_task():
    _, conclusion = concluded([measured("a")])
    assert conclusion["sentences"] == [
        "With all 16 heads replaced by average constants, m loses 20.0 points of accuracy on A (16.1 to 24.2), of the "
        "40.0 that attention contributes: a reliance of 50% (42 to 58).",
        "In the order of λ, 8 of 16 heads are replaceable: no task loses more than 10% of attention's contribution (4 "
        "points of accuracy), with an upper bound of 4% on A; with 14 replaced, up to 44% may be lost on A (one-sided "
        "95% bounds).",
    ]
    assert conclusion["notes"] == [
        "The results, with 95% intervals in brackets, are based on 5 seeds and 400 validation examples.",
        "Intervals do not cover the choice of training rows.",
    ]


RISES = RIGHT | {"0": 380}
"""The number of right examples if constants are better than attention."""


@pytest.mark.parametrize(
    ("tasks", "changes"),
    [
        ([RISES], ["m gains 5.0 points of accuracy on A (", "where attention contributes 40.0 ("]),
        (
            [RIGHT | {"floor": 380}],
            ["m loses 20.0 points", "where the original scores below the context-free floor"],
        ),
        (
            [RISES, RIGHT],
            ["m loses most, 20.0 points", "; and gains most, 5.0 points of accuracy on A ("],
        ),
        (
            [RISES, RIGHT | {"0": 364}],
            ["m gains most, 5.0 points", "; and least, 1.0 points of accuracy on B ("],
        ),
    ],
)
def test_a_score_that_rises_is_no_negative_loss(tasks, changes):
    outcomes = [measured(name, right) for name, right in zip("ab", tasks, strict=False)]
    sentence = concluded(outcomes)[1]["sentences"][0]
    for change in changes:
        assert change in sentence


def test_of_several_tasks_models_and_orders():
    tasks = [
        measured("a"),
        measured("b", RIGHT | {"0": 180}),
        *(measured(name, seeds=1) for name in "cd"),
    ]
    lost, mean, _, untested = concluded(tasks)[1]["sentences"]
    assert lost == (
        "With all 16 heads replaced by average constants, m loses most, 45.0 points of accuracy on B (40.1 to 50.0), "
        "more than the 40.0 that attention contributes; and least, 20.0 points of accuracy on A (16.1 to 24.2), of the "
        "40.0 that attention contributes."
    )
    assert mean == "Mean reliance on 2 tasks is 81% (76 to 86)."
    assert untested == "Not tested: C and D (one seed, so no interval)."
    notes = concluded(tasks)[1]["notes"]
    assert " are based on 1 to 5 seeds and 400 validation examples per task." in notes[0]
    assert notes[-1].startswith("Above 100%, constants are worse than no context")
    models = [measured("a"), measured("a", RIGHT | {"0": 300}, model="other")]
    lost, _ = concluded(models, tasks=["a"], models=("m", "other"))[1]["sentences"]
    assert re.fullmatch(
        r"With every head replaced, models lose most, 20.0 points of accuracy on A in m with average constants \(.*\), "
        r"of the 40.0 .*; and least, 15.0 points of accuracy on A in other with average constants .*",
        lost,
    )
    drawn_orders = measured("a", orders=("lambda-0", "lambda-1", "lambda-2"))
    assert concluded([drawn_orders])[1]["sentences"][1].startswith("Averaged over 3 orders (λ), ")


SKILLS = {
    ORIGINALS: 0.8,
    FLOOR: 0.55,
    Setting("zeros", "lambda-0", "1/2"): 0.7,
    Setting("average", "lambda-0", "1/2"): 0.77,
    Setting("average", None, "0"): 0.7,
}


def right_by_setting(outcomes):
    """Whether each example is right with each seed, `[seed, example]`."""
    right = outcomes.values["predicted"] == outcomes.items["gold"].to_numpy()
    settings = outcomes.runs[VARIANT_KEYS].apply(tuple, axis=1)
    return {setting: right[[other == setting for other in settings]] for setting in settings}


def bootstrapped(outcomes, total):
    """The standard deviation of a number that depends on mean scores, by drawing seeds, examples, and both.

    Drawing both counts three times what seeds and examples make together, which drawing one of them counts once.
    """
    tables = right_by_setting(outcomes)
    chance = np.random.default_rng(6)
    seeds = np.arange(len(tables[ORIGINALS]))
    examples = np.arange(EXAMPLES)
    variances = []
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
    outcomes = drawn(SKILLS, 5, 14, EXAMPLES, "a")
    setting = Setting(constant, "lambda", "1/2")
    share = effect_of(sample_of(outcomes), setting)
    estimate = share.spread.shares([(1.0, share.drop, share.contributions[0])])

    def reliance(means):
        lost = means[ORIGINALS] - means[setting._replace(order="lambda-0")]
        return lost / (means[ORIGINALS] - means[FLOOR])

    means = {setting: float(right.mean()) for setting, right in right_by_setting(outcomes).items()}
    assert estimate.mean == pytest.approx(reliance(means))
    assert estimate.mean == share.reliance().mean
    assert math.sqrt(estimate.variance) == pytest.approx(bootstrapped(outcomes, reliance), rel=0.1)


def term(sample, corpus="texts"):
    return (sample, corpus, END)


def half_width(*terms):
    interval = mean_reliance(terms)
    return (interval.high - interval.low) / 2


def test_a_mean_over_tasks_uses_the_seeds_that_all_of_them_have():
    outcomes = drawn(SKILLS, 5, 7, EXAMPLES, "a")
    seeds = outcomes.runs["seed"] - outcomes.runs["seed"].min()
    rest, first = (sample_of(only(outcomes, kept)) for kept in (seeds >= 3, seeds == 0))
    both = mean_reliance([term(sample_of(outcomes)), term(rest)])
    last = mean_reliance([term(rest)])
    assert both.mean == pytest.approx(last.mean)
    assert mean_reliance([term(rest), term(first)]) is None


def test_a_task_without_seeds_adds_only_the_variance_of_its_examples():
    sample = sample_of(own_head(noise=0.1), "log_likelihood")
    probed = sample_of(drawn(SKILLS, 5, 14, EXAMPLES, "a"))
    terms = [term(sample, "a"), term(probed, "b")]
    assert not sample.seeded
    assert probed.seeded
    expected = math.hypot(half_width(terms[0]), half_width(terms[1])) / 2
    assert half_width(*terms) == pytest.approx(expected, rel=0.05)


def test_without_floors_another_example_may_differ_although_all_agree():
    task = replace(measured("a", dict.fromkeys(RIGHT, 300)), floors=())
    frame, _ = concluded([task], "1 point", fractions=("1", "0"))
    assert claims_on(frame)["bound"].min() > 0.002
