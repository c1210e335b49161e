"""The summary as LaTeX tables for a paper, with the rules of booktabs."""

from __future__ import annotations

import re

from papa.artefacts import PathLike, replacing
from papa.summary import blocks, grids, legend, read_rows

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
            tables.append(_table(grid, below, caption))
            explained = ""
    text = "% \\usepackage{booktabs}\n" + "\n".join(tables)
    with replacing(latex) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return f"{len(tables)} LaTeX tables"


def escape(text: str) -> str:
    """`text` as LaTeX sets it, whatever characters are in it; a minus before a number is one."""
    return re.sub(r"(?<![\w.])-(?=\.?\d)", "$-$", text.translate(ESCAPED))


def _table(grid: list[list[str]], below: list[list[str]], caption: str) -> str:
    import pandas as pd

    header, *lines = ([escape(cell) for cell in line] for line in [*grid, *below])
    if below:
        # pandas has rules at the top, below the header and at the bottom only
        first_below = lines[-len(below)]
        first_below[0] = rf"\midrule {first_below[0]}"
    labels = next(place for place, name in enumerate(grid[0]) if name[0].isdigit())
    styler = pd.DataFrame(lines, columns=header).style.hide(axis="index")
    return styler.to_latex(
        hrules=True,
        column_format="l" * labels + "r" * (len(header) - labels),
        position_float="centering",
        caption=escape(caption.strip()),
    )
