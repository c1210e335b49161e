"""The numbers at the top of a report, against arithmetic by hand."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any

import pandas as pd
import pytest
from scipy.stats import t

from papa.results.claims import claims_of

ORIGINAL = {"a": [0.80, 0.82, 0.84], "b": [0.50, 0.52, 0.51]}
HALF = {"a": [0.81, 0.80, 0.85], "b": [0.50, 0.50, 0.52]}
EIGHTH = {"a": [0.81, 0.81, 0.84], "b": [0.45, 0.47, 0.465]}
NONE = {"a": [0.60, 0.63, 0.62], "b": [0.40, 0.41, 0.42]}
SCORES = {"1": ORIGINAL, "1/2": HALF, "1/8": EIGHTH, "0": NONE}
KEPT = {"1": 16, "1/2": 8, "1/8": 2, "0": 0}


def rows(scores: dict[str, dict[str, list[float]]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The summary and the runs of one line."""
    summary: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for fraction, tasks in scores.items():
        for task, own in tasks.items():
            original = fmean(scores["1"][task])
            row = {
                "line": "m",
                "model": "m",
                "task": task,
                "title": task.upper(),
                "constant": None if fraction == "1" else "average",
                "order": "lambda" if fraction not in ("0", "1") else None,
                "fraction": fraction,
                "kept": KEPT[fraction],
                "heads": 16,
                "main": True,
                "subset": "all",
            }
            drop = (original - fmean(own)) / original if len(own) > 1 else None
            summary.append(row | {"mean": fmean(own), "relative_drop": drop, "seeds": len(own)})
            runs += [row | {"seed": seed, "score": score} for seed, score in enumerate(own)]
    return pd.DataFrame(summary), pd.DataFrame(runs)


def test_mean_drop_and_its_interval() -> None:
    [claim] = claims_of(*rows(SCORES))
    each = [
        fmean((ORIGINAL[task][seed] - NONE[task][seed]) / fmean(ORIGINAL[task]) for task in "ab") for seed in range(3)
    ]
    half = t.ppf(0.975, 2) * stdev(each) / math.sqrt(3)
    expected = {"mean": fmean(each), "low": fmean(each) - half, "high": fmean(each) + half}
    assert claim["drop"] == pytest.approx(expected)
    assert (claim["tasks"], claim["without"], claim["seeds"], claim["heads"]) == (2, [], [3], 16)
    assert (claim["model"], claim["constant"], claim["order"]) == ("m", "average", "lambda")


def test_heads_are_free_up_to_the_first_fraction_at_which_a_task_lost() -> None:
    [claim] = claims_of(*rows(SCORES))
    # b lost 0.05 with every seed at 1/8; a never lost before 0
    assert (claim["free"], claim["next"], claim["lost"]) == (8, 14, ["B"])
    drop = fmean((fmean(ORIGINAL[task]) - fmean(HALF[task])) / fmean(ORIGINAL[task]) for task in "ab")
    assert claim["part"]["heads"] == 8 and claim["part"]["mean"] == pytest.approx(drop)


def test_a_loss_at_once_leaves_no_head_free_and_none_at_all_frees_every_head() -> None:
    [claim] = claims_of(*rows({"1": ORIGINAL, "1/2": EIGHTH, "0": NONE}))
    assert (claim["free"], claim["next"], claim["lost"], claim["part"]["heads"]) == (0, 8, ["B"], 8)
    [claim] = claims_of(*rows({"1": ORIGINAL, "1/2": HALF, "0": HALF}))
    assert (claim["free"], claim["next"], claim["lost"]) == (16, None, [])


def test_a_fraction_beyond_a_loss_is_not_free_even_where_nothing_is_lost() -> None:
    [claim] = claims_of(*rows({"1": ORIGINAL, "1/2": EIGHTH, "1/8": HALF, "0": NONE}))
    assert claim["free"] == 0


def test_one_seed_gives_no_interval_and_frees_nothing() -> None:
    one = {fraction: {task: own[:1] for task, own in tasks.items()} for fraction, tasks in SCORES.items()}
    summary, runs = rows(one)
    [claim] = claims_of(summary.assign(relative_drop=0.1), runs)
    assert claim["drop"] == {"mean": pytest.approx(0.1), "low": None, "high": None}
    assert (claim["free"], claim["next"], claim["part"]) == (None, None, None)


def test_tasks_without_a_drop_are_named_and_left_out() -> None:
    summary, runs = rows(SCORES)
    summary.loc[summary["task"] == "b", "relative_drop"] = None
    [claim] = claims_of(summary, runs)
    assert (claim["tasks"], claim["without"]) == (1, ["B"])
    assert claim["drop"]["mean"] == pytest.approx((0.82 - fmean(NONE["a"])) / 0.82)
    assert claim["free"] == 8  # scores are compared all the same


def test_a_seed_counts_once_however_many_random_orders_were_drawn() -> None:
    summary, runs = rows(SCORES)
    moved = 0.02 * (runs["fraction"] == "1/2")
    again = runs.assign(score=runs["score"] - moved)[runs["fraction"] == "1/2"]
    drawn = pd.concat([runs.assign(score=runs["score"] + moved), again])
    [one], [other] = claims_of(summary, runs), claims_of(summary, drawn)
    assert other["part"] == pytest.approx(one["part"]) and other["free"] == one["free"]


def test_a_line_without_fraction_0_has_no_drop() -> None:
    [claim] = claims_of(*rows({"1": ORIGINAL, "1/2": HALF}))
    assert claim["drop"] is None and claim["free"] == 8
