"""The plan of a study: the jobs of a config, in batches, and which of them have to run.

A file that exists is up to date, so only what is missing has to run. Planning reads digests and the files' names; it
runs no model.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path

from papa.config.settings import RUN, Config, Grid, Machine
from papa.config.variant import BY_LAMBDA, ORIGINAL, RANDOM, SEEDED, Constant, Order, Variant
from papa.data.digests import digest_of_file
from papa.data.prepare import TEXTS, Prepared, prepared
from papa.data.weights import ModelFiles, model_source
from papa.errors import InputError, first_line
from papa.files import KEY_DIGITS, KEYED, Json, PathLike, digest_of_json, read_json, write_json
from papa.plan.missing import find_missing, linked
from papa.stages import (
    JOBS,
    STAGES,
    STUDY,
    AnyJob,
    Average,
    HiddenStates,
    Job,
    JobBatch,
    LearnLambda,
    Probe,
    ProbeEncoder,
    Report,
    Settings,
    Tokenize,
    Training,
    key_in,
    states_read,
    write_jobs,
)

PUBLISHED = Path(__file__).parents[1] / "data" / "published.csv"
"""The file with the numbers of the paper's tables."""
ANALYSES = Path(__file__).parents[1] / "results" / "report.py"
"""The file with the list of analyses; a new one makes reports again."""
LONGEST_NAME = 150
"""Longer names for people are cut, because a file's name may have at most 255 bytes."""
TOGETHER = 2 * 10**9
"""Variants share one job while their hidden states together have fewer bytes."""
PLAN = "plan.json"
STUDIES = "studies"
"""The folder of the cache that lists, for each study of any user, the files that it needs."""
DIFFERING_FACTS = ("seed", "sample", "kind")
"""The facts in which the jobs of a batch may differ."""
NOTHING_REPLACED = HiddenStates()
Needs = dict[str, tuple[str | None, str | None]]
"""The key and the path of each input of a job; None for what is only read, or only in the key."""


