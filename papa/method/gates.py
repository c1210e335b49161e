"""λ of each head: a gate between its attention and a constant, learned together with a probe (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from papa.config.variant import WHOLE
from papa.errors import InputError
from papa.method.checkpoints import Checkpoint
from papa.method.fitting import Recorded, TrainingTask, fit
from papa.method.objective import Objective, held_out_loss
from papa.method.orders import units_of
from papa.method.states import StreamedStates
from papa.method.training_rows import TrainingRows, training_rows
from papa.model.model import Model
from papa.model.replacement import Constants, Mix, Replacement

if TYPE_CHECKING:
    from papa.config.stages import Gating

LAMBDA_START = {"half": 0.5, "open": 0.95}
"""The initial λ for each value of the setting `start`."""


def learn_gates(
    model: Model, constants: Constants, objective: Objective, gating: Gating, checkpoint: Checkpoint | None = None
) -> Tensor:
    """Learn λ of every head together with the objective's probe, which must be untrained.

    Returns:
        λ after each epoch, `[epoch, layer, head]`.

    Head (l, h) uses λ·attention + (1-λ)·constant with λ = sigmoid(raw); by default, raw starts at 0 (Sec. 3.2). Heads
    of one unit (`ranking.unit`) share one λ. If the model's prediction head replaces the probe, only λ is learned. The
    setting `start` gives the initial λ, `l1` times the mean of all λ is added to the loss, and with `settled`, training
    stops after an epoch that hardly changes the order of heads. With `patience`, it ends as a probe's training does.
    """
    units = units_of(gating.unit, model.heads, model.groups)
    start = torch.tensor(LAMBDA_START[gating.start]).logit().item()
    raw = nn.Parameter(torch.full((model.layers, units), start, device=model.device))

    def lambdas() -> Tensor:
        return raw.sigmoid().repeat_interleave(model.heads // units, dim=1)  # [layer, head]

    mixes = [mix for mix in model.replacement(constants, mixing=lambdas().detach()) if isinstance(mix, Mix)]

    def mixed() -> Replacement:  # constants are checked and copied only once
        weights = lambdas().to(mixes[0].weights)
        return [replace(mix, weights=of_layer) for mix, of_layer in zip(mixes, weights, strict=True)]

    states = StreamedStates(model, mixed, gating.encoder_dropout, probed=objective.target.probed)
    rows = rows_of_gating(objective.examples, gating)
    task_loss = objective.loss_on(states, rows.learned)

    def loss(examples: Tensor) -> Tensor:
        return task_loss(examples) + gating.l1 * raw.sigmoid().mean()

    task = TrainingTask(
        name="learning λ",
        parameters=[raw, *objective.probe.parameters()],
        examples=len(rows.learned),
        loss=loss,
        before_epoch=objective.begin,
        after_epoch=lambda: {"lambda": lambdas().detach().cpu()},
        enough=lambda epochs: gating.settled is not None and order_agreement(epochs) >= gating.settled,
        held_out_loss=held_out_loss(objective, states, rows, gating.training),
        shares=lambda parts: objective.shares(parts, rows.learned),
        recompute=model.recompute,
    )
    epochs = fit(task, gating.training, gating.seed, checkpoint)
    return torch.stack([epoch.recorded["lambda"] for epoch in epochs])


def order_agreement(epochs: Sequence[Recorded]) -> float:
    """Return Kendall's τ between the λ of all heads after the last two epochs; -1 if there is only one epoch."""
    if len(epochs) < 2:
        return -1.0
    values = torch.stack([epoch["lambda"].flatten() for epoch in epochs[-2:]])
    first, second = (values[:, :, None] - values[:, None]).sign()
    # heads of one unit are tied in both epochs, so they form no pair
    return float((first * second).sum() / (first.abs().sum() * second.abs().sum()).sqrt())


def rows_of_gating(examples: int, gating: Gating) -> TrainingRows:
    """Return the training rows that λ is learned on: those of its seed, or a part of them."""
    rows = training_rows(examples, gating.training, gating.seed)
    return replace(rows, learned=rows.learned[rows_of_part(len(rows.learned), gating.part)])


def rows_of_part(examples: int, part: str) -> Tensor:
    """Return the indices of the training examples in a part; parts are random, because files are often sorted."""
    rows = torch.arange(examples)
    if part != WHOLE:
        index, parts = map(int, part.split("of"))
        rows = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[index - 1 :: parts]
        if not len(rows):
            raise InputError(
                f"{examples} training examples cannot be divided into {parts} parts to learn λ from each; "
                "set fewer parts."
            )
    return rows
