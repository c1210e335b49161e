"""Probes: small classifiers on all hidden states of a frozen encoder (paper, Sec. 4 and its appendix on training).

Both take dense hidden states `[example, L+1, slot, hidden]` as `Encoder.hidden_states` returns them; inside the
package they take packed ones, `[token, L+1, hidden]`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from papa.errors import InputError
from papa.linear import linear
from papa.packed import Packed


class SequenceProbe(nn.Module):
    """One label per example: a learned weighted sum over slots per layer, then dense, tanh, dropout, output.

    `slot_weights` `[L+1, slot]` start at 1/slots; the L+1 sums are concatenated.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        hidden: int,
        labels: int,
        dropout: float = 0.0,
        initializer_range: float = 0.02,
    ):
        super().__init__()
        self.slot_weights = nn.Parameter(torch.full((layers, slots), 1.0 / slots))
        self.dense = nn.Linear(layers * hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, labels)
        _initialise(self, initializer_range)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Logits `[example, label]` from `hidden` `[example, L+1, slot, hidden]` and `mask` `[example, slot]`."""
        expected = (len(mask), *self.slot_weights.shape)
        if hidden.shape[:3] != expected or mask.shape != (len(mask), self.slot_weights.shape[1]):
            raise InputError(
                f"hidden {list(hidden.shape)} and mask {list(mask.shape)} do not fit a probe of "
                f"[L+1, slot] = {list(self.slot_weights.shape)}."
            )
        weights = self.slot_weights * mask[:, None, :].to(hidden.dtype)  # [example, L+1, slot]
        return self._classify((weights[:, :, None, :] @ hidden).squeeze(2))

    def packed(self, hidden: Tensor, batch: Packed) -> Tensor:
        """Logits `[example, label]` from packed `hidden` `[token, L+1, hidden]`."""
        tokens, layers, size = hidden.shape
        layer = torch.arange(layers, device=hidden.device)[:, None]
        begin = batch.lengths.cumsum(0) - batch.lengths
        pooled = embedding_bag(
            (torch.arange(tokens, device=hidden.device) * layers + layer).flatten(),
            hidden.reshape(-1, size),
            (begin + layer * tokens).flatten(),  # a bag for every layer and example
            mode="sum",
            per_sample_weights=self.slot_weights.index_select(1, batch.slots).flatten(),
        )
        return self._classify(pooled.view(layers, -1, size).transpose(0, 1))

    def _classify(self, pooled: Tensor) -> Tensor:
        return self.output(self.dropout(torch.tanh(linear(pooled.flatten(1), self.dense.weight, self.dense.bias))))


class TokenProbe(nn.Module):
    """One label per token: the L+1 vectors of a token concatenated, then dense, tanh, output."""

    def __init__(self, layers: int, hidden: int, labels: int, initializer_range: float = 0.02):
        super().__init__()
        self.layers = layers
        self.dense = nn.Linear(layers * hidden, hidden)
        self.output = nn.Linear(hidden, labels)
        _initialise(self, initializer_range)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits `[example, slot, label]` from `hidden` `[example, L+1, slot, hidden]`."""
        if hidden.ndim != 4 or hidden.shape[1] != self.layers:
            raise InputError(f"hidden {list(hidden.shape)} is not [example, {self.layers}, slot, hidden].")
        return self.packed(hidden.transpose(1, 2).flatten(0, 1)).view(len(hidden), hidden.shape[2], -1)

    def packed(self, hidden: Tensor) -> Tensor:
        """Logits `[token, label]` from packed `hidden` `[token, L+1, hidden]`."""
        return self.output(torch.tanh(linear(hidden.flatten(1), self.dense.weight, self.dense.bias)))


def _initialise(probe: nn.Module, spread: float) -> None:
    for module in probe.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=spread)
            nn.init.zeros_(module.bias)
