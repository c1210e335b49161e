"""What stands in for softmax attention: which heads, which matrices, and how they meet the values (paper, Sec. 3.3).

Everything here is independent of the family of the encoder. With C the constant of a head and R the slots of an
example's real tokens, the head uses C restricted to R x R, each row divided by the sum of its absolute values; a row
of zeros stays zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softmax

from papa.data.packed import Examples
from papa.errors import InputError
from papa.model.linear import FrozenLinear, linear

Head = tuple[int, int]
Observer = Callable[[int, Tensor, Examples], None]
"""Called with the layer, its attention `[example, head, query, key]` (zero rows at padding) and the examples."""
PositionScores = Callable[[Tensor, Tensor, Examples], Tensor]
"""From queries and keys `[example, kept head, place, channel]` to what positions add to their scaled scores,
`[example, kept head, query, key]`."""


@dataclass(frozen=True)
class LayerPlan:
    """What one layer does: heads in `kept` attend, heads in `replaced` use `matrices` `[replaced, query, key]`.

    With `mixing` `[head]` every head does both, `mixing * attention + (1 - mixing) * constant`; then `kept` and
    `replaced` both list all heads.
    """

    kept: Tensor
    replaced: Tensor
    matrices: Tensor | None = None
    mixing: Tensor | None = None


Replacement = list[LayerPlan]


@dataclass
class Session:
    """What the attention modules of one model share during a forward pass."""

    plans: Replacement
    examples: Examples | None = None
    observer: Observer | None = None
    reached: set[int] = field(default_factory=set)


def plan_layers(
    shape: tuple[int, int],
    constants: Any = None,
    heads: Iterable[Head] | None = None,
    mixing: Tensor | None = None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Replacement:
    """The plan of every layer of a model of `shape` (layers, heads per layer).

    `constants` is a tensor `[layer, head, query, key]` or anything with such a `mean`; without it nothing is replaced.
    `heads` lists the replaced (layer, head) pairs, None means all. `mixing` `[layer, head]` in [0, 1] excludes `heads`.
    """
    layers, per_layer = shape
    everything = torch.arange(per_layer, device=device)
    if constants is None:
        if heads is not None or mixing is not None:
            raise InputError("heads or mixing were given without constants; say what replaces attention.")
        return [LayerPlan(everything, everything[:0]) for _ in range(layers)]
    matrices = constants if isinstance(constants, Tensor) else getattr(constants, "mean", None)
    if not isinstance(matrices, Tensor) or matrices.ndim != 4 or tuple(matrices.shape[:2]) != shape:
        given = list(matrices.shape) if isinstance(matrices, Tensor) else type(constants).__name__
        raise InputError(
            f"The constants are {given}; this model needs [layer, head, query, key] = "
            f"[{layers}, {per_layer}, slots, slots]."
        )
    if matrices.shape[2] != matrices.shape[3]:
        raise InputError(f"Constant matrices are square, [query, key]; {list(matrices.shape[2:])} were given.")
    matrices = matrices.to(device=device, dtype=dtype)
    if mixing is not None:
        if heads is not None:
            raise InputError("mixing and heads exclude each other; heads not to be mixed have a weight of 1.")
        if tuple(mixing.shape) != shape:
            raise InputError(f"mixing is {list(mixing.shape)}; this model needs [layer, head] = {list(shape)}.")
        if not bool(((mixing >= 0) & (mixing <= 1)).all()):
            raise InputError("mixing holds weights outside [0, 1].")
        mixing = mixing.to(device=device, dtype=dtype)
        return [LayerPlan(everything, everything, matrices[layer], mixing[layer]) for layer in range(layers)]
    chosen = torch.zeros(shape, dtype=torch.bool)
    for layer, head in [divmod(i, per_layer) for i in range(layers * per_layer)] if heads is None else heads:
        if not (0 <= layer < layers and 0 <= head < per_layer):
            raise InputError(
                f"Head {(layer, head)} does not exist; the model has {layers} layers of {per_layer} heads."
            )
        chosen[layer, head] = True
    chosen = chosen.to(device)
    plans = []
    for layer in range(layers):
        replaced = chosen[layer].nonzero().squeeze(1)
        plans.append(LayerPlan((~chosen[layer]).nonzero().squeeze(1), replaced, matrices[layer, replaced]))
    return plans


def replaced_in(plan: Replacement) -> list[tuple[int, int]]:
    """The (layer, head) pairs that a plan replaces."""
    return [(layer, int(head)) for layer, entry in enumerate(plan) for head in entry.replaced]


def restrict(matrices: Tensor, examples: Examples) -> Tensor:
    """`matrices` `[head, query, key]` as the examples use them, `[example or 1, head, place, place]`, normalised."""
    heads, n, _ = matrices.shape
    if examples.slots.numel() and int(examples.slots.max()) >= n:
        raise InputError(f"The constants have {n} slots and the inputs use slot {int(examples.slots.max())}.")
    slots = examples.slots[:1] if examples.alike else examples.slots
    where = slots[:, :, None] * n + slots[:, None, :]
    chosen = matrices.reshape(heads, n * n).index_select(1, where.flatten()).view(heads, *where.shape).transpose(0, 1)
    if examples.real is not None:
        chosen = chosen * examples.real[:, None, None, :]
    total = chosen.abs().sum(-1, keepdim=True)
    return chosen / torch.where(total > 0, total, 1)


def some_outputs(projection: nn.Linear | FrozenLinear, tokens: Tensor, rows: Tensor) -> Tensor:
    """The outputs `rows` of a linear layer, `[token, row]`; the others are not computed."""
    if isinstance(projection, FrozenLinear):
        return projection.only(rows)(tokens)
    return linear(tokens, projection.weight[rows], None if projection.bias is None else projection.bias[rows])


def attend(
    session: Session,
    layer: int,
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor,
    scaling: float | None = None,
    positions: PositionScores | None = None,
    dropout: nn.Dropout | None = None,
) -> Tensor:
    """The context `[token, head * channel]` of one layer; zero for idle tokens, which follow those of the examples.

    `query` and `key` are `[token, kept head, channel]` (None where no head is kept), `value` `[token, head, channel]`.
    `positions` is asked only where heads attend. `dropout`, the module's own, drops entries of all heads' matrices, as
    the published code does: after some are replaced or mixed, and so those of constants too.
    """
    plan, examples = session.plans[layer], session.examples
    if examples is None:
        raise InputError("The patched model was called without inputs whose examples are known.")
    session.reached.add(layer)
    values = examples.spread(value).transpose(1, 2)  # [example, head, place, channel]
    mask = None if examples.real is None else examples.real[:, None, None, :]
    scale = scaling if scaling is not None else 1 / math.sqrt(value.shape[-1])
    share = dropout.p if dropout is not None and dropout.training else 0.0

    def dropped(attention: Tensor) -> Tensor:
        # constants may be the same for all examples, but what is dropped of them is not
        return torch.dropout(attention.expand(len(values), -1, -1, -1), share, True) if share else attention

    def asked() -> tuple[Tensor, Tensor]:
        if query is None or key is None:
            raise InputError(f"Layer {layer} keeps heads that attend, but got no queries and keys.")
        return examples.spread(query).transpose(1, 2), examples.spread(key).transpose(1, 2)

    def weights() -> Tensor:
        queries, keys = asked()
        scores = queries @ keys.transpose(2, 3) * scale  # [example, kept head, query, key]
        if positions is not None:
            scores = scores + positions(queries, keys, examples)
        return softmax(scores if mask is None else scores.masked_fill(~mask, -torch.inf), dim=-1)

    def attended(own: Tensor) -> Tensor:
        queries, keys = asked()
        added = mask
        if positions is not None:
            added = positions(queries, keys, examples)
            added = added if mask is None else added.masked_fill(~mask, -torch.inf)
        return scaled_dot_product_attention(queries, keys, own, attn_mask=added, dropout_p=share, scale=scale)

    if plan.mixing is not None and plan.matrices is not None:
        constant = restrict(plan.matrices, examples)
        context = dropped(constant + plan.mixing[:, None, None] * (weights() - constant)) @ values
    elif session.observer is not None:
        attention = weights()
        session.observer(layer, attention, examples)
        context = attention @ values
    else:
        parts = []
        if len(plan.kept):
            parts.append(attended(values if not len(plan.replaced) else values[:, plan.kept]))
        if len(plan.replaced) and plan.matrices is not None:
            own = values if not len(plan.kept) else values[:, plan.replaced]
            parts.append(dropped(restrict(plan.matrices, examples)) @ own)
        context = parts[0]
        if len(parts) == 2:
            context = torch.cat(parts, dim=1)[:, torch.cat([plan.kept, plan.replaced]).argsort()]
    return examples.gather(context.transpose(1, 2), len(value)).flatten(1)
