"""docs/colab.ipynb runs with papa's base, also in an environment that already has older packages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import REPOSITORY, in_python

import papa
from papa.errors import EXTRAS

CELLS = json.loads((REPOSITORY / "docs/colab.ipynb").read_text(encoding="utf-8"))["cells"]
SOURCES = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
INSTALLS, CODE = SOURCES[0], "\n".join(SOURCES[1:])
HIDDEN = sorted({*EXTRAS["workflow"], "IPython"} - {"tqdm", "yaml"})
"""transformers itself brings tqdm and yaml."""
BEFORE = ("transformers==4.56.0", "numpy==2.0.2", "torch==2.13.0", "safetensors==0.8.0")
"""An environment before papa is installed."""
CHANGED = {"huggingface_hub", "tokenizers", "transformers"}


def shows_the_known_answers(shown):
    lookup = re.findall(r"last layer, head (\d): .* by ([\d.]+)%", shown)
    assert [head for head, change in lookup if float(change) > 1] == ["2"] and len(lookup) == 5, shown
    original, *replaced = [float(nats) for nats in re.findall(r"replaced: ([\d.]+)", shown)]
    assert [head for head, nats in enumerate(replaced) if nats > original + 0.1] == [7] and len(replaced) == 10, shown


def test_it_installs_only_the_core_and_has_no_outputs():
    assert INSTALLS == "%pip install --quiet /content/papa"
    assert all(cell["outputs"] == [] for cell in CELLS if cell["cell_type"] == "code")
    assert set(re.findall(r"papa\.([a-z_]+)\(", CODE)) <= set(papa.__all__)


@pytest.mark.slow
def test_it_runs_without_the_extras(tmp_path):
    hide = f"import sys; sys.modules.update(dict.fromkeys({HIDDEN}))\n"
    process = in_python(hide + CODE, folder=tmp_path)
    assert process.returncode == 0, process.stderr
    shows_the_known_answers(process.stdout)


@pytest.mark.slow
def test_it_runs_where_older_packages_were_installed(tmp_path):
    """Only transformers and its two companions change; numpy and torch stay."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*words: str | Path) -> str:
        process = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1800)
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    python = tmp_path / "environment/bin/python"
    run(sys.executable, "-m", "venv", tmp_path / "environment")
    run(python, "-m", "pip", "install", "--quiet", *BEFORE)
    before = dict(line.split("==") for line in run(python, "-m", "pip", "freeze").splitlines())
    run(python, "-m", "pip", "install", "--quiet", REPOSITORY)
    after = dict(line.split("==") for line in run(python, "-m", "pip", "freeze").splitlines() if "==" in line)
    assert {name for name in before if after.get(name) != before[name]} == CHANGED
    shows_the_known_answers(run(python, "-c", CODE))
