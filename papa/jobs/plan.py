"""`papa plan`: the jobs, time and disk space of a run, and the smallest margin that it can show.

Time is that of one batch, which is measured here, times the number of passes. Earlier results are ignored.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from papa.config.measures import METRICS, frequent_class, positive_class
from papa.config.settings import Config, budget_on
from papa.config.variant import Constant
from papa.data.hub import HOW_TO_FETCH
from papa.data.prepare import texts_in
from papa.errors import WARNING, InputError, count, format_bytes, format_duration
from papa.plan.jobs import AnyJob, Average, HiddenStates, LearnLambda, Probe, ProbeEncoder, Report, Tokenize
from papa.plan.study import JobGroup, Plan
from papa.plan.why import reasons

if TYPE_CHECKING:
    from rich.console import Console

MB = 10**6
TOKENS_PER_WORD, SPECIAL_TOKENS_PER_TEXT = 1.3, 3
"""Mean number of tokens per English word, and number of tokens that a model adds to a text."""
START_SECONDS = 10  # startup time of a job
BACKWARD = 3  # cost of a pass with gradients, in passes without
PROBE_SHARE = 0.1  # cost of an epoch of a probe on stored hidden states, in passes of the model
POWER = 0.8
"""Statistical power: if the true loss is 0, the probability that its upper bound is below the smallest margin."""
SEED_SPREAD, DISCORDANT_SHARE, CONTRIBUTION = 0.005, 0.05, 0.2
"""Assumed: the standard deviation of score differences over seeds, the share of examples whose outcome changes if heads
are replaced, and attention's contribution; all as shares of the score's range."""
ASSUMED = (
    "Assumed, not measured: over probe seeds, score differences from the original have a standard deviation of "
    f"{SEED_SPREAD:g} of the score's range; replacing heads changes the outcome of {100 * DISCORDANT_SHARE:g} % of "
    f"examples; attention contributes {CONTRIBUTION:g} of the range; a cluster counts as one example."
)
UNFIT = {
    True: "its config lists no architecture that predicts next tokens, which task {task} needs ({metric}).",
    False: "it is a decoder, which cannot predict the masked tokens of task {task}; use the metric log_likelihood.",
}
"""Reasons why a model does not fit a task, by whether the task needs a decoder."""


class Needs(TypedDict):
    """The needs of jobs; `unknown` of them were not estimated, because a model or a corpus is not on this machine."""

    stage: str
    jobs: int
    unknown: int
    seconds: float
    disk_mb: float


class SmallestMargin(TypedDict):
    """The smallest margin that a task can show, or the reason `why` there is none."""

    title: str
    seeds: int | None
    examples: int
    smallest: float | None
    why: str | None


class Estimates(TypedDict):
    """The return value of `plan`."""

    config: str
    problems: list[str]
    why: list[str]
    stages: list[Needs]
    total: Needs
    elapsed_seconds: float
    cores: int
    device: str
    free_disk_bytes: int
    margin: float
    metrics: list[str]
    smallest_margins: list[SmallestMargin]


def plan(config: Config, cores: int) -> Estimates:
    """Estimate the needs of the jobs that have to run; `problems` lists why something cannot run or be estimated.

    Args:
        config: a checked config.
        cores: number of cores that the workflow may use.
    """
    results, problems = Path("results", config.name), list[str]()
    folder = next(folder for folder in results.absolute().parents if folder.exists())
    study = Plan(config, results, save=os.access(folder, os.W_OK))  # a run would read the same tables

    @cache
    def rate(model: str, length: int) -> float | None:
        try:
            return _tokens_per_second(study, model, length)
        except InputError as error:  # for example, a login node has no GPU
            problems.append(f"Model {model} was not timed: {error}")
            return None

    for name in config.corpora_run:
        if not study.data(name).facts["rows"]:
            problems.append(f"Corpus {name} is not on this machine; {HOW_TO_FETCH}.")
    problems += _misfits(study)
    stages: dict[str, Needs] = {}
    total = Needs(stage="total", jobs=0, unknown=0, seconds=0.0, disk_mb=0.0)
    busy = on_gpu = 0.0
    for batch in study.missing:
        seconds, disk_mb, unknown = float(START_SECONDS), 0.0, 0
        settings = batch.jobs[0].settings
        if batch.rule not in (Tokenize.stage, Report.stage):
            about = batch.jobs[0].about
            number, length = _tokens_of(study, about)
            speed = rate(about["model"], length) if number else None
            disk_mb = sum(_disk(study, job, number) for job in batch.jobs) / MB if number else 0.0
            seconds, unknown = (seconds + _passes(batch) * number / speed, 0) if speed else (seconds, 1)
        needed = stages.setdefault(batch.rule, Needs(stage=batch.rule, jobs=0, unknown=0, seconds=0.0, disk_mb=0.0))
        for needs in (needed, total):
            needs["jobs"] += 1
            needs["unknown"] += unknown
            needs["seconds"] += seconds
            needs["disk_mb"] += disk_mb
        threads = config.threads if batch.rule not in (Tokenize.stage, Report.stage) else 1
        busy += seconds * min(threads, cores) / cores
        on_gpu += seconds * (settings.runs_encoder and config.device.startswith("cuda"))
    free = shutil.disk_usage(folder).free
    if total["disk_mb"] * MB > free:
        missing = format_bytes(total["disk_mb"] * MB - free)
        problems.append(
            f"The disk is too small by {missing}: put results/ on a larger disk, lower `train_limit`, or set "
            "`keep_hidden_states: false`."
        )
    return {
        "config": config.name,
        "problems": list(dict.fromkeys(problems)),
        "why": list(reasons(study)),
        "stages": list(stages.values()),
        "total": total,
        "elapsed_seconds": max(busy, on_gpu),
        "cores": cores,
        "device": config.device,
        "free_disk_bytes": free,
        "margin": config.margin,
        "metrics": _metrics(study),
        "smallest_margins": _smallest_margins(study),
    }


def print_plan(estimates: Estimates, out: Console) -> None:
    """Print a plan: problems, a table of the stages, the total, and the smallest margins."""
    import pandas as pd

    from papa.results.table import Table, printable

    for problem in estimates["problems"]:
        out.print(printable(problem), style="bold red")
    total = estimates["total"]
    if not total["jobs"]:
        out.print(f"Every file of the study {estimates['config']} exists, so nothing has to run.", style="bold")
    else:
        rows = [
            {
                "stage": stage["stage"],
                "jobs": f"{stage['jobs']:,}" + (f" ({stage['unknown']:,} unknown)" if stage["unknown"] else ""),
                "time": format_duration(stage["seconds"]),
                "disk": format_bytes(stage["disk_mb"] * MB) if stage["disk_mb"] else "",
            }
            for stage in estimates["stages"]
        ]
        Table("", pd.DataFrame(rows), 1).print(out)
        unknown = f", {total['unknown']:,} of unknown size" if total["unknown"] else ""
        out.print(
            f"\n{count(total['jobs'], 'job')}{unknown}: about {format_duration(estimates['elapsed_seconds'])} on "
            f"{count(estimates['cores'], 'core')} (device {estimates['device']}) and "
            f"{format_bytes(total['disk_mb'] * MB)} of disk space ({format_bytes(estimates['free_disk_bytes'])} free). "
            "One batch was timed.",
            style="bold",
        )
    for sentence in (*estimates["why"], *estimates["metrics"], *describe_margins(estimates)):
        out.print(printable(sentence))


def _tokens_of(study: Plan, about: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of tokens of a job's corpus, and the mean number per text; 0 if nothing is known about it."""
    facts, slots = study.data(about["corpus"]).facts, study.config.corpora[about["corpus"]].slots or about["slots"]
    rows = sum(facts["rows"].values())
    words = {split: size["words"] * TOKENS_PER_WORD + SPECIAL_TOKENS_PER_TEXT for split, size in facts["sizes"].items()}
    number = sum(facts["rows"][split] * min(length, slots) for split, length in words.items())
    known = bool(_sizes(study, about["model"]))
    return round(number) * known, max(round(number / max(rows, 1)), 1)


