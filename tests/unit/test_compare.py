"""Comparisons of two results: scipy's t-tests, Holm's correction by hand, every verdict, every message."""

import io
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from builders import labelled, run_record, texts
from refusals import input_error
from rich.console import Console
from scipy.stats import t, ttest_ind, ttest_rel

from papa.files import write_table
from papa.results.compare import (
    BY_BOTH,
    BY_EXAMPLE,
    BY_NOTHING,
    DIFFERS,
    DIFFERS_BY_LESS,
    EQUAL,
    IDENTICAL,
    OUTCOMES,
    RUNS,
    UNDECIDED,
    compare,
    difference,
    judge,
    print_comparison,
    samples_of,
)
from papa.results.outcomes import FLOOR, ORIGINALS, Setting, table_of

HALF = Setting("average", "lambda-0", "1/2")


def outcomes(right, task="cola", **fields):
    """Outcomes on a task, from rows `[seed, example]` of right (1) and wrong (0), by setting or of the original."""
    by_setting = right if isinstance(right, dict) else {ORIGINALS: right}
    return labelled(by_setting, **{"model": "tiny", "task": task} | fields)


def results(folder, *measured, margin=0.1, models=None, **fields):
    """A results folder; `fields` are of the runs, `models` of all models."""
    table, facts = table_of(measured)
    of_tasks = {"slots": 9, "texts": "c", "fidelity": "paper"}
    about = {
        task.task: {"title": task.task.upper(), "metric": task.metric} | of_tasks
        for task in measured
    }
    facts["tasks"] = {name: facts["tasks"][name] | task for name, task in about.items()}
    facts["models"] = {
        task.model: {"files": "w", "precision": "float32", "papa": "1"} | (models or {})
        for task in measured
    }
    write_table(table, folder / OUTCOMES, {"table": "outcomes", "margin": margin} | facts)
    names = [
        ({"task": task.task, "model": task.model}, run)
        for task in measured
        for run in task.runs.to_dict("records")
    ]
    runs = [run_record(**about | run | fields) for about, run in names]
    write_table(pa.Table.from_pylist(runs), folder / RUNS, {})
    return folder


def compared(folder, a, b, **fields):
    """The comparison of two results of one task each; `fields` are of the runs of the second."""
    return compare(results(folder / "a", a), results(folder / "b", b, **fields))


def row_of(comparison, setting=ORIGINALS, task="cola"):
    rows = [row for row in comparison["rows"] if row["task"] == task]
    [row] = [row for row in rows if (row["constant"], row["fraction"]) == (setting[0], setting[2])]
    return row


def difference_of(a, b, same_seeds=False):
    """The difference of two originals, and how it is paired."""
    first, second, same_examples = samples_of(a, b)
    vars(first)["step"] = vars(second)["step"] = 0.0  # no further example, as in a t test
    return difference(first, second, ORIGINALS, same_examples, same_seeds)


def words_of(comparison, width=80):
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False)
    print_comparison(comparison, console)
    return " ".join(console.file.getvalue().split())


def whole(*scores, examples=40):
    """Runs in which all examples are right, or all wrong: only seeds vary."""
    return np.repeat(np.array(scores)[:, None], examples, axis=1)


def drawn(share, size, seed, seeds=3):
    """A share of right examples, the same ones with every seed: only examples vary."""
    return np.repeat([np.random.default_rng(seed).random(size) < share], seeds, axis=0).astype(int)


def flipped(right, number, start=0):
    """The same, except that some of the right examples are wrong."""
    changed = right.copy()
    changed[:, np.flatnonzero(right[0])[start : start + number]] = 0
    return changed


OTHER = {"learning_rate": 2e-3}
OF_SEEDS = outcomes(whole(1, 1, 0, 1, 1, 0, 1))
OF_EXAMPLES = outcomes(drawn(0.8, 60, 1))
CHANGED = drawn(0.7, 60, 2)


