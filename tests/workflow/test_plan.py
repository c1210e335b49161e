"""`papa plan`: its jobs are those of a dry run, its bytes those of a real run, and what is missing is said."""

import copy
import json
import re

import pytest
import yaml
from tiny import CONFIG, JOBS, REPOSITORY
from typer.testing import CliRunner

from papa.cli import SCHEMA, app
from papa.config.graph import Graph
from papa.config.jobs import jobs_of
from papa.config.settings import checked
from papa.jobs.planning import Measured, plan_of
from papa.jobs.terminal import duration, size


@pytest.fixture
def plan(fresh, monkeypatch):
    """Run `papa plan` on a config, in the folder of the workflow, with the shortest measurements that there are."""
    monkeypatch.chdir(fresh.folder)
    monkeypatch.setenv("PAPA_MACHINE", "{}")  # the command sets it for good
    monkeypatch.setattr("papa.jobs.pacing.SECONDS", 0)
    monkeypatch.setattr("papa.jobs.measuring.processor_seconds", lambda *_: 1.0)
    return lambda config, *options: CliRunner().invoke(app, ["plan", fresh.write(config, "planned.yaml"), *options])


@pytest.mark.parametrize("name", ["config.yaml", "families.yaml", "paper.yaml"])
def test_jobs_are_those_of_a_dry_run(fresh, name):
    config = yaml.safe_load((REPOSITORY / "config" / name).read_text(encoding="utf-8"))
    jobs = jobs_of(Graph(checked(config, SCHEMA)))
    planned = plan_of(jobs, config, Measured("cpu", {"": 0, "probe": 0})).jobs
    assert planned == fresh.planned(config)


def test_bytes_are_those_of_a_real_run(plan, finished):
    result = plan(CONFIG, "--json", "--cores", "3")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["jobs"] == JOBS and content["cores"] == 3 and not content["problems"]
    assert all(row["estimated_jobs"] == row["jobs"] for row in content["rows"])
    disk = {row["rule"]: row["disk_bytes"] for row in content["rows"]}

    def written(pattern):
        return sum(path.stat().st_size for path in (finished.folder / "results/tiny").rglob(pattern))

    assert disk["features_of_corpus"] + disk["features_of_task"] == pytest.approx(written("*.hidden"), rel=0.01)
    header = 6 * 1000  # of a safetensors file, at most
    assert 0 <= written("seed-1.safetensors") - disk["probe"] <= header
    passes = {row["rule"]: row["encoder_passes"] for row in content["rows"]}
    assert passes["average"] == passes["train_lambda"] == 2  # one epoch of two tasks


def test_what_is_missing_has_its_line_and_the_rest_is_estimated(plan):
    config = copy.deepcopy(CONFIG)
    config["models"]["gone"] = {"path": "models/gone"}
    config["run"]["models"].append("gone")
    config["run"]["constants"] = ["average", "average-trained"]
    result = plan(config)
    assert result.exit_code == 0, result.output
    lines = " ".join(result.stdout.split())
    assert "Not estimated: model gone. Model gone should lie in models/gone, but there is no config.json" in lines
    assert "Model gone tokenize 2, average 2" in lines and re.search(r"Model tiny .* tokenize 2 \d+ s", lines)
    assert "\x1b" not in result.stdout
    config["run"]["models"] = ["gone"]
    assert plan(config).exit_code == 1


def test_a_wrong_config_is_one_sentence(plan):
    result = plan(CONFIG | {"device": "gpu"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Config error: device is 'gpu'") and len(result.stderr.splitlines()) == 1
    missing = CliRunner().invoke(app, ["plan", "nowhere.yaml"])
    assert missing.exit_code == 2 and "nowhere.yaml cannot be read" in missing.stderr


def test_help_shows_an_example():
    result = CliRunner().invoke(app, ["plan", "--help"])
    assert result.exit_code == 0 and "papa plan config/minilm.yaml --hub-mirror" in result.stdout


def test_numbers_as_people_say_them():
    said = [duration(seconds) for seconds in (0.2, 40, 300, 4320, 5 * 3600, 3.4 * 86400)]
    assert said == ["< 1 s", "40 s", "5 min", "72 min", "5.0 hours", "3.4 days"]
    assert [size(amount) for amount in (7, 5e6, 1.25e9, 41e9, 2e12)] == ["7 B", "5 MB", "1.2 GB", "41 GB", "2 TB"]
