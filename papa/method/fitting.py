"""The one training loop: AdamW without decay, constant rate, gradient norm clipped at 1, shuffled batches (App. B).

Probes and the weights of heads go through it. A job that is killed goes on from its checkpoint, to the same bits.
"""

from __future__ import annotations

import glob
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import chain, islice
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from papa.config.settings import Machine
from papa.config.stages import Training
from papa.errors import InputError
from papa.files import JSON, PathLike, Trace, digest_of_json, read_tensors, write_tensors
from papa.method.progress import progress

log = logging.getLogger(__name__)
Kept = Mapping[str, Tensor]
"""What is kept of an epoch: small tensors by name."""


@dataclass(frozen=True)
class Epoch:
    """A finished epoch: its mean loss, and what was kept of it."""

    loss: float
    kept: Kept


class Diverged(InputError):
    """The loss is not finite any more; the epochs before, `good` of them, were."""

    good = 0


@dataclass(frozen=True)
class Lesson:
    """What is learned.

    Args:
        what: what the progress bar and errors call it.
        parameters: what is learned.
        examples: how many training examples there are.
        loss: from example numbers to their mean loss.
        before_epoch: called with the number of each epoch, counted from 1.
        after_epoch: called when an epoch is done; gives what is kept of it.
        enough: whether no further epoch is needed, from what was kept of those that are done.
    """

    what: str
    parameters: Sequence[nn.Parameter]
    examples: int
    loss: Callable[[Tensor], Tensor]
    before_epoch: Callable[[int], None]
    after_epoch: Callable[[], Kept]
    enough: Callable[[Sequence[Kept]], bool] = lambda _: False


# -- where a job is ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """Where a job is: `tensors`, and `values` that JSON can contain."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, JSON]


class Checkpoint:
    """The last state of the job that makes `artefact`, in a hidden file beside it.

    A state is used by the same job alone: with the same trace, on the same kind of device, with the same versions of
    libraries, threads and token budget. A job that cannot save a state goes on without. Whoever goes on from a state
    says in `resumed` where, which ends the line about what the job did. `to_the_end` keeps the last state too, for a
    job that trains more than this.
    """

    def __init__(self, artefact: PathLike, trace: Trace, device: str = "cpu", to_the_end: bool = False):
        here, place, self.to_the_end = Machine.current(), Path(artefact), to_the_end
        self.path = place.with_name(f".{place.name}.checkpoint")
        self.seconds = here.checkpoint_minutes * 60
        self.resumed = ""
        packages = {name: version(name) for name in ("torch", "transformers", "numpy")}
        machinery = [device, packages, torch.get_num_threads(), here.token_budget]
        self.identity = digest_of_json([asdict(trace), machinery])
        self._saved = time.monotonic()

    def restore(self) -> State | None:
        """The state to go on from; None if there is none, or one that is damaged or of another job."""
        if not self.path.exists():
            return None
        try:
            tensors, facts = read_tensors(self.path)
        except InputError as error:
            log.warning("%s This job begins anew.", error)
            return None
        if facts.get("identity") != self.identity:
            log.warning("%s is of other settings, inputs, versions or threads; this job begins anew.", self.path)
            return None
        log.info("This job goes on from %s.", self.path)
        return State(tensors, facts["values"])

    def save(self, state: Callable[[], State], ended: bool = False) -> None:
        """Keep what `state` gives if the last one is old enough, or if it is the end and that is to be kept.

        What goes wrong is logged and harms nothing.
        """
        if time.monotonic() - self._saved < self.seconds and not (ended and self.to_the_end):
            return
        try:
            now = state()
            tensors = {name: values.detach().cpu().contiguous() for name, values in now.tensors.items()}
            write_tensors(tensors, self.path, {"identity": self.identity, "values": now.values})
        except (InputError, OSError) as error:
            log.warning("This job goes on without a checkpoint: %s", error)
        self._saved = time.monotonic()

    def discard(self) -> None:
        """Delete the state, and what a kill left of one that was being written."""
        partial = self.path.with_name(f".{glob.escape(self.path.name)}.*.partial")
        for path in (self.path, *partial.parent.glob(partial.name)):
            with suppress(OSError):
                path.unlink(missing_ok=True)


# -- training ---------------------------------------------------------------------------------------------------------


