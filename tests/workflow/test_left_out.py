"""Settings that artefacts do not record, and differences that comparisons ignore, change no number.

A job reads only its settings, its inputs and its machine. So an artefact can be out of date without notice only if its
record leaves a setting out, or if a comparison ignores a difference. The test asks the code which settings these are.
Each needs a row, which changes that setting only: the artefact is rebuilt, or computed again with the same values.
"""

import shutil
import warnings
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel
from test_edits import CORPUS, HUB, MODEL, TASK, block_in, edited, is_same, study_of, write_dataset
from tiny import ABSENT, CONFIG, write_model

from papa.config import freshness
from papa.config.freshness import FRESH, SourceDigests
from papa.config.job import AnyJob, Job
from papa.config.measures import METRICS
from papa.config.reading import config_of
from papa.config.settings import Corpus
from papa.config.stages import STAGES, Settings
from papa.config.study import Study
from papa.data.mirror import Record
from papa.files import digest_of_json
from papa.jobs.measure import run_here
from papa.jobs.stage import performed
from papa.model.load import keeping_models

EQUAL, REBUILT = "equal", "rebuilt"
OF_CORPUS = "TextsOf LabelsOf SubsetsOf"
OF_MODEL = "TokensOf AverageOf LambdaOf WeightsOf ListOf OrderFromModel HiddenOf ProbeOf"
TWO_FLOORS = {"floors": ["zeros", "identity"]}
EVERY = TWO_FLOORS | {
    "run.constants": ["average"],
    "run.orders": ["lambda", "random", "gradient", {"file": "data/heads.tsv", "name": "heads"}],
    "ranking.draws": 1,
}
"""Further settings of `CONFIG`, with which every stage has a job."""
ON_HUB = {CORPUS: HUB, "hub_mirror": "hub"}
COPIED = {f"{MODEL}.hub": "some/model"}
MIRRORED = {MODEL: {"hub": "some/model"}, "hub_mirror": "hub"}
NO_MIRROR = {"hub_mirror": ABSENT}
IN_CLUSTERS = {f"{CORPUS}.cluster": "long"}
MOVED = {f"{CORPUS}.validation_from_train": 5}
A_COPY = "a mirror is a copy of the hub at the revision of the config"


class Row(NamedTuple):
    """One setting that is left out or ignored.

    Args:
        field: the path of the setting in the settings of a stage.
        kinds: the names of the classes of these settings.
        edit: changes this setting, in the config.
        follows: EQUAL, REBUILT, or the reason for which an artefact stays that cannot be computed here.
        base: keys of the config that has been run before.
    """

    field: str
    kinds: str
    edit: dict[str, Any]
    follows: str
    base: Mapping[str, Any] = MappingProxyType({})


