"""Start and end of a workflow: read the config, mark outdated artefacts, lock the results, print the summary."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import Any

import papa
from papa.config.freshness import LACKS_SEEDS, MARKER
from papa.config.reading import check_yaml, config_of
from papa.config.settings import Machine, check_files
from papa.config.study import Study
from papa.data.local_digests import LocalSourceDigests
from papa.data.named import check_models
from papa.errors import InputError, count
from papa.files import replacing

RUN = "PAPA_RUN"
"""Environment variable with the folder that a run writes to, and the id of its process."""
SHOWN = 10
"""Number of outdated artefacts whose reason is printed."""
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**28)}
"""Settings of glibc with which jobs keep up to 256 MB of freed memory, because getting it back page by page is slow.

The first value is glibc's maximum, which glibc does not reach once the second value is set.
"""
PLACES = ".models"
"""File in the results with the locations of models, which no artefact records."""
PRINT = "import pathlib, sys; from papa.results import summary; summary.print_results(pathlib.Path(sys.argv[1]))"
_locks: list[int] = []
_noted: ContextVar[list[Study] | None] = ContextVar("papa_noted", default=None)


def home() -> Path:
    """Return the folder with Snakefile, `workflow` and `config`: a clone, or a folder inside the installed package."""
    package = Path(os.path.abspath(papa.__file__)).parent
    carried = package / "repository"
    return carried if carried.is_dir() else package.parent


@contextmanager
def noted() -> Iterator[list[Study]]:
    """Collect the studies that start inside; the caller then prints their results."""
    studies: list[Study] = []
    token = _noted.set(studies)
    try:
        yield studies
    finally:
        _noted.reset(token)


def started(config: Mapping[str, Any], files: Iterable[str | Path]) -> Study:
    """Return the study of a config that snakemake read from `files`, and set environment variables for its jobs.

    Raises:
        InputError: the config is wrong, or a file or model that it names is.
    """
    for path in files:
        check_yaml(path)
    checked = config_of(config)
    check_files(checked)
    check_models(checked)
    if (home() / "papa").is_dir():  # a clone; the folder of an installed papa would hide Python's modules
        path = os.pathsep.join(filter(None, [str(home()), os.environ.get("PYTHONPATH")]))
        os.environ["PYTHONPATH"] = path
    os.environ[Machine.VARIABLE] = json.dumps(asdict(checked.machine))
    for name, value in ALLOCATOR.items():
        os.environ.setdefault(name, value)
    study = Study(checked, f"results/{checked.name}", LocalSourceDigests(checked.machine))
    study.check_weights()
    if (studies := _noted.get()) is not None:
        studies.append(study)
    return study


def marked(study: Study) -> str:
    """Return the file that is an input of every job (`Freshness.mark`); only the main process of a run writes it."""
    folder = str(study.results.absolute())
    results, _, process = os.environ.get(RUN, "").rpartition(":")
    if results == folder and process != str(os.getpid()):
        return str(study.results / MARKER)
    os.environ[RUN] = f"{folder}:{os.getpid()}"
    try:
        return study.freshness.mark()
    except OSError as error:
        raise _not_writable(study.results, error) from None


def end(study: Study) -> None:
    """Print the summary, unless a caller of `noted` prints it."""
    if _noted.get() is None:
        say(study)


def say(study: Study) -> None:
    """Print the summary of a study, if there is one, in another process, so this one need not import pandas."""
    if (study.results / study.path("summary")).exists():
        subprocess.run([sys.executable, "-c", PRINT, str(study.results)], check=False)


def begin(study: Study) -> None:
    """Lock the results until this process ends, and print what is rebuilt and why."""
    try:
        file = lock(study.results)
        note_places(study)
    except InputError as error:
        raise SystemExit(f"Error: {error}") from None
    if study.changed():
        raise SystemExit(f"Error: {study.results} changed while this run was starting; start it again.")
    _locks.append(file)  # an open file keeps its lock
    outdated = study.freshness.outdated()
    for artefact, why in list(outdated.items())[:SHOWN]:
        print(f"{artefact} is rebuilt: {why}.", flush=True)
    if len(outdated) > SHOWN:
        print(f"{len(outdated) - SHOWN} more artefacts are rebuilt.", flush=True)
    if further := sum(study.state(job) == LACKS_SEEDS for job in study.jobs()):
        print(f"Probes of further seeds are trained for {count(further, 'variant')}; the others stay.", flush=True)


def note_places(study: Study) -> None:
    """Write the locations of models to the results, for `papa heads`; no result depends on them."""
    places = {
        name: {key: os.path.abspath(place) if key == "path" else place for key, place in keys.items()}
        for name, keys in study.config.machine.models.items()
    }
    # a full disk or read-only results stop the job that writes there, with its message
    with suppress(InputError), replacing(study.results / PLACES) as temporary:
        temporary.write_text(json.dumps(places), encoding="utf-8")


def lock(results: Path) -> int:
    """Lock a folder of results until the returned file is closed.

    The lock is one of the kernel, so a killed run leaves nothing to unlock.

    Raises:
        InputError: another run has the lock, or the folder cannot be written to.
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
        print(f"{results} cannot be locked ({error.strerror}); do not start two runs on it at once.", flush=True)
    return file


def _not_writable(results: Path, error: OSError) -> InputError:
    return InputError(f"{results} cannot be written to ({error.strerror}); make it writable, or run elsewhere.")
