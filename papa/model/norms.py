"""The normalisation layers of a model: found by what they compute, and run with other gains and biases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from papa.errors import InputError

PROBING_ROWS = 3
"""Number of random vectors on which a module shows whether it normalises."""
TOLERANCE = 1e-2
"""The largest relative difference between the outputs of a normalisation layer for a vector and for its double."""


def norm_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the gains and biases of all normalisation layers of a model, by name; shared ones once.

    A normalisation layer is a module without submodules that has a few values for each channel, and that returns the
    same output for a vector and for its double. So LayerNorm, RMSNorm and their variants are found in any model.

    Raises:
        InputError: the model has no normalisation layer with gains.
    """
    names = {module: name for name, module in model.named_modules()}
    parameters = {
        f"{names[module]}.{name}": value
        for module in names
        if _normalises(module)
        for name, value in module.named_parameters(recurse=False)
    }
    if not parameters:
        raise InputError(
            f"{type(model).__name__} has no normalisation layer with gains, so its norms cannot be trained; leave "
            "norms out of `adapt`."
        )
    return parameters


@contextmanager
def with_parameters(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Let a model use other parameters, by name; its own are restored afterwards, even after an error.

    The model's parameters are exchanged, not written to, so gradients reach the new ones, and the old ones keep their
    values.
    """
    places = [(*name.rpartition(".")[::2], value) for name, value in parameters.items()]
    modules = [(model.get_submodule(path), name, value) for path, name, value in places]
    before = [(module, name, getattr(module, name)) for module, name, _ in modules]
    try:
        for module, name, value in modules:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@torch.no_grad()
def _normalises(module: nn.Module) -> bool:
    """Return whether a module returns the same for a vector and for its double, and has a few values per channel."""
    values = list(module.parameters(recurse=False))
    shapes = {tuple(value.shape) for value in values}
    if any(True for _ in module.children()) or len(shapes) != 1 or len(min(shapes)) != 1:
        return False
    rows = torch.randn(1, PROBING_ROWS, *min(shapes), generator=torch.Generator().manual_seed(0)).to(values[0])
    try:
        once, twice = module(4 * rows), module(8 * rows)
    except Exception:  # a module with other inputs can raise any error
        return False
    if not isinstance(once, Tensor) or once.shape != rows.shape or not bool(once.isfinite().all()):
        return False
    return bool((once - twice).abs().max() <= TOLERANCE * once.abs().max())
