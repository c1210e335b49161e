"""Per-sample logs of lm-evaluation-harness: which are read and paired, and what a comparison of two says."""

import io
import json

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import t, ttest_rel
from typer.testing import CliRunner

from papa.cli import app
from papa.errors import InputError
from papa.results.compare import DIFFERS, DIFFERS_BY_LESS, EQUAL, IDENTICAL, INCONCLUSIVE
from papa.results.sample_logs import compare_logs, print_logs, read_log

CHANCE = np.random.default_rng(11)


def line(document, value, **fields):
    """A line as lm-evaluation-harness 0.4 writes it for a task with choices."""
    about = {"doc_id": document, "doc": {"question": f"q{document}", "answer": document % 3}, "target": document % 3}
    about |= {"arguments": {"gen_args_0": {"arg_0": f"q{document}", "arg_1": " yes"}}, "resps": [[["-3.5", "False"]]]}
    about |= {
        "filtered_resps": [["-3.5", "False"]],
        "filter": "none",
        "metrics": ["acc"],
        "doc_hash": f"hash{document}",
    }
    return about | {"prompt_hash": "p", "target_hash": "t", "acc": value} | fields


def write(folder, lines, task="arc_easy", date="2026-01-02T03-04-05.678901"):
    folder.mkdir(exist_ok=True)
    path = folder / f"samples_{task}_{date}.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines), encoding="utf-8")
    return path


def logs(folder, first, second):
    """Two logs with these values of each document; the second is in another order."""
    lines = [[line(document, value) for document, value in enumerate(values)] for values in (first, second)]
    return write(folder / "a", lines[0]), write(folder / "b", lines[1][::-1], date="2026-02-03T04-05-06.7")


def correct(size, share=0.7):
    return (CHANCE.random(size) < share).astype(float)


def flipped(values, number):
    """The same values, with this many changed: right ones and wrong ones in turn."""
    changed = values.copy()
    for kind in (0, 1):
        places = np.flatnonzero(values == kind)[: number // 2]
        changed[places] = 1 - kind
    return changed


def test_values_are_paired_by_document(tmp_path):
    first, second = correct(211), correct(211, 0.6)
    result = compare_logs(*logs(tmp_path, first, second))
    [row] = result["rows"]
    assert (row["task"], row["metric"], row["filter"], row["examples"]) == ("arc_easy", "acc", "none", 211)
    assert (row["a"], row["b"]) == pytest.approx((first.mean(), second.mean()))
    oracle = ttest_rel(second, first)
    assert row["difference"] == pytest.approx(second.mean() - first.mean())
    low, high = oracle.confidence_interval(0.95)
    assert row["low"] <= low + 1e-9 and row["high"] >= high - 1e-9 and row["p"] >= oracle.pvalue - 1e-9
    assert row["high"] - row["low"] < 1.1 * (high - low)


def test_the_smallest_detectable_difference_is_that_of_the_paired_test(tmp_path):
    first = correct(307)
    second = flipped(first, 30)
    [row] = compare_logs(*logs(tmp_path, first, second))["rows"]
    variance = (second - first).var(ddof=1) / 307 + (1 / 307) ** 2  # one unseen document more that differs by 1
    assert row["detectable"] == pytest.approx((t.ppf(0.975, 306) + t.ppf(0.8, 306)) * variance**0.5)


def test_the_smallest_detectable_difference_is_detected_in_four_of_five_comparisons():
    from papa.results.compare import detectable, tested
    from papa.results.statistics import Spread

    chance, size, wrong = np.random.default_rng(5), 701, 0.1

    def drawn(shift):
        """Two models that differ on some documents; the second is better by `shift`."""
        moved = chance.choice([-1.0, 0.0, 1.0], size, p=[wrong - shift / 2, 1 - 2 * wrong, wrong + shift / 2])
        return Spread.of(np.stack([0 * moved, moved])[:, None, None], 1.0, seeded=False).estimate([-1, 1])

    smallest = detectable(drawn(0.0))
    power = np.mean([tested(drawn(smallest), 0.01)["p"] < 0.05 for _ in range(300)])
    assert 0.7 < power < 0.9


@pytest.mark.parametrize(
    ("size", "changed", "margin", "verdict"),
    [
        (101, 0, None, IDENTICAL),
        (5003, 20, None, EQUAL),
        (211, 40, None, INCONCLUSIVE),
        (211, 40, 0.2, EQUAL),
    ],
)
def test_verdicts(tmp_path, size, changed, margin, verdict):
    first = correct(size)
    result = compare_logs(*logs(tmp_path, first, flipped(first, changed)), margin)
    assert result["rows"][0]["verdict"] == verdict and result["verdicts"][verdict] == 1
    assert result["margin"] == (margin or 0.01)


@pytest.mark.parametrize(("lost", "margin", "verdict"), [(60, None, DIFFERS), (60, 0.5, DIFFERS_BY_LESS)])
def test_a_difference_is_found_on_either_side(tmp_path, lost, margin, verdict):
    first = correct(307)
    second = first.copy()
    second[np.flatnonzero(first)[:lost]] = 0
    (tmp_path / "reversed").mkdir()
    for folder, sides, sign in ((tmp_path, (first, second), -1), (tmp_path / "reversed", (second, first), 1)):
        [row] = compare_logs(*logs(folder, *sides), margin)["rows"]
        assert row["verdict"] == verdict and row["difference"] == pytest.approx(sign * lost / 307)


def test_metrics_and_filters_are_one_family(tmp_path):
    """Holm corrects over both filters; a metric that has a value only for the whole corpus is left out and named."""
    paths = []
    for side, offset in (("a", 0), ("b", 60)):
        lines = []
        for name, lost in (("strict-match", offset), ("flexible-extract", 2 * offset)):
            lines += [
                line(document, 0.0, filter=name, metrics=["exact_match", "bleu"])
                | {"exact_match": bool(document >= lost), "bleu": [["x"], ["y"]]}
                for document in range(211)
            ]
        paths.append(write(tmp_path / side, lines, "gsm8k"))
    result = compare_logs(*paths)
    assert [row["filter"] for row in result["rows"]] == ["strict-match", "flexible-extract"]
    assert [row["b"] for row in result["rows"]] == pytest.approx([151 / 211, 91 / 211])
    assert result["skipped"] == ["bleu"] and result["tested"] == 2
    assert result["rows"][0]["p_holm"] == pytest.approx(max(row["p"] for row in result["rows"]))


def test_older_logs_list_no_metrics(tmp_path):
    """Then all numbers that are nothing else are metrics, such as those of version 0.4.0."""
    old = ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps")
    lines = [{name: line(document, 1.0)[name] for name in old} | {"acc": 1.0, "acc_norm": 0.0} for document in range(7)]
    log = read_log(write(tmp_path / "a", lines, "hellaswag"))
    assert list(log.values) == [("acc", "none"), ("acc_norm", "none")]
    assert log.task == "hellaswag" and log.documents["4"] == "1"


BAD = {
    "no lines": ([], "has no lines; pass a file samples_TASK_DATE.jsonl"),
    "no document": ([{"acc": 1}], r"Line 1 of .* is not a JSON object with a doc_id"),
    "no metric": ([line(0, 1.0, metrics=[])], r"has no per-sample metric \(none at all\)"),
    "a metric of the corpus": (
        [line(0, [1, 0])],
        r"has no per-sample metric \(only acc, which no single document has\)",
    ),
    "a text": ([line(0, 1.0), line(1, "yes")], r"acc is 'yes' in line 2 of .*, but must be a number"),
    "not a number": ([line(0, 1.0), line(1, float("nan"))], r"acc is nan in line 2 of"),
    "a missing value": ([line(0, 1.0), line(1, None)], r"acc is missing in line 2 of"),
    "a document twice": ([line(0, 1.0), line(0, 1.0)], r"has doc_id 0 again in line 2; pass the log of one run"),
}


@pytest.mark.parametrize(("lines", "message"), BAD.values(), ids=list(BAD))
def test_a_bad_log_gets_one_sentence(tmp_path, lines, message):
    good = write(tmp_path / "good", [line(0, 1.0)])
    bad = write(tmp_path / "bad", lines)
    for sides in ((good, bad), (bad, good)):
        with pytest.raises(InputError, match=message):
            compare_logs(*sides)


def test_text_that_is_not_json_gets_one_sentence(tmp_path):
    good = write(tmp_path / "good", [line(0, 1.0)])
    bad = tmp_path / "samples_x.jsonl"
    bad.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"Line 1 of .* is not a JSON object"):
        compare_logs(good, bad)
    with pytest.raises(InputError, match="is not a log of samples; pass a file"):
        compare_logs(good, tmp_path)


