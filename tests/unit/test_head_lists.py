"""Lists of heads in files: each format to the scores of a model's heads, wrong files to a sentence, lists as orders."""

import json
from dataclasses import replace
from itertools import product
from typing import Any

import jobs
import numpy as np
import pytest
from builders import head_rows
from random_models import random_model
from sizes import HEADS, LAYERS
from test_measure import QUICK, folder, texts_of  # noqa: F401  fixtures
from test_parts import SLOTS, given, recipe, same  # noqa: F401  fixtures
from tiny import CONFIG, with_keys

import papa
from papa.config.declaration import declared_by, differences
from papa.config.freshness import FRESH, SourceDigests
from papa.config.reading import config_of
from papa.config.settings import check_files
from papa.config.stages import ListOf, ModelId, OrderFromWeights
from papa.config.study import Study
from papa.data.head_lists import read_list
from papa.data.local_digests import LocalSourceDigests
from papa.files import Trace, provenance_of, read_table, write_table
from papa.method.orders import rank_heads, weigh_listed

SCORES = np.array([[0.5, -1.0, 0.25, 8.0], [3.0, 0.125, 0.75, 2.0]])
"""Scores of 2 layers of 4 heads."""
GROUPS = SCORES[:, :2]
BY_HEAD = {f"{layer}-{head}": SCORES[layer, head] for layer, head in product(range(2), range(4))}
MODEL = ModelId(name="m", hub=random_model("llama"))
"""A model of 2 layers with 4 heads in 2 groups."""
LIST = {"file": "heads.tsv", "name": "duo"}


def table(rows, separator="\t"):
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def csv_of(scores, header="layer,head,score"):
    """A line for each head, from the last to the first."""
    return table([[header], *([*place, value] for place, value in np.ndenumerate(scores))][::1], ",")


