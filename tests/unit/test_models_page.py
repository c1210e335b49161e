"""docs/models.md says of a model type what is found about it now."""

import importlib.util
import re
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/models.md").read_text(encoding="utf-8")
SAMPLE = ("albert", "bert", "bloom", "deberta-v2", "gemma2", "gpt2", "llama", "modernbert", "mpnet", "qwen3", "t5")


@pytest.fixture(scope="module")
def models():
    spec = importlib.util.spec_from_file_location("models", ROOT / "benchmarks/models.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed():
    """Types and how they run, as the page has them."""
    found = {}
    for section, form in (("Packed", "packed"), ("Padded", "padded"), ("Not used", None)):
        part = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
        for kind, second in re.findall(r"^\| ([\w.-]+) \| ([\w ]+) \|", part, re.MULTILINE):
            if kind != "type":
                found[kind] = form or second
    return found


def test_the_page_is_of_the_transformers_that_are_installed(models):
    assert f"text model of transformers {version('transformers')}" in PAGE, "run make models"
    assert set(listed()) == set(models.kinds()), "run make models"


@pytest.mark.parametrize("kind", SAMPLE)
def test_a_type_is_what_the_page_says(models, kind):
    found = models.check(kind)
    assert found["form"] == listed()[kind], f"{found['why']}; run make models"
    if found["form"] != "refused":
        assert max(found[name] for name in ("stock", "half", "all") if found[name] == found[name]) < 1e-4
