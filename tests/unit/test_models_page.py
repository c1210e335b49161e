"""docs/models.md says of a model type what is found about it now."""

import re
from importlib.metadata import version

import pytest
from tiny import REPOSITORY

from benchmarks import models
from papa.data.weights import predicts_next

PAGE = (REPOSITORY / "docs/models.md").read_text()
PINS = (REPOSITORY / "constraints.txt").read_text().splitlines()
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
        ("Compact", "compact"),
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


def test_the_config_tells_for_each_type_whether_it_is_a_decoder():
    """Against attention, which the page gives; no config names the class that saved the model."""
    measured = dict(
        re.findall(r"^\| ([\w.-]+) \| (?:packed|compact|padded) \| (yes|no) \|", PAGE, re.MULTILINE)
    )
    assert {*measured.values()} == {"yes", "no"}
    assert {
        kind: ("no", "yes")[predicts_next({"model_type": kind})] for kind in measured
    } == measured


@pytest.mark.parametrize(
    ("decoder", "facts"),
    [
        (True, {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}),
        (True, {"model_type": "of-a-later-version", "architectures": ["NewForCausalLM"]}),
        (True, {"model_type": "bert", "is_decoder": True}),
        (False, {"model_type": "bert", "architectures": ["BertLMHeadModel"]}),
        (True, {"model_type": "xlm", "causal": True}),
        (False, {"model_type": "xlnet", "architectures": ["XLNetLMHeadModel"]}),
        (False, {"model_type": "gemma3_text", "use_bidirectional_attention": True}),
        (True, {"model_type": "gemma4_text", "use_bidirectional_attention": "vision"}),
        (False, {"model_type": "gemma4", "text_config": {"use_bidirectional_attention": "all"}}),
        (False, {"model_type": "llama", "is_causal": False}),
        (False, {}),
    ],
)
def test_keys_of_a_config_that_make_a_decoder_or_an_encoder(decoder, facts):
    assert predicts_next(facts) is decoder
