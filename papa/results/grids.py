"""The table of a grid: the runs that one grid of a config asked for, laid out as in the paper.

A grid with only the fractions 1 and 0 compares constants (the paper's Tables 1, 2, 4 and 5). It has two tables for each
model, of scores and of losses, with a line for each constant and a column for each task. Any other grid follows scores
along the fraction (Figures 2, 5 and 6): a line for each task and model, constant or order, a column for each fraction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import product

import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf, GridView
from papa.config.variant import DRAWN, Constant
from papa.errors import InputError, count
from papa.results.analysis import Analysis, Computed, Drawing
from papa.results.outcomes import ALL
from papa.results.phrases import ABOUT_LOSS, constant_name, loss_text, order_name
from papa.results.summary import (
    ABOUT_DROPS,
    BY_FRACTION,
    SUMMARY_COLUMNS,
    about_scores,
    by_fraction,
    excluded,
    is_main,
    read_summary,
    same_heads,
)
from papa.results.table import Table, metric_name, score_text

GRID_COLUMNS = {"line": "string"} | SUMMARY_COLUMNS
"""Rows of the summary, each with the line of the grid that it is a point of."""

ORIGINAL = "original"
FLOORS = ["trivial", "contextless"]
ENDS = {"0", "1"}


class GridAnalysis(GridView, Analysis):
    """Show what one grid of a config asked for; its parameters are those of `GridView`."""

    columns = GRID_COLUMNS

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Select the rows of the grid from the `summary`; raises `InputError` if it has none."""
        rows = rows_of(self, read_summary(job.input("summary")))
        if rows.empty:
            raise InputError(
                f"{job.input('summary')} has no run of {self.title!r}; make it from the runs of the same config."
            )
        return Computed(rows, {"table": "grid", "title": self.title, "lines": " / ".join(varied(self))})

    def heading(self) -> str:
        """Return the title that the config gives."""
        return self.title

    def note(self, rows: pd.DataFrame) -> str:
        """Return what lines, columns and cells mean."""
        return note_on(self, rows)

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Return tables by constant, or one along the fraction."""
        return tables_of(self, rows)

    def report_tables(self, rows: pd.DataFrame) -> list[Table]:
        """Return the same tables, and the scores of subsets."""
        parts = rows["subset"].ne(ALL) & rows["main"]
        names = {"task": "title", " / ".join(varied(self)): "line", "subset": "subset", "examples": "examples"}
        subsets = [Table("Subsets", by_fraction(rows, parts, names), len(names))] if parts.any() else []
        return [*self.tables(rows), *subsets]

    def drawing(self, rows: pd.DataFrame, job: Job[AnalysisOf]) -> Drawing | None:
        """Draw scores along the number of heads replaced."""
        if not self.drawn:
            return None
        from papa.results.figures import figure_note, grid_figure

        figure, shown = grid_figure(rows, self)
        caption = " ".join(filter(None, [figure_note(rows), once(self)]))
        return Drawing(figure, f"{self.title}: {shown}", caption)

    def caption(self, rows: pd.DataFrame) -> str:
        """Return nothing: the note says it all."""
        return ""

    def sentence(self, rows: pd.DataFrame) -> str:
        """Return how many rows there are."""
        return f"{self.title}: {count(len(rows), 'row')}"


def rows_of(grid: GridView, rows: pd.DataFrame) -> pd.DataFrame:
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
    rows_shown = asked.merge(rows, on=["task", "model", "constant", "order", "fraction"])
    return rows_shown.assign(constant=rows_shown["asked"])[["line", *rows.columns]]


def _line(grid: GridView, model: str, constant: str, order: str) -> str:
    names = {"model": model, "constants": constant_name(constant, grid.constants), "order": order_name(order)}
    return " / ".join(names[name] for name in varied(grid))


def tables_of(grid: GridView, rows: pd.DataFrame) -> list[Table]:
    """The tables of a grid, from its rows of the summary."""
    rows = rows[is_main(rows)]
    if _has_between(grid):
        return [_along_fractions(grid, rows)]
    return [table for model in grid.models for table in _by_task(grid, rows[rows["model"] == model], model)]


def _by_task(grid: GridView, rows: pd.DataFrame, model: str) -> list[Table]:
    """The tables of one model, with a column for each task: scores, the best of constants in bold, and losses.

    Scores have a line for nothing replaced, one for each floor that is known, and one for each constant.
    """
    rows = rows.drop_duplicates(["constant", "task"])
    constants = list(grid.constants) if "0" in grid.fractions else []
    printed = rows["mean"].where(rows["constant"].notna()).map("{:.3f}".format).astype("float64")
    best = (len(constants) > 1) & printed.eq(printed.groupby(rows["task"]).transform("max"))
    cells = {
        (constant, task): f"**{score_text(*score)}**" if is_best else score_text(*score)
        for constant, task, *score, is_best in zip(
            rows["constant"].fillna(ORIGINAL), rows["task"], rows["mean"], rows["half_width"], best, strict=True
        )
    }
    floors = [name for name in FLOORS if rows[name].notna().any()]
    cells |= {
        (name, task): score_text(score, math.nan)
        for name in floors
        for task, score in rows.groupby("task")[name].first().items()
    }
    losses = zip(rows["constant"], rows["task"], rows["loss"], rows["loss_low"], rows["loss_high"], strict=True)
    lost = {(constant, task): loss_text(*loss) for constant, task, *loss in losses}
    titles = dict(zip(rows["task"], rows["title"], strict=True))

    def frame_of(lines: list[str], cells: Mapping[tuple[str, str], str]) -> pd.DataFrame:
        return pd.DataFrame(
            [[constant_name(line, constants), *(cells.get((line, task), "") for task in grid.tasks)] for line in lines],
            columns=["constants", *(titles.get(task, task) for task in grid.tasks)],
        )

    title = f"{model} ({count(rows['heads'].iloc[0], 'head')})" if len(rows) else model
    above = [ORIGINAL] * ("1" in grid.fractions) + floors
    tables = [Table(title, frame_of([*above, *constants], cells), 1, rules=(len(above),) if above else ())]
    if constants and rows["status"].notna().any():
        note = f"{ABOUT_LOSS} {excluded(rows)}".strip()
        tables.append(Table(f"{title}. Loss", frame_of(constants, lost), 1, note))
    return tables


def _along_fractions(grid: GridView, rows: pd.DataFrame) -> Table:
    """One table: lines for tasks and what else the grid varies, columns for fractions."""
    names = {"task": "title", "metric": "metric", " / ".join(varied(grid)): "line"}
    frame = by_fraction(rows, is_main(rows), names)
    changed = frame[["task", "metric"]].ne(frame[["task", "metric"]].shift()).any(axis=1)
    return Table("", frame, 3, rules=tuple(changed.to_numpy().nonzero()[0].tolist()))


def _has_between(grid: GridView) -> bool:
    return bool(set(grid.fractions) - ENDS)


def varied(grid: GridView) -> list[str]:
    """The settings in which the lines of a grid differ; models if there is one line."""
    several = {"model": grid.models, "constants": grid.constants}
    several |= {"order": grid.orders} if _has_between(grid) else {}
    return [name for name, values in several.items() if len(values) > 1] or ["model"]


def note_on(grid: GridView, rows: pd.DataFrame) -> str:
    """The note below the table: the meaning of lines, columns and cells, and what all lines have in common."""
    if _has_between(grid):
        parts = [f"Columns: {BY_FRACTION}.", once(grid), about_scores(rows)]
        if set(DRAWN) & set(grid.orders):
            parts.append(
                "If an order is drawn or learned several times, the score of a seed is its mean over the orders."
            )
        parts += [ABOUT_DROPS, ABOUT_LOSS, excluded(rows), same_heads(rows)]
    else:
        metrics = rows.loc[is_main(rows), ["title", "metric"]].drop_duplicates().itertuples(index=False)
        parts = [f"In the lines of constants every head is replaced; the best of several is bold. {about_scores(rows)}"]
        parts += ["Trivial: the best guess that ignores the input. Contextless: zeros in place of all attention."]
        parts += ["Metrics: " + "; ".join(f"{title}, {metric_name(metric)}" for title, metric in metrics) + "."]
        parts += [same_heads(rows)]
    return " ".join(filter(None, parts))


def once(grid: GridView) -> str:
    """The settings that all lines of a grid have in common: "Model: minilm; order: λ."."""
    has = {"model": grid.models, "constants": [constant_name(constant) for constant in grid.constants]}
    has |= {"order": [order_name(order) for order in grid.orders]} if _has_between(grid) else {}
    text = "; ".join(f"{name}: {values[0]}" for name, values in has.items() if len(values) == 1)
    return f"{text[:1].upper()}{text[1:]}." if text else ""
