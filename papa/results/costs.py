"""What the jobs of finished results took: seconds and memory, from the files that the workflow leaves beside them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from papa.config.graph import Graph
from papa.config.jobs import ONCE, Job, job_of, jobs_of
from papa.results.summary import Row

BENCHMARK = ".benchmark.tsv"
FORMS = ("parquet", "h5", "json", "svg")
"""What the files may end with that name a job."""


def costs_of(results: Path, graph: Graph) -> list[Row]:
    """Each rule's `jobs`, how many are `measured`, their `seconds` in all and the largest `memory` in megabytes.

    Results that were made elsewhere may have no such files; what is not known is None. Files of jobs that the config
    does not ask for (any more) are passed over.
    """
    wanted = jobs_of(graph)
    found = {job: took for job, took in _measured(results, graph) if job in set(wanted)}
    rows = []
    for rule in dict.fromkeys(job.rule for job in wanted):
        own = [job for job in wanted if job.rule == rule]
        took = [found[job] for job in own if job in found]
        seconds = [one for one, _ in took if one is not None]
        memory = [one for _, one in took if one is not None]
        rows.append(
            {
                "rule": rule,
                "jobs": len(own),
                "measured": len(seconds),
                "seconds": sum(seconds) if seconds else None,
                "memory": max(memory, default=None),
            }
        )
    return rows


def _measured(results: Path, graph: Graph) -> Iterator[tuple[Job, tuple[float | None, float | None]]]:
    """Every job below `results` that a benchmark tells of, with its seconds and megabytes."""
    once = {f"{stem}{BENCHMARK}": Job(rule) for rule, stem in ONCE.items()}
    for path in sorted(results.rglob(f"*{BENCHMARK}")):
        name = path.relative_to(results).as_posix()
        made = once.get(name) or _job(name.removesuffix(BENCHMARK), graph)
        with open(path, encoding="utf-8", newline="") as file:
            row = next(csv.DictReader(file, delimiter="\t"), {})
        if made:
            yield made, (_number(row.get("s")), _number(row.get("max_rss")))


def _number(written: str | None) -> float | None:
    """A number of a benchmark, where what was too short to be measured has none."""
    try:
        return float(written or "")
    except ValueError:
        return None


def _job(stem: str, graph: Graph) -> Job | None:
    for form in FORMS:
        try:
            job = job_of(f"<results>/{stem}.{form}", graph)
        except KeyError:  # of a task or corpus that the config no longer has
            return None
        if job:
            return job
    return None
