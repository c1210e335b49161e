"""A section of the HTML report: tables, a figure, and sentences that explain them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd

from papa.config.study import Study
from papa.results.outcomes import ALL
from papa.results.summary import cluster_note, is_main, moved_note
from papa.results.table import Table

if TYPE_CHECKING:
    import altair as alt


FOLDED_ROWS = 30
"""Tables are folded at first if they have more rows than this in total."""


@dataclass(frozen=True)
class Section:
    """A section of the HTML report: tables, and a figure if there is one.

    Args:
        id, title: the target of links, and the heading.
        note: the note below the tables.
        figure: a Vega-Lite specification.
        alternative: the alternative text of the figure.
        caption: a sentence below the figure, or in place of a figure.
    """

    id: str
    title: str
    note: str
    tables: Sequence[Table]
    figure: dict[str, object] | None = None
    alternative: str = ""
    caption: str = ""

    @property
    def folded(self) -> bool:
        """Whether the tables are folded at first, because there is a figure or they are long."""
        return self.figure is not None or sum(len(table.rows) for table in self.tables) > FOLDED_ROWS

    def drawn(self, chart: alt.TopLevelMixin, alternative: str, caption: str) -> Section:
        """Return the section with a figure, whose title is dropped in favour of the section's heading."""
        specification = {key: value for key, value in chart.to_dict().items() if key != "title"}
        return replace(self, figure=specification, alternative=alternative, caption=caption)


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


def data_note(study: Study, rows: pd.DataFrame) -> str:
    """Return sentences about subsets, clusters and the origin of the examples in `rows`; empty if there are none."""
    config = study.config
    corpora = {task: config.corpora[config.tasks[task].corpus] for task in dict.fromkeys(rows["task"])}
    clusters = {task: corpus.cluster for task, corpus in corpora.items() if corpus.cluster is not None}
    moved = {task: number for task, corpus in corpora.items() if (number := corpus.validation_from_train) is not None}
    titles = {task: config.tasks[task].title or task for task in corpora}
    notes = subset_note(study, rows), cluster_note(titles, clusters), moved_note(titles, moved)
    return " ".join(filter(None, notes))


def subset_note(study: Study, rows: pd.DataFrame) -> str:
    """Return a sentence about the origin of the subsets in `rows`; empty if there are none."""
    columns: dict[str, dict[str, None]] = {}
    further: dict[str, None] = {}
    for task, subset in rows.loc[rows["subset"].ne(ALL), ["task", "subset"]].itertuples(index=False):
        splits = study.config.corpora[study.config.tasks[task].corpus].more_validation or ()
        column = study.config.tasks[task].subset
        (further if subset in splits or column is None else columns.setdefault(column, {}))[subset] = None
    sources = [f"column {column}: {', '.join(names)}" for column, names in columns.items()]
    of_columns = f"Subsets of the validation examples, scored separately: {'; '.join(sources)}."
    of_splits = f"Further validation splits, scored separately: {', '.join(further)}."
    return " ".join([of_columns] * bool(columns) + [of_splits] * bool(further))
