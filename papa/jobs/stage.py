"""Run one job of the workflow in its script: set threads and GPU, write a log, print one line, and shorten errors."""

from __future__ import annotations

import io
import logging
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Protocol, TextIO, cast

from papa.config.job import AnyJob, Job, JobParameters
from papa.config.settings import Machine
from papa.errors import InputError, first_line, without_secrets
from papa.files import REBUILD, trace_of
from papa.jobs import gpu
from papa.jobs.stopping import stop_once

Say = Callable[[str], None]
log = logging.getLogger(__name__)


class Snakemake(Protocol):
    """The object that snakemake passes to a script."""

    rule: str
    threads: int
    wildcards: Sequence[str]
    log: Sequence[str]
    params: Mapping[str, JobParameters]
    input: Mapping[str, str | Sequence[str]]
    output: Mapping[str, str]


def run(snakemake: Snakemake) -> None:
    """Run one job from a script of the workflow.

    `snakemake` is the object that snakemake passes to the script; its parameter `parameters` comes from
    `Plan.parameters`.
    """
    # inputs that only order jobs are no part of the record
    inputs = {name: _paths(value) for name, value in snakemake.input.items() if name != "outdated"}
    machine = Machine.current()
    job = Job.of(dict(snakemake.params.items())["parameters"], inputs, dict(snakemake.output.items()), machine)
    with stage(snakemake, machine, job.settings.runs_encoder) as say:
        say(performed(job))


def performed(job: AnyJob) -> str:
    """Import and run a job's function, and return the line that it reports."""
    check_inputs(job)
    call = cast(Callable[[AnyJob], str], resolve_name(job.settings.function))
    return call(job)


def check_inputs(job: AnyJob) -> None:
    """Raise `InputError` unless each input was made by the stage, version and settings that the config requires."""
    for name, requests in job.requests.items():
        for path, request in zip(job.inputs[name], requests, strict=True):
            trace = trace_of(path)
            if trace is None:
                raise InputError(f"{path} does not record how it was made; {REBUILD}.")
            if trace.request != request:
                settings = ", ".join(f"{key} {value}" for key, value in trace.settings.items()) or "no settings"
                made = f"it was made by stage {trace.stage}, version {trace.version}, with {settings}"
                raise InputError(f"{path} does not match the config: {made}; {REBUILD}.")


@contextmanager
def stage(snakemake: Snakemake, machine: Machine, runs_encoder: bool = False) -> Iterator[Say]:
    """Redirect stderr to the job's log, and yield `say`, which prints the job's result as one line.

    Heavy imports belong inside the `with` block, because threads and GPU must be set before them. No job
    asks the hub. Any error or signal ends the job with one line. Errors other than `InputError`
    also write a traceback to the log. The line in the terminal is also the last line of the log.
    """
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[variable] = str(snakemake.threads)
    os.environ["HF_HUB_OFFLINE"] = "1"  # the run has downloaded everything when it started
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pyarrow's own pool would take 13 MB in every job
    name, begin = " ".join([snakemake.rule, *map(str, snakemake.wildcards)]), time.monotonic()
    with _stderr_to(Path(snakemake.log[0])) as terminal:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")

        def end(line: str, code: int) -> SystemExit:
            print(line, file=sys.stderr, flush=True)
            _show(f"{line}\nLog: {snakemake.log[0]}" if code == 1 else line, terminal)
            return SystemExit(code)

        def say(result: str) -> None:
            line = f"{name}: {result} ({time.monotonic() - begin:.0f} s)"
            print(line, file=sys.stderr, flush=True)
            _show(line, sys.stdout)

        stop_once()  # from now on, a signal raises an exception, so partial files are removed
        try:
            if runs_encoder:
                gpu.claim(machine.device)
            yield say
        except InputError as error:
            raise end(f"Error in {name}: {error}", 1) from None
        except KeyboardInterrupt:
            raise end(f"Interrupted: {name}", 130) from None
        except Exception as error:
            print(without_secrets(traceback.format_exc()), file=sys.stderr)
            said = first_line(error) + limit_on_memory()
            raise end(f"Error in {name}: {type(error).__name__}: {said}", 1) from None


def limit_on_memory() -> str:
    """Return a note on the limit of virtual memory, which can make any import fail; empty if there is no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return f" (a cause may be the limit of {limit >> 20:,} MB of virtual memory; raise it with ulimit -v unlimited)"


def _paths(value: str | Sequence[str]) -> tuple[str, ...]:
    return (str(value),) if isinstance(value, str) else tuple(map(str, value))


def _show(line: str, stream: TextIO) -> None:
    """Print a line in one write, because jobs share the terminal; drop it if the terminal was closed or is full."""
    try:
        stream.write(f"{line}\n")
        stream.flush()
    except OSError:  # Python would try again at its end, and end with an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def _stderr_to(path: Path) -> Iterator[TextIO]:
    """Redirect stderr to a log, also for C libraries; yield the original stderr."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    except OSError as error:
        raise SystemExit(
            f"Error: {path} could not be written ({error.strerror}); fix the cause and run again."
        ) from None
    with os.fdopen(os.dup(2), "w", buffering=1) as terminal:
        os.dup2(opened, 2)
        os.close(opened)
        before, sys.stderr = sys.stderr, _Log()
        try:
            yield terminal
        finally:
            sys.stderr.flush()
            sys.stderr = before
            os.dup2(terminal.fileno(), 2)


class _Log(io.TextIOBase):
    """A stderr that drops lines if the disk is full, so no job fails because of its log."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            os.write(2, text.encode("utf-8", "replace"))
        return len(text)

    def fileno(self) -> int:
        return 2
