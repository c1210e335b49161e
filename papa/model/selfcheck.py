"""A check of every model at load time: one tiny batch through the stock model and through the patched one.

A model whose attention were not replaced, or whose positions were not those of its own code, would give plausible
numbers that are wrong. This finds out before anything is computed with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from papa.errors import InputError
from papa.model.families import slots_limit

if TYPE_CHECKING:
    from papa.model.model import Encoder

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far hidden states may be from the stock model's, relative to their norm: a few roundings per layer."""


def stock_states(model: Any) -> Tensor:
    """Hidden states `[token, L+1, hidden]` of the tiny batch from a model that is not patched, padded."""
    inputs = _tiny_batch(model)
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    return torch.stack(states, dim=2)[inputs["attention_mask"].bool()]


def check(encoder: Encoder, stock: Tensor, name: str) -> None:
    """Raise `InputError` unless `encoder` reaches every layer, equals `stock` as it is, and differs when replaced."""
    inputs = _tiny_batch(encoder.model)
    real, n = inputs["attention_mask"].bool(), inputs["input_ids"].shape[1]
    refused = f"The model {name} cannot be used:"
    if not stock.isfinite().all():
        raise InputError(f"{refused} its hidden states are not finite in {stock.dtype}; load it in float32.")
    # every token attends to itself alone, which no softmax over several tokens does
    identity = torch.eye(n).expand(encoder.layers, encoder.heads, n, n)
    found = []
    for constants in (None, identity):
        encoder.session.reached.clear()
        with torch.no_grad():
            found.append(encoder.hidden_states(inputs, constants).transpose(1, 2)[real])  # [token, L+1, hidden]
        missed = sorted(set(range(encoder.layers)) - encoder.session.reached)
        if missed:
            raise InputError(f"{refused} the attention of its layers {missed} was not replaced, as it is never called.")
    own, replaced = found
    distance, size = (states.float().norm(dim=(0, 2)) for states in (own - stock, stock))
    off = float((distance / size).max())
    if not off <= TOLERANCE[stock.dtype]:
        raise InputError(
            f"{refused} with nothing replaced its hidden states are {off:.1e} (relative) from those of transformers; "
            f"{TOLERANCE[stock.dtype]:.0e} is allowed in {stock.dtype}."
        )
    same = [layer for layer in range(encoder.layers) if torch.equal(own[:, layer + 1], replaced[:, layer + 1])]
    if same:
        raise InputError(f"{refused} replacing the attention of all heads changes nothing in its layers {same}.")


def _tiny_batch(model: Any) -> dict[str, Tensor]:
    """Two examples of different lengths, with padding between their tokens."""
    mask = torch.tensor([[1, 1, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 0, 1]])[:, : slots_limit(model)]
    padding = model.config.pad_token_id
    known = torch.tensor([number for number in range(min(model.config.vocab_size, 17)) if number != padding])
    ids = known[torch.arange(mask.numel()) % len(known)].view(mask.shape).masked_fill(mask == 0, padding or 0)
    return {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
