"""DeBERTa's attention, as modules that replace the stock ones, which do not look up an attention function by name.

Scores depend on content and on the distance between two slots. One class is for the first DeBERTa, another for v2 and
v3.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from papa.data.packed import Examples
from papa.errors import InputError
from papa.model.attention import context_of, current
from papa.model.linear import some_outputs
from papa.model.replacement import Attending, Layer, PaddingMask, Replace

if TYPE_CHECKING:
    from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention
    from transformers.models.deberta_v2.modeling_deberta_v2 import (
        DisentangledSelfAttention as DisentangledSelfAttentionV2,
    )

Projected = tuple[Tensor, Tensor, Tensor]
"""Queries and keys of the kept heads, and values of all heads, `[token, head, channel]`."""


class DisentangledAttention(nn.Module, ABC):
    """The attention that all DeBERTas share.

    Let q and k be the query and key of two tokens, d the distance between their slots, and K and Q the projected
    distance embeddings. A head's score is (q·k + q·K[d] + k·Q[d]) / sqrt(channels * terms). Distances are between
    slots, not between positions in the packed row. A replaced head computes no query, key or distance projection.
    """

    def __init__(self, stock: nn.Module):
        super().__init__()
        module = cast(Any, stock)
        self.dropout = module.dropout
        self.heads, self.channels = int(module.num_attention_heads), int(module.attention_head_size)
        self.pos_dropout: nn.Module = getattr(stock, "pos_dropout", nn.Identity())
        self.relative: bool = module.relative_attention
        self.terms: tuple[str, ...] = tuple(
            term for term in ("c2p", "p2c") if term in (module.pos_att_type or ())
        )
        self.scaling = 1 / math.sqrt(self.channels * (1 + len(self.terms)))

    def forward(
        self, hidden_states: Tensor, *_: object, rel_embeddings: Tensor | None = None, **__: object
    ) -> tuple[Tensor, None]:
        """Return the context of all tokens."""
        session = current()
        examples, index = session.layout, session.next_layer(self)
        instruction = session.replacement[index] if index < len(session.replacement) else None
        kept = instruction.kept if isinstance(instruction, Replace) else None
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        query, key, value = self.project(tokens, kept)
        values = examples.spread(value)
        allowed = (
            None
            if examples.real is None
            else examples.real[:, None, None, :].as_subclass(PaddingMask)
        )
        dropout = self.dropout.p if self.dropout.training else 0.0
        layer = DisentangledLayer(
            index, examples, allowed, dropout, self, query, key, values, kept, rel_embeddings
        )
        if session.stand_in is not None:
            heads = layer.attending(None)
            context = session.stand_in(self, heads.query, heads.key, values).transpose(1, 2)
        else:
            context = context_of(session, layer)
        return examples.gather(context).flatten(1).view_as(hidden_states), None

    @abstractmethod
    def project(self, tokens: Tensor, kept: Tensor | None) -> Projected:
        """Project `tokens` `[token, hidden]` to queries and keys of the `kept` heads (None: all) and to all values."""

    @abstractmethod
    def projections(self) -> tuple[nn.Module | None, nn.Module | None]:
        """Return the layers that project distance embeddings to keys (for c2p) and to queries (for p2c)."""

    @abstractmethod
    def indices(self, examples: Examples) -> tuple[int, Tensor]:
        """Return the span of distances, and the distance index of each pair, `[example or 1, query, key]`."""

    @abstractmethod
    def middle(self, rel_embeddings: Tensor, span: int) -> Tensor:
        """Return the embeddings of the distances -span … span-1, `[distance, hidden]`."""

    def outputs(self, projection: nn.Module, inputs: Tensor, heads: Tensor | None) -> Tensor:
        """Return the outputs of these heads (None: all), `[token, head, channel]`."""
        if heads is None:
            outputs: Tensor = projection(inputs)
        elif len(heads):
            rows = (
                heads[:, None] * self.channels + torch.arange(self.channels, device=heads.device)
            ).flatten()
            outputs = some_outputs(projection, inputs, rows)
        else:
            return inputs.new_zeros(len(inputs), 0, self.channels)
        return outputs.view(len(inputs), -1, self.channels)

    def positions(
        self,
        rel_embeddings: Tensor | None,
        kept: Tensor | None,
        queries: Tensor,
        keys: Tensor,
        examples: Examples,
    ) -> Tensor | None:
        """Return the distance-dependent terms of scaled scores, `[example, kept head, query, key]`, if any."""
        if rel_embeddings is None or not self.relative or not any(self.projections()):
            return None
        span, indices = self.indices(examples)
        shape, indices = (*queries.shape[:3], queries.shape[2]), indices[:, None]
        to_keys, to_queries = self._distances(rel_embeddings, kept, span)
        scores = queries.new_zeros(())
        if to_keys is not None:
            scores = (queries @ to_keys * self.scaling).gather(3, indices.expand(shape))
        if to_queries is not None:
            key_scores = (keys @ to_queries * self.scaling).gather(
                3, indices.transpose(2, 3).expand(shape)
            )
            scores = scores + key_scores.transpose(2, 3)
        return scores

    def _distances(
        self, rel_embeddings: Tensor, kept: Tensor | None, span: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return K and Q of the kept heads at the distances -span … span-1, `[kept head, channel, distance]`."""
        middle = self.pos_dropout(self.middle(rel_embeddings, span))
        key, query = (
            None if source is None else self.outputs(source, middle, kept).permute(1, 2, 0)
            for source in self.projections()
        )
        return key, query


