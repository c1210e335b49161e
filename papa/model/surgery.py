"""Attention modules of one's own in a stock model: one file per kind of attention module.

`patch` finds the self-attention modules of a model by their class and puts replaceable ones in their places; an
encoder whose attention is not known is refused with the list of those that are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from papa.data.packed import Examples
from papa.errors import InputError
from papa.model import bert, deberta
from papa.model.replacement import Head, Session, plan_layers

# by name: naming a class does not load transformers, which whoever trains probes on stored features does without
_REPLACEABLE: dict[str, type[nn.Module]] = {
    **dict.fromkeys(bert.STOCK, bert.ReplaceableBertAttention),
    **dict.fromkeys(deberta.STOCK, deberta.ReplaceableDebertaAttention),
}
_FAMILIES = sorted((bert.STOCK | deberta.STOCK).values(), key=str.lower)
_Place = tuple[nn.Module, str, Any]


def attention_modules(model: nn.Module) -> list[_Place]:
    """Where the self-attention modules of `model` are, layer by layer: (parent, attribute, module).

    Raises `InputError` for a decoder and for a model in which not every layer has an attention module that is known.
    """
    config = getattr(model, "config", None)
    if getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False):
        raise InputError(f"{type(model).__name__} is a decoder; the method is defined for encoders.")
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if _name_of(child) in _REPLACEABLE
    ]
    layers = getattr(config, "num_hidden_layers", None)
    if not found or len(found) != layers:
        raise InputError(
            f"{type(model).__name__} has {layers} layers and {len(found)} attention modules that can be replaced; "
            f"supported are encoders with the attention of {', '.join(_FAMILIES[:-1])} or {_FAMILIES[-1]}."
        )
    return found


def _name_of(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def shape_of(places: list[_Place]) -> tuple[int, int]:
    """(layers, heads per layer)."""
    return len(places), int(places[0][2].num_attention_heads)


def patch(model: nn.Module, session: Session) -> None:
    """Put replaceable attention modules, steered by `session`, into `model`."""
    for layer, (parent, name, stock) in enumerate(attention_modules(model)):
        setattr(parent, name, _REPLACEABLE[_name_of(stock)](stock, layer, session))


@contextmanager
def replaced_attention(model: nn.Module, constants: Any, heads: Iterable[Head] | None = None) -> Iterator[nn.Module]:
    """Run a plain transformers encoder with the attention of `heads` (None: all) replaced by `constants`.

    Inside, call the model as ever, with laid-out inputs `[example, slot]` and their attention_mask. The model's own
    modules are put back on leaving, whatever happened inside. Paper, Sec. 3.3.
    """
    places = attention_modules(model)
    parameter = next(model.parameters())
    plans = plan_layers(shape_of(places), constants, heads, device=parameter.device, dtype=parameter.dtype)
    session = Session(plans)

    def note_examples(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        if ids is None:
            raise InputError("Call the model with input_ids while its attention is replaced.")
        if mask is None:
            mask = torch.ones_like(ids)
        if mask.shape != ids.shape:
            raise InputError(
                f"input_ids {list(ids.shape)} and attention_mask {list(mask.shape)} must be [example, slot]."
            )
        matrices = plans[0].matrices
        if matrices is not None and matrices.shape[-1] != ids.shape[1]:
            raise InputError(f"The constants have {matrices.shape[-1]} slots and the inputs {ids.shape[1]}.")
        session.examples = Examples.of_mask(mask)

    hook = model.register_forward_pre_hook(note_examples, with_kwargs=True)
    try:
        patch(model, session)
        yield model
    finally:
        hook.remove()
        for parent, name, stock in places:
            setattr(parent, name, stock)
