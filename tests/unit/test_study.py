"""What a config runs, and which of its jobs are done: told by the artefacts alone, with no workflow at all."""

import os
import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch
from tiny import ABSENT, with_keys
from tiny import CONFIG as TINY

from papa.config.freshness import FRESH, MISSING, PRUNED, SourceDigests
from papa.config.job import Job
from papa.config.reading import config_of
from papa.config.settings import Corpus, HubTexts, Machine, OnHub, corpus_of
from papa.config.stages import STAGES, ModelId, OrderFromModel, Settings, TextsOf
from papa.config.study import Plan
from papa.files import KEY, provenance_of_arrays, trace_of, write_json, write_page, write_table, write_tensors

HOW = {"learning_rate": 0.001, "batch_size": 8, "epochs": 1}
CONFIG: dict[str, Any] = {
    "name": "tiny",
    "floors": ["zeros"],
    "run": {"models": ["m"], "tasks": ["mood", "tags"], "fractions": ["1", "1/2", "0"], "seeds": [1, 2]},
    "models": {"m": {"hub": "some/model"}},
    "corpora": {
        "texts": {"files": {"train": "a.csv", "validation": "b.csv"}, "first": "text", "slots": 13},
        "words": {"files": {"train": "a.jsonl", "validation": "b.jsonl"}, "words": "words", "slots": 11},
    },
    "tasks": {
        "mood": HOW | {"corpus": "texts", "label": "mood", "metric": "accuracy"},
        "tags": HOW | {"corpus": "words", "label": "tags", "metric": "token_accuracy"},
    },
}
RESULTS = {"summarise": 1, "claims": 1, "drawn_analysis": 3, "page": 1}
JOBS = dict.fromkeys(("prepare_texts", "prepare_labels", "tokenize", "average", "train_lambda", "rank"), 2)
JOBS |= {"hidden_states": 8, "probe": 8} | RESULTS
OF_MOOD = {"train_lambda": 1, "rank": 1, "hidden_states": 1, "probe": 4}
OF_LAMBDA = {"train_lambda": 2, "rank": 2, "hidden_states": 2, "probe": 2}
LAID_OUT = OF_MOOD | {"tokenize": 1, "average": 1, "hidden_states": 4}
PAGE = {"page": 1}
JOBS_OF_STAGES = ("texts", "labels", "tokens", "average", "lambda", "rank", "hidden", "probe")
ON_HUB = {"corpora__texts__files": None, "corpora__texts__hub": "some/data"}


class Known(SourceDigests):
    """A machine with these files."""

    def __init__(self, weights: str | None = "w", files: str = "f"):
        self.known, self.files = weights, files

    def source(self, corpus: Corpus) -> dict[str, str]:
        return {split: f"{self.files} {split}" for split in corpus.splits}

    def model(self, model: ModelId) -> str | None:
        return self.known


class NoMirror(Known):
    """A machine to which the hub's content is unknown."""

    def source(self, corpus: Corpus) -> dict[str, str]:
        return {} if isinstance(corpus, OnHub) else super().source(corpus)


def edited(**changes: Any) -> dict[str, Any]:
    """CONFIG with values at paths of keys, which are joined by two underscores; None takes a key away."""
    named = {path.replace("__", "."): ABSENT if value is None else value for path, value in changes.items()}
    return with_keys(CONFIG, named)


def study_of(config: dict[str, Any], folder: Path, roots: SourceDigests) -> Plan:
    return Plan(config_of(config), folder, roots)


def finish(study: Plan, content: dict[str, Any] | None = None) -> None:
    """Write the artefacts of all jobs, with what each job would say of them; `content` is what is in them."""
    for job in study.jobs():
        write(study, job, (content or {}).get(job.stage, job.main))


def write(study: Plan, job: Job[Settings], content: Any) -> None:
    inputs = {name: tuple(str(study.results / path) for path in paths) for name, paths in job.inputs.items()}
    outputs = {name: str(study.results / path) for name, path in job.outputs.items()}
    read = Job.of(study.parameters(job), inputs, outputs, Machine())
    sources = {name: digest for name, digest in SourceDigests.of(study.sources, job.settings).items() if digest}
    trace = read.trace(**sources)
    facts = {"texts": {"rows_available": {"train": 23}}, "labels": {"label_names": ["b", "a"]}}.get(job.stage, {})
    for path in map(Path, read.outputs.values()):
        path.parent.mkdir(parents=True, exist_ok=True)
        match path.suffix:
            case ".parquet":
                write_table(pa.table({"content": [str(content)]}), path, facts, trace)
            case ".json":
                write_json({"content": content}, path, trace, {"seeds": getattr(job.settings, "seeds", None)})
            case ".h5":
                values = {"mean": np.frombuffer(str(content).encode(), "u1")}
                with h5py.File(path, "w") as store:
                    store.attrs[KEY] = provenance_of_arrays({}, trace, values)
            case ".html":
                write_page(f"<head></head>{content}", path, trace)
            case ".safetensors":
                write_tensors({"content": torch.zeros(1)}, path, {}, trace)
            case _:
                path.write_text("")


