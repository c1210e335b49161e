"""`papa plan`: the jobs, time and disk space of a run, and the smallest margin that it can show.

Time is that of one batch, which is measured here, times the number of passes. Earlier results are ignored.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console

from papa.config.margin import margin_for
from papa.config.measures import METRICS, frequent_class, positive_class
from papa.config.settings import Config, budget_on
from papa.config.variant import Constant
from papa.data.hub import HOW_TO_FETCH
from papa.data.packed import Packed
from papa.data.prepare import texts_in
from papa.data.tokenize import check_tokenizer, is_decoder, sizes_of_model
from papa.data.weights import float32_bytes
from papa.errors import WARNING, InputError, count, format_bytes, format_duration
from papa.method.token_prediction import LOGITS_AT_ONCE
from papa.model.load import model_of
from papa.plan.study import Plan
from papa.plan.why import reasons
from papa.results.statistics import UNSEEN_UNITS, smallest_margin
from papa.results.table import Row, Table, printable
from papa.stages import (
    AnyJob,
    Average,
    HiddenStates,
    JobBatch,
    LearnLambda,
    Probe,
    ProbeEncoder,
    Report,
    Tokenize,
)

MB = 10**6
TOKENS_PER_WORD = 1.3
SPECIAL_TOKENS_PER_TEXT = 3
"""Mean number of tokens per English word, and number of tokens that a model adds to a text."""
PROCESS_BYTES = 600 * MB
LIGHT_BYTES = 1_000 * MB
"""Memory of a process with torch and transformers, and of one that runs no model."""
STATES_KEPT = 14
MAPS_KEPT = 3
"""Sizes of tensors of one layer: as hidden states per token, and as rows of attention per token and head."""
LONG_SECONDS = 600
SMALLER = (
    "To make it smaller, use fewer rows (`train_limit` of a corpus), `floors`, `run.fractions` or `run.seeds`; or, "
    "for probes, `resamples: 0`: half as many or fewer are trained; intervals leave out the choice of training rows."
)
"""How to make a study smaller, which is printed if it takes at least `LONG_SECONDS`."""
START_SECONDS = 10  # startup time of a job
BACKWARD = 3  # cost of a pass with gradients, in passes without
PROBE_SHARE = 0.15  # cost of an epoch of a probe on stored hidden states, in passes of the model
POWER = 0.8
"""Statistical power: if nothing is lost, the probability that the upper bound is below the smallest margin."""
SEED_SPREAD = 0.005
DISCORDANT_SHARE = 0.05
CONTRIBUTION = 0.2
"""Assumed: the standard deviation of score differences over seeds, the share of examples whose outcome changes if heads
are replaced, and attention's contribution; all as shares of the score's range."""
ASSUMED = (
    "Assumed, not measured: over probe seeds, score differences from the original have a standard deviation of "
    f"{SEED_SPREAD:g} of the score's range; replacing heads changes the outcome of {100 * DISCORDANT_SHARE:g}% of "
    f"examples; attention contributes {CONTRIBUTION:g} of the range; a cluster counts as one example; the choice of "
    "training rows adds no variance."
)
UNFIT = {
    True: "its config lists no architecture that predicts next tokens, which task {task} needs ({metric}).",
    False: "it is a decoder, which cannot predict the masked tokens of task {task}; use the metric log_likelihood.",
}
"""Reasons why a model does not fit a task, by whether the task needs a decoder."""


NEEDS = {
    "jobs": "sum",
    "unknown": "sum",
    "seconds": "sum",
    "disk_mb": "sum",
    "memory_mb": "max",
}
"""Numbers of each stage, and how those of its jobs are combined.