class Plan:
    """The jobs of a config, and what is missing of them.

    Args:
        config: the models and tasks to run, and all settings.
        results: the folder of the study's results; the cache for all studies lies next to it.
        machine: where models and data are on this machine; by default as the config says.
        cache: the folder of the cache.
        save: whether the tables of corpora that are read are stored in the cache.
        forced: names of rules, and paths of files, whose jobs run although their files exist.
    """

    def __init__(
        self,
        config: Config,
        results: PathLike,
        machine: Machine | None = None,
        cache: PathLike | None = None,
        save: bool = True,
        forced: Collection[str] = (),
    ):
        self.config = config
        self.results = Path(results)
        self.machine = machine or config.machine
        self.cache = self.results.parent / "cache" if cache is None else Path(cache)
        self.grids = config.analyses
        self._save = save
        self._forced = forced
        # for jobs, whose paths say where models and data are
        self._job_machine = replace(self.machine, hub_mirror=None, snapshots={})
        self._states: dict[str, AnyJob] = {}
        """The jobs of hidden states by path; those of one key are one job."""

    def orders(self, grid: Grid) -> list[Order]:
        """Return the orders of a grid, one for each seed or random draw."""
        ranking = self.config.ranking
        numbers: dict[str, Sequence[int]] = dict.fromkeys(SEEDED, ranking.seeds)
        numbers[RANDOM] = range(1, ranking.draws + 1)
        return [
            Order(name, draw) for name in grid.order_names for draw in numbers.get(name, (None,))
        ]

    @cache  # noqa: B019  a plan lives as long as its process
    def variants(self, model: str, task: str) -> dict[Variant, list[int]]:
        """Map each variant of a task to the seeds of its probes.

        The original and the context-free floors define the scale of reliance, so they get every seed of any variant.
        """
        # dictionaries as sets: the order of jobs must not differ between runs
        seeds_of: dict[Variant, dict[int, None]] = {}
        corpus = self.config.tasks[task].corpus
        for grid in self.grids.values():
            if model in grid.models and task in grid.tasks:
                for fraction, constant, order in product(
                    grid.fractions, grid.constants, self.orders(grid)
                ):
                    variant = Variant.of(
                        Constant.parse(constant).for_corpus(corpus), order, fraction
                    )
                    seeds_of.setdefault(variant, {}).update(dict.fromkeys(grid.seeds))
        if self.config.floors:
            all_seeds = dict.fromkeys(seed for seeds in seeds_of.values() for seed in seeds)
            floors = [Variant.of(Constant(floor), None, "0") for floor in self.config.floors]
            for variant in (ORIGINAL, *floors):
                seeds_of.setdefault(variant, {}).update(all_seeds)
        probed = self.config.tasks[task].target.probed  # otherwise, nothing depends on a seed
        return {variant: list(seeds) if probed else [0] for variant, seeds in seeds_of.items()}

    def streamed(self, task: str, variant: Variant) -> bool:
        """Return whether hidden states are computed during training instead of being read from a file.

        Hidden states are streamed if they change between epochs, or if no probe is trained on labels.
        """
        return (
            self.config.encoder_dropout
            or variant.trained
            or not self.config.tasks[task].target.labelled
        )

    @cache  # noqa: B019
    def data(self, corpus: str) -> Prepared:
        """Return the table of a corpus; one that is not on this machine yet has provisional digests."""
        config = self.config
        of_corpus = {
            name: config.tasks[name]
            for _, name in config.pairs
            if config.tasks[name].corpus == corpus
        }
        return prepared(
            config.corpora[corpus],
            of_corpus,
            self.machine,
            folder=self.cache / "data",
            name=corpus,
            save=self._save,
        )

    @cache  # noqa: B019
    def model(self, name: str) -> ModelFiles:
        """Return the files of a model; one that is not on this machine yet has a provisional digest."""
        return model_source(name, self.config.models[name], self.machine)

    def _texts(self, corpus: str, part: str) -> str:
        # texts only, so a corrected label rebuilds neither tokens nor averages
        digests = self.data(corpus).facts["digests"][part]
        return digest_of_json({name: digests[name] for name in TEXTS if name in digests})

    def _of_model(self, name: str) -> Needs:
        files = self.model(name)
        return {"model": (files.digest, files.folder), "checks": (None, str(self.cache / "check"))}

    def _job(
        self,
        settings: Settings,
        name: str,
        needs: Needs,
        about: Json,
        variant: HiddenStates = NOTHING_REPLACED,
    ) -> AnyJob:
        folder = f"{self.cache}/{settings.stage}"
        if settings.stage == HiddenStates.stage:
            folder = f"{self.results}/states"
        record = settings.record({need: key for need, (key, _) in needs.items() if key is not None})
        digits = record.key[:KEY_DIGITS]
        path = f"{folder}/{name[:LONGEST_NAME]}-{digits}{settings.suffix}"
        return Job(
            settings,
            record,
            reads={need: path for need, (_, path) in needs.items() if path is not None},
            output=self._files_in(folder, settings.suffix).setdefault(digits, path),
            about=about,
            label=f"label {about['task']}" if "labels" in needs else "",
            variant=variant,
            machine=self._job_machine,
        )

    @cache  # noqa: B019
    def _files_in(self, folder: str, suffix: str) -> dict[str, str]:
        """Return the files of a stage by the digits of their keys, whatever the names in other configs were."""
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return {
            key_in(name): f"{folder}/{name}"
            for name in names
            if KEYED.search(name.removesuffix(suffix))
        }

    @cache  # noqa: B019
    def tokens(self, model: str, corpus: str, slots: int | None = None) -> AnyJob:
        """Return the job of a corpus's tokens; a corpus that is only averaged has the slots of the task."""
        block = self.config.corpora[corpus]
        slots = slots or block.slots or 0
        settings = Tokenize(slots=slots, layout=self.config.layout, blocks=block.blocks)
        texts = self._texts(corpus, "all"), self.data(corpus).path
        needs = {"texts": texts} | self._of_model(model)
        return self._job(settings, f"{model}-{corpus}", needs, {"model": model, "corpus": corpus})

    def _training_tokens(self, tokens: AnyJob) -> Needs:
        """Return the key of the tokens of training texts, on which validation texts have no influence."""
        texts = self._texts(tokens.about["corpus"], "train")
        record = tokens.settings.record({**tokens.inputs, "texts": texts})
        return {"tokens": (record.key, tokens.output)}

    @cache  # noqa: B019
    def average(self, model: str, corpus: str, constant: Constant | None) -> AnyJob | None:
        """Return the job of a constant for a model on a corpus; None if the constant needs no text."""
        if constant is None or constant.data_free:
            return None
        slots = self.config.corpora[corpus].slots
        source = constant.corpus or corpus
        tokens = self.tokens(model, source, slots)
        settings = Average(kind=constant.averaged, precision=self.config.precision)
        about = {
            "model": model,
            "corpus": source,
            "slots": slots,
            "kind": settings.kind,
        }
        needs = self._training_tokens(tokens) | self._of_model(model)
        return self._job(settings, f"{model}-{source}-{settings.kind}", needs, about)

    def _constants(self, model: str, corpus: str, constant: Constant | None) -> Needs:
        averages = self.average(model, corpus, constant)
        return {} if averages is None else {"constants": (averages.key, averages.output)}

    def _labels(self, task: str) -> Needs:
        """Return the digest of the labels of training rows, and their table; nothing for a task without labels."""
        if self.config.tasks[task].label is None:
            return {}
        data = self.data(self.config.tasks[task].corpus)
        return {"labels": (data.facts["digests"]["train"][f"label {task}"], data.path)}

    def _of_task(self, task: str, seed: int, training: Training) -> Json:
        return {
            "kind": self.config.tasks[task].target.name,
            "training": training,
            "seed": seed,
            "precision": self.config.precision,
            "encoder_dropout": self.config.encoder_dropout,
        }

    @cache  # noqa: B019
    def weights(self, model: str, task: str, constant: Constant, order: str, seed: int) -> AnyJob:
        """Return the job of the weights of heads: λ, or gradients."""
        block = self.config.tasks[task]
        gradient = order not in BY_LAMBDA
        training = (
            Training.of_probe(block, block.batch_size)
            if gradient
            else Training.of(block, self.config.ranking.epochs)
        )
        learned = "gradient" if gradient else "lambda"
        settings = LearnLambda(
            **self._of_task(task, seed, training), constant=constant.start, weights=learned
        )
        needs = self._training_tokens(self.tokens(model, block.corpus)) | self._of_model(model)
        needs |= self._labels(task) | self._constants(model, block.corpus, constant)
        if gradient and not self.streamed(task, ORIGINAL):
            # in no key, because tokens and model, which are in it, determine the original's states
            needs["states"] = None, self.states(model, task, ORIGINAL).output
        about = {
            "model": model,
            "task": task,
            "corpus": block.corpus,
            "constant": constant.untrained,
            "order": learned,
            "seed": seed,
        }
        return self._job(
            settings, f"{model}-{task}-{constant.untrained}-{learned}-{seed}", needs, about
        )

    def _order_of(self, model: str, task: str, variant: Variant) -> AnyJob | None:
        """Return the job of the weights that order the heads of a variant; None if none do."""
        constant = variant.constant
        order = variant.order
        if constant is None or order is None or not order.by_weight:
            return None
        untrained = replace(constant, trained=False)
        return self.weights(model, task, untrained, order.base, order.draw or 0)

    @cache  # noqa: B019
    def _settings_of(self, variant: Variant) -> HiddenStates:
        """Return the settings of the hidden states of a variant."""
        constant = variant.constant
        order = variant.order
        # of a list, the heads are in the key: its file may move, and must not change unnoticed
        listed = self.config.lists.get(order.name) if order else None
        return HiddenStates(
            constant=constant.start if constant else None,
            trained=variant.trained,
            order=order.name if order and not listed else None,
            heads=listed_heads(listed.file) if listed else None,
            order_seed=self.config.ranking.seeds[0] if order and order.base == RANDOM else 0,
            fraction=str(variant.fraction),
            precision=self.config.precision,
        )

    @cache  # noqa: B019
    def states(self, model: str, task: str, variant: Variant) -> AnyJob:
        """Return the job of the hidden states of a task's corpus under a variant."""
        corpus = self.config.tasks[task].corpus
        tokens = self.tokens(model, corpus)
        needs = {"tokens": (tokens.key, tokens.output)} | self._of_model(model)
        needs |= self._constants(model, corpus, variant.constant)
        if learned := self._order_of(model, task, variant):
            needs["weights"] = learned.key, learned.output
        # without an order, states do not depend on the task, so all tasks on the corpus share them
        owner = task if variant.order else None
        about = {"model": model, "corpus": corpus, "task": owner}
        name = "-".join((model, owner or corpus, *variant.path.split("/")))
        job = self._job(self._settings_of(variant), name, needs, about)
        return self._states.setdefault(job.output, job)

    @cache  # noqa: B019
    def probes_of(self, model: str, task: str, variant: Variant) -> list[AnyJob]:
        """Return the jobs of a variant's probes, one for each seed, and one for each sample of training rows."""
        block = self.config.tasks[task]
        states = self.states(model, task, variant)
        streamed = self.streamed(task, variant)
        kind = ProbeEncoder if streamed else Probe
        needs: Needs = {
            "tokens": (None, states.reads["tokens"]),
            "states": (states.key, states.output),
        }
        if streamed:
            needs = {name: (None, path) for name, path in states.reads.items()}
            needs |= self._of_model(model)
            # never stored, but the key of the states stands for all that decides them
            needs["states"] = states.key, None
        needs |= self._labels(task)
        about: Json = {
            "model": model,
            "task": task,
            "corpus": block.corpus,
            "constant": variant.constant and variant.constant.name,
            "order": variant.order and variant.order.name,
            "fraction": str(variant.fraction),
            "metric": block.metric,
        }
        cluster = self.config.corpora[block.corpus].cluster
        data = self.data(block.corpus)
        drawn: Needs = {}
        if isinstance(cluster, str):
            drawn["clusters"] = data.facts["digests"]["train"]["cluster"], data.path
        size = cluster if isinstance(cluster, int) else 1
        runs = [(seed, 0) for seed in self.variants(model, task)[variant]]
        if not streamed:  # another pass of the model for each sample would take too long
            runs += [(sample, sample) for sample in range(1, 1 + self.config.resamples)]
        name = "-".join((model, task, *variant.path.split("/")))
        computed = self._settings_of(variant)
        training = Training.of_probe(block)
        jobs = list[AnyJob]()
        for seed, sample in runs:
            settings = kind(
                **self._of_task(task, seed, training),
                sample=sample,
                # without a sample, clusters change no prediction, so they must change no key
                cluster=size if sample else 1,
            )
            read = needs | drawn if sample else needs
            numbered = about | {"seed": seed, "sample": sample}
            number = f"resample-{sample}" if sample else seed
            jobs.append(self._job(settings, f"{name}-{number}", read, numbered, computed))
        return jobs

    @cached_property
    def jobs(self) -> list[AnyJob]:
        """All jobs of the study but hidden states and the report, each after the jobs that it needs."""
        by_stage: dict[str, dict[AnyJob, None]] = {stage: {} for stage in STAGES}
        for model, task in self.config.pairs:
            corpus = self.config.tasks[task].corpus
            add = lambda job: by_stage[job.stage].setdefault(job)  # noqa: E731
            for variant in self.variants(model, task):
                add(self.tokens(model, corpus))
                if averages := self.average(model, corpus, variant.constant):
                    add(self.tokens(model, averages.about["corpus"], averages.about["slots"]))
                    add(averages)
                if learned := self._order_of(model, task, variant):
                    add(learned)
                for job in self.probes_of(model, task, variant):
                    add(job)
            if self.config.patterns and task in self.config.patterns.tasks:
                add(self.average(model, corpus, Constant("average")))
        return [job for of_stage in by_stage.values() for job in of_stage]

    @cached_property
    def report(self) -> AnyJob:
        """The job of the tables, figures and the page; names, too, decide what they show."""
        jobs = sorted(self.jobs, key=lambda job: job.key)
        corpora = [self.config.tasks[task].corpus for _, task in self.config.pairs]
        inputs = {
            "artefacts": digest_of_json([[job.key, job.about] for job in jobs]),
            "published": digest_of_file(PUBLISHED),
            "analyses": digest_of_file(ANALYSES),
            **{f"data {name}": digest_of_json(self.data(name).facts) for name in corpora},
        }
        settings = Report(config=self.config.shown())
        record = settings.record(inputs)
        name = f"made-from-{record.key[:KEY_DIGITS]}{settings.suffix}"
        return Job(settings, record, reads={}, output=str(self.results / "report" / name))

    @cached_property
    def report_files(self) -> list[str]:
        """The page, tables and figures that every report of this config has, and missing ones that depend on results.

        Snakemake did not expect the latter when they were made, so it has no record of them and would say so.
        """
        names = ["summary", "claims", *self.grids]
        files = ["report/index.html", "tables/claims.json"]
        files += [
            f"tables/{name}.{suffix}" for name in names for suffix in ("parquet", "md", "tex")
        ]
        files += [f"tables/{name}.parquet" for name in ("runs", "heads", "outcomes")]
        for name, grid in self.grids.items():
            # as in `section_of`: Snakemake has to know before the run which figures there will be
            if name == RUN or set(grid.fractions) - {"0", "1"}:
                files += [f"figures/{name}.{suffix}" for suffix in ("svg", "png")]
        if os.path.exists(self.report.output):
            written = read_json(self.report.output)["files"]
            files += [file for file in written if not (self.results / file).exists()]
        return [str(self.results / file) for file in dict.fromkeys(files)]

    @cached_property
    def batches(self) -> list[JobBatch]:
        """All batches of the study, each after those that it needs; what of them has to run is marked."""
        jobs = dict[str, AnyJob]()  # tasks that only differ in their names share files
        for job in self.jobs:
            jobs.setdefault(job.output, job)
        batches = [*self._of_states(jobs.values()), *self._of_files(jobs.values())]
        batches.append(JobBatch(Report.stage, self.config.name, [self.report]))
        batches = linked(batches)
        for batch in batches:
            batch.disk_mb += sum(self._bytes(self._states[path]) for path in batch.states) // 10**6
        reported = all(map(os.path.exists, [self.report.output, *self.report_files]))
        find_missing(batches, reported, self._forced)
        return batches

    def _of_files(self, jobs: Iterable[AnyJob]) -> Iterator[JobBatch]:
        """Yield batches of the cache's files: the probes of a variant, and the averages of the same tokens."""
        together = dict[object, list[AnyJob]]()
        for job in jobs:
            company: object = job.output
            if isinstance(job.settings, Average | Probe):
                about = job.about.items()
                company = job.stage, *(fact for fact in about if fact[0] not in DIFFERING_FACTS)
            together.setdefault(company, []).append(job)
        for group in together.values():
            name = group[0].name
            if isinstance(group[0].settings, Probe):
                name = name.rpartition("-")[0].removesuffix("-resample")
            yield JobBatch(group[0].stage, name, group)

    def _of_states(self, jobs: Iterable[AnyJob]) -> Iterator[JobBatch]:
        """Yield batches of the hidden states that jobs read; together, those of a batch are small."""
        # gradients are computed from states, so these cannot wait for the states of an order by gradient
        before = states_read(job for job in jobs if isinstance(job.settings, LearnLambda))
        owned = dict[tuple[str, str, bool], list[AnyJob]]()
        for path in states_read(jobs):
            about = self._states[path].about
            owner = about["model"], about["task"] or about["corpus"], path in before
            owned.setdefault(owner, []).append(self._states[path])
        for owner, states in owned.items():
            groups = list[list[AnyJob]]()
            size = 0
            for job in states:
                size += self._bytes(job)
                if not groups or size > TOGETHER:
                    groups.append([])
                    size = self._bytes(job)
                groups[-1].append(job)
            name = f"{owner[0]}-{owner[1]}"
            for number, group in enumerate(groups):
                key = digest_of_json([*owner, number])[:KEY_DIGITS]
                marker = self.results / "states" / f"{name[:LONGEST_NAME]}-{key}.stored"
                yield JobBatch(HiddenStates.stage, name, group, str(marker))

    @cached_property
    def missing(self) -> list[JobBatch]:
        """The batches that have to run, with only the jobs that have to run."""
        return [replace(batch, jobs=list(batch.lacking)) for batch in self.batches if batch.lacking]

    def _bytes(self, job: AnyJob) -> int:
        """Return the most bytes that the hidden states of a corpus can have."""
        facts = self.data(job.about["corpus"]).facts
        sizes = self.model(job.about["model"]).sizes
        if not sizes:
            # unknown, so assume that these states leave no room for others in their job
            return TOGETHER
        slots = self.config.corpora[job.about["corpus"]].slots or 0
        rows = sum(facts["rows"].values())
        characters = sum(facts["characters"].values())
        tokens = min(rows * slots, characters + 4 * rows)
        return int(tokens * (sizes["layers"] + 1) * sizes["hidden"] * 2)

    @property
    def warnings(self) -> list[str]:
        """Sentences about what may be wrong with the data."""
        return [warning for name in self.config.corpora_run for warning in self.data(name).warnings]

    def content(self) -> Json:
        """Return what jobs and people need to know of the plan, as JSON."""
        markers = [batch.marker for batch in self.batches if batch.marker]
        place = partial(os.path.relpath, start=self.results)
        return {
            "name": self.config.name,
            "config": self.config.model_dump(mode="json", exclude_none=True),
            "data": {name: place(self.data(name).path) for name in self.config.corpora_run},
            "artefacts": [job.content() | {"path": place(job.output)} for job in self.jobs],
            # `papa inspect --prune` keeps what is listed here
            "states": sorted(map(place, [*markers, *self._states_to_store])),
        }

    @property
    def _states_to_store(self) -> list[str]:
        """The hidden states that are kept, or that a job that has to run reads."""
        kept = self.config.keep_hidden_states
        jobs = [job for batch in self.batches for job in (batch.jobs if kept else batch.lacking)]
        return states_read(jobs)

    def write(self) -> None:
        """Write plan.json, and the files of the jobs; a config that is edited during a run changes no job."""
        write_json(self.content(), self.results / PLAN)
        self._register()
        contents = {
            key_in(batch.handle): batch.content() for batch in self.batches if batch.lacking
        }
        contents[STUDY] = {
            "threads": self.config.threads,
            "report": self.report.output,
            "files": self.report_files,
        }
        # the files of forced readers exist before they run
        if not (self.config.keep_hidden_states or self._forced):
            readers = {path: list[str]() for path in sorted(self._states_to_store)}
            for job in self.jobs:
                if (states := job.reads.get("states")) in readers:
                    readers[states].append(job.output)
            contents |= {key_in(path): {"readers": paths} for path, paths in readers.items()}
        write_jobs(self.results / JOBS, contents)

    def _register(self) -> None:
        """Tell other users of the cache which of its files the study needs."""
        # one entry for a study, whatever link leads to its folder
        folder = os.path.realpath(self.results)
        files = {job.output for job in self.jobs}
        files |= {self.data(name).path for name in self.config.corpora_run}
        entry = {
            "folder": folder,
            "host": platform.node(),
            "files": sorted(os.path.relpath(file, self.cache) for file in files),
        }
        write_json(entry, self.cache / STUDIES / f"{digest_of_json(folder)}.json")


