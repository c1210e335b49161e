"""The words of conclusions, and how percentages are written."""

import math

import numpy as np
import pytest
from builders import line_claim

from papa.config.variant import NUMBERED, ORDERS
from papa.results.conclusion import (
    Assumption,
    EndLoss,
    Exclusion,
    RisingTask,
    Step,
    TaskClaim,
    TaskLoss,
    TaskTest,
    TaskTraining,
)
from papa.results.phrases import (
    ASSUMPTIONS,
    NO_INTERVAL,
    above_all,
    assumption,
    bound,
    bound_text,
    by_task,
    excluded,
    floors_used,
    holds_for,
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
        (range(6, 73, 6), "tried: 6, 12, … 72"),
        ([1, 2, 3, 4, 5, 6, 8], "tried: 7 numbers from 1 to 8"),
    ],
)
def test_measured_numbers_of_heads_are_named(numbers, words):
    claim = line_claim(measured=tuple(numbers), replaceable=0)
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


def test_a_bound_an_exclusion_and_a_rising_curve():
    bounded = Step(**STEP, bound=0.4401, margin=0.4401)
    assert bound(bounded, 0.1) == "with 14 replaced, the one-sided upper bound of the loss on A is 45 %"
    for unbounded in (Step(**STEP), Step(**STEP, bound=math.inf, margin=math.inf)):
        assert bound(unbounded, 0.1) == "with 14 replaced, the loss on A cannot be bounded"
    silent = Exclusion(task="B", why="attention contributes nothing measurable")
    assert excluded(silent) == "B: attention contributes nothing measurable"
    assert excluded(silent, " (m)", counted=True) == "B (m) is excluded: attention contributes nothing measurable"
    assert without_loss([silent, silent]).startswith("No loss: B: attention") and without_loss([]) == ""
    runs = ("original", "replaced heads", "contextless floor")
    tasks = [RisingTask(task="A", runs=runs, loss="larger"), RisingTask(task="B", runs=runs[:1], loss=None)]
    assert rising(tasks) == (
        "On A, the probes of the original, replaced heads and the context-free floor were still improving, so the loss "
        "may be larger than measured. On B, the probes of the original were still improving"
    )
    assert rising([]) == ""


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


def test_the_floor_of_each_task_is_named():
    three = {"A": ("zeros",), "B": ("identity",), "C": ("mean-output",), "D": ("zeros",)}
    assert "is zeros on A and D; identity on B; and mean-output on C, of" in floors_used(line_claim(floors=three))
    floors = {"A": ("mean-output", "zeros"), "B": ("zeros", "mean-output"), "C": ("mean-output", "zeros")}
    assert floors_used(line_claim(floors=floors)) == (
        "The context-free floor is mean-output on A and C, and zeros on B, of mean-output and zeros."
    )


def test_an_assumption_names_its_tests():
    tests = (TaskTest(model="m", task="A", p=1e-5, passed=True), TaskTest(model="m", task="B", p=0.4, passed=False))
    words = assumption(Assumption(name="contribution", tests=tests, sentence=""))
    assert words == f"{ASSUMPTIONS['contribution']}. One-sided tests: A p < 0.001; B p = 0.400, not shown."
    assert assumption(Assumption(name="seeds", sentence="")) == f"{ASSUMPTIONS['seeds']}."


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
            "at a learning rate of 0.0003 on 5,000 rows; intervals cover the choice of rows only on some tasks.",
        ),
    ],
)
def test_a_conclusion_names_the_recipe_that_it_holds_for(tasks, words):
    assert holds_for(tasks) == f"The results hold for the paper's layout {words}"


def test_a_recipe_names_every_layout_and_may_be_absent():
    assert holds_for([]) == ""
    both = holds_for([trained(layouts=("paper", "contiguous"))])
    assert both.startswith(
        "The results hold for the paper's layout or the layout contiguous and the paper's probe, trained"
    )
