"""The command: help with examples, exit codes, errors on stderr, colours only on a terminal, a quick start."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from command import invoke, refusal
from test_compare import folders
from tiny import REPOSITORY, in_python, on_a_terminal

import papa.cli
from papa.__main__ import ensure_home
from papa.cli import app
from papa.files import Record, write_table

HEAVY = {"torch", "transformers", "datasets", "pandas", "scipy", "h5py", "altair"}
VERBS = ("init", "run", "demo", "plan", "inspect", "compare", "measure")


def run_papa(*arguments, terminal=True, **more):
    """Inspect on a terminal or in a pipe; returns what it receives, after checking the exit code."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    }
    environment = (
        kept
        | {"PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        | more
    )
    command = [sys.executable, "-m", "papa", *arguments]
    if terminal:
        shown, code = on_a_terminal(command, env=environment)
        assert code == 0
        return shown
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0
    assert not process.stderr
    return process.stdout


def test_every_command_has_an_example_and_exit_codes():
    for verb in VERBS:
        said = " ".join(invoke(verb, "--help").stdout.split())
        assert f"• papa {verb}" in said
        assert "Exit codes: " in said
        assert ("--json" in said) == (
            verb not in ("run", "demo")
        )  # these print what snakemake prints
    assert {
        command.name or command.callback.__name__ for command in app.registered_commands
    } == set(VERBS)
    first, second = invoke("--version").stdout.splitlines()
    assert first == f"papa {papa.__version__}"
    assert (Path(second.split(": ")[1]) / "docs/index.md").is_file()
    invoke("inspct", code=2)
    invoke("inspect", code=2)


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (
            "from papa.cli import main; sys.argv = ['papa', '--help']; main()",
            HEAVY | {"pyarrow", "numpy", "yaml"},
        ),
        ("import papa.config.reading", HEAVY | {"pyarrow", "jsonschema", "snakemake"}),
        ("import papa.plan.study, papa.plan.why", HEAVY | {"pyarrow.parquet", "snakemake"}),
        (
            "import papa.data.tokenize, papa.data.hub, papa.data.choose",
            HEAVY | {"pyarrow", "huggingface_hub"},
        ),
        (
            "import papa; papa.average_attention, papa.Constants",
            {"papa.plan.study", "pandas", "transformers"},
        ),
    ],
)
def test_a_module_imports_nothing_heavy_that_it_does_not_need(code, heavy):
    result = in_python(f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {code}")
    loaded = set(result.stdout.strip().splitlines()[-1].split())
    assert "papa" in loaded and not heavy & loaded, result.stderr


def test_colours_are_on_a_terminal_only_and_texts_cannot_steer_it(tmp_path):
    table = pa.table({"split": ["train"], "row": [0], "first": ["a\x1b[2Jb\rc\x9bd\nnext"]})
    record = Record("texts", 1, {"first": "\x1b[31mred"}, {})
    write_table(table, tmp_path / "texts.parquet", {"rows": {"train": 1}}, record)
    inspect = partial(run_papa, "inspect", f"{tmp_path}/texts.parquet")
    shown = inspect()
    assert "\x1b[32mIntact" in shown
    assert "\\e[31mred" in shown
    assert "\x1b[31mred" not in shown
    plain = inspect(NO_COLOR="1")
    piped = inspect(terminal=False)
    assert "\x1b[32m" not in plain
    assert "Intact" in plain
    assert "\x1b" not in piped
    assert "Intact" in piped
    inspect(terminal=False, PYTHONIOENCODING="ascii")
    shown = inspect("--json")
    assert json.loads(inspect("--json", terminal=False))["intact"] is True
    assert json.loads(shown[shown.index("{") :])["intact"] is True


def test_compare_ends_with_what_it_found(tmp_path):
    """0 where nothing differs, 1 where something does, 2 where nothing can be compared; the margin is an option."""
    a, b = folders(tmp_path, 0, 400)
    assert "The same: the scores agree" in invoke("compare", a, a).stdout
    assert "3 compared: 1 differ, 2 identical" in invoke("compare", a, b, code=1).stdout
    options = ("--margin", "0.05", "--json")
    comparison = json.loads(invoke("compare", a, b, *options, code=1).stdout)
    assert (comparison["margin"], comparison["differ"]) == (["5%"], 1)
    refusal("compare", a, tmp_path)
    refusal("compare", a, b, "--margin", "1.5")


def test_a_user_without_a_home_gets_a_temporary_one(monkeypatch):
    """`Path.home` fails like this without HOME and without an entry in the list of users."""
    monkeypatch.setenv("HOME", "")

    def unknown():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("papa.__main__.Path.home", unknown)
    ensure_home()
    assert os.path.isdir(os.environ["HOME"])
    assert os.listdir(os.environ["HOME"]) == []
