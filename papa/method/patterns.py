"""Patterns in each head's average attention: diagonal, mostly on special tokens, concentrated (paper, Sec. 5.1).

The paper identifies such heads by eye and gives no formulas; these are ours. All of them use

    S[q,k] = sum[q,k] / count[q,q],

the share of query slot q's attention that goes to key slot k, averaged over the examples that use slot q. S[q,k] equals
the constant C[q,k] times the share of these examples that also use slot k. So each row of S is a distribution, even if
examples differ in length. A mean over rows is a mean over the tokens of the corpus: row q has weight count[q,q].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.averages import Constants

OFFSETS = (-2, -1, 0, 1, 2)
"""Offsets of diagonals, query slot - key slot: 1 is attention to the previous token, -1 to the next."""

COLUMNS = dict.fromkeys(("layer", "head", "offset"), "int64")
COLUMNS |= dict.fromkeys(("diagonal_lift", "diagonal_mass", "first_mass", "separator_mass", "special_mass"), "float64")
COLUMNS |= {"dominant_rows": "float64"} | dict.fromkeys(("diagonal", "mostly_special", "concentrated"), "bool")

HeadPattern = dict[str, int | float | bool | None]
"""The measurements of one head, by the names in `COLUMNS`."""

THRESHOLDS = {"diagonal_lift": 2.0, "special_mass": 0.5, "dominant_entry": 0.5, "dominant_rows": 0.5}
"""The thresholds of the patterns of a head; see `measure_patterns`."""


def measure_patterns(constants: Constants, special: Sequence[int]) -> list[HeadPattern]:
    """Measure the patterns of each head, by layer and head (Sec. 5.1); a head may have several patterns.

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
    count = constants.count.double()
    used = count.diagonal().nonzero().flatten()  # slots that contain a token in some example
    if not len(used):
        raise InputError("These constants are averages over no tokens; average the attention of a corpus.")
    if not special or len(set(special)) < len(special) or not set(special) <= set(used.tolist()):
        raise InputError(
            f"The special slots are {list(special)}; give each once, and only slots that contain tokens "
            f"({len(used)} of {constants.n}, from {int(used[0])} to {int(used[-1])})."
        )
    weight = count.diagonal()[used]
    text = torch.tensor(sorted(set(range(constants.n)) - set(special)), dtype=torch.long)
    rows = []
    for layer, heads in enumerate(constants.sum):
        for head, total in enumerate(heads.double()):
            shares = total[used][:, used] / weight[:, None]  # S over used slots [query, key]
            mass = torch.zeros(constants.n, dtype=torch.double)
            mass[used] = weight @ shares / weight.sum()  # mean over rows [key]
            first, on_special = float(mass[special[0]]), float(mass[list(special)].sum())
            dominated = float(weight @ (shares.amax(1) > THRESHOLDS["dominant_entry"]).double() / weight.sum())
            offset, lift, diagonal = _diagonal(total, count, text)
            numbers = (layer, head, offset, lift, diagonal, first, on_special - first, on_special, dominated)
            flags = (
                lift is not None and lift >= THRESHOLDS["diagonal_lift"],
                on_special > THRESHOLDS["special_mass"],
                dominated > THRESHOLDS["dominant_rows"],
            )
            rows.append(dict(zip(COLUMNS, (*numbers, *flags), strict=True)))
    return rows


def _diagonal(total: Tensor, count: Tensor, text: Tensor) -> tuple[int | None, float | None, float | None]:
    """Return offset, lift and mean attention of a head's diagonal with the highest lift; see `measure_patterns`.

    `total` and `count` are float64 `[query, key]`, and `text` has the slots without special tokens.
    """
    on_text, keys = total[:, text].sum(1), count[:, text].sum(1)
    even = on_text / keys.clamp(min=1)  # E [query]
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
            # rounding must not decide between equal lifts
            if best[1] is None or lift > best[1] * (1 + 1e-9):
                best = offset, lift, float(attention / weight.sum())
    return best


def special_slots(tokens: Tokens) -> list[int]:
    """Return the slots with a special token in every example, in ascending order: that of `[CLS]`, then separators.

    The tokens in the first and the last slot are special in every layout, and separators between two texts are the same
    tokens. So a slot is special if every example has one of these tokens in it.
    """
    ends = (tokens.slots == 0) | (tokens.slots == tokens.n - 1)
    special = torch.isin(tokens.ids, tokens.ids[ends].unique())
    return (torch.bincount(tokens.slots[special], minlength=tokens.n) == len(tokens)).nonzero().flatten().tolist()
