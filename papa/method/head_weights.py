"""The weights of heads: λ, which is learned together with a probe, and the gradients of gates (Sec. 3.2).

Both have the same form: a value for each head. Heads with small values are replaced first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from papa.data.tokens import Tokens
from papa.errors import InputError, count
from papa.files import write_table
from papa.method.checkpoints import Checkpoint, progress
from papa.method.hidden import StoredStates
from papa.method.objectives import Batch, Objective, ProbeSizes
from papa.method.states import StreamedStates
from papa.method.training import TrainingTask, fit, objective_of
from papa.method.variants import constants_for
from papa.model.budget import BatchParts
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import AnyConstants, Mix, Replacement
from papa.stages import Job, LearnLambda, OfTask


def learn_weights(jobs: Sequence[Job[LearnLambda]]) -> str:
    """Stage *learn λ*: learn how much the model relies on each head, and write its weights as Parquet.

    The table has `epoch` (counted from 1), `layer`, `head` and `value`: λ after each epoch (`learn_gates`), or the mean
    absolute gradient of each gate, as if after one epoch. The probe that is trained for it is discarded.
    """
    import pyarrow as pa  # learn_lambda needs neither it nor a table

    (job,) = jobs
    settings = job.settings
    split = Tokens.read(job.reads["tokens"], "train")
    model = model_of(job)
    averages = job.reads.get("constants")
    constants = constants_for(settings.constant, averages, model, split["train"].n)
    # before the objective, which draws the weights of its probe
    torch.manual_seed(settings.seed)
    objective = objective_of(job, split, ProbeSizes.of(model), model)
    checkpoint = Checkpoint(job, model.device.type)
    if settings.weights == "gradient":
        _train_probe(job, model, objective, checkpoint)
        values = gate_slopes(model, constants, objective, settings)[None].float().cpu()
    else:
        values = learn_gates(model, constants, objective, settings, checkpoint)
    if not values.isfinite().all():
        raise InputError(
            f"The gradient of a head of {job.about['model']} is not finite; lower the learning rate of the task, or "
            "run the model in float32."
        )
    epoch, layer, head = torch.meshgrid(*map(torch.arange, values.shape), indexing="ij")
    columns = {"epoch": epoch + 1, "layer": layer, "head": head, "value": values}
    table = pa.table({name: column.flatten().numpy() for name, column in columns.items()})
    write_table(table, job.output, {}, job.record)
    checkpoint.discard()
    low, high = values[-1].aminmax()
    learned = "λ" if settings.weights == "lambda" else "gradient"
    examples = count(objective.examples, "example")
    epochs = count(len(values), "epoch")
    return f"{learned} between {low:.3g} and {high:.3g} after {epochs} of {examples}{checkpoint.resumed}"


def learn_gates(
    model: Model,
    constants: AnyConstants,
    objective: Objective,
    settings: OfTask,
    checkpoint: Checkpoint | None = None,
) -> Tensor:
    """Learn λ of every head together with the objective's probe, which is untrained; return `[epoch, layer, head]`.

    Head (l, h) uses λ·attention + (1-λ)·constant with λ = sigmoid(raw), and raw starts at 0 (Sec. 3.2). If the model's
    prediction head replaces the probe, only λ is learned.
    """
    raw = nn.Parameter(torch.zeros(model.layers, model.heads, device=model.device))
    mix = _mixing(model, constants)

    def mixed() -> Replacement:
        return mix(raw.sigmoid().to(model.dtype))

    states = StreamedStates(model, mixed, settings.encoder_dropout, probed=objective.target.probed)
    modules = [nn.ParameterList([raw]), objective.probe]
    task = TrainingTask(
        "learning λ", modules, objective, states, record=lambda: raw.detach().sigmoid().cpu()
    )
    return torch.stack([epoch.recorded for epoch in fit(task, settings, checkpoint)])


def _mixing(model: Model, constants: AnyConstants) -> Callable[[Iterable[Tensor]], Replacement]:
    """Return a function that mixes attention with constants by the weights of each layer, `[layer, …, head]`.

    Constants are checked and copied only once.
    """
    every = model.replacement(constants, mixing=torch.ones(model.layers, model.heads))
    mixes = [mix for mix in every if isinstance(mix, Mix)]

    def mixed(weights: Iterable[Tensor]) -> Replacement:
        pairs = zip(mixes, weights, strict=True)
        return [replace(mix, weights=of_layer) for mix, of_layer in pairs]

    return mixed


def _train_probe(
    job: Job[LearnLambda], model: Model, objective: Objective, checkpoint: Checkpoint
) -> None:
    """Train the probe whose gradients are measured; if the model's own head predicts, there is nothing to train.

    It reads the original's hidden states: stored ones if the job reads them, otherwise streamed from the model.
    """
    settings = job.settings
    path = job.reads.get("states")
    original = model.replacement()
    streamed = StreamedStates(
        model, lambda: original, settings.encoder_dropout, settings.target.labelled
    )
    with nullcontext() if path is None else StoredStates.opened(path) as stored:

        def states(batch: Batch) -> Tensor:
            return streamed(batch) if stored is None else stored(batch).to(model.device)

        task = TrainingTask(f"probe, seed {settings.seed}", [objective.probe], objective, states)
        fit(task, settings, checkpoint)
    objective.probe.eval()
    objective.begin(settings.training.epochs + 1)  # draw masks that the probe has not seen


def gate_slopes(
    model: Model, constants: AnyConstants, objective: Objective, settings: OfTask
) -> Tensor:
    """Return |∂loss/∂gate| of each head's gate, averaged over training rows, float64 `[layer, head]`.

    Head (l, h) uses gate·attention + (1-gate)·constant with gate = 1. Each example has its own gates, so absolute
    values are taken before averaging (Michel et al. 2019). The objective has a trained probe, or the model's prediction
    head; masks, if any, have already been drawn.
    """
    mix = _mixing(model, constants)
    mixed: Replacement = []
    states = StreamedStates(model, lambda: mixed, probed=objective.target.probed, whole=True)
    rows = torch.arange(objective.examples)
    total = torch.zeros(model.layers, model.heads, dtype=torch.float64, device=model.device)

    def slopes_of(parts: Sequence[Tensor]) -> Tensor:
        """Return the summed slopes of the loss of all parts together, `[layer, head]`."""
        summed = torch.zeros_like(total)
        for part, share in objective.weighted(parts):
            ones = total.new_ones(model.layers, len(part), model.heads, dtype=model.dtype)
            gates = [gate.requires_grad_() for gate in ones]
            mixed[:] = mix(gates)
            slopes = torch.autograd.grad(objective.loss_on(states, part), gates)
            # [layer, example, head]
            summed += torch.stack(slopes).to(total).abs().sum(1) * share
        return summed

    parts_of = BatchParts(model.device)
    for batch in progress(rows.split(settings.training.batch_size), "gradients", len(rows)):
        # the loss is the mean over a batch, which divides slopes by the number of its examples
        total += parts_of.run(batch, slopes_of) * len(batch)
    return total / len(rows)
