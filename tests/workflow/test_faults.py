"""One suite for faults: whatever happens to a run, one sentence says so, nothing is lost, and the next run completes.

Which damage each stage finds is in test_damage.py, and that every kind of job resumes to the same bytes in
tests/unit/test_checkpoints.py.
"""

import ctypes
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from comparing import all_intact, results_in, same_results
from tiny import CONFIG, REPOSITORY, Copy, with_keys, workflow_of

from papa.run.start import planned

pytestmark = pytest.mark.slow
RESULTS = Path("results/tiny")
STATES = "results/tiny/states/tiny-animals-*.hidden"
PROBE = "results/cache/probe/tiny-animals-average-lambda-0-*"
TOKENS, WEIGHTS = (
    f"results/cache/{name}-*.parquet"
    for name in ("tokenize/tiny-sentences", "learn_lambda/tiny-animals")
)
OPTIONS = ("--cores", "1", "--configfile", "config.yaml")
MISSING = {"hidden_states": 1, "probe": 1, "report": 1}
# a fault lasts as long as its `with` block, and yields how snakemake is to be started


@pytest.fixture
def unfinished(computed_copy):
    """The finished workflow without the hidden states and the probe of an order of heads, and without its plan."""
    for path in (
        only(computed_copy, STATES),
        only(computed_copy, PROBE),
        computed_copy.folder / RESULTS / "plan.json",
    ):
        path.unlink()
    shutil.rmtree(computed_copy.folder / RESULTS / "jobs")
    return computed_copy


def only(workflow, pattern):
    """The only file that matches a pattern."""
    [path] = workflow.folder.glob(pattern)
    return path


def fails(process, said):
    """Assert that a run ended with this sentence, and without a traceback or Snakemake's advice on backups."""
    output = process.stdout + process.stderr
    assert process.returncode == 1 and said in output, output
    assert "Traceback" not in output and "Cannot restore" not in output, output


def completes(workflow, computed):
    """Assert that the next run makes what is missing, so that all is as if nothing had happened."""
    all_intact(workflow.folder / "results")
    workflow.run(*OPTIONS)
    same_results(computed.folder / "results", workflow.folder / "results")
    assert workflow.planned(None, *OPTIONS) == {}


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
    path = only(workflow, WEIGHTS)
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
        process = unfinished.snakemake(*OPTIONS, **how)
    fails(process, said)
    assert not [*unfinished.folder.glob(STATES)]
    completes(unfinished, computed)


