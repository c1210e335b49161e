"""The stage that measures a variant: it trains a probe for each seed and records its predictions (App. B).

All probes are trained in the same way. They differ in the objective, in the source of hidden states (the store or the
model), and in whether constants are trained with the probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from papa.data.tokens import Tokens, whole_numbers
from papa.errors import InputError, count
from papa.files import read_table, write_table
from papa.method.checkpoints import Checkpoint
from papa.method.fitting import TrainingTask, drawn_rows, fit
from papa.method.hidden import StoredStates
from papa.method.objective import Batch, States
from papa.method.objectives import objective_of
from papa.method.probes import ProbeSizes
from papa.method.states import StreamedStates
from papa.method.variants import replaced_by
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Head, Replacement, replaced_in
from papa.stages import Job, Probe, ProbeEncoder


@dataclass(frozen=True)
class StateSource:
    """The source of hidden states: the store or the model.

    Args:
        states: maps a batch to its hidden states.
        sizes: the sizes of the hidden states.
        heads, kept: number of heads in the model, and number of heads that keep their attention.
        model: the model that computes the states; None if they are stored.
        new_constants: creates the constants that are trained with a probe, if any.
    """

    states: States
    sizes: ProbeSizes
    heads: int
    kept: int
    model: Model | None = None
    new_constants: Callable[[], Sequence[nn.Module]] = tuple


class TrainedConstants(nn.Module):
    """Constants of the replaced heads, learned with the probe (Sec. 5.2).

    The parameter `matrices` is `[replaced, query, key]`. Rows are masked and normalised when they are used. The buffer
    `heads`, int64 `[replaced, 2]`, has the layer and head of each matrix.
    """

    heads: Tensor

    def __init__(self, start: Tensor, heads: list[Head]):
        """Initialise the matrices of `heads` from `start` `[layer, head, query, key]`."""
        super().__init__()
        replaced = torch.tensor(heads, dtype=torch.long).view(-1, 2)
        self.register_buffer("heads", replaced)
        self.matrices = nn.Parameter(start[replaced[:, 0], replaced[:, 1]].clone())
        self.shape = start.shape

    def forward(self) -> Tensor:
        """Return the constants of all heads, zero for heads that are not replaced; differentiable."""
        zeros = self.matrices.new_zeros(self.shape)
        return zeros.index_put((self.heads[:, 0], self.heads[:, 1]), self.matrices)


def train_probes(jobs: Sequence[Job[Probe]]) -> str:
    """Stages *probe* and *probe encoder*: train a probe for each seed or sample, and write its predictions (Sec. 4).

    The predictions are those of all validation examples after the last epoch; `Objective.table` lists the columns.
    Nothing is trained if the model's own head predicts. Facts: the numbers of `heads` and of `kept` ones, and the
    `curve`, the mean training loss of each epoch.

    Raise `InputError` if the loss is no longer finite.
    """
    first = jobs[0]
    splits = Tokens.read(jobs[0].reads["tokens"])
    resumed = list[str]()
    last = list[float]()
    with (_streamed if isinstance(first.settings, ProbeEncoder) else _stored)(
        first, splits
    ) as source:
        for job in jobs:
            checkpoint = Checkpoint(
                job, "cpu" if source.model is None else source.model.device.type
            )
            torch.manual_seed(job.settings.seed)
            objective = objective_of(job, splits, source.sizes, source.model)
            modules = [objective.probe, *source.new_constants()]
            name = (
                f"sample {job.settings.sample}"
                if job.settings.sample
                else f"seed {job.settings.seed}"
            )
            task = TrainingTask(
                f"probe, {name}",
                modules,
                objective,
                source.states,
                _rows_of(job, objective.examples),
            )
            losses = [epoch.loss for epoch in fit(task, job.settings, checkpoint)]
            table = objective.table(objective.outcomes_on(source.states))
            write_table(
                table,
                job.output,
                {"kept": source.kept, "heads": source.heads, "curve": losses},
                job.record,
            )
            checkpoint.discard()
            last += losses[-1:]
            resumed += [f"; {name}{checkpoint.resumed}"] if checkpoint.resumed else []
    trained = (
        f"{count(len(jobs), 'probe')}, training loss {sum(last) / len(last):.3f},"
        if last
        else "predictions"
    )
    return (
        f"{trained} with {source.heads - source.kept} of {source.heads} heads replaced"
        + "".join(resumed)
    )


def _rows_of(job: Job[Probe], examples: int) -> Tensor | None:
    """Return the training rows of a sample; None for all rows."""
    if not job.settings.sample:
        return None
    clusters = torch.arange(examples) // job.settings.cluster
    if "clusters" in job.reads:
        column = read_table(job.reads["clusters"]).slice(0, examples).column("cluster")
        clusters = whole_numbers(column.combine_chunks())
    return drawn_rows(clusters, job.settings.sample)


@contextmanager
def _stored(job: Job[Probe], splits: Mapping[str, Tokens]) -> Iterator[StateSource]:
    with StoredStates.opened(job.reads["states"]) as stored:
        index = stored.index
        sizes = ProbeSizes(**{field.name: index[field.name] for field in fields(ProbeSizes)})

        def states(batch: Batch) -> Tensor:
            return stored.read(batch.examples, batch.tokens, batch.positions)

        yield StateSource(states, sizes, index["heads"], index["kept"])


@contextmanager
def _streamed(job: Job[Probe], splits: Mapping[str, Tokens]) -> Iterator[StateSource]:
    """Compute hidden states with the model.

    They are rounded like stored ones, unless constants are trained or no probe learns labels: such states are
    never stored and stay float32.
    """
    variant = job.variant
    target = job.settings.target
    slots = splits["train"].n
    if variant.trained and not target.labelled:
        raise InputError(
            f"The constant {variant.constant} is trained, which needs labels and a probe; choose another constant for "
            "this task."
        )
    model = model_of(job)
    constants, heads = replaced_by(job, variant, model, slots)
    fixed = model.replacement(constants, heads)
    trained = list[TrainedConstants]()
    replaced = replaced_in(fixed)
    total = model.layers * model.heads

    def new_constants() -> Sequence[nn.Module]:
        if variant.trained and isinstance(constants, Tensor):
            trained[:] = [TrainedConstants(constants, replaced).to(model.device)]
        return trained

    def replacement() -> Replacement:
        return model.replacement(trained[0](), replaced) if trained else fixed

    rounded = target.labelled and not variant.trained
    states = StreamedStates(
        model, replacement, job.settings.encoder_dropout, rounded, target.probed
    )
    yield StateSource(
        states, ProbeSizes.of(model, slots), total, total - len(replaced), model, new_constants
    )
