"""What a config will take before it is run: jobs, time, memory and disk of each stage, all counted from the start."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from papa.config.settings import Config, Corpus, Machine
from papa.config.stages import HiddenOf, ModelId, TextsOf
from papa.config.study import Job, Study
from papa.errors import InputError, count
from papa.files import footer_of
from papa.jobs.resources import START_SECONDS, Sizes, disk, duration, memory_of, seconds, size, sizes_of

if TYPE_CHECKING:
    from rich.console import Console

    from papa.data.readers import Rows

MB = 10**6
SAMPLE = 2000
"""Rows of a split whose words are counted."""
TOKENS_OF_A_WORD, SPECIAL_TOKENS = 1.3, 3
READ_AT = 1e5
"""Bytes of texts that are read in a second."""
Found = dict[str, Any]


def plan(config: Config, cores: int) -> Found:
    """What the jobs of a config take, as plain values; problems name what will not run, or could not be estimated.

    Args:
        config: a checked config.
        cores: cores that the workflow is to have.
    """
    os.environ[Machine.VARIABLE] = json.dumps(asdict(config.machine))
    study = Study(config, Path("results", config.name))
    problems, sizes = _sizes(study)
    jobs, stages = study.jobs(), dict[str, Found]()
    taken, depth = dict[Job[Any], float](), dict[Job[Any], int]()
    for job in jobs:  # inputs stand before what is made of them
        depth[job] = 1 + max((depth[needed] for needed in job.needed), default=0)
        own, known = _sizes_of(job, sizes)
        taken[job] = _seconds(job, config, own, study.threads(job)) if known else 0.0
        empty = {"stage": job.rule, "jobs": 0, "sized": 0, "unknown": 0, "seconds": 0.0, "memory_mb": 0, "disk_mb": 0}
        stage = stages.setdefault(job.rule, empty)
        stage["jobs"] += 1
        stage["sized"] += own is not None
        stage["unknown"] += not known
        stage["seconds"] += taken[job]
        stage["memory_mb"] = max(stage["memory_mb"], memory_of(job, config, own) if known else 0)
        stage["disk_mb"] += disk(job, own) if known else 0
    place = {job.rule: depth[job] for job in sorted(jobs, key=lambda job: depth[job])}
    total = {
        key: sum(stage[key] for stage in stages.values()) for key in ("jobs", "sized", "unknown", "seconds", "disk_mb")
    }
    folder = next(folder for folder in study.results.absolute().parents if folder.exists())
    free = shutil.disk_usage(folder).free
    if total["disk_mb"] * MB > free:
        stored = {job.wildcards["owner"] for job in jobs if isinstance(job.settings, HiddenOf)}
        tasks = [name for name, task in config.tasks.items() if {f"corpora/{task.corpus}", f"tasks/{name}"} & stored]
        problems.append(
            f"The disk is too small by {size(total['disk_mb'] * MB - free)}: put results on a larger one, lower "
            f"train_limit, or set `features: stream` for {', '.join(tasks)}."
        )
    return {
        "config": config.name,
        "problems": problems,
        "stages": sorted(stages.values(), key=lambda stage: place[stage["stage"]]),
        "total": total | {"elapsed_seconds": _elapsed(study, jobs, taken, cores)},
        "cores": cores,
        "device": config.device,
        "free_disk_bytes": free,
    }


def print_plan(found: Found, out: Console) -> None:
    """Print a plan: problems, a table of the stages, and the total."""
    import pandas as pd

    from papa.results.table import Table, printable

    for problem in found["problems"]:
        out.print(printable(problem), style="bold red")
    if found["problems"]:
        out.print()
    rows = [
        {
            "stage": stage["stage"],
            "jobs": f"{stage['jobs']:,}" + (f" ({stage['unknown']:,} unknown)" if stage["unknown"] else ""),
            "time": duration(stage["seconds"]) if stage["seconds"] else "?",
            "memory of a job": size(stage["memory_mb"] * MB) if stage["memory_mb"] else "?",
            "disk": size(stage["disk_mb"] * MB) if stage["disk_mb"] else "?",
        }
        for stage in found["stages"]
    ]
    Table("", pd.DataFrame(rows), 1).print(out)
    total = found["total"]
    unknown = f", {total['unknown']:,} of unknown size" if total["unknown"] else ""
    out.print(
        f"\n{count(total['jobs'], 'job')}{unknown}: at most about {duration(total['elapsed_seconds'])} on "
        f"{count(found['cores'], 'core')} (device {found['device']}) and {size(total['disk_mb'] * MB)} of disk "
        f"({size(found['free_disk_bytes'])} are free).",
        style="bold",
    )


def _sizes(study: Study) -> tuple[list[str], dict[tuple[str, str], Sizes | None]]:
    """Problems of models and corpora, and the sizes of each model and laid-out corpus; None if they are not known."""
    config = study.config
    problems, models, corpora = list[str](), dict[str, dict[str, int]](), dict[str, dict[str, tuple[int, float]]]()
    for model in dict.fromkeys(model for model, _ in config.pairs):
        given = config.models[model]
        try:
            models[model] = _of_model(ModelId(name=model, hub=given.hub, revision=given.revision, random=given.random))
        except InputError as error:
            problems.append(f"Model {model}: {error}")
    for corpus in config.corpora_run:
        try:
            corpora[corpus] = _counted(config.corpora[corpus], study.results / study.path("texts", corpus=corpus))
        except InputError as error:
            problems.append(f"Corpus {corpus}: {error}")
    sizes: dict[tuple[str, str], Sizes | None] = {}
    laid_out = {job.wildcards["laid_out"] for job in study.jobs() if job.rule == "tokenize"}
    for model, layout in product(models, laid_out):
        corpus, _, slots = layout.partition("/slots-")
        there = study.results / study.path("tokens", model=model, laid_out=layout)
        if there.exists() and (known := sizes_of(there)):
            sizes[model, layout] = known
        elif corpus in corpora:
            own = config.corpora[corpus]
            sizes[model, layout] = _laid_out(models[model], corpora[corpus], int(slots or own.slots or 0), own.blocks)
    return problems, sizes


def _of_model(model: ModelId) -> dict[str, int]:
    """The sizes of a model; raises `InputError` if it is not to be had, or its attention is not supported."""
    from papa.data.tokenize import sizes_of_model
    from papa.data.weights import place_of
    from papa.model.families import FAMILIES

    sizes, config = sizes_of_model(model), Path(place_of(model), "config.json")
    kind = json.loads(config.read_text(encoding="utf-8")).get("model_type") if config.is_file() else None
    if kind is not None and kind not in FAMILIES:
        known = ", ".join(sorted(family.name for family in FAMILIES.values()))
        raise InputError(f"its type is {kind}, whose attention is not supported; supported are {known}.")
    return sizes


def _counted(corpus: Corpus, texts: Path) -> dict[str, tuple[int, float]]:
    """Rows of each split of a corpus, and words of a row on average; raises `InputError` if that is not known here."""
    from papa.data.sources import load_rows

    if corpus.hub is not None and Machine.current().hub_mirror is None and not texts.exists():
        raise InputError(
            f"how large {corpus.hub} is will be known when it is prepared (snakemake --until prepare_texts); its jobs "
            "are counted, and not estimated."
        )
    rows = footer_of(texts)[0]["rows"] if texts.exists() else {}
    found = {}
    for split in corpus.splits:
        own = load_rows(corpus, split)
        number = rows.get(split, own.table.num_rows)
        if split == "train" and corpus.train_limit is not None:
            number = min(number, corpus.train_limit)
        found[split] = (number, _words(corpus, own))
    return found


def _words(corpus: Corpus, rows: Rows) -> float:
    """Words of a row on average, in its first rows."""
    names = [name for name in (corpus.first, corpus.second, corpus.words) if name is not None]
    for name in names:
        if name not in rows.names:
            raise InputError(f"it has no column {name!r}; its columns are {', '.join(rows.names)}.")
    first = rows.table.slice(0, SAMPLE).select(names).to_pylist()
    return fmean(
        sum(len(text if isinstance(text, list) else str(text).split()) for text in row.values()) for row in first
    )


def _laid_out(model: Mapping[str, int], splits: Mapping[str, tuple[int, float]], slots: int, blocks: bool) -> Sizes:
    """The sizes of a corpus in so many slots, from its rows and words."""
    examples, tokens = dict[str, int](), 0.0
    for split, (rows, words) in splits.items():
        each = words * TOKENS_OF_A_WORD + (0 if blocks else SPECIAL_TOKENS)
        examples[split] = max(1, round(rows * each / slots)) if blocks else rows
        tokens += rows * each if blocks else rows * min(each, slots)
    scored = max((number for split, number in examples.items() if split != "train"), default=0)
    return Sizes(**model, slots=slots, examples=sum(examples.values()), tokens=round(tokens), scored=scored)


def _sizes_of(job: Job[Any], sizes: Mapping[tuple[str, str], Sizes | None]) -> tuple[Sizes | None, bool]:
    """The sizes of the laid-out corpus that a job reads, and whether what it takes is known."""
    source = job.needs["parts"][0] if "parts" in job.needs else job
    for needed in source.needs.get("tokens", ()):
        own = sizes.get((needed.wildcards["model"], needed.wildcards["laid_out"]))
        return own, own is not None
    return None, True


def _seconds(job: Job[Any], config: Config, sizes: Sizes | None, threads: int) -> float:
    read = [own.settings for own in (job, *job.needs.get("texts", ())) if isinstance(own.settings, TextsOf)]
    files = [path for told in read for _, path in told.corpus.files or () if path and os.path.isfile(path)]
    return seconds(job, config, sizes, threads) + sum(os.path.getsize(path) for path in files) / READ_AT


def _elapsed(study: Study, jobs: list[Job[Any]], taken: Mapping[Job[Any], float], cores: int) -> float:
    """Seconds by the clock: all cores busy, but no shorter than the longest chain of jobs, or the jobs of one GPU."""
    ends: dict[Job[Any], float] = {}
    for job in jobs:  # inputs stand before what is made of them
        ends[job] = taken[job] + max((ends[needed] for needed in job.needed), default=0.0)
    busy = sum(taken[job] * min(study.threads(job), cores) for job in jobs) / cores
    gpu = sum(taken[job] for job in jobs if job.settings.threads == "encoder") * study.config.device.startswith("cuda")
    return max(busy, gpu, max(ends.values(), default=START_SECONDS))
