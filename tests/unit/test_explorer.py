"""What a page carries of heads: bytes that come back as the matrices, and which run a head's drop is of."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from finished import CONFIG, HEADS, LAYERS, SLOTS, averages, write_results

import papa
from papa.config.settings import RUN
from papa.results.explorer import MOST_BYTES, NEVER, STEPS, explored, heads_of, matrices_of, most_slots
from papa.results.figures import MOST_SLOTS
from papa.results.summary import read_summary


def test_bytes_come_back_as_the_matrices() -> None:
    constants = averages()
    made = matrices_of(constants, [0, SLOTS - 1])
    cells = np.frombuffer(b64decode(made["cells"]), dtype=np.uint8).reshape(LAYERS, HEADS, SLOTS, SLOTS)
    never = constants.count.numpy() == 0
    assert (cells[:, :, never] == NEVER).all() and (cells[:, :, ~never] <= STEPS).all()
    largest = np.array(made["largest"]).reshape(LAYERS, HEADS, 1, 1)
    back = cells / STEPS * largest
    wrong = np.abs(back - constants.mean.numpy()) / largest
    assert wrong[:, :, ~never].max() < 1 / 500 + 1e-3  # largest has four digits
    assert (made["layers"], made["heads"], made["slots"]) == (LAYERS, HEADS, list(range(SLOTS)))
    assert made["special"] == {0: "[CLS]", SLOTS - 1: "[SEP]"}
    assert [(row["layer"], row["head"]) for row in made["patterns"]][HEADS : HEADS + 2] == [(1, 0), (1, 1)]


def test_slots_in_most_use_are_carried_where_not_all_have_room() -> None:
    use = torch.tensor([9, 9, 3, 5, 9])
    count = torch.minimum(use[:, None], use)
    constants = papa.ConstantMatrices(torch.rand(2, 3, 5, 5).double() * count, count, 9)
    made = matrices_of(constants, [0, 4], most=4)
    assert (made["slots"], made["used"]) == ([0, 1, 3, 4], 5)
    assert len(b64decode(made["cells"])) == 2 * 3 * 4 * 4


@pytest.mark.parametrize("heads", [[], [72] * 5, [144, 384] * 21, [384] * 60])
def test_all_sets_fit_into_a_page(heads: list[int]) -> None:
    most = most_slots(heads)
    assert 8 < most <= MOST_SLOTS and sum(heads) * most**2 <= MOST_BYTES


def test_drop_is_that_of_the_fewest_heads_replaced(tmp_path: Path) -> None:
    study = write_results(tmp_path)
    summary = read_summary(study.results / study.path("summary"))
    entries, sets = explored(study, study.grid_settings(RUN), summary)
    assert [(entry["model"], entry["task"]) for entry in entries] == [
        (model, task) for model in ("small", "other") for task in ("first", "second")
    ]
    entry = entries[1]
    assert (entry["constant"], entry["order"], entry["title"]) == ("average", "lambda", "Second")
    assert entry["words"] == "average, λ order"
    heads, number = entry["of"], LAYERS * HEADS
    assert heads["rank"] == list(range(number))
    assert heads["lambda"][:3] == [0.5, 0.51, 0.52]  # of the last epoch
    # 7 of 15 heads are kept at 1/2, so the last 7 are replaced at 0 alone
    assert heads["replaced_at"] == ["1/2"] * 8 + ["0"] * 7
    assert heads["drop"] == pytest.approx([0.01 / 0.72] * 8 + [0.2 / 0.72] * 7)
    assert list(sets) == [f"models/{model}/corpora/texts/average.h5" for model in ("small", "other")]
    assert sets[entry["set"]]["special"] == {0: "[CLS]", SLOTS - 1: "[SEP]"}


def test_without_an_order_and_averages_there_is_nothing_but_the_drop(tmp_path: Path) -> None:
    study = write_results(tmp_path, run=CONFIG["run"] | {"constants": ["zeros"], "fractions": ["1", "0"]}, grids={})
    entries, sets = explored(study, study.grid_settings(RUN), read_summary(study.results / study.path("summary")))
    assert sets == {}
    entry = entries[0]
    assert (entry["set"], entry["order"]) == (None, None)
    assert set(entry["of"]["lambda"]) == set(entry["of"]["rank"]) == {None}
    assert entry["of"]["drop"] == pytest.approx([0.2 / 0.82] * LAYERS * HEADS)


def test_no_rank_has_no_drop_where_not_every_head_is_replaced() -> None:
    row = pd.DataFrame([{"heads": 6, "kept": 3, "fraction": "1/2", "relative_drop": 0.1}])
    assert heads_of(row, None, None, (2, 3))["drop"] == [None] * 6
