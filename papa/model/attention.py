"""Attention in which heads can be replaced: one function for every model that calls its attention by a name.

transformers lets a model call a *registered* attention function, after rotary embeddings and norms of queries and keys,
before the heads of keys are repeated; and a registered mask function, which is given the rule by which the model lets a
query see a key. Both stand here, under `NAME`. What they are to do is in the `Session` of the model that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from papa.data.packed import Examples
from papa.errors import InputError
from papa.model.replacement import (
    Attending,
    Constant,
    Mix,
    Outputs,
    Replace,
    Replacement,
    kept_context,
    mixed_context,
    outputs_at,
    replaced_context,
    restrict,
)

NAME = "papa"
"""The name of attention and mask function among those of transformers."""
Rule = Callable[..., Any]
"""Whether, in an example, a head's query sees a key: by number of example, head, and columns of query and key."""
HARMLESS = frozenset(
    """is_causal sliding_window output_attentions output_hidden_states use_cache return_dict position_ids
    cache_position deterministic cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k""".split()
)
"""What models hand to attention and what changes nothing here: windows and directions are in the rule."""


class Observed(Exception):
    """The attention that was asked for is observed, and nothing after it is needed."""


@dataclass
class Session:
    """What a model is to do with its heads in one forward pass, and where it is in it.

    Args:
        replacement: what each layer does; empty before the number of layers is known.
        examples: where the tokens of the examples stand.
        late: whether it is the model that tells where they stand, when it makes its mask or attends.
        observer: sees every layer and its attention `[example, head, query, key]`.
        last: the layer after whose attention nothing is needed; None if everything is.
        called: layers that called attention since the pass began.
        numbers: the number that the model itself gives to each layer that attends, None where it gives none; empty
            before they are known. In models that mix attention with other layers they leave some out.
        causal: whether a rule was met that lets no query see a later key.
        triangle: the mask that lets every query see all keys up to its own, if that is the rule.
        spy: sees what a layer gives to attention, and stands in its place.
        lock: held while a pass runs, because there is one session for all threads.
    """

    replacement: Replacement = field(default_factory=list)
    examples: Examples | None = None
    observer: Callable[[Layer, Tensor], None] | None = None
    last: int | None = None
    called: int = 0
    numbers: tuple[int | None, ...] = ()
    causal: bool = False
    triangle: Tensor | None = None
    spy: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor] | None = None
    late: bool = False
    lock: RLock = field(default_factory=RLock)

    def begin(self, examples: Examples | None) -> None:
        """Forget where the last pass was."""
        self.examples, self.called, self.triangle = examples, 0, None

    def layer(self, module: nn.Module) -> int:
        """The number of the layer whose attention is called now."""
        layer = self.called
        if self.replacement and layer >= len(self.replacement):
            raise InputError(
                f"{type(module).__name__} called attention more often than the model has layers, "
                f"{len(self.replacement)}; such a model cannot be used."
            )
        if self.numbers and number_of(module) != self.numbers[layer]:
            raise InputError(
                f"{type(module).__name__} of layer {number_of(module)} called attention where layer "
                f"{self.numbers[layer]} did before; such a model cannot be used."
            )
        self.called += 1
        return layer


def number_of(module: nn.Module) -> int | None:
    """The number that a model gives to the layer of an attention module, if it gives one."""
    told = getattr(module, "layer_idx", None)
    return told if isinstance(told, int) and told >= 0 else None


@dataclass(frozen=True)
class Facts:
    """What attention of a model there is: layers that attend, heads, heads of keys, `numbers` as in `Session`."""

    layers: int
    heads: int
    groups: int
    numbers: tuple[int | None, ...]
    causal: bool

    @classmethod
    def of(cls, name: str, session: Session, run: Callable[[], object]) -> Facts:
        """What a model called `name` has, from one pass of it.

        Raises:
            InputError: layers are not alike, or do not call attention once each in their order.
        """
        calls: list[tuple[int, int]] = []
        numbers: list[int | None] = []

        def spy(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            number = number_of(module)
            told = [own for own in numbers if own is not None]
            if number is not None and told and number <= told[-1]:
                raise InputError(
                    f"{name} calls the attention of layer {number} after that of layer {told[-1]}; papa counts calls, "
                    "so layers have to call attention once each, in their order."
                )
            if key.shape[1] != value.shape[1]:
                raise InputError(f"{name} has {key.shape[1]} heads of keys and {value.shape[1]} of values.")
            numbers.append(number)
            calls.append((query.shape[1], key.shape[1]))
            return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2).contiguous()

        session.spy = spy
        try:
            run()
        finally:
            session.spy = None
        if not calls:
            raise InputError(f"{name} calls no attention function by its name, so that its attention stays as it is.")
        if len(set(calls)) > 1:
            raise InputError(f"the layers of {name} have different numbers of heads.")
        return cls(len(calls), *calls[0], tuple(numbers), session.causal)


_running: ContextVar[Session | None] = ContextVar("papa_session", default=None)


