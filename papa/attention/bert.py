"""Self-attention of BERT: absolute positions, so queries and keys come from the hidden states alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from papa.attention.replacement import Session, attend
from papa.linear import FrozenLinear, linear

STOCK = ("transformers.models.bert.modeling_bert.BertSelfAttention",)


class ReplaceableBertAttention(nn.Module):
    """Stands where `stock` stood, with its weights; a replaced head computes no query and no key (Sec. 3.3)."""

    def __init__(self, stock: Any, layer: int, session: Session):
        super().__init__()
        self.query, self.key, self.value = stock.query, stock.key, stock.value
        self.layer, self.session = layer, session
        self.channels: int = stock.attention_head_size

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        plan = self.session.plans[self.layer]
        query = key = None
        if len(plan.kept):
            query, key = (self._project(projection, tokens, plan.kept) for projection in (self.query, self.key))
        value = self._project(self.value, tokens)
        return attend(self.session, self.layer, query, key, value).view_as(hidden_states), None

    def _project(self, projection: nn.Linear | FrozenLinear, tokens: Tensor, heads: Tensor | None = None) -> Tensor:
        """`[token, head, channel]` of the given heads (None: all)."""
        if heads is None or len(heads) * self.channels == len(projection.weight):
            outputs = projection(tokens)
        else:
            rows = (heads[:, None] * self.channels + torch.arange(self.channels, device=heads.device)).flatten()
            if isinstance(projection, FrozenLinear):
                outputs = projection.only(rows)(tokens)
            else:
                outputs = linear(tokens, projection.weight[rows], projection.bias[rows])
        return outputs.view(len(tokens), -1, self.channels)
