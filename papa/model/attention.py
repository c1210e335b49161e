"""Attention with replaceable heads: one function for every model that looks up its attention function by name.

A transformers model can call a *registered* attention function. The call comes after rotary embeddings and norms, and
before key heads are repeated. The model also calls a registered mask function with its *rule*, which decides whether a
query sees a key. This module registers both functions as `NAME`. Both follow the instructions in the `Session` of the
running model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from papa.data.packed import Examples
from papa.errors import InputError
from papa.model.replacement import (
    Attending,
    CausalMask,
    Layer,
    ObservedLayer,
    PaddingMask,
    Replacement,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "papa"
"""Name under which transformers finds the attention function and the mask function."""
BlockObserver = Callable[[ObservedLayer, Tensor, int], None]
Rule = Callable[..., bool]
"""Maps the indices of an example, a head, a query and a key to whether the query sees the key."""
HARMLESS_KEYWORDS = frozenset(
    """is_causal sliding_window output_attentions output_hidden_states use_cache return_dict position_ids
    cache_position deterministic cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k""".split()
)
"""Keywords of attention functions that papa can ignore: the mask already contains windows and causality."""


class Observed(Exception):
    """Ends a forward pass once the requested attention has been observed."""


class NotLookedUp(Exception):
    """The model does not look up its attention by name, so it may compute it in its own code."""


@dataclass(frozen=True)
class SoftmaxCalls:
    """The calls of softmax with which a model computes attention in its own code, one for each layer.

    Args:
        numbers: the index of each call among all calls of softmax in a pass.
        candidates: number of calls in a pass whose result has the shape of attention with all heads of a layer.
        axes: the axes of examples, heads, queries and channels in each product of attention and values.
        windows: the number of keys that a query sees at most; None if it sees all earlier ones, or all.
    """

    numbers: tuple[int, ...]
    candidates: int
    axes: tuple[tuple[int, ...], ...]
    windows: tuple[int | None, ...]


@dataclass(frozen=True)
class AttentionFacts:
    """Facts about a model's attention, read from one forward pass.

    `layers` counts layers with attention, and `heads` and `key_heads` are per layer; groups of heads share key heads.
    `layer_indices` are the layers' indices in the model's code, None for those without one; layers without attention
    are skipped. `causal` is True if no token sees a later one. `softmax` is None if the model looks up its attention by
    name.
    """

    layers: int
    heads: int
    key_heads: int
    layer_indices: tuple[int | None, ...]
    causal: bool
    softmax: SoftmaxCalls | None = None

    @classmethod
    def of(cls, name: str, session: Session, run: Callable[[], object]) -> AttentionFacts:
        """Run the model once, with `run`, and return the facts about its attention; error messages contain `name`.

        Raises:
            InputError: layers have different numbers of heads, or do not each call attention once and in order.
        """
        shapes: list[tuple[int, int]] = []
        layer_indices: list[int | None] = []
        causal: list[bool] = []

        def observe_rule(rule: Rule) -> None:
            # rules may index masks with their arguments, so these are tensors on the device of the masks
            zero = torch.zeros((), dtype=torch.long, device=session.layout.columns.device)
            causal.append(not rule(zero, zero, zero, zero + 1))

        def repeat_values(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            index = layer_index_of(module)
            earlier = [known for known in layer_indices if known is not None]
            if index is not None and earlier and index <= earlier[-1]:
                raise InputError(
                    f"{name} calls the attention of layer {index} after that of layer {earlier[-1]}; papa identifies "
                    "layers by counting calls, so each layer must call attention once, and in order."
                )
            if key.shape[1] != value.shape[1]:
                raise InputError(
                    f"{name} has {key.shape[1]} key heads but {value.shape[1]} value heads."
                )
            layer_indices.append(index)
            shapes.append((query.shape[1], key.shape[1]))
            values = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
            return values.transpose(1, 2).contiguous()

        session.stand_in = repeat_values
        session.rule_observer = observe_rule
        try:
            run()
        finally:
            session.stand_in = session.rule_observer = None
        # some models accept any name of an attention function without looking it up
        if not shapes:
            raise NotLookedUp
        if len(set(shapes)) > 1:
            raise InputError(f"the layers of {name} have different numbers of heads.")
        return cls(len(shapes), *shapes[0], tuple(layer_indices), any(causal))


def layer_index_of(module: nn.Module) -> int | None:
    """Return the index of an attention module's layer in the model's code; None if it has none."""
    # DistilBERT and ALBERT have none, and ALBERT shares one module over all layers, so calls are counted
    index = getattr(module, "layer_idx", None)
    return index if isinstance(index, int) and index >= 0 else None


@dataclass
class Session:
    """Instructions for a model's heads, and the state of its current forward pass.

    Args:
        replacement: instructions for each layer; empty until the number of layers is known.
        facts: facts about the model's attention; None until the first pass.
        observer: called with every layer, the attention `[example, head, query, key]` of a block of its queries, and
            the index of the first of them.
        observed_at_once: number of values of attention in a block; None means that all queries are one block.
        last_layer: index of the last observed layer; an observed pass ends after its attention.
        stand_in: computes contexts from module, query, key and value, in place of attention.
        rule_observer: called with the rule of every mask.
        catching: makes the context of a pass, which catches the softmax of a model with its own attention.
        examples: the layout of the batch; None outside a pass.
        calls: number of attention calls in this pass.
        lock: held during a pass, because all threads share the session.
    """

    replacement: Replacement = field(default_factory=list)
    facts: AttentionFacts | None = None
    observer: BlockObserver | None = None
    observed_at_once: int | None = None
    last_layer: int | None = None
    stand_in: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor] | None = None
    rule_observer: Callable[[Rule], None] | None = None
    catching: Callable[[], AbstractContextManager[object]] = nullcontext
    examples: Examples | None = None
    calls: int = 0
    lock: RLock = field(default_factory=RLock)

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one; False until the facts are known."""
        return self.facts is not None and self.facts.causal

    @property
    def known(self) -> AttentionFacts:
        """The facts about the model's attention, once they are known."""
        if self.facts is None:
            raise RuntimeError("the model has not been run yet")
        return self.facts

    @property
    def softmax_calls(self) -> SoftmaxCalls:
        """The calls of softmax of a model with its own attention."""
        if self.known.softmax is None:
            raise RuntimeError("the model looks up its attention by name")
        return self.known.softmax

    @contextmanager
    def over(self, examples: Examples, replacement: Replacement | None = None) -> Iterator[None]:
        """Make this session current for one pass over `examples`, with another replacement if one is passed."""
        # reentrant, so a hook that calls the model gets an error instead of waiting for its own thread
        with self.lock:
            if self.examples is not None:
                raise InputError(
                    "The model was called while it was running, for example by a hook; call it before or afterwards."
                )
            before = self.replacement
            self.replacement = before if replacement is None else replacement
            self.examples = examples
            self.calls = 0
            try:
                with running(self):
                    yield
                self.check_calls()
            finally:
                self.replacement = before
                self.examples = None

    def check_calls(self) -> None:
        """Raise `InputError` unless each layer has called its attention once in this pass."""
        if self.facts is not None and self.calls != self.facts.layers:
            raise InputError(
                f"The model called attention {self.calls} times, but has {self.facts.layers} layers; its attention "
                "cannot be replaced on these inputs."
            )

    @property
    def layout(self) -> Examples:
        """The layout of the batch."""
        if self.examples is None:
            raise RuntimeError("no pass has begun")
        return self.examples

    def next_layer(self, module: nn.Module) -> int:
        """Count a call of attention, and return the index of its layer."""
        layer = self.calls
        if self.replacement and layer >= len(self.replacement):
            raise InputError(
                f"{type(module).__name__} called attention more often than the model has layers "
                f"({len(self.replacement)}); such a model cannot be used."
            )
        if self.facts is not None and layer_index_of(module) != self.facts.layer_indices[layer]:
            raise InputError(
                f"Layer {layer_index_of(module)} of {type(module).__name__} called attention when it was the turn of "
                f"layer {self.facts.layer_indices[layer]}; such a model cannot be used."
            )
        self.calls += 1
        return layer


