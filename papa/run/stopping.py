"""Handle Ctrl-C and SIGTERM: the first signal stops the work, and the last line on stderr shows how to resume it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stop_once(on_stop: Callable[[], None] = lambda: None) -> None:
    """Make the first signal call `on_stop` and raise KeyboardInterrupt; later signals do not interrupt the clean-up."""
    stopping = False

    def stop(_: int, __: FrameType | None) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            # an object that was just being made, such as a progress bar, may fail when it is deleted
            sys.unraisablehook = lambda _: None
            on_stop()
            raise KeyboardInterrupt

    for stop_signal in SIGNALS:
        signal.signal(stop_signal, stop)


def _end_jobs() -> None:
    """Send SIGTERM to the jobs of this process; jobs that are still starting then end without a traceback."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if not process.children():  # a shell ends when its job ends
                process.terminate()


@contextmanager
def resumable() -> Iterator[None]:
    """Stop the work in the `with` block at the first signal, and print the command that resumes it."""
    # not in the handler, where it could interrupt an import of the same module and fail
    import psutil  # noqa: F401

    handlers = {stop_signal: signal.getsignal(stop_signal) for stop_signal in SIGNALS}
    reading, writing = os.pipe()
    # `set_wakeup_fd` refuses a pipe that may block
    for end in (reading, writing):
        os.set_blocking(end, False)
    # the pipe receives the numbers of all signals, including those that snakemake handles
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
        for (
            stop_signal,
            handler,
        ) in handlers.items():  # after a stop, another Ctrl-C must not interrupt the exit
            signal.signal(stop_signal, signal.SIG_IGN if received else handler)
    # with 0, the signal came when all work was done
    if received and code != 0:
        print(
            f"Stopped. `{shlex.join(['papa', *sys.argv[1:]])}` resumes.",
            file=sys.stderr,
            flush=True,
        )
        # the code that a shell reports for a process that this signal has ended
        code = 128 + received[0]
    raise SystemExit(code)
