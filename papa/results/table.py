"""Tables of results: as Parquet between stages, and as text for readers (Markdown, LaTeX, HTML, terminal)."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan, nan
from typing import Any

import pandas as pd
import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Printed

from papa.config.measures import MEASURES
from papa.files import PathLike, replacing

Row = dict[Any, Any]
"""A row of a table, or other plain values, by name."""
NAME_WIDTH = 16
"""The maximum width of a column of names if the table is too wide for the terminal."""
LATEX_ESCAPES = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        # at the start of a row, LaTeX would read these two as options of the row before
        "[": "{[}",
        "*": "{*}",
        "±": r"$\pm$",
        "−": "$-$",
        "×": r"$\times$",
        "·": r"$\cdot$",
        "→": r"$\to$",
        "²": "$^2$",
        "…": r"\dots{}",
        "δ": r"$\delta$",
        "λ": r"$\lambda$",
        "τ": r"$\tau$",
    }
)


@dataclass(frozen=True)
class Table:
    """A table for readers.

    Args:
        title: the heading; empty if it would be the only one.
        frame: the text of all cells; text between ** is bold.
        names: the number of columns with names, which come first; the other columns contain numbers.
        note: a note about this table only.
        rules: the indices of rows with a rule above them.
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
    def rows(self) -> list[list[str]]:
        return [[str(cell) for cell in row] for row in self.frame.to_numpy().tolist()]

    def markdown(self) -> str:
        """Format the table in Markdown, with all markup in cells escaped."""
        cells = [
            [escape_markdown(cell).replace("|", "\\|") for cell in row]
            for row in [self.header, *self.rows]
        ]
        header, *lines = ["| " + " | ".join(row) + " |" for row in cells]
        return "\n".join([header, "|" + " --- |" * len(self.header), *lines])

    def latex(self) -> str:
        """Format the table as a LaTeX `table` with booktabs rules, with the title above it and the note below it."""
        columns = "l" * self.names + "r" * (len(self.header) - self.names)
        lines = [" & ".join(map(_latex_cell, row)) + r" \\" for row in self.rows]
        # a rule above each row would separate nothing
        rules = {0, *self.rules} if len(self.rules) < len(lines) else {0}
        ruled = [
            f"\\midrule\n{line}" if index in rules else line for index, line in enumerate(lines)
        ]
        caption = f"{self.title.rstrip('.')}."
        note = rf"\parbox{{\linewidth}}{{\footnotesize {escape_latex(self.note)}}}"
        return "\n".join(
            [
                "% needs \\usepackage{booktabs}",
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{escape_latex(caption)}}}",
                rf"\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                " & ".join(map(_latex_cell, self.header)) + r" \\",
                *ruled,
                r"\bottomrule",
                r"\end{tabular}",
                *([r"\par\smallskip", note] if self.note else []),
                r"\end{table}",
                "",
            ]
        )

    def print(self, console: Console) -> None:
        """Print the table; if it is too wide, cells are wrapped, columns of names at `NAME_WIDTH` characters."""
        title = printable(self.title) or None
        table = Printed(
            box=SIMPLE_HEAD,
            show_edge=False,
            padding=0,
            title=title,
            title_justify="left",
            title_style="bold",
        )
        rows = self.rows
        columns = [
            [*_on_two_lines(name).split("\n"), *cells]
            for name, *cells in zip(self.header, *rows, strict=True)
        ]
        widths = [max(map(len, cells)) for cells in columns]
        too_wide = sum(widths) + len(widths) > console.width
        # if columns were narrower, rich would break words, or leave out columns
        words = [max(map(len, " ".join(cells).split()), default=0) for cells in columns]
        narrowest = [min(NAME_WIDTH, width) for width in widths[: self.names]] + words[self.names :]
        for index, name in enumerate(self.header):
            is_name = index < self.names
            table.add_column(
                _on_two_lines(name),
                justify="left" if is_name else "right",
                overflow="fold",
                min_width=narrowest[index],
                width=narrowest[index] if is_name and too_wide else None,
            )
        for index, row in enumerate(rows):
            if index in self.rules:
                table.add_section()
            table.add_row(*map(printable, row))
        needed = sum(narrowest) + len(narrowest)
        if needed > console.width:
            table.width = needed
        # lines that are too long are better than columns that are missing
        console.print(table, "", crop=False)


