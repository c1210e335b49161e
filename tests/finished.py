"""Finished results of a made-up config, written by the library without any model: what a page is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import torch

import papa
from papa.config.settings import Config
from papa.config.study import Job, Study
from papa.config.variant import Variant
from papa.files import write_json, write_table
from papa.results.drops import score_and_drop
from papa.results.grids import gather
from papa.results.published import beside_published
from papa.results.summary import summarise

LAYERS, HEADS, SLOTS = 3, 5, 7
SHARED = 11
TITLE = "</script><script>document.title='owned'</script>"
SUBSET = "<img src=x onerror=\"document.title='owned'\">"
CONFIG: dict[str, Any] = {
    "name": "made",
    "run": {
        "models": ["small", "other"],
        "tasks": ["first", "second"],
        "fractions": ["1", "1/2", "0"],
        "seeds": [1, 2, 3],
    },
    "grids": {
        "ends": {
            "title": "Kinds & ends",
            "models": ["small"],
            "constants": ["average", "zeros"],
            "fractions": ["1", "0"],
        }
    },
    "models": {"small": {"random": "roberta"}, "other": {"path": "somewhere/on/this/machine"}},
    "corpora": {"texts": {"files": {"train": "a.csv", "validation": "b.csv"}, "first": "text", "slots": SLOTS}},
    "tasks": {
        name: {
            "title": title,
            "corpus": "texts",
            "label": name,
            "metric": "accuracy",
            "learning_rate": 0.001,
            "batch_size": 8,
            "epochs": 1,
        }
        for name, title in (("first", TITLE), ("second", "Second"))
    },
}
"""Two models, two tasks, one of them with a title that wants to be a script; three seeds; a second grid."""

LOST = {"1": 0.0, "1/2": 0.01, "0": 0.2}
"""What is lost of 0.8 at each fraction: nothing that shows at 1/2, where seeds differ by more, and much at 0."""
WAVER = {("1/2", 1): 0.02, ("1/2", 2): -0.03, ("1/2", 3): 0.01, ("0", 1): 0.01, ("0", 3): -0.01}
"""What seeds add to that."""


STAGES: dict[str, Callable[[Job[Any]], str]] = {
    "summarise": summarise,
    "grid": gather,
    "grid_without_figure": gather,
    "score_and_drop": score_and_drop,
    "published": beside_published,
}


def config(**changes: Any) -> Config:
    return Config.model_validate(CONFIG | changes)


def score_of(task: str, fraction: str, seed: int) -> float:
    original = 0.8 + 0.01 * seed - 0.1 * (task == "second")
    return round(original - LOST[fraction] + WAVER.get((fraction, seed), 0.0), 4)


def placed(study: Study, job: Job[Any]) -> Job[Any]:
    """`job` with paths that begin with the results."""
    inputs = {name: tuple(str(study.results / path) for path in paths) for name, paths in job.inputs.items()}
    return replace(job, inputs=inputs, outputs={name: str(study.results / path) for name, path in job.outputs.items()})


def page_job(study: Study) -> Job[Any]:
    return placed(study, study.job("page"))


def write_results(folder: Path, **changes: Any) -> Study:
    """Everything that a page of `config(**changes)` reads, below `folder`."""
    given = config(**changes)
    study = Study(given, folder / "results" / given.name)
    for unplaced in study.jobs():
        job = placed(study, unplaced)
        if job.rule in STAGES:
            with patch("papa.results.figures.save_figure"):  # a page draws its figures itself
                STAGES[job.rule](job)
        elif job.stage == "texts":
            write_table(pa.table({"row": [0]}), job.main, {"shared": {"validation": SHARED}})
        elif job.stage == "tokens":
            _write_tokens(Path(job.main))
        elif job.stage == "average":
            averages().save(job.main)
        elif job.stage == "lambda":
            _write_lambda(Path(job.main))
        elif job.stage in ("rank", "order"):
            heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
            rows = [{"rank": rank, "layer": layer, "head": head} for rank, (layer, head) in enumerate(heads)]
            write_table(pa.Table.from_pylist(rows), job.main, {})
        elif job.stage == "probe":
            write_json(_run(job), job.main)
    took = {
        "tables/summary": "s\th:m:s\tmax_rss\n1.5\t0:00:01\t101.25\n",
        "models/small/tasks/first/runs/original/seed-1": "s\tmax_rss\n1.25\t300\n",
        "models/small/tasks/first/runs/original/seed-2": "s\tmax_rss\n2.25\t-\n",  # over before its memory was seen
        "models/small/tasks/gone/runs/original/seed-1": "s\tmax_rss\n1000\t1000\n",  # of a config of before
    }
    for name, text in took.items():
        path = study.results / f"{name}.benchmark.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return study


def averages() -> papa.ConstantMatrices:
    """Averages whose entry at [layer, head, query, key] tells where it stands; no example has slots 2 and 4 both."""
    count = torch.full((SLOTS, SLOTS), 50)
    count[2, 4] = count[4, 2] = 0
    mean = torch.arange(1, LAYERS * HEADS * SLOTS**2 + 1).view(LAYERS, HEADS, SLOTS, SLOTS) / 1000
    return papa.ConstantMatrices((mean * count).double(), count, 50)


def _run(job: Job[Any]) -> dict[str, Any]:
    told = job.settings
    variant = Variant.parse(told.variant)
    score = score_of(told.task, str(variant.fraction), told.seed)
    return {
        "model": told.model.model.name,
        "task": told.task,
        "constant": variant.constant and variant.constant.name,
        "order": variant.order and variant.order.name,
        "fraction": str(variant.fraction),
        "kept": variant.kept(LAYERS * HEADS),
        "heads": LAYERS * HEADS,
        "seed": told.seed,
        "metric": "accuracy",
        "score": score,
        "scores": {"accuracy": score},
        "subsets": {SUBSET: {"score": score - 0.1, "examples": 12}},
        "learning_rate": 0.001,
        "batch_size": 8,
        "epochs": 1,
        "rows": {"train": 1024, "validation": 24},
        "rows_available": {"train": 2048, "validation": 24},
        "cut": {"train": 3, "validation": 0},
        "provenance": {"weights": "5ba", "papa_version": "0.1.0"},
    }


def _write_lambda(path: Path) -> None:
    """λ that falls from head to head in the first epoch and rises in the last."""
    heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    rows = [
        {"epoch": epoch, "layer": layer, "head": head, "value": 0.5 + sign * (layer * HEADS + head) / 100}
        for epoch, sign in ((1, -1), (2, 1))
        for layer, head in heads
    ]
    write_table(pa.Table.from_pylist(rows), path, {"epochs": 2})


def _write_tokens(path: Path) -> None:
    """Examples with special tokens in the first and the last slot."""
    slots = [[0, 1, 2, SLOTS - 1], [0, 1, 4, 5, SLOTS - 1]]
    rows = [
        {"split": "train", "row": number, "ids": [9, *range(10, 8 + len(own)), 8], "slots": own, "cut": 0}
        | {"segments": [0] * len(own)}
        for number, own in enumerate(slots)
    ]
    integers = pa.list_(pa.int32())
    schema = {"split": pa.string(), "row": pa.int64(), "ids": integers, "slots": integers, "segments": integers}
    table = pa.Table.from_pylist(rows, schema=pa.schema([*schema.items(), ("cut", pa.int32())]))
    sizes = {"layers": LAYERS, "heads": HEADS}
    write_table(table, path, {"slots": SLOTS, "sizes": sizes, "rows": {"train": 2, "validation": 0}})
