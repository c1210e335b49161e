"""Tools to compare a model with the stock model on a tiny batch before it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from papa.data.packed import Packed
from papa.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest allowed relative distance of hidden states from the stock model's; it leaves room for rounding."""

Padding = Literal["between", "after", "before"]
"""Position of padding: between an example's tokens, after them or before them."""


def tiny_batch(model: PreTrainedModel, padding: Padding) -> Packed:
    """Return three examples of different lengths, padded at this position; the last one fills all slots."""
    rows = [[1, 1, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1, 1]]
    mask = torch.tensor(
        rows if padding == "between" else [sorted(row, reverse=padding == "after") for row in rows]
    )
    pad_id = getattr(model.config, "pad_token_id", None)
    words = model.config.get_text_config().vocab_size
    # RoBERTa takes each token with the id of padding for padding, whatever the mask says
    usable = torch.tensor([token for token in range(min(words, 29)) if token != pad_id])
    every = usable[torch.arange(mask.numel()) % len(usable)].view(mask.shape)
    ids = every.masked_fill(mask == 0, pad_id or 0)
    return Packed.of({"input_ids": ids, "attention_mask": mask}).to(model.device)


def distance(states: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest distance between states, relative to the norm of the expected ones; NaN if any is NaN."""
    if len(states) != len(expected):
        return float("inf")
    distances = []
    for actual, stock in zip(states, expected, strict=True):
        # in float32, because bfloat16 would round the norms; clamped, because a state may be all zeros
        right = stock.detach().float()
        distances.append((actual.detach().float() - right).norm() / right.norm().clamp(min=1e-30))
    return float(torch.stack(distances).max())  # Python's max would skip NaN


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Names under which torch keeps the hooks of a module, by the number of their registration."""


@contextmanager
def without_hooks(model: nn.Module) -> Iterator[None]:
    """Remove all hooks from a model inside the `with` block, so a check does not call those of users.

    Hooks of transformers stay, because they collect hidden states.
    """
    tables = [vars(module)[name] for module in model.modules() for name in HOOKS]
    before = [dict(hooks) for hooks in tables]
    for hooks in tables:
        for number, hook in list(hooks.items()):
            if not str(getattr(hook, "__module__", "")).startswith("transformers."):
                del hooks[number]
    try:
        yield
    finally:
        for hooks, earlier in zip(tables, before, strict=True):
            # torch calls hooks in the order of this table; those added meanwhile come last
            in_order = earlier | hooks
            hooks.clear()
            hooks.update(in_order)


def check_checkpointing(model: PreTrainedModel) -> None:
    """Raise `InputError` if a model would compute layers again in the backward pass, when nothing is replaced."""
    if model.training and torch.is_grad_enabled() and model.is_gradient_checkpointing:
        raise InputError(
            f"{type(model).__name__} uses gradient checkpointing, which runs layers again without papa's constants; "
            "call gradient_checkpointing_disable()."
        )


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Add the model's name to an `InputError` raised inside the `with` block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"The model {name} cannot be used: {error}") from None
