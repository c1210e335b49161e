"""The common part of objectives that predict tokens: batches of equal size, and outcomes per text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from papa.data.tokens import Tokens
from papa.method.objective import Batch, Objective

if TYPE_CHECKING:
    import pyarrow as pa

    from papa.model.model import Model

DECODED_AT_ONCE = 256
"""Tokens that are decoded together, because each has a logit for every word of the vocabulary."""


class Guessing(Objective):
    """An objective that predicts tokens, so each scored text has a loss; without labels only one split is scored."""

    model: Model

    def batch(self, examples: Tensor) -> Batch:
        return self._batch("train", examples)

    def scored_splits(self) -> list[str]:
        """Return the splits whose texts are scored."""
        return ["validation"]

    def scored(self) -> Iterator[Batch]:
        for split in self.scored_splits():
            yield from (self._batch(split, examples) for examples in self._scored_together(split))

    def in_order(self, values: Tensor, split: str = "validation") -> Tensor:
        """Sort values of the texts of a split, `[example, ...]` in the order of `scored`, by the texts' numbers."""
        return values[torch.cat(list(self._scored_together(split))).argsort()]

    def _scored_together(self, split: str) -> Iterator[Tensor]:
        return self.splits[split].batches(self.model.token_budget)

    @abstractmethod
    def _batch(self, split: str, examples: Tensor) -> Batch:
        """Return examples of a split, with the tokens that are predicted as gold."""


def table_of_texts(tokens: Tokens, chosen: Tensor, guessed: Tensor, columns: Mapping[str, Tensor]) -> pa.Table:
    """Return outcomes with a row for each text of the validation split.

    Args:
        tokens: the split.
        chosen: the tokens that are predicted, bool `[token]`.
        guessed: how often a guess that ignores the text expects each word, `[word]`.
        columns: outcomes of the texts, `[example]` each.
    """
    import pyarrow as pa

    text = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)[chosen]
    blind = -(guessed / guessed.sum()).log()[tokens.ids[chosen].long()]
    sums = torch.zeros(len(tokens), dtype=torch.float64)
    values = {
        "example": torch.arange(len(tokens)),
        "tokens": torch.bincount(text, minlength=len(tokens)),
        "trivial": sums.index_add(0, text, blind),
        **columns,
    }
    types = {"example": pa.int32(), "tokens": pa.int32()}
    arrays = {name: pa.array(column.numpy(), types.get(name, pa.float64())) for name, column in values.items()}
    return pa.table({"split": pa.array(["validation"] * len(tokens)).dictionary_encode()} | arrays)
