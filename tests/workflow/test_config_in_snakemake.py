"""What the command line makes of configs; `tests/unit/test_config.py` has the checks of configs themselves."""

import copy

import pytest
from tiny import CONFIG, JOBS


def test_default_config_alone_and_with_one_key(fresh):
    planned = fresh.planned(None)
    assert planned["probe"] > 0
    assert "results/other/" in fresh.snakemake("-n", "--quiet", "host", "--config", "name=other").stdout
    assert fresh.planned(None, "--config", "name=other") == planned


def test_a_given_config_stands_alone(fresh):
    assert fresh.planned(CONFIG) == JOBS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--config", "token_budgt=1"],
            "Config error: The config has an unknown key token_budgt; did you mean token_budget?",
        ),
        (["--config", "token_budget=many"], "Config error: token_budget must be a whole number, but it is 'many'."),
        (["--config", "name=../up"], "Config error: '../up' (name) cannot be a name: a name is 1 to 64 characters"),
        (
            ["--configfile", "refused.yaml"],
            "Config error: corpora.words.files.train: there is no file data/nowhere.jsonl",
        ),
        (["--configfile", "twice.yaml"], "twice.yaml contains the key 'name' twice in one block"),
    ],
)
def test_refusals_are_one_line_without_traceback(fresh, arguments, message):
    refused = copy.deepcopy(CONFIG)
    refused["corpora"]["words"]["files"]["train"] = "data/nowhere.jsonl"
    fresh.write(refused, "refused.yaml")
    (fresh.folder / "twice.yaml").write_text("name: a\nname: b\n", encoding="utf-8")
    process = fresh.snakemake("-n", "--quiet", "host", *arguments)
    assert process.returncode == 1
    # snakemake itself says which profile there is, and that the default config is extended
    own = (process.stdout + process.stderr).splitlines()
    (said,) = [line for line in own if not line.startswith(("Config file ", "Using workflow specific profile "))]
    assert message in said
