"""Estimate before a run what a config needs (jobs, time, memory and disk of each stage) and what it can show.

Needs are those of a run that starts from nothing. A task can be shown to stay under some smallest loss. It follows from
the numbers of probe seeds and validation examples, and from how much scores vary with both. The variation is measured
if the config was run before, and assumed otherwise.
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
from papa.config.settings import Config, Corpus, Machine
from papa.config.stages import HiddenOf, ModelId, TextsOf
from papa.config.study import Study
from papa.config.variant import CONTEXTLESS, ORIGINAL
from papa.errors import InputError, count
from papa.files import footer_of
from papa.jobs.resources import START_SECONDS, Sizes, disk, disk_in_table, duration, memory_of, seconds, size, sizes_of

if TYPE_CHECKING:
    from rich.console import Console

    from papa.data.readers import Rows

MB = 10**6
SAMPLE = 2000
"""Rows of a split whose words are counted."""
TOKENS_OF_A_WORD, SPECIAL_TOKENS = 1.3, 3
READ_AT = 1e5
"""Bytes of texts that are read in a second."""
POWER = 0.8
"""How often a task that loses nothing is to be shown to lose less than the smallest loss."""
SEED_SPREAD = 0.005
"""Assumed standard deviation over probe seeds of original - replaced, as a share of the score's range."""
DISCORDANT = 0.05
"""Assumed share of the examples that come out differently when heads are replaced, the same ones with every seed."""
CONTRIBUTION = 0.2
"""Assumed contribution of attention to a score, original - contextless, as a share of the score's range."""
ASSUMED = (
    f"Assumed, not measured: over probe seeds a difference from the original has a standard deviation of "
    f"{SEED_SPREAD:g} of the score's range, {100 * DISCORDANT:g} % of the examples come out differently, and attention "
    f"contributes {CONTRIBUTION:g} of the range."
)
SMALLEST_USEFUL_GAIN = 1 / 3
"""Below this ratio of gains only the larger is advised."""
Found = dict[str, Any]


def plan(config: Config, cores: int) -> Found:
    """What the jobs of a config take, as plain values; problems name what will not run, or could not be estimated.

    Args:
        config: a checked config.
        cores: cores that the workflow is to have.
    """
    study = Study(config, Path("results", config.name))
    problems, sizes, rows = _sizes(study)
    jobs, stages = study.jobs(), dict[str, Found]()
    taken, depth = dict[AnyJob, float](), dict[AnyJob, int]()
    outcomes, largest, waiting = 0.0, 0, 0
    weighed = {needed for job in jobs if job.rule == "weigh_heads" for needed in job.needed}
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
        outcomes += disk_in_table(job, own)
        table = math.ceil(outcomes) if job.stage == "summary" else 0
        written = disk(job, config, own) + table if known else 0
        stage["disk_mb"] += written
        if job.rule == "hidden_states":
            largest, waiting = max(largest, written), waiting + written * (job in weighed)
    if not config.keep_hidden_states and "hidden_states" in stages:
        # those that running probes read, those that were made for the next ones, and those that wait for weights
        found = stages["hidden_states"]
        found["disk_mb"] = min(found["disk_mb"], 2 * cores * largest + waiting)
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
        "total": total | {"elapsed_seconds": _elapsed(study, jobs, taken, cores), "outcomes_mb": outcomes},
        "cores": cores,
        "device": config.device,
        "free_disk_bytes": free,
        "margin": config.margin,
        "power": POWER,
        "smallest_losses": smallest_losses(study, rows),
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
    outcomes = f"; {ARTEFACTS['all_outcomes'].path()} has at most {size(total['outcomes_mb'] * MB)} of it"
    unknown = f", {total['unknown']:,} of unknown size" if total["unknown"] else ""
    out.print(
        f"\n{count(total['jobs'], 'job')}{unknown}: at most about {duration(total['elapsed_seconds'])} on "
        f"{count(found['cores'], 'core')} (device {found['device']}) and {size(total['disk_mb'] * MB)} of disk "
        f"({size(found['free_disk_bytes'])} are free){outcomes if total['outcomes_mb'] else ''}.",
        style="bold",
    )
    for sentence in told_of(found):
        out.print(printable(sentence))


