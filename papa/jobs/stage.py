"""One job of the workflow, seen from its script: threads, the log, a line for the terminal, errors in one sentence."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TextIO

from papa.config import machine
from papa.errors import InputError
from papa.jobs import gpu as devices
from papa.jobs import live

Say = Callable[[str], None]


@contextmanager
def stage(job: Any, threads: Literal["encoder", "probe"] | None = None, online: bool = False) -> Iterator[Say]:
    """Run a script's one call: its stderr goes to the job's log, `say` prints its result as one line in the terminal.

    `job` is what the workflow hands to a script (`rule`, `wildcards`, `log`, `threads`). Heavy imports belong inside,
    behind the settings of threads: what the config says for this kind of job, whatever the workflow's cores are, and
    the choice of a GPU for a job of the encoder. Where there is a mirror, nothing asks the hub but an `online` job.
    An `InputError` ends the job with its message alone, SIGINT and SIGTERM with one line; anything else leaves its
    traceback in the log.
    """
    here = machine.current()
    number = {"encoder": here.encoder_threads, "probe": here.probe_threads, None: 1}[threads]
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[variable] = str(number)
    if here.hub_mirror and not online:
        os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pyarrow's own keeps 13 MB of every job
    name = " ".join([job.rule, *(f"{value}" for value in job.wildcards)])
    log, begin = Path(job.log[0]), time.monotonic()
    with _stderr_to(log) as terminal:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")

        def say(line: str) -> None:
            message = f"{name}: {line} ({time.monotonic() - begin:.0f} s)"
            print(message, file=sys.stderr, flush=True)
            _show(message, sys.stdout)

        # so that what is half written is removed on the way out
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            if threads == "encoder":
                devices.claim(here.device)
            yield say
        except InputError as error:
            print(f"Error: {error}", file=sys.stderr, flush=True)
            _show(f"Error in {name}: {error}\nLog: {log}", terminal)
            raise SystemExit(1) from None
        except KeyboardInterrupt:
            print(f"Interrupted: {name}", file=sys.stderr, flush=True)
            _show(f"Interrupted: {name}", terminal)
            raise SystemExit(130) from None
        except Exception as error:
            traceback.print_exc()
            kind = type(error).__name__
            _show(f"Error in {name}: {kind}: {error}\nThe traceback is in the log: {log}", terminal)
            raise SystemExit(1) from None


def _show(line: str, stream: TextIO) -> None:
    """Print a line in one piece, for other jobs write to the same terminal: through its live view where it has one."""
    with suppress(KeyError, OSError), open(os.open(os.environ[live.LINES], os.O_WRONLY | os.O_APPEND), "w") as view:
        view.write(f"{line}\n")
        return
    stream.write(f"{line}\n")
    stream.flush()


@contextmanager
def _stderr_to(log: Path) -> Iterator[TextIO]:
    """Send stderr, that of C libraries too, to `log`; yield what it was before."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    except OSError as error:
        raise SystemExit(f"Error: {log} could not be written ({error.strerror}); mend that and run again.") from None
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
    """What is open as stderr. A line that finds no room on the disk is lost, and no job fails for it."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            os.write(2, text.encode("utf-8", "replace"))
        return len(text)

    def fileno(self) -> int:
        return 2
