"""What stands in for softmax attention: which heads, which matrices, and how they meet the values (paper, Sec. 3.3).

Nothing here depends on the family of the model. With C the constant of a head and R the slots of an example's real
tokens, the head uses C restricted to R x R, each row divided by the sum of its absolute values; a row of zeros stays
zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, softmax

from papa.data.packed import Examples
from papa.errors import InputError

Head = tuple[int, int]
"""A layer, and a head of it."""
Observer = Callable[[int, Tensor, Examples], None]
"""Called with the layer, its attention `[example, head, query, key]`, of which rows at padding mean nothing, and the
examples."""


@dataclass(frozen=True)
class Matrices:
    """Matrices in which pairs of slots may share an entry, so that they need not be as large as they are.

    Args:
        values: `[..., class]`, the entry of each class of pairs; the axes before it are layers and heads.
        classes: whole numbers `[query, key]`, the class of each pair of slots.

    >>> Matrices(torch.tensor([0.5, 2.0]), torch.tensor([[0, 1], [1, 0]])).full
    tensor([[0.5000, 2.0000],
            [2.0000, 0.5000]])
    """

    values: Tensor
    classes: Tensor

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self.classes)

    @property
    def full(self) -> Tensor:
        """All entries, `[..., query, key]`."""
        return self.values[..., self.classes.long()]

    def to(self, like: Tensor | torch.device) -> Matrices:
        """The same on a device; or on that of a tensor, and in its type."""
        return Matrices(self.values.to(like), self.classes.to(like if isinstance(like, torch.device) else like.device))

    def at(self, places: Tensor) -> Tensor:
        """The entries `[head, place]` at places in the rows of a matrix, one row after another; of `[head, class]`."""
        return self.values.index_select(1, self.classes.flatten().index_select(0, places))


@dataclass(frozen=True)
class Full:
    """Matrices `values` `[..., query, key]` as they are."""

    values: Tensor

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self.values.shape[-1]

    def to(self, like: Tensor | torch.device) -> Full:
        """See `Matrices`."""
        return Full(self.values.to(like))

    def at(self, places: Tensor) -> Tensor:
        """See `Matrices`; of `[head, query, key]`."""
        return self.values.flatten(1).index_select(1, places)


@dataclass(frozen=True)
class Outputs:
    """What heads give whatever they read, `values` `[..., slot, channel]`: no matrix, but what it makes of values."""

    values: Tensor

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self.values.shape[-2]

    def to(self, like: Tensor | torch.device) -> Outputs:
        """The same on a device; or on that of a tensor, and in its type."""
        return Outputs(self.values.to(like))


class HasConstants(Protocol):
    """What has constants, as averages have."""

    @property
    def constants(self) -> Tensor | Matrices | Outputs: ...


Constants = Tensor | Matrices | Outputs | HasConstants
"""Matrices `[layer, head, query, key]`; such in which entries are shared; outputs of heads; or what has such
`constants`."""
Constant = Full | Matrices | Outputs
"""The same of the heads of a layer."""


@dataclass(frozen=True)
class Keep:
    """All heads attend."""


@dataclass(frozen=True)
class Replace:
    """`heads` `[replaced]` use their `constant`; the heads in `kept` attend."""

    heads: Tensor
    constant: Constant
    kept: Tensor

    @cached_property
    def order(self) -> Tensor:
        """Where each head is if the replaced ones follow the kept ones, `[head]`."""
        return torch.cat([self.kept, self.heads]).argsort()

    def keys_of(self, groups: int) -> Tensor:
        """Where the key of each kept head is among the keys of kept heads, if so many heads share one, `[kept]`."""
        places: Tensor = torch.unique_consecutive(self.kept // groups, return_inverse=True)[1]
        return places


@dataclass(frozen=True)
class Mix:
    """Every head uses weight * attention + (1 - weight) * constant; `weights` are `[head]`, or `[example, head]`."""

    weights: Tensor
    constant: Constant


Replacement = list[Keep | Replace | Mix]
"""What every layer does with its heads."""


def replacement_of(
    shape: tuple[int, int],
    constants: Constants | None = None,
    heads: Iterable[Head] | None = None,
    mixing: Tensor | None = None,
    *,
    like: Tensor | None = None,
) -> Replacement:
    """What every layer of a model of `shape` (layers, heads per layer) does.

    Args:
        constants: see `Constants`; without them nothing is replaced.
        heads: the replaced (layer, head) pairs; None means all.
        mixing: weights `[layer, head]` in [0, 1] of the heads' own attention; not together with `heads`.
        like: a tensor of the device and the type that matrices and weights are to have.

    Raises:
        InputError: what is given does not fit the shape or each other.
    """
    if constants is None:
        if heads is not None or mixing is not None:
            raise InputError("heads or mixing were given without constants; say what replaces attention.")
        return [Keep() for _ in range(shape[0])]
    own = _constants(constants, shape)
    own = own if like is None else own.to(like)
    if mixing is not None:
        if heads is not None:
            raise InputError("mixing and heads exclude each other; heads not to be mixed have a weight of 1.")
        if tuple(mixing.shape) != shape:
            raise InputError(f"mixing is {list(mixing.shape)}; this model needs [layer, head] = {list(shape)}.")
        if not bool(((mixing >= 0) & (mixing <= 1)).all()):
            raise InputError("mixing contains weights outside [0, 1].")
        weights = mixing.to(own.values)
        return [Mix(weights[layer], _of_layer(own, layer)) for layer in range(shape[0])]
    chosen = (torch.ones(shape, dtype=torch.bool) if heads is None else _chosen(heads, shape)).to(own.values.device)
    replacement: Replacement = []
    for layer in range(shape[0]):
        replaced, kept = chosen[layer].nonzero().squeeze(1), (~chosen[layer]).nonzero().squeeze(1)
        replacement.append(Replace(replaced, _of_layer(own, layer, replaced), kept) if len(replaced) else Keep())
    return replacement


def _of_layer(constants: Constant, layer: int, heads: Tensor | None = None) -> Constant:
    """The constants of the given heads (None: all) of a layer."""
    values = constants.values[layer] if heads is None else constants.values[layer, heads]
    return replace(constants, values=values)


def _constants(given: Constants, shape: tuple[int, int]) -> Constant:
    """Constants of all heads of a model; raises `InputError` unless they are those of so many, and finite.

    Those that are being learned need not be finite: what learns them says where they went wrong.
    """
    own = given if isinstance(given, Tensor | Matrices | Outputs) else getattr(given, "constants", None)
    found: Constant | None = Full(own) if isinstance(own, Tensor) else own
    axes = {Full: 4, Matrices: 3, Outputs: 4}.get(type(found))
    if found is None or found.values.ndim != axes or tuple(found.values.shape[:2]) != shape:
        said = type(given).__name__ if found is None else list(found.values.shape)
        raise InputError(
            f"The constants are {said}; this model needs [layer, head, query, key] = "
            f"[{shape[0]}, {shape[1]}, slots, slots], or a form of them that papa made for it."
        )
    if not isinstance(found, Outputs):
        pairs = list((found.values if isinstance(found, Full) else found.classes).shape[-2:])
        if pairs[0] != pairs[1]:
            raise InputError(f"Constant matrices are square, [query, key]; {pairs} were given.")
    if not found.values.requires_grad and not _finite(found.values):
        raise InputError("The constants contain NaN or infinity, and have to be finite; make them again.")
    return found


def _finite(values: Tensor) -> bool:
    # the ends are NaN if anything is, and nothing as large as the constants is made
    return not values.numel() or all(bool(end.isfinite()) for end in values.aminmax())


def _chosen(heads: Iterable[Head], shape: tuple[int, int]) -> Tensor:
    """Which heads are listed, bool `[layer, head]`."""
    layers, per_layer = shape
    chosen = torch.zeros(shape, dtype=torch.bool)
    for pair in heads if isinstance(heads, Iterable) else [heads]:
        try:
            layer, head = map(int, pair)
        except (TypeError, ValueError):
            raise InputError(f"heads lists pairs (layer, head), such as (0, 3); {pair!r} is none.") from None
        if not (0 <= layer < layers and 0 <= head < per_layer):
            raise InputError(
                f"Head {(layer, head)} does not exist; the model has {layers} layers of {per_layer} heads."
            )
        chosen[layer, head] = True
    return chosen


def check_slots(replacement: Replacement, slots: int) -> None:
    """Raise `InputError` unless all matrices are for inputs of so many slots."""
    for own in replacement:
        if not isinstance(own, Keep) and own.constant.slots != slots:
            raise InputError(f"The constants have {own.constant.slots} slots and the inputs {slots}; they must agree.")


def replaced_in(replacement: Replacement) -> list[Head]:
    """The (layer, head) pairs that are replaced; those that are mixed are not."""
    return [
        (layer, head)
        for layer, own in enumerate(replacement)
        if isinstance(own, Replace)
        for head in own.heads.tolist()
    ]


def restrict(matrices: Full | Matrices, examples: Examples, allowed: Tensor | None) -> Tensor:
    """Constants as examples use them: `[example or 1, head, query, key]`, normalised row by row.

    Args:
        matrices: those of some heads, by slot.
        examples: which slots their tokens stand in.
        allowed: bool `[example or 1, head or 1, query or 1, key]`, the keys that are tokens and that the rule of the
            model lets a query see; None if those are all.

    Raises:
        InputError: a token stands in a slot that the constants do not have.
    """
    slots = _slots(matrices, examples)
    where = slots[:, -examples.queries :, None] * matrices.slots + slots[:, None, :]
    chosen = matrices.at(where.flatten()).view(-1, *where.shape).transpose(0, 1)
    if allowed is not None:
        chosen = chosen * allowed
    total = chosen.abs().sum(-1, keepdim=True)
    return chosen / torch.where(total > 0, total, 1)


def outputs_at(outputs: Outputs, examples: Examples) -> Tensor:
    """What heads give in place of their context, `[example or 1, head, place, channel]`; errors as of `restrict`."""
    slots = _slots(outputs, examples)[:, -examples.queries :]
    return outputs.values[:, slots].transpose(0, 1)


def _slots(constant: Constant, examples: Examples) -> Tensor:
    """Which slots are used, `[example or 1, place]`."""
    if examples.slots.numel() and int(examples.slots.max()) >= constant.slots:
        raise InputError(
            f"The constants have {constant.slots} slots and the inputs use slot {int(examples.slots.max())}, counted "
            f"from 0; cut inputs to {constant.slots} tokens, or take constants of more slots."
        )
    return examples.slots[:1] if examples.alike else examples.slots


@dataclass(frozen=True)
class Attending:
    """Heads that attend.

    Args:
        query, key: `[example, head, place, channel]`.
        scaling: what scores are multiplied by.
        allowed: bool `[example or 1, head or 1, query or 1, key]`, which keys a query may attend to; None means all.
        causal: whether `allowed` are exactly the places up to that of the query.
        added: what is added to scaled scores, `[example or 1, head, query, key]`.
        softcap: scaled scores are kept within ± this, by a tanh.
        sinks: `[head]`, the score of a key that has no value.
    """

    query: Tensor
    key: Tensor
    scaling: float
    allowed: Tensor | None = None
    causal: bool = False
    added: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def attention(self) -> Tensor:
        """Softmax attention `[example, head, query, key]`."""
        scores = self.query @ self.key.transpose(2, 3) * self.scaling
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.added is not None:
            scores = scores + self.added
        if self.allowed is not None:
            scores = scores.masked_fill(~self.allowed, -torch.inf)
        if self.sinks is None:
            return softmax(scores, dim=-1)
        sinks = self.sinks.to(scores)[:, None, None].expand(*scores.shape[:3], 1)
        return softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]


# The contexts `[example, head, place, channel]` of heads, from their values of the same shape. `dropout` is the share
# of the entries of all heads' matrices that is dropped, as the published code does: after some are replaced or mixed,
# and so of constants too.


def kept_context(heads: Attending, values: Tensor, dropout: float) -> Tensor:
    """The context of heads that attend; their attention is nowhere as a whole where torch can do without."""
    if heads.softcap is not None or heads.sinks is not None:
        return _dropped(heads.attention(), len(values), dropout) @ values
    if heads.causal and heads.added is None and heads.query.shape[2] == heads.key.shape[2]:
        return scaled_dot_product_attention(
            heads.query, heads.key, values, dropout_p=dropout, scale=heads.scaling, is_causal=True
        )
    added = heads.allowed
    if heads.added is not None:
        added = heads.added if added is None else heads.added.masked_fill(~added, -torch.inf)
    return scaled_dot_product_attention(
        heads.query, heads.key, values, attn_mask=added, dropout_p=dropout, scale=heads.scaling
    )


def replaced_context(constants: Tensor, values: Tensor, dropout: float) -> Tensor:
    """The context of heads that use constants `[example or 1, head, query, key]`."""
    return _dropped(constants, len(values), dropout) @ values


def mixed_context(weights: Tensor, constants: Tensor, heads: Attending, values: Tensor, dropout: float) -> Tensor:
    """The context of heads that use their attention and their constant, `weights` of the first (Sec. 3.2)."""
    mixed = constants + weights[..., None, None] * (heads.attention() - constants)
    return _dropped(mixed, len(values), dropout) @ values


def _dropped(attention: Tensor, examples: int, dropout: float) -> Tensor:
    # constants may be the same for all examples, but what is dropped of them is not
    return torch.dropout(attention.expand(examples, -1, -1, -1), dropout, True) if dropout else attention
