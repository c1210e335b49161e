"""The snakemake logger `papa`, which prints the last line of each finished job's log and shows the running stages."""

from __future__ import annotations

import atexit
import logging
import os
import re
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from snakemake.logging import DefaultFilter
from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.base import LogHandlerBase

SILENT = "workflow_started run_info job_info job_started group_info group_error shellcmd resources_info progress"
QUIET = (
    r"--keep-incomplete|Select jobs|Execute \d+ job|Using shell|Conda env|Building DAG|Rules with|Assuming unr|"
    r"RuleException:\nCalled"
)
STOPPED = r"Complete log|WorkflowError:\nAt least one job did not complete"
BAR = re.compile(r"\S.*\d%\|.*")
MOST_BARS, UNITS = 8, ((1, "s"), (60, "min"), (3600, "hour"))  # a cluster may run hundreds of jobs with progress bars


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
        stage, begin = self.running.pop(job, ("", now))
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


class LogHandler(LogHandlerBase):
    """Prints the messages that users need, and shows the running stages below them."""

    writes_to_stream, writes_to_file, has_filter, has_formatter, needs_rulegraph = True, False, True, False, False

    def __post_init__(self) -> None:
        common, quiet = self.common_settings, set(self.common_settings.quiet or ())
        self.jobs, self.logs, self.hearing, self.last = Jobs(), dict[int, str](), Lock(), ""
        self.stopping = False
        self.allowed = DefaultFilter(quiet, common.debug_dag, common.verbose, common.dryrun, common.printshellcmds)
        self.full = common.dryrun or common.verbose or common.debug_dag
        self.console = Console(stderr=not common.stdout, highlight=False, markup=False, emoji=False)
        self.live = Live(console=self.console, get_renderable=self.picture, refresh_per_second=4, transient=True)
        self.draws = self.console.is_interactive and not (self.full or quiet & {Quietness.PROGRESS, Quietness.ALL})
        if not self.full:
            os.environ["PAPA_LOGGER"] = "papa"  # tells jobs to leave printing to this handler
        atexit.register(self.live.stop)

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log record of snakemake and update the progress."""
        try:
            event, fields, now = str(getattr(record, "event", None)), record.__dict__, time.monotonic()
            with self.hearing:
                if event == "run_info":
                    self.jobs.planned = {str(stage): n for stage, n in fields["stats"].items() if stage != "total"}
                elif event == "job_info":
                    self.jobs.begin(fields["jobid"], fields["rule_name"], now)
                    self.logs[fields["jobid"]] = next(iter(fields["log"]), os.devnull)
                elif event in ("job_finished", "job_error"):
                    self.jobs.end(fields["jobid" if event == "job_error" else "job_id"], now, event == "job_finished")
            if self.draws and event == "job_started":
                self.live.start()
            before, self.last = self.last, self._text(event, record)
            if self.last and self.last != before:  # each poll of an interrupted run repeats its message
                style = {logging.ERROR: "red", logging.WARNING: "yellow"}.get(record.levelno)
                self.console.print(self.last, style=style, soft_wrap=not self.console.is_terminal)
            if event == "progress" and fields["done"] == fields["total"]:
                self.live.stop()
        except Exception:  # an exception would end the thread that all handlers share
            self.handleError(record)

    def _text(self, event: str, record: logging.LogRecord) -> str:
        """Return the text to print, which is snakemake's in a dry run and with --verbose."""
        fields, allowed = record.__dict__, self.allowed.filter(record)
        if event == "job_error" and not self.full:
            log = next(iter(fields["log"]), os.devnull)
            line = _last_line(log)
            if self.stopping:
                return line if line.startswith("Interrupted: ") else ""
            if line.startswith(("Error in ", "Interrupted: ")):
                return "\n".join(filter(None, [line, fields["rule_msg"], f"Log: {log}"]))  # the cluster's message
            return self.format(record) if line or not fields["indent"] else ""  # not all jobs of a group have begun
        if event == "job_finished" and allowed and not self.full:
            return _last_line(self.logs[fields["job_id"]])
        message = str(record.msg)
        self.stopping |= message.startswith("Terminating processes on user request")
        quiet = f"{QUIET}|{STOPPED}" if self.stopping else QUIET
        hidden = not self.full and (event in SILENT.split() or re.match(quiet, message))
        return "" if hidden or not allowed else self.format(record)

    def picture(self) -> Group:
        """Show the progress bars of long jobs, one row for each running stage, and one for all stages."""
        from papa.jobs.resources import format_duration

        rows, now = Table.grid(padding=(0, 2)), time.monotonic()
        with self.hearing:  # log records arrive in other threads
            jobs, left = self.jobs, self.jobs.left(now)
            for stage, number in Counter(stage for stage, _ in jobs.running.values()).items():
                done, planned, name = jobs.done[stage], jobs.planned.get(stage, 0), f"{stage} × {number}"
                bar = ProgressBar(planned or None, done, width=24)
                rows.add_row(Text(name), bar, f"{done:,} of {planned:,}", jobs.rate(stage, now))
            done, planned = jobs.done.total(), sum(jobs.planned.values())
            logs = [self.logs[job] for job in list(jobs.running)[:MOST_BARS]]  # oldest first
        bar, end = ProgressBar(planned or None, done, width=24), "" if left is None else f"{format_duration(left)} left"
        rows.add_row(Text("all stages", style="bold"), bar, f"{done:,} of {planned:,}", end)
        bars = [line for line in map(_last_line, logs) if BAR.fullmatch(line)]
        return Group(*(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in bars), rows)


def _last_line(log: str) -> str:
    """Return the last line of a log, or the last state of a progress bar; empty if there is none."""
    with suppress(OSError), open(log, "rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 4000, 0))
        return re.split(r"[\r\n]", file.read().decode("utf-8", "replace").strip())[-1].strip()
    return ""
