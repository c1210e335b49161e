"""What the average attention of each head looks like: diagonal, on special tokens, concentrated (paper, Sec. 5.1).

The paper counts such heads by eye and gives no formulas; these are ours. All of them look at

    S[q,k] = sum[q,k] / count[q,q],

the share of its attention that query slot q spends on key slot k, averaged over the examples that use slot q. It is the
constant C[q,k] times how often k holds a token when q does, so each row of S is a distribution, whatever the lengths of
the examples are, and a key that is rarely there has the weight that it really had. A mean over rows is a mean over the
tokens of the corpus: row q counts count[q,q] times, and slots that no example uses are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.files import PathLike, write_table
from papa.method.averages import ConstantMatrices
from papa.results.analyses import write_pages
from papa.results.latex import Part

OFFSETS = (-2, -1, 0, 1, 2)
"""Diagonals that are tried: query slot - key slot; 1 looks at the token before, -1 at the next one."""
DIAGONAL_LIFT = 2.0
SPECIAL_MASS = 0.5
DOMINANT_ENTRY = 0.5
DOMINANT_ROWS = 0.5

FLAGS = {
    "diagonal": "diagonal",
    "mostly_special": "mostly on special tokens",
    "concentrated": "with one dominant entry per row",
}
"""Patterns, and how people say them."""

NOTE = (
    "Measured on the average of each head; patterns overlap. Diagonal: a band of text tokens gets at least "
    "{diagonal_lift:g} times an even share. Mostly on special tokens: over {special_mass:g} of the attention. One "
    "dominant entry per row: over {dominant_entry:g} of the attention, in over {dominant_rows:g} of the rows."
)

COLUMNS = {
    "layer": "int64",
    "head": "int64",
    "offset": "int64",
    "diagonal_lift": "float64",
    "diagonal_mass": "float64",
    "first_mass": "float64",
    "separator_mass": "float64",
    "special_mass": "float64",
    "dominant_rows": "float64",
    "diagonal": "bool",
    "mostly_special": "bool",
    "concentrated": "bool",
}


def measure_patterns(
    constants: ConstantMatrices,
    special: Sequence[int],
    *,
    diagonal_lift: float = DIAGONAL_LIFT,
    special_mass: float = SPECIAL_MASS,
    dominant_entry: float = DOMINANT_ENTRY,
    dominant_rows: float = DOMINANT_ROWS,
) -> list[dict[str, Any]]:
    """One row per head, in the order of layers and heads, with `COLUMNS` (Sec. 5.1).

    `special` are the slots of special tokens, `[CLS]` first; see `special_slots`. Patterns overlap.

    - `diagonal`: among text tokens, one band stands out at least `diagonal_lift` times above an even spread.
      lift(o) = mean of C[q,q-o] / mean of E[q], both over the text slots q for which q-o is a text slot too, weighted
      by count[q,q-o]. E[q] = sum of sum[q,k] / sum of count[q,k] over text keys k is what each of them would get, were
      the attention that row q spends on text spread evenly. `diagonal_lift` is the highest lift and `offset` its o (of
      `OFFSETS`; the one closest to 0 where several are as high), `diagonal_mass` the mean of C[q,q-o]; null where text
      gets no attention or has no such slots. A head that spends nearly all on `[CLS]` can thus be diagonal in the
      rest, as it is to the eye; `diagonal_mass` tells how much that is.
    - `mostly_special`: the mean over rows of S[q,k], summed over special k, is over `special_mass`. `special_mass` is
      this sum; `first_mass` its part in slot `special[0]` and `separator_mass` the rest.
    - `concentrated`: in over `dominant_rows` of the rows one entry of S is over `dominant_entry`. `dominant_rows` is
      the share of these rows.

    Raises `InputError` for constants that no example went into and for special slots that they do not have.
    """
    count = constants.count.double()
    used = count.diagonal().nonzero().flatten()  # slots that hold a token in some example
    if not len(used):
        raise InputError("These constants are an average over no token; average the attention of a corpus.")
    if not special or len(set(special)) < len(special) or not set(special) <= set(used.tolist()):
        raise InputError(
            f"The special slots are {list(special)}; give each once, and only slots that hold tokens "
            f"({len(used)} of {constants.n}, from {int(used[0])} to {int(used[-1])})."
        )
    weight = count.diagonal()[used]
    text = torch.tensor(sorted(set(range(constants.n)) - set(special)), dtype=torch.long)
    rows = []
    for layer, heads in enumerate(constants.sum):
        for head, total in enumerate(heads.double()):
            spent = total[used][:, used] / weight[:, None]  # S over used slots [query, key]
            mass = torch.zeros(constants.n, dtype=torch.double)
            mass[used] = weight @ spent / weight.sum()  # mean over rows [key]
            first, on_special = float(mass[special[0]]), float(mass[list(special)].sum())
            dominated = float(weight @ (spent.amax(1) > dominant_entry).double() / weight.sum())
            offset, lift, band = _diagonal(total, count, text)
            measured = (layer, head, offset, lift, band, first, on_special - first, on_special, dominated)
            flags = (lift is not None and lift >= diagonal_lift, on_special > special_mass, dominated > dominant_rows)
            rows.append(dict(zip(COLUMNS, (*measured, *flags), strict=True)))
    return rows


def _diagonal(total: Tensor, count: Tensor, text: Tensor) -> tuple[int | None, float | None, float | None]:
    """Offset, lift and mean attention of the band that stands out most in one head; see `measure_patterns`.

    `total` and `count` are float64 `[query, key]`, `text` the slots without special tokens.
    """
    on_text, seen = total[:, text].sum(1), count[:, text].sum(1)
    even = on_text / seen.clamp(min=1)  # E [query]
    is_text = torch.zeros(len(count), dtype=torch.bool)
    is_text[text] = True
    best: tuple[int | None, float | None, float | None] = (None, None, None)
    for offset in sorted(OFFSETS, key=abs):
        queries = text[(text - offset >= 0) & (text - offset < len(count))]
        queries = queries[is_text[queries - offset]]
        weight = count[queries, queries - offset]
        attention, spread = total[queries, queries - offset].sum(), weight @ even[queries]
        if spread > 0:
            lift = float(attention / spread)
            # even attention is no more diagonal at one offset than at another, whatever the last bit says
            if best[1] is None or lift > best[1] * (1 + 1e-9):
                best = offset, lift, float(attention / weight.sum())
    return best


def special_slots(tokens: Tokens) -> list[int]:
    """The slots that hold a special token in every example, in rising order: `[CLS]`'s, then the separators'.

    What stands in the first and the last slot is special in every layout. Between two texts the same separator stands
    again, in one slot or (RoBERTa) two; so a slot is special where every example has one of these ids.
    """
    ends = (tokens.slots == 0) | (tokens.slots == tokens.n - 1)
    special = torch.isin(tokens.ids, tokens.ids[ends].unique())
    return (torch.bincount(tokens.slots[special], minlength=tokens.n) == len(tokens)).nonzero().flatten().tolist()


def describe_patterns(
    constants: PathLike,
    tokens: PathLike,
    table: PathLike,
    markdown: PathLike,
    latex: PathLike,
    *,
    diagonal_lift: float = DIAGONAL_LIFT,
    special_mass: float = SPECIAL_MASS,
    dominant_entry: float = DOMINANT_ENTRY,
    dominant_rows: float = DOMINANT_ROWS,
) -> str:
    """Stage *patterns*: measure every head of the averages in `constants`, as Parquet, Markdown and LaTeX.

    `tokens` is the file of laid-out tokens that the attention was averaged over; it says which slots are special.
    Raises `InputError` where it is of another model, corpus or layout, `DamagedArtefact` where a file is not whole.
    """
    import pyarrow as pa

    averages, train = ConstantMatrices.load(constants), Tokens.read(tokens, "train")["train"]
    for name in ("model", "corpus", "style", "segments", "slots"):
        averaged, laid_out = averages.about.get(name), str(train.provenance.get(name))
        if averaged is not None and averaged != laid_out:
            raise InputError(
                f"{constants} was averaged over tokens with {name} {averaged}, but {tokens} has {laid_out}; "
                "give the tokens that it was averaged over."
            )
    thresholds = {
        "diagonal_lift": diagonal_lift,
        "special_mass": special_mass,
        "dominant_entry": dominant_entry,
        "dominant_rows": dominant_rows,
    }
    special = special_slots(train)
    rows = measure_patterns(averages, special, **thresholds)
    about = {"constants": averages.about, "examples": averages.examples, "special": special, "thresholds": thresholds}
    write_table(
        pa.Table.from_pylist(rows, schema=pa.schema(list(COLUMNS.items()))), table, {"table": "patterns"} | about
    )
    title = f"Patterns of averaged attention, {averages.about.get('model', 'model')}"
    write_pages(title, _pages(rows), NOTE.format(**thresholds), markdown, latex)
    return f"{len(rows)} heads: " + ", ".join(f"{_share(rows, flag)} {words}" for flag, words in FLAGS.items())


def _share(rows: Sequence[dict[str, Any]], flag: str) -> str:
    return f"{100 * sum(row[flag] for row in rows) / len(rows):.0f} %"


def _pages(rows: Sequence[dict[str, Any]]) -> list[tuple[str, list[Part], int]]:
    """The share of heads with each pattern, by layer and over all, and what was measured of each head."""
    layers = [[row for row in rows if row["layer"] == layer] for layer in dict.fromkeys(row["layer"] for row in rows)]
    shares = [[str(own[0]["layer"]), *(_share(own, flag) for flag in FLAGS)] for own in layers]
    everything = [["all", *(_share(rows, flag) for flag in FLAGS)]]

    def cell(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else ""
        return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)

    heads = [[cell(row[name]) for name in COLUMNS] for row in rows]
    header = [name.replace("_", " ") for name in COLUMNS]
    return [
        ("Share of heads", [[["layer", *FLAGS.values()]], shares, everything], 1),
        ("Heads", [[header], heads], 2),
    ]
