"""What the workflow does before its first job: read the config, look at what is done, and keep other runs out."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import Any

import papa
from papa.config.reading import check_yaml, config_of
from papa.config.settings import Machine, check_files
from papa.config.study import MORE, OUTDATED, Study
from papa.data.roots import LocalRoots
from papa.errors import InputError, count

RUN = "PAPA_RUN"
"""The environment variable that names the results that a run writes to, and its process."""
SHOWN = 10
"""Artefacts that do not fit the config any more, of which the reason is said."""
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**28)}
"""Lets jobs keep up to 256 MB that they freed, because they soon ask for it again, and get it page by page.

The first is the most that glibc takes, and is what it comes to by itself: it does so no more once the second is set.
"""
_locks: list[int] = []
_noted: ContextVar[list[Study] | None] = ContextVar("papa_noted", default=None)


def home() -> Path:
    """The folder with the Snakefile, `workflow` and `config`: of a clone, or in the package if a wheel brought it."""
    package = Path(os.path.abspath(papa.__file__)).parent
    carried = package / "repository"
    return carried if carried.is_dir() else package.parent


@contextmanager
def noted() -> Iterator[list[Study]]:
    """Inside, studies that this process starts are noted here, and who noted them says their end."""
    studies: list[Study] = []
    token = _noted.set(studies)
    try:
        yield studies
    finally:
        _noted.reset(token)


def started(config: Mapping[str, Any], files: Iterable[str | Path]) -> Study:
    """The study of a config as snakemake read it from `files`; jobs find papa and this machine in the environment.

    Raises:
        InputError: the config, a file that it names, or a model is not what it has to be.
    """
    for path in files:
        check_yaml(path)
    checked = config_of(config)
    check_files(checked)
    if (home() / "papa").is_dir():  # in a clone; where papa is installed, its folder would hide Python's own modules
        path = os.pathsep.join(filter(None, [str(home()), os.environ.get("PYTHONPATH")]))
        os.environ["PYTHONPATH"] = path
    os.environ[Machine.VARIABLE] = json.dumps(asdict(checked.machine))
    for name, value in ALLOCATOR.items():
        os.environ.setdefault(name, value)
    study = Study(checked, f"results/{checked.name}", LocalRoots())
    study.check_weights()
    if (studies := _noted.get()) is not None:
        studies.append(study)
    return study


def marked(study: Study) -> str:
    """The file that every job has as an input (`Study.mark`), written once in a run and not again by its jobs."""
    own = str(study.results.absolute())
    results, _, process = os.environ.get(RUN, "").rpartition(":")
    if results == own and process != str(os.getpid()):
        return str(study.results / OUTDATED)
    os.environ[RUN] = f"{own}:{os.getpid()}"
    try:
        return study.mark()
    except OSError as error:
        raise _not_written(study, error) from None


def end(study: Study) -> None:
    """Print the summary, if the run made one and nobody else says its end."""
    if _noted.get() is None:
        say(study)


def say(study: Study) -> None:
    """Print the summary of a study in a process of its own, if there is one."""
    if (study.results / study.path("summary")).exists():
        subprocess.run([sys.executable, "-m", "papa.results.summary", str(study.results)], check=False)


def begin(study: Study) -> None:
    """Lock the results until this process ends, however it ends, and say what is made again and why.

    The lock is one of the kernel, so a run that was killed leaves nothing to unlock.
    """
    path = study.results / ".lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise SystemExit(f"Error: {_not_written(study, error)}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(
            f"Error: another run is writing to {study.results}; wait for it, or give this config another name."
        ) from None
    except OSError as error:  # a file system without locks
        print(f"{study.results} cannot be locked ({error.strerror}); do not start two runs on it at once.", flush=True)
    if study.changed():
        raise SystemExit(f"Error: {study.results} changed while this run was starting; start it again.")
    _locks.append(file)  # closing the file would unlock it
    outdated = study.outdated()
    for artefact, why in list(outdated.items())[:SHOWN]:
        print(f"{artefact} is made again: {why}.", flush=True)
    if len(outdated) > SHOWN:
        print(f"{len(outdated) - SHOWN} more artefacts are made again.", flush=True)
    if further := sum(study.state(job) == MORE for job in study.jobs()):
        print(f"Probes of further seeds are trained for {count(further, 'variant')}; the others stay.", flush=True)


def _not_written(study: Study, error: OSError) -> InputError:
    return InputError(f"{study.results} cannot be written to ({error.strerror}); make it writable, or run elsewhere.")
