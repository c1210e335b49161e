"""`papa run`: run the workflow on a config from any folder, with snakemake in this process.

Snakemake's locks outlive a killed run, so papa turns them off (`--nolock`). Instead a kernel lock, which ends with its
process, excludes a second run (`papa.jobs.start.lock`).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

from papa.config.reading import read_yaml
from papa.errors import InputError, first_line
from papa.jobs.start import argument, called_with, collected_studies, home, show_results
from papa.jobs.stopping import resumable
from papa.plan.why import reasons

CONFIG = Path("papa.yaml")
"""Default config of `papa run`, and default file of `papa init`."""
PROFILE_MESSAGE = " for setting default command line arguments.\n"
"""The end of a line with the path of a profile, which snakemake prints at every start."""
DEFAULT = "default"
DEMO = Path("data/demo")
"""The texts of the demo, in a clone or an installed papa, and in the current folder."""


def split(words: Sequence[str]) -> tuple[Path, list[str]]:
    """Split arguments into the config, which comes first, and snakemake's options and targets.

    Raises:
        InputError: the file does not exist, or no file was given and there is no papa.yaml.
    """
    given = bool(words) and not words[0].startswith("-")
    config = Path(words[0]) if given else CONFIG
    if not config.is_file():
        problem = f"There is no file {config}" if given else f"No config was given, and {Path.cwd()} has no {CONFIG}"
        raise InputError(
            f"{problem}; `papa run FILE` runs a config, `papa init` writes one, and `papa demo` needs none."
        )
    return config, list(words[given:])


def call(config: Path, cores: str | None, profile: str, options: Sequence[str]) -> list[str]:
    """Return the command line for snakemake; without `cores`, the profile's number of cores, or all.

    `profile` is the name of a profile of papa, or the folder of another; `options` are other options, and targets.
    """
    shipped = home() / "workflow/profiles" / profile
    cores = cores or ("all" if profile == DEFAULT else None)
    return [
        *("--snakefile", str(home() / "Snakefile")),
        *("--workflow-profile", str(shipped if shipped.is_dir() else profile)),
        *("--configfile", argument(config)),
        *(["--cores", cores] if cores else []),
        *(["--resources", f"mem_mb={memory_mb()}"] if profile == DEFAULT and "--resources" not in options else []),
        *("--nolock", "--keep-incomplete", "--ignore-incomplete"),
        *options,
    ]


def memory_mb() -> int:
    """Return the memory of this machine, in megabytes; jobs that request more in total do not run at once."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**6


def run(config: Path, cores: str | None, profile: str, options: Sequence[str]) -> None:
    """Run a config, or resume it; at the end print its claims and the path of the report.

    Results are also printed if no job had to run. They are not printed if they are out of date, as after a dry run of a
    changed config.

    Raises:
        InputError: the config is not valid YAML, or there is no folder for caches.
        SystemExit: snakemake failed or was stopped; the code is snakemake's.
    """
    read_yaml(config)  # snakemake misreads some YAML files and hangs on others
    check_cache()
    with collected_studies() as studies, resumable():
        snakemake(call(config, cores, profile, options))
    shows = {"-n", "--dry-run", "--dryrun"} & set(options)
    for study in studies:
        if shows and study.plan:
            print(*reasons(study.plan), sep="\n")
        if study.plan and all(os.path.exists(batch["handle"]) for batch in study.batches.values()):
            show_results(Path(study.folder))


def demo(cores: str | None, options: Sequence[str]) -> None:
    """Run config/config.yaml in the current folder; copy its texts to data/demo/, unless there is such a folder."""
    if not DEMO.is_dir():
        partial = DEMO.with_name(".demo.partial")
        try:
            shutil.copytree(home() / DEMO, partial, dirs_exist_ok=True)
            partial.rename(DEMO)
        except OSError as error:
            raise InputError(f"The texts of the demo cannot be copied to {DEMO} ({first_line(error)}).") from error
    run(home() / "config/config.yaml", cores, DEFAULT, options)


def keys_of(changes: Sequence[str], **options: object) -> dict[str, object]:
    """Return the keys that options --config KEY=VALUE replace, as snakemake reads them, and `options` that are given.

    Raises:
        InputError: an option has another form.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if not changes:
        return given
    from snakemake.cli import parse_config

    try:
        keys: dict[str, object] = parse_config(changes)
    except ValueError as error:
        raise InputError(
            f"--config is {' '.join(changes)!r}, but each entry must be KEY=VALUE, with a key of the top level, "
            f"such as margin=0.05 or 'run={{tasks: [ner]}}' ({first_line(error)})"
        ) from error
    return keys | given


def snakemake(words: Sequence[str]) -> None:
    """Run snakemake in this process; raise `SystemExit` if it fails or the command line is wrong.

    Raises:
        InputError: an option --config has a wrong form.
    """
    from snakemake.cli import args_to_api, parse_args
    from snakemake.exceptions import print_exception

    messages = StringIO()
    try:
        try:
            with redirect_stderr(messages):
                parser, arguments = parse_args(list(words))
        finally:
            lines = messages.getvalue().splitlines(keepends=True)
            sys.stderr.writelines(line for line in lines if not line.endswith(PROFILE_MESSAGE))
        keys_of(arguments.config or [])  # snakemake shows a traceback if a key is wrong
        with called_with(words):
            done = args_to_api(arguments, parser)
    except InputError:
        raise
    except Exception as error:
        print_exception(error)
        done = False
    if not done:
        raise SystemExit(1)


def check_cache() -> None:
    """Raise `InputError` if there is no writable folder for the caches of snakemake and papa."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(
            f"{folder} cannot be used for caches ({error.strerror}); set XDG_CACHE_HOME to another folder."
        ) from error
