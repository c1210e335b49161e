"""The way of tokens from a packed row to their examples, and back."""

import pytest
import torch

from papa.data.packed import Examples, Packed

LENGTHS = {"of several lengths": [3, 1, 4], "of one length": [3, 3]}


def packed(lengths):
    slots = torch.cat([torch.arange(length) for length in lengths])
    return Packed(torch.ones_like(slots), slots, torch.zeros_like(slots), torch.tensor(lengths), 5)


def laid_out(row, lengths):
    """The expected output of `spread`, token by token."""
    dense = torch.zeros(len(lengths), row.shape[1], max(lengths), row.shape[2], dtype=row.dtype)
    for example, tokens in enumerate(row[: sum(lengths)].split(lengths)):
        dense[example, :, : len(tokens)] = tokens.transpose(0, 1)
    return dense


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_tokens_go_to_their_places_and_back(lengths):
    examples, tokens = Examples.of_packed(packed(lengths)), sum(lengths)
    row = torch.randn(tokens, 2, 3)
    spread = examples.spread(row)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    assert torch.equal(spread.where(real[:, None, :, None], 0), laid_out(row, lengths))
    beside = spread.transpose(1, 2).contiguous().transpose(1, 2)  # as fused attention lays it out
    for layout in (spread, beside):
        assert torch.equal(examples.gather(layout), row)


@pytest.mark.parametrize("beside", [False, True], ids=["heads separately", "heads side by side"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_gradients_come_only_from_tokens(lengths, beside):
    """Not from places without a token, which hold copies of the first."""
    examples, tokens = Examples.of_packed(packed(lengths)), sum(lengths)
    real = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])[:, None, :, None]

    def attended(row):
        spread = examples.spread(row)
        spread = spread.where(real, spread.detach())  # nobody reads these
        spread = spread.transpose(1, 2).contiguous().transpose(1, 2) if beside else spread
        return examples.gather(spread.sin())

    row = torch.randn(tokens, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(attended, row)
    assert torch.autograd.gradgradcheck(attended, row)
