"""Settings, inputs and outputs of the jobs of each workflow rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from papa.config import stages
from papa.config.analyses import ANALYSES, Entry, grid_entry, patterns_entry
from papa.config.artefacts import ARTEFACTS
from papa.config.job import AnyJob
from papa.config.variant import BY_LAMBDA, ORIGINAL, Constant, Order, Variant
from papa.errors import InputError

if TYPE_CHECKING:
    from papa.config.study import Plan

InputJobs = dict[str, Sequence[AnyJob]]


class Wiring(NamedTuple):
    """A job without paths."""

    settings: stages.Settings  # the settings of its stage
    needs: Mapping[str, Sequence[AnyJob]]  # the jobs that make each input; an input without jobs is not read
    outputs: Mapping[str, str]  # the key in `ARTEFACTS` for each output
    more_wildcards: Mapping[str, str] = {}  # wildcards in output paths that are not wildcards of the rule


def _texts(study: Plan, corpus: str) -> Wiring:
    return Wiring(stages.TextsOf(**_read(study, corpus)), {}, {"texts": "texts"})


def _labels(study: Plan, task: str) -> Wiring:
    block = study.config.tasks[task]
    if block.label is None:
        raise InputError(f"Task {task} has no labels to prepare; add the key `label` to it.")
    settings = {"label": block.label, "labels": block.labels, "metric": block.metric}
    return _of_task(study, task, stages.LabelsOf, "labels", settings)


def _subsets(study: Plan, task: str) -> Wiring:
    return _of_task(study, task, stages.SubsetsOf, "subsets", {"subset": study.config.tasks[task].subset or ""})


def _clusters(study: Plan, task: str) -> Wiring:
    cluster = str(study.config.corpora[study.config.tasks[task].corpus].cluster or "")
    return _of_task(study, task, stages.ClustersOf, "clusters", {"cluster": cluster})


def _of_task(study: Plan, task: str, stage: type[stages.OfCorpus], output: str, settings: Mapping[str, Any]) -> Wiring:
    """Wire a job that reads a column of a task's corpus."""
    corpus = study.config.tasks[task].corpus
    texts = study.job("prepare_texts", corpus=corpus)
    return Wiring(stage(**_read(study, corpus), **settings), {"texts": [texts]}, {output: output})


def _tokens(study: Plan, model: str, laid_out: str) -> Wiring:
    name, _, slots = laid_out.partition("/slots-")
    corpus = study.config.corpora[name]
    number, style = int(slots or corpus.slots or 0), study.config.layout
    settings = stages.TokensOf(model=_model(study, model), slots=number, style=style, blocks=corpus.blocks)
    return Wiring(settings, {"texts": [study.job("prepare_texts", corpus=name)]}, {"tokens": "tokens"})


def _average(study: Plan, model: str, laid_out: str, averaged: str) -> Wiring:
    settings = stages.AverageOf(model=_encoding(study, model), kind=averaged)
    tokens = study.job("tokenize", model=model, laid_out=laid_out)
    return Wiring(settings, {"tokens": [tokens]}, {"constants": "average"})


def _lambda(study: Plan, model: str, task: str, constant: str, seed: str) -> Wiring:
    block = study.config.tasks[task]
    settings = stages.LambdaOf(
        model=_encoding(study, model),
        metric=block.metric,
        training=stages.Training.of(block, study.config.ranking.epochs),
        seed=int(seed),
        constant=constant,
        encoder_dropout=study.config.encoder_dropout,
    )
    needs = _examples(study, model, task)
    needs["constants"] = study.constants(model, block.corpus, Constant.parse(constant))
    return Wiring(settings, needs, {"lambdas": "lambda"})


def _weights(study: Plan, model: str, task: str, constant: str, weights: str) -> Wiring:
    block = study.config.tasks[task]
    settings = stages.WeightsOf(
        model=_encoding(study, model),
        metric=block.metric,
        constant=constant,
        seed=int(weights.removeprefix("gradient-")),
        training=stages.Training.of_probe(block, block.batch_size),
        encoder_dropout=study.config.encoder_dropout,
    )
    needs = _examples(study, model, task)
    if not study.streamed(task, Variant.parse(ORIGINAL)):
        needs["index"] = _hidden_states(study, model, task, ORIGINAL)
    needs["constants"] = study.constants(model, block.corpus, Constant.parse(constant))
    return Wiring(settings, needs, {"weights": "weights"})


def _order_from_weights(study: Plan, model: str, task: str, constant: str, order: str) -> Wiring:
    base, _, seed = order.rpartition("-")
    rule, last = ("train_lambda", {"seed": seed}) if base in BY_LAMBDA else ("weigh_heads", {"weights": order})
    weights = study.job(rule, model=model, task=task, constant=constant, **last)
    settings = stages.OrderFromWeights(order=order)
    # the input has this name for all head weights, because finished orders record it
    return Wiring(settings, {"lambdas": [weights]}, {"order": "order"})


def _order_from_model(study: Plan, model: str, order: str) -> Wiring:
    seeds, listed = study.config.ranking.seeds, study.config.lists.get(order)
    seed, file = 0 if Order.parse(order).draw is None else seeds[0], listed.file if listed else None
    digest = file and study.sources.head_list(file)
    settings = stages.OrderFromModel(model=_model(study, model), order=order, seed=seed, file=file, digest=digest)
    return Wiring(settings, {}, {"order": "heads_in_order"})


