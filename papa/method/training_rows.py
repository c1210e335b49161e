"""The training rows that a probe, λ or head weights learn from: all rows, a share of them, or a part for each seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from papa.config.settings import parts_of
from papa.errors import InputError

if TYPE_CHECKING:
    from papa.config.stages import Training

HELD_OUT_SHARE = 0.1
"""The share of the training rows that is held out if training may end early."""
SAMPLE_SEED, HELD_OUT_SEED = 1, 2
"""The seeds of the order from which samples are cut, and of the choice of held-out rows; the same in every job."""


@dataclass(frozen=True)
class TrainingRows:
    """Indices of training rows: `learned` for gradient steps, and `held_out` to decide when training ends."""

    learned: Tensor
    held_out: Tensor

    @property
    def all(self) -> Tensor:
        """All these rows."""
        return torch.cat([self.learned, self.held_out])


def training_rows(available: int, training: Training, seed: int) -> TrainingRows:
    """Choose the training rows of a seed; every setting of attention with this seed learns from the same rows.

    Samples are cut from one random order of all rows, so a smaller sample is part of a larger one. If `training` is
    `resampled`, the order is divided into parts, and seed s has part s modulo the number of parts.

    Raises:
        InputError: there are too few rows.
    """
    rows = torch.arange(available)
    if training.rows is not None:
        part = seed % parts_of(str(training.rows)) if training.resampled else 0
        size = training.row_count(available)
        rows = _shuffled(available, SAMPLE_SEED)[part * size : (part + 1) * size].sort().values
    if training.patience is None:
        return TrainingRows(rows, rows[:0])
    held_out = int(HELD_OUT_SHARE * len(rows))
    if not held_out:
        raise InputError(
            f"`patience` holds out one tenth of the training rows, but there are only {len(rows)}; leave out "
            "`patience`, or use at least 10 training rows."
        )
    order = _shuffled(len(rows), HELD_OUT_SEED)
    return TrainingRows(rows[order[held_out:]].sort().values, rows[order[:held_out]].sort().values)


def best_epoch(losses: Sequence[float]) -> int:
    """Return the epoch, counted from 1, with the lowest loss on held-out rows; the first one of several."""
    return 1 + losses.index(min(losses))


def is_settled(losses: Sequence[float], patience: int) -> bool:
    """Return whether the loss on held-out rows has not fallen for `patience` epochs."""
    return bool(losses) and len(losses) - best_epoch(losses) >= patience


def _shuffled(rows: int, seed: int) -> Tensor:
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
