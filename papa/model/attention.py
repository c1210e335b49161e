"""Self-attention in which heads can be replaced, to stand where a stock module stood, with its weights.

A replaced head computes no query and no key (paper, Sec. 3.3). There is one class for each form of attention: that of
BERT and its like, and that of the first DeBERTa.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from papa.data.packed import Examples
from papa.errors import InputError
from papa.model.linear import FrozenLinear, some_outputs
from papa.model.replacement import Attending, Mix, Replace, Session, kept_context, mixed_context, replaced_context

if TYPE_CHECKING:
    from transformers.models.bert.modeling_bert import BertSelfAttention
    from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention

Projected = tuple[Tensor | None, Tensor | None, Tensor]
"""Queries and keys of the kept heads (None if none is kept) and values of all heads, `[token, head, channel]`."""


class ReplaceableAttention(nn.Module):
    """What all forms share: how heads that attend and heads that do not meet their values.

    A form has `project`, and `positions` if positions add to its scores.
    """

    def __init__(self, stock: BertSelfAttention | DisentangledSelfAttention, layer: int, session: Session):
        super().__init__()
        self.layer, self.session, self.dropout = layer, session, stock.dropout
        self.heads = int(stock.num_attention_heads)
        self.channels = int(stock.attention_head_size)
        self.scaling = 1 / math.sqrt(self.channels)

    def forward(
        self, hidden_states: Tensor, *_: object, rel_embeddings: Tensor | None = None, **__: object
    ) -> tuple[Tensor, None]:
        """The context of all tokens; zero for idle ones, which follow those of the examples."""
        session, own, examples = self.session, self.session.replacement[self.layer], self.session.examples
        if examples is None:
            raise InputError("The patched model was called without inputs whose examples are known.")
        session.reached.add(self.layer)
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        kept = own.kept if isinstance(own, Replace) else None
        query, key, value = self.project(tokens, kept)
        values = examples.spread(value).transpose(1, 2)  # [example, head, place, channel]
        dropout = self.dropout.p if self.dropout.training else 0.0
        if query is None or key is None:
            assert isinstance(own, Replace)
            context = replaced_context(own.matrices, examples, values, dropout)
        else:
            queries, keys = (examples.spread(projected).transpose(1, 2) for projected in (query, key))
            added = self.positions(rel_embeddings, kept, queries, keys, examples)
            real = None if examples.real is None else examples.real[:, None, None, :]
            heads = Attending(queries, keys, self.scaling, added, real)
            if isinstance(own, Mix):
                context = mixed_context(own, heads, examples, values, dropout)
            elif session.observer is not None:
                attention = heads.attention()
                session.observer(self.layer, attention, examples)
                context = attention @ values
            elif isinstance(own, Replace):
                parts = (
                    kept_context(heads, values[:, own.kept], dropout),
                    replaced_context(own.matrices, examples, values[:, own.heads], dropout),
                )
                context = torch.cat(parts, dim=1)[:, own.order]
            else:
                context = kept_context(heads, values, dropout)
        return examples.gather(context.transpose(1, 2), len(value)).flatten(1).view_as(hidden_states), None

    def project(self, tokens: Tensor, kept: Tensor | None) -> Projected:
        """Queries and keys of the `kept` heads (None: all) and values of all, from `tokens` `[token, hidden]`."""
        raise NotImplementedError

    def positions(
        self, rel_embeddings: Tensor | None, kept: Tensor | None, queries: Tensor, keys: Tensor, examples: Examples
    ) -> Tensor | None:
        """What positions add to scaled scores, `[example, kept head, query, key]`; None if they add nothing."""
        return None

    def rows(self, blocks: Tensor) -> Tensor:
        """The rows of a weight that blocks of one head each have in it."""
        return (blocks[:, None] * self.channels + torch.arange(self.channels, device=blocks.device)).flatten()

    def outputs(self, projection: nn.Module, inputs: Tensor, heads: Tensor | None) -> Tensor:
        """`[token, head, channel]` of the given heads (None: all)."""
        outputs = projection(inputs) if heads is None else some_outputs(projection, inputs, self.rows(heads))
        return outputs.view(len(inputs), -1, self.channels)


class BertAttention(ReplaceableAttention):
    """Queries, keys and values come from the hidden states alone; positions are in the embeddings."""

    def __init__(self, stock: BertSelfAttention, layer: int, session: Session):
        super().__init__(stock, layer, session)
        self.query, self.key, self.value = stock.query, stock.key, stock.value

    def project(self, tokens: Tensor, kept: Tensor | None) -> Projected:
        """See `ReplaceableAttention`."""
        query = key = None
        if kept is None or len(kept):
            query, key = (self.outputs(projection, tokens, kept) for projection in (self.query, self.key))
        return query, key, self.outputs(self.value, tokens, None)


class DebertaAttention(ReplaceableAttention):
    """Disentangled attention: scores from content, and from the distance between two slots.

    With q and k the query and key of two tokens, d the distance of their slots, and K and Q the projected embeddings of
    distances, a head's score is (q·k + q·K[d] + k·Q[d]) / sqrt(channels * terms). Distances are clamped to a span that
    depends on how many slots the layout has, so both come from the original slots, not from the packed row. A replaced
    head computes no projection of distances either.

    Raises:
        InputError: "talking heads" mix the attention of all heads, so that none can be replaced by itself.
    """

    def __init__(self, stock: DisentangledSelfAttention, layer: int, session: Session):
        super().__init__(stock, layer, session)
        if stock.talking_head:
            raise InputError("This DeBERTa mixes the attention of its heads (talking_head); no head can be replaced.")
        self.in_proj, self.q_bias, self.v_bias = stock.in_proj, stock.q_bias, stock.v_bias
        self.pos_proj: nn.Module | None = getattr(stock, "pos_proj", None)
        self.pos_q_proj: nn.Module | None = getattr(stock, "pos_q_proj", None)
        self.pos_dropout: nn.Module = getattr(stock, "pos_dropout", nn.Identity())
        self.longest_span: int = stock.max_relative_positions if stock.relative_attention else 0
        self.scaling = 1 / math.sqrt(self.channels * (1 + len(stock.pos_att_type)))
        self._projected: tuple[object, tuple[Tensor | None, Tensor | None]] | None = None

    def project(self, tokens: Tensor, kept: Tensor | None) -> Projected:
        """See `ReplaceableAttention`."""
        query_bias, value_bias = (bias.view(self.heads, self.channels) for bias in (self.q_bias, self.v_bias))
        if kept is None:
            query, key, value = self.in_proj(tokens).view(len(tokens), self.heads, 3, self.channels).unbind(2)
            return query + query_bias, key, value + value_bias
        # the rows of a head stand together, first of its query, then of its key, then of its value
        every = torch.arange(self.heads, device=kept.device)
        outputs = self.outputs(self.in_proj, tokens, torch.cat([3 * kept, 3 * kept + 1, 3 * every + 2]))
        query, key, value = outputs.split([len(kept), len(kept), self.heads], dim=1)
        value = value + value_bias
        return (query + query_bias[kept], key, value) if len(kept) else (None, None, value)

    def positions(
        self, rel_embeddings: Tensor | None, kept: Tensor | None, queries: Tensor, keys: Tensor, examples: Examples
    ) -> Tensor | None:
        """See `ReplaceableAttention`."""
        if rel_embeddings is None or (self.pos_proj is None and self.pos_q_proj is None):
            return None
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

    def _distances(self, rel_embeddings: Tensor, kept: Tensor | None, span: int) -> tuple[Tensor | None, Tensor | None]:
        """K and Q of the kept heads, `[kept head, channel, distance]`, of the distances -span … span-1."""

        def project() -> tuple[Tensor | None, Tensor | None]:
            middle = self.pos_dropout(rel_embeddings[self.longest_span - span : self.longest_span + span])
            key, query = (
                None if projection is None else self.outputs(projection, middle, kept).permute(1, 2, 0)
                for projection in (self.pos_proj, self.pos_q_proj)
            )
            return key, query

        if not isinstance(self.in_proj, FrozenLinear) or self.pos_dropout.training:
            return project()
        # nothing here depends on the input, so weights that are frozen are projected once for all batches
        projections = [projection for projection in (self.pos_proj, self.pos_q_proj) if projection is not None]
        weights = [rel_embeddings, *(weight for projection in projections for weight in projection.parameters())]
        heads = None if kept is None else kept.tolist()
        state = span, heads, [(weight.data_ptr(), weight._version) for weight in weights]
        if self._projected is None or self._projected[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                self._projected = state, project()
        return self._projected[1]
