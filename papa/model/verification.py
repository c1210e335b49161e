"""Measure a model's distances from the stock model and, with heads replaced, from the reference."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, cast

import torch

from papa.errors import InputError, first_line
from papa.model.check import distance
from papa.model.forms import PADDED
from papa.model.model import Model
from papa.model.projections import PrunedProjection
from papa.model.settling import Trial, is_distribution, only_last, stock_by_padding, unchanged

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
        half, all: distance from the reference, with every other head and with all heads replaced; NaN for models with
            their own attention, which have no reference.
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
    stock: float = nan
    half: float = nan
    all: float = nan
    own_attention: float = nan
    skipped: float = nan


def verify(stock: PreTrainedModel) -> Verified:
    """Check a stock model on a tiny batch; if papa can use it, its attention is replaced in place."""
    kind = stock.config.model_type
    try:
        with torch.no_grad():
            return _verified(kind, stock.eval())
    except InputError as error:
        return Verified(kind, "refused", first_line(error))


def _verified(kind: str, full: PreTrainedModel) -> Verified:
    base = cast("PreTrainedModel", full.base_model)
    stock = stock_by_padding(base)
    text = only_last(stock["after"][0])
    # before papa.Model replaces the attention
    with unchanged(base):
        states_of_text = PADDED.states(base, text)
    model = Model(full)
    trial = Trial(full, model.session)
    trial.form = model.form
    batch, _ = stock[trial.padding]
    distances = {}
    if trial.facts.softmax is None:  # only then, there is a reference
        distances["half"] = trial.distance_from_formula(batch, trial.every_head[::2])
        distances["all"] = trial.distance_from_formula(batch, trial.every_head)
    attention = torch.cat(trial.observed(text))
    if is_distribution(attention):
        states = trial.run(text, trial.replacement(attention))
        distances["own_attention"] = distance(states, states_of_text)
    indices = tuple(index for index in model.numbers if index is not None)
    # layers without attention also return states
    all_attend = indices == tuple(range(len(indices))) and model.states <= len(indices) + 1
    return Verified(
        kind,
        model.form.rows,
        why="",
        causal=model.causal,
        layers=model.layers,
        heads=model.heads,
        groups=model.groups,
        numbers=() if all_attend else indices,
        stock=trial.distance_from(stock[trial.padding]),
        skipped=_skipped_share(model),
        **distances,
    )


def _skipped_share(model: Model) -> float:
    pruned = [module for module in model.full.modules() if isinstance(module, PrunedProjection)]
    uses = [uses for projection in pruned for uses in projection.uses.values()]
    possible = sum(int(each.scores.sum()) for each in uses)
    skipped = sum(len(each.scores) - len(each.needed) for each in uses)
    return skipped / possible if possible else 0.0
