"""Finished results of a made-up config, written by the library without any model: the input of a report."""

from dataclasses import dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa
import torch
from builders import head_rows

import papa
from papa.config.settings import Config
from papa.config.variant import Constant, Order, Variant
from papa.data.prepare import Prepared
from papa.data.tokenize import _schema
from papa.data.weights import ModelFiles
from papa.files import write_table
from papa.plan.study import Plan
from papa.results.finished import Finished
from papa.results.report import write_report
from papa.stages import Job, Report

LAYERS = 3
HEADS = 5
SLOTS = 7
SHARED = 11
EXAMPLES = 600
CORPUS = "texts-digest"
TITLE = "</script><script>document.title='owned'</script>"
SUBSET = "<img src=x onerror=\"document.title='owned'\">"
LABELS = ("<b>no</b>", "yes")
TEXTS = [f"{SUBSET} & more", "**a line**\nand another", "word " * 40, "the fourth"]
TASK = {
    "corpus": "texts",
    "subset": "kind",
    "metric": "accuracy",
    "learning_rate": 0.001,
    "batch_size": 8,
    "epochs": 1,
}
ENDS = {
    "title": "Kinds & ends",
    "models": ["small"],
    "constants": ["average", "zeros"],
    "fractions": ["1", "0"],
}
CONFIG = {
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
    "corpora": {
        "texts": {
            "files": {"train": "a.csv", "validation": "b.csv"},
            "first": "text",
            "slots": SLOTS,
        }
    },
    "tasks": {
        name: TASK | {"label": name, "title": title}
        for name, title in (("first", TITLE), ("second", "Second"))
    },
}
"""Two models, two tasks, one of them with a title that wants to be a script; three seeds; a second grid."""


@dataclass(frozen=True)
class Skill:
    """A task's scores: original, with every head replaced, by zeros; `usual` is the share of the first label."""

    original: float = 0.8
    replaced: float = 0.6
    context_free: float = 0.52
    usual: float = 0.5

    @property
    def gold(self):
        """The labels of the validation examples, int16; those of the first label are the easy ones and come first."""
        return (np.arange(EXAMPLES) >= round(self.usual * EXAMPLES)).astype(np.int16)

    def after(self, variant):
        """The score of a variant. The heads that are replaced first cost little, least in the order of λ."""
        if variant.constant is None:
            return self.original
        end = self.context_free if variant.constant.start == "zeros" else self.replaced
        bend = 5 if variant.order is not None and variant.order.base == "lambda" else 2
        return end + (self.original - end) * (1 - (1 - float(variant.fraction)) ** bend)


SKILLS = {"second": Skill(original=0.75, replaced=0.6)}
"""The skills of tasks that differ from the usual one."""
NO_SKILL = Skill(original=0.75, replaced=0.75, context_free=0.75, usual=0.75)
"""A model that predicts the more frequent label whatever it reads."""
CHANCE = Skill(original=0.5, replaced=0.5, context_free=0.5)
"""A random model, whose probes learn nothing."""


class Made(Plan):
    """A plan whose texts and models are made up."""

    def data(self, corpus):
        tasks = {name: task for name, task in self.config.tasks.items() if task.corpus == corpus}
        columns = {"first": "f", **{f"label {task}": task for task in tasks}}
        facts = {"rows": {"train": 1024, "validation": EXAMPLES}, "rows_available": {"train": 2048}}
        facts["rows_available"]["validation"] = EXAMPLES
        facts |= {"shared": {"validation": SHARED}, "digests": {"train": columns, "all": columns}}
        labels = {
            task: {"names": list(LABELS), "train_counts": self.taught(task)} for task in tasks
        }
        facts |= {"labels": labels, "characters": dict.fromkeys(("train", "validation"), 9)}
        return Prepared(str(self.cache / "data" / f"{corpus}.parquet"), facts)

    def model(self, name):
        return ModelFiles("", name)

    skills = SKILLS

    def skill(self, task):
        return self.skills.get(task, Skill())

    def taught(self, task):
        first = floor(1024 * Fraction(self.skill(task).usual))
        return [first, 1024 - first]


