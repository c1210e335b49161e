"""The original's logits on scored texts, with which the predictions of variants are compared.

The job that measures the original keeps the states that its prediction head reads, one row group for each batch. Jobs
that measure variants run only the head on them, which gives the same logits. Without the file, the original runs again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from papa.config.artefacts import ARTEFACTS
from papa.config.stages import ProbeOf
from papa.config.variant import ORIGINAL
from papa.errors import DamagedArtefact
from papa.files import TableWriter, Trace, digest_of, opened_table, writing_table
from papa.method.checkpoints import environment_of

if TYPE_CHECKING:
    from papa.config.job import Job
    from papa.config.stages import OfTask
    from papa.data.packed import Packed
    from papa.model.model import Model

log = logging.getLogger(__name__)


class OriginalLogits:
    """The logits of the original on batches that are scored one after another.

    Args:
        model: the model.
        compared: whether the scored variant is compared with the original; if not, its logits are returned.
        path: the file of states; None keeps nothing.
        trace: the record that the file must have: model, texts, and everything that affects rounding.
    """

    def __init__(self, model: Model, compared: bool = True, path: Path | None = None, trace: Trace | None = None):
        self.model, self.compared, self.path, self.trace = model, compared, path, trace
        self._writer: TableWriter | None = None
        self._stack, self._batch, self._open = ExitStack(), 0, False

    @classmethod
    def of(cls, job: Job[OfTask], model: Model) -> OriginalLogits:
        """Return the logits for a job; only outcomes of variants need them. The file is in the study's results."""
        if not isinstance(job.settings, ProbeOf):
            return cls(model, compared=False)
        compared, parsed = job.settings.variant != ORIGINAL, ARTEFACTS["runs"].parsed(job.output("runs"))
        if parsed is None:
            return cls(model, compared)
        results, names = parsed
        environment = environment_of(job.machine, model.device.type)
        settings = {"model": job.settings.recorded()["model"], "environment": environment}
        inputs = {"tokens": digest_of(job.input("tokens")), "weights": str(model.weights)}
        path = results / ARTEFACTS["last_states"].path(**names | {"variant": ORIGINAL})
        return cls(model, compared, path, Trace("last states", 1, settings, inputs))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Write the states of the original, or read them for a variant, inside the `with` block."""
        if self.path is None:
            yield
            return
        self._batch, self._open = 0, True
        with self.model.keeping_output(), ExitStack() as self._stack:
            yield
        self._writer, self._open = None, False

    def logits(self, packed: Packed, scores: Tensor) -> Tensor:
        """Return the original's logits of the next batch, float32 `[token, word]`; `scores` are the variant's."""
        packed, batch = self.model.pack(packed), self._batch
        self._batch += 1
        if not self.compared:
            if self._open:
                self._write(batch, packed, scores)
            return scores
        states = self._read(batch) if self._open else None
        return (self.model.scores(packed) if states is None else self.model.scores_of(packed, states)).float()

    def _write(self, batch: int, packed: Packed, scores: Tensor) -> None:
        """Add the states of a batch to the file; no file is written if the head gives other logits for states."""
        import pyarrow as pa

        states, schema = self.model.states_below_head(packed), pa.schema({"states": pa.float32()})
        if states is None or self.path is None:
            return
        if batch == 0 and torch.equal(self.model.scores_of(packed, states).float(), scores):
            self._writer = self._stack.enter_context(writing_table(self.path, schema, {}, self.trace, repeats=False))
        if self._writer is not None:
            self._writer.write(pa.table({"states": states.float().flatten().cpu().numpy()}, schema))

    def _read(self, batch: int) -> Tensor | None:
        """Return the states of a batch, float32 `[token * hidden]`; None if there are no valid ones."""
        if self.path is None or not self.path.exists():
            return None
        try:
            with opened_table(self.path) as file:
                if file.provenance.trace == self.trace:
                    return torch.tensor(file.group(batch).column("states").to_numpy())
            log.warning("%s was made with other settings; the original runs again.", self.path)
        except DamagedArtefact as error:
            log.warning("%s Until then, the original runs again.", error)
        self.path = None
        return None
