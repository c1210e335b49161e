"""Tied constants: kinds of matrices in which all pairs of slots of the same class share one value.

The kinds form a ladder: each divides the classes of a simpler kind, and so adds one piece of information.
"""

from __future__ import annotations

import torch
from torch import Tensor

from papa.config.variant import KINDS
from papa.errors import InputError

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
    class_of = KINDS[kind].class_of if kind in KINDS else None
    if class_of is None:
        raise InputError(f"Constants of the kind {kind!r} have no tied entries; kinds that do are {', '.join(TIED)}.")
    slot = torch.arange(slots)
    return class_of(slot[:, None], slot[None, :]).int()
