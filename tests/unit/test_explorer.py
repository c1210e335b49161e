"""The heads in a report: bytes that come back as the matrices, λ and rank of every head."""

from base64 import b64decode
from typing import Any

import numpy as np
import pytest
import torch
from finished import CONFIG, HEADS, LAYERS, SLOTS, averages, learned, write_results

import papa
from papa.config.analyses import grid_view
from papa.config.settings import RUN
from papa.config.study import Study
from papa.method.pictures import MAXIMUM_SLOTS
from papa.results.explorer import (
    MAXIMUM_BYTES,
    NEVER,
    STEPS,
    HeadChoice,
    Matrices,
    explorer_data,
    matrices_of,
    maximum_slots,
)
from papa.results.summary import read_summary

SMALL: dict[str, Any] = CONFIG["run"] | {"models": ["small"], "tasks": ["second"], "seeds": [1]}


def cells_of(matrices: Matrices) -> np.ndarray:
    return np.frombuffer(b64decode(str(matrices["cells"])), dtype=np.uint8)


def test_bytes_come_back_as_the_matrices():
    constants = averages()
    matrices = matrices_of(constants, [0, SLOTS - 1])
    cells = cells_of(matrices).reshape(LAYERS, HEADS, SLOTS, SLOTS)
    never = constants.count.numpy() == 0
    assert (cells[:, :, never] == NEVER).all() and (cells[:, :, ~never] <= STEPS).all()
    largest = np.array(matrices["largest"]).reshape(LAYERS, HEADS, 1, 1)
    wrong = np.abs((cells / STEPS) ** 2 * largest - constants.mean.numpy()) / largest
    assert wrong[:, :, ~never].max() < 1 / 250 + 1e-3  # largest has four digits
    assert (matrices["layers"], matrices["heads"], matrices["slots"]) == (LAYERS, HEADS, list(range(SLOTS)))
    assert matrices["special"] == {0: "[CLS]", SLOTS - 1: "[SEP]"}
    patterns: Any = matrices["patterns"]
    assert [(row["layer"], row["head"]) for row in patterns][HEADS : HEADS + 2] == [(1, 0), (1, 1)]


def test_small_entries_are_not_lost_next_to_a_large_one():
    mean = torch.tensor([[0.9, 0.004], [0.9, 0.0]])
    constants = papa.ConstantMatrices(mean[None, None].double() * 9, torch.full((2, 2), 9), 9)
    entries = (cells_of(matrices_of(constants, [0])) / STEPS) ** 2 * 0.9
    assert entries[1] == pytest.approx(0.004, rel=0.05) and entries[3] == 0


def test_slots_in_most_use_are_carried_where_not_all_have_room():
    use = torch.tensor([9, 9, 3, 5, 9])
    count = torch.minimum(use[:, None], use)
    constants = papa.ConstantMatrices(torch.rand(2, 3, 5, 5).double() * count, count, 9)
    matrices = matrices_of(constants, [0, 4], maximum=4)
    assert (matrices["slots"], matrices["used"]) == ([0, 1, 3, 4], 5)
    assert len(cells_of(matrices)) == 2 * 3 * 4 * 4


@pytest.mark.parametrize("heads", [[], [72] * 5, [144, 384] * 21, [384] * 60])
def test_all_sets_fit_into_a_page(heads):
    most = maximum_slots(heads)
    assert 8 < most <= MAXIMUM_SLOTS and sum(heads) * most**2 <= MAXIMUM_BYTES


def shown(study: Study) -> tuple[list[HeadChoice], dict[str, Matrices]]:
    return explorer_data(study, grid_view(study, RUN), read_summary(study.results / study.path("summary")))


def test_every_head_has_its_lambda_of_the_last_epoch_and_its_rank(tmp_path):
    run = CONFIG["run"] | {"seeds": [1], "fractions": ["1", "1/2"]}
    entries, sets = shown(write_results(tmp_path, run=run, grids={}))
    assert [(entry["model"], entry["task"]) for entry in entries] == [
        (model, task) for model in ("small", "other") for task in ("first", "second")
    ]
    entry = entries[1]
    assert (entry["constant"], entry["order"], entry["title"]) == ("average", "lambda", "Second")
    assert entry["words"] == "average, λ order"
    heads, number = entry["values"], LAYERS * HEADS
    assert heads == {"lambda": [learned(0, head) for head in range(number)], "rank": list(range(number))}
    assert entry["kept"] == {"1/2": 7}, "of 15 heads, rounded down"
    assert list(sets) == [f"models/{model}/corpora/texts/average.h5" for model in ("small", "other")]
    assert sets[str(entry["matrices"])]["special"] == {0: "[CLS]", SLOTS - 1: "[SEP]"}


def test_of_several_seeds_the_first_is_shown_and_random_orders_are_not(tmp_path):
    run = SMALL | {"orders": ["random", "lambda"], "fractions": ["1", "1/2"]}
    entries, _ = shown(write_results(tmp_path, run=run, grids={}, ranking={"seeds": [3, 0], "draws": 2}))
    third, first = ([learned(seed, head) for head in range(LAYERS * HEADS)] for seed in (3, 0))
    assert [(entry["order"], entry["values"]["lambda"]) for entry in entries] == [("lambda", third)] and third != first


def test_without_an_order_there_are_only_the_matrices(tmp_path):
    run = SMALL | {"constants": ["average", "zeros"], "fractions": ["1", "0"]}
    entries, sets = shown(write_results(tmp_path, run=run, grids={}))
    [entry] = entries  # zeros are the same for every head, and nothing is known of any
    assert (entry["constant"], entry["order"], entry["words"], entry["kept"]) == ("average", None, "average", {})
    assert set(entry["values"]["lambda"]) == set(entry["values"]["rank"]) == {None}
    assert list(sets) == [entry["matrices"]]
