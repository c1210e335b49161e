"""Start the workflow: `papa run` calls snakemake in this process, and there the Snakefile plans, locks and downloads.

Snakemake's locks outlive a killed run, so papa turns them off (`--nolock`). Instead a kernel lock, which ends with its
process, excludes a second run.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import yaml

import papa
from papa.config.reading import changed, config_of, read_yaml
from papa.data.digests import user_cache
from papa.data.hub import fetch
from papa.errors import WARNING, InputError, first_line, missing_extra
from papa.files import share
from papa.plan.missing import settle
from papa.plan.study import Plan
from papa.plan.why import reasons
from papa.run.stopping import resumable
from papa.stages import STAGES, STUDY, HiddenStates, JobBatch, key_in, read_job

if TYPE_CHECKING:
    from argparse import Namespace

    from snakemake.workflow import Workflow

CONFIG = Path("papa.yaml")
"""Default config of `papa run`, and default file of `papa init`."""
PROFILE_MESSAGE = " for setting default command line arguments.\n"
"""The end of a line with the path of a profile, which snakemake prints at every start."""
DEFAULT = "default"
PROFILES = (DEFAULT, "gpu", "slurm")
"""The profiles in `workflow/profiles`."""
DEMO = Path("data/demo")
"""The texts of the demo, in a clone or an installed papa, and in the current folder."""


SHOWING = (
    "dryrun touch lint summary detailed_summary dag rulegraph filegraph d3dag print_compilation list_rules "
    "list_target_rules list_changes list_input_changes list_params_changes list_untracked list_conda_envs "
    "cleanup_metadata cleanup_shadow unlock archive report containerize export_cwl generate_unit_tests "
    "delete_temp_output"
).split()
"""Options with which snakemake runs no job."""
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**28)}
"""glibc settings that let jobs keep up to 256 MB of freed memory, because allocating it again page by page is slow.

