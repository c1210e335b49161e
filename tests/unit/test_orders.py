"""Orders with equal weights, random orders within layers, and orders compared with random ones, against hand counts."""

from itertools import groupby, permutations

import jobs
import numpy as np
import pandas as pd
import pytest
from builders import grid_view, head_rows, labelled, summary_of
from scipy.stats import kendalltau
from tiny import CONFIG, with_keys

import papa
from papa.config.reading import config_of
from papa.config.stages import OrderFromWeights
from papa.config.study import Study
from papa.config.variant import Order
from papa.files import Trace, digest_of, provenance_of, read_table, write_table
from papa.method.orders import drawn_in_layers, rank_heads, smallest_first, tied_across, tied_ranks
from papa.results.claims import lines_of
from papa.results.outcomes import FLOOR, ORIGINALS
from papa.results.random_orders import COLUMNS, compared_with_random, sentence_of, tables_of
from papa.results.stability import RankedUnits, Stability, stability_of, tau_by_chance
from papa.results.stability import tables_of as stability_tables

LAYERS, HEADS = 3, 7
DIFFERENT = [0.1 + (5 * place % 21) / 50 for place in range(LAYERS * HEADS)]
"""A weight for each head, no two of them equal."""
TRACE = Trace("lambda", 1, {}, {})


def ranked(folder, weights, name="lambda-0", size=1, source=None):
    """The heads in an order by these weights, and the facts of the order."""
    write_table(head_rows([0.0] * len(weights), weights, heads=HEADS), folder / "l.parquet", {"unit_size": size}, TRACE)
    settings = OrderFromWeights(order=name, weights=source)
    line = rank_heads(jobs.job("rank", settings, {"lambdas": folder / "l.parquet"}, order=folder / "o.parquet"))
    table = read_table(folder / "o.parquet")
    return list(zip(table["layer"].to_pylist(), table["head"].to_pylist(), strict=True)), provenance_of(table), line


def study_of(edits, folder):
    return Study(config_of(with_keys(CONFIG, edits)), folder)


# -- equal weights -----------------------------------------------------------------------------------------------------


def test_an_order_without_ties_is_sorted_and_records_no_tie(tmp_path):
    heads, facts, line = ranked(tmp_path, DIFFERENT)
    places = sorted(range(len(DIFFERENT)), key=DIFFERENT.__getitem__)
    assert heads == [divmod(place, HEADS) for place in places]
    assert facts == {"unit_size": 1, "order": "lambda-0"} and "weight" not in line
    reverse, _, _ = ranked(tmp_path, DIFFERENT, "lambda-reversed-0")
    assert reverse == heads[::-1]


def test_equal_weights_are_in_a_random_order_that_the_name_determines(tmp_path):
    weights = [0.5] * 21
    weights[4], weights[17] = 0.9, 0.2
    orders = {}
    for name in ("lambda-0", "lambda-1", "lambda-2"):
        heads, facts, line = ranked(tmp_path, weights, name)
        digest = digest_of(tmp_path / "o.parquet")
        assert (heads, digest) == (ranked(tmp_path, weights, name)[0], digest_of(tmp_path / "o.parquet"))
        assert heads[0] == (2, 3) and heads[-1] == (0, 4) and len(set(heads)) == 21
        assert facts["tied"] == [[1, 19]] and "19 of them share their weight with another" in line
        orders[name] = heads
    assert len({tuple(heads) for heads in orders.values()}) == 3
    by_index = sorted(orders["lambda-0"][1:-1])
    assert all(heads[1:-1] != by_index and sorted(heads[1:-1]) == by_index for heads in orders.values())
    reverse, facts, _ = ranked(tmp_path, weights, "lambda-reversed-1")
    assert reverse == orders["lambda-1"][::-1] and facts["tied"] == [[1, 19]]


def test_a_tied_head_is_at_every_rank_equally_often():
    ranks = [
        smallest_first(dict.fromkeys([(0, 0), (0, 1), (1, 0)], 0.5), f"lambda-{n}").index((1, 0)) for n in range(999)
    ]
    assert np.bincount(ranks) == pytest.approx([333] * 3, abs=60)  # four standard deviations


