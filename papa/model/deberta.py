"""Disentangled self-attention of the first DeBERTa: scores from content, and from the distance between two slots.

With q and k the query and key of two tokens, d the distance of their slots, and K and Q the projected embeddings of
distances, a head's score is (q·k + q·K[d] + k·Q[d]) / sqrt(channels * terms). Distances are clamped to a span that
depends on how many slots the layout has, so both come from the original slots, not from the packed row.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from papa.data.packed import Examples
from papa.errors import InputError
from papa.model.linear import FrozenLinear
from papa.model.replacement import Session, attend, some_outputs

STOCK = {"transformers.models.deberta.modeling_deberta.DisentangledSelfAttention": "DeBERTa (the first)"}

_Projected = tuple[Tensor | None, Tensor | None]


class ReplaceableDebertaAttention(nn.Module):
    """Stands where `stock` stood, with its weights.

    A replaced head computes no query, no key and no projection of distances (Sec. 3.3). Raises `InputError` for
    "talking heads", which mix the attention of all heads, so that none can be replaced by itself.
    """

    def __init__(self, stock: Any, layer: int, session: Session):
        super().__init__()
        if stock.talking_head:
            raise InputError("This DeBERTa mixes the attention of its heads (talking_head); no head can be replaced.")
        self.in_proj, self.q_bias, self.v_bias = stock.in_proj, stock.q_bias, stock.v_bias
        self.pos_proj: Any = getattr(stock, "pos_proj", None)
        self.pos_q_proj: Any = getattr(stock, "pos_q_proj", None)
        self.dropout, self.pos_dropout = stock.dropout, getattr(stock, "pos_dropout", nn.Identity())
        self.layer, self.session = layer, session
        self.heads: int = stock.num_attention_heads
        self.channels: int = stock.attention_head_size
        self.longest_span: int = stock.max_relative_positions if stock.relative_attention else 0
        self.scaling = 1 / math.sqrt(self.channels * (1 + len(stock.pos_att_type)))
        self._kept_projected: tuple[Any, _Projected] | None = None

    def forward(
        self, hidden_states: Tensor, *_: Any, rel_embeddings: Tensor | None = None, **__: Any
    ) -> tuple[Tensor, None]:
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        kept = self.session.plans[self.layer].kept
        query, key, value = self._project(tokens, kept)
        positions = None
        if rel_embeddings is not None and (self.pos_proj is not None or self.pos_q_proj is not None):
            positions = partial(self._position_scores, rel_embeddings, kept)
        context = attend(self.session, self.layer, query, key, value, self.scaling, positions, self.dropout)
        return context.view_as(hidden_states), None

    def _project(self, tokens: Tensor, kept: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Queries and keys of the kept heads, values of all, `[token, head, channel]`."""
        query_bias, value_bias = (bias.view(self.heads, self.channels) for bias in (self.q_bias, self.v_bias))
        if len(kept) == self.heads:
            query, key, value = self.in_proj(tokens).view(len(tokens), self.heads, 3, self.channels).unbind(2)
            return query + query_bias, key, value + value_bias
        # the rows of a head stand together, first of its query, then of its key, then of its value
        every = torch.arange(self.heads, device=kept.device)
        blocks = torch.cat([3 * kept, 3 * kept + 1, 3 * every + 2])
        outputs = some_outputs(self.in_proj, tokens, self._rows(blocks)).view(len(tokens), -1, self.channels)
        query, key, value = outputs.split([len(kept), len(kept), self.heads], dim=1)
        value = value + value_bias
        return (query + query_bias[kept], key, value) if len(kept) else (None, None, value)

    def _rows(self, blocks: Tensor) -> Tensor:
        return (blocks[:, None] * self.channels + torch.arange(self.channels, device=blocks.device)).flatten()

    def _position_scores(
        self, rel_embeddings: Tensor, kept: Tensor, queries: Tensor, keys: Tensor, examples: Examples
    ) -> Tensor:
        span = min(examples.n, self.longest_span)
        shape = (*queries.shape[:3], queries.shape[2])  # [example, kept head, query, key]
        where = (examples.distances + span).clamp(0, 2 * span - 1)[:, None]  # [example or 1, 1, query, key]
        to_keys, to_queries = self._distances(rel_embeddings, kept, span)
        scores = queries.new_zeros(())
        if to_keys is not None:
            scores = (queries @ to_keys * self.scaling).gather(3, where.expand(shape))
        if to_queries is not None:
            of_keys = (keys @ to_queries * self.scaling).gather(3, where.transpose(2, 3).expand(shape))
            scores = scores + of_keys.transpose(2, 3)
        return scores

    def _distances(self, rel_embeddings: Tensor, kept: Tensor, span: int) -> _Projected:
        """K and Q of the kept heads, `[kept head, channel, distance]`, of the distances -span … span-1."""

        def project() -> _Projected:
            middle = self.pos_dropout(rel_embeddings[self.longest_span - span : self.longest_span + span])
            key, query = (
                None if projection is None else self._of_heads(projection, middle, kept).permute(1, 2, 0)
                for projection in (self.pos_proj, self.pos_q_proj)
            )
            return key, query

        if not isinstance(self.in_proj, FrozenLinear) or self.pos_dropout.training:
            return project()
        # nothing here depends on the input, so weights that are frozen are projected once for all batches
        projections = [projection for projection in (self.pos_proj, self.pos_q_proj) if projection is not None]
        weights = [rel_embeddings, *(weight for projection in projections for weight in projection.parameters())]
        state = span, kept.tolist(), [(weight.data_ptr(), weight._version) for weight in weights]
        if self._kept_projected is None or self._kept_projected[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                self._kept_projected = state, project()
        return self._kept_projected[1]

    def _of_heads(self, projection: nn.Linear | FrozenLinear, inputs: Tensor, heads: Tensor) -> Tensor:
        """`[distance, head, channel]`."""
        whole = len(heads) == self.heads
        outputs = projection(inputs) if whole else some_outputs(projection, inputs, self._rows(heads))
        return outputs.view(len(inputs), -1, self.channels)
