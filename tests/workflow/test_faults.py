"""One suite for faults: whatever happens to a run, one sentence says so, nothing is lost, and the next run completes.

Runs that are stopped are in test_interrupted.py, and the damage that each stage finds in test_damage.py.
"""

import ctypes
import fcntl
import os
import resource
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from comparing import completes, same_results
from tiny import CONFIG, ONE_CORE, REPOSITORY, Copy, succeeded, with_keys, workflow_of

from papa.run.start import planned

pytestmark = pytest.mark.slow
RESULTS = Path("results/tiny")
TOKENS, WEIGHTS = (
    f"results/cache/{name}-*.parquet"
    for name in ("tokenize/tiny-sentences", "learn_lambda/tiny-animals")
)
# a fault lasts as long as its `with` block, and yields how snakemake is to be started


def fails(process, said):
    """Assert that a run ended with this sentence, and without a traceback or Snakemake's advice on backups."""
    output = process.stdout + process.stderr
    assert process.returncode == 1 and said in output, output
    assert "Traceback" not in output and "Cannot restore" not in output, output


def as_owner_of_nothing():
    """For a child that is about to start: root obeys the permissions of files like anybody else."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            if libc.prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
                raise OSError(ctypes.get_errno(), "root cannot be made to obey permissions here")


def permissions(mode, pattern, kinds=Path.exists):
    """Files of these kinds have another mode."""

    @contextmanager
    def fault(workflow, _):
        before = {
            path: path.stat().st_mode for path in workflow.folder.glob(pattern) if kinds(path)
        }
        for path in before:
            path.chmod(mode)
        yield {"preexec_fn": as_owner_of_nothing}
        for path, mode_before in before.items():
            path.chmod(mode_before)

    return fault


@contextmanager
def quota(workflow, _):
    """No file may have more bytes than these, and the plan does."""
    yield {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))}


def held(folder):
    """Another process has locked a folder."""

    @contextmanager
    def fault(workflow, _):
        with open(workflow.folder / folder / ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield {}

    return fault


@contextmanager
def damaged_weights(workflow, _):
    [path] = workflow.folder.glob(WEIGHTS)
    content = path.read_bytes()
    path.write_bytes(content[:-2])
    yield {}
    assert path.exists(), "what is damaged is not deleted"
    path.write_bytes(content)


APART = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
ON_A_FULL_DISK = """
cp -a results "$1" && mount -t tmpfs -o size=64m tmpfs results && cp -a "$1/results/." results || exit 99
head -c $(( ($(df --output=avail -k results | tail -1) - $2) * 1024 )) /dev/zero > results/filler || exit 99
held="$1"; shift 2
"$@"; ended=$?
rm -r "$held/results" results/filler && cp -a results "$held" || exit 99
exit $ended
"""
"""Mounts a small disk as results/ that only this shell sees: where to keep what is on it, kB that are free, command."""


def full_disk(free):
    """The disk of the results has this many kB left."""

    @contextmanager
    def fault(workflow, kept):
        if subprocess.run(
            [*APART, "mount", "-t", "tmpfs", "tmpfs", str(kept)], capture_output=True
        ).returncode:
            pytest.skip("no disk can be mounted here; the quota stands for this one")
        yield {"before": [*APART, "sh", "-c", ON_A_FULL_DISK, "sh", str(kept), str(free)]}
        shutil.rmtree(workflow.folder / "results")
        shutil.move(kept / "results", workflow.folder)

    return fault


FAULTS = {
    "nothing is writable": (permissions(0o555, "results/**/*"), "results/tiny is not writable"),
    "no folder is writable": (
        permissions(0o555, "results/**/*", Path.is_dir),
        f"{RESULTS} is not writable",
    ),
    "an artefact is unreadable": (
        permissions(0, TOKENS),
        "cannot be read (Permission denied); fix the cause and run",
    ),
    "data are unreadable": (
        permissions(0, "data/sentences.train.csv"),
        "Error: data/sentences.train.csv cannot be read (Permission denied)",
    ),
    "quota": (
        quota,
        "plan.json could not be written (File too large), and the partial file was removed",
    ),
    "no space": (full_disk(0), "No space left on device"),
    "no space for hidden states": (full_disk(40), " free; lower `train_limit`"),
    "another run": (
        held(str(RESULTS)),
        f"Error: another run is writing to {RESULTS}; wait for it, or give this config another name or folder.",
    ),
    "files are being deleted": (
        held("results/cache"),
        "Error: files in results/cache are being deleted; wait until",
    ),
    "a damaged artefact": (damaged_weights, ".parquet cannot be read as a papa table"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_said_and_costs_nothing(computed, unfinished, tmp_path, name):
    fault, said = FAULTS[name]
    with fault(unfinished, tmp_path) as how:
        process = unfinished.snakemake(*ONE_CORE, **how)
    fails(process, said)
    assert not [*unfinished.folder.glob("results/tiny/states/tiny-animals-*.hidden")]
    completes(unfinished, computed)


@pytest.mark.parametrize("days", [-2, 2])
def test_a_clock_that_was_wrong(computed, unfinished, days):
    """Finished files stay finished whatever their dates, and missing ones are made from them."""
    for folder in ("data", "results"):
        for path in (unfinished.folder / folder).rglob("*"):
            os.utime(path, times=(time.time() + 86400 * days,) * 2)
    assert unfinished.planned(None, *ONE_CORE) == {"hidden_states": 1, "probe": 1, "report": 1}
    completes(unfinished, computed)


NO_LOCKS = "#include <errno.h>\nint flock(int file, int kind) { errno = ENOLCK; return -1; }\n"


def test_a_file_system_without_locks(computed, unfinished, tmp_path, monkeypatch):
    (tmp_path / "locks.c").write_text(NO_LOCKS)
    library = f"{tmp_path}/locks.so"
    if (
        not shutil.which("cc")
        or subprocess.run(["cc", "-shared", "-o", library, tmp_path / "locks.c"]).returncode
    ):
        pytest.skip("no compiler")
    monkeypatch.setenv("LD_PRELOAD", library)
    _, errors = unfinished.started(*ONE_CORE).communicate()  # a fork would not load it
    assert (
        f"{RESULTS} cannot be locked (No locks available); do not start two runs on it at once."
        in errors
    )
    monkeypatch.delenv("LD_PRELOAD")
    completes(unfinished, computed)


def test_a_job_reads_only_the_plan(unfinished, monkeypatch):
    """On a cluster, each job parses the Snakefile again, after the config or the data may have been edited."""
    monkeypatch.chdir(unfinished.folder)
    before = planned(CONFIG, workflow_of())
    before.plan.write()
    shutil.rmtree("data")
    shutil.rmtree("models")
    edited = with_keys(CONFIG, {"run.fractions": ["0"], "threads": 1})
    after = planned(edited, workflow_of(is_main_process=False))
    assert (after.threads, after.files) == (before.threads, before.files)
    for batch in before.plan.missing:
        for name, paths in batch.inputs().items():
            assert after.needs(batch.handle, name) == before.needs(batch.handle, name) == paths
    words = ["-m", "papa.run.execute", before.folder, f"none-{'0' * 16}.h5", "1", "log"]
    late = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert late.returncode == 1
    assert "another run has begun" in late.stderr
    assert "Traceback" not in late.stderr


FULL_TEMPORARY_FOLDER = """
mount -t tmpfs -o size=64k tmpfs "$TMPDIR" && head -c 64k /dev/zero > "$TMPDIR/filler" || exit 99
"$@"
"""


def test_a_strange_machine(computed, tmp_path, monkeypatch):
    """Strange names and links, no home, a full TMPDIR, a narrow terminal in ASCII, and files with names of modules."""
    study = Copy(tmp_path / "it's a größe #1 100%")
    study.folder.mkdir()
    for name in ("results", "models", "data"):
        shutil.copytree(computed.folder / name, tmp_path / "elsewhere" / name)
        (study.folder / name).symlink_to(tmp_path / "elsewhere" / name)
    for name in ("random", "pandas", "statistics", "queue"):
        (study.folder / f"{name}.py").write_text("raise SystemExit('imported')")
    [made_from] = (tmp_path / "elsewhere" / RESULTS / "report").glob("*.json")
    made_from.unlink()
    study.write(CONFIG)
    (tmp_path / "small").mkdir()
    settings = {
        "PYTHONPATH": f"{REPOSITORY}:",
        "PYTHONIOENCODING": "ascii",
        "LC_ALL": "C",
        "TERM": "dumb",
        "COLUMNS": "20",
        "TMPDIR": f"{tmp_path}/small",
        "HOME": f"{tmp_path}/home",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "papa", "run", "config.yaml", "--cores", "1"]
    mounted = [*APART, "sh", "-c", FULL_TEMPORARY_FOLDER, "sh"]
    can_mount = not subprocess.run(
        [*APART, "mount", "-t", "tmpfs", "tmpfs", f"{tmp_path}/small"]
    ).returncode
    process = succeeded(
        subprocess.run(
            [*(mounted if can_mount else []), *command], **study.settings(), capture_output=True
        )
    )
    assert "Nothing is claimed" in " ".join(process.stdout.split())
    assert process.stdout.endswith("report/index.html\n")
    same_results(computed.folder / "results", tmp_path / "elsewhere/results")

    (cache := tmp_path / "cache").mkdir(mode=0o555)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    process = subprocess.run(
        command, **study.settings(), capture_output=True, preexec_fn=as_owner_of_nothing
    )
    assert process.returncode == 2
    assert f"{cache} cannot be used for caches (Permission denied)" in process.stderr
    monkeypatch.delenv("XDG_CACHE_HOME")

    claims = study.folder / RESULTS / "tables/claims.json"
    claims.write_bytes(claims.read_bytes()[:200])
    process = subprocess.run(command, **study.settings(), capture_output=True)
    fails(process, f"Error: the results were not printed; `papa inspect {RESULTS}` prints them.")
