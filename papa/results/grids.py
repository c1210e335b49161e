"""The table of a grid: the runs of one grid of the config, laid out as in the paper.

A grid with only the fractions 1 and 0 compares constants (the paper's Tables 1, 2, 4 and 5). Each model has a table of
scores and a table of losses, with a row for each constant and a column for each task. Any other grid shows scores by
fraction (Figures 2, 5 and 6), with a row for each task and line, and a column for each fraction. A line is a curve: a
model, a constant and an order.
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
from papa.results.outcomes import ALL, VARIANT_KEYS
from papa.results.phrases import (
    END_FRACTIONS,
    LOSS_NOTE,
    common_settings,
    constant_name,
    floor_name,
    has_between,
    loss_text,
    order_name,
    varied,
)
from papa.results.summary import (
    BY_FRACTION,
    DROP_NOTE,
    FLOORS,
    SUMMARY_COLUMNS,
    by_fraction,
    exclusion_note,
    is_main,
    read_summary,
    same_heads_note,
    score_note,
)
from papa.results.table import Table, metric_name, score_text, texts

GRID_COLUMNS = {"line": "string"} | SUMMARY_COLUMNS
"""The columns of the summary, and the line of the grid to which the row belongs."""

ORIGINAL = "original"


class GridAnalysis(GridView, Analysis):
    """Show the runs of one grid of the config; the parameters are those of `GridView`."""

    columns = GRID_COLUMNS

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Select the rows of the grid from the `summary`; raise `InputError` if there are none."""
        rows = rows_of(self, read_summary(job.input("summary")))
        if rows.empty:
            raise InputError(
                f"{job.input('summary')} has no run of {self.title!r}; pass the summary of a study with this grid."
            )
        return Computed(rows, {"table": "grid", "title": self.title, "lines": " / ".join(varied(self))})

    def heading(self) -> str:
        return self.title

    def note(self, rows: pd.DataFrame) -> str:
        if has_between(self.fractions):
            parts = [f"Columns: {BY_FRACTION}.", common_settings(self), score_note(rows)]
            if not set(self.orders).isdisjoint(NUMBERED):
                parts.append(
                    "If an order is drawn or learned several times, a seed's score is its mean over these orders."
                )
            parts += [DROP_NOTE, LOSS_NOTE, exclusion_note(rows)]
        else:
            metrics = rows.loc[is_main(rows), ["title", "metric", "positive"]].drop_duplicates().itertuples(index=False)
            parts = [
                "In the rows of replacements, every head is replaced; the best of several is bold.",
                score_note(rows),
                "Trivial: the best guess that ignores the input. Context-free: no token sees another.",
                "Metrics: " + "; ".join(f"{title}, {metric_name(*metric)}" for title, *metric in metrics) + ".",
            ]
        return " ".join(filter(None, [*parts, same_heads_note(rows)]))

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Return tables by constant, or a table by fraction; and a table of subsets, if there are any."""
        return [*self._main_tables(rows[is_main(rows)]), *self._subsets(rows)]

    def _main_tables(self, rows: pd.DataFrame) -> list[Table]:
        if not has_between(self.fractions):
            return [table for model in self.models for table in self._by_task(rows[rows["model"] == model], model)]
        names = {"task": "title", "metric": "metric", " / ".join(varied(self)): "line"}
        frame = by_fraction(rows, is_main(rows), names)
        changed = frame[["task", "metric"]].ne(frame[["task", "metric"]].shift()).any(axis=1)
        return [Table("", frame, 3, rules=tuple(changed.to_numpy().nonzero()[0].tolist()))]

    def _by_task(self, rows: pd.DataFrame, model: str) -> list[Table]:
        """Return a table of scores, with the best row of replaced heads in bold, and a table of losses.

        The tables have a column for each task. Scores have a row for the original, each known floor and each constant.
        """
        rows = rows.assign(row=rows["constant"].fillna(ORIGINAL)).drop_duplicates(["row", "task"])
        constants = list(self.constants) if "0" in self.fractions else []
        printed = rows["mean"].where(rows["constant"].notna()).map("{:.3f}".format).astype("float64")
        best = (len(constants) > 1) & printed.eq(printed.groupby(rows["task"]).transform("max"))
        scores = pd.Series(texts(score_text, rows, "mean", "half_width"), rows.index, "str")
        cells = rows.assign(
            score_text=scores.where(~best, "**" + scores + "**"),
            loss_text=texts(loss_text, rows, "loss", "loss_low", "loss_high"),
        )
        floors = [name for name in FLOORS if rows[name].notna().any()]
        floor_texts = rows.groupby("task")[floors].first().map(lambda score: score_text(score, math.nan)).T
        titles = dict(zip(rows["task"], rows["title"], strict=True))

        def laid_out(cells: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
            text = cells.reindex(index=pd.Index(names), columns=[*self.tasks]).fillna("").rename(columns=titles)
            text.insert(
                0, "constants", [floor_name(constant_name(name, constants)) for name in names], allow_duplicates=True
            )
            return text

        title = f"{model} ({count(rows['heads'].iloc[0], 'head')})" if len(rows) else model
        above = [ORIGINAL] * ("1" in self.fractions) + floors
        text = pd.concat([cells.pivot(index="row", columns="task", values="score_text"), floor_texts])
        tables = [Table(title, laid_out(text, [*above, *constants]), 1, rules=(len(above),) if above else ())]
        if constants and rows["status"].notna().any():
            losses = laid_out(cells.pivot(index="row", columns="task", values="loss_text"), constants)
            tables.append(Table(f"{title}. Loss", losses, 1, f"{LOSS_NOTE} {exclusion_note(rows)}".strip()))
        return tables

    def _subsets(self, rows: pd.DataFrame) -> list[Table]:
        on_subsets = rows["subset"].ne(ALL) & rows["main"]
        names = {"task": "title", " / ".join(varied(self)): "line", "subset": "subset", "examples": "examples"}
        return [Table("Subsets", by_fraction(rows, on_subsets, names), len(names))] if on_subsets.any() else []

    def drawing(self, rows: pd.DataFrame, job: Job[AnalysisOf]) -> Drawing:
        from papa.results.figures import figure_note, grid_figure

        figure, alternative = grid_figure(rows, self)
        caption = " ".join(filter(None, [figure_note(rows), common_settings(self)]))
        return Drawing(figure, f"{self.title}: {alternative}", caption)

    def caption(self, rows: pd.DataFrame) -> str:
        return ""

    def sentence(self, rows: pd.DataFrame) -> str:
        return f"{self.title}: {count(len(rows), 'row')}"


def rows_of(grid: GridView, rows: pd.DataFrame) -> pd.DataFrame:
    """Select the grid's rows from a summary or a table of runs, in the order of the grid and with their `line`.

    With nothing replaced there is no constant, and with everything replaced no order, so these rows belong to several
    lines. The average over a task's own texts is called `average` or `average-of-CORPUS`; a grid may have both.
    """
    orders = grid.orders if has_between(grid.fractions) else grid.orders[:1]
    requested = pd.DataFrame(
        [
            {"line": _line(grid, model, constant, order), "task": task, "model": model, "fraction": fraction}
            | {"name": None if fraction == "1" else constant}
            | {"constant": None if fraction == "1" else Constant.parse(constant).for_corpus(corpus).name}
            | {"order": None if fraction in END_FRACTIONS else order}
            for (task, corpus), model, constant, order in product(
                grid.tasks.items(), grid.models, grid.constants, orders
            )
            for fraction in sorted(grid.fractions, key=Fraction, reverse=True)
        ],
        dtype="str",
    )
    grid_rows = requested.merge(rows, on=["task", "model", *VARIANT_KEYS])
    return grid_rows.assign(constant=grid_rows["name"])[["line", *rows.columns]]


def _line(grid: GridView, model: str, constant: str, order: str) -> str:
    names = {"model": model, "constants": constant_name(constant, grid.constants), "order": order_name(order)}
    return " / ".join(names[name] for name in varied(grid))
