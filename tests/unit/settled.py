"""A memory of settled models: a model like an earlier one is not checked again, which takes longer than most tests.

No test can change the memory: it has no model, only findings about models, which are frozen and consist of numbers.
Each test still gets a model that shares no weight and no state with another. A test that changes how models are checked
uses the fixture `checked_anew`, because its findings would be those of other tests too.
"""

import hashlib

import torch

SMALL_MODEL = 1_000_000
"""A model with more parameters is always checked."""


class SettledModels:
    """Stands in for `settle` in `papa.model.model`."""

    def __init__(self, settle):
        self.settle = settle
        self.remembered = {}

    def __call__(self, full, session, checked=None):
        if sum(weight.numel() for weight in full.parameters()) >= SMALL_MODEL:
            return self.settle(full, session, checked)
        key = identity(full)
        checked = checked or self.remembered.get(key)
        settled = self.settle(full, session, checked)
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
