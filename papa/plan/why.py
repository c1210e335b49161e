"""Why a file has to be made: what differs from the nearest file that exists."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from papa.errors import count
from papa.files import KEYED, Record, read_provenance
from papa.plan.study import Plan
from papa.stages import AnyJob, HiddenStates, Report

Files = dict[str, list[Path]]
LISTED = 10
"""Most lines that are printed."""
COMPARED = 8
"""The number of files with the same name, or only another number, that a job is compared with, newest first."""
INPUTS = {
    "texts": "other texts",
    "labels": "other training labels",
    "model": "other files of the model",
}
"""The inputs that no job makes, and what is said if they differ."""


def reasons(plan: Plan) -> Iterator[str]:
    """Yield a line for each cause: what is made, and the setting or the column that differs from an existing file."""
    causes = Counter[tuple[str, str]]()
    files_in = cache(_files_in)
    for batch in plan.missing:
        if batch.rule not in (HiddenStates.stage, Report.stage):
            for job in batch.jobs:
                if why := reason(job, files_in):
                    causes[job.stage, why] += 1
    for (stage, why), number in list(causes.items())[:LISTED]:
        yield f"{stage}, {count(number, 'file')}: {why}."
    if len(causes) > LISTED:
        yield f"{count(len(causes) - LISTED, 'more cause')}."


def reason(job: AnyJob, files_in: Callable[[str], Files]) -> str:
    """Return what differs from the nearest existing file; empty if only its inputs are computed again."""
    by_name = files_in(os.path.dirname(job.output))
    alike = by_name.get(job.name) or by_name.get(_without_number(job.name), [])
    existing = filter(None, map(read_provenance, alike[:COMPARED]))
    differences = [_differences(job, made.record) for made in existing if made.record]
    nearest = min(differences or [["new"]], key=len)
    return ", ".join(nearest)


def _files_in(folder: str) -> Files:
    """Return the files of a stage by their names, with and without the number at the end, newest first."""
    by_name: Files = {}
    files = [file for file in Path(folder).glob("[!.]*") if KEYED.search(file.stem)]
    for file in sorted(files, key=os.path.getmtime, reverse=True):
        name = KEYED.sub("", file.stem)
        # a set, because a name without a number would be listed twice
        for each in {name, _without_number(name)}:
            by_name.setdefault(each, []).append(file)
    return by_name


def _without_number(name: str) -> str:
    return re.sub("-[0-9]+$", "", name)


def _differences(job: AnyJob, record: Record) -> list[str]:
    differences = list(_settings(record.settings, job.record.settings))
    if record.version != job.record.version:
        differences.append(f"version {record.version} of the stage → {job.record.version}")
    for name, words in INPUTS.items():
        if name in job.inputs and record.inputs.get(name) != job.inputs[name]:
            differences.append(words)
    return differences


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        before = old.get(name, "default")
        after = new.get(name, "default")
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _settings(before, after)
        elif before != after:
            # a seed is no replacement for another
            if name in ("seed", "sample"):
                yield f"another `{name}`"
            else:
                yield f"`{name}` {before} → {after}"
