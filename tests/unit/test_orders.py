"""Orders with equal weights, and the agreement of seeds, against hand counts."""

from types import SimpleNamespace

import jobs
import numpy as np
import pandas as pd
import pytest
from builders import head_rows
from scipy.stats import kendalltau

from papa.files import write_table
from papa.method.variants import ordered_heads, smallest_first
from papa.results.stability import stability_of, table_of
from papa.stages import HiddenStates

LAYERS = 3
HEADS = 7
SIZES = SimpleNamespace(layers=LAYERS, heads=HEADS)
DIFFERENT = [0.1 + (5 * place % 21) / 50 for place in range(LAYERS * HEADS)]
"""A weight for each head, no two of them equal."""


def ranked(folder, weights, name="lambda-0"):
    """The heads in an order by these weights."""
    write_table(head_rows([0.0] * len(weights), weights, heads=HEADS), folder / "l.parquet", {})
    settings = HiddenStates(constant="zeros", order=name)
    return ordered_heads(
        jobs.job(settings, folder / "s.hidden", weights=folder / "l.parquet"), settings, SIZES
    )


def test_equal_weights_are_in_a_random_order_that_the_name_determines(tmp_path):
    heads = ranked(tmp_path, DIFFERENT)
    places = sorted(range(len(DIFFERENT)), key=DIFFERENT.__getitem__)
    assert heads == [divmod(place, HEADS) for place in places]
    assert ranked(tmp_path, DIFFERENT, "lambda-reversed-0") == heads[::-1]
    weights = [0.5] * 21
    weights[4], weights[17] = 0.9, 0.2
    orders = {}
    for name in ("lambda-0", "lambda-1", "lambda-2"):
        heads = ranked(tmp_path, weights, name)
        assert heads == ranked(tmp_path, weights, name)
        assert heads[0] == (2, 3)
        assert heads[-1] == (0, 4)
        assert len(set(heads)) == 21
        assert heads[1:-1] != sorted(heads[1:-1])
        orders[name] = heads
    assert len({tuple(heads) for heads in orders.values()}) == 3
    assert ranked(tmp_path, weights, "lambda-reversed-1") == orders["lambda-1"][::-1]


def test_a_tied_head_is_at_every_rank_equally_often():
    weights = {(0, 0): 0.5, (0, 1): 0.5, (1, 0): 0.5}
    ranks = []
    for draw in range(999):
        order = smallest_first(weights, f"lambda-{draw}")
        ranks.append(order.index((1, 0)))
    assert np.bincount(ranks) == pytest.approx([333] * 3, abs=60)  # four standard deviations


def test_seeds_are_compared_by_kendalls_tau():
    about = {"model": "m", "task": "t", "title": "Tags", "constant": "average"}
    reverse = [1 - weight for weight in DIFFERENT]
    one_swap = sorted(DIFFERENT)
    one_swap[3:5] = one_swap[4:2:-1]
    weights = [sorted(DIFFERENT), one_swap, reverse]
    rows = [
        about | {"order": order, "seed": seed, "layer": head // 7, "head": head % 7, "value": value}
        for order, seeds in (("lambda", 3), ("gradient", 2))
        for seed in range(seeds)
        for head, value in enumerate(weights[seed])
    ]
    stability = stability_of(pd.DataFrame(rows))
    taus = stability.set_index(["order", "a", "b"])["tau"]
    assert taus["lambda", "0", "1"] == taus["gradient", "0", "1"] == pytest.approx((210 - 2) / 210)
    assert taus["lambda", "1", "2"] == pytest.approx(kendalltau(one_swap, reverse).statistic)
    assert len(taus) == 4
    first, second = table_of(stability).rows
    assert first[:5] == ["Tags", "m", "average", "λ", "0, 1, 2"]
    assert second[3:] == [
        "gradient",
        "0, 1",
        *["0.99"] * 3,
    ]
