"""The summary as LaTeX tables for a paper, with the rules of booktabs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from papa.files import PathLike, replacing
from papa.results.summary import blocks, grids, legend, read_rows

Part = Sequence[Sequence[str]]
"""Lines of a table that stand together, without a rule between them."""

ESCAPED = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {"[": "{[}", "*": "{*}"}  # at the start of a line they would belong to the end of the line before
    | {"±": r"$\pm$", "−": "$-$", "×": r"$\times$", "λ": r"$\lambda$"}
)


def write_latex(summary: PathLike, latex: PathLike) -> str:
    """Write the tables of `summary` (as its Markdown has them, but for the page's data) for `\\input` in a document.

    One `table` per model and series, and one each for subsets and further readings; they need
    `\\usepackage{booktabs}`. The first says what the cells mean. Raises `DamagedArtefact` for another table.
    """
    rows = read_rows(summary)
    tables, explained = [], legend(rows)
    for title, own in blocks(rows):
        for name, grid, below in grids(own):
            caption = f"{title}. {name}".strip(" .") + f". {explained}"
            names = next(place for place, column in enumerate(grid[0]) if column[0].isdigit())
            tables.append(latex_table([grid[:1], grid[1:], *([below] if below else [])], names, caption))
            explained = ""
    text = "% \\usepackage{booktabs}\n" + "\n".join(tables)
    with replacing(latex) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return f"{len(tables)} LaTeX tables"


def escape(text: str) -> str:
    """`text` as LaTeX sets it, whatever characters are in it; a minus before a number is one."""
    return re.sub(r"(?<![\w.])-(?=\.?\d)", "$-$", text.translate(ESCAPED))


def latex_table(parts: Sequence[Part], names: int, caption: str) -> str:
    """A `table` of the lines in `parts`, the first of which is the header, with a rule between any two of them.

    The first `names` columns are flush left, the numbers behind them flush right. Cells between ** are bold.
    """
    columns = "l" * names + "r" * (len(parts[0][0]) - names)
    body = "\n\\midrule\n".join("\n".join(" & ".join(map(_cell, line)) + r" \\" for line in part) for part in parts)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escape(caption.strip())}}}"]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", body, r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    bold = re.fullmatch(r"\*\*(.+)\*\*", text)
    return rf"\textbf{{{escape(bold[1])}}}" if bold else escape(text)
