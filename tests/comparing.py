"""Whether two runs of a workflow came to the same results, and whether everything that one left is intact."""

from tiny import ONE_CORE

from papa.commands.inspect import READERS, inspect
from papa.files import read_provenance, read_table

DRAWN = (".svg", ".png", ".html")
PASSING = (".log", "/.lock", "/plan.json", "/.snakemake_timestamp")
"""What tells of runs, and so differs from run to run."""


def same_results(one, two):
    """Assert that two folders contain the same: files of the same names, the same numbers in them.

    Tables have the same rows and provenance, other files the same bytes; of figures and pages only the names are
    compared.
    """
    left = set(results_in(one))
    right = set(results_in(two))
    assert left == right, (
        f"only in {one}: {sorted(left - right)}; only in {two}: {sorted(right - left)}"
    )
    differ = [name for name in sorted(left) if _content(one / name) != _content(two / name)]
    assert not differ, f"{one} and {two} differ in {', '.join(differ)}"


def all_intact(folder):
    """Assert that every file below a folder that a finished job may have left is what was written."""
    for name in results_in(folder):
        path = folder / name
        if (
            path.suffix in READERS
            and not path.name.startswith(".")
            and not path.parent.name.startswith(".")
        ):
            assert (shown := inspect(path))["intact"], shown["damage"]


def completes(workflow, computed):
    """Assert that the next run makes what is missing, so that all is as if nothing had happened."""
    all_intact(workflow.folder / "results")
    workflow.run(*ONE_CORE)
    same_results(computed.folder / "results", workflow.folder / "results")
    assert workflow.planned(None, *ONE_CORE) == {}


def results_in(folder):
    """Names of the files below a folder, without logs and plans."""
    for path in folder.rglob("*"):
        own = path.parent.name in ("jobs", "studies")  # they have the path of the folder
        if path.is_file() and not own and not str(path).endswith(PASSING):
            yield path.relative_to(folder).as_posix()


def _content(path):
    if path.suffix == ".parquet":  # as text, in which what is not a number equals itself
        return f"{read_provenance(path)} {read_table(path).to_pydict()}"
    return b"" if path.suffix in DRAWN else path.read_bytes()
