"""Tied constants: kinds of matrices in which all pairs of slots of one class have the same value.

The kinds form a ladder. Each kind divides the classes of a simpler one, and so adds one kind of information.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from papa.errors import InputError


def _sink(query: Tensor, key: Tensor) -> Tensor:
    return (key > 0).long().expand(len(query), -1)


def _by_distance(query: Tensor, key: Tensor) -> Tensor:
    # the first slot is a separate class, because heads attend to it if no other token matters
    return torch.where(key > 0, query - key + len(query), 0)


_CLASSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "zeros": lambda query, key: torch.zeros_like(query - key),
    "uniform": lambda query, key: torch.zeros_like(query - key),
    "identity": lambda query, key: (query == key).long(),
    "toeplitz": lambda query, key: (query - key).abs(),
    "sink": _sink,
    "by-distance": _by_distance,
}
"""Functions that map slots `[query, 1]` and `[1, key]` to the class of each pair."""
TIED = tuple(_CLASSES)
"""The kinds of constants with tied entries."""


def classes_of(kind: str, slots: int) -> Tensor:
    """Return the class of each pair of slots in constants of a kind; pairs of one class have the same value.

    Args:
        kind: the class depends on nothing (`zeros`, `uniform`), on whether query and key are equal (`identity`), on
            their distance (`toeplitz`), on whether the key is the first slot (`sink`), or on that and, for other keys,
            on the distance with its sign (`by-distance`).
        slots: slots of the layout.

    Returns:
        int32 `[query, key]`.

    Raises:
        InputError: constants of this kind have no tied entries.

    >>> classes_of("by-distance", 3)
    tensor([[0, 2, 1],
            [0, 3, 2],
            [0, 4, 3]], dtype=torch.int32)
    """
    if kind not in TIED:
        raise InputError(f"Constants of the kind {kind!r} have no tied entries; those that have are {', '.join(TIED)}.")
    slot = torch.arange(slots)
    return _CLASSES[kind](slot[:, None], slot[None, :]).int()
