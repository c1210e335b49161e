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

from papa.data.tokens import Tokens
from papa.errors import InputError, count
from papa.files import write_table
from papa.method.checkpoints import Checkpoint
from papa.method.constants import TrainedConstants
from papa.method.objective import States, fit_objective
from papa.method.objectives import objective_of
from papa.method.probes import ProbeSizes
from papa.method.states import StreamedStates, stored_states
from papa.method.variants import replaced_by
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Replacement, replaced_in
from papa.plan.jobs import HiddenStates, Job, Probe, ProbeEncoder


@dataclass(frozen=True)
class StateSource:
    """The source of hidden states: the store or the model.

    Args:
        states: maps a batch to its hidden states.
        sizes: the sizes of the hidden states.
        heads, kept: number of heads in the model, and number of heads that keep their attention.
        model: the model that computes the states; None if they are stored.
        trained_with_probe: creates the constants that are trained with a probe, if any.
    """

    states: States
    sizes: ProbeSizes
    heads: int
    kept: int
    model: Model | None = None
    trained_with_probe: Callable[[], Sequence[nn.Module]] = tuple


def train_probes(jobs: Sequence[Job[Probe]]) -> str:
    """Stages *probe* and *probe encoder*: train a probe for each seed, and write its predictions (Sec. 4).

    The predictions are those of all validation examples after the last epoch; `Objective.table` lists the columns.
    Nothing is trained if the model's own head predicts. Facts: the numbers of `heads` and of `kept` ones, and the
    `curve`, the mean training loss of each epoch.

    Raise `Diverged` if the loss is no longer finite.
    """
    first, splits = jobs[0], Tokens.read(jobs[0].reads["tokens"])
    resumed, last = list[str](), list[float]()
    with (_streamed if isinstance(first.settings, ProbeEncoder) else _stored)(first, splits) as source:
        for job in jobs:
            checkpoint = Checkpoint(job, "cpu" if source.model is None else source.model.device.type)
            torch.manual_seed(job.settings.seed)
            objective = objective_of(job, splits, source.sizes, source.model)
            modules = [objective.probe, *source.trained_with_probe()]
            settings = job.settings
            losses = fit_objective(objective, source.states, modules, settings.training, settings.seed, checkpoint)
            table = objective.table(objective.outcomes_on(source.states))
            write_table(table, job.output, {"kept": source.kept, "heads": source.heads, "curve": losses}, job.record)
            checkpoint.discard()
            last += losses[-1:]
            resumed += [f"; seed {settings.seed}{checkpoint.resumed}"] if checkpoint.resumed else []
    trained = f"{count(len(jobs), 'probe')}, training loss {sum(last) / len(last):.3f}," if last else "predictions"
    return f"{trained} with {source.kept} of {source.heads} heads" + "".join(resumed)


@contextmanager
def _stored(job: Job[Probe], splits: Mapping[str, Tokens]) -> Iterator[StateSource]:
    with stored_states(job.reads["states"]) as (states, index):
        sizes = ProbeSizes(**{field.name: index[field.name] for field in fields(ProbeSizes)})
        yield StateSource(states, sizes, index["heads"], index["kept"])


@contextmanager
def _streamed(job: Job[Probe], splits: Mapping[str, Tokens]) -> Iterator[StateSource]:
    """Compute hidden states with the model.

    They are rounded like stored ones, unless constants are trained or no probe learns labels: such states are
    never stored and stay float32.
    """
    variant, target, slots = HiddenStates.model_validate(job.about["variant"]), job.settings.target, splits["train"].n
    if variant.trained and not target.labelled:
        raise InputError(
            f"The constant {variant.constant} is trained, which needs labels and a probe; choose another constant for "
            "this task."
        )
    model = model_of(job)
    constants, heads = replaced_by(job, variant, model, slots)
    fixed, trained = model.replacement(constants, heads), list[TrainedConstants]()
    replaced, total = replaced_in(fixed), model.layers * model.heads

    def trained_with_probe() -> Sequence[nn.Module]:
        if variant.trained and isinstance(constants, Tensor):
            trained[:] = [TrainedConstants(constants, replaced).to(model.device)]
        return trained

    def replacement() -> Replacement:
        return model.replacement(trained[0](), replaced) if trained else fixed

    rounded = target.labelled and not variant.trained
    states = StreamedStates(model, replacement, job.settings.encoder_dropout, rounded, target.probed)
    yield StateSource(states, ProbeSizes.of(model, slots), total, total - len(replaced), model, trained_with_probe)
