"""Products of constants and values that cost as much as the constants know.

Each product gives the same result as `replacement.restrict` followed by a matrix product. All return contexts
`[example, head, position, channel]` from values of the same shape. Rows are divided by the sum of the absolute weights
of the keys that the query sees, and a row of zeros stays zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from papa.data.packed import SlotLayout, sent
from papa.model.visibility import Visibility

CONVOLVED_AT_ONCE = 2**17
"""Number of values that one Fourier transform turns; larger ones leave the processor's cache."""
NOISE = 1e-12
"""A sum of weights below this share of the largest weight is zero in a convolution, apart from rounding."""


@dataclass(frozen=True, eq=False)
class DistanceClasses:
    """Classes of pairs of slots that depend only on the distance, except that the first key may be a class of its own.

    Args:
        by_distance: int64 `[2 * slots - 1]`, the class at each distance, slot of the query minus slot of the key, from
            1 - slots to slots - 1.
        first: the class of pairs whose key is slot 0; None if their class depends on the distance, too.
    """

    by_distance: Tensor
    first: int | None

    def __len__(self) -> int:
        """Return the number of slots."""
        return (len(self.by_distance) + 1) // 2

    @cached_property
    def any_distance(self) -> bool:
        """Whether all distances have one class."""
        return bool((self.by_distance == self.by_distance[0]).all())

    def to(self, device: torch.device) -> DistanceClasses:
        if self.by_distance.device == device:
            return self
        moved = DistanceClasses(sent(self.by_distance, device), self.first)
        vars(moved)["any_distance"] = self.any_distance  # a GPU need not wait for it
        return moved

    def of(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the classes of pairs of slots."""
        classes = self.by_distance[query - key + len(self) - 1]
        return classes if self.first is None else classes.masked_fill(key == 0, self.first)


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of some heads: `others` `[head, ...]` of all keys but the first slot, and `first` `[head]` of that.

    `first` is None if the first slot is a key like the others.
    """

    others: Tensor
    first: Tensor | None


def by_sums(weights: Weights, values: Tensor, seen: Visibility) -> Tensor:
    """Multiply by weights that are the same at every distance, `others` `[head]`; needs `seen.ranges`."""
    ranges, examples = seen.ranges, seen.examples
    if ranges is None:
        raise ValueError("Sums need an unbroken range of keys for each query.")
    slots, real = examples.slots, examples.real
    keys = torch.ones_like(slots[:1], dtype=torch.bool) if real is None else real
    if weights.first is not None:
        leading = (slots == 0) & keys
        keys = keys & (slots != 0)
    every = real is None and weights.first is None
    sums = ranges.sums(values if every else values * keys[:, None, :, None])  # [example, head, query or 1, channel]
    others = weights.others.to(sums.dtype)[:, None]
    counts = ranges.sums(keys.to(sums.dtype)[:, None, :, None])[..., 0]  # [example or 1, 1, query or 1]
    total = others.abs() * counts
    if weights.first is None:
        context = sums * (others / torch.where(total > 0, total, 1))[..., None]
    else:
        first, position = weights.first.to(sums.dtype)[:, None], leading.int().argmax(1)
        visible = (ranges.of(position) & leading.any(1, keepdim=True)).to(sums.dtype)[:, None]  # [example, 1, query]
        total = total + first.abs() * visible
        total = torch.where(total > 0, total, 1)
        leader = values[torch.arange(len(values), device=values.device), :, position][:, :, None]
        context = torch.addcmul(sums * (others / total)[..., None], (first * visible / total)[..., None], leader)
    return context.to(values.dtype).expand(-1, -1, examples.queries, -1)


def by_convolution(weights: Weights, values: Tensor, seen: Visibility) -> Tensor:
    """Multiply by weights that depend on the distance, `others` `[head, distance]`, by fast Fourier transforms.

    Transforms are in double precision, because their errors are as large as the largest weight, even in rows with small
    weights only.
    """
    band, layout = seen.band, seen.examples.by_slot
    if band is None:
        raise ValueError("A convolution needs visibility that depends on the distance.")
    slots, length = layout.slots, len(layout.slots)
    middle = weights.others.shape[1] // 2
    distances = torch.arange(1 - length, length, device=slots.device)
    kernel = (weights.others[:, middle + 1 - length : middle + length] * band.of(distances)).double()
    laid, keys = layout.spread(values), layout.keys
    if weights.first is not None:
        first, at = weights.first.double()[:, None, None], (slots == 0)[:, None]
        visible = (keys & at).any(0) & band.of(slots)[:, None]  # [slot, example or 1]
        leader, keys = laid[:, :1], keys & ~at
        laid = torch.cat([0 * leader, laid[:, 1:]], dim=1) if layout.has_first else laid
    product = _convolved(kernel, laid.double())
    total = _convolved(kernel.abs(), keys.double().expand(len(kernel), -1, -1)[..., None])[..., 0]
    largest = kernel.abs().amax(1)[:, None, None]
    if weights.first is not None:
        total, largest = total + first.abs() * visible, torch.maximum(largest, first.abs())
        product = torch.addcmul(product, (first * visible)[..., None], leader.double())
    some = total > NOISE * largest.detach()
    share = some / torch.where(some, total, 1)
    return layout.gather((product * share[..., None]).to(values.dtype))


def _convolved(kernel: Tensor, keys: Tensor) -> Tensor:
    """Convolve `keys` `[head, slot, example, channel]` with `kernel` `[head, distance]`."""
    length = keys.shape[1]
    size = next(size for power in range(99) for size in (2 ** (power + 1), 3 * 2**power) if size >= 2 * length - 1)
    # negative distances follow the others, as a transform of this size has them
    kernel = torch.cat(
        [kernel[:, length - 1 :], kernel.new_zeros(len(kernel), size - 2 * length + 1), kernel[:, : length - 1]], dim=1
    )
    together = max(1, CONVOLVED_AT_ONCE // (size * keys[0, 0].numel()))
    parts = []
    for some, weights in zip(keys.split(together), kernel.split(together), strict=True):
        turned = torch.fft.rfft(some.flatten(2), size, dim=1) * torch.fft.rfft(weights, size, dim=1)[:, :, None]
        parts.append(torch.fft.irfft(turned, size, dim=1)[:, :length].reshape(some.shape))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def by_shared_matrix(matrix: Tensor, signed: bool, values: Tensor, layout: SlotLayout) -> Tensor:
    """Multiply by one matrix per head for all examples, `[head, slot, slot]`, already zero for keys that are not seen.

    If no entry is negative (`signed` is False), the product also gives the sums of rows.
    """
    laid = layout.spread(values)  # [head, slot, example, channel]
    keys = layout.keys.to(matrix.dtype).expand(len(matrix), -1, -1)  # [head, slot, example or 1]
    flat = laid.flatten(2)
    if signed:
        product, total = matrix @ flat, matrix.abs() @ keys
    else:
        product, total = (matrix @ torch.cat([flat, keys.to(flat.dtype)], dim=2)).split(
            [flat.shape[2], keys.shape[2]], 2
        )
    return layout.gather(product.view(laid.shape) / torch.where(total > 0, total, 1)[..., None])
