"""Why files are made: the setting that differs from the nearest existing file."""

import pytest
from finished import CONFIG, TASK, Made, write_results

from papa.config.settings import Config
from papa.plan.why import reasons

TASKS = CONFIG["tasks"]
FASTER = {"first": TASKS["first"] | {"learning_rate": 0.1}, "second": TASKS["second"]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, set()),
        ({"run": CONFIG["run"] | {"seeds": [1, 2, 3, 4]}}, {"another `seed`"}),
        ({"tasks": FASTER}, {f"`learning_rate` {TASK['learning_rate']} → 0.1"}),
    ],
)
def test_the_setting_that_differs_is_named(tmp_path, changes, said):
    write_results(tmp_path)
    config = Config.model_validate(CONFIG | changes)
    lines = reasons(Made(config, tmp_path / "results/made"))
    assert {line.split(": ")[1].removesuffix(".") for line in lines} == said
