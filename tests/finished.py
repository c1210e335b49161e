"""Finished results of a made-up config, written by the library without any model: what a report is made of."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from papa.results.analyses import gather
from papa.results.tables import collect_runs, summarise

import papa
from papa.config.graph import Graph, setting
from papa.config.parameters import Parameters
from papa.config.settings import checked
from papa.files import write_json, write_table
from papa.method.ranking import order_heads, rank_heads
from papa.results.drops import score_and_drop
from papa.results.published import beside_published

SCHEMA = Path(__file__).parents[1] / "workflow/schemas/config.schema.yaml"
LAYERS, HEADS, SLOTS = 3, 5, 7
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


def config(**changes: Any) -> dict[str, Any]:
    return Parameters(checked(CONFIG | changes, SCHEMA)).told()


def score_of(task: str, fraction: str, seed: int) -> float:
    original = 0.8 + 0.01 * seed - 0.1 * (task == "second")
    return round(original - LOST[fraction] + WAVER.get((fraction, seed), 0.0), 4)


def write_results(folder: Path, **changes: Any) -> Path:
    """Everything that a report of `config(**changes)` reads, below `folder`; returns the folder of the results."""
    given = config(**changes)
    graph, results = Graph(given), folder / "results" / given["name"]

    def place(path: Any) -> Path:
        return results / str(path).removeprefix("<results>/")

    for path in graph.runs():
        _, models, model, _, task, _, *variant, seed = path.split("/")
        about = setting("/".join(variant))
        number = int(seed.removeprefix("seed-").removesuffix(".json"))
        kept = int(Fraction(about["fraction"] or 1) * LAYERS * HEADS)
        write_json(_run(model, task, about, kept, number), place(path))
        assert models == "models"
    for path in graph.artefacts():
        if path.endswith("tokens.parquet"):
            _write_tokens(place(path))
        elif path.endswith("average.h5"):
            averages().save(place(path))
    for path in graph.artefacts():
        if path.endswith("lambda.parquet"):
            _write_lambda(place(path))
        elif path.endswith("order.parquet"):
            rank_heads(place(path).parents[1] / "lambda.parquet", place(path))
        elif "/orders/" in path:
            order_heads({"name": "made", "random": "roberta"}, place(path), place(path).stem)
    tables, parameters = results / "tables", Parameters(given)
    collect_runs([place(path) for path in graph.runs()], tables / "runs.parquet", **parameters.titles())
    summarise(tables / "runs.parquet", tables / "summary.parquet", tables / "summary.md")
    for name in graph.grids:
        forms = {"table": "parquet", "markdown": "md", "latex": "tex"}
        made = {form: tables / f"{name}.{suffix}" for form, suffix in forms.items()}
        gather(tables / "summary.parquet", **made, **parameters.grid(name))
    made = {form: tables / f"score_and_drop.{suffix}" for form, suffix in forms.items()}
    score_and_drop(tables / "score_by_fraction.parquet", **made)
    if "<results>/tables/published.parquet" in graph.analyses():
        made = {form: tables / f"published.{suffix}" for form, suffix in forms.items()}
        beside_published(tables / "summary.parquet", **made, **parameters.published())
    (tables / "runs.benchmark.tsv").write_text("s\th:m:s\tmax_rss\n1.5\t0:00:01\t101.25\n", encoding="utf-8")
    for seed in (1, 2):
        line = f"s\tmax_rss\n{seed}.25\t{'-' if seed == 2 else 300}\n"
        runs = results / "models/small/tasks/first/runs/original"
        (runs / f"seed-{seed}.benchmark.tsv").write_text(line, encoding="utf-8")
    return results


def averages() -> papa.ConstantMatrices:
    """Averages whose entry at [layer, head, query, key] tells where it stands; no example has slots 2 and 4 both."""
    count = torch.full((SLOTS, SLOTS), 50)
    count[2, 4] = count[4, 2] = 0
    mean = torch.arange(1, LAYERS * HEADS * SLOTS**2 + 1).view(LAYERS, HEADS, SLOTS, SLOTS) / 1000
    return papa.ConstantMatrices((mean * count).double(), count, 50)


def _run(model: str, task: str, about: dict[str, Any], kept: int, seed: int) -> dict[str, Any]:
    score = score_of(task, about["fraction"], seed)
    return {"model": model, "task": task, **about, "kept": kept, "heads": LAYERS * HEADS, "seed": seed} | {
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
