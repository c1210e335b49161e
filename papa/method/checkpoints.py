"""Where a long job was when it was killed, so that it goes on from there when it is started again, to the same bits.

A state lies in a hidden file beside the artefact that the job makes, and is gone once the artefact is written. It is
safetensors with JSON in its metadata, sealed as artefacts are.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from papa import __version__
from papa.config import machine
from papa.errors import InputError
from papa.files import SEAL, UNSEALED, PathLike, check_seal, replacing

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class State:
    """Where a job is: `tensors`, and `values` that JSON can hold."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]


class Checkpoint:
    """The last state of the job that makes `artefact`; a job that cannot save one goes on without.

    `job` says what is made (anything JSON can hold) of which `inputs` (files, which count by size and time of change).
    A state is used by the same job alone: with the same code, versions, threads and batches of the encoder. `resumed`
    is for whoever goes on from a state to say where, and ends the line in which a stage says what it did.
    """

    def __init__(self, artefact: PathLike, job: Mapping[str, Any], inputs: Iterable[PathLike | None] = ()):
        here = machine.current()
        place = Path(artefact)
        self.path = place.with_name(f".{place.name}.checkpoint")
        self.seconds = here.checkpoint_minutes * 60
        self.resumed = ""
        files = [None if path is None else _size_and_time(path) for path in inputs]
        packages = {name: version(name) for name in ("torch", "transformers", "numpy")}
        machinery = [__version__, _code(), packages, torch.get_num_threads(), here.token_budget]
        self.identity = sha256(json.dumps([job, files, machinery], sort_keys=True).encode()).hexdigest()
        self._saved = time.monotonic()

    def restore(self) -> State | None:
        """The state to go on from; None where there is none, or one that is damaged or of another job."""
        if not self.path.exists():
            return None
        try:
            check_seal(self.path)
            identity, state = _unpacked(self.path.read_bytes())
        except (OSError, InputError) as error:
            log.warning("%s This job begins anew.", error)
            return None
        if identity != self.identity:
            log.warning("%s is of other settings, inputs, code, versions or threads; this job begins anew.", self.path)
            return None
        log.info("This job goes on from %s.", self.path)
        return state

    def save(self, state: Callable[[], State]) -> None:
        """Keep what `state` gives where the last one is old enough. What goes wrong is logged and harms nothing."""
        if time.monotonic() - self._saved < self.seconds:
            return
        try:
            with replacing(self.path, seal=True) as temporary:
                temporary.write_bytes(_packed(self.identity, state()))
        except (InputError, OSError) as error:
            log.warning("This job goes on without a checkpoint: %s", error)
        self._saved = time.monotonic()

    def discard(self) -> None:
        """Delete the state, and what a kill left of one that was being written."""
        partial = self.path.with_name(f".{glob.escape(self.path.name)}.*.partial")
        for path in (self.path, *partial.parent.glob(partial.name)):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _packed(identity: str, state: State) -> bytes:
    tensors = {name: values.detach().cpu().contiguous() for name, values in state.tensors.items()}
    return save(tensors, {"identity": identity, "values": json.dumps(state.values), SEAL: UNSEALED})


def _unpacked(content: bytes) -> tuple[str, State]:
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    return header["identity"], State(load(content), json.loads(header["values"]))


def _size_and_time(path: PathLike) -> list[int]:
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns]


def _code() -> str:
    """Digest of the source of papa."""
    digest = sha256()
    folder = Path(__file__).parents[1]
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
