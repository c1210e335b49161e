"""The words of conclusions, and how percentages are written."""

import math

import numpy as np
import pytest

from papa.results.phrases import (
    bound_text,
    in_order,
    interval_text,
    points_text,
    reliance_text,
    with_interval,
)
from papa.results.table import percent

INF, NAN = math.inf, math.nan
LIKELY = "log_likelihood"


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        *(
            (percent, (-0.004,), "0%"),
            (percent, (0.2484, 1), "24.8%"),
            (percent, (INF,), "no bound"),
        ),
        # a bound is rounded up and stays below the margin
        *(
            (bound_text, (0.07, 0.1), "7%"),
            (bound_text, (0.0701, 0.1), "8%"),
            (bound_text, (0.1, 0.1), "10%"),
        ),
        *(
            (bound_text, (0.1001, 0.1), "11%"),
            (bound_text, (-0.004, 0.1), "0%"),
            (bound_text, (2, 0.1), "200%"),
        ),
        *((bound_text, (0.0991, 0.1), "9.91%"), (bound_text, (0.09999, 0.1), "9.999%")),
        *((bound_text, (0.099, 0.2), "10%"), (bound_text, (0.024, 0.025), "2.4%")),
        *(
            (bound_text, (0.1 - 1e-13, 0.1), "just below 10%"),
            (bound_text, (5.28, 0.1), "over 200%"),
        ),
        *((bound_text, (INF, 0.1), "no bound"), (bound_text, (NAN, 0.1), "-")),
        *(
            (interval_text, (0.294, 0.401), "29 to 40%"),
            (interval_text, (-0.48, 0.71), "-48 to 71%"),
        ),
        *((interval_text, (NAN, 0.4), "-"), (interval_text, (None, None), "-")),
        *((interval_text, (-INF, INF), "unbounded"), (interval_text, (2.4, 2.6), "240 to 260%")),
        (reliance_text, (0.34, -INF, INF), "inconclusive (unbounded)"),
        *((reliance_text, (NAN, 0.1, 0.4), "-"), (reliance_text, (None, None, None), "-")),
        (reliance_text, (0.8, 0.5, 1.0), "80% (50 to 100)"),
        (reliance_text, (0.8, 0.5, 1.01), "inconclusive (50 to 101)"),
        *(
            (points_text, (0.1, 0.055, "accuracy"), "0.55 points of accuracy"),
            (points_text, (0.1, 2.1, LIKELY), "0.21 nats per token"),
        ),
        (points_text, (0.05, 0.4, "f1", "hate"), "2 points of F1 of hate"),
        (points_text, (0.1, 0.4, "entity_f1"), "4 points of entity F1"),
        (with_interval, (0.5, 0.42, 0.58), "50% (95% interval 42 to 58%)"),
        (with_interval, (0.5, -INF, INF), "inconclusive (95% interval unbounded)"),
        (in_order, ("random", 2), "averaged over 2 orders (random)"),
        (in_order, ("layers-in-turn", 1), "in the order layers-in-turn"),
    ],
)
def test_words(function, arguments, text):
    assert function(*arguments) == text


def test_printed_bounds_compare_with_the_margin_as_they_are():
    for exact in np.random.default_rng(3).uniform(0.09, 0.11, 997):
        printed = float(bound_text(exact, 0.1).removesuffix("%")) / 100
        assert (printed < 0.1) == (exact < 0.1) and printed >= exact - 1e-12
