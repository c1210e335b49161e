"""The summary of all runs, and how people read it: series along the fraction, Markdown, a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from statistics import fmean
from typing import Any

from papa.errors import DamagedArtefact
from papa.files import MEND, PathLike, read_table

Row = dict[str, Any]

ALL = "all"
"""The subset of the score on all validation examples."""

LOG_SCALED = ("negative_log_perplexity",)
"""Metrics whose zero is no absence of skill: they have no relative drop."""

ABOUT_DROPS = (
    "Drop: (original - score) / |original|, not defined (-) for a log-scale score and where the original's interval"
    " holds 0 or is not known."
)
ABOUT_MEANS = "Its mean is over the tasks where it is defined."

SETTING_COLUMNS = {
    "model": "string",
    "task": "string",
    "title": "string",
    "constant": "string",
    "order": "string",
    "fraction": "string",
    "kept": "int64",
    "heads": "int64",
}
READING_COLUMNS = {"metric": "string", "main": "bool", "subset": "string"}
DATA_COLUMNS = {
    "examples": "int64",
    "rows_train": "int64",
    "rows_validation": "int64",
    "rows_available_train": "int64",
    "rows_available_validation": "int64",
    "cut_train": "int64",
    "cut_validation": "int64",
}
SUMMARY_COLUMNS = (
    SETTING_COLUMNS
    | READING_COLUMNS
    | {"mean": "float64", "seeds": "int64", "half_width": "float64", "low": "float64", "high": "float64"}
    | {"relative_drop": "float64", "same_heads_as": "string"}
    | DATA_COLUMNS
)


def read_rows(path: PathLike, columns: Mapping[str, str] = SUMMARY_COLUMNS) -> list[Row]:
    """The rows of a summary, or of the table with `columns`; `DamagedArtefact` where it is another table or empty."""
    table = read_table(path)
    missing = [name for name in columns if name not in table.column_names]
    if missing or not table.num_rows:
        found = f"has no column {missing[0]!r}" if missing else "has no rows"
        kind = "summary" if columns is SUMMARY_COLUMNS else "table of runs"
        raise DamagedArtefact(f"{path} {found}, so it is no {kind} of papa; {MEND}.")
    return table.to_pylist()


def is_main(row: Row) -> bool:
    """Whether `row` stands for its task: the task's own metric on all examples."""
    return row["main"] and row["subset"] == ALL


def mean_relative_drops(rows: Iterable[Row]) -> list[Row]:
    """Mean over tasks of the relative drop, for each model, constant, order and fraction in a summary's rows.

    Only tasks where the drop is defined count; `tasks` is their number, and settings without any are left out.
    """
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if is_main(row) and row["relative_drop"] is not None:
            setting = (row["model"], row["constant"], row["order"], row["fraction"])
            groups.setdefault(setting, []).append(row["relative_drop"])
    return [
        dict(zip(("model", "constant", "order", "fraction"), setting, strict=True))
        | {"mean_relative_drop": fmean(drops), "tasks": len(drops)}
        for setting, drops in groups.items()
    ]


