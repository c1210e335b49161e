"""Results loaded back from their folder: the numbers in its files, without model and texts."""

import re
import shutil
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from finished import (
    CHANCE,
    CONFIG,
    SLOTS,
    TASK,
    TITLE,
    all_learned,
    averages,
    page_of,
    write_results,
)
from refusals import input_error

import papa
from papa.files import read_json, read_table
from papa.results.claims import data_notes


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    made = write_results(tmp_path_factory.mktemp("loading"), {"second": CHANCE})
    with patch("papa.results.section.draw", return_value="<svg/>"):
        page_of(made)
    return made


@pytest.fixture(scope="module")
def loaded(study):
    return papa.load(study.folder)


def test_tables_are_those_in_the_folder(study, loaded):
    claims = read_json(study.folder / "tables/claims.json")
    assert loaded.claims == claims
    assert "11 of 600 rows" in str(loaded.claims)
    assert str(loaded.claims).startswith(" ".join(claims["sentences"]))
    assert loaded.outcomes.equals(read_table(study.folder / "tables/outcomes.parquet").to_pandas())
    assert loaded.page == study.folder / "report/index.html"
    reliances = loaded.reliance[loaded.reliance["subset"].isna()].set_index(["line", "task"])[
        "reliance"
    ]
    first = {"grid": "scores_by_heads_replaced", "model": "small", "task": TITLE, "fraction": "0"}
    [claim] = (claim for claim in claims["claims"] if first.items() <= claim.items())
    assert reliances["small", TITLE] == claim["reliance"] > 0.6
    assert np.isnan(reliances["small", "Second"])


def test_a_study_of_several_models_and_tasks_names_them(loaded):
    curve = loaded.curve
    assert set(curve["model"]) == {"small", "other"}
    assert set(curve["task"]) == {"first", "second"}
    weights = loaded.heads.set_index(["model", "task", "constant", "seed", "layer", "head"])[
        "value"
    ].sort_index()
    expected = all_learned(0)
    for model, task in (("small", "second"), ("other", "first")):
        np.testing.assert_allclose(weights.loc[(model, task, "average", 0)], expected)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("third",), "The study has no task 'third'; give one of: first, second."),
        (("first",), "The study has several models; give one of: small, other."),
        (("first", "small", "zeros"), "The study has no constant 'zeros'; give one of: average."),
    ],
)
def test_constants_are_those_of_the_model_and_the_task_and_a_wrong_name_gets_a_sentence(
    loaded, asked, message
):
    np.testing.assert_array_equal(loaded.constants("first", "small").mean, averages().mean)
    with input_error(re.escape(message)):
        loaded.constants(*asked)


@pytest.mark.parametrize(
    ("cut", "listed", "expected"),
    [
        ((1, 1), ["b", "a"], ""),
        ((0, 0, 1), ["b", "a"], ""),
        (
            (0, 0, 100),
            ["b", "a"],
            "Texts of only unknown tokens: 100 of 100 training rows of T, U (m).",
        ),
        (
            (2, 60),
            ["b", "a"],
            "than slots: 2 of 100 training rows of T, U (m); 60 of 100 validation rows of T, U (m).",
        ),
        (
            (0, 0),
            None,
            "F1 is that of b, the class of 90% of the training rows; if a is the class of interest",
        ),
    ],
)
def test_notes_on_data_are_cut_texts_and_f1_of_the_more_frequent_class(cut, listed, expected):
    sizes = {
        "rows_train": 100,
        "rows_validation": 100,
        "cut_train": cut[0],
        "cut_validation": cut[1],
        "style": "natural",
    }
    rows = [
        {"main": True, "task": name, "title": name.upper(), "model": "m", "metric": "f1"} | sizes
        for name in "tu"
    ]
    labels = {"t": {"names": ["a", "b"], "train_counts": [10, 90]}}
    facts = {"texts": {"labels": labels, "shared": {}, "rows": {"validation": 100}}}
    tasks = dict.fromkeys("tu", SimpleNamespace(corpus="texts", labels=listed))
    config = SimpleNamespace(tasks=tasks, pairs=[("m", "t")])
    laid_out = {("m", "texts"): {"unknown": {"train": sum(cut[2:])}} if cut[2:] else {}}
    said = " ".join(data_notes(config, facts, pd.DataFrame(rows), laid_out))
    assert expected in said
    assert bool(said) == bool(expected)
    rows[0]["style"] = "paper"
    notes = data_notes(config, facts, pd.DataFrame(rows), laid_out)
    assert any("Tokens have fixed slots" in note for note in notes)


def test_a_saved_study_needs_nothing_else(loaded, tmp_path):
    page = loaded.save(tmp_path / "saved")
    assert page == tmp_path / "saved/report/index.html"
    assert page.read_text() == loaded.page.read_text()
    with input_error("saved exists"):
        loaded.save(tmp_path / "saved")
    again = papa.load(shutil.move(tmp_path / "saved", tmp_path / "moved"))
    assert again.summary.equals(loaded.summary)
    assert again.heads.equals(loaded.heads)
    assert again.claims == loaded.claims
    np.testing.assert_array_equal(again.constants("second", "other").mean, averages().mean)
    shutil.rmtree(tmp_path / "moved/averages")
    with input_error("are missing; run the study again to compute them"):
        again.constants("second", "other")


def test_only_a_finished_study_can_be_loaded(tmp_path):
    with input_error("nowhere is not a folder; give a results folder"):
        papa.load(tmp_path / "nowhere")
    with input_error("has no HTML report, so it is not a finished study"):
        papa.load(tmp_path)


def test_cut_texts_are_those_of_the_slots_that_probes_see(tmp_path):
    """To average the texts of the second corpus for the first, they are tokenized with the slots of the first."""
    texts = CONFIG["corpora"]["texts"]
    corpora = {"texts": texts, "long": texts | {"slots": SLOTS + 4}}
    tasks = {
        name: TASK | {"corpus": corpus, "label": name}
        for name, corpus in zip("ab", corpora, strict=True)
    }
    run = CONFIG["run"] | {"tasks": ["a", "b"], "constants": ["average-of-long"]}
    runs = write_results(tmp_path, grids={}, corpora=corpora, tasks=tasks, run=run).runs
    assert runs.groupby("task")["cut_validation"].unique().map(list).to_dict() == {
        "a": [0],
        "b": [4],
    }


def test_outcomes_of_the_same_texts_are_paired_whatever_other_tasks_there_are(tmp_path):
    run = CONFIG["run"] | {"tasks": ["first"]}
    tasks = {"first": CONFIG["tasks"]["first"]}
    both, one = (
        write_results(tmp_path / name, grids={}, **changes).outcomes_table()[1]["tasks"]["first"][
            "texts"
        ]
        for name, changes in (("both", {}), ("one", {"run": run, "tasks": tasks}))
    )
    assert both == one
