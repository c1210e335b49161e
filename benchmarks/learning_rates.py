"""Choose the learning rate of each task of a config, without its validation split.

    python benchmarks/learning_rates.py config/mpnet.yaml --work FOLDER [--model FOLDER] [--mirror FOLDER]

The probe of the original model is trained with each rate on 80% of the training rows. The other rows, which are whole
clusters, score it. The highest score wins; of equal ones, that of the smallest rate. The same command resumes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import yaml

from papa.commands.measure import run_here
from papa.config.reading import config_of, read_config
from papa.config.settings import Config
from papa.files import read_facts, read_table
from papa.plan.study import Plan

RATES = (1e-4, 3e-4, 1e-3)
HELD_OUT = 0.2
SEED = 1
TEXTS = ("first", "second", "words")


def task_of(task: str, rate: float) -> str:
    """Return the name of a task with a learning rate."""
    return f"{task}-{rate:.0e}"


def split_rows(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the training rows of a corpus in two parts that share no cluster."""
    rows = table[table["split"] == "train"].reset_index(drop=True)
    clusters = rows["cluster"] if "cluster" in rows else rows.index.to_series()
    names = sorted(clusters.unique())
    Random(SEED).shuffle(names)
    held_out = clusters.isin(names[: round(HELD_OUT * len(names))])
    return {"train": rows[~held_out], "validation": rows[held_out]}


def named(label: Any, names: Sequence[str]) -> Any:
    """Return the name of a label, or the names of a list of labels."""
    if isinstance(label, int):
        return names[label]
    return [names[index] for index in label]


def write_corpus(study: Plan, name: str, folder: Path) -> dict[str, Any]:
    """Write the two parts of a corpus, with names of classes, and return its entry in a config."""
    path = study.data(name).path
    table = read_table(path).to_pandas()
    labels = {
        task: about["names"]
        for task, about in read_facts(path)["labels"].items()
        if f"label {task}" in table
    }
    for task, names in labels.items():
        table[task] = [named(label, names) for label in table[f"label {task}"]]
    texts = [role for role in TEXTS if role in table]
    files = {}
    for split, rows in split_rows(table).items():
        file = folder / f"{name}.{split}.parquet"
        rows[[*texts, *labels]].to_parquet(file, index=False)
        files[split] = str(file)
    slots = study.config.corpora[name].slots
    return {"files": files, "slots": slots} | {role: role for role in texts}


def config_of_rates(study: Plan, models: dict[str, Any], folder: Path) -> Config:
    """Return a config that trains the original models' probes on each task with each rate."""
    tasks: dict[str, Any] = {}
    for name, task in study.config.tasks.items():
        labels = read_facts(study.data(task.corpus).path)["labels"][name]["names"]
        for rate in RATES:
            tasks[task_of(name, rate)] = {
                "corpus": task.corpus,
                "label": name,
                "labels": labels,
                "metric": task.metric,
                "learning_rate": rate,
                "batch_size": task.batch_size,
                "epochs": task.epochs,
            }
    run = {"models": list(models), "tasks": list(tasks), "fractions": ["1"], "seeds": [SEED]}
    corpora = {name: write_corpus(study, name, folder) for name in study.config.corpora_run}
    return config_of(
        {
            "name": "rates",
            "run": run,
            "models": models,
            "corpora": corpora,
            "tasks": tasks,
            "floors": [],
            "resamples": 0,
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the probes, and print the scores of each task and the best rate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("config", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for all files")
    parser.add_argument("--model", help="the folder of the model, if not as in the config")
    parser.add_argument("--mirror", help="a folder laid out like the hub")
    options = parser.parse_args(arguments)
    source = yaml.safe_load(options.config.read_text(encoding="utf-8"))
    if options.mirror:
        source["hub_mirror"] = options.mirror
    if options.model:
        source["models"] = {name: {"path": options.model} for name in source["models"]}
    splits = options.work / "splits"
    splits.mkdir(parents=True, exist_ok=True)
    (options.work / "source.yaml").write_text(yaml.safe_dump(source), encoding="utf-8")
    study = Plan(read_config(options.work / "source.yaml"), options.work / "results/source")
    results = options.work / "results/rates"
    run_here(Plan(config_of_rates(study, source["models"], splits), results))
    runs = read_table(results / "tables/runs.parquet").to_pandas()
    whole = runs[runs["main"] & runs["subset"].eq("all")]
    score_of = whole.set_index("task", verify_integrity=True)["score"]
    print("| task | " + " | ".join(f"{rate:g}" for rate in RATES) + " | chosen |")
    print("|---|" + "--:|" * (len(RATES) + 1))
    for name in study.config.tasks:
        scores = {rate: float(score_of[task_of(name, rate)]) for rate in RATES}
        best = max(RATES, key=lambda rate: (scores[rate], -rate))
        cells = " | ".join(f"{score:.4f}" for score in scores.values())
        print(f"| {name} | {cells} | {best:g} |")


if __name__ == "__main__":
    main()
