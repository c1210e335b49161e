"""Finished results of a made-up config, written by the library without any model: what a page is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np
import pyarrow as pa
import torch

import papa
from papa.config.job import Job
from papa.config.settings import Config
from papa.config.stages import AnalysisOf
from papa.config.study import Study
from papa.config.variant import Variant
from papa.files import write_json, write_table
from papa.results.analysis import analyse

LAYERS, HEADS, SLOTS = 3, 5, 7
SHARED = 11
EXAMPLES, EPOCHS = 600, 3
CORPUS = "texts-digest"
TITLE = "</script><script>document.title='owned'</script>"
SUBSET = "<img src=x onerror=\"document.title='owned'\">"
LABELS = ("<b>no</b>", "yes")
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
            "subset": "kind",
            "metric": "accuracy",
            "learning_rate": 0.001,
            "batch_size": 8,
            "epochs": EPOCHS,
        }
        for name, title in (("first", TITLE), ("second", "Second"))
    },
}
"""Two models, two tasks, one of them with a title that wants to be a script; three seeds; a second grid."""


@dataclass(frozen=True)
class Skill:
    """What the probes of a task score.

    Args:
        original: with nothing replaced.
        replaced: with every head replaced by a constant other than zeros.
        contextless: with every head replaced by zeros.
        usual: the share of examples of the first label, which is the easier one to tell.
        lasting: how much of a score is there only after the last epoch, as a share of what the probe learns.
    """

    original: float = 0.8
    replaced: float = 0.6
    contextless: float = 0.52
    usual: float = 0.5
    lasting: float = 0.0

    def after(self, variant: Variant) -> float:
        """The score of a variant. The heads that are replaced first cost little, least in the order of λ."""
        if variant.constant is None:
            return self.original
        end = self.contextless if variant.constant.start == "zeros" else self.replaced
        bend = 5 if variant.order is not None and variant.order.base == "lambda" else 2
        return end + (self.original - end) * (1 - (1 - float(variant.fraction)) ** bend)


SKILLS = {"second": Skill(original=0.75, replaced=0.6)}
"""What tasks score that are not like the others."""
NO_SKILL = Skill(original=0.75, replaced=0.75, contextless=0.75, usual=0.75)
"""A model that says the more frequent label whatever it reads."""
ONE_LABEL = Skill(original=0.99, replaced=0.99, contextless=0.99, usual=0.99)
"""A task with hardly an example of a second label."""
CHANCE = Skill(original=0.5, replaced=0.5, contextless=0.5)
"""A random model, whose probes tell nothing apart."""
SOLVED = Skill(original=1.1, replaced=1.1, contextless=1.1)
"""A task that is solved without any attention."""
CEILING = Skill(original=1.1, replaced=0.8)
"""A task that could not be solved better."""
RISING = Skill(lasting=0.3)
"""A task whose probes were not trained out."""


def config(**changes: Any) -> Config:
    return Config.model_validate(CONFIG | changes)


def tasks(titles: Mapping[str, str]) -> dict[str, Any]:
    """Tasks like the first one, with other names and titles."""
    return {name: CONFIG["tasks"]["first"] | {"title": title} for name, title in titles.items()}


def page_job(study: Study) -> Job[Any]:
    return study.job("page").placed(study.results)


def write_results(folder: Path, skills: Mapping[str, Skill] = SKILLS, **changes: Any) -> Study:
    """Everything that a page of `config(**changes)` reads, below `folder`; tasks that `skills` lacks have the usual."""
    given = config(**changes)
    study = Study(given, folder / "results" / given.name)
    for unplaced in study.jobs():
        job = unplaced.placed(study.results)
        skill = skills.get(job.settings.task if job.stage == "probe" else job.wildcards.get("task", ""), Skill())
        if isinstance(job.settings, AnalysisOf):
            with patch("papa.results.analysis.save_figure"):  # the report draws its figures itself
                analyse(job)
        elif job.stage == "texts":
            write_table(pa.table({"row": [0]}), job.main, {"shared": {"validation": SHARED}})
        elif job.stage in ("labels", "subsets"):
            _write_beside(job, skill)
        elif job.stage == "tokens":
            _write_tokens(Path(job.main))
        elif job.stage == "average":
            averages().save(job.main)
        elif job.stage == "lambda":
            _write_lambda(job)
        elif job.stage == "weights":
            swap = len(job.settings.by) + (job.settings.seed or 0)
            values = [
                (layer, head, learned(swap, layer * HEADS + head)) for layer in range(LAYERS) for head in range(HEADS)
            ]
            rows = [{"epoch": 1, "layer": layer, "head": head, "value": value} for layer, head, value in values]
            write_table(pa.Table.from_pylist(rows), job.main, {})
        elif job.stage in ("rank", "order"):
            heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
            rows = [{"rank": rank, "layer": layer, "head": head} for rank, (layer, head) in enumerate(heads)]
            write_table(pa.Table.from_pylist(rows), job.main, {})
        elif job.stage == "probe":
            _write_runs(job, skill)
    took = {
        "tables/summary": "s\th:m:s\tmax_rss\n1.5\t0:00:01\t101.25\n",
        "models/small/tasks/first/runs/original/runs": "s\tmax_rss\n1.25\t300\n",
        "models/small/tasks/first/runs/zeros/all/runs": "s\tmax_rss\n2.25\t-\n",  # over before its memory was seen
        "models/small/tasks/first/average/lambda-0": "s\tmax_rss\n100\t300\n",
        "models/small/tasks/first/average/gradient-0": "s\tmax_rss\n20.4\t300\n",
        "models/small/tasks/first/average/gradient-1": "s\tmax_rss\n30.4\t300\n",
        "models/small/tasks/gone/runs/original/runs": "s\tmax_rss\n1000\t1000\n",  # of a config of before
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


def learned(seed: int, head: int) -> float:
    """λ of a head, counted from 0 over all layers, after the last epoch."""
    swap = head + (seed > 0) * (-1) ** head  # with other seeds, neighbours change places
    return 0.5 + (swap - LAYERS * HEADS // 2) / 1000


def _write_runs(job: Job[Any], skill: Skill) -> None:
    """The runs of a variant, and what their probes make of every validation example."""
    told = job.settings
    variant = Variant.parse(told.variant)
    about = {
        "model": told.model.model.name,
        "task": told.task,
        "constant": variant.constant and variant.constant.name,
        "order": variant.order and variant.order.name,
        "fraction": str(variant.fraction),
    }
    tables, runs, epochs = [], [], told.training.epochs
    made = {"weights": "5ba", "corpus": CORPUS, "slots": SLOTS, "style": "paper", "segments": "aligned"}
    for seed in told.seeds:
        gold, score, columns = _gold(skill), skill.after(variant), {}
        drawn = np.random.default_rng([seed, crc32(f"{about['model']}/{told.task}/{told.variant}".encode())])
        easy = (np.arange(EXAMPLES) + 0.5) / EXAMPLES + drawn.normal(0, 0.01, EXAMPLES)
        for epoch in range(1, epochs + 1):
            missing = skill.lasting if epoch < epochs else 0.0
            missing = 0.5 if epoch < epochs - 1 else missing
            right = easy < score - missing * (score - skill.contextless) + 0.004 * (seed - 2)
            columns[f"predicted_{epoch}" if epoch < epochs else "predicted"] = np.where(right, gold, 1 - gold)
        items = {"example": pa.array(range(EXAMPLES), pa.int32()), "gold": gold} | columns
        table = pa.table({name: pa.array(values) for name, values in items.items()})
        table = table.add_column(0, "split", pa.array(["validation"] * EXAMPLES).dictionary_encode())
        tables.append(table.add_column(0, "seed", pa.array([seed] * EXAMPLES, pa.int32())))
        run = about | {
            "seed": seed,
            "kept": variant.kept(LAYERS * HEADS),
            "heads": LAYERS * HEADS,
            "learning_rate": 0.001,
            "batch_size": 8,
            "epochs": epochs,
            "rows": {"train": 1024, "validation": EXAMPLES},
            "rows_available": {"train": 2048, "validation": EXAMPLES},
            "cut": {"train": 3, "validation": 0},
            "curve": [{"epoch": epoch, "loss": 0.7 / epoch} for epoch in range(1, epochs + 1)],
            "provenance": made | {"encoder_dropout": False, "papa_version": "0.1.0"},
        }
        runs.append(run)
    facts = about | {"weights": "5ba", "corpus": CORPUS, "label_names": list(LABELS)}
    write_table(pa.concat_tables(tables), job.output("outcomes"), facts)
    write_json({"runs": runs}, job.output("runs"))


def _gold(skill: Skill) -> np.ndarray:
    """The labels of the validation examples, int16; those of the first label are the easy ones and come first."""
    return (np.arange(EXAMPLES) >= round(skill.usual * EXAMPLES)).astype(np.int16)


def _write_beside(job: Job[Any], skill: Skill) -> None:
    """Labels or subsets of the validation rows; every second one is in the subset with the hostile name."""
    names = np.where(np.arange(EXAMPLES) % 2, SUBSET, "position")
    column = {"label": pa.array(_gold(skill).astype(int))} if job.stage == "labels" else {"subset": pa.array(names)}
    split = pa.array(["validation"] * EXAMPLES)
    taught = floor(1024 * Fraction(skill.usual))
    facts = {"label_names": list(LABELS), "train_counts": [taught, 1024 - taught], "fingerprint": CORPUS}
    write_table(pa.table({"split": split, "row": range(EXAMPLES)} | column), job.main, facts)


def _write_lambda(job: Job[Any]) -> None:
    """λ that falls from head to head in the first epoch and rises in the last."""
    seed = job.settings.seed + (job.settings.part == "1of2")
    rows = [
        {"epoch": epoch, "layer": layer, "head": head, "value": value if epoch == 2 else 1 - value}
        for epoch in (1, 2)
        for layer in range(LAYERS)
        for head in range(HEADS)
        for value in [learned(seed, layer * HEADS + head)]
    ]
    write_table(pa.Table.from_pylist(rows), job.main, {"epochs": 2})


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
