"""Contribution and loss by training rows: the groups of tasks, the numbers, the sentence and the figure."""

import numpy as np
import pytest
from builders import labelled
from tiny import CONFIG, with_keys

from papa.config.reading import config_of
from papa.config.settings import Plots
from papa.config.study import Study
from papa.results.outcomes import FLOOR, ORIGINALS
from papa.results.training_size import figure_of, sentence_of, sizes_of, tables_of

EXAMPLES = 997
AVERAGE, UNIFORM = ("average", None, "0"), ("uniform", None, "0")


def measured(task, original, floor, average):
    """Outcomes of three seeds that answer the first examples rightly, each seed some more."""
    right = {ORIGINALS: original, FLOOR: floor, AVERAGE: average, UNIFORM: floor + 7}
    order = np.random.default_rng(1).permutation(EXAMPLES)
    rows = {setting: [order < number + 3 * seed for seed in range(-1, 2)] for setting, number in right.items()}
    return labelled(rows, task=task, model="m")


@pytest.fixture
def frame():
    outcomes = [measured("few", 700, 620, 660), measured("all", 900, 650, 850)]
    return sizes_of(outcomes, {"Task": ("all", "few")}, {("m", "few"): 125, ("m", "all"): 1000})


def test_contribution_and_loss_are_those_of_the_scores(frame):
    assert frame["rows"].tolist() == [125, 125, 1000, 1000]
    assert frame["constant"].tolist() == ["average", "uniform"] * 2
    assert frame["contribution"].tolist() == pytest.approx(np.array([80, 80, 250, 250]) / EXAMPLES)
    assert frame["loss"].tolist() == pytest.approx([40 / 80, 73 / 80, 50 / 250, 243 / 250], abs=1e-6)
    for name in ("contribution", "loss"):
        assert (frame[f"{name}_low"] < frame[name]).all() and (frame[name] < frame[f"{name}_high"]).all()


def test_a_task_that_is_excluded_has_a_contribution_and_no_loss():
    rows = sizes_of([measured("few", 640, 638, 639)], {"Task": ("few",)}, {("m", "few"): 125})
    assert rows["status"].ne("counts").all() and rows["loss"].isna().all()
    assert rows["contribution"].tolist() == pytest.approx([2 / EXAMPLES] * 2)
    assert figure_of(rows, Plots()).to_dict()


def test_table_sentence_and_figure(frame):
    [table] = tables_of(frame)
    assert table.frame["training rows"].tolist() == ["125", "125", "1,000", "1,000"]
    assert table.frame["contribution"].iloc[2].startswith("0.251 (0.")
    assert sentence_of(frame).startswith(
        "Task (m): from 125 to 1,000 training rows, attention's contribution changes from 0.080 to 0.251; the loss "
        "with average constants from 50 % ("
    )
    assert sentence_of(frame.iloc[:0]).startswith("No task was run")
    specification = figure_of(frame, Plots()).to_dict()
    assert [panel["title"] for panel in specification["concat"]] == [["Task: contribution"], ["Task: loss"]]
    assert specification["concat"][0]["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"


def groups(**tasks):
    changed = {f"tasks.{name}": CONFIG["tasks"]["animals"] | keys for name, keys in tasks.items()}
    config = config_of(with_keys(CONFIG, changed | {"run.tasks": ["animals", *tasks]}))
    entries = Study(config, "nowhere").entries()
    entry = entries.get("training_size")
    return entry and entry.parameters(Study(config, "nowhere"))["groups"]


def test_tasks_that_differ_only_in_their_training_rows_form_a_group():
    assert groups() is None
    assert groups(again={}) is None and groups(linear={"train_rows": "1/2", "probe": "linear"}) is None
    assert groups(half={"train_rows": "1/2"}) == {"animals": ["animals", "half"]}
    both = groups(half={"train_rows": 11, "title": "Half"}, some={"train_rows": "1/3"})
    assert both == {"animals": ["animals", "half", "some"]}
    linear = {"probe": "linear"}
    several = groups(half={"train_rows": "1/2"}, line=linear, short=linear | {"train_rows": "1/2"})
    assert several == {"animals": ["animals", "half"], "line": ["line", "short"]}