def write_results(folder, skills=SKILLS, **changes):
    """Write all that the report of a changed `CONFIG` reads; tasks without a skill have the usual one."""
    config = Config.model_validate(CONFIG | changes)
    plan = Made(config, folder / "results" / config.name)
    plan.skills = skills
    _write_texts(plan)
    for job in plan.jobs:
        about = job.about
        if job.stage == "tokenize":
            _write_tokens(job)
        elif job.stage == "average":
            averages().save(job.output, job.record)
        elif about.get("order") == "gradient" and job.stage == "learn_lambda":
            write_table(head_rows(all_learned(8 + about["seed"])), job.output, {}, job.record)
        elif job.stage == "learn_lambda":
            weights = all_learned(about["seed"])
            write_table(
                head_rows([1 - weight for weight in weights], weights),
                job.output,
                {"epochs": 2},
                job.record,
            )
        else:
            _write_probe(job, plan.skill(about["task"]))
    data = {name: Path(plan.data(name).path) for name in config.corpora_run}
    return Finished(config, plan.results, plan.jobs, data)


def report_job(finished):
    """The job of the report of results."""
    settings = Report(config=finished.config.shown())
    record = settings.record({"artefacts": "a"})
    return Job(settings, record, {}, f"{finished.folder}/report/made-from-{record.key[:16]}.json")


def page_of(finished):
    """Write the report; return the page."""
    write_report(report_job(finished), finished)
    return (finished.folder / "report" / "index.html").read_text()


def averages():
    """Averages with another entry at each [layer, head, query, key]; no example has slots 2 and 4 both."""
    count = torch.full((SLOTS, SLOTS), 50)
    count[2, 4] = count[4, 2] = 0
    mean = torch.arange(1, LAYERS * HEADS * SLOTS**2 + 1).view(LAYERS, HEADS, SLOTS, SLOTS) / 1000
    return papa.Constants((mean * count).double(), count, 50)


def learned(seed, head):
    """λ of a head, counted from 0 over all layers, after the last epoch."""
    swap = head + (seed > 0) * (-1) ** head  # with other seeds, neighbours change places
    return 0.5 + (swap - LAYERS * HEADS // 2) / 1000


def all_learned(seed):
    return [learned(seed, head) for head in range(LAYERS * HEADS)]


def _write_probe(job, skill):
    """The predictions of one probe on every validation example."""
    about = job.about
    constant = about["constant"]
    order = about["order"]
    parts = constant and Constant.parse(constant), order and Order.parse(order)
    variant = Variant(*parts, Fraction(about["fraction"]))
    name = f"{about['model']}/{about['task']}/{variant.path}"
    chance = np.random.default_rng([about["seed"], crc32(name.encode())])
    ease = (np.arange(EXAMPLES) + 0.5) / EXAMPLES + chance.normal(0, 0.01, EXAMPLES)
    right = ease < skill.after(variant) + 0.004 * (about["seed"] - 2)
    columns = {
        "split": pa.array(["validation"] * EXAMPLES).dictionary_encode(),
        "example": np.arange(EXAMPLES, dtype=np.int32),
        "predicted": np.where(right, skill.gold, 1 - skill.gold),
    }
    facts = {
        "kept": floor(variant.fraction * LAYERS * HEADS),
        "heads": LAYERS * HEADS,
        "curve": [0.7],
        "weights": "5ba",
    }
    write_table(pa.table(columns), job.output, facts, job.record)


def _write_texts(plan):
    """The table of each corpus; every second validation row is in the subset with the hostile name."""
    for corpus in plan.config.corpora_run:
        names = np.where(np.arange(EXAMPLES) % 2, SUBSET, "position").tolist()
        rows = [*range(len(TEXTS)), *range(EXAMPLES)]
        columns = {"split": ["train"] * len(TEXTS) + ["validation"] * EXAMPLES, "row": rows}
        columns["first"] = TEXTS + ["a text"] * EXAMPLES
        for task, block in plan.config.tasks.items():
            if block.corpus == corpus:
                columns[f"label {task}"] = [0] * len(TEXTS) + plan.skill(task).gold.tolist()
                columns[f"subset {task}"] = [""] * len(TEXTS) + names
        write_table(pa.table(columns), plan.data(corpus).path, plan.data(corpus).facts)


def _write_tokens(job):
    """Examples with special tokens in the first and the last slot; with more slots, more are cut."""
    slots = [[0, 1, 2, SLOTS - 1], [0, 1, 4, 5, SLOTS - 1]]
    columns = {
        "split": ["train"] * 2,
        "row": [0, 1],
        "ids": [[9, *range(10, 8 + len(row)), 8] for row in slots],
        "slots": slots,
        "segments": [[0] * len(row) for row in slots],
        "cut": [0, 0],
    }
    table = pa.Table.from_pydict(columns, _schema(words=False))
    facts = {
        "slots": SLOTS,
        "sizes": {"layers": LAYERS, "heads": HEADS},
        "rows": {"train": 2, "validation": 0},
        "style": "paper",
        "cut": {"train": 3, "validation": job.settings.slots - SLOTS},
    }
    write_table(table, job.output, facts, job.record)
