"""Relative positions between slots, in models whose code counts the columns of its input.

papa leaves out slots that no example uses, so two columns may be farther apart than such code expects. Here it computes
what it adds for all slots of the layout, from which the used ones are selected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from papa.data.packed import Examples
from papa.model.attention import Session

BySlot = Callable[..., Any]
"""Computes what a method of a module computes, from the module, the stock method, the layout, and arguments."""


def set_relative_positions(model: nn.Module, session: Session, undo: ExitStack) -> None:
    """Let a model compute relative positions from the slots of a session; add to `undo` what restores it."""
    for module in model.modules():
        for name, by_slot in METHODS.items():
            if hasattr(module, name):
                setattr(module, name, _in_session(session, module, getattr(module, name), by_slot))
                undo.callback(delattr, module, name)


def _in_session(
    session: Session, module: nn.Module, stock: Callable[..., Any], by_slot: BySlot
) -> Callable[..., Any]:
    """Return a function that computes positions from slots during a pass, and as the stock model otherwise."""

    def computed(*args: Any) -> Any:
        if session.examples is None:
            return stock(*args)
        return by_slot(module, stock, session.examples, *args)

    return computed


def _mpnet_bias(
    _: nn.Module, stock: Callable[..., Tensor], layout: Examples, hidden: Tensor, *args: Any
) -> Tensor:
    """Return what MPNet adds to scores, `[example, head, query, key]`."""
    # the stock method reads only its shape, so it needs no channels
    every_slot = hidden.new_empty(1, layout.n, 0)
    bias = _of_used_slots(stock(every_slot, *args)[0], layout).transpose(0, 1)
    return bias.expand(len(hidden), -1, -1, -1).contiguous()


def _deberta_distances(
    encoder: Any, stock: Callable[..., Tensor | None], layout: Examples, hidden: Tensor, *args: Any
) -> Tensor | None:
    """Return the distances of DeBERTa (or the buckets of distances of v2 and v3) in the shape that it broadcasts."""
    distances = stock(hidden.new_empty(layout.n, 0), *args)
    if distances is None:
        return None
    used = _of_used_slots(distances.squeeze(0), layout).expand(len(hidden), -1, -1)
    if hasattr(encoder, "position_buckets"):
        # in v2 and v3, examples and heads share an axis
        heads = encoder.layer[0].attention.self.num_attention_heads
        return used.repeat_interleave(heads, dim=0)[None]
    return used[:, None]


def _deberta_bias(
    attention: Any,
    _: object,
    layout: Examples,
    query: Tensor,
    key: Tensor,
    *positions: Any,
) -> Tensor | float:
    """Return what the first DeBERTa adds to scores, `[example, head, query, key]`.

    Its span of distances depends on the number of slots, which the stock method takes from `query`.
    """
    distances, embeddings, terms = positions
    longest = attention.max_relative_positions
    span = min(layout.n, longest)
    middle = embeddings[None, longest - span : longest + span]
    index = (distances + span).clamp(0, 2 * span - 1).expand(-1, query.shape[1], -1, -1)
    bias = 0.0
    if "c2p" in attention.pos_att_type:
        far_keys = attention.transpose_for_scores(attention.pos_proj(middle))
        bias = bias + (query @ far_keys.mT).gather(3, index)
    if "p2c" in attention.pos_att_type:
        far_queries = attention.transpose_for_scores(attention.pos_q_proj(middle))
        scale = math.sqrt(query.shape[-1] * terms)
        bias = bias + (key @ (far_queries / scale).mT).gather(3, index.mT).mT
    return bias


METHODS: Mapping[str, BySlot] = {
    "compute_position_bias": _mpnet_bias,
    "get_rel_pos": _deberta_distances,
    "disentangled_att_bias": _deberta_bias,
}
"""Methods that add positions to scores, by their names in transformers."""


def _of_used_slots(table: Tensor, layout: Examples) -> Tensor:
    """Select `[..., example or 1, query, key]` from a table `[..., slot, slot]`."""
    slots = layout.distinct(layout.slots)
    return table[..., slots[:, :, None], slots[:, None, :]]