def _hidden(study: Plan, model: str, owner: str, variant: str) -> Wiring:
    folder, _, name = owner.partition("/")
    task = name if folder == "tasks" else ""
    corpus = study.config.tasks[task].corpus if task else name
    settings = stages.HiddenOf(model=_encoding(study, model), variant=variant)
    tokens = study.job("tokenize", model=model, laid_out=corpus)
    needs = {"tokens": [tokens]} | _replacement(study, model, corpus, task, Variant.parse(variant))
    return Wiring(settings, needs, {"index": "index", "hidden": "hidden"})


def _probe(study: Plan, model: str, task: str, variant: str) -> Wiring:
    block, replaced = study.config.tasks[task], Variant.parse(variant)
    streamed = study.streamed(task, replaced)
    settings = stages.ProbeOf(
        model=_encoding(study, model),
        task=task,
        metric=block.metric,
        training=stages.Training.of_probe(block),
        variant=variant,
        encoder_dropout=study.config.encoder_dropout,
        streamed=streamed,
        seeds=tuple(study.variants(model, task).get(replaced) or study.config.run.seeds),
    )
    needs = _examples(study, model, task)
    if streamed:
        needs |= _replacement(study, model, block.corpus, task, replaced)
    else:
        needs["index"] = _hidden_states(study, model, task, variant)
    return Wiring(settings, needs, {name: name for name in ("runs", "outcomes", "probes")})


def _analysis(study: Plan, analysis: str, entry: Entry | None = None) -> Wiring:
    entry = entry or ANALYSES.get(analysis) or grid_entry(study, analysis)
    return Wiring(entry.settings(analysis, study), entry.inputs(study), entry.outputs, {"analysis": analysis})


def _patterns(study: Plan, model: str, laid_out: str) -> Wiring:
    return _analysis(study, "patterns", patterns_entry(study, model, laid_out))


def _page(study: Plan) -> Wiring:
    named: InputJobs = {name: [study.analysis(name)] for name in ("summary", "claims")}
    others = [job for job in study.analyses() if [job] not in named.values()]
    return Wiring(stages.PageOf(config=study.config.shown()), named | {"analyses": others}, {"page": "page"})


ANALYSIS_RULES = {"summary": "summarise", "claims": "claims"}
"""The rules of the analyses with additional outputs; all other analyses share two rules."""

BUILDERS: dict[str, Callable[..., Wiring]] = {
    "prepare_texts": _texts,
    "prepare_labels": _labels,
    "prepare_subsets": _subsets,
    "prepare_clusters": _clusters,
    "tokenize": _tokens,
    "average": _average,
    "train_lambda": _lambda,
    "weigh_heads": _weights,
    "rank": _order_from_weights,
    "order_heads": _order_from_model,
    "hidden_states": _hidden,
    "probe": _probe,
    "stream_probe": _probe,
    "analysis": _analysis,
    "drawn_analysis": _analysis,
    "describe_patterns": _patterns,
    "page": _page,
    **{rule: partial(_analysis, analysis=name) for name, rule in ANALYSIS_RULES.items()},
}
"""For each workflow rule, the function that wires a job from a study and the wildcards of the rule."""


def _examples(study: Plan, model: str, task: str) -> InputJobs:
    """Return the jobs of a task's tokens and of its labels, if it has any."""
    tokens = study.job("tokenize", model=model, laid_out=study.config.tasks[task].corpus)
    return {"tokens": [tokens], "labels": study.labels(task)}


def _hidden_states(study: Plan, model: str, task: str, variant: str) -> list[AnyJob]:
    """Return a list with the job of the stored hidden states that a task reads."""
    corpus = study.config.tasks[task].corpus
    of_corpus = Variant.parse(variant).shared_by_tasks
    owner = ARTEFACTS["texts"].folder(corpus=corpus) if of_corpus else ARTEFACTS["labels"].folder(task=task)
    return [study.job("hidden_states", model=model, owner=owner, variant=variant)]


def _replacement(study: Plan, model: str, corpus: str, task: str, variant: Variant) -> InputJobs:
    """Return the jobs of the constants and the order that a variant needs."""
    needs: InputJobs = {"constants": study.constants(model, corpus, variant.constant)}
    if variant.constant is not None and (order := variant.order) is not None:
        weighed = {"task": task, "constant": variant.constant.untrained} if order.by_weight else {}
        rule = "rank" if order.by_weight else "order_heads"
        needs["order"] = [study.job(rule, model=model, **weighed, order=order.name)]
    return needs


def _read(study: Plan, name: str) -> dict[str, Any]:
    """Return a corpus without its clusters, which *clusters* and the summary record, and the digests of its files."""
    corpus = study.config.corpora[name].model_copy(update={"cluster": None})
    return {"corpus": corpus, "source": study.sources.source(corpus)}


def _model(study: Plan, name: str) -> stages.ModelId:
    settings = study.config.models[name]
    model = stages.ModelId.of(name, settings)
    return model.model_copy(update={"weights": settings.sha256 or study.sources.weights(model)})


def _encoding(study: Plan, name: str) -> stages.Encoding:
    return stages.Encoding(model=_model(study, name), precision=study.config.precision)
