"""Original scores with mean drops: which tasks are in which mean."""

from types import SimpleNamespace

import pytest
from builders import frame_of, summary_row

from papa.results.drops import COLUMNS, drops
from papa.results.grids import GRID_COLUMNS
from papa.results.table import arrow_of

LOG_SCALED = {"metric": "negative_log_perplexity"}


def row(task, fraction, mean, drop, **columns):
    return summary_row(
        fraction, mean, **{"line": "a", "task": task, "relative_drop": drop} | columns
    )


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """The rows of each figure; figures have other tests, which take long."""
    frames = []
    monkeypatch.setattr(
        "papa.results.drops.drop_figure", lambda rows: frames.append(rows) or (None, "")
    )
    monkeypatch.setattr("papa.results.drops.grid_views", lambda config: [config])
    monkeypatch.setattr("papa.results.drops.rows_of", lambda view, rows: rows)
    return frames


def analysed(rows):
    config = SimpleNamespace(run=SimpleNamespace(fractions=("1", "0")))
    section = drops(SimpleNamespace(config=config, summary=frame_of(rows, GRID_COLUMNS)))
    return arrow_of(section.frame, COLUMNS).to_pylist(), section.tables[0].markdown().splitlines()[
        2:
    ]


def test_means_over_tasks(drawn):
    rows = [
        row("a", "1", 0.9, 0),
        row("b", "1", 0.5, 0),
        row("c", "1", 0.1, None),
        row("a", "0", 0.8, 0.1),
        row("b", "0", 0.4, 0.2),
        row("c", "0", 0.1, None),
        row("mlm", "1", -2.0, None, **LOG_SCALED),
        row("mlm", "0", -3.0, None, **LOG_SCALED),
        row("a", "1/2", 0.7, 0.9),
        row("a", "0", 0.1, 0.9, main=False),
    ]
    rows += [
        r | {"line": "b"} for r in rows if r["fraction"] != "1/2"
    ]  # both ends are in every line
    [mean], [line] = analysed(rows)
    expected = ("m", "average", pytest.approx(0.5), 3, pytest.approx(0.15), 2, "C")
    assert mean == dict(zip(COLUMNS, expected, strict=True))
    assert line == "| m | average | 0.500 | 3 | 15.0% | 2 | C |"
    assert [len(rows) for rows in drawn] == [1]


def test_without_a_defined_drop_there_is_none():
    rows = [row("a", "1", 0.9, None), row("a", "0", 0.8, None)]
    rows += [row("mlm", fraction, -2.0, None, model="n", **LOG_SCALED) for fraction in ("1", "0")]
    means, lines = analysed(rows)
    assert [mean["mean_relative_drop"] for mean in means] == [None, None]
    assert lines == [
        "| m | average | 0.900 | 1 | - | 0 | A |",
        "| n | average | - | 0 | - | 0 |  |",
    ]
