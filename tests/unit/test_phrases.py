"""The words of conclusions, and how amounts and percentages are written."""

import math

import numpy as np
import pandas as pd
import pytest

from papa.results.orders import orders_of
from papa.results.phrases import (
    _change_on,
    bound_text,
    contributed_text,
    covered,
    in_order,
    interval_text,
    lost_text,
    margin_text,
    order_sentences,
    reliance_text,
    share_text,
)
from papa.results.table import percent

INF = math.inf
NAN = math.nan
LIKELY = "log_likelihood"


def margin(written, contributed, metric, positive=None):
    """The row of a claim with a margin."""
    about = {"metric": metric, "positive": positive}
    return {"margin": written, "contributed": contributed} | about


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (percent, (-0.004,), "0%"),
        (percent, (0.2484, 1), "24.8%"),
        (percent, (INF,), "no bound"),
        # a bound is rounded up and stays below the margin
        (bound_text, (0.07, "10%"), "7%"),
        (bound_text, (0.0701, "10%"), "8%"),
        (bound_text, (0.1, "10%"), "10%"),
        (bound_text, (0.1001, "10%"), "11%"),
        (bound_text, (-0.004, "10%"), "0%"),
        (bound_text, (5.28, "10%"), "528%"),
        (bound_text, (0.0991, "10%"), "9.91%"),
        (bound_text, (0.024, "2.5%"), "2.4%"),
        (bound_text, (0.1 - 1e-13, "10%"), "just below 10%"),
        (bound_text, (0.0131, "1 point"), "1.4 points"),
        (bound_text, (0.00991, "1 point"), "0.991 points"),
        (bound_text, (0.0431, "0.05 nats"), "0.044 nats"),
        (bound_text, (INF, "10%"), "no bound"),
        (bound_text, (NAN, "10%"), "-"),
        (interval_text, (0.294, 0.401), "29 to 40%"),
        (interval_text, (-0.48, 0.71), "-48 to 71%"),
        (interval_text, (0.52, INF), "52% or more"),
        (interval_text, (-INF, 1.2), "120% or less"),
        (interval_text, (-INF, INF), "no bounds"),
        (margin_text, (margin("10%", 0.055, "accuracy"),), "0.55 points of accuracy"),
        (margin_text, (margin("10%", 2.1, LIKELY),), "0.21 nats per token"),
        (margin_text, (margin("5%", 0.4, "f1", "hate"),), "2 points of F1 of hate"),
        (margin_text, (margin("10%", 0.4, "entity_f1"),), "4 points of entity F1"),
        (margin_text, (margin("1 point", NAN, "accuracy"),), "1 point of accuracy"),
        (margin_text, (margin("1 point", NAN, None),), "1 point"),
        (
            covered,
            (True, True, False),
            "probe seeds, samples of training rows and validation examples",
        ),
        (in_order, ("random", 2), "averaged over 2 orders (random)"),
        (in_order, ("layers-in-turn", 1), "in the order layers-in-turn"),
    ],
)
def test_words(function, arguments, text):
    assert function(*arguments) == text


def row(lost=0.048, reliance=0.88, high=1.39, metric="accuracy", task="A"):
    """A task that loses 0.8 or more of what attention contributes."""
    effect = {
        "lost": lost,
        "lost_low": lost - 0.008,
        "lost_high": lost + 0.009,
        "contributed": 0.055,
        "contributed_low": -0.002,
        "contributed_high": 0.069,
        "reliance": reliance,
        "reliance_low": 0.52,
        "reliance_high": high,
    }
    return effect | {"metric": metric, "task": task}


@pytest.mark.parametrize(("lost", "relation"), [(0.0551, "of"), (0.0559, "more than")])
def test_what_is_lost_and_contributed_are_compared_as_printed(lost, relation):
    change = _change_on(row(lost) | {"positive": None}, named=False)
    assert change.endswith(f", {relation} the 5.5 that attention contributes")


UNKNOWN = {"lost_low": -INF, "lost_high": INF, "contributed_low": -INF, "contributed_high": INF}


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        (row(high=INF), ["4.8 (4.0 to 5.7)", "5.5 (-0.2 to 6.9)", "88% (52% or more)"]),
        (
            row(reliance=NAN),
            [
                "4.8 (4.0 to 5.7)",
                "5.5 (-0.2 to 6.9)",
                "attention contributes 5.5 points (-0.2 to 6.9)",
            ],
        ),
        (row(reliance=NAN) | UNKNOWN, ["4.8", "5.5", "attention contributes 5.5 points"]),
        (
            row(1.16, metric=LIKELY),
            ["1.16 nats (1.15 to 1.17)", "0.06 nats (-0.00 to 0.07)", "88% (52 to 139)"],
        ),
        (row(NAN, NAN) | {"contributed": NAN}, ["-", "-", "-"]),
    ],
)
def test_cells_always_have_numbers(row, texts):
    shown = [function(row) for function in (lost_text, contributed_text, reliance_text)]
    assert shown == [text.replace("-0.00", "0.00") for text in texts]


def test_next_to_the_contribution_a_cell_without_a_share_does_not_repeat_it():
    assert share_text(row(reliance=NAN)) == "no share"
    assert share_text(row(reliance=NAN) | {"contributed": NAN}) == "-"


def test_orders_are_compared_with_random_ones_and_tested_only_if_there_are_many():
    """1 of 20 random orders is as good as λ of the second seed; the gradient was run with another number of heads."""
    scores = {"lambda-9": [0.9, 0.7], "lambda-10": [0.9, 0.5], "gradient-0": [0.9, 0.9]}
    scores |= {f"random-{draw}": [0.5, 0.3 + 0.6 * (draw == 4)] for draw in range(1, 21)}
    about = {
        "model": "m",
        "title": "NER",
        "constant": "average",
        "metric": "entity_f1",
        "main": True,
        "subset": "all",
        "seed": 0,
    }
    runs = pd.DataFrame(
        about | {"order": order, "fraction": fraction, "score": score}
        for order, both in scores.items()
        for fraction, score in zip(("1/2", "1/4"), both, strict=True)
    )
    runs.loc[runs["order"].eq("gradient-0"), "fraction"] = "1/8"
    [order] = orders_of(runs).to_dict("records")
    assert order["difference"] == pytest.approx(0.8 - 0.415)
    assert order["as_good"] == 0
    assert (order["draws"], order["p"]) == (20, 1 / 21)
    assert order_sentences(orders_of(runs)) == [
        "On NER (m), λ (first seed) beats random orders: averaged over numbers of heads, its score is 38.5 points of "
        "entity F1 higher, and 0% of 20 random orders are as good (corrected p = 0.048)."
    ]
    [few] = order_sentences(orders_of(runs.head(-4)))
    assert "does not significantly beat" in few
    assert few.endswith("(too few for a p value).")
    assert order_sentences(orders_of(runs.head(4))) == []


def test_printed_bounds_compare_with_the_margin_as_they_are():
    for exact in np.random.default_rng(3).uniform(0.09, 0.11, 997):
        printed = float(bound_text(exact, "10%").removesuffix("%")) / 100
        assert (printed < 0.1) == (exact < 0.1)
        assert printed >= exact - 1e-12
