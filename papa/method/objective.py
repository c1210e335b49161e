"""The interface of objectives: the loss of a batch, and the outcomes of examples, from which scores are computed.

An objective is independent of the source of hidden states: the store, memory, or the model (`papa.method.states`). If
the model's prediction head is used instead of a probe, its logits replace hidden states, and nothing is trained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from papa.config.measures import OUTCOME_TYPES
from papa.data.packed import Packed
from papa.data.tokens import Tokens

if TYPE_CHECKING:
    import pyarrow as pa

    from papa.config.measures import Target

OutcomesBySplit = Mapping[str, Tensor]
"""The outcomes of all scored examples, by split."""
IGNORED = -100
"""The label of tokens without a label."""


@dataclass(frozen=True)
class Batch:
    """Examples of a split, and the tokens whose hidden states are read.

    Args:
        tokens: the split.
        examples: int64 `[example]`, their indices in the split.
        packed: their packed row, as the model reads it.
        gold: int64, the right labels or tokens: `[example]`, or `[position]` if `positions` are given.
        positions: int64 `[position]`, the tokens of the row whose hidden states are read; None means all.
    """

    tokens: Tokens
    examples: Tensor
    packed: Packed
    gold: Tensor
    positions: Tensor | None = None


States = Callable[[Batch], Tensor]
"""Maps a batch to the hidden states at its positions, float32 `[position, L+1, hidden]`, or logits `[token, word]`."""


class Objective(ABC):
    """The loss and the outcomes of a task, and the new probe to be trained for it, if any."""

    target: Target
    probe: nn.Module
    splits: Mapping[str, Tokens]

    @property
    def examples(self) -> int:
        """Number of training examples."""
        return len(self.splits["train"])

    def begin(self, epoch: int) -> None:  # noqa: B027  most objectives have the same examples in every epoch
        """Prepare for an epoch, counted from 1."""

    def batch(self, examples: Tensor) -> Batch:
        """Return training examples by index."""
        return self._batch("train", examples)

    @abstractmethod
    def _batch(self, split: str, examples: Tensor) -> Batch:
        """Return examples of a split by index."""

    @abstractmethod
    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the mean loss of a batch; 0 if the batch has nothing to predict."""

    @abstractmethod
    def scored(self) -> Iterator[Batch]:
        """Yield all examples that are scored, batch by batch and split by split."""

    @abstractmethod
    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the outcomes of a scored batch, one for each label or token that is predicted."""

    @abstractmethod
    def table(self, outcomes: OutcomesBySplit) -> pa.Table:
        """Return a row for each outcome of the scored examples; `OUTCOME_TYPES` lists the columns."""

    def predictions(self, batch: Batch) -> int:
        """Return the number of predictions over which the loss of a batch is averaged."""
        return len(batch.gold)

    def divided(self, examples: Tensor) -> Sequence[Tensor]:
        """Return training examples in parts that need little memory for logits."""
        return [examples]

    def weighted(self, parts: Sequence[Tensor]) -> list[tuple[Tensor, float]]:
        """Return parts of a batch, divided again if necessary, with the weights of their losses in the batch's loss."""
        small = [part for whole in parts for part in self.divided(whole)]
        if len(small) == 1:
            return [(small[0], 1.0)]
        sizes = [self.predictions(self.batch(part)) for part in small]
        return [(part, size / max(1, sum(sizes))) for part, size in zip(small, sizes, strict=True)]

    def loss_on(self, states: States, examples: Tensor) -> Tensor:
        """Return the mean loss of training examples, by index, on these hidden states."""
        batch = self.batch(examples)
        return self.loss(batch, states(batch))

    def outcomes_on(self, states: States) -> OutcomesBySplit:
        """Return the outcomes of all scored examples, by split."""
        outcomes: dict[str, list[Tensor]] = {}
        self.probe.eval()
        with torch.inference_mode():
            for batch in self.scored():
                outcomes.setdefault(batch.tokens.split, []).append(
                    self.outcomes(batch, states(batch)).cpu()
                )
        self.probe.train()
        return {split: torch.cat(parts) for split, parts in outcomes.items()}


def outcomes_table(split: str, columns: Mapping[str, Tensor]) -> pa.Table:
    """Build the outcomes of a split from columns named as in `OUTCOME_TYPES`."""
    import pyarrow as pa

    arrays = {
        name: pa.array(values.numpy(), OUTCOME_TYPES[name]) for name, values in columns.items()
    }
    return pa.table(
        {"split": pa.array([split] * len(columns["example"])).dictionary_encode()} | arrays
    )