def to_do(study: Plan) -> dict[str, int]:
    """How many jobs of each rule are not done."""
    return dict(Counter(job.rule for job in study.jobs() if study.state(job) != FRESH))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    finish(study_of(CONFIG, folder, Known()))
    return folder


@pytest.fixture
def results(finished: Path, tmp_path: Path) -> Path:
    """A copy of finished results: no file is as old as it was, and no workflow remembers anything."""
    shutil.copytree(finished, tmp_path / "copy", copy_function=shutil.copyfile)
    return tmp_path / "copy"


def test_a_config_runs_these_jobs(tmp_path: Path) -> None:
    study = study_of(CONFIG, tmp_path, Known())
    assert Counter(job.rule for job in study.jobs()) == JOBS
    assert {study.state(job) for job in study.jobs()} == {MISSING}
    order = list(study.jobs())
    assert all(order.index(needed) < order.index(job) for job in order for needed in job.needed)


def test_what_is_done_is_not_done_again(results: Path) -> None:
    study = study_of(CONFIG, results, Known())
    assert to_do(study) == {} and study.freshness.outdated() == {} and not study.changed()
    next(results.rglob("lambda-0.parquet")).unlink()
    assert study.changed()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tasks__mood__learning_rate": 0.5}, OF_MOOD | RESULTS),
        ({"ranking__seeds": [7]}, OF_LAMBDA | RESULTS),
        ({"run__seeds": [1, 2, 3]}, {"probe": 8} | RESULTS),
        ({"run__fractions": ["1", "1/2", "1/3", "0"]}, {"hidden_states": 2, "probe": 2} | RESULTS),
        ({"run__orders": ["lambda", "lambda-reversed"]}, {"rank": 2, "hidden_states": 2, "probe": 2} | RESULTS),
        (
            {"run__orders": ["lambda", "gradient"]},
            {"weigh_heads": 2, "rank": 2, "hidden_states": 2, "probe": 2} | RESULTS,
        ),
        ({"run__constants": ["average", "zeros"]}, OF_LAMBDA | RESULTS),
        ({"tasks__mood__title": "Mood"}, RESULTS),
        ({"margin": 0.2}, {"claims": 1, "drawn_analysis": 1, "page": 1}),
        # outcomes are there: another metric or subset trains nothing
        ({"tasks__mood__metric": "matthews_correlation"}, RESULTS),
        ({"tasks__mood__subset": "length"}, {"prepare_subsets": 1} | RESULTS),
        ({"corpora__texts__cluster": "length"}, {"prepare_clusters": 1} | RESULTS),
        ({"tasks__mood__labels": ["a", "b"]}, {"prepare_labels": 1} | OF_MOOD | {"probe": 4} | RESULTS),
        ({"corpora__texts__slots": 17}, LAID_OUT | RESULTS),
        ({"corpora__texts__train_limit": 22}, {"prepare_texts": 1, "prepare_labels": 1} | LAID_OUT | RESULTS),
        ({"precision": "bfloat16"}, OF_LAMBDA | {"average": 2, "hidden_states": 8, "probe": 8} | RESULTS),
        # nothing, except the page, which shows the config
        ({"corpora__texts__train_limit": 23}, PAGE),
        ({"tasks__mood__labels": ["b", "a"]}, PAGE),
        ({"models__m__revision": "0123abc"}, PAGE),
        ({"models__m__path": "models/m"}, {}),
        ({"corpora__texts__files": {"train": "elsewhere/c.csv", "validation": "./b.csv"}}, PAGE),
        ({"device": "cpu", "threads": 3, "token_budget": 7, "hub_mirror": "hub"}, {}),
    ],
)
def test_an_edit_reruns_what_depends_on_it(results: Path, changes: dict[str, Any], expected: dict[str, int]) -> None:
    assert to_do(study_of(edited(**changes), results, Known())) == expected


def test_hidden_states_that_were_deleted_are_made_again_for_weights_that_are_to_read_them(tmp_path: Path) -> None:
    given = edited(run__orders=["gradient"], keep_hidden_states=False)
    study = study_of(given, tmp_path, Known())
    finish(study)
    stored = [job for job in study.jobs() if job.rule == "hidden_states"]
    original = next(job for job in stored if job.wildcards["variant"] == "original")
    (tmp_path / original.outputs["hidden"]).unlink()
    assert study_of(given, tmp_path, Known()).state(original) == FRESH
    assert study_of(given | {"ranking": {"seeds": [0, 1]}}, tmp_path, Known()).state(original) == PRUNED


