"""Lists of heads in files: as orders of replacement, and wrong files to a sentence."""

from dataclasses import replace

import jobs
import pytest
from random_models import random_model
from test_measure import QUICK, folder, texts_of  # noqa: F401  fixtures
from tiny import CONFIG, with_keys

import papa
from papa.config.freshness import FRESH
from papa.config.reading import config_of
from papa.config.settings import check_files
from papa.config.stages import ModelId, OrderFromModel
from papa.config.study import Plan
from papa.data.local_digests import LocalSourceDigests
from papa.files import provenance_of, read_table
from papa.method.orders import listed_heads, order_heads

MODEL = ModelId(name="m", hub=random_model("llama"))
"""A model of 2 layers with 4 heads."""
LIST = {"file": "heads.csv", "name": "mine"}


def test_the_first_listed_head_is_replaced_last_and_others_before_all_listed_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "heads.csv"
    path.write_text("layer,head\n1,2\n0, 3\n\n1,0\n")
    settings = OrderFromModel(model=MODEL, order="list-mine", seed=0, file=str(path), digest="d")
    order_heads(jobs.job("order", settings, {}, order=tmp_path / "o"))
    order = read_table(tmp_path / "o")
    heads = list(zip(order["layer"].to_pylist(), order["head"].to_pylist(), strict=True))
    assert heads == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 3), (1, 0), (0, 3), (1, 2)]
    assert provenance_of(order)["order"] == "list-mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with ''; a list of heads begins with the line layer,head."),
        ("layer,head\n1\n", "has the line '1'; name a head by two numbers, layer and head, such as 4,7."),
        ("layer,head\n1,2\n0,0\n1,2\n", "lists head 2 of layer 1 twice; list each head once."),
        ("layer,head\n2,0\n", "lists head 0 of layer 2, but the model has 2 layers of 4 heads, counted from 0; use a"),
        ("layer,head\n0,4\n", "lists head 4 of layer 0, but the model"),
    ],
)
def test_a_wrong_list_gets_one_sentence(text, message, tmp_path):
    path = tmp_path / "heads.csv"
    path.write_text(text)
    with pytest.raises(papa.InputError) as error:
        listed_heads(str(path), 2, 4)
    assert str(error.value).startswith(f"{path} {message}")
    with pytest.raises(papa.InputError, match="cannot be read"):
        listed_heads(str(tmp_path / "nothing.csv"), 2, 4)


@pytest.fixture
def with_texts(tmp_path, monkeypatch):
    """A current folder with empty files of the texts of `CONFIG`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    for path in (path for corpus in CONFIG["corpora"].values() for path in corpus["files"].values()):
        (tmp_path / path).touch()


@pytest.mark.usefixtures("with_texts")
def test_a_changed_list_is_out_of_date_and_a_moved_one_is_not(tmp_path):

    def state(file):
        keys = {"models.tiny": {"path": random_model("llama")}, "run.orders": ["lambda", LIST | {"file": file}]}
        config = config_of(with_keys(CONFIG, keys))
        study = Plan(config, tmp_path, LocalSourceDigests(config.machine))
        orders = [order.name for order in study.orders(study.grids["score_by_fraction"])]
        assert orders == ["lambda-0", "list-mine"]
        [job] = [job for job in study.jobs() if job.rule == "order_heads"]
        return replace(job.placed(tmp_path), machine=config.machine), study.state(job)

    for name, head in {"a.csv": "1,2", "b.csv": "1,2", "c.csv": "0,0"}.items():
        (tmp_path / name).write_text(f"layer,head\n{head}\n")
    job, _ = state("a.csv")
    order_heads(job)
    assert state("a.csv")[1] == state("b.csv")[1] == FRESH
    assert state("c.csv")[1] == "`digest` changed"


@pytest.mark.usefixtures("with_texts")
@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ([LIST | {"name": "Mine"}], r"run.orders\[0\].name is 'Mine', but must match"),
        ([LIST, LIST | {"file": "b.csv"}], "run.orders: 'list-mine' is listed twice"),
        ([LIST], r"orders, list-mine: there is no file heads\.csv"),
    ],
)
def test_a_list_in_a_config_is_checked(orders, message):
    with pytest.raises(papa.InputError, match=message):
        check_files(config_of(with_keys(CONFIG, {"run.orders": orders})))
    grids = {"grids.more": {"orders": [LIST | {"file": "other.csv"}]}, "run.orders": [LIST]}
    with pytest.raises(papa.InputError, match=r"run\.orders has a list with the name 'mine', but another grid"):
        config_of(with_keys(CONFIG, grids))


@pytest.mark.usefixtures("no_figures")
def test_a_study_measures_a_list(folder, tmp_path):  # noqa: F811
    path = tmp_path / "heads.csv"
    path.write_text("layer,head\n1,0\n")
    settings = QUICK | {"run": QUICK["run"] | {"orders": [{"file": str(path), "name": "mine"}]}}
    study = papa.measure(folder, *texts_of(60), texts_of(40, 1), settings, tmp_path / "s")
    assert "in the order of the list mine" in study.claims["lines"][0]["sentence"]
    assert set(study.summary["order"].dropna()) == {"list-mine"}
