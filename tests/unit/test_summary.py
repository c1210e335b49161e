"""Runs and their summary against values worked out by hand: means, relative drops, what is null, what is read."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest
from builders import labelled, run_record
from refusals import damage_error

from papa.files import write_json, write_table
from papa.results.outcomes import VARIANT_KEYS
from papa.results.reliance import EFFECT_COLUMNS
from papa.results.scores import RUN_COLUMNS, collect_runs, without_draws
from papa.results.summary import (
    SHARED_WITH_ORIGINAL,
    by_fraction,
    data_of,
    is_main,
    print_results,
    read_summary,
    score_note,
    summary_of,
)
from papa.results.table import Table, arrow_of, write_pages

SCALE = 9.0
"""Half-widths of made-up intervals are this number of standard deviations over seeds."""
Scores = Mapping[str, Sequence[float]]


def scored(scores, task="t", subsets=None, readings=None, **columns):
    """A table of runs from the scores of seeds by fraction; `subsets` and `readings` add to the main score."""
    rows = []
    for fraction, of_seeds in scores.items():
        for seed, score in enumerate(of_seeds):
            record = run_record(task, fraction, seed)
            row = {name: record[name] for name in RUN_COLUMNS if name in record} | {"title": task}
            row |= {
                "metric": "accuracy",
                "main": True,
                "subset": "all",
                "score": score,
                "examples": 53,
            } | columns
            rows.append(row)
            for name, more in (subsets or {}).items():
                rows.append(row | {"subset": name, "score": score + more, "examples": 29})
            for name, more in (readings or {}).items():
                rows.append(row | {"metric": name, "main": False, "score": score + more})
    return pd.DataFrame(rows, columns=list(RUN_COLUMNS))


def summary(*runs):
    """The summary of tables of runs, with no reliances."""
    table = pd.concat(runs, ignore_index=True)
    unknown = dict.fromkeys(EFFECT_COLUMNS, np.nan) | {"status": "one seed, so no interval"}
    keys = [*SHARED_WITH_ORIGINAL, *VARIANT_KEYS]
    measured = (
        without_draws(table)
        .groupby(keys, dropna=False)["score"]
        .std()
        .mul(SCALE)
        .rename("half_width")
    )
    return summary_of(
        table, measured.reset_index().astype(dict.fromkeys(VARIANT_KEYS, object)).assign(**unknown)
    )


def rows_of(*runs):
    rows = summary(*runs).astype(object)
    return rows.where(rows.notna(), None).to_dict("records")


def page_of(folder, *runs):
    frame = summary(*runs)
    names = {"task": "title", "metric": "metric"}
    by_subset = {"task": "title", "subset": "subset", "examples": "examples"}
    tables = [
        Table("Scores", by_fraction(frame, is_main(frame), names), 2),
        Table("Subsets", by_fraction(frame, frame["subset"].ne("all"), by_subset), 3),
        Table("Other metrics", by_fraction(frame, ~frame["main"], names), 2),
        Table("Data", data_of(frame[is_main(frame)]), 2),
    ]
    write_pages(
        "Scores", tables, score_note(frame, "seeds"), folder / "summary.md", folder / "summary.tex"
    )
    return (folder / "summary.md").read_text()


def test_runs_become_one_row_per_metric_and_subset():
    setting = ("average", "lambda-0", "1/2")
    right = {setting: [1, 1, 0, 1, 1, 0]}
    about = {"task": "pos", "model": "tiny", "metric": "f1", "subset": ["a", "a", "", "", "b", "b"]}
    outcomes = labelled(right, gold=[0, 0, 0, 1, 1, 1], **about)
    table = collect_runs([run_record("pos", "1/2")], [outcomes], {"pos": "POS"})
    assert list(table.columns) == list(RUN_COLUMNS)
    assert without_draws(table)["order"].tolist() == ["lambda"] * 4
    assert table[["metric", "main", "subset", "score", "examples"]].to_numpy().tolist() == [
        ["f1", True, "all", pytest.approx(4 / 6), 6],
        ["accuracy", False, "all", pytest.approx(4 / 6), 6],
        ["f1", True, "a", 0.0, 2],
        ["f1", True, "b", pytest.approx(2 / 3), 2],
    ]
    first = table.iloc[0]
    assert (first["title"], first["order"], first["fraction"], first["kept"]) == (
        "POS",
        "lambda-0",
        "1/2",
        12,
    )
    assert (first["rows_train"], first["rows_available_train"], first["cut_validation"]) == (
        1000,
        8551,
        2,
    )


def test_a_setting_has_its_mean_and_the_interval_of_its_outcomes(tmp_path):
    runs = scored({"1": [0.2, 0.3, 0.7]})
    [row] = rows_of(runs)
    # Deviations -0.2, -0.1, 0.3: variance 0.14 / 2.
    half = SCALE * 0.07**0.5
    assert (row["mean"], row["seeds"]) == (pytest.approx(0.4), 3)
    assert [row[name] for name in ("half_width", "low", "high")] == pytest.approx(
        [half, 0.4 - half, 0.4 + half]
    )
    runs = scored({"1": [0.8]})
    [row] = rows_of(runs)
    assert [row[name] for name in ("mean", "seeds", "half_width", "low", "high")] == [
        0.8,
        1,
        None,
        None,
        None,
    ]
    assert "| 0.800 |" in page_of(tmp_path, runs)


def test_relative_drop_against_the_original():
    runs = [
        scored({"1": (0.78, 0.82), "1/2": (0.8, 0.84), "0": (0.6, 0.6)}, "sst2"),
        # The same for a negative metric (the sign is the original's distance from 0), far enough below 0.
        scored({"1": (-1.0, -1.0), "0": (-1.5, -1.5)}, "neg"),
    ]
    rows = {(row["task"], row["fraction"]): row["relative_drop"] for row in rows_of(*runs)}
    assert list(rows) == [("sst2", "1"), ("sst2", "1/2"), ("sst2", "0"), ("neg", "1"), ("neg", "0")]
    assert [*rows.values()] == pytest.approx([0, -0.025, 0.25, 0, 0.5])


@pytest.mark.parametrize(
    ("original", "metric"),
    [
        ((0.02, 0.06), "matthews_correlation"),  # the interval, 0.04 ± 0.25, holds 0
        ((0.8,), "accuracy"),  # one seed: no interval is known
        ((-2.0, -2.01), "negative_log_perplexity"),  # log scale
        ((-2.0,), "log_likelihood"),  # of the model's own head
    ],
)
def test_drop_is_null_where_not_defined(original, metric):
    runs = scored({"1": original, "0": [score / 2 for score in original]}, metric=metric)
    assert [row["relative_drop"] for row in rows_of(runs)] == [None, None]


def test_rows_are_in_the_order_of_fractions():
    runs = [
        scored(dict.fromkeys(("0", "1/16", "1", "1/32", "1/2"), (0.5,)), task)
        for task in ("b", "a")
    ]
    rows = rows_of(*runs)
    assert [row["task"] for row in rows] == ["b"] * 5 + ["a"] * 5
    assert [row["fraction"] for row in rows[:5]] == ["1", "1/2", "1/16", "1/32", "0"]


def test_markdown_says_what_was_used(tmp_path):
    scores = {"1": (0.80, 0.81), "0": (0.60, 0.61)}
    hostile = {"<img src=x>\n# owned | &": 0.1}
    runs = scored(
        scores,
        title="<script>\n| real",
        subsets={"lookup": -0.1} | hostile,
        readings={"chunk_f1": -0.05},
    )
    page = page_of(tmp_path, runs)
    title = "&lt;script&gt; \\| real"
    assert "Cells: validation score ± half-width of the 95% interval" in page
    for row in (
        f"| {title} | Accuracy | 0.805 ±.064 | 0.605 ±.064 | 24.8% |",
        f"| {title} | lookup | 29 | 0.705 ±.064 | 0.505 ±.064 | 28.4% |",
        f"| {title} | &lt;img src=x&gt; # owned \\| &amp; | 29 | 0.905",
        f"| {title} | Chunk F1 | 0.755 ±.064 | 0.555 ±.064 | 26.5% |",
    ):
        assert row in page
    assert (
        page.count(f"| {title} | tiny | 1,000 of 8,551 | 7 | all 53 | 2 |")
        == page.count("8,551")
        == 1
    )
    assert "<img" not in page and "<script" not in page and "\n# owned" not in page


def test_the_end_of_a_run_prints_claims_and_caveats(tmp_path, capsys):
    table = {"columns": ["line", "heads replaced"], "data": [["m", "8 of 24"]]}
    claims = {
        "sentences": ["Much is lost."],
        "table": table,
        "notes": ["Rows are also in training."],
    }
    write_json(claims, tmp_path / "tables/claims.json")
    print_results(tmp_path)
    text = " ".join(capsys.readouterr().out.split())
    assert "Much is lost. line" in text
    assert "m 8 of 24 - Rows are also in training." in text
    assert text.endswith("report/index.html")


def test_bad_tables_are_named(tmp_path):
    path = tmp_path / "table.parquet"
    write_table(arrow_of(scored({"1": [0.8]}), RUN_COLUMNS), path, {})
    with damage_error("is not a summary of papa"):
        read_summary(path)
