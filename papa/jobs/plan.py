"""`papa plan`: estimate before a run what it takes (jobs, time, memory, disk), and how small a loss it can show.

Estimates assume that there are no earlier results. The smallest loss of a task follows from the numbers of probe seeds
and validation examples, and from how scores vary with both. This variation is measured if the config was run before,
and assumed otherwise.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from papa.config.artefacts import ARTEFACTS
from papa.config.job import AnyJob
from papa.config.measures import METRICS
from papa.config.settings import Config, Corpus
from papa.config.stages import ModelId
from papa.config.study import Study
from papa.config.variant import CONTEXTLESS, ORIGINAL
from papa.errors import InputError, count
from papa.files import footer_of
from papa.jobs.resources import (
    MB,
    SPECIAL_TOKENS,
    START_SECONDS,
    TEXT_A_SECOND,
    TOKENS_OF_A_WORD,
    Sizes,
    disk,
    disk_in_table,
    duration,
    files_of,
    memory_of,
    reader_of,
    seconds,
    size,
    sizes_of,
)

if TYPE_CHECKING:
    from rich.console import Console

    from papa.data.readers import SourceRows

SAMPLE = 2000
"""Rows of each split in which words are counted."""
POWER = 0.8
"""Probability that a task without loss is shown to lose less than the smallest loss."""
SEED_SPREAD = 0.005
"""Assumed standard deviation over probe seeds of original - replaced, as a share of the score's range."""
DISCORDANT = 0.05
"""Assumed share of examples whose outcome changes when heads are replaced; every seed changes the same ones."""
CONTRIBUTION = 0.2
"""Assumed contribution of attention to a score (original minus context-free floor), as a share of its range."""
ASSUMED = (
    f"Assumed, not measured: over probe seeds a difference from the original has a standard deviation of "
    f"{SEED_SPREAD:g} of the score's range, {100 * DISCORDANT:g} % of the examples come out differently, and attention "
    f"contributes {CONTRIBUTION:g} of the range."
)
SMALLEST_USEFUL_GAIN = 1 / 3
"""The smaller of two gains is recommended only if it is at least this share of the larger one."""
UNFIT = {
    True: "its config names no decoder of next tokens, which task {task} needs ({metric}).",
    False: "it is a decoder, which cannot predict the masked tokens of task {task}; measure it by log_likelihood.",
}
"""Why a model does not fit a task: the task needs a decoder (True), or refuses one (False)."""
TOTAL = dict.fromkeys(("jobs", "sized", "unknown", "seconds", "memory_mb", "disk_mb"), "sum") | {"memory_mb": "max"}
"""Needs of a stage: the sum or the maximum of those of its jobs."""
PlainValues = dict[str, Any]


def plan(config: Config, cores: int) -> PlainValues:
    """Estimate the needs of a config's jobs; `problems` are the reasons why something cannot run or be estimated.

    Args:
        config: a checked config.
        cores: number of cores of the workflow.
    """
    import pandas as pd

    study = Study(config, Path("results", config.name))
    problems, sizes, corpora = _sizes(study)
    jobs, rows, outcomes = study.jobs(), dict[AnyJob, PlainValues](), 0.0
    weighed = {needed for job in jobs if job.rule == "weigh_heads" for needed in job.needed}
    for job in jobs:  # inputs come before the jobs that read them
        corpus, known = _sizes_of(job, sizes)
        outcomes += disk_in_table(job, corpus)
        rows[job] = {
            "stage": job.rule,
            "depth": 1 + max((rows[needed]["depth"] for needed in job.needed), default=0),
            "jobs": 1,
            "sized": int(corpus is not None),
            "unknown": int(not known),
            "seconds": _seconds(job, config, corpus, study.threads(job)) if known else 0.0,
            "memory_mb": memory_of(job, config, corpus) if known else 0,
            "disk_mb": disk(job, config, corpus) + math.ceil(outcomes) * (job.stage == "summary") if known else 0,
            "weighed": job in weighed,
        }
    frame = pd.DataFrame(rows.values())
    stages = frame.groupby("stage", sort=False).agg(TOTAL | {"depth": "max"})
    if not config.keep_hidden_states and "hidden_states" in stages.index:
        # on the disk are those of running probes, those of the next probes, and those that weights of heads wait for
        stored = frame[frame["stage"] == "hidden_states"]
        most = 2 * cores * stored["disk_mb"].max() + stored[stored["weighed"]]["disk_mb"].sum()
        stages.loc["hidden_states", "disk_mb"] = min(stored["disk_mb"].sum(), most)
    total = {need: sum(stages[need].tolist()) for need, how in TOTAL.items() if how == "sum"}
    folder = next(folder for folder in study.results.absolute().parents if folder.exists())
    free = shutil.disk_usage(folder).free
    if total["disk_mb"] * MB > free:
        tasks = dict.fromkeys(job.wildcards["task"] for job in jobs if job.rule == "probe")
        problems.append(
            f"The disk is too small by {size(total['disk_mb'] * MB - free)}: put results on a larger one, lower "
            f"train_limit, or set `features: stream` for {', '.join(tasks)}."
        )
    return {
        "config": config.name,
        "problems": problems,
        "stages": stages.sort_values("depth", kind="stable").drop(columns="depth").reset_index().to_dict("records"),
        "total": total | {"elapsed_seconds": _elapsed(study, rows, cores), "outcomes_mb": outcomes},
        "cores": cores,
        "device": config.device,
        "free_disk_bytes": free,
        "margin": config.margin,
        "power": POWER,
        "smallest_losses": smallest_losses(study, corpora),
    }


