"""Our numbers with those of the paper: which are joined, and what a comparison is called."""

from types import SimpleNamespace

import pytest
from builders import frame_of, summary_row

from papa.config.measures import METRICS as TASK_METRICS
from papa.results.published import (
    COLUMNS,
    METRIC_NAMES,
    SETTINGS,
    compared,
    published,
    published_values,
)
from papa.results.table import arrow_of

LARGE = {"big": "FacebookAI/roberta-large"}


def row(fraction, mean, **columns):
    about = {
        "model": "big",
        "task": "para",
        "title": "MRPC",
        "rows_train": 3001,
        "rows_available_train": 3668,
    }
    return summary_row(fraction, mean, **about | columns)


def compare(rows, **options):
    about = {
        "models": LARGE,
        "tasks": {"para": "mrpc"},
        "more_settings": {},
    } | options
    return arrow_of(compared(frame_of(rows), **about), COLUMNS).to_pylist()


def section(rows, hub=LARGE["big"]):
    tasks = {"para": SimpleNamespace(published="mrpc", corpus="texts")}
    config = SimpleNamespace(
        tasks=tasks, models={"big": SimpleNamespace(hub=hub)}, pairs=[("big", "para")]
    )
    return published(SimpleNamespace(config=config, summary=frame_of(rows)))


def test_the_values_are_those_of_the_tables():
    values = published_values()
    assert len(values) == 104
    tables = {
        ("1", "roberta-base"),
        ("2", "roberta-base"),
        ("4", "roberta-large"),
        ("5", "roberta-large"),
    }
    assert set(zip(values["table"], values["model"], strict=True)) == tables
    assert {name for names in SETTINGS.values() for name in names} | {"original", "mnli"} == set(
        values["setting"]
    )
    assert set(METRIC_NAMES.values()) - {"chunk_f1"} <= set(TASK_METRICS)


def test_tables_are_joined_one_by_one():
    ours = [row("1", 0.9), row("1/2", 0.85), row("0", 0.79)]
    rows = compare(ours)
    shown = section(ours)
    # the same setting under two names, and two values: 0.81 and 0.80
    assert [(r["table"], r["setting"], r["published"], r["ours"], r["inside"]) for r in rows] == [
        ("4", "original", 0.87, 0.9, False),
        ("4", "average", 0.81, 0.79, False),
        ("5", "per_task", 0.80, 0.79, True),
    ]
    assert [r["difference"] for r in rows] == pytest.approx([0.03, -0.02, -0.01])
    assert list(rows[0]) == list(COLUMNS)
    assert [table.title for table in shown.tables] == [
        f"Table {n}: roberta-large, ours: big" for n in (4, 5)
    ]
    line = "| per task | MRPC | F1 | 0.80 | 0.790 ±.013 | -0.010 | yes | 3,001 of 3,668 |"
    assert line in shown.tables[1].markdown()


@pytest.mark.parametrize(
    ("mean", "half", "inside"),
    [
        (0.8519, 0.013, False),
        (0.8521, 0.013, True),
        (0.8879, 0.013, True),
        (0.8881, 0.013, False),
        (0.87, None, None),
    ],
)
def test_inside_means_a_number_that_rounds_to_the_published_one(mean, half, inside):
    shown = section([row("1", mean, half=half)])
    [comparison] = compare([row("1", mean, half=half)])  # 0.87, so 0.865 to 0.875
    assert comparison["inside"] is inside
    assert comparison["ours"] == mean
    assert half is not None or "| 0.870 | +0.000 | - |" in shown.tables[0].markdown()


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, [("4", "zeros", "zeros")]),
        (
            {"more_settings": {"average_of_mnli": "mnli"}},
            [("4", "zeros", "zeros"), ("5", "mnli", "average_of_mnli")],
        ),
        *(({"models": {"big": hub}}, []) for hub in (None, "x/MiniLM")),
        *(({"tasks": tasks}, []) for tasks in ({}, {"para": "cola"})),  # cola has another metric
    ],
)
def test_other_constants_are_named_by_the_caller_and_nothing_to_compare_is_an_empty_table(
    options, settings
):
    ours = [row("0", 0.8, constant=constant) for constant in ("average_of_mnli", "zeros")]
    rows = compare([*ours, row("1", None)], **options)
    assert [(r["table"], r["setting"], r["constant"]) for r in rows] == settings
    assert section(ours, "x/MiniLM").note.startswith("None of these models")


def test_the_published_reading_is_compared():
    ours = [
        ("token_accuracy", 0.95, {}),
        ("chunk_f1", 0.93, {"main": False}),
        ("chunk_f1", 0.80, {"main": False, "subset": "hard"}),
    ]
    rows = [row("1", mean, metric=metric, task="pos", **columns) for metric, mean, columns in ours]
    [comparison] = compare(rows, tasks={"pos": "pos"})
    assert (comparison["metric"], comparison["ours"], comparison["published"]) == (
        "chunk_f1",
        0.93,
        0.93,
    )
