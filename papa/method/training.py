"""The stages that measure a variant: they train a probe for each seed, and record its predictions (App. B).

All probes, λ and constants are trained by one loop: AdamW without weight decay, a constant learning rate, the gradient
norm clipped at 1, shuffled batches. A job that was killed resumes from its checkpoint, with the same result. Probes
differ in the objective, in the source of hidden states (the store or the model), and in whether constants are trained
with the probe.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain, islice
from math import isfinite

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from papa.data.tokenize import tokenizer_of
from papa.data.tokens import Tokens, whole_numbers
from papa.errors import InputError, count
from papa.files import read_table, write_table
from papa.method.checkpoints import Checkpoint, State, progress
from papa.method.hidden import StoredStates
from papa.method.objectives import (
    GoldLabels,
    Labelled,
    Objective,
    ProbeSizes,
    Splits,
    States,
)
from papa.method.states import StreamedStates
from papa.method.token_prediction import MaskedTokens, Masking, NextTokens
from papa.method.variants import replaced_by
from papa.model.budget import BatchParts
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Head, Replacement, replaced_in
from papa.stages import Job, OfTask, Probe, ProbeEncoder


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
    splits = Tokens.read(first.reads["tokens"])
    resumed = ""
    last = list[float]()
    with (_streamed if isinstance(first.settings, ProbeEncoder) else _stored)(
        first, splits
    ) as source:
        for job in jobs:
            checkpoint = Checkpoint(
                job, "cpu" if source.model is None else source.model.device.type
            )
            # for each job, so a probe is the same whether it is trained alone or with those of other seeds
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
            if checkpoint.resumed:
                resumed += f"; {name}{checkpoint.resumed}"
    trained = (
        f"{count(len(jobs), 'probe')}, training loss {sum(last) / len(last):.3f},"
        if last
        else "predictions"
    )
    replaced = source.heads - source.kept
    return f"{trained} with {replaced} of {source.heads} heads replaced{resumed}"


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
def _stored(job: Job[Probe], splits: Splits) -> Iterator[StateSource]:
    with StoredStates.opened(job.reads["states"]) as stored:
        index = stored.index
        sizes = ProbeSizes(**{field.name: index[field.name] for field in fields(ProbeSizes)})
        yield StateSource(stored, sizes, index["heads"], index["kept"])


@contextmanager
def _streamed(job: Job[Probe], splits: Splits) -> Iterator[StateSource]:
    """Compute hidden states with the model.

    They are rounded like stored ones, unless constants are trained or no probe learns labels: such states are
    never stored and stay float32.
    """
    variant = job.variant
    target = job.settings.target
    if variant.trained and not target.labelled:
        raise InputError(
            f"The constant {variant.constant} is trained, which needs labels and a probe; choose another constant for "
            "this task."
        )
    model = model_of(job)
    constants, heads = replaced_by(job, variant, model, splits["train"].n)
    fixed = model.replacement(constants, heads)
    trained = list[TrainedConstants]()
    replaced = replaced_in(fixed)
    total = model.layers * model.heads

    def new_constants() -> Sequence[nn.Module]:
        if variant.trained and isinstance(constants, Tensor):
            # in place, because `replacement` reads this list
            trained[:] = [TrainedConstants(constants, replaced).to(model.device)]
        return trained

    def replacement() -> Replacement:
        return model.replacement(trained[0](), replaced) if trained else fixed

    rounded = target.labelled and not variant.trained
    states = StreamedStates(
        model, replacement, job.settings.encoder_dropout, rounded, target.probed
    )
    yield StateSource(
        states, ProbeSizes.of(model), total, total - len(replaced), model, new_constants
    )


def objective_of(
    job: Job[OfTask], splits: Splits, sizes: ProbeSizes, model: Model | None
) -> Objective:
    """Return the objective of a job, with a new probe if one is trained; raise `InputError` if the model does not fit.

    The model is None if hidden states are stored. The seed of the job determines the masks.
    """
    target = job.settings.target
    objective: Objective
    if target.labelled:
        labels = GoldLabels.read(job.reads["labels"], job.label, splits["train"])
        objective = Labelled(splits, sizes, labels)
    elif model is None:
        raise RuntimeError(f"{target.name} needs the model")
    elif target.probed:
        MaskedTokens.check(model)  # first, because the tokenizer of a decoder has no mask
        name = job.about["model"]
        masking = Masking.of(tokenizer_of(job.reads["model"], name), name)
        objective = MaskedTokens(splits, model, masking, job.settings.seed)
    else:
        objective = NextTokens(splits, model, f"task {job.about['task']}")
    if model is not None:
        objective.probe.to(model.device)
    return objective


# -- the loop ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Epoch:
    """A finished epoch: its mean loss, and the tensor recorded at its end."""

    loss: float
    recorded: Tensor


@dataclass(frozen=True)
class TrainingTask:
    """The modules to train, and where their loss comes from.

    Args:
        name: names the task in messages.
        modules: a new probe, and any λ or constants.
        objective: the loss of training examples.
        states: the hidden states of examples.
        rows: the training examples, by index; None: all.
        record: called after each epoch; returns the tensor to record.
    """

    name: str
    modules: Sequence[nn.Module]
    objective: Objective
    states: States
    rows: Tensor | None = None
    record: Callable[[], Tensor] = lambda: torch.empty(0)

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        return [values for module in self.modules for values in module.parameters()]

    def backward(self, parts: Sequence[Tensor]) -> Tensor:
        """Compute the gradients of a batch in parts, and return its mean loss."""
        for values in self.parameters:
            values.grad = None
        losses = []
        for part, share in self.objective.weighted(parts):
            loss = self.objective.loss_on(self.states, part)
            loss = loss if share == 1 else loss * share
            loss.backward()
            losses.append(loss.detach())
        return sum(losses[1:], start=losses[0])


class TrainingState:
    """The state from which training resumes; it lacks the order of batches, which the seed determines."""

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float):
        self.parameters: list[Tensor] = list(parameters)
        self.learning_rate = learning_rate
        self.device = parameters[0].device
        self.means, self.squares = (
            [torch.zeros_like(values) for values in parameters] for _ in range(2)
        )
        self.counts = [torch.zeros((), device=values.device) for values in parameters]
        self.epochs: list[Epoch] = []
        self.steps = 0
        self.total = torch.zeros((), dtype=torch.float64)
        """Number of steps taken, and the summed loss of the current epoch."""

    @torch.no_grad()
    def step(self) -> None:
        """Step exactly like `torch.optim.AdamW`, but without its import of the compiler (1 s, 75 MB in every job)."""
        # a norm of queries gets no gradient if every head is replaced
        gradients = [
            torch.zeros_like(values) if values.grad is None else values.grad
            for values in self.parameters
        ]
        adamw(
            self.parameters,
            gradients,
            self.means,
            self.squares,
            [],
            self.counts,
            fused=True,
            lr=self.learning_rate,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
        for values in self.parameters:
            values.grad = None
        self.steps += 1

    def snapshot(self) -> State:
        recorded = (
            torch.stack([epoch.recorded for epoch in self.epochs])
            if self.epochs
            else torch.empty(0)
        )
        # dropout draws from these generators
        draws = {"draws/cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            draws["draws/cuda"] = torch.cuda.get_rng_state(self.device)
        values = {"steps": self.steps, "losses": [epoch.loss for epoch in self.epochs]}
        return State(self._tensors() | {"recorded": recorded} | draws, values)

    @torch.no_grad()
    def resume(self, state: State) -> None:
        self.steps = state.values["steps"]
        self.epochs = list(map(Epoch, state.values["losses"], state.tensors["recorded"]))
        for name, values in self._tensors().items():
            values.copy_(state.tensors[name])
        torch.set_rng_state(state.tensors["draws/cpu"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state.tensors["draws/cuda"], self.device)

    def _tensors(self) -> dict[str, Tensor]:
        lists = {"parameters": self.parameters, "means": self.means, "squares": self.squares}
        lists |= {"counts": self.counts, "total": [self.total]}
        return {
            f"{name}/{index}": values
            for name, tensors in lists.items()
            for index, values in enumerate(tensors)
        }


def _clip(parameters: Sequence[nn.Parameter]) -> None:
    """Clip the gradient norm at 1. Unlike `torch.nn.utils.clip_grad_norm_`, do not multiply smaller gradients by 1."""
    norm = nn.utils.get_total_norm(
        [values.grad for values in parameters if values.grad is not None]
    )
    # torch also adds 1e-6 before it divides; `>` would leave NaN alone
    if not float(norm) + 1e-6 <= 1:
        nn.utils.clip_grads_with_norm_(parameters, 1.0, norm)


def drawn_rows(clusters: Tensor, sample: int) -> Tensor:
    """Draw as many clusters of training rows as there are, with replacement; return the rows of all drawn ones.

    Every variant and every task on a corpus gets the same draw.

    Args:
        clusters: int64 `[row]`, the cluster of each training row, in any numbering.
        sample: the number of the draw.
    """
    _, cluster, sizes = clusters.unique(return_inverse=True, return_counts=True)
    # stable, or the order of the rows in a cluster could differ between machines
    rows = cluster.argsort(stable=True).split(sizes.tolist())
    drawn = torch.randint(
        len(sizes), (len(sizes),), generator=torch.Generator().manual_seed(sample)
    )
    return torch.cat([rows[index] for index in drawn.tolist()])


def fit(task: TrainingTask, settings: OfTask, checkpoint: Checkpoint | None = None) -> list[Epoch]:
    """Train on the mean loss of shuffled batches, whose order the seed determines; without parameters, do nothing.

    The checkpoint may have a state to resume from; the caller discards it after writing the result.

    Raises:
        InputError: the loss of an epoch or a parameter is not finite.
    """
    if not task.parameters:
        return []
    training = settings.training
    state = TrainingState(task.parameters, training.learning_rate)
    if checkpoint is not None and (saved := checkpoint.restore()) is not None:
        state.resume(saved)
        checkpoint.resumed = f", resumed in epoch {min(len(state.epochs) + 1, training.epochs)}"
    rows = torch.arange(task.objective.examples) if task.rows is None else task.rows
    examples = len(rows)
    steps_per_epoch = -(-examples // training.batch_size)
    parts = BatchParts(state.device)
    batches = _remaining_batches(task.name, rows, settings, state.steps)

    def keep() -> None:
        if checkpoint is not None:
            checkpoint.save(state.snapshot)

    try:
        for epoch in range(len(state.epochs) + 1, training.epochs + 1):
            task.objective.begin(epoch)
            while state.steps < epoch * steps_per_epoch:
                batch = next(batches)
                loss = parts.run(batch, task.backward)
                _clip(task.parameters)
                state.total += loss.cpu() * len(batch)
                state.step()
                keep()
            mean = float(state.total) / examples
            if fault := _fault(mean, task.parameters):
                if checkpoint is not None:
                    # a state so close to the failure would only lead to it again
                    checkpoint.discard()
                raise InputError(
                    f"The {fault} in epoch {epoch} of {task.name} at learning rate {training.learning_rate}; lower "
                    "the learning rate."
                )
            state.epochs.append(Epoch(mean, task.record()))
            state.total.zero_()
            keep()
        for _ in batches:  # complete the progress bar
            pass
    finally:
        batches.close()  # an error message then starts on a new line below the progress bar
    return state.epochs


def _remaining_batches(
    title: str, rows: Tensor, settings: OfTask, steps: int
) -> Generator[Tensor, None, None]:
    """Return the batches of all epochs without the first `steps`, with a progress bar; the seed sets their order."""
    training = settings.training
    examples = len(rows)
    generator = torch.Generator().manual_seed(settings.seed)
    order = chain.from_iterable(
        rows[torch.randperm(examples, generator=generator)].split(training.batch_size)
        for _ in range(training.epochs)
    )
    # the batches of earlier steps are drawn, too, because each draw depends on those before it
    done = sum(map(len, islice(order, steps)))
    return progress(order, title, examples * training.epochs, done)


def _fault(loss: float, parameters: Sequence[nn.Parameter]) -> str:
    """Say what is not finite after an epoch; its loss does not reflect the last step. Empty if nothing is wrong."""
    if not isfinite(loss):
        return f"loss became {loss}"
    if all(values.isfinite().all() for values in parameters):
        return ""
    return "learned weights are not finite"
