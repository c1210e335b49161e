"""What a model has to show before anything is computed with it, on one tiny batch.

A model whose attention were not replaced, or whose positions were not those of its own code, would give plausible
numbers that are wrong. The stock model says what is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from papa.data.packed import Packed
from papa.errors import InputError, first_line
from papa.model.forms import options_of, raw_input_of, taken_by

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far hidden states may be from the stock model's, relative to their norm: a few roundings per layer."""

Where = Literal["between", "behind", "before"]
"""Where padding stands, from the tokens of an example."""
MELS = ("num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel", "num_mels", "n_mels")
"""What configs call the number of values of a frame of sound."""


def tiny_batch(model: PreTrainedModel, padding: Where) -> Packed:
    """Three examples of different lengths, and where padding stands: between their tokens, behind or before them."""
    rows = [[1, 1, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1, 1]]
    mask = torch.tensor(rows if padding == "between" else [sorted(row, reverse=padding == "behind") for row in rows])
    pad_id = getattr(model.config, "pad_token_id", None)
    words = int(model.config.get_text_config().vocab_size)
    known = torch.tensor([number for number in range(min(words, 29)) if number != pad_id])
    ids = known[torch.arange(mask.numel()) % len(known)].view(mask.shape).masked_fill(mask == 0, pad_id or 0)
    return Packed.of({"input_ids": ids, "attention_mask": mask}).to(model.device)


def tiny_raw_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Two examples of what a model takes that takes no text: pictures, or sound of which the second is shorter.

    Raises:
        InputError: none of the shapes that are known is what the model takes.
    """
    name, config = raw_input_of(model), model.config
    weight, chance = next(model.parameters()), torch.Generator().manual_seed(0)
    mels = [own for own in (getattr(config, key, None) for key in MELS) if isinstance(own, int)]
    shapes: list[tuple[int, ...]] = []
    if name == "pixel_values":
        side = getattr(config, "image_size", None)
        sides = (side, side) if isinstance(side, int) else tuple(side or ())
        shapes = [(int(getattr(config, "num_channels", 3)), *sides)]
    elif name in ("input_features", "input_values"):
        frames = [2 * int(getattr(config, "max_source_positions", 0)), int(getattr(config, "max_length", 0) or 0), 48]
        shapes = [shape for bins in mels for long in frames if long for shape in ((bins, long), (long, bins))]
        shapes = [*shapes, (4000,)] if name == "input_features" else [(4000,), *shapes]
    why = f"takes {name}, of which papa knows no shape"
    for shape in shapes:
        found = {name: torch.randn(2, *shape, generator=chance).to(weight)}
        masks = [torch.ones(2, long, dtype=torch.long, device=weight.device) for long in dict.fromkeys(shape)]
        for mask in masks if name != "pixel_values" and "attention_mask" in taken_by(model) else []:
            mask[1, -(mask.shape[1] // 3) :] = 0
        for given in ([found | {"attention_mask": mask} for mask in masks] if len(shape) < 3 else []) + [found]:
            try:
                with torch.no_grad():
                    states_of(model, given)
            except Exception as error:  # each model has reasons of its own
                why = f"cannot run on {name} {[2, *shape]} ({first_line(error)})"
            else:
                return given
    raise InputError(f"{type(model).__name__} {why}.")


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
    """The largest distance of states, relative to the norm of what is expected; nan if one is nan."""
    if len(found) != len(expected):
        return float("inf")
    several = [
        float((own.detach().float() - other.float()).norm() / other.float().norm().clamp(min=1e-30))
        for own, other in zip(found, [other.detach() for other in expected], strict=True)
    ]
    return float(torch.tensor(several).max())  # Python's own max would pass over a nan


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Say of which model an `InputError` is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"The model {name} cannot be used: {error}") from None