# -- what can be told -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """How much original - replaced varies on a task, as a share of what attention contributes to it.

    Args:
        seed: standard deviation over probe seeds, with what orders of heads add to it.
        example: standard deviation over validation examples.
        rare: the square that unseen examples add to it, times their number; see `statistics.UNSEEN_UNITS`.
        orders: whether most of it comes from the orders of heads.
        examples: how many validation examples were measured; None if nothing was.
    """

    seed: float
    example: float
    rare: float = 0.0
    orders: bool = False
    examples: int | None = None

    @classmethod
    def assumed(cls, seeded: bool = True) -> Noise:
        """What is taken for granted before a run of probes; or of a model's own head, which has no seeds."""
        from papa.results.statistics import UNSEEN_UNITS

        seed = SEED_SPREAD / CONTRIBUTION if seeded else 0.0
        # both the original and what is compared with it count a few units as if they had differed
        return cls(seed, math.sqrt(DISCORDANT) / CONTRIBUTION, 2 * UNSEEN_UNITS / CONTRIBUTION**2)

    def smallest(self, seeds: int, examples: int) -> float:
        """The smallest loss that a task which loses nothing can be shown to stay under."""
        from papa.results.statistics import smallest_loss

        return smallest_loss(seeds, self.seed, math.sqrt((self.example**2 + self.rare / examples) / examples), POWER)

    def helps(self, seeds: int, examples: int) -> str:
        """What makes the smallest loss smaller: `seeds`, `examples` or `both`, by what twice as many would do."""
        if self.orders:
            return "orders"
        now = self.smallest(seeds, examples)
        by_seeds, by_examples = now - self.smallest(2 * seeds, examples), now - self.smallest(seeds, 2 * examples)
        if by_seeds < SMALLEST_USEFUL_GAIN * by_examples:
            return "examples"
        return "seeds" if by_examples < SMALLEST_USEFUL_GAIN * by_seeds else "both"


def smallest_losses(study: Study, rows: Mapping[str, Mapping[str, int]]) -> list[Found]:
    """The smallest loss of each task of a config that replaces heads, or `why` there is none.

    A task is as good as the worst of its models. `helps` is what would make its smallest loss smaller.

    Args:
        study: the config, and its results if it was run before.
        rows: of each split of each corpus, as far as they are known.
    """
    config, found, measured = study.config, list[Found](), _noise_measured(study)
    for task in dict.fromkeys(task for _, task in config.pairs):
        given, models = config.tasks[task], [model for model, own in config.pairs if own == task]
        seeds = [
            len(own)
            for model in models
            for variant, own in study.variants(model, task).items()
            if variant.path not in (ORIGINAL, CONTEXTLESS)  # the two ends, between which losses lie
        ]
        if not seeds:
            continue
        known = [own for model in models if (own := measured.get((model, task))) is not None]
        noises = [own for own in known if isinstance(own, Noise)]
        counted = None if config.corpora[given.corpus].blocks else rows.get(given.corpus, {}).get("validation")
        of_probes = min(seeds) if given.target.probed else None
        entry: Found = {"task": task, "title": given.title or task, "seeds": of_probes, "examples": counted}
        entry |= {"measured": bool(known), "smallest": None, "helps": None, "why": None}
        found.append(entry)
        if not known and METRICS[given.metric].bounded:
            noises = [Noise.assumed(seeded=given.target.probed)]
        examples = counted or min((own.examples or 0 for own in noises), default=0)
        if not config.contextless:
            entry["why"] = "without `contextless` no loss is measured"
        elif of_probes == 1:
            entry["why"] = ONE_SEED
        elif known and not noises:
            entry["why"] = str(known[0])
        elif not noises:
            entry["why"] = "its score has no range that a contribution could be assumed of, so it is known after a run"
        elif not examples:
            entry["why"] = "how many validation examples it has is not known yet"
        else:
            worst = max(noises, key=lambda own: own.smallest(min(seeds), examples))
            entry |= {"examples": examples, "smallest": worst.smallest(min(seeds), examples)}
            entry["helps"] = worst.helps(min(seeds), examples)
    return found


ONE_SEED = "one seed"


def told_of(found: Found) -> list[str]:
    """What a plan says of smallest losses, in sentences."""
    entries = found["smallest_losses"]
    known = [entry for entry in entries if entry["smallest"] is not None]
    said = []
    if known:
        listed = ", ".join(f"{entry['title']} {_under(entry)} ({_counts(entry)})" for entry in known)
        said.append(
            f"Smallest loss: a task that loses nothing is shown, with {100 * found['power']:.0f} % power, to lose less "
            f"than this share of what attention contributes: {listed}."
        )
        of_runs = [entry["title"] for entry in known if entry["measured"]]
        if of_runs:
            said.append(f"Estimated from what was measured for {', '.join(of_runs)}.")
        if len(of_runs) < len(known):
            said.append(ASSUMED)
    for entry in known:
        if entry["smallest"] >= found["margin"]:
            said.append(
                f"A margin of {100 * found['margin']:g} % is unlikely to be shown for {entry['title']} with "
                f"{_counts(entry, ' and ')} (smallest: {_under(entry)}): {HELPS[entry['helps']]}."
            )
    alone = [entry["title"] for entry in entries if entry["why"] == ONE_SEED]
    if alone:
        said.append(f"With one seed nothing can be claimed for {', '.join(alone)}: two or more seeds are needed.")
    others: dict[str, list[str]] = {}
    for entry in entries:
        if entry["why"] not in (None, ONE_SEED):
            others.setdefault(entry["why"], []).append(entry["title"])
    return said + [f"No smallest loss for {', '.join(titles)}: {why}." for why, titles in others.items()]


