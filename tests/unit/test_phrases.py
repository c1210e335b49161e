"""The words of conclusions, and how percentages are written."""

import math

import pytest
from builders import line_claim

from papa.config.variant import NUMBERED, ORDERS
from papa.results.conclusion import EndLoss, Exclusion, RisingTask, Step, TaskLoss
from papa.results.phrases import (
    NO_INTERVAL,
    above_all,
    bound,
    excluded,
    in_order,
    interval_text,
    loss,
    loss_text,
    mean_text,
    percent,
    replaceable,
    rising,
    tried,
    with_interval,
    without_loss,
)

STEP = {"grid": "g", "line": "l", "model": "m", "heads": 16, "constant": "average", "order": "lambda"}
STEP |= {"fraction": "1/8", "replaced": 14, "tasks": 2, "worst": "A"}


@pytest.mark.parametrize("order", [*ORDERS, "layers-in-turn"])
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
        (range(6, 73, 6), "tried: 6, 12, … 72"),
        ([1, 2, 3, 4, 5, 6, 8], "tried: 7 numbers from 1 to 8"),
    ],
)
def test_measured_numbers_of_heads_are_named(numbers, words):
    claim = line_claim(measured=tuple(numbers), replaceable=0)
    assert tried(claim) == words
    assert replaceable(claim, 0.1, named=False).endswith(f" ({words}).")


@pytest.mark.parametrize(
    ("share", "decimals", "upper", "text"),
    [
        *((0.344, 0, False, "34 %"), (-0.06, 0, False, "-6 %"), (-0.004, 0, False, "0 %"), (1.12, 0, False, "112 %")),
        *((0.2484, 1, False, "24.8 %"), (-0.0353, 1, False, "-3.5 %")),
        *((0.125, None, False, "12.5 %"), (0.1, None, False, "10 %")),
        *((0.07, 0, True, "7 %"), (0.1, 0, True, "10 %"), (0.1001, 0, True, "11 %"), (math.inf, 0, True, "no bound")),
        *((math.nan, 0, False, "-"), (None, 1, False, "-")),
    ],
)
def test_a_share_in_percent(share, decimals, upper, text):
    assert percent(share, decimals, upper) == text


def test_intervals_and_losses():
    assert interval_text(0.294, 0.401) == "29 to 40 %" and interval_text(-0.48, 0.71) == "-48 to 71 %"
    assert interval_text(math.nan, 0.4) == interval_text(None, None) == "-"
    assert interval_text(-math.inf, math.inf) == "unbounded"
    assert with_interval(0.29, 0.4) == "95 % interval 29 to 40 %" and with_interval(0.29, math.inf) == NO_INTERVAL
    assert loss_text(0.34, 0.29, 0.4) == "34 % (29 to 40)" and loss_text(0.34, -math.inf, math.inf) == "34 %"
    assert loss_text(None, None, None) == loss_text(math.nan, math.nan, math.nan) == "-"
    assert mean_text(0.15) == "15.0 %" and mean_text(None) == "-"
    assert loss(TaskLoss(task="A", loss=0.5, low=0.42, high=0.58)) == "50 % (95 % interval 42 to 58 %)"
    unbounded = EndLoss(loss=0.5, low=-math.inf, high=math.inf, tasks=(), subsets=())
    assert loss(unbounded) == f"50 % ({NO_INTERVAL})"
    assert above_all(1.004) == "" and above_all(1.2).startswith(" Above 100 %, more is lost than")


def test_a_bound_an_exclusion_and_a_rising_curve():
    bounded = Step(**STEP, bound=0.4401, margin=0.4401)
    assert bound(bounded) == "with 14 replaced, the upper bound of the loss on A is 45 %"
    for unbounded in (Step(**STEP), Step(**STEP, bound=math.inf, margin=math.inf)):
        assert bound(unbounded) == "with 14 replaced, the loss on A has no upper bound"
    silent = Exclusion(task="B", why="attention contributes nothing measurable")
    assert excluded(silent) == "B: attention contributes nothing measurable"
    assert excluded(silent, " (m)", counted=True) == "B (m) is excluded: attention contributes nothing measurable"
    assert without_loss([silent, silent]).startswith("No loss: B: attention") and without_loss([]) == ""
    runs = ("original", "replaced heads", "contextless floor")
    assert rising(RisingTask(task="A", runs=runs, loss="larger")) == (
        "A (original, replaced heads and context-free floor: its loss may be larger than measured)"
    )
    assert rising(RisingTask(task="A", runs=runs[:1], loss=None)) == "A (original)"
