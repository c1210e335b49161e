"""The one training loop: AdamW without decay, constant rate, gradient norm clipped at 1, shuffled batches (Sec. 4).

Probes and the head weights of `ranking` go through it. Where it is given a checkpoint, a training that was killed goes
on where it was, to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from papa.errors import InputError
from papa.method.checkpoints import Checkpoint, State
from papa.method.progress import progress

Kept = Mapping[str, Tensor]


@dataclass(frozen=True)
class Epoch:
    """A finished epoch: its mean loss, and what was kept of it."""

    loss: float
    kept: Kept


class Diverged(InputError):
    """The loss is not finite any more; the epochs before, `good` of them, were."""

    good = 0


class AdamW:
    """AdamW at a constant rate, without decay.

    Takes the very steps of `torch.optim.AdamW`, which on its first one imports the compiler: a second and 90 MB a job.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float):
        self.parameters: list[Tensor] = list(parameters)
        self.learning_rate = learning_rate
        self.means = [torch.zeros_like(values) for values in parameters]
        self.squares = [torch.zeros_like(values) for values in parameters]
        self.steps = [torch.zeros((), device=values.device) for values in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters along their gradients, and take the gradients away."""
        gradients = [values.grad for values in self.parameters if values.grad is not None]
        adamw(
            self.parameters,
            gradients,
            self.means,
            self.squares,
            [],
            self.steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
        for values in self.parameters:
            values.grad = None


class _Course:
    """How far a training is: all that its rest follows from, beside what it was begun with.

    Batches are no part of it: their order follows from the seed and is drawn again.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float):
        self.optimizer = AdamW(parameters, learning_rate)
        self.epochs: list[Epoch] = []
        self.good = [values.detach().cpu().clone() for values in parameters]
        """The parameters after the last finished epoch."""
        self.steps, self.total = 0, torch.zeros((), dtype=torch.float64)
        """Steps taken, and the summed loss of the epoch that is under way."""

    def end_epoch(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        self.good = [values.detach().cpu().clone() for values in self.optimizer.parameters]
        self.total.zero_()

    @torch.no_grad()
    def back_to_good(self) -> None:
        for values, good in zip(self.optimizer.parameters, self.good, strict=True):
            values.copy_(good)

    def state(self) -> State:
        kept = {
            f"kept/{number}/{name}": own for number, epoch in enumerate(self.epochs) for name, own in epoch.kept.items()
        }
        values = {"steps": self.steps, "losses": [epoch.loss for epoch in self.epochs]}
        return State(self._tensors() | kept | self._draws(), values)

    @torch.no_grad()
    def go_on(self, state: State) -> None:
        self.steps = state.values["steps"]
        kept: list[dict[str, Tensor]] = [{} for _ in state.values["losses"]]
        for path, values in state.tensors.items():
            if path.startswith("kept/"):
                _, number, name = path.split("/", 2)
                kept[int(number)][name] = values
        self.epochs = list(map(Epoch, state.values["losses"], kept))
        for name, values in self._tensors().items():
            values.copy_(state.tensors[name])
        torch.set_rng_state(state.tensors["draws/cpu"])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state.tensors["draws/cuda"], self._device)

    def _tensors(self) -> dict[str, Tensor]:
        own = self.optimizer
        lists = {
            "parameters": own.parameters,
            "means": own.means,
            "squares": own.squares,
            "steps": own.steps,
            "good": self.good,
            "total": [self.total],
        }
        return {f"{name}/{number}": values for name, several in lists.items() for number, values in enumerate(several)}

    def _draws(self) -> dict[str, Tensor]:
        """The generators that dropout draws from."""
        draws = {"draws/cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            draws["draws/cuda"] = torch.cuda.get_rng_state(self._device)
        return draws

    @property
    def _device(self) -> torch.device:
        return self.optimizer.parameters[0].device


def fit(
    parameters: Sequence[nn.Parameter],
    loss_of: Callable[[Tensor], Tensor],
    examples: int,
    task: Mapping[str, Any],
    generator: torch.Generator,
    after_epoch: Callable[[int], Kept],
    what: str,
    before_epoch: Callable[[int], None] = lambda epoch: None,
    checkpoint: Checkpoint | None = None,
) -> list[Epoch]:
    """Train `parameters` on the mean of `loss_of(example numbers)`; return what `after_epoch(epoch)` gave after each.

    `task` gives learning_rate, batch_size and epochs; epochs count from 1. With a `checkpoint` the training goes on
    from where it was; whoever gave it discards it when the result is written. Raises `Diverged` after an epoch whose
    loss is not finite, and where `after_epoch` does; the parameters are then those of the last good epoch.
    """
    course = _Course(parameters, task["learning_rate"])
    in_epoch = -(-examples // task["batch_size"])
    if checkpoint is not None and (state := checkpoint.restore()) is not None:
        course.go_on(state)
        checkpoint.resumed = f", resumed in epoch {min(len(course.epochs) + 1, task['epochs'])}"
    order = chain.from_iterable(
        torch.randperm(examples, generator=generator).split(task["batch_size"]) for _ in range(task["epochs"])
    )
    whole, rest = divmod(course.steps, in_epoch)
    begun = whole * examples + rest * task["batch_size"]
    batches = progress(islice(order, course.steps, None), what, examples * task["epochs"], begun)

    def keep() -> None:
        if checkpoint is not None:
            checkpoint.save(course.state)

    try:
        for epoch in range(len(course.epochs) + 1, task["epochs"] + 1):
            before_epoch(epoch)
            while course.steps < epoch * in_epoch:
                batch = next(batches)
                loss = loss_of(batch)
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                course.optimizer.step()
                course.total += loss.detach().cpu() * len(batch)
                course.steps += 1
                keep()
            mean = float(course.total) / examples
            if not np.isfinite(mean):
                raise Diverged(
                    f"The loss became {mean} in epoch {epoch} of {what} at learning rate {task['learning_rate']}; "
                    "lower the learning rate."
                )
            course.end_epoch(Epoch(mean, after_epoch(epoch)))
            keep()
    except Diverged as error:
        course.back_to_good()
        error.good = len(course.epochs)
        if checkpoint is not None:
            checkpoint.discard()
        raise
    for _ in batches:  # let the bar close
        pass
    return course.epochs
