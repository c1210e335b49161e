"""The table of an analysis: what one grid of a config asked for, out of the summary, laid out as in the paper.

A grid of fractions 1 and 0 alone compares constants (the paper's Tables 1, 2, 4 and 5): a table for each model, a line
for each constant, a column for each task. Any other follows scores along the fraction (Figures 2, 5 and 6): a line for
each task and model, constant or order, a column for each fraction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import groupby, product
from typing import Any

from papa.config.kinds import OF, RANDOM, TRAINED, on_corpus
from papa.errors import InputError
from papa.files import PathLike, replacing, write_table
from papa.results.latex import Part, latex_table
from papa.results.summary import (
    ABOUT_DROPS,
    SUMMARY_COLUMNS,
    Row,
    about_scores,
    by_fraction,
    is_main,
    metric_name,
    pipes,
    read_rows,
    same_heads,
    score,
)

Grid = Mapping[str, Any]
"""`models`, `constants`, `orders`, `fractions` (all lists) and `tasks` (names, each with its corpus)."""

GRID_COLUMNS = {"line": "string"} | SUMMARY_COLUMNS
"""The rows of a grid: its own of the summary, each with the line along the fraction that it is a point of."""

ORIGINAL = "original"


def gather(summary: PathLike, table: PathLike, markdown: PathLike, latex: PathLike, title: str, grid: Grid) -> str:
    """Write what `grid` shows of `summary` as Parquet with `GRID_COLUMNS`, as Markdown and as LaTeX called `title`.

    With nothing replaced there is no constant and with everything replaced no order, so these rows belong to several
    lines; the Parquet has them in each. Raises `InputError` where the summary has nothing of the grid.
    """
    import pyarrow as pa

    rows = rows_of(grid, read_rows(summary))
    if not rows:
        raise InputError(f"{summary} has no run of {title!r}; make it from the runs of the same config.")
    schema = pa.schema(list(GRID_COLUMNS.items()))
    about = {"table": "grid", "title": title, "lines": " / ".join(_varied(grid))}
    write_table(pa.Table.from_pylist(rows, schema=schema), table, about)
    write_pages(title, tables_of(grid, rows), note_on(grid, rows), markdown, latex)
    return f"{title}: {len(rows)} rows as Parquet, Markdown and LaTeX"


def write_pages(
    title: str, tables: Sequence[tuple[str, Sequence[Part], int]], note: str, markdown: PathLike, latex: PathLike
) -> None:
    """Write `tables` (heading or "", header and parts of lines, number of columns with names) as Markdown and LaTeX."""
    text, floats = [f"# {title}", "", note], []
    for heading, parts, names in tables:
        text += ["", f"## {heading}"] if heading else []
        text += ["", *pipes([line for part in parts for line in part])]
        floats.append(latex_table(parts, names, f"{title}, {heading}. {note}" if heading else f"{title}. {note}"))
    for path, content in (
        (markdown, "\n".join([*text, ""])),
        (latex, "% \\usepackage{booktabs}\n" + "\n".join(floats)),
    ):
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")


def rows_of(grid: Grid, summary: Sequence[Row]) -> list[Row]:
    """The rows of `summary` that `grid` asked for, in its order; the average of a task's own texts under both names."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in summary:
        found.setdefault(tuple(row[name] for name in ("model", "task", "constant", "order", "fraction")), []).append(
            row
        )
    orders = grid["orders"] if _has_between(grid) else grid["orders"][:1]
    fractions = sorted(grid["fractions"], key=Fraction, reverse=True)
    rows = []
    for (task, corpus), model, constant, order in product(
        grid["tasks"].items(), grid["models"], grid["constants"], orders
    ):
        names = {"model": model, "constants": constant_name(constant, grid["constants"]), "order": order_name(order)}
        line = " / ".join(names[name] for name in _varied(grid))
        for fraction in fractions:
            kind = None if fraction == "1" else on_corpus(constant, corpus)
            ordered = None if fraction in ("1", "0") else order
            asked = {"line": line, "constant": kind and constant}
            rows += [row | asked for row in found.get((model, task, kind, ordered, fraction), [])]
    return rows


def tables_of(grid: Grid, rows: Sequence[Row]) -> list[tuple[str, list[Part], int]]:
    """The tables of a grid, as text: heading or "", header and parts of lines, number of columns with names."""
    return (along_fractions if _has_between(grid) else by_task)(grid, rows)


