"""`papa plan`: the jobs, time and disk space of a run, and the smallest margin that it can show.

Time is that of one batch, which is measured here, times the number of passes. Earlier results are ignored.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, TypedDict, cast

from papa.config.job import AnyJob
from papa.config.measures import METRICS, frequent_class, positive_class
from papa.config.settings import Config, Corpus, budget_on
from papa.config.stages import (
    AverageOf,
    Encoding,
    HiddenOf,
    LambdaOf,
    ModelId,
    OfEncoding,
    ProbeOf,
    TokensOf,
    WeightsOf,
)
from papa.config.study import Plan
from papa.config.variant import Variant
from papa.errors import WARNING, InputError, count, format_bytes
from papa.jobs.resources import MB, SPECIAL_TOKENS_PER_TEXT, TOKENS_PER_WORD, format_duration

if TYPE_CHECKING:
    from rich.console import Console

SAMPLED_ROWS = 2000  # number of rows per split in which words are counted
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
    stages: list[Needs]
    total: Needs
    elapsed_seconds: float
    cores: int
    device: str
    free_disk_bytes: int
    margin: float
    metrics: list[str]
    smallest_margins: list[SmallestMargin]


@dataclass(frozen=True)
class SplitSize:
    """The rows of a split, the mean number of words per row, and the number of rows that count as one."""

    rows: int
    words: float
    design_effect: float


def plan(config: Config, cores: int) -> Estimates:
    """Estimate the needs of a config's jobs; `problems` lists reasons why something cannot run or be estimated.

    Args:
        config: a checked config.
        cores: number of cores that the workflow may use.
    """
    from papa.model.load import keeping_models

    with keeping_models():
        return _plan(config, cores)


def _plan(config: Config, cores: int) -> Estimates:
    study = Plan(config, Path("results", config.name))
    models, corpora, problems = _sizes(config)
    metrics, wrong = _metrics(study, corpora)
    problems += wrong

    @cache
    def rate(model: Encoding, length: int, vocabulary: int) -> float | None:
        try:
            return _tokens_per_second(model, length, vocabulary, config)
        except InputError as error:  # for example, a login node has no GPU
            problems.append(f"Model {model.model.name} was not timed: {error}")
            return None

    stages: dict[str, Needs] = {}
    total = Needs(stage="total", jobs=0, unknown=0, seconds=0.0, disk_mb=0.0)
    busy = on_gpu = 0.0
    for job in study.jobs():  # ordered by their dependencies
        seconds, disk_mb, unknown = float(START_SECONDS), 0.0, 0
        if isinstance(job.settings, OfEncoding):
            [tokens] = job.needs["tokens"]
            model, slots = models.get(job.settings.model.model.name), cast(TokensOf, tokens.settings).slots
            splits = corpora.get(tokens.wildcards["laid_out"].partition("/")[0], {}).values()
            number = sum(split.rows * _length(split, slots) for split in splits)
            length = max(round(number / max(sum(split.rows for split in splits), 1)), 1)
            speed = rate(job.settings.model, length, model["vocabulary"]) if model and splits else None
            disk_mb = _disk(job, model, slots, number) / MB if model and splits else 0.0
            seconds, unknown = (seconds + _passes(job) * number / speed, 0) if speed else (seconds, 1)
        needed = stages.setdefault(job.rule, Needs(stage=job.rule, jobs=0, unknown=0, seconds=0.0, disk_mb=0.0))
        for needs in (needed, total):
            needs["jobs"] += 1
            needs["unknown"] += unknown
            needs["seconds"] += seconds
            needs["disk_mb"] += disk_mb
        busy += seconds * min(study.threads(job), cores) / cores
        on_gpu += seconds * (job.settings.runs_encoder and config.device.startswith("cuda"))
    folder = next(folder for folder in study.results.absolute().parents if folder.exists())
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
        "stages": list(stages.values()),
        "total": total,
        "elapsed_seconds": max(busy, on_gpu),
        "cores": cores,
        "device": config.device,
        "free_disk_bytes": free,
        "margin": config.margin,
        "metrics": metrics,
        "smallest_margins": _smallest_margins(study, corpora),
    }


def print_plan(estimates: Estimates, out: Console) -> None:
    """Print a plan: problems, a table of the stages, the total, and the smallest margins."""
    import pandas as pd

    from papa.results.table import Table, printable

    for problem in estimates["problems"]:
        out.print(printable(problem), style="bold red")
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
    total = estimates["total"]
    unknown = f", {total['unknown']:,} of unknown size" if total["unknown"] else ""
    out.print(
        f"\n{count(total['jobs'], 'job')}{unknown}: about {format_duration(estimates['elapsed_seconds'])} on "
        f"{count(estimates['cores'], 'core')} (device {estimates['device']}) and {format_bytes(total['disk_mb'] * MB)} "
        f"of disk space ({format_bytes(estimates['free_disk_bytes'])} free). One batch was timed.",
        style="bold",
    )
    for sentence in (*estimates["metrics"], *describe_margins(estimates)):
        out.print(printable(sentence))


def _length(split: SplitSize, slots: int) -> float:
    """Return the mean number of tokens of a split's texts."""
    return min(split.words * TOKENS_PER_WORD + SPECIAL_TOKENS_PER_TEXT, slots)


