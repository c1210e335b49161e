"""Comparisons of two results: scipy's t-tests, Holm's correction by hand, every verdict, every message."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import t, ttest_ind, ttest_rel

from papa.config.artefacts import ARTEFACTS
from papa.errors import InputError
from papa.files import Trace, write_json, write_table
from papa.results.compare import (
    BY_BOTH,
    BY_EXAMPLE,
    BY_NOTHING,
    DIFFERS,
    DIFFERS_BY_LESS,
    EQUAL,
    IDENTICAL,
    OUTCOMES,
    UNKNOWN,
    _judge,
    _pair,
    compare,
    headline,
    print_comparison,
)
from papa.results.conclusion import Conclusion
from papa.results.outcomes import RUN, TaskOutcomes, table_of

ORIGINAL, FLOOR, HALF = (None, None, "1"), ("zeros", None, "0"), ("average", "lambda-0", "1/2")
NAMES = ("no", "yes")
PLACES = {ORIGINAL: "original", FLOOR: "zeros/all", HALF: "average/lambda-0/kept-1of2"}


def outcomes(scores, task="cola", model="tiny", gold=None, metric="accuracy"):
    """What was measured on a task, from rows [seed, example] of right (1) and wrong (0) by setting."""
    scores = {setting: np.atleast_2d(rows).astype(int) for setting, rows in scores.items()}
    seeds = {setting: range(1, len(rows) + 1) for setting, rows in scores.items()}
    right = np.concatenate(list(scores.values()))
    gold = np.arange(right.shape[1]) % 2 if gold is None else gold
    items = pd.DataFrame({"split": "validation", "example": np.arange(len(gold)), "gold": gold})
    runs = pd.DataFrame([(*setting, seed) for setting, own in seeds.items() for seed in own], columns=RUN, dtype=object)
    predicted = np.where(right == 1, gold, 1 - gold)
    counts = tuple(np.bincount(gold, minlength=2).tolist())
    return TaskOutcomes(model, task, metric, NAMES, counts, runs, items, {"predicted": predicted})


def results(folder, *measured, margin=None, runs=None, precision="float32", **made):
    """A results folder; with `margin` it has claims, with `runs` it has the JSON of all runs."""
    table, facts = table_of(measured)
    tasks = {own.task: {"title": own.task.upper(), "metric": own.metric} for own in measured}
    write_table(table, folder / OUTCOMES, {"table": "outcomes"} | facts, Trace("summary", 2, {"tasks": tasks}, {}))
    if margin is not None:
        conclusion = Conclusion(sentence="", margin=margin, lines=(), areas=())
        write_json(conclusion.to_json(), folder / ARTEFACTS["claims_json"].path())
    for own in measured if runs is None else ():
        trace = Trace("probe", 4, {"model": {"name": own.model, "precision": precision}}, {})
        by_variant: dict[str, list[dict[str, object]]] = {}
        for run in own.runs.to_dict("records"):
            variant = PLACES[run["constant"], run["order"], run["fraction"]]
            by_variant.setdefault(variant, []).append(a_run(own, run, **made))
        for variant, runs_of_it in by_variant.items():
            place = ARTEFACTS["runs"].path(model=own.model, task=own.task, variant=variant)
            write_json({"runs": runs_of_it}, folder / place, trace)
    return folder


def a_run(measured, run, **made):
    rows = {"train": 100, "validation": 50}
    provenance = {"weights": "w" * 64, "corpus": "c" * 40, "slots": 9, "style": "paper", "segments": "aligned"}
    provenance |= {"encoder_dropout": False, "papa_version": "1"}
    told = {"model": measured.model, "task": measured.task, "kept": 12, "heads": 24, "curve": [], "rows": rows}
    told |= {"rows_available": rows, "cut": {"train": 0, "validation": 0}, "learning_rate": 1e-3, "batch_size": 16}
    told |= {"epochs": 4, "provenance": provenance | made.pop("provenance", {})}
    return told | run | made


def row_of(found, setting=ORIGINAL, task="cola"):
    [row] = [
        row
        for row in found["rows"]
        if (row["constant"], row["fraction"]) == (setting[0], setting[2]) and row["task"] == task
    ]
    return row


def said(found, width=80):
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False)
    print_comparison(found, console)
    return console.file.getvalue()


def flat(text):
    return " ".join(text.replace("─", "").split())


def whole(*scores, examples=40):
    """Runs in which all examples are right, or all wrong: only seeds vary."""
    return np.repeat(np.array(scores)[:, None], examples, axis=1)


def drawn(share, size, seed):
    return (np.random.default_rng(seed).random(size) < share).astype(int)


def flipped(right, number, start=0):
    """As many of the examples that are right made wrong."""
    own = right.copy()
    own[..., np.flatnonzero(np.atleast_2d(right)[0])[start : start + number]] = 0
    return own


# -- tests against scipy ----------------------------------------------------------------------------------------------


def expect(row, oracle, mean):
    low, high = oracle.confidence_interval(0.95)
    assert row["difference"] == pytest.approx(mean)
    assert (row["p"], row["low"], row["high"]) == pytest.approx((oracle.pvalue, low, high))


def expect_wider(sides, row, oracle, mean):
    """The variance is that of the oracle; the interval is never narrower, since few seeds or units may mislead."""
    estimate, _ = _pair(*sides, row["paired"] == BY_BOTH).difference(ORIGINAL)
    low, high = oracle.confidence_interval(0.95)
    assert row["difference"] == estimate.mean == pytest.approx(mean)
    assert estimate.variance == pytest.approx((mean / oracle.statistic) ** 2)
    assert row["low"] < low + 1e-9 and row["high"] > high - 1e-9 and row["p"] > oracle.pvalue - 1e-9
    assert row["high"] - row["low"] < 1.2 * (high - low)


def test_with_seeds_alone_it_is_the_paired_t_test_over_seeds(tmp_path):
    one, two = (1, 1, 0, 1, 1, 0, 1), (0, 1, 0, 0, 1, 0, 0)
    a, b = (results(tmp_path / name, outcomes({ORIGINAL: whole(*own)})) for name, own in (("a", one), ("b", two)))
    row = row_of(compare(a, b))
    assert row["paired"] == BY_BOTH and (row["seeds_a"], row["examples_a"]) == (7, 40)
    expect(row, ttest_rel(two, one), np.mean(two) - np.mean(one))
    difference = np.array(two) - np.array(one)  # by hand
    error = difference.std(ddof=1) / 7**0.5
    assert row["high"] - row["low"] == pytest.approx(2 * t.ppf(0.975, 6) * error)


def test_seeds_that_mean_something_else_are_two_samples(tmp_path):
    """Then it is Welch's test over seeds, where examples make no difference."""
    one, two = (1, 1, 0, 1, 1, 0, 1), (0, 1, 0, 0, 1)
    a = outcomes({ORIGINAL: whole(*one)})
    same = results(tmp_path / "a", a)
    for name, own, made in (("fewer", two, {}), ("rate", (0, 0, 1, 0, 1, 1, 0), {"learning_rate": 2e-3})):
        b = outcomes({ORIGINAL: whole(*own)})
        row = row_of(compare(same, results(tmp_path / name, b, **made)))
        assert row["paired"] == BY_EXAMPLE
        expect_wider((a, b), row, ttest_ind(own, one, equal_var=False), np.mean(own) - np.mean(one))


