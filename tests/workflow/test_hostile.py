"""A machine that is full, read-only, in use or stopped: the workflow says so, and leaves nothing broken."""

import ctypes
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from comparing import all_intact, same_results
from tiny import CONFIG, a_task, with_keys

pytestmark = pytest.mark.slow
RESULTS = Path("results/tiny")
TOKENS = RESULTS / "models/tiny/corpora/sentences/tokens.parquet"
TASK = RESULTS / "models/tiny/tasks/animals"
FEATURES = TASK / "features/average/lambda-0/kept-1of2"
RUN = TASK / "runs/average/lambda-0/kept-1of2/runs.json"
LOG = RESULTS / "logs" / FEATURES.relative_to(RESULTS) / "states.log"
OPTIONS = ("--cores", "1", "--configfile", "config.yaml")
MADE = (*OPTIONS[:2], str(RUN), *OPTIONS[2:])
"""Two jobs: the hidden states of a task, and the probe on them."""


@pytest.fixture
def unfinished(finished_copy):
    """The finished workflow without what `MADE` makes."""
    shutil.rmtree(finished_copy.folder / FEATURES)
    shutil.rmtree(finished_copy.folder / RUN.parent)
    (finished_copy.folder / LOG).unlink()
    return finished_copy


def fails(process: subprocess.CompletedProcess, *sentences: str) -> None:
    """Assert that a run ended with these sentences and without a traceback."""
    output = process.stdout + process.stderr
    assert process.returncode == 1, output
    assert "Traceback" not in output, output
    for sentence in sentences:
        assert sentence in output, output


def completes(workflow, finished) -> None:
    """Assert that the next run makes what is missing, so that all is as if nothing had happened."""
    all_intact(workflow.folder / RESULTS)
    workflow.run(*MADE)
    same_results(finished.folder / RESULTS, workflow.folder / RESULTS)


