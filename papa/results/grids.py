"""The table of a grid: the runs of one grid of the config, laid out as in the paper.

A grid with only the fractions 1 and 0 compares constants (the paper's Tables 1, 2, 4 and 5). Each model has a table of
scores and a table of reliance, with a row for each constant and a column for each task. Any other grid shows scores by
fraction (Figures 2, 5 and 6), with a row for each task and line, and a column for each fraction. A line is a curve: a
model, a constant and an order.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from papa.config.settings import RUN
from papa.config.variant import NUMBERED
from papa.errors import count
from papa.results.figures import figure_note, grid_figure
from papa.results.finished import Finished
from papa.results.outcomes import ALL
from papa.results.phrases import (
    CONTRIBUTES,
    RELIANCE_NOTE,
    constant_name,
    effect_texts,
    floor_name,
    reliance_text,
)
from papa.results.section import Section
from papa.results.summary import (
    BY_NUMBER,
    DROP_NOTE,
    FLOORS,
    SUMMARY_COLUMNS,
    by_fraction,
    is_main,
    missing_note,
    score_note,
)
from papa.results.table import Table, metric_name, rules_between, score_text, texts
from papa.results.views import GridView, grid_views, rows_of

GRID_COLUMNS = {"line": "string"} | SUMMARY_COLUMNS
"""The columns of the summary, and the line of the grid to which the row belongs."""

ORIGINAL = "original"


def grids(finished: Finished) -> list[Section]:
    """Return a section for each grid."""
    return [
        section_of(view, finished.summary, finished.covered) for view in grid_views(finished.config)
    ]


def section_of(grid: GridView, summary: pd.DataFrame, sources: str) -> Section:
    """Return the section of a grid, whose intervals cover `sources` of variance.

    `run` has a figure, and so do grids with fractions between 0 and 1.
    """
    rows = rows_of(grid, summary)
    chart = None
    alternative = ""
    caption = ""
    if grid.name == RUN or grid.has_between:
        chart, alternative = grid_figure(rows, grid)
        caption = " ".join(filter(None, [figure_note(rows), grid.common_settings]))
    return Section(
        grid.name,
        grid.title,
        rows,
        GRID_COLUMNS,
        [*_main_tables(grid, rows[is_main(rows)]), *_further_tables(grid, rows)],
        _note(grid, rows, sources),
        {"title": grid.title, "lines": " / ".join(grid.varied)},
        chart,
        f"{grid.title}: {alternative}",
        caption,
    )


def _note(grid: GridView, rows: pd.DataFrame, sources: str) -> str:
    if grid.has_between:
        parts = [f"Columns: {BY_NUMBER}.", grid.common_settings, score_note(rows, sources)]
        if not set(grid.orders).isdisjoint(NUMBERED):
            parts.append(
                "If an order is drawn or learned several times, a seed's score is its mean over these orders."
            )
        parts += [DROP_NOTE] if rows["relative_drop"].notna().any() else []
        parts += [RELIANCE_NOTE, missing_note(rows)]
    else:
        metrics = rows.loc[is_main(rows), ["title", "metric", "positive"]].drop_duplicates()
        names = texts(metric_name, metrics, "metric", "positive")
        listed = [f"{title}, {name}" for title, name in zip(metrics["title"], names, strict=True)]
        parts = [
            "In the rows of replacements, every head is replaced; the best of several is bold.",
            score_note(rows, sources),
            "Trivial: the best guess that ignores the input. Context-free: no token sees another.",
            f"Metrics: {'; '.join(listed)}.",
        ]
    return " ".join(filter(None, parts))


def _main_tables(grid: GridView, rows: pd.DataFrame) -> list[Table]:
    if not grid.has_between:
        return [
            table
            for model in grid.models
            for table in _by_task(grid, rows[rows["model"] == model], model)
        ]
    names = {"task": "title", "metric": "metric", " / ".join(grid.varied): "line"}
    frame = by_fraction(rows, is_main(rows), names)
    return [Table("", frame, 3, rules=rules_between(frame[["task", "metric"]]))]


def _by_task(grid: GridView, rows: pd.DataFrame, model: str) -> list[Table]:
    """Return tables of scores, with the best row of replaced heads in bold, of what is lost, and of reliance.

    The tables have a column for each task, and a row for each constant. Above them, scores have rows for the original
    and each known floor, and amounts have a row for what attention contributes.
    """
    rows = rows.assign(row=rows["constant"].fillna(ORIGINAL)).drop_duplicates(["row", "task"])
    constants = list(grid.constants) if "0" in grid.fractions else []
    # compared as printed, or one of two equal numbers would be bold
    printed = rows["mean"].where(rows["constant"].notna()).map("{:.3f}".format).astype("float64")
    best = (len(constants) > 1) & printed.eq(printed.groupby(rows["task"]).transform("max"))
    scores = pd.Series(texts(score_text, rows, "mean", "half_width"), rows.index, "str")
    effects = effect_texts(rows, reliance_text)
    cells = rows.assign(scores=scores.where(~best, "**" + scores + "**"), **effects)
    floors = [name for name in FLOORS if rows[name].notna().any()]

    cells[floors] = rows[floors].map(score_text)
    first = cells.groupby("task")[[*floors, CONTRIBUTES]].first().T  # the same in all rows
    titles = dict(zip(rows["task"], rows["title"], strict=True))

    def table(column: str, above: Sequence[str], title: str, note: str = "") -> Table:
        by_task = pd.concat([cells.pivot(index="row", columns="task", values=column), first])
        names = [*above, *constants]
        text = by_task.reindex(index=pd.Index(names), columns=[*grid.tasks]).fillna("")
        text = text.rename(columns=titles)
        headings = [floor_name(constant_name(name, constants)) for name in names]
        # a task may have this word as its title
        text.insert(0, "constants", headings, allow_duplicates=True)
        return Table(title, text, 1, note, (len(above),) if above else ())

    title = f"{model} ({count(rows['heads'].iloc[0], 'head')})" if len(rows) else model
    tables = [table("scores", [ORIGINAL] * ("1" in grid.fractions) + floors, title)]
    if constants and rows["status"].notna().any():
        note = f"{RELIANCE_NOTE} {missing_note(rows)}".strip()
        tables.append(table("lost", [CONTRIBUTES], f"{title}. Lost"))
        tables.append(table("reliance", [], f"{title}. Reliance", note))
    return tables


def _further_tables(grid: GridView, rows: pd.DataFrame) -> list[Table]:
    """Return a table of subsets and one of other metrics, if there are any."""
    lines = {" / ".join(grid.varied): "line"}
    by_subset = {"task": "title", **lines, "subset": "subset", "examples": "examples"}
    by_metric = {"task": "title", "metric": "metric", **lines}
    selections = {
        "Subsets": (rows["subset"].ne(ALL) & rows["main"], by_subset),
        "Other metrics": (~rows["main"], by_metric),
    }
    return [
        Table(title, by_fraction(rows, selected, names), len(names))
        for title, (selected, names) in selections.items()
        if selected.any()
    ]
