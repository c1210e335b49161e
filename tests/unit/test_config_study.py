"""What the keys of a config mean for what is run: grids, streaming, places and splits."""

import copy
from typing import get_args

import pytest
from tiny import CONFIG

from papa.config.analyses import grid_drawn
from papa.config.job import Job
from papa.config.reading import config_of
from papa.config.settings import Config, Machine
from papa.config.stages import STAGES
from papa.config.study import Study

HUB = {"hub": "some/data", "words": "words", "slots": 11}


def study(config):
    return Study(config_of(config), "nowhere")


def variants(config, task):
    return {variant.path: seeds for variant, seeds in study(config).variants("tiny", task).items()}


def recorded(config):
    return {job.main: job.settings.recorded() for job in study(config).jobs()}


def test_grids_take_from_run_what_they_leave_out():
    grids = {"more": {"tasks": ["tags"], "constants": ["zeros"], "seeds": [5]}}
    assert variants(CONFIG | {"grids": grids}, "animals") == variants(CONFIG, "animals")
    more = {"original": [1, 5], "zeros/lambda-0/kept-1of2": [5], "zeros/all": [5, 1]}
    assert variants(CONFIG | {"grids": grids}, "tags") == variants(CONFIG, "tags") | more


def test_without_a_contextless_floor_only_what_grids_name_is_run():
    grid = {"average/lambda-0/kept-1of2": [1], "average/all": [1]}
    assert variants(CONFIG, "tags") == {"original": [1], "zeros/all": [1]} | grid
    assert variants(CONFIG | {"contextless": False}, "tags") == {"original": [1]} | grid
    replaced = CONFIG | {"contextless": False, "run": CONFIG["run"] | {"fractions": ["1/2"]}}
    assert variants(replaced, "tags").keys() == {"average/lambda-0/kept-1of2"}


def test_grids_with_fractions_between_none_and_all_heads_have_a_figure():
    grids = {"between": {"title": "aa", "tasks": ["tags"]}, "ends": {"fractions": [0, 1]}}
    given = study(CONFIG | {"grids": grids})
    assert {name: grid_drawn(given, name) for name in given.grids} == {
        "score_by_fraction": True,
        "between": True,
        "ends": False,
    }


def test_without_replaced_heads_nothing_is_averaged():
    config = copy.deepcopy(CONFIG)
    config["run"]["fractions"] = ["1"]
    rules = {job.rule for job in study(config).jobs()}
    assert "probe" in rules and not rules & {"average", "train_lambda", "rank"}


def test_further_splits_count_only_if_they_are_scored():
    config = copy.deepcopy(CONFIG)
    config["corpora"]["words"] = HUB
    more = copy.deepcopy(config)
    more["corpora"]["words"] = HUB | {"more_validation": ["test"]}

    def texts(config, **keys):
        return recorded(config | keys)["corpora/words/texts.parquet"]

    assert texts(more) == texts(config)
    assert texts(more, score_validation="all")["corpus"]["more_validation"] == ["test"]


def test_a_task_that_is_streamed_stores_no_hidden_states():
    config = copy.deepcopy(CONFIG)
    config["tasks"]["tags"]["features"] = "stream"
    stored = [job.main for job in study(config).jobs() if job.rule == "hidden_states"]
    assert stored and not any("words" in path or "tags" in path for path in stored)


def test_the_page_tells_what_is_run_in_the_keys_of_a_config():
    more = copy.deepcopy(CONFIG) | {"grids": {"tags": {"tasks": ["tags"]}}}
    more["tasks"]["unused"], more["corpora"]["unused"] = more["tasks"]["tags"], more["corpora"]["words"]
    more["models"]["unused"] = {"hub": "a/b"}
    told = study(more).job("page").settings.config
    assert (list(told["models"]), list(told["tasks"])) == (["tiny"], ["animals", "tags"])
    assert list(told["corpora"]) == ["sentences", "words"]
    assert Config(**(told | {"models": more["models"]})).analyses == config_of(more).analyses


@pytest.mark.parametrize("stage", STAGES)
def test_a_setting_that_may_be_left_out_has_a_default(stage):
    """Jobs get their settings without those that are None, and have to read them again."""
    fields = STAGES[stage].model_fields
    optional = {name for name, field in fields.items() if type(None) in get_args(field.annotation)}
    assert not {name for name in optional if fields[name].is_required()}


def test_every_job_reads_its_settings_back():
    grids = {"more": {"tasks": ["tags"], "constants": ["zeros"]}}
    made = study(CONFIG | {"patterns": {"tasks": ["tags"]}, "grids": grids})
    jobs = list(made.jobs())
    assert "describe_patterns" in {job.rule for job in jobs}
    for job in jobs:
        assert Job.of(made.parameters(job), {}, {}, Machine()).settings == job.settings
