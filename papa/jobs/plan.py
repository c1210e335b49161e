"""`papa plan`: estimate a run's jobs, time, memory and disk space, and the smallest margin each task can meet.

Estimates of time, memory and disk space ignore earlier results. A task's smallest margin follows from its numbers of
probe seeds and validation examples, and from how much scores vary with both. This variation is measured if the config
was run before, and assumed otherwise.
"""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from papa.config.artefacts import ARTEFACTS
from papa.config.job import AnyJob
from papa.config.measures import METRICS
from papa.config.settings import Config, Corpus, Machine, Task
from papa.config.stages import ModelId
from papa.config.study import Study
from papa.config.variant import CONTEXT_FREE, Variant
from papa.errors import InputError, count
from papa.files import footer_of, trace_of
from papa.jobs.resources import (
    FLOAT32,
    MB,
    MEASURED_SHARES,
    SPECIAL_TOKENS_PER_TEXT,
    START_SECONDS,
    TEXT_BYTES_PER_SECOND,
    TOKENS_PER_WORD,
    Sizes,
    disk,
    disk_in_table,
    files_of,
    format_bytes,
    format_duration,
    gpu_memory_of,
    memory_of,
    seconds,
    sizes_of,
)

if TYPE_CHECKING:
    from rich.console import Console

    from papa.data.readers import SourceRows

SAMPLED_ROWS = 2000
"""Number of rows per split in which words are counted."""
POWER = 0.8
"""Statistical power: if the true loss is 0, the probability that its upper bound is below the smallest margin."""
SEED_SPREAD = 0.005
"""Assumed standard deviation of (original − replaced) over probe seeds, as a share of the score's range."""
DISCORDANT_SHARE = 0.05
"""Assumed share of examples whose outcome changes when heads are replaced, the same examples for every seed."""
CONTRIBUTION = 0.2
"""Assumed contribution of attention to a score (original minus context-free floor), as a share of its range."""
ASSUMED = (
    "Assumed, not measured: over probe seeds, score differences from the original have a standard deviation of "
    f"{SEED_SPREAD:g} of the score's range; replacing heads changes the outcome of {100 * DISCORDANT_SHARE:g} % of "
    f"examples; attention contributes {CONTRIBUTION:g} of the range."
)
ASSUMED_IN_CLUSTERS = (
    "Also assumed, as the worst case: all examples of a cluster have the same outcome, so a cluster counts as one "
    "example. If examples are independent, the smallest margin is"
)
"""The assumption about clusters before a run; the smallest margins of independent examples follow."""
SMALLEST_USEFUL_GAIN = 1 / 3
"""Adding both seeds and examples is advised only if the smaller gain is at least this share of the larger one."""
MAXIMUM_MOVED = 10**6
"""The largest number of training rows that a plan advises to move to validation."""
FEW_OF_A_CLASS = 100
"""With fewer validation rows of a class, F1 and correlations are too uncertain to show much."""
RECIPE = ("learning_rate", "batch_size", "epochs", "probe", "train_rows", "resample_training", "patience")
"""The keys of a task that say how its probes are trained."""
LISTED_SETTINGS = 3
"""Maximum number of settings that a warning names."""
UNFIT = {
    True: "its config lists no architecture that predicts next tokens, which task {task} needs ({metric}).",
    False: "it is a decoder, which cannot predict the masked tokens of task {task}; use the metric log_likelihood.",
}
"""Reasons why a model does not fit a task, by whether the task needs a decoder."""


class Total(TypedDict):
    """The sums over all jobs. `sized` jobs depend on the size of a corpus, which is `unknown` for some."""

    jobs: int
    sized: int
    unknown: int
    seconds: float
    disk_mb: int


class StageNeeds(Total):
    """The needs of the jobs of a stage, and the memory of the largest."""

    stage: str
    memory_mb: int
    gpu_mb: int


class AllNeeds(Total):
    """The needs of all jobs: also the wall-clock time, and the disk space of the table of outcomes."""

    elapsed_seconds: float
    outcomes_mb: float


class SmallestMargin(TypedDict):
    """The smallest margin of a task and the addition that lowers it most, or the reason `why` there is none.

    `independent` is the smallest margin if examples of one cluster are independent; None without clusters, or after a
    run. `move` is the value of `validation_from_train` with which the config's margin can be shown, if there is one.
    """

    task: str
    title: str
    seeds: int | None
    examples: int | None
    measured: bool
    smallest: float | None
    independent: float | None
    helps: str | None
    move: int | None
    why: str | None


