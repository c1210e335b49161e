"""`papa run`: run the workflow on a config in any folder, with snakemake in this process.

Snakemake's locks outlive a killed run, so papa turns them off (`--nolock`). A lock of the kernel, which ends with its
process, keeps a second run out (`papa.jobs.start.lock`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from papa.config.freshness import FRESH
from papa.config.reading import check_yaml
from papa.config.study import Study
from papa.data.local_digests import LocalSourceDigests
from papa.errors import InputError
from papa.jobs.start import home, noted, say
from papa.jobs.stopping import resumable

CONFIG = Path("papa.yaml")
"""The config of `papa run` without a file name, and the file that `papa init` writes."""
DEFAULT = "default"


def split(words: Sequence[str]) -> tuple[Path, list[str]]:
    """Split words into the config, which comes first, and the options and targets of snakemake.

    Raises:
        InputError: there is no such file, or none was named and there is no papa.yaml.
    """
    named = bool(words) and not words[0].startswith("-")
    config = Path(words[0]) if named else CONFIG
    if not config.is_file():
        what = f"is no file {config}" if named else f"is no config named, and no {CONFIG} in {Path.cwd()}"
        raise InputError(
            f"There {what}; `papa run FILE` runs a config, `papa init` writes one, and `papa demo` needs none."
        )
    return config, list(words[named:])


def call(config: Path, cores: str | None, profile: str, options: Sequence[str]) -> list[str]:
    """Return the command line for snakemake.

    Args:
        config: the config.
        cores: cores to use, or "all"; None takes those of the profile, or all with papa's default profile.
        profile: the name of one of papa's profiles, or the folder of another.
        options: further options, and targets.
    """
    shipped = home() / "workflow/profiles" / profile
    cores = cores or ("all" if profile == DEFAULT else None)
    return [
        *("--snakefile", str(home() / "Snakefile")),
        *("--workflow-profile", str(shipped if shipped.is_dir() else profile)),
        *("--configfile", str(config)),
        *(["--cores", cores] if cores else []),
        *("--rerun-incomplete", "--nolock"),
        *options,
    ]


def run(config: Path, cores: str | None, profile: str, options: Sequence[str]) -> None:
    """Run a config, or resume it; print at the end what may be concluded, and the path of the report.

    Results are also printed if all jobs were up to date before. They are not printed if they are out of date, as after
    a dry run of a changed config.

    Raises:
        InputError: the config cannot be read as YAML, or there is no folder for caches.
        SystemExit: snakemake failed or was stopped; the code is snakemake's.
    """
    check_yaml(config)  # snakemake would read some files wrongly, and would never finish others
    check_cache()
    from snakemake.cli import main

    with noted() as studies, resumable():
        try:
            main(call(config, cores, profile, options))
        except SystemExit as ended:
            if ended.code:
                raise
    for study in studies:
        now = Study(study.config, study.results, LocalSourceDigests(study.config.machine))
        if all(now.state(job) == FRESH for job in now.targets()):
            say(study)


def check_cache() -> None:
    """Raise `InputError` if there is no writable folder for the caches of snakemake and papa."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be used as a folder for caches ({error.strerror}); set XDG_CACHE_HOME to another folder."
        ) from error
