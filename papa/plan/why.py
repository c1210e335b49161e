"""Why a file has to be made: what differs from the nearest file that exists."""

from __future__ import annotations

import operator
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from papa.errors import DamagedArtefact, count
from papa.files import KEYED, PathLike, Provenance, digest_of_json, read_provenance, read_table
from papa.plan.jobs import AnyJob, HiddenStates, Report, Tokenize
from papa.plan.study import TEXT_COLUMNS, Plan

Files = dict[str, list[Path]]
LISTED = 10
"""Most lines that are printed."""
COMPARED = 8
"""The number of files with the same name, or only another number, that a job is compared with, newest first."""
CORPUS_INPUTS = {"texts": "text", "labels": "training label"}
"""The inputs that come from tables of corpora, and what one of their values is."""


def reasons(plan: Plan) -> Iterator[str]:
    """Yield a line for each cause: what is made, and the setting or the column that differs from an existing file."""
    causes, listed = Counter[tuple[str, str]](), dict[str, Files]()
    for batch in plan.missing:
        if batch.rule not in (HiddenStates.stage, Report.stage):
            for job in batch.jobs:
                if why := reason(plan, job, listed):
                    causes[job.stage, why] += 1
    for (stage, why), number in list(causes.items())[:LISTED]:
        yield f"{stage}, {count(number, 'file')}: {why}."
    if len(causes) > LISTED:
        yield f"{count(len(causes) - LISTED, 'more cause')}."


def reason(plan: Plan, job: AnyJob, listed: dict[str, Files]) -> str:
    """Return what differs from the nearest existing file; empty if only its inputs are computed again."""
    by_name = listed.get(job.folder) or listed.setdefault(job.folder, _files_in(job.folder))
    alike = by_name.get(job.name) or by_name.get(_without_number(job.name), [])
    existing = [made for path in alike[:COMPARED] if (made := read_provenance(path)) and made.record]
    if not existing:
        return "new"
    differences = sorted((_differences(plan, job, made) for made in existing), key=len)
    return ", ".join(differences[0])


def _files_in(folder: str) -> Files:
    """Return the files of a stage by their names, with and without the number at the end, newest first."""
    by_name: Files = {}
    files = [file for file in Path(folder).glob("[!.]*") if KEYED.search(file.stem)]
    for file in sorted(files, key=os.path.getmtime, reverse=True):
        name = KEYED.sub("", file.stem)
        for each in {name, _without_number(name)}:
            by_name.setdefault(each, []).append(file)
    return by_name


def _without_number(name: str) -> str:
    return re.sub("-[0-9]+$", "", name)


def _differences(plan: Plan, job: AnyJob, made: Provenance) -> list[str]:
    record = made.record
    if record is None:
        return []
    differences = list(_settings(record.settings, job.record.settings))
    if record.version != job.record.version:
        differences.append(f"version {record.version} of the stage → {job.record.version}")
    for name, thing in CORPUS_INPUTS.items():
        if name in job.inputs and record.inputs.get(name) != job.inputs[name]:
            changed = _changed(plan, job, name, record.inputs.get(name, ""))
            differences.append(count(changed, thing) if changed else f"other {thing}s")
    if job.inputs.get("model") != record.inputs.get("model"):
        differences.append("other files of the model")
    return differences


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _settings(before, after)
        elif before != after:
            yield f"`{name}` {'default' if before is None else before} → {'default' if after is None else after}"


def _changed(plan: Plan, job: AnyJob, name: str, digest: str) -> int:
    """Return how many values differ from those with another digest, if a table with that digest is in the cache.

    Only rows of equal place are compared, so if rows were added or removed, the result is 0.
    """
    part = "all" if job.stage == Tokenize.stage else "train"
    columns = [f"label {job.about['task']}"] if name == "labels" else list(TEXT_COLUMNS)
    new = plan.data(job.about["corpus"]).path
    for old in (plan.cache / "data").glob("*.parquet"):
        made = read_provenance(old)
        digests = made.facts["digests"][part] if made else {}
        known = [column for column in columns if column in digests] if name == "texts" else [*digests]
        same = digest_of_json({column: digests[column] for column in known}) == digest
        read = known if name == "texts" and same else [column for column in known if digests[column] == digest][:1]
        if read and os.path.exists(new):
            others = [column for column in columns if column in read or name == "labels"]
            with suppress(DamagedArtefact):  # the number is no reason to stop a run
                return _unlike(old, read, new, others, part)
    return 0


def _unlike(old: PathLike, columns: Sequence[str], new: PathLike, others: Sequence[str], part: str) -> int:
    rows = []
    for path, names in ((old, columns), (new, others)):
        table = read_table(path).select(["split", *names]).to_pylist()
        rows.append([[row[name] for name in names] for row in table if part == "all" or row["split"] == part])
    return sum(map(operator.ne, *rows)) if len(rows[0]) == len(rows[1]) else 0
