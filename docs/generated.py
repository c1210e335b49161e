"""Write the pages that say again what the code says: docs/cli.md, docs/glossary.md, and the re-reading of the paper's
tables in docs/results.md with its figure. `make docs` calls it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import typer.cli
import vl_convert
from typer.testing import CliRunner

from papa.config.settings import Plots
from papa.results.page import GLOSSARY
from papa.results.published_losses import (
    INTERVALS,
    MAIN_CONSTANT,
    STUDY,
    TASK_TITLES,
    averages_table,
    losses_figure,
    other_constants_table,
    published_losses,
)

DOCS = Path(__file__).parent
GENERATED = "<!-- Written by `make docs`; change {} instead. -->"


def commands() -> str:
    """The commands and options of papa, as typer tells them."""
    asked = ["papa.cli", "utils", "docs", "--name", "papa", "--title", "Commands"]
    written = CliRunner().invoke(typer.cli.app, asked, catch_exceptions=False).output
    title, _, rest = written.partition("\n")
    listed = re.sub(r"^\* `(\w+)`: .*$", r"* [`papa \1`](#papa-\1)", rest.strip(), flags=re.MULTILINE)
    return f"""{title}

{GENERATED.format("papa/cli.py")}

{listed}

Next: [../config/README.md](../config/README.md) has the keys of a config, [api.md](api.md) the same in Python.
"""


def glossary() -> str:
    """The words of papa, as the page of a study explains them."""
    words = "\n".join(f"- **{word}**: {meaning}." for word, meaning in GLOSSARY.items())
    return f"""# Glossary

{GENERATED.format("GLOSSARY in papa/results/page.py")}

These words mean one thing each, in papa's code, on its pages and in its results.

{words}

Next: [method.md](method.md) puts them together, [statistics.md](statistics.md) says how sure losses and claims are.
"""


BEGIN, END = "<!-- published losses: written by `make docs` -->", "<!-- end of published losses -->"
MEASURED = r"^\| (\S+) \|.*\| ([−\d]+) % \(([−\d]+) to ([−\d]+)\) \|[^|]*\|$"
"""A row of the table of six tasks in docs/results.md: the task, and its loss with the interval."""


def results() -> str:
    """The page of results, with the tables of published losses between two marks."""
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    rows = published_losses()
    averages = averages_table(rows[rows["constant"].eq(MAIN_CONSTANT)])
    tables = [
        averages.markdown(),
        "The other constants, against the better floor:",
        other_constants_table(rows).markdown(),
    ]
    return "\n\n".join([f"{before}{BEGIN}", *tables, END]) + rest.split(END)[1]


def measured_losses(page: str) -> pd.DataFrame:
    """The losses of MiniLM on the page of results, in percent there."""
    tasks = {title: name for name, title in TASK_TITLES.items()}
    rows = [
        {"published_task": tasks[title]} | {name: float(cell.replace("−", "-")) / 100 for name, cell in cells.items()}
        for title, *ends in re.findall(MEASURED, page, flags=re.MULTILINE)
        if title in tasks
        for cells in [dict(zip(("loss", "low", "high"), ends, strict=True))]
    ]
    about = {"source": STUDY, "model": "MiniLM", "constant": MAIN_CONSTANT, "interval": INTERVALS[STUDY]}
    return pd.DataFrame(rows).assign(**about)


def published_figure() -> str:
    """The figure of published losses and those of MiniLM, as SVG."""
    rows = [published_losses(), measured_losses((DOCS / "results.md").read_text(encoding="utf-8"))]
    figure = losses_figure(pd.concat(rows, ignore_index=True), Plots())
    return vl_convert.vegalite_to_svg(figure.to_dict())


PAGES = {"cli.md": commands, "glossary.md": glossary, "results.md": results}

if __name__ == "__main__":
    for name, written in PAGES.items():
        (DOCS / name).write_text(written(), encoding="utf-8")
    (DOCS / "figures/published.svg").write_text(published_figure(), encoding="utf-8")
