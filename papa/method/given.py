"""Batches and labels that are given as they are and lie in no file, for the parts of a study that a notebook calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from papa.config.stages import Training
from papa.data.packed import Given, Packed
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.objectives import IGNORED, Labelled, Labels, Next, Objective
from papa.method.probes import Sizes
from papa.model.model import Model, check_model

Batches: TypeAlias = Iterable[Mapping[str, Tensor] | Packed]
"""Inputs `[example, slot]` as `papa.lay_out` returns them, batch by batch."""
GivenLabels: TypeAlias = Sequence[str] | Sequence[int] | Tensor
"""A label for each example, one batch after another; or whole numbers `[example, slot]`, -100 where there is none."""


class Recipe(Training):
    """How probes and λ are trained, and at which points of a sweep.

    Args:
        learning_rate: of AdamW, constant.
        batch_size: examples of a training step.
        epochs: passes over the training examples.
        seeds: a probe for each; with several, scores have intervals. A decoder's own head needs none.
        fractions: shares of heads that keep their own attention, such as "1/8".
        metric: how predictions are scored; if not given, accuracy, or token_accuracy of labels `[example, slot]`, or
            log_likelihood without labels.

    >>> Recipe(epochs=2).seeds
    (1, 2, 3, 4, 5)
    """

    learning_rate: float = 1e-3
    batch_size: int = 16
    epochs: int = 4
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    fractions: tuple[str, ...] = ("1", "1/2", "1/8", "0")
    metric: str | None = None

    @property
    def training(self) -> Training:
        """How something is trained, and nothing else."""
        return Training(**{name: getattr(self, name) for name in Training.model_fields})


def packed_batches(model: Model, batches: Batches, asked: str) -> Iterator[Packed]:
    """Each of some batches on the model's device.

    Args:
        model: what is to run on them.
        batches: see `Batches`; they are read once.
        asked: the function that asks for batches, which errors name.

    Raises:
        InputError: no batch is given, or one instead of several, or the number of slots changes, or it is no model.
    """
    check_model(model)
    if isinstance(batches, Mapping | Packed):
        raise InputError(f"{asked} takes several batches, and one was given; put it into a list.")
    slots: int | None = None
    for inputs in batches:
        batch = model.pack(inputs)
        slots = slots or batch.n
        if batch.n != slots:
            raise InputError(
                f"A batch has {batch.n} slots after batches of {slots}; {asked} needs one layout for all of them."
            )
        yield batch
    if slots is None:
        raise InputError(f"There is no batch for {asked}.")
