"""The words of conclusions, and how percentages are written."""

import math

import numpy as np
import pytest
from builders import line_claim

from papa.config.variant import NUMBERED, ORDERS
from papa.results.conclusion import EndLoss, Exclusion, JointStep, TaskLoss
from papa.results.phrases import (
    NO_INTERVAL,
    above_all,
    bound_text,
    excluded,
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
    steps = [JointStep(fraction="1/8", tasks=2, replaced=number, margin=1.0) for number in sorted(numbers)]
    claim = line_claim(tuple(steps), replaceable=0)
    assert tried(claim) == words
    assert replaceable(claim, 0.1, named=False).endswith(f" ({words}).")


INF, NAN = math.inf, math.nan
SILENT = Exclusion(task="B", why="attention contributes nothing measurable")


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        *((percent, (0.344,), "34 %"), (percent, (-0.06,), "-6 %"), (percent, (-0.004,), "0 %")),
        *((percent, (0.2484, 1), "24.8 %"), (percent, (-0.0353, 1), "-3.5 %"), (percent, (0.125, None), "12.5 %")),
        *((percent, (INF,), "no bound"), (percent, (NAN,), "-"), (percent, (None, 1), "-")),
        # a bound is rounded up and stays below the margin
        *((bound_text, (0.07, 0.1), "7 %"), (bound_text, (0.0701, 0.1), "8 %"), (bound_text, (0.1, 0.1), "10 %")),
        *((bound_text, (0.1001, 0.1), "11 %"), (bound_text, (-0.004, 0.1), "0 %"), (bound_text, (2, 0.1), "200 %")),
        *((bound_text, (0.0991, 0.1), "9.91 %"), (bound_text, (0.09999, 0.1), "9.999 %")),
        *((bound_text, (0.099, 0.2), "10 %"), (bound_text, (0.024, 0.025), "2.4 %")),
        *((bound_text, (0.1 - 1e-13, 0.1), "just below 10 %"), (bound_text, (5.28, 0.1), "over 200 %")),
        *((bound_text, (INF, 0.1), "no bound"), (bound_text, (NAN, 0.1), "-")),
        *((interval_text, (0.294, 0.401), "29 to 40 %"), (interval_text, (-0.48, 0.71), "-48 to 71 %")),
        *((interval_text, (NAN, 0.4), "-"), (interval_text, (None, None), "-")),
        (interval_text, (-INF, INF), "unbounded"),
        # an interval of twice all that attention contributes says nothing
        *((interval_text, (-0.48, 5.28), "unbounded"), (interval_text, (2.4, 2.6), "240 to 260 %")),
        *((with_interval, (0.29, 0.4), "95 % interval 29 to 40 %"), (with_interval, (-0.48, 5.28), NO_INTERVAL)),
        *((loss_text, (0.34, 0.29, 0.4), "34 % (29 to 40)"), (loss_text, (0.34, -INF, INF), "34 %")),
        *((loss_text, (0.8, -0.48, 5.28), "80 %"), (loss_text, (None, None, None), "-"), (loss_text, (NAN,) * 3, "-")),
        *((mean_text, (0.15,), "15.0 %"), (mean_text, (None,), "-"), (above_all, (1.004,), "")),
        (loss, (TaskLoss(task="A", loss=0.5, low=0.42, high=0.58),), "50 % (95 % interval 42 to 58 %)"),
        (loss, (EndLoss(loss=0.5, low=-INF, high=INF, tasks=(), subsets=()),), f"50 % ({NO_INTERVAL})"),
        *((in_order, ("lambda", 1), "in the order of λ"), (in_order, ("lambda", 3), "averaged over 3 orders of λ")),
        *((in_order, ("layers-in-turn", 0), "in the order layers-in-turn"), (in_order, (None, 0), "")),
        (in_order, ("layers-in-turn", 2), "averaged over 2 orders layers-in-turn"),
        (excluded, (SILENT,), "B: attention contributes nothing measurable"),
        *((without_loss, ([SILENT],), f"No loss: B: {SILENT.why}."), (without_loss, ([],), "")),
    ],
)
def test_words(function, arguments, text):
    assert function(*arguments) == text


def test_printed_bounds_compare_with_the_margin_as_they_are():
    for exact in np.random.default_rng(3).uniform(0.09, 0.11, 997):
        printed = float(bound_text(exact, 0.1).removesuffix(" %")) / 100
        assert (printed < 0.1) == (exact < 0.1) and printed >= exact - 1e-12


@pytest.mark.parametrize("order", [*ORDERS, "list-duo"])
def test_every_order_has_words(order):
    words = [in_order(order, draws) for draws in (0, 1, 3)]
    assert words[0] == words[1] and all(words) and (("3" in words[2]) or order not in NUMBERED)