def print_plan(estimates: PlainValues, out: Console) -> None:
    """Print a plan: problems, a table of the stages, and the total."""
    import pandas as pd

    from papa.results.table import Table, printable

    for problem in estimates["problems"]:
        out.print(printable(problem), style="bold red")
    if estimates["problems"]:
        out.print()
    rows = [
        {
            "stage": stage["stage"],
            "jobs": f"{stage['jobs']:,}" + (f" ({stage['unknown']:,} unknown)" if stage["unknown"] else ""),
            "time": duration(stage["seconds"]) if stage["seconds"] else "?",
            "memory of a job": size(stage["memory_mb"] * MB) if stage["memory_mb"] else "?",
            "disk": size(stage["disk_mb"] * MB) if stage["disk_mb"] else "?",
        }
        for stage in estimates["stages"]
    ]
    Table("", pd.DataFrame(rows), 1).print(out)
    total = estimates["total"]
    outcomes = f"; {ARTEFACTS['all_outcomes'].path()} has at most {size(total['outcomes_mb'] * MB)} of it"
    unknown = f", {total['unknown']:,} of unknown size" if total["unknown"] else ""
    out.print(
        f"\n{count(total['jobs'], 'job')}{unknown}: at most about {duration(total['elapsed_seconds'])} on "
        f"{count(estimates['cores'], 'core')} (device {estimates['device']}) and {size(total['disk_mb'] * MB)} of disk "
        f"({size(estimates['free_disk_bytes'])} are free){outcomes if total['outcomes_mb'] else ''}.",
        style="bold",
    )
    for sentence in describe_losses(estimates):
        out.print(printable(sentence))


# -- smallest losses ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """Variation of the loss (original minus replaced) on a task, as a share of attention's contribution to it.

    Args:
        seed: standard deviation over probe seeds, including the variation between orders of heads.
        example: standard deviation over validation examples.
        rare: the variance that unseen examples add, times the number of examples; see `statistics.UNSEEN_UNITS`.
        orders: whether most of the variation comes from the orders of heads.
        examples: number of measured validation examples; None before a run.
    """

    seed: float
    example: float
    rare: float = 0.0
    orders: bool = False
    examples: int | None = None

    @classmethod
    def assumed(cls, seeded: bool = True) -> Noise:
        """Return the variation assumed before a run; a model's own head has no seeds, so it is not `seeded`."""
        from papa.results.statistics import UNSEEN_UNITS

        seed = SEED_SPREAD / CONTRIBUTION if seeded else 0.0
        # the original and the replaced heads each count a few units as if they had differed
        return cls(seed, math.sqrt(DISCORDANT) / CONTRIBUTION, 2 * UNSEEN_UNITS / CONTRIBUTION**2)

    def smallest(self, seeds: int, examples: int) -> float:
        """Return the smallest loss that a task without loss can be shown to stay under."""
        from papa.results.statistics import smallest_loss

        return smallest_loss(seeds, self.seed, math.sqrt((self.example**2 + self.rare / examples) / examples), POWER)

    def helps(self, seeds: int, examples: int) -> str:
        """Return the best addition for a smaller loss: `orders`, `seeds`, `examples` or `both` of the last two."""
        if self.orders:
            return "orders"
        now = self.smallest(seeds, examples)
        by_seeds, by_examples = now - self.smallest(2 * seeds, examples), now - self.smallest(seeds, 2 * examples)
        if by_seeds < SMALLEST_USEFUL_GAIN * by_examples:
            return "examples"
        return "seeds" if by_examples < SMALLEST_USEFUL_GAIN * by_seeds else "both"


