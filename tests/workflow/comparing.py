"""Whether two runs of a workflow came to the same results, and whether everything that one left is intact."""

import re
from collections.abc import Iterator
from pathlib import Path

from papa.files import read_json, read_provenance, read_table, read_tensors
from papa.method.averages import Constants
from papa.method.hidden import check_hidden

READERS = {".parquet": read_table, ".json": read_json, ".safetensors": read_tensors, ".h5": Constants.load}
BY_BYTES = (".json", ".safetensors", ".hidden", ".h5", ".md", ".tex")
DRAWN = (".svg", ".png", ".html")
PASSING = (".log", ".benchmark.tsv", "/.lock", "/.outdated")
"""What tells of time, memory and runs, and so differs from run to run."""


def same_results(one: Path, two: Path) -> None:
    """Assert that two results folders contain the same: files of the same names, the same numbers in them.

    Runs, probes, averages, hidden states and texts have the same bytes, Parquet tables the same rows and provenance;
    of figures only the names are compared, and of the page all but the table of what jobs took.
    """
    left, right = set(results_in(one)), set(results_in(two))
    assert left == right, f"only in {one}: {sorted(left - right)}; only in {two}: {sorted(right - left)}"
    differ = [name for name in sorted(left) if not _same(one / name, two / name)]
    assert not differ, f"{one} and {two} differ in {', '.join(differ)}"


def all_intact(folder: Path) -> None:
    """Assert that every file below a results folder that a finished job may have left is what was written."""
    for name in results_in(folder):
        path = folder / name
        if path.name.startswith("."):
            continue  # what a killed job was writing, and nobody reads
        if path.suffix in READERS:
            READERS[path.suffix](path)
        elif path.suffix == ".hidden" and (index := path.with_suffix(".json")).exists():
            check_hidden(index)
        else:
            assert name.endswith((".hidden", ".md", ".tex", *DRAWN)), f"{path} is no file of a finished job"


def results_in(folder: Path) -> Iterator[str]:
    """Names of the files below a results folder, without logs and benchmarks."""
    for path in folder.rglob("*"):
        if path.is_file() and not str(path).endswith(PASSING):
            yield path.relative_to(folder).as_posix()


def _same(one: Path, two: Path) -> bool:
    if one.suffix in BY_BYTES:
        return one.read_bytes() == two.read_bytes()
    if one.parts[-2:] == ("report", "index.html"):
        return _told(one) == _told(two)
    return one.suffix != ".parquet" or _content(one) == _content(two)


def _told(page: Path) -> str:
    """A page without the digest of all that is on the page."""
    rest, number = re.subn('<meta name="papa-provenance".*?>', "", page.read_text(encoding="utf-8"))
    assert number == 1, page
    return rest


def _content(path: Path) -> str:
    """The rows and provenance of a table, as text, in which what is not a number equals itself."""
    return f"{read_provenance(path)} {read_table(path).to_pydict()}"