def test_with_examples_alone_it_is_the_paired_t_test_over_examples(tmp_path):
    one, two = drawn(0.8, 60, 1), drawn(0.7, 60, 2)
    sides = [outcomes({ORIGINAL: np.repeat(own[None], 3, axis=0)}) for own in (one, two)]
    a = results(tmp_path / "a", sides[0])
    cases = ({}, BY_BOTH), ({"learning_rate": 2e-3}, BY_EXAMPLE), ({"provenance": {"weights": "v" * 64}}, BY_EXAMPLE)
    for number, (made, paired) in enumerate(cases):
        row = row_of(compare(a, results(tmp_path / f"b{number}", sides[1], **made)))
        assert row["paired"] == paired
        expect_wider(sides, row, ttest_rel(two, one), np.mean(two) - np.mean(one))


def test_other_examples_are_two_samples(tmp_path):
    one, two = drawn(0.8, 60, 1), drawn(0.7, 60, 2)
    a = outcomes({ORIGINAL: np.repeat(one[None], 3, axis=0)})
    of_a = results(tmp_path / "a", a)
    for name, own, gold in (("labels", two, np.arange(60) // 30), ("fewer", two[:50], None)):
        b = outcomes({ORIGINAL: np.repeat(own[None], 3, axis=0)}, gold=gold)
        row = row_of(compare(of_a, results(tmp_path / name, b)))
        assert row["paired"] == BY_NOTHING and row["examples_b"] == len(own)
        expect_wider((a, b), row, ttest_ind(own, one, equal_var=False), own.mean() - one.mean())


def test_pairs_are_used(tmp_path):
    """The same examples are hard for both: paired, the interval is much smaller than that of two samples."""
    gold = np.arange(200) % 2
    right = np.repeat(drawn(0.7, 200, 1)[None], 4, axis=0)
    a = results(tmp_path / "a", outcomes({ORIGINAL: right}, gold=gold))
    b = outcomes({ORIGINAL: flipped(right, 10)}, gold=gold)
    paired = row_of(compare(a, results(tmp_path / "b", b)))
    shuffled = np.random.default_rng(0).permutation(200)  # of the same rows, as of other texts
    other = outcomes({ORIGINAL: flipped(right, 10)[:, shuffled]}, gold=gold[shuffled])
    apart = row_of(compare(a, results(tmp_path / "c", other)))
    assert (paired["paired"], apart["paired"]) == (BY_BOTH, BY_NOTHING)
    assert paired["difference"] == apart["difference"] == pytest.approx(-0.05)
    assert paired["high"] - paired["low"] < 0.4 * (apart["high"] - apart["low"])
    assert paired["verdict"] == DIFFERS and apart["verdict"] == UNKNOWN


def test_what_both_sides_share_counts_for_neither(tmp_path):
    """Seeds of two samples, examples in common: two equal models differ in 5 % of comparisons, not more."""
    chance, wrong = np.random.default_rng(3), 0
    for _ in range(200):
        ease = chance.normal(0.8, 1, 120)
        sides = []
        for _ in range(2):
            own = ease + chance.normal(0, 0.4, 120)  # what is hard for this side alone
            seeds = chance.normal(0, 0.1, (4, 1)) + chance.normal(0, 0.3, (4, 120))
            sides.append(outcomes({ORIGINAL: own + seeds > 0}))
        difference, paired = _pair(*sides, False).difference(ORIGINAL)
        assert paired == BY_EXAMPLE
        wrong += difference.p() < 0.05
    assert 2 <= wrong <= 20  # 10 are expected, with a standard deviation of 3.1


# -- verdicts ---------------------------------------------------------------------------------------------------------


def folders(tmp_path, one, two, margin=0.1, examples=2000, **settings):
    """Two results of which the second lost some examples, where attention contributes .4 of the score."""
    right = np.repeat(drawn(0.9, examples, 1)[None], 3, axis=0)
    floor = flipped(right, int(0.4 * examples), start=int(0.4 * examples))
    sides = []
    for name, lost in (("a", one), ("b", two)):
        scores = {ORIGINAL: right, FLOOR: floor, HALF: flipped(right, lost)}
        sides.append(results(tmp_path / name, outcomes(scores), margin=margin, **settings))
    return sides


@pytest.mark.parametrize(
    ("lost", "examples", "verdict"),
    [(400, 2000, DIFFERS), (20, 2000, DIFFERS_BY_LESS), (0, 2000, IDENTICAL), (2, 2000, EQUAL), (3, 60, UNKNOWN)],
)
def test_every_verdict(tmp_path, lost, examples, verdict):
    found = compare(*folders(tmp_path, 0, lost, examples=examples))
    row = row_of(found, HALF)
    assert row["verdict"] == verdict, row
    assert row["delta"] == pytest.approx(0.1 * 0.4, abs=1e-3) and row["delta_of"] == "attention's contribution"
    assert found["verdicts"][verdict] >= 1 and found["differ"] == verdict.startswith(DIFFERS)
    assert row["same"] == (lost == 0)


def next_tokens(zeros, shift=0.0, original=1.0):
    """The next-token losses of a decoder on 60 texts, in nats per token; a guess from frequencies loses 4."""
    tokens = np.full(60, 10)
    means = {ORIGINAL: original, FLOOR: zeros, ("average", None, "0"): 2.0 + shift}
    wave = 0.05 * np.cos(np.arange(60))
    nats = np.stack([tokens * (mean + place * wave) for place, mean in enumerate(means.values())])
    items = pd.DataFrame({"split": "validation", "example": range(60), "tokens": tokens, "trivial": 4.0 * tokens})
    runs = pd.DataFrame([(*setting, 0) for setting in means], columns=RUN, dtype=object)
    return TaskOutcomes("tiny", "next", "log_likelihood", (), (), runs, items, {"loss": nats})


@pytest.mark.parametrize(("zeros", "original"), [(3.0, 1.0), (7.0, 1.0), (7.0, 5.0)])
def test_a_decoder_equals_itself(tmp_path, zeros, original):
    """Also if its scores without attention fall below a blind guess, which is then the floor of its losses."""
    a = results(tmp_path / "a", next_tokens(zeros, original=original), runs=False)
    found = compare(a, a)
    assert (found["same"], found["differ"], found["verdicts"][IDENTICAL]) == (3, 0, 3)
    assert headline(found) == "The same: the scores agree to the last digit."
    assert {row["difference"] for row in found["rows"]} == {0.0} and {row["p"] for row in found["rows"]} == {1.0}
    assert (row_of(found, task="next")["delta"] is None) == (original == 5.0)


def test_a_difference_is_that_of_the_scores_also_below_a_blind_guess(tmp_path):
    """δ is a share of what attention contributes above the guess, which is what losses are shares of."""
    a, b = (
        results(tmp_path / name, next_tokens(zeros, shift), runs=False)
        for name, zeros, shift in (("a", 7.0, 0.0), ("b", 8.0, 0.2))
    )
    found = compare(a, b)
    row = row_of(found, FLOOR, "next")
    assert row["difference"] == pytest.approx(row["b"] - row["a"]) == pytest.approx(-1, abs=0.01)
    assert row["verdict"] == DIFFERS
    assert [row["delta"] for row in found["rows"]] == pytest.approx(3 * [0.1 * (4 - 1)])


def test_without_a_margin_nothing_is_equal_within_it(tmp_path):
    """A decoder that a blind guess beats has no contribution of attention, and its metric has no range."""
    a, b = (
        results(tmp_path / name, next_tokens(7.0, shift, original=5.0), runs=False)
        for name, shift in (("a", 0.0), ("b", 1e-6))
    )
    found = compare(a, b)
    assert {row["verdict"] for row in found["rows"]} <= {IDENTICAL, DIFFERS, UNKNOWN}
    assert found["verdicts"][EQUAL] == 0 and "NEXT: there is no δ" in flat(said(found))


def test_the_printed_tests_are_those_that_were_made(tmp_path):
    """Both kinds of verdict are corrected together, and identical settings are not among the tests of equality."""
    found = compare(*folders(tmp_path, 0, 2))
    assert (found["tested"], found["tested_equal"], found["same"]) == (3, 1, 2)
    page = flat(said(found))
    assert "Differs: 5 % for 3 tests together (Holm's correction)." in page
    assert "Equal: two one-sided tests of δ = 10 % of what attention contributes to a task in A" in page
    assert "5 % for 1 test together (Holm's correction)" in page and "by itself" not in page


def test_both_kinds_of_verdict_are_corrected_for_many_tests():
    rows = [{"p": p, "p_equal": equal, "same": same} for p, equal, same in 2 * [(0.03, 0.9, False), (0.9, 0.03, False)]]
    _judge(rows)
    assert {row["verdict"] for row in rows} == {UNKNOWN}
    assert [row["p_equal_holm"] for row in rows] == [1.0, pytest.approx(0.12), 1.0, pytest.approx(0.12)]
    rows = [{"p": 1.0, "p_equal": equal, "same": same} for equal, same in ((0.03, False), (None, True), (0.0, True))]
    _judge(rows)  # identical settings are not among the tests of equality
    assert [row["verdict"] for row in rows] == [EQUAL, IDENTICAL, IDENTICAL]


def test_equal_is_two_one_sided_tests(tmp_path):
    """At every margin, and it turns from one verdict to another where the larger p of the two passes 5 %."""
    a, b = folders(tmp_path, 0, 12, examples=1000)
    verdicts = set()
    for margin in (0.01, 0.03, 0.05, 0.06, 0.08, 0.2):
        row = row_of(compare(a, b, margin), HALF)
        error = (row["high"] - row["low"]) / 2
        freedom = 999  # of examples, because seeds do not differ
        error /= t.ppf(0.975, freedom)
        above, below = ((row["difference"] + side * row["delta"]) / error for side in (1, -1))
        p = max(t.sf(above, freedom), t.cdf(below, freedom))
        assert (row["verdict"] in (EQUAL, DIFFERS_BY_LESS)) == (p < 0.05)
        verdicts.add(row["verdict"] in (EQUAL, DIFFERS_BY_LESS))
    assert verdicts == {True, False}


def test_holm_is_worked_out_by_hand(tmp_path):
    """The smallest p of five tests is taken five times, the next four times, and none is smaller than one before it."""
    right = np.repeat(drawn(0.8, 300, 1)[None], 3, axis=0)
    lost = {"t1": 4, "t2": 8, "t3": 9, "t4": 16, "t5": 5}
    a = results(tmp_path / "a", *(outcomes({ORIGINAL: right}, task) for task in lost))
    b = results(tmp_path / "b", *(outcomes({ORIGINAL: flipped(right, number)}, task) for task, number in lost.items()))
    found = compare(a, b)
    p = {task: row_of(found, task=task)["p"] for task in lost}
    first, second, third, fourth, last = sorted(lost, key=p.get)
    expected = {first: 5 * p[first]}
    for factor, before, task in ((4, first, second), (3, second, third), (2, third, fourth), (1, fourth, last)):
        expected[task] = max(expected[before], factor * p[task])
    assert {task: row_of(found, task=task)["p_holm"] for task in lost} == pytest.approx(expected)
    assert found["differ"] == sum(p < 0.05 for p in expected.values()) > 0
    for task in lost:
        assert row_of(found, task=task)["verdict"].startswith(DIFFERS) == (expected[task] < 0.05)
    alone = compare(
        results(tmp_path / "one", outcomes({ORIGINAL: right})),
        results(tmp_path / "other", outcomes({ORIGINAL: flipped(right, 5)})),
    )
    assert row_of(alone)["p"] == p["t5"] == row_of(alone)["p_holm"] < 0.05 < expected["t5"]


def test_margins_come_from_claims_the_option_or_the_default(tmp_path):
    a, b = folders(tmp_path, 0, 20, margin=0.2)
    bare = folders(tmp_path / "bare", 0, 20, margin=None)
    for found, margin, origin in (
        (compare(a, b), 0.2, "of A's config"),
        (compare(a, b, 0.03), 0.03, "as given"),
        (compare(*bare), 0.1, "the default, because A has no claims"),
    ):
        assert (found["margin"], found["margin_from"]) == (margin, origin)
        assert row_of(found)["delta"] == pytest.approx(margin * 0.4, abs=2e-3)
        assert f"δ = {100 * margin:g} % of what attention contributes to a task in A ({origin})" in flat(said(found))


def test_where_nothing_counts_the_margin_is_of_the_range(tmp_path):
    right = np.repeat(drawn(0.8, 300, 1)[None], 3, axis=0)
    cases = {
        "cola": ({ORIGINAL: right}, "no context-free floor was measured"),
        "sst2": ({ORIGINAL: right, FLOOR: right}, "attention contributes nothing measurable"),
        "mrpc": ({ORIGINAL: right[:1], FLOOR: right[:1]}, "one seed, so no interval"),
    }
    a = results(tmp_path / "a", *(outcomes(scores, task) for task, (scores, _) in cases.items()))
    found = compare(a, a)
    for task, (_, why) in cases.items():
        row = row_of(found, task=task)
        assert row["delta"] == 0.01 and row["delta_of"] == f"the metric's range, because {why}"
        assert f"{task.upper()}: δ is 0.010, 1 % of the metric's range, because {why}." in flat(said(found))


def test_one_seed_has_no_test(tmp_path):
    right = drawn(0.8, 300, 1)
    a, b = (results(tmp_path / name, outcomes({ORIGINAL: own})) for name, own in (("a", right), ("b", right * 0)))
    found = compare(a, b)
    row = row_of(found)
    assert (row["verdict"], row["p"], row["p_holm"], row["low"]) == (UNKNOWN, None, None, None)
    assert row["difference"] == pytest.approx(-right.mean()) and (found["tested"], found["differ"]) == (0, 0)
    assert "Not tested, because of one seed, which has no interval: 1." in flat(said(found))
    assert row_of(compare(a, a))["verdict"] == IDENTICAL


# -- what is read and said --------------------------------------------------------------------------------------------


def test_the_same_is_the_same(tmp_path):
    a, b = folders(tmp_path, 3, 3)
    found = compare(a, b)
    assert (found["compared"], found["same"], found["differ"]) == (3, 3, 0)
    assert not any(found[name] for name in ("only_a", "only_b", "settings"))
    assert headline(found) == "The same: the scores agree to the last digit."
    c = folders(tmp_path / "c", 3, 3, learning_rate=2e-3)[1]
    assert headline(compare(a, c)) == "The same: the scores agree to the last digit; settings differ."


def test_draws_of_an_order_are_one_setting(tmp_path):
    """The random orders of both sides are compared as samples, whatever their numbers."""
    right = np.repeat(drawn(0.8, 300, 1)[None], 2, axis=0)

    def side(name, draws):
        scores = {("average", f"random-{draw}", "1/2"): flipped(right, draw) for draw in draws}
        return results(tmp_path / name, outcomes({ORIGINAL: right, **scores}), runs=False)

    found = compare(side("a", (1, 2, 3)), side("b", (2, 4)))
    row = row_of(found, ("average", "random", "1/2"))
    assert (row["order"], found["compared"]) == ("random", 2) and not found["only_a"] and not found["only_b"]
    assert row["difference"] == pytest.approx(-1 / 300)


def test_what_differs_is_listed(tmp_path):
    right = np.repeat(drawn(0.8, 300, 1)[None], 3, axis=0)
    shared = outcomes({ORIGINAL: right}, "sst2")
    a = results(tmp_path / "a", shared, outcomes({ORIGINAL: right, HALF: right}), outcomes({ORIGINAL: right}, "mrpc"))
    b = results(
        tmp_path / "b",
        shared,
        outcomes({ORIGINAL: flipped(right, 60), FLOOR: right}),
        outcomes({ORIGINAL: right}, "mrpc", metric="f1"),
        learning_rate=2e-3,
        precision="bfloat16",
        provenance={"weights": "f" * 64, "papa_version": "9"},
        rows_available={"train": 9000, "validation": 50},
    )
    found = json.loads(json.dumps(compare(a, b), allow_nan=False))
    assert [row["task"] for row in found["rows"]] == ["sst2", "cola"]  # mrpc has another metric
    assert [row["fraction"] for row in found["only_a"]] == ["1/2"]
    assert [row["fraction"] for row in found["only_b"]] == ["0"]
    settings = {(row["task"], row["setting"]): (row["a"], row["b"]) for row in found["settings"]}
    assert settings.pop(("mrpc", "metric")) == (["accuracy"], ["f1"])
    assert settings.pop((None, "weights")) == (["w" * 64], ["f" * 64])
    assert settings.pop((None, "papa_version")) == (["1"], ["9"])
    assert settings.pop((None, "precision")) == (["float32"], ["bfloat16"])
    expected = {"learning_rate": ([1e-3], [2e-3]), "rows_available_train": ([100], [9000])}
    tasks = ("sst2", "cola", "mrpc")
    assert settings == {(task, name): values for task in tasks for name, values in expected.items()}
    page = flat(said(found, 100))
    for words in (
        "1 of 2 differs, 1 is identical, 0 are equal within the margin, 0 are inconclusive.",
        "Differ task setting A B B - A [95 %] p δ",
        "Settings that differ model task setting A B",
        "Only in A: 1 setting model task setting tiny COLA (Accuracy) 1/2 average lambda",
        "Only in B: 1 setting model task setting tiny COLA (Accuracy) 0 zeros",
        "Tested: the main metric on all reported validation examples of every model, task and setting that both have; "
        "no subsets, no further metrics. Paired by examples: 2. Differs: 5 % for 2 tests together (Holm's correction)",
        "SST2, COLA: δ is 0.010, 1 % of the metric's range, because no context-free floor was measured.",
    ):
        assert words in page, page


def test_pages_keep_to_the_width_of_the_terminal(tmp_path):
    models = ("all-minilm-l6-v2", "electra-base")
    right = np.repeat(drawn(0.8, 400, 1)[None], 3, axis=0)
    lost = {"cola": 70, "token-classification": 6, "mnli": 1}
    sides = []
    for name, factor in (("a", 0), ("b", 1)):
        measured = [
            outcomes({ORIGINAL: right, FLOOR: flipped(right, 90), HALF: flipped(right, factor * number)}, task, model)
            for model in models
            for task, number in lost.items()
        ]
        sides.append(results(tmp_path / name, *measured, **({"learning_rate": 2e-3} if factor else {})))
    found = compare(*sides)
    assert headline(found) == ("2 of 18 differ, 12 are identical, 2 are equal within the margin, 2 are inconclusive.")
    for width in (80, 120):
        page = said(found, width)
        assert max(map(len, page.splitlines())) <= width
        for word in ("Differ", "Inconclusive", "Equal within δ", "Settings that differ", "Tested: "):
            assert word in page
        for row in found["rows"]:
            if row["verdict"].startswith(DIFFERS):  # no number is broken
                assert f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]" in page


def test_long_lists_are_cut_where_nothing_differs(tmp_path):
    right = np.repeat(drawn(0.8, 60, 1)[None], 3, axis=0)
    sides = [
        results(tmp_path / name, *(outcomes({ORIGINAL: flipped(right, lost)}, f"t{n}") for n in range(14)), runs=False)
        for name, lost in (("a", 0), ("b", 2))
    ]
    page = flat(said(compare(*sides)))
    assert "0 of 14 differ, 0 are identical, 0 are equal within the margin, 14 are inconclusive." in page
    assert "Inconclusive, 10 of 14 (--json has all)" in page
    assert "The settings of the runs are not recorded here" in page and "Paired by examples: 14." in page


def test_tables_are_compared_as_folders_are(tmp_path):
    a, b = folders(tmp_path, 0, 30)
    whole = compare(a, b)
    assert compare(a / OUTCOMES, b / OUTCOMES)["rows"] == whole["rows"]
    moved = []
    for side in (a, b):
        moved.append(side.parent / f"{side.name}.parquet")
        moved[-1].write_bytes((side / OUTCOMES).read_bytes())
    found = compare(*moved)
    assert {row["paired"] for row in found["rows"]} == {BY_EXAMPLE}
    assert not found["settings"] and not found["made_known"]
    assert [row["difference"] for row in found["rows"]] == [row["difference"] for row in whole["rows"]]


def test_what_cannot_be_compared_is_one_sentence(tmp_path):
    right = drawn(0.8, 30, 1)
    a = results(tmp_path / "a", outcomes({ORIGINAL: right}), margin=0.1)
    b = results(tmp_path / "b", outcomes({ORIGINAL: right}, "sst2"))
    metric = results(tmp_path / "f1", outcomes({ORIGINAL: right}, metric="f1"))
    run_file = next(a.rglob("runs.json"))
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes((a / OUTCOMES).read_bytes()[:-100])
    summary = tmp_path / "summary.parquet"
    write_table(table_of([outcomes({ORIGINAL: right})])[0], summary, {"table": "summary"})
    for one, two, expected in (
        (a, b, "no setting in common: tiny on cola and tiny on sst2"),
        (a, metric, "by the same metric"),
        (a, tmp_path / "nowhere", "There is no"),
        (a, tmp_path, "has no tables/outcomes.parquet"),
        (a, damaged, "cannot be read as a table of papa"),
        (a, summary, "is no table of outcomes"),
        (a, run_file, "cannot be read as a table"),
    ):
        with pytest.raises(InputError, match=expected) as error:
            compare(one, two)
        assert len(str(error.value).splitlines()) == 1
    for margin in (0, 1, -0.1, 3):
        with pytest.raises(InputError, match="must lie between 0 and 1"):
            compare(a, a, margin)
    content = run_file.read_text(encoding="utf-8")
    run_file.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="delete it and run the workflow again"):
        compare(a, a)
    run_file.write_text(content, encoding="utf-8")
    write_json({"sentence": "none"}, a / ARTEFACTS["claims_json"].path())
    with pytest.raises(InputError, match="has no intact margin, so it has no claims"):
        compare(a, a)
