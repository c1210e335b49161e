"""Run one batch of a plan in its process: set threads and GPU, write a log, print one line, and shorten errors."""

from __future__ import annotations

import io
import logging
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from papa.errors import InputError, first_line, format_bytes, without_secrets
from papa.files import PathLike, replacing
from papa.plan.study import read_plan
from papa.run import gpu
from papa.run.stopping import stop_once
from papa.stages import (
    STAGES,
    Average,
    JobBatch,
    LearnLambda,
    Probe,
    ProbeEncoder,
    Report,
    Tokenize,
    key_in,
    read_job,
    states_read,
)

log = logging.getLogger(__name__)


def main(folder: str, output: str, threads: str, path: str) -> None:
    """Run the batch of jobs that makes `output` for the study in `folder`; `path` is that of its log."""
    content = read_job(folder, key_in(output))
    name = f"{content['rule']} {content['name']}" if content else f"job {Path(output).stem}"
    with process(name, Path(path), threads) as say:
        if content is None:
            say(without_work(output))
            return
        batch = JobBatch.of_content(content)
        if STAGES[batch.rule].runs_encoder:
            gpu.claim(batch.jobs[0].machine.device)
        say(run(batch, folder))


def without_work(output: str) -> str:
    """Return a line for a job that the plan does not need, although Snakemake runs it.

    Raises:
        InputError: its file does not exist, so the plan is that of another run.
    """
    if Path(output).parent.name == "states":
        # Snakemake takes a job without its output for a failed one
        _mark(output)
        return "no job reads these states"
    if not os.path.exists(output):
        raise InputError(f"another run has begun, whose plan does not make {output}.")
    return "its files exist"


def run(batch: JobBatch, folder: PathLike) -> str:
    """Make the files of a batch, and return the line that its stage reports."""
    if batch.rule == Report.stage:
        # only here, because other jobs need neither pandas nor altair
        from papa.results.finished import Finished
        from papa.results.report import write_report

        return write_report(batch.lacking[0], Finished.of_plan(read_plan(folder), folder))
    # since the plan was written, another run, or an attempt that was killed, may have made some
    jobs = [job for job in batch.lacking if batch.forced or not os.path.exists(job.output)]
    line = function_of(batch.rule)(jobs) if jobs else "another run has made it"
    if batch.marker:
        _mark(batch.marker)
    for states in states_read(batch.lacking):
        readers = read_job(folder, key_in(states))  # a new run may have begun, with more readers
        if readers and all(map(os.path.exists, readers["readers"])):
            # the job of another reader may delete them at the same time
            Path(states).unlink(missing_ok=True)
    return line


def function_of(stage: str) -> Callable[[Sequence[Any]], str]:
    """Return the function of a stage; only what it needs is imported, because torch takes a second."""
    if stage == Tokenize.stage:
        from papa.data.tokenize import tokenize_corpus

        return tokenize_corpus
    if stage in (Probe.stage, ProbeEncoder.stage):
        from papa.method.training import train_probes

        return train_probes
    if stage == Average.stage:
        from papa.method.averaging import average_corpus

        return average_corpus
    if stage == LearnLambda.stage:
        from papa.method.head_weights import learn_weights

        return learn_weights
    from papa.method.states import store_states

    return store_states


def _mark(path: str) -> None:
    """Write an empty file."""
    with replacing(path) as temporary:
        temporary.touch()


@contextmanager
def process(name: str, path: Path, threads: str) -> Iterator[Callable[[str], None]]:
    """Redirect stderr to the job's log, and yield `say`, which prints the job's result as one line.

    Heavy imports belong inside the `with` block, because threads and GPU must be set before them. No job
    asks the hub. Any error or signal ends the job with one line. Errors other than `InputError`
    also write a traceback to the log. The line in the terminal is also the last line of the log.
    """
    for library in ("OMP", "MKL", "OPENBLAS", "RAYON"):
        os.environ[f"{library}_NUM_THREADS"] = threads
    os.environ["HF_HUB_OFFLINE"] = "1"  # the run has downloaded everything when it started
    # pyarrow's own pool would take 13 MB in every job
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    begin = time.monotonic()
    with _stderr_to(path) as terminal:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

        def end(line: str, code: int) -> SystemExit:
            print(line, file=sys.stderr)
            _show(f"{line}\nLog: {path}" if code == 1 else line, terminal)
            return SystemExit(code)

        def say(result: str) -> None:
            # Linux counts in kB
            peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            line = f"{name}: {result} ({time.monotonic() - begin:.0f} s)"
            log.info("peak memory: %s", format_bytes(peak))
            print(line, file=sys.stderr)
            _show(line, sys.stdout)

        stop_once()  # from now on, a signal raises an exception, so partial files are removed
        try:
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
        # emptied, because Snakemake, too, deletes a log before its job starts
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    except OSError as error:
        raise SystemExit(
            f"Error: {path} could not be written ({error.strerror}); fix the cause and run again."
        ) from None
    with os.fdopen(os.dup(2), "w", buffering=1) as terminal:
        os.dup2(opened, 2)
        os.close(opened)
        before = sys.stderr
        sys.stderr = _Log()
        try:
            yield terminal
        finally:
            sys.stderr = before
            os.dup2(terminal.fileno(), 2)


class _Log(io.TextIOBase):
    """A stderr that drops lines if the disk is full, so no job fails because of its log."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            # names of files may contain bytes that are no UTF-8
            os.write(2, text.encode("utf-8", "replace"))
        return len(text)

    def fileno(self) -> int:
        return 2


if __name__ == "__main__":
    main(*sys.argv[1:])
