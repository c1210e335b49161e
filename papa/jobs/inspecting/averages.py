"""Averages of attention to look at: whole matrices of single heads, over slots that a figure would draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.averages import ConstantMatrices
from papa.method.patterns import special_slots
from papa.results.heatmaps import drawn_slots

Shown = dict[str, Any]


def averages(path: Path, layer: int | None = None, head: int | None = None) -> Shown:
    """What is known of averages, and the matrices of the heads that `layer` and `head` choose.

    Either alone chooses all that it leaves open; without both it is the head that looks at single slots most. Raises
    `InputError` for a layer or head that there is none of.
    """
    constants = ConstantMatrices.load(path)
    layers, heads = constants.sum.shape[:2]
    for what, number, many in (("layer", layer, layers), ("head", head, heads)):
        if number is not None and not 0 <= number < many:
            raise InputError(f"{path} has no {what} {number}; {what}s are 0 to {many - 1}.")
    used = constants.count.diagonal().nonzero().flatten().tolist()
    facts = {"layers": layers, "heads of a layer": heads, "slots": constants.n, "slots in use": len(used)}
    content: Shown = {"provenance": constants.about, "facts": facts | {"examples": constants.examples}}
    if not used:
        return content
    peaks = constants.mean[:, :, used][..., used].amax(-1).mean(-1)  # [layer, head]
    if layer is None and head is None:
        layer, head = divmod(int(peaks.argmax()), heads)
    chosen = [
        (one, other)
        for one in range(layers)
        for other in range(heads)
        if layer in (None, one) and head in (None, other)
    ]
    peak = {"title": "Largest attention of a query slot, on average", "values": peaks.tolist()}
    return content | {"heads": peak, "pictures": _pictures(constants, _special(path), chosen)}


def _pictures(constants: ConstantMatrices, special: Sequence[int], heads: Sequence[tuple[int, int]]) -> list[Shown]:
    """The matrices of some heads, over the slots that a figure would draw; None for pairs that no example has."""
    slots = drawn_slots(constants)
    seen = constants.count[slots][:, slots] > 0
    about = {"slots": slots, "special": [slot for slot in special if slot in slots]}
    return [
        {"layer": layer, "head": head, **about}
        | {
            "values": [
                [round(value, 4) if there else None for value, there in zip(*row, strict=True)]
                for row in zip(constants.mean[layer, head][slots][:, slots].tolist(), seen.tolist(), strict=True)
            ]
        }
        for layer, head in heads
    ]


def _special(path: Path) -> list[int]:
    """The slots of special tokens, where the tokens that were averaged over are still there."""
    for folder in (path.parent, path.parent.parent):
        try:
            return special_slots(Tokens.read(folder / "tokens.parquet", "train")["train"])
        except InputError:
            continue
    return []
