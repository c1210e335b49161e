"""`papa run`: the workflow on a config in any folder, by snakemake in this process.

No run has to be unlocked. Snakemake's own locks name files and no process, so they cannot tell a run that goes on from
one that is dead; they are left out (`--nolock`). What keeps two runs apart is the lock of the kernel that
`papa.jobs.start.begin` takes, which ends with its process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from papa.config.study import FRESH, Study
from papa.data.roots import LocalRoots
from papa.errors import InputError
from papa.jobs.start import home, noted, say

CONFIG = Path("papa.yaml")
"""What is run if no config is named: the file that `papa init` writes."""
DEFAULT = "default"


def split(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The config, which stands first, and what else is for snakemake.

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
    """What snakemake is given.

    Args:
        config: the config.
        cores: cores to use, or "all"; with None those of the profile, or all if the profile is papa's own default.
        profile: the name of one of papa's profiles, or a profile's folder.
        options: further options, and targets.
    """
    own = home() / "workflow/profiles" / profile
    cores = cores or ("all" if profile == DEFAULT else None)
    return [
        *("--snakefile", str(home() / "Snakefile")),
        *("--workflow-profile", str(own if own.is_dir() else profile)),
        *("--configfile", str(config)),
        *(["--cores", cores] if cores else []),
        *("--rerun-incomplete", "--nolock"),
        *options,
    ]


def run(config: Path, cores: str | None, profile: str, options: Sequence[str]) -> None:
    """Run a config, or go on with it; in the end print what may be concluded, and where the page is.

    A run ends with its results, also if there was nothing left to do. It says nothing of results that do not fit the
    config, as after a dry run of a config that was changed.

    Raises:
        SystemExit: snakemake failed, and this is how it exits.
    """
    from snakemake.cli import main

    with noted() as studies:
        try:
            main(call(config, cores, profile, options))
        except SystemExit as ended:
            if ended.code:
                raise
    for study in studies:
        now = Study(study.config, study.results, LocalRoots())
        if all(now.state(job) == FRESH for job in now.targets()):
            say(study)
