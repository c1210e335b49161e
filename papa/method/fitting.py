"""The training loop of probes and gates (App. B).

AdamW without weight decay, a constant learning rate, the gradient norm clipped at 1, shuffled batches. A job that was
killed resumes from its checkpoint, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from math import isfinite
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from papa.errors import InputError
from papa.method.checkpoints import Checkpoint, State, progress
from papa.method.objective import Objective, States
from papa.model.budget import BatchParts

if TYPE_CHECKING:
    from papa.stages import OfTask


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
    saved = None if checkpoint is None else checkpoint.restore()
    if checkpoint is not None and saved is not None:
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
            fault = _fault(mean, task.parameters)
            if fault:
                if checkpoint is not None:
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
    finite = all(bool(values.isfinite().all()) for values in parameters)
    return "" if finite else "learned weights are not finite"
