"""Tables of results: as Parquet between stages, and as text for readers (Markdown, LaTeX, HTML, a terminal)."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd

from papa.config.measures import MEASURES
from papa.errors import DamagedArtefact
from papa.files import REBUILD, PathLike, Trace, read_table, replacing, write_table

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

NAME_WIDTH = 16
"""The characters that a name keeps on a line of the terminal, even next to many numbers."""
LATEX_ESCAPES = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {"[": "{[}", "*": "{*}"}  # at the start of a line, LaTeX would read them as options of the line before
    | {"±": r"$\pm$", "−": "$-$", "×": r"$\times$", "λ": r"$\lambda$"}
)


@dataclass(frozen=True)
class Table:
    """A table as people read it.

    Args:
        title: the heading; empty if it would be the only one.
        frame: the text of all cells; a text between ** is bold.
        names: the number of columns with names, which come first; the others contain numbers.
        note: a note that only this table needs.
        rules: the lines with a rule above them, counted from 0.
    """

    title: str
    frame: pd.DataFrame
    names: int
    note: str = ""
    rules: tuple[int, ...] = ()

    @property
    def header(self) -> list[str]:
        return [str(name) for name in self.frame.columns]

    @property
    def lines(self) -> list[list[str]]:
        return [[str(cell) for cell in line] for line in self.frame.to_numpy().tolist()]

    def markdown(self) -> str:
        """Return the table in Markdown, in which no name is markup."""
        cells = [[escape_markdown(cell).replace("|", "\\|") for cell in line] for line in [self.header, *self.lines]]
        header, *lines = ["| " + " | ".join(line) + " |" for line in cells]
        return "\n".join([header, "|" + " --- |" * len(self.header), *lines])

    def latex(self) -> str:
        """Return a LaTeX `table` with the rules of booktabs; the title and the note are its caption."""
        columns = "l" * self.names + "r" * (len(self.header) - self.names)
        lines = [" & ".join(map(_latex_cell, line)) + r" \\" for line in self.lines]
        ruled = ["\\midrule\n" * (number in {0, *self.rules}) + line for number, line in enumerate(lines)]
        caption = f"{self.title.rstrip('.')}. {self.note}".strip()
        begin = [r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(caption)}}}"]
        begin += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(map(_latex_cell, self.header)) + r" \\"]
        return "\n".join([*begin, *ruled, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def fitting(self, width: int) -> list[Table]:
        """Cut the table into tables that fit a terminal of `width` characters, with the names in each."""
        widths = self._widths()
        if sum(widths) + len(widths) <= width:
            return [self]
        names = sum(min(NAME_WIDTH, width) + 1 for width in widths[: self.names])
        pages, used = list[list[int]](), width
        for place, column in enumerate(widths[self.names :], start=self.names):
            if used + column + 1 > width:
                pages.append([])
                used = names
            pages[-1].append(place)
            used += column + 1
        return [replace(self, frame=self.frame.iloc[:, [*range(self.names), *page]]) for page in pages]

    def print(self, console: Console) -> None:
        """Print the table. If it is too wide, cells are broken at spaces, and names keep their width longest."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as Printed

        title = printable(self.title) or None
        table = Printed(
            box=SIMPLE_HEAD, show_edge=False, padding=0, title=title, title_justify="left", title_style="bold"
        )
        widths = self._widths()
        too_wide = sum(widths) + len(widths) > console.width
        for number, name in enumerate(self.header):
            is_name = number < self.names
            table.add_column(
                _on_lines(name),
                justify="left" if is_name else "right",
                overflow="fold",
                width=min(NAME_WIDTH, widths[number]) if is_name and too_wide else None,
            )
        for number, line in enumerate(self.lines):
            if number in self.rules:
                table.add_section()
            table.add_row(*map(printable, line))
        console.print(table, "")

    def _widths(self) -> list[int]:
        """Return the width of each column in a terminal, where headings may have two lines."""
        below = [[line[number] for line in self.lines] for number in range(len(self.header))]
        headings = [_on_lines(name).split("\n") for name in self.header]
        return [max(map(len, cells)) for cells in map(list.__add__, headings, below)]


