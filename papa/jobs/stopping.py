"""Ctrl-C and SIGTERM: the first signal stops the work, and the last line of the terminal shows how to resume it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stop_once(first: Callable[[], None] = lambda: None) -> None:
    """Let the first signal call `first` and raise KeyboardInterrupt; later ones must not interrupt the clean-up."""
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            first()
            raise KeyboardInterrupt

    for number in SIGNALS:
        signal.signal(number, stop)


def _end_jobs() -> None:
    """Send SIGTERM to the jobs of this process; a job that is still starting ends without a traceback."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if not process.children():  # a shell ends with the job that it started
                process.terminate()


@contextmanager
def resumable() -> Iterator[None]:
    """Stop the work inside at the first signal, and end with the command that resumes it."""
    import_module("psutil")  # not in the handler: an import that interrupts one of the same modules fails
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    # the pipe receives the numbers of all signals, also of those that snakemake handles
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    stop_once(_end_jobs)
    try:
        yield
        return
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        code = None
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
        with open(reading, "rb", buffering=0) as pipe:
            received = [number for number in pipe.read() or b"" if number in SIGNALS]
        for number, handler in handlers.items():  # once stopped, another Ctrl-C would interrupt the exit
            signal.signal(number, signal.SIG_IGN if received else handler)
    if received and code != 0:
        print(f"Stopped. `{shlex.join(['papa', *sys.argv[1:]])}` resumes.", file=sys.stderr, flush=True)
    raise SystemExit(128 + received[0] if code is None and received else code)
