"""Finished results of a made-up config, written by the library without any model: the input of a report."""

from collections.abc import Mapping
from contextlib import nullcontext
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
from builders import head_rows, run_record
from tiny import empty_figure

import papa
from papa.config.job import Job
from papa.config.settings import Config
from papa.config.stages import AnalysisOf
from papa.config.study import Plan
from papa.config.variant import Variant
from papa.files import write_json, write_table
from papa.results.analysis import analyse

LAYERS, HEADS, SLOTS = 3, 5, 7
SHARED = 11
EXAMPLES = 600
CORPUS = "texts-digest"
TITLE = "</script><script>document.title='owned'</script>"
SUBSET = "<img src=x onerror=\"document.title='owned'\">"
LABELS = ("<b>no</b>", "yes")
TEXTS = [f"{SUBSET} & more", "**a line**\nand another", "word " * 40, "the fourth"]
TASK = {"corpus": "texts", "subset": "kind", "metric": "accuracy"}
TASK |= {"learning_rate": 0.001, "batch_size": 8, "epochs": 1}
ENDS = {"title": "Kinds & ends", "models": ["small"], "constants": ["average", "zeros"], "fractions": ["1", "0"]}
CONFIG: dict[str, Any] = {
    "name": "made",
    "floors": ["zeros"],
    "run": {
        "models": ["small", "other"],
        "tasks": ["first", "second"],
        "fractions": ["1", "1/2", "0"],
        "seeds": [1, 2, 3],
    },
    "grids": {"ends": ENDS},
    "models": {"small": {"hub": "some/roberta"}, "other": {"path": "somewhere/on/this/machine"}},
    "corpora": {"texts": {"files": {"train": "a.csv", "validation": "b.csv"}, "first": "text", "slots": SLOTS}},
    "tasks": {name: TASK | {"label": name, "title": title} for name, title in (("first", TITLE), ("second", "Second"))},
}
"""Two models, two tasks, one of them with a title that wants to be a script; three seeds; a second grid."""


@dataclass(frozen=True)
class Skill:
    """A task's scores: original, with every head replaced, by zeros; `usual` is the share of the first label."""

    original: float = 0.8
    replaced: float = 0.6
    contextless: float = 0.52
    usual: float = 0.5

    @property
    def gold(self) -> np.ndarray:
        """The labels of the validation examples, int16; those of the first label are the easy ones and come first."""
        return (np.arange(EXAMPLES) >= round(self.usual * EXAMPLES)).astype(np.int16)

    def after(self, variant: Variant) -> float:
        """The score of a variant. The heads that are replaced first cost little, least in the order of λ."""
        if variant.constant is None:
            return self.original
        end = self.contextless if variant.constant.start == "zeros" else self.replaced
        bend = 5 if variant.order is not None and variant.order.base == "lambda" else 2
        return end + (self.original - end) * (1 - (1 - float(variant.fraction)) ** bend)


SKILLS = {"second": Skill(original=0.75, replaced=0.6)}
"""The skills of tasks that differ from the usual one."""
NO_SKILL = Skill(original=0.75, replaced=0.75, contextless=0.75, usual=0.75)
"""A model that predicts the more frequent label whatever it reads."""
CHANCE = Skill(original=0.5, replaced=0.5, contextless=0.5)
"""A random model, whose probes learn nothing."""


def page_job(study: Plan) -> Job[Any]:
    return study.job("page").placed(study.results)


def write_results(folder: Path, skills: Mapping[str, Skill] = SKILLS, drawn: bool = False, **changes: Any) -> Plan:
    """Write all that the report of a changed `CONFIG` reads; tasks without a skill have the usual one.

    Figures are empty unless they are `drawn`, which takes seconds.
    """
    config = Config.model_validate(CONFIG | changes)
    study = Plan(config, folder / "results" / config.name)
    for unplaced in study.jobs():
        job = unplaced.placed(study.results)
        skill = skills.get(job.settings.task if job.stage == "probe" else job.wildcards.get("task", ""), Skill())
        if isinstance(job.settings, AnalysisOf):
            with nullcontext() if drawn else patch("papa.results.analysis.save_figure", empty_figure):
                analyse(job)
        elif job.stage == "texts":
            texts = {"split": ["train"] * len(TEXTS), "row": range(len(TEXTS)), "first": TEXTS}
            write_table(pa.table(texts), job.main, {"shared": {"validation": SHARED}})
        elif job.stage in ("labels", "subsets"):
            _write_by_row(job, skill)
        elif job.stage == "tokens":
            _write_tokens(Path(job.main))
        elif job.stage == "average":
            averages().save(job.main)
        elif job.stage == "lambda":
            weights = _weights(job.settings.seed)
            write_table(head_rows([1 - weight for weight in weights], weights), job.main, {"epochs": 2})
        elif job.stage == "weights":
            write_table(head_rows(_weights(8 + job.settings.seed)), job.main, {})
        elif job.stage in ("rank", "order"):
            order = head_rows(range(LAYERS * HEADS)).drop(["epoch"]).rename_columns({"value": "rank"})
            write_table(order, job.main, {})
        elif job.stage == "probe":
            _write_runs(job, skill)
    return study


