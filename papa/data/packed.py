"""The packed row: the real tokens of a batch, one example after another, and how examples are found in it again.

Padding never enters the encoder. Linear layers, norms and activations see one row of tokens; only attention has to
know where an example begins, which slots its tokens keep, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.nn.functional import pad

from papa.errors import InputError


@dataclass(frozen=True)
class Packed:
    """A batch as one row of real tokens.

    `ids`, `slots` and `segments` are int64 `[token]`, `lengths` int64 `[example]`, `n` the number of slots.
    """

    ids: Tensor
    slots: Tensor
    segments: Tensor
    lengths: Tensor
    n: int

    @cached_property
    def example_of(self) -> Tensor:
        """Number of the example each token belongs to, `[token]`."""
        return torch.arange(len(self.lengths), device=self.lengths.device).repeat_interleave(self.lengths)

    def to(self, device: torch.device) -> Packed:
        """The same batch on `device`."""
        ids, slots, segments, lengths = (
            values.to(device, non_blocking=True) for values in (self.ids, self.slots, self.segments, self.lengths)
        )
        return Packed(ids, slots, segments, lengths, self.n)

    def pinned(self) -> Packed:
        """The same batch in memory from which a GPU can fetch it while it computes."""
        ids, slots, segments, lengths = (
            values.pin_memory() for values in (self.ids, self.slots, self.segments, self.lengths)
        )
        return Packed(ids, slots, segments, lengths, self.n)

    @classmethod
    def of(cls, inputs: Mapping[str, Tensor], pad_id: int | None = None) -> Packed:
        """Pack dense inputs `[example, slot]`; raises `InputError` if ids and mask disagree.

        `pad_id` is the id of padding; a model without one (None) has nothing to compare the mask with.
        """
        ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        if ids is None or mask is None:
            missing = "input_ids" if ids is None else "attention_mask"
            raise InputError(f"The inputs have no {missing}; lay_out returns input_ids together with attention_mask.")
        if ids.ndim != 2 or ids.shape != mask.shape:
            raise InputError(
                f"input_ids {list(ids.shape)} and attention_mask {list(mask.shape)} must both be [example, slot]."
            )
        real = mask.bool()
        if not ((mask == 0) | (mask == 1)).all():
            raise InputError("attention_mask contains values other than 0 and 1; it marks real tokens with 1.")
        if not real.any(dim=1).all():
            raise InputError(f"Example {int((~real.any(dim=1)).nonzero()[0])} has no real token in its attention_mask.")
        if pad_id is not None and not torch.equal(real, ids != pad_id):
            row, slot = ((ids != pad_id) != real).nonzero()[0].tolist()
            found, said = ("padding", "real") if real[row, slot] else ("a token", "padding")
            raise InputError(
                f"input_ids and attention_mask disagree in example {row}, slot {slot}: "
                f"the id is {found} and the mask says {said}."
            )
        segments = inputs.get("token_type_ids")
        if segments is not None and segments.shape != ids.shape:
            raise InputError(f"token_type_ids {list(segments.shape)} and input_ids {list(ids.shape)} must agree.")
        slots = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        segments = torch.zeros_like(ids) if segments is None else segments
        return cls(ids[real], slots[real], segments[real], real.sum(dim=1), ids.shape[1])

    def unpack(self, tokens: Tensor) -> Tensor:
        """Dense `[example, slot, ...]` of `tokens` `[token, ...]`, zero at padding; differentiable."""
        dense = tokens.new_zeros(len(self.lengths) * self.n, *tokens.shape[1:])
        dense = dense.index_copy(0, self.example_of * self.n + self.slots, tokens)
        return dense.view(len(self.lengths), self.n, *tokens.shape[1:])


@dataclass(frozen=True)
class RawBatch(Packed):
    """A batch that is no text, such as pictures or sound: what the model is given, and where its tokens stand.

    Its tokens are no words, so that `ids` are all 0.
    """

    arguments: Mapping[str, Tensor]

    @classmethod
    def masked(cls, arguments: Mapping[str, Tensor], mask: Tensor) -> RawBatch:
        """What a model makes tokens of, and a mask of these tokens `[example, slot]`."""
        real = mask.bool()
        slots = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)[real]
        nothing = torch.zeros_like(slots)
        return cls(nothing, slots, nothing, real.sum(dim=1), mask.shape[1], arguments)

    def to(self, device: torch.device) -> RawBatch:
        """The same batch on `device`."""
        moved = super().to(device)
        arguments = {name: values.to(device) for name, values in self.arguments.items()}
        return RawBatch(moved.ids, moved.slots, moved.segments, moved.lengths, moved.n, arguments)


class Examples:
    """What attention needs to know of a batch: which tokens belong together and in which slots they stand.

    Args:
        slots: int64 `[example, place]`, the slot of each key.
        real: bool of the same shape; None where every place holds a token.
        n: how many slots the layout has, padding included.
        places: where the tokens of a packed row go, `[token]`; None where they are in their places.
        queries: how many of the last places have queries; None means all.
        packed: whether the tokens are one row.
    """

    def __init__(
        self,
        slots: Tensor,
        real: Tensor | None,
        n: int,
        places: Tensor | None = None,
        queries: int | None = None,
        packed: bool = False,
    ):
        self.slots, self.real, self.n, self._places, self.packed = slots, real, n, places, packed
        self.queries = slots.shape[1] if queries is None else queries
        self._found = dict[tuple[int, int], tuple[Selection, Selection]]()
        self.columns = slots
        """Where the model itself believes the keys to stand."""
        self.alike = real is None and bool((slots == slots[:1]).all())
        self.first = real is None or packed or bool((real[:, :-1] >= real[:, 1:]).all())
        """Whether tokens come first in every example, and padding after them."""

    @classmethod
    def of_packed(cls, batch: Packed) -> Examples:
        """Examples of a packed row: rectangular where lengths agree, else padded to the longest in attention alone."""
        longest, shape = int(batch.lengths.max()), (len(batch.lengths), int(batch.lengths.max()))
        if bool((batch.lengths == longest).all()):
            return cls(batch.slots.view(shape), None, batch.n, packed=True)
        real = torch.arange(longest, device=batch.lengths.device) < batch.lengths[:, None]
        slots = torch.zeros(shape, dtype=torch.long, device=batch.slots.device)
        slots[real] = batch.slots
        return cls(slots, real, batch.n, real.flatten().nonzero().squeeze(1), packed=True)

    @classmethod
    def of_mask(cls, mask: Tensor, queries: int | None = None) -> Examples:
        """Examples of dense inputs with an attention mask `[example, slot]`: every token is already in its place."""
        real = mask.bool()
        columns = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        return cls(columns, None if real.all() else real, mask.shape[1], queries=queries)

    def count_from_first(self) -> None:
        """Count slots from the first token of each example, so that it does not matter where padding is."""
        if self.packed:
            self.slots = (self.columns - self.columns[:, :1]).clamp(min=0)
        elif self.real is not None and not self.real[:, 0].all():
            self.slots = (self.columns - self.real.int().argmax(1, keepdim=True)).clamp(min=0)

    def last(self, keys: int) -> Examples:
        """The same examples seen by a layer that has the last of the keys alone, as a cache of a window keeps them."""
        if self.packed or keys == self.slots.shape[1]:
            return self
        own = Examples(self.slots[:, -keys:], None if self.real is None else self.real[:, -keys:], self.n)
        own.columns, own.queries = self.columns[:, -keys:], self.queries
        return own

    @cached_property
    def distances(self) -> Tensor:
        """Slot of the query minus slot of the key, `[example or 1, query, key]`; all layers share it."""
        slots = self.slots[:1] if self.alike else self.slots
        return slots[:, :, None] - slots[:, None, :]

    def spread(self, row: Tensor) -> Tensor:
        """`[token, head, channel]` of a row to `[example, head, place, channel]`; idle tokens at the end are left out.

        A place without a token has what the first token of its example has; it is never read.
        """
        tokens, heads, channels = row.shape
        to, back = self._selections(tokens, heads)
        moved: Tensor = _Moved.apply(row.reshape(-1, channels), to, back)
        return moved.view(len(self.slots), heads, self.slots.shape[1], channels)

    def gather(self, spread: Tensor, tokens: int) -> Tensor:
        """`[example, head, place, channel]` back to `[token, head, channel]`; what idle tokens have is never read."""
        heads, channels = spread.shape[1], spread.shape[3]
        together = spread.transpose(1, 2)
        if heads > 1 and together.is_contiguous():  # heads of a token side by side, as fused attention gives them
            return self.gather(together.flatten(2).unsqueeze(1), tokens).view(tokens, heads, channels)
        back, to = self._selections(tokens, heads)
        moved: Tensor = _Moved.apply(spread.reshape(-1, channels), to, back)
        return moved.view(tokens, heads, channels)

    def spread_heads(self, heads: Tensor, chosen: Tensor | None = None) -> Tensor:
        """`[1, head, token, channel]` of a packed row, or dense already, to `[example, head, place, channel]`.

        `chosen` int64 are the heads that are wanted, None all.
        """
        if not self.packed:
            return heads if chosen is None else heads[:, chosen]
        tokens = heads.squeeze(0).transpose(0, 1)
        return self.spread(tokens if chosen is None else tokens.index_select(1, chosen))

    def gather_heads(self, spread: Tensor, tokens: int) -> Tensor:
        """`[example, head, place, channel]` to `[1, token, head, channel]`, or `[example, place, head, channel]`."""
        if not self.packed:
            return spread.transpose(1, 2).contiguous()  # which models view in other shapes
        return self.gather(spread, tokens).unsqueeze(0)

    def _selections(self, tokens: int, heads: int) -> tuple[Selection, Selection]:
        """From rows (token, head) to rows (example, head, place), and back; layers with as many heads share them."""
        found = self._found.get((tokens, heads))
        if found is None:
            examples, places = self.slots.shape
            device, number = self.slots.device, torch.arange(heads, device=self.slots.device)
            where = torch.arange(examples * places, device=device) if self._places is None else self._places
            token_at = torch.full((examples * places,), -1, device=device)
            token_at[where] = torch.arange(len(where), device=device)
            token_at = token_at.view(examples, places)
            empty = (token_at < 0)[:, None].expand(-1, heads, -1).flatten().nonzero().squeeze(1)
            token_at = token_at.where(token_at >= 0, token_at[:, :1]).clamp(min=0)
            rows = token_at[:, None] * heads + number[:, None]  # [example, head, place]
            idle = torch.arange(len(where) * heads, tokens * heads, device=device)
            where = pad(where, (0, tokens - len(where)))
            back = (where // places * heads)[:, None] * places + number * places + (where % places)[:, None]
            found = self._found[tokens, heads] = Selection(rows.flatten(), idle), Selection(back.flatten(), empty)
        return found


@dataclass(frozen=True)
class Selection:
    """How rows are put elsewhere.

    Args:
        taken: int64, which row each place takes.
        lost: int64, the rows that are taken to no place where they are read, and so have no gradient.
    """

    taken: Tensor
    lost: Tensor


class _Moved(torch.autograd.Function):
    """Rows `[row, channel]` as `there` takes them; `back` takes their gradients.

    Where examples differ in length, selections are several times as fast as copies to places that are zero at first.
    """

    @staticmethod
    def forward(context: FunctionCtx, rows: Tensor, there: Selection, back: Selection) -> Tensor:
        context.save_for_backward(back.taken, there.lost)
        return rows.index_select(0, there.taken)

    @staticmethod
    def backward(context: BackwardCFunction, gradient: Tensor) -> tuple[Tensor, None, None]:
        taken, lost = list(context.saved_tensors)
        return gradient.index_select(0, taken).index_fill(0, lost, 0), None, None