The first value is glibc's maximum. It must be set, because setting the second one stops glibc from raising it.
"""
YOUNG_OBJECTS = 50_000
"""The number of new objects after which Python looks for unreachable cycles; its default is at most 2,000."""
LONG_OUTPUT = {"--quiet", "-q", "--printshellcmds", "-p", "--verbose"}
"""Options with which snakemake decides what `papa run` prints of its jobs."""
# open until the process ends, because closing a file gives up its lock
_locks: list[int] = []


@dataclass
class Call:
    """A call of snakemake by `papa run`: its options, the keys they replace, and the studies that it has planned."""

    options: Namespace
    keys: Mapping[str, object] = field(default_factory=dict)
    studies: list[Planned] = field(default_factory=list)


_call: ContextVar[Call | None] = ContextVar("papa_call", default=None)


def home() -> Path:
    """Return the folder with Snakefile, `workflow` and `config`: a clone, or a folder in the installed package."""
    package = Path(os.path.abspath(papa.__file__)).parent
    bundled = package / "repository"
    return bundled if bundled.is_dir() else package.parent


# -- papa run ----------------------------------------------------------------------------------------------------------


def split(words: Sequence[str]) -> tuple[Path, list[str]]:
    """Split arguments into the config, which comes first, and snakemake's options and targets.

    Raises:
        InputError: the file does not exist, or no file was given and there is no papa.yaml.
    """
    given = bool(words) and not words[0].startswith("-")
    config = Path(words[0]) if given else CONFIG
    if not config.is_file():
        problem = (
            f"There is no file {config}"
            if given
            else f"No config was given, and {Path.cwd()} has no {CONFIG}"
        )
        raise InputError(
            f"{problem}; `papa run FILE` runs a config, `papa init` writes one, and `papa demo` needs none."
        )
    return config, list(words[given:])


def call(config: Path, cores: str | None, profile: str, options: Sequence[str]) -> list[str]:
    """Return the command line for snakemake; without `cores`, the profile's number of cores, or all.

    `profile` is the name of a profile of papa, or the folder of another; `options` are other options, and targets.
    """
    if cores and not re.fullmatch("all|[1-9][0-9]*", cores):  # snakemake waits for ever for a core
        raise InputError(f"--cores is {cores!r}, but must be all, or a whole number of at least 1.")
    profiles = home() / "workflow/profiles"
    folder = profiles / profile if profile in PROFILES else Path(profile)
    # snakemake would ignore a name that it does not know; "none" is its word for no profile
    if profile != "none" and not folder.is_dir():
        raise InputError(
            f"--workflow-profile is {profile!r}, but must be default, gpu, slurm, none, or a folder with a profile."
        )
    if profile == "slurm" and (lacking := missing_extra("slurm", "The profile slurm")):
        raise InputError(lacking)
    local = profile == DEFAULT
    short = profile in (DEFAULT, "gpu") and LONG_OUTPUT.isdisjoint(options)
    cores = cores or ("all" if local else None)
    memory = f"mem_mb={psutil.virtual_memory().total // 10**6}"
    return [
        "--snakefile",
        str(home() / "Snakefile"),
        "--workflow-profile",
        str(folder),
        "--configfile",
        argument(config),
        *(["--cores", cores] if cores else []),
        *(["--resources", memory] if local and "--resources" not in options else []),
        *(["--quiet", "rules", "reason", "host"] if short else []),
        # jobs rename complete files into place, so Snakemake's marks and locks of killed runs would only be in the way
        "--nolock",
        "--keep-incomplete",
        "--ignore-incomplete",
        *options,
    ]


def run(config: Path, cores: str | None, profile: str, options: Sequence[str]) -> None:
    """Run a config, or resume it; at the end print its claims and the path of the report.

    Results are also printed if no job had to run. They are not printed with an option that only shows something.

    Raises:
        InputError: the config is not valid YAML, or there is no folder for caches.
        SystemExit: snakemake failed or was stopped; the code is snakemake's.
    """
    if not isinstance(
        read_yaml(config), dict
    ):  # snakemake misreads some YAML files and hangs on others
        raise InputError(f"{config} must be a block of keys, such as `papa init` writes.")
    check_cache()
    with resumable():
        called = snakemake(call(config, cores, profile, options))
    for study in called.studies:
        if called.options.dryrun and study.plan:
            print(*reasons(study.plan), sep="\n")
        if study.runs and study.is_finished:
            show_results(Path(study.folder))


def demo(cores: str | None, options: Sequence[str]) -> None:
    """Run config/config.yaml in the current folder; copy its texts to data/demo/, unless there is such a folder."""
    if not DEMO.is_dir():
        # renamed when complete, so a copy that was interrupted is not taken for the texts
        partial = DEMO.with_name(".demo.partial")
        try:
            shutil.copytree(home() / DEMO, partial, dirs_exist_ok=True)
            partial.rename(DEMO)
        except OSError as error:
            raise InputError(
                f"The texts of the demo cannot be copied to {DEMO} ({first_line(error)})."
            ) from error
    run(home() / "config/config.yaml", cores, DEFAULT, options)


def keys_of(changes: Sequence[str], **options: object) -> dict[str, object]:
    """Return the keys that options --config KEY=VALUE replace, and `options` that are given.

    Raises:
        InputError: an option has another form.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if not changes:
        return given
    from snakemake.cli import parse_config

    try:
        keys = parse_config(changes)
        for key, _, text in (change.partition("=") for change in changes):
            if isinstance(keys[key], dict | list):  # snakemake reads numbers inside it as text
                keys = changed(keys, {key: yaml.safe_load(text.strip("'\""))})
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(
            f"--config is {' '.join(changes)!r}, but each entry must be KEY=VALUE, with a key of the top level, "
            f"such as margin=0.05 or 'run={{tasks: [ner]}}' ({first_line(error)})"
        ) from error
    return dict(keys) | given


def snakemake(words: Sequence[str]) -> Call:
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
                parser, options = parse_args(list(words))
        finally:
            # also if the options are wrong: then snakemake has said so here, and exits
            lines = messages.getvalue().splitlines(keepends=True)
            sys.stderr.writelines(line for line in lines if not line.endswith(PROFILE_MESSAGE))
        called = Call(
            options, keys_of(options.config or [])
        )  # snakemake shows a traceback if a key is wrong
        # snakemake executes the Snakefile inside this call, and `planned` finds the options here
        token = _call.set(called)
        try:
            done = args_to_api(options, parser)
        finally:
            _call.reset(token)
    except InputError:
        raise
    except Exception as error:
        print_exception(error)
        done = False
    if not done:
        raise SystemExit(1)
    return called


def check_cache() -> None:
    """Raise `InputError` if there is no writable folder for the caches of snakemake and papa."""
    folder = user_cache().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(
            f"{folder} cannot be used for caches ({error.strerror}); set XDG_CACHE_HOME to another folder."
        ) from error