def series(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Split summary rows into series along the fraction: one kind of constant in one order, named in words.

    Fraction 1 has no constant and fraction 0 no order, so each belongs to every series that it bounds. A task is in the
    series that it was run in.
    """
    ordered = {(row["constant"], row["task"]) for row in rows if row["order"]}
    found = []
    for constant, order in unique((row["constant"], row["order"]) for row in rows if row["constant"]):
        tasks = {row["task"] for row in rows if (row["constant"], row["order"]) == (constant, order)}
        tasks = {task for task in tasks if order or (constant, task) not in ordered}
        own = [row for row in rows if row["constant"] in (None, constant) and row["order"] in (None, order)]
        words = f"{constant} constants, {order} order" if order else f"{constant} constants"
        found.append((words, [row for row in own if row["task"] in tasks]))
    replaced = {row["task"] for row in rows if row["constant"]}
    found.append(("nothing replaced", [row for row in rows if row["task"] not in replaced]))
    return [(words, own) for words, own in found if own]


def fractions_of(rows: Iterable[Row]) -> list[str]:
    """The fractions in `rows`, from all heads input-dependent down."""
    return sorted(unique(row["fraction"] for row in rows), key=Fraction, reverse=True)


def metric_name(metric: str) -> str:
    """A metric as people write it: `matthews_correlation` is "Matthews correlation"."""
    words = metric.replace("_", " ").replace("f1", "F1")
    return words[:1].upper() + words[1:]


def unique(values: Iterable[Any]) -> list[Any]:
    """Each of `values` once, in order of first appearance."""
    return list(dict.fromkeys(values))


def as_markdown(rows: Sequence[Row]) -> str:
    """The summary as a page: a section per model and series, then what data was used."""
    text = ["# Scores by fraction of input-dependent heads", "", legend(rows)]
    for title, own in blocks(rows):
        text += ["", f"## {title}"]
        for name, grid, below in grids(own):
            text += ["", f"### {name}"] if name else []
            text += ["", *pipes([*grid, *below])]
    return "\n".join([*text, "", "## Data", "", *_data(rows), ""])


def grids(rows: Sequence[Row]) -> list[tuple[str, list[list[str]], list[list[str]]]]:
    """The tables of one of `blocks`, as text: its name ("" for the scores), header and lines, lines below a rule."""
    main = by_fraction(rows, ["task", "metric"], is_main, lambda row: [row["title"], metric_name(row["metric"])])
    apart = by_fraction(
        rows,
        ["task", "subset", "examples"],
        lambda row: row["subset"] != ALL,
        lambda row: [row["title"], row["subset"], f"{row['examples']:,}"],
    )
    further = by_fraction(
        rows, ["task", "metric"], lambda row: not row["main"], lambda row: [row["title"], metric_name(row["metric"])]
    )
    more: list[tuple[str, list[list[str]], list[list[str]]]] = [
        (name, grid, [])
        for name, grid in (("Subsets, scored apart", apart), ("Further readings", further))
        if len(grid) > 1
    ]
    return [("", main, _mean_line(rows, ["", ""])), *more]


def print_summary(summary: PathLike) -> None:
    """Print the summary at path `summary` as tables that fit a terminal of 80 columns: tasks by fractions."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    rows = read_rows(summary)
    console = Console(markup=False, highlight=False, emoji=False)
    for title, own in blocks(rows):
        header, *lines = by_fraction(own, [""], lambda row: row["main"], _indented)
        table = Table(
            box=SIMPLE_HEAD, show_edge=False, padding=0, title=title, title_justify="left", title_style="bold"
        )
        for name in [*header[:-1], header[-1].replace(" ", "\n", 1)]:
            table.add_column(name, justify="right" if name else "left", min_width=6 if name else 10)
        for line in lines:
            table.add_row(*line)
        table.add_section()
        for line in _mean_line(own, [""]):
            table.add_row(*line)
        console.print(table, "")
    console.print(legend(rows))


def _indented(row: Row) -> list[str]:
    return [row["title"] if row["subset"] == ALL else f"  {row['subset']}"]


def blocks(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """What is shown in one table, with its heading: the rows of one model and one series."""
    return [
        (f"{model} ({own[0]['heads']} heads): {words}", own)
        for model in unique(row["model"] for row in rows)
        for words, own in series([row for row in rows if row["model"] == model])
    ]


def by_fraction(
    rows: Sequence[Row], names: list[str], wanted: Callable[[Row], bool], label: Callable[[Row], list[str]]
) -> list[list[str]]:
    """Header and lines of a table with a column per fraction, of the rows `wanted`; `label` fills the columns `names`.

    A task has a line for each metric and subset, and for each `line` where rows have one.
    """
    fractions = fractions_of(rows)
    lines: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in filter(wanted, rows):
        lines.setdefault((row["task"], row["metric"], row["subset"], row.get("line")), {})[row["fraction"]] = row
    grid = [[*names, *fractions, f"drop at {fractions[-1]}"]]
    for line in lines.values():
        drop = line[fractions[-1]]["relative_drop"] if fractions[-1] in line else None
        grid.append([*label(next(iter(line.values()))), *(score(line.get(f)) for f in fractions), percent(drop)])
    return grid


def _mean_line(rows: Sequence[Row], names: list[str]) -> list[list[str]]:
    """The line of mean relative drops below a grid, or none where no drop is defined."""
    means = {mean["fraction"]: mean["mean_relative_drop"] for mean in mean_relative_drops(rows)}
    if not means:
        return []
    cells = [percent(means.get(fraction)) for fraction in fractions_of(rows)]
    return [["mean drop", *names[1:], *cells, cells[-1]]]


def score(row: Row | None) -> str:
    """A score and half of its interval as text: nothing where there is no run, - where its score is not defined."""
    if row is None:
        return ""
    if row["mean"] is None:
        return "-"
    half = "" if row["half_width"] is None else f" ±{row['half_width']:.3f}".replace("±0.", "±.")
    return f"{row['mean']:.3f}{half}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def legend(rows: Sequence[Row]) -> str:
    """What columns, cells and drops of tables with a column per fraction mean."""
    return f"Columns: fraction of heads kept input-dependent. {about_scores(rows)} {ABOUT_DROPS} {ABOUT_MEANS}"


def about_scores(rows: Sequence[Row]) -> str:
    """What cells with scores mean."""
    seeds = sorted({row["seeds"] for row in rows if is_main(row)})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    text = "Cells: validation score, "
    if seeds[-1] == 1:
        text += "one seed, so no interval."
    else:
        text += f"mean over {number} seeds ± half width of the 95 % Student-t interval"
        text += "; one seed has none." if seeds[0] == 1 else "."
    return text


def _data(rows: Sequence[Row]) -> list[str]:
    """Rows used of those available, cut examples, and fractions that are the same for a model."""

    def used(row: Row, split: str) -> str:
        rows, available = row[f"rows_{split}"], row[f"rows_available_{split}"]
        return f"all {rows:,}" if rows == available else f"{rows:,} of {available:,}"

    names = ["task", "model", "training rows", "validation rows", "training examples cut", "validation examples cut"]
    lines = [
        (row["title"], row["model"], used(row, "train"), used(row, "validation"), *cut)
        for row in rows
        if is_main(row)
        for cut in [(f"{row['cut_train']:,}", f"{row['cut_validation']:,}")]
    ]
    text = ["Rows used of those available; examples cut are those of which tokens did not fit into their slots.", ""]
    text += pipes([names, *unique(lines)])
    same = same_heads(rows)
    return text + (["", same] if same else [])


def same_heads(rows: Sequence[Row]) -> str:
    """A sentence on the fractions in `rows` at which a model keeps as many heads; empty where there are none."""
    there = fractions_of(rows)
    same = {
        f"{row['model']} keeps {row['kept']} of {row['heads']} at "
        + " and ".join(sorted(fractions, key=Fraction)): None
        for row in rows
        if row["same_heads_as"]
        for fractions in [[f for f in (row["fraction"], *row["same_heads_as"].split(", ")) if f in there]]
        if len(fractions) > 1
    }
    return "Fractions with the same number of heads: " + "; ".join(same) + "." if same else ""


def pipes(grid: Sequence[Sequence[str]]) -> list[str]:
    """A header and lines as a table of Markdown."""
    header, *lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in grid]
    return [header, "|" + " --- |" * len(grid[0]), *lines]