@dataclass(frozen=True)
class DisentangledLayer(Layer):
    """A layer of DeBERTa.

    Args:
        module: the layer's attention.
        query, key: queries and keys of the kept heads, `[token, head, channel]`.
        spread_values: values of all heads, `[example, head, position, channel]`.
        kept_heads: indices of the kept heads; None means all.
        rel_embeddings: distance embeddings, if the model has them.
    """

    module: DisentangledAttention
    query: Tensor
    key: Tensor
    spread_values: Tensor
    kept_heads: Tensor | None
    rel_embeddings: Tensor | None

    def attending(self, heads: Tensor | None) -> Attending:
        """See `Layer`; if some heads need no queries and keys, only those of the others were computed."""
        query, key, computed = self.query, self.key, self.kept_heads
        if computed is None and heads is not None:
            query, key, computed = query[:, heads], key[:, heads], heads
        queries, keys = self.examples.spread(query), self.examples.spread(key)
        added = self.module.positions(self.rel_embeddings, computed, queries, keys, self.examples)
        return Attending(queries, keys, self.module.scaling, self.allowed, added=added)

    def values(self, heads: Tensor | None) -> Tensor:
        return self.spread_values if heads is None else self.spread_values[:, heads]


class DebertaAttention(DisentangledAttention):
    """The first DeBERTa, which clamps distances to a span that depends on the number of slots in the layout.

    Raises:
        InputError: the model has "talking heads", which mix the attention of all heads.
    """

    def __init__(self, stock: DisentangledSelfAttention):
        super().__init__(stock)
        if stock.talking_head:
            raise InputError(
                "This DeBERTa mixes the attention of its heads (talking_head), so none can be replaced separately."
            )
        self.in_proj, self.q_bias, self.v_bias = stock.in_proj, stock.q_bias, stock.v_bias
        self.pos_proj: nn.Module | None = getattr(stock, "pos_proj", None)
        self.pos_q_proj: nn.Module | None = getattr(stock, "pos_q_proj", None)
        self.longest_span: int = stock.max_relative_positions if stock.relative_attention else 0

    def project(self, tokens: Tensor, kept: Tensor | None) -> Projected:
        query_bias, value_bias = (
            bias.view(self.heads, self.channels) for bias in (self.q_bias, self.v_bias)
        )
        if kept is None:
            query, key, value = (
                self.in_proj(tokens).view(len(tokens), self.heads, 3, self.channels).unbind(2)
            )
            return query + query_bias, key, value + value_bias
        # a head's query, key and value are adjacent rows
        every = torch.arange(self.heads, device=kept.device)
        outputs = self.outputs(
            self.in_proj, tokens, torch.cat([3 * kept, 3 * kept + 1, 3 * every + 2])
        )
        query, key, value = outputs.split([len(kept), len(kept), self.heads], dim=1)
        return query + query_bias[kept], key, value + value_bias

    def projections(self) -> tuple[nn.Module | None, nn.Module | None]:
        return self.pos_proj, self.pos_q_proj

    def indices(self, examples: Examples) -> tuple[int, Tensor]:
        span = min(examples.n, self.longest_span)
        return span, (examples.distances + span).clamp(0, 2 * span - 1)

    def middle(self, rel_embeddings: Tensor, span: int) -> Tensor:
        return rel_embeddings[self.longest_span - span : self.longest_span + span]


class DebertaV2Attention(DisentangledAttention):
    """DeBERTa v2 and v3: long distances share buckets, and distances may be projected by the same layers as tokens."""

    def __init__(self, stock: DisentangledSelfAttentionV2):
        super().__init__(stock)
        self.query_proj, self.key_proj, self.value_proj = (
            stock.query_proj,
            stock.key_proj,
            stock.value_proj,
        )
        self.shared: bool = stock.share_att_key
        self.pos_key_proj: nn.Module | None = getattr(stock, "pos_key_proj", None)
        self.pos_query_proj: nn.Module | None = getattr(stock, "pos_query_proj", None)
        self.buckets = int(stock.position_buckets) if self.relative else 0
        self.longest = int(stock.max_relative_positions) if self.relative else 0
        self.span = int(stock.pos_ebd_size) if self.relative else 0

    def project(self, tokens: Tensor, kept: Tensor | None) -> Projected:
        query, key = (
            self.outputs(projection, tokens, kept)
            for projection in (self.query_proj, self.key_proj)
        )
        return query, key, self.outputs(self.value_proj, tokens, None)

    def projections(self) -> tuple[nn.Module | None, nn.Module | None]:
        key, query = (
            (self.key_proj, self.query_proj)
            if self.shared
            else (self.pos_key_proj, self.pos_query_proj)
        )
        return key if "c2p" in self.terms else None, query if "p2c" in self.terms else None

    def indices(self, examples: Examples) -> tuple[int, Tensor]:
        distances = examples.distances
        if self.buckets > 0 and self.longest > 0:
            distances = bucketed(distances, self.buckets, self.longest)
        return self.span, (distances + self.span).clamp(0, 2 * self.span - 1)

    def middle(self, rel_embeddings: Tensor, span: int) -> Tensor:
        return rel_embeddings[: 2 * span]


def bucketed(distances: Tensor, buckets: int, longest: int) -> Tensor:
    """Map distances to buckets: half of them hold one short distance each, the others are spaced logarithmically."""
    half = buckets // 2
    far = distances.abs().clamp(min=half)
    steps = torch.log(far / half) / torch.log(torch.tensor((longest - 1) / half)) * (half - 1)
    return torch.where(
        distances.abs() <= half, distances, (torch.ceil(steps) + half).long() * distances.sign()
    )