def test_heads_of_tied_units_stay_together():
    weights = {(layer, head): 0.5 for layer in range(2) for head in range(6)}
    heads = smallest_first(weights, "lambda-3", size=3)
    units = [(layer, head // 3) for layer, head in heads]
    assert [unit for unit, _ in groupby(units)] != sorted(set(units)) and len(list(groupby(units))) == 4
    assert all(heads[place : place + 3] == sorted(heads[place : place + 3]) for place in range(0, 12, 3))


def test_ties_are_counted_at_a_cut():
    tied = tied_ranks([1, 2, 2, 2, 3, 4, 4])
    assert tied == [(1, 3), (5, 6)]
    assert [tied_across(tied, replaced) for replaced in range(8)] == [0, 0, 3, 3, 0, 0, 2, 0]


# -- random within layers ----------------------------------------------------------------------------------------------


def test_random_orders_within_layers_replace_as_many_heads_of_each_layer(tmp_path):
    original, _, _ = ranked(tmp_path, DIFFERENT)
    draws = [ranked(tmp_path, DIFFERENT, f"random-by-layer-{n}", source="lambda-0")[0] for n in (1, 2, 3, 1)]
    assert draws[0] == draws[3] and len({tuple(heads) for heads in draws}) == 3
    for heads in draws:
        assert [layer for layer, _ in heads] == [layer for layer, _ in original] and sorted(heads) == sorted(original)
        assert heads != original


def test_every_order_within_a_layer_is_equally_likely():
    original = [(0, 2), (1, 0), (0, 0), (0, 1)]
    draws = [tuple(head for _, head in drawn_in_layers(original, f"random-by-layer-{n}")) for n in range(1200)]
    counts = pd.Series(draws).value_counts()
    assert set(counts.index) == {(a, 0, b, c) for a, b, c in permutations(range(3))}
    assert counts.to_numpy() == pytest.approx(200, abs=55)  # four standard deviations


def test_random_orders_within_layers_follow_the_first_lambda(tmp_path):
    orders = {"run.orders": ["lambda", "random-by-layer"], "ranking.seeds": [3, 5], "ranking.draws": 2}
    study = study_of(orders, tmp_path)
    ranks = {job.wildcards["order"]: job for job in study.jobs() if job.rule == "rank"}
    assert sorted(ranks) == ["lambda-3", "lambda-5", "random-by-layer-1", "random-by-layer-2"]
    drawn = ranks["random-by-layer-2"]
    assert [job.wildcards["seed"] for job in drawn.needed] == ["3"] and drawn.settings.weights == "lambda-3"
    assert "weights" not in ranks["lambda-3"].settings.recorded(), "finished orders stay up to date"
    assert Order.parse("random-by-layer-2") == Order("random-by-layer", 2)


def test_layers_as_units_cannot_be_drawn_within_layers():
    with pytest.raises(papa.InputError, match="leave out random-by-layer, or rank heads"):
        config_of(with_keys(CONFIG, {"run.orders": ["random-by-layer"], "ranking.unit": "layer"}))


# -- an order among random ones ----------------------------------------------------------------------------------------

EXAMPLES = 400
EASE = np.arange(EXAMPLES) * 7 % EXAMPLES
RIGHT = {"1": 360, "0": 280, "floor": 200}


def outcomes_of(halves, task="t"):
    """Outcomes with two seeds: `halves` has the number of right examples at 1/2 for each order."""
    numbers = {ORIGINALS: 360, FLOOR: 200, ("average", None, "0"): 280}
    numbers |= {("average", order, "1/2"): number for order, number in halves.items()}
    right = {setting: [number + seed > EASE for seed in (-1, 1)] for setting, number in numbers.items()}
    return labelled(right, gold=np.arange(EXAMPLES) % 5 > 2, task=task, train_counts=(60, 40))


def compared(tasks, first_seed=0, orders=("lambda", "random", "random-by-layer", "variance")):
    view = grid_view([task.task for task in tasks], orders=orders)
    rows = compared_with_random(lines_of(view, summary_of(tasks), tasks), first_seed)
    return pd.DataFrame(rows, columns=list(COLUMNS)).set_index(["order", "among"])


HALVES = {"lambda-0": 340, "lambda-1": 260, "variance": 300}
HALVES |= {f"random-{n}": 200 + 8 * n for n in range(1, 20)} | {f"random-by-layer-{n}": 338 + n for n in range(1, 20)}


def test_p_is_the_place_of_an_orders_area_among_random_ones():
    rows = compared([outcomes_of(HALVES)])
    place = rows.loc["lambda", "random"]
    # half of the heads are replaced by right[order], all by 280: trapezoids over the losses 0, (360 - right) / 160, 1/2
    assert place["area"] == pytest.approx((360 - 340) / 160 / 2 + 0.5 / 4)
    assert place["least"] == pytest.approx((360 - 352) / 160 / 2 + 0.5 / 4)
    assert (place["draws"], place["smaller"], place["p"]) == (19, 2, 3 / 20)  # 344 and 352
    assert rows.loc["lambda", "random-by-layer"]["smaller"] == 18  # 340 to 357: one of them is equal
    assert rows.loc["variance", "random"]["smaller"] == 7 and ("variance", "random-by-layer") not in rows.index
    assert compared([outcomes_of(HALVES)], first_seed=1).loc["lambda", "random"]["smaller"] == 12


def test_areas_are_means_over_the_tasks_that_count():
    other = {name: 280 for name in HALVES}
    flat = labelled({setting: [[True] * 13] * 2 for setting in (ORIGINALS, FLOOR, ("average", None, "0"))}, task="flat")
    rows = compared([outcomes_of(HALVES), outcomes_of(other, "u"), flat])
    alone = compared([outcomes_of(HALVES)]).loc["lambda", "random"]
    both = rows.loc["lambda", "random"]
    assert both["tasks"] == 2 and both["area"] == pytest.approx((alone["area"] + 0.25 + 0.125) / 2)
    assert both["smaller"] == alone["smaller"]


def test_the_sentence_names_the_order_of_lambda():
    rows = compared([outcomes_of(HALVES)]).reset_index()
    assert sentence_of(rows) == (
        "2 of 19 random orders lose no more than λ's order, p = 0.150; 18 of 19 random orders within layers lose no "
        "more than λ's order, p = 0.950."
    )
    [table] = tables_of(rows)
    assert [line[2:5] for line in table.rows][:2] == [["λ", "random", "19"], ["λ", "random by layer", "19"]]
    assert sentence_of(rows.iloc[:0]).startswith("No order of λ")


@pytest.mark.parametrize(("draws", "included"), [(18, False), (19, True)])
def test_a_study_with_enough_random_orders_has_the_analysis(draws, included, tmp_path):
    edits = {"run.orders": ["lambda", "random"], "ranking.draws": draws}
    assert ("random_orders" in study_of(edits, tmp_path).entries()) == included


# -- Kendall's τ by chance ---------------------------------------------------------------------------------------------


def units(weights, layers=LAYERS):
    order = np.asarray(weights, float)
    return RankedUnits(np.repeat(np.arange(layers), len(order) // layers), order, np.argsort(order).tolist())


def test_the_range_of_tau_is_that_of_random_orders():
    first, second = units(DIFFERENT), units(np.random.default_rng(3).random(21))
    n = 21
    deviation = (2 * (2 * n + 5) / (9 * n * (n - 1))) ** 0.5  # of τ between two random orders (Kendall 1938)
    assert tau_by_chance(first, second) == pytest.approx((-1.96 * deviation, 1.96 * deviation), abs=0.05)


def test_within_layers_tau_keeps_what_layers_explain():
    by_layer = [place // 7 + DIFFERENT[place] for place in range(21)]
    chance = np.random.default_rng(5)
    shuffled = [
        np.concatenate([chance.permutation(by_layer[begin : begin + 7]) for begin in (0, 7, 14)]) for _ in range(2000)
    ]
    expected = np.quantile([kendalltau(by_layer, weights).statistic for weights in shuffled], (0.025, 0.975))
    assert tau_by_chance(units(by_layer), units(by_layer), in_layers=True) == pytest.approx(expected, abs=0.03)
    assert expected[0] > 0.4 > tau_by_chance(units(by_layer), units(by_layer))[1]


def test_the_table_of_stability_has_ranges_and_ties(tmp_path):
    tied = [0.5] * 10 + DIFFERENT[10:]
    about = {"model": "m", "task": "t", "title": "Tags", "constant": "average", "order": "lambda", "part": None}
    rows = []
    for seed, weights in enumerate((DIFFERENT, tied)):
        write_table(head_rows(weights, heads=HEADS), tmp_path / f"{seed}.parquet", {}, TRACE)
        rows.append(about | {"seed": str(seed), "path": str(tmp_path / f"{seed}.parquet")})
    stability = stability_of(pd.DataFrame(rows), ("1/3", "2/3"))
    assert stability["tau"].tolist() == pytest.approx([kendalltau(DIFFERENT, tied).statistic] * 2)
    assert stability["chance_low"].lt(-0.2).all() and stability["chance_high"].gt(0.2).all()
    places = sorted(tied)
    undecided = [10 if places[21 - kept - 1] == places[21 - kept] == 0.5 else 0 for kept in (7, 14)]
    assert stability["tied"].tolist() == [10, 10] and stability["undecided"].tolist() == undecided
    [table] = stability_tables(stability)
    ranked = [RankedUnits.read(row["path"], f"lambda-{row['seed']}").ranked for row in rows]
    assert sorted(ranked[1]) == list(range(21)) and [place for place in ranked[1] if place < 10] != list(range(10))
    assert "This table puts them in random order, although" in Stability.note_text
    assert table.header[-2:] == ["tied", "undecided"] and "in layers" in table.header
