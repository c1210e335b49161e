"""The common base of objectives that predict tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from papa.data.tokens import Tokens
from papa.method.fitting import Recorded
from papa.method.objective import Batch, Objective, outcomes_table
from papa.model.model import Model

if TYPE_CHECKING:
    import pyarrow as pa

DECODED_AT_ONCE = 256
"""Number of tokens that are decoded at once; each needs a logit for every word of the vocabulary."""


class TokenPrediction(Objective):
    """An objective that predicts tokens; validation texts are scored in batches of about equal numbers of tokens."""

    model: Model

    def scored(self) -> Iterator[Batch]:
        if "validation" in self.splits:
            for examples in self.splits["validation"].batches(self.model.token_budget):
                yield self._batch("validation", examples)

    def table_of(self, chosen: Tensor, word_counts: Tensor, outcomes: Recorded) -> pa.Table:
        """Return a row for each token that is predicted: its text, its place there, and its loss in nats.

        `chosen` `[token]` marks these tokens. `trivial` is the loss of a guess from `word_counts` `[word]`.
        """
        tokens: Tokens = self.splits["validation"]
        order = torch.cat(list(tokens.batches(self.model.token_budget)))
        of_scored = tokens.tokens_of(order)
        of_scored = of_scored[chosen[of_scored]]
        losses = outcomes["validation"].float()[of_scored.argsort()]
        text = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
        place = torch.arange(len(tokens.ids)) - tokens.offsets[:-1].repeat_interleave(tokens.lengths)
        blind = -(word_counts / word_counts.sum()).log()[tokens.ids[chosen].long()]
        columns = {"example": text[chosen], "position": place[chosen], "loss": losses, "trivial": blind.float()}
        return outcomes_table("validation", columns)