class ConstantSize(TypedDict):
    """The memory that averages of all heads of a model take when they replace attention, in single precision."""

    model: str
    constant: str
    slots: int
    bytes: int


class Plan(TypedDict):
    """The return value of `plan`."""

    config: str
    problems: list[str]
    stages: list[StageNeeds]
    total: AllNeeds
    constants: list[ConstantSize]
    cores: int
    device: str
    free_disk_bytes: int
    margin: float
    power: float
    smallest_losses: list[SmallestMargin]
    warnings: list[str]


def plan(config: Config, cores: int) -> Plan:
    """Estimate the needs of a config's jobs.

    `problems` lists reasons why something cannot run or be estimated, `warnings` reasons why little can be shown.

    Args:
        config: a checked config.
        cores: number of cores that the workflow may use.
    """
    study = Study(config, Path("results", config.name))
    problems, sizes, corpora = _sizes(study)
    jobs, rows, stages = study.jobs(), dict[AnyJob, StageNeeds](), dict[str, StageNeeds]()
    depths, outcomes_mb = dict[AnyJob, int](), 0.0
    for job in jobs:  # ordered by their dependencies
        corpus, known = _sizes_of(job, sizes)
        outcomes_mb += disk_in_table(job, corpus)
        rows[job] = {
            "stage": job.rule,
            "jobs": 1,
            "sized": int(corpus is not None),
            "unknown": int(not known),
            "seconds": _seconds(job, config, corpus, study.threads(job)) if known else 0.0,
            "memory_mb": memory_of(job, config, corpus) if known else 0,
            "gpu_mb": gpu_memory_of(job, config, corpus) if known and config.device.startswith("cuda") else 0,
            "disk_mb": disk(job, config, corpus) + math.ceil(outcomes_mb) * (job.stage == "summary") if known else 0,
        }
        depths[job] = 1 + max((depths[needed] for needed in job.needed), default=0)
        stages[job.rule] = _together(stages[job.rule], rows[job]) if job.rule in stages else rows[job]
    if not config.keep_hidden_states and "hidden_states" in stages:
        # on disk at once: at most the inputs of running probes, of the next probes, and of jobs that weigh heads
        weighed = {needed for job in jobs if job.rule == "weigh_heads" for needed in job.needed}
        stored = {job: row["disk_mb"] for job, row in rows.items() if job.rule == "hidden_states"}
        peak = 2 * cores * max(stored.values()) + sum(size for job, size in stored.items() if job in weighed)
        stages["hidden_states"]["disk_mb"] = min(sum(stored.values()), peak)
    total: AllNeeds = {
        "jobs": sum(stage["jobs"] for stage in stages.values()),
        "sized": sum(stage["sized"] for stage in stages.values()),
        "unknown": sum(stage["unknown"] for stage in stages.values()),
        "seconds": sum(stage["seconds"] for stage in stages.values()),
        "disk_mb": sum(stage["disk_mb"] for stage in stages.values()),
        "elapsed_seconds": _elapsed(study, rows, cores),
        "outcomes_mb": outcomes_mb,
    }
    depth_of_stage = {job.rule: depth for job, depth in sorted(depths.items(), key=lambda pair: pair[1])}
    folder = next(folder for folder in study.results.absolute().parents if folder.exists())
    free = shutil.disk_usage(folder).free
    if total["disk_mb"] * MB > free:
        tasks = dict.fromkeys(job.wildcards["task"] for job in jobs if job.rule == "probe")
        problems.append(
            f"The disk is too small by {format_bytes(total['disk_mb'] * MB - free)}: put results/ on a larger disk, "
            f"lower `train_limit`, or set `features: stream` for {', '.join(tasks)}."
        )
    return {
        "config": config.name,
        "problems": problems,
        "stages": sorted(stages.values(), key=lambda stage: depth_of_stage[stage["stage"]]),
        "total": total,
        "constants": _constant_sizes(study, sizes),
        "cores": cores,
        "device": config.device,
        "free_disk_bytes": free,
        "margin": config.margin,
        "power": POWER,
        "smallest_losses": smallest_margins(study, corpora),
        "warnings": [
            *_unequal_seeds(study),
            *_rare_classes(config, corpora),
            *_divided_clusters(config),
            *_repeated_tasks(config),
        ],
    }