def as_owner_of_nothing() -> None:
    """For a child that is about to start: root obeys the permissions of files like anybody else."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            if libc.prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
                raise OSError(ctypes.get_errno(), "root cannot be made to obey permissions here")


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (Path.exists, "results/tiny is not writable (Permission denied); make it writable, or run in another folder."),
        (Path.is_dir, "Failed to create output directory"),
    ],
)
def test_results_that_cannot_be_written_to(finished, unfinished, kinds, said):
    """Neither files nor folders, and only files."""
    paths = [path for path in (unfinished.folder / "results").rglob("*") if kinds(path)]
    for path in paths:
        path.chmod(0o555)
    process = unfinished.snakemake(*MADE, preexec_fn=as_owner_of_nothing)
    for path in paths:
        path.chmod(0o755)
    fails(process, said)
    assert not (unfinished.folder / FEATURES).exists()
    completes(unfinished, finished)


def test_an_artefact_that_must_not_be_read(finished, unfinished):
    (unfinished.folder / TOKENS).chmod(0)
    process = unfinished.snakemake(*MADE, preexec_fn=as_owner_of_nothing)
    (unfinished.folder / TOKENS).chmod(0o644)
    fails(process, "Write-protected output files for rule tokenize", str(TOKENS))
    completes(unfinished, finished)


def test_data_that_must_not_be_read(finished_copy):
    (finished_copy.folder / "data/sentences.train.csv").chmod(0)
    texts = RESULTS / "corpora/sentences/texts.parquet"
    (finished_copy.folder / texts).unlink()
    process = finished_copy.snakemake(str(texts), *OPTIONS, preexec_fn=as_owner_of_nothing)
    fails(process, "Config error: data/sentences.train.csv cannot be read (Permission denied)")
    assert not (finished_copy.folder / texts).exists()


@pytest.mark.parametrize(
    ("bytes_allowed", "sentence"),
    [
        (12_000, "results/tiny/figures/score_by_fraction.svg could not be written (File too large)"),
    ],
)
def test_files_that_must_not_grow(finished, finished_copy, bytes_allowed, sentence):
    """As under a quota: no file may have more bytes than these, and a figure does."""
    figure = RESULTS / "figures/score_by_fraction.svg"
    (finished_copy.folder / figure).unlink()

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_allowed, bytes_allowed))

    fails(finished_copy.snakemake(str(figure), *OPTIONS, preexec_fn=limit), sentence)
    assert not (finished_copy.folder / figure).exists()
    all_intact(finished_copy.folder / RESULTS)


ON_A_FULL_DISK = """
cp -a results "$1" && mount -t tmpfs -o size=64m tmpfs results && cp -a "$1/results/." results || exit 99
head -c $(( ($(df --output=avail -k results | tail -1) - $2) * 1024 )) /dev/zero > results/filler || exit 99
held="$1"; shift 2
"$@"; ended=$?
rm -r "$held/results" results/filler && cp -a results "$held" || exit 99
exit $ended
"""
"""Mounts a small disk as results/ that only this shell sees: where to keep what is on it, kB that are free, command."""


@pytest.mark.parametrize("free", [0, 20])
def test_a_full_disk(finished, unfinished, tmp_path, free):
    """Without room for anything, and only without room for the hidden states."""
    apart = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    if subprocess.run([*apart, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here; the test of a quota stands for this one")
    process = unfinished.snakemake(*MADE, before=[*apart, "sh", "-c", ON_A_FULL_DISK, "sh", str(tmp_path), str(free)])
    shutil.rmtree(unfinished.folder / "results")
    shutil.move(tmp_path / "results", unfinished.folder)
    fails(process)
    [said] = [line for line in process.stderr.splitlines() if line.startswith("Error in ") and ": " in line]
    assert " free; lower `train_limit`" in said or "(No space left on device), and the partial file was removed" in said
    completes(unfinished, finished)


WITH_FULL_TEMPORARY_FOLDER = """
mount -t tmpfs -o size=64k tmpfs "$TMPDIR" || exit 99
head -c 64k /dev/zero > "$TMPDIR/filler"
"$@"
"""


def test_no_space_for_temporary_files(finished, unfinished, tmp_path, monkeypatch):
    """Nothing that papa or snakemake need is in the folder for temporary files."""
    apart = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    if subprocess.run([*apart, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "small"))
    (tmp_path / "small").mkdir()
    process = unfinished.snakemake(*MADE, before=[*apart, "sh", "-c", WITH_FULL_TEMPORARY_FOLDER, "sh"])
    assert process.returncode == 0, process.stderr
    completes(unfinished, finished)


def test_two_workflows_at_once(unfinished):
    with open(unfinished.folder / RESULTS / ".lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        said = "Error: another run is writing to results/tiny; wait for it, or give this config another name or folder."
        fails(unfinished.snakemake(*MADE), said)
    assert not (unfinished.folder / FEATURES).exists()
    assert unfinished.planned(None, *MADE) == {"hidden_states": 1, "probe": 1}


def test_a_dry_run_of_20_000_jobs_takes_less_than_75_seconds(fresh_copy):
    """CPU time of 300 tasks with 33 fractions each: 58 and 59 s next to other work."""
    names = [f"animals-{number}" for number in range(300)]
    run = {"tasks": names, "fractions": [f"{part}/32" for part in range(33)]}
    config = with_keys(CONFIG, {f"run.{key}": value for key, value in run.items()})
    config["tasks"] = dict.fromkeys(names, a_task())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    jobs = fresh_copy.planned(config)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert jobs["probe"] > 9_000 and sum(jobs.values()) > 20_000, jobs
    assert seconds < 75, seconds


def set_clock(workflow, days: float) -> None:
    """Date all data and artefacts as a clock would that is days ahead."""
    for folder in ("data", "results"):
        for path in (workflow.folder / folder).rglob("*"):
            os.utime(path, times=(time.time() + 86400 * days,) * 2)


@pytest.mark.parametrize("days", [-2, 2])
def test_a_clock_that_was_wrong(finished, unfinished, days):
    """Finished files stay finished whatever their dates, and missing ones are made from them."""
    set_clock(unfinished, days)
    assert unfinished.planned(None, *MADE) == {"hidden_states": 1, "probe": 1}
    if days > 0:  # snakemake refuses an output that is older than its input, and profiles keep what a job has written
        fails(unfinished.snakemake(*MADE), "has older modification time", "clock skew")
        assert (unfinished.folder / FEATURES / "states.hidden").exists()
        set_clock(unfinished, 0)
    completes(unfinished, finished)


@pytest.mark.parametrize(
    ("number", "everybody", "said"),
    [
        (signal.SIGINT, True, "Terminating processes on user request"),
        (signal.SIGTERM, True, "Interrupted: hidden_states tiny tasks/animals"),
        (signal.SIGTERM, False, "Will exit after finishing currently running jobs"),
    ],
)
def test_stopped_in_the_middle(finished, unfinished, number, everybody, said):
    """By Ctrl-C or a machine that goes down, which reaches every process, or by a kill of the workflow only."""
    slow_down(unfinished.folder / "papa/method/hidden.py")
    process = unfinished.started(*MADE)
    wait_for(lambda: any((unfinished.folder / FEATURES).glob(".*.partial")), process)
    (os.killpg if everybody else os.kill)(process.pid, number)
    output, errors = process.communicate()
    fails(subprocess.CompletedProcess(MADE, process.returncode, output, errors), said)
    completes(unfinished, finished)


def slow_down(source: Path) -> None:
    """Let jobs wait before the last they write of hidden states."""
    text = source.read_text(encoding="utf-8")
    last = "        if not self._written.all():"
    assert text.count(last) == 1
    source.write_text(text.replace(last, f"        __import__('time').sleep(5)\n{last}"), encoding="utf-8")


def wait_for(event: Callable[[], bool], process: subprocess.Popen) -> None:
    while not event():
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
