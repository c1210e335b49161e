"""Tied constants: kinds of matrices in which all pairs of slots of the same class share one value.

Each kind divides the classes of a simpler kind, and so adds one piece of information.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from papa.config.variant import KINDS
from papa.errors import InputError
from papa.model.products import DistanceClasses

CHECKED_ROWS = 256
"""Number of rows of classes that are compared at a time."""
TIED = tuple(name for name, kind in KINDS.items() if kind.classes)
"""The kinds of constants with tied entries."""


def classes_of(kind: str, slots: int) -> Tensor:
    """Return the class of each pair of slots in constants of a kind; pairs of the same class share one value.

    Args:
        kind: one of `TIED`.
        slots: number of slots in the layout.

    Returns:
        int32 `[query, key]`.

    Raises:
        InputError: constants of this kind have no tied entries.

    >>> classes_of("by-distance", 3)
    tensor([[0, 2, 1],
            [0, 3, 2],
            [0, 4, 3]], dtype=torch.int32)
    """
    return _rows(kind, torch.arange(slots), slots)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def structure_of(kind: str, slots: int) -> Tensor | DistanceClasses:
    """Return the classes of a kind, in memory that grows with the slots if they depend only on distance and first key.

    Raises:
        InputError: constants of this kind have no tied entries.
    """
    column: list[Tensor] = []
    for begin in range(0, slots, CHECKED_ROWS):
        rows = _rows(kind, torch.arange(begin, min(begin + CHECKED_ROWS + 1, slots)), slots)
        if not torch.equal(rows[1:, 2:], rows[:-1, 1:-1]):
            return classes_of(kind, slots)
        column.append(rows[:CHECKED_ROWS, 0])
    first, last = (_rows(kind, torch.tensor([query]), slots)[0] for query in (0, slots - 1))
    by_distance, leading = torch.cat([first[1:].flip(0), last.flip(0)]).long(), torch.cat(column).long()
    if torch.equal(leading, by_distance[slots - 1 :]):
        return DistanceClasses(by_distance, None)
    by_distance[-1] = by_distance[-2]  # only the first key is as far away as that
    return DistanceClasses(by_distance, int(leading[0])) if len(leading.unique()) == 1 else classes_of(kind, slots)


def _rows(kind: str, queries: Tensor, slots: int) -> Tensor:
    class_of = KINDS[kind].class_of if kind in KINDS else None
    if class_of is None:
        raise InputError(f"Constants of the kind {kind!r} have no tied entries; kinds that do are {', '.join(TIED)}.")
    return class_of(queries[:, None].int(), torch.arange(slots, dtype=torch.int32)[None, :]).int()
