"""Runs and their summary against values worked out by hand: Student's t, relative drops, what is null, what is read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from papa.config.artefacts import ARTEFACTS
from papa.errors import DamagedArtefact, InputError
from papa.files import PathLike, Trace, digest_of, write_json, write_page
from papa.method.runs import SPLITS, Run, read_runs, write_runs
from papa.results.conclusion import Conclusion
from papa.results.losses import LOSS_COLUMNS
from papa.results.outcomes import RUN, TaskOutcomes
from papa.results.scores import RUN_COLUMNS, collect_runs, without_draws
from papa.results.summary import (
    SUMMARY_COLUMNS,
    TITLE,
    legend,
    mean_relative_drops,
    print_results,
    print_summary,
    read_summary,
    series,
    summary_of,
    tables_of,
)
from papa.results.table import metric_name, read_frame, write_frame, write_pages

# Student's t at 97.5 %, from printed tables.
T_OF_2_DEGREES = 4.302653
T_OF_1_DEGREE = 12.706205

KEPT = {"1": 24, "1/2": 12, "1/4": 6, "1/8": 3, "1/16": 1, "1/32": 0, "0": 0}


def run(task: str, fraction: str, seed: int, **other: Any) -> dict[str, Any]:
    """One run of a model with 24 heads as the probe stage writes it."""
    return {
        "model": "tiny",
        "task": task,
        "constant": None if fraction == "1" else "average",
        "order": None if fraction in ("1", "0") else "lambda-0",
        "fraction": fraction,
        "kept": KEPT[fraction],
        "heads": 24,
        "seed": seed,
        "rows": {"train": 1000, "validation": 53},
        "rows_available": {"train": 8551, "validation": 53},
        "cut": {"train": 7, "validation": 2},
        "learning_rate": 1e-3,
        "batch_size": 16,
        "epochs": 4,
        "curve": [{"epoch": 1, "loss": 0.7}],
        "provenance": {},
    } | other


def scored(task: str, fraction: str, seed: int, score: float, **other: Any) -> list[dict[str, Any]]:
    """The rows of the table of runs for one run: its main score, and `subsets` and `readings`, scores by name."""
    told = run(task, fraction, seed)
    row = {name: told[name] for name in told if name in RUN_COLUMNS} | {"title": other.pop("title", task)}
    row |= {f"{name}_{split}": told[name][split] for name in ("rows", "rows_available", "cut") for split in SPLITS}
    subsets, readings = other.pop("subsets", {}), other.pop("readings", {})
    row |= {"metric": "accuracy", "main": True, "subset": "all", "score": score, "examples": 53} | other
    rows = [row]
    rows += [row | {"subset": name, "score": own, "examples": 29} for name, own in subsets.items()]
    return rows + [row | {"metric": name, "main": False, "score": own} for name, own in readings.items()]


def summary(runs: list[list[dict[str, Any]]]) -> pd.DataFrame:
    """The summary of scored runs, with no losses."""
    frame = pd.DataFrame([row for rows in runs for row in rows], columns=list(RUN_COLUMNS))
    found = summary_of(frame)
    losses = dict.fromkeys(LOSS_COLUMNS, np.nan) | {"status": "one seed, so no interval"}
    return found.assign(**losses)[list(SUMMARY_COLUMNS)]


def rows_of(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    found = summary(runs).astype(object)
    return found.where(found.notna(), None).to_dict("records")


def page_of(runs: list[list[dict[str, Any]]], folder: Path) -> str:
    """The page of Markdown of a summary."""
    frame = summary(runs)
    write_pages(TITLE, tables_of(frame), legend(frame), folder / "summary.md", folder / "summary.tex")
    return (folder / "summary.md").read_text(encoding="utf-8")


def read(runs: list[dict[str, Any]], folder: Path) -> list[tuple[Run, PathLike]]:
    """Runs that were written and read again, each in a file of its own."""
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(runs):
        write_json({"runs": [content]}, folder / f"{number}.json")
    paths = [folder / f"{number}.json" for number in range(len(runs))]
    return [(run, path) for path in paths for run in read_runs(path)]


def measured(runs: list[dict[str, Any]], predicted: list[list[int]], **items: Any) -> TaskOutcomes:
    """Outcomes of runs of one task on six validation examples, of which the last three have label 1."""
    told = pd.DataFrame([{name: own[name] for name in RUN} for own in runs], dtype=object)
    known = {"split": ["validation"] * 6, "example": range(6), "gold": [0, 0, 0, 1, 1, 1]}
    frame = pd.DataFrame(known | items)
    return TaskOutcomes(
        "tiny", runs[0]["task"], "f1", ("no", "yes"), (3, 5), told, frame, {"predicted": np.array(predicted)}
    )


def one(rows: list[dict[str, Any]], **values: Any) -> dict[str, Any]:
    [row] = [row for row in rows if all(row[name] == value for name, value in values.items())]
    return row


def test_runs_become_one_row_per_metric_and_subset(tmp_path: Path) -> None:
    own = run("pos", "1/2", 3)
    found = measured([own], [[0, 0, 1, 1, 1, 0]], subset=["a", "a", "", "", "b", "b"])
    table = collect_runs(read([own], tmp_path), [found], {"pos": "POS"})
    assert list(table.columns) == list(RUN_COLUMNS)
    rows = [(r.metric, r.main, r.subset, round(r.score, 6), r.examples) for r in table.itertuples()]
    assert rows == [
        ("f1", True, "all", round(4 / 6, 6), 6),
        ("accuracy", False, "all", round(4 / 6, 6), 6),
        ("f1", True, "a", 0.0, 2),
        ("f1", True, "b", round(2 / 3, 6), 2),
    ]
    first = table.iloc[0]
    assert (first["title"], first["order"], first["fraction"], first["kept"]) == ("POS", "lambda-0", "1/2", 12)
    assert (first["rows_train"], first["rows_available_train"], first["cut_validation"]) == (1000, 8551, 2)


def test_interval_is_students_t_over_seeds() -> None:
    [row] = rows_of([scored("cola", "1", seed, score) for seed, score in ((1, 0.2), (2, 0.3), (3, 0.7))])
    # Deviations -0.2, -0.1, 0.3: variance 0.14 / 2.
    half = T_OF_2_DEGREES * (0.07 / 3) ** 0.5
    assert row["mean"] == pytest.approx(0.4)
    assert row["half_width"] == pytest.approx(half, rel=1e-6)
    assert (row["low"], row["high"]) == (pytest.approx(0.4 - half), pytest.approx(0.4 + half))
    assert row["seeds"] == 3


def test_relative_drop_against_the_original() -> None:
    scores = {"1": (0.78, 0.82), "1/2": (0.8, 0.84), "0": (0.6, 0.6)}
    runs = [
        scored("sst2", fraction, seed, score) for fraction, pair in scores.items() for seed, score in enumerate(pair)
    ]
    # The same for a negative metric (the sign is the original's distance from 0), far enough below 0.
    runs += [
        scored("neg", fraction, seed, -1.5 if fraction == "0" else -1.0) for fraction in ("1", "0") for seed in (0, 1)
    ]
    rows = rows_of(runs)
    assert one(rows, task="sst2", fraction="1")["half_width"] == pytest.approx(T_OF_1_DEGREE * 0.02, rel=1e-6)
    assert one(rows, task="sst2", fraction="1")["relative_drop"] == 0
    assert one(rows, task="sst2", fraction="1/2")["relative_drop"] == pytest.approx(-0.025)
    assert one(rows, task="sst2", fraction="0")["relative_drop"] == pytest.approx(0.25)
    assert one(rows, task="neg", fraction="0")["relative_drop"] == pytest.approx(0.5)
    means = mean_relative_drops(summary(runs))
    [mean] = means[means["fraction"] == "0"].to_dict("records")
    assert (mean["model"], mean["constant"], mean["tasks"]) == ("tiny", "average", 2) and pd.isna(mean["order"])
    assert mean["mean_relative_drop"] == pytest.approx(0.375)


@pytest.mark.parametrize(
    ("original", "metric"),
    [
        ((0.02, 0.06), "matthews_correlation"),  # the interval, 0.04 ± 0.25, holds 0
        ((0.8,), "accuracy"),  # one seed: no interval is known
        ((-2.0, -2.01), "negative_log_perplexity"),  # log scale
    ],
)
def test_drop_is_null_where_not_defined(tmp_path: Path, original: tuple[float, ...], metric: str) -> None:
    runs = [scored("t", "1", seed, score, metric=metric) for seed, score in enumerate(original)]
    runs += [scored("t", "0", seed, score / 2, metric=metric) for seed, score in enumerate(original)]
    assert [row["relative_drop"] for row in rows_of(runs)] == [None, None]
    assert mean_relative_drops(summary(runs)).empty
    assert "mean drop" not in page_of(runs, tmp_path)


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    runs = [scored("t", "1", 1, 0.8)]
    [row] = rows_of(runs)
    assert (row["mean"], row["seeds"]) == (0.8, 1)
    assert (row["half_width"], row["low"], row["high"]) == (None, None, None)
    assert "| 0.800 |" in page_of(runs, tmp_path)


def test_order_of_rows_and_same_heads(tmp_path: Path) -> None:
    runs = [scored(task, fraction, 1, 0.5) for task in ("b", "a") for fraction in ("0", "1/16", "1", "1/32", "1/2")]
    rows = rows_of(runs)
    assert [row["task"] for row in rows] == ["b"] * 5 + ["a"] * 5
    assert [row["fraction"] for row in rows[:5]] == ["1", "1/2", "1/16", "1/32", "0"]
    assert [row["same_heads_as"] for row in rows[:5]] == [None, None, None, "0", "1/32"]
    assert "Fractions with the same number of heads: tiny keeps 0 of 24 at 0 and 1/32." in page_of(runs, tmp_path)


def test_series_share_their_ends() -> None:
    settings = [(None, None), ("average", "lambda"), ("average", "random"), ("average", None), ("zeros", None)]
    fractions = ["1", "1/2", "1/2", "0", "1/2"]
    rows = [
        {"task": "a", "constant": constant, "order": order, "fraction": fraction}
        for (constant, order), fraction in zip(settings, fractions, strict=True)
    ]
    # b was run in one order and with averages alone, c with nothing between all heads and none, d as it is
    others = {"b": [0, 1, 3], "c": [0, 3], "d": [0]}
    rows += [rows[number] | {"task": task} for task, numbers in others.items() for number in numbers]
    frame = pd.DataFrame(rows).assign(place=[settings.index((row["constant"], row["order"])) for row in rows])
    found = {words: list(zip(own["task"], own["place"], strict=True)) for words, own in series(frame)}
    assert found == {
        "average constants, lambda order": [("a", 0), ("a", 1), ("a", 3), ("b", 0), ("b", 1), ("b", 3)],
        "average constants, random order": [("a", 0), ("a", 2), ("a", 3)],
        "average constants": [("c", 0), ("c", 3)],
        "zeros constants": [("a", 0), ("a", 4)],
        "nothing replaced": [("d", 0)],
    }


def test_markdown_says_what_was_used(tmp_path: Path) -> None:
    runs = [
        scored("cola", f, s, v, title="CoLA | real", subsets={"lookup": v - 0.1}, readings={"chunk_f1": v - 0.05})
        for f, pair in {"1": (0.80, 0.81), "0": (0.60, 0.61)}.items()
        for s, v in enumerate(pair)
    ]
    page = page_of(runs, tmp_path)
    assert "mean over 2 seeds" in page
    assert "## tiny (24 heads): average constants" in page
    assert "| CoLA \\| real | Accuracy | - | - | 0.805 ±.064 | 0.605 ±.064 | 24.8 % | - |" in page
    assert "| CoLA \\| real | lookup | 29 | - | - | 0.705 ±.064 | 0.505 ±.064 | 28.4 % | - |" in page
    assert "| CoLA \\| real | Chunk F1 | - | - | 0.755 ±.064 | 0.555 ±.064 | 26.5 % | - |" in page
    assert "| CoLA \\| real | tiny | 1,000 of 8,551 | 7 | all 53 | 2 |" in page
    assert page.count("1,000 of 8,551") == 1


def test_metric_names() -> None:
    assert metric_name("matthews_correlation") == "Matthews correlation"
    assert (metric_name("f1"), metric_name("entity_f1")) == ("F1", "Entity F1")


def test_terminal_table_fits_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    title = "A [long] title of a task that somebody made"
    runs = [
        scored("t", fraction, seed, 0.8 + seed / 100, subsets={"position": 0.9}, title=title)
        for fraction in ("1", "1/2", "0")
        for seed in (1, 2, 3)
    ]
    print_summary(summary(runs), Console(markup=False, highlight=False, emoji=False))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("0.820 ±.025") == 3
    assert "[long]" in shown
    assert "\n  position " in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("width", [60, 80, 200])
def test_terminal_tables_break_no_number_and_say_what_columns_are(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    title = "Names in a very long context"
    runs = [
        scored("t", fraction, seed, 0.5 + kept / 100 + seed / 100, title=title, subsets={"lookup": 0.4})
        for fraction, kept in KEPT.items()
        for seed in (1, 2, 3)
    ]
    rows = summary(runs)
    some = rows["fraction"].ne("1") & rows["subset"].eq("all")
    rows.loc[some, ["loss", "loss_low", "loss_high"]] = [1.18, -0.003, 1.41]
    print_summary(rows, Console(markup=False, highlight=False, emoji=False, width=width))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert shown.count("118 % (0 to 141)") == 6
    for kept in KEPT.values():
        assert f"{0.52 + kept / 100:.3f} ±.025" in shown
    above = [line.split() for line in shown.splitlines() if line.startswith(" ") and "head" not in line]
    headings = [word for line in above for word in line if word in KEPT]
    assert headings == [*KEPT, *list(KEPT)[1:]], "of scores, then of losses"
    assert len(re.findall(r"\b12 heads\b", shown)) == len(re.findall(r"\b1 head\b", shown)) == 2
    assert "fraction of heads that keep their own attention" in " ".join(shown.split())
    assert "tiny (24 heads): average constants, lambda order" in shown


def test_terminal_has_no_table_of_losses_without_losses(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(summary([scored("t", f, 1, 0.8) for f in ("1", "0")]), Console(width=80))
    shown = capsys.readouterr().out
    assert "Score, by fraction" in shown and "Loss and its" not in shown


def concluded(sentence: str) -> dict[str, object]:
    return Conclusion(sentence=sentence, margin=0.1, lines=(), areas=()).to_json()


def test_command_prints_where_things_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "tables/summary.parquet"
    write_frame(summary([scored("t", "1", 1, 0.8)]), SUMMARY_COLUMNS, place, {}, Trace("summary", 1, {}, {}))
    (tmp_path / "figures").mkdir()
    write_json(concluded("Nothing can be concluded."), tmp_path / "tables/claims.json")
    print_results(tmp_path)
    shown = capsys.readouterr().out
    assert "\nNothing can be concluded.\n" in shown
    assert f"Tables:  {tmp_path / 'tables'}/\nFigures: {tmp_path / 'figures'}/\n" in shown
    assert "Report" not in shown
    with pytest.raises(SystemExit, match=r"figures/tables/summary\.parquet cannot be read"):
        print_results(tmp_path / "figures")


def test_what_is_older_than_the_summary_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After `snakemake --until claims` the page is that of before; after `--until summarise` the claims are, too."""
    summary_file, claims, page = (tmp_path / ARTEFACTS[name].path() for name in ("summary", "claims_json", "page"))
    page.parent.mkdir()

    def made_of(stage: str, **sources: Path) -> Trace:
        return Trace(stage, 1, {}, {name: digest_of(path) for name, path in sources.items()})

    def shown() -> str:
        print_results(tmp_path)
        return " ".join(capsys.readouterr().out.split())

    write_frame(summary([scored("t", "1", 1, 0.8)]), SUMMARY_COLUMNS, summary_file, {}, made_of("summary"))
    write_json(concluded("Much is lost."), claims, made_of("claims", summary=summary_file))
    write_page("<html><head></head></html>", page, made_of("page", summary=summary_file, claims=claims))
    said = shown()
    assert "Much is lost. Tables:" in said and f"Report: {page}" in said and "older than" not in said

    write_json(concluded("Little is lost."), claims, made_of("claims", summary=summary_file))
    said = shown()
    assert "Little is lost. Tables:" in said and f"Report: {page} is older than this summary" in said

    write_frame(summary([scored("t", "1", 1, 0.7)]), SUMMARY_COLUMNS, summary_file, {}, made_of("summary"))
    said = shown()
    assert "Little is lost" not in said and "claims.json is older than this summary" in said


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("{ half", r"0\.json cannot be read"),
        ({"model": None}, r"0\.json has no intact runs of papa \('model' is None\); delete it"),
        ({"seed": None}, "'seed' is None"),
        ({"fraction": "half"}, "'fraction' is 'half'"),
        ({"rows": {"train": 5}}, "'validation' is missing"),
    ],
)
def test_bad_runs_are_named(tmp_path: Path, damage: str | dict[str, Any], message: str) -> None:
    path = tmp_path / "0.json"
    if isinstance(damage, str):
        path.write_text(damage)
    else:
        write_json({"runs": [run("t", "1", 1) | damage]}, path)
    with pytest.raises(InputError, match=message):
        read_runs(path)


