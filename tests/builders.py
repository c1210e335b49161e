"""Runs, outcomes, rows of tables and jobs of analyses made by hand, for tests of scores, reliance and claims."""

from collections.abc import Mapping
from fractions import Fraction
from math import floor

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.stats import norm

from papa.results.claims import claims_of, conclusion_of, samples_of, tasks_of
from papa.results.grids import GRID_COLUMNS
from papa.results.outcomes import ALL, RUN_KEYS, Setting, TaskOutcomes
from papa.results.reliance import effects_of
from papa.results.scores import collect_runs
from papa.results.summary import SUMMARY_COLUMNS
from papa.results.summary import summary_of as summary_of_runs
from papa.results.views import GridView


def outcomes(values, column, items, first_seed=1, **fields):
    """Outcomes from values `[seed, item]` by setting, whose order may have a draw or a seed."""
    by_setting = {Setting(*setting): np.atleast_2d(rows) for setting, rows in values.items()}
    runs = [
        (*setting, first_seed + seed, 0)
        for setting, rows in by_setting.items()
        for seed in range(len(rows))
    ]
    about = {"model": "m", "task": "t", "names": (), "train_counts": ()} | fields
    frame = pd.DataFrame(runs, columns=RUN_KEYS, dtype=object)
    return TaskOutcomes(
        runs=frame, items=items, values={column: np.concatenate([*by_setting.values()])}, **about
    )


def labelled(right, gold=None, subset=None, **fields):
    """Outcomes of a task with the labels no (0) and yes (1), by default in turns; `right` is `[seed, example]`."""
    by_setting = {setting: np.atleast_2d(rows).astype(bool) for setting, rows in right.items()}
    size = next(iter(by_setting.values())).shape[1]
    labels = np.arange(size) % 2 if gold is None else np.asarray(gold)
    items = pd.DataFrame({"split": "validation", "example": np.arange(size), "gold": labels})
    predicted = {
        setting: np.where(rows, labels, 1 - labels) for setting, rows in by_setting.items()
    }
    counts = tuple(np.bincount(labels, minlength=2).tolist())
    about = {"metric": "accuracy", "names": ("no", "yes"), "train_counts": counts}
    return outcomes(
        predicted,
        "predicted",
        items if subset is None else items.assign(subset=subset),
        **about | fields,
    )


def drawn(skills, seed, seeds, examples, task):
    """Outcomes of probes: examples are more or less hard, each setting changes some, and seeds differ a little."""
    chance = np.random.default_rng(seed)
    hard = chance.normal(size=examples)
    by_seed = chance.normal(0, 0.15, (seeds, 1))
    rows = {
        setting: hard + chance.normal(0, 0.5, (seeds, examples))
        < norm.ppf(skill) + chance.normal(0, 0.5, examples) + by_seed
        for setting, skill in skills.items()
    }
    return labelled(rows, task=task)


def texts(losses, tokens, guess=4.0, **fields):
    """Outcomes of a model's own head, without a seed, from nats per token of each text and of a guess without input."""
    counts = np.asarray(tokens)
    text = np.repeat(np.arange(len(counts)), counts)
    about = {
        "split": "validation",
        "example": text,
        "position": range(len(text)),
        "trivial": float(guess),
    }
    by_token = {
        setting: np.broadcast_to(nats, np.broadcast_shapes(np.shape(nats), counts.shape))[..., text]
        for setting, nats in losses.items()
    }
    return outcomes(
        by_token,
        "loss",
        pd.DataFrame(about),
        **{"metric": "log_likelihood", "first_seed": 0} | fields,
    )


def sample_of(outcomes, metric="accuracy"):
    """The sample of all validation items."""
    return outcomes.sample(metric, outcomes.subsets()[ALL])