def _passes(job: AnyJob) -> float:
    """Return the cost of a job in passes of the model over all texts of its corpus."""
    match job.settings:
        case AverageOf() | HiddenOf():
            return 1
        case LambdaOf(training=training):
            return BACKWARD * training.epochs
        case WeightsOf():
            return BACKWARD
        case ProbeOf(training=training, seeds=seeds, variant=variant):
            epochs = max(len(seeds) * training.epochs, 1)
            if "index" in job.needs:
                return PROBE_SHARE * epochs
            return epochs * (BACKWARD if Variant.parse(variant).trained else 1)
    return 0


def _disk(job: AnyJob, model: dict[str, int], slots: int, tokens: float) -> float:
    """Return the bytes of hidden states (float16) and of averages (a sum in float64 and a mean in float32)."""
    if isinstance(job.settings, HiddenOf):
        return 2 * (model["layers"] + 1) * model["hidden"] * tokens
    if isinstance(job.settings, AverageOf):
        outputs = job.settings.kind == "mean-output"
        return 12 * model["layers"] * slots * (model["hidden"] if outputs else model["heads"] * slots)
    return 0


def _tokens_per_second(encoding: Encoding, length: int, vocabulary: int, config: Config) -> float:
    """Time the model on one batch of texts of this length."""
    import torch

    from papa.data.packed import Packed
    from papa.model.load import model_of

    torch.set_num_threads(config.threads)
    texts = max(budget_on(config.device, config.token_budget) // length, 1)
    ids = (torch.arange(texts * length) % vocabulary).view(texts, length)
    model = model_of(encoding, config.machine)
    packed = Packed.of({"input_ids": ids, "attention_mask": torch.ones_like(ids)}).to(model.device)
    for _ in range(2):  # the first pass allocates memory
        begin = time.perf_counter()
        with torch.inference_mode():
            float(model.run(packed)[-1].sum())  # a GPU is done when it gives a number
        seconds = time.perf_counter() - begin
    return texts * length / seconds


def _sizes(config: Config) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, SplitSize]], list[str]]:
    """Return the sizes of models and corpora that are on this machine, and problems with them."""
    from papa.data.tokenize import check_tokenizer, is_decoder, sizes_of_model

    problems, models, corpora = list[str](), dict[str, dict[str, int]](), dict[str, dict[str, SplitSize]]()
    for name in config.corpora_run:
        tasks = [config.tasks[task] for _, task in config.pairs if config.tasks[task].corpus == name]
        try:
            labels = {column for task in tasks for column in (task.label, task.subset) if column}
            corpora[name] = _count_rows(config.corpora[name], labels, config)
        except InputError as error:
            problems.append(f"Corpus {name}: {error}")
    for model, name in config.pairs:
        identity, task = ModelId.of(model, config.models[model]), config.tasks[name]
        needed, corpus = task.target.decoder, config.corpora[task.corpus]
        try:
            models[model] = sizes_of_model(identity, config.machine)
            if needed is not None and needed != is_decoder(identity, config.machine):
                raise InputError(UNFIT[needed].format(task=name, metric=task.metric))
            if task.corpus in corpora:
                words, texts = corpus.words is not None, _texts_of(corpus, config)
                check_tokenizer(identity, config.machine, corpus.slots or 0, words, texts)
        except InputError as error:
            problems.append(f"Model {model}: {error}")
    return models, corpora, problems


