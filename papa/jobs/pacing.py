"""How long something takes that is run for about half a second, on a clock that other programs do not disturb."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch

SECONDS = 0.5
"""About how long a measurement lasts, after a first run that is not counted."""


def paced(run: Callable[[int], object], most: int, clock: Callable[[], float]) -> tuple[int, float]:
    """How often `run(number)` went round in about SECONDS, at most `most` times, and how long it took.

    It runs before as well, uncounted: kernels are compiled for shapes that are met for the first time.
    """
    few = min(2, most)
    run(few)
    once = seconds_of(lambda: run(few), clock) / few
    number = min(most, max(few, round(SECONDS / max(once, 1e-6))))
    if number > few:
        run(number)
    return number, seconds_of(lambda: run(number), clock)


def seconds_each(run: Callable[[int], object], examples: int, at_once: int, clock: Callable[[], float]) -> float:
    """Seconds for each of `examples` where `run(number)` does `number` batches of `at_once`, the last one the rest."""
    number, seconds = paced(run, math.ceil(examples / at_once), clock)
    return seconds / min(number * at_once, examples)


def seconds_of(run: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    run()
    return clock() - begin


def clock_of(device: torch.device, threads: int) -> Callable[[], float]:
    """A clock of a job with so many threads: on a processor it stands still while other programs have the processor."""
    if device.type == "cpu":
        return lambda: time.process_time() / threads

    def synchronised() -> float:
        torch.accelerator.synchronize()
        return time.perf_counter()

    return synchronised


def processor_seconds(code: str, *arguments: str) -> float:
    """Processor seconds of a Python that runs `code` and ends, on one thread."""
    import resource

    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code, *arguments], env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