class _Course:
    """How far a training is: all that its rest follows from, beside what it was begun with.

    Batches are no part of it, because their order follows from the seed and is drawn again.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float):
        self.parameters: list[Tensor] = list(parameters)
        self.learning_rate, self.device = learning_rate, parameters[0].device
        self.means, self.squares = ([torch.zeros_like(values) for values in parameters] for _ in range(2))
        self.counts = [torch.zeros((), device=values.device) for values in parameters]
        self.epochs: list[Epoch] = []
        self.good = [values.detach().cpu().clone() for values in parameters]
        """The parameters after the last finished epoch."""
        self.steps, self.total = 0, torch.zeros((), dtype=torch.float64)
        """Steps taken, and the summed loss of the epoch that is under way."""

    @torch.no_grad()
    def step(self) -> None:
        """Take the very step of `torch.optim.AdamW`, which imports the compiler: a second and 75 MB of every job."""
        gradients = [values.grad for values in self.parameters if values.grad is not None]
        settings = {"amsgrad": False, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}
        take: Callable[..., None] = adamw
        own = self.parameters, gradients, self.means, self.squares, list[Tensor](), self.counts
        take(*own, fused=True, lr=self.learning_rate, **settings)
        for values in self.parameters:
            values.grad = None
        self.steps += 1

    def end_epoch(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        self.good = [values.detach().cpu().clone() for values in self.parameters]
        self.total.zero_()

    @torch.no_grad()
    def back_to_good(self) -> None:
        for values, good in zip(self.parameters, self.good, strict=True):
            values.copy_(good)

    def state(self) -> State:
        kept = {
            f"kept/{number}/{name}": own for number, epoch in enumerate(self.epochs) for name, own in epoch.kept.items()
        }
        draws = {"draws/cpu": torch.get_rng_state()}  # what dropout draws from
        if self.device.type == "cuda":
            draws["draws/cuda"] = torch.cuda.get_rng_state(self.device)
        values = {"steps": self.steps, "losses": [epoch.loss for epoch in self.epochs]}
        return State(self._tensors() | kept | draws, values)

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
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state.tensors["draws/cuda"], self.device)

    def _tensors(self) -> dict[str, Tensor]:
        lists = {"parameters": self.parameters, "means": self.means, "squares": self.squares, "counts": self.counts}
        lists |= {"good": self.good, "total": [self.total]}
        return {f"{name}/{number}": values for name, several in lists.items() for number, values in enumerate(several)}


def _clip(parameters: Sequence[nn.Parameter]) -> None:
    """Clip the norm of all gradients at 1, as `torch.nn.utils.clip_grad_norm_` does, which multiplies them always."""
    norm = nn.utils.get_total_norm([values.grad for values in parameters if values.grad is not None])
    if not float(norm) + 1e-6 <= 1:
        nn.utils.clip_grads_with_norm_(parameters, 1.0, norm)


def _finite(several: Iterable[Tensor]) -> bool:
    return all(bool(values.isfinite().all()) for values in several)


def fit(lesson: Lesson, training: Training, seed: int, checkpoint: Checkpoint | None = None) -> list[Epoch]:
    """Train on the mean loss of shuffled batches.

    Args:
        lesson: what is learned.
        training: learning rate, batch size and epochs.
        seed: what the order of the examples follows from.
        checkpoint: where to go on from; whoever gives one discards it when the result is written.

    Raises:
        Diverged: the loss of an epoch is not finite, or what is learned or kept of it is not; the parameters are then
            those after the last good epoch.
    """
    course, examples = _Course(lesson.parameters, training.learning_rate), lesson.examples
    generator = torch.Generator().manual_seed(seed)
    in_epoch = -(-examples // training.batch_size)
    if checkpoint is not None and (state := checkpoint.restore()) is not None:
        course.go_on(state)
        checkpoint.resumed = f", resumed in epoch {min(len(course.epochs) + 1, training.epochs)}"
    order = chain.from_iterable(
        torch.randperm(examples, generator=generator).split(training.batch_size) for _ in range(training.epochs)
    )
    finished, rest = divmod(course.steps, in_epoch)
    begun = finished * examples + rest * training.batch_size
    batches = progress(islice(order, course.steps, None), lesson.what, examples * training.epochs, begun)

    def ended() -> bool:
        return len(course.epochs) == training.epochs or lesson.enough([epoch.kept for epoch in course.epochs])

    def keep(at_end: bool = False) -> None:
        if checkpoint is not None:
            checkpoint.save(course.state, at_end)

    try:
        while not ended():
            epoch = len(course.epochs) + 1
            lesson.before_epoch(epoch)
            while course.steps < epoch * in_epoch:
                batch = next(batches)
                loss = lesson.loss(batch)
                loss.backward()
                _clip(lesson.parameters)
                course.total += loss.detach().cpu() * len(batch)
                course.step()
                keep()
            mean = float(course.total) / examples
            wrong = None if isfinite(mean) else f"loss became {mean}"
            if wrong is None and not _finite(lesson.parameters):  # as the last step of an epoch may leave them
                wrong = "learned weights are not finite"
            kept = lesson.after_epoch() if wrong is None else {}
            if wrong is None and not _finite(kept.values()):
                wrong = "score is not finite"
            if wrong is not None:
                raise Diverged(
                    f"The {wrong} in epoch {epoch} of {lesson.what} at learning rate {training.learning_rate}; lower "
                    "the learning rate."
                )
            course.end_epoch(Epoch(mean, kept))
            keep(ended())
    except Diverged as error:
        course.back_to_good()
        error.good = len(course.epochs)
        if checkpoint is not None:
            checkpoint.discard()
        raise
    else:
        if len(course.epochs) == training.epochs:
            for _ in batches:  # the bar comes to its end
                pass
    finally:
        batches.close()  # so that what is said of an error has a line of its own behind the bar
    return course.epochs
