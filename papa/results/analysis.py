"""An analysis: rows that are computed once, and the tables, figure and sentence that present them.

`analyse` runs every analysis. It writes the rows as Parquet, the tables as Markdown and LaTeX, and the figure as SVG
and PNG. The HTML report reads the rows back and shows the same tables and the same figure.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar

import pandas as pd
from pydantic import BaseModel, ConfigDict

from papa.config.job import Job
from papa.config.stages import AnalysisOf
from papa.errors import InputError, count
from papa.files import PathLike, replacing, write_json, write_table
from papa.results.table import Table, arrow_of, read_frame, write_pages

if TYPE_CHECKING:
    import altair as alt
    import pyarrow as pa

UNDRAWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that XML, and so SVG, cannot contain; any of them makes vl-convert abort the whole process."""
PNG_SCALE = 2
"""The resolution of PNG figures, as a multiple of their size on the screen."""


@dataclass(frozen=True)
class Computed:
    """The result of an analysis: rows, and further outputs.

    Args:
        rows: the rows of the main table.
        facts: the facts that this table records.
        further: the contents of further outputs by name: a table with its facts, or JSON.
        title, sentence: the title and the result in words, if they do not follow from parameters and rows.
    """

    rows: pd.DataFrame
    facts: Mapping[str, object] = field(default_factory=dict)
    further: Mapping[str, tuple[pa.Table, Mapping[str, object]] | dict[str, object]] = field(default_factory=dict)
    title: str = ""
    sentence: str = ""


@dataclass(frozen=True)
class Drawing:
    """The figure of an analysis.

    Args:
        chart: an Altair specification.
        alternative: the alternative text.
        caption: a sentence that explains the figure; empty if there is nothing to compare, so the HTML report leaves
            out the figure.
    """

    chart: alt.TopLevelMixin
    alternative: str
    caption: str = ""


class Analysis(BaseModel, ABC):
    """One analysis; its fields are its parameters.

    A subclass computes rows from the inputs of a job and lays them out. `papa.config.analyses` has an entry for each
    analysis; the job and the section of the HTML report follow from it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: ClassVar[Mapping[str, str]] = {}
    """The columns of the table: name → type."""
    title_text: ClassVar[str] = ""
    note_text: ClassVar[str] = ""
    """The title and the note below the tables, if neither depends on parameters or rows."""
    in_report: ClassVar[bool] = True
    """Whether the analysis has a section in the HTML report; otherwise the report shows the rows elsewhere."""

    @abstractmethod
    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Compute the rows from the inputs of the job."""

    @abstractmethod
    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Lay out the rows in tables for readers."""

    def sentence(self, rows: pd.DataFrame) -> str:
        """Return the result in a sentence, for the terminal and for the HTML report."""
        return count(len(rows), "row")

    def heading(self) -> str:
        """Return the title."""
        return self.title_text

    def note(self, rows: pd.DataFrame) -> str:
        """Return the note that explains the tables."""
        return self.note_text

    def drawing(self, rows: pd.DataFrame, job: Job[AnalysisOf]) -> Drawing | None:
        """Return the figure; None if the analysis has none."""
        return None

    def caption(self, rows: pd.DataFrame) -> str:
        """Return the text that the HTML report shows if there is no figure."""
        return self.sentence(rows)

    def comparable(self, rows: pd.DataFrame) -> bool:
        """Whether the rows deserve a section in the HTML report."""
        return len(rows) > 0

    def read(self, path: PathLike) -> pd.DataFrame:
        """Read the rows of the main table; raise `DamagedArtefact` if the file holds another table."""
        return read_frame(path, self.columns, f"table of {self.heading()}", empty=True)


def analysis_of(settings: AnalysisOf) -> Analysis:
    analysis: Analysis = resolve_name(settings.made_by)(**settings.parameters)
    return analysis


def analyse(job: Job[AnalysisOf]) -> str:
    """Run an analysis, write all outputs, and return the sentence for the terminal.

    The main table comes last, because it marks the job as done.
    """
    analysis = analysis_of(job.settings)
    computed = analysis.compute(job)
    rows, trace = computed.rows, job.trace()
    for name, content in computed.further.items():
        if isinstance(content, tuple):
            write_table(content[0], job.output(name), content[1], trace)
        else:
            write_json(content, job.output(name), trace)
    pages = job.output("markdown"), job.output("latex")
    title = computed.title or analysis.heading()
    write_pages(title, analysis.tables(rows), analysis.note(rows), *pages)
    if "svg" in job.outputs and (drawing := analysis.drawing(rows, job)):
        save_figure(drawing.chart, job.outputs)
    write_table(arrow_of(rows, analysis.columns), job.main, computed.facts, trace)
    return computed.sentence or analysis.sentence(rows)


def save_figure(figure: alt.TopLevelMixin, outputs: Mapping[str, PathLike]) -> None:
    """Write a figure as SVG and as PNG."""
    import vl_convert

    specification = figure.to_dict()
    if bad := next((text for text in _texts_of(specification) if UNDRAWABLE.search(text)), None):
        raise InputError(
            f"The text {bad!r} contains a control character, which cannot be drawn; remove it from the data."
        )
    with replacing(outputs["svg"]) as temporary:
        temporary.write_text(vl_convert.vegalite_to_svg(specification), encoding="utf-8")
    with replacing(outputs["png"]) as temporary:
        temporary.write_bytes(vl_convert.vegalite_to_png(specification, scale=PNG_SCALE))


def _texts_of(specification: object) -> Iterator[str]:
    if isinstance(specification, str):
        yield specification
    elif isinstance(specification, Mapping | list):
        for value in specification.values() if isinstance(specification, Mapping) else specification:
            yield from _texts_of(value)
