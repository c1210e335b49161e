"""The order of batches, and which of their jobs have to run.

Snakemake compares the times of handles, which say nothing here: the name of a file says what is in it. So papa sets
times that agree with the order of the jobs, before Snakemake reads them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from graphlib import TopologicalSorter

from papa.files import PathLike
from papa.stages import STAGES, AnyJob, HiddenStates, JobBatch, Report, states_read


def linked(batches: Sequence[JobBatch]) -> list[JobBatch]:
    """Set what each batch needs, and return the batches in an order in which they can run; the report needs all."""
    makers = {job.output: batch for batch in batches for job in batch.jobs}
    for batch in batches:
        needed = [makers.get(path) for job in batch.jobs for path in job.reads.values()]
        # not hidden states: the report reads none, and they may have been deleted
        if batch.rule == Report.stage:
            apart = (batch.rule, HiddenStates.stage)
            needed = [other for other in batches if other.rule not in apart]
        for maker in dict.fromkeys(filter(None, needed)):
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
        batch.forced = _is_forced(batch, forced)
        if batch.rule not in (HiddenStates.stage, Report.stage):
            batch.lacking = _to_run(batch, [job.output for job in batch.jobs])
    read = set(states_read(job for batch in batches for job in batch.lacking))
    for batch in batches:
        if batch.rule == HiddenStates.stage:
            batch.lacking = _to_run(batch, read)
        # batches follow those that they need
        changed = batch.forced or any(needed.lacking for needed in batch.all_needs)
        if batch.rule == Report.stage and (changed or not reported):
            batch.lacking = batch.jobs


def _is_forced(batch: JobBatch, forced: Collection[str]) -> bool:
    """Return whether a batch is forced by its rule or a file, or needs one that is."""
    # most runs force nothing, and a plan may have thousands of jobs
    if not forced:
        return False
    names = {batch.rule, *(job.output for job in batch.jobs)}
    return not names.isdisjoint(forced) or any(needed.forced for needed in batch.all_needs)


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
        # equal times are enough: Snakemake reruns a job only if an input is newer than its output
        times[batch] = max((times[needed] for needed in batch.all_needs), default=0)
        if batch.lacking:
            if batch.marker and not batch.forced:
                # the states may be gone, but with their marker Snakemake would not run the job
                with suppress(OSError):
                    os.unlink(batch.marker)
            continue
        for path in reported if batch.rule == Report.stage else [batch.handle]:
            # in a shared cache, only the owner of a file may set its times
            with suppress(OSError):
                own = os.stat(path).st_mtime_ns
                # Snakemake stops if a job's new output is older than an input, as it would be with one from the future
                agreed = min(max(own, times[batch]), now)
                if agreed != own:
                    os.utime(path, ns=(agreed, agreed))
                if batch.rule != Report.stage:
                    times[batch] = agreed
