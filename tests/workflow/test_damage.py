"""Artefacts that were damaged or swapped on the disk: the job that reads them says so in one sentence and makes nothing.

Which damage to a format is found is tested with the formats (tests/unit/test_files.py, test_hidden.py).
"""

import re
import shutil
from importlib import import_module
from pathlib import Path

import pytest
from comparing import same_results
from tiny import CONFIG, Copy

from papa.config.reading import config_of
from papa.config.study import Job, Study
from papa.data.roots import LocalRoots
from papa.errors import InputError
from papa.files import MEND
from papa.jobs.stage import check_inputs

RESULTS = Path("results/tiny")
JOBS = Study(config_of(CONFIG), RESULTS).jobs()
READERS = {(job.rule, name): job for job in reversed(JOBS) for name in job.needs}
"""For each rule and each of its inputs that papa made, a job that reads it."""
FOREIGN = {
    "swapped with another of its kind": lambda path: next(
        (other for other in sorted(RESULTS.rglob(path.name)) if other.read_bytes() != path.read_bytes()), None
    ),
    "of another kind": lambda path: RESULTS / "corpora/words/texts.parquet",
}


@pytest.fixture(scope="module")
def folder(finished, tmp_path_factory):
    """A copy of the finished workflow; what runs here runs in its folder."""
    own = tmp_path_factory.mktemp("damage") / "papa"
    shutil.copytree(finished.folder, own, symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(own)
        yield own


def ready(job: Job, out: Path) -> Job:
    """A job of the study as its script gets it, with outputs in another folder."""
    study = Study(config_of(CONFIG), RESULTS, LocalRoots())
    inputs = {name: tuple(str(RESULTS / path) for path in paths) for name, paths in job.inputs.items()}
    outputs = {name: str(out / Path(path).name) for name, path in job.outputs.items()}
    return Job.of(study.told(job), inputs, outputs)


def run(job: Job) -> str:
    check_inputs(job)
    module, _, name = job.settings.runs.partition(":")
    return getattr(import_module(module), name)(job)


def damages(path: Path) -> dict[str, bytes]:
    """What may stand in an artefact instead of its content."""
    content = path.read_bytes()
    found = {"cut in the middle": content[: len(content) // 2], "cut at the end": content[:-1], "emptied": b""}
    for what, other in FOREIGN.items():
        if (source := other(path)) and source != path:
            found[what] = source.read_bytes()
    return found


@pytest.mark.parametrize(("rule", "name"), READERS)
def test_damage_is_said_and_nothing_made(folder, tmp_path, rule, name):
    job = ready(READERS[rule, name], tmp_path)
    path = Path(job.inputs[name][0])
    intact = path.read_bytes()
    try:
        for what, content in damages(path).items():
            path.write_bytes(content)
            with pytest.raises(InputError) as caught:
                pytest.fail(f"{path} was {what}, and {rule} did not see it: {run(job)}")
            said = str(caught.value)
            assert said.endswith(f"; {MEND}.") and "\n" not in said, (what, said)
            assert str(path) in said or str(path.with_suffix(".hidden")) in said, (what, said)
            assert not list(tmp_path.iterdir()), what
    finally:
        path.write_bytes(intact)


def test_hidden_states_that_were_cut(folder, tmp_path):
    job = ready(READERS["probe", "index"], tmp_path)
    path = Path(job.input("index")).with_suffix(".hidden")
    intact = path.read_bytes()
    path.write_bytes(intact[:-1])
    with pytest.raises(InputError, match=f"{re.escape(str(path))} .*; {MEND}"):
        run(job)
    path.write_bytes(intact)
    assert run(job)


def test_every_kind_of_artefact_is_read_by_a_job_above(folder):
    read = {job.inputs[name][0] for (_, name), job in READERS.items()}
    stages = {other.stage for other in JOBS if set(other.outputs.values()) & read}
    assert stages == {job.stage for job in JOBS} - {"page"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        "models/tiny/tasks/animals/average/lambda/order.parquet",
        "models/tiny/tasks/animals/features/average/lambda/kept-1of2/1of1.hidden",
        "tables/summary.parquet",
    ],
)
def test_the_advice_mends_it(finished, tmp_path, path):
    """Through snakemake: a job that is needed again fails with the sentence; without the file, all is as it was."""
    shutil.copytree(finished.folder, tmp_path / "papa", symlinks=True)
    workflow = Copy(tmp_path / "papa")
    damaged = workflow.folder / RESULTS / path
    content = damaged.read_bytes()
    # the digest in the footer stays
    damaged.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    shutil.rmtree(workflow.folder / RESULTS / "models/tiny/tasks/animals/runs/average/lambda")
    shutil.rmtree(workflow.folder / RESULTS / "models/tiny/tasks/animals/features/average/lambda", "hidden" not in path)
    (workflow.folder / RESULTS / "tables/score_by_fraction.parquet").unlink()
    process = workflow.snakemake("--cores", "1", "--configfile", "config.yaml")
    assert process.returncode == 1 and "Traceback" not in process.stdout + process.stderr
    said = next(line for line in process.stderr.splitlines() if line.startswith("Error in "))
    assert str(RESULTS / path) in said and said.endswith(f"; {MEND}.")
    damaged.unlink()
    process = workflow.snakemake("--cores", "2", "--configfile", "config.yaml")
    assert process.returncode == 0, process.stderr
    same_results(finished.folder / RESULTS, workflow.folder / RESULTS)
