"""A damaged or swapped artefact: the job that reads it says so in one sentence and makes nothing.

Which damage to a format is found is tested with the formats (tests/unit/test_files.py, test_hidden.py).
"""

import json
import re
import shutil
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pytest
from tiny import CONFIG

from papa.config.freshness import FRESH
from papa.config.job import Job
from papa.config.reading import config_of
from papa.config.settings import Machine
from papa.config.study import Plan
from papa.data.local_digests import LocalSourceDigests
from papa.errors import InputError
from papa.files import REBUILD
from papa.jobs.stage import check_inputs

RESULTS = Path("results/tiny")
ANIMALS = "models/tiny/tasks/animals"
JOBS = Plan(config_of(CONFIG), RESULTS).jobs()
READERS = {
    (job.rule, name, needed.rule): (job, job.inputs[name][number])
    for job in reversed(JOBS)
    for name, needs in job.needs.items()
    for number, needed in enumerate(needs)
}
"""For each rule, each name of its inputs and each rule that makes them: a job, and the one of its inputs to damage."""
FOREIGN = {
    "swapped with another of its kind": lambda path: next(
        (other for other in sorted(RESULTS.rglob(path.name)) if other.read_bytes() != path.read_bytes()), None
    ),
    "of another kind": lambda path: RESULTS / "corpora/words/texts.parquet",
}


@pytest.fixture(scope="module")
def folder(computed, tmp_path_factory):
    """A copy of the workflow with its results; what runs here runs in its folder."""
    copied = computed.copied(tmp_path_factory.mktemp("damage") / "papa").folder
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(copied)
        patch.setenv(Machine.VARIABLE, json.dumps(asdict(config_of(CONFIG).machine)))
        yield copied


def opened() -> Plan:
    """The study as a run of the workflow sees it when it begins."""
    return Plan(config_of(CONFIG), RESULTS, LocalSourceDigests(config_of(CONFIG).machine))


def ready(rule: str, name: str, made_by: str, out: Path) -> Job:
    """A job of the study as its script gets it, with outputs in another folder."""
    study, (job, _) = opened(), READERS[rule, name, made_by]
    job = study.job(rule, **job.wildcards)
    inputs = {key: tuple(str(RESULTS / path) for path in paths) for key, paths in job.inputs.items()}
    outputs = {key: str(out / Path(path).name) for key, path in job.outputs.items()}
    return Job.of(study.parameters(job), inputs, outputs, study.config.machine)


def run(job: Job) -> str:
    check_inputs(job)
    module, _, name = job.settings.function.partition(":")
    return getattr(import_module(module), name)(job)


def damages(path: Path) -> dict[str, bytes]:
    content = path.read_bytes()
    contents = {"cut in the middle": content[: len(content) // 2], "cut at the end": content[:-2], "emptied": b""}
    for what, other in FOREIGN.items():
        if (source := other(path)) and source != path:
            contents[what] = source.read_bytes()
    return contents


@pytest.mark.parametrize(("rule", "name", "made_by"), READERS)
def test_damage_is_said_and_nothing_made(folder, tmp_path, rule, name, made_by):
    job, path = ready(rule, name, made_by, tmp_path), RESULTS / READERS[rule, name, made_by][1]
    intact = path.read_bytes()
    try:
        for what, content in damages(path).items():
            path.write_bytes(content)
            try:
                run(job)
            except InputError as error:
                said = str(error)
            else:
                said = said_before(path)
                shutil.rmtree(tmp_path)
                tmp_path.mkdir()
            advice = said.rpartition("; ")[2]
            assert said.endswith(".") and ("again" in advice or "rebuild" in advice) and "\n" not in said, (what, said)
            assert str(path) in said or str(path.with_suffix(".hidden")) in said, (what, said)
            assert not list(tmp_path.iterdir()), what
    finally:
        path.write_bytes(intact)


def said_before(path: Path) -> str:
    """What is said before any job runs, of an artefact that was made as asked, but of the texts of another task."""
    study = opened()
    (maker,) = [job for job in study.jobs() if str(path.relative_to(RESULTS)) in job.outputs.values()]
    assert study.state(maker) != FRESH
    return f"{path}: {study.state(maker)}; {REBUILD}."


def test_hidden_states_that_were_cut(folder, tmp_path):
    job = ready("probe", "index", "hidden_states", tmp_path)
    path = Path(job.input("index")).with_suffix(".hidden")
    intact = path.read_bytes()
    path.write_bytes(intact[:-1])
    with pytest.raises(InputError, match=f"{re.escape(str(path))} .*; {REBUILD}"):
        run(job)
    path.write_bytes(intact)
    assert run(job)


def test_every_stage_has_a_reader_above():
    assert {made_by for _, _, made_by in READERS} == {job.rule for job in JOBS} - {"page"}
