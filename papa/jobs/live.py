"""The workflow as it runs, in a terminal: each stage with what is done, the rate and the time left.

Snakemake tells its loggers of every job; `LiveView` is a handler that draws from what it hears. Jobs hand it their
lines for the terminal through a file, so that nothing writes across the picture. In a pipe or a log file there is none.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, Group

LINES = "PAPA_LINES"
"""The environment variable that names the file to which jobs append what the terminal shall show."""
BETWEEN_DRAWINGS = 0.25
MOST_BARS = 8
"""Jobs whose logs are looked at for a progress bar: a cluster may run hundreds."""
BAR = re.compile(r"\S.*\d%\|.*")
"""What a progress bar leaves in a log."""


def watch(logger: logging.Logger, quiet: bool) -> None:
    """Show a live view of what `logger` (that of snakemake) hears, if people look: both streams are one's terminal."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if quiet or LINES in os.environ or console.is_dumb_terminal or not (sys.stdout.isatty() and console.is_terminal):
        return
    logger.addHandler(LiveView(console, logger))


@dataclass
class Jobs:
    """How far the jobs of a run are, by stage; times are seconds of one clock."""

    planned: dict[str, int] = field(default_factory=dict)
    running: dict[Any, tuple[str, float]] = field(default_factory=dict)
    """By the job's number: its stage, and when it began."""
    done: Counter[str] = field(default_factory=Counter)
    busy: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of the jobs that are done, added up."""
    begun: dict[str, float] = field(default_factory=dict)
    """When the first job of a stage began."""

    def begin(self, job: Any, stage: str, now: float) -> None:
        self.running[job] = (stage, now)
        self.begun.setdefault(stage, now)

    def end(self, job: Any, now: float, well: bool = True) -> None:
        """A job that is not running any more; one that failed may begin again."""
        if job in self.running:
            stage, begin = self.running.pop(job)
            if well:
                self.done[stage] += 1
                self.busy[stage] += now - begin

    def rate(self, stage: str, now: float) -> float | None:
        """Jobs of a stage a second, since its first began."""
        return self.done[stage] / max(now - self.begun[stage], 1e-9) if self.done[stage] else None

    def left(self, now: float) -> tuple[float, bool] | None:
        """Seconds until all is done, and whether every stage that is not done is in them; None if too little is known.

        Jobs to come are taken to last as long as those of their stage that are done, and as many to run side by side as
        did until now. Stages of which no job is done are left out; None where most jobs to come are of such stages.
        """
        seconds, known = 0.0, 0
        for stage, done in self.done.items():
            mean = self.busy[stage] / done
            gone = [now - begin for other, begin in self.running.values() if other == stage]
            to_come = self.planned.get(stage, done) - done
            seconds += (to_come - len(gone)) * mean + sum(max(mean - passed, 0) for passed in gone)
            known += to_come
        to_come = sum(self.planned.values()) - sum(self.done.values())
        if 2 * known < to_come or not self.begun:
            return None
        busy = sum(self.busy.values()) + sum(now - begin for _, begin in self.running.values())
        together = busy / max(now - min(self.begun.values()), 1e-9)
        return seconds / max(together, 1), known == to_come


class LiveView(logging.Handler):
    """Draws the stages that run below what is printed; begins with the first job and ends with the last."""

    def __init__(self, console: Console, logger: logging.Logger):
        super().__init__()
        self.console, self.logger = console, logger
        self.jobs = Jobs()
        self.logs: dict[Any, Path] = {}
        self.hearing = Lock()
        self.over = Event()
        self.drawing: Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of what snakemake says of its jobs."""
        now, event = time.monotonic(), getattr(record, "event", None)
        # other versions of snakemake may say less, and a disk may be full: then less is shown
        with self.hearing, suppress(AttributeError, OSError):
            if event == "run_info":
                self.jobs.planned = {str(stage): n for stage, n in record.stats.items() if stage != "total"}  # type: ignore[attr-defined]
            elif event == "job_started" and self.drawing is None:  # in a dry run none is
                self._begin()
            elif event == "job_info":
                self.jobs.begin(record.jobid, record.rule_name, now)  # type: ignore[attr-defined]
                self.logs[record.jobid] = Path(next(iter(record.log), os.devnull))  # type: ignore[attr-defined]
            elif event == "job_finished":
                self.jobs.end(record.job_id, now)  # type: ignore[attr-defined]
            elif event == "job_error":
                self.jobs.end(record.jobid, now, well=False)  # type: ignore[attr-defined]
        if event == "progress" and getattr(record, "done", 0) == getattr(record, "total", None):
            self.close()

    def close(self) -> None:
        """Wipe the picture; what was printed stays."""
        self.over.set()
        if self.drawing is not None:
            self.drawing.join(timeout=5)
        super().close()

    def _begin(self) -> None:
        lines = tempfile.NamedTemporaryFile("rb", prefix="papa-", suffix=".lines")  # noqa: SIM115  the thread closes it
        os.environ[LINES] = lines.name
        self.drawing = Thread(target=self._draw, args=(lines,), daemon=True)
        self.drawing.start()
        atexit.register(self.close)

    def _draw(self, lines: Any) -> None:
        from rich.file_proxy import FileProxy
        from rich.live import Live

        with lines, Live(console=self.console, auto_refresh=False, transient=True) as live:
            ours = [
                (handler, handler.setStream(FileProxy(self.console, handler.stream)))
                for handler in self.logger.handlers
                if isinstance(handler, logging.StreamHandler) and handler.stream.isatty()
            ]
            try:
                last = False
                while not last:
                    last = self.over.wait(BETWEEN_DRAWINGS)
                    if printed := lines.read().decode("utf-8", "replace"):
                        self.console.print(printed, end="", markup=False, soft_wrap=True)
                    live.update(self.picture(time.monotonic()), refresh=True)
            finally:
                for handler, before in ours:
                    handler.setStream(before)

    def picture(self, now: float) -> Group:
        """A row for all jobs, one for each stage that runs, and how far long jobs say they are."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        from papa.jobs.terminal import duration

        with self.hearing:  # snakemake's threads go on telling
            jobs = deepcopy(self.jobs)
        done, planned = sum(jobs.done.values()), sum(jobs.planned.values())
        running = Counter(stage for stage, _ in jobs.running.values())
        rows = Table.grid(padding=(0, 2))
        for name in ("stage", "bar", "done", "rate", "left"):
            rows.add_column(name, justify="left" if name in ("stage", "bar") else "right", no_wrap=True)
        for stage, number in running.items():
            rate, total = jobs.rate(stage, now), jobs.planned.get(stage, 0)
            remaining = f"{duration((total - jobs.done[stage]) / rate)} left" if rate else ""
            rows.add_row(
                Text(f"{stage} × {number}" if number > 1 else stage),
                ProgressBar(total or None, jobs.done[stage], width=24),
                f"{jobs.done[stage]:,} of {total:,}",
                _per_time(rate),
                remaining,
            )
        begun = min(jobs.begun.values(), default=now)
        left = jobs.left(now)
        rows.add_row(
            Text("all stages", style="bold"),
            ProgressBar(planned or None, done, width=24),
            f"{done:,} of {planned:,}",
            _per_time(done / (now - begun) if done else None),
            f"{'' if left[1] else 'over '}{duration(left[0])} left" if left else "",
        )
        longest = list(jobs.running)[:MOST_BARS]  # they stand in the order in which they began
        return Group(*map(self._said, longest), rows)

    def _said(self, job: Any) -> Any:
        """The last progress bar in the log of a job, or nothing."""
        from rich.text import Text

        said = ""
        with suppress(OSError, KeyError), open(self.logs[job], "rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - 1000, 0))
            last = re.split(r"[\r\n]", log.read().decode("utf-8", "replace").strip())[-1]
            said = last.strip() if BAR.fullmatch(last.strip()) else ""
        return Text(said, style="dim", no_wrap=True, overflow="ellipsis", end="\n" if said else "")


def _per_time(rate: float | None) -> str:
    """Jobs a second as people say it: "12 / min"."""
    if rate is None:
        return ""
    for unit, name in ((1, "s"), (60, "min"), (3600, "hour")):
        if rate * unit >= 1 or name == "hour":
            number = rate * unit
            return f"{number:,.1f} / {name}" if number < 10 else f"{number:,.0f} / {name}"
    raise AssertionError
