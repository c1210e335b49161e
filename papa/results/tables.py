"""Tables of results: what all runs scored (long), and its summary with intervals and relative drops.

`python -m papa.results.tables SUMMARY` prints a summary and says where its tables and figures are.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from papa.config.kinds import order_of
from papa.errors import DamagedArtefact, InputError
from papa.files import MEND, PathLike, read_json, replacing, write_table
from papa.results.summary import (
    ALL,
    DATA_COLUMNS,
    LOG_SCALED,
    READING_COLUMNS,
    SETTING_COLUMNS,
    SUMMARY_COLUMNS,
    Row,
    as_markdown,
    mean_relative_drops,
    print_summary,
    read_rows,
    unique,
)

__all__ = ["RUN_COLUMNS", "collect_runs", "half_width", "print_summary", "summarise", "undrawn"]

CONFIDENCE = 0.95
TRAINING_COLUMNS = {"learning_rate": "float64", "batch_size": "int64", "epochs": "int64"}
RUN_COLUMNS = (
    SETTING_COLUMNS | {"seed": "int64"} | READING_COLUMNS | {"score": "float64"} | DATA_COLUMNS | TRAINING_COLUMNS
)


def collect_runs(runs: Sequence[PathLike], table: PathLike, titles: Mapping[str, str] | None = None) -> str:
    """Gather the JSON files `runs` in one long Parquet table: one row per run, metric and subset.

    The score on all validation examples has the subset "all"; the task's own metric is marked by `main`; `titles` says
    what tasks are called where people read of them. Curves stay in the JSON files. Raises `DamagedArtefact` for a file
    that is no whole run, `InputError` for the same run twice.
    """
    if not runs:
        raise InputError("There are no runs to collect; give at least one run JSON.")
    rows: list[Row] = []
    seen: dict[tuple[Any, ...], PathLike] = {}
    for path in runs:
        own = _rows_of_run(read_json(path), path, titles or {})
        identity = tuple(own[0][name] for name in ("model", "task", "constant", "order", "fraction", "seed"))
        if identity in seen:
            raise InputError(f"{path} and {seen[identity]} are the same run; give each run once.")
        seen[identity] = path
        rows += own
    _write_rows(rows, RUN_COLUMNS, table, {"table": "runs", "runs": len(runs)})
    return f"{len(runs)} runs collected: " + ", ".join(
        f"{len(unique(row[name] for row in rows))} {name}s" for name in ("model", "task", "fraction", "seed")
    )


def summarise(table: PathLike, summary: PathLike, markdown: PathLike) -> str:
    """Mean, 95 % Student-t interval over seeds and relative drop of every setting in `table`, as Parquet and Markdown.

    Where heads are replaced in random orders, a seed's score is its mean over the draws.

    drop = (original - score) / |original| for the same model, task, metric and subset (Sec. 4). It is null where the
    original's interval holds 0, where the original has one seed and so no interval (null, never 0), and for log-scaled
    metrics. `same_heads_as` lists other fractions at which the same model keeps as many heads.
    """
    runs = [undrawn(run) for run in read_rows(table, RUN_COLUMNS)]
    keys = (*SETTING_COLUMNS, "metric", "subset")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for run in runs:
        groups.setdefault(tuple(run[name] for name in keys), []).append(run)
    rows = [_summary_of(group) for group in groups.values()]
    rank = {name: {value: number for number, value in enumerate(unique(run[name] for run in runs))} for name in keys}

    def place(row: Row) -> tuple[Any, ...]:
        model, task, constant, order, metric, subset = (
            rank[name][row[name]] for name in ("model", "task", "constant", "order", "metric", "subset")
        )
        return model, task, -Fraction(row["fraction"]), constant, order, metric, subset

    rows.sort(key=place)
    _add_drops(rows)
    _add_same_heads(rows)
    _write_rows(rows, SUMMARY_COLUMNS, summary, {"table": "summary", "confidence": CONFIDENCE})
    with replacing(markdown) as temporary:
        temporary.write_text(as_markdown(rows), encoding="utf-8")
    drops = ", ".join(
        f"{drop['model']} {100 * drop['mean_relative_drop']:.1f}% over {drop['tasks']} tasks"
        for drop in mean_relative_drops(rows)
        if Fraction(drop["fraction"]) == 0
    )
    return f"{len(rows)} summary rows" + (f"; mean relative drop at fraction 0: {drops}" if drops else "")


def _rows_of_run(run: Any, path: PathLike, titles: Mapping[str, str]) -> list[Row]:
    """The rows of one run; the first is the main score."""

    def part(within: Any, name: str, *kinds: type) -> Any:
        if not isinstance(within, dict) or name not in within:
            raise _not_a_run(path, f"{name!r} is missing")
        value = within[name]
        if not isinstance(value, kinds) or (isinstance(value, float) and not math.isfinite(value)):
            raise _not_a_run(path, f"{name!r} is {value!r}")
        return value

    kinds: dict[str, tuple[type, ...]] = {"string": (str,), "int64": (int,), "float64": (int, float)}
    columns = SETTING_COLUMNS | {"seed": "int64", "metric": "string", "score": "float64"} | TRAINING_COLUMNS
    row = {
        name: part(run, name, *kinds[kind], *([type(None)] if name in ("constant", "order") else []))
        for name, kind in columns.items()
        if name != "title"
    }
    row["title"] = titles.get(row["task"], row["task"])
    try:
        Fraction(row["fraction"])
    except (ValueError, ZeroDivisionError):
        raise _not_a_run(path, f"'fraction' is {row['fraction']!r}") from None
    for name in ("rows", "rows_available", "cut"):
        counts = part(run, name, dict)
        row |= {f"{name}_{split}": part(counts, split, int) for split in ("train", "validation")}
    row |= {"main": True, "subset": ALL, "examples": row["rows_validation"]}
    rows = [row]
    for subset, apart in part(run, "subsets", dict).items():
        if subset == ALL:
            raise InputError(f"{path} has a subset called {ALL!r}, the name for all examples; rename it in the data.")
        score, examples = part(apart, "score", int, float, type(None)), part(apart, "examples", int)
        rows.append(row | {"subset": subset, "score": score, "examples": examples})
    scores = part(run, "scores", dict)
    for metric in scores:
        if metric != row["metric"]:
            score = part(scores, metric, int, float, type(None))
            rows.append(row | {"metric": metric, "main": False, "score": score})
    return rows


def _not_a_run(path: PathLike, why: str) -> DamagedArtefact:
    return DamagedArtefact(f"{path} is no whole run of papa ({why}); {MEND}.")


def undrawn(run: Row) -> Row:
    """The run with its order named as if there were one draw of it."""
    return run if run["order"] is None else run | {"order": order_of(run["order"])[0]}


def _summary_of(group: Sequence[Row]) -> Row:
    """The summary of one setting: the same but for the seed, and for the draw of a random order."""
    by_seed: dict[int, list[float]] = {}
    for row in group:
        if row["score"] is not None:
            by_seed.setdefault(row["seed"], []).append(row["score"])
    scores = [fmean(draws) for draws in by_seed.values()]
    mean = fmean(scores) if scores else None
    half = low = high = None
    if mean is not None and len(scores) > 1:
        half = half_width(scores)
        low, high = mean - half, mean + half
    same = {name: group[0][name] for name in (*SETTING_COLUMNS, *READING_COLUMNS, *DATA_COLUMNS)}
    return same | {"mean": mean, "seeds": len(scores), "half_width": half, "low": low, "high": high}


def half_width(scores: Sequence[float]) -> float:
    """Half of the 95 % Student-t interval of the mean of `scores`, of which there are at least two."""
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, len(scores) - 1)) * stdev(scores) / math.sqrt(len(scores))


def _add_drops(rows: Sequence[Row]) -> None:
    """Set `relative_drop` against the row of the same reading with nothing replaced."""
    keys = ("model", "task", "metric", "subset")
    originals = {tuple(row[name] for name in keys): row for row in rows if row["constant"] is None}
    for row in rows:
        row["relative_drop"] = None
        original = originals.get(tuple(row[name] for name in keys))
        if original is None or original["low"] is None or row["mean"] is None or row["metric"] in LOG_SCALED:
            continue
        if not original["low"] <= 0 <= original["high"]:
            row["relative_drop"] = (original["mean"] - row["mean"]) / abs(original["mean"])


def _add_same_heads(rows: Sequence[Row]) -> None:
    """Set `same_heads_as` to the other fractions at which the model keeps as many heads; null where there are none."""
    fractions: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        fractions.setdefault((row["model"], row["kept"]), []).append(row["fraction"])
    for row in rows:
        same = unique(fractions[row["model"], row["kept"]])
        row["same_heads_as"] = ", ".join(fraction for fraction in same if fraction != row["fraction"]) or None


def _write_rows(rows: list[Row], columns: Mapping[str, str], path: PathLike, provenance: Mapping[str, Any]) -> None:
    import pyarrow as pa

    write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(columns.items()))), path, provenance)


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m papa.results.tables", description="Print the summary of a workflow's runs."
    )
    parser.add_argument("summary", type=Path, help="for example results/demo/tables/summary.parquet")
    summary = parser.parse_args().summary
    try:
        print_summary(summary)
    except InputError as error:
        raise SystemExit(str(error)) from None
    print(f"\nTables:  {summary.parent}/")
    results = summary.parent.parent
    for what, place in (("Figures: ", "figures"), ("Report:  ", "report/index.html")):
        if (results / place).exists():
            print(f"{what}{results / place}{'/' if (results / place).is_dir() else ''}")


if __name__ == "__main__":
    _main()
