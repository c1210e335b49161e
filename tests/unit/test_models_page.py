"""docs/models.md says of a model type what is found about it now."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks import models

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/models.md").read_text(encoding="utf-8")
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
pytestmark = pytest.mark.skipif(
    f"transformers=={version('transformers')}" not in PINS,
    reason="the page is of the transformers in constraints.txt",
)
SAMPLE = (
    "afmoe albert bert bloom clip_text_model deberta-v2 gemma2 gpt2 lfm2 llama llama4_text modernbert mpnet pegasus t5"
).split()


def listed():
    checked = {}
    for section, form in (
        ("Packed", "packed"),
        ("Padded", "padded"),
        ("Text models that are not used", None),
    ):
        part = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
        for kind, second in re.findall(r"^\| ([\w.-]+) \| ([\w ]+) \|", part, re.MULTILINE):
            if kind != "type":
                checked[kind] = form or second
    return checked


def test_the_page_is_of_the_transformers_that_are_installed():
    assert f"text model of transformers {version('transformers')}" in PAGE, (
        "run benchmarks/models.py"
    )
    assert set(listed()) == set(models.kinds()), "run benchmarks/models.py"


@pytest.mark.parametrize("kind", SAMPLE)
def test_a_type_is_what_the_page_says(kind):
    checked = models.check(kind)
    assert checked["form"] == listed()[kind], f"{checked['why']}; run benchmarks/models.py"
    if checked["form"] != "refused":
        distances = [checked[name] for name in ("stock", "half", "all", "own_attention")]
        assert max(value for value in distances if value == value) < 1e-4
