"""The sources of hidden states: the model, which computes them during training, or the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from papa.config.variant import Variant
from papa.data.tokens import Tokens
from papa.errors import DamagedArtefact
from papa.files import REBUILD
from papa.method.hidden import HiddenStates, Index
from papa.method.objective import Batch, States
from papa.method.variants import names_of
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
def stored_states(
    path: str, splits: Mapping[str, Tokens], model: str, variant: Variant
) -> Iterator[tuple[States, Index]]:
    """Open stored hidden states, and yield them with their index, which `path` has.

    Raise `DamagedArtefact` if they belong to other texts, another model or another variant.
    """
    with HiddenStates.opened(path) as hidden:
        index = hidden.index
        stored_tokens = {name: count for name, _, _, count in index["splits"]}
        if any(stored_tokens.get(split) != len(tokens.ids) for split, tokens in splits.items()):
            raise DamagedArtefact(f"{path} belongs to the hidden states of other texts; {REBUILD}.")
        expected = {"corpus": splits["train"].provenance["corpus"], "model": model, **names_of(variant)}
        for key, value in expected.items():
            if index[key] != value:
                raise DamagedArtefact(
                    f"{path} belongs to hidden states with {key} {index[key]} instead of {value}; {REBUILD}."
                )
        yield (lambda batch: hidden.read(batch.examples, batch.tokens, batch.positions)), index
