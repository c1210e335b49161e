"""The words of conclusions, and how percentages are written."""

import math

import pytest

from papa.config.variant import NUMBERED, ORDERS
from papa.results.conclusion import EndLoss, Exclusion, RisingTask, Step, TaskLoss, TaskTraining
from papa.results.phrases import (
    NO_INTERVAL,
    above_all,
    bound,
    excluded,
    holds_for,
    in_order,
    interval_text,
    loss,
    loss_text,
    mean_text,
    percent,
    rising,
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


def trained(**changes):
    usual = {"task": "A", "probe": "paper", "layouts": ("paper",), "learning_rate": 3e-4, "batch_size": 8}
    usual |= {"epochs": (3.0, 3.0), "maximum": 3, "patience": None, "rows": 5000, "resampled": False}
    return TaskTraining.model_validate(usual | changes)


SETTLED = {"patience": 2, "maximum": 30, "epochs": (4.333333, 9.0)}


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (
            [trained()],
            "and the paper's probe, trained for 3 epochs at a learning rate of 0.0003 on one sample of 5,000 rows.",
        ),
        (
            [trained(), trained(maximum=1, learning_rate=2e-5, rows=16000, probe="linear")],
            "and the paper's probe or a linear probe, trained for 1 to 3 epochs at learning rates of 2e-05 to 0.0003 "
            "on one sample of 5,000 to 16,000 rows.",
        ),
        (
            [trained(**SETTLED, resampled=True)],
            "and the paper's probe, trained until the held-out loss stopped falling (4.3 to 9 epochs) at a learning "
            "rate of 0.0003 on 5,000 rows for each seed; intervals cover the choice of rows.",
        ),
        (
            [trained(maximum=1), trained(**SETTLED, resampled=True)],
            "and the paper's probe, trained for 1 epoch or until the held-out loss stopped falling (4.3 to 9 epochs) "
            "at a learning rate of 0.0003 on 5,000 rows; intervals cover the choice of rows only in some tasks.",
        ),
    ],
)
def test_a_conclusion_names_the_recipe_that_it_holds_for(tasks, words):
    assert holds_for(tasks) == f"Holds for the paper's layout {words}"


def test_a_recipe_names_every_layout_and_may_be_absent():
    assert holds_for([]) == ""
    both = holds_for([trained(layouts=("paper", "contiguous"))])
    assert both.startswith("Holds for the paper's layout or the layout contiguous and the paper's probe, trained")
