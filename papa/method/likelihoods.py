"""Objectives without a probe: a decoder's prediction head predicts the next tokens of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from papa.config.measures import NEXT
from papa.data.packed import Packed
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.fitting import Recorded
from papa.method.objective import IGNORED, Batch
from papa.method.token_prediction import DECODED_AT_ONCE, TokenPrediction
from papa.model.model import Model

if TYPE_CHECKING:
    import pyarrow as pa


class NextTokens(TokenPrediction):
    """Next tokens: each token of a text except the first, special or not, is predicted from those before it."""

    target = NEXT

    def __init__(self, splits: Mapping[str, Tokens], model: Model):
        if not model.causal:
            raise InputError(
                f"{type(model.full).__name__} sees later tokens, so it cannot predict the next one; log_likelihood "
                "needs a decoder, and negative_log_perplexity masks tokens."
            )
        if "validation" in splits and not bool((splits["validation"].lengths > 1).any()):
            raise InputError(
                "No text of the validation split has a next token, because each has only one token; use longer texts."
            )
        self.splits, self.model, self.probe = splits, model, nn.Identity()

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats, differentiable in the logits `hidden` `[token, word]`."""
        predicted = (batch.gold != IGNORED).sum().clamp(min=1)
        return cross_entropy(hidden, batch.gold.to(hidden.device), ignore_index=IGNORED, reduction="sum") / predicted

    def predictions(self, batch: Batch) -> int:
        return int((batch.gold != IGNORED).sum())

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the loss of each predicted token in nats, in the order of the packed row."""
        gold, losses = batch.gold.to(hidden.device), []
        for chunk in torch.arange(len(gold), device=hidden.device).split(DECODED_AT_ONCE):
            rows = chunk[gold[chunk] != IGNORED]
            losses.append(cross_entropy(hidden[rows], gold[rows], reduction="none"))
        return torch.cat(losses)

    def table(self, outcomes: Recorded) -> pa.Table:
        """Return a row for each token but the first of a text; the guess is from the counts in training, plus one."""
        tokens, train = self.splits["validation"], self.splits["train"]
        words = int(self.model.config.get_text_config().vocab_size)
        counts = torch.bincount(train.ids[_has_predecessor(train)].long(), minlength=words).double()
        return self.table_of(_has_predecessor(tokens), counts + 1, outcomes)

    def _batch(self, split: str, examples: Tensor) -> Batch:
        tokens = self.splits[split]
        packed = tokens.batch(examples)
        return Batch(tokens, examples, packed, _next_tokens(packed))


def _next_tokens(packed: Packed) -> Tensor:
    """Return the token that follows each token of a packed row in its text, `[token]`; IGNORED at the end of a text."""
    gold = packed.ids.roll(-1)
    gold[packed.lengths.cumsum(0) - 1] = IGNORED
    return gold


def _has_predecessor(tokens: Tokens) -> Tensor:
    """Return whether each token of a split is preceded by another in its text, bool `[token]`."""
    preceded = torch.ones(len(tokens.ids), dtype=torch.bool)
    preceded[tokens.offsets[:-1]] = False
    return preceded
