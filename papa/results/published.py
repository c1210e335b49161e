"""Our summary beside what the paper prints (Tables 1, 2, 4 and 5, fractions 1 and 0 of RoBERTa BASE and LARGE).

The published values are in `data/published.csv`, one line per table, model, setting and task. The paper's tables are
joined one by one: Tables 1 and 2 (4 and 5) both print RoBERTa BASE's (LARGE's) scores with averages over the task's own
texts, and for LARGE on MRPC they disagree, 0.81 and 0.80. Each value is a row of its own.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib.resources import files
from typing import Any

from papa.errors import InputError
from papa.files import PathLike, write_table
from papa.results.analyses import write_pages
from papa.results.latex import Part
from papa.results.summary import ALL, Row, metric_name, read_rows, score, unique

ROUNDING = 0.005
"""The paper prints two decimals: a value stands for all numbers this close to it."""

NOTE = (
    "Ours: mean over seeds ± half width of the 95 % Student-t interval, of validation scores. Difference: ours - "
    f"published. Inside: our interval holds a number that rounds to the published one (± {ROUNDING}); - where one "
    "seed gives no interval. Two tables that print the same setting can differ; each value has its own line."
)

ORIGINAL = "original"
SETTINGS: dict[str, tuple[str, ...]] = {
    "average": ("average", "per_task"),
    "average-trained": ("average_trained",),
    "identity": ("identity",),
    "toeplitz": ("toeplitz",),
    "toeplitz-trained": ("toeplitz_trained",),
    "zeros": ("zeros",),
}
"""Published settings of our constants, at fraction 0; Tables 2 and 5 call averages `per_task`, and others `mnli`."""

METRICS = {"ner": "entity_f1", "pos": "chunk_f1"}
"""Our metric where it is not called as the published one; the published F1 of POS is seqeval's reading of bare tags."""

COLUMNS = {
    "table": "string",
    "model": "string",
    "published_model": "string",
    "task": "string",
    "title": "string",
    "published_task": "string",
    "setting": "string",
    "constant": "string",
    "metric": "string",
    "published": "float64",
    "ours": "float64",
    "half_width": "float64",
    "difference": "float64",
    "inside": "bool",
    "seeds": "int64",
    "rows_train": "int64",
    "rows_available_train": "int64",
}


def beside_published(
    summary: PathLike,
    table: PathLike,
    markdown: PathLike,
    latex: PathLike,
    models: Mapping[str, str | None],
    tasks: Mapping[str, str],
    more_settings: Mapping[str, str | Sequence[str]] | None = None,
) -> str:
    """Join `summary` with the published values wherever both exist, as Parquet with `COLUMNS`, Markdown and LaTeX.

    `models` maps names of our models to hub ids (or their last part, which is the published name); models without
    published values are left out. `tasks` maps names of our tasks to published tasks: cola, mrpc, sst2,
    mnli_mismatched, ner, pos. `more_settings` maps names of our constants that `SETTINGS` does not have to published
    settings; fraction 1 is always `original`. `difference` is ours - published. `inside` says whether our 95 %
    interval holds a number that rounds to the published one; null where there is one seed and so no interval. Without
    anything to compare the table is empty. Raises `InputError` for a model or task that the summary does not have, a
    task or setting that is not published, and a task whose published metric was not measured; `DamagedArtefact` for a
    file that is no summary.
    """
    ours, published = read_rows(summary), published_values()
    settings = SETTINGS | dict(more_settings or {})
    by_constant = {name: [value] if isinstance(value, str) else list(value) for name, value in settings.items()}
    flat = [setting for several in by_constant.values() for setting in several]
    _check("model", models, (row["model"] for row in ours), "The summary has")
    _check("task", tasks, (row["task"] for row in ours), "The summary has")
    _check("task", tasks.values(), (value["task"] for value in published), "The paper prints")
    _check("setting", flat, (value["setting"] for value in published), "The paper prints")
    names = {name: (hub or "").rsplit("/", 1)[-1] for name, hub in models.items()}
    rows = [
        _row(value, row)
        for value in published
        for row in ours
        if value["model"] == names.get(row["model"])
        and value["task"] == tasks.get(row["task"])
        and value["setting"] in _settings_of(row, by_constant)
        and _is_read(row, value, ours)
        and row["mean"] is not None
    ]
    import pyarrow as pa

    schema = pa.schema(list(COLUMNS.items()))
    write_table(pa.Table.from_pylist(rows, schema=schema), table, {"table": "published", "rounding": ROUNDING})
    note = NOTE if rows else "None of these models, tasks and settings is in the paper's tables."
    write_pages("Beside the published values", tables_of(rows), note, markdown, latex)
    known = [row["inside"] for row in rows if row["inside"] is not None]
    return f"{len(rows)} published values beside ours; {sum(known)} of {len(known)} inside our interval"


