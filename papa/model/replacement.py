"""Constants, which take the place of softmax attention and multiply the value vectors (Sec. 3.3).

Nothing here depends on the type of the model. Let C be a head's constant, and R the slots of an example's real tokens.
The head uses C restricted to R × R, with each row divided by the sum of its absolute values. A row of zeros stays zero.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, softmax

from papa.data.packed import Examples
from papa.errors import InputError

Head = tuple[int, int]
"""The index of a layer, and the index of a head in this layer."""
Heads = Iterable[Head] | None
"""Some heads of a model; None means all."""


FEW_POSITIONS = 64
"""For texts of at most this length, a CPU mixes matrices faster than contexts."""


class PaddingMask(Tensor):
    """A mask that hides padding, and nothing else, from every query; operations on it return plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] # as in torch's Parameter


class CausalMask(PaddingMask):
    """A mask that lets every query see exactly the keys up to its position; padding is after them."""


@dataclass(frozen=True)
class Substitute(ABC):
    """Constants of all heads of a model, `values` `[layer, head, slot, ...]`, or of some heads of a layer.

    Contexts and values of tokens are `[example, head, position, channel]`.
    """

    values: Tensor

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self.values.shape[-2]

    def to(self, like: Tensor) -> Substitute:
        """Return a copy with the device and dtype of the given tensor."""
        return replace(self, values=self.values.to(like))

    def of_heads(self, layer: int, heads: Tensor | None = None) -> Substitute:
        """Return the constants of these heads (None: all) of a layer, from those of all layers."""
        return replace(
            self, values=self.values[layer] if heads is None else self.values[layer, heads]
        )

    @abstractmethod
    def context(self, layer: Layer, heads: Tensor | None) -> Tensor:
        """Return the context of these heads (None: all) of a layer, which use these constants.

        As in the published code, dropout follows replacing and mixing, so entries of constants are dropped too.
        """

    def mixed(self, layer: Layer, weights: Tensor) -> Tensor:
        """Return the context of heads that interpolate from these constants (weight 0) to attention (weight 1).

        See Sec. 3.2; weights are `[head]` or `[example, head]`.
        """
        context = self.context(layer, None)
        return context + weights[..., None, None] * (layer.kept(None) - context)


@dataclass(frozen=True)
class Outputs(Substitute):
    """Constant head outputs `[..., slot, channel]`, used instead of the product of a matrix and the value vectors."""

    def context(self, layer: ObservedLayer, heads: Tensor | None) -> Tensor:
        del heads
        examples = layer.examples
        slots = _slots(self, examples)[:, -examples.queries :]
        return self.values[:, slots].transpose(0, 1).expand(len(examples.slots), -1, -1, -1)


@dataclass(frozen=True)
class Matrices(Substitute):
    """Matrices with one value per pair of slots, `[..., query, key]`."""

    def context(self, layer: Layer, heads: Tensor | None) -> Tensor:
        examples = layer.examples
        allowed = layer.allowed
        values = layer.values(heads)
        known = examples.real is None if allowed is None else isinstance(allowed, PaddingMask)
        if layer.dropout or not known or examples.queries != values.shape[2]:
            return _dropped(restrict(self, examples, allowed), len(values), layer.dropout) @ values
        # faster: one matrix for all examples, over the slots that any of them uses
        _slots(self, examples)  # for its error, which a GPU would report too late
        slots, place, occupied = examples.by_slot
        matrix = self.values[:, slots[:, None], slots]
        matrix = matrix.tril() if isinstance(allowed, CausalMask) else matrix
        index = place[:, None, :, None].expand(values.shape)
        real = values if examples.real is None else values * examples.real[:, None, :, None]
        # added, because an empty position may name the slot of a token; its values are zero
        laid = values.new_zeros(*values.shape[:2], len(slots), values.shape[3]).scatter_add(
            2, index, real
        )
        total = torch.einsum("hqk,ek->ehq", matrix.abs(), occupied.to(matrix))[..., None]
        product = torch.einsum("hqk,ehkc->ehqc", matrix, laid) / torch.where(total > 0, total, 1)
        return product.gather(2, index)

    def mixed(self, layer: Layer, weights: Tensor) -> Tensor:
        values = layer.values(None)
        short = (
            values.shape[2] <= FEW_POSITIONS or values.dtype != torch.float32
        )  # rounded contexts differ too much
        if not layer.dropout and not (short and values.device.type == "cpu"):
            return super().mixed(layer, weights)
        attention = layer.attending(None).attention()
        constants = restrict(self, layer.examples, layer.allowed).to(attention).expand_as(attention)
        mixed = torch.lerp(constants, attention, weights[..., None, None].to(attention))
        return torch.dropout(mixed, layer.dropout, True) @ values


