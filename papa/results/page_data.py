"""The sentences and tables about data and models in the HTML report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from papa.files import PathLike, opened_table, read_provenance
from papa.results.outcomes import ALL
from papa.results.summary import cluster_note, is_main
from papa.results.table import Table

if TYPE_CHECKING:
    from papa.results.finished import Finished

ROWS_SHOWN, LINE_CHARACTERS = 3, 120


def data_table(finished: Finished) -> Table:
    """Return a table with the numbers of rows used, of validation rows also in training, and of examples cut."""
    rows = finished.summary[is_main(finished.summary)]
    shared = {corpus: f"{of_corpus['shared'].get('validation', 0):,}" for corpus, of_corpus in finished.facts.items()}
    counts = rows[[name for name in rows if str(name).startswith(("rows_", "cut_"))]].map("{:,}".format)
    columns = {
        "task": rows["title"],
        "model": rows["model"],
        "training rows used / available": counts["rows_train"] + " / " + counts["rows_available_train"],
        "validation rows used / available": counts["rows_validation"] + " / " + counts["rows_available_validation"],
        "validation rows also in training": rows["task"].map(lambda task: shared[finished.config.tasks[task].corpus]),
        "training examples cut": counts["cut_train"],
        "validation examples cut": counts["cut_validation"],
    }
    return Table("", pd.DataFrame(columns).drop_duplicates(), 2)


def first_rows(finished: Finished) -> dict[str, list[dict[str, str]]]:
    """Return the first training rows of each corpus as papa read them, with the labels of its tasks, cut to a line."""
    shown = {}
    for corpus, path in finished.data.items():
        shown[corpus] = rows = list[dict[str, str]]()
        for read in _head(path):
            row = {name: _on_a_line(read[name]) for name in ("first", "second", "words") if read.get(name) is not None}
            for task, labels in finished.facts[corpus]["labels"].items():
                title, label = finished.config.tasks[task].title or task, read[f"label {task}"]
                names = [labels["names"][value] for value in (label if isinstance(label, list) else [label])]
                row[f"{title} (label)" if title in row else title] = _on_a_line(names)
            rows.append(row)
    return shown


def _head(path: PathLike) -> list[dict[str, Any]]:
    with opened_table(path) as table:
        group = table.group(0) if table.metadata.num_row_groups else table.read()
    rows: list[dict[str, Any]] = group.slice(0, ROWS_SHOWN).to_pylist()
    return [row for row in rows if row["split"] == "train"]


def _on_a_line(value: object) -> str:
    text = " ".join(" ".join(map(str, value) if isinstance(value, list) else [str(value)]).split())
    return text if len(text) <= LINE_CHARACTERS else f"{text[: LINE_CHARACTERS - 2]} …"


def models_table(finished: Finished) -> Table:
    """Return a table with every model's origin, the digest of its weights, and the versions of libraries."""
    rows = []
    for name in dict.fromkeys(model for model, _ in finished.config.pairs):
        model = finished.config.models[name]
        made = read_provenance(finished.of_stage("probe", "probe_encoder", model=name)[0].output)
        row = {"model": name, "hub id": model.hub or "a folder", "revision": model.revision or ""}
        row |= {"SHA-256 of the weights": made.facts.get("weights", "") if made else ""}
        rows.append(row | (dict(sorted(made.packages.items())) if made else {}))
    return Table("", pd.DataFrame(rows).fillna(""), len(rows[0]))


def versions_note(finished: Finished) -> str:
    """Return a sentence if the study's artefacts were made with different versions of packages; otherwise nothing."""
    several = [f"{name} {' and '.join(sorted(used))}" for name, used in finished.packages.items() if len(used) > 1]
    return f"The study's files were made with different versions of packages: {'; '.join(several)}." if several else ""


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


def data_note(finished: Finished) -> str:
    """Return sentences about subsets and clusters of the examples; empty if there are none."""
    config, rows = finished.config, finished.summary
    columns, further = dict[str, dict[str, None]](), dict[str, None]()
    for task, subset in rows.loc[rows["subset"].ne(ALL), ["task", "subset"]].itertuples(index=False):
        column, splits = config.tasks[task].subset, config.corpora[config.tasks[task].corpus].further_splits
        (further if subset in splits or column is None else columns.setdefault(column, {}))[subset] = None
    sources = [f"column {column}: {', '.join(names)}" for column, names in columns.items()]
    corpora = {task: config.corpora[config.tasks[task].corpus] for task in dict.fromkeys(rows["task"])}
    clusters = {task: corpus.cluster for task, corpus in corpora.items() if corpus.cluster is not None}
    sentences = [
        f"Subsets of the validation examples, scored separately: {'; '.join(sources)}." if columns else "",
        f"Further validation splits, scored separately: {', '.join(further)}." if further else "",
        cluster_note({task: config.tasks[task].title or task for task in corpora}, clusters),
    ]
    return " ".join(filter(None, sentences))
