"""Tied constants: kinds of matrices in which all pairs of slots of one class have the same value.

The kinds form a ladder. Each kind divides the classes of a simpler one, and so adds one kind of information.
"""

from __future__ import annotations

import torch
from torch import Tensor

from papa.config.variant import KINDS
from papa.errors import InputError

TIED = tuple(name for name, kind in KINDS.items() if kind.classes)
"""The kinds of constants with tied entries."""


def classes_of(kind: str, slots: int) -> Tensor:
    """Return the class of each pair of slots in constants of a kind; pairs of one class have the same value.

    Args:
        kind: one of `TIED`.
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
    class_of = KINDS[kind].class_of
    if class_of is None:
        raise InputError(f"Constants of the kind {kind!r} have no tied entries; those that have are {', '.join(TIED)}.")
    slot = torch.arange(slots)
    return class_of(slot[:, None], slot[None, :]).int()
