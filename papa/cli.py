"""The command `papa`: what people ask before a workflow is run, and of what it left.

Commands read, say and end: 0 where all is well, 1 where something is not, 2 where the command or what it was given is
wrong, which is said on stderr in one sentence.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from papa import __version__
from papa.errors import InputError

if TYPE_CHECKING:
    from papa.config.grids import Config
    from papa.jobs.planning import Measured, Plan

SCHEMA = Path(__file__).parents[1] / "workflow/schemas/config.schema.yaml"
WRONG_INPUT = 2
NOTHING_KNOWN = DAMAGED = DIFFERENT = 1

app = typer.Typer(
    help="How much does a pretrained encoder use input-dependent attention?",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the same as JSON, and nothing else.")]


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"papa {__version__}")
        raise typer.Exit


@app.callback()
def papa(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """How much does a pretrained encoder use input-dependent attention?"""


@contextmanager
def _wrong_input(prefix: str = "") -> Iterator[None]:
    """End with one sentence where something given is wrong."""
    try:
        yield
    except InputError as error:
        typer.echo(f"{prefix}{error}", err=True)
        raise typer.Exit(WRONG_INPUT) from None


def _print_json(content: dict[str, Any]) -> None:
    typer.echo(json.dumps(content, indent=1, ensure_ascii=False))


@app.command(
    epilog="Examples:\n\n- `papa init`\n"
    "- `papa init mine.yaml --model models/mine --train train.csv --label mood`\n\n"
    "Exit codes: 0 written, 2 nothing was written: the file is there already, or what was given is wrong."
)
def init(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path("papa.yaml"),
    name: Annotated[str, typer.Option(help="Name of the config; results go to results/NAME/.")] = "mine",
    model: Annotated[
        str | None, typer.Option(metavar="HUB_ID_OR_FOLDER", help="An encoder on the hub, or its folder here.")
    ] = None,
    train: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Training texts: Parquet, JSONL, CSV, TSV, CoNLL, text.")
    ] = None,
    validation: Annotated[Path | None, typer.Option(metavar="FILE", help="Validation texts, in the same form.")] = None,
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help="Texts, or lists of words; or guessed.")] = None,
    second: Annotated[str | None, typer.Option(metavar="COLUMN", help="Second texts of pairs; or guessed.")] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Labels; or guessed.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a commented config for one model and one local data set. Asks nothing, and never overwrites.

    With --train the file is read: columns are checked or guessed, and slots, metric and training chosen to fit, each
    with its reason beside it. Without, the config names example paths to replace.
    """
    from papa.jobs.starting import start
    from papa.jobs.terminal.starting import print_started

    with _wrong_input():
        found = start(config, _schema(), name, model, train, validation, text, second, label)
    _print_json(found) if as_json else print_started(found)


