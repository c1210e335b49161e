"""The table of inner folds: choices, settings that only differ in what adapts, and floors whose training diverged."""

import logging
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from builders import analysis_job

from papa.config.stages import TaskOf
from papa.errors import InputError
from papa.files import write_table
from papa.method.tuning import FOLD_COLUMNS, best_floors
from papa.results.inner_folds import InnerFolds, sentence_of, setting_text

FLOORS = ("zeros", "identity", "mean-output")


def folds(folder: Path, variant: str, *scores: float | None, task: str = "t") -> Path:
    """A table of folds with a score for each learning rate: 0.1, 0.2, …"""
    path = folder / f"{task}-{variant.replace('/', '-')}.parquet"
    rows = [
        {"learning_rate": rate / 10, "fold": fold, "rows": 5, "score": score}
        for rate, score in enumerate(scores, start=1)
        for fold in (1, 2)
    ]
    facts = {"model": "m", "task": task, "variant": variant, "metric": "accuracy", "table": "folds"}
    write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(FOLD_COLUMNS.items()))), path, facts)
    return path


def rows_of(paths: list[Path], floors: tuple[str, ...] = FLOORS) -> pd.DataFrame:
    tasks = {task: TaskOf(title=task.upper(), metric="accuracy") for task in ("t", "u")}
    job = replace(analysis_job("inner_folds", {}, {}, paths[0]), inputs={"folds": tuple(map(str, paths))})
    return InnerFolds(tasks=tasks, floors=floors).compute(job).rows


def test_a_floor_whose_training_diverged_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scores = {"zeros": 0.5, "identity": None, "mean-output": 0.7}
    paths = [folds(tmp_path, f"{name}/all", score) for name, score in scores.items()]
    with caplog.at_level(logging.WARNING):
        assert best_floors(paths, FLOORS) == {("m", "t"): ("mean-output", "zeros")}
    assert caplog.messages == [
        "The floor identity of m on t is left out, because its training diverged on inner folds; lower the learning "
        "rate to include it."
    ]
    rows = rows_of(paths)
    assert rows["floor"].tolist() == [False, False, True] and rows["score"].isna().tolist() == [False, True, False]
    assert sentence_of(rows) == (
        "context-free floor: mean-output on T; no score, because training diverged: T, identity, all heads replaced"
    )


def test_only_if_all_floors_of_a_task_diverged_it_is_an_error(tmp_path: Path) -> None:
    paths = [folds(tmp_path, f"{name}/all", None, task=task) for name in FLOORS for task in ("t", "u")]
    paths[0] = folds(tmp_path, "zeros/all", 0.5)
    with pytest.raises(InputError, match="of every context-free floor of m on u diverged on inner folds; lower the"):
        best_floors(paths, FLOORS)


def test_settings_that_differ_only_in_what_adapts_have_different_names(tmp_path: Path) -> None:
    variants = ["original", "original/adapt-norms", "average/all", "average/all/adapt-norms"]
    rows = rows_of([folds(tmp_path, variant, 0.5, 0.7, 0.6) for variant in variants], ("zeros",))
    table = InnerFolds(tasks={}, floors=("zeros",)).tables(rows)[0]
    assert list(dict.fromkeys(table.frame["setting"])) == [
        "original",
        "original, trained norms",
        "average, all heads replaced",
        "average, all heads replaced, trained norms",
    ]
    assert rows.loc[rows["best_rate"], "learning_rate"].tolist() == [0.2] * 4 and not rows["at_end"].any()
    assert setting_text("average/lambda-0/kept-1of2") == "average, λ 0 order, 1/2 kept"
