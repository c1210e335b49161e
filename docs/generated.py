"""Write the pages that say again what the code says: docs/cli.md and docs/glossary.md. `make docs` calls it."""

from __future__ import annotations

import re
from pathlib import Path

import typer.cli
from typer.testing import CliRunner

from papa.results.page import GLOSSARY

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


PAGES = {"cli.md": commands, "glossary.md": glossary}

if __name__ == "__main__":
    for name, written in PAGES.items():
        (DOCS / name).write_text(written(), encoding="utf-8")
