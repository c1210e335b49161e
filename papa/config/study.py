"""A study: the jobs of a config, and the variants that they measure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path, PurePosixPath
from typing import cast

from papa.config.analyses import ANALYSES, Entry, grid_entry
from papa.config.artefacts import ARTEFACTS
from papa.config.freshness import Freshness, SourceDigests
from papa.config.job import AnyJob, Job, JobParameters
from papa.config.settings import NAME_PATTERN, Config, Grid
from papa.config.stages import AnalysisOf, ModelId, OfEncoding, ProbeOf
from papa.config.variant import ORIGINAL, RANDOM, SEEDED, STORED_PATTERN, Constant, Order, Variant
from papa.config.wiring import ANALYSIS_RULES, BUILDERS
from papa.errors import InputError

MATCHES_NOTHING = "(?!)"  # A regular expression that no name matches


class Plan:
    """The jobs of a config; their paths are relative to the results folder."""

    config: Config  # the models and tasks to run, and all settings
    results: Path  # the results folder, which may contain finished jobs
    grids: dict[str, Grid]
    sources: SourceDigests  # digests of the files that jobs read and papa did not make

    def __init__(self, config: Config, results: str | Path, sources: SourceDigests | None = None):
        self.config, self.results, self.grids = config, Path(results), config.analyses
        self.sources = sources or SourceDigests()
        self.freshness = Freshness(self)
        self._jobs: dict[tuple[str, tuple[tuple[str, str], ...]], AnyJob] = {}
        self._makers: dict[str, AnyJob] = {}

    def orders(self, grid: Grid) -> list[Order]:
        """Return the orders of a grid, one for each seed or random draw."""
        ranking = self.config.ranking
        numbers: dict[str, Sequence[int]] = dict.fromkeys(SEEDED, ranking.seeds)
        numbers[RANDOM] = range(1, ranking.draws + 1)
        return [Order(name, draw) for name in grid.order_names for draw in numbers.get(name, (None,))]

    @cache  # noqa: B019  a study lives as long as its process
    def variants(self, model: str, task: str) -> dict[Variant, list[int]]:
        """Map each variant of a task to the seeds of its probes.

        The original and the context-free floors define the loss scale, so they get every seed that any variant has.
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

    def stored_tasks_pattern(self) -> str:
        """Return a regular expression for tasks whose hidden states are stored, unless constants are trained."""
        original = Variant.parse(ORIGINAL)
        return "|".join(task for task in self.config.tasks if not self.streamed(task, original)) or MATCHES_NOTHING

    def streamed_tasks_pattern(self) -> str:
        """Return a regular expression for a task in a path, unless its variant in that path reads stored hidden states.

        So each path of a run matches one rule. If it matched two, snakemake would create the jobs of both.
        """
        variant = PurePosixPath(ARTEFACTS["runs"].pattern.partition("{task}")[2]).parent
        stored = str(variant).replace("{variant}", f"(?:{STORED_PATTERN})")
        return f"(?!(?:{self.stored_tasks_pattern()}){stored}/[^/]+$){NAME_PATTERN}"

    def analyses_pattern(self, has_figure: bool) -> str:
        """Return a regular expression for analyses with or without a figure."""
        names = [name for name, entry in self.entries().items() if entry.has_figure == has_figure]
        return "|".join(names) or MATCHES_NOTHING

    def analysis_inputs(self) -> list[str]:
        """Return the names of all inputs of analyses."""
        return list(dict.fromkeys(name for job in self.analyses() for name in job.inputs))

    def path(self, artefact: str, **wildcards: str) -> str:
        """Return the path of an artefact, relative to the results."""
        return ARTEFACTS[artefact].path(**wildcards)

    def job(self, rule: str, **wildcards: str) -> AnyJob:
        """Return the job of a workflow rule with these wildcards."""
        key = rule, tuple(sorted(wildcards.items()))
        if key not in self._jobs:
            settings, needs, outputs, more_wildcards = BUILDERS[rule](self, **wildcards)
            read = {name: tuple(jobs) for name, jobs in needs.items() if jobs}
            job: AnyJob = Job(
                stage=settings.stamp[0],
                settings=settings,
                inputs={name: tuple(job.outputs.get(name, job.main) for job in jobs) for name, jobs in read.items()},
                outputs={name: self.path(key, **{**more_wildcards, **wildcards}) for name, key in outputs.items()},
                rule=rule,
                wildcards=wildcards,
                needs=read,
            )
            self._jobs[key] = job
            self._makers |= dict.fromkeys(job.outputs.values(), job)
        return self._jobs[key]

    def jobs(self, *targets: AnyJob) -> list[AnyJob]:
        """Return the targets (default: all) and every job that they depend on, each after the jobs that it needs."""
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
        """Return the jobs of the final results: the analyses and the HTML report."""
        return [*self.analyses(), self.job("page")]

    @cache  # noqa: B019  a study lives as long as its process
    def entries(self) -> dict[str, Entry]:
        """Return the entries of the config's analyses by name, grids first."""
        grids = {name: grid_entry(self, name) for name in self.grids}
        return grids | {name: entry for name, entry in ANALYSES.items() if entry.included(self)}

    def analysis(self, name: str) -> Job[AnalysisOf]:
        """Return the job of an analysis."""
        if name in ANALYSIS_RULES:
            job = self.job(ANALYSIS_RULES[name])
        else:
            entry = ANALYSES.get(name) or grid_entry(self, name)
            job = self.job("drawn_analysis" if entry.has_figure else "analysis", analysis=name)
        return cast(Job[AnalysisOf], job)

    def analyses(self) -> list[Job[AnalysisOf]]:
        """Return the jobs of all analyses, including patterns."""
        tasks = self.config.patterns.tasks if self.config.patterns else ()
        pairs = [(model, self.config.tasks[task].corpus) for model, task in self.config.pairs if task in tasks]
        patterns = [
            self.job("describe_patterns", model=model, laid_out=corpus) for model, corpus in dict.fromkeys(pairs)
        ]
        return [*map(self.analysis, self.entries()), *cast(list[Job[AnalysisOf]], patterns)]

    def probes_of(self, model: str, task: str) -> list[Job[ProbeOf]]:
        """Return the jobs that train probes for a model and a task, one for each variant."""
        rules = {True: "stream_probe", False: "probe"}
        variants = {variant.path: rules[self.streamed(task, variant)] for variant in self.variants(model, task)}
        jobs = [self.job(rule, model=model, task=task, variant=path) for path, rule in variants.items()]
        return cast(list[Job[ProbeOf]], jobs)

    @cache  # noqa: B019  a study lives as long as its process
    def probes(self) -> tuple[Job[ProbeOf], ...]:
        """Return the jobs that train probes for all models and tasks."""
        return tuple(job for model, task in self.config.pairs for job in self.probes_of(model, task))

    @cache  # noqa: B019  a study lives as long as its process
    def weights(self) -> list[AnyJob]:
        """Return the jobs of all head weights that orders are made from."""
        needed = {job for probe in self.probes() for read in probe.needed for job in (read, *read.needed)}
        used = {job for rank in needed if rank.rule == "rank" for job in rank.needed}
        return sorted(used, key=lambda job: job.main)

    def labels(self, task: str) -> list[AnyJob]:
        """Return a list with the job of a task's labels; empty if it has none."""
        return [] if self.config.tasks[task].label is None else [self.job("prepare_labels", task=task)]

    def averaged(self, model: str, laid_out: str, kind: str = "average") -> AnyJob:
        """Return the job of a constant that is computed from a corpus."""
        return self.job("average", model=model, laid_out=laid_out, averaged=kind)

    def constants(self, model: str, corpus: str, constant: Constant | None) -> list[AnyJob]:
        """Return a list with the job of a constant for a model on a corpus; empty if the constant needs no text."""
        if constant is None or constant.data_free:
            return []
        slots, source = self.config.corpora[corpus].slots, constant.corpus or corpus
        fits = self.config.corpora[source].slots == slots
        return [self.averaged(model, source if fits else f"{source}/slots-{slots}", constant.averaged)]

    def maker(self, path: str) -> AnyJob:
        """Return the job that makes a file, among the jobs that `job()` has returned so far."""
        return self._makers[path.removeprefix(f"{self.results}/")]

    def workflow_inputs(self, job: AnyJob) -> dict[str, tuple[str, ...]]:
        """Return the inputs of a job for the workflow, including hidden states that are deleted after use."""
        read = dict(job.inputs)
        if "index" in job.needs and not self.config.keep_hidden_states:
            read["hidden"] = tuple(needed.outputs["hidden"] for needed in job.needs["index"])
        return read

    def threads(self, job: AnyJob) -> int:
        """Return the number of threads of a job."""
        return self.config.threads if isinstance(job.settings, OfEncoding) else 1

    def parameters(self, job: AnyJob) -> JobParameters:
        """Return a job's settings and its inputs' requests as plain values; `Job.of` rebuilds the job from them."""
        return {
            "settings_of": type(job.settings).__name__,
            "settings": job.settings.model_dump(mode="json", exclude_none=True),
            "requests": {name: [self.freshness.request(needed) for needed in jobs] for name, jobs in job.needs.items()},
        }

    def state(self, job: AnyJob) -> str:
        """Return `FRESH`, `MISSING`, or the reason why the job's artefact is out of date, as a clause."""
        return self.freshness.state(job)

    def changed(self) -> bool:
        """Return whether the results have changed since this study looked up their states."""
        return self.freshness.changed(Plan(self.config, self.results, self.sources).freshness)

    def check_weights(self) -> None:
        """Raise `InputError` if the weights of a model in a run are on this machine and do not match its `sha256`."""
        for name in dict.fromkeys(model for model, _ in self.config.pairs):
            model = self.config.models[name]
            actual = self.sources.weights(ModelId.of(name, model)) if model.sha256 else None
            if actual is not None and actual != model.sha256:
                raise InputError(
                    f"The weights of model {name} have SHA-256 {actual}, but `sha256` in the config is "
                    f"{model.sha256}; use the intended files, or correct `sha256`."
                )
