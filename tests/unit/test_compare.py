"""Two results held against each other: Welch's test as scipy has it, Holm's correction by hand, what is said."""

import io
import json

import pytest
from rich.console import Console
from scipy.stats import ttest_ind
from test_summary import run

from papa.config.stages import RunsOf
from papa.config.study import Job
from papa.errors import InputError
from papa.files import Trace, write_json
from papa.results.compare import compare, holm, print_comparison
from papa.results.runs import ALL
from papa.results.summary import summarise

NEAR, FAR = (0.70, 0.72, 0.71), (0.90, 0.93, 0.91)
VARIANTS = {"1": "original", "0": "average/all", "1/2": "average/lambda/kept-1of2"}


def results(folder, scores, trace=None, **other):
    """A results folder with runs of one model, from scores over seeds by (task, fraction)."""
    files = []
    for (task, fraction), own in scores.items():
        for seed, score in enumerate(own, start=1):
            path = folder / f"models/tiny/tasks/{task}/runs/{VARIANTS[fraction]}/seed-{seed}.json"
            write_json(run(task, fraction, seed, score, **other), path, trace)
            files.append(path)
    tables = folder / "tables"
    outputs = {"runs": "runs.parquet", "summary": "summary.parquet", "markdown": "summary.md", "latex": "summary.tex"}
    outputs = {name: str(tables / file) for name, file in outputs.items()}
    summarise(Job("summary", RunsOf(titles={}), {"runs": tuple(map(str, files))}, outputs))
    return folder


def said(a, b):
    console = Console(file=io.StringIO(), width=100, markup=False, highlight=False, emoji=False)
    print_comparison(compare(a, b), console)
    return " ".join(console.file.getvalue().split())


def test_the_same_is_the_same(tmp_path):
    scores = {("cola", "1"): FAR, ("cola", "0"): NEAR, ("sst2", "1"): (0.5,)}
    a, b = results(tmp_path / "a", scores), results(tmp_path / "b", scores)
    found = compare(a, b)
    assert (found["compared"], found["equal"], found["tested"]) == (3, 3, 2)
    assert not any(found[name] for name in ("beyond", "untested", "within", "only_a", "only_b", "settings"))
    assert "The same: the scores agree to the last digit." in said(a, b)


@pytest.mark.filterwarnings("ignore:Precision loss")  # of the oracle, where one side has no spread
@pytest.mark.parametrize(
    ("one", "two"), [(FAR, NEAR), (NEAR, (0.71, 0.70, 0.75)), (NEAR, (0.6, 0.9)), ((0.5, 0.5, 0.5), NEAR)]
)
def test_intervals_and_p_are_those_of_scipy(tmp_path, one, two):
    found = compare(results(tmp_path / "a", {("cola", "1"): one}), results(tmp_path / "b", {("cola", "1"): two}))
    oracle = ttest_ind(two, one, equal_var=False)
    low, high = oracle.confidence_interval(0.95)
    entries = found["beyond"]
    assert bool(entries) == (oracle.pvalue < 0.05)
    for entry in entries:
        assert entry["difference"] == pytest.approx(sum(two) / len(two) - sum(one) / len(one))
        assert (entry["p"], entry["low"], entry["high"]) == pytest.approx((oracle.pvalue, low, high))
        assert entry["p_holm"] == entry["p"]  # of one test
    assert found["within"] == (not entries)


def test_holm_is_worked_out_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_many_comparisons_are_corrected_for(tmp_path):
    """p of the one difference is about 0.02: beyond by itself, and not among ten."""
    scores = {(f"task{number}", "1"): NEAR for number in range(10)}
    moved = {**scores, ("task0", "1"): (0.76, 0.79, 0.75)}
    p = ttest_ind(NEAR, moved["task0", "1"], equal_var=False).pvalue
    assert 0.05 / 10 < p < 0.05
    alone = compare(
        results(tmp_path / "a", {("task0", "1"): NEAR}), results(tmp_path / "b", {("task0", "1"): moved["task0", "1"]})
    )
    assert len(alone["beyond"]) == 1
    a, b = results(tmp_path / "all", scores), results(tmp_path / "moved", moved)
    among = compare(a, b)
    assert not among["beyond"] and (among["within"], among["within_but_outside_own_interval"]) == (1, 1)
    assert "10 settings in both: 9 equal, 1 different within intervals, 0 beyond them." in said(a, b)


