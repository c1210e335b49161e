"""The jobs that the workflow runs for a config, read off the artefacts that its graph wants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from papa.config.graph import CORPUS_VARIANTS, PART, TASK_VARIANTS, Graph, setting
from papa.config.kinds import kind_of
from papa.config.settings import NAME

_CORPUS = f"corpora/(?P<corpus>{NAME}(?:/slots-[0-9]+)?)"
_TASK, _MODEL = f"tasks/(?P<task>{NAME})", f"models/(?P<model>{NAME})"
OUTPUTS = {
    "prepare_texts": rf"{_CORPUS}/texts\.parquet",
    "prepare_labels": rf"{_TASK}/labels\.parquet",
    "tokenize": rf"{_MODEL}/{_CORPUS}/tokens\.parquet",
    "average": rf"{_MODEL}/{_CORPUS}/average\.h5",
    "average_part": rf"{_MODEL}/{_CORPUS}/average/(?P<part>{PART})\.h5",
    "train_lambda": rf"{_MODEL}/{_TASK}/(?P<variant>[^/]+)/lambda\.parquet",
    "rank": rf"{_MODEL}/{_TASK}/(?P<variant>[^/]+/[^/]+)/order\.parquet",
    "order_heads": rf"{_MODEL}/orders/(?P<variant>[^/]+)\.parquet",
    "features_of_corpus": rf"{_MODEL}/{_CORPUS}/features/(?P<variant>{CORPUS_VARIANTS})/(?P<part>{PART})\.json",
    "features_of_task": rf"{_MODEL}/{_TASK}/features/(?P<variant>{TASK_VARIANTS})/(?P<part>{PART})\.json",
    "probe": rf"{_MODEL}/{_TASK}/runs/(?P<variant>.+)/seed-(?P<seed>[0-9]+)\.json",
    "patterns": rf"{_MODEL}/{_CORPUS}/patterns\.parquet",
    "plot_patterns": rf"figures/patterns/(?P<model>{NAME})/(?P<corpus>{NAME})\.svg",
    "published": r"tables/published\.parquet",
    "score_and_drop": r"tables/score_and_drop\.parquet",
    "plot_score_and_drop": r"figures/score_and_drop\.svg",
    "gather": rf"tables/(?P<grid>{NAME})\.parquet",
    "plot_grid": rf"figures/(?P<grid>{NAME})\.svg",
}
"""Which rule makes an artefact of the graph, the first that fits: one output of each rule, with its wildcards."""
MERGED = "merge_averages"
"""The rule of averages that are made of those of parts."""
THROUGH_ENCODER = "probe_through_encoder"
"""The rule of a probe whose hidden states are not stored."""
NEEDED = {"patterns": "average", "average": "tokenize", "average_part": "tokenize", "tokenize": "prepare_texts"}
"""Jobs whose artefacts the graph may leave unsaid, for another corpus's averages: each needs one of the other rule."""
ONCE = {
    "collect": "tables/runs",
    "summarise": "tables/summary",
    "latex": "tables/latex",
    "report": "report/index",
}
"""Rules that run once for every config, and what the file with their seconds is called."""


@dataclass(frozen=True)
class Job:
    """One job: its rule, and the wildcards of its outputs ("" where there is none); a task's job has its corpus too."""

    rule: str
    model: str = ""
    corpus: str = ""
    task: str = ""
    variant: str = ""
    seed: str = ""
    grid: str = ""
    part: str = ""

    @property
    def training(self) -> str:
        """How the job trains: "lambda", a probe on "stored" or "streamed" hidden states, or constants beside it,
        "trained"; "" where it does not train."""
        if self.rule == THROUGH_ENCODER:
            constant = setting(self.variant)["constant"]
            return "trained" if constant is not None and kind_of(constant).trained else "streamed"
        return {"train_lambda": "lambda", "probe": "stored"}.get(self.rule, "")


def jobs_of(graph: Graph) -> list[Job]:
    """All jobs that the workflow runs for a config, each once."""
    found: dict[Job, None] = {}
    for path in [*graph.artefacts(), *graph.analyses()]:
        job = job_of(path, graph)
        found |= dict.fromkeys(_with_needed(job, graph) if job else ())
    return [*found, *map(Job, ONCE)]


def job_of(path: str, graph: Graph) -> Job | None:
    """The job that makes what a graph calls `path`; None where that is not the output which `OUTPUTS` has."""
    for rule, pattern in OUTPUTS.items():
        match = re.fullmatch(f"<results>/{pattern}", path)
        if match:
            job = Job(rule, **match.groupdict())
            job = replace(job, corpus=graph.corpus_of(job.task)) if job.task else job
            return replace(job, rule=_rule_of(job, graph))
    return None


def _rule_of(job: Job, graph: Graph) -> str:
    """The rule of a job, where two rules make files of the same name."""
    if job.rule == "probe" and graph.streamed(job.task, job.variant):
        return THROUGH_ENCODER
    return MERGED if job.rule == "average" and len(graph.parts(job.corpus)) > 1 else job.rule


def _with_needed(job: Job, graph: Graph) -> Iterator[Job]:
    if job.rule == MERGED:
        yield job
        for part in graph.parts(job.corpus):
            yield from _with_needed(replace(job, rule="average_part", part=part), graph)
        return
    yield job
    needed = NEEDED.get(job.rule)
    if needed == "prepare_texts":
        yield Job(needed, corpus=job.corpus.split("/")[0])
    elif needed:
        job = replace(job, rule=needed, part="")
        yield from _with_needed(replace(job, rule=_rule_of(job, graph)), graph)
