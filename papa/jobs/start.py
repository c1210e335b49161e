"""Start and end a workflow: read the config, mark outdated artefacts, lock the results, print the summary."""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, replace
from pathlib import Path

import papa
from papa.config.freshness import FRESH, LACKS_SEEDS, MARKER
from papa.config.reading import check_yaml, config_of
from papa.config.settings import Machine, check_files
from papa.config.study import Plan
from papa.data.hub import with_snapshots
from papa.data.local_digests import LocalSourceDigests
from papa.errors import InputError, count

RUN = "PAPA_RUN"
"""Environment variable with the results folder and the process id of a run."""
LISTED_ARTEFACTS = 10
"""Most outdated artefacts that are listed with their reasons."""
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**28)}
"""glibc settings that let jobs keep up to 256 MB of freed memory, because allocating it again page by page is slow.

The first value is glibc's maximum. It must be set, because setting the second one stops glibc from raising it.
"""
YOUNG_OBJECTS = 50_000
"""The number of new objects after which Python looks for unreachable cycles; its default is at most 2,000."""
PRINT_RESULTS = """
import pathlib, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end without a traceback if nobody reads
from papa.results import summary
summary.print_results(pathlib.Path(sys.argv[1]))
"""
_locks: list[int] = []
_studies: ContextVar[list[Plan] | None] = ContextVar("papa_studies", default=None)


def home() -> Path:
    """Return the folder with Snakefile, `workflow` and `config`: a clone, or a folder in the installed package."""
    package = Path(os.path.abspath(papa.__file__)).parent
    bundled = package / "repository"
    return bundled if bundled.is_dir() else package.parent


@contextmanager
def collected_studies() -> Iterator[list[Plan]]:
    """Collect the studies that start inside the `with` block; the caller prints their results."""
    studies: list[Plan] = []
    token = _studies.set(studies)
    try:
        yield studies
    finally:
        _studies.reset(token)


def started(config: Mapping[str, object], files: Iterable[str | Path]) -> Plan:
    """Return the study of a config that snakemake read from `files`, and set environment variables for its jobs.

    Raises:
        InputError: the config, or a file or model in it, cannot be used.
    """
    # Snakemake creates hundreds of objects for each job and keeps them. Looking through them again and again took a
    # third of the time of a dry run of 20,000 jobs.
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
    files = tuple(files)
    for path in files:
        check_yaml(path)
    checked = config_of(config)
    check_files(checked)
    if (home() / "papa").is_dir():  # only for a clone: an installed papa's folder would shadow other modules
        path = os.pathsep.join(filter(None, [str(home()), os.environ.get("PYTHONPATH")]))
        os.environ["PYTHONPATH"] = path
    # in a job, the variable has the snapshots of the run's start
    machine = replace(checked.machine, snapshots=Machine.current().snapshots)
    tell_jobs(machine)
    encoding, _, _ = os.environ.get("PYTHONIOENCODING", "").partition(":")
    os.environ["PYTHONIOENCODING"] = f"{encoding}:replace"  # print ? for what a terminal cannot show, such as λ
    for name, value in ALLOCATOR.items():
        os.environ.setdefault(name, value)
    study = Plan(checked, f"results/{checked.name}", LocalSourceDigests(checked.machine, files))
    study.check_weights()
    if (studies := _studies.get()) is not None:
        studies.append(study)
    return study


def tell_jobs(machine: Machine) -> None:
    """Set the environment variable that jobs read."""
    os.environ[Machine.VARIABLE] = json.dumps(asdict(machine))


def marked(study: Plan) -> str:
    """Return the marker file that every job has as input (`Freshness.mark`); only a run's main process writes it."""
    folder = str(study.results.absolute())
    results, _, process = os.environ.get(RUN, "").rpartition(":")
    if results == folder and process != str(os.getpid()):
        return str(study.results / MARKER)
    os.environ[RUN] = f"{folder}:{os.getpid()}"
    try:
        return study.freshness.mark()
    except OSError as error:
        raise _not_writable(study.results, error) from None


def end(study: Plan) -> None:
    """Print the summary, unless the caller of `collected_studies` will print it."""
    if _studies.get() is None:
        show_results(study)


def show_results(study: Plan) -> None:
    """Print a study's summary, if it exists, in another process, so this one does not import pandas.

    Raises:
        SystemExit: it could not be printed.
    """
    if (study.results / study.path("summary")).exists():
        command = [sys.executable, "-P", "-c", PRINT_RESULTS, str(study.results)]  # -P: no modules of this folder
        if subprocess.run(command, check=False).returncode:
            shown = shlex.join(["papa", "inspect", argument(study.results)])
            raise SystemExit(f"Error: the results were not printed; `{shown}` prints them.")


def begin(study: Plan) -> None:
    """Lock the results until this process ends, download what is on the hub, and print which artefacts are rebuilt."""
    try:
        file = lock(study.results)
        waiting = (job for job in study.jobs() if study.state(job) != FRESH)
        machine = with_snapshots(study.config.machine, waiting, print)
        tell_jobs(machine)
    except InputError as error:
        raise SystemExit(f"Error: {error}") from None
    if study.changed():
        raise SystemExit(f"Error: {study.results} changed while this run was starting; start it again.")
    _locks.append(file)  # the lock lasts while the file is open
    print_outdated(study)


def print_outdated(study: Plan) -> None:
    """Print which artefacts are rebuilt and why."""
    outdated = study.freshness.outdated()
    for artefact, why in list(outdated.items())[:LISTED_ARTEFACTS]:
        print(f"{artefact} is rebuilt: {why}.", flush=True)
    if len(outdated) > LISTED_ARTEFACTS:
        print(f"{len(outdated) - LISTED_ARTEFACTS} more artefacts are rebuilt.", flush=True)
    if lacking := sum(study.state(job) == LACKS_SEEDS for job in study.jobs()):
        print(f"Probes for additional seeds are trained for {count(lacking, 'variant')}; others stay.", flush=True)


def argument(path: str | Path) -> str:
    """Return a path as an argument of a command, which would take a hyphen at its beginning for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def lock(results: Path) -> int:
    """Lock a results folder until the returned file is closed.

    It is a kernel lock, so a killed run leaves nothing to unlock.

    Raises:
        InputError: another run holds the lock, or the folder is not writable.
    """
    try:
        results.mkdir(parents=True, exist_ok=True)
        file = os.open(results / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _not_writable(results, error) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise InputError(
            f"another run is writing to {results}; wait for it, or give this config another name or folder."
        ) from None
    except OSError as error:  # a file system without locks
        print(f"{results} cannot be locked ({error.strerror}); do not start two runs on it at once.", file=sys.stderr)
    return file


def _not_writable(results: Path, error: OSError) -> InputError:
    return InputError(f"{results} is not writable ({error.strerror}); fix the cause, or run in another folder.")
