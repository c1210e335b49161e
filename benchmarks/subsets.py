"""Which words and texts rely on attention that depends on the input? From a finished study with labels.

    python benchmarks/subsets.py results/NAME TASK

Every head is replaced by its average. Prints a Markdown table of what is lost on each quarter of the validation texts,
from the shortest to the longest, in tokens. If words have one label each, three rows follow: words with several labels
in training, words with one, and words that are not in training, all in lower case.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from papa.data.tokens import Tokens
from papa.files import read_facts, read_table
from papa.plan.study import read_plan
from papa.results.outcomes import ORIGINALS, Setting, TaskOutcomes, outcomes_in
from papa.results.phrases import reliance_text
from papa.results.reliance import RELIANCE, effect_of

QUARTERS = ("shortest", "second", "third", "longest")
AVERAGES = Setting("average", None, "0")


def by_length(outcomes: TaskOutcomes, lengths: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield quarters of the texts, whose lengths are `[text]`, each with the mask `[item]` of its texts.

    Texts of one length are in one quarter, so quarters only have about the same number of texts.
    """
    quarter = np.searchsorted(np.quantile(lengths, (0.25, 0.5, 0.75)), lengths)
    of_item = quarter[outcomes.items["example"].to_numpy(int)]
    for number, name in enumerate(QUARTERS):
        of_these = lengths[quarter == number]
        yield (
            f"{name} quarter of texts ({of_these.min()} to {of_these.max()} tokens)",
            of_item == number,
        )


def by_labels(
    outcomes: TaskOutcomes, train: pd.DataFrame, words: pd.Series, label: str
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield kinds of words, by the labels that they have in training, each with its mask `[item]`."""
    seen = train[["words", label]].explode(["words", label])
    labels = seen[label].groupby(seen["words"].str.lower()).nunique()
    items = outcomes.items
    own = [
        words.iloc[example][word].lower()
        for example, word in items[["example", "word"]].to_numpy(int)
    ]
    number = labels.reindex(own).fillna(0).to_numpy(int)
    yield "words with several labels in training", number > 1
    yield "words with one label", number == 1
    yield "words that are not in training", number == 0


def table(results: Path, task: str) -> Iterator[str]:
    """Yield the lines of the table."""
    plan = read_plan(results)
    path = results / "tables/outcomes.parquet"
    [outcomes] = (
        each for each in outcomes_in(read_table(path), read_facts(path)) if each.task == task
    )
    corpus = plan["config"]["tasks"][task]["corpus"]
    [laid_out] = (
        each["path"]
        for each in plan["artefacts"]
        if each["stage"] == "tokenize" and each["about"]["corpus"] == corpus
    )
    tokens = Tokens.read(results / laid_out, "validation")["validation"]
    kinds = [*by_length(outcomes, np.diff(tokens.offsets.numpy()))]
    if outcomes.metric == "token_accuracy":
        texts = read_table(results / plan["data"][corpus]).to_pandas()
        train, validation = (texts[texts["split"] == split] for split in ("train", "validation"))
        kinds += by_labels(outcomes, train, validation["words"], f"label {task}")
    yield "| part | texts or words | original | averages | context-free | points lost | contributed | reliance |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for kind, mask in kinds:
        sample = outcomes.sample(outcomes.metric, mask)
        effect = effect_of(sample, AVERAGES)
        assert effect is not None
        lost = 100 * np.array(effect.lost()[:3])
        contributed = 100 * np.array(effect.contributed()[:3])
        scores = [sample.mean(ORIGINALS), sample.mean(AVERAGES), sample.floor]
        cells = [f"{mask.sum():,}", *(f"{score:.3f}" for score in scores)]
        for value, low, high in (lost, contributed):
            cells.append(f"{value:z.1f} ({low:z.1f} to {high:z.1f})")
        share = reliance_text(dict(zip(RELIANCE, effect.reliance(), strict=True)))
        cells.append(share if contributed[1] > 0 else "-")
        yield f"| {kind} | {' | '.join(cells)} |"


if __name__ == "__main__":
    print(*table(Path(sys.argv[1]), sys.argv[2]), sep="\n")