def escape_markdown(text: str) -> str:
    """Return `text` on one line, without HTML and links."""
    return html.escape(" ".join(text.split()), quote=False).replace("](", "]\\(")


def escape_latex(text: str) -> str:
    """Return `text` on a single line for LaTeX; a hyphen before a number is a minus."""
    return re.sub(r"(?<![\w.])-(?=\.?\d)", "$-$", " ".join(text.split()).translate(LATEX_ESCAPES))


def printable(text: str) -> str:
    """Return `text` on a single line, without control characters."""
    return "".join(character if character.isprintable() else "·" for character in text)


def _on_lines(heading: str) -> str:
    """Break a long heading into two lines."""
    return heading.replace("drop at", "drop\nat").replace("contextless", "context-\nless")


def _latex_cell(text: str) -> str:
    bold = re.fullmatch(r"\*\*(.+)\*\*", text)
    return rf"\textbf{{{escape_latex(bold[1])}}}" if bold else escape_latex(text)


def write_pages(title: str, tables: Sequence[Table], note: str, markdown: PathLike, latex: PathLike) -> None:
    """Write `tables` in Markdown and in LaTeX. In LaTeX, a table without a note has `note` in its caption."""
    text, floats = [f"# {escape_markdown(title)}", "", escape_markdown(note)], ["% \\usepackage{booktabs}"]
    for table in tables:
        text += ["", f"## {escape_markdown(table.title)}"] if table.title else []
        text += ["", escape_markdown(table.note)] if table.note else []
        text += ["", table.markdown()]
        heading = f"{title}, {table.title}" if table.title else title
        floats.append(Table(heading, table.frame, table.names, table.note or note, table.rules).latex())
    for path, lines in ((markdown, [*text, ""]), (latex, floats)):
        with replacing(path) as temporary:
            temporary.write_text("\n".join(lines), encoding="utf-8")


def score_text(mean: float, half_width: float) -> str:
    """Return a score and half of its interval, "0.805 ±.064", or "-" if the score is not defined."""
    if pd.isna(mean):
        return "-"
    return f"{mean:.3f}" + ("" if pd.isna(half_width) else f" ±{half_width:.3f}".replace("±0.", "±."))


def texts(form: Callable[..., str], rows: pd.DataFrame, *columns: str) -> list[str]:
    """Return a text for each row, made of some of its columns."""
    return [form(*values) for values in zip(*(rows[column] for column in columns), strict=True)]


def metric_name(metric: str) -> str:
    """Return the name of a metric for readers: `matthews_correlation` is "Matthews correlation"."""
    return MEASURES[metric].title


def used(rows: float, available: float) -> str:
    """Return how many of the available rows were used: "1,000 of 8,551"."""
    return f"all {rows:,.0f}" if rows == available else f"{rows:,.0f} of {available:,.0f}"


def read_frame(path: PathLike, columns: Mapping[str, str], what: str, empty: bool = False) -> pd.DataFrame:
    """Read the rows of a Parquet table with `columns` (name → type).

    Raises:
        DamagedArtefact: the table has other columns, or it has no rows and may not be `empty`.
    """
    table = read_table(path)
    missing = [name for name in columns if name not in table.column_names]
    if missing or not (empty or table.num_rows):
        problem = f"has no column {missing[0]!r}" if missing else "has no rows"
        raise DamagedArtefact(f"{path} {problem}, so it is no {what} of papa; {REBUILD}.")
    frame: pd.DataFrame = table.to_pandas()
    return frame


def write_frame(
    frame: pd.DataFrame, columns: Mapping[str, str], path: PathLike, facts: Mapping[str, object], trace: Trace
) -> None:
    """Write `columns` (name → type) of `frame` as Parquet with `facts` about it; unknown values are null."""
    write_table(arrow_of(frame, columns), path, facts, trace)


def arrow_of(frame: pd.DataFrame, columns: Mapping[str, str]) -> pa.Table:
    """Return `columns` (name → type) of a frame as an Arrow table; unknown values are null."""
    import pyarrow as pa

    schema = pa.schema(list(columns.items()))
    return pa.Table.from_pandas(frame[list(columns)], schema=schema, preserve_index=False)
