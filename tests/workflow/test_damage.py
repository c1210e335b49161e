"""A damaged or exchanged file: the job that reads it says so in one sentence, makes nothing and deletes nothing.

Which damage to a format is found is tested with the formats (tests/unit/test_files.py, test_hidden.py).
"""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny import CONFIG, with_a_flipped_bit

from papa.config.reading import config_of
from papa.errors import InputError
from papa.files import REBUILD, digest_of_table, read_table
from papa.plan.study import Plan
from papa.run.execute import function_of, run

RESULTS = Path("results/tiny")
READS = [
    ("tokenize", "texts"),
    ("average", "tokens"),
    ("learn_lambda", "tokens"),
    ("learn_lambda", "labels"),
    ("learn_lambda", "constants"),
    ("hidden_states", "tokens"),
    ("hidden_states", "constants"),
    ("hidden_states", "weights"),
    ("probe", "tokens"),
    ("probe", "states"),
    ("probe", "labels"),
]
"""For each stage, the files of papa that it reads."""


@pytest.fixture(scope="module")
def jobs(fresh, computed, tmp_path_factory):
    """All jobs of the study; what runs here runs in a copy of the workflow with its results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(fresh.folder)
        batches = Plan(config_of(CONFIG), RESULTS, save=False).missing
        patch.chdir(computed.copied(tmp_path_factory.mktemp("damage") / "papa").folder)
        yield [job for batch in reversed(batches) for job in batch.jobs]


def damages(path):
    """What may be found in place of a file."""
    content = path.read_bytes()
    middle = len(content) // 2
    contents = {
        "cut in the middle": content[:middle],
        "cut at the end": content[:-2],
        "emptied": b"",
        "edited": with_a_flipped_bit(content, middle),
    }
    alike = next(
        other
        for other in Path("results").rglob(f"*{path.suffix}")
        if other != path and _is_alike(other, path)
    )
    contents["exchanged with another of its kind"] = alike.read_bytes()
    kind = "tokenize" if path.suffix == ".h5" else "average"
    contents["exchanged with another kind"] = next(
        Path("results/cache", kind).iterdir()
    ).read_bytes()
    return contents


def _is_alike(one, other):
    same = other.suffix == ".hidden" or one.parent == other.parent
    return same and one.read_bytes() != other.read_bytes()


def test_every_stage_that_reads_files_of_papa_is_tested(jobs):
    reads = {
        (job.stage, name) for job in jobs for name in job.reads if name not in ("model", "checks")
    }
    assert reads == set(READS)


def checked(path, made, work):
    """Put damage in place of a file; assert that `work` names the file, or makes what it makes of the intact file."""
    intact = path.read_bytes()
    work()
    expected = content_of(made)
    try:
        for what, content in damages(path).items():
            made.unlink()
            path.write_bytes(content)
            try:
                work()
            except InputError as error:
                said = str(error)
                assert str(path) in said and said.endswith(f"; {REBUILD}.") and "\n" not in said, (
                    what,
                    said,
                )
                assert not made.exists() and path.read_bytes() == content, what
                made.touch()
            else:
                assert what == "edited" and content_of(made) == expected, (what, "was not found")
    finally:
        path.write_bytes(intact)


def content_of(made):
    return digest_of_table(read_table(made)) if made.suffix == ".parquet" else made.read_bytes()


@pytest.mark.parametrize(("stage", "name"), READS)
def test_damage_is_said_and_nothing_made(jobs, tmp_path, stage, name):
    job = next(job for job in jobs if job.stage == stage and name in job.reads)
    job = replace(job, output=str(tmp_path / Path(job.output).name))
    checked(Path(job.reads[name]), Path(job.output), lambda: function_of(stage)([job]))


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("stage", ["tokenize", "learn_lambda", "probe", "data"])
def test_damage_is_said_by_the_report(jobs, stage):
    plan = Plan(config_of(CONFIG), RESULTS)
    made = Path(plan.report.output)
    made.unlink(missing_ok=True)
    [batch] = [batch for batch in plan.missing if batch.rule == "report"]
    path = next(Path("results/cache", stage).glob("*.parquet"))
    checked(path, made, lambda: run(batch, RESULTS))


def test_a_damaged_table_of_a_corpus_is_said_before_any_job_runs(jobs):
    path = next(Path("results/cache/data").glob("*.parquet"))
    intact = path.read_bytes()
    path.write_bytes(intact[:-2])
    with pytest.raises(InputError, match=f"^{path} .*; {REBUILD}.$"):
        Plan(config_of(CONFIG), RESULTS).missing  # noqa: B018
    path.write_bytes(intact)
