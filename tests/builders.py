"""Runs, outcomes, rows of tables and jobs of analyses made by hand, for tests of scores, losses and claims."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from papa.config.analyses import ANALYSES
from papa.config.job import Job
from papa.config.stages import AnalysisOf, GridView
from papa.files import write_table
from papa.method.runs import Run
from papa.results.conclusion import JointStep, LineClaim
from papa.results.grids import GRID_COLUMNS
from papa.results.outcomes import RUN_KEYS, Setting, TaskOutcomes
from papa.results.scores import collect_runs
from papa.results.summary import SUMMARY_COLUMNS, with_losses

ROWS = {"train": 1000, "validation": 53}
TABLE_FORMS = {"table": "parquet", "markdown": "md", "latex": "tex"}
FIGURE_FORMS = {"svg": "svg", "png": "png"}
CLASSES = {
    "grid": "papa.results.grids:GridAnalysis",
    "patterns": "papa.results.attention_patterns:AttentionPatterns",
} | {name: entry.made_by for name, entry in ANALYSES.items()}


def outcomes(
    values: Mapping[Setting, npt.ArrayLike], column: str, items: pd.DataFrame, first_seed: int = 1, **fields: Any
) -> TaskOutcomes:
    """Outcomes from values `[seed, item]` by setting, whose order may have a draw or a seed."""
    by_setting = {Setting(*setting): np.atleast_2d(rows) for setting, rows in values.items()}
    runs = [(*setting, first_seed + seed) for setting, rows in by_setting.items() for seed in range(len(rows))]
    about = {"model": "m", "task": "t", "names": (), "train_counts": ()} | fields
    frame = pd.DataFrame(runs, columns=RUN_KEYS, dtype=object)
    return TaskOutcomes(runs=frame, items=items, values={column: np.concatenate([*by_setting.values()])}, **about)


def labelled(
    right: Mapping[Setting, npt.ArrayLike], gold: npt.ArrayLike | None = None, subset: Any = None, **fields: Any
) -> TaskOutcomes:
    """Outcomes of a task with the labels no (0) and yes (1), by default in turns; `right` is `[seed, example]`."""
    by_setting = {setting: np.atleast_2d(rows).astype(bool) for setting, rows in right.items()}
    size = next(iter(by_setting.values())).shape[1]
    labels = np.arange(size) % 2 if gold is None else np.asarray(gold)
    items = pd.DataFrame({"split": "validation", "example": np.arange(size), "gold": labels})
    predicted = {setting: np.where(rows, labels, 1 - labels) for setting, rows in by_setting.items()}
    counts = tuple(np.bincount(labels, minlength=2).tolist())
    about: dict[str, Any] = {"metric": "accuracy", "names": ("no", "yes"), "train_counts": counts}
    return outcomes(predicted, "predicted", items if subset is None else items.assign(subset=subset), **about | fields)


def texts(
    losses: Mapping[Setting, npt.ArrayLike], tokens: npt.ArrayLike, guess: float = 4.0, **fields: Any
) -> TaskOutcomes:
    """Outcomes of a model's own head, without a seed, from nats per token of each text and of a guess without input."""
    counts = np.asarray(tokens)
    about = {"split": "validation", "example": range(len(counts)), "tokens": counts, "trivial": guess * counts}
    sums = {setting: counts * np.asarray(nats) for setting, nats in losses.items()}
    return outcomes(sums, "loss", pd.DataFrame(about), **{"metric": "log_likelihood", "first_seed": 0} | fields)


def run_record(task: str = "t", fraction: str = "1", seed: int = 1, **fields: Any) -> dict[str, Any]:
    """The record of a run of a model with 24 heads, as stage `probe` writes it."""
    origin = {"weights": "w" * 64, "corpus": "c" * 40, "slots": 9, "style": "paper"}
    origin |= {"encoder_dropout": False, "papa_version": "1"} | fields.pop("provenance", {})
    record = {"model": "tiny", "task": task, "fraction": fraction, "seed": seed, "kept": kept(fraction), "heads": 24}
    record |= _replacement(fraction, order="lambda-0")
    record |= {"rows": ROWS, "rows_available": ROWS | {"train": 8551}, "cut": {"train": 7, "validation": 2}}
    record |= {"learning_rate": 1e-3, "batch_size": 16, "epochs": 4, "curve": [{"epoch": 1, "loss": 0.7}]}
    return record | {"provenance": origin} | fields