def read_plan(folder: PathLike) -> Json:
    """Read the plan of a study; raise `DamagedArtefact` if it is missing or damaged."""
    return read_json(Path(folder, PLAN))


def listed_heads(path: PathLike) -> tuple[tuple[int, int], ...]:
    """Return the heads in a CSV with the columns layer and head; raise `InputError` if it has something else."""
    try:
        # spreadsheets write a byte order mark
        header, *lines = Path(path).read_text(encoding="utf-8-sig").splitlines() or [""]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read ({first_line(error)}); give a CSV with the heads."
        ) from error
    if header.replace(" ", "") != "layer,head":
        raise InputError(
            f"{path} begins with {header!r}; a list of heads begins with the line layer,head."
        )
    heads: dict[tuple[int, int], None] = {}
    for line in filter(str.strip, lines):
        numbers = re.fullmatch(r"\s*([0-9]+)\s*,\s*([0-9]+)\s*", line)
        if numbers is None:
            raise InputError(
                f"{path} has the line {line!r}; name a head by two numbers, layer and head, such as 4,7."
            )
        head = int(numbers[1]), int(numbers[2])
        if head in heads:
            raise InputError(
                f"{path} lists head {head[1]} of layer {head[0]} twice; list each head once."
            )
        heads[head] = None
    return tuple(heads)
