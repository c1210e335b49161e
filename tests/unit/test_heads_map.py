"""The map of heads in a report: bytes that come back as the matrices, and λ of every head."""

from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
import torch
from finished import CONFIG, HEADS, LAYERS, SLOTS, all_learned, averages, write_results

import papa
from papa.results.heads_map import NEVER, STEPS, head_maps, heads_of, matrices_of


def cells_of(matrices):
    return np.frombuffer(b64decode(matrices["cells"]), dtype=np.uint8)


def test_bytes_come_back_as_the_matrices():
    constants = averages()
    matrices = matrices_of(constants, [0, SLOTS - 1])
    cells = cells_of(matrices).reshape(LAYERS, HEADS, SLOTS, SLOTS)
    never = constants.count.numpy() == 0
    assert (cells[:, :, never] == NEVER).all()
    assert (cells[:, :, ~never] <= STEPS).all()
    largest = np.array(matrices["largest"]).reshape(LAYERS, HEADS, 1, 1)
    wrong = np.abs((cells / STEPS) ** 2 * largest - constants.mean.numpy()) / largest
    assert wrong[:, :, ~never].max() < 1 / 250 + 1e-3  # largest has four digits
    assert (matrices["slots"], matrices["special"]) == (
        list(range(SLOTS)),
        [0, SLOTS - 1],
    )


def test_slots_in_most_use_are_carried_where_not_all_have_room():
    use = torch.tensor([9, 9, 3, 5, 9])
    count = torch.minimum(use[:, None], use)
    constants = papa.Constants(torch.rand(2, 3, 5, 5).double() * count, count, 9)
    matrices = matrices_of(constants, [0, 4], maximum=4)
    assert matrices["slots"] == [0, 1, 3, 4]
    assert len(cells_of(matrices)) == 2 * 3 * 4 * 4


@pytest.mark.parametrize(("fractions", "seed"), [(["1", "1/2"], 3), (["1", "0"], None)])
def test_a_map_has_lambda_of_the_first_seed_if_it_was_learned_and_the_averages(
    fractions, seed, tmp_path
):
    run = CONFIG["run"] | {
        "fractions": fractions,
        "constants": ["average", "zeros"],
        "tasks": ["second"],
    }
    study = write_results(tmp_path, run=run, grids={}, ranking={"seeds": [3, 0]})
    maps, sets = head_maps(study)
    weights = None if seed is None else all_learned(seed)
    assert [maps[0][name] for name in ("title", "layers", "heads")] == [
        "Second, small, average",
        LAYERS,
        HEADS,
    ]
    assert maps[0]["weights"] == weights
    assert len(maps) == (2 if seed is None else 4)
    made = [Path(job.output).stem for job in study.of_stage("average")]
    assert list(sets) == [f"{name}:average" for name in made]
    assert len(made) == 2


def test_heads_are_ranked_by_lambda(tmp_path):
    finished = write_results(tmp_path, ranking={"seeds": [3, 0]}, grids={})
    rows = heads_of(finished.jobs)
    of_one = rows[rows["model"].eq("small") & rows["task"].eq("first") & rows["seed"].eq(0)]
    assert of_one["rank"].tolist() == list(range(LAYERS * HEADS))
    assert len(rows) == 2 * 2 * 2 * LAYERS * HEADS
    np.testing.assert_allclose(of_one["value"], all_learned(0))
    assert heads_of([]).empty
    assert list(heads_of([])) == list(rows)
