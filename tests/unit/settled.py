"""A memory of settled models: a model like an earlier one is not checked again, which takes longer than most tests.

Each test still gets a model that shares no weight and no state with another. A test that replaces any part of
`papa.model` gets all checks.
"""

import hashlib
import sys

import torch

from papa.model import model

SMALL_MODEL = 1_000_000
"""A model with more parameters is always checked."""
PARTS = ("papa.model.", "papa.data.packed")


def parts_of_models():
    """The values of the modules that a model is made of, and of their classes: owner, name and value."""
    modules = [module for name, module in sys.modules.items() if name.startswith(PARTS)]
    values = [(module, value) for module in modules for value in vars(module).values()]
    classes = [
        value
        for module, value in values
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    return [
        (owner, name, value)
        for owner in (*modules, *classes)
        for name, value in vars(owner).items()
    ]


class SettledModels:
    """Stands in for `settle` in `papa.model.model`."""

    def __init__(self):
        self.settle = model.settle
        self.remembered = {}
        self.checked = 0
        self.parts = parts_of_models()

    def __call__(self, full, session, checked=None):
        usual = all(
            vars(owner).get(name) is value
            for owner, name, value in self.parts
            if (owner, name) != (model, "settle")
        )
        small = sum(weight.numel() for weight in full.parameters()) < SMALL_MODEL
        key = identity(full) if usual and small else None
        checked = checked or self.remembered.get(key)
        self.checked += not checked
        settled = self.settle(full, session, checked)
        if key is not None:
            self.remembered[key] = settled
        return settled


def identity(full):
    """All that the checks of a model depend on: its config, its modules and its weights."""
    digest = hashlib.sha256(full.config.to_json_string(use_diff=False).encode())
    digest.update(repr([(name, type(part)) for name, part in full.named_modules()]).encode())
    for name, values in [*full.named_parameters(), *full.named_buffers()]:
        digest.update(f"{name} {values.dtype} {values.device} {list(values.shape)}".encode())
        digest.update(values.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