def test_runs_are_written_as_they_were_read(tmp_path: Path) -> None:
    """To the same bytes, with whole numbers as whole numbers and with further splits."""
    origin = {"weights": "e", "corpus": "f", "slots": 11, "style": "paper", "segments": "none"}
    origin |= {"encoder_dropout": False, "papa_version": "0.1"}
    content = [
        run("t", "1", seed, provenance=origin, cut={"train": 7, "validation": 2, "matched": 3}) for seed in (1, 2)
    ]
    trace = Trace("probe", 4, {}, {})
    write_json({"runs": content}, tmp_path / "0.json", trace, {"seeds": [1, 2]})
    write_runs(read_runs(tmp_path / "0.json"), tmp_path / "1.json", trace)
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "0.json").read_bytes()


def test_bad_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1\.json and .*0\.json have the same run"):
        collect_runs(read([run("t", "1", 1)] * 2, tmp_path), [], {})
    trace, path = Trace("summary", 1, {}, {}), tmp_path / "table.parquet"
    write_frame(summary([scored("t", "1", 1, 0.8)]), SUMMARY_COLUMNS, path, {}, trace)
    with pytest.raises(DamagedArtefact, match="has no column 'seed', so it is no table of runs"):
        read_frame(path, RUN_COLUMNS, "table of runs")
    write_frame(pd.DataFrame(scored("t", "1", 1, 0.8)), RUN_COLUMNS, path, {}, trace)
    with pytest.raises(DamagedArtefact, match="has no column 'mean', so it is no summary"):
        read_summary(path)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("learning_rate", (1e-3, 2e-3)),
        ("batch_size", (16, 17)),
        ("epochs", (4, 5)),
        ("weights", ("e", "f")),
        ("corpus", ("e", "f")),
        ("slots", (11, 13)),
        ("style", ("paper", "plain")),
        ("segments", ("aligned", "none")),
        ("encoder_dropout", (True, False)),
    ],
)
def test_runs_that_were_not_made_alike_are_refused(tmp_path: Path, name: str, values: tuple[Any, Any]) -> None:
    def made(seed: int, value: Any) -> dict[str, Any]:
        return run("t", "1", seed, **({name: value} if name in run("t", "1", 1) else {"provenance": {name: value}}))

    first, second = values
    with pytest.raises(InputError) as raised:
        collect_runs(read([made(1, first), made(2, second)], tmp_path), [], {})
    owner = "model tiny" if name == "weights" else "task t"
    files = [tmp_path / f"{number}.json" for number in (1, 0)]
    assert f"{files[0]} has {name} {second!r}, but {files[1]} of the same {owner} has {first!r}" in str(raised.value)
    # another task may be trained otherwise, another model has other weights
    other = {"model": "other"} if name == "weights" else {"task": "other"}
    collect_runs(read([made(1, first), made(1, second) | other], tmp_path), [], {})