class HasConstants(Protocol):
    """Any object with constants, such as averages."""

    @property
    def constants(self) -> Loaded: ...


Loaded = Tensor | Outputs
"""The constants that stages read."""
AnyConstants = Loaded | HasConstants
"""The substitute for the attention of all heads: matrices `[layer, head, query, key]`, outputs of heads, or an object
with one of these as `constants`."""


@dataclass(frozen=True)
class Keep:
    """All heads keep their attention."""


@dataclass(frozen=True)
class Replace:
    """The heads in `heads` use their `substitute`; the heads in `kept` keep their attention."""

    heads: Tensor
    substitute: Substitute
    kept: Tensor

    @cached_property
    def order(self) -> Tensor:
        """The position of each head, `[head]`, in a list of kept heads followed by replaced heads."""
        with torch.inference_mode(False):  # or no gradient could pass it later
            return torch.cat([self.kept, self.heads]).argsort()

    def joined(self, kept: Tensor, constants: Tensor) -> Tensor:
        """Return the values of all heads, `[example, head, ...]`, from those of kept and of replaced heads."""
        return torch.cat([kept, constants], dim=1).index_select(1, self.order)

    def applied(self, values: Tensor, constants: Tensor) -> Tensor:
        """Return values of all heads, `[example, head, ...]`, in which replaced heads have `constants`."""
        return self.joined(values.index_select(1, self.kept), constants)


@dataclass(frozen=True)
class Mix:
    """Every head uses weight * attention + (1 - weight) * substitute; `weights` are `[head]` or `[example, head]`."""

    weights: Tensor
    substitute: Substitute

    def applied(self, values: Tensor, constants: Tensor) -> Tensor:
        """Return values of all heads, `[example, head, query, ...]`, mixed with `constants`."""
        return torch.lerp(constants, values, self.weights[..., None, None].to(values))


Replacement = list[Keep | Replace | Mix]
"""One instruction for the heads of each layer."""


def replacement_of(
    shape: tuple[int, int],
    constants: AnyConstants | None = None,
    heads: Heads = None,
    mixing: Tensor | None = None,
    *,
    like: Tensor | None = None,
) -> Replacement:
    """Return the replacement for a model of `shape` (layers, heads per layer).

    Args:
        constants: see `Constants`; None replaces nothing.
        heads: (layer, head) pairs to replace; None means all.
        mixing: weights `[layer, head]` in [0, 1] of each head's attention; cannot be combined with `heads`.
        like: a tensor whose device and dtype constants and weights get.

    Raises:
        InputError: the arguments do not fit the shape or each other.
    """
    if constants is None:
        if heads is not None or mixing is not None:
            raise InputError(
                "heads or mixing were given without constants; pass the constants that replace attention."
            )
        return [Keep() for _ in range(shape[0])]
    checked = _checked(constants, shape)
    checked = checked if like is None else checked.to(like)
    if mixing is not None:
        if heads is not None:
            raise InputError(
                "mixing and heads exclude each other; give the heads to be kept a mixing weight of 1."
            )
        if tuple(mixing.shape) != shape:
            raise InputError(
                f"mixing has shape {list(mixing.shape)}; this model needs [layer, head] = {list(shape)}."
            )
        if not ((mixing >= 0) & (mixing <= 1)).all():
            raise InputError("mixing contains weights outside [0, 1].")
        return [
            Mix(weights, checked.of_heads(layer))
            for layer, weights in enumerate(mixing.to(checked.values))
        ]
    chosen = torch.ones(shape, dtype=torch.bool) if heads is None else _chosen(heads, shape)
    replacement: Replacement = []
    for layer, in_layer in enumerate(chosen.tolist()):
        replaced, kept = _replaced_and_kept(tuple(in_layer), checked.values.device)
        substitute = checked.of_heads(layer, None if all(in_layer) else replaced)
        replacement.append(Replace(replaced, substitute, kept) if len(replaced) else Keep())
    return replacement


