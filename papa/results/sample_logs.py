"""Compare two models by the per-sample logs of lm-evaluation-harness, which `--log_samples` writes.

A log is a file samples_TASK_DATE.jsonl with a line for each document and filter: `doc_id`, `filter`, `target` and a
value of each metric. Both models answered the same documents, so their values are paired by `doc_id`. Verdicts are
those of `papa.results.compare`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from papa.errors import InputError, count
from papa.results.compare import (
    BY_EXAMPLE,
    DIFFERS,
    DIFFERS_BY_LESS,
    FALLBACK_MARGIN,
    POWER,
    VERDICTS,
    headline,
    headline_colour,
    judge,
    tested,
)
from papa.results.phrases import percent
from papa.results.statistics import LEVEL, Estimate, Spread
from papa.results.table import Table, printable, texts

if TYPE_CHECKING:
    from rich.console import Console

SUFFIX = ".jsonl"
FILE_NAME = re.compile(r"samples_(?P<task>.+?)(_\d{4}-\d\d-\d\dT[\d.:-]+)?")
NO_METRICS = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}
"""The keys of a line that are not metrics, in logs that do not list their metrics; hashes are left out too."""
NO_FILTER = "none"
"""The name that lm-evaluation-harness gives to answers that no filter changed."""
PASS_A_LOG = "pass a file samples_TASK_DATE.jsonl that --log_samples wrote."
FAMILY = "every per-sample metric and filter of the task"
Key = tuple[str, str]
"""A metric and a filter."""


@dataclass(frozen=True)
class SampleLog:
    """The log of one model on one task.

    Args:
        path: the file.
        task: the name of the task, from the name of the file.
        values: the value of each document, by metric and filter and by `doc_id`.
        documents: the hash or else the target of each document, by `doc_id`.
        skipped: the metrics that are not means over documents.
    """

    path: Path
    task: str
    values: dict[Key, dict[str, float]]
    documents: dict[str, str]
    skipped: tuple[str, ...]


def is_log(path: Path) -> bool:
    """Whether a path is that of a per-sample log."""
    return path.suffix == SUFFIX


def read_log(path: Path) -> SampleLog:
    """Read a per-sample log.

    Raises:
        InputError: the file is no log, has no per-sample metric, or has a value that is not a number.
    """
    if not path.is_file():
        raise InputError(f"{path} is not a log of samples; {PASS_A_LOG}")
    lines = list(_lines(path))
    if not lines:
        raise InputError(f"{path} has no lines; {PASS_A_LOG}")
    metrics, first = _metrics(lines[0]), lines[0]
    skipped = [metric for metric in metrics if isinstance(first.get(metric), list | dict)]
    used = [metric for metric in metrics if metric not in skipped]
    if not used:
        reason = f"only {', '.join(skipped)}, which no single document has" if skipped else "none at all"
        raise InputError(
            f"{path} has no per-sample metric ({reason}); pass the log of a task that scores each document, such as by "
            "acc or exact_match."
        )
    values, documents = dict[Key, dict[str, float]](), dict[str, str]()
    for number, line in enumerate(lines, start=1):
        document = str(line["doc_id"])
        documents[document] = str(line.get("doc_hash", line.get("target")))
        for metric in used:
            by_document = values.setdefault((metric, str(line.get("filter", NO_FILTER))), {})
            if document in by_document:
                raise InputError(f"{path} has doc_id {document} again in line {number}; pass the log of one run.")
            by_document[document] = _number(path, number, metric, line.get(metric))
    match = FILE_NAME.fullmatch(path.stem)
    return SampleLog(path, match["task"] if match else path.stem, values, documents, tuple(skipped))


def _lines(path: Path) -> Iterator[dict[str, object]]:
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            line = None
        if not isinstance(line, dict) or "doc_id" not in line:
            raise InputError(f"Line {number} of {path} is not a JSON object with a doc_id; {PASS_A_LOG}")
        yield line


def _metrics(line: dict[str, object]) -> list[str]:
    """Return the metrics that a line lists; in older logs, all numbers that are not known to be something else."""
    listed = line.get("metrics")
    if isinstance(listed, list):
        return [str(metric) for metric in listed]
    others = [name for name in line if name not in NO_METRICS and not name.endswith("_hash")]
    return [name for name in others if isinstance(line[name], int | float | list)]


def _number(path: Path, line: int, metric: str, value: object) -> float:
    if not isinstance(value, int | float) or not isfinite(value):
        shown = "missing" if value is None else repr(value)
        raise InputError(
            f"{metric} is {shown} in line {line} of {path}, but must be a number; pass a log in which {metric} scores "
            "each document."
        )
    return float(value)


def compare_logs(a: Path, b: Path, margin: float | None = None) -> dict[str, object]:
    """Return the differences between two models on a task, as plain values; see `papa.results.compare.compare`.

    Each metric and filter that both logs have is a row. With one run of each model there are no seeds: intervals cover
    the choice of documents only.

    Args:
        a, b: the logs.
        margin: δ in units of the metric; by default 0.01.

    Raises:
        InputError: a file is no log, or the logs are of other tasks, of other documents or of other metrics.
    """
    if margin is not None and not 0 < margin < 1:
        raise InputError(f"The margin is {margin:g}, but must be between 0 and 1; it is a difference, such as 0.01.")
    left, right = read_log(a), read_log(b)
    _check_same_documents(left, right)
    if len(left.documents) < 2:
        raise InputError(f"{a} and {b} have one document, but intervals need several; pass logs of more documents.")
    keys = [key for key in left.values if key in right.values]
    if not keys:
        raise InputError(f"{a} and {b} have no metric in common: {_named(left)} and {_named(right)}.")
    delta = FALLBACK_MARGIN if margin is None else margin
    rows = []
    for metric, name in keys:
        values = _values(left, right, (metric, name))
        about = {"task": left.task, "metric": metric, "filter": name, "examples": values.shape[1], "paired": BY_EXAMPLE}
        sides = {"a": float(values[0].mean()), "b": float(values[1].mean()), "delta": delta}
        same = {"same": bool((values[0] == values[1]).all())}
        rows.append(tested(_difference(values), delta) | about | sides | same)
    judge(rows)
    verdicts = {name: sum(row["verdict"] == name for row in rows) for name in VERDICTS}
    only_a, only_b = (
        [{"metric": metric, "filter": name} for metric, name in side.values if (metric, name) not in other.values]
        for side, other in ((left, right), (right, left))
    )
    return {
        "a": str(a),
        "b": str(b),
        "family": FAMILY,
        "confidence": LEVEL,
        "correction": "Holm",
        "margin": delta,
        "margin_from": "the default" if margin is None else "as given",
        "compared": len(rows),
        "tested": sum(row["p_holm"] is not None for row in rows),
        "tested_equal": sum(row["p_equal_holm"] is not None for row in rows),
        "same": sum(row["same"] for row in rows),
        "differ": verdicts[DIFFERS] + verdicts[DIFFERS_BY_LESS],
        "verdicts": verdicts,
        "rows": rows,
        "only_a": only_a,
        "only_b": only_b,
        "settings": [],
        "skipped": list(dict.fromkeys([*left.skipped, *right.skipped])),
    }


def _check_same_documents(left: SampleLog, right: SampleLog) -> None:
    if left.task != right.task:
        raise InputError(
            f"{left.path} is a log of the task {left.task}, but {right.path} of {right.task}; pass logs of one task."
        )
    only = [[name for name in side if name not in other] for side, other in _both_ways(left.documents, right.documents)]
    if any(only):
        counts = " and ".join(
            f"{count(len(names), 'doc_id')} only in {side} (such as {names[0]})"
            for side, names in zip("AB", only, strict=True)
            if names
        )
        raise InputError(f"The logs have different documents: {counts}; run both models with the same --limit.")
    changed = [name for name, document in left.documents.items() if right.documents[name] != document]
    if changed:
        raise InputError(
            f"The logs have different documents under the same doc_id, such as {changed[0]}; run both models on the "
            "same version of the task."
        )


def _both_ways(first: dict[str, str], second: dict[str, str]) -> tuple[tuple[dict[str, str], dict[str, str]], ...]:
    return (first, second), (second, first)


def _named(log: SampleLog) -> str:
    return ", ".join(f"{metric} ({name})" for metric, name in log.values)


def _values(left: SampleLog, right: SampleLog, key: Key) -> np.ndarray:
    """Return the values `[side, document]` of a metric."""
    by_a, by_b = left.values[key], right.values[key]
    if by_a.keys() != by_b.keys():
        raise InputError(
            f"{key[0]} with the filter {key[1]} does not have the same documents in {left.path} and {right.path}; run "
            "both models with the same --limit."
        )
    return np.array([[side[document] for document in by_a] for side in (by_a, by_b)])


def _difference(values: np.ndarray) -> Estimate:
    """Estimate B - A, paired by document."""
    differences = values[1] - values[0]
    changed = differences[differences != 0]
    step = float(np.sqrt(np.mean(changed**2))) if len(changed) else 0.0
    return Spread.of(values[:, None, None, :], step, seeded=False).estimate([-1, 1])


def print_logs(result: dict[str, object], console: Console) -> None:
    """Print the result of `compare_logs`: a headline, a table, and notes on the tests."""
    rows, skipped = result["rows"], result["skipped"]
    frame = pd.DataFrame(rows if isinstance(rows, list) else [])
    first = frame.iloc[0]
    console.print(f"A: {printable(str(result['a']))}\nB: {printable(str(result['b']))}\n")
    console.print(headline(result), style=headline_colour(result))
    console.print("")
    cells = {"metric": frame["metric"] + frame["filter"].map(lambda name: "" if name == NO_FILTER else f", {name}")}
    cells |= {side.upper(): frame[side].map("{:.3f}".format) for side in "ab"}
    intervals = texts(lambda *ends: "{:+.3f} [{:+.3f}, {:+.3f}]".format(*ends), frame, "difference", "low", "high")
    table = pd.DataFrame(cells).assign(**{f"B - A [{percent(LEVEL)}]": intervals})
    table = table.assign(p=frame["p_holm"].map("{:.1g}".format), verdict=frame["verdict"])
    table = table.assign(detectable=frame["detectable"].map("{:.3f}".format))
    Table(f"{first['task']}, {count(first['examples'], 'document')}", table, 1).print(console)
    tests, tests_equal = (count(int(frame[name].notna().sum()), "test") for name in ("p_holm", "p_equal_holm"))
    sentences = [
        f"Tested: {result['family']}. Paired by doc_id. One run of each model, so intervals cover documents only.",
        f"Differs: 5 % for {tests} together (Holm's correction).",
        f"Equal: two one-sided tests with δ = {first['delta']:g} in units of the metric ({result['margin_from']}), "
        f"5 % for {tests_equal} together (Holm's correction).",
        f"Detectable: the smallest true difference that one test at 5 % finds with a probability of {percent(POWER)}.",
    ]
    if isinstance(skipped, list) and skipped:
        sentences.append(f"Not compared, because no document has a value: {', '.join(skipped)}.")
    console.print(printable(" ".join(sentences)))