def averages() -> papa.Constants:
    """Averages with another entry at each [layer, head, query, key]; no example has slots 2 and 4 both."""
    count = torch.full((SLOTS, SLOTS), 50)
    count[2, 4] = count[4, 2] = 0
    mean = torch.arange(1, LAYERS * HEADS * SLOTS**2 + 1).view(LAYERS, HEADS, SLOTS, SLOTS) / 1000
    return papa.Constants((mean * count).double(), count, 50)


def learned(seed: int, head: int) -> float:
    """λ of a head, counted from 0 over all layers, after the last epoch."""
    swap = head + (seed > 0) * (-1) ** head  # with other seeds, neighbours change places
    return 0.5 + (swap - LAYERS * HEADS // 2) / 1000


def _weights(seed: int) -> list[float]:
    return [learned(seed, head) for head in range(LAYERS * HEADS)]


def _write_runs(job: Job[Any], skill: Skill) -> None:
    """The runs of a variant, with the predictions of their probes on every validation example."""
    settings, variant = job.settings, Variant.parse(job.settings.variant)
    about = {"model": settings.model.model.name, "task": settings.task, "fraction": str(variant.fraction)}
    about |= {"constant": variant.constant and variant.constant.name, "order": variant.order and variant.order.name}
    origin = {"weights": "5ba", "corpus": CORPUS, "slots": SLOTS, "papa_version": "0.1.0"}
    tables, runs = [], []
    for seed in settings.seeds:
        chance = np.random.default_rng([seed, crc32(f"{about['model']}/{settings.task}/{settings.variant}".encode())])
        ease = (np.arange(EXAMPLES) + 0.5) / EXAMPLES + chance.normal(0, 0.01, EXAMPLES)
        columns = {"seed": pa.array([seed] * EXAMPLES, pa.int32())}
        columns["split"] = pa.array(["validation"] * EXAMPLES).dictionary_encode()
        right = ease < skill.after(variant) + 0.004 * (seed - 2)
        predicted = pa.array(np.where(right, skill.gold, 1 - skill.gold))
        columns |= {"example": pa.array(range(EXAMPLES), pa.int32()), "gold": pa.array(skill.gold)}
        tables.append(pa.table(columns | {"predicted": predicted}))
        rows, available, cut = ({"train": train, "validation": EXAMPLES} for train in (1024, 2048, 3))
        record = about | {"kept": variant.kept_count(LAYERS * HEADS), "heads": LAYERS * HEADS, "batch_size": 8}
        record |= {"rows": rows, "rows_available": available, "cut": cut | {"validation": 0}, "epochs": 1}
        runs.append(run_record(**record, seed=seed, provenance=origin))
    facts = about | {"weights": "5ba", "corpus": CORPUS, "label_names": list(LABELS)}
    write_table(pa.concat_tables(tables), job.output("outcomes"), facts)
    write_json({"runs": runs}, job.output("runs"))


def _write_by_row(job: Job[Any], skill: Skill) -> None:
    """Labels or subsets of the validation rows; every second one is in the subset with the hostile name."""
    names = np.where(np.arange(EXAMPLES) % 2, SUBSET, "position")
    column = {"label": pa.array(skill.gold.astype(int))} if job.stage == "labels" else {"subset": pa.array(names)}
    rows = {"split": pa.array(["validation"] * EXAMPLES), "row": range(EXAMPLES)}
    taught = floor(1024 * Fraction(skill.usual))
    facts = {"label_names": list(LABELS), "train_counts": [taught, 1024 - taught], "fingerprint": CORPUS}
    write_table(pa.table(rows | column), job.main, facts)


def _write_tokens(path: Path) -> None:
    """Examples with special tokens in the first and the last slot."""
    slots = [[0, 1, 2, SLOTS - 1], [0, 1, 4, 5, SLOTS - 1]]
    integers = pa.list_(pa.int32())
    columns = {
        "split": ["train"] * 2,
        "row": [0, 1],
        "ids": pa.array([[9, *range(10, 8 + len(row)), 8] for row in slots], integers),
        "slots": pa.array(slots, integers),
        "segments": pa.array([[0] * len(row) for row in slots], integers),
        "cut": pa.array([0, 0], pa.int32()),
    }
    sizes = {"layers": LAYERS, "heads": HEADS}
    write_table(pa.table(columns), path, {"slots": SLOTS, "sizes": sizes, "rows": {"train": 2, "validation": 0}})
