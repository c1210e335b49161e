"""The stages that weight heads on the training texts of a task, by λ or by the gradient of a gate.

All weights have the same form: a value for each head. Heads with small values are replaced first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from papa.config.job import Job
from papa.config.stages import LambdaOf, WeightsOf
from papa.config.variant import ORIGINAL, Constant, Variant
from papa.data.tokens import Tokens
from papa.errors import InputError, count
from papa.files import PathLike, Trace, write_table
from papa.method.checkpoints import Checkpoint
from papa.method.constants import constants_for
from papa.method.gates import learn_gates
from papa.method.importance import gate_slopes
from papa.method.objective import Objective, States, fit_objective, objective_of
from papa.method.probes import ProbeSizes
from papa.method.states import StreamedStates, stored_states
from papa.method.training_rows import training_rows
from papa.model.load import model_of, trace_with
from papa.model.model import Model


def train_lambda(job: Job[LambdaOf]) -> str:
    """Stage *train λ*: learn how much each head needs its attention; write the λ after each epoch as Parquet.

    See `learn_gates`. The probe that is trained with λ is discarded.
    """
    settings = job.settings
    split = Tokens.read(job.input("tokens"), "train")
    train, facts = split["train"], split["train"].provenance
    model = model_of(settings.model, job.machine)
    constants = constants_for(Constant.parse(settings.constant), job.optional_input("constants"), model, facts)
    torch.manual_seed(settings.seed)
    objective = objective_of(job, split, ProbeSizes.of(model, train.n), model, settings.seed)
    trace = trace_with(job, model)
    checkpoint = Checkpoint(job.output("lambdas"), trace, job.machine, model.device.type)
    values, training = learn_gates(model, constants, objective, settings, checkpoint), settings.training
    _write_weights(values, job.output("lambdas"), _facts(job, model, train), trace)
    checkpoint.discard()
    low, high = float(values[-1].min()), float(values[-1].max())
    examples = training.row_count(objective.examples)
    return (
        f"λ between {low:.3f} and {high:.3f} after {count(len(values), 'epoch')} of {count(examples, 'example')}"
        f"{checkpoint.resumed}"
    )


def weigh_heads(job: Job[WeightsOf]) -> str:
    """Stage *weights*: measure the gradient of each head's gate, and write it in the format of λ, with one epoch."""
    settings, identity = job.settings, job.settings.model.model
    split = Tokens.read(job.input("tokens"), "train")
    train = split["train"]
    model = model_of(settings.model, job.machine)
    trace = trace_with(job, model)
    checkpoint = Checkpoint(job.output("weights"), trace, job.machine, model.device.type, to_the_end=True)
    constant = Constant.parse(settings.constant)
    constants = constants_for(constant, job.optional_input("constants"), model, train.provenance)
    objective, rows = _original_probe(job, split, model, checkpoint)
    values = gate_slopes(model, objective, constants, rows, settings.training.batch_size)
    if not bool(values.isfinite().all()):
        raise InputError(
            f"The gradient of a head of {identity.name} is not finite; lower the learning rate of the task, or "
            "run the model in float32."
        )
    _write_weights(values[None].float().cpu(), job.output("weights"), _facts(job, model, train), trace)
    checkpoint.discard()
    low, high = float(values.min()), float(values.max())
    return f"gradient between {low:.3g} and {high:.3g} over {count(len(rows), 'example')}{checkpoint.resumed}"


def _facts(job: Job[LambdaOf] | Job[WeightsOf], model: Model, train: Tokens) -> dict[str, object]:
    settings, layout = job.settings, {key: train.provenance[key] for key in ("corpus", "slots", "style")}
    return {"model": settings.model.model.name, "weights": model.weights, **layout}


def _write_weights(values: Tensor, path: PathLike, facts: Mapping[str, object], trace: Trace) -> None:
    """Write weights of heads `[epoch, layer, head]` as Parquet: `epoch` (counted from 1), `layer`, `head`, `value`."""
    import pyarrow as pa

    epoch, layer, head = torch.meshgrid(*map(torch.arange, values.shape), indexing="ij")
    columns = {"epoch": epoch + 1, "layer": layer, "head": head, "value": values}
    write_table(pa.table({name: column.flatten().numpy() for name, column in columns.items()}), path, facts, trace)


def _original_probe(
    job: Job[WeightsOf], split: Mapping[str, Tokens], model: Model, checkpoint: Checkpoint
) -> tuple[Objective, Tensor]:
    """Return an objective and its training rows; unless the model's own head predicts, a probe is trained here."""
    settings, train = job.settings, split["train"]
    torch.manual_seed(settings.seed)
    objective = objective_of(job, split, ProbeSizes.of(model, train.n), model, settings.seed)
    rows = training_rows(objective.examples, settings.training, settings.seed)
    if settings.training.epochs:
        with _states_of_original(job, split, model) as states:
            fit_objective(objective, states, [objective.probe], settings.training, settings.seed, checkpoint)
    objective.probe.eval()
    objective.begin(settings.training.epochs + 1)  # draw masks that the probe has not seen
    return objective, rows


@contextmanager
def _states_of_original(job: Job[WeightsOf], split: Mapping[str, Tokens], model: Model) -> Iterator[States]:
    """Open the original's hidden states: stored ones if the job reads an index, otherwise streamed from the model."""
    path, original = job.optional_input("index"), model.replacement()
    if path is not None:
        with stored_states(path, split, job.settings.model.model.name, Variant.parse(ORIGINAL)) as (read, _):
            yield lambda batch: read(batch).to(model.device)
    else:
        dropout, rounded = job.settings.encoder_dropout, job.settings.target.labelled
        yield StreamedStates(model, lambda: original, dropout, rounded)