def by_task(grid: Grid, rows: Sequence[Row]) -> list[tuple[str, list[Part], int]]:
    """A table for each model: lines for nothing replaced and for each constant, columns for tasks, the best in bold."""
    tables = []
    for model in grid["models"]:
        own = {(row["constant"], row["task"]): row for row in rows if row["model"] == model and is_main(row)}
        heads = next((f" ({row['heads']} heads)" for row in own.values()), "")
        tables.append((model + heads, _of_model(grid, own), 1))
    return tables


def _of_model(grid: Grid, rows: Mapping[tuple[str | None, str], Row]) -> list[Part]:
    """Header and lines of one model, whose rows are given by constant and task."""
    titles = {task: row["title"] for (_, task), row in rows.items()}
    constants = grid["constants"] if "0" in grid["fractions"] else []
    cells = {place: score(row) for place, row in rows.items()}
    for task in grid["tasks"] if len(constants) > 1 else []:
        printed = {
            place: f"{row['mean']:.3f}"
            for place, row in rows.items()
            if place[0] is not None and place[1] == task and row["mean"] is not None
        }
        best = max(printed.values(), key=float, default=None)
        cells |= {place: f"**{cells[place]}**" for place, mean in printed.items() if mean == best}

    def line(constant: str | None) -> list[str]:
        return [constant_name(constant, constants), *(cells.get((constant, task), "") for task in grid["tasks"])]

    header = ["constants", *(titles.get(task, task) for task in grid["tasks"])]
    parts = [[header], [line(None)] if "1" in grid["fractions"] else [], [line(constant) for constant in constants]]
    return [part for part in parts if part]


def along_fractions(grid: Grid, rows: Sequence[Row]) -> list[tuple[str, list[Part], int]]:
    """One table: lines for tasks and what else the grid varies, columns for fractions."""
    header, *lines = by_fraction(
        rows,
        ["task", "metric", " / ".join(_varied(grid))],
        is_main,
        lambda row: [row["title"], metric_name(row["metric"]), row["line"]],
    )
    return [("", [[header], *(list(own) for _, own in groupby(lines, key=lambda line: line[:2]))], 3)]


def constant_name(constant: str | None, beside: Sequence[str] = ()) -> str:
    """A kind of constant as people write it; beside averages of other corpora, the average is that of own texts."""
    if constant is None:
        return ORIGINAL
    if constant.startswith(OF):
        return f"average, texts of {constant.removeprefix(OF)}"
    if constant == "average" and any(other.startswith(OF) for other in beside):
        return "average, own texts"
    return constant.replace(TRAINED, ", trained").replace("toeplitz", "Toeplitz")


def order_name(order: str) -> str:
    """An order of heads as people write it: `lambda-reversed` is "λ reversed"."""
    return order.replace("lambda", "λ").replace("-", " ")


def _has_between(grid: Grid) -> bool:
    return bool(set(grid["fractions"]) - {"0", "1"})


def _varied(grid: Grid) -> list[str]:
    """What tells the lines of a grid apart; models where nothing else does."""
    several = {"model": grid["models"], "constants": grid["constants"]}
    several |= {"order": grid["orders"]} if _has_between(grid) else {}
    return [name for name, values in several.items() if len(values) > 1] or ["model"]


def note_on(grid: Grid, rows: Sequence[Row]) -> str:
    """What lines, columns and cells mean, and what a grid has but once, which is in no line."""
    metrics = dict.fromkeys((row["title"], metric_name(row["metric"])) for row in rows if is_main(row))
    if _has_between(grid):
        once = {
            "model": grid["models"],
            "constants": [constant_name(constant) for constant in grid["constants"]],
            "order": [order_name(order) for order in grid["orders"]],
        }
        said = "; ".join(f"{name}: {values[0]}" for name, values in once.items() if name not in _varied(grid))
        text = f"Columns: fraction of heads kept input-dependent. {said[:1].upper()}{said[1:]}{'. ' if said else ''}"
        text += about_scores(rows)
        if RANDOM in grid["orders"]:
            text += " Random orders: the score of a seed is its mean over the draws."
        text += f" {ABOUT_DROPS}"
    else:
        text = f"In all lines but {ORIGINAL} every head is replaced; the best of several is bold. " + about_scores(rows)
        text += " Metrics: " + "; ".join(f"{title}, {metric}" for title, metric in metrics) + "."
    same = same_heads(rows)
    return f"{text} {same}" if same else text