`unknown` jobs were not estimated, because a model or a corpus is not on this machine. `memory_mb` is that of one job.
"""


def plan(config: Config, cores: int) -> Row:
    """Estimate the needs of the jobs that have to run, in plain values.

    `problems` lists why something cannot run or be estimated. `smallest_margins` has, for each task, the smallest
    margin that it can show, as a share and in units of the score, or the reason `why` there is none.

    Args:
        config: a checked config.
        cores: number of cores that the workflow may use.
    """
    results = Path("results", config.name)
    problems = []
    folder = next(folder for folder in results.absolute().parents if folder.exists())
    # a run would read the same tables
    study = Plan(config, results, save=os.access(folder, os.W_OK))

    @cache
    def rate(model: str, length: int, slots: int) -> float | None:
        try:
            return _tokens_per_second(study, model, length, slots)
        except InputError as error:  # for example, a login node has no GPU
            problems.append(f"Model {model} was not timed: {error}")
            return None

    for name in config.corpora_run:
        if not study.data(name).facts["rows"]:
            problems.append(f"Corpus {name} is not on this machine; {HOW_TO_FETCH}.")
    problems += _misfits(study)
    batches = pd.DataFrame(_needs(study, batch, rate) for batch in study.missing)
    batches = batches.reindex(
        columns=["stage", *NEEDS, "threads", "runs_encoder"]
    )  # there may be none
    stages = batches.groupby("stage", sort=False).agg(NEEDS).reset_index().to_dict("records")
    total: Row = {"stage": "total"}
    for name, combination in NEEDS.items():
        numbers = [stage[name] for stage in stages]
        total[name] = sum(numbers) if combination == "sum" else max(numbers, default=0.0)
    seconds = batches["seconds"]
    # snakemake gives no job more threads than there are cores
    elapsed = (seconds * batches["threads"].clip(upper=cores)).sum() / cores
    if config.device.startswith("cuda"):
        # jobs that share a GPU run one after the other, however many cores there are
        elapsed = max(elapsed, (seconds * batches["runs_encoder"]).sum())
    free = shutil.disk_usage(folder).free
    problems += _lack_of_disk(config, batches, cores, free)
    return {
        "config": config.name,
        "problems": list(dict.fromkeys(problems)),
        "why": list(reasons(study)),
        "stages": stages,
        "total": total,
        "elapsed_seconds": float(elapsed),
        "cores": cores,
        "device": config.device,
        "free_disk_bytes": free,
        "margin": list(config.margin),
        "metrics": _metrics(study),
        "smallest_margins": [_smallest_margin(study, name) for name in _tasks(study)],
    }


def _lack_of_disk(config: Config, batches: pd.DataFrame, cores: int, free: int) -> Iterator[str]:
    """Yield a sentence if the files of these batches are larger than the `free` bytes of the disk."""
    needed = batches["disk_mb"].sum()
    remedy = ", or set `keep_hidden_states: false`"
    if not config.keep_hidden_states:  # about one batch of states for each job that runs
        at_once = max(cores // config.threads, 1)
        states = batches.loc[batches["stage"].eq(HiddenStates.stage), "disk_mb"]
        needed += states.nlargest(at_once).sum() - states.sum()
        # with one job at a time, fewer cores would change nothing
        remedy = ", or use fewer cores" if at_once > 1 and len(states) > 1 else ""
    if needed * MB > free:
        missing = f"The disk is too small by {format_bytes(needed * MB - free)}"
        yield f"{missing}: put results/ on a larger disk, or lower `train_limit`{remedy}."


def print_plan(estimates: Row, out: Console) -> None:
    """Print a plan: problems, a table of the stages, the total, and the smallest margins."""
    for problem in estimates["problems"]:
        out.print(printable(problem), style="bold red")
    total = estimates["total"]
    if not total["jobs"]:
        finished = f"Every file of the study {estimates['config']} exists, so nothing has to run."
        out.print(finished, style="bold")
    else:
        stages = pd.DataFrame(estimates["stages"])
        unestimated = stages["unknown"].map(
            lambda number: f" ({number:,} unknown)" if number else ""
        )
        cells = {
            "jobs": stages["jobs"].map("{:,}".format) + unestimated,
            "time, one job at a time": stages["seconds"].map(format_duration),
            "disk": stages["disk_mb"].map(lambda size: format_bytes(size * MB) if size else ""),
            "memory of a job": stages["memory_mb"].map(lambda size: format_bytes(size * MB)),
        }
        Table("", stages[["stage"]].assign(**cells), 1).print(out)
        unknown = f", {total['unknown']:,} of unknown size" if total["unknown"] else ""
        out.print(
            f"\n{count(total['jobs'], 'job')}{unknown}: about {format_duration(estimates['elapsed_seconds'])} on "
            f"{count(estimates['cores'], 'core')} (device {estimates['device']}) and "
            f"{format_bytes(total['disk_mb'] * MB)} of disk space ({format_bytes(estimates['free_disk_bytes'])} free). "
            "One batch was timed.",
            style="bold",
        )
        if estimates["elapsed_seconds"] >= LONG_SECONDS:
            out.print(SMALLER)
    for sentence in (*estimates["why"], *estimates["metrics"], *_describe_margins(estimates)):
        out.print(printable(sentence))


def _needs(study: Plan, batch: JobBatch, rate: Callable[[str, int, int], float | None]) -> Row:
    """Return the stage of a batch, `NEEDS`, its threads, and whether it runs a model; `rate` times a model."""
    needs = {
        "stage": batch.rule,
        "jobs": 1,
        "unknown": 0,
        "seconds": float(START_SECONDS),
        "disk_mb": 0.0,
        "memory_mb": LIGHT_BYTES / MB,
    }
    if batch.rule in (Tokenize.stage, Report.stage):
        return needs | {"threads": 1, "runs_encoder": False}
    job = batch.jobs[0]
    number, length = _tokens_of(study, job)
    speed = None
    if number:
        needs["disk_mb"] = sum(_disk(study, each, number) for each in batch.jobs) / MB
        needs["memory_mb"] = _memory(study, job, length) / MB
        speed = rate(job.about["model"], length, _slots_of(study, job))
    if speed:
        needs["seconds"] = START_SECONDS + _passes(batch) * number / speed
    needs["unknown"] = int(speed is None)
    return needs | {"threads": study.config.threads, "runs_encoder": job.settings.runs_encoder}


def _tokens_of(study: Plan, job: AnyJob) -> tuple[int, int]:
    """Return the number of tokens of a job's corpus, and the mean number per text; 0 if nothing is known about it."""
    facts = study.data(job.about["corpus"]).facts
    slots = _slots_of(study, job)
    rows = sum(facts["rows"].values())
    number = sum(
        facts["rows"][split] * min(size["words"] * TOKENS_PER_WORD + SPECIAL_TOKENS_PER_TEXT, slots)
        for split, size in facts["sizes"].items()
    )
    known = bool(_sizes(study, job.about["model"]))
    return round(number) * known, max(round(number / max(rows, 1)), 1)