def smallest_losses(study: Study, corpora: Mapping[str, Mapping[str, Counted]]) -> list[PlainValues]:
    """Return the smallest loss of each task whose heads are replaced, or the reason `why` there is none.

    The loss is that of the worst model. `helps` is the best addition for a smaller one.

    Args:
        study: the config, and its results if it was run before.
        corpora: the rows of each split of the corpora that can be read.
    """
    config, measured = study.config, _noise_measured(study)
    losses = []
    for name in dict.fromkeys(task for _, task in config.pairs):
        task, models = config.tasks[name], [model for model, paired in config.pairs if paired == name]
        variants = [item for model in models for item in study.variants(model, name).items()]
        # losses lie between the original and the floor
        seeds = [len(seeds) for variant, seeds in variants if variant.path not in (ORIGINAL, CONTEXTLESS)]
        if not seeds:
            continue
        known = [measured[model, name] for model in models if (model, name) in measured]
        noises = [noise for noise in known if isinstance(noise, Noise)]
        if not known and METRICS[task.metric].bounded:
            noises = [Noise.assumed(seeded=task.target.probed)]
        split = None if config.corpora[task.corpus].blocks else corpora.get(task.corpus, {}).get("validation")
        counted = split and split.rows
        examples = counted or min((noise.examples or 0 for noise in noises), default=0)
        probe_seeds = min(seeds) if task.target.probed else None
        smallest = helps = why = None
        if not config.contextless:
            why = "without `contextless` no loss is measured"
        elif probe_seeds == 1:
            why = ONE_SEED
        elif known and not noises:
            why = str(known[0])
        elif not noises:
            why = "its score has no range to assume a contribution from, so it is known after a run"
        elif not examples:
            why = "its number of validation examples is not known yet"
        else:
            worst = max(noises, key=lambda noise: noise.smallest(min(seeds), examples))
            smallest, helps = worst.smallest(min(seeds), examples), worst.helps(min(seeds), examples)
        entry: PlainValues = {"task": name, "title": task.title or name, "seeds": probe_seeds}
        entry |= {"examples": counted if why else examples, "measured": bool(known)}
        entry |= {"smallest": smallest, "helps": helps, "why": why}
        losses.append(entry)
    return losses


ONE_SEED = "one seed"


def describe_losses(estimates: PlainValues) -> list[str]:
    """Describe the smallest losses of a plan in sentences."""
    entries = estimates["smallest_losses"]
    known = [entry for entry in entries if entry["smallest"] is not None]
    measured = [entry["title"] for entry in known if entry["measured"]]
    sentences = []
    if known:
        listed = ", ".join(f"{entry['title']} {_under(entry)} ({_counts(entry)})" for entry in known)
        sentences.append(
            f"Smallest loss: a task that loses nothing is shown, with {100 * estimates['power']:.0f} % power, to lose "
            f"less than this share of what attention contributes: {listed}."
        )
    if measured:
        sentences.append(f"Estimated from the measured results of {', '.join(measured)}.")
    if len(measured) < len(known):
        sentences.append(ASSUMED)
    for entry in known:
        if entry["smallest"] >= estimates["margin"]:
            sentences.append(
                f"A margin of {100 * estimates['margin']:g} % is unlikely to be shown for {entry['title']} with "
                f"{_counts(entry, ' and ')} (smallest: {_under(entry)}): {HELPS[entry['helps']]}."
            )
    reasons: dict[str, list[str]] = {}
    for entry in sorted(entries, key=lambda entry: entry["why"] != ONE_SEED):
        if entry["why"] is not None:
            reasons.setdefault(entry["why"], []).append(entry["title"])
    for why, titles in reasons.items():
        listed = ", ".join(titles)
        if why == ONE_SEED:
            sentences.append(f"With one seed nothing can be claimed for {listed}: two or more seeds are needed.")
        else:
            sentences.append(f"No smallest loss for {listed}: {why}.")
    return sentences


HELPS = {
    "seeds": "more examples help little, more seeds do",
    "examples": "more seeds help little, more examples do",
    "both": "more seeds and more examples help",
    "orders": "the order of heads varies most, so more orders (`ranking`) help most",
}


def _under(entry: PlainValues) -> str:
    """Round a smallest loss up to a whole percentage."""
    return f"{math.ceil(100 * entry['smallest'])} %" if entry["smallest"] < 1 else "100 % or more"