def test_decoders_lay_out_texts_without_gaps_beside_encoders(tmp_path: Path) -> None:
    def made(model: str, style: str, seed: int) -> dict[str, Any]:
        return run("t", "1", seed, model=model, provenance={"style": style})

    alike = [made("tiny", "paper", 1), made("decoder", "contiguous", 1), made("other", "paper", 1)]
    collect_runs(read(alike, tmp_path), [], {})
    with pytest.raises(InputError, match=r"has style 'published_code', but .*0\.json of the same task t has 'paper'"):
        collect_runs(read([*alike, made("last", "published_code", 1)], tmp_path), [], {})
    with pytest.raises(
        InputError, match=r"has style 'contiguous', but .* of the same model tiny and task t has 'paper'"
    ):
        collect_runs(read([*alike, made("tiny", "contiguous", 2)], tmp_path), [], {})


def test_names_of_data_are_no_markup(tmp_path: Path) -> None:
    apart = {"<img src=x>\n# owned | &": 0.9}
    page = page_of([scored("t", "1", 1, 0.8, subsets=apart, title="<script>\nalert()</script>")], tmp_path)
    assert "| &lt;img src=x&gt; # owned \\| &amp; | 29 |" in page
    assert "&lt;script&gt; alert()&lt;/script&gt;" in page
    assert "<img" not in page and "<script" not in page and "\n# owned" not in page


def test_no_model_library_is_imported() -> None:
    heavy = {"torch", "transformers", "scipy", "altair"}
    modules = ", ".join(f"papa.results.{name}" for name in ("summary", "grids", "drops", "published", "compare"))
    code = f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_runs_of_which_none_has_an_order_keep_the_type_of_orders():
    """A table that is looked up by order takes them as it takes others."""
    runs = pd.DataFrame({"order": pd.Series([None, None], dtype="str")})
    assert without_draws(runs)["order"].dtype == runs["order"].dtype
    drawn = pd.DataFrame({"order": pd.Series(["random-3", None], dtype="str")})
    assert without_draws(drawn)["order"][0] == "random"
