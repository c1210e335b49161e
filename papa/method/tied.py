"""The rungs of constants: how much each kind of constant knows of the text, from nothing to which slot looks at which.

Rungs below the average tie entries of its matrices: pairs of slots of one class have one value. A rung whose classes
divide those of another knows all that the other knows, and one kind of information more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from papa.errors import InputError


def _sink(query: Tensor, key: Tensor) -> Tensor:
    return (key > 0).long().expand(len(query), -1)


def _by_distance(query: Tensor, key: Tensor) -> Tensor:
    # the first slot is apart, because models use it as a place to look at when there is nothing to look at
    return torch.where(key > 0, query - key + len(query), 0)


_CLASSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "zeros": lambda query, key: torch.zeros_like(query - key),
    "uniform": lambda query, key: torch.zeros_like(query - key),
    "identity": lambda query, key: (query == key).long(),
    "toeplitz": lambda query, key: (query - key).abs(),
    "sink": _sink,
    "by-distance": _by_distance,
}
"""The class of each pair of slots, from slots `[query, 1]` and `[1, key]`."""
TIED = tuple(_CLASSES)
"""The kinds of constants whose entries are tied."""


def classes_of(kind: str, slots: int) -> Tensor:
    """Which pairs of slots have one value in constants of a kind.

    Args:
        kind: `zeros` and `uniform` have one class, `identity` the slot itself and all others, `toeplitz` the distance
            in either direction, `sink` the first slot and all others, `by-distance` the first slot and, for all others,
            the distance with its sign.
        slots: slots of the layout.

    Returns:
        int32 `[query, key]`.

    Raises:
        InputError: constants of this kind tie nothing.

    >>> classes_of("by-distance", 3)
    tensor([[0, 2, 1],
            [0, 3, 2],
            [0, 4, 3]], dtype=torch.int32)
    """
    if kind not in TIED:
        raise InputError(f"Constants of the kind {kind!r} have no tied entries; those that have are {', '.join(TIED)}.")
    slot = torch.arange(slots)
    return _CLASSES[kind](slot[:, None], slot[None, :]).int()
