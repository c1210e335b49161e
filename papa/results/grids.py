"""The table of a grid: the runs that one grid of a config asked for, laid out as in the paper.

A grid with only the fractions 1 and 0 compares constants (the paper's Tables 1, 2, 4 and 5). It has two tables for each
model, of scores and of losses, with a line for each constant and a column for each task. Any other grid follows scores
along the fraction (Figures 2, 5 and 6): a line for each task and model, constant or order, a column for each fraction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf, GridView
from papa.config.variant import NUMBERED, Constant
from papa.errors import InputError, count
from papa.results.analysis import Analysis, Computed, Drawing
from papa.results.outcomes import ALL
from papa.results.phrases import ABOUT_LOSS, constant_name, loss_text, order_name
from papa.results.summary import (
    ABOUT_DROPS,
    BY_FRACTION,
    FLOORS,
    SUMMARY_COLUMNS,
    about_scores,
    by_fraction,
    excluded,
    is_main,
    read_summary,
    same_heads,
)
from papa.results.table import Table, metric_name, score_text, texts

GRID_COLUMNS = {"line": "string"} | SUMMARY_COLUMNS
"""Rows of the summary, each with the line of the grid that it is a point of."""

ORIGINAL = "original"
ENDS = {"0", "1"}


class GridAnalysis(GridView, Analysis):
    """Show the runs that one grid of a config asked for; its parameters are those of `GridView`."""

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
        """Return the meaning of lines, columns and cells, and the settings that all lines have in common."""
        if has_between(self.fractions):
            parts = [f"Columns: {BY_FRACTION}.", once(self), about_scores(rows)]
            if set(NUMBERED) & set(self.orders):
                parts.append(
                    "If an order is drawn or learned several times, the score of a seed is its mean over the orders."
                )
            parts += [ABOUT_DROPS, ABOUT_LOSS, excluded(rows)]
        else:
            metrics = rows.loc[is_main(rows), ["title", "metric"]].drop_duplicates().itertuples(index=False)
            parts = [
                "In the lines of constants every head is replaced; the best of several is bold.",
                about_scores(rows),
                "Trivial: the best guess that ignores the input. Contextless: zeros in place of all attention.",
                "Metrics: " + "; ".join(f"{title}, {metric_name(metric)}" for title, metric in metrics) + ".",
            ]
        return " ".join(filter(None, [*parts, same_heads(rows)]))

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Return tables by constant, or one along the fraction."""
        rows = rows[is_main(rows)]
        if not has_between(self.fractions):
            return [table for model in self.models for table in self._by_task(rows[rows["model"] == model], model)]
        names = {"task": "title", "metric": "metric", " / ".join(varied(self)): "line"}
        frame = by_fraction(rows, is_main(rows), names)
        changed = frame[["task", "metric"]].ne(frame[["task", "metric"]].shift()).any(axis=1)
        return [Table("", frame, 3, rules=tuple(changed.to_numpy().nonzero()[0].tolist()))]

    def _by_task(self, rows: pd.DataFrame, model: str) -> list[Table]:
        """Return the tables of one model, with a column for each task: scores, the best constant in bold, and losses.

        Scores have a line for nothing replaced, for each floor that is known, and for each constant.
        """
        rows = rows.drop_duplicates(["constant", "task"])
        constants = list(self.constants) if "0" in self.fractions else []
        printed = rows["mean"].where(rows["constant"].notna()).map("{:.3f}".format).astype("float64")
        best = (len(constants) > 1) & printed.eq(printed.groupby(rows["task"]).transform("max"))
        scores = pd.Series(texts(score_text, rows, "mean", "half_width"), rows.index, "str")
        cells = rows.assign(
            line=rows["constant"].fillna(ORIGINAL),
            score=scores.where(~best, "**" + scores + "**"),
            lost=texts(loss_text, rows, "loss", "loss_low", "loss_high"),
        )
        floors = [name for name in FLOORS if rows[name].notna().any()]
        of_floors = rows.groupby("task")[floors].first().map(lambda score: score_text(score, math.nan)).T
        titles = dict(zip(rows["task"], rows["title"], strict=True))

        def laid_out(cells: pd.DataFrame, lines: Sequence[str]) -> pd.DataFrame:
            text = cells.reindex(index=pd.Index(lines), columns=[*self.tasks]).fillna("").rename(columns=titles)
            text.insert(0, "constants", [constant_name(line, constants) for line in lines], allow_duplicates=True)
            return text

        title = f"{model} ({count(rows['heads'].iloc[0], 'head')})" if len(rows) else model
        above = [ORIGINAL] * ("1" in self.fractions) + floors
        text = pd.concat([cells.pivot(index="line", columns="task", values="score"), of_floors])
        tables = [Table(title, laid_out(text, [*above, *constants]), 1, rules=(len(above),) if above else ())]
        if constants and rows["status"].notna().any():
            losses = laid_out(cells.pivot(index="line", columns="task", values="lost"), constants)
            tables.append(Table(f"{title}. Loss", losses, 1, f"{ABOUT_LOSS} {excluded(rows)}".strip()))
        return tables

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

        figure, alternative = grid_figure(rows, self)
        caption = " ".join(filter(None, [figure_note(rows), once(self)]))
        return Drawing(figure, f"{self.title}: {alternative}", caption)

    def caption(self, rows: pd.DataFrame) -> str:
        """Return nothing: the note says it all."""
        return ""

    def sentence(self, rows: pd.DataFrame) -> str:
        """Return the number of rows."""
        return f"{self.title}: {count(len(rows), 'row')}"


def rows_of(grid: GridView, rows: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of a summary or of a table of runs that `grid` asked for, in its order and with their `line`.

    With nothing replaced there is no constant, and with everything replaced no order, so these rows are in several
    lines. A grid may ask for the average of a task's own texts under both of its names.
    """
    orders = grid.orders if has_between(grid.fractions) else grid.orders[:1]
    asked = pd.DataFrame(
        [
            {"line": _line(grid, model, constant, order), "asked": None if fraction == "1" else constant}
            | {"task": task, "model": model, "fraction": fraction}
            | {"constant": None if fraction == "1" else Constant.parse(constant).for_corpus(corpus).name}
            | {"order": None if fraction in ENDS else order}
            for (task, corpus), model, constant, order in product(
                grid.tasks.items(), grid.models, grid.constants, orders
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


def has_between(fractions: Sequence[str]) -> bool:
    """Whether some heads are kept and others replaced at one of the fractions."""
    return bool(set(fractions) - ENDS)


def _settings(grid: GridView) -> dict[str, list[str]]:
    settings = {"model": list(grid.models), "constants": list(map(constant_name, grid.constants))}
    return settings | ({"order": list(map(order_name, grid.orders))} if has_between(grid.fractions) else {})


def varied(grid: GridView) -> list[str]:
    """Name the settings in which the lines of a grid differ; models if there is one line."""
    return [name for name, values in _settings(grid).items() if len(values) > 1] or ["model"]


def once(grid: GridView) -> str:
    """Return the settings that all lines of a grid have in common: "Model: minilm; order: λ."."""
    text = "; ".join(f"{name}: {values[0]}" for name, values in _settings(grid).items() if len(values) == 1)
    return f"{text[:1].upper()}{text[1:]}." if text else ""
