"""The words of conclusions, and how percentages are written."""

import math

import numpy as np
import pytest
from builders import line_claim

from papa.config.variant import NUMBERED, ORDERS
from papa.results.conclusion import (
    EndLoss,
    Exclusion,
    Step,
    TaskClaim,
    TaskLoss,
)
from papa.results.phrases import (
    NO_INTERVAL,
    above_all,
    bound,
    bound_text,
    by_task,
    excluded,
    floors_used,
    in_order,
    interval_text,
    loss,
    loss_text,
    mean_text,
    percent,
    replaceable,
    tried,
    with_interval,
    without_loss,
)

STEP = {"grid": "g", "line": "l", "model": "m", "heads": 16, "constant": "average", "order": "lambda"}
STEP |= {"fraction": "1/8", "replaced": 14, "tasks": 2, "worst": "A"}


@pytest.mark.parametrize("order", [*ORDERS, "layers-in-turn", "list-duo"])
def test_every_order_has_words(order):
    """Also an order that somebody adds, and then gives seeds or draws."""
    words = [in_order(order, draws) for draws in (0, 1, 3)]
    assert words[0] == words[1] and all(words)
    assert ("3" in words[2]) or order not in NUMBERED


def test_words_of_orders_are_parts_of_sentences():
    assert in_order("lambda", 1) == "in the order of λ" and in_order("lambda", 3) == "averaged over 3 orders of λ"
    assert in_order("layers-in-turn", 0) == "in the order layers-in-turn"
    assert in_order("layers-in-turn", 2) == "averaged over 2 orders layers-in-turn"
    assert in_order(None, 0) == ""


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([16], "tried: 16"),
        ([14, 8], "tried: 8 and 14"),
        ([36, 63, 68, 72], "tried: 36, 63, 68 and 72"),
        (range(6, 73, 6), "tried: 12 numbers from 6 to 72"),
        ([1, 2, 3, 4, 5, 6, 8], "tried: 7 numbers from 1 to 8"),
    ],
)
def test_measured_numbers_of_heads_are_named(numbers, words):
    steps = [Step(**STEP | {"replaced": number}, margin=1.0) for number in sorted(numbers)]
    claim = line_claim(tuple(steps), replaceable=0)
    assert tried(claim) == words
    assert replaceable(claim, 0.1, named=False).endswith(f" ({words}).")


@pytest.mark.parametrize(
    ("share", "decimals", "text"),
    [
        *((0.344, 0, "34 %"), (-0.06, 0, "-6 %"), (-0.004, 0, "0 %"), (1.12, 0, "112 %")),
        *((0.2484, 1, "24.8 %"), (-0.0353, 1, "-3.5 %"), (0.125, None, "12.5 %"), (0.1, None, "10 %")),
        *((math.inf, 0, "no bound"), (math.nan, 0, "-"), (None, 1, "-")),
    ],
)
def test_a_share_in_percent(share, decimals, text):
    assert percent(share, decimals) == text


@pytest.mark.parametrize(
    ("bound", "margin", "text"),
    [
        *((0.07, 0.1, "7 %"), (0.0701, 0.1, "8 %"), (0.1, 0.1, "10 %"), (0.1001, 0.1, "11 %"), (-0.004, 0.1, "0 %")),
        *((0.099, 0.1, "9.9 %"), (0.0991, 0.1, "9.91 %"), (0.09999, 0.1, "9.999 %"), (0.099, 0.2, "10 %")),
        *((0.024, 0.025, "2.4 %"), (0.0251, 0.025, "3 %"), (0.1 - 1e-13, 0.1, "just below 10 %")),
        *((2.0, 0.1, "200 %"), (5.28, 0.1, "over 200 %"), (math.inf, 0.1, "no bound"), (math.nan, 0.1, "-")),
    ],
)
def test_a_bound_is_rounded_up_and_stays_below_the_margin(bound, margin, text):
    assert bound_text(bound, margin) == text