def _slots_of(study: Plan, job: AnyJob) -> int:
    """Return the number of slots of a job's corpus."""
    return study.config.corpora[job.about["corpus"]].slots or job.about["slots"]


def _sizes(study: Plan, model: str) -> dict[str, int]:
    """Return the sizes of a model; empty if it is not on this machine, or `_misfits` says why it cannot be used."""
    folder = study.model(model).folder
    try:
        return sizes_of_model(folder, model) if folder else {}
    except InputError:
        return {}


def _passes(batch: JobBatch) -> float:
    """Return the cost of a batch in passes of the model over all texts of its corpus."""
    match batch.jobs[0].settings:
        case LearnLambda(weights="lambda", training=training):
            return BACKWARD * training.epochs
        case LearnLambda():
            return BACKWARD
        case ProbeEncoder(training=training):
            trained = batch.jobs[0].variant.trained
            return max(len(batch.jobs) * training.epochs, 1) * (BACKWARD if trained else 1)
        case Probe(training=training):
            return PROBE_SHARE * len(batch.jobs) * training.epochs
    return len(batch.jobs)


def _disk(study: Plan, job: AnyJob, tokens: float) -> float:
    """Return the bytes of hidden states (float16) and of averages (a sum in float64 and a mean in float32)."""
    sizes = _sizes(study, job.about["model"])
    if sizes and isinstance(job.settings, HiddenStates):
        return 2 * (sizes["layers"] + 1) * sizes["hidden"] * tokens
    if sizes and isinstance(job.settings, Average):
        slots = job.about["slots"]
        outputs = job.settings.kind == "mean-output"
        per_slot = sizes["hidden"] if outputs else sizes["heads"] * slots
        return float(12 * sizes["layers"] * slots * per_slot)
    return 0


