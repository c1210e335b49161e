"""`papa plan`: its jobs are those of the study, its bytes those that a run writes, and problems are said first."""

import copy
import json
import re

import pytest
import yaml
from tiny import CONFIG, ROWS, write_data, write_model
from typer.testing import CliRunner

from papa.cli import app
from papa.config.reading import config_of
from papa.config.study import Study


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    write_data(folder / "data")
    write_model(folder / "models/tiny")
    return folder


@pytest.fixture
def plan(folder, monkeypatch):
    """Run `papa plan` on a config, in a folder with its data and its model."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PAPA_MACHINE", "{}")  # the command sets it for good
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(config, *options):
        (folder / "planned.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        return CliRunner().invoke(app, ["plan", "planned.yaml", *options])

    return run


def changed(**blocks):
    config = copy.deepcopy(CONFIG)
    for block, values in blocks.items():
        config[block] = config.get(block, {}) | values
    return config


def test_jobs_are_those_of_the_study(plan):
    result = plan(CONFIG, "--json", "--cores", "3")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    rules = [job.rule for job in Study(config_of(CONFIG), "results/tiny").jobs()]
    assert {stage["stage"]: stage["jobs"] for stage in found["stages"]} == {rule: rules.count(rule) for rule in rules}
    assert found["total"]["jobs"] == len(rules) and found["cores"] == 3
    assert not found["problems"] and not found["total"]["unknown"]
    order = [stage["stage"] for stage in found["stages"]]
    assert order.index("average") < order.index("train_lambda") < order.index("hidden_states") < order.index("probe")


def test_disk_follows_from_rows_words_and_sizes(plan):
    """Long rows of which all fill their slots: every token is stored as 3 hidden states of 8 numbers in float16."""
    rows = 20_000
    words = " ".join(["cat"] * 40)
    for split in ROWS:
        text = "\n".join(["sentence,animal", *(f"{words},{row % 2}" for row in range(rows))])
        with open(f"data/long.{split}.csv", "w", encoding="utf-8") as file:
            file.write(text + "\n")
    files = {"files": {split: f"data/long.{split}.csv" for split in ROWS}, "first": "sentence", "slots": 13}
    config = changed(corpora={"sentences": files}, run={"tasks": ["animals"], "fractions": ["1"]})
    stages = {stage["stage"]: stage for stage in json.loads(plan(config, "--json").stdout)["stages"]}
    assert stages["hidden_states"]["disk_mb"] == -(-(2 * rows * 13 * 3 * 8 * 2 + 2 * rows * 4) // 10**6)
    config["corpora"]["sentences"]["train_limit"] = 10_000
    limited = {stage["stage"]: stage for stage in json.loads(plan(config, "--json").stdout)["stages"]}
    assert limited["hidden_states"]["disk_mb"] == -(-(30_000 * 13 * 3 * 8 * 2 + 30_000 * 4) // 10**6)


def test_a_model_that_is_not_here_or_not_supported_is_said_first(plan, folder):
    other = folder / "models/other"
    other.mkdir(exist_ok=True)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 17}
    (other / "config.json").write_text(json.dumps({"model_type": "modernbert", **sizes}), encoding="utf-8")
    models = {"gone": {"hub": "owner/gone"}, "other": {"path": "models/other"}, "away": {"path": "models/away"}}
    result = plan(changed(models=models, run={"models": ["tiny", *models]}))
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert said.startswith("Model gone: ") and "Model other: its type is modernbert, whose attention is not" in said
    assert said.index("Model other") < said.index("memory of a job") and re.search(r"average 8 \(6 unknown\)", said)
    assert "Model away: Model away should" in said


def test_texts_that_are_not_here_are_said_first(plan):
    gone = {"files": {split: f"data/gone.{split}.csv" for split in ROWS}, "first": "sentence", "slots": 13}
    said = " ".join(plan(changed(corpora={"sentences": gone})).stdout.split())
    assert said.startswith("Corpus sentences: There is no file data/gone.train.csv") and "average 2 (1 unknown)" in said


def test_where_nothing_is_known_the_exit_code_says_so(plan):
    texts = {"hub": "owner/texts", "first": "sentence", "slots": 13}
    config = changed(corpora={"sentences": texts}, run={"tasks": ["animals"]})
    result = plan(config)
    said = " ".join(result.stdout.split())
    assert "Corpus sentences: how large owner/texts is will be known when it is prepared" in said
    assert result.exit_code == 1 and "hidden_states 3 (3 unknown) ? ? ?" in said


def test_a_wrong_config_is_one_sentence(plan):
    result = plan(CONFIG | {"device": "gpu"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Config error: device is 'gpu'") and len(result.stderr.splitlines()) == 1
    missing = CliRunner().invoke(app, ["plan", "nowhere.yaml"])
    assert missing.exit_code == 2 and "nowhere.yaml cannot be read" in missing.stderr
