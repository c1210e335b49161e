"""Constants that need no text, and orders that need no λ, against what they are by definition."""

import jobs
import pytest
import torch
from random_models import random_model

import papa
from papa.config.stages import ModelId
from papa.files import read_table


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("identity", [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
        ("toeplitz", [[6 / 11, 3 / 11, 2 / 11], [1 / 4, 1 / 2, 1 / 4], [2 / 11, 3 / 11, 6 / 11]]),
        ("zeros", [[0, 0, 0]] * 3),
        ("uniform", [[1 / 3] * 3] * 3),
    ],
)
def test_matrices_are_those_written_out(name, expected):
    matrices = papa.Constants.of(name, 2, 5, 3).mean
    assert matrices.shape == (2, 5, 3, 3) and (matrices == matrices[0, 0]).all()
    torch.testing.assert_close(matrices[1, 4], torch.tensor(expected, dtype=torch.float32))
    with pytest.raises(papa.InputError, match="give one of identity, toeplitz, zeros, uniform"):
        papa.Constants.of("average", 2, 5, 3)


def test_orders_are_by_layer_or_draws_of_their_own(tmp_path):
    def ordered(name, seed=0):
        jobs.put_in_order(ModelId(name="m", hub=random_model("bert")), tmp_path / "order.parquet", name, seed)
        table = read_table(tmp_path / "order.parquet").to_pandas()
        assert table["rank"].tolist() == list(range(8))
        return list(zip(table["layer"], table["head"], strict=True))

    heads = [(layer, head) for layer in range(2) for head in range(4)]
    assert ordered("first-layer-first") == heads
    assert ordered("last-layer-first") == heads[4:] + heads[:4]
    with pytest.raises(papa.InputError, match="needs λ"):
        ordered("lambda-0")
    draws = [ordered("random-1"), ordered("random-2"), ordered("random-1", seed=1)]
    assert all(sorted(draw) == heads != draw for draw in draws)
    assert draws[0] != draws[1] != draws[2] != draws[0] and ordered("random-1") == draws[0]