def summary_of(measured: Sequence[TaskOutcomes], heads: int = 24) -> pd.DataFrame:
    """The summary of all runs of outcomes, with losses; the title of a task is its name in capital letters."""
    runs = [
        (
            Run.model_validate(
                run_record(**run, model=task.model, task=task.task, heads=heads, kept=kept(run["fraction"], heads))
            ),
            f"{task.task}.json",
        )
        for task in measured
        for run in task.runs.to_dict("records")
    ]
    titles = {task.task: task.task.upper() for task in measured}
    return with_losses(collect_runs(runs, measured, titles), measured)


def kept(fraction: str, heads: int = 24) -> int:
    return floor(heads * Fraction(fraction))


def _replacement(fraction: str, order: str) -> dict[str, str | None]:
    return {"constant": None if fraction == "1" else "average", "order": None if fraction in ("0", "1") else order}


def summary_row(
    fraction: str, mean: float | None, half: float | None = 0.013, heads: int = 24, **columns: Any
) -> dict[str, Any]:
    """A row of a summary, or of a grid if it has a `line`; all that is not known is None; `half` is of the interval."""
    row: dict[str, Any] = dict.fromkeys(GRID_COLUMNS if "line" in columns else SUMMARY_COLUMNS)
    row |= {"model": "m", "task": "t", "fraction": fraction, "kept": kept(fraction, heads), "heads": heads}
    row |= {"metric": "f1", "main": True, "subset": "all", "mean": mean, "seeds": 3, "status": "counts"}
    if mean is not None and half is not None:
        row |= {"half_width": half, "low": mean - half, "high": mean + half}
    return row | _replacement(fraction, order="lambda") | {"title": columns.get("task", "t").upper()} | columns


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path, columns: Mapping[str, str] = SUMMARY_COLUMNS) -> Path:
    """Write rows as a table, by default that of a summary."""
    write_table(pa.Table.from_pylist(list(rows), schema=pa.schema(list(columns.items()))), path, {})
    return path


def head_rows(*epochs: Iterable[float], heads: int = 5) -> pa.Table:
    """The table of λ or of other weights: the values of all heads after each epoch, layer by layer."""
    rows = [
        {"epoch": epoch, "layer": place // heads, "head": place % heads, "value": value}
        for epoch, values in enumerate(epochs, start=1)
        for place, value in enumerate(values)
    ]
    return pa.Table.from_pylist(rows)


def grid_view(tasks: Mapping[str, str] | Sequence[str] = ("t",), **fields: Any) -> GridView:
    """The view of a grid with one model, averages and the order of λ; tasks by name, or with their corpus."""
    corpora = dict(tasks) if isinstance(tasks, Mapping) else dict.fromkeys(tasks, "texts")
    view = {"name": "grid", "title": "Grid", "models": ("m",), "constants": ("average",), "orders": ("lambda",)}
    view |= {"fractions": ("1", "1/2", "0"), "tasks": corpora}
    return GridView.model_validate(view | fields)


def line_claim(steps: Sequence[JointStep] = (), **fields: Any) -> LineClaim:
    """The claim of a line of 16 heads; half of them are replaceable."""
    claim: dict[str, Any] = {"grid": "g", "line": "l", "model": "m", "constant": "average", "order": None, "heads": 16}
    claim |= {"seeds": 3, "orders": 1, "examples": (20, 30), "tasks": ("A",), "excluded": ()}
    claim |= {"replaceable": 8, "at_end": None}
    return LineClaim.model_validate(claim | {"steps": steps, "sentence": "A holds."} | fields)


def analysis_job(
    name: str, parameters: Mapping[str, Any], inputs: Mapping[str, Path], stem: Path, drawn: bool = False
) -> Job[AnalysisOf]:
    """The job of an analysis whose outputs are called like `stem`."""
    settings = AnalysisOf(name=name, made_by=CLASSES[name], parameters=dict(parameters))
    forms = TABLE_FORMS | (FIGURE_FORMS if drawn else {})
    outputs = {form: f"{stem}.{ending}" for form, ending in forms.items()}
    return Job(name, settings, {key: (str(path),) for key, path in inputs.items()}, outputs)