ROWS = [
    Row("corpus.slots", OF_CORPUS, {f"{CORPUS}.slots": 11}, EQUAL),
    Row("corpus.shards", OF_CORPUS, {f"{CORPUS}.shards": 2}, EQUAL),
    Row("corpus.files.train", OF_CORPUS, {f"{CORPUS}.files.train": "data/copy.train.csv"}, EQUAL),
    Row("corpus.files.train", OF_CORPUS, {f"{CORPUS}.files.train": "data/sentences.validation.csv"}, REBUILT),
    Row("corpus.files.validation", OF_CORPUS, {f"{CORPUS}.files.validation": "data/copy.validation.csv"}, EQUAL),
    Row("corpus.files.validation", OF_CORPUS, {f"{CORPUS}.files.validation": "data/sentences.train.csv"}, REBUILT),
    Row("corpus.train_limit", OF_CORPUS, {f"{CORPUS}.train_limit": 24}, EQUAL),
    Row("corpus.train_limit", OF_CORPUS, {f"{CORPUS}.train_limit": 23}, REBUILT),
    Row("corpus.validation_from_train", "LabelsOf SubsetsOf", MOVED, REBUILT),
    Row("corpus.validation_from_train", "ClustersOf", MOVED, REBUILT, IN_CLUSTERS),
    Row("corpus.revision", OF_CORPUS, {f"{CORPUS}.revision": "a" * 40}, EQUAL, ON_HUB | {f"{CORPUS}.revision": "v1"}),
    Row("corpus.revision", OF_CORPUS, {f"{CORPUS}.revision": "v2"}, REBUILT, ON_HUB | {f"{CORPUS}.revision": "v1"}),
    Row("source", OF_CORPUS, {"hub_mirror": "mirror"}, REBUILT, ON_HUB),
    Row("source", OF_CORPUS, NO_MIRROR, A_COPY, ON_HUB),
    Row("labels", "LabelsOf", {f"{TASK}.labels": ["0", "1"]}, EQUAL),
    Row("labels", "LabelsOf", {f"{TASK}.labels": ["1", "0"]}, REBUILT),
    Row("labels", "LabelsOf", {f"{TASK}.labels": ABSENT}, REBUILT, {f"{TASK}.labels": ["1", "0"]}),
    Row("metric", "LabelsOf", {f"{TASK}.metric": "f1"}, EQUAL),
    Row("metric", "LabelsOf", {f"{TASK}.metric": "f1"}, REBUILT, {f"{TASK}.labels": ["0", "1", "2"]}),
    Row("metric", "LambdaOf WeightsOf ProbeOf", {f"{TASK}.metric": "matthews_correlation"}, EQUAL, EVERY),
    Row("file", "ListOf", {"run.orders": [{"file": "data/copy.heads.tsv", "name": "heads"}]}, EQUAL, EVERY),
    Row("file", "ListOf", {"run.orders": [{"file": "data/other.heads.tsv", "name": "heads"}]}, REBUILT, EVERY),
    Row("seeds", "ProbeOf", {"run.seeds": [1, 2]}, REBUILT),
    Row("seeds", "ProbeOf", {"run.seeds": [2]}, EQUAL, {"run.seeds": [1, 2]}),
    Row("streamed", "ProbeOf", {f"{TASK}.features": "stream"}, REBUILT, TWO_FLOORS),
    Row("model.hub", OF_MODEL, COPIED, EQUAL, EVERY),
    Row("model.hub", OF_MODEL, {MODEL: {"hub": "some/model"}}, REBUILT, EVERY),
    Row("model.weights", OF_MODEL, {f"{MODEL}.path": ABSENT}, REBUILT, EVERY | COPIED),
    Row("model.weights", OF_MODEL, {f"{MODEL}.path": "models/other"}, REBUILT, EVERY),
    Row("model.weights", OF_MODEL, NO_MIRROR | {f"{MODEL}.sha256": "0" * 64}, REBUILT, EVERY | MIRRORED),
    Row("model.weights", OF_MODEL, NO_MIRROR, A_COPY, EVERY | MIRRORED),
    Row("model.revision", OF_MODEL, {f"{MODEL}.revision": "v2"}, EQUAL, EVERY | COPIED),
    Row("model.revision", OF_MODEL, {f"{MODEL}.revision": "v2"}, REBUILT, EVERY | MIRRORED),
    Row("model.random", OF_MODEL, {MODEL: {"random": "bert"}}, REBUILT, EVERY),
    Row("model.known", OF_MODEL, {MODEL: {"known": "lookup"}}, REBUILT, EVERY),
]
ROWS += [row._replace(kinds="ClustersOf", base={**row.base, **IN_CLUSTERS}) for row in ROWS if row.kinds == OF_CORPUS]
NO_ROW = {("AnalysisOf", "made_by"): "no config changes it: it follows from the name of the analysis"}


class Digests(SourceDigests):
    """A machine on which the content of every corpus is known."""

    def source(self, corpus: Corpus) -> dict[str, str]:
        return {"train": "digest"}


def test_every_setting_that_is_left_out_has_a_row():
    hub = HUB | {"cluster": "long"}
    config = edited(CONFIG, EVERY | IN_CLUSTERS | {"corpora.hub": hub, "run.tasks": ["animals", "tags"]})
    config = edited(config, {"tasks.more": config["tasks"]["animals"] | {"corpus": "hub"}, "corpora.words.shards": 2})
    config["run"]["tasks"].append("more")
    known, unknown = (Study(config_of(config), "nowhere", sources) for sources in (Digests(), SourceDigests()))
    settings = [job.settings for study in (known, unknown) for job in (*study.jobs(), study.job("fetch"))]
    assert {type(kind).__name__ for kind in settings} == set(STAGES)
    with warnings.catch_warnings(action="ignore"):  # of pydantic, about the types of changed values
        changeable = {(type(of).__name__, field) for of in settings for field in [*left_out(of), *ignored(of)]}
    assert changeable == {(kind, row.field) for row in ROWS for kind in row.kinds.split()} | set(NO_ROW)


def left_out(settings: Settings) -> Iterator[str]:
    """Settings that can change without a change of what is recorded."""
    recorded = settings.stamp, settings.recorded()
    for field, others in changed(settings):
        if any((other.stamp, other.recorded()) == recorded for other in others):
            yield field.replace("model.model.", "model.")


