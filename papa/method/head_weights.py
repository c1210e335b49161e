"""The stage that weights heads on the training texts of a task: by λ, or by the gradient of a gate (Sec. 3.2).

All weights have the same form: a value for each head. Heads with small values are replaced first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import torch
from torch import Tensor

from papa.config.variant import Constant
from papa.data.tokens import Tokens
from papa.errors import InputError, count
from papa.files import write_table
from papa.method.checkpoints import Checkpoint
from papa.method.constants import constants_for
from papa.method.gates import learn_gates
from papa.method.importance import gate_slopes
from papa.method.objective import Objective, States, fit_objective
from papa.method.objectives import objective_of
from papa.method.probes import ProbeSizes
from papa.method.states import StreamedStates, stored_states
from papa.method.training_rows import training_rows
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Loaded
from papa.plan.jobs import Job, LearnLambda


def learn_weights(jobs: Sequence[Job[LearnLambda]]) -> str:
    """Stage *learn λ*: learn how much each head needs its attention, and write its weights as Parquet.

    The table has `epoch` (counted from 1), `layer`, `head` and `value`: λ after each epoch (`learn_gates`), or the mean
    absolute gradient of each gate, as if after one epoch. The probe that is trained for it is discarded.
    """
    (job,) = jobs
    settings, split = job.settings, Tokens.read(job.reads["tokens"], "train")
    model, train = model_of(job), split["train"]
    constants = constants_for(Constant(settings.constant), job.reads.get("constants"), model, train.n)
    torch.manual_seed(settings.seed)
    objective = objective_of(job, split, ProbeSizes.of(model, train.n), model)
    checkpoint = Checkpoint(job, model.device.type, to_the_end=settings.weights == "gradient")
    learn = _gradients if settings.weights == "gradient" else _lambdas
    values = learn(job, model, constants, objective, checkpoint)
    epoch, layer, head = torch.meshgrid(*map(torch.arange, values.shape), indexing="ij")
    columns = {"epoch": epoch + 1, "layer": layer, "head": head, "value": values}
    table = pa.table({name: column.flatten().numpy() for name, column in columns.items()})
    write_table(table, job.output, {}, job.record)
    checkpoint.discard()
    low, high = float(values[-1].min()), float(values[-1].max())
    learned = "λ" if settings.weights == "lambda" else "gradient"
    examples = count(settings.training.row_count(objective.examples), "example")
    epochs = count(len(values), "epoch")
    return f"{learned} between {low:.3g} and {high:.3g} after {epochs} of {examples}{checkpoint.resumed}"


def _lambdas(
    job: Job[LearnLambda], model: Model, constants: Loaded, objective: Objective, checkpoint: Checkpoint
) -> Tensor:
    return learn_gates(model, constants, objective, job.settings, checkpoint)


def _gradients(
    job: Job[LearnLambda], model: Model, constants: Loaded, objective: Objective, checkpoint: Checkpoint
) -> Tensor:
    """Return gradients `[1, layer, head]`; unless the model's own head predicts, a probe is trained first."""
    settings = job.settings
    rows = training_rows(objective.examples, settings.training, settings.seed)
    if settings.training.epochs:
        with _states_of_original(job, objective.splits, model) as states:
            fit_objective(objective, states, [objective.probe], settings.training, settings.seed, checkpoint)
    objective.probe.eval()
    objective.begin(settings.training.epochs + 1)  # draw masks that the probe has not seen
    values = gate_slopes(model, objective, constants, rows, settings.training.batch_size)
    if not bool(values.isfinite().all()):
        raise InputError(
            f"The gradient of a head of {job.about['model']} is not finite; lower the learning rate of the task, or "
            "run the model in float32."
        )
    return values[None].float().cpu()


@contextmanager
def _states_of_original(job: Job[LearnLambda], split: Mapping[str, Tokens], model: Model) -> Iterator[States]:
    """Open the original's hidden states: stored ones if the job reads them, otherwise streamed from the model."""
    if (path := job.reads.get("states")) is not None:
        with stored_states(path) as (read, _):
            yield lambda batch: read(batch).to(model.device)
    else:
        original = model.replacement()
        yield StreamedStates(model, lambda: original, job.settings.encoder_dropout, job.settings.target.labelled)
