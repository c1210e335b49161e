"""The keys that each query sees, in the forms that products of constants and values need.

In most models, a query sees an unbroken range of its example's tokens: all of them, those before it, or a window. Sums
over ranges need no matrix. In most of these models, the distance between two slots also decides what a query sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from papa.data.packed import Examples, sent

REMEMBERED = 2
"""Number of masks per batch that are remembered; models alternate between at most two."""


class SharedMask(Tensor):
    """A mask that layers share; operations on it return plain tensors.

    If layers are on several devices, accelerate moves the mask before each of them. `to` returns the same copy every
    time, so a device gets the mask once per batch, and layers on it share what is known about the mask.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] # as in torch's Parameter

    def to(self, *where: Any, **how: Any) -> Tensor:
        copies: dict[object, Tensor] = vars(self).setdefault("_copies", {})
        device = where[0] if len(where) == 1 and not {*how} - {"non_blocking"} else None
        if not isinstance(device, int | str | torch.device):  # another dtype
            return super().to(*where, **how)
        if device in copies:
            return copies[device]
        moved = super().to(device, **how)
        if moved is not self:  # a mask that refers to itself would keep its memory for a while
            moved = copies[device] = moved.as_subclass(CausalMask if isinstance(self, CausalMask) else SharedMask)
        return moved


class CausalMask(SharedMask):
    """A mask that lets every query see exactly the keys up to its position."""


@dataclass(frozen=True, eq=False)
class Ranges:
    """The positions of the keys that queries see: from `first` up to but not including `end`, without padding.

    `first` and `end` are int64 `[example or 1, query or 1]`; `length` is the number of positions of keys. `on_host` are
    the same ranges on the CPU; None if these are.
    """

    first: Tensor
    end: Tensor
    length: int
    on_host: Ranges | None = None

    def to(self, device: torch.device) -> Ranges:
        """Return the same ranges on `device`."""
        return Ranges(sent(self.first, device), sent(self.end, device), self.length, self)

    @cached_property
    def from_start(self) -> bool:
        """Whether every range begins at position 0."""
        if self.on_host is not None:
            return self.on_host.from_start
        return not bool(self.first.any())

    @cached_property
    def whole(self) -> bool:
        """Whether every query sees all keys."""
        if self.on_host is not None:
            return self.on_host.whole
        return self.from_start and bool((self.end == self.length).all())

    @cached_property
    def causal(self) -> bool:
        """Whether each query sees the keys up to its position, and every position has a query."""
        if self.on_host is not None:
            return self.on_host.causal
        every = torch.arange(1, self.length + 1, device=self.end.device)
        return self.from_start and torch.equal(self.end, every.expand(len(self.end), -1))

    def of(self, positions: Tensor) -> Tensor:
        """Return bool `[example, query or 1]`, whether the key at this position of each example is in the range."""
        return (self.first <= positions[:, None]) & (positions[:, None] < self.end)

    def sums(self, keys: Tensor) -> Tensor:
        """Sum `[example, head, position, channel]` over each range, `[example, head, query or 1, channel]`.

        Half precision is summed in single precision. Differences of sums that share most terms need double precision.
        """
        single = torch.promote_types(keys.dtype, torch.float32)
        if self.whole:
            return keys.sum(2, keepdim=True, dtype=single)
        sums = keys.cumsum(2, dtype=single if self.from_start else torch.float64)
        if self.causal:
            return sums
        sums = pad(sums, (0, 0, 1, 0))
        upper = _at(sums, self.end)
        return upper if self.from_start else (upper - _at(sums, self.first)).to(single)


def _at(sums: Tensor, positions: Tensor) -> Tensor:
    """Return `sums` `[example, head, position, channel]` at these positions `[example or 1, query]`."""
    if len(positions) == 1:
        return sums.index_select(2, positions[0])
    index = positions[:, None, :, None].expand(len(sums), sums.shape[1], -1, sums.shape[3])
    return sums.gather(2, index)


@dataclass(frozen=True)
class Band:
    """The distances, slot of the query minus slot of the key, at which queries see keys: from `least` to `most`."""

    least: int
    most: int

    def of(self, distances: Tensor) -> Tensor:
        """Return whether keys at these distances are seen."""
        return (distances >= self.least) & (distances <= self.most)

    def whole(self, slots: int) -> bool:
        """Return whether every distance within this number of slots is seen."""
        return self.most >= slots - 1 and self.least <= 1 - slots