def _texts_of(corpus: Corpus, config: Config) -> Iterator[str]:
    """Yield all texts of a corpus; words are joined by spaces."""
    from papa.data.sources import load_rows

    for split in corpus.splits:
        rows = load_rows(corpus, split, machine=config.machine)
        for name in filter(None, (corpus.first, corpus.second, corpus.words)):
            for text in rows.table.column(name).to_pylist():
                yield " ".join(map(str, text)) if isinstance(text, list) else str(text)


def _metrics(study: Plan, corpora: Collection[str]) -> tuple[list[str], list[str]]:
    """Return a sentence about each metric that scores one class only, and problems with the labels in `corpora`."""
    from papa.data.prepare import check_labels

    sentences, problems = list[str](), list[str]()
    for name in dict.fromkeys(task for _, task in study.config.pairs):
        task = study.config.tasks[name]
        for job in study.labels(name) if task.corpus in corpora else ():
            try:
                names, counts = check_labels(job, study.config.machine)
            except InputError as error:
                problems.append(f"Task {name}: {error}")
                continue
            if positive := positive_class(task.metric, names):
                doubt = "" if task.labels else frequent_class(task.metric, names, counts)
                warning = f" {WARNING}{doubt}" if doubt else ""
                sentences.append(f"{task.title or name}: {METRICS[task.metric].title} of {positive}.{warning}")
    return sentences, problems


def _count_rows(corpus: Corpus, labels: set[str], config: Config) -> dict[str, SplitSize]:
    """Count the rows and words of each split; raise `InputError` if the corpus cannot be read or lacks a column."""
    from papa.data.columns import Columns
    from papa.data.sources import describe, load_rows

    texts = [name for name in (corpus.first, corpus.second, corpus.words) if name is not None]
    labels |= {corpus.cluster} if isinstance(corpus.cluster, str) else set()
    splits = {}
    for split in corpus.splits:
        rows = load_rows(corpus, split, machine=config.machine)
        Columns(describe(corpus, split), rows).check([*texts, *sorted(labels)])
        columns = [rows.table.slice(0, SAMPLED_ROWS).column(name).to_pylist() for name in texts]
        words = [[len(text if isinstance(text, list) else str(text).split()) for text in column] for column in columns]
        number = rows.table.num_rows
        used = min(corpus.train_limit or number, number) if split == "train" else number
        clusters: list[object] = [*range(number)]
        if isinstance(corpus.cluster, int):
            clusters = [row // corpus.cluster for row in range(number)]
        elif corpus.cluster is not None:
            clusters = rows.table.column(corpus.cluster).to_pylist()
        # the mean size of the cluster of a row: by so much the variance of a mean grows if a cluster's rows are alike
        effect = sum(size**2 for size in Counter(clusters).values()) / max(number, 1)
        splits[split] = SplitSize(used, sum(map(fmean, words)), effect)
    return splits


def _smallest_margins(study: Plan, corpora: dict[str, dict[str, SplitSize]]) -> list[SmallestMargin]:
    """Return the smallest margin of each task, or the reason why it has none."""
    from papa.results.statistics import UNSEEN_UNITS, smallest_loss

    config, margins = study.config, []
    for name in dict.fromkeys(task for _, task in config.pairs):
        task = config.tasks[name]
        models = [model for model, paired in config.pairs if paired == name]
        seeds = min(len(seeds) for model in models for seeds in study.variants(model, name).values())
        split, blocks = corpora.get(task.corpus, {}).get("validation"), config.corpora[task.corpus].blocks
        smallest = why = None
        if not config.floors:
            why = "without `floors` no loss is measured"
        elif task.target.probed and seeds == 1:
            why = "one seed shows nothing; use at least two"
        elif not METRICS[task.metric].bounded:
            why = "the score is unbounded, so attention's contribution is known only after a run"
        elif split is None or blocks:
            why = "the number of validation examples is not known"
        else:
            rows, spread = split.rows / split.design_effect, SEED_SPREAD / CONTRIBUTION if task.target.probed else 0.0
            # the difference of two scores includes `UNSEEN_UNITS` twice, once per score
            error = math.sqrt((DISCORDANT_SHARE + 2 * UNSEEN_UNITS / rows) / rows) / CONTRIBUTION
            smallest = smallest_loss(seeds, spread, error, POWER)
        examples = split.rows if split else 0
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
