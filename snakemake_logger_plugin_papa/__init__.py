"""The snakemake logger `papa`, which prints the last line of each finished job's log and shows the running stages."""

from __future__ import annotations

import atexit
import logging
import os
import re
import time
from contextlib import suppress

from rich.console import Console
from snakemake.logging import DefaultFilter
from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.base import LogHandlerBase

from papa.jobs.display import Display

SILENT = "workflow_started run_info job_info job_started group_info group_error shellcmd resources_info progress"
QUIET = (
    r"--keep-incomplete|Select jobs|Execute \d+ job|Using shell|Conda env|Building DAG|Rules with|Assuming unr|"
    r"RuleException:\nCalled"
)
STOPPED = r"Complete log|Elapsed time|WorkflowError:\nAt least one job did not complete"
TARGET = "all"
"""The rule that only collects targets; it runs nothing, so it is no job."""


class LogHandler(LogHandlerBase):
    """Prints the messages that users need, and shows the running stages below them."""

    writes_to_stream, writes_to_file, has_filter, has_formatter, needs_rulegraph = True, False, True, False, False

    def __post_init__(self) -> None:
        common, quiet = self.common_settings, set(self.common_settings.quiet or ())
        self.logs, self.last = dict[int, str](), ""
        self.stopping = self.counted = False
        self.allowed = DefaultFilter(quiet, common.debug_dag, common.verbose, common.dryrun, common.printshellcmds)
        self.full = common.dryrun or common.verbose or common.debug_dag
        console = Console(stderr=not common.stdout, highlight=False, markup=False, emoji=False)
        self.display = Display(console, lambda jobs: [_last_line(self.logs[job]) for job in jobs])
        self.draws = console.is_interactive and not (self.full or quiet & {Quietness.PROGRESS, Quietness.ALL})
        if not self.full:
            os.environ["PAPA_LOGGER"] = "papa"  # tells jobs to leave printing to this handler
        atexit.register(self.display.live.stop)

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log record of snakemake and update the progress."""
        try:
            event, fields, now = str(getattr(record, "event", None)), record.__dict__, time.monotonic()
            jobs = self.display.jobs
            with self.display.lock:
                if event == "run_info":
                    counts = fields["stats"].items()
                    jobs.planned = {str(stage): number for stage, number in counts if stage not in ("total", TARGET)}
                elif event == "job_info" and fields["rule_name"] != TARGET:
                    jobs.begin(fields["jobid"], fields["rule_name"], now)
                    self.logs[fields["jobid"]] = next(iter(fields["log"]), os.devnull)
                elif event in ("job_finished", "job_error"):
                    jobs.end(fields["jobid" if event == "job_error" else "job_id"], now, event == "job_finished")
            if self.draws and event == "job_started":
                self.display.live.start()
            before, self.last = self.last, self._text(event, record)
            if self.last and self.last != before:  # each poll of an interrupted run repeats its message
                style = {logging.ERROR: "red", logging.WARNING: "yellow"}.get(record.levelno)
                self.display.print(self.last, style)
            if event == "progress" and fields["done"] == fields["total"]:
                self.display.live.stop()
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
            return _last_line(self.logs.get(fields["job_id"], os.devnull))
        if event == "run_info" and self.full:
            counted, self.counted = self.counted, True
            if counted:  # a dry run counts its jobs at its begin and at its end
                return ""
        message = str(record.msg)
        self.stopping |= message.startswith("Terminating processes on user request")
        quiet = f"{QUIET}|{STOPPED}" if self.stopping else QUIET
        hidden = not self.full and (event in SILENT.split() or re.match(quiet, message))
        return "" if hidden or not allowed else self.format(record)


def _last_line(log: str) -> str:
    """Return the last line of a log, or the last state of a progress bar; empty if there is none."""
    with suppress(OSError), open(log, "rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 4000, 0))
        return re.split(r"[\r\n]", file.read().decode("utf-8", "replace").strip())[-1].strip()
    return ""
