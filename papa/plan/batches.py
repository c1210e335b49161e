"""Batches: jobs of one stage that run together in one process, and the files by which Snakemake knows them.

Snakemake knows a batch by one file, its handle. It compares the times of handles, which say nothing here: the name of a
file says what is in it. So papa sets times that agree with the order of the jobs, before Snakemake reads them.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from papa.errors import InputError
from papa.files import KEY_DIGITS, PathLike
from papa.stages import STAGES, AnyJob, HiddenStates, Report

JOBS = "jobs"
"""The folder with one small file for each job of Snakemake that has something to do. A job reads only its own."""
OTHER_FILES_MB = 1000
"""Space for what a job writes, but for hidden states."""
STUDY = "study"
"""The name of the file with what the rules need to know of the study."""


@dataclass(eq=False)
class JobBatch:
    """Jobs of one stage that run together in one process, such as the seeds of a probe.

    Args:
        rule: the rule of the workflow, which is named after the stage.
        name: a name for people.
        jobs: all jobs, in the order in which they run.
        marker: for hidden states, an empty file; it is their handle, because the states may be deleted.
        needs: the batches whose files the jobs read, by the name of the input.
        disk_mb: the disk space of the hidden states that the jobs write or read, and some for other files.
        lacking: the jobs that have to run, because their files are missing or their rule is forced.
        forced: whether the jobs run although their files exist.
    """

    rule: str
    name: str
    jobs: list[AnyJob]
    marker: str | None = None
    needs: dict[str, list[JobBatch]] = field(default_factory=dict)
    disk_mb: int = OTHER_FILES_MB
    lacking: Sequence[AnyJob] = ()
    forced: bool = False

    @cached_property
    def handle(self) -> str:
        """The only path that Snakemake knows: the file that is, or was, written last."""
        if self.marker:
            return self.marker
        if self.lacking:
            return self.lacking[-1].output
        return max((job.output for job in self.jobs), key=os.path.getmtime)

    @property
    def handle_key(self) -> str:
        """The name of the file of this batch in the folder of the jobs' files."""
        return key_in(self.handle)

    @property
    def states(self) -> set[str]:
        """The hidden states that the jobs write or read."""
        if self.marker:
            return {job.output for job in self.jobs}
        return {job.reads["states"] for job in self.jobs if "states" in job.reads}

    @property
    def all_needs(self) -> list[JobBatch]:
        """The batches that have to run before this one."""
        return [batch for batches in self.needs.values() for batch in batches]

    def inputs(self, complete: bool = True) -> dict[str, list[str]]:
        """Return the handles of what the batch needs, by the name of the input.

        Unless they are to be `complete`, a batch that has all of its files lists none that has to be made, because it
        would not read it; Snakemake would run it after every job that it lists.
        """
        listed = complete or bool(self.lacking)
        return {
            name: [batch.handle for batch in batches if listed or not batch.lacking]
            for name, batches in self.needs.items()
        }

    def content(self) -> dict[str, Any]:
        """Return what the job needs to know, as JSON."""
        return {
            "rule": self.rule,
            "name": self.name,
            "marker": self.marker,
            "forced": self.forced,
            "inputs": self.inputs(),
            "jobs": [job.content() for job in self.lacking],
        }


def linked(batches: Sequence[JobBatch]) -> list[JobBatch]:
    """Set what each batch needs, and return the batches in an order in which they can run; the report needs all."""
    makers = {job.output: batch for batch in batches for job in batch.jobs}
    for batch in batches:
        needed = {
            makers[path]: None
            for job in batch.jobs
            for path in job.reads.values()
            if path in makers
        }
        if batch.rule == Report.stage:
            needed = {
                other: None
                for other in batches
                if other.rule not in (batch.rule, HiddenStates.stage)
            }
        for maker in needed:
            batch.needs.setdefault(STAGES[maker.rule].result, []).append(maker)
    return list(TopologicalSorter({batch: batch.all_needs for batch in batches}).static_order())


def find_missing(batches: Sequence[JobBatch], reported: bool, forced: Collection[str] = ()) -> None:
    """Find the jobs of each batch that have to run.

    Hidden states are computed only if a job that reads them has to run. What needs a forced job is forced, too.

    Args:
        batches: batches, each after those that it needs.
        reported: whether the report and all of its files exist.
        forced: names of rules, and paths of files.
    """
    for batch in batches:
        names = {batch.rule, *(job.output for job in batch.jobs)} if forced else set[str]()
        asked = not names.isdisjoint(forced)
        batch.forced = asked or any(needed.forced for needed in batch.all_needs)
        if batch.rule not in (HiddenStates.stage, Report.stage):
            batch.lacking = _to_run(batch, [job.output for job in batch.jobs])
    read = {
        job.reads["states"] for batch in batches for job in batch.lacking if "states" in job.reads
    }
    for batch in batches:
        if batch.rule == HiddenStates.stage:
            batch.lacking = _to_run(batch, read)
        # batches follow those that they need
        changed = batch.forced or any(needed.lacking for needed in batch.all_needs)
        if batch.rule == Report.stage and (changed or not reported):
            batch.lacking = batch.jobs


def _to_run(batch: JobBatch, wanted: Collection[str]) -> list[AnyJob]:
    """Return the jobs of a batch whose files are wanted and missing; all that are wanted if the batch is forced."""
    return [
        job
        for job in batch.jobs
        if job.output in wanted and (batch.forced or not os.path.exists(job.output))
    ]


def settle(batches: Sequence[JobBatch], reported: Iterable[PathLike]) -> None:
    """Make the files that Snakemake looks at say what papa knows, as far as they can be written.

    No file that exists is older than what it was made from, or from the future. There is no marker of hidden states
    that have to be computed again.

    Args:
        batches: batches, each after those that it needs.
        reported: all files of the report.
    """
    now = time.time_ns()
    times = dict[JobBatch, int]()
    for batch in batches:
        times[batch] = max((times[needed] for needed in batch.all_needs), default=0)
        if batch.lacking:
            if batch.marker and not batch.forced:
                with suppress(OSError):
                    os.unlink(batch.marker)
            continue
        for path in reported if batch.rule == Report.stage else [batch.handle]:
            with suppress(OSError):
                own = os.stat(path).st_mtime_ns
                agreed = min(max(own, times[batch]), now)
                if agreed != own:
                    os.utime(path, ns=(agreed, agreed))
                if batch.rule != Report.stage:
                    times[batch] = agreed


# -- the files of jobs ------------------------------------------------------------------------------------------------


def key_in(path: str) -> str:
    """Return the digits of the key at the end of the name of a file, with or without suffix."""
    return path.rpartition("-")[2][:KEY_DIGITS]


def write_jobs(folder: Path, contents: Mapping[str, object]) -> None:
    """Replace the folder of the jobs' files; `contents` maps names, without suffix, to JSON.

    Raises:
        InputError: a file cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        for outdated in (partial, folder):
            shutil.rmtree(outdated, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, content in contents.items():
            (partial / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        partial.rename(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        reason = f"{folder} could not be written ({error.strerror})"
        raise InputError(f"{reason}; fix the cause and run again.") from error


def read_job(folder: PathLike, name: str) -> dict[str, Any] | None:
    """Return the content of a job's file in the results of a study; None if there is nothing to do."""
    try:
        content: dict[str, Any] = json.loads(
            Path(folder, JOBS, f"{name}.json").read_text(encoding="utf-8")
        )
    except FileNotFoundError:
        return None
    return content
