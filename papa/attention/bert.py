"""Self-attention of BERT: absolute positions, so queries and keys come from the hidden states alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import linear

from papa.attention.replacement import Session, attend

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
        context = attend(self.session, self.layer, query, key, value)
        return context.reshape(*hidden_states.shape[:-1], -1), None

    def _project(self, projection: nn.Linear, tokens: Tensor, heads: Tensor | None = None) -> Tensor:
        """`[token, head, channel]` of the given heads (None: all)."""
        weight: Tensor = projection.weight
        bias: Tensor = projection.bias
        if heads is not None and len(heads) * self.channels < len(weight):
            weight = weight.view(-1, self.channels, weight.shape[1])[heads].flatten(0, 1)
            bias = bias.view(-1, self.channels)[heads].flatten()
        return linear(tokens, weight, bias).view(len(tokens), -1, self.channels)