def escape_markdown(text: str) -> str:
    """Put `text` on one line, with HTML and links escaped."""
    return html.escape(" ".join(text.split()), quote=False).replace("](", "]\\(")


def escape_latex(text: str) -> str:
    """Put `text` on one line and escape it for LaTeX; a hyphen before a number becomes a minus sign."""
    return re.sub(r"(?<![\w.])-(?=\.?\d)", "$-$", " ".join(text.split()).translate(LATEX_ESCAPES))


def printable(text: str) -> str:
    """Put `text` on one line, with control characters replaced."""
    return "".join(character if character.isprintable() else "·" for character in text)


def _on_two_lines(heading: str) -> str:
    return heading.replace("drop at", "drop\nat").replace("context-free", "context-\nfree")


def _latex_cell(text: str) -> str:
    bold = re.fullmatch(r"\*\*(.+)\*\*", text)
    return rf"\textbf{{{escape_latex(bold[1])}}}" if bold else escape_latex(text)


def write_pages(
    title: str, tables: Sequence[Table], note: str, markdown: PathLike, latex: PathLike
) -> None:
    """Write `tables` in Markdown and in LaTeX; in LaTeX, `note` is below each table that has no note."""
    text = [f"# {escape_markdown(title)}", "", escape_markdown(note)]
    for table in tables:
        text += ["", f"## {escape_markdown(table.title)}"] if table.title else []
        text += ["", escape_markdown(table.note)] if table.note else []
        text += ["", table.markdown()]
    titled = [
        replace(
            table,
            title=f"{title}, {table.title}" if table.title else title,
            note=table.note or note,
        ).latex()
        for table in tables
    ]
    for path, lines in ((markdown, [*text, ""]), (latex, titled)):
        with replacing(path) as temporary:
            temporary.write_text("\n".join(lines), encoding="utf-8")


def score_text(mean: float, half_width: float = nan) -> str:
    """Format a score and its half-width: "0.805 ±.064"; "-" if the score is undefined."""
    if pd.isna(mean):
        return "-"
    if pd.isna(half_width):
        return f"{mean:.3f}"
    return f"{mean:.3f} ±{half_width:.3f}".replace("±0.", "±.")


def percent(share: float | None, decimals: int | None = 0) -> str:
    """Format a share in percent: "34%"; "-" if it is unknown, and "no bound" if it is infinite.

    With `decimals` None, as for a number from a config, it is never rounded.
    """
    if share is None or isnan(share):
        return "-"
    if not isfinite(share):
        return "no bound"
    if decimals is None:
        return f"{100 * share:g}%"
    return f"{round(100 * share, decimals) + 0.0:.{decimals}f}%"  # + 0.0 removes a negative zero


def mean_text(share: float | None) -> str:
    """Format a relative drop or a mean reliance over tasks for a table: "24.8%"."""
    return percent(share, decimals=1)


def used_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out the columns of a table that are empty or unknown in all rows."""
    return frame.loc[:, ~frame.isin(["", "-"]).all()]


def rules_between(names: pd.DataFrame) -> tuple[int, ...]:
    """Return the indices of rows that differ from the row above in any of their names."""
    changed = names.ne(names.shift()).any(axis=1)
    return tuple(changed.to_numpy().nonzero()[0].tolist())


def texts(format_row: Callable[..., str], rows: pd.DataFrame, *columns: str) -> list[str]:
    """Format each row from some of its columns."""
    return list(map(format_row, *(rows[column] for column in columns)))


def metric_name(metric: str, positive: object = None) -> str:
    """Return the name of a metric for readers, such as "Matthews correlation", or "F1 of hate" for a positive class."""
    title = MEASURES[metric].title
    return f"{title} of {positive}" if isinstance(positive, str) else title


def used(rows: float, available: float) -> str:
    """Format the number of rows used: "1,000 of 8,551"."""
    return f"all {rows:,.0f}" if rows == available else f"{rows:,.0f} of {available:,.0f}"


def records_of(frame: pd.DataFrame) -> list[Row]:
    """Return rows as plain values, with None for unknown ones."""
    # as objects, because a column of floats would turn None into NaN
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def arrow_of(frame: pd.DataFrame, columns: Mapping[str, str]) -> pa.Table:
    """Convert `columns` (name → type) of a frame to an Arrow table; unknown values become null."""
    schema = pa.schema(list(columns.items()))
    return pa.Table.from_pandas(frame[list(columns)], schema=schema, preserve_index=False)