def _memory(study: Plan, job: AnyJob, length: int) -> float:
    """Return the peak memory of a job on a CPU, in bytes, for texts with a mean `length` in tokens."""
    settings = job.settings
    if not settings.runs_encoder:
        return LIGHT_BYTES
    model = job.about["model"]
    sizes = _sizes(study, model)
    needed = float(PROCESS_BYTES + float32_bytes(study.model(model).folder, model))
    tokens = budget_on("cpu", study.config.token_budget)
    layers = 1
    logits = 1
    if isinstance(settings, Average):
        needed += _disk(study, job, 0)
    if isinstance(settings, LearnLambda):  # gradients need the tensors of all layers
        tokens = settings.training.batch_size * length
        layers = sizes["layers"]
        logits = 3
    target = getattr(settings, "target", None)
    if target is not None and not target.probed:  # the model's own head predicts
        needed += 4 * logits * LOGITS_AT_ONCE
        tokens = min(tokens, LOGITS_AT_ONCE // sizes["vocabulary"])
    per_token = STATES_KEPT * sizes["hidden"] + 4 * sizes["intermediate"]
    per_token += MAPS_KEPT * sizes["heads"] * _slots_of(study, job)
    return needed + 4 * layers * tokens * per_token


def _tokens_per_second(study: Plan, model: str, length: int, slots: int) -> float:
    """Time a model on one batch of texts of this length; some models also compute their unused slots."""
    config = study.config
    torch.set_num_threads(config.threads)
    corpus = next(config.tasks[task].corpus for name, task in config.pairs if name == model)
    averages = study.average(model, corpus, Constant("average"))
    if averages is None:
        raise RuntimeError("averages need texts")
    loaded = model_of(averages)
    per_text = slots if loaded.form.padded else length  # padded texts are computed whole
    texts = max(budget_on(config.device, config.token_budget) // per_text, 1)
    # any tokens will do, because time does not depend on them
    ids = (torch.arange(texts * length) % _sizes(study, model)["vocabulary"]).view(texts, length)
    used = torch.arange(length).repeat(texts)
    row = ids.flatten()
    lengths = torch.full((texts,), length)
    packed = Packed(row, used, torch.zeros_like(row), lengths, max(slots, length)).to(loaded.device)
    for _ in range(2):  # the first pass allocates memory
        begin = time.perf_counter()
        with torch.inference_mode():
            float(loaded.run(packed)[-1].sum())  # a GPU is done when it gives a number
        seconds = time.perf_counter() - begin
    return texts * length / seconds


def _misfits(study: Plan) -> Iterator[str]:
    """Yield a sentence for each model that does not fit a task, or whose tokenizer cannot lay out its texts."""
    for name, task_name in study.config.pairs:
        task = study.config.tasks[task_name]
        files = study.model(name)
        if not files.folder:
            yield f"Model {name} is not on this machine; {HOW_TO_FETCH}."
            continue
        needed = task.target.decoder
        corpus = study.config.corpora[task.corpus]
        try:
            if needed is not None and needed != is_decoder(files.folder, name):
                yield f"Model {name}: {UNFIT[needed].format(task=task_name, metric=task.metric)}"
            texts = texts_in(table) if os.path.exists(table := study.data(task.corpus).path) else ()
            check_tokenizer(files.folder, name, corpus.slots or 0, corpus.words is not None, texts)
        except InputError as error:
            yield f"Model {name}: {error}"


def _metrics(study: Plan) -> list[str]:
    """Return a sentence about each metric that scores one class only."""
    sentences = []
    for name in _tasks(study):
        task = study.config.tasks[name]
        labels = study.data(task.corpus).facts["labels"].get(name)
        if not labels or not (positive := positive_class(task.metric, labels["names"])):
            continue
        sentence = f"{study.config.titles[name]}: {METRICS[task.metric].title} of {positive}."
        doubt = frequent_class(task.metric, labels["names"], labels["train_counts"])
        sentences.append(f"{sentence} {WARNING}{doubt}" if doubt and not task.labels else sentence)
    return sentences


def _tasks(study: Plan) -> list[str]:
    return list(dict.fromkeys(task for _, task in study.config.pairs))


def _smallest_margin(study: Plan, name: str) -> Row:
    """Return the smallest margins of a task, or the reason why it has none."""
    config = study.config
    task = study.config.tasks[name]
    variants = (study.variants(model, paired) for model, paired in config.pairs if paired == name)
    seeds = min(len(seeds) for of_model in variants for seeds in of_model.values())
    facts = study.data(task.corpus).facts
    examples = facts["rows"].get("validation", 0)
    margin = margin_for(config.margin, task.metric)
    about: Row = {
        "title": config.titles[name],
        "seeds": seeds if task.target.probed else None,
        "examples": examples,
    } | dict.fromkeys(("smallest", "in_score", "unlikely", "why"))
    if not config.floors and not margin.in_points:
        return about | {"why": "without `floors` no reliance is measured"}
    if task.target.probed and seeds == 1:
        return about | {"why": "one seed shows nothing; use at least two"}
    if METRICS[task.metric].log_scaled:
        return about | {"why": "the score has no upper limit"}
    if not examples or config.corpora[task.corpus].blocks:
        return about | {"why": "the number of validation examples is not known"}
    # examples of a cluster are not independent, so they count as fewer
    rows = examples / facts["sizes"]["validation"]["design_effect"]
    spread = SEED_SPREAD if task.target.probed else 0.0
    # the difference of two scores includes `UNSEEN_UNITS` twice, once per score
    error = math.sqrt((DISCORDANT_SHARE + 2 * UNSEEN_UNITS / rows) / rows)
    in_score = smallest_margin(seeds, spread, error, POWER)
    share = in_score / CONTRIBUTION
    unlikely = (in_score if margin.in_points else share) >= margin.size
    return about | {"smallest": share, "in_score": in_score, "unlikely": unlikely}


def _describe_margins(estimates: Row) -> list[str]:
    """Describe the smallest margins of a plan in sentences."""
    sentences = []
    known = []
    without = dict[str, list[str]]()
    for entry in estimates["smallest_margins"]:
        if entry["why"]:
            without.setdefault(entry["why"], []).append(entry["title"])
            continue
        seeds = f"{count(entry['seeds'], 'seed')}, " if entry["seeds"] else ""
        points = math.ceil(1000 * entry["in_score"]) / 10
        share = math.ceil(100 * entry["smallest"])
        size = f"{points} points or {share}%"
        rows = f"{seeds}{count(entry['examples'], 'example')}"
        known.append(f"{entry['title']} {size} ({rows})")
    if known:
        shown = f"Smallest margin that can be shown with {100 * POWER:.0f}% power if nothing is lost, in points and as"
        sentences += [f"{shown} a share of attention's contribution: {', '.join(known)}.", ASSUMED]
    sentences += [
        f"No smallest margin is estimated for {', '.join(titles)}: {why}."
        for why, titles in without.items()
    ]
    unlikely = [entry["title"] for entry in estimates["smallest_margins"] if entry["unlikely"]]
    if unlikely:
        margin = f"A margin of {' or '.join(estimates['margin'])}"
        sentences.append(
            f"{margin} is unlikely for {', '.join(unlikely)}: add examples, or seeds if there are few."
        )
    return sentences
