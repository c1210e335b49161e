"""A section: rows that an analysis computed, and the tables, chart and sentences that present them.

A section is written as Parquet, Markdown, LaTeX, SVG and PNG, and the HTML report shows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import altair as alt
import pandas as pd
import vl_convert

from papa.errors import InputError
from papa.files import Record, replacing, write_table
from papa.results.table import Table, arrow_of, write_pages

UNDRAWABLE = re.compile(r"(?<!\\)(?:\\\\)*(?:\\u00[01]|\\[bf]|[\ufffe\uffff])")
"""Characters, as JSON has them, that SVG cannot contain; any of them makes vl-convert abort the whole process."""
PNG_SCALE = 2
"""The resolution of PNG figures, as a multiple of their size on the screen."""


@dataclass(frozen=True)
class Section:
    """The result of an analysis.

    Args:
        name: the name of its files, and the target of links.
        title: the heading.
        frame: the rows to be written as Parquet.
        columns: the columns of `frame` that are written: name → type.
        tables: the tables for readers.
        note: the note that explains the tables.
        facts: the facts that the Parquet table records.
        chart: an Altair chart; None if there is nothing to draw.
        alternative: the alternative text of the chart.
        caption: the text below the chart.
        in_report: whether the HTML report has the section; otherwise there are only files.
    """

    name: str
    title: str
    frame: pd.DataFrame
    columns: Mapping[str, str]
    tables: Sequence[Table] = ()
    note: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    chart: alt.TopLevelMixin | None = None
    alternative: str = ""
    caption: str = ""
    in_report: bool = True

    def write(self, results: Path, record: Record | None = None) -> tuple[list[Path], str]:
        """Write all files of the section to `tables/` and `figures/`; return their paths, and the chart as SVG."""
        table, markdown, latex = (
            results / f"tables/{self.name}.{suffix}" for suffix in ("parquet", "md", "tex")
        )
        paths = [table]
        svg = ""
        if self.tables:
            write_pages(self.title, self.tables, self.note, markdown, latex)
            paths += [markdown, latex]
        if self.chart is not None:
            figures = [results / f"figures/{self.name}.{suffix}" for suffix in ("svg", "png")]
            svg = draw(self.chart, *figures)
            paths += figures
        write_table(
            arrow_of(self.frame, self.columns), table, {"table": self.name, **self.facts}, record
        )
        return paths, svg


def draw(chart: alt.TopLevelMixin, svg: Path, png: Path) -> str:
    """Write a chart as SVG and as PNG; return the SVG."""
    specification, text = svg_of(chart)
    with replacing(svg) as temporary:
        temporary.write_text(text, encoding="utf-8")
    with replacing(png) as temporary:
        temporary.write_bytes(vl_convert.vegalite_to_png(specification, scale=PNG_SCALE))
    return text


def svg_of(chart: alt.TopLevelMixin) -> tuple[str, str]:
    """Return the Vega-Lite specification of a chart, and the chart as SVG."""
    specification = chart.to_json(indent=None, ensure_ascii=False)
    if bad := UNDRAWABLE.search(specification):
        text = specification[max(0, bad.start() - 20) : bad.end() + 20]
        raise InputError(
            f"The text …{text}… contains a control character, which cannot be drawn; remove it from the data."
        )
    return specification, vl_convert.vegalite_to_svg(specification)


def narrow_svg(chart: alt.TopLevelMixin | None) -> str:
    """Return panels in one column, without the heading, which the page has, too; empty if the chart has no panels."""
    if not isinstance(chart, alt.ConcatChart):
        return ""
    chart = chart.copy()
    chart.columns = 1
    chart.title = alt.Undefined
    return svg_of(chart.configure_legend(orient="bottom", columns=1))[1]