@app.command(
    epilog="Examples:\n\n- `papa plan config/config.yaml`\n"
    "- `papa plan config/minilm.yaml --hub-mirror /data/hub --cores 8`\n\n"
    "Exit codes: 0 something was estimated, 1 nothing could be, 2 the config or the command is wrong."
)
def plan(
    config: Annotated[Path, typer.Argument(help="A config of the workflow, as for snakemake --configfile.")],
    hub_mirror: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Take data and models from here: the key hub_mirror.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where encoders run: the key device.")] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores the workflow is to have; all by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a config will take before it is run: jobs, passes of the encoder, time and disk, for each model.

    The stages run for some seconds on a sample of the texts. What is not on this machine is fetched, as the workflow
    would; where it cannot be, its jobs are counted all the same.
    """
    from rich.console import Console

    with _wrong_input("Config error: "):
        checked = _checked(config, {"hub_mirror": hub_mirror and str(hub_mirror), "device": device})
    terminal = Console(file=sys.stderr)
    with terminal.status("Loading libraries") as status:
        from papa.config.graph import Graph
        from papa.config.jobs import jobs_of
        from papa.jobs.measuring import measure
        from papa.jobs.planning import notes_on, plan_of
        from papa.jobs.terminal.plan import print_plan

        jobs = jobs_of(Graph(checked))
        measured = measure(checked, jobs, status.update)
    found = plan_of(jobs, checked, measured)
    results = Path("results", checked["name"])
    existing = next(folder for folder in (results, *results.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    shown = _content(found, checked, measured, cores or _all_cores())
    shown |= {"free_disk_bytes": free, "notes": notes_on(found, checked, free)}
    _print_json(shown) if as_json else print_plan(shown)
    if not measured.layouts:
        raise typer.Exit(NOTHING_KNOWN)


@app.command(
    epilog="Examples:\n\n- `papa inspect results/demo/tables/summary.parquet`\n"
    "- `papa inspect results/demo/models/minilm/corpora/roles/average.h5 --layer 4`\n\n"
    "Exit codes: 0 whole (or of a form that has no seal), 1 damaged, 2 no file of papa, none at all, or a wrong "
    "command."
)
def inspect(
    file: Annotated[Path, typer.Argument(help="Any file below results/.")],
    layer: Annotated[int | None, typer.Option(min=0, help="Of averages: show heads of this layer.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Of averages: show this head; alone: of all layers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a file is, of what, where it came from, whether it is whole, and show the beginning of it.

    Averages are drawn: the head that looks at single slots most, or those that --layer and --head choose. Hidden
    states are held against their checksums, which reads all of them.
    """
    from rich.console import Console

    with _wrong_input(), Console(file=sys.stderr).status(f"Reading {file}"):
        from papa.jobs.inspecting import inspect as inspected

        found = inspected(file, layer, head)
    if as_json:
        _print_json(found)
    else:
        from papa.jobs.terminal.artefacts import print_artefact

        print_artefact(found)
    if found["whole"] is False:
        raise typer.Exit(DAMAGED)


@app.command(
    epilog="Examples:\n\n- `papa compare results/demo results/demo2`\n"
    "- `papa compare old/summary.parquet results/demo/tables/summary.parquet --json`\n\n"
    "Exit codes: 0 the same, or differences within intervals, 1 a difference beyond them, 2 something that cannot be "
    "compared, or a wrong command."
)
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A results folder, or its summary.parquet or runs.parquet.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another.")],
    as_json: AsJson = False,
) -> None:
    """Say what differs between two results beyond what seeds make differ, and which settings differ.

    Scores of the same model, task and setting are held against each other by Welch's t-test over seeds, at 5 % for all
    of them together (Holm's correction).
    """
    from papa.results.compare import compare as compared

    with _wrong_input():
        found = compared(a, b)
    if as_json:
        _print_json(found)
    else:
        from papa.jobs.terminal.differences import print_differences

        print_differences(found)
    if found["beyond"]:
        raise typer.Exit(DIFFERENT)


def _checked(path: Path, places: dict[str, Any]) -> Config:
    """The config in a file, checked as the workflow does; `places` that are given take the place of its own."""
    import yaml

    from papa.config.settings import check_files, checked

    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except Exception as error:  # what PyYAML makes dates and numbers of lets errors of any kind through
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} cannot be read as YAML ({why}).") from error
    if isinstance(given, dict):
        given |= {key: value for key, value in places.items() if value is not None}
    config = checked(given, _schema())
    check_files(config)
    return config


def _schema() -> Path:
    """The schema of configs, which is part of the workflow beside the package."""
    if not SCHEMA.is_file():
        raise InputError(
            f"The workflow is not beside the package ({SCHEMA} is missing); install papa from its repository by "
            "`pip install -e .`."
        )
    return SCHEMA


def _all_cores() -> int:
    return getattr(os, "process_cpu_count", os.cpu_count)() or 1


def _content(plan: Plan, config: Config, measured: Measured, cores: int) -> dict[str, Any]:
    """All that is printed, as plain numbers: seconds, bytes, tokens."""
    return {
        "config": config["name"],
        "jobs": plan.jobs,
        "rows": [
            {"model": row.model or None, "rule": row.rule, "jobs": row.jobs, "estimated_jobs": row.known}
            | _of_cost(asdict(row.cost))
            for row in plan.rows
        ],
        "total": {"jobs": sum(plan.jobs.values()), "estimated_jobs": sum(row.known for row in plan.rows)}
        | _of_cost(asdict(plan.total)),
        "device": measured.device,
        "cores": cores,
        "elapsed_seconds": round(plan.elapsed(cores), 1),
        "problems": dict(measured.problems),
    }


def _of_cost(cost: dict[str, float]) -> dict[str, float]:
    return {
        "encoder_passes": round(cost["passes"], 2),
        "encoder_tokens": round(cost["tokens"]),
        "disk_bytes": round(cost["disk"]),
        "processor_seconds": round(cost["processor"], 1),
    }


def main() -> None:
    for stream in (sys.stdout, sys.stderr):  # where λ cannot be written, a question mark is
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="papa")


if __name__ == "__main__":
    main()