# a context variable, because threads may run different models at the same time
_running: ContextVar[Session | None] = ContextVar("papa_session", default=None)


@contextmanager
def running(session: Session) -> Iterator[None]:
    """Make `session` current inside the `with` block."""
    token = _running.set(session)
    try:
        with session.catching():
            yield
    finally:
        _running.reset(token)


def current() -> Session:
    """Return the session of the running model; raise `InputError` if there is none."""
    session = _running.get()
    if session is None:
        raise InputError(
            "A part of a model with papa's attention was called directly, or `generate` used a cache of fixed size; "
            "call the whole model (or its papa.Model), with a cache that grows."
        )
    return session


def register() -> str:
    """Register the attention and mask functions in transformers, and return their name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    return NAME


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Let a model look up its attention by this name; a model that looks up none stays unchanged."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # it warns of models that look up none
    try:
        model.set_attn_implementation(name)
    finally:
        logging.set_verbosity(verbosity)
    # transformers < 5.7 overlooks that ModernBERT looks it up
    looks_up = hasattr(sys.modules.get(type(model).__module__), "ALL_ATTENTION_FUNCTIONS")
    if model.config._attn_implementation != name and looks_up:
        model.config._attn_implementation = name


def mask(
    batch_size: int,
    kv_length: int,
    mask_function: Rule,
    attention_mask: Tensor | None = None,
    **_: object,
) -> Tensor | None:
    """Apply the model's rule to the tokens of the running batch, and mask padding.

    Returns:
        bool `[example or 1, 1, query or 1, key]`, True if the query sees the key; None if every query sees every key.
    """
    session = current()
    examples = session.layout
    if not examples.packed and kv_length > examples.slots.shape[1]:
        raise InputError(
            f"The cache has {kv_length} keys, but attention_mask has {examples.slots.shape[1]}; let `generate` use a "
            "cache that grows, which is its default."
        )
    if session.rule_observer is not None:
        session.rule_observer(mask_function)
    return allowed_keys(mask_function, examples.last(kv_length, examples.queries))


def allowed_keys(rule: Rule, examples: Examples) -> Tensor | None:
    """Return the keys that queries see under a transformers rule; shapes as in `mask`."""
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    real = examples.real_keys
    # a rule that only wraps this one, for example with a window, is another object
    if rule is bidirectional_mask_function:
        return None if real is None else real.as_subclass(PaddingMask)
    columns = examples.distinct(examples.columns)
    length = columns.shape[1]
    if rule is causal_mask_function and examples.left_aligned and examples.queries == length:
        # tokens are in the order of their slots, and padding comes last
        square = torch.ones(1, 1, length, length, dtype=torch.bool, device=columns.device)
        return square.tril().as_subclass(CausalMask)
    # to the model, a packed row is one example
    rows = torch.arange(len(columns), device=columns.device)[:, None, None]
    rows = torch.zeros_like(rows) if examples.packed else rows
    seen = rule(
        rows, torch.zeros_like(rows), columns[:, -examples.queries :, None], columns[:, None, :]
    )
    allowed = torch.as_tensor(seen).expand(len(columns), examples.queries, length)[:, None]
    allowed = allowed if real is None else allowed & real
    # softmax needs at least one key; a padding query may see none, and its context is never read
    return allowed | ~allowed.any(-1, keepdim=True)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Compute the context of a layer according to the session of the running model.

    Args:
        module: the layer's attention.
        query, key, value: `[1, head, token, channel]` for a packed row, otherwise `[example, head, slot, channel]`;
            keys and values may have fewer heads, each shared by a group of heads.
        attention_mask: the result of `mask`, or a mask that the model made itself.
        keywords: scaling, dropout and other operations on scores.

    Returns:
        `[1, token, head, channel]` or `[example, slot, head, channel]`.

    Raises:
        InputError: the model passes an unknown keyword, which may change attention.
    """
    session = current()
    index = session.next_layer(module)
    if session.stand_in is not None:
        return session.stand_in(module, query, key, value), None
    examples = session.layout.last(key.shape[2], query.shape[2])
    scored, dropout = scored_by(module, query, key, attention_mask, keywords)
    # such terms are indexed by the columns of a row, and those of a packed row run on from example to example
    if examples.packed and (
        scored.added is not None or (attention_mask is None and examples.real is not None)
    ):
        raise InputError(
            f"{type(module).__name__} adds terms to its scores that are not defined for a packed row."
        )
    layer = Layer(index, examples, dropout, scored, examples.spread_heads(value))
    return examples.gather_heads(context_of(session, layer)), None


