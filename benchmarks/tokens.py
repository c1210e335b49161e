"""Which tokens of a decoder rely on attention that depends on the input? From the outcomes of a finished study.

    python benchmarks/tokens.py results/NAME [ID]

Every head is replaced by its average. Prints a Markdown table of what is lost on tokens that are new in their text, on
those that occurred before in it, on those that complete a pair of tokens that occurred before, and on the tokens of
each quarter of the slots, for each model and task that predicts next tokens. Two differences in reliance follow,
against the best floor, with bootstrap intervals over texts. Tokens of this ID, such as that of <unk>, are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from papa.config.measures import MEASURES, NEXT
from papa.data.tokens import Tokens
from papa.files import read_facts, read_table
from papa.plan.study import read_plan
from papa.results.outcomes import ORIGINALS, Setting, TaskOutcomes, outcomes_in
from papa.results.phrases import reliance_text
from papa.results.reliance import RELIANCE, effect_of

QUARTERS = 4
DRAWS = 2000
AVERAGES = Setting("average", None, "0")


def repeated(tokens: Tokens, values: np.ndarray) -> np.ndarray:
    """Return for each token whether its value `[token]` occurred before in its text, bool `[token]`."""
    again = np.ones(len(values), bool)
    for begin, end in zip(tokens.offsets[:-1].tolist(), tokens.offsets[1:].tolist(), strict=True):
        again[begin + np.unique(values[begin:end], return_index=True)[1]] = False
    return again


def kinds(
    outcomes: TaskOutcomes, tokens: Tokens, left_out: int | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield kinds of predicted tokens, each with its mask `[item]`."""
    position = outcomes.items["position"].to_numpy()
    place = tokens.offsets.numpy()[outcomes.items["example"]] + position
    ids = tokens.ids.numpy().astype(np.int64)
    pairs = np.stack([np.roll(ids, 1), ids], axis=1)
    _, pair = np.unique(pairs, axis=0, return_inverse=True)
    used = ids[place] != (-1 if left_out is None else left_out)
    again = repeated(tokens, ids)[place]
    # the first token of a text has no pair, and is never predicted
    completed = repeated(tokens, pair)[place]
    yield "all", used
    yield "new in the text", used & ~again
    yield "occurred before", used & again
    yield "complete a repeated pair", used & completed
    for number in range(QUARTERS):
        begin, end = (tokens.n * edge // QUARTERS for edge in (number, number + 1))
        yield f"slots {begin} to {end - 1}", used & (begin <= position) & (position < end)


def difference(outcomes: TaskOutcomes, first: np.ndarray, second: np.ndarray) -> str:
    """Return the reliance on tokens of the second mask minus that of the first, with its 95% interval over texts."""
    runs = outcomes.settings()
    loss = outcomes.values["loss"]
    floor = outcomes.sample(outcomes.metric, first | True).floor_settings[0]
    original, *others = (loss[runs[each][0]] for each in (ORIGINALS, AVERAGES, floor))
    # the texts of a cluster, such as an article, are drawn together
    text = outcomes.items["cluster" if "cluster" in outcomes.items else "example"].to_numpy(int)
    texts = text.max() + 1
    drops = [
        [np.bincount(text[mask], (each - original)[mask], texts) for each in others]
        for mask in (first, second)
    ]
    drawn = np.random.default_rng(0).integers(texts, size=(DRAWS, texts))

    def between(chosen: np.ndarray) -> np.ndarray:
        reliance = [
            averages[chosen].sum(-1) / largest[chosen].sum(-1) for averages, largest in drops
        ]
        return 100 * (reliance[1] - reliance[0])

    with np.errstate(invalid="ignore"):  # no attention contributes to some kinds of tokens
        measured = between(np.arange(texts))
        (low, high) = np.percentile(between(drawn), [2.5, 97.5])
    return "-" if np.isnan(measured) else f"{measured:.1f} points ({low:.1f} to {high:.1f})"


def tokens_of(results: Path, outcomes: TaskOutcomes) -> Tokens:
    """Return the validation tokens of a task of a study."""
    plan = read_plan(results)
    laid_out = {
        (each["about"]["model"], each["about"]["corpus"]): results / each["path"]
        for each in plan["artefacts"]
        if each["stage"] == "tokenize"
    }
    corpus = plan["config"]["tasks"][outcomes.task]["corpus"]
    return Tokens.read(laid_out[outcomes.model, corpus], "validation")["validation"]


def table(results: Path, left_out: int | None = None) -> Iterator[str]:
    """Yield the lines of the table."""
    path = results / "tables/outcomes.parquet"
    head = "model task tokens number original averages context-free lost contributes reliance"
    yield f"| {' | '.join(head.split())} |"
    yield "|---|---|---" + "|--:" * 7 + "|"
    for outcomes in outcomes_in(read_table(path), read_facts(path)):
        if MEASURES[outcomes.metric].target is not NEXT:
            continue
        masks = dict(kinds(outcomes, tokens_of(results, outcomes), left_out))
        for kind, mask in masks.items():
            if mask.any():
                sample = outcomes.sample(outcomes.metric, mask)
                effect = effect_of(sample, AVERAGES)
                assert effect is not None
                scores = (sample.mean(ORIGINALS), sample.mean(AVERAGES), sample.floor)
                cells = [f"{int(mask.sum()):,}", *(f"{score:.3f}" for score in scores)]
                for value, low, high, _ in (effect.lost(), effect.contributed()):
                    cells.append(f"{value:.3f} ({low:.3f} to {high:.3f})")
                cells.append(reliance_text(dict(zip(RELIANCE, effect.reliance(), strict=True))))
                yield f"| {outcomes.model} | {outcomes.task} | {kind} | {' | '.join(cells)} |"
        _, new, again, _, *quarters = masks.values()
        for kind, pair in {
            "occurred before, minus new": (new, again),
            "second quarter, minus first": quarters[:2],
        }.items():
            yield f"| {outcomes.model} | {outcomes.task} | {kind} | | | | | | | {difference(outcomes, *pair)} |"


if __name__ == "__main__":
    print(*table(Path(sys.argv[1]), *map(int, sys.argv[2:])), sep="\n")
