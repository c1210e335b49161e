"""Whether two runs of a workflow came to the same results, and whether everything that one left is whole."""

import re
from collections.abc import Iterator
from pathlib import Path

from papa.files import SEAL, check_seal, read_table

SEALED = (".parquet", ".json", ".h5", ".safetensors")
BY_BYTES = (".json", ".safetensors", ".hidden", ".h5", ".md", ".tex")
DRAWN = (".svg", ".png", ".html")
PASSING = (".log", ".benchmark.tsv")
"""What tells of time and memory, and so differs from run to run."""


def same_results(one: Path, two: Path) -> None:
    """Assert that two results folders hold the same: files of the same names, the same numbers in them.

    Runs, probes, averages, hidden states and texts have the same bytes, Parquet tables the same rows and provenance;
    of figures only the names are compared, and of the report all but the table of what jobs took.
    """
    left, right = set(results_in(one)), set(results_in(two))
    assert left == right, f"only in {one}: {sorted(left - right)}; only in {two}: {sorted(right - left)}"
    differ = [name for name in sorted(left) if not _same(one / name, two / name)]
    assert not differ, f"{one} and {two} differ in {', '.join(differ)}"


def all_whole(folder: Path) -> None:
    """Assert that every file below a results folder is known, and what was written."""
    for name in results_in(folder):
        if name.endswith(SEALED):
            check_seal(folder / name)
        else:
            assert name.endswith((".hidden", *BY_BYTES, *DRAWN)), f"{folder / name} is no file of a finished job"


def results_in(folder: Path) -> Iterator[str]:
    """Names of the files below a results folder, without logs and benchmarks."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.endswith(PASSING):
            yield path.relative_to(folder).as_posix()


def _same(one: Path, two: Path) -> bool:
    if one.suffix in BY_BYTES:
        return one.read_bytes() == two.read_bytes()
    if one.parts[-2:] == ("report", "index.html"):
        return _told(one) == _told(two)
    return one.suffix != ".parquet" or _content(one) == _content(two)


def _told(page: Path) -> str:
    """A report without the table of seconds and memory."""
    told, number = re.subn('<table id="jobs-0">.*?</table>', "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert number == 1, page
    return told


def _content(path: Path) -> str:
    """The columns, rows and provenance of a table, as text, in which what is not a number equals itself."""
    table = read_table(path)
    about = {name: text for name, text in table.schema.metadata.items() if name != SEAL.encode()}
    return f"{table.schema.types} {about} {table.to_pydict()}"