def published_values() -> list[Row]:
    """The published values: `table` (a string), `model`, `setting`, `task`, `metric` and `value`."""
    lines = (files("papa.results") / "published.csv").read_text(encoding="utf-8").splitlines()
    return [dict(row) | {"value": float(row["value"])} for row in csv.DictReader(lines)]


def _check(what: str, given: Any, known: Any, who: str) -> None:
    there = unique(known)
    for name in given:
        if name not in there:
            raise InputError(f"{who} no {what} {name!r}; there are {', '.join(there)}.")


def _settings_of(row: Row, by_constant: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The published settings that a row of the summary is: none between fractions 1 and 0."""
    if row["constant"] is None:
        return [ORIGINAL]
    return by_constant.get(row["constant"], []) if Fraction(row["fraction"]) == 0 else []


def _is_read(row: Row, value: Row, ours: Sequence[Row]) -> bool:
    """Whether `row` reads what `value` reads, on all examples; raises `InputError` where no row of its task does."""
    metric = METRICS.get(value["task"], value["metric"])
    measured = unique(other["metric"] for other in ours if other["task"] == row["task"])
    if metric not in measured:
        raise InputError(
            f"Task {row['task']} cannot stand beside the published {value['task']}, whose metric is {metric}; "
            f"the summary has {', '.join(measured)} of it."
        )
    return row["subset"] == ALL and row["metric"] == metric


def _row(value: Row, row: Row) -> Row:
    inside = None if row["low"] is None else row["low"] - ROUNDING <= value["value"] <= row["high"] + ROUNDING
    same = ("model", "task", "title", "constant", "metric", "half_width", "seeds", "rows_train", "rows_available_train")
    return {name: row[name] for name in same} | {
        "table": value["table"],
        "published_model": value["model"],
        "published_task": value["task"],
        "setting": value["setting"],
        "published": value["value"],
        "ours": row["mean"],
        "difference": row["mean"] - value["value"],
        "inside": inside,
    }


def tables_of(rows: Sequence[Row]) -> list[tuple[str, list[Part], int]]:
    """A table for each of the paper's tables and each of our models."""
    tables: list[tuple[str, list[Part], int]] = []
    for number, model in unique((row["table"], row["model"]) for row in rows):
        own = [row for row in rows if (row["table"], row["model"]) == (number, model)]
        header = ["setting", "task", "metric", "published", "ours", "difference", "inside", "training rows"]
        lines = [
            [
                row["setting"].replace("_", " "),
                row["title"],
                metric_name(row["metric"]),
                f"{row['published']:.2f}",
                score({"mean": row["ours"], "half_width": row["half_width"]}),
                f"{row['difference']:+.3f}".replace("-0.000", "+0.000"),
                {True: "yes", False: "no", None: "-"}[row["inside"]],
                _used(row),
            ]
            for row in own
        ]
        tables.append((f"Table {number}: {own[0]['published_model']}, ours: {model}", [[header], lines], 3))
    return tables


def _used(row: Row) -> str:
    rows, available = row["rows_train"], row["rows_available_train"]
    return f"all {rows:,}" if rows == available else f"{rows:,} of {available:,}"
