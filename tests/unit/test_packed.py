"""How tokens of a packed row come to their examples, and back."""

import pytest
import torch

from papa.data.packed import Examples, Packed

LENGTHS = {"of several lengths": [3, 1, 4], "of one length": [3, 3]}


def packed(lengths):
    slots = torch.cat([torch.arange(length) for length in lengths])
    return Packed(torch.ones_like(slots), slots, torch.zeros_like(slots), torch.tensor(lengths), 5)


def laid_out(row, lengths):
    """What `spread` has to give, token by token."""
    dense = torch.zeros(len(lengths), row.shape[1], max(lengths), row.shape[2], dtype=row.dtype)
    for example, own in enumerate(row[: sum(lengths)].split(lengths)):
        dense[example, :, : len(own)] = own.transpose(0, 1)
    return dense


@pytest.mark.parametrize("idle", [0, 2])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_tokens_go_to_their_places_and_back(lengths, idle):
    examples, tokens = Examples.of_packed(packed(lengths)), sum(lengths)
    row = torch.randn(tokens + idle, 2, 3)
    spread = examples.spread(row)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    assert torch.equal(spread.where(real[:, None, :, None], 0), laid_out(row, lengths))
    beside = spread.transpose(1, 2).contiguous().transpose(1, 2)  # as fused attention lays it out
    for own in (spread, beside):
        assert torch.equal(examples.gather(own, len(row))[:tokens], row[:tokens])


@pytest.mark.parametrize("beside", [False, True], ids=["heads apart", "heads side by side"])
@pytest.mark.parametrize("idle", [0, 2])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_gradients_come_from_tokens_alone(lengths, idle, beside):
    """Not from idle tokens, and not from places without a token, of which there is one copy of the first."""
    examples, tokens = Examples.of_packed(packed(lengths)), sum(lengths)
    real = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])[:, None, :, None]

    def attended(row):
        own = examples.spread(row)
        own = own.where(real, own.detach())  # nobody reads these
        own = own.transpose(1, 2).contiguous().transpose(1, 2) if beside else own
        return examples.gather(own.sin(), len(row))[:tokens]

    row = torch.randn(tokens + idle, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(attended, row)
    assert torch.autograd.gradgradcheck(attended, row)


def test_what_stands_in_empty_places_has_no_gradient():
    examples = Examples.of_packed(packed([3, 1, 4]))
    spread = torch.randn(3, 2, 4, 3, requires_grad=True)
    examples.gather(spread, 10).sum().backward()
    assert torch.equal(spread.grad, laid_out(torch.ones(8, 2, 3), [3, 1, 4]))
