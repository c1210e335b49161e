"""Measure a model's distances from the stock model and, with heads replaced, from the reference."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from papa.data.packed import Packed
from papa.errors import InputError, first_line
from papa.model.check import distance, tiny_batch
from papa.model.forms import MODULES, PADDED, dense
from papa.model.model import Model
from papa.model.projections import PrunedProjection
from papa.model.reference import Reference

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Verified:
    """Measurements of a model on a tiny batch. Distances are between hidden states, relative to their norm.

    Args:
        kind: model type in the config.
        form: packed or padded; "refused" if the model cannot be used, for the reason `why`.
        causal, layers, heads, groups: as in `Model`.
        numbers: indices of the layers with attention in the model's code; empty if all layers have it.
        stock: distance from the stock model.
        half, all: distance from the reference, with every other head and with all heads replaced; NaN for the models in
            `MODULES` and those with their own attention, which have no reference.
        own_attention: distance from the stock model on a single text, if each head's constant is its attention in
            this text; NaN if rows of attention do not sum to one, as with sinks.
        skipped: share of queries and keys that are not computed if all heads are replaced.
    """

    kind: str
    form: str
    why: str = ""
    causal: bool = False
    layers: int = 0
    heads: int = 0
    groups: int = 0
    numbers: tuple[int, ...] = ()
    stock: float = float("nan")
    half: float = float("nan")
    all: float = float("nan")
    own_attention: float = float("nan")
    skipped: float = float("nan")


def verify(stock: PreTrainedModel) -> Verified:
    """Compare a copy of a stock model with the model itself and with the reference, on a tiny batch."""
    kind = stock.config.model_type
    try:
        with torch.no_grad():
            return _verified(kind, stock.eval())
    except InputError as error:
        return Verified(kind, "refused", first_line(error))


def _verified(kind: str, stock: PreTrainedModel) -> Verified:
    model = Model(copy.deepcopy(stock))
    base, padded = cast("PreTrainedModel", stock.base_model), PADDED
    batch = tiny_batch(base, "after" if model.causal else "between")
    shape = model.layers, model.heads, batch.n, batch.n
    constants = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(
        model.device, model.dtype
    )
    every = [(layer, head) for layer in range(model.layers) for head in range(model.heads)]
    has_reference = kind not in MODULES and model.checked.facts.softmax is None
    referenced = {"half": every[::2], "all": every} if has_reference else {}
    distances = {"stock": distance(model.run(batch), padded.states(base, batch))}
    for name, heads in referenced.items():
        with Reference(base, constants, heads, dense(batch)[1]):
            expected = padded.states(base, batch)
        distances[name] = distance(model.run(batch, model.replacement(constants, heads)), expected)
    indices = tuple(index for index in model.numbers if index is not None)
    all_attend = indices == tuple(range(len(indices))) and model.states <= len(indices) + 1
    return Verified(
        kind,
        str(model.form),
        why="",
        causal=model.causal,
        layers=model.layers,
        heads=model.heads,
        groups=model.groups,
        numbers=() if all_attend else indices,
        own_attention=_distance_with_own_attention(model, base, batch),
        skipped=_skipped_share(model),
        **distances,
    )


def _distance_with_own_attention(model: Model, base: PreTrainedModel, batch: Packed) -> float:
    # the last example of a tiny batch fills all slots
    ids, slots, segments = (
        values[-batch.n :] for values in (batch.ids, batch.slots, batch.segments)
    )
    single = Packed(ids, slots, segments, batch.lengths[-1:], batch.n)
    collected: list[torch.Tensor] = []
    model.watch(single, lambda _, attention, __: collected.append(attention[0]))
    constants = torch.stack(collected)
    if not torch.allclose(constants.sum(-1), torch.ones(()).to(constants), atol=1e-3):
        return float("nan")
    return distance(model.run(single, model.replacement(constants)), PADDED.states(base, single))


def _skipped_share(model: Model) -> float:
    none = torch.zeros(0, dtype=torch.long)
    projections = [
        module for module in model.full.modules() if isinstance(module, PrunedProjection)
    ]
    uses = [feeds for projection in projections for feeds in projection.feeds.values()]
    possible = sum(int((feeds.queries.any(0) | feeds.keys.any(0)).sum()) for feeds in uses)
    return sum(int((~feeds.needed(none)).sum()) for feeds in uses) / possible if possible else 0.0
