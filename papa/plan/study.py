"""The plan of a study: the jobs of a config, and the batches of jobs that have to run.

A file that exists is up to date, so the plan consists of what is missing. Planning reads digests and the files' names;
it runs no model.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from graphlib import TopologicalSorter
from itertools import product
from pathlib import Path
from typing import Any

from papa.config.settings import Config, Grid, Machine
from papa.config.variant import BY_LAMBDA, ORIGINAL, RANDOM, SEEDED, Constant, Order, Variant
from papa.data.digests import digest_of_file
from papa.data.prepare import Prepared, prepared
from papa.data.weights import ModelFiles, model_source
from papa.files import KEY_DIGITS, PathLike, Record, digest_of_json, read_json, write_json
from papa.plan.jobs import (
    STAGES,
    AnyJob,
    Average,
    HiddenStates,
    Job,
    LearnLambda,
    Probe,
    ProbeEncoder,
    Report,
    Settings,
    Tokenize,
    Training,
)

TEXT_COLUMNS = ("first", "second", "words")
PUBLISHED = Path(__file__).parents[1] / "data" / "published.csv"
"""The file with the numbers of the paper's tables."""
ANALYSES = Path(__file__).parents[1] / "results" / "report.py"
"""The file with the list of analyses; a new one makes reports again."""
TOGETHER = 2 * 10**9
"""Variants share one job while their hidden states together have fewer bytes."""
PLAN = "plan.json"


@dataclass
class JobGroup:
    """Jobs of one stage that run together in one process, such as the seeds of a probe.

    Args:
        rule: the rule of the workflow, which is named after the stage.
        name: a name for people.
        jobs: the jobs, in the order in which they run.
        waits: the handles of the batches that have to run before this one.
    """

    rule: str
    name: str
    jobs: list[AnyJob]
    waits: list[str] = field(default_factory=list)

    @property
    def handle(self) -> str:
        """The only path that Snakemake knows: the file that is written last, or the folder of hidden states."""
        return self.jobs[-1].folder if self.rule == HiddenStates.stage else self.jobs[-1].output

    @property
    def key(self) -> str:
        """The digits at the end of the handle's name."""
        return Path(self.handle).stem[-KEY_DIGITS:]