def scored_by(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, keywords: Mapping[str, Any]
) -> tuple[Attending, float]:
    """Return how a call of attention scores the model's queries and keys, and its dropout.

    Raises:
        InputError: a keyword is unknown.
    """
    known = {
        name: value
        for name, value in keywords.items()
        if value is not None and name not in HARMLESS_KEYWORDS
    }
    scaling = known.pop("scaling", query.shape[-1] ** -0.5)
    dropout = known.pop("dropout", 0.0)
    softcap, sinks, added = (
        known.pop(name, None) for name in ("softcap", "s_aux", "position_bias")
    )
    # an option that is switched off cannot change attention
    unknown = [name for name, value in known.items() if value is not False]
    if unknown:
        raise InputError(
            f"{type(module).__name__} passes {', '.join(unknown)} to its attention, which papa does not support; "
            "such a model cannot be used."
        )
    if mask is not None and mask.dtype != torch.bool:  # the model made this mask itself
        added = mask if added is None else mask + added
        # hidden keys have the lowest number, but not exactly if the model has added a bias
        mask = mask > torch.finfo(mask.dtype).min / 2
    return Attending(
        query, key, scaling, mask, isinstance(mask, CausalMask), added, softcap, sinks
    ), dropout


def context_of(session: Session, layer: Layer) -> Tensor:
    """Return the context of all heads of a layer, `[example, head, position, channel]`; call the observer, if any."""
    if session.observer is None:
        return layer.context(session.replacement[layer.index])
    heads = layer.attending(None)
    values = layer.values(None)
    queries = heads.query.shape[2]
    of_query = values.shape[0] * values.shape[1] * heads.key.shape[2]
    size = queries
    if session.observed_at_once is not None:
        size = max(1, session.observed_at_once // of_query)
    contexts = []
    for begin in range(0, queries, size):
        block = heads if size >= queries else heads.of_queries(begin, begin + size)
        attention = block.attention()
        session.observer(layer, attention, begin)
        if layer.index != session.last_layer:
            contexts.append(attention @ values)
        del attention  # before the next block
    if layer.index == session.last_layer:
        raise Observed
    return contexts[0] if len(contexts) == 1 else torch.cat(contexts, dim=2)