HELPS = {
    "seeds": "more examples help little, more seeds do",
    "examples": "more seeds help little, more examples do",
    "both": "more seeds and more examples help",
    "orders": "what varies most is the order of heads, so more orders (`ranking`) help most",
}


def _under(entry: Found) -> str:
    """The next whole percentage that can be shown."""
    return f"{math.ceil(100 * entry['smallest'])} %" if entry["smallest"] < 1 else "100 % or more"


def _counts(entry: Found, between: str = ", ") -> str:
    seeds = f"{count(entry['seeds'], 'seed')}{between}" if entry["seeds"] else ""
    return f"{seeds}{count(entry['examples'], 'example')}"


def _noise_measured(study: Study) -> dict[tuple[str, str], Noise | str]:
    """How much the results of a config vary on each model and task, or why no conclusion is possible.

    Taken from the setting that lost least, whose true loss is nearest to 0. Tasks that were not run, or with one seed
    only, are left out.
    """
    path = study.results / ARTEFACTS["all_outcomes"].path()
    if not path.is_file():
        return {}
    from papa.results.compare import read_outcomes
    from papa.results.losses import COUNTS, loss_of, status_of
    from papa.results.outcomes import ALL, FLOOR, ORIGINALS

    try:
        measured, _ = read_outcomes(path)
    except InputError:  # the workflow says so, and makes it again
        return {}
    found: dict[tuple[str, str], Noise | str] = {}
    for key, own in measured.items():
        if key not in study.config.pairs or own.metric != study.config.tasks[own.task].metric:
            continue
        sample = own.sample(own.metric, own.subsets()[ALL])
        ends = sample.spread(ORIGINALS, FLOOR)
        if ends is None or not ends.known:
            continue
        status = status_of(sample, own, own.metric)
        if status != COUNTS:
            found[key] = status
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
            found[key] = Noise(seed, example, 0.0, shares["order"] > 0.5, examples)
    return found


# -- what it takes ----------------------------------------------------------------------------------------------------


def _sizes(study: Study) -> tuple[list[str], dict[tuple[str, str], Sizes | None], dict[str, dict[str, int]]]:
    """Problems of models and corpora, the sizes of each model and laid-out corpus (None if not known), and rows.

    Rows are those of each split of each corpus.
    """
    config = study.config
    problems, models, corpora = list[str](), dict[str, dict[str, int]](), dict[str, dict[str, Counted]]()
    for model in dict.fromkeys(model for model, _ in config.pairs):
        try:
            models[model], says_next = _of_model(ModelId.of(model, config.models[model]), config.machine)
        except InputError as error:
            problems.append(f"Model {model}: {error}")
            continue
        for task in (task for name, task in config.pairs if name == model):
            needed = config.tasks[task].target.decoder
            if needed and not says_next:
                metric = config.tasks[task].metric
                problems.append(
                    f"Model {model}: its config names no decoder of next tokens, which task {task} needs ({metric})."
                )
            elif needed is False and says_next:
                problems.append(
                    f"Model {model}: it is a decoder, which cannot guess the masked tokens of task {task}; measure it "
                    "by log_likelihood."
                )
    for corpus in config.corpora_run:
        try:
            of_tasks = [task for _, task in config.pairs if config.tasks[task].corpus == corpus]
            columns = [
                name for task in of_tasks for name in (config.tasks[task].label, config.tasks[task].subset) if name
            ]
            texts = study.results / study.path("texts", corpus=corpus)
            corpora[corpus] = _counted(config.corpora[corpus], texts, columns, config.hub_mirror)
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
    rows = {name: {split: counted.rows for split, counted in own.items()} for name, own in corpora.items()}
    return problems, sizes, rows


def _of_model(model: ModelId, machine: Machine) -> tuple[dict[str, int], bool]:
    """The sizes of a model, and whether it says next tokens; raises `InputError` if it is not to be had."""
    from papa.data.tokenize import is_decoder, sizes_of_model

    return sizes_of_model(model, machine), is_decoder(model, machine)