class Plan:
    """The jobs of a config, and what is missing of them.

    Args:
        config: the models and tasks to run, and all settings.
        results: the folder of the study's results; the cache for all studies lies next to it.
        machine: where models and data are on this machine; by default as the config says.
        cache: the folder of the cache.
        save: whether the tables of corpora that are read are stored in the cache.
    """

    def __init__(
        self,
        config: Config,
        results: PathLike,
        machine: Machine | None = None,
        cache: PathLike | None = None,
        save: bool = True,
    ):
        self.config, self.results = config, Path(results)
        self.machine = machine or config.machine
        self.cache = self.results.parent / "cache" if cache is None else Path(cache)
        self.grids: dict[str, Grid] = config.analyses
        self._save = save
        self._states: dict[str, AnyJob] = {}
        """The jobs of hidden states by path; those of one key are one job."""

    # -- variants -----------------------------------------------------------------------------------------------------

    def orders(self, grid: Grid) -> list[Order]:
        """Return the orders of a grid, one for each seed or random draw."""
        ranking = self.config.ranking
        numbers: dict[str, Sequence[int]] = dict.fromkeys(SEEDED, ranking.seeds)
        numbers[RANDOM] = range(1, ranking.draws + 1)
        return [Order(name, draw) for name in grid.order_names for draw in numbers.get(name, (None,))]

    @cache  # noqa: B019  a plan lives as long as its process
    def variants(self, model: str, task: str) -> dict[Variant, list[int]]:
        """Map each variant of a task to the seeds of its probes.

        The original and the context-free floors define the scale of losses, so they get every seed of any variant.
        """
        seeds_of: dict[Variant, dict[int, None]] = {}
        corpus = self.config.tasks[task].corpus
        for grid in self.grids.values():
            if model in grid.models and task in grid.tasks:
                for fraction, constant, order in product(grid.fractions, grid.constants, self.orders(grid)):
                    variant = Variant.of(Constant.parse(constant).for_corpus(corpus), order, fraction)
                    seeds_of.setdefault(variant, {}).update(dict.fromkeys(grid.seeds))
        if self.config.floors:
            all_seeds = dict.fromkeys(seed for seeds in seeds_of.values() for seed in seeds)
            for variant in (Variant.parse(ORIGINAL), *(Variant.parse(f"{floor}/all") for floor in self.config.floors)):
                seeds_of.setdefault(variant, {}).update(all_seeds)
        if not self.config.tasks[task].target.probed:  # nothing is trained, so nothing depends on a seed
            return {variant: [0] for variant in seeds_of}
        return {variant: list(seeds) for variant, seeds in seeds_of.items()}

    def streamed(self, task: str, variant: Variant) -> bool:
        """Return whether hidden states are computed during training instead of being read from a file.

        Hidden states are streamed if they change between epochs, or if no probe is trained on labels.
        """
        return self.config.encoder_dropout or variant.trained or not self.config.tasks[task].target.labelled

    # -- data and models ----------------------------------------------------------------------------------------------

    @cache  # noqa: B019
    def data(self, corpus: str) -> Prepared:
        """Return the table of a corpus; one that is not on this machine yet has provisional digests."""
        tasks = {task: self.config.tasks[task] for _, task in self.config.pairs}
        of_corpus = {name: task for name, task in tasks.items() if task.corpus == corpus}
        return prepared(self.config.corpora[corpus], of_corpus, self.machine, self.cache / "data", corpus, self._save)

    @cache  # noqa: B019
    def model(self, name: str) -> ModelFiles:
        """Return the files of a model; one that is not on this machine yet has a provisional digest."""
        return model_source(name, self.config.models[name], self.machine)

    def _texts(self, corpus: str, part: str) -> str:
        digests = self.data(corpus).facts["digests"][part]
        return digest_of_json({name: digests[name] for name in TEXT_COLUMNS if name in digests})

    def _of_model(self, name: str) -> tuple[dict[str, str], dict[str, str]]:
        files = self.model(name)
        return {"model": files.digest}, {"model": files.folder, "checks": str(self.cache / "check")}

    def _job(self, settings: Settings, name: str, needs: Any, about: dict[str, Any]) -> AnyJob:
        inputs, reads = dict[str, str](), dict[str, str]()
        for more_inputs, more_reads in needs:
            inputs |= more_inputs
            reads |= more_reads
        folder = str(self.cache / settings.stage)
        machine = Machine(device=self.machine.device, token_budget=self.machine.token_budget)
        job = Job(settings, inputs, reads, name, folder, about, machine)
        made = self._made(settings.stage)
        return job.named_like(made.setdefault(job.key[:KEY_DIGITS], job.output))

    @cache  # noqa: B019
    def _made(self, stage: str) -> dict[str, PathLike]:
        """Return the files of a stage by the digits of their keys, whatever the names in other configs were."""
        files = (self.cache / stage).glob("[!.]*")
        return {file.stem[-KEY_DIGITS:]: file for file in files}

    # -- the jobs of each stage, in the order of the workflow ---------------------------------------------------------

    @cache  # noqa: B019
    def tokens(self, model: str, corpus: str, slots: int | None = None) -> AnyJob:
        """Return the job of a corpus's tokens; a corpus that is only averaged has the slots of the task."""
        block = self.config.corpora[corpus]
        settings = Tokenize(slots=slots or block.slots or 0, layout=self.config.layout, blocks=block.blocks)
        texts = {"texts": self._texts(corpus, "all")}, {"texts": self.data(corpus).path}
        about = {"model": model, "corpus": corpus}
        return self._job(settings, f"{model}-{corpus}", [texts, self._of_model(model)], about)

    def _training_tokens(self, tokens: AnyJob) -> tuple[dict[str, str], dict[str, str]]:
        """Return the key of the tokens of training texts, on which validation texts have no influence."""
        inputs = {**tokens.inputs, "texts": self._texts(tokens.about["corpus"], "train")}
        record = Record(tokens.stage, tokens.settings.version, tokens.settings.recorded(), inputs)
        return {"tokens": record.key}, {"tokens": tokens.output}

    def average(self, model: str, corpus: str, constant: Constant | None) -> AnyJob | None:
        """Return the job of a constant for a model on a corpus; None if the constant needs no text."""
        if constant is None or constant.data_free:
            return None
        slots, source = self.config.corpora[corpus].slots, constant.corpus or corpus
        tokens = self.tokens(model, source, slots)
        settings = Average(kind=constant.averaged, precision=self.config.precision)
        about: dict[str, Any] = {"model": model, "corpus": source, "slots": slots, "kind": constant.averaged}
        name = f"{model}-{source}-{constant.averaged}"
        return self._job(settings, name, [self._training_tokens(tokens), self._of_model(model)], about)

    def _constants(self, model: str, corpus: str, constant: Constant | None) -> tuple[dict[str, str], dict[str, str]]:
        averages = self.average(model, corpus, constant)
        return ({}, {}) if averages is None else ({"constants": averages.key}, {"constants": averages.output})

    def _labels(self, task: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the digest of the labels of training rows, and their table; nothing for a task without labels."""
        if self.config.tasks[task].label is None:
            return {}, {}
        data = self.data(self.config.tasks[task].corpus)
        return {"labels": data.facts["digests"]["train"][f"label {task}"]}, {"labels": data.path}

    def _of_task(self, task: str, seed: int, training: Training) -> dict[str, Any]:
        target, config = self.config.tasks[task].target, self.config
        common = {"kind": target.name, "training": training, "seed": seed, "precision": config.precision}
        return common | {"encoder_dropout": config.encoder_dropout}

    @cache  # noqa: B019
    def weights(self, model: str, task: str, constant: Constant, order: str, seed: int) -> AnyJob:
        """Return the job of the weights of heads: λ, or gradients."""
        block, gradient = self.config.tasks[task], order not in BY_LAMBDA
        training = Training.of_probe(block, block.batch_size) if gradient else None
        training = training or Training.of(block, self.config.ranking.epochs)
        learned = "gradient" if gradient else "lambda"
        settings = LearnLambda(**self._of_task(task, seed, training), constant=constant.start, weights=learned)
        needs = [self._training_tokens(self.tokens(model, block.corpus)), self._of_model(model), self._labels(task)]
        needs += [self._constants(model, block.corpus, constant)]
        original = Variant.parse(ORIGINAL)
        if gradient and not self.streamed(task, original):
            needs.append(({}, {"states": self.states(model, task, original).output}))
        about: dict[str, Any] = {"model": model, "task": task, "corpus": block.corpus}
        about |= {"constant": constant.untrained}
        about |= {"order": learned, "seed": seed}
        return self._job(settings, f"{model}-{task}-{constant.untrained}-{learned}-{seed}", needs, about)

    @cache  # noqa: B019
    def states(self, model: str, task: str, variant: Variant) -> AnyJob:
        """Return the job of the hidden states of a task's corpus under a variant."""
        constant, order, corpus = variant.constant, variant.order, self.config.tasks[task].corpus
        settings = HiddenStates(
            constant=constant.start if constant else None,
            trained=variant.trained,
            order=order.name if order else None,
            order_seed=self.config.ranking.seeds[0] if order and order.base == RANDOM else 0,
            fraction=str(variant.fraction),
            precision=self.config.precision,
        )
        tokens = self.tokens(model, corpus)
        needs: Any = [({"tokens": tokens.key}, {"tokens": tokens.output}), self._of_model(model)]
        needs.append(self._constants(model, corpus, constant))
        if constant and order and order.by_weight:
            untrained = Constant(constant.start, constant.corpus)
            learned = self.weights(model, task, untrained, order.base, order.draw or 0)
            needs.append(({"weights": learned.key}, {"weights": learned.output}))
        elif order and (listed := self.config.lists.get(order.name)):
            needs.append(({"heads": digest_of_file(listed.file)}, {"heads": os.path.abspath(listed.file)}))
        about = {"model": model, "corpus": corpus, "task": task if order else None, "variant": variant.path}
        job = self._job(settings, variant.path.replace("/", "-"), needs, about)
        stored = self._stored.get(job.key[:KEY_DIGITS])
        job = job.named_like(stored) if stored else replace(job, folder=str(self.results / "states"))
        return self._states.setdefault(job.output, job)

    @cache  # noqa: B019
    def probes_of(self, model: str, task: str, variant: Variant) -> list[AnyJob]:
        """Return the jobs of a variant's probes, one for each seed."""
        block, states = self.config.tasks[task], self.states(model, task, variant)
        streamed = self.streamed(task, variant)
        kind, jobs = ProbeEncoder if streamed else Probe, []
        reads = dict(states.reads) if streamed else {"tokens": states.reads["tokens"], "states": states.output}
        inputs = {"states": states.key} | ({"model": states.inputs["model"]} if streamed else {})
        parts = {"constant": variant.constant, "order": variant.order}
        about: dict[str, Any] = {"model": model, "task": task, "corpus": block.corpus}
        about |= {name: None if part is None else part.name for name, part in parts.items()}
        about |= {"fraction": str(variant.fraction), "metric": block.metric, "variant": states.settings.recorded()}
        for seed in self.variants(model, task)[variant]:
            settings = kind(**self._of_task(task, seed, Training.of_probe(block)))
            name = f"{model}-{task}-{states.name}-{seed}"
            jobs.append(self._job(settings, name, [(inputs, reads), self._labels(task)], about | {"seed": seed}))
        return jobs

    @cached_property
    def probes(self) -> list[list[AnyJob]]:
        """The probes of all models, tasks and variants; each entry has the seeds of a variant."""
        return [
            self.probes_of(model, task, variant)
            for model, task in self.config.pairs
            for variant in self.variants(model, task)
        ]

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
                if variant.constant and variant.order and variant.order.by_weight:
                    untrained = Constant(variant.constant.start, variant.constant.corpus)
                    add(self.weights(model, task, untrained, variant.order.base, variant.order.draw or 0))
                for job in self.probes_of(model, task, variant):
                    add(job)
            if self.config.patterns and task in self.config.patterns.tasks:
                add(self.average(model, corpus, Constant("average")))
        return [job for of_stage in by_stage.values() for job in of_stage]

    @cached_property
    def report(self) -> AnyJob:
        """The job of the tables, figures and the page."""
        keys = sorted(job.key for job in self.jobs)
        corpora = dict.fromkeys(self.config.tasks[task].corpus for _, task in self.config.pairs)
        inputs = {"artefacts": digest_of_json(keys), "published": digest_of_file(PUBLISHED)}
        inputs["analyses"] = digest_of_file(ANALYSES)
        inputs |= {f"data {name}": digest_of_json(self.data(name).facts["digests"]["all"]) for name in corpora}
        folder = str(self.results / "report")
        return Job(Report(config=self.config.shown()), inputs, {}, "made-from", folder, {})

    # -- what is missing ----------------------------------------------------------------------------------------------

    @cached_property
    def _stored(self) -> dict[str, Path]:
        """The hidden states that earlier runs left, by the digits of their keys."""
        return {file.stem[-KEY_DIGITS:]: file for file in (self.results / "states").glob("[!.]*/*.hidden")}

    @cached_property
    def missing(self) -> list[JobGroup]:
        """The batches that have to run, each after those that it needs."""
        by_output: dict[str, AnyJob] = {}  # tasks that only differ in their names share files
        for job in self.jobs:
            if not os.path.exists(job.output):
                by_output.setdefault(job.output, job)
        lacking = dict.fromkeys(by_output.values())
        probes = [[job for job in group if job in lacking] for group in self.probes]
        groups: dict[tuple[str, str], dict[AnyJob, None]] = {}
        for job in (*lacking, *(job for group in probes for job in group[:1])):
            if "states" in job.reads:
                states = self._states[job.reads["states"]]
                if states.key[:KEY_DIGITS] not in self._stored:
                    owner = states.about["task"] or states.about["corpus"]
                    groups.setdefault((states.about["model"], owner), {})[states] = None
        others = [JobGroup(job.stage, job.name, [job]) for job in lacking if not isinstance(job.settings, Probe)]
        moved: dict[str, str] = {}
        stored = [batch for names, group in groups.items() for batch in self._shared("-".join(names), group, moved)]
        trained = [JobGroup(group[0].stage, group[-1].name.rpartition("-")[0], group) for group in probes if group]
        for batch in (*others, *trained):
            batch.jobs = [self._with_states(job, moved) for job in batch.jobs]
        batches = [*others, *stored, *trained]
        if batches or not os.path.exists(self.report.output):
            batches.append(JobGroup(Report.stage, self.config.name, [self.report]))
        makers = {job.output: batch for batch in batches for job in batch.jobs}
        for batch in batches:
            needed = {makers[path].handle for job in batch.jobs for path in job.reads.values() if path in makers}
            if batch.rule == Report.stage:
                needed = {each.handle for each in batches if each is not batch and each.rule != HiddenStates.stage}
            batch.waits = sorted(needed)
        before = {batch.handle: batch.waits for batch in batches}  # gradients, unlike λ, read hidden states
        place = {handle: number for number, handle in enumerate(TopologicalSorter(before).static_order())}
        return sorted(batches, key=lambda batch: place[batch.handle])

    def _shared(self, name: str, group: Iterable[AnyJob], moved: dict[str, str]) -> Iterable[JobGroup]:
        """Yield batches of hidden states that share a folder; `moved` gets the new path of each."""
        together: list[AnyJob] = []
        size = 0
        for job in (*group, None):
            needed = 0 if job is None else self._bytes(job)
            if together and (job is None or size + needed > TOGETHER):
                key = digest_of_json([each.key for each in together])[:KEY_DIGITS]
                folder = str(self.results / "states" / f"{name}-{key}")
                jobs = [replace(each, folder=folder) for each in together]
                moved |= {each.output: new.output for each, new in zip(together, jobs, strict=True)}
                yield JobGroup(HiddenStates.stage, name, jobs)
                together, size = [], 0
            if job is not None:
                together.append(job)
                size += needed

    def _bytes(self, job: AnyJob) -> int:
        """Return the most bytes that the hidden states of a corpus can have."""
        facts, sizes = self.data(job.about["corpus"]).facts, self.model(job.about["model"]).sizes
        if not sizes:
            return TOGETHER
        slots = self.config.corpora[job.about["corpus"]].slots or 0
        rows, characters = sum(facts["rows"].values()), sum(facts["characters"].values())
        return int(min(rows * slots, characters + 4 * rows) * (sizes["layers"] + 1) * sizes["hidden"] * 2)

    @staticmethod
    def _with_states(job: AnyJob, moved: dict[str, str]) -> AnyJob:
        if job.reads.get("states") not in moved:
            return job
        return replace(job, reads={**job.reads, "states": moved[job.reads["states"]]})

    @property
    def warnings(self) -> list[str]:
        """Sentences about what may be wrong with the data."""
        return [warning for name in self.config.corpora_run for warning in self.data(name).warnings]

    # -- plan.json ----------------------------------------------------------------------------------------------------

    def content(self) -> dict[str, Any]:
        """Return what jobs and people need to know of the plan, as JSON."""
        batches, readers = self.missing, dict[str, list[str]]()
        for batch in batches if not self.config.keep_hidden_states else ():
            for job in batch.jobs:
                if states := job.reads.get("states"):
                    readers.setdefault(str(Path(states).parent), []).append(job.output)
        artefacts = [
            {
                "stage": job.stage,
                "name": job.name,
                "key": job.key,
                "path": os.path.relpath(job.output, self.results),
                "settings": job.record.settings,
                "inputs": job.record.inputs,
                "about": job.about,
            }
            for job in self.jobs
        ]
        corpora = self.config.corpora_run
        return {
            "name": self.config.name,
            "config": self.config.model_dump(mode="json", exclude_none=True),
            "data": {name: os.path.relpath(self.data(name).path, self.results) for name in corpora},
            "artefacts": artefacts,
            "states": readers,
            "kept": self._kept() if self.config.keep_hidden_states else [],
            "batches": [self._batch(batch) for batch in batches],
        }

    def _kept(self) -> list[str]:
        """Return the digits of the keys of all hidden states that probes read from files."""
        stored = (group[0] for group in self.probes if group and "states" in group[0].reads)
        return sorted({Path(job.reads["states"]).stem[-KEY_DIGITS:] for job in stored})

    def _batch(self, batch: JobGroup) -> dict[str, Any]:
        jobs = [
            {
                "stage": job.stage,
                "settings": job.settings.model_dump(mode="json"),
                **{name: getattr(job, name) for name in ("inputs", "reads", "name", "folder", "about")},
                "machine": asdict(job.machine),
            }
            for job in batch.jobs
        ]
        return {
            "key": batch.key,
            "rule": batch.rule,
            "name": batch.name,
            "handle": batch.handle,
            "waits": batch.waits,
            "jobs": jobs,
        }

    def write(self) -> None:
        """Write plan.json; jobs read only this, so a config that is edited during a run changes no job."""
        write_json(self.content(), self.results / PLAN)


def jobs_of(batch: dict[str, Any]) -> list[AnyJob]:
    """Return the jobs of a batch in plan.json."""
    return [
        Job(
            STAGES[job["stage"]].model_validate(job["settings"]),
            **{name: job[name] for name in ("inputs", "reads", "name", "folder", "about")},
            machine=Machine(**job["machine"]),
        )
        for job in batch["jobs"]
    ]


def read_plan(folder: PathLike) -> dict[str, Any]:
    """Read the plan of a study; raise `DamagedArtefact` if it is missing or damaged."""
    return read_json(Path(folder, PLAN))