@contextmanager
def running(session: Session) -> Iterator[None]:
    """Let the model that runs inside do what its session says."""
    token = _running.set(session)
    try:
        yield
    finally:
        _running.reset(token)


def current() -> tuple[Session, Examples]:
    """The session of the model that runs, and its examples; raises `InputError` if a model runs without them."""
    session = _running.get()
    if session is None:
        raise InputError("A model with papa's attention was called by itself; call it through papa.")
    if session.examples is None:
        raise InputError(
            "Attention was asked for outside of a call of the model whose attention is replaced, by a part of it or by "
            "generate with a cache of a fixed size; call that model itself, with a cache that grows."
        )
    return session, session.examples


def visible(mask: Tensor) -> Tensor:
    """Which keys queries see by a mask that is bool, or added to scores."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def told_late() -> Session | None:
    """The session of a model that takes no text, if it has not told yet where its tokens stand."""
    session = _running.get()
    return session if session is not None and session.late and session.examples is None else None


def registered() -> str:
    """Register both functions with transformers, and return their name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    return NAME


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Rule,
    attention_mask: Tensor | None = None,
    **more: object,
) -> Tensor | None:
    """The mask function: the model's own rule, at the slots of the examples that run, and real keys alone.

    Returns:
        bool `[example or 1, 1, query or 1, key]`; None if every query sees every key.
    """
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    if (late := told_late()) is not None:
        if attention_mask is None and mask_function is bidirectional_mask_function:
            return None  # all see all, and attention itself says how many these are
        told = torch.ones(batch_size, kv_length) if attention_mask is None else attention_mask
        late.examples = Examples.of_mask(told)
    session, whole = current()
    if not whole.packed and kv_length > whole.slots.shape[1]:
        raise InputError(
            f"The cache has room for {kv_length} keys and the attention_mask for {whole.slots.shape[1]}; let generate "
            "use a cache that grows, which is its default."
        )
    examples = whole.last(kv_length)
    real = None if examples.real is None else examples.real[:, None, None, :]
    if mask_function is bidirectional_mask_function:
        return real
    zero = torch.zeros((), dtype=torch.long, device=examples.columns.device)
    if not bool(mask_function(zero, zero, zero, zero + 1)):
        session.causal = True
        whole.count_from_first()
    if mask_function is causal_mask_function and examples.first and examples.queries == examples.slots.shape[1]:
        # places follow each other in the order of slots, and those without a token come last
        places = examples.slots.shape[1]
        session.triangle = torch.ones(places, places, dtype=torch.bool, device=zero.device).tril()[None, None]
        return session.triangle
    columns = examples.columns[:1] if examples.alike else examples.columns
    # a packed row is one row to the model, whatever it contains
    rows = torch.arange(len(columns), device=columns.device)[:, None, None]
    rows = torch.zeros_like(rows) if examples.packed else rows
    seen = mask_function(rows, torch.zeros_like(rows), columns[:, -examples.queries :, None], columns[:, None, :])
    allowed: Tensor = seen.expand(len(columns), examples.queries, columns.shape[1])[:, None]
    allowed = allowed if real is None else allowed & real
    # a query of padding may see nothing, which has no softmax; what it sees is never read, and has no gradient
    return allowed | ~allowed.any(-1, keepdim=True)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **more: Any,
) -> tuple[Tensor, None]:
    """The attention function.

    Args:
        module: the layer's attention.
        query, key, value: `[1, head, token, channel]` of a packed row or `[example, head, slot, channel]`; keys and
            values may have fewer heads, each of which serves a group.
        attention_mask: what `mask` gave.
        more: scaling and dropout, and what else the model does to scores.

    Returns:
        `[1, token, head, channel]` or `[example, slot, head, channel]`.

    Raises:
        InputError: the model hands over something that is not known here, so that it cannot be left out.
    """
    if (late := told_late()) is not None:
        # in a mask that the model made of its own, padding is what no query sees
        seen = key.new_ones(1, 1, 1, key.shape[2]) > 0 if attention_mask is None else visible(attention_mask)
        late.examples = Examples.of_mask(seen.flatten(1, 2).any(1).expand(len(key), -1))
    session, whole = current()
    if session.late and key.shape[:3:2] != whole.slots.shape:
        raise InputError(
            f"{type(module).__name__} attends over {key.shape[2]} tokens in {len(key)} rows, and the layer before it "
            f"over {whole.slots.shape[1]} in {len(whole.slots)}; layers have to attend over the same tokens."
        )
    examples = whole.last(key.shape[2])
    layer = session.layer(module)
    if session.spy is not None:
        return session.spy(module, query, key, value), None
    given = {name: what for name, what in more.items() if what is not None and name not in HARMLESS}
    scaling, dropout = given.pop("scaling", query.shape[-1] ** -0.5), given.pop("dropout", 0.0)
    softcap, sinks, bias = (given.pop(name, None) for name in ("softcap", "s_aux", "position_bias"))
    unknown = [name for name, what in given.items() if what is not False]
    if unknown:
        raise InputError(
            f"{type(module).__name__} hands {', '.join(unknown)} to its attention, which papa does not know; "
            "such a model cannot be used."
        )
    allowed, added = attention_mask, bias
    if attention_mask is not None and attention_mask.dtype != torch.bool:  # the model makes masks of its own
        allowed = visible(attention_mask)
        added = attention_mask if bias is None else attention_mask + bias
    if examples.packed and (added is not None or (allowed is None and examples.real is not None)):
        raise InputError(f"{type(module).__name__} adds to its scores what papa cannot take to a packed row.")
    own = session.replacement[layer] if session.replacement else None
    heads = len(own.order) if isinstance(own, Replace) else query.shape[1]
    groups, values = heads // value.shape[1], examples.spread_heads(value)

    def attending(kept: Tensor | None) -> Attending:
        own_bias = added if added is None or kept is None or added.shape[1] == 1 else added[:, kept]
        own_sinks = sinks if sinks is None or kept is None else sinks[kept]
        # projections may have computed kept heads alone
        of_query, of_key = kept, None if kept is None else kept // groups
        if query.shape[1] != heads:
            of_query = None
        if key.shape[1] != value.shape[1] and isinstance(own, Replace):
            of_key = own.keys_of(groups) if groups > 1 else None
        queries, keys = examples.spread_heads(query, of_query), examples.spread_heads(key, of_key)
        keys = grouped(keys, groups, None) if kept is None else keys
        causal = allowed is not None and allowed is session.triangle
        return Attending(queries, keys, scaling, allowed, causal, own_bias, softcap, own_sinks)

    of = Layer(layer, examples, attending, lambda heads: grouped(values, groups, heads), allowed, dropout)
    context = context_of(session, of)
    return examples.gather_heads(context, query.shape[2]), None