def _sizes(study: Plan, model: str) -> dict[str, int]:
    """Return the sizes of a model; empty if it is not on this machine, or `_misfits` says why it cannot be used."""
    from papa.data.tokenize import sizes_of_model

    folder = study.model(model).folder
    try:
        return sizes_of_model(folder, model) if folder else {}
    except InputError:
        return {}


def _passes(batch: JobGroup) -> float:
    """Return the cost of a batch in passes of the model over all texts of its corpus."""
    match batch.jobs[0].settings:
        case LearnLambda(weights="lambda", training=training):
            return BACKWARD * training.epochs
        case LearnLambda():
            return BACKWARD
        case ProbeEncoder(training=training):
            trained = batch.jobs[0].about["variant"].get("trained", False)
            return max(len(batch.jobs) * training.epochs, 1) * (BACKWARD if trained else 1)
        case Probe(training=training):
            return float(PROBE_SHARE * len(batch.jobs) * training.epochs)
    return len(batch.jobs)


def _disk(study: Plan, job: AnyJob, tokens: float) -> float:
    """Return the bytes of hidden states (float16) and of averages (a sum in float64 and a mean in float32)."""
    sizes = _sizes(study, job.about["model"])
    if sizes and isinstance(job.settings, HiddenStates):
        return 2 * (sizes["layers"] + 1) * sizes["hidden"] * tokens
    if sizes and isinstance(job.settings, Average):
        slots, outputs = int(job.about["slots"]), job.settings.kind == "mean-output"
        return 12 * sizes["layers"] * slots * (sizes["hidden"] if outputs else sizes["heads"] * slots)
    return 0