class Counted(NamedTuple):
    """Rows of a split, and words of an example on average; of questions, each of the `choices` is an example."""

    rows: int
    words: float
    choices: float = 1.0


def _counted(corpus: Corpus, texts: Path, columns: Sequence[str], mirror: str | None) -> dict[str, Counted]:
    """What is in each split of a corpus.

    Raises `InputError` if that is not known here, or if one of the `columns`, which tasks read, is not there.
    """
    from papa.data.sources import load_rows

    if corpus.hub is not None and mirror is None and not texts.exists():
        raise InputError(
            f"how large {corpus.hub} is will be known when it is prepared (snakemake --until prepare_texts); its jobs "
            "are counted, and not estimated."
        )
    rows = footer_of(texts)[0]["rows"] if texts.exists() else {}
    found = {}
    for split in corpus.splits:
        own = load_rows(corpus, split, mirror=mirror)
        number = rows.get(split, own.table.num_rows)
        if split == "train" and corpus.train_limit is not None:
            number = min(number, corpus.train_limit)
        found[split] = Counted(number, *_words(corpus, own, columns))
    return found


def _words(corpus: Corpus, rows: Rows, columns: Sequence[str]) -> tuple[float, float]:
    """Words of an example on average, and choices of a row, in the first rows."""
    from papa.data.columns import Columns
    from papa.data.readers import Rows as Few

    names = [name for name in (corpus.first, corpus.second, corpus.words) if name is not None]
    for name in (*names, *corpus.columns_of_choices, *columns):
        if name not in rows.names:
            raise InputError(f"it has no column {name!r}; its columns are {', '.join(rows.names)}.")
    few = rows.table.slice(0, SAMPLE)
    words = sum(
        fmean(len(text if isinstance(text, list) else str(text).split()) for text in few.column(name).to_pylist())
        for name in names
    )
    if corpus.choices is None:
        return words, 1.0
    choices = Columns("it", Few(few, rows.names)).choices(corpus.choices)
    return words + fmean(len(choice.split()) for row in choices for choice in row), fmean(map(len, choices))


def _laid_out(model: Mapping[str, int], splits: Mapping[str, Counted], slots: int, blocks: bool) -> Sizes:
    """The sizes of a corpus in so many slots, from its rows and words."""
    examples, tokens = dict[str, int](), 0.0
    choices = max(counted.choices for counted in splits.values())
    for split, (questions, words, own) in splits.items():
        rows = round(questions * own)
        each = words * TOKENS_OF_A_WORD + (0 if blocks else SPECIAL_TOKENS)
        examples[split] = max(1, round(rows * each / slots)) if blocks else rows
        tokens += rows * each if blocks else rows * min(each, slots)
    scored = max((number for split, number in examples.items() if split != "train"), default=0)
    found = {"slots": slots, "examples": sum(examples.values()), "tokens": round(tokens), "scored": scored}
    return Sizes(**model, **found, choices=choices)


def _sizes_of(job: AnyJob, sizes: Mapping[tuple[str, str], Sizes | None]) -> tuple[Sizes | None, bool]:
    """The sizes of the laid-out corpus that a job reads, and whether what it takes is known."""
    source = job.needs["parts"][0] if "parts" in job.needs else job
    for needed in source.needs.get("tokens", ()):
        own = sizes.get((needed.wildcards["model"], needed.wildcards["laid_out"]))
        return own, own is not None
    return None, True


def _seconds(job: AnyJob, config: Config, sizes: Sizes | None, threads: int) -> float:
    read = [own.settings for own in (job, *job.needs.get("texts", ())) if isinstance(own.settings, TextsOf)]
    files = [path for told in read for _, path in told.corpus.files or () if path and os.path.isfile(path)]
    return seconds(job, config, sizes, threads) + sum(os.path.getsize(path) for path in files) / READ_AT


def _elapsed(study: Study, jobs: list[AnyJob], taken: Mapping[AnyJob, float], cores: int) -> float:
    """Seconds by the clock: all cores busy, but no shorter than the longest chain of jobs, or the jobs of one GPU."""
    ends: dict[AnyJob, float] = {}
    for job in jobs:  # inputs stand before what is made of them
        ends[job] = taken[job] + max((ends[needed] for needed in job.needed), default=0.0)
    busy = sum(taken[job] * min(study.threads(job), cores) for job in jobs) / cores
    gpu = sum(taken[job] for job in jobs if job.settings.threads == "encoder") * study.config.device.startswith("cuda")
    return max(busy, gpu, max(ends.values(), default=START_SECONDS))