FORMATS: dict[str, tuple[str, str, Any]] = {
    "heads": (".tsv", table(SCORES), SCORES),
    "groups": (".tsv", table([[f"{value:.18e}" for value in row] for row in GROUPS]), GROUPS.repeat(2, axis=1)),
    "table of heads": (".csv", csv_of(SCORES), SCORES),
    "table of heads in any order": (".csv", "\n".join(["Head, layer,score", "1,0,3", "0,0,2"]), [[2, 3]]),
    "table of groups": (".csv", csv_of(GROUPS, "layer,group,score"), GROUPS.repeat(2, axis=1)),
    "groups that are called heads": (".csv", csv_of(GROUPS), GROUPS.repeat(2, axis=1)),
    "table with tabs": (".tsv", csv_of(SCORES).replace(",", "\t"), SCORES),
    "instances": (
        ".json",
        json.dumps({head: [score, score + 1, score + 5] for head, score in BY_HEAD.items()}),
        SCORES + 2,
    ),
    "one score": (".json", json.dumps(BY_HEAD), SCORES),
    "papa's own": (".json", json.dumps({"values": SCORES.tolist(), "kept": []}), SCORES),
    "kept by layer": (".json", '{"0": [1, 3], "1": []}', [[0, 1, 0, 1], [0, 0, 0, 0]]),
    "best heads": (".yaml", 'attn_head_set: "1-2,0-3" # top2\nmodel_base_class: "M"\n', [[0, 0, 0, 1], [0, 0, 1, 0]]),
    "best heads in a list": (".yml", "- 1-2\n- 0-3\n", [[0, 0, 0, 1], [0, 0, 1, 0]]),
    "best heads in a table": (".csv", "layer,head\n1,2\n0,3\n", [[0, 0, 0, 1], [0, 0, 1, 0]]),
    "best heads with scores": (".csv", "layer,head,score\n1,2,-5\n0,3,7\n", [[-6, -6, -6, 7], [-6, -6, -5, -6]]),
    "best groups": (".csv", "layer,group\n1,1\n", [[0, 0, 0, 0], [0, 0, 1, 1]]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_gives_the_score_of_each_head(name, tmp_path):
    suffix, text, expected = FORMATS[name]
    path = tmp_path / f"list{suffix}"
    path.write_text(text)
    expected = np.array(expected, float)
    np.testing.assert_allclose(read_list(path).on(*expected.shape, expected.shape[1] // 2), expected)


def test_instances_are_kept(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text(json.dumps({"0-1": [1, 2, 3], "0-0": [4, 5, 6]}))
    read = read_list(path)
    assert read.scores.tolist() == [[1, 4], [2, 5], [3, 6]] and read.filled((1, 2)).tolist() == [
        [[4, 1]],
        [[5, 2]],
        [[6, 3]],
    ]


def test_weights_of_a_study_are_those_after_the_last_epoch(tmp_path):
    write_table(head_rows([0.0] * 8, SCORES.ravel(), heads=4), tmp_path / "lambda-0.parquet", {})
    np.testing.assert_allclose(read_list(tmp_path / "lambda-0.parquet").on(2, 4, 4), SCORES)


@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        (".tsv", "1\t2\n3\n", "has lines of 1 to 2 scores; give every layer one per head"),
        (".tsv", "1\tx\n", "cannot be read as tsv (could not convert string to float: 'x'); see docs/lists.md"),
        (
            ".tsv",
            "1\t2\n",
            "has 1 layer of 2 scores, but the model has 2 layers of 4 heads in 2 groups; use a list for",
        ),
        (".tsv", "1\t2\t3\n4\t5\t6\n", "has 2 layers of 3 scores, but the model has 2 layers of 4 heads in 2 groups"),
        (".tsv", "1\t2\n3\tnan\n", "has a score that is not a finite number; remove or correct it"),
        (".tsv", "", "cannot be read as tsv"),
        (".csv", "layer,group,score\n" + csv_of(SCORES).partition("\n")[2], "has 2 layers of 4 groups, but the model"),
        (".csv", "layer,score\n1,2\n", "has the columns layer, score; it needs layer, head (or group), and score"),
        (".csv", "layer,head\n1,2\n1,2\n", "lists head 2 of layer 1 twice; list each once"),
        (".json", '{"1-2": 3, "1-2": 4}', "contains '1-2' twice; list each once"),
        (".json", '{"1": [2], "1": [0]}', "contains '1' twice; list each once"),
        (".csv", "layer,head\n2,0\n", "lists head 0 of layer 2, but the model has 2 layers of 4 heads in 2 groups"),
        (".csv", "layer,head\n0,4\n", "lists head 4 of layer 0, but the model"),
        (".csv", "layer,group\n0,2\n", "lists group 2 of layer 0, but the model"),
        (".csv", "layer,head\n", "lists no heads; list at least one"),
        (
            ".json",
            json.dumps({name: 1 for name in BY_HEAD if name != "1-1"}),
            "has no score for head 1 of layer 1; give",
        ),
        (".json", '{"0-0": [1, 2], "0-1": [1]}', "has heads with 1 and 2 scores; give every head a score for each"),
        (".json", '{"0-0": [], "0-1": []}', "has heads with 0 scores"),
        (".json", '{"0.0": 1}', 'has no scores by "layer-head", such as "13-18"'),
        (".json", "[1, 2]", "has no scores by"),
        (".json", "{", "cannot be read as json"),
        (
            ".yaml",
            "attn_head_set: full_heads\n",
            'has no list of heads "layer-head", such as "13-18", as a whole or in',
        ),
        (".yaml", "model: x\n", "has no list of heads"),
        (".txt", "1", "is no list of heads that papa can read; its suffix must be one of .tsv, .csv, .json, .yaml"),
    ],
)
def test_a_wrong_list_gets_one_sentence(suffix, text, message, tmp_path):
    path = tmp_path / f"list{suffix}"
    path.write_text(text)
    with pytest.raises(papa.InputError) as error:
        read_list(path).on(2, 4, 2)
    assert str(error.value).startswith(f"{path} {message}")
    with pytest.raises(papa.InputError, match=r"cannot be read \(No such file"):
        read_list(tmp_path / "nothing.tsv")


# -- as an order -------------------------------------------------------------------------------------------------------


@pytest.fixture
def ordered(tmp_path, monkeypatch):
    """From the text of a list in a file, and a unit, to its weights and the heads of each draw."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def run(text, unit="head", draws=(1, 2, 3), suffix=".tsv"):
        path, weights = tmp_path / f"list{suffix}", tmp_path / "list-duo.parquet"
        path.write_text(text)
        settings = ListOf(model=MODEL, file=str(path), digest="d", unit=unit)
        line, orders = weigh_listed(jobs.job("list", settings, {}, weights=weights)), []
        for draw in draws:
            rank = jobs.job(
                "rank", OrderFromWeights(order=f"list-duo-{draw}"), {"lambdas": weights}, order=tmp_path / "o"
            )
            rank_heads(rank)
            order = read_table(tmp_path / "o")
            orders.append(list(zip(order["layer"].to_pylist(), order["head"].to_pylist(), strict=True)))
        return read_table(weights), orders, line, provenance_of(order)

    return run


def test_heads_with_small_scores_are_replaced_first(ordered):
    weights, orders, line, facts = ordered(table(SCORES))
    places = sorted(np.ndindex(2, 4), key=lambda place: SCORES[place])
    assert orders == [places] * 3 and facts["unit_size"] == 1
    assert line.startswith("8 scores listed in ")
    assert weights["value"].to_pylist() == SCORES.ravel().tolist()


def test_the_order_of_equal_scores_is_drawn_at_random(ordered):
    _, orders, line, _ = ordered("- 1-2\n- 0-3\n", suffix=".yaml")
    assert len(set(map(tuple, orders))) == 3
    assert all(set(order[6:]) == {(1, 2), (0, 3)} for order in orders) and line.startswith("2 heads listed")
    firsts = [order[0] for order in ordered("- 1-2\n- 0-3\n", "head", range(1, 121), ".yaml")[1]]
    assert np.unique(firsts, axis=0, return_counts=True)[1] == pytest.approx([20] * 6, abs=16)  # 4 standard deviations


def test_a_unit_has_the_largest_score_of_its_heads(ordered):
    weights, orders, _, facts = ordered(table(SCORES), "group")
    assert weights["value"].to_pylist() == [0.5, 0.5, 8, 8, 3, 3, 2, 2] and facts["unit_size"] == 2
    assert orders[0] == [(0, 0), (0, 1), (1, 2), (1, 3), (1, 0), (1, 1), (0, 2), (0, 3)]
    assert ordered(table(GROUPS), "group")[0]["value"].to_pylist() == np.repeat(GROUPS.ravel(), 2).tolist()
    assert ordered(table(SCORES), "layer")[0]["value"].to_pylist() == [8] * 4 + [3] * 4


def study_of(results, **run):
    config = config_of(with_keys(CONFIG, {f"run.{key}": value for key, value in run.items()}))
    return Study(config, results)


def test_a_study_draws_a_list_and_reads_it_once(tmp_path):
    study = study_of(tmp_path, orders=["lambda", LIST | {"draws": 2}, {"file": "b.yaml", "name": "best-2"}])
    names = [order.name for order in study.orders(study.grids["score_by_fraction"])]
    assert names == ["lambda-0", "list-duo-1", "list-duo-2", "list-best-2-1", "list-best-2-2", "list-best-2-3"]
    made = [job for job in study.jobs() if job.stage == "list" and job.wildcards["task"] == "animals"]
    assert [job.main.rpartition("/")[2] for job in made] == ["list-duo.parquet", "list-best-2.parquet"]


def test_random_orders_have_the_layers_of_a_list(tmp_path):
    listed = LIST | {"draws": 1, "by_layer": True}
    study = study_of(tmp_path, orders=[listed, "random"])
    orders = [order.name for order in study.orders(study.grids["score_by_fraction"])]
    shuffled = [f"list-duo-shuffled-{draw}" for draw in (1, 2, 3)]
    assert orders == ["list-duo-1", *shuffled, "random-1", "random-2", "random-3"]
    ranks = {job.wildcards["order"]: job for job in study.jobs() if job.rule == "rank"}
    assert {job.main.rpartition("/")[2] for name in orders[:4] for job in ranks[name].needed} == {"list-duo.parquet"}
    assert [ranks[name].settings.weights for name in orders[:2]] == [None, "list-duo-1"]
    write_table(head_rows(SCORES.ravel(), heads=4), tmp_path / "w.parquet", {}, Trace("list", 1, {}, {}))
    heads = {}
    for name in orders[:4]:
        job = jobs.job("rank", ranks[name].settings, {"lambdas": tmp_path / "w.parquet"}, order=tmp_path / "o")
        rank_heads(job)
        table = read_table(tmp_path / "o")
        heads[name] = table["layer"].to_pylist(), table["head"].to_pylist()
    assert len({str(each) for each in heads.values()}) == 4 and len({str(layers) for layers, _ in heads.values()}) == 1
    with pytest.raises(papa.InputError, match=r"run.orders\[0\].name is 'a-shuffled', but must match"):
        study_of(tmp_path, orders=[LIST | {"name": "a-shuffled"}])


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
        keys = {"models.tiny": {"path": random_model("llama")}, "run.orders": [LIST | {"file": file}]}
        config = config_of(with_keys(CONFIG, keys))
        study = Study(config, tmp_path, LocalSourceDigests(config.machine))
        job = next(job for job in study.jobs() if job.stage == "list")
        return study, job, study.state(job)

    for name, text in {"a.tsv": table(SCORES), "b.tsv": table(SCORES), "c.tsv": table(SCORES + 1)}.items():
        (tmp_path / name).write_text(text)
    study, job, _ = state("a.tsv")
    weigh_listed(replace(job.placed(tmp_path), machine=study.config.machine))
    assert state("a.tsv")[2] == state("b.tsv")[2] == FRESH
    study, _, why = state("c.tsv")
    assert why == "`digest` changed"
    changed = list(differences(declared_by(state("a.tsv")[0]), declared_by(study)))
    assert "data.list-duo.file" in {difference["key"] for difference in changed}


@pytest.mark.usefixtures("with_texts")
def test_a_list_in_a_config_is_checked(tmp_path):
    wrong = {
        "it must be one of lambda": ["duo"],
        r"needs the key run.orders\[0\].name": [{"file": "a.tsv"}],
        r"unknown key run.orders\[0\].path": [LIST | {"path": "x"}],
        r"run.orders\[0\].name is 'Duo', but must match": [LIST | {"name": "Duo"}],
        r"run.orders\[0\].draws is 0, but must be at least 1": [LIST | {"draws": 0}],
        "run.orders contains 'list-duo' twice": [LIST, LIST | {"file": "b.tsv"}],
    }
    for message, orders in wrong.items():
        with pytest.raises(papa.InputError, match=message):
            study_of(tmp_path, orders=orders)
    grids = {"grids.more": {"orders": [LIST | {"file": "other.tsv"}]}, "run.orders": [LIST]}
    with pytest.raises(papa.InputError, match=r"run\.orders has a list with the name 'duo', but another grid"):
        config_of(with_keys(CONFIG, grids))
    with pytest.raises(papa.InputError, match=r"orders, list-duo: there is no file heads\.tsv"):
        check_files(config_of(with_keys(CONFIG, {"run.orders": [LIST]})))
    assert SourceDigests().head_list("heads.tsv") is None


@pytest.mark.usefixtures("no_figures")
def test_a_study_and_a_sweep_replace_the_same_heads_of_a_list(given, folder, recipe, tmp_path):  # noqa: F811
    model, train, validation = given
    path = tmp_path / "heads.tsv"
    path.write_text(table(np.random.default_rng(2).permutation(LAYERS * HEADS).reshape(LAYERS, HEADS)))
    run = QUICK["run"] | {"orders": [{"file": str(path), "name": "duo", "draws": 1}]}
    settings = QUICK | {"corpora": {"slots": SLOTS}, "run": run, "device": "cpu"}  # as the model of the sweep
    study = papa.measure(folder, *texts_of(60), texts_of(40, 1), settings, tmp_path / "s")
    constants = papa.average_attention(model, train[0])
    same(papa.sweep(model, constants, path, train, validation, recipe), study)
    assert "in the order of the list duo" in study.claims["lines"][0]["sentence"]
