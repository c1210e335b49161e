"""λ of each head, learned together with a probe: how much it wants its own attention (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from papa.config.job import Job
from papa.config.stages import Gating, LambdaOf
from papa.config.variant import WHOLE, Constant
from papa.data.tokens import Tokens
from papa.data.weights import sources_of
from papa.errors import InputError, count
from papa.method.checkpoints import Checkpoint
from papa.method.constants import constants_for
from papa.method.fitting import Kept, TrainingTask, fit
from papa.method.head_weights import write_weights
from papa.method.objective import Objective
from papa.method.objectives import objective_of
from papa.method.orders import units_of
from papa.method.probes import ProbeSizes
from papa.method.states import StreamedStates
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Constants, Matrices, Outputs, Replacement

START = {"half": 0.5, "open": 0.95}
"""Where λ starts, by the name of the setting."""


def train_lambda(job: Job[LambdaOf]) -> str:
    """Stage *train λ*: learn how much each head needs its own attention, together with a probe; Parquet per epoch.

    See `gates_learned`; the probe that is learned on the way is thrown away.
    """
    settings, identity = job.settings, job.settings.model.model
    split = Tokens.read(job.input("tokens"), "train")
    train, facts = split["train"], split["train"].provenance
    model, constant = model_of(settings.model, job.machine), Constant.parse(settings.constant)
    matrices = constants_for(constant, job.maybe("constants"), model, facts)
    torch.manual_seed(settings.seed)
    objective = objective_of(job, split, ProbeSizes.of(model, train.n), model, job.settings.seed)
    trace = job.trace(**sources_of(identity, str(model.weights), job.machine))
    checkpoint = Checkpoint(job.output("lambdas"), trace, job.machine, model.device.type)
    values = gates_learned(model, matrices, objective, settings, checkpoint)
    size = model.heads // units_of(settings.unit, model.heads, model.groups)
    about = {"model": identity.name, "weights": model.weights, "unit_size": size}
    write_weights(values, job.output("lambdas"), about, facts, trace)
    checkpoint.discard()
    low, high = float(values[-1].min()), float(values[-1].max())
    examples = len(_part_of(objective.examples, settings.part))
    few = ", when its order had settled" if len(values) < settings.training.epochs else ""
    return (
        f"λ between {low:.3f} and {high:.3f} after {count(len(values), 'epoch')} of {count(examples, 'example')}"
        f"{few}{checkpoint.resumed}"
    )


def gates_learned(
    model: Model, constants: Constants, objective: Objective, how: Gating, checkpoint: Checkpoint | None = None
) -> Tensor:
    """λ of every head after each epoch, `[epoch, layer, head]`, learned together with what the objective trains.

    Head (l, h) uses λ·attention + (1-λ)·constant with λ = sigmoid(raw), raw = 0 at the start (Sec. 3.2). Heads of one
    unit (`ranking.unit`) have one λ. Of next tokens and of choices the model's own head has the loss, and λ alone is
    learned. The settings may say that λ starts open (`START`), that the mean of all λ times `l1` is added to the loss,
    and that no further epoch is learned when the order of heads has `settled`.

    Args:
        model: the frozen model.
        constants: what replaces attention.
        objective: has the loss, and was just made, with the seed that is in `how`.
        how: how λ is learned.
        checkpoint: where to go on from.
    """
    given = constants if isinstance(constants, Tensor | Matrices | Outputs) else constants.constants
    matrices, units = given.to(model.device), units_of(how.unit, model.heads, model.groups)
    start = torch.tensor(START[how.start]).logit().item()
    raw = nn.Parameter(torch.full((model.layers, units), start, device=model.device))

    def lambdas() -> Tensor:
        return raw.sigmoid().repeat_interleave(model.heads // units, dim=1)  # [layer, head]

    def mixed() -> Replacement:
        return model.replacement(matrices, mixing=lambdas())

    def learned() -> Kept:
        return {"lambda": lambdas().detach().cpu()}

    through = StreamedStates(model, mixed, how.encoder_dropout, direct=how.direct)
    task_loss, parameters = objective.loss_on(through), objective.probe.parameters()

    def loss(examples: Tensor) -> Tensor:
        return task_loss(examples) + how.l1 * raw.sigmoid().mean()

    rows = _part_of(objective.examples, how.part)
    task = TrainingTask(
        name="learning λ",
        parameters=[raw, *parameters],
        examples=len(rows),
        loss=lambda own: loss(rows[own]),
        before_epoch=objective.begin,
        after_epoch=learned,
        enough=lambda epochs: how.settled is not None and agreement(epochs) >= how.settled,
    )
    epochs = fit(task, how.training, how.seed, checkpoint)
    return torch.stack([epoch.kept["lambda"] for epoch in epochs])


def agreement(epochs: Sequence[Kept]) -> float:
    """Kendall's τ between the λ of all heads after the last epoch and after the one before; -1 if there is none."""
    if len(epochs) < 2:
        return -1.0
    values = torch.stack([epoch["lambda"].flatten() for epoch in epochs[-2:]])
    first, second = (values[:, :, None] - values[:, None]).sign()
    # heads of one unit are tied in both, and so in no pair
    return float((first * second).sum() / (first.abs().sum() * second.abs().sum()).sqrt())


def _part_of(examples: int, part: str) -> Tensor:
    """Return the numbers of the training examples in a part, which is drawn because files are often sorted."""
    rows = torch.arange(examples)
    if part != WHOLE:
        number, parts = map(int, part.split("of"))
        rows = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[number - 1 :: parts]
        if not len(rows):
            raise InputError(f"{examples} training examples cannot be cut in {parts} parts to learn λ from each.")
    return rows
