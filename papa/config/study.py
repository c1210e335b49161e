"""What a config runs: grids, variants, and the job of each rule of the workflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from typing import TypeVar

from papa.config import stages
from papa.config.analyses import ANALYSES, Entry, grid_entry, patterns_entry
from papa.config.artefacts import ARTEFACTS
from papa.config.freshness import Freshness, SourceDigests
from papa.config.job import AnyJob, Job
from papa.config.measures import MASKED
from papa.config.settings import Config, Corpus, Grid
from papa.config.variant import (
    CONTEXTLESS,
    ORIGINAL,
    RANDOM,
    RESAMPLED,
    SEEDED,
    WHOLE,
    Constant,
    Order,
    Variant,
    parts_of,
)
from papa.errors import InputError
from papa.files import JSON

S = TypeVar("S", bound=stages.Settings)
NOTHING = "(?!)"
"""Pattern that no name matches."""
MACHINE = {"hub_mirror", "device", "threads", "token_budget", "checkpoint_minutes", "keep_hidden_states"}
"""Keys of a config that may differ from machine to machine; no result depends on them, beyond rounding."""


RULES = {"summary": "summarise", "claims": "claims"}
"""The rules of analyses that write more files than others."""
Builder = TypeVar("Builder", bound=Callable[..., AnyJob])
BUILDERS: dict[str, Callable[..., AnyJob]] = {}
"""For each rule of the workflow, the function that makes its jobs from a study and the wildcards of the rule."""
Needs = dict[str, list[AnyJob]]


def _builds(rule: str) -> Callable[[Builder], Builder]:
    """Enter a method in the table of builders."""

    def enter(build: Builder) -> Builder:
        BUILDERS[rule] = build
        return build

    return enter


class Study:
    """The jobs of a config; every path is below the folder of its results.

    Args:
        config: what is to be run.
        results: the folder of its results, in which finished jobs are looked for.
        sources: digests of what the jobs read and papa did not make.
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

    # -- what is run --------------------------------------------------------------------------------------------------

    def path(self, artefact: str, **wildcards: str) -> str:
        """The path of an artefact below the results."""
        return ARTEFACTS[artefact].path(**wildcards)

    def orders(self, grid: Grid) -> list[Order]:
        """The orders of a grid, each draw of a random one by itself."""
        drawn = dict.fromkeys(SEEDED, self.config.ranking.seeds) | {RANDOM: range(1, self.config.ranking.draws + 1)}
        return [Order(name, draw) for name in grid.orders for draw in drawn.get(name, (None,))]

    @cache  # noqa: B019  a study lives as long as its process
    def variants(self, model: str, task: str) -> dict[Variant, list[int]]:
        """What is replaced in the runs of a task, each variant once, and the seeds of its probes.

        The original and the contextless floor are run with all seeds that anything is run with.
        """
        found: dict[Variant, dict[int, None]] = {}
        corpus = self.config.tasks[task].corpus
        for grid in self.grids.values():
            if model in grid.models and task in grid.tasks:
                for fraction, constant, order in product(grid.fractions, grid.constants, self.orders(grid)):
                    variant = Variant.of(Constant.parse(constant).on(corpus), order, Fraction(fraction))
                    found.setdefault(variant, {}).update(dict.fromkeys(grid.seeds))
        if self.config.contextless:  # the two ends between which losses are measured
            seeds = dict.fromkeys(seed for own in found.values() for seed in own)
            for variant in map(Variant.parse, (ORIGINAL, CONTEXTLESS)):
                found.setdefault(variant, {}).update(seeds)
        if not self.config.tasks[task].target.probed:  # nothing is trained, so nothing depends on a seed
            return {variant: [0] for variant in found}
        return {variant: list(seeds) for variant, seeds in found.items()}

    def streamed(self, task: str, variant: Variant) -> bool:
        """Whether a probe takes hidden states from the model as it goes.

        It does if the task says so or has no probe of labels, if its texts are dropped from anew in every epoch, and if
        constants are trained with it.
        """
        given = self.config.tasks[task]
        without = given.label is None or not given.target.probed
        return without or self.config.encoder_dropout or given.features == "stream" or variant.trained

    def in_parts(self, sharded: bool) -> str:
        """Pattern of the corpora, in any layout, that have several shards, or of those that have one."""
        names = [name for name, corpus in self.config.corpora.items() if (corpus.shards > 1) == sharded]
        return f"(?:{'|'.join(names) or NOTHING})(?:/slots-[0-9]+)?"

    def stored(self) -> str:
        """Pattern of the tasks whose hidden states are stored if constants are not trained."""
        nothing_replaced = Variant.parse(ORIGINAL)
        return "|".join(task for task in self.config.tasks if not self.streamed(task, nothing_replaced)) or NOTHING

    def analysis_names(self, drawn: bool) -> str:
        """Pattern of the analyses that have a figure, or of those that have none."""
        return "|".join(name for name, entry in self.entries().items() if entry.drawn == drawn) or NOTHING

    def analysis_inputs(self) -> list[str]:
        """The names of all inputs that analyses read."""
        return list(dict.fromkeys(name for job in self.analyses() for name in job.inputs))

    @cache  # noqa: B019  a study lives as long as its process
    def entries(self) -> dict[str, Entry]:
        """The analyses that the config asks for by name: its grids, and those of every config."""
        grids = {name: grid_entry(self, name) for name in self.grids}
        return grids | {name: entry for name, entry in ANALYSES.items() if entry.wanted(self)}

    def targets(self) -> list[AnyJob]:
        """The jobs that a run of the workflow ends with; everything else is made for them."""
        return [*self.analyses(), self.job("page")]

    def analyses(self) -> list[AnyJob]:
        """The jobs of the tables and figures that the config asks for."""
        return [*map(self.analysis, self.entries()), *self._patterns()]

    def analysis(self, name: str) -> AnyJob:
        """The job of an analysis."""
        if name in RULES:
            return self.job(RULES[name])
        entry = ANALYSES.get(name) or grid_entry(self, name)
        return self.job("drawn_analysis" if entry.drawn else "analysis", analysis=name)

    def jobs(self, *targets: AnyJob) -> list[AnyJob]:
        """All jobs that end with some targets (by default all), each once, inputs before what is made of them."""
        found: dict[AnyJob, None] = {}

        def add(job: AnyJob) -> None:
            if job not in found:
                for needed in job.needed:
                    add(needed)
                found[job] = None

        for job in targets or self.targets():
            add(job)
        return list(found)

    def job(self, rule: str, **wildcards: str) -> AnyJob:
        """The job of a rule of the workflow, from the wildcards of its outputs."""
        key = rule, tuple(sorted(wildcards.items()))
        if key not in self._jobs:
            job = replace(BUILDERS[rule](self, **wildcards), rule=rule, wildcards=wildcards)
            self._jobs[key] = job
            self._makers |= dict.fromkeys(job.outputs.values(), job)
        return self._jobs[key]

    def maker(self, path: str) -> AnyJob:
        """The job that makes a file of the results, among those that were asked for."""
        return self._makers[str(Path(path).relative_to(self.results))]

    def read_by(self, job: AnyJob) -> dict[str, tuple[str, ...]]:
        """The inputs of a job as the workflow knows them: hidden states that do not stay are among them."""
        read = dict(job.inputs)
        if "index" in job.needs and not self.config.keep_hidden_states:
            read["hidden"] = tuple(needed.outputs["hidden"] for needed in job.needs["index"])
        return read

    def threads(self, job: AnyJob) -> int:
        """How many threads a job has."""
        given = job.settings.threads
        return 1 if given is None else dict(self.config.threads)[given]

    def from_hub(self) -> dict[str, JSON]:
        """What `fetch` is told: the models and corpora that are run and have no place but the hub."""
        given = self.config.models
        models = dict.fromkeys(name for name, _ in self.config.pairs)
        elsewhere = {name for name in models if given[name].path or given[name].package or not given[name].hub}
        settings = stages.FetchOf(
            models=tuple(self._model(name) for name in models if name not in elsewhere),
            corpora=tuple(self._corpus(name) for name in self.config.corpora_run if self.config.corpora[name].hub),
        )
        return {"settings_of": "FetchOf", "settings": settings.model_dump(mode="json", exclude_none=True), "wanted": {}}

    def check_weights(self) -> None:
        """Raise `InputError` if the weights of a model that is run are here, and are not those that `sha256` says."""
        for name in dict.fromkeys(model for model, _ in self.config.pairs):
            asked = self.config.models[name].sha256
            found = self.sources.weights(self._model(name)) if asked else None
            if found is not None and found != asked:
                raise InputError(
                    f"The weights of model {name} have SHA-256 {found}, but its sha256 in the config is {asked}; "
                    "use the files that were meant, or correct sha256."
                )

    def shown_config(self) -> dict[str, JSON]:
        """What the page tells of the config: what is run, and nothing of this machine."""
        config = self.config
        told = config.model_dump(mode="json", exclude_none=True, exclude=MACHINE)
        run = {
            "models": dict.fromkeys(model for model, _ in config.pairs),
            "corpora": dict.fromkeys(config.corpora_run),
            "tasks": dict.fromkeys(task for _, task in config.pairs),
        }
        for block, names in run.items():
            told[block] = {name: told[block][name] for name in names}
        for model in told["models"].values():
            model.pop("path", None), model.pop("package", None)
        return told

    def state(self, job: AnyJob) -> str:
        """Return `FRESH`, `MISSING`, or why the artefact of a job is out of date, as part of a sentence."""
        return self.freshness.state(job)

    def changed(self) -> bool:
        """Whether the results changed since this study first looked at them."""
        return self.freshness.changed(Study(self.config, self.results, self.sources).freshness)

    def parameters(self, job: AnyJob) -> dict[str, JSON]:
        """Return the settings of a job and the requests of its inputs as plain values: see `Job.of`."""
        return {
            "settings_of": type(job.settings).__name__,
            "settings": job.settings.model_dump(mode="json", exclude_none=True),
            "wanted": {name: [self.freshness.request(needed) for needed in jobs] for name, jobs in job.needs.items()},
        }

    @cache  # noqa: B019  a study lives as long as its process
    def probes(self) -> tuple[AnyJob, ...]:
        return tuple(job for model, task in self.config.pairs for job in self.runs(model, task))

    # -- one builder for each rule -----------------------------------------------------------------------------------

    @_builds("prepare_texts")
    def _prepare_texts(self, corpus: str) -> Job[stages.TextsOf]:
        settings = stages.TextsOf(corpus=self._corpus(corpus), source=self.sources.source(self._corpus(corpus)))
        return self._made(settings, {}, {"texts": "texts"}, corpus=corpus)

    @_builds("prepare_labels")
    def _prepare_labels(self, task: str) -> Job[stages.LabelsOf]:
        given, texts = self.config.tasks[task], self._texts(task)
        if given.label is None:
            raise InputError(f"Task {task} has no labels, so there are none to prepare; give it a label.")
        settings = stages.LabelsOf(
            corpus=texts.settings.corpus,
            source=texts.settings.source,
            label=given.label,
            labels=given.labels,
            metric=given.metric,
        )
        return self._made(settings, {"texts": [texts]}, {"labels": "labels"}, task=task)

    @_builds("prepare_subsets")
    def _prepare_subsets(self, task: str) -> Job[stages.SubsetsOf]:
        texts, subset = self._texts(task), self.config.tasks[task].subset
        settings = stages.SubsetsOf(corpus=texts.settings.corpus, source=texts.settings.source, subset=subset or "")
        return self._made(settings, {"texts": [texts]}, {"subsets": "subsets"}, task=task)

    @_builds("tokenize")
    def _tokenize(self, model: str, laid_out: str) -> Job[stages.TokensOf]:
        name, _, slots = laid_out.partition("/slots-")
        corpus, layout = self.config.corpora[name], self.config.layout
        settings = stages.TokensOf(
            model=self._model(model),
            slots=int(slots or corpus.slots or 0),
            style=layout.style,
            segments=layout.segments if corpus.second else "aligned",  # single texts are one segment
            blocks=corpus.blocks,
        )
        texts = self.job("prepare_texts", corpus=name)
        return self._made(settings, {"texts": [texts]}, {"tokens": "tokens"}, model=model, laid_out=laid_out)

    @_builds("average")
    def _average(self, model: str, laid_out: str, averaged: str) -> Job[stages.AverageOf]:
        return self._average_part(model, laid_out, averaged, WHOLE)

    @_builds("average_part")
    def _average_part(self, model: str, laid_out: str, averaged: str, part: str) -> Job[stages.AverageOf]:
        settings = stages.AverageOf(model=self._encoding(model), part=part, kind=averaged)
        tokens = self.job("tokenize", model=model, laid_out=laid_out)
        own = {"model": model, "laid_out": laid_out, "averaged": averaged}
        output, more = ("average", {}) if part == WHOLE else ("average_part", {"part": part})
        return self._made(settings, {"tokens": [tokens]}, {"constants": output}, **own, **more)

    @_builds("merge_averages")
    def _merge_averages(self, model: str, laid_out: str, averaged: str) -> Job[stages.MergeOf]:
        own = {"model": model, "laid_out": laid_out, "averaged": averaged}
        parts = [self.job("average_part", **own, part=part) for part in self.parts(laid_out)]
        return self._made(stages.MergeOf(), {"parts": parts}, {"constants": "average"}, **own)

    @_builds("resample")
    def _resample(self, model: str, laid_out: str) -> Job[stages.ResampleOf]:
        settings = stages.ResampleOf(model=self._encoding(model))
        tokens = self.job("tokenize", model=model, laid_out=laid_out)
        return self._made(settings, {"tokens": [tokens]}, {"constants": "resample"}, model=model, laid_out=laid_out)

    @_builds("half_lambda")
    def _half_lambda(self, model: str, task: str, constant: str, seed: str, part: str) -> Job[stages.LambdaOf]:
        job = self._train_lambda(model, task, constant, seed)
        settings, path = job.settings.model_copy(update={"part": part}), "lambda_half"
        own = {"model": model, "task": task, "constant": constant, "seed": seed, "part": part}
        needs = {name: list(jobs) for name, jobs in job.needs.items()}
        return self._made(settings, needs, {"lambdas": path}, **own)

    @_builds("train_lambda")
    def _train_lambda(self, model: str, task: str, constant: str, seed: str) -> Job[stages.LambdaOf]:
        given, ranking = self.config.tasks[task], self.config.ranking
        settings = stages.LambdaOf(
            model=self._encoding(model, learning=True),
            training=self._training(task, ranking.epochs),
            masked=given.target is MASKED,
            seed=int(seed),
            constant=constant,
            encoder_dropout=self.config.encoder_dropout,
            unit=ranking.unit,
            direct=not given.target.probed,
            start=ranking.start,
            l1=ranking.l1 or 0.0,
            settled=ranking.settled,
        )
        needs: Needs = {
            "tokens": [self._tokens(model, task)],
            "labels": self.labels(task),
            "constants": self.constants(model, given.corpus, Constant.parse(constant)),
        }
        return self._made(settings, needs, {"lambdas": "lambda"}, model=model, task=task, constant=constant, seed=seed)

    @_builds("weigh_heads")
    def _weigh_heads(self, model: str, task: str, constant: str, weights: str) -> Job[stages.WeightsOf]:
        given, by = self.config.tasks[task], Order.parse(weights)
        needs: Needs = {"tokens": [self._tokens(model, task)]}
        told: dict[str, object] = {"by": by.base, "unit": self.config.ranking.unit, "training": stages.Training.none()}
        if by.draw is not None:  # it follows from a loss
            training = self._training(task)
            if not given.target.probed:  # no probe is trained
                training = stages.Training.none().model_copy(update={"batch_size": training.batch_size})
            told |= {"seed": by.draw, "training": training, "direct": not given.target.probed}
            told["encoder_dropout"] = self.config.encoder_dropout
            needs["labels"] = self.labels(task)
            if not self.streamed(task, Variant.parse(ORIGINAL)):
                needs["index"] = self._stored(model, task, ORIGINAL)
        if by.base != "output-norm":
            told["constant"] = constant
            needs["constants"] = self.constants(model, given.corpus, Constant.parse(constant))
        encoding = self._encoding(model, learning=by.draw is not None)
        settings = stages.WeightsOf.model_validate({"model": encoding, **told})
        wildcards = {"model": model, "task": task, "constant": constant, "weights": weights}
        return self._made(settings, needs, {"weights": "weights"}, **wildcards)

    @_builds("rank")
    def _rank(self, model: str, task: str, constant: str, order: str) -> Job[stages.OrderFromWeights]:
        made_of, own = Order.parse(order), {"model": model, "task": task, "constant": constant}
        if made_of.by_lambda:
            weights = self.job("train_lambda", **own, seed=str(made_of.draw))
        else:
            weights = self.job("weigh_heads", **own, weights=order)
        # finished orders record that they read `lambdas`, whatever the weights are
        return self._made(
            stages.OrderFromWeights(order=order), {"lambdas": [weights]}, {"order": "order"}, **own, order=order
        )

    @_builds("order_heads")
    def _order_heads(self, model: str, order: str) -> Job[stages.OrderFromModel]:
        seed = self.config.ranking.seeds[0] if Order.parse(order).draw is not None else 0
        settings = stages.OrderFromModel(
            model=self._model(model), order=order, seed=seed, unit=self.config.ranking.unit
        )
        return self._made(settings, {}, {"order": "heads_in_order"}, model=model, order=order)

    @_builds("hidden_states")
    def _hidden_states(self, model: str, owner: str, variant: str, part: str) -> Job[stages.HiddenOf]:
        replaced = Variant.parse(variant)
        where, _, name = owner.partition("/")
        corpus = name if where == "corpora" else self.config.tasks[name].corpus
        settings = stages.HiddenOf(model=self._encoding(model), variant=variant, part=part)
        needs: Needs = {"tokens": [self.job("tokenize", model=model, laid_out=corpus)]}
        needs |= self._replacing(model, corpus, "" if where == "corpora" else name, replaced)
        outputs = {"index": "index", "hidden": "hidden"}
        return self._made(settings, needs, outputs, model=model, owner=owner, variant=variant, part=part)

    def _stored(self, model: str, task: str, variant: str) -> list[AnyJob]:
        """The hidden states of a variant that a task reads, part by part."""
        corpus = self.config.tasks[task].corpus
        of_corpus = Variant.parse(variant).of_corpus
        owner = ARTEFACTS["texts"].folder(corpus=corpus) if of_corpus else ARTEFACTS["labels"].folder(task=task)
        own = {"model": model, "owner": owner, "variant": variant}
        return [self.job("hidden_states", **own, part=part) for part in self.parts(corpus)]

    @_builds("probe")
    def _probe(self, model: str, task: str, variant: str) -> Job[stages.ProbeOf]:
        given, replaced = self.config.tasks[task], Variant.parse(variant)
        streamed = self.streamed(task, replaced)
        settings = stages.ProbeOf(
            model=self._encoding(model, learning=replaced.trained),
            task=task,
            metric=given.metric,
            training=self._training(task) if given.target.probed else stages.Training.none(),
            seeds=tuple(self.variants(model, task).get(replaced) or self.config.run.seeds),
            variant=variant,
            encoder_dropout=self.config.encoder_dropout,
            streamed=streamed,
            direct=not given.target.probed,
        )
        needs: Needs = {"tokens": [self._tokens(model, task)], "labels": self.labels(task)}
        if streamed:
            needs |= self._replacing(model, given.corpus, task, replaced)
        else:
            needs["index"] = self._stored(model, task, variant)
        outputs = {name: name for name in ("runs", "outcomes", "probes")}
        return self._made(settings, needs, outputs, model=model, task=task, variant=variant)

    @_builds("stream_probe")
    def _stream_probe(self, model: str, task: str, variant: str) -> Job[stages.ProbeOf]:
        return self._probe(model, task, variant)

    @_builds("summarise")
    def _summarise(self) -> Job[stages.AnalysisOf]:
        return self._analysis("summary")

    @_builds("claims")
    def _claims(self) -> Job[stages.AnalysisOf]:
        return self._analysis("claims")

    @_builds("analysis")
    def _analysis(self, analysis: str) -> Job[stages.AnalysisOf]:
        entry = ANALYSES.get(analysis) or grid_entry(self, analysis)
        return self._made(entry.settings(analysis, self), entry.inputs(self), entry.outputs, analysis=analysis)

    @_builds("drawn_analysis")
    def _drawn_analysis(self, analysis: str) -> Job[stages.AnalysisOf]:
        return self._analysis(analysis)

    def weights(self) -> list[AnyJob]:
        """All weights of heads that orders are made of, and λ on halves of the texts."""
        return self._weights()

    @cache  # noqa: B019  a study lives as long as its process
    def _weights(self) -> list[AnyJob]:
        ranks = {job for probe in self.probes() for hidden in probe.needed for job in (hidden, *hidden.needed)}
        whole = dict.fromkeys(job for rank in ranks if rank.rule == "rank" for job in rank.needed)
        own = sorted(whole, key=lambda job: job.main)
        if not self.config.ranking.halves:
            return own
        learned = [job for job in own if job.rule == "train_lambda"]
        return [*own, *(self.job("half_lambda", **job.wildcards, part=part) for job in learned for part in parts_of(2))]

    def lambdas(self) -> list[AnyJob]:
        """All λ that are learned, those on halves of the texts included."""
        return [job for job in self.weights() if isinstance(job.settings, stages.LambdaOf)]

    @_builds("describe_patterns")
    def _describe_patterns(self, model: str, laid_out: str) -> Job[stages.AnalysisOf]:
        entry, wildcards = patterns_entry(self, model, laid_out), {"model": model, "laid_out": laid_out}
        return self._made(entry.settings("patterns", self), entry.inputs(self), entry.outputs, **wildcards)

    @_builds("page")
    def _page(self) -> Job[stages.PageOf]:
        # finished reports record these inputs by name, and all other analyses together
        named: Needs = {name: [self.analysis("summary")] for name in ("summary", "runs", "curves")}
        named |= {name: [self.analysis(name)] for name in ("claims", "stability") if name in self.entries()}
        rest = [job for job in self.analyses() if [job] not in named.values()]
        return self._made(stages.PageOf(config=self.shown_config()), named | {"analyses": rest}, {"page": "page"})

    # -- parts of these ----------------------------------------------------------------------------------------------

    def _made(
        self,
        settings: S,
        needs: Mapping[str, list[AnyJob]],
        outputs: Mapping[str, str],
        **wildcards: str,
    ) -> Job[S]:
        return Job(
            settings.stamp[0],
            settings,
            {
                name: tuple(_output_for(name, needed) for needed in several)
                for name, several in needs.items()
                if several
            },
            {name: self.path(artefact, **wildcards) for name, artefact in outputs.items()},
            needs={name: tuple(several) for name, several in needs.items() if several},
        )

    def runs(self, model: str, task: str) -> list[Job[stages.ProbeOf]]:
        """The jobs that train the probes of a model and a task, one for each variant."""
        return [
            self.job(
                "stream_probe" if self.streamed(task, variant) else "probe",
                model=model,
                task=task,
                variant=variant.path,
            )
            for variant in self.variants(model, task)
        ]

    def parts(self, laid_out: str) -> list[str]:
        """The parts that a corpus is averaged and encoded in, a job each: as many as it has shards."""
        return parts_of(self.config.corpora[laid_out.split("/")[0]].shards)

    def averaged(self, model: str, laid_out: str, kind: str = "average") -> AnyJob:
        """The job that ends with the averages over a corpus, or with other constants that are made of it."""
        if kind == RESAMPLED:
            return self.job("resample", model=model, laid_out=laid_out)
        rule = "average" if len(self.parts(laid_out)) == 1 else "merge_averages"
        return self.job(rule, model=model, laid_out=laid_out, averaged=kind)

    def constants(self, model: str, corpus: str, constant: Constant | None) -> list[AnyJob]:
        """The job of the averages that replace a model's attention on a corpus; none if none are read."""
        if constant is None or constant.data_free:
            return []
        slots, source = self.config.corpora[corpus].slots, constant.corpus or corpus
        own = self.config.corpora[source].slots == slots
        return [self.averaged(model, source if own else f"{source}/slots-{slots}", constant.start)]

    def order(self, model: str, task: str, constant: Constant, order: Order) -> AnyJob:
        """The job of an order of heads: by their weights for a task and a constant, or of the model alone."""
        if not order.by_weight:
            return self.job("order_heads", model=model, order=order.name)
        return self.job("rank", model=model, task=task, constant=constant.untrained, order=order.name)

    def _replacing(self, model: str, corpus: str, task: str, variant: Variant) -> dict[str, list[AnyJob]]:
        """The averages and the order that a variant needs, if it needs them."""
        needs = {"constants": self.constants(model, corpus, variant.constant)}
        if variant.constant is not None and variant.order is not None:
            needs["order"] = [self.order(model, task, variant.constant, variant.order)]
        return needs

    def _patterns(self) -> list[AnyJob]:
        tasks = self.config.patterns.tasks if self.config.patterns else ()
        pairs = [(model, self.config.tasks[task].corpus) for model, task in self.config.pairs if task in tasks]
        return [self.job("describe_patterns", model=model, laid_out=corpus) for model, corpus in dict.fromkeys(pairs)]

    def _texts(self, task: str) -> Job[stages.TextsOf]:
        return self.job("prepare_texts", corpus=self.config.tasks[task].corpus)

    def labels(self, task: str) -> list[Job[stages.LabelsOf]]:
        return [] if self.config.tasks[task].label is None else [self.job("prepare_labels", task=task)]

    def _tokens(self, model: str, task: str) -> Job[stages.TokensOf]:
        return self.job("tokenize", model=model, laid_out=self.config.tasks[task].corpus)

    def _corpus(self, name: str) -> Corpus:
        """A corpus without what its texts do not depend on."""
        given = self.config.corpora[name]
        return given if self.config.score_validation == "all" else given.model_copy(update={"more_validation": None})

    def _model(self, name: str) -> stages.ModelId:
        given = self.config.models[name]
        own = stages.ModelId.of(name, given)
        return own.model_copy(update={"weights": given.sha256 or self.sources.weights(own)})

    def _encoding(self, name: str, learning: bool = False) -> stages.Encoding:
        """A model and the config's precision; float32 if gradients through it would not survive float16."""
        precision = self.config.precision
        usual = learning and precision == "float16"
        return stages.Encoding(model=self._model(name), precision="float32" if usual else precision)

    def _training(self, task: str, epochs: int | None = None) -> stages.Training:
        given = self.config.tasks[task]
        return stages.Training(
            learning_rate=given.learning_rate, batch_size=given.batch_size, epochs=epochs or given.epochs
        )


def _output_for(name: str, job: AnyJob) -> str:
    """The output of a job that an input of this name is: the runs of a variant, the table of a summary."""
    return job.outputs.get(name, job.main)
