"""Whether papa computes with a model what the model computes, and with replaced heads what the formula says.

See `reference.py` for what is compared with.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from papa.data.packed import Packed, RawBatch
from papa.errors import InputError, first_line
from papa.model.check import distance, states_of, tiny_batch, tiny_raw_inputs
from papa.model.forms import MODULES, Form, dense, takes_text
from papa.model.model import Model, raw_batch
from papa.model.projections import SparingLinear
from papa.model.reference import Reference

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Verified:
    """What was found about a model.

    Args:
        kind: its type, as its config names it.
        form: packed or padded; "refused" if it cannot be used.
        why: why it is refused.
        causal: whether no token sees a later one.
        layers, heads, groups: its sizes; `layers` are those that attend.
        numbers: which of its layers attend, as it counts them itself; empty if all do.
        stock: the largest distance of its hidden states from those of the stock model, relative to their norm.
        half, all: the same from the reference, with every other head and with all heads replaced; nan if there is no
            reference because the attention of the model is a module of its own.
        own: the distance from the stock model if all heads use, as constants, their own attention to the one text that
            runs; nan if attention does not sum to one, as with sinks, which constants do.
        skipped: the share of the outputs of projections for queries and keys that is not computed if all are replaced.
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
    own: float = float("nan")
    skipped: float = float("nan")


def verify(stock: PreTrainedModel) -> Verified:
    """Compare a model with its stock form and with the reference, on a tiny batch; `stock` stays as it is."""
    kind = stock.config.model_type
    try:
        with torch.no_grad():
            return _verified(kind, stock.eval())
    except InputError as error:
        return Verified(kind, "refused", first_line(error))


def _verified(kind: str, stock: PreTrainedModel) -> Verified:
    model = Model(copy.deepcopy(stock))
    base = cast("PreTrainedModel", stock.base_model)
    text, padded = takes_text(base), Form(False)
    batch = (
        tiny_batch(base, "behind" if model.causal else "between") if text else raw_batch(base, tiny_raw_inputs(base))
    )

    def states(arguments: dict[str, Tensor]) -> list[Tensor]:
        return [padded.tokens(state, batch) for state in states_of(base, arguments)]

    arguments = padded.arguments(base, batch)
    found = {"stock": distance(model.run(batch), states(arguments))}
    chance = torch.Generator().manual_seed(0)
    shape = model.layers, model.heads, batch.n, batch.n
    constants = torch.rand(shape, generator=chance).to(model.device, model.dtype)
    if kind not in MODULES:
        every = [(layer, head) for layer in range(model.layers) for head in range(model.heads)]
        for name, heads in (("half", every[::2]), ("all", every)):
            with Reference(base, constants, heads, dense(batch)[1]):
                expected = states(arguments)
            found[name] = distance(model.run(batch, model.replacement(constants, heads)), expected)
    found["own"] = _with_own_attention(model, base, batch)
    return Verified(
        kind,
        str(model.form),
        "",
        model.causal,
        model.layers,
        model.heads,
        model.groups,
        _numbers(model),
        skipped=_skipped(model),
        **found,
    )


def _with_own_attention(model: Model, base: PreTrainedModel, batch: Packed) -> float:
    """How far all heads are from stock if their constants are their own attention to the one example that runs."""
    if isinstance(batch, RawBatch):
        one: Packed = raw_batch(base, {name: values[:1] for name, values in batch.arguments.items()})
    else:  # the last example of a tiny batch fills all slots
        ids, slots, segments = (own[-batch.n :] for own in (batch.ids, batch.slots, batch.segments))
        one = Packed(ids, slots, segments, batch.lengths[-1:], batch.n)
    collected: list[Tensor] = []
    model.observe(one, lambda _, attention, __: collected.append(attention[0]))
    constants, padded = torch.stack(collected), Form(False)
    if not torch.allclose(constants.sum(-1), torch.ones(()).to(constants), atol=1e-3):
        return float("nan")
    expected = [padded.tokens(state, one) for state in states_of(base, padded.arguments(base, one))]
    return distance(model.run(one, model.replacement(constants)), expected)


def _numbers(model: Model) -> tuple[int, ...]:
    """Which layers attend; empty if these are all, or if they have no numbers."""
    told = tuple(number for number in model.numbers if number is not None)
    return () if told == tuple(range(len(told))) and model.states <= len(told) + 1 else told


def _skipped(model: Model) -> float:
    """The share of the outputs that feed queries and keys that is not computed if all heads are replaced."""
    none = torch.zeros(0, dtype=torch.long)
    feeds = [
        own for module in model.full.modules() if isinstance(module, SparingLinear) for own in module.feeds.values()
    ]
    able = sum(int((own.queries.any(0) | own.keys.any(0)).sum()) for own in feeds)
    return sum(int((~own.needed(none)).sum()) for own in feeds) / able if able else 0.0
