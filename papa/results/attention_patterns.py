"""The pattern of each head's average attention, as a table and as pictures (paper, Sec. 5.1 and Figure 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from papa.data.tokens import Tokens
from papa.errors import count
from papa.method.averages import Constants
from papa.method.patterns import COLUMNS, THRESHOLDS, measure_patterns, special_slots
from papa.method.pictures import pictures
from papa.plan.jobs import AnyJob, Tokenize
from papa.results.phrases import percent
from papa.results.section import Section
from papa.results.table import Table

if TYPE_CHECKING:
    from papa.results.finished import Finished

PAPER_HEADS = ((0, 11), (4, 4), (6, 3))
"""The heads (layer, head) of RoBERTa BASE in the paper's Figure 4, counted from 0."""

FLAGS = {
    "diagonal": "diagonal",
    "mostly_special": "mostly on special tokens",
    "concentrated": "with one dominant entry per row",
}
"""The wording of each pattern."""

NOTE = (
    "Measured on each head's average attention; a head may have several patterns. Diagonal: a band of text tokens gets "
    "at least {diagonal_lift:g} times an even share. Mostly on special tokens: over {special_mass:g} of the attention. "
    "One dominant entry per row: over {dominant_entry:g} of the attention, in over {dominant_rows:g} of the rows."
).format(**THRESHOLDS)


def patterns_of(averages: AnyJob, tokens: AnyJob, heads: Sequence[tuple[int, int]]) -> Section:
    """Measure all heads of `averages`, and draw some of them (Figure 4).

    The `tokens` show which slots hold special tokens.
    """
    model, corpus = averages.about["model"], averages.about["corpus"]
    constants = Constants.load(averages.output)
    special = special_slots(Tokens.read(tokens.output, "train")["train"])
    rows = pd.DataFrame(measure_patterns(constants, special), dtype=object)
    shares = [{"layer": str(layer)} | _shares(of_layer) for layer, of_layer in rows.groupby("layer")]
    cells = rows.map(_cell).rename(columns=lambda name: name.replace("_", " "))
    of_all = ", ".join(f"{share} {words}" for words, share in _shares(rows).items())
    sentence = f"{count(len(rows), 'head')}: {of_all}"
    return Section(
        f"patterns-{model}-{corpus}",
        f"Patterns of averaged attention, {model}, {corpus}",
        rows,
        COLUMNS,
        [
            Table("Share of heads", pd.DataFrame([*shares, {"layer": "all"} | _shares(rows)]), 1, rules=(len(shares),)),
            Table("Heads", cells, 2),
        ],
        NOTE,
        {"examples": constants.examples, "special": special, "thresholds": THRESHOLDS},
        pictures(constants, heads),
        f"Average attention of {count(len(heads), 'head')}. Of all {sentence}",
        sentence=sentence,
        in_report=False,  # the report shows the matrix of every head
    )


def patterns(finished: Finished) -> list[Section]:
    """Return a section for each model and corpus whose patterns the config asks for."""
    config, asked = finished.config, finished.config.patterns
    if asked is None:
        return []
    corpora = [(model, config.tasks[task].corpus) for model, task in config.pairs if task in asked.tasks]
    wanted = {(model, corpus, config.corpora[corpus].slots, "average") for model, corpus in corpora}
    return [
        patterns_of(job, tokens_of(finished, job), asked.heads or PAPER_HEADS)
        for job in finished.of_stage("average")
        if tuple(job.about[name] for name in ("model", "corpus", "slots", "kind")) in wanted
    ]


def tokens_of(finished: Finished, averages: AnyJob) -> AnyJob:
    """Return the job of the tokens that were averaged."""
    about = {name: averages.about[name] for name in ("model", "corpus")}
    slots = averages.about["slots"]
    jobs = finished.of_stage("tokenize", **about)
    return next((job for job in jobs if isinstance(job.settings, Tokenize) and job.settings.slots == slots), jobs[0])


def _shares(rows: pd.DataFrame) -> dict[str, str]:
    return {words: percent(rows[flag].mean()) for flag, words in FLAGS.items()}


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
