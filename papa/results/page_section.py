"""A section of the HTML report: tables, a figure, and the sentences that explain them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd

from papa.config.study import Study
from papa.results.outcomes import ALL
from papa.results.summary import is_main
from papa.results.table import Table

if TYPE_CHECKING:
    import altair as alt


MOST_LINES = 30
"""Tables with more lines together are closed at first."""


@dataclass(frozen=True)
class Section:
    """A part of the HTML report: tables, and a figure if there is one.

    Args:
        id, title: its name for links, and its heading.
        note: how to read the tables.
        figure: a specification of Vega-Lite.
        alternative: the alternative text of the figure.
        caption: a sentence under the figure, or instead of a figure.
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
        """Whether the tables are closed at first: if there is a figure, or if they are long."""
        return self.figure is not None or sum(len(table.lines) for table in self.tables) > MOST_LINES

    def drawn(self, chart: alt.TopLevelMixin, alternative: str, caption: str) -> Section:
        """Return the section with a figure; the section's heading replaces the figure's title."""
        specification = {key: value for key, value in chart.to_dict().items() if key != "title"}
        return replace(self, figure=specification, alternative=alternative, caption=caption)


def sentence(text: str) -> str:
    """Return `text` with a capital and a full stop, unless it is empty."""
    first = text[:1].upper() if text[:1].isascii() else text[:1]  # λ stays small
    return unbroken(f"{first}{text[1:].removesuffix('.')}.") if text else ""


def unbroken(text: str) -> str:
    """Return `text` in which numbers stay on one line with their %, and have a minus instead of a hyphen."""
    return re.sub(r"(?<![\w.])-(?=\.?\d)", "−", text.replace(" %", "\u00a0%"))


def examples_in(rows: pd.DataFrame) -> str:
    """Return the number of validation examples of the tasks in `rows` of a summary."""
    numbers = sorted(rows.loc[is_main(rows), "examples"].unique())
    return f"n = {span(numbers)} validation examples{' per task' if rows['task'].nunique() > 1 else ''}"


def span(numbers: Sequence[int]) -> str:
    """Return the smallest and the largest of rising numbers, once if they are equal."""
    least, most = numbers[0], numbers[-1]
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def about_subsets(study: Study, rows: pd.DataFrame) -> str:
    """Return the origin of the subsets in `rows`, in a sentence; empty if there are none."""
    columns: dict[str, dict[str, None]] = {}
    further: dict[str, None] = {}
    for task, subset in rows.loc[rows["subset"].ne(ALL), ["task", "subset"]].itertuples(index=False):
        splits = study.config.corpora[study.config.tasks[task].corpus].more_validation or ()
        column = study.config.tasks[task].subset
        (further if subset in splits or column is None else columns.setdefault(column, {}))[subset] = None
    sources = [f"column {column}: {', '.join(names)}" for column, names in columns.items()]
    text = f"Subsets: parts of the validation examples that the config scores separately ({'; '.join(sources)})."
    more = f"Further validation splits, scored separately: {', '.join(further)}."
    return " ".join([text] * bool(columns) + [more] * bool(further))
