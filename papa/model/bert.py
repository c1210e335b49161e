"""Self-attention of BERT, RoBERTa, ELECTRA and their like.

Positions are in the embeddings, so queries and keys come from the hidden states alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from papa.model.linear import FrozenLinear
from papa.model.replacement import Session, attend, some_outputs

STOCK = {
    "transformers.models.bert.modeling_bert.BertSelfAttention": "BERT",
    "transformers.models.camembert.modeling_camembert.CamembertSelfAttention": "CamemBERT",
    "transformers.models.data2vec.modeling_data2vec_text.Data2VecTextSelfAttention": "Data2VecText",
    "transformers.models.electra.modeling_electra.ElectraSelfAttention": "ELECTRA",
    "transformers.models.ernie.modeling_ernie.ErnieSelfAttention": "ERNIE",
    "transformers.models.roberta.modeling_roberta.RobertaSelfAttention": "RoBERTa",
    "transformers.models.splinter.modeling_splinter.SplinterSelfAttention": "Splinter",
    "transformers.models.xlm_roberta.modeling_xlm_roberta.XLMRobertaSelfAttention": "XLM-RoBERTa",
}
"""The modules of this form, and the family of encoders that has each."""


class ReplaceableBertAttention(nn.Module):
    """Stands where `stock` stood, with its weights; a replaced head computes no query and no key (Sec. 3.3)."""

    def __init__(self, stock: Any, layer: int, session: Session):
        super().__init__()
        self.query, self.key, self.value, self.dropout = stock.query, stock.key, stock.value, stock.dropout
        self.layer, self.session = layer, session
        self.channels: int = stock.attention_head_size

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        plan = self.session.plans[self.layer]
        query = key = None
        if len(plan.kept):
            query, key = (self._project(projection, tokens, plan.kept) for projection in (self.query, self.key))
        value = self._project(self.value, tokens)
        context = attend(self.session, self.layer, query, key, value, dropout=self.dropout)
        return context.view_as(hidden_states), None

    def _project(self, projection: nn.Linear | FrozenLinear, tokens: Tensor, heads: Tensor | None = None) -> Tensor:
        """`[token, head, channel]` of the given heads (None: all)."""
        if heads is None or len(heads) * self.channels == len(projection.weight):
            outputs = projection(tokens)
        else:
            rows = (heads[:, None] * self.channels + torch.arange(self.channels, device=heads.device)).flatten()
            outputs = some_outputs(projection, tokens, rows)
        return outputs.view(len(tokens), -1, self.channels)
