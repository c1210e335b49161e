"""What a model has to show before anything is computed with it, on one tiny batch.

A model whose attention were not replaced, or whose positions were not those of its own code, would give plausible
numbers that are wrong. The stock model says what is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from papa.data.packed import Packed
from papa.errors import InputError
from papa.model.forms import options_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far hidden states may be from the stock model's, relative to their norm: a few roundings per layer."""


def tiny_batch(model: PreTrainedModel, gaps: bool) -> Packed:
    """Three examples of different lengths; with `gaps`, padding stands between their tokens, else behind them."""
    rows = [[1, 1, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1, 1]]
    mask = torch.tensor(rows if gaps else [sorted(row, reverse=True) for row in rows])
    padding = getattr(model.config, "pad_token_id", None)
    words = int(model.config.get_text_config().vocab_size)
    known = torch.tensor([number for number in range(min(words, 29)) if number != padding])
    ids = known[torch.arange(mask.numel()) % len(known)].view(mask.shape).masked_fill(mask == 0, padding or 0)
    return Packed.of({"input_ids": ids, "attention_mask": mask}).to(model.device)


def states_of(model: PreTrainedModel, arguments: dict[str, Tensor]) -> list[Tensor]:
    """All hidden states of a model, embeddings first, as the model gives them.

    Raises:
        InputError: the model gives none.
    """
    found = getattr(model(**arguments, **options_of(model), output_hidden_states=True), "hidden_states", None)
    if not found:
        raise InputError(f"{type(model).__name__} gives no hidden states.")
    return list(found)


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest distance of states, relative to the norm of what is expected."""
    if len(found) != len(expected):
        return float("inf")
    return max(
        float((own.detach().float() - other.float()).norm() / other.float().norm().clamp(min=1e-30))
        for own, other in zip(found, [other.detach() for other in expected], strict=True)
    )


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Say of which model an `InputError` is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"The model {name} cannot be used: {error}") from None
