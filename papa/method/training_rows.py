"""The training rows that a probe, λ or head weights learn from: all rows, a share of them, or a part for each seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from papa.config.settings import parts_of

if TYPE_CHECKING:
    from papa.plan.jobs import Training

SAMPLE_SEED = 1
"""The seed of the order from which samples are cut; the same in every job."""


def training_rows(available: int, training: Training, seed: int) -> Tensor:
    """Choose the training rows of a seed; every setting of attention with this seed learns from the same rows.

    Samples are cut from one random order of all rows, so a smaller sample is part of a larger one. If `training` is
    `resampled`, the order is divided into parts, and seed s has part s modulo the number of parts.
    """
    if training.rows is None:
        return torch.arange(available)
    part = seed % parts_of(str(training.rows)) if training.resampled else 0
    size = training.row_count(available)
    order = torch.randperm(available, generator=torch.Generator().manual_seed(SAMPLE_SEED))
    return order[part * size : (part + 1) * size].sort().values
