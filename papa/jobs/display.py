"""The progress of jobs in a terminal: a line for each finished job, and below them a bar for each running stage.

Snakemake's logger of papa and `papa measure` show the same.
"""

from __future__ import annotations

import io
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from threading import Lock

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from papa.errors import WARNING

BAR = re.compile(r"\S.*\d%\|.*")
"""Matches the progress bar of a job."""
MOST_BARS = 8  # a cluster may run hundreds of jobs with progress bars
UNITS = ((1, "s"), (60, "min"), (3600, "hour"))


@dataclass
class Jobs:
    """The progress of a run by stage; all times are in seconds on one monotonic clock."""

    planned: dict[str, int] = field(default_factory=dict)
    running: dict[int, tuple[str, float]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    busy: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    begun: dict[str, float] = field(default_factory=dict)
    units: dict[str, tuple[int, str]] = field(default_factory=dict)

    def begin(self, job: int, stage: str, now: float) -> None:
        self.running[job] = (stage, now)
        self.begun.setdefault(stage, now)

    def end(self, job: int, now: float, well: bool = True) -> None:
        """Record the end of a job; a failed job may start again."""
        if job in self.running:
            stage, begin = self.running.pop(job)
            self.done[stage] += well
            self.busy[stage] += well * (now - begin)

    def rate(self, stage: str, now: float) -> str:
        """Return the rate of finished jobs as text; its unit is chosen when the first job finishes and then kept."""
        if not self.done[stage]:
            return ""
        rate = self.done[stage] / max(now - self.begun[stage], 1e-9)
        each, name = self.units.setdefault(stage, next((unit for unit in UNITS if rate * unit[0] >= 1), UNITS[-1]))
        return f"{rate * each:,.{int(rate * each < 10)}f} / {name}"

    def left(self, now: float) -> float | None:
        """Estimate the remaining seconds from the mean duration of each stage's jobs; None if no job is finished."""
        if not (done := self.done.total()):
            return None
        seconds, busy = 0.0, sum(self.busy.values()) + sum(now - begin for _, begin in self.running.values())
        for stage, planned in self.planned.items():
            mean = self.busy[stage] / self.done[stage] if self.done[stage] else sum(self.busy.values()) / done
            gone = [now - begin for other, begin in self.running.values() if other == stage]
            seconds += (planned - self.done[stage] - len(gone)) * mean + sum(max(mean - passed, 0) for passed in gone)
        return seconds / max(busy / max(now - min(self.begun.values()), 1e-9), 1)


class Display:
    """Prints lines on a console, and shows the running stages below them.

    Args:
        console: the console; if it is not a terminal, only lines are printed.
        bars: a function that returns the progress bars of the running jobs with these numbers.
    """

    def __init__(self, console: Console, bars: Callable[[Sequence[int]], Sequence[str]]):
        self.jobs, self.lock, self.console, self._bars = Jobs(), Lock(), console, bars
        self.live = Live(console=console, get_renderable=self.picture, refresh_per_second=4, transient=True)

    def print(self, text: str, style: str | None = None) -> None:
        """Print a line; warnings are yellow."""
        style = style or ("yellow" if WARNING in text else None)
        self.console.print(text, style=style, soft_wrap=not self.console.is_terminal)

    def picture(self) -> Group:
        """Show the progress bars of long jobs, one row for each running stage, and one for all stages."""
        from papa.jobs.resources import format_duration

        rows, now = Table.grid(padding=(0, 2)), time.monotonic()
        with self.lock:  # jobs begin and end in other threads
            jobs, left = self.jobs, self.jobs.left(now)
            for stage, number in Counter(stage for stage, _ in jobs.running.values()).items():
                done, planned, name = jobs.done[stage], jobs.planned.get(stage, 0), f"{stage} × {number}"
                bar = ProgressBar(planned or None, done, width=24)
                rows.add_row(Text(name), bar, f"{done:,} of {planned:,}", jobs.rate(stage, now))
            done, planned = jobs.done.total(), sum(jobs.planned.values())
            bars = self._bars(list(jobs.running)[:MOST_BARS])  # oldest first
        bar, end = ProgressBar(planned or None, done, width=24), "" if left is None else f"{format_duration(left)} left"
        rows.add_row(Text("all stages", style="bold"), bar, f"{done:,} of {planned:,}", end)
        shown = [line for line in bars if BAR.fullmatch(line)]
        return Group(*(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in shown), rows)


@contextmanager
def shown_here(stages: Sequence[str]) -> Iterator[Callable[[str, Callable[[], str]], None]]:
    """Show jobs that run one after the other in this process, on stderr; nothing is shown in a notebook.

    Args:
        stages: the stage of each job.

    Yields:
        A function that runs a job. Its arguments are the job's name, which begins with its stage, and a function that
        runs the job and returns its result as a line.
    """
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    console.file = console.file  # keep the terminal, because stderr is redirected
    console.quiet = console.is_jupyter  # a notebook would keep each line as an output of the cell
    stderr = _Stderr(console.is_terminal)
    display = Display(console, lambda _: [stderr.bar])
    stderr.lines = display.print
    display.jobs.planned = dict(Counter(stages))

    def run(name: str, job: Callable[[], str]) -> None:
        begin, number = time.monotonic(), display.jobs.done.total()
        with display.lock:
            display.jobs.begin(number, name.split()[0], begin)
        result = job()
        stderr.bar = ""
        with display.lock:
            display.jobs.end(number, time.monotonic())
        display.print(f"{name}: {result} ({time.monotonic() - begin:.0f} s)")

    if console.is_interactive and stages:
        display.live.start()
    try:
        with redirect_stderr(stderr):
            yield run
    finally:
        display.live.stop()


class _Stderr(io.TextIOBase):
    """A stderr that keeps the last state of a job's progress bar, and passes on all other lines."""

    bar = ""
    lines: Callable[[str], None]

    def __init__(self, interactive: bool):
        self._interactive, self._rest = interactive, ""

    def isatty(self) -> bool:
        return self._interactive

    def write(self, text: str) -> int:
        *parts, self._rest = re.split(r"[\r\n]", self._rest + text)
        for part in parts if not BAR.fullmatch(self._rest.strip()) else [*parts, self._rest]:
            if BAR.fullmatch(part.strip()):
                self.bar = part.strip()
            elif part.strip():
                self.lines(part.rstrip())
        return len(text)
