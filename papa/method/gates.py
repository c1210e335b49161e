"""λ of each head: a gate between its attention and a constant, learned together with a probe (Sec. 3.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from papa.method.checkpoints import Checkpoint
from papa.method.fitting import TrainingTask, fit
from papa.method.objective import Objective
from papa.method.states import StreamedStates
from papa.method.training_rows import training_rows
from papa.model.model import Model
from papa.model.replacement import AnyConstants, Mix, Replacement

if TYPE_CHECKING:
    from papa.plan.jobs import OfTask


def learn_gates(
    model: Model, constants: AnyConstants, objective: Objective, gating: OfTask, checkpoint: Checkpoint | None = None
) -> Tensor:
    """Learn λ of every head together with the objective's probe, which is untrained; return `[epoch, layer, head]`.

    Head (l, h) uses λ·attention + (1-λ)·constant with λ = sigmoid(raw), and raw starts at 0 (Sec. 3.2). If the model's
    prediction head replaces the probe, only λ is learned.
    """
    raw = nn.Parameter(torch.zeros(model.layers, model.heads, device=model.device))
    mixes = [mix for mix in model.replacement(constants, mixing=raw.detach().sigmoid()) if isinstance(mix, Mix)]

    def mixed() -> Replacement:  # constants are checked and copied only once
        weights = raw.sigmoid().to(mixes[0].weights)
        return [replace(mix, weights=of_layer) for mix, of_layer in zip(mixes, weights, strict=True)]

    states = StreamedStates(model, mixed, gating.encoder_dropout, probed=objective.target.probed)
    task = TrainingTask(
        name="learning λ",
        parameters=[raw, *objective.probe.parameters()],
        rows=training_rows(objective.examples, gating.training, gating.seed),
        loss=objective.loss_on(states),
        before_epoch=objective.begin,
        after_epoch=lambda: {"lambda": raw.detach().sigmoid().cpu()},
        shares=objective.shares,
    )
    epochs = fit(task, gating.training, gating.seed, checkpoint)
    return torch.stack([epoch.recorded["lambda"] for epoch in epochs])