def ignored(settings: Settings) -> Iterator[str]:
    """Settings that are recorded, and whose difference may not count."""
    for field, others in changed(settings):
        pairs = [pair for other in others for pair in ((settings, other), (other, settings))]
        for asked, made in ((asked.recorded(), made.recorded()) for asked, made in pairs):
            facts = {"rows_available": {"train": 1}, "label_names": asked.get("labels")}
            if asked != made and not freshness._difference(*freshness._without_irrelevant(asked, made, facts)):
                yield field.replace("model.model.", "model.")


def changed(settings: BaseModel) -> Iterator[tuple[str, list[Any]]]:
    """The path of every setting, and settings in which it has other values."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            for path, others in changed(value):
                yield f"{name}.{path}", [settings.model_copy(update={name: other}) for other in others]
        elif value is not None or block_in(field.annotation)[1] is None:
            yield name, [settings.model_copy(update={name: other}) for other in other_values(value)]


def other_values(value: Any) -> list[Any]:
    match value:
        case bool():
            return [not value]
        case int() | float():
            return [value + 1]
        case str() if value in METRICS:
            return [metric for metric in METRICS if metric != value]
        case str():
            return [f"other-{value}"]  # with the suffix of a file
        case tuple():
            return [(*value, "other")]
        case dict():
            return [{}, value | {"other": "other"}]
    return [2]


@pytest.fixture(scope="module")
def workflow(computed, tmp_path_factory):
    """The folder of a finished study, with copies of its files and a mirror."""
    folder = computed.copied(tmp_path_factory.mktemp("left out") / "papa").folder
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("PAPA_MACHINE", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        for split in ("train", "validation"):
            shutil.copy(f"data/sentences.{split}.csv", f"data/copy.{split}.csv")
        for name in ("heads", "copy.heads", "other.heads"):
            Path(f"data/{name}.tsv").write_text("1\t2\n3\t4\n" if name != "other.heads" else "2\t1\n4\t3\n")
        write_model(Path("models/other"), seed=1)
        for seed, mirror in enumerate(("hub", "mirror")):
            shutil.copytree("models/other", Path(mirror, "some/model"))
            write_dataset(Path(mirror, "some/data/tiny"), seed)
            for name, repo_type in (("some/model", "model"), ("some/data", "dataset")):
                Record(name, repo_type, "v1", "a" * 40).write(Path(mirror, name))
        yield folder


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.field} {row.follows.split(' ')[0]}")
def test_an_artefact_is_rebuilt_or_a_fresh_one_is_equal(row, workflow, tmp_path):
    made, asked = (
        study_of(edited(CONFIG, keys), results_of(row.base)) for keys in (row.base, {**row.base, **row.edit})
    )
    for kind in row.kinds.split():
        before, job = first_job(made, kind), first_job(asked, kind)
        assert made.state(before) == FRESH and before.settings != job.settings
        if row.follows == REBUILT:
            assert asked.state(job) != FRESH, kind
            continue
        assert asked.state(job) == FRESH, kind
        if row.follows == EQUAL:
            with keeping_models():
                performed(placed(asked, job, tmp_path))
            assert is_same(job, asked.results, tmp_path), kind


def results_of(base: Mapping[str, Any]) -> Path:
    """The results of `CONFIG` with further keys: the first job of each stage, and what it needs."""
    folder = Path("results", digest_of_json(dict(base))) if base else Path("results/tiny")
    if not folder.exists():
        shutil.copytree("results/tiny", folder)
        study = study_of(edited(CONFIG, base), folder)
        kinds = {kind for row in ROWS if row.base == base for kind in row.kinds.split()}
        run_here(study, *(first_job(study, kind) for kind in sorted(kinds)))
    return folder


def first_job(study: Study, kind: str) -> AnyJob:
    more = product(("prepare_subsets", "prepare_clusters"), study.config.tasks)
    jobs = [*study.jobs(), *(study.job(rule, task=task) for rule, task in more)]
    return next(job for job in jobs if type(job.settings).__name__ == kind)


def placed(study: Study, job: AnyJob, folder: Path) -> AnyJob:
    """The job as a process of the workflow reads it, with outputs in another folder."""
    outputs = {name: str(folder / path) for name, path in job.outputs.items()}
    return Job.of(study.parameters(job), job.placed(study.results).inputs, outputs, study.config.machine)
