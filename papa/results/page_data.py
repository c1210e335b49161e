"""The sentences and tables about data and models in the HTML report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from papa.config.stages import ModelId
from papa.config.study import Plan
from papa.files import PathLike, opened_table, read_provenance
from papa.method.runs import read_runs
from papa.results.outcomes import ALL
from papa.results.summary import cluster_note, is_main
from papa.results.table import Table

UNKNOWN_CELL = "–"
ROWS_SHOWN, LINE_CHARACTERS = 3, 120


def data_table(study: Plan, summary: pd.DataFrame) -> Table:
    """Return a table with the numbers of rows used, of validation rows also in training, and of examples cut."""
    rows = summary[is_main(summary)]
    corpora = rows["task"].map(lambda task: study.config.tasks[task].corpus)
    shared = {corpus: _shared(study, corpus) for corpus in corpora.unique()}

    counts = rows[[name for name in rows if str(name).startswith(("rows_", "cut_"))]].map("{:,}".format)
    columns = {
        "task": rows["title"],
        "model": rows["model"],
        "training rows used / available": counts["rows_train"] + " / " + counts["rows_available_train"],
        "validation rows used / available": counts["rows_validation"] + " / " + counts["rows_available_validation"],
        "validation rows also in training": corpora.map(shared),
        "training examples cut": counts["cut_train"],
        "validation examples cut": counts["cut_validation"],
    }
    return Table("", pd.DataFrame(columns).drop_duplicates(), 2)


def first_rows(study: Plan) -> dict[str, list[dict[str, str]]]:
    """Return the first training rows of each corpus as papa read them, with the labels of its tasks, cut to a line."""
    shown = {}
    for corpus in study.config.corpora_run:
        rows = _head(study.results / study.path("texts", corpus=corpus))
        for task in dict.fromkeys(task for _, task in study.config.pairs):
            settings = study.config.tasks[task]
            if settings.corpus == corpus and settings.label:
                path = study.results / study.path("labels", task=task)
                provenance = read_provenance(path)
                names = provenance.facts["label_names"] if provenance else []
                for row, labels in zip(rows, _head(path), strict=False):
                    label = labels["label"]
                    values: list[int] = label if isinstance(label, list) else [label]
                    title = settings.title or task
                    row[f"{title} (label)" if title in row else title] = [names[value] for value in values]
        shown[corpus] = [{name: _on_a_line(value) for name, value in row.items()} for row in rows]
    return shown


def _head(path: PathLike) -> list[dict[str, Any]]:
    with opened_table(path) as table:
        group = table.group(0) if table.metadata.num_row_groups else table.read()
    rows: list[dict[str, Any]] = group.slice(0, ROWS_SHOWN).drop_columns(["split", "row"]).to_pylist()
    return rows


def _on_a_line(value: object) -> str:
    text = " ".join(" ".join(map(str, value) if isinstance(value, list) else [str(value)]).split())
    return text if len(text) <= LINE_CHARACTERS else f"{text[: LINE_CHARACTERS - 2]} …"


def _shared(study: Plan, corpus: str) -> str:
    """Count the validation rows of a corpus that are also in its training split."""
    with opened_table(study.results / study.path("texts", corpus=corpus)) as texts:
        shared = texts.facts.get("shared", {}).get("validation")
    return UNKNOWN_CELL if shared is None else f"{shared:,}"


def models_table(study: Plan) -> Table:
    """Return a table with every model's origin, the digest of its weights, and the versions of libraries."""
    first_runs = {model: study.probes_of(model, task)[0].main for model, task in reversed(study.config.pairs)}
    rows = []
    for name in dict.fromkeys(model for model, _ in study.config.pairs):
        model = study.config.models[name]
        origin = read_runs(study.results / first_runs[name])[0].provenance.model_dump(exclude_none=True)
        row = {"model": name, "hub id": model.hub or ModelId.of(name, model).origin, "revision": model.revision or ""}
        row |= {"SHA-256 of the weights": origin.get("weights", "")}
        row |= {key.removesuffix("_version"): origin[key] for key in sorted(origin) if key.endswith("_version")}
        rows.append(row)
    return Table("", pd.DataFrame(rows), len(rows[0]))


def sentence(text: str) -> str:
    """Turn `text` into a sentence with a capital and a full stop; empty stays empty."""
    first = text[:1].upper() if text[:1].isascii() else text[:1]  # λ stays lower-case
    return unbroken(f"{first}{text[1:].removesuffix('.')}.") if text else ""


def unbroken(text: str) -> str:
    """Keep numbers and % signs on one line, and replace hyphens before numbers by minus signs."""
    return re.sub(r"(?<![\w.])-(?=\.?\d)", "−", text.replace(" %", "\u00a0%"))


def examples_in(rows: pd.DataFrame) -> str:
    """Describe the number of validation examples of the tasks in the rows of a summary."""
    numbers = sorted(rows.loc[is_main(rows), "examples"].unique())
    return f"n = {span(numbers)} validation examples{' per task' if rows['task'].nunique() > 1 else ''}"


def span(numbers: Sequence[int]) -> str:
    """Describe the range of numbers in ascending order; a single number if all are equal."""
    smallest, largest = numbers[0], numbers[-1]
    return f"{largest:,}" if smallest == largest else f"{smallest:,} to {largest:,}"


def data_note(study: Plan, rows: pd.DataFrame) -> str:
    """Return sentences about subsets and clusters of the examples in `rows`; empty if there are none."""
    config = study.config
    corpora = {task: config.corpora[config.tasks[task].corpus] for task in dict.fromkeys(rows["task"])}
    clusters = {task: corpus.cluster for task, corpus in corpora.items() if corpus.cluster is not None}
    titles = {task: config.tasks[task].title or task for task in corpora}
    return " ".join(filter(None, (subset_note(study, rows), cluster_note(titles, clusters))))


def subset_note(study: Plan, rows: pd.DataFrame) -> str:
    """Return a sentence about the origin of the subsets in `rows`; empty if there are none."""
    columns: dict[str, dict[str, None]] = {}
    further: dict[str, None] = {}
    for task, subset in rows.loc[rows["subset"].ne(ALL), ["task", "subset"]].itertuples(index=False):
        splits = study.config.corpora[study.config.tasks[task].corpus].further_splits
        column = study.config.tasks[task].subset
        (further if subset in splits or column is None else columns.setdefault(column, {}))[subset] = None
    sources = [f"column {column}: {', '.join(names)}" for column, names in columns.items()]
    of_columns = f"Subsets of the validation examples, scored separately: {'; '.join(sources)}."
    of_splits = f"Further validation splits, scored separately: {', '.join(further)}."
    return " ".join([of_columns] * bool(columns) + [of_splits] * bool(further))
