"""The sources of hidden states: the model, which computes them during training, or the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from papa.files import PathLike
from papa.method.hidden import Index, StoredStates
from papa.method.objective import Batch, States
from papa.model.model import Model
from papa.model.replacement import Replacement


@dataclass(frozen=True)
class StreamedStates:
    """Hidden states that the model computes whenever they are needed.

    Args:
        model: the frozen model.
        replacement: returns the current replacement of heads in each layer.
        dropout: whether the model uses dropout on training examples.
        rounded: whether hidden states are rounded to float16 like stored ones; they then have no gradient.
        probed: whether a probe reads them; otherwise the model's prediction head converts them to logits.
    """

    model: Model
    replacement: Callable[[], Replacement]
    dropout: bool = False
    rounded: bool = False
    probed: bool = True

    def __call__(self, batch: Batch) -> Tensor:
        """Return float32 `[position, L+1, hidden]`, or logits `[token, word]`, on the model's device."""
        dropout = self.dropout and batch.tokens.split == "train"
        if not self.probed:
            return self.model.scores(self.model.pack(batch.packed), self.replacement(), dropout).float()
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.rounded):
            states = self.model.run(self.model.pack(batch.packed), self.replacement(), dropout)
        if batch.positions is not None:
            positions = batch.positions.to(self.model.device)
            states = [state.index_select(0, positions) for state in states]
        hidden = torch.stack(states, dim=1)
        return hidden.half().float() if self.rounded else hidden.float()


@contextmanager
def stored_states(path: PathLike) -> Iterator[tuple[States, Index]]:
    """Open stored hidden states, and yield them with the facts about them."""
    with StoredStates.opened(path) as hidden:
        yield (lambda batch: hidden.read(batch.examples, batch.tokens, batch.positions)), hidden.index
