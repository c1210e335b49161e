"""What the averaged attention of each head looks like, as a table and as pictures (paper, Sec. 5.1 and Figure 4)."""

from __future__ import annotations

from dataclasses import asdict

import pandas as pd

from papa.config.stages import PatternsOf
from papa.config.study import Job
from papa.data.tokens import Tokens
from papa.errors import InputError, count
from papa.files import write_table
from papa.method.averages import ConstantMatrices
from papa.method.patterns import COLUMNS, THRESHOLDS, measure_patterns, special_slots
from papa.results.figures import draw_patterns
from papa.results.table import Table, write_pages

PAPER_HEADS = ((0, 11), (4, 4), (6, 3))
"""(layer, head) of RoBERTa BASE in the paper's Figure 4, counted from 0."""

FLAGS = {
    "diagonal": "diagonal",
    "mostly_special": "mostly on special tokens",
    "concentrated": "with one dominant entry per row",
}
"""Patterns, and what people call them."""

NOTE = (
    "Measured on the average of each head; a head may have several patterns. Diagonal: a band of text tokens gets at "
    "least {diagonal_lift:g} times an even share. Mostly on special tokens: over {special_mass:g} of the attention. "
    "One dominant entry per row: over {dominant_entry:g} of the attention, in over {dominant_rows:g} of the rows."
).format(**asdict(THRESHOLDS))


def describe_patterns(job: Job[PatternsOf]) -> str:
    """Stage *patterns*: measure every head of an average, and draw some heads.

    Args:
        job: reads `constants` and `tokens`, the laid-out tokens that the attention was averaged over, which say which
            slots are special; writes Parquet, Markdown, LaTeX, SVG, PNG and HTML.

    Returns:
        The share of heads with each pattern, for the terminal.

    Raises:
        InputError: the tokens are of another model, corpus or layout, or there are no such heads to draw.
    """
    import pyarrow as pa

    averages = ConstantMatrices.load(job.input("constants"))
    train = Tokens.read(job.input("tokens"), "train")["train"]
    for name in ("model", "corpus", "style", "segments", "slots"):
        averaged, laid_out = averages.about.get(name), str(train.provenance.get(name))
        if averaged is not None and averaged != laid_out:
            raise InputError(
                f"{job.input('constants')} was averaged over tokens with {name} {averaged}, but {job.input('tokens')} "
                f"has {laid_out}; give the tokens that it was averaged over."
            )
    special = special_slots(train)
    rows = measure_patterns(averages, special)
    draw_patterns(averages, job.settings.heads or PAPER_HEADS, job.settings.plots, job.outputs)
    facts = {"constants": averages.about, "examples": averages.examples, "special": special}
    facts |= {"thresholds": asdict(THRESHOLDS)}
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(COLUMNS.items())))
    write_table(table, job.output("table"), {"table": "patterns"} | facts, job.trace())
    frame = pd.DataFrame(rows, dtype=object)
    title = f"Patterns of averaged attention, {averages.about.get('model', 'model')}"
    write_pages(title, tables_of(frame), NOTE, job.output("markdown"), job.output("latex"))
    return f"{count(len(rows), 'head')}: " + ", ".join(
        f"{_share(frame[flag])} {words}" for flag, words in FLAGS.items()
    )


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """The share of heads with each pattern, by layer and over all, and what was measured of each head."""
    shares = [{"layer": str(layer)} | _shares(own) for layer, own in frame.groupby("layer")]
    heads = frame.map(_cell).rename(columns=lambda name: name.replace("_", " "))
    return [
        Table("Share of heads", pd.DataFrame([*shares, {"layer": "all"} | _shares(frame)]), 1, rules=(len(shares),)),
        Table("Heads", heads, 2),
    ]


def _shares(frame: pd.DataFrame) -> dict[str, str]:
    return {words: _share(frame[flag]) for flag, words in FLAGS.items()}


def _share(flags: pd.Series[bool]) -> str:
    return f"{100 * flags.mean():.0f} %"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