# -- the Snakefile -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """The facts about a study that rules need: planned by the main process, or read from the files that it wrote.

    Args:
        folder: the folder of the study's results.
        threads: threads of a job that runs the encoder or trains probes.
        report: the file that the report writes last.
        files: the page, the tables and the figures.
        weights_mb: the size of the largest model's files of weights.
        plan: the plan; None in a job.
        complete: whether inputs are listed that the plan does not need; see `JobBatch.inputs`.
        runs: whether jobs run; with some options, snakemake only shows something.
    """

    folder: str
    threads: int
    report: str
    files: Sequence[str]
    weights_mb: int = 0
    plan: Plan | None = None
    complete: bool = True
    runs: bool = True

    @cached_property
    def batches(self) -> dict[str, JobBatch]:
        """The batches by the keys of all of their files."""
        batches = self.plan.batches if self.plan else ()
        by_key = {key_in(job.output): batch for batch in batches for job in batch.jobs}
        return by_key | {key_in(batch.handle): batch for batch in batches}

    @property
    def wanted(self) -> list[str]:
        """All files of the study that Snakemake knows but hidden states, which their last reader may have deleted."""
        batches = dict.fromkeys(self.batches.values())
        handles = [batch.handle for batch in batches if batch.rule != HiddenStates.stage]
        return [*handles, *self.files]

    @property
    def is_finished(self) -> bool:
        """Whether the report and all of its files exist."""
        return all(map(os.path.exists, (self.report, *self.files)))

    def disk_mb(self, path: str) -> int:
        """Return the disk space of the job that makes a file; a job that runs asks for none."""
        return self.batches[key_in(path)].disk_mb if self.plan else 0

    def needs(self, path: str, name: str) -> Sequence[str]:
        """Return the files that a rule needs to make a file; `name` is that of the input."""
        key = key_in(path)
        if self.plan:
            return self.batches[key].inputs(self.complete).get(name, ())
        job = read_job(self.folder, key)
        return job["inputs"].get(name, ()) if job else ()


def planned(config: Mapping[str, object], workflow: Workflow) -> Planned:
    """Return the plan of a config that snakemake has read; a job reads what the main process wrote.

    Unless nothing is to be run, models and data that are only on the hub are downloaded first, because keys depend on
    their content.

    Raises:
        InputError: the config, a file or model in it, or an option of snakemake cannot be used.
    """
    _quicken_snakemake()
    results = f"{workflow.modifier.path_modifier.prefix or ''}results"  # a module may have a prefix
    # a job's own options say nothing of the user's wishes: snakemake gives every job --force
    if not workflow.is_main_process:  # the config may have been edited since
        folder = f"{results}/{config['name']}"
        study = read_job(folder, STUDY)
        if study is None:
            raise InputError(f"{folder} has no plan; start the workflow again.")
        return Planned(folder, **study)
    # Snakemake has read them, but silently accepts duplicate keys, and numbers that YAML misreads
    for path in workflow.configfiles:
        read_yaml(path)
    called = _call.get()
    checked = config_of(changed(config, called.keys) if called else config)
    folder = f"{results}/{checked.name}"
    _set_environment()
    options = called.options if called else _options()
    if getattr(options, "delete_all_output", False):
        raise InputError(
            "--delete-all-output would delete files that other studies need; delete the folder of this study, and then "
            "what no study needs, with `papa inspect results --prune`."
        )
    runs = not any(getattr(options, name, None) for name in SHOWING)
    # a dry run also stores the tables that it reads, so the next one is fast, unless the folder is read-only
    place = next(path for path in Path(folder, "x").absolute().parents if path.exists())
    plan = Plan(
        checked,
        folder,
        fetch(checked, checked.machine, print) if runs else checked.machine,
        save=runs or os.access(place, os.W_OK),
        forced=_forced(options, workflow.modifier.modify_rulename),
    )
    weights = [_weight_bytes(plan.model(name).folder) for name, _ in checked.pairs]
    started = Planned(
        folder=folder,
        threads=checked.threads,
        report=plan.report.output,
        files=plan.report_files,
        weights_mb=max(weights) // 10**6,
        plan=plan,
        # with this trigger, a shorter list of inputs would itself be a reason to run the job
        complete=options is None or "INPUT" in {each.name for each in options.rerun_triggers},
        runs=runs,
    )
    if called:
        called.studies.append(started)
    # not in `onstart`, which snakemake does not call for a workflow that is used as a module
    if runs:
        begin(plan)
    # otherwise, the jobs of a run that is still working may wait for files that this plan does not expect
    if runs or not _is_running(plan.results):
        settle(plan.batches, [plan.report.output, *plan.report_files])
    return started


def _is_running(results: Path) -> bool:
    """Return whether a run is writing to these results."""
    try:
        if results.exists():
            os.close(locked(results, fcntl.LOCK_SH, "running"))
    except InputError:
        return True
    return False


def _quicken_snakemake() -> None:
    """Collect garbage less often, and drop advice that does not apply."""
    # Snakemake creates hundreds of objects for each job and keeps them. Looking through them again and again took a
    # third of the time of a dry run of 20,000 jobs.
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
    # Outputs are `update` so that Snakemake does not delete them; it then misses a backup of a new file if a job fails.
    getLogger("snakemake.logging").addFilter(
        lambda record: "no backup found" not in record.getMessage()
    )


def _set_environment() -> None:
    """Set the environment of the jobs."""
    # only for a clone: an installed papa's folder would shadow other modules
    if (home() / "papa").is_dir():
        path = os.pathsep.join(filter(None, [str(home()), os.environ.get("PYTHONPATH")]))
        os.environ["PYTHONPATH"] = path
    encoding = os.environ.get("PYTHONIOENCODING", "").partition(":")[0]
    # print ? for what a terminal cannot show, such as λ
    os.environ["PYTHONIOENCODING"] = f"{encoding}:replace"
    for name, value in ALLOCATOR.items():
        os.environ.setdefault(name, value)


def _forced(options: Namespace | None, renamed: Callable[[str], str]) -> set[str]:
    """Return the stages, and the files, whose jobs snakemake was asked to run again.

    `renamed` returns the name of a rule in the workflow, which a module may have changed.
    """
    if options is None:
        return set()
    if options.forceall:
        return set(STAGES)
    asked = [*(options.forcerun or ())]
    if options.force:
        asked += options.targets or ()
    return {stage for stage in STAGES if renamed(stage) in asked} | {*map(os.path.normpath, asked)}


def _weight_bytes(folder: str) -> int:
    """Return the size of a model's files of weights; 0 if they are not on this machine."""
    if not folder:
        return 0
    files = [*Path(folder).glob("*.safetensors")] or Path(folder).glob("*.bin")
    return sum(file.stat().st_size for file in files)


