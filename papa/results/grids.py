"""The table of a grid: what one grid of a config asked for, out of the summary, laid out as in the paper.

A grid of fractions 1 and 0 alone compares constants (the paper's Tables 1, 2, 4 and 5): a table for each model, a line
for each constant, a column for each task. Any other follows scores along the fraction (Figures 2, 5 and 6): a line for
each task and model, constant or order, a column for each fraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import pandas as pd

from papa.config.stages import GridOf
from papa.config.study import Job
from papa.config.variant import OF, RANDOM, TRAINED, Constant
from papa.errors import InputError, count
from papa.results.summary import (
    ABOUT_DROPS,
    SUMMARY_COLUMNS,
    about_scores,
    by_fraction,
    is_main,
    read_summary,
    same_heads,
)
from papa.results.table import Table, metric_name, score_text, write_frame, write_pages

GRID_COLUMNS = {"line": "string"} | SUMMARY_COLUMNS
"""The rows of a grid: its own of the summary, each with the line along the fraction that it is a point of."""

ORIGINAL = "original"
ENDS = {"0", "1"}


def gather(job: Job[GridOf]) -> str:
    """Stage *grid*: write what a grid shows of the `summary` as Parquet, Markdown and LaTeX, and draw it.

    Raises:
        DamagedArtefact: The file is no intact summary.
        InputError: The summary has nothing of the grid.
    """
    grid = job.settings
    rows = rows_of(grid, read_summary(job.input("summary")))
    if rows.empty:
        raise InputError(
            f"{job.input('summary')} has no run of {grid.title!r}; make it from the runs of the same config."
        )
    facts = {"table": "grid", "title": grid.title, "lines": " / ".join(varied(grid))}
    write_frame(rows, GRID_COLUMNS, job.output("table"), facts, job.trace())
    pages = job.output("markdown"), job.output("latex")
    write_pages(grid.title, tables_of(grid, rows), note_on(grid, rows), *pages)
    said = f"{grid.title}: {count(len(rows), 'row')}"
    if not grid.drawn:
        return said
    from papa.results.figures import draw_grid

    return f"{said}; drawn: {draw_grid(rows, grid, job.outputs)}"


def rows_of(grid: GridOf, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a summary or of a table of runs that `grid` asked for, in its order and with their `line`.

    With nothing replaced there is no constant and with everything replaced no order, so these rows belong to several
    lines and are in each. The average of a task's own texts may be asked for under both of its names.
    """
    asked = pd.DataFrame(
        [
            {"line": _line(grid, model, constant, order), "asked": None if fraction == "1" else constant}
            | {"task": task, "model": model, "fraction": fraction}
            | {"constant": None if fraction == "1" else Constant.parse(constant).on(corpus).name}
            | {"order": None if fraction in ENDS else order}
            for (task, corpus), model, constant, order in product(
                grid.tasks.items(), grid.models, grid.constants, grid.orders if _has_between(grid) else grid.orders[:1]
            )
            for fraction in sorted(grid.fractions, key=Fraction, reverse=True)
        ],
        dtype="str",
    )
    found = asked.merge(rows, on=["task", "model", "constant", "order", "fraction"])
    return found.assign(constant=found["asked"])[["line", *rows.columns]]


def _line(grid: GridOf, model: str, constant: str, order: str) -> str:
    names = {"model": model, "constants": constant_name(constant, grid.constants), "order": order_name(order)}
    return " / ".join(names[name] for name in varied(grid))


def tables_of(grid: GridOf, rows: pd.DataFrame) -> list[Table]:
    """The tables of a grid, from its rows of the summary."""
    rows = rows[is_main(rows)]
    if _has_between(grid):
        return [_along_fractions(grid, rows)]
    return [_by_task(grid, rows[rows["model"] == model], model) for model in grid.models]


