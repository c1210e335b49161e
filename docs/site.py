"""Lay out the pages of this repository in build/, and build the site from them: `make docs`.

Every page stays where it is, with links that work there. In a copy, links get the places that pages have on the site.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import unquote

REPOSITORY = Path(__file__).parents[1]
BUILD = REPOSITORY / "build"
ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks.md",
    "config/README.md": "config.md",
    "docs/notebook.ipynb": "notebook.md",
    "results/README.md": "artefacts.md",
}
"""Pages elsewhere, or not in Markdown, and their names on the site. The front page there is docs/index.md."""
UNLISTED = {"models.md"}
"""Pages that other pages link to, and that the navigation leaves out."""
PIECE = re.compile(r"```.*?```|`[^`\n]+`|\]\(([^)\s#]+)(#[^)\s]*)?\)", re.DOTALL)
"""Code, where nothing is a link, or the target of a link to another file."""
FILTER = """<input type="search" id="rows" aria-label="Filter the tables" placeholder="Filter by name, such as bert"
style="border: 1px solid; padding: .4em .6em; width: 100%; max-width: 24em">
<script>
document.getElementById("rows").addEventListener("input", event => {
  const wanted = event.target.value.toLowerCase()
  for (const row of document.querySelectorAll("article tbody tr"))
    row.hidden = !row.textContent.toLowerCase().includes(wanted)
})
</script>
"""
"""A field that hides the rows of tables without the text in it."""


def sources() -> dict[str, str]:
    """The pages of the repository, by their names on the site."""
    pages = {page.name: f"docs/{page.name}" for page in sorted((REPOSITORY / "docs").glob("*.md"))}
    return {target: source for source, target in ELSEWHERE.items() if target not in pages} | pages


def navigation(entries: list[dict[str, object]]) -> list[str]:
    """The pages that the navigation names."""
    named: list[str] = []
    for entry in entries:
        for below in entry.values():
            named += navigation(below) if isinstance(below, list) else [str(below)]
    return named


def place(file: Path) -> str:
    """Where a file of the repository lies on the site."""
    path = file.relative_to(REPOSITORY).as_posix()
    return ELSEWHERE.get(path, path.removeprefix("docs/"))


def with_links_of_site(text: str, folder: Path, pages: Path) -> str:
    """The text of a page of `folder`, with links as on the site. Files that are no pages are copied beside it."""

    def linked(match: re.Match[str]) -> str:
        target, heading = match.groups()
        file = Path(os.path.normpath(folder / unquote(target or "")))
        if not target or not file.is_file():  # an address, or a dead link, which zensical tells
            return match[0]
        copy = pages / place(file)
        if copy.suffix != ".md":
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        return f"]({place(file)}{heading or ''})"

    return PIECE.sub(linked, text)


def text_of_notebook(notebook: Path, pages: Path) -> str:
    """A notebook as Markdown, with what its cells gave; pictures become files."""
    parts = []
    for at, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                (pages / "figures").mkdir(exist_ok=True)
                (pages / f"figures/notebook-{at}.png").write_bytes(
                    base64.b64decode(data["image/png"])
                )
                parts.append(f"![what the cell above draws](figures/notebook-{at}.png)")
            elif "text/plain" in data:
                parts.append("```text\n" + "".join(data["text/plain"]) + "\n```")
            elif output["output_type"] == "stream":
                parts.append("```text\n" + "".join(output["text"]).rstrip() + "\n```")
    return "\n\n".join(parts)


def lay_out(pages: Path) -> None:
    """Write all pages of the site into a folder, which must not be there."""
    pages.mkdir(parents=True)
    shutil.copy(REPOSITORY / "docs/tables.css", pages)
    for name, path in sources().items():
        source = REPOSITORY / path
        text = (
            text_of_notebook(source, pages)
            if source.suffix == ".ipynb"
            else source.read_text(encoding="utf-8")
        )
        if name in UNLISTED:
            title, rest = text.split("\n\n", 1)
            text = f"{title}\n\n{FILTER}\n{rest}"
        (pages / name).write_text(with_links_of_site(text, source.parent, pages), encoding="utf-8")


def main() -> None:
    settings = REPOSITORY / "docs/zensical.toml"
    named = navigation(tomllib.loads(settings.read_text(encoding="utf-8"))["project"]["nav"])
    listed = set(sources()) - UNLISTED
    if sorted(named) != sorted(listed):
        differing = ", ".join(sorted(set(named) ^ listed))
        raise SystemExit(
            f"The navigation of docs/zensical.toml must have each page once, and only pages: {differing}."
        )
    for old in ("pages", "site"):
        shutil.rmtree(BUILD / old, ignore_errors=True)
    lay_out(BUILD / "pages")
    shutil.copyfile(settings, BUILD / settings.name)
    build = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--strict",
        "--clean",
        "--config-file",
        settings.name,
    ]
    raise SystemExit(subprocess.run(build, cwd=BUILD).returncode)


if __name__ == "__main__":
    main()
