"""Constants that need no text, and orders that need no λ, against what they are by definition."""

import jobs
import pytest
import torch
from refusals import input_error
from sizes import CORPUS_SLOTS, HEADS, LAYERS

import papa
from papa.method.variants import ordered_heads, replaced_by
from papa.stages import HiddenStates


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
    assert matrices.shape == (2, 5, 3, 3)
    assert (matrices == matrices[0, 0]).all()
    torch.testing.assert_close(matrices[1, 4], torch.tensor(expected, dtype=torch.float32))
    with input_error("give one of identity, toeplitz, zeros, uniform"):
        papa.Constants.of("average", 2, 5, 3)


LAST_LAYER_FIRST = [(layer, head) for layer in (2, 1, 0) for head in range(HEADS)]


def test_orders_are_by_layer_or_draws_of_their_own(loaded):
    def ordered(name, seed=0):
        settings = HiddenStates(constant="zeros", order=name, order_seed=seed)
        return ordered_heads(jobs.job(settings, "s.hidden"), settings, loaded)

    heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    assert ordered("first-layer-first") == heads
    assert ordered("last-layer-first") == LAST_LAYER_FIRST
    draws = [ordered("random-1"), ordered("random-2"), ordered("random-1", seed=1)]
    assert all(sorted(draw) == heads != draw for draw in draws)
    assert draws[0] != draws[1] != draws[2] != draws[0]
    assert ordered("random-1") == draws[0]


def test_a_share_of_the_heads_is_replaced_from_the_beginning_of_the_order(loaded):
    def replaced(**settings):
        settings = HiddenStates(**settings)
        job = jobs.job(settings, "s.hidden")
        return replaced_by(job, settings, loaded, CORPUS_SLOTS)

    for fraction, number in (("1/4", 12), ("1/2", 8), ("0", 15), ("1/16", 15)):
        _, heads = replaced(constant="zeros", order="last-layer-first", fraction=fraction)
        assert heads == LAST_LAYER_FIRST[:number]
    _, heads = replaced(constant="zeros")
    assert heads is None
    assert replaced() == (None, None)
