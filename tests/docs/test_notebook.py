"""docs/notebook.ipynb runs from a clean kernel, and shows what it says."""

import re

import nbformat
import pytest
from nbclient import NotebookClient
from tiny import REPOSITORY

STORED = nbformat.read(REPOSITORY / "docs/notebook.ipynb", as_version=4)


def outputs(notebook):
    return [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    notebook = nbformat.read(REPOSITORY / "docs/notebook.ipynb", as_version=4)
    path = tmp_path_factory.mktemp("notebook")
    (path / "data").symlink_to(REPOSITORY / "data")
    folder = {"metadata": {"path": str(path)}}
    kernel = notebook.metadata.kernelspec.name
    return NotebookClient(notebook, timeout=900, kernel_name=kernel, resources=folder).execute()


@pytest.mark.slow
def test_it_runs_from_a_clean_kernel(executed):
    assert not [output for output in outputs(executed) if output.output_type == "error"]
    said = [output.text for output in outputs(executed) if output.get("name") == "stderr"]
    assert all(line.startswith("chose: ") for text in said for line in text.splitlines()), said


@pytest.mark.slow
def test_what_is_stored_is_what_it_shows(executed):
    """Numbers may differ in a last digit from processor to processor, but not what the cells show."""
    for cell, stored in zip(executed.cells, STORED.cells, strict=True):
        assert cell.source == stored.source
        if cell.cell_type == "code":
            shown, expected = (
                [sorted(output.data) for output in part.outputs if "data" in output]
                for part in (cell, stored)
            )
            assert shown == expected, cell.source
    assert sum("image/png" in output.get("data", {}) for output in outputs(STORED)) == 4


@pytest.mark.slow
def test_the_answers_are_those_that_are_known(executed):
    shown = [str(output.get("data", {}).get("text/plain", "")) for output in outputs(executed)]
    (curve,) = [text.splitlines()[1:] for text in shown if "replaced" in text and "score" in text]
    scores = [float(row.split()[2]) for row in curve]
    assert all(abs(score - scores[0]) < 0.01 for score in scores[:10])
    assert scores[10] < scores[0] - 0.5
    (study,) = [text for text in shown if text.startswith("<papa.Study")]
    interval = re.search(r"a reliance of \S+ \((-?[0-9]+) to ", study)
    assert interval
    assert int(interval[1]) > 0
