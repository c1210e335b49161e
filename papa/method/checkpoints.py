"""Long jobs: their progress bars, and checkpoints, from which a killed job resumes with a bit-identical result."""

from __future__ import annotations

import glob
import logging
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm import tqdm

from papa.config.settings import budget_on
from papa.errors import DamagedArtefact, InputError
from papa.files import PACKAGES, Json, checkpoint_of, digest_of_json, read_tensors, write_tensors

if TYPE_CHECKING:
    from papa.stages import AnyJob

log = logging.getLogger(__name__)

SECONDS = 600.0
"""The time between two checkpoints."""


@dataclass(frozen=True)
class State:
    """The progress of a job: `tensors`, and `values` that can be written as JSON."""

    tensors: Mapping[str, Tensor]
    values: Json


class Checkpoint:
    """The last state of the job that makes an artefact, in a hidden file next to it.

    A state is used only by a job with the same key, type of device, library versions, number of threads and token
    budget. A job that cannot save its state continues without a checkpoint. A caller that resumes sets `resumed`, a
    suffix for the line that the job reports.
    """

    def __init__(self, job: AnyJob, device: str = "cpu"):
        self.path = checkpoint_of(job.output)
        self.resumed = ""
        packages = {name: version(name) for name in PACKAGES}
        # each of these may change the order of additions, and so the last bits of a result
        rounding = [
            device,
            packages,
            torch.get_num_threads(),
            budget_on(device, job.machine.token_budget),
        ]
        self.identity = digest_of_json([job.key, rounding])
        self._saved = time.monotonic()

    def restore(self) -> State | None:
        """Return the state to resume from; None if there is none, or if it is damaged or belongs to another job.

        Raises:
            InputError: the system refused to read the state.
        """
        if not self.path.exists():
            return None
        try:
            tensors, facts = read_tensors(self.path)
        except DamagedArtefact as error:
            log.warning("%s This job starts from the beginning.", error)
            return None
        if facts.get("identity") != self.identity:
            log.warning(
                "%s was saved with other settings, inputs, versions or threads; this job starts from the beginning.",
                self.path,
            )
            return None
        log.info("This job resumes from %s.", self.path)
        return State(tensors, facts["values"])

    def save(self, state: Callable[[], State]) -> None:
        """Save the result of `state` if the last save is old enough; errors are only logged."""
        if time.monotonic() - self._saved < SECONDS:
            return
        try:
            current = state()
            tensors = {
                name: values.detach().cpu().contiguous() for name, values in current.tensors.items()
            }
            write_tensors(tensors, self.path, {"identity": self.identity, "values": current.values})
        except (InputError, OSError) as error:
            log.warning("This job continues without a checkpoint: %s", error)
        # after an error, too, so a full disk does not slow down every step
        self._saved = time.monotonic()

    def discard(self) -> None:
        """Delete the state, including a partly written one."""
        # a name may contain [, which has a meaning in patterns
        partial = f".{glob.escape(self.path.name)}.*.partial"
        for path in (self.path, *self.path.parent.glob(partial)):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def progress(
    batches: Iterable[Tensor], title: str, total: int, begun: int = 0
) -> Generator[Tensor, None, None]:
    """Yield `batches` of examples, and show on stderr how many of `total` are done; `begun` is the initial number.

    In a log file, a line is written every half minute, and none for a shorter job.
    """
    interactive = sys.stderr.isatty()
    with tqdm(
        total=total,
        initial=begun,
        desc=title,
        unit=" examples",
        unit_scale=True,
        file=sys.stderr,
        mininterval=0.2 if interactive else 30,
        delay=0 if interactive else 30,
        leave=False,
        dynamic_ncols=interactive,
    ) as bar:
        for batch in batches:
            yield batch
            bar.update(len(batch))
