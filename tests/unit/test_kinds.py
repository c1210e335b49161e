"""Constants that need no text, orders that need no λ, and their names."""

import pytest
import torch

import papa
from papa.config.kinds import Kind, kind_of, order_of
from papa.data.packed import Examples
from papa.files import read_table
from papa.method.ranking import order_heads
from papa.model.replacement import restrict


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("identity", [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
        ("toeplitz", [[6 / 11, 3 / 11, 2 / 11], [1 / 4, 1 / 2, 1 / 4], [2 / 11, 3 / 11, 6 / 11]]),
        ("zeros", [[0, 0, 0], [0, 0, 0], [0, 0, 0]]),
    ],
)
def test_matrices_are_those_written_out(kind, expected):
    matrices = papa.constant_matrices(kind, 2, 5, 3)
    assert matrices.shape == (2, 5, 3, 3)
    torch.testing.assert_close(matrices[1, 4], torch.tensor(expected, dtype=torch.float32))
    assert torch.equal(matrices[0, 0], matrices[1, 4])


def test_what_is_used_is_normalised_over_real_slots():
    examples = Examples.of_mask(torch.tensor([[1, 0, 1]]))
    used = restrict(papa.constant_matrices("toeplitz", 1, 1, 3)[0], examples)[0, 0]
    torch.testing.assert_close(used[0], torch.tensor([3 / 4, 0, 1 / 4]))
    assert not restrict(papa.constant_matrices("zeros", 1, 1, 3)[0], examples).any()


def test_unknown_names_list_the_known():
    assert (
        kind_of("average-of-mnli") == Kind("average", "mnli") and kind_of("average-of-mnli").name == "average-of-mnli"
    )
    assert (
        kind_of("toeplitz-trained") == Kind("toeplitz", None, True) and kind_of("toeplitz-trained").name == "toeplitz"
    )
    for name in ("identity-trained", "average-of-", "mean"):
        with pytest.raises(papa.InputError, match="there are average, average-of-CORPUS, identity, toeplitz, zeros"):
            kind_of(name)
    with pytest.raises(papa.InputError, match="there are identity, toeplitz, zeros"):
        papa.constant_matrices("average", 1, 1, 3)
    assert order_of("random-12") == ("random", 12) and order_of("lambda") == ("lambda", None)
    for name in ("random", "random-0", "lambda-1", "alphabetical"):
        with pytest.raises(papa.InputError, match="one of lambda, lambda-reversed, first-layer-first"):
            order_of(name)


@pytest.fixture
def ordered(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def run(kind, seed=0):
        order_heads({"name": "m", "random": "bert"}, tmp_path / "order.parquet", kind, seed)
        table = read_table(tmp_path / "order.parquet").to_pandas()
        assert table["rank"].tolist() == list(range(8))
        return list(zip(table["layer"], table["head"], strict=True))

    return run


def test_orders_by_layer(ordered):
    everything = [(layer, head) for layer in range(2) for head in range(4)]
    assert ordered("first-layer-first") == everything
    assert ordered("last-layer-first") == everything[4:] + everything[:4]
    with pytest.raises(papa.InputError, match="needs λ"):
        ordered("lambda")


def test_random_orders_are_draws_of_their_own(ordered):
    draws = [ordered("random-1"), ordered("random-2"), ordered("random-1", seed=1)]
    everything = [(layer, head) for layer in range(2) for head in range(4)]
    assert all(sorted(draw) == everything and draw != everything for draw in draws)
    assert draws[0] != draws[1] != draws[2] != draws[0]
    assert ordered("random-1") == draws[0]