def _tokens_per_second(study: Plan, model: str, length: int) -> float:
    """Time a model on one batch of texts of this length."""
    import torch

    from papa.data.packed import Packed
    from papa.model.load import model_of

    config = study.config
    torch.set_num_threads(config.threads)
    texts = max(budget_on(config.device, config.token_budget) // length, 1)
    ids = (torch.arange(texts * length) % _sizes(study, model)["vocabulary"]).view(texts, length)
    corpus = next(config.tasks[task].corpus for name, task in config.pairs if name == model)
    averages = study.average(model, corpus, Constant("average"))
    if averages is None:
        raise RuntimeError("averages need texts")
    loaded = model_of(averages)
    packed = Packed.of({"input_ids": ids, "attention_mask": torch.ones_like(ids)}).to(loaded.device)
    for _ in range(2):  # the first pass allocates memory
        begin = time.perf_counter()
        with torch.inference_mode():
            float(loaded.run(packed)[-1].sum())  # a GPU is done when it gives a number
        seconds = time.perf_counter() - begin
    return float(texts * length / seconds)


def _misfits(study: Plan) -> Iterator[str]:
    """Yield a sentence for each model that does not fit a task, or whose tokenizer cannot lay out its texts."""
    from papa.data.tokenize import check_tokenizer, is_decoder

    for name, task_name in study.config.pairs:
        task, files = study.config.tasks[task_name], study.model(name)
        if not files.folder:
            yield f"Model {name} is not on this machine; {HOW_TO_FETCH}."
            continue
        needed, corpus = task.target.decoder, study.config.corpora[task.corpus]
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
    for name in dict.fromkeys(task for _, task in study.config.pairs):
        task = study.config.tasks[name]
        labels = study.data(task.corpus).facts["labels"].get(name)
        if labels and (positive := positive_class(task.metric, labels["names"])):
            doubt = "" if task.labels else frequent_class(task.metric, labels["names"], labels["train_counts"])
            warning = f" {WARNING}{doubt}" if doubt else ""
            sentences.append(f"{task.title or name}: {METRICS[task.metric].title} of {positive}.{warning}")
    return sentences


def _smallest_margins(study: Plan) -> list[SmallestMargin]:
    """Return the smallest margin of each task, or the reason why it has none."""
    from papa.results.statistics import UNSEEN_UNITS, smallest_loss

    config, margins = study.config, []
    for name in dict.fromkeys(task for _, task in config.pairs):
        task = config.tasks[name]
        models = [model for model, paired in config.pairs if paired == name]
        seeds = min(len(seeds) for model in models for seeds in study.variants(model, name).values())
        facts, blocks = study.data(task.corpus).facts, config.corpora[task.corpus].blocks
        examples = facts["rows"].get("validation", 0)
        smallest = why = None
        if not config.floors:
            why = "without `floors` no loss is measured"
        elif task.target.probed and seeds == 1:
            why = "one seed shows nothing; use at least two"
        elif not METRICS[task.metric].bounded:
            why = "the score is unbounded, so attention's contribution is known only after a run"
        elif not examples or blocks:
            why = "the number of validation examples is not known"
        else:
            rows = examples / facts["sizes"]["validation"]["design_effect"]
            spread = SEED_SPREAD / CONTRIBUTION if task.target.probed else 0.0
            # the difference of two scores includes `UNSEEN_UNITS` twice, once per score
            error = math.sqrt((DISCORDANT_SHARE + 2 * UNSEEN_UNITS / rows) / rows) / CONTRIBUTION
            smallest = smallest_loss(seeds, spread, error, POWER)
        probe_seeds = seeds if task.target.probed else None
        margins.append(
            SmallestMargin(title=task.title or name, seeds=probe_seeds, examples=examples, smallest=smallest, why=why)
        )
    return margins


def describe_margins(estimates: Estimates) -> list[str]:
    """Describe the smallest margins of a plan in sentences."""
    known, sentences = [], []
    for entry in estimates["smallest_margins"]:
        if entry["smallest"] is None:
            sentences.append(f"No smallest margin for {entry['title']}: {entry['why']}.")
            continue
        seeds = f"{count(entry['seeds'], 'seed')}, " if entry["seeds"] else ""
        size = f"{math.ceil(100 * entry['smallest'])} %" if entry["smallest"] < 1 else "100 % or more"
        known.append(f"{entry['title']} {size} ({seeds}{count(entry['examples'], 'example')})")
        if entry["smallest"] >= estimates["margin"]:
            margin = f"{100 * estimates['margin']:g} %"
            sentences.append(f"A margin of {margin} is unlikely for {entry['title']}: add examples or seeds.")
    if known:
        sentences[:0] = [
            f"Smallest margin that can be shown with {100 * POWER:.0f} % power if nothing is lost, as a share of "
            f"attention's contribution: {', '.join(known)}.",
            ASSUMED,
        ]
    return sentences