def grouped(of_groups: Tensor, groups: int, heads: Tensor | None) -> Tensor:
    """Keys or values `[example, head, place, channel]` of the given heads (None: all), each that of its group."""
    if heads is not None:
        if of_groups.is_contiguous():
            return of_groups.index_select(1, heads // groups)
        # as it lies in memory, which is several times as fast as an index of the second dimension
        return of_groups.transpose(1, 2).index_select(2, heads // groups).transpose(1, 2)
    return of_groups if groups == 1 else of_groups.repeat_interleave(groups, dim=1)


@dataclass(frozen=True)
class Layer:
    """The attention of a layer, of which no more is computed than is asked for.

    Args:
        number: of the layer.
        examples: where their tokens stand.
        attending: the given heads (None: all), as they attend.
        values: the values of the given heads (None: all), `[example, head, place, channel]`.
        allowed: see `restrict`.
        dropout: the share of the entries of attention and constants that is dropped.
    """

    number: int
    examples: Examples
    attending: Callable[[Tensor | None], Attending]
    values: Callable[[Tensor | None], Tensor]
    allowed: Tensor | None
    dropout: float

    def distances(self, attention: Tensor, constant: Constant) -> Tensor:
        """How far all heads, which attend so, are from their constant: squared, `[example, head, query]`."""
        if isinstance(constant, Outputs):
            own, other = attention @ self.values(None), outputs_at(constant, self.examples)
        else:
            own, other = attention, restrict(constant, self.examples, self.allowed)
        return (own.float() - other.float()).square().sum(-1)

    def replaced(self, constant: Constant, heads: Tensor | None) -> Tensor:
        """The context of the given heads (None: all), whose constants these are."""
        values = self.values(heads)
        if isinstance(constant, Outputs):
            return outputs_at(constant, self.examples).expand(len(values), -1, -1, -1)
        return replaced_context(restrict(constant, self.examples, self.allowed), values, self.dropout)

    def mixed(self, weights: Tensor, constant: Constant) -> Tensor:
        """The context of all heads, which use so much of their attention and else their constant."""
        heads, values = self.attending(None), self.values(None)
        if isinstance(constant, Outputs):
            own, outputs = kept_context(heads, values, self.dropout), outputs_at(constant, self.examples)
            return outputs + weights[..., None, None] * (own - outputs)
        constants = restrict(constant, self.examples, self.allowed)
        return mixed_context(weights, constants, heads, values, self.dropout)


def context_of(session: Session, layer: Layer) -> Tensor:
    """What all heads of a layer make of their values, `[example, head, place, channel]`, as the session says."""
    if session.observer is not None:
        attention = layer.attending(None).attention()
        session.observer(layer, attention)
        if layer.number == session.last:
            raise Observed
        return attention @ layer.values(None)
    own = session.replacement[layer.number]
    if isinstance(own, Replace):
        if not len(own.kept):
            return layer.replaced(own.constant, None)
        replaced = layer.replaced(own.constant, own.heads)
        kept = kept_context(layer.attending(own.kept), layer.values(own.kept), layer.dropout)
        return torch.cat([kept, replaced], dim=1).index_select(1, own.order)
    if isinstance(own, Mix):
        return layer.mixed(own.weights, own.constant)
    return kept_context(layer.attending(None), layer.values(None), layer.dropout)