def run_record(task="t", fraction="1", seed=1, **fields):
    """A run of a model with 24 heads, as the table of runs needs it."""
    return {
        "model": "tiny",
        "task": task,
        "fraction": fraction,
        "seed": seed,
        "kept": kept(fraction),
        "heads": 24,
        **_replacement(fraction, order="lambda-0"),
        "rows_train": 1000,
        "rows_validation": 53,
        "rows_available_train": 8551,
        "rows_available_validation": 53,
        "cut_train": 7,
        "cut_validation": 2,
        "style": "paper",
        "sample": 0,
        "learning_rate": 1e-3,
        "batch_size": 16,
        "epochs": 4,
        **fields,
    }


def summary_of(measured, heads=24):
    """The summary of all runs of outcomes, with reliance; the title of a task is its name in capital letters."""
    runs = [
        run_record(
            **run, model=task.model, task=task.task, heads=heads, kept=kept(run["fraction"], heads)
        )
        for task in measured
        for run in task.runs.to_dict("records")
    ]
    titles = {task.task: task.task.upper() for task in measured}
    return summary_of_runs(collect_runs(runs, measured, titles), effects_of(measured))


def kept(fraction, heads=24):
    return floor(heads * Fraction(fraction))


def _replacement(fraction, order):
    return {
        "constant": None if fraction == "1" else "average",
        "order": None if fraction in ("0", "1") else order,
    }


def summary_row(fraction, mean, half=0.013, heads=24, **columns):
    """A row of a summary, or of a grid if it has a `line`; all that is not known is None; `half` is of the interval."""
    row = dict.fromkeys(GRID_COLUMNS if "line" in columns else SUMMARY_COLUMNS)
    row |= {
        "model": "m",
        "task": "t",
        "title": columns.get("task", "t").upper(),
        "fraction": fraction,
        "kept": kept(fraction, heads),
        "heads": heads,
        **_replacement(fraction, order="lambda"),
        "metric": "f1",
        "main": True,
        "subset": "all",
        "mean": mean,
        "seeds": 3,
        "status": "significant",
    }
    if mean is not None and half is not None:
        row |= {"half_width": half, "low": mean - half, "high": mean + half}
    return row | columns


def frame_of(rows, columns=SUMMARY_COLUMNS):
    """Return rows as a table has them when it is read, by default those of a summary."""
    return pa.Table.from_pylist(list(rows), schema=pa.schema(list(columns.items()))).to_pandas()


def head_rows(*epochs, heads=5):
    """The table of λ or of other weights: the values of all heads after each epoch, layer by layer."""
    rows = [
        {"epoch": epoch, "layer": place // heads, "head": place % heads, "value": value}
        for epoch, values in enumerate(epochs, start=1)
        for place, value in enumerate(values)
    ]
    return pa.Table.from_pylist(rows)


def grid_view(tasks=("t",), **fields):
    """The view of a grid with one model, averages and the order of λ; tasks by name, or with their corpus."""
    corpora = dict(tasks) if isinstance(tasks, Mapping) else dict.fromkeys(tasks, "texts")
    view = {
        "name": "grid",
        "title": "Grid",
        "models": ("m",),
        "constants": ("average",),
        "orders": ("lambda",),
        "fractions": ("1", "1/2", "0"),
        "tasks": corpora,
    }
    return GridView(**view | fields)


def concluded(outcomes, *margins, **grid):
    """The claims of one grid of a model with 16 heads, by default at a margin of 10%: the table, and the conclusion."""
    fields = {
        "fractions": ("1", "1/2", "1/8", "0"),
        "tasks": [task.task for task in outcomes],
    } | grid
    study = (
        grid_view(**fields),
        summary_of(outcomes, heads=16),
        samples_of(outcomes),
        margins or ("10%",),
    )
    frame = claims_of(*study)
    return frame, conclusion_of(frame, tasks_of(*study), study[-1], pd.DataFrame(columns=["p"]))


def claims_on(frame, task=None):
    """The claims on a task by itself, or else those on all tasks together."""
    return frame[frame["task"].isna() if task is None else frame["task"].eq(task)]