def _counts(entry: PlainValues, between: str = ", ") -> str:
    seeds = f"{count(entry['seeds'], 'seed')}{between}" if entry["seeds"] else ""
    return f"{seeds}{count(entry['examples'], 'example')}"


def _noise_measured(study: Study) -> dict[tuple[str, str], Noise | str]:
    """Return how a config's results vary on each model and task, or the reason why they allow no conclusion.

    The variation is that of the setting with the smallest loss, whose true loss is nearest to 0. Tasks without results,
    or with a single seed, are left out.
    """
    path = study.results / ARTEFACTS["all_outcomes"].path()
    if not path.is_file():
        return {}
    from papa.results.compare import read_outcomes
    from papa.results.losses import COUNTS, loss_of, status_of
    from papa.results.outcomes import ALL, FLOOR, ORIGINALS

    try:
        outcomes, _ = read_outcomes(path)
    except InputError:  # the workflow reports and rebuilds it
        return {}
    noises: dict[tuple[str, str], Noise | str] = {}
    for key, outcome in outcomes.items():
        if key not in study.config.pairs or outcome.metric != study.config.tasks[outcome.task].metric:
            continue
        sample = outcome.sample(outcome.metric, outcome.subsets()[ALL])
        ends = sample.spread(ORIGINALS, FLOOR)
        if ends is None or not ends.known:
            continue
        status = status_of(sample, outcome, outcome.metric)
        if status != COUNTS:
            noises[key] = status
            continue
        replaced = [setting for setting in sample.settings if setting not in (ORIGINALS, FLOOR)]
        losses = [loss for setting in replaced if (loss := loss_of(sample, {setting: 1.0})) is not None]
        if losses:
            loss = min(losses, key=lambda loss: abs(loss.in_scores().mean))
            lost = loss.in_scores()
            unit = lost.variance / loss.contribution**2
            examples, shares = sample.values.shape[1], lost.shares
            seed = math.sqrt(unit * (1 - shares["examples"]) * loss.spread.seeds)
            example = math.sqrt(unit * shares["examples"] * examples)
            noises[key] = Noise(seed, example, 0.0, shares["order"] > 0.5, examples)
    return noises


# -- needs ------------------------------------------------------------------------------------------------------------


def _sizes(study: Study) -> tuple[list[str], dict[tuple[str, str], Sizes | None], dict[str, dict[str, Counted]]]:
    """Return problems, the sizes of each pair of a model and a laid-out corpus (None if unknown), and the corpora."""
    from papa.data.tokenize import is_decoder, sizes_of_model

    config = study.config
    problems, models, corpora = list[str](), dict[str, dict[str, int]](), dict[str, dict[str, Counted]]()
    for model in dict.fromkeys(model for model, _ in config.pairs):
        try:
            identity = ModelId.of(model, config.models[model])
            models[model], decodes = sizes_of_model(identity, config.machine), is_decoder(identity, config.machine)
        except InputError as error:
            problems.append(f"Model {model}: {error}")
            continue
        for task in (task for name, task in config.pairs if name == model):
            needed, metric = config.tasks[task].target.decoder, config.tasks[task].metric
            if needed is not None and needed != decodes:
                problems.append(f"Model {model}: {UNFIT[needed].format(task=task, metric=metric)}")
    run = {task for _, task in config.pairs}
    for corpus in config.corpora_run:
        try:
            tasks = [task for name, task in config.tasks.items() if task.corpus == corpus and name in run]
            columns = [name for task in tasks for name in (task.label, task.subset) if name]
            texts = study.results / study.path("texts", corpus=corpus)
            corpora[corpus] = _count_rows(config.corpora[corpus], texts, columns, config.hub_mirror)
        except InputError as error:
            problems.append(f"Corpus {corpus}: {error}")
    sizes: dict[tuple[str, str], Sizes | None] = {}
    laid_out = {job.wildcards["laid_out"] for job in study.jobs() if job.rule == "tokenize"}
    for model, layout in product(models, laid_out):
        corpus, _, slots = layout.partition("/slots-")
        folder = study.results / study.path("tokens", model=model, laid_out=layout)
        if folder.exists() and (known := sizes_of(folder)):
            sizes[model, layout] = known
        elif corpus in corpora:
            settings = config.corpora[corpus]
            sizes[model, layout] = _laid_out(
                models[model], corpora[corpus], int(slots or settings.slots or 0), settings.blocks
            )
    return problems, sizes, corpora


