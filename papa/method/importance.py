"""The gradient of a loss with respect to a gate on each head: a measure of importance without learned gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from papa.method.objective import Objective
from papa.method.progress import progress
from papa.method.states import StreamedStates
from papa.model.budget import BatchParts
from papa.model.model import Model
from papa.model.replacement import AnyConstants, Mix, Replacement


def gate_slopes(model: Model, objective: Objective, constants: AnyConstants, rows: Tensor, batch_size: int) -> Tensor:
    """Return |∂loss/∂gate| of each head's gate, averaged over training rows, float64 `[layer, head]`.

    Head (l, h) uses gate·attention + (1-gate)·constant with gate = 1. Each example has its own gates, so absolute
    values are taken before averaging (Michel et al. 2019). The objective has a trained probe, or the model's prediction
    head; masks, if any, have already been drawn.
    """
    open_gates = torch.ones(model.layers, model.heads)
    mixes = [mix for mix in model.replacement(constants, mixing=open_gates) if isinstance(mix, Mix)]
    gates: list[Tensor] = []  # one per layer, [example, head]
    mixed: Replacement = []
    states = StreamedStates(model, lambda: mixed, probed=objective.target.probed)
    loss, examples = objective.loss_on(states), len(rows)
    total = torch.zeros(model.layers, model.heads, dtype=torch.float64, device=model.device)

    def slopes_of(parts: Sequence[Tensor]) -> Tensor:
        """Return the summed slopes of the loss of all parts together, `[layer, head]`."""
        summed = torch.zeros_like(total)
        for part, share in zip(parts, objective.shares(parts), strict=True):
            gates[:] = [mix.weights.new_ones(len(part), model.heads).requires_grad_() for mix in mixes]
            mixed[:] = [replace(mix, weights=gate) for mix, gate in zip(mixes, gates, strict=True)]
            slopes = torch.stack(torch.autograd.grad(loss(part), gates)).to(total)  # [layer, example, head]
            summed += slopes.abs().sum(1) * share
        return summed

    parts_of = BatchParts(model.device)
    for batch in progress(rows.split(batch_size), "gradients", examples):
        # the loss is the mean over a batch, which divides slopes by the number of its examples
        total += parts_of.run(batch, slopes_of) * len(batch)
    return total / examples
