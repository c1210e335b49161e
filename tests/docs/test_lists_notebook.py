"""docs/lists.ipynb runs from a clean kernel, and its losses say which lists are right."""

import ast
import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import papa

PAGE = Path(__file__).parents[2] / "docs/lists.ipynb"
STORED = nbformat.read(PAGE, as_version=4)


def losses_in(notebook):
    """The loss of each list or order in the tables that the cells show, by its name."""
    shown = [
        output.get("data", {}).get("text/plain", "") for cell in notebook.cells for output in cell.get("outputs", [])
    ]
    rows = [line.rsplit(maxsplit=6) for text in shown if "loss_low" in text for line in text.splitlines()[2:]]
    return {name.strip(): float(loss) for name, _, _, _, loss, _, _ in rows}


def right(losses):
    return (
        abs(losses["right"]) < 0.02
        and losses["zeroing"] > 0.9
        and losses["lambda"] < 0.2 < 0.4 < min(losses["far"], losses["sharp"])
    )


def test_what_is_stored_says_which_lists_are_right():
    assert right(losses_in(STORED))


def test_its_names_exist():
    code = "\n".join(
        cell.source for cell in STORED.cells if cell.cell_type == "code" and not cell.source.startswith("!")
    )
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == "papa"}
    assert {"sweep", "learn_lambda", "average_attention"} <= used <= set(papa.__all__)


@pytest.mark.slow
def test_it_runs_from_a_clean_kernel(monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(PAGE, as_version=4)
    NotebookClient(notebook, timeout=1200, kernel_name=notebook.metadata.kernelspec.name).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert right(losses_in(notebook))
