"""What the command line makes of configs; `tests/unit/test_config.py` has the checks of configs themselves."""

import copy
import re

import pytest
from tiny import CONFIG


def test_the_default_config_alone_and_with_one_key(fresh):
    jobs = fresh.planned(None)
    renamed = fresh.snakemake("-n", "--quiet", "host", "--config", "name=other").stdout
    assert jobs["probe"] == len(re.findall("^rule probe:", renamed, re.MULTILINE)) > 0
    assert "results/other/" in renamed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "token_budget=many"], "Config error: token_budget must be a whole number, but it is 'many'."),
        (["--configfile", "refused.yaml"], "Config error: corpora.words.files.train: there is no file data/nowhere"),
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
    lines = (process.stdout + process.stderr).splitlines()
    (refusal,) = [line for line in lines if not line.startswith(("Config file ", "Using workflow specific profile "))]
    assert message in refusal
