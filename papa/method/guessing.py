"""The common part of objectives that predict tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from papa.data.tokens import Tokens
from papa.method.objective import Batch, Objective, outcomes_table

if TYPE_CHECKING:
    import pyarrow as pa

    from papa.model.model import Model

DECODED_AT_ONCE = 256
"""Tokens that are decoded together, because each has a logit for every word of the vocabulary."""


class Guessing(Objective):
    """An objective that predicts tokens. Texts are scored in batches of about equal numbers of tokens."""

    model: Model

    def scored_splits(self) -> list[str]:
        """Return the splits that are scored; without labels it is only one."""
        return ["validation"]

    def scored(self) -> Iterator[Batch]:
        for split in self.scored_splits():
            yield from (self._batch(split, examples) for examples in self._scored_together(split))

    def in_order(self, values: Tensor, split: str = "validation") -> Tensor:
        """Sort values `[example, ...]` of a split's texts from the order of `scored` to that of the texts."""
        return values[torch.cat(list(self._scored_together(split))).argsort()]

    def _scored_together(self, split: str) -> Iterator[Tensor]:
        return self.splits[split].batches(self.model.token_budget)


def table_of_texts(tokens: Tokens, chosen: Tensor, guessed: Tensor, columns: Mapping[str, Tensor]) -> pa.Table:
    """Return outcomes with a row for each text of the validation split.

    Args:
        tokens: the split.
        chosen: the tokens that are predicted, bool `[token]`.
        guessed: the counts of words that a guess without the text expects, `[word]`.
        columns: outcomes `[example]`.
    """
    text = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)[chosen]
    blind = -(guessed / guessed.sum()).log()[tokens.ids[chosen].long()]
    values = {
        "example": torch.arange(len(tokens)),
        "tokens": torch.bincount(text, minlength=len(tokens)),
        "trivial": torch.zeros(len(tokens), dtype=torch.float64).index_add(0, text, blind),
        **columns,
    }
    return outcomes_table("validation", values)