def test_logs_that_do_not_match_get_one_sentence(tmp_path):
    lines = [line(document, 1.0) for document in range(5)]
    a = write(tmp_path / "a", lines)
    others = {
        "task": write(tmp_path / "task", lines, "piqa"),
        "fewer": write(tmp_path / "fewer", lines[:3]),
        "changed": write(tmp_path / "changed", [*lines[:4], lines[4] | {"doc_hash": "other"}]),
        "metric": write(tmp_path / "metric", [entry | {"metrics": ["f1"], "f1": 1.0} for entry in lines]),
        "filter": write(tmp_path / "filter", [*lines[:4], lines[4] | {"filter": "other"}]),
    }
    messages = {
        "task": r"is a log of the task arc_easy, but .* of piqa; pass logs of one task",
        "fewer": r"different documents: 2 doc_ids only in A \(such as 3\); run both models with the same --limit",
        "changed": "different documents under the same doc_id, such as 4; run both models on the same version",
        "metric": r"have no metric in common: acc \(none\) and f1 \(none\)",
        "filter": "acc with the filter none does not have the same documents",
    }
    for name, path in others.items():
        with pytest.raises(InputError, match=messages[name]):
            compare_logs(a, path)
    single = write(tmp_path / "single", lines[:1])
    with pytest.raises(InputError, match="have one document, but intervals need several"):
        compare_logs(single, single)
    for margin in (0.0, 1.0):
        with pytest.raises(InputError, match="must be between 0 and 1; it is a difference"):
            compare_logs(a, a, margin)


def test_the_result_is_printed_and_is_json(tmp_path):
    first = correct(211)
    sides = logs(tmp_path, first, flipped(first, 40))
    console = Console(file=io.StringIO(), width=110, markup=False, highlight=False, emoji=False)
    print_logs(compare_logs(*sides), console)
    words = " ".join(console.file.getvalue().split())
    assert "0 of 1 differ, 0 are identical, 0 are equal within the margin, 1 is inconclusive." in words
    assert "arc_easy, 211 documents" in words and "δ = 0.01 in units of the metric (the default)" in words
    assert "finds with a probability of 80 %" in words
    run = CliRunner().invoke(app, ["compare", *map(str, sides), "--margin", "0.2", "--json"])
    assert run.exit_code == 0, run.stderr
    assert json.loads(run.stdout)["rows"][0]["verdict"] == EQUAL
    wrong = CliRunner().invoke(app, ["compare", str(sides[0]), str(tmp_path)])
    assert wrong.exit_code == 2 and len(wrong.stderr.splitlines()) == 1
