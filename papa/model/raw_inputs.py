"""The inputs of image and audio models, and the tokens that the models make from them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from papa.data.packed import RawBatch
from papa.errors import InputError, first_line
from papa.model.attention import Observed, Session, running
from papa.model.forms import RAW_INPUTS, accepted_by, patch, states_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MEL_KEYS = ("num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel", "num_mels", "n_mels")
"""Config keys for the number of values in an audio frame."""


def raw_input_of(model: PreTrainedModel) -> str:
    """Return the name of the argument by which a model accepts images or audio."""
    return next(name for name in RAW_INPUTS if name in accepted_by(model))


def raw_batch(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> RawBatch:
    """Return a batch of images or audio, with the tokens that the model's first layer attends to.

    Raises:
        InputError: the model cannot run on these inputs.
    """
    name = raw_input_of(model)
    if name not in inputs:
        raise InputError(f"{type(model).__name__} takes {name}, but {', '.join(inputs) or 'nothing'} was given.")
    weight = next(model.parameters())
    arguments = {
        key: values.to(weight) if values.is_floating_point() else values.to(weight.device)
        for key, values in inputs.items()
    }
    session = Session(layout_from_attention=True, stand_in=stop)
    undo = patch(model)
    try:
        with running(session), torch.no_grad(), suppress(Observed):
            model(**arguments)
    except InputError:
        raise
    except Exception as error:  # wrong inputs raise many types of errors
        shape = list(arguments[name].shape)
        raise InputError(f"{type(model).__name__} cannot run on {name} {shape} ({first_line(error)}).") from error
    finally:
        undo()
    if session.examples is None:
        raise InputError(f"{type(model).__name__} does not look up its attention by name.")
    real = session.examples.real
    mask = torch.ones_like(session.examples.slots) if real is None else real.long()
    return RawBatch.masked(arguments, mask)


def stop(*_: object) -> Tensor:
    """End a forward pass at its first attention."""
    raise Observed


def tiny_raw_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return two images, or two audio clips (the second one shorter), in a shape that the model accepts.

    Raises:
        InputError: the model accepts none of the shapes that papa tries.
    """
    name, weight, generator = raw_input_of(model), next(model.parameters()), torch.Generator().manual_seed(0)
    problem = f"takes {name} in an unknown shape"
    for shape in _shapes(model, name):
        values = {name: torch.randn(2, *shape, generator=generator).to(weight)}
        masks = [torch.ones(2, length, dtype=torch.long, device=weight.device) for length in dict.fromkeys(shape)]
        for mask in masks if name != "pixel_values" and "attention_mask" in accepted_by(model) else []:
            mask[1, -(mask.shape[1] // 3) :] = 0
        masked = [values | {"attention_mask": mask} for mask in masks] if len(shape) < 3 else []
        for arguments in (*masked, values):
            try:
                with torch.no_grad():
                    states_of(model, arguments)
            except Exception as error:  # models raise many types of errors
                problem = f"cannot run on {name} {[2, *shape]} ({first_line(error)})"
            else:
                return arguments
    raise InputError(f"{type(model).__name__} {problem}.")


def _shapes(model: PreTrainedModel, name: str) -> list[tuple[int, ...]]:
    config = model.config
    if name == "pixel_values":
        side = getattr(config, "image_size", None)
        sides = (side, side) if isinstance(side, int) else tuple(side or ())
        return [(int(getattr(config, "num_channels", 3)), *sides)]
    mels = [bins for bins in (getattr(config, key, None) for key in MEL_KEYS) if isinstance(bins, int)]
    frames = [2 * int(getattr(config, "max_source_positions", 0)), int(getattr(config, "max_length", 0) or 0), 48]
    shapes = [shape for bins in mels for length in frames if length for shape in ((bins, length), (length, bins))]
    return [*shapes, (4000,)] if name == "input_features" else [(4000,), *shapes]