@pytest.mark.parametrize(
    ("a", "b", "fields", "paired", "oracle"),
    [
        (OF_SEEDS, outcomes(whole(0, 1, 0, 0, 1, 0, 0)), {}, BY_BOTH, ttest_rel),
        (OF_SEEDS, outcomes(whole(0, 1, 0, 0, 1)), {}, BY_EXAMPLE, ttest_ind),
        (OF_SEEDS, outcomes(whole(0, 0, 1, 0, 1, 1, 0)), OTHER, BY_EXAMPLE, ttest_ind),
        (OF_EXAMPLES, outcomes(CHANGED), {}, BY_BOTH, ttest_rel),
        (OF_EXAMPLES, outcomes(CHANGED), OTHER, BY_EXAMPLE, ttest_rel),
        (OF_EXAMPLES, outcomes(CHANGED), {"models": {"files": "v"}}, BY_EXAMPLE, ttest_rel),
        (OF_EXAMPLES, outcomes(CHANGED, gold=np.arange(60) // 30), {}, BY_NOTHING, ttest_ind),
        (OF_EXAMPLES, outcomes(CHANGED[:, :50]), {}, BY_NOTHING, ttest_ind),
    ],
)
def test_if_only_seeds_or_only_examples_vary_it_is_the_t_test(
    tmp_path, a, b, fields, paired, oracle
):
    """The variance is that of the oracle; the interval is never narrower, since few seeds or units may mislead."""
    row = row_of(compared(tmp_path, a, b, **fields))
    assert (row["paired"], row["seeds_a"], row["examples_b"]) == (paired, len(a.runs), len(b.items))
    rights = [side.values["predicted"] == side.items["gold"].to_numpy() for side in (a, b)]
    one, two = (right.mean(int(a is OF_SEEDS)) for right in rights)
    expected = oracle(two, one, **({"equal_var": False} if oracle is ttest_ind else {}))
    estimate, _ = difference_of(a, b, paired == BY_BOTH)
    mean = two.mean() - one.mean()
    (low, high) = expected.confidence_interval(0.95)
    assert row["difference"] == estimate.mean == pytest.approx(mean)
    assert estimate.variance == pytest.approx((mean / expected.statistic) ** 2)
    assert row["low"] < low + 1e-9
    assert row["high"] > high - 1e-9
    assert row["p"] > expected.pvalue - 1e-9
    assert row["high"] - row["low"] < 1.2 * (high - low)


def test_what_both_sides_share_counts_for_neither():
    """Seeds of two samples, examples in common: two equal models differ in 5% of comparisons, not more."""
    chance = np.random.default_rng(3)
    wrong = 0
    for _ in range(200):
        ease = chance.normal(0.8, 1, 120)
        sides = []
        for _ in range(2):
            ease_of_side = ease + chance.normal(0, 0.4, 120)
            seeds = chance.normal(0, 0.1, (4, 1)) + chance.normal(0, 0.3, (4, 120))
            sides.append(outcomes(ease_of_side + seeds > 0))
        estimate, paired = difference_of(*sides)
        assert paired == BY_EXAMPLE
        wrong += estimate.p() < 0.05
    assert 2 <= wrong <= 20  # 10 are expected, with a standard deviation of 3.1


def folders(tmp_path, one, two, margin=0.1, examples=2000, **fields):
    """Two results, the second with fewer right examples; attention contributes .4 of the score."""
    right = drawn(0.9, examples, 1)
    floor = flipped(right, int(0.4 * examples), start=int(0.4 * examples))
    return [
        results(
            tmp_path / name,
            outcomes({ORIGINALS: right, FLOOR: floor, HALF: flipped(right, lost)}),
            margin=margin,
            **fields,
        )
        for name, lost in (("a", one), ("b", two))
    ]


@pytest.mark.parametrize(
    ("lost", "examples", "verdict"),
    [
        (400, 2000, DIFFERS),
        (20, 2000, DIFFERS_BY_LESS),
        (0, 2000, IDENTICAL),
        (2, 2000, EQUAL),
        (3, 60, UNDECIDED),
    ],
)
def test_every_verdict(tmp_path, lost, examples, verdict):
    a, b = folders(tmp_path, 0, lost, examples=examples, margin=0.2)
    comparison = compare(a, b, 0.1)
    row = row_of(comparison, HALF)
    assert row["verdict"] == verdict, row
    assert comparison["verdicts"][verdict] >= 1
    assert comparison["differ"] == verdict.startswith(DIFFERS)
    assert row["same"] == (lost == 0)
    assert comparison["compared"] == 3
    assert not any(comparison[name] for name in ("only_a", "only_b", "settings"))
    # of the claims of A, or as given; points need no contribution of attention
    for margin, delta in ((None, 0.08), (0.1, 0.04), ("10%", 0.04), ("3 points", 0.03)):
        comparison = compare(a, b, margin)
        assert row_of(comparison)["delta"] == pytest.approx(delta, rel=0.05)


def decoder(folder, zeros, shift=0.0, original=1.0):
    """The results of a decoder from nats per token on 60 texts; a guess from frequencies loses 4."""
    wave = 0.05 * np.cos(np.arange(60))
    losses = {
        ORIGINALS: np.full(60, original),
        FLOOR: zeros + wave,
        Setting("average", None, "0"): 2.0 + shift + 2 * wave,
    }
    return results(folder, texts(losses, np.full(60, 10), model="tiny", task="next"))


@pytest.mark.parametrize(("zeros", "original"), [(3.0, 1.0), (7.0, 1.0), (7.0, 5.0)])
def test_a_decoder_equals_itself_and_without_a_margin_nothing_else(tmp_path, zeros, original):
    """Also if a blind guess beats its scores without attention; one that beats the original leaves no margin."""
    a, b = (
        decoder(tmp_path / name, zeros, shift, original)
        for name, shift in (("a", 0.0), ("b", 1e-6))
    )
    comparison = compare(a, a)
    assert (comparison["same"], comparison["differ"], comparison["verdicts"][IDENTICAL]) == (
        3,
        0,
        3,
    )
    assert {(row["difference"], row["p"]) for row in comparison["rows"]} == {(0.0, 1.0)}
    assert (row_of(comparison, task="next")["delta"] is None) == (original == 5.0)
    if original == 5.0:
        other = compare(a, b)
        assert other["verdicts"][EQUAL] == 0
        assert "NEXT: there is no δ" in words_of(other)


def test_a_difference_is_that_of_the_scores_also_below_a_blind_guess(tmp_path):
    """δ is a share of what attention contributes above the guess, which is what reliance is a share of."""
    comparison = compare(decoder(tmp_path / "a", 7.0), decoder(tmp_path / "b", 8.0, 0.2))
    row = row_of(comparison, FLOOR, "next")
    assert row["difference"] == pytest.approx(row["b"] - row["a"]) == pytest.approx(-1, abs=0.01)
    assert row["verdict"] == DIFFERS
    assert [row["delta"] for row in comparison["rows"]] == pytest.approx(3 * [0.1 * (4 - 1)])


def test_both_kinds_of_verdict_are_corrected_for_many_tests():
    rows = [
        {"p": p, "p_equal": equal, "same": same}
        for p, equal, same in 2 * [(0.03, 0.9, False), (0.9, 0.03, False)]
    ]
    judged = judge(pd.DataFrame(rows))
    assert {*judged["verdict"]} == {UNDECIDED}
    assert judged["p_equal_holm"].tolist() == pytest.approx([1.0, 0.12, 1.0, 0.12])
    rows = [
        {"p": 1.0, "p_equal": equal, "same": same}
        for equal, same in ((0.03, False), (None, True), (0.0, True))
    ]
    # identical settings are not among the tests of equality
    assert judge(pd.DataFrame(rows))["verdict"].tolist() == [EQUAL, IDENTICAL, IDENTICAL]


def test_equal_is_two_one_sided_tests(tmp_path):
    """At every margin, and it turns from one verdict to another where the larger p of the two passes 5%."""
    a, b = folders(tmp_path, 0, 12, examples=1000)
    verdicts = set()
    for margin in (0.01, 0.03, 0.05, 0.06, 0.08, 0.2):
        row = row_of(compare(a, b, margin), HALF)
        freedom = 999  # of examples, because seeds do not differ
        error = (row["high"] - row["low"]) / 2 / t.ppf(0.975, freedom)
        above, below = ((row["difference"] + side * row["delta"]) / error for side in (1, -1))
        equal = max(t.sf(above, freedom), t.cdf(below, freedom)) < 0.05
        assert (row["verdict"] in (EQUAL, DIFFERS_BY_LESS)) == equal
        verdicts.add(equal)
    assert verdicts == {True, False}


def test_where_nothing_counts_there_is_no_margin(tmp_path):
    right = drawn(0.8, 300, 1)
    for number, scores in enumerate(({ORIGINALS: right}, {ORIGINALS: right, FLOOR: right})):
        a = results(tmp_path / f"{number}", outcomes(scores))
        assert row_of(compare(a, a))["delta"] is None
    one_seed = compared(tmp_path / "one", outcomes(right[:1]), outcomes(right[:1] * 0))
    row = row_of(one_seed)
    assert (row["verdict"], row["p"], row["p_holm"], row["low"]) == (UNDECIDED, None, None, None)
    assert row["difference"] == pytest.approx(-right.mean())
    assert (
        one_seed["tested"],
        one_seed["differ"],
    ) == (0, 0)


def test_draws_of_an_order_are_one_setting(tmp_path):
    """The random orders of both sides are compared as samples, whatever their numbers."""
    right = drawn(0.8, 300, 1, seeds=2)

    def side(name, draws):
        scores = {
            Setting("average", f"random-{draw}", "1/2"): flipped(right, draw) for draw in draws
        }
        return results(tmp_path / name, outcomes({ORIGINALS: right, **scores}))

    comparison = compare(side("a", (1, 2, 3)), side("b", (2, 4)))
    row = row_of(comparison, Setting("average", "random", "1/2"))
    assert (row["order"], comparison["compared"], comparison["only_a"], comparison["only_b"]) == (
        "random",
        2,
        [],
        [],
    )
    assert row["difference"] == pytest.approx(-1 / 300)


def test_what_differs_is_listed(tmp_path):
    right = drawn(0.8, 300, 1)
    shared = outcomes(right, "sst2")
    a = results(
        tmp_path / "a", shared, outcomes({ORIGINALS: right, HALF: right}), outcomes(right, "mrpc")
    )
    b = results(
        tmp_path / "b",
        shared,
        outcomes({ORIGINALS: flipped(right, 60), FLOOR: right}),
        outcomes(right, "mrpc", metric="f1"),
        models={"precision": "bfloat16", "files": "f", "papa": "9"},
        learning_rate=2e-3,
        rows_available_train=9000,
    )
    comparison = json.loads(json.dumps(compare(a, b), allow_nan=False))
    assert [row["task"] for row in comparison["rows"]] == [
        "sst2",
        "cola",
    ]  # mrpc has another metric
    assert [[row["fraction"] for row in comparison[name]] for name in ("only_a", "only_b")] == [
        ["1/2", "1"],
        ["0", "1"],
    ]
    settings = ["{task}: {setting} {a} {b}".format(**row) for row in comparison["settings"]]
    assert sorted(settings) == [
        "None: files ['w'] ['f']",
        "None: papa ['1'] ['9']",
        "None: precision ['float32'] ['bfloat16']",
        "cola: learning_rate [0.001] [0.002]",
        "cola: rows_available_train [8551] [9000]",
        "mrpc: learning_rate [0.001] [0.002]",
        "mrpc: metric ['accuracy'] ['f1']",
        "mrpc: rows_available_train [8551] [9000]",
        "sst2: learning_rate [0.001] [0.002]",
        "sst2: rows_available_train [8551] [9000]",
    ]
    words = words_of(comparison, 100)
    assert "2 compared: 1 differ, 1 identical, 0 equal within the margin, 0 undecided." in words
    row = row_of(comparison)  # no number is broken
    assert f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]" in words


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("b", "no setting in common: tiny on cola and tiny on sst2"),
        ("f1", "and the same metric"),
        ("nowhere", "does not exist"),
        (".", "has no tables/outcomes.parquet"),
        ("summary", "is not a table of outcomes"),
        *((margin, "is not a margin") for margin in (0, 1)),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(tmp_path, other, message):
    right = drawn(0.8, 30, 1, seeds=1)
    a = results(tmp_path / "a", outcomes(right))
    results(tmp_path / "b", outcomes(right, "sst2"))
    results(tmp_path / "f1", outcomes(right, metric="f1"))
    summary = tmp_path / "summary" / OUTCOMES
    write_table(table_of([outcomes(right)])[0], summary, {"table": "summary"})
    given = (tmp_path / other,) if isinstance(other, str) else (a, other)
    with input_error(message):
        compare(a, *given)


def test_another_kind_of_task_on_one_side_changes_nothing(tmp_path):
    """It adds columns of items, which the other tasks then have, too, without values."""
    shared = outcomes(drawn(0.8, 60, 1))
    own_head = texts({ORIGINALS: [np.linspace(1, 2, 20)]}, np.full(20, 5), task="lm")
    a = results(tmp_path / "a", shared, own_head)
    assert row_of(compare(a, results(tmp_path / "b", shared)))["verdict"] == IDENTICAL