REVISIONS = [edited(**ON_HUB, corpora__texts__revision=revision) for revision in "ab"]
LISTED = [edited(tasks__mood__labels=labels) for labels in (["b", "a"], ["b", "a", "c"])]
TURNED = [edited(grids={"more": {"tasks": tasks}}) for tasks in (["mood", "tags"], ["tags", "mood"])]
OF_MODEL = {name: number for name, number in JOBS.items() if name not in ("prepare_texts", "prepare_labels")}
OF_LABELS = {"prepare_labels": 1} | OF_MOOD | {"probe": 4} | RESULTS
OF_REVISION = {"prepare_texts": 1, "prepare_labels": 1}


@pytest.mark.parametrize(
    ("before", "machine", "after", "other", "expected"),
    [
        (CONFIG, Known(), CONFIG, Known(files="others"), JOBS),
        (CONFIG, Known(), CONFIG, Known(weights="others"), OF_MODEL),
        # a model that is not here is known by where it comes from
        (CONFIG, Known(weights=None), CONFIG, Known(weights=None), {}),
        (CONFIG, Known(weights=None), edited(models__m__revision="0123abc"), Known(weights=None), OF_MODEL),
        # a mirror is only a place, but another revision is noticed if the mirror comes or goes too
        (edited(**ON_HUB), Known(), edited(**ON_HUB), NoMirror(), {}),
        (edited(**ON_HUB), NoMirror(), edited(**ON_HUB), Known(), {}),
        (edited(**ON_HUB), Known(), REVISIONS[1], Known(), PAGE),
        (REVISIONS[0], Known(), REVISIONS[1], NoMirror(), OF_REVISION),
        (REVISIONS[0], NoMirror(), REVISIONS[1], Known(), OF_REVISION),
        # artefacts with listed labels say nothing about the names in the data, which may be in another order
        (LISTED[0], Known(), CONFIG, Known(), OF_LABELS),
        (LISTED[1], Known(), CONFIG, Known(), OF_LABELS),
        (TURNED[0], Known(), TURNED[1], Known(), {"drawn_analysis": 1, "page": 1}),
    ],
)
def test_what_another_machine_or_config_makes_again(tmp_path, before, machine, after, other, expected) -> None:
    finish(study_of(before, tmp_path, machine))
    assert to_do(study_of(before, tmp_path, machine)) == {}
    study = study_of(after, tmp_path, other)
    assert to_do(study).items() >= expected.items() and (expected is OF_REVISION or to_do(study) == expected)
    if expected is OF_REVISION:
        assert set(study.freshness.outdated().values()) == {"`corpus.revision` changed from a to b"}


