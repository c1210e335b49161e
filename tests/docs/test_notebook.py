"""docs/notebook.ipynb runs from a clean kernel, and shows what it says."""

import ast
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import papa

REPOSITORY = Path(__file__).parents[2]
STORED = nbformat.read(REPOSITORY / "docs/notebook.ipynb", as_version=4)


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    notebook = nbformat.read(REPOSITORY / "docs/notebook.ipynb", as_version=4)
    folder = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    kernel = notebook.metadata.kernelspec.name
    return NotebookClient(notebook, timeout=900, kernel_name=kernel, resources=folder).execute()


def test_its_names_exist():
    code = ast.parse("\n".join(cell.source for cell in STORED.cells if cell.cell_type == "code"))
    imports = [node for node in ast.walk(code) if isinstance(node, ast.ImportFrom) and node.module.startswith("papa")]
    assert all(hasattr(import_module(node.module), name.name) for node in imports for name in node.names) and imports
    used = {
        node.attr
        for node in ast.walk(code)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "papa"
    }
    assert {"load_model", "average_attention"} <= used <= set(papa.__all__)


@pytest.mark.slow
def test_it_runs_from_a_clean_kernel(executed):
    assert not [output for output in outputs(executed) if output.output_type == "error"]
    assert not [output for output in outputs(executed) if output.get("name") == "stderr"]


@pytest.mark.slow
def test_what_is_stored_is_what_it_shows(executed):
    """Numbers may differ in a last digit from processor to processor, but not what the cells show."""
    for cell, stored in zip(executed.cells, STORED.cells, strict=True):
        assert cell.source == stored.source
        if cell.cell_type == "code":
            shown, expected = ([sorted(output.get("data", {})) for output in own.outputs] for own in (cell, stored))
            assert shown == expected, cell.source
    assert sum("image/png" in output.get("data", {}) for output in outputs(STORED)) == 2


@pytest.mark.slow
def test_the_drop_is_where_content_must_be_looked_up(executed):
    shown = [str(output.get("data", {}).get("text/plain", "")) for output in outputs(executed)]
    (table,) = [text for text in shown if text.startswith("fraction")]
    rows = {line.split()[0]: [float(score) for score in line.split()[1:]] for line in table.splitlines()[2:]}
    assert rows["position"][0] > 0.95 and rows["lookup"][-1] - rows["lookup"][0] > 0.05