def _options() -> Namespace | None:
    """Return the options of snakemake's command line; None if another program has started the workflow."""
    from snakemake.cli import parse_args

    with suppress(SystemExit, Exception), redirect_stderr(StringIO()), redirect_stdout(StringIO()):
        options: Namespace = parse_args(sys.argv[1:])[1]
        return options
    return None


def begin(plan: Plan) -> None:
    """Lock the results and the cache until this process ends, write the plan, and print why files are made.

    Another run, or a folder that is read-only, is a fault only if something is missing.
    """
    try:
        # first, because the plan of a run that is still working must not be replaced
        _locks.extend(lock(plan.results, plan.cache))
        plan.write()
    except (InputError, OSError):
        if plan.missing:
            raise
    if not plan.missing:
        return
    Path(plan.report.output).unlink(missing_ok=True)  # it is written last; now it is out of date
    for line in (*reasons(plan), *(f"{WARNING}{text}" for text in plan.warnings)):
        print(line, flush=True)


def end(started: Planned) -> None:
    """Print the results, if they are those of this study, unless `papa run` will print them."""
    if _call.get() is None and started.is_finished:
        show_results(Path(started.folder))


def show_results(results: Path) -> None:
    """Print a study's summary, if it exists, in another process, so this one does not import pandas.

    Raises:
        SystemExit: it could not be printed.
    """
    if (results / "tables/claims.json").exists():
        command = ["papa", "inspect", argument(results)]
        # -P, or a file in the current folder could shadow a module
        if subprocess.run([sys.executable, "-P", "-m", *command], check=False).returncode:
            raise SystemExit(
                f"Error: the results were not printed; `{shlex.join(command)}` prints them."
            )


def argument(path: str | Path) -> str:
    """Return a path as an argument of a command, which would take a hyphen at its beginning for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def lock(results: Path, cache: Path) -> list[int]:
    """Lock the results of a study, and share the cache with other runs, until the returned files are closed.

    They are kernel locks, so a killed run leaves nothing to unlock.

    Raises:
        InputError: another run holds the lock, or the folder is not writable.
    """
    other = f"another run is writing to {results}; wait for it, or give this config another name or folder."
    deletes = f"files in {cache} are being deleted; wait until that has ended, and run again."
    held = locked(results, fcntl.LOCK_EX, other)
    try:
        return [held, locked(cache, fcntl.LOCK_SH, deletes)]
    except InputError:
        os.close(held)
        raise


def locked(folder: Path, kind: int, taken: str) -> int:
    """Lock a folder until the returned file is closed; raise `InputError` with the text `taken` if another has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        share(folder / ".lock")
    except OSError as error:
        advice = "fix the cause, or run in another folder"
        raise InputError(f"{folder} is not writable ({error.strerror}); {advice}.") from None
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise InputError(taken) from None
    except OSError as error:  # a file system without locks
        print(
            f"{folder} cannot be locked ({error.strerror}); do not start two runs on it at once.",
            file=sys.stderr,
        )
    return file