@pytest.mark.parametrize(
    ("number", "whom", "said"),
    [
        (signal.SIGINT, "everybody", "Terminating processes on user request"),
        (signal.SIGTERM, "everybody", "Interrupted: hidden_states tiny-animals"),
        (signal.SIGTERM, "snakemake", "Will exit after finishing currently running jobs"),
        (signal.SIGKILL, "everybody", ""),
        (signal.SIGKILL, "snakemake", ""),
        (signal.SIGKILL, "the job", "died with <Signals.SIGKILL: 9>"),
    ],
)
def test_stopped_in_the_middle(computed, unfinished, number, whom, said):
    """By Ctrl-C, a machine that goes down or a kill, which reach every process, or by a kill of one process only."""
    source = unfinished.folder / "papa/method/hidden.py"
    text = source.read_text()
    last = "        if not self._written.all():"
    assert text.count(last) == 1
    source.write_text(text.replace(last, f"        __import__('time').sleep(5)\n{last}"))
    process = unfinished.started(*OPTIONS)
    while not any((unfinished.folder / RESULTS / "states").glob(".*.partial")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    if whom == "the job":
        [job] = [
            each
            for each in psutil.Process(process.pid).children(recursive=True)
            if not each.children()
        ]
        job.kill()
    else:
        (os.killpg if whom == "everybody" else os.kill)(process.pid, number)
    output, errors = process.communicate()
    killed = number == signal.SIGKILL and whom != "the job"
    assert process.returncode == (-number if killed else 1)
    assert said in output + errors and "Traceback" not in output + errors, output + errors
    source.write_text(text)
    completes(unfinished, computed)


@pytest.mark.parametrize("days", [-2, 2])
def test_a_clock_that_was_wrong(computed, unfinished, days):
    """Finished files stay finished whatever their dates, and missing ones are made from them."""
    for folder in ("data", "results"):
        for path in (unfinished.folder / folder).rglob("*"):
            os.utime(path, times=(time.time() + 86400 * days,) * 2)
    assert unfinished.planned(None, *OPTIONS) == MISSING
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
    _, errors = unfinished.started(*OPTIONS).communicate()  # a fork would not load it
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
    process = subprocess.run(
        [*(mounted if can_mount else []), *command], **study.settings(), capture_output=True
    )
    assert process.returncode == 0, process.stdout + process.stderr
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


KILLS = int(os.environ.get("PAPA_TEST_KILLS", "2"))


@pytest.fixture(scope="module")
def config():
    """λ and probes are long enough to be killed in the middle, and hidden states are deleted."""
    changes = {
        "ranking": {"epochs": 20},
        "run.tasks": ["animals"],
        "run.fractions": ["1/2"],
        "tasks.animals.epochs": 20,
        "floors": [],
        "keep_hidden_states": False,
    }
    return with_keys(CONFIG, changes)


@pytest.fixture(scope="module")
def undisturbed(fresh, tmp_path_factory, config):
    """The results of a run that nothing disturbs."""
    workflow = fresh.copied(tmp_path_factory.mktemp("undisturbed") / "papa")
    workflow.compute(config)
    return workflow.folder / "results"


def test_two_configs_at_once_share_one_cache(undisturbed, fresh_copy, config):
    """Both make the same files, and each file is there once, with the values of an undisturbed run."""
    names = [
        fresh_copy.write(config | {"name": name}, f"{name}.yaml") for name in ("tiny", "second")
    ]
    runs = [fresh_copy.started("--cores", "1", "--configfile", name) for name in names]
    for run in runs:
        printed = run.communicate()
        assert run.returncode == 0, printed
    results = fresh_copy.folder / "results"
    for folder in ("cache", "tiny"):
        same_results(undisturbed / folder, results / folder)
    assert len([*results_in(results / "second")]) == len([*results_in(results / "tiny")])


def test_killed_again_and_again_it_ends_with_the_same_bytes(undisturbed, fresh_copy, config):
    """While λ and a probe are trained, once each has saved a state."""
    command = ("--cores", "2", "--configfile", fresh_copy.write(config))
    checkpoints = fresh_copy.folder / "papa/method/checkpoints.py"
    checkpoints.write_text(checkpoints.read_text().replace("SECONDS = 600.0", "SECONDS = 0.0"))
    for _ in range(KILLS):
        begun = time.time()
        running = fresh_copy.started(*command)
        while not saved(fresh_copy, begun):
            assert running.poll() is None, running.communicate()
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        all_intact(fresh_copy.folder / "results")
    fresh_copy.run(*command)
    logs = (fresh_copy.folder / RESULTS / "logs").rglob("*.log")
    assert any(", resumed " in log.read_text() for log in logs), "no job was killed in its work"
    same_results(undisturbed, fresh_copy.folder / "results")


def saved(workflow, since):
    with suppress(FileNotFoundError):  # a job that is done discards its state
        return any(
            state.stat().st_mtime > since
            for state in (workflow.folder / "results").rglob(".*.checkpoint")
        )
    return False


def test_ctrl_c_ends_with_how_to_resume_and_no_traceback(fresh_copy, config):
    """Also if it is pressed twice."""
    command = [sys.executable, "-m", "papa", "run", fresh_copy.write(config), "--cores", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=fresh_copy.folder, start_new_session=True, **pipes)
    until = time.monotonic() + 120
    while not any((fresh_copy.folder / RESULTS / "logs").rglob("tokenize*.log")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in printed, printed
    assert printed.strip().splitlines()[-1] == "Stopped. `papa run config.yaml --cores 2` resumes."