def test_what_differs_is_listed(tmp_path):
    a = results(tmp_path / "a", {("cola", "1"): FAR, ("cola", "0"): FAR, ("sst2", "1"): (0.5,), ("mrpc", "1"): NEAR})
    b = results(
        tmp_path / "b",
        {("cola", "1"): FAR, ("cola", "0"): NEAR, ("sst2", "1"): (0.6,), ("cola", "1/2"): FAR},
        learning_rate=2e-3,
        provenance={"weights": "f" * 64, "papa_version": "9"},
        rows_available={"train": 9000, "validation": 53},
    )
    found = json.loads(json.dumps(compare(a, b), allow_nan=False))
    [beyond] = found["beyond"]
    assert (beyond["task"], beyond["fraction"], beyond["constant"], beyond["subset"]) == ("cola", "0", "average", ALL)
    assert beyond["drop_a"] == 0 and beyond["drop_b"] == pytest.approx(1 - sum(NEAR) / sum(FAR))
    [untested] = found["untested"]
    assert untested["task"] == "sst2" and untested["difference"] == pytest.approx(0.1) and untested["p"] is None
    assert [row["task"] for row in found["only_a"]] == ["mrpc"] and [row["fraction"] for row in found["only_b"]] == [
        "1/2"
    ]
    settings = {(row["task"], row["setting"]): (row["a"], row["b"]) for row in found["settings"]}
    assert settings == {
        ("cola", "learning_rate"): ([1e-3], [2e-3]),
        ("sst2", "learning_rate"): ([1e-3], [2e-3]),
        ("cola", "rows_available_train"): ([8551], [9000]),
        ("sst2", "rows_available_train"): ([8551], [9000]),
    }
    [drop] = [drop for drop in found["mean_drops"] if drop["fraction"] == "0"]
    assert drop["a"] == 0 and drop["b"] == beyond["drop_b"]
    page = said(a, b)
    for words in (
        "Beyond intervals",
        "Settings that differ",
        "Only in A: 1 setting model task setting",
        "tiny mrpc (Accuracy) 1 Only in B: 1 setting",
        "tiny cola (Accuracy) 1/2 average lambda",
        "0.002",
    ):
        assert words in page
    assert "3 settings in both: 1 equal, 0 different within intervals, 1 beyond them, 1 without an interval" in page


def test_versions_and_weights_of_runs_are_settings(tmp_path):
    scores = {("cola", "1"): FAR}
    a = results(tmp_path / "a", scores, provenance={"weights": "e" * 64, "papa_version": "1"})
    b = results(tmp_path / "b", scores, provenance={"weights": "f" * 64, "papa_version": "2"})
    assert {row["setting"] for row in compare(a, b)["settings"]} == {"weights", "papa_version"}
    assert "agree to the last digit; settings differ." in said(a, b)


def test_precision_is_read_from_traces(tmp_path):
    def made(name, precision):
        trace = Trace("probe", 1, {"model": {"name": "tiny", "precision": precision}}, {})
        return results(tmp_path / name, {("cola", "1"): FAR}, trace)

    [found] = compare(made("a", "float32"), made("b", "bfloat16"))["settings"]
    assert (found["model"], found["task"], found["setting"]) == ("tiny", None, "precision")
    assert (found["a"], found["b"]) == (["float32"], ["bfloat16"])


def test_without_any_spread_a_difference_is_beyond(tmp_path):
    a, b = results(tmp_path / "a", {("cola", "1"): [1.0] * 3}), results(tmp_path / "b", {("cola", "1"): [0.9] * 3})
    assert compare(a, b)["beyond"][0]["p"] == 0 and not compare(a, a)["beyond"]


def test_files_are_compared_as_folders_are(tmp_path):
    a = results(tmp_path / "a", {("cola", "1"): FAR}, learning_rate=2e-3)
    b = results(tmp_path / "b", {("cola", "1"): NEAR})
    whole = compare(a, b)
    for name in ("summary", "runs"):
        found = compare(*(folder / f"tables/{name}.parquet" for folder in (a, b)))
        assert found["beyond"] == whole["beyond"]
        assert len(found["settings"]) == (name == "runs")


def test_what_cannot_be_compared_is_one_sentence(tmp_path):
    a, b = results(tmp_path / "a", {("cola", "1"): FAR}), results(tmp_path / "b", {("sst2", "1"): FAR})
    run_file = next(a.rglob("seed-1.json"))
    for one, two, expected in (
        (a, b, "no setting in common: tiny on cola and tiny on sst2"),
        (a, tmp_path / "nowhere", "There is no"),
        (a, tmp_path, "has no tables/summary.parquet"),
        (a, run_file, "cannot be read|does not say"),
    ):
        with pytest.raises(InputError, match=expected):
            compare(one, two)
    run_file.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="delete it and run the workflow again"):
        compare(a, a)
