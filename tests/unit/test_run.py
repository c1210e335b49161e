"""`papa run`: what snakemake is given, what is said where there is no config, and who may write to results."""

import json
import os
import signal
import subprocess
from itertools import product
from pathlib import Path

import pytest
import yaml
from command import invoke, refusal
from refusals import input_error
from tiny import CONFIG, REPOSITORY, python_process, write_inputs

from papa.config.reading import config_of
from papa.plan.study import Plan
from papa.run import start


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def given(here, monkeypatch):
    """The arguments of every call of snakemake, which runs nothing."""
    calls = []
    monkeypatch.setattr(start, "snakemake", lambda words: calls.append(words) or start.Call(None))
    (here / "mine.yaml").write_text("name: mine\n")
    return calls


def write_study(folder):
    write_inputs(folder)
    (folder / "mine.yaml").write_text(yaml.safe_dump(CONFIG))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "mine.yaml --cores 3 prune -n --config device=cpu",
            {"cores": 3, "targets": ["prune"], "dryrun": True},
        ),
        ("./-mine.yaml", {"configfile": [Path("-mine.yaml")], "targets": set()}),  # no option
        (
            "mine.yaml --workflow-profile mine/profile",
            {"workflow_profile": Path("mine/profile"), "cores": None},
        ),
        (
            "mine.yaml --workflow-profile gpu",
            {"workflow_profile": REPOSITORY / "workflow/profiles/gpu"},
        ),
        ("mine.yaml --workflow-profile ./gpu", {"workflow_profile": Path("gpu")}),
        ("mine.yaml --workflow-profile none", {"workflow_profile": Path("none")}),
    ],
)
def test_snakemake_is_given_the_workflow_the_config_and_all_further_options(
    given, here, words, expected
):
    from snakemake.cli import get_argument_parser

    (here / "-mine.yaml").write_text("name: mine\n")
    (here / "mine/profile").mkdir(parents=True)
    (here / "gpu").mkdir()
    invoke("run", *words.split())
    read = get_argument_parser().parse_args(given[0])
    assert {name: str(getattr(read, name)) for name in expected} == {
        name: str(expected[name]) for name in expected
    }
    assert read.nolock
    assert read.keep_incomplete
    assert read.ignore_incomplete
    assert ("--cores" in given[0]) == ("profile" not in words)
    assert "must be all, or a whole number" in refusal("run", "mine.yaml", "--cores", "0")
    assert "must be default, gpu, slurm, none, or a folder" in refusal(
        "run", "mine.yaml", "--workflow-profile", "slrum"
    )


@pytest.mark.parametrize(
    ("command", "config"), [("run", "papa.yaml"), ("demo", str(REPOSITORY / "config/config.yaml"))]
)
def test_the_config_of_init_and_that_of_the_demo_need_no_name(given, here, command, config):
    (here / "papa.yaml").write_text("name: papa\n")
    invoke(command, "--dry-run")
    assert given[0][given[0].index("--configfile") + 1] == config
    assert given[0][-1] == "--dry-run"
    copied = {path.relative_to("data/demo") for path in Path("data/demo").rglob("*")}
    shipped = {
        path.relative_to(REPOSITORY / "data/demo") for path in (REPOSITORY / "data/demo").rglob("*")
    }
    assert copied == (shipped if command == "demo" else set())


@pytest.mark.parametrize("words", [[], ["-n"], ["gone.yaml"]])
def test_without_a_config_it_says_what_to_do(here, words):
    said = refusal("run", *words)
    assert all(command in said for command in ("`papa run FILE`", "`papa init`", "`papa demo`"))
    assert not any(here.iterdir())


HOLD = """
import signal, sys
from contextlib import redirect_stdout
from papa.config.reading import read_config
from papa.plan.study import Plan
from papa.run.start import begin
with redirect_stdout(sys.stderr):
    begin(Plan(read_config("mine.yaml"), "results/tiny"))
print("held", flush=True)
signal.pause()
"""


def test_a_living_run_keeps_others_out_and_a_dead_one_does_not(here):
    """A run that was killed also leaves what snakemake itself would call a lock, which is not looked at."""
    write_study(here)
    run = subprocess.Popen(**python_process(HOLD), stdout=subprocess.PIPE)
    try:
        assert "held\n" in iter(run.stdout.readline, ""), "after the reasons why files are made"
        study = Plan(config_of(CONFIG), "results/tiny")
        with input_error(r"^another run is writing to results/tiny; wait for it"):
            start.begin(study)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
        run.stdout.close()
    start.begin(study)
    for file in start._locks:
        os.close(file)
    start._locks.clear()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "XDG_CACHE_HOME",
            "file/cache",
            "file/cache cannot be used for caches (Not a directory); set XDG_CACHE_HOME",
        ),
        ("HOME", ".", "cannot be read as YAML (Circular"),  # a config that never ends
    ],
)
def test_a_wrong_cache_and_a_wrong_config_are_refused_at_once(
    given, here, monkeypatch, variable, value, said
):
    (here / "file").write_text("")
    (here / "mine.yaml").write_text("name: &name [*name]\n" if value == "." else "name: mine\n")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(here / value))
    assert said in refusal("run", "mine.yaml")
    assert not given


def test_plan_takes_the_keys_that_run_takes(here):
    write_study(here)
    fewer = ["--config", "run={fractions: ['1', '0'], seeds: [7]}", "--config", "device=cuda"]
    same, changed = (
        json.loads(invoke("plan", "mine.yaml", "--json", *words).stdout) for words in ([], fewer)
    )
    config = config_of(CONFIG | {"run": CONFIG["run"] | {"fractions": ["1", "0"]}})
    assert (
        changed["total"]["jobs"]
        == len(Plan(config, "results/tiny").missing)
        < same["total"]["jobs"]
    )
    assert changed["device"] == "cuda", "an option --device that is not given replaces nothing"
    for wrong, command in product(["margin", "run.tasks=[a]"], ["plan", "run"]):
        assert "must be KEY=VALUE" in refusal(command, "mine.yaml", "--config", wrong)
    block = "run={orders: {name: mine}}"
    assert "orders must be a list" in refusal("plan", "mine.yaml", "--config", block)
    assert "The config has an unknown key margn" in refusal(
        "plan", "mine.yaml", "--config", "margn=1"
    )
