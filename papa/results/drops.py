"""Do better models drop more? Original scores beside what is lost without any attention to the input (Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from papa.files import PathLike, write_table
from papa.results.analyses import GRID_COLUMNS, constant_name, write_pages
from papa.results.latex import Part
from papa.results.summary import (
    ABOUT_DROPS,
    ABOUT_MEANS,
    LOG_SCALED,
    Row,
    is_main,
    mean_relative_drops,
    percent,
    read_rows,
    unique,
)

COLUMNS = {
    "model": "string",
    "constant": "string",
    "mean_original": "float64",
    "tasks": "int64",
    "mean_relative_drop": "float64",
    "tasks_with_drop": "int64",
    "tasks_without_drop": "string",
}

TITLE = "Original score and drop at fraction 0"
NOTE = (
    "Mean original score: over all tasks but those with a log-scale score (masked language modelling). Mean drop: at"
    f" fraction 0, where every head is replaced. {ABOUT_DROPS} {ABOUT_MEANS}"
)


def score_and_drop(grid: PathLike, table: PathLike, markdown: PathLike, latex: PathLike) -> str:
    """Write the mean original score and the mean relative drop at fraction 0 of each model and kind of constant.

    `grid` is the table of a grid with fractions 1 and 0. Tasks with a log-scale score are in neither mean and tasks
    without a defined drop are named; where no task has one the mean is null. Parquet with `COLUMNS`, Markdown, LaTeX.
    """
    import pyarrow as pa

    rows = drops_of(read_rows(grid, GRID_COLUMNS))
    schema = pa.schema(list(COLUMNS.items()))
    write_table(pa.Table.from_pylist(rows, schema=schema), table, {"table": "score_and_drop"})
    write_pages(TITLE, tables_of(rows), NOTE, markdown, latex)
    return f"{len(rows)} mean drops as Parquet, Markdown and LaTeX"


def tables_of(rows: Sequence[Row]) -> list[tuple[str, list[Part], int]]:
    """The rows of `score_and_drop` as people read them."""
    header = ["model", "constants", "mean original score", "tasks", "mean drop", "tasks with a drop", "tasks without"]
    lines = [
        [
            row["model"],
            constant_name(row["constant"]),
            "-" if row["mean_original"] is None else f"{row['mean_original']:.3f}",
            f"{row['tasks']}",
            percent(row["mean_relative_drop"]),
            f"{row['tasks_with_drop']}",
            row["tasks_without_drop"] or "",
        ]
        for row in rows
    ]
    return [("", [[header], lines], 2)]


def drops_of(rows: Sequence[Row]) -> list[Row]:
    """The rows of `score_and_drop`, made from those of a grid."""
    main = [row for row in rows if is_main(row) and row["metric"] not in LOG_SCALED]
    originals = {(row["model"], row["task"]): row["mean"] for row in main if row["fraction"] == "1"}
    found = []
    for model, constant in unique((row["model"], row["constant"]) for row in rows if row["fraction"] == "0"):
        # a grid has its ends once for each order
        own = {
            row["task"]: row
            for row in main
            if (row["model"], row["constant"], row["fraction"]) == (model, constant, "0")
        }
        scores = [mean for task in own if (mean := originals.get((model, task))) is not None]
        [drop] = mean_relative_drops(own.values()) or [{"mean_relative_drop": None, "tasks": 0}]
        without = [row["title"] for row in own.values() if row["relative_drop"] is None]
        found.append(
            {
                "model": model,
                "constant": constant,
                "mean_original": fmean(scores) if scores else None,
                "tasks": len(scores),
                "mean_relative_drop": drop["mean_relative_drop"],
                "tasks_with_drop": drop["tasks"],
                "tasks_without_drop": ", ".join(without) or None,
            }
        )
    return found
