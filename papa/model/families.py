"""How a packed row of tokens passes through the encoders of all families: embeddings, positions, layers.

Families differ here in three things, each found in the loaded model itself: what position a token in a slot has,
whether embeddings are projected, and whether layers are told of relative distances.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from papa.data.packed import Packed
from papa.model.linear import rounded_up


def slots_limit(model: Any) -> int:
    """How many slots the model has positions for."""
    before = _padding_position(model)
    return int(model.config.max_position_embeddings) - (0 if before is None else before + 1)


def embed(model: Any, batch: Packed) -> Tensor:
    """The embeddings `[1, token, hidden]`, as the first layer takes them. Idle tokens round the row up."""
    idle = rounded_up(len(batch.ids)) - len(batch.ids)
    ids, segments, positions = (
        pad(values, (0, idle))[None] for values in (batch.ids, batch.segments, positions_of(model, batch))
    )
    embedded = model.embeddings(input_ids=ids, token_type_ids=segments, position_ids=positions)
    projection = getattr(model, "embeddings_project", None)  # ELECTRA, where embeddings are smaller than hidden states
    return embedded if projection is None else projection(embedded)


def positions_of(model: Any, batch: Packed) -> Tensor:
    """The position id of every token, `[token]`: its slot, or in RoBERTa and its like its rank among real tokens."""
    padding = _padding_position(model)
    if padding is None:
        return batch.slots
    # RoBERTa counts ids that are not padding from the start of an example, and gives padding its own position
    counted = (batch.ids != padding).long()
    ranks = counted.cumsum(0)
    before = (ranks - counted)[batch.lengths.cumsum(0) - batch.lengths]
    return (ranks - before[batch.example_of]) * counted + padding


def layer_options(model: Any) -> dict[str, Any]:
    """What the layers want to be called with beside the hidden states."""
    relative = getattr(model.encoder, "get_rel_embedding", None)
    # DeBERTa; our attention knows which tokens may attend to which, and their distances, without being told
    return {} if relative is None else {"attention_mask": None, "rel_embeddings": relative()}


def hidden_state(output: Any) -> Tensor:
    """The hidden states in what a layer returns, which some families put into a tuple."""
    return output[0] if isinstance(output, tuple) else output


def _padding_position(model: Any) -> int | None:
    """The position of padding where tokens are counted from behind it; None where positions are slots."""
    return getattr(model.embeddings, "padding_idx", None)
