"""Which named entities rely on attention that depends on the input? From the predictions of a finished study.

    python benchmarks/entities.py results/NAME TASK

Every head is replaced by its average. An entity is *known* if its words, in lower case, are an entity of the training
texts. Prints a Markdown table of the recall of known and new entities of the validation texts, with bootstrap intervals
over clusters of texts of what is lost, and of the difference between new and known ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from seqeval.metrics.sequence_labeling import get_entities

from papa.files import read_facts, read_table
from papa.plan.study import read_plan
from papa.results.outcomes import ORIGINALS, Setting, TaskOutcomes, outcomes_in

AVERAGES = Setting("average", None, "0")
DRAWS = 2000


def spans(labels: list[str]) -> set[tuple[int, int, str]]:
    """Return the entities of a sentence: begin, end and type."""
    return {(begin, last + 1, kind) for kind, begin, last in get_entities(labels)}


def entities(outcomes: TaskOutcomes, words: list[list[str]], known: set[str]) -> pd.DataFrame:
    """Return a row for each validation entity: its cluster, whether it is known, and the share of runs that find it."""
    items = outcomes.items
    settings = outcomes.settings()
    floor = outcomes.sample(outcomes.metric, np.ones(len(items), bool)).floor_settings[0]
    chosen = {"original": ORIGINALS, "averages": AVERAGES, "context-free": floor}
    names = np.array(outcomes.names)
    rows = []
    for example, group in items.groupby("example", sort=True):
        places = group.index.to_numpy()
        gold = spans(names[group["gold"].to_numpy(int)].tolist())
        found = {
            name: [
                spans(names[outcomes.values["predicted"][run][places].astype(int)].tolist())
                for run in settings[setting]
            ]
            for name, setting in chosen.items()
        }
        of_text = [words[example][word] for word in group["word"]]
        for entity in sorted(gold):
            text = " ".join(of_text[entity[0] : entity[1]]).lower()
            shares = {
                name: np.mean([entity in run for run in runs]) for name, runs in found.items()
            }
            rows.append({"cluster": group["cluster"].iloc[0], "known": text in known, **shares})
    return pd.DataFrame(rows)


def between(rows: pd.DataFrame, drawn: np.ndarray) -> dict[str, np.ndarray]:
    """Return what is lost, in points of recall, on known and on new entities, and its difference, for each draw."""
    lost = {}
    for kind, known in (("known", True), ("new", False)):
        chosen = rows[rows["known"] == known]
        difference = 100 * (chosen["original"] - chosen["averages"])
        clusters = drawn.max() + 1
        sums = np.bincount(chosen["cluster"], difference, clusters)
        counts = np.bincount(chosen["cluster"], minlength=clusters)
        lost[kind] = sums[drawn].sum(1) / counts[drawn].sum(1)
    return lost | {"new, minus known": lost["new"] - lost["known"]}


def table(results: Path, task: str) -> Iterator[str]:
    """Yield the lines of the table."""
    plan = read_plan(results)
    path = results / "tables/outcomes.parquet"
    [outcomes] = (
        each for each in outcomes_in(read_table(path), read_facts(path)) if each.task == task
    )
    settings = plan["config"]["tasks"][task]
    texts = read_table(results / plan["data"][settings["corpus"]]).to_pandas()
    train, validation = (texts[texts["split"] == split] for split in ("train", "validation"))
    names = np.array(outcomes.names)
    known = {
        " ".join(words[begin:end]).lower()
        for words, labels in zip(train["words"], train[f"label {task}"], strict=True)
        for begin, end, _ in spans(names[labels].tolist())
    }
    rows = entities(outcomes, validation["words"].tolist(), known)
    rows["cluster"] = rows["cluster"].factorize()[0]
    clusters = rows["cluster"].max() + 1
    chance = np.random.default_rng(0)
    measured = between(rows, np.arange(clusters)[None])
    draws = between(rows, chance.integers(clusters, size=(DRAWS, clusters)))
    yield "| entities | number | original | averages | context-free | points lost |"
    yield "|---|--:|--:|--:|--:|--:|"
    for kind, lost in measured.items():
        low, high = np.percentile(draws[kind], [2.5, 97.5])
        chosen = rows[rows["known"] == (kind == "known")]
        cells = [f"{len(chosen):,}"]
        cells += [f"{chosen[name].mean():.3f}" for name in ("original", "averages", "context-free")]
        cells = ["", "", "", ""] if "minus" in kind else cells
        yield f"| {kind} | {' | '.join(cells)} | {lost[0]:.1f} ({low:.1f} to {high:.1f}) |"


if __name__ == "__main__":
    print(*table(Path(sys.argv[1]), sys.argv[2]), sep="\n")
