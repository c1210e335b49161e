"""Recompute the activations of each layer in the backward pass instead of keeping them, with the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from papa.model.forms import recomputable_layers

if TYPE_CHECKING:
    from papa.model.attention import Session


def recompute_layers(model: nn.Module, session: Session) -> bool:
    """Let all layers of a model recompute their activations from now on, if gradients are needed.

    Returns:
        False if the model has no layers that transformers could recompute, or if they already do.
    """
    layers = recomputable_layers(model)
    # accelerate also sets the forward function of a layer
    if not layers or any(getattr(layer.forward, "func", None) is _recomputed for layer in layers):
        return False
    for layer in layers:
        vars(layer)["forward"] = partial(_recomputed, session, layer, layer.forward)
    return True


def _recomputed(
    session: Session, layer: nn.Module, forward: Callable[..., object], *arguments: object, **keywords: object
) -> object:
    """Run a layer, and run it again in the backward pass, in the session and the mode of the forward pass."""
    if not torch.is_grad_enabled():
        return forward(*arguments, **keywords)
    first_call, replacement, training = session.calls, session.replacement, layer.training
    examples = None

    def run(*arguments: object, **keywords: object) -> object:
        nonlocal examples
        if examples is None:
            output = forward(*arguments, **keywords)
            examples = session.layout  # models for images know it only now
            return output
        with session.over(examples, replacement):
            session.calls = first_call
            layer.train(training)  # dropout
            try:
                return forward(*arguments, **keywords)
            finally:
                layer.eval()

    output: object = checkpoint(partial(run, **keywords), *arguments, use_reentrant=False)
    return output