def test_a_new_version_of_a_stage_makes_its_artefacts_again(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papa.config.stages.LambdaOf.version", 99)
    study = study_of(CONFIG, results, Known())
    assert to_do(study) == OF_LAMBDA | RESULTS
    why = "it was made by stage lambda, version 1, but the current one is lambda, version 99"
    assert set(study.freshness.outdated().values()) == {why}


@pytest.mark.parametrize("stage", ["lambda", "hidden", "labels"])
def test_an_artefact_of_another_study_is_found(stage: str, results: Path, tmp_path: Path) -> None:
    other = study_of(edited(tasks__mood__learning_rate=0.9, ranking__epochs=9), tmp_path / "other", Known(files="o"))
    finish(other, dict.fromkeys(JOBS_OF_STAGES, "of another study"))
    study = study_of(CONFIG, results, Known())
    job = next(job for job in study.jobs() if job.stage == stage)
    shutil.copyfile(other.results / job.main, results / job.main)
    study = study_of(CONFIG, results, Known())
    assert study.state(job) not in (FRESH, MISSING)
    assert study.state(study.job("page")) != FRESH


def test_content_that_is_made_again_as_it_was_makes_nothing_else_again(results: Path) -> None:
    study = study_of(CONFIG, results, Known())
    texts = study.job("prepare_texts", corpus="texts")
    (results / texts.main).unlink()
    write(study, texts, texts.main)
    assert to_do(study_of(CONFIG, results, Known())) == {}
    write(study, texts, "other texts")
    assert to_do(study_of(CONFIG, results, Known()))["probe"] == 4


def test_the_same_seeds_are_not_trained_again_on_hidden_states_that_were_deleted(results: Path) -> None:
    for path in results.rglob("*.hidden"):
        path.unlink()
    assert to_do(study_of(CONFIG, results, Known())) == {}
    added = study_of(edited(run__seeds=[1, 2, 3]), results, Known())
    assert to_do(added) == {"hidden_states": 8, "probe": 8} | RESULTS


def test_files_of_a_variant_go_together(results: Path) -> None:
    """They are written one by one where others were before, so a kill may leave some of each."""
    study = study_of(CONFIG, results, Known())
    [job] = [job for job in study.jobs() if job.main.endswith("mood/runs/original/runs.json")]
    outcomes = results / job.outputs["outcomes"]
    trace = trace_of(outcomes)
    assert trace is not None
    write_table(pa.table({"content": ["new"]}), outcomes, {}, replace(trace, inputs={**trace.inputs, "index": "other"}))
    again = study_of(CONFIG, results, Known())
    assert again.state(job) == "its files were not all made by the same run"
    assert to_do(again) == {"probe": 1} | RESULTS


def test_a_file_is_newer_than_what_is_outdated(results: Path) -> None:
    mark = Path(study_of(CONFIG, results, Known()).freshness.mark())
    before = mark.read_text()
    assert Path(study_of(CONFIG, results, Known()).freshness.mark()).read_text() == before
    order = results / "models/m/tasks/mood/average/lambda-0/order.parquet"
    os.utime(order, (time.time() + 9999,) * 2)  # a clock was fast
    study_of(edited(tasks__mood__epochs=2), results, Known()).freshness.mark()
    assert mark.read_text() != before and order.stat().st_mtime < mark.stat().st_mtime


def test_default_values_are_not_recorded_and_those_of_a_version_never_change() -> None:
    """A record without a setting means the default of its version. With a new default, raise the version here too."""
    kinds: dict[str, Any] = {"HubTexts": HubTexts, **STAGES}
    fields = [(name, *field) for name, kind in kinds.items() for field in kind.model_fields.items()]
    defaults = {(name, key): field.default for name, key, field in fields if not field.is_required()}
    of_corpora = {"train": "train", "validation": ("validation",), "blocks": False}  # of texts, labels and subsets, too
    expected = {("HubTexts", key): value for key, value in of_corpora.items()}
    expected |= {("AnalysisOf", "number"): 1, ("AverageOf", "kind"): "average"}
    assert {place: default for place, default in defaults.items() if default is not None} == expected
    versions = {name: kind.version for name, kind in STAGES.items() if kind.version > 1}
    assert versions == {"LabelsOf": 2, "ProbeOf": 4, "PageOf": 2}
    settings = OrderFromModel(model=ModelId(name="m"), order="random-1", seed=0)
    assert settings.recorded() == {"model": {"name": "m"}, "order": "random-1", "seed": 0}
    texts = corpus_of(hub="some/data", first="text", train="more")
    recorded = {"hub": "some/data", "first": "text", "train": "more"}
    assert TextsOf(corpus=texts, source={}).recorded() == {"corpus": recorded, "source": {}}


ORIGINAL_AND_ZEROS = {"original": [1], "zeros/all": [1]}
AVERAGED = {"average/lambda-0/kept-1of2": [1], "average/all": [1]}
MORE = {"tasks": ["tags"], "constants": ["zeros"], "seeds": [5]}
WITH_ZEROS = {"original": [1, 5], "zeros/lambda-0/kept-1of2": [5], "zeros/all": [5, 1]}


@pytest.mark.parametrize(
    ("changes", "task", "expected"),
    [
        ({}, "tags", ORIGINAL_AND_ZEROS | AVERAGED),
        ({"floors": []}, "tags", {"original": [1]} | AVERAGED),
        ({"floors": [], "run.fractions": ["1/2"]}, "tags", {"average/lambda-0/kept-1of2": [1]}),
        # grids take from `run` what they leave out
        ({"grids.more": MORE}, "animals", ORIGINAL_AND_ZEROS | AVERAGED),
        ({"grids.more": MORE}, "tags", AVERAGED | WITH_ZEROS),
        # each floor gets every seed
        (
            {"floors": ["identity", "mean-output"], "run.seeds": [1, 3], "run.fractions": ["1"], "grids.m.seeds": [5]},
            "tags",
            {"original": [1, 3, 5], "identity/all": [1, 3, 5], "mean-output/all": [1, 3, 5]},
        ),
    ],
)
def test_variants_and_their_seeds(changes: dict[str, Any], task: str, expected: dict[str, list[int]]) -> None:
    study = Plan(config_of(with_keys(TINY, changes)), "nowhere")
    assert {variant.path: seeds for variant, seeds in study.variants("tiny", task).items()} == expected
