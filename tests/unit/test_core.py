"""The base of papa, without the packages of the extras: hidden from a new process, which uses papa's public names."""

import re
import tomllib
from importlib.metadata import packages_distributions

import pytest
from random_models import random_model
from tiny import REPOSITORY, in_python

from papa.errors import EXTRAS

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRA = PROJECT["optional-dependencies"]
OF_TRANSFORMERS = {"tqdm", "yaml"}
"""transformers itself imports these."""
OTHERS = "IPython click huggingface_cli matplotlib pyarrow.parquet sklearn seqeval snakemake_interface_common".split()
HIDE = f"import sys; sys.modules.update(dict.fromkeys({sorted({*EXTRAS['workflow'], *OTHERS} - OF_TRANSFORMERS)}))\n"
"""Importing a module that is None in `sys.modules` fails as if it were not installed."""
BEGIN = """
import sys
import torch
from pathlib import Path
from transformers import AutoModel, AutoTokenizer
import papa

folder = sys.argv[1]
def laid_out(folder, texts, slots):
    return papa.lay_out(AutoTokenizer.from_pretrained(folder), texts, slots=slots)
"""
ENCODER = """
model, inputs = papa.load_model(folder), laid_out(folder, ["the cat is tired", "where are the big flowers"], 11)
constants = papa.average_attention(model, [inputs])
constants.save("c.h5")
assert torch.equal(papa.Constants.load("c.h5").mean, constants.mean)
hidden = model.hidden_states(inputs, constants, heads=[(0, 1)])
assert hidden.shape[:3] == (2, model.layers + 1, 11)
assert papa.learn_lambda(model, constants, [inputs], ["one", "two"], epochs=1).shape == (model.layers, model.heads)
assert papa.Constants.of("uniform", model.layers, model.heads, 11).mean.shape[-1] == 11
stock = AutoModel.from_pretrained(folder)
with papa.replaced_attention(stock, constants, heads=[(0, 1)]) as plain:
    assert plain(**inputs)[0].shape[0] == 2
print("end")
"""
DECODER = """
texts = Path(folder, "../repeats/train.txt").read_text().splitlines()[:3]
model, inputs = papa.load_model(folder), laid_out(folder, texts, 13)
constants = papa.average_attention(model, [inputs], kind="by-distance")
assert model.logits(inputs, constants).shape[:2] == (3, 13)
assert papa.learn_lambda(model, constants, [inputs], epochs=1).shape == (2, 5)
print("end")
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_the_base_works_without_the_extras(tmp_path, part):
    folder = random_model("bert") if part is ENCODER else REPOSITORY / "data/demo/induction"
    process = in_python(HIDE + BEGIN + part, folder, folder=tmp_path)
    assert process.stdout == "end\n", process.stderr


PLOT = "papa.Constants(*[torch.ones(1)] * 2, 1, {}).plot(0, 1)"
STUDY = "needs pandas: pip install 'papa-attention[study]'."
WORKFLOW = "The command papa needs altair, typer: pip install 'papa-attention[workflow]'."


@pytest.mark.parametrize(
    ("hidden", "code", "said"),
    [
        (["pandas"], "from papa import *; measure('m', [])", f"ImportError: papa.measure {STUDY}"),
        (["pandas"], f"import papa, torch; {PLOT}", f"ImportError: Constants.plot {STUDY}"),
        (["typer", "altair"], "from papa.__main__ import main; main()", WORKFLOW),
        (
            ["typer", "altair"],
            "import runpy; runpy.run_module('papa', run_name='__main__')",
            WORKFLOW,
        ),
    ],
)
def test_without_an_extra_one_sentence_names_it(hidden, code, said):
    process = in_python(f"import sys; sys.modules.update(dict.fromkeys({hidden}))\n{code}")
    assert process.stderr.splitlines()[-1] == said
    assert said != WORKFLOW or (process.returncode, len(process.stderr.splitlines())) == (2, 1)


STUDY_LINES = EXTRA["study"]
WORKFLOW_LINES = EXTRA["workflow"][1:]


def test_the_extras_are_those_of_the_project():
    pytest.importorskip("snakemake_executor_plugin_slurm")
    listed = {
        "study": STUDY_LINES,
        "workflow": [*STUDY_LINES, *WORKFLOW_LINES],
        "slurm": EXTRA["slurm"][1:],
    }
    names = {
        extra: {re.split("[>=<]", line)[0] for line in lines} for extra, lines in listed.items()
    }
    of_module = {
        module: names[0].lower().replace("_", "-")
        for module, names in packages_distributions().items()
    }
    assert {
        extra: {of_module[module] for module in modules} for extra, modules in EXTRAS.items()
    } == names


def test_the_oldest_versions_are_the_bounds():
    """constraints-oldest.txt pins what `make test-oldest` installs, so that no bound is untested."""
    lines = [*PROJECT["dependencies"], *STUDY_LINES, *WORKFLOW_LINES, *EXTRA["demo"][1:]]
    assert sorted(line.replace(">=", "==") for line in lines) == [
        line
        for line in (REPOSITORY / "constraints-oldest.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