def test_printed_bounds_compare_with_the_margin_as_they_are():
    for exact in np.random.default_rng(3).uniform(0.09, 0.11, 997):
        printed = float(bound_text(exact, 0.1).removesuffix(" %")) / 100
        assert (printed < 0.1) == (exact < 0.1) and printed >= exact - 1e-12


def test_intervals_and_losses():
    assert interval_text(0.294, 0.401) == "29 to 40 %" and interval_text(-0.48, 0.71) == "-48 to 71 %"
    assert interval_text(math.nan, 0.4) == interval_text(None, None) == "-"
    assert interval_text(-math.inf, math.inf) == "unbounded"
    assert with_interval(0.29, 0.4) == "95 % interval 29 to 40 %" and with_interval(0.29, math.inf) == NO_INTERVAL
    assert loss_text(0.34, 0.29, 0.4) == "34 % (29 to 40)" and loss_text(0.34, -math.inf, math.inf) == "34 %"
    # an interval of twice all that attention contributes says nothing
    assert interval_text(-0.48, 5.28) == "unbounded" and with_interval(-0.48, 5.28) == NO_INTERVAL
    assert loss_text(0.8, -0.48, 5.28) == "80 %" and interval_text(2.4, 2.6) == "240 to 260 %"
    assert loss_text(None, None, None) == loss_text(math.nan, math.nan, math.nan) == "-"
    assert mean_text(0.15) == "15.0 %" and mean_text(None) == "-"
    assert loss(TaskLoss(task="A", loss=0.5, low=0.42, high=0.58)) == "50 % (95 % interval 42 to 58 %)"
    unbounded = EndLoss(loss=0.5, low=-math.inf, high=math.inf, tasks=(), subsets=())
    assert loss(unbounded) == f"50 % ({NO_INTERVAL})"
    assert above_all(1.004) == "" and above_all(1.2).startswith(" Above 100 %, more is lost than")


def test_a_bound_and_an_exclusion():
    bounded = Step(**STEP, bound=0.4401, margin=0.4401)
    assert bound(bounded, 0.1) == "with 14 replaced, the one-sided upper bound of the loss on A is 45 %"
    for unbounded in (Step(**STEP), Step(**STEP, bound=math.inf, margin=math.inf)):
        assert bound(unbounded, 0.1) == "with 14 replaced, the loss on A cannot be bounded"
    silent = Exclusion(task="B", why="attention contributes nothing measurable")
    assert excluded(silent) == "B: attention contributes nothing measurable"
    assert excluded(silent, " (m)", counted=True) == "B (m) is excluded: attention contributes nothing measurable"
    more = excluded(silent.model_copy(update={"needed": 8000}))
    assert more == f"{excluded(silent)} (8,000 validation examples may show the measured difference)"
    assert without_loss([silent, silent]).startswith("No loss: B: attention") and without_loss([]) == ""


@pytest.mark.parametrize(
    ("corrected", "words"),
    [
        (
            {"A": 0, "B": 1, "C": 16, "D": 16},
            "all 16 heads are replaceable on C and D; 1 head is replaceable on B; no number of heads was shown to be "
            "replaceable on A.",
        ),
        ({"A": 0, "B": 0, "C": 0}, "no number of heads was shown to be replaceable on A, B or C."),
    ],
)
def test_claims_about_single_tasks_are_clauses(corrected, words):
    tasks = [TaskClaim(task=task, replaceable=16, corrected=number, steps=()) for task, number in corrected.items()]
    sentence = by_task(line_claim(by_task=tuple(tasks), task_claims=len(tasks)))
    assert sentence == f"Each task by itself, corrected for {len(tasks)} claims: {words}"


def test_the_floors_are_named():
    four = {"A": ("zeros",), "B": ("identity",), "C": ("mean-output",), "D": ("zeros",)}
    highest = "The highest of these floors is zeros on A and D; identity on B; and mean-output on C."
    assert floors_used(line_claim(floors=four)) == f"Claims hold against identity, mean-output and zeros. {highest}"
    assert floors_used(line_claim(floors={"A": ("zeros",)})) == ""
