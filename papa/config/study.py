"""The study of a config: the variants of every task, and the jobs that measure them."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from typing import cast

from papa.config.analyses import ANALYSES, Entry, grid_entry
from papa.config.artefacts import ARTEFACTS
from papa.config.freshness import Freshness, SourceDigests
from papa.config.job import AnyJob, Job
from papa.config.settings import Config, Grid
from papa.config.stages import AnalysisOf, ModelId, ProbeOf
from papa.config.variant import (
    CONTEXTLESS,
    ORIGINAL,
    RANDOM,
    RESAMPLED,
    SEEDED,
    Constant,
    Order,
    Variant,
    parts_of,
)
from papa.config.wiring import BUILDERS, RULES
from papa.errors import InputError

NOTHING = "(?!)"
"""Pattern that no name matches."""


class Study:
    """The jobs of a config; every path is below the folder of its results.

    Args:
        config: the models and tasks to run, and all settings.
        results: the folder of its results, in which finished jobs are looked for.
        sources: digests of the files that jobs read and papa did not make.
    """

    config: Config
    results: Path
    grids: dict[str, Grid]

    def __init__(self, config: Config, results: str | Path, sources: SourceDigests | None = None):
        self.config, self.results, self.grids = config, Path(results), config.analyses
        self.sources = sources or SourceDigests()
        self.freshness = Freshness(self)
        self._jobs: dict[tuple[str, tuple[tuple[str, str], ...]], AnyJob] = {}
        self._makers: dict[str, AnyJob] = {}

    # -- variants -----------------------------------------------------------------------------------------------------

    def orders(self, grid: Grid) -> list[Order]:
        """Return the orders of a grid, with each draw of a random one."""
        drawn = dict.fromkeys(SEEDED, self.config.ranking.seeds) | {RANDOM: range(1, self.config.ranking.draws + 1)}
        return [Order(name, draw) for name in grid.orders for draw in drawn.get(name, (None,))]

    @cache  # noqa: B019  a study lives as long as its process
    def variants(self, model: str, task: str) -> dict[Variant, list[int]]:
        """Return each variant of a task once, with the seeds of its probes.

        The original and the context-free floor are run with the seeds of all other variants.
        """
        seeds_of: dict[Variant, dict[int, None]] = {}
        corpus = self.config.tasks[task].corpus
        for grid in self.grids.values():
            if model in grid.models and task in grid.tasks:
                for fraction, constant, order in product(grid.fractions, grid.constants, self.orders(grid)):
                    variant = Variant.of(Constant.parse(constant).on(corpus), order, Fraction(fraction))
                    seeds_of.setdefault(variant, {}).update(dict.fromkeys(grid.seeds))
        if self.config.contextless:  # losses are measured between these two
            all_seeds = dict.fromkeys(seed for seeds in seeds_of.values() for seed in seeds)
            for variant in map(Variant.parse, (ORIGINAL, CONTEXTLESS)):
                seeds_of.setdefault(variant, {}).update(all_seeds)
        if not self.config.tasks[task].target.probed:  # nothing is trained, so nothing depends on a seed
            return {variant: [0] for variant in seeds_of}
        return {variant: list(seeds) for variant, seeds in seeds_of.items()}

    def streamed(self, task: str, variant: Variant) -> bool:
        """Return whether hidden states are computed during training instead of being read from a file.

        They are if the task asks for it, if they differ in every epoch, and if no probe of labels is trained.
        """
        block = self.config.tasks[task]
        differ = self.config.encoder_dropout or variant.trained
        return differ or block.features == "stream" or not block.target.learns_labels

    # -- patterns for the rules of the workflow -----------------------------------------------------------------------

    def in_parts(self, sharded: bool) -> str:
        """Return the pattern of the corpora, in any layout, that have several shards, or only one."""
        names = [name for name, corpus in self.config.corpora.items() if (corpus.shards > 1) == sharded]
        return f"(?:{'|'.join(names) or NOTHING})(?:/slots-[0-9]+)?"

    def stored(self) -> str:
        """Return the pattern of the tasks whose hidden states are stored, if constants are not trained."""
        original = Variant.parse(ORIGINAL)
        return "|".join(task for task in self.config.tasks if not self.streamed(task, original)) or NOTHING

    def analysis_names(self, drawn: bool) -> str:
        """Return the pattern of the analyses with a figure, or without one."""
        return "|".join(name for name, entry in self.entries().items() if entry.drawn == drawn) or NOTHING

    def analysis_inputs(self) -> list[str]:
        """Return the names of all inputs that analyses read."""
        return list(dict.fromkeys(name for job in self.analyses() for name in job.inputs))

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def path(self, artefact: str, **wildcards: str) -> str:
        """Return the path of an artefact below the results."""
        return ARTEFACTS[artefact].path(**wildcards)

    def job(self, rule: str, **wildcards: str) -> AnyJob:
        """Return the job of a rule of the workflow with these wildcards."""
        key = rule, tuple(sorted(wildcards.items()))
        if key not in self._jobs:
            settings, needs, outputs, names = BUILDERS[rule](self, **wildcards)
            read = {name: tuple(jobs) for name, jobs in needs.items() if jobs}
            job: AnyJob = Job(
                stage=settings.stamp[0],
                settings=settings,
                inputs={name: tuple(job.outputs.get(name, job.main) for job in jobs) for name, jobs in read.items()},
                outputs={name: self.path(artefact, **{**names, **wildcards}) for name, artefact in outputs.items()},
                rule=rule,
                wildcards=wildcards,
                needs=read,
            )
            self._jobs[key] = job
            self._makers |= dict.fromkeys(job.outputs.values(), job)
        return self._jobs[key]

    def jobs(self, *targets: AnyJob) -> list[AnyJob]:
        """Return all jobs that end with some targets (by default all), each once and after its inputs."""
        ordered: dict[AnyJob, None] = {}

        def add(job: AnyJob) -> None:
            if job not in ordered:
                for needed in job.needed:
                    add(needed)
                ordered[job] = None

        for job in targets or self.targets():
            add(job)
        return list(ordered)

    def targets(self) -> list[AnyJob]:
        """Return the jobs that a run of the workflow ends with."""
        return [*self.analyses(), self.job("page")]

    @cache  # noqa: B019  a study lives as long as its process
    def entries(self) -> dict[str, Entry]:
        """Return the analyses that the config asks for by name: its grids, and those of every config."""
        grids = {name: grid_entry(self, name) for name in self.grids}
        return grids | {name: entry for name, entry in ANALYSES.items() if entry.wanted(self)}

    def analysis(self, name: str) -> Job[AnalysisOf]:
        """Return the job of an analysis."""
        if name in RULES:
            job = self.job(RULES[name])
        else:
            entry = ANALYSES.get(name) or grid_entry(self, name)
            job = self.job("drawn_analysis" if entry.drawn else "analysis", analysis=name)
        return cast(Job[AnalysisOf], job)

    def analyses(self) -> list[Job[AnalysisOf]]:
        """Return the jobs of all tables and figures."""
        tasks = self.config.patterns.tasks if self.config.patterns else ()
        pairs = [(model, self.config.tasks[task].corpus) for model, task in self.config.pairs if task in tasks]
        patterns = [
            self.job("describe_patterns", model=model, laid_out=corpus) for model, corpus in dict.fromkeys(pairs)
        ]
        return [*map(self.analysis, self.entries()), *cast(list[Job[AnalysisOf]], patterns)]

    def runs(self, model: str, task: str) -> list[Job[ProbeOf]]:
        """Return the jobs that train the probes of a model and a task, one for each variant."""
        jobs = []
        for variant in self.variants(model, task):
            rule = "stream_probe" if self.streamed(task, variant) else "probe"
            jobs.append(self.job(rule, model=model, task=task, variant=variant.path))
        return cast(list[Job[ProbeOf]], jobs)

    @cache  # noqa: B019  a study lives as long as its process
    def probes(self) -> tuple[Job[ProbeOf], ...]:
        """Return the jobs that train probes, of all models and tasks."""
        return tuple(job for model, task in self.config.pairs for job in self.runs(model, task))

    @cache  # noqa: B019  a study lives as long as its process
    def weights(self) -> list[AnyJob]:
        """Return the jobs of all weights of heads that orders are made of, and of λ on halves of the texts."""
        ranks = {job for probe in self.probes() for read in probe.needed for job in (read, *read.needed)}
        used = {job for rank in ranks if rank.rule == "rank" for job in rank.needed}
        weights = sorted(used, key=lambda job: job.main)
        if not self.config.ranking.halves:
            return weights
        learned = [job for job in weights if job.rule == "train_lambda"]
        halves = [self.job("half_lambda", **job.wildcards, part=part) for job in learned for part in parts_of(2)]
        return [*weights, *halves]

    def lambdas(self) -> list[AnyJob]:
        """Return the jobs of all λ, with those on halves of the texts."""
        return [job for job in self.weights() if job.stage == "lambda"]

    def labels(self, task: str) -> list[AnyJob]:
        """Return the job of the labels of a task; none if it has no labels."""
        return [] if self.config.tasks[task].label is None else [self.job("prepare_labels", task=task)]

    def parts(self, laid_out: str) -> list[str]:
        """Return the parts that a corpus is averaged and encoded in, one for each shard."""
        return parts_of(self.config.corpora[laid_out.split("/")[0]].shards)

    def averaged(self, model: str, laid_out: str, kind: str = "average") -> AnyJob:
        """Return the job of the averages over a corpus, or of other constants made from it."""
        if kind == RESAMPLED:
            return self.job("resample", model=model, laid_out=laid_out)
        rule = "average" if len(self.parts(laid_out)) == 1 else "merge_averages"
        return self.job(rule, model=model, laid_out=laid_out, averaged=kind)

    def constants(self, model: str, corpus: str, constant: Constant | None) -> list[AnyJob]:
        """Return the job of the averages that replace a model's attention on a corpus; none if none are read."""
        if constant is None or constant.data_free:
            return []
        slots, source = self.config.corpora[corpus].slots, constant.corpus or corpus
        same_slots = self.config.corpora[source].slots == slots
        return [self.averaged(model, source if same_slots else f"{source}/slots-{slots}", constant.start)]

    def order(self, model: str, task: str, constant: Constant, order: Order) -> AnyJob:
        """Return the job of an order of heads: from their weights for a task and a constant, or from the model only."""
        if not order.by_weight:
            return self.job("order_heads", model=model, order=order.name)
        return self.job("rank", model=model, task=task, constant=constant.untrained, order=order.name)

    # -- one job ------------------------------------------------------------------------------------------------------

    def maker(self, path: str) -> AnyJob:
        """Return the job that makes a file of the results, among those that were asked for."""
        return self._makers[str(Path(path).relative_to(self.results))]

    def read_by(self, job: AnyJob) -> dict[str, tuple[str, ...]]:
        """Return the inputs of a job for the workflow, with hidden states that are deleted after use."""
        read = dict(job.inputs)
        if "index" in job.needs and not self.config.keep_hidden_states:
            read["hidden"] = tuple(needed.outputs["hidden"] for needed in job.needs["index"])
        return read

    def threads(self, job: AnyJob) -> int:
        """Return the number of threads of a job."""
        return 1 if (kind := job.settings.threads) is None else self.config.threads[kind]

    def parameters(self, job: AnyJob) -> dict[str, object]:
        """Return the settings of a job and the requests of its inputs as plain values: see `Job.of`."""
        return {
            "settings_of": type(job.settings).__name__,
            "settings": job.settings.model_dump(mode="json", exclude_none=True),
            "wanted": {name: [self.freshness.request(needed) for needed in jobs] for name, jobs in job.needs.items()},
        }

    def state(self, job: AnyJob) -> str:
        """Return `FRESH`, `MISSING`, or the reason why the job's artefact is out of date, as a clause."""
        return self.freshness.state(job)

    # -- checks -------------------------------------------------------------------------------------------------------

    def changed(self) -> bool:
        """Return whether the results changed since this study first looked at them."""
        return self.freshness.changed(Study(self.config, self.results, self.sources).freshness)

    def check_weights(self) -> None:
        """Raise `InputError` if the weights of a model that is run are here and differ from its `sha256`."""
        for name in dict.fromkeys(model for model, _ in self.config.pairs):
            model = self.config.models[name]
            actual = self.sources.weights(ModelId.of(name, model)) if model.sha256 else None
            if actual is not None and actual != model.sha256:
                raise InputError(
                    f"The weights of model {name} have SHA-256 {actual}, but its sha256 in the config is "
                    f"{model.sha256}; use the files that were meant, or correct sha256."
                )