def _together(one: StageNeeds, other: StageNeeds) -> StageNeeds:
    return {
        "stage": one["stage"],
        "jobs": one["jobs"] + other["jobs"],
        "sized": one["sized"] + other["sized"],
        "unknown": one["unknown"] + other["unknown"],
        "seconds": one["seconds"] + other["seconds"],
        "memory_mb": max(one["memory_mb"], other["memory_mb"]),
        "gpu_mb": max(one["gpu_mb"], other["gpu_mb"]),
        "disk_mb": one["disk_mb"] + other["disk_mb"],
    }


def print_plan(estimates: Plan, out: Console) -> None:
    """Print a plan: problems, a table of the stages, and the total."""
    import pandas as pd

    from papa.results.table import Table, printable

    for problem in estimates["problems"]:
        out.print(printable(problem), style="bold red")
    if estimates["problems"]:
        out.print()
    on_gpu = any(stage["gpu_mb"] for stage in estimates["stages"])
    rows = [
        {
            "stage": stage["stage"],
            "jobs": f"{stage['jobs']:,}" + (f" ({stage['unknown']:,} unknown)" if stage["unknown"] else ""),
            "time": format_duration(stage["seconds"]) if stage["seconds"] else "?",
            "memory per job": format_bytes(stage["memory_mb"] * MB) if stage["memory_mb"] else "?",
            **({"GPU memory": format_bytes(stage["gpu_mb"] * MB) if stage["gpu_mb"] else ""} if on_gpu else {}),
            "disk": format_bytes(stage["disk_mb"] * MB) if stage["disk_mb"] else "?",
        }
        for stage in estimates["stages"]
    ]
    Table("", pd.DataFrame(rows), 1).print(out)
    total = estimates["total"]
    disk_space, free = format_bytes(total["disk_mb"] * MB), format_bytes(estimates["free_disk_bytes"])
    outcomes = f"; {ARTEFACTS['all_outcomes'].path()} takes at most {format_bytes(total['outcomes_mb'] * MB)} of it"
    unknown = f", {total['unknown']:,} of unknown size" if total["unknown"] else ""
    out.print(
        f"\n{count(total['jobs'], 'job')}{unknown}: at most about {format_duration(total['elapsed_seconds'])} on "
        f"{count(estimates['cores'], 'core')} (device {estimates['device']}) and {disk_space} of disk space ({free} "
        f"free){outcomes if total['outcomes_mb'] else ''}.",
        style="bold",
    )
    if estimates["constants"]:
        sizes = [
            f"{each['constant']} of {each['model']} in {count(each['slots'], 'slot')} {format_bytes(each['bytes'])}"
            for each in estimates["constants"]
        ]
        out.print(printable(f"Memory of constants, for all heads: {', '.join(sizes)}."))
    if not estimates["device"].startswith("cuda"):
        likely = " to ".join(format_duration(share * total["elapsed_seconds"]) for share in MEASURED_SHARES)
        out.print(f"The estimate is for slow CPUs. On server CPUs, the demo took 1/13 to 1/3 of it: here {likely}.")
    for sentence in describe_margins(estimates):
        out.print(printable(sentence))
    for warning in estimates["warnings"]:
        out.print(printable(warning), style="yellow")


