"""The pattern of each head's average attention, as a table and as pictures (paper, Sec. 5.1 and Figure 4)."""

from __future__ import annotations

import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf
from papa.data.tokens import Tokens
from papa.errors import InputError, count
from papa.method.averages import Constants
from papa.method.patterns import COLUMNS, THRESHOLDS, measure_patterns, special_slots
from papa.method.pictures import pictures
from papa.results.analysis import Analysis, Computed, Drawing
from papa.results.phrases import percent
from papa.results.table import Table

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


class AttentionPatterns(Analysis):
    """Measure the pattern of each head's average attention, and draw some heads, by default those of the paper."""

    columns = COLUMNS
    title_text = "Patterns of averaged attention"
    note_text = NOTE
    in_report = False  # the report shows the matrix of every head

    heads: tuple[tuple[int, int], ...] = PAPER_HEADS

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Measure the heads of the averages `constants`; the `tokens` show which slots hold special tokens."""
        averages = Constants.load(job.input("constants"))
        train = Tokens.read(job.input("tokens"), "train")["train"]
        for name in ("model", "corpus", "style", "slots"):
            averaged, laid_out = averages.about.get(name), str(train.provenance.get(name))
            if averaged is not None and averaged != laid_out:
                raise InputError(
                    f"{job.input('constants')} was averaged over tokens with {name} {averaged}, but "
                    f"{job.input('tokens')} has {laid_out}; pass the tokens that it was averaged over."
                )
        special = special_slots(train)
        facts = {"table": "patterns", "constants": averages.about, "examples": averages.examples, "special": special}
        rows = pd.DataFrame(measure_patterns(averages, special), dtype=object)
        title = f"{self.heading()}, {averages.about.get('model', 'model')}"
        return Computed(rows, facts | {"thresholds": THRESHOLDS}, title=title)

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Return the share of heads with each pattern, by layer and over all layers, and the values of each head."""
        shares = [{"layer": str(layer)} | _shares(heads) for layer, heads in rows.groupby("layer")]
        heads = rows.map(_cell).rename(columns=lambda name: name.replace("_", " "))
        return [
            Table("Share of heads", pd.DataFrame([*shares, {"layer": "all"} | _shares(rows)]), 1, rules=(len(shares),)),
            Table("Heads", heads, 2),
        ]

    def drawing(self, rows: pd.DataFrame, job: Job[AnalysisOf]) -> Drawing:
        """Draw the average attention of some heads (Figure 4); raise `InputError` if a head does not exist."""
        averages = Constants.load(job.input("constants"))
        chart = pictures(averages, self.heads)
        return Drawing(chart, f"Average attention of {count(len(self.heads), 'head')}. Of all {self.sentence(rows)}")

    def sentence(self, rows: pd.DataFrame) -> str:
        shares = ", ".join(f"{share} {words}" for words, share in _shares(rows).items())
        return f"{count(len(rows), 'head')}: {shares}"


def _shares(rows: pd.DataFrame) -> dict[str, str]:
    return {words: percent(rows[flag].mean()) for flag, words in FLAGS.items()}


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