class Counted(NamedTuple):
    """Rows of a split, mean words of an example, and examples per row: each of a question's `choices` is an example."""

    rows: int
    words: float
    choices: float = 1.0


def _count_rows(corpus: Corpus, texts: Path, columns: Sequence[str], mirror: str | None) -> dict[str, Counted]:
    """Count the rows and words of each split of a corpus.

    Raises `InputError` if the corpus cannot be read yet, or if it lacks one of the `columns` that tasks read.
    """
    from papa.data.sources import load_rows

    if corpus.hub is not None and mirror is None and not texts.exists():
        raise InputError(
            f"the size of {corpus.hub} is known once it is prepared (snakemake --until prepare_texts); its jobs are "
            "counted, but not estimated."
        )
    prepared = footer_of(texts)[0]["rows"] if texts.exists() else {}
    splits = {}
    for split in corpus.splits:
        rows = load_rows(corpus, split, mirror=mirror)
        number = prepared.get(split, rows.table.num_rows)
        if split == "train" and corpus.train_limit is not None:
            number = min(number, corpus.train_limit)
        splits[split] = Counted(number, *_words(corpus, rows, columns))
    return splits


def _words(corpus: Corpus, rows: SourceRows, columns: Sequence[str]) -> tuple[float, float]:
    """Return the mean numbers of words per example and of choices per row, in the first rows."""
    from papa.data.columns import Columns
    from papa.data.readers import SourceRows

    names = [name for name in (corpus.first, corpus.second, corpus.words) if name is not None]
    for name in (*names, *corpus.columns_of_choices, *columns):
        if name not in rows.names:
            raise InputError(f"it has no column {name!r}; its columns are {', '.join(rows.names)}.")
    sample = rows.table.slice(0, SAMPLE)
    words = sum(
        fmean(len(text if isinstance(text, list) else str(text).split()) for text in sample.column(name).to_pylist())
        for name in names
    )
    if corpus.choices is None:
        return words, 1.0
    choices = Columns("it", SourceRows(sample, rows.names)).choices(corpus.choices)
    return words + fmean(len(choice.split()) for row in choices for choice in row), fmean(map(len, choices))


def _laid_out(model: Mapping[str, int], splits: Mapping[str, Counted], slots: int, blocks: bool) -> Sizes:
    """Estimate the sizes of a laid-out corpus from its rows and words."""
    examples, tokens = dict[str, int](), 0.0
    choices = max(counted.choices for counted in splits.values())
    for split, (questions, words, per_question) in splits.items():
        rows = round(questions * per_question)
        each = words * TOKENS_OF_A_WORD + (0 if blocks else SPECIAL_TOKENS)
        examples[split] = max(1, round(rows * each / slots)) if blocks else rows
        tokens += rows * each if blocks else rows * min(each, slots)
    scored = max((number for split, number in examples.items() if split != "train"), default=0)
    corpus = {"slots": slots, "examples": sum(examples.values()), "tokens": round(tokens), "scored": scored}
    return Sizes(**model, **corpus, choices=choices)


def _sizes_of(job: AnyJob, sizes: Mapping[tuple[str, str], Sizes | None]) -> tuple[Sizes | None, bool]:
    """Return the sizes of the laid-out corpus that a job reads, if any, and whether the job can be estimated."""
    for needed in reader_of(job).needs.get("tokens", ()):
        corpus = sizes.get((needed.wildcards["model"], needed.wildcards["laid_out"]))
        return corpus, corpus is not None
    return None, True


def _seconds(job: AnyJob, config: Config, sizes: Sizes | None, threads: int) -> float:
    bytes_of_texts = sum(os.path.getsize(path) for path in files_of(job) if os.path.isfile(path))
    return seconds(job, config, sizes, threads) + bytes_of_texts / TEXT_A_SECOND


def _elapsed(study: Study, rows: Mapping[AnyJob, PlainValues], cores: int) -> float:
    """Estimate wall-clock seconds: the largest bound of all cores, the GPU and the longest chain of jobs."""
    ends: dict[AnyJob, float] = {}
    busy, gpu = 0.0, 0.0
    for job, row in rows.items():  # inputs come before the jobs that read them
        ends[job] = row["seconds"] + max((ends[needed] for needed in job.needed), default=0.0)
        busy += row["seconds"] * min(study.threads(job), cores) / cores
        gpu += row["seconds"] * (job.settings.threads == "encoder") * study.config.device.startswith("cuda")
    return max(busy, gpu, max(ends.values(), default=START_SECONDS))
