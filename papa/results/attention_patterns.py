"""The pattern of each head's average attention, as a table and as pictures (paper, Sec. 5.1 and Figure 4).

A head is diagonal, mostly on special tokens, or concentrated. The paper identifies such heads by eye and gives no
formulas; these are ours. All of them use

    S[q,k] = sum[q,k] / count[q,q],

the share of query slot q's attention that goes to key slot k, averaged over the examples that use slot q. S[q,k] equals
the constant C[q,k] times the share of these examples that also use slot k. So each row of S is a distribution, even if
examples differ in length. A mean over rows is a mean over the tokens of the corpus: row q has weight count[q,q].
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from papa.config.variant import Constant
from papa.data.tokens import Tokens, TokensFile
from papa.errors import InputError, count
from papa.files import PathLike
from papa.method.averages import Constants
from papa.method.pictures import pictures
from papa.results.finished import Finished
from papa.results.section import Section
from papa.results.table import Table, percent
from papa.stages import AnyJob

Measures = dict[str, float | None]
"""The measures and patterns of a head, by column."""

OFFSETS = (-2, -1, 0, 1, 2)
"""Offsets of diagonals, query slot - key slot: 1 is attention to the previous token, -1 to the next."""

COLUMNS = dict.fromkeys(("layer", "head", "offset"), "int64")
COLUMNS |= dict.fromkeys(
    ("diagonal_lift", "diagonal_mass", "first_mass", "separator_mass", "special_mass"), "float64"
)
COLUMNS |= {"dominant_rows": "float64"} | dict.fromkeys(
    ("diagonal", "mostly_special", "concentrated"), "bool"
)

THRESHOLDS = {
    "diagonal_lift": 2.0,
    "special_mass": 0.5,
    "dominant_entry": 0.5,
    "dominant_rows": 0.5,
}
"""The thresholds of the patterns of a head; see `measure_patterns`."""

SPECIAL_SAMPLE_SIZE = 1000
"""The number of training examples that determine the slots of special tokens."""

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


def patterns_of(averages: AnyJob, heads: Sequence[tuple[int, int]] | None = None) -> Section:
    """Measure all heads of `averages`, and draw some of them (Figure 4), by default those of the paper."""
    model = averages.about["model"]
    corpus = averages.about["corpus"]
    constants = Constants.load(averages.output)
    layers, per_layer = constants.sum.shape[:2]
    shown = [head for head in heads or PAPER_HEADS if head[0] < layers and head[1] < per_layer]
    shown = shown or [(0, 0)]
    special = special_slots_of(averages.reads["tokens"])
    rows = pd.DataFrame(measure_patterns(constants, special), dtype=object)
    shares = [{"layer": str(layer)} | _shares(layered) for layer, layered in rows.groupby("layer")]
    of_all = _shares(rows)
    in_words = ", ".join(f"{share} {words}" for words, share in of_all.items())
    by_layer = pd.DataFrame([*shares, {"layer": "all"} | of_all])
    return Section(
        f"patterns-{model}-{corpus}",
        f"Patterns of averaged attention, {model}, {corpus}",
        rows,
        COLUMNS,
        [
            Table("Share of heads", by_layer, 1, rules=(len(shares),)),
            Table("Heads", rows.map(_cell).rename(columns=lambda name: name.replace("_", " ")), 2),
        ],
        NOTE,
        {"examples": constants.examples, "special": special, "thresholds": THRESHOLDS},
        pictures(constants, shown),
        f"Average attention of {count(len(shown), 'head')}. Of all {count(len(rows), 'head')}: {in_words}",
        in_report=False,  # the report shows the matrix of every head
    )


def patterns(finished: Finished) -> list[Section]:
    """Return a section for each model and corpus whose patterns the config asks for."""
    config = finished.config
    asked = config.patterns
    if asked is None:
        return []
    corpora = dict.fromkeys(
        (model, config.tasks[task].corpus) for model, task in config.pairs if task in asked.tasks
    )
    averages = [finished.averages(*names, Constant("average")) for names in corpora]
    return [patterns_of(job, asked.heads) for job in averages if job]


def measure_patterns(constants: Constants, special: list[int]) -> list[Measures]:
    """Measure the patterns of each head, by layer and head, with the names in `COLUMNS` (Sec. 5.1).

    A head may have several patterns.

    - `diagonal`: among text tokens, one diagonal receives at least `diagonal_lift` times an even share of attention.
      lift(o) = mean of C[q,q-o] / mean of E[q], both over the text slots q for which q-o is also a text slot, weighted
      by count[q,q-o]. E[q] = sum of sum[q,k] / sum of count[q,k] over text keys k: the attention to each key if row q
      spread its attention to text evenly. `diagonal_lift` is the highest lift over all `OFFSETS` o, `offset` is its o
      (of equal lifts, the o closest to 0), and `diagonal_mass` is the mean of C[q,q-o]. All three are null if text
      receives no attention or has no such slots. A head that attends almost only to `[CLS]` can still be diagonal in
      its remaining attention; `diagonal_mass` shows how small that is.
    - `mostly_special`: the mean over rows of S[q,k], summed over special k, exceeds `special_mass`. The column
      `special_mass` is this sum, `first_mass` is its share in slot `special[0]`, and `separator_mass` is the rest.
    - `concentrated`: the share of rows with an entry of S above `dominant_entry` exceeds `dominant_rows`. The column
      `dominant_rows` is this share.
    """
    counts = constants.count.double()
    used = counts.diagonal().nonzero().flatten()  # slots that contain a token in some example
    if not len(used):
        raise InputError(
            "These constants are averages over no tokens; average the attention of a corpus."
        )
    if len(set(special)) < len(special) or not set(special) <= set(used.tolist()):
        raise InputError(
            f"The special slots are {special}; give each once, and only slots that contain tokens "
            f"({len(used)} of {constants.n}, from {int(used[0])} to {int(used[-1])})."
        )
    rows = []
    for layer, heads in enumerate(constants.sum):
        for head, total in enumerate(heads.double()):
            measures = _measure_head(total, counts, special)
            rows.append({"layer": layer, "head": head} | measures)
    return rows


def _measure_head(total: Tensor, counts: Tensor, special: list[int]) -> Measures:
    """Return the measures and the patterns of a head by column; `total` and `counts` are as in `_diagonal`."""
    slots = len(counts)
    used = counts.diagonal().nonzero().flatten()
    weight = counts.diagonal()[used]
    shares = total[used][:, used] / weight[:, None]  # S over used slots [query, key]
    mass = torch.zeros(slots, dtype=torch.double)
    mass[used] = weight @ shares / weight.sum()  # mean over rows [key]
    first = float(mass[special[:1]].sum())  # 0 without special tokens
    on_special = float(mass[special].sum())
    dominant = shares.amax(1) > THRESHOLDS["dominant_entry"]
    dominant_rows = float(weight @ dominant.double() / weight.sum())
    text = torch.tensor(sorted(set(range(slots)) - set(special)), dtype=torch.long)
    diagonal = _diagonal(total, counts, text)
    lift = diagonal["diagonal_lift"]
    return diagonal | {
        "first_mass": first,
        "separator_mass": on_special - first,
        "special_mass": on_special,
        "dominant_rows": dominant_rows,
        "diagonal": lift is not None and lift >= THRESHOLDS["diagonal_lift"],
        "mostly_special": on_special > THRESHOLDS["special_mass"],
        "concentrated": dominant_rows > THRESHOLDS["dominant_rows"],
    }


def _diagonal(total: Tensor, counts: Tensor, text: Tensor) -> Measures:
    """Return offset, lift and mean attention of a head's diagonal with the highest lift; see `measure_patterns`.

    `total` and `counts` are float64 `[query, key]`, and `text` has the slots without special tokens.
    """
    # a row without text keys has a sum of 0, too
    even = total[:, text].sum(1) / counts[:, text].sum(1).clamp(min=1)  # E [query]
    best: Measures = dict.fromkeys(("offset", "diagonal_lift", "diagonal_mass"))
    highest = -1.0
    for offset in sorted(OFFSETS, key=abs):
        queries = text[torch.isin(text - offset, text)]
        weight = counts[queries, queries - offset]
        attention = total[queries, queries - offset].sum()
        spread = weight @ even[queries]
        if spread > 0:
            lift = float(attention / spread)
            # rounding must not decide between equal lifts
            if lift > highest * (1 + 1e-9):
                highest = lift
                mass = float(attention / weight.sum())
                best = {"offset": offset, "diagonal_lift": lift, "diagonal_mass": mass}
    return best


def special_slots(tokens: Tokens) -> list[int]:
    """Return the slots with a special token in every example, in ascending order: that of `[CLS]`, then separators.

    A token is special if all examples that use the first slot, or the last one, have it there. Separators between two
    texts are the same tokens. So a slot is special if every example has one of these tokens in it.
    """
    ends = [tokens.ids[tokens.slots == slot].unique() for slot in (0, tokens.n - 1)]
    # texts of a decoder may end in any token
    known = [int(ids) for ids in ends if len(ids) == 1]
    special = torch.isin(tokens.ids, torch.tensor(known, dtype=tokens.ids.dtype))
    examples = torch.bincount(tokens.slots[special], minlength=tokens.n)
    return (examples == len(tokens)).nonzero().flatten().tolist()


def special_slots_of(tokens: PathLike) -> list[int]:
    """Return the slots that hold special tokens in all of the first training examples of a tokens file."""
    with TokensFile.opened(tokens) as file:
        first = file.extent("train").first
        blocks = [block for _, block in file.between(first, first + SPECIAL_SAMPLE_SIZE)]
    training = [block for block in blocks if block.split == "train" and len(block)]
    return sorted(set.intersection(*(set(special_slots(block)) for block in training)))


def _shares(rows: pd.DataFrame) -> dict[str, str]:
    return {words: percent(rows[flag].mean()) for flag, words in FLAGS.items()}


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.2f}"
    return "-" if value is None else str(value)