@dataclass(frozen=True, eq=False)
class Visibility:
    """The keys that queries see.

    Args:
        examples: the layout of the batch.
        allowed: bool `[example or 1, head or 1, query or 1, key]`, True if the query sees the key; None means that
            every query sees every key.
    """

    examples: Examples
    allowed: Tensor | None

    @classmethod
    def of(cls, examples: Examples, allowed: Tensor | None) -> Visibility:
        """Return the visibility under this mask; layers with the same mask share it."""
        remembered = examples.visibilities
        for known in remembered:
            if isinstance(known, cls) and known.allowed is allowed:
                return known
        remembered.append(cls(examples, allowed))
        del remembered[:-REMEMBERED]
        return remembered[-1]  # type: ignore[return-value] # just appended

    @cached_property
    def on_host(self) -> Visibility:
        """The same on the CPU, where it is studied; a GPU waits at most once, for the mask."""
        if self.examples.on_host is self.examples:
            return self
        known = self.allowed is None or isinstance(self.allowed, CausalMask)
        return Visibility(self.examples.on_host, self.allowed if self.allowed is None or known else self.allowed.cpu())

    @cached_property
    def ranges(self) -> Ranges | None:
        """The range of keys that each query sees; None unless each real query sees an unbroken range of real keys."""
        if self.on_host is not self:
            ranges = self.on_host.ranges
            return None if ranges is None else ranges.to(self.examples.slots.device)
        examples, allowed, real = self.examples, self.allowed, self.examples.real
        length, device = examples.slots.shape[1], examples.slots.device
        start = torch.zeros(1, 1, dtype=torch.long, device=device)
        if isinstance(allowed, CausalMask):
            return Ranges(start, torch.arange(1, length + 1, device=device)[None], length)
        if real is None:
            real = torch.ones(1, length, dtype=torch.bool, device=device)
        if allowed is None or allowed.shape[2] == 1:
            whole = real.all() if allowed is None else (allowed == real[:, None, None]).all()
            return Ranges(start, start + length, length) if bool(whole) else None
        if allowed.shape[1] > 1:
            return None
        seen = allowed[:, 0]  # [example or 1, query, key]
        count = (seen & real[:, None]).sum(-1)
        first, end = _first(seen), length - _first(seen.flip(-1))
        before = pad(real.cumsum(1), (1, 0)).expand(len(count), -1)
        first, end = (positions.expand(count.shape) for positions in (first, end))
        unbroken = (before.gather(1, end) - before.gather(1, first) == count) & (seen.sum(-1) == count)
        return Ranges(first, end, length) if bool((unbroken | ~real[:, -examples.queries :]).all()) else None

    @cached_property
    def band(self) -> Band | None:
        """The distances at which queries see keys; None unless the distance decides, and every token is a query."""
        if self.on_host is not self:
            return self.on_host.band
        examples, ranges, slots = self.examples, self.ranges, self.examples.slots
        if ranges is None or examples.queries != slots.shape[1]:
            return None
        real = torch.ones_like(slots, dtype=torch.bool) if examples.real is None else examples.real
        if bool(((slots.diff(dim=1) <= 0) & real[:, 1:] & real[:, :-1]).any()):
            return None
        if ranges.whole or ranges.causal:
            return Band(0 if ranges.causal and not ranges.whole else -examples.n, examples.n)
        first, end = (positions.expand(slots.shape) for positions in (ranges.first, ranges.end))
        nearest, farthest = (slots - slots.gather(1, position) for position in ((end - 1).clamp(min=0), first))
        band = Band(int(nearest[real].min()), int(farthest[real].max()))
        # the band includes every key that a query sees; it is exact if it includes no others
        in_slot = torch.zeros(len(slots), examples.n, dtype=torch.long, device=slots.device)
        before_slot = pad(in_slot.scatter_add(1, slots, real.long()).cumsum(1), (1, 0))
        before = pad(real.cumsum(1), (1, 0))
        seen = before.gather(1, end) - before.gather(1, first)
        low, high = ((slots - distance).clamp(0, examples.n) for distance in (band.most, band.least - 1))
        included = before_slot.gather(1, high) - before_slot.gather(1, low)
        return band if bool(((included == seen) | ~real).all()) else None


def _first(seen: Tensor) -> Tensor:
    """Return the first seen position, `[example, query]`; 0 if none is seen."""
    return seen.to(torch.uint8).argmax(-1)
