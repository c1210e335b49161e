"""The command `papa`: what people ask of a config without running it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from papa.errors import InputError

if TYPE_CHECKING:
    from papa.config import Config
    from papa.planning import Measured, Plan

SCHEMA = Path(__file__).parents[1] / "workflow/schemas/config.schema.yaml"
WRONG_INPUT = 2
NOTHING_KNOWN = 1

app = typer.Typer(
    help="How much does a pretrained encoder use input-dependent attention?",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.callback()
def papa() -> None:
    """How much does a pretrained encoder use input-dependent attention?"""


@app.command(
    epilog="Example: `papa plan config/minilm.yaml --hub-mirror /data/hub --cores 8`\n\n"
    "Exit codes: 0 something was estimated, 1 nothing could be, 2 the config or the command is wrong."
)
def plan(
    config: Annotated[Path, typer.Argument(help="A config of the workflow, as for snakemake --configfile.")],
    hub_mirror: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Take data and models from here: the key hub_mirror.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where encoders run: the key device.")] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores the workflow is to have; all by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same numbers as JSON.")] = False,
) -> None:
    """Say what a config will take before it is run: jobs, passes of the encoder, time and disk, for each model.

    The stages run for some seconds on a sample of the texts. What is not on this machine is fetched, as the workflow
    would; where it cannot be, its jobs are counted all the same.
    """
    from rich.console import Console

    try:
        checked = _checked(config, {"hub_mirror": hub_mirror and str(hub_mirror), "device": device})
    except InputError as error:
        typer.echo(f"Config error: {error}", err=True)
        raise typer.Exit(WRONG_INPUT) from None
    terminal = Console(file=sys.stderr)
    with terminal.status("Loading libraries") as status:
        from papa.graph import Graph
        from papa.jobs import jobs_of
        from papa.measuring import measure
        from papa.planning import notes_on, plan_of

        jobs = jobs_of(Graph(checked))
        measured = measure(checked, jobs, status.update)
    found = plan_of(jobs, checked, measured)
    results = Path("results", checked["name"])
    existing = next(folder for folder in (results, *results.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    shown = _content(found, checked, measured, cores or _all_cores())
    shown |= {"free_disk_bytes": free, "notes": notes_on(found, checked, free)}
    if as_json:
        typer.echo(json.dumps(shown, indent=1, ensure_ascii=False))
    else:
        _print(shown)
    if not measured.layouts:
        raise typer.Exit(NOTHING_KNOWN)


def _checked(path: Path, places: dict[str, Any]) -> Config:
    """The config in a file, checked as the workflow does; `places` that are given take the place of its own."""
    import yaml

    from papa.config import check_files, checked

    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except Exception as error:  # what PyYAML makes dates and numbers of lets errors of any kind through
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} cannot be read as YAML ({why}).") from error
    if isinstance(given, dict):
        given |= {key: value for key, value in places.items() if value is not None}
    config = checked(given, SCHEMA)
    check_files(config)
    return config


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


def _print(content: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False, emoji=False)
    for model in dict.fromkeys(row["model"] for row in content["rows"]):
        own = [row for row in content["rows"] if row["model"] == model]
        if model and f"model {model}" in content["problems"]:
            console.print(f"Model {model}", style="bold")
            console.print(", ".join(f"{row['rule']} {row['jobs']:,}" for row in own) + " jobs\n")
            continue
        title = f"Model {model}" if model else "Data and tables"
        table = Table(
            box=SIMPLE_HEAD, show_edge=False, padding=(0, 1), title=title, title_justify="left", title_style="bold"
        )
        for name in ("", "jobs", "encoder\npasses", "encoder\ntokens", "disk", "processor\ntime"):
            table.add_column(name, justify="right" if name else "left")
        for row in own:
            jobs, known = f"{row['jobs']:,}", row["estimated_jobs"]
            shown = {"passes": _short, "tokens": _count, "bytes": size, "seconds": duration}
            numbers = [
                shown[key.split("_")[1]](row[key]) if row[key] else ""
                for key in ("encoder_passes", "encoder_tokens", "disk_bytes", "processor_seconds")
            ]
            jobs += f" ({known:,} known)" if 0 < known < row["jobs"] else ""
            table.add_row(row["rule"], jobs, *(numbers if known else ["?"] * 4))
        console.print(table, "")
    total = content["total"]
    known = "" if total["estimated_jobs"] == total["jobs"] else f", {total['estimated_jobs']:,} of them estimated"
    console.print(
        f"{total['jobs']:,} jobs{known}: about {duration(content['elapsed_seconds'])} on {content['cores']} cores "
        f"({duration(total['processor_seconds'])} of processor time; encoders on {content['device']}) and "
        f"{size(total['disk_bytes'])} of disk ({size(content['free_disk_bytes'])} are free).",
        style="bold",
    )
    for note in content["notes"]:
        console.print(note)
    for what, problem in content["problems"].items():
        console.print(f"Not estimated: {what}. {problem}", style="yellow")


def duration(seconds: float) -> str:
    """Seconds as people say it: "40 s", "5 min", "1.2 hours", "3.4 days"."""
    if 0 < seconds < 1:
        return "< 1 s"
    for limit, unit, name, digits in ((120, 1, "s", 0), (7200, 60, "min", 0), (172800, 3600, "hours", 1)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds / 86400:.1f} days"


def size(amount: float) -> str:
    """Bytes as people say it: "41 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{_short(amount)} {unit}"
        amount /= 1000
    return f"{_short(amount)} TB"


def _count(number: float) -> str:
    for unit in ("", " k", " M"):
        if number < 1000:
            return f"{_short(number)}{unit}"
        number /= 1000
    return f"{_short(number)} G"


def _short(number: float) -> str:
    return f"{number:.1f}" if 0 < number < 9.95 and number != int(number) else f"{number:,.0f}"


def main() -> None:
    app(prog_name="papa")


if __name__ == "__main__":
    main()