# -- smallest margins --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """Variation of a task's loss.

    Args:
        over_seeds: standard deviation over probe seeds, including the variation between orders of heads.
        over_examples: standard deviation over validation examples.
        unseen: extra variance of the mean, times the squared number of examples; see `statistics.UNSEEN_UNITS`.
        mostly_orders: whether most of the variation comes from the orders of heads.
        examples: number of measured validation examples; None before a run.
        design_effect: the number of examples that count as one; 1 if `over_examples` was measured.
    """

    over_seeds: float
    over_examples: float
    unseen: float = 0.0
    mostly_orders: bool = False
    examples: int | None = None
    design_effect: float = 1.0

    @classmethod
    def assumed(cls, seeded: bool = True, design_effect: float = 1.0) -> Noise:
        """Return the variation assumed before a run; `seeded` is False for a task without probes."""
        from papa.results.statistics import UNSEEN_UNITS

        over_seeds = SEED_SPREAD / CONTRIBUTION if seeded else 0.0
        # the difference of two scores includes `UNSEEN_UNITS` twice, once per score
        over_examples, unseen = math.sqrt(DISCORDANT_SHARE) / CONTRIBUTION, 2 * UNSEEN_UNITS / CONTRIBUTION**2
        return cls(over_seeds, over_examples, unseen, design_effect=design_effect)

    def smallest_margin(self, seeds: int, examples: int) -> float:
        """Return the smallest margin that a task whose true loss is 0 is shown to meet with probability `POWER`."""
        from papa.results.statistics import smallest_loss

        units = examples / self.design_effect
        error = math.sqrt((self.over_examples**2 + self.unseen / units) / units)
        return smallest_loss(seeds, self.over_seeds, error, POWER)

    def best_addition(self, seeds: int, examples: int) -> str:
        """Return the addition that lowers the margin most: orders, seeds, examples, or both (seeds and examples)."""
        if self.mostly_orders:
            return "orders"
        now = self.smallest_margin(seeds, examples)
        by_seeds = now - self.smallest_margin(2 * seeds, examples)
        by_examples = now - self.smallest_margin(seeds, 2 * examples)
        if by_seeds < SMALLEST_USEFUL_GAIN * by_examples:
            return "examples"
        return "seeds" if by_examples < SMALLEST_USEFUL_GAIN * by_seeds else "both"


def smallest_margins(study: Study, corpora: Mapping[str, Mapping[str, SplitSize]]) -> list[SmallestMargin]:
    """Return an entry for each task with replaced heads: its smallest margin, or the reason `why` it has none.

    The margin is the largest over the task's models; `helps` is the addition that lowers it most.

    Args:
        study: the config, and its results if it was run before.
        corpora: row counts of each split, for the corpora that can be read.
    """
    config, measured = study.config, _measured_noise(study)
    margins: list[SmallestMargin] = []
    for name in dict.fromkeys(task for _, task in config.pairs):
        task, models = config.tasks[name], [model for model, paired in config.pairs if paired == name]
        variants = [item for model in models for item in study.variants(model, name).items()]
        floors = [Variant.floor(floor) for floor in config.floors or CONTEXT_FREE]
        seeds = [len(seeds) for variant, seeds in variants if variant.constant and variant not in floors]
        if not seeds:
            continue
        known = [measured[model, name] for model in models if (model, name) in measured]
        noises = [noise for noise in known if isinstance(noise, Noise)]
        corpus, counted = config.corpora[task.corpus], corpora.get(task.corpus, {})
        counted = {} if corpus.blocks else counted
        split, unused = counted.get("validation"), counted["train"].unused if "train" in counted else 0
        if not known and METRICS[task.metric].bounded:
            noises = [Noise.assumed(task.target.probed, split.design_effect if split else 1.0)]
        validation_rows = split and split.rows
        examples = validation_rows or min((noise.examples or 0 for noise in noises), default=0)
        probe_seeds = min(seeds) if task.target.probed else None
        smallest = independent = helps = move = why = None
        if not config.floors:
            why = "without `floors` no loss is measured"
        elif probe_seeds == 1:
            why = ONE_SEED
        elif known and not noises:
            why = str(known[0])
        elif not noises:
            why = "the score is unbounded, so attention's contribution is known only after a run"
        elif not examples:
            why = "the number of validation examples is not known yet"
        else:
            smallest, worst = max(
                ((noise.smallest_margin(min(seeds), examples), noise) for noise in noises), key=lambda pair: pair[0]
            )
            helps = worst.best_addition(min(seeds), examples)
            if corpus.cluster is not None:  # moved rows would have others of their clusters in training
                independent = None if known else replace(worst, design_effect=1.0).smallest_margin(min(seeds), examples)
            elif smallest >= config.margin and (more := _examples_needed(noises, min(seeds), examples, config.margin)):
                moved = (corpus.validation_from_train or 0) + more
                move = moved if more <= unused else None
        margins.append(
            SmallestMargin(
                task=name,
                title=task.title or name,
                seeds=probe_seeds,
                examples=validation_rows if why else examples,
                measured=bool(known),
                smallest=smallest,
                independent=independent,
                helps=helps,
                move=move,
                why=why,
            )
        )
    return margins


def _examples_needed(noises: Sequence[Noise], seeds: int, examples: int, margin: float) -> int | None:
    """Return how many more examples make the smallest margin of all models pass, rounded up; None if none suffice."""

    def passes(more: int) -> bool:
        return all(noise.smallest_margin(seeds, examples + more) < margin for noise in noises)

    step = 100
    if not passes(MAXIMUM_MOVED):
        return None
    low, high = 0, MAXIMUM_MOVED // step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle * step) else (middle, high)
    return high * step


ONE_SEED = "one seed"


def describe_margins(estimates: Plan) -> list[str]:
    """Describe the smallest margins of a plan in sentences."""
    entries = estimates["smallest_losses"]
    known = [(entry, entry["smallest"]) for entry in entries if entry["smallest"] is not None]
    measured = [entry["title"] for entry, _ in known if entry["measured"]]
    sentences = []
    if known:
        listed = ", ".join(
            f"{entry['title']} {_format_margin(smallest)} ({_counts(entry)})" for entry, smallest in known
        )
        sentences.append(
            f"Smallest margin that can be shown with {100 * estimates['power']:.0f} % power if nothing is lost, as a "
            f"share of attention's contribution: {listed}."
        )
    if measured:
        sentences.append(f"Estimated from the measured results of {', '.join(measured)}.")
    if len(measured) < len(known):
        sentences.append(ASSUMED)
    independent = {entry["title"]: entry["independent"] for entry, _ in known if entry["independent"] is not None}
    if independent:
        listed = ", ".join(f"{title} {_format_margin(smallest)}" for title, smallest in independent.items())
        sentences.append(f"{ASSUMED_IN_CLUSTERS} {listed}.")
    for entry, smallest in known:
        if smallest >= estimates["margin"]:
            sentences.append(
                f"A margin of {100 * estimates['margin']:g} % is unlikely to be shown for {entry['title']} with "
                f"{_counts(entry, ' and ')} (smallest: {_format_margin(smallest)}): {ADVICE[str(entry['helps'])]}."
            )
            if entry["move"] is not None:
                sentences.append(
                    f"Unused training rows of {entry['title']} would suffice: set `validation_from_train: "
                    f"{entry['move']}` in its corpus."
                )
    reasons: dict[str, list[str]] = {}
    for entry in sorted(entries, key=lambda entry: entry["why"] != ONE_SEED):
        if entry["why"] is not None:
            reasons.setdefault(entry["why"], []).append(entry["title"])
    for why, titles in reasons.items():
        listed = ", ".join(titles)
        if why == ONE_SEED:
            sentences.append(f"With one seed, nothing can be claimed for {listed}; use at least two.")
        else:
            sentences.append(f"No smallest margin for {listed}: {why}.")
    return sentences


def _unequal_seeds(study: Study) -> list[str]:
    """Return a warning for each task whose settings have different seeds."""
    warnings: dict[str, None] = {}
    for model, name in study.config.pairs:
        task, variants = study.config.tasks[name], study.variants(model, name)
        all_seeds = set().union(*variants.values())
        lacking: dict[str, int] = {}
        for variant, seeds in variants.items():
            if task.target.probed and set(seeds) != all_seeds:
                lacking.setdefault(variant.path, len(seeds))
        if lacking:
            listed = ", ".join(f"{path} {number}" for path, number in list(lacking.items())[:LISTED_SETTINGS])
            more = f" and {len(lacking) - LISTED_SETTINGS} more" if len(lacking) > LISTED_SETTINGS else ""
            warnings[
                f"{task.title or name} has {len(all_seeds)} seeds, but some settings have fewer ({listed}{more}): a "
                "comparison uses only the seeds that all its settings have, so use the same seeds in all grids."
            ] = None
    return list(warnings)


def _rare_classes(config: Config, corpora: Mapping[str, Mapping[str, SplitSize]]) -> list[str]:
    """Return a warning for each task whose score rests on few validation rows of a class."""
    warnings = []
    for name in dict.fromkeys(task for _, task in config.pairs):
        task = config.tasks[name]
        split = corpora.get(task.corpus, {}).get("validation")
        rarest = split.rarest.get(task.label or "") if split and METRICS[task.metric].rests_on_rarest else None
        if rarest is not None and rarest < FEW_OF_A_CLASS:
            warnings.append(
                f"{task.title or name} has only {count(rarest, 'validation row')} of its rarest class, on which "
                f"{METRICS[task.metric].title} depends; with fewer than {FEW_OF_A_CLASS}, more seeds will not help."
            )
    return warnings


def _divided_clusters(config: Config) -> list[str]:
    """Return a warning for each corpus whose clusters may have both training rows and moved validation rows."""
    return [
        f"Corpus {name} moves random training rows to validation, and other rows of their clusters ({corpus.cluster}) "
        "may stay in training: scores may then be too high for new clusters."
        for name, corpus in config.corpora.items()
        if name in config.corpora_run and corpus.cluster is not None and corpus.validation_from_train
    ]


def _repeated_tasks(config: Config) -> list[str]:
    """Return a warning for the tasks of a grid with the same labels and metric, which differ only in their recipe."""
    warnings: dict[str, None] = {}
    for grid in config.analyses.values():
        groups: dict[str, list[Task]] = {}
        for name in grid.tasks:
            task = config.tasks[name].model_copy(update={"title": config.tasks[name].title or name})
            groups.setdefault(task.model_dump_json(include={"corpus", "label", "labels", "metric"}), []).append(task)
        for tasks in groups.values():
            if len(tasks) == 1:
                continue
            recipe = [key for key in RECIPE if any(getattr(task, key) != getattr(tasks[0], key) for task in tasks)]
            warnings[
                f"{' and '.join(str(task.title) for task in tasks)} have the same labels (they differ in: "
                f"{', '.join(recipe) or 'nothing'}), but count as {len(tasks)} tasks in the joint claim and in Holm's "
                "correction, which makes claims harder; compare recipes in a config of their own."
            ] = None
    return list(warnings)


ADVICE = {
    "seeds": "add seeds; more examples would help little",
    "examples": "add examples; more seeds would help little",
    "both": "add seeds and examples",
    "orders": "results vary most with the order of heads, so add orders (`ranking`)",
}


def _format_margin(smallest: float) -> str:
    """Round a smallest margin up to a whole percentage."""
    return f"{math.ceil(100 * smallest)} %" if smallest < 1 else "100 % or more"


def _counts(entry: SmallestMargin, between: str = ", ") -> str:
    seeds = f"{count(entry['seeds'], 'seed')}{between}" if entry["seeds"] else ""
    return f"{seeds}{count(entry['examples'] or 0, 'example')}"


def _measured_noise(study: Study) -> dict[tuple[str, str], Noise | str]:
    """Return the variation in earlier results of each model and task, or the reason why the task has no loss.

    The variation is taken from the setting whose loss is nearest to 0. Tasks without results, with a single seed, or
    whose results are for other clusters than those of the config, are omitted.
    """
    path = study.results / ARTEFACTS["all_outcomes"].path()
    if not path.is_file():
        return {}
    from papa.results.compare import read_outcomes
    from papa.results.losses import COUNTS, loss_of, status_of
    from papa.results.outcomes import ALL, ORIGINALS, Setting

    try:
        outcomes, _ = read_outcomes(path)
    except InputError:  # the workflow will report and rebuild the table
        return {}
    trace, config = trace_of(path), study.config
    clusters = (trace.settings.get("clusters") if trace else None) or {}
    noises: dict[tuple[str, str], Noise | str] = {}
    for key, outcome in outcomes.items():
        if key not in config.pairs or outcome.metric != config.tasks[outcome.task].metric:
            continue
        if clusters.get(outcome.task) != config.corpora[config.tasks[outcome.task].corpus].cluster:
            continue
        sample = outcome.sample(outcome.metric, outcome.subsets()[ALL])
        ends = sample.spread(ORIGINALS, *sample.floor_settings)
        if ends is None or not ends.known:
            continue
        status = status_of(sample, outcome, outcome.metric)
        if status != COUNTS:
            noises[key] = status
            continue
        at_ends = (ORIGINALS, *(Setting(floor, fraction="0") for floor in sample.floors))
        replaced = [setting for setting in sample.settings if setting not in at_ends]
        losses = [loss for setting in replaced if (loss := loss_of(sample, setting)) is not None]
        if losses:
            loss = min(losses, key=lambda loss: abs(loss.in_scores().mean))
            difference = loss.in_scores()
            unit = difference.variance / loss.contribution**2
            examples, shares = sample.examples, difference.shares
            over_seeds = math.sqrt(unit * (1 - shares["examples"]) * loss.spread.seeds)
            over_examples = math.sqrt(unit * shares["examples"] * examples)
            noises[key] = Noise(over_seeds, over_examples, 0.0, shares["order"] > 0.5, examples)
    return noises


# -- needs ------------------------------------------------------------------------------------------------------------


def _sizes(study: Study) -> tuple[list[str], dict[tuple[str, str], Sizes | None], dict[str, dict[str, SplitSize]]]:
    """Return problems, the sizes of each pair of a model and a tokenized corpus (None if unknown), and row counts."""
    from papa.data.tokenize import is_decoder, parameters_of_model, sizes_of_model

    config = study.config
    problems, models, corpora = list[str](), dict[str, dict[str, int]](), dict[str, dict[str, SplitSize]]()
    for model in dict.fromkeys(model for model, _ in config.pairs):
        try:
            identity = ModelId.of(model, config.models[model])
            models[model], decodes = sizes_of_model(identity, config.machine), is_decoder(identity, config.machine)
            models[model] |= parameters_of_model(identity, config.machine)
        except InputError as error:
            problems.append(f"Model {model}: {error}")
            continue
        for task in (task for name, task in config.pairs if name == model):
            needed, metric = config.tasks[task].target.decoder, config.tasks[task].metric
            if needed is not None and needed != decodes:
                problems.append(f"Model {model}: {UNFIT[needed].format(task=task, metric=metric)}")
    tasks_run = {task for _, task in config.pairs}
    for corpus in config.corpora_run:
        try:
            tasks = [task for name, task in config.tasks.items() if task.corpus == corpus and name in tasks_run]
            columns = [name for task in tasks for name in (task.label, task.subset) if name]
            cluster, texts = config.corpora[corpus].cluster, study.results / study.path("texts", corpus=corpus)
            columns += [cluster] if isinstance(cluster, str) else []
            corpora[corpus] = _count_rows(config.corpora[corpus], texts, columns, config.machine)
        except InputError as error:
            problems.append(f"Corpus {corpus}: {error}")
    sizes: dict[tuple[str, str], Sizes | None] = {}
    laid_out = {job.wildcards["laid_out"] for job in study.jobs() if job.rule == "tokenize"}
    for model, layout in product(models, laid_out):
        corpus, _, slots = layout.partition("/slots-")
        folder = study.results / study.path("tokens", model=model, laid_out=layout)
        if folder.exists() and (known := sizes_of(folder)):
            counted = {key: models[model].get(key, 0) for key in ("parameters", "layer_parameters")}
            sizes[model, layout] = replace(known, **counted)
        elif corpus in corpora:
            settings = config.corpora[corpus]
            sizes[model, layout] = _laid_out(
                models[model], corpora[corpus], int(slots or settings.slots or 0), settings.blocks
            )
    return problems, sizes, corpora


class SplitSize(NamedTuple):
    """The size of a split.

    Args:
        rows: number of rows.
        words: mean number of words per example.
        unused: number of training rows that nothing reads.
        rarest: for each column of labels, the number of rows of the rarest label.
        design_effect: number of rows that count as one if all rows of a cluster are alike; 1 without clusters.
    """

    rows: int
    words: float
    unused: int = 0
    rarest: Mapping[str, int] = {}
    design_effect: float = 1.0


def _count_rows(corpus: Corpus, texts: Path, columns: Sequence[str], machine: Machine) -> dict[str, SplitSize]:
    """Count the rows and words of each split of a corpus.

    Raises:
        InputError: the corpus cannot be read, or lacks one of the `columns` that tasks need.
    """
    from papa.data.prepare import training_rows
    from papa.data.sources import load_rows

    prepared = footer_of(texts)[0]["rows"] if texts.exists() and corpus.blocks else {}
    moved, splits = corpus.validation_from_train or 0, {}
    for split in corpus.splits:
        rows = load_rows(corpus, split, machine=machine)
        row_count, unused, rarest = prepared.get(split, rows.table.num_rows), 0, dict[str, int]()
        effect = 1.0
        if split == "train":
            training = training_rows(corpus, row_count, "the training split")
            row_count, unused = training, row_count - moved - training
        words = _mean_words(corpus, rows, columns)
        if split == "validation":
            growth = (row_count + moved) / max(row_count, 1)
            rarest = {name: round(growth * number) for name in columns if (number := _rarest(rows, name)) is not None}
            effect = _design_effect(rows, corpus.cluster)
            row_count += moved
        splits[split] = SplitSize(row_count, words, unused, rarest, effect)
    return splits


def _design_effect(rows: SourceRows, cluster: str | int | None) -> float:
    """Return the factor by which clusters of equal rows increase the variance of a mean over rows.

    This is the mean size of the cluster of a row.
    """
    number: int = rows.table.num_rows
    if cluster is None or not number:
        return 1.0
    if isinstance(cluster, int):
        names: list[object] = [row // cluster for row in range(number)]
    else:
        names = rows.table.column(cluster).to_pylist()
    return sum(size**2 for size in Counter(names).values()) / number


def _rarest(rows: SourceRows, column: str) -> int | None:
    """Return the number of rows with the rarest value of a column; None if it has lists."""
    values = rows.table.column(column).to_pylist()
    return None if any(isinstance(value, list) for value in values) else min(Counter(values).values(), default=0)


def _mean_words(corpus: Corpus, rows: SourceRows, columns: Sequence[str]) -> float:
    """Return the mean number of words per example in the first `SAMPLED_ROWS` rows."""
    names = [name for name in (corpus.first, corpus.second, corpus.words) if name is not None]
    for name in (*names, *columns):
        if name not in rows.names:
            raise InputError(f"it has no column {name!r}; its columns are {', '.join(rows.names)}.")
    sample = rows.table.slice(0, SAMPLED_ROWS)
    return sum(
        fmean(len(text if isinstance(text, list) else str(text).split()) for text in sample.column(name).to_pylist())
        for name in names
    )


def _laid_out(model: Mapping[str, int], splits: Mapping[str, SplitSize], slots: int, blocks: bool) -> Sizes:
    """Estimate the sizes of a corpus after tokenization from its rows and words."""
    examples, tokens = dict[str, int](), 0.0
    for split, size in splits.items():
        rows = size.rows
        length = size.words * TOKENS_PER_WORD + (0 if blocks else SPECIAL_TOKENS_PER_TEXT)
        examples[split] = max(1, round(rows * length / slots)) if blocks else rows
        tokens += rows * length if blocks else rows * min(length, slots)
    scored = max((n for split, n in examples.items() if split != "train"), default=0)
    corpus = {"slots": slots, "examples": sum(examples.values()), "tokens": round(tokens), "scored": scored}
    return Sizes(**model, **corpus)


def _constant_sizes(study: Study, sizes: Mapping[tuple[str, str], Sizes | None]) -> list[ConstantSize]:
    """Return the size of each constant that is computed from texts, for each model and number of slots."""
    bytes_of: dict[tuple[str, str, int], int] = {}
    for model, task in study.config.pairs:
        corpus = study.config.tasks[task].corpus
        for constant in [variant.constant for variant in study.variants(model, task)]:
            for job in study.constants(model, corpus, constant):
                if constant and (known := sizes.get((model, job.wildcards["laid_out"]))):
                    bytes_of[model, constant.untrained, known.slots] = FLOAT32 * known.constant_entries(constant.start)
    return [
        {"model": model, "constant": constant, "slots": slots, "bytes": size}
        for (model, constant, slots), size in bytes_of.items()
    ]


def _sizes_of(job: AnyJob, sizes: Mapping[tuple[str, str], Sizes | None]) -> tuple[Sizes | None, bool]:
    """Return the sizes of the tokenized corpus that a job reads, if any, and whether the job can be estimated."""
    for needed in job.needs.get("tokens", ()):
        corpus = sizes.get((needed.wildcards["model"], needed.wildcards["laid_out"]))
        return corpus, corpus is not None
    return None, True


def _seconds(job: AnyJob, config: Config, sizes: Sizes | None, threads: int) -> float:
    bytes_of_texts = sum(os.path.getsize(path) for path in files_of(job) if os.path.isfile(path))
    return seconds(job, config, sizes, threads) + bytes_of_texts / TEXT_BYTES_PER_SECOND


def _elapsed(study: Study, rows: Mapping[AnyJob, StageNeeds], cores: int) -> float:
    """Estimate wall-clock seconds: the largest of the cores' busy time, GPU time, and the longest chain of jobs."""
    ends: dict[AnyJob, float] = {}
    busy, gpu = 0.0, 0.0
    for job, row in rows.items():  # ordered by their dependencies
        ends[job] = row["seconds"] + max((ends[needed] for needed in job.needed), default=0.0)
        busy += row["seconds"] * min(study.threads(job), cores) / cores
        gpu += row["seconds"] * (job.settings.threads == "encoder") * study.config.device.startswith("cuda")
    return max(busy, gpu, max(ends.values(), default=START_SECONDS))
