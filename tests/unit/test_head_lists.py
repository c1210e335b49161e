"""Lists of heads in files: as orders of replacement, and wrong files to a sentence."""

from types import SimpleNamespace

import jobs
import pytest
from random_models import random_model
from refusals import input_error
from tiny import CONFIG, with_keys, write_data

import papa
from papa.config.reading import config_of
from papa.method.variants import ordered_heads
from papa.plan.study import Plan, listed_heads
from papa.stages import HiddenStates

SIZES = SimpleNamespace(layers=2, heads=4)
LIST = {"file": "heads.csv", "name": "mine"}


def test_the_first_listed_head_is_replaced_last_and_others_before_all_listed_ones(tmp_path):
    (path := tmp_path / "heads.csv").write_text("layer,head\n1,2\n0, 3\n\n1,0\n")
    settings = HiddenStates(constant="zeros", heads=listed_heads(path))
    job = jobs.job(settings, tmp_path / "s.hidden")
    assert ordered_heads(job, settings, SIZES) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 1),
        (1, 3),
        (1, 0),
        (0, 3),
        (1, 2),
    ]
    for head in ((2, 0), (0, 4)):
        settings = HiddenStates(constant="zeros", heads=((1, 2), head))
        with input_error(
            f"head {head[1]} of layer {head[0]}, but the model has 2 layers of 4",
        ):
            ordered_heads(job, settings, SIZES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with ''; a list of heads begins with the line layer,head."),
        (
            "layer,head\n1\n",
            "has the line '1'; name a head by two numbers, layer and head, such as 4,7.",
        ),
        ("layer,head\n1,2\n0,0\n1,2\n", "lists head 2 of layer 1 twice; list each head once."),
    ],
)
def test_a_wrong_list_gets_one_sentence(text, message, tmp_path):
    path = tmp_path / "heads.csv"
    path.write_text(text)
    with pytest.raises(papa.InputError) as error:
        listed_heads(path)
    assert str(error.value).startswith(f"{path} {message}")
    with input_error("cannot be read"):
        listed_heads(tmp_path / "nothing.csv")


@pytest.fixture
def with_texts(tmp_path, monkeypatch):
    """A current folder with files of the texts of `CONFIG`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_data(tmp_path / "data")


@pytest.mark.usefixtures("with_texts")
def test_a_changed_list_changes_keys_and_a_moved_one_does_not(tmp_path):
    def keys(file, name="mine"):
        listed = {"file": file, "name": name}
        changes = {"models.tiny": {"path": random_model("llama")}, "run.orders": ["lambda", listed]}
        plan = Plan(config_of(with_keys(CONFIG, changes)), tmp_path / "results" / "s")
        found = {}
        for job in plan.jobs:
            found.setdefault(job.about.get("order"), set()).add(job.key)
        return found[f"list-{name}"], found["lambda-0"]

    for name, head in {"a.csv": "1,2", "b.csv": "1,2", "c.csv": "0,0"}.items():
        (tmp_path / name).write_text(f"layer,head\n{head}\n")
    (first, by_lambda), moved, (changed, others) = map(keys, ("a.csv", "b.csv", "c.csv"))
    assert moved == keys("a.csv", "other") == (first, by_lambda)
    assert not first & changed
    assert others == by_lambda


@pytest.mark.usefixtures("with_texts")
@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ([LIST | {"name": "Mine"}], r"run.orders\[0\].name is 'Mine', but should match"),
        ([LIST, LIST | {"file": "b.csv"}], "run.orders: 'list-mine' is listed twice"),
        ([LIST], r"heads\.csv cannot be read \(.*No such file.*\); give a CSV"),
    ],
)
def test_a_list_in_a_config_is_checked(orders, message):
    with input_error(message):
        changes = {"models.tiny": {"path": random_model("llama")}, "run.orders": orders}
        list(Plan(config_of(with_keys(CONFIG, changes)), "results/s", save=False).jobs)
    grids = {"grids.more": {"orders": [LIST | {"file": "other.csv"}]}, "run.orders": [LIST]}
    with input_error(r"run\.orders has a list with the name 'mine', but another grid"):
        config_of(with_keys(CONFIG, grids))