@lru_cache(maxsize=1024)
def _replaced_and_kept(chosen: tuple[bool, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the indices of the replaced and of the kept heads of a layer; `chosen` is True for replaced ones.

    Equal choices share their tensors. So constants that change in every training step cause no copies to the device.
    """
    with torch.inference_mode(False):  # they may be created while scoring and used while training
        mask = torch.tensor(chosen)
        return mask.nonzero().squeeze(1).to(device), (~mask).nonzero().squeeze(1).to(device)


def _checked(constants: AnyConstants, shape: tuple[int, int]) -> Substitute:
    """Return the constants of all heads; raise `InputError` unless they fit the model's shape and are finite.

    Constants in training may contain non-finite values, which the training reports itself.
    """
    values = getattr(constants, "constants", constants)
    checked = Matrices(values) if isinstance(values, Tensor) else values
    form = [*checked.values.shape] if isinstance(checked, Substitute) else type(constants).__name__
    if not isinstance(checked, Substitute) or len(form) != 4 or tuple(form[:2]) != shape:
        raise InputError(
            f"The constants are {form}; this model needs a torch tensor [layer, head, query, key] = "
            f"[{shape[0]}, {shape[1]}, slots, slots], or constants that papa made for it."
        )
    if isinstance(checked, Matrices) and form[2] != form[3]:
        raise InputError(f"Constant matrices must be square; they are [query, key] = {form[2:]}.")
    if not checked.values.requires_grad and checked.values.numel():
        # aminmax propagates NaN; isfinite() would allocate a mask as large as the constants
        for end in checked.values.aminmax():
            if not end.isfinite():
                raise InputError("The constants contain NaN or infinity; pass finite ones.")
    return checked


def _chosen(heads: Iterable[Head], shape: tuple[int, int]) -> Tensor:
    layers, per_layer = shape
    chosen = torch.zeros(shape, dtype=torch.bool)
    for pair in heads if isinstance(heads, Iterable) else [heads]:
        try:
            # `index` accepts NumPy's integers and refuses fractions, which `int` would truncate
            layer, head = map(operator.index, pair)
        except (TypeError, ValueError):
            raise InputError(
                f"heads contains {pair!r}; it must contain pairs (layer, head), such as (0, 3)."
            ) from None
        if not (0 <= layer < layers and 0 <= head < per_layer):
            raise InputError(
                f"Head {(layer, head)} does not exist; the model has {layers} layers of {per_layer} heads."
            )
        chosen[layer, head] = True
    return chosen


def check_slots(replacement: Replacement, slots: int) -> None:
    """Raise `InputError` unless all constants have this number of slots."""
    for instruction in replacement:
        if not isinstance(instruction, Keep) and instruction.substitute.slots != slots:
            expected = instruction.substitute.slots
            raise InputError(
                f"The constants have {expected} slots but the inputs {slots}; the numbers must agree."
            )


def replaced_in(replacement: Replacement) -> list[Head]:
    """Return the (layer, head) pairs that are replaced; heads that are mixed are not included."""
    return [
        (layer, head)
        for layer, instruction in enumerate(replacement)
        if isinstance(instruction, Replace)
        for head in instruction.heads.tolist()
    ]


def restrict(matrices: Matrices, examples: Examples, allowed: Tensor | None) -> Tensor:
    """Restrict constants to the tokens of examples, `[example or 1, head, query, key]`, and normalise each row.

    Args:
        matrices: constants of some heads, indexed by slot.
        examples: the layout with the slots of the tokens.
        allowed: bool `[example or 1, head or 1, query or 1, key]`, True if the query sees the key; None means that
            every query sees every key.

    Raises:
        InputError: a token is in a slot that the constants lack.
    """
    slots = _slots(matrices, examples)
    pairs = slots[:, -examples.queries :, None] * matrices.slots + slots[:, None, :]
    selected = matrices.values.flatten(1).index_select(1, pairs.flatten())
    entries = selected.view(-1, *pairs.shape).transpose(0, 1)
    if allowed is not None:
        entries = entries * allowed
    total = entries.abs().sum(-1, keepdim=True)
    return entries / torch.where(total > 0, total, 1)


def _slots(constant: Substitute, examples: Examples) -> Tensor:
    known = constant.slots
    # reading a slot makes a GPU wait; no slot exceeds the layout
    if (
        examples.n > known
        and examples.slots.numel()
        and (last := int(examples.slots.max())) >= known
    ):
        raise InputError(
            f"The constants have {known} slots, but the inputs use slot {last} (counted from 0); truncate inputs to "
            f"{known} tokens, or use constants with more slots."
        )
    return examples.distinct(examples.slots)


@dataclass(frozen=True)
class Attending:
    """Parameters of some heads' attention.

    Args:
        query, key: `[example, head, position, channel]`.
        scaling: factor that multiplies the products of queries and keys.
        allowed: bool `[example or 1, head or 1, query or 1, key]`, True if the query sees the key; None means that
            every query sees every key.
        causal: whether a query sees exactly the keys up to its position.
        added: a bias that is added to scaled scores, `[example or 1, head, query, key]`.
        softcap: limit that a tanh imposes on scaled scores.
        sinks: `[head]`, the score of an additional key without a value.
    """

    query: Tensor
    key: Tensor
    scaling: float
    allowed: Tensor | None = None
    causal: bool = False
    added: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def of_queries(self, begin: int, end: int) -> Attending:
        """Return the parameters of the queries from `begin` up to but not including `end`."""

        def rows(values: Tensor | None) -> Tensor | None:
            return values if values is None or values.shape[2] == 1 else values[:, :, begin:end]

        return replace(
            self,
            query=self.query[:, :, begin:end],
            allowed=rows(self.allowed),
            added=rows(self.added),
        )

    def attention(self) -> Tensor:
        """Return softmax attention `[example, head, query, key]`."""
        scores = self._scores()
        if self.sinks is None:
            return softmax(scores, dim=-1)
        sinks = self.sinks.to(scores)[:, None, None].expand(*scores.shape[:3], 1)
        return softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]

    def _scores(self) -> Tensor:
        products = self.query @ self.key.transpose(2, 3)
        hidden = None if self.allowed is None else ~self.allowed
        full_precision = products.dtype in (torch.float32, torch.float64)
        if hidden is not None and full_precision and self.softcap is None and self.added is None:
            # scaling and masking in one pass; lower precisions would round `alpha`, or overflow at hidden keys
            mask = torch.zeros_like(hidden, dtype=products.dtype).masked_fill_(hidden, -torch.inf)
            return torch.add(mask, products, alpha=self.scaling)
        scores = products * self.scaling
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.added is not None:
            scores = scores + self.added
        return scores if hidden is None else scores.masked_fill(hidden, -torch.inf)


def kept_context(heads: Attending, values: Tensor, dropout: float) -> Tensor:
    """Return the context of heads that keep their attention, by a fused kernel if torch supports the parameters."""
    if heads.softcap is not None or heads.sinks is not None:
        return _dropped(heads.attention(), len(values), dropout) @ values
    # with fewer queries than keys, as with a cache, torch aligns the causal mask with the first keys
    if heads.causal and heads.added is None and heads.query.shape[2] == heads.key.shape[2]:
        return scaled_dot_product_attention(
            heads.query, heads.key, values, dropout_p=dropout, scale=heads.scaling, is_causal=True
        )
    mask = heads.allowed
    if heads.added is not None:
        mask = heads.added if mask is None else heads.added.masked_fill(~mask, -torch.inf)
    return scaled_dot_product_attention(
        heads.query, heads.key, values, attn_mask=mask, dropout_p=dropout, scale=heads.scaling
    )


def _dropped(attention: Tensor, examples: int, dropout: float) -> Tensor:
    if not dropout:
        return attention
    # examples may share constants, but dropout is drawn separately for each
    return torch.dropout(attention.expand(examples, -1, -1, -1), dropout, True)


@dataclass(frozen=True)
class ObservedLayer(ABC):
    """A layer in which attention is observed.

    Args:
        index: index among the layers with attention.
        examples: the layout of the batch.
    """

    index: int
    examples: Examples

    @abstractmethod
    def outputs(self, attention: Tensor) -> Tensor:
        """Return the outputs of all heads `[example, head, query, channel]` with attention `[..., query, key]`."""


@dataclass(frozen=True)
class Layer(ObservedLayer):
    """A layer that calls the registered attention function; only the requested parts are computed.

    Args:
        dropout: probability with which entries of attention and constants are dropped.
        scored: the model's queries and keys, and how they are scored.
        grouped_values: `[example, key head, position, channel]`.
    """

    dropout: float
    scored: Attending
    grouped_values: Tensor

    @property
    def allowed(self) -> Tensor | None:
        """The keys that queries see; see `restrict`."""
        return self.scored.allowed

    @property
    def group_size(self) -> int:
        """Number of heads that share a key head."""
        return self.scored.query.shape[1] // self.grouped_values.shape[1]

    def attending(self, heads: Tensor | None) -> Attending:
        """Return the attention parameters of these heads (None: all)."""
        scored = self.scored
        query = self.examples.spread_heads(scored.query, heads)
        if heads is None:
            key = self.examples.spread_heads(scored.key)
            return replace(scored, query=query, key=for_heads(key, self.group_size, None))
        key = self.examples.spread_heads(scored.key, heads // self.group_size)
        added = scored.added
        if added is not None and added.shape[1] > 1:
            added = added[:, heads]
        sinks = None if scored.sinks is None else scored.sinks[heads]
        return replace(scored, query=query, key=key, added=added, sinks=sinks)

    def values(self, heads: Tensor | None) -> Tensor:
        """Return the values of these heads (None: all), `[example, head, position, channel]`."""
        return for_heads(self.grouped_values, self.group_size, heads)

    def outputs(self, attention: Tensor) -> Tensor:
        return attention @ self.values(None)

    def context(self, instruction: Keep | Replace | Mix) -> Tensor:
        """Return the context of all heads, `[example, head, position, channel]`."""
        if isinstance(instruction, Keep):
            return self.kept(None)
        if isinstance(instruction, Mix):
            return instruction.substitute.mixed(self, instruction.weights)
        if not len(instruction.kept):
            return instruction.substitute.context(self, None)
        replaced = instruction.substitute.context(self, instruction.heads)
        return instruction.joined(self.kept(instruction.kept), replaced)

    def kept(self, heads: Tensor | None) -> Tensor:
        """Return the context of these heads (None: all) with their attention."""
        return kept_context(self.attending(heads), self.values(heads), self.dropout)


def for_heads(grouped: Tensor, group_size: int, heads: Tensor | None) -> Tensor:
    """Repeat grouped keys or values for heads (None: all), `[example, head, position, channel]`."""
    if heads is None:
        return grouped if group_size == 1 else grouped.repeat_interleave(group_size, dim=1)
    if grouped.is_contiguous():
        return grouped.index_select(1, heads // group_size)
    # indexing in memory order is several times faster
    return grouped.transpose(1, 2).index_select(2, heads // group_size).transpose(1, 2)
