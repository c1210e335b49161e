"""Results loaded back from their folder: the numbers in its files, without model and texts."""

import re

import numpy as np
import pyarrow as pa
import pytest
from finished import CHANCE, HEADS, LAYERS, TITLE, averages, learned, page_job, write_results

import papa
from papa.files import Trace, read_json, read_table, write_table
from papa.results.caveats import data_caveats
from papa.results.page import write_report


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    made = write_results(tmp_path_factory.mktemp("loading"), {"second": CHANCE})
    write_report(page_job(made))
    return made


@pytest.fixture(scope="module")
def loaded(study):
    return papa.load(study.results)


def test_tables_are_those_in_the_folder(study, loaded):
    claims = read_json(study.results / "tables/claims.json")
    assert loaded.claims == claims | {"caveats": loaded.claims["caveats"]} and claims["sentence"] in str(loaded.claims)
    outcomes = read_table(study.results / "tables/outcomes.parquet").to_pandas()
    assert loaded.outcomes.equals(outcomes) and loaded.page == study.results / "report/index.html"
    losses = loaded.losses[loaded.losses["subset"].isna()].set_index(["line", "task"])["loss"]
    (line,) = (line for line in claims["lines"] if line["grid"] == "score_by_fraction" and line["model"] == "small")
    assert losses["small", TITLE] == line["at_end"]["tasks"][0]["loss"] > 0.6 and np.isnan(losses["small", "Second"])


def test_a_study_of_several_models_and_tasks_names_them(loaded):
    curve = loaded.curve
    assert set(curve["model"]) == {"small", "other"} and set(curve["task"]) == {"first", "second"}
    weights = loaded.heads.set_index(["model", "task", "constant", "seed", "layer", "head"])["value"].sort_index()
    expected = [learned(0, head) for head in range(LAYERS * HEADS)]
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
def test_constants_are_those_of_the_model_and_the_task_and_a_wrong_name_gets_a_sentence(loaded, asked, message):
    np.testing.assert_array_equal(loaded.constants("first", "small").mean, averages().mean)
    with pytest.raises(papa.InputError, match=re.escape(message)):
        loaded.constants(*asked)


@pytest.mark.parametrize(
    ("cut", "listed", "expected"),
    [
        ((1, 1), ["b", "a"], ""),
        ((2, 60), ["b", "a"], "than slots: 2 of 100 training rows of T (m); 60 of 100 validation rows of T (m)."),
        ((0, 0), None, "F1 is that of b, the class of 90% of the training rows; if a is the class of interest"),
    ],
)
def test_caveats_are_cut_texts_and_f1_of_the_more_frequent_class(tmp_path, cut, listed, expected):
    sizes = {"rows_train": 100, "rows_validation": 100, "cut_train": cut[0], "cut_validation": cut[1]}
    row = {"main": True, "task": "t", "title": "T", "model": "m", "metric": "f1"} | sizes
    (tmp_path / "tables").mkdir()
    (tmp_path / "tasks/t").mkdir(parents=True)
    write_table(pa.Table.from_pylist([row]), tmp_path / "tables/summary.parquet", {})
    facts, trace = {"label_names": ["a", "b"], "train_counts": [10, 90]}, Trace("labels", 1, {"labels": listed}, {})
    write_table(pa.table({"label": [0]}), tmp_path / "tasks/t/labels.parquet", facts, trace)
    said = data_caveats(tmp_path, {"t": "texts"})
    assert expected in said and bool(said) == bool(expected)


def test_only_a_finished_study_can_be_loaded(tmp_path):
    with pytest.raises(papa.InputError, match="nowhere is not a folder; give a results folder"):
        papa.load(tmp_path / "nowhere")
    with pytest.raises(papa.InputError, match="has no HTML report, so it is not a finished study"):
        papa.load(tmp_path)
