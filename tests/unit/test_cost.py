"""`papa cost`: operations against their formula, and times that are said with what they were taken on."""

import copy
import json

import pytest
import torch
import yaml
from tiny import CONFIG
from typer.testing import CliRunner

import papa
from papa.cli import app
from papa.jobs.cost import EXAMPLES, FORMS, cost

N = 12  # so that the row of all texts has a number of tokens that papa does not round up


@pytest.fixture
def folder(tmp_path, model):
    model.save_pretrained(tmp_path / "tiny")
    return str(tmp_path / "tiny")


def test_operations_are_those_of_the_formula(folder, model):
    config = model.config
    hidden, wide, layers, heads = (
        getattr(config, name)
        for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    )
    costs = cost([folder], [N], "cpu")
    lines = {line["form"]: line for line in costs["models"]}
    assert list(lines) == list(FORMS)
    half = heads - heads // 2  # keep their attention
    head = 2 * 2 * N * hidden * hidden // heads + 2 * N * N * hidden // heads  # a query, a key, and their products
    sums = 2 * N * N / EXAMPLES  # of the rows of a head's constant, once for all texts
    every = layers * (2 * N * hidden * (2 * hidden + 2 * wide) + 2 * N * N * hidden)
    pooler = 2 * hidden * hidden if getattr(model, "pooler", None) is not None else 0
    expected = {
        "stock": layers * heads * head + pooler,
        "none": layers * heads * head,
        "half": layers * (half * head + (heads - half) * sums),
        "all": layers * heads * sums,
    }
    for name, more in expected.items():  # papa runs all texts as one row, of which there is one pooled token
        pooled = pooler / EXAMPLES if name != "stock" else 0
        assert lines[name]["operations"] == pytest.approx(every + more + pooled, abs=1)
    assert lines["stock"]["ratio"] == 1 and all(line["seconds"] > 0 for line in lines.values())
    assert all(line["ratio_low"] <= line["ratio"] <= line["ratio_high"] for line in lines.values())
    assert costs["threads"] == torch.get_num_threads() and costs["machine"]


def test_the_command_says_what_was_measured_on_what(folder):
    plain = CliRunner().invoke(app, ["cost", folder, "--slots", str(N)], env={"COLUMNS": "100"})
    assert plain.exit_code == 0 and "all replaced" in plain.stdout and f"torch {torch.__version__}" in plain.stdout
    costs = json.loads(CliRunner().invoke(app, ["cost", folder, "--slots", str(N), "--json"]).stdout)
    assert [line["form"] for line in costs["models"]] == list(FORMS)
    assert "transformers (sdpa)" in plain.stdout and {row["attention"] for row in costs["models"]} == {"sdpa"}
    wrong = CliRunner().invoke(app, ["cost", folder, "--slots", "4096"])
    assert wrong.exit_code == 2 and "but the model has only 47 positions" in wrong.output


def test_the_stock_model_has_the_attention_of_transformers_unless_another_is_asked_for(folder, monkeypatch):
    """The attention that is timed is the one that is named."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    called = []
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", lambda *a, **k: called.append("sdpa") or sdpa(*a, **k))
    assert {row["attention"] for row in cost([folder], [N], "cpu")["models"]} == {"sdpa"} and called
    called.clear()
    assert {row["attention"] for row in cost([folder], [N], "cpu", "eager")["models"]} == {"eager"} and not called
    with pytest.raises(papa.InputError, match="does not support 'fused' attention"):
        cost([folder], [N], "cpu", "fused")


def test_a_package_is_a_model_too(folder, tmp_path, monkeypatch):
    (tmp_path / "has_tiny.py").write_text(f"def get_model_path():\n    return {folder!r}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert {row["model"] for row in cost(["has_tiny"], [N], "cpu")["models"]} == {"has_tiny"}


def test_a_config_means_all_of_its_models(tmp_path, folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAPA_MACHINE", "{}")  # the command sets it for good
    config = copy.deepcopy(CONFIG)
    config["models"] = {"one": {"path": folder}, "other": {"path": folder}, "idle": {"path": folder}}
    config["run"]["models"] = ["one", "other"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    costs = cost(["mine.yaml"], [N], "cpu")["models"]
    assert list(dict.fromkeys(line["model"] for line in costs)) == ["one", "other"]


def test_a_model_is_needed():
    with pytest.raises(papa.InputError, match="nowhere/at-all"):
        cost(["nowhere/at-all"], [N])
