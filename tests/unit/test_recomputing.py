"""Activations that are recomputed in the backward pass: the same gradients, and less memory."""

import copy

import pytest
import torch
from sizes import SLOTS
from test_decoders import stock
from torch.autograd.graph import saved_tensors_hooks

from papa.data.packed import Packed
from papa.model.model import Model


def states_gradients_and_saved(model, dropout):
    """The last states, the gradients of mixing weights and of constants, and the number of values kept for them."""
    mask = (torch.arange(SLOTS) < torch.tensor([2, SLOTS, 5])[:, None]).long()
    torch.manual_seed(1)
    packed = Packed.of({"input_ids": torch.randint(4, 31, mask.shape) * mask, "attention_mask": mask})
    mixing = torch.rand(model.layers, model.heads, requires_grad=True)
    constants = torch.rand(model.layers, model.heads, SLOTS, SLOTS, requires_grad=True)
    saved = {}

    def keep(values):
        saved[values.untyped_storage().data_ptr()] = values.numel()
        return values

    with saved_tensors_hooks(keep, lambda values: values):
        states = model.run(model.pack(packed), model.replacement(constants, mixing=mixing), dropout)
    states[-1].square().sum().backward()
    return [states[-1].detach(), mixing.grad, constants.grad], sum(saved.values())


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("family", ["modernbert", "deberta-v2", "llama", "gpt2"])
def test_recomputed_activations_give_the_same_gradients(family, dropout):
    stock_model = stock(family)
    kept, recomputed = Model(copy.deepcopy(stock_model)), Model(stock_model)
    assert recomputed.recompute() and not recomputed.recompute()
    expected, most = states_gradients_and_saved(kept, dropout)
    values, fewest = states_gradients_and_saved(recomputed, dropout)
    for value, other in zip(values, expected, strict=True):
        assert torch.equal(value, other) and value.abs().max() > 0
    assert fewest < most / 2


def test_a_pass_without_gradients_recomputes_nothing(monkeypatch):
    model = Model(stock("llama"))
    model.recompute()
    monkeypatch.setattr("papa.model.recomputing.checkpoint", None)
    ids = {"input_ids": torch.arange(4, 9)[None], "attention_mask": torch.ones(1, 5, dtype=torch.long)}
    with torch.no_grad():
        assert model.hidden_states(ids).isfinite().all()