def _by_task(grid: GridOf, own: pd.DataFrame, model: str) -> Table:
    """The table of one model: lines for nothing replaced and for each constant, columns for tasks, the best in bold."""
    own = own.drop_duplicates(["constant", "task"])
    constants = list(grid.constants) if "0" in grid.fractions else []
    printed = own["mean"].where(own["constant"].notna()).map("{:.3f}".format).astype("float64")
    best = (len(constants) > 1) & printed.eq(printed.groupby(own["task"]).transform("max"))
    cells = {
        (constant, task): f"**{score_text(*score)}**" if is_best else score_text(*score)
        for constant, task, *score, is_best in zip(
            own["constant"].fillna(ORIGINAL), own["task"], own["mean"], own["half_width"], best, strict=True
        )
    }
    lines = [ORIGINAL] * ("1" in grid.fractions) + constants
    titles = dict(zip(own["task"], own["title"], strict=True))
    frame = pd.DataFrame(
        [[constant_name(line, constants), *(cells.get((line, task), "") for task in grid.tasks)] for line in lines],
        columns=["constants", *(titles.get(task, task) for task in grid.tasks)],
    )
    heads = f" ({count(own['heads'].iloc[0], 'head')})" if len(own) else ""
    return Table(model + heads, frame, 1, rules=(1,) if lines[0] == ORIGINAL else ())


def _along_fractions(grid: GridOf, rows: pd.DataFrame) -> Table:
    """One table: lines for tasks and what else the grid varies, columns for fractions."""
    names = {"task": "title", "metric": "metric", " / ".join(varied(grid)): "line"}
    frame = by_fraction(rows, is_main(rows), names)
    changed = frame[["task", "metric"]].ne(frame[["task", "metric"]].shift()).any(axis=1)
    return Table("", frame, 3, rules=tuple(changed.to_numpy().nonzero()[0].tolist()))


def constant_name(constant: str, beside: Sequence[str] = ()) -> str:
    """A constant as people write it; beside averages of other corpora, the average is that of own texts."""
    if constant.startswith(OF):
        return f"average, texts of {constant.removeprefix(OF)}"
    if constant == "average" and any(other.startswith(OF) for other in beside):
        return "average, own texts"
    return constant.replace(TRAINED, ", trained").replace("toeplitz", "Toeplitz")


def order_name(order: str) -> str:
    """An order of heads as people write it: `lambda-reversed` is "λ reversed"."""
    return order.replace("lambda", "λ").replace("-", " ")


def _has_between(grid: GridOf) -> bool:
    return bool(set(grid.fractions) - ENDS)


def varied(grid: GridOf) -> list[str]:
    """What tells the lines of a grid apart; models if nothing else does."""
    several = {"model": grid.models, "constants": grid.constants}
    several |= {"order": grid.orders} if _has_between(grid) else {}
    return [name for name, values in several.items() if len(values) > 1] or ["model"]


def note_on(grid: GridOf, rows: pd.DataFrame) -> str:
    """What lines, columns and cells mean, and what a grid has but once, which is in no line."""
    if _has_between(grid):
        once = {
            "model": grid.models[0],
            "constants": constant_name(grid.constants[0]),
            "order": order_name(grid.orders[0]),
        }
        said = "; ".join(f"{name}: {value}" for name, value in once.items() if name not in varied(grid))
        text = f"Columns: fraction of heads kept input-dependent. {said[:1].upper()}{said[1:]}{'. ' if said else ''}"
        text += about_scores(rows)
        if RANDOM in grid.orders:
            text += " Random orders: the score of a seed is its mean over the draws."
        text += f" {ABOUT_DROPS}"
    else:
        metrics = rows.loc[is_main(rows), ["title", "metric"]].drop_duplicates().itertuples(index=False)
        text = f"In all lines but {ORIGINAL} every head is replaced; the best of several is bold. {about_scores(rows)}"
        text += " Metrics: " + "; ".join(f"{title}, {metric_name(metric)}" for title, metric in metrics) + "."
    return f"{text} {same_heads(rows)}".strip()
