"""The packed row: the real tokens of a batch, one example after another.

Padding never enters the encoder. Linear layers, norms and activations see one row of tokens. Only attention needs to
know where examples begin and end, and the slots of their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx

from papa.errors import InputError

USED = ("input_ids", "attention_mask", "token_type_ids")
"""Names of inputs that a model reads."""
Inputs = Mapping[str, Tensor]
"""Dense inputs `[example, slot]` by name, as `papa.lay_out` returns them."""
WITHOUT_EFFECT = (
    "labels",
    "special_tokens_mask",
    "offset_mapping",
    "length",
    "overflow_to_sample_mapping",
)
"""Names of what tokenizers and collators return together with inputs, which hidden states do not depend on."""


@dataclass(frozen=True)
class Packed:
    """A batch as one row of real tokens.

    `ids`, `slots` and `segments` are int64 `[token]`, `lengths` is int64 `[example]`, and `n` is the number of slots.
    `on_host` is the same batch on the CPU, if it was copied to a device from there; a GPU waits for each value that
    is read from the device.
    """

    ids: Tensor
    slots: Tensor
    segments: Tensor
    lengths: Tensor
    n: int
    on_host: Packed | None = None

    @cached_property
    def example_of(self) -> Tensor:
        """Index of the example that each token belongs to, `[token]`."""
        examples = torch.arange(len(self.lengths), device=self.lengths.device)
        # without output_size, a GPU would have to report the sum of the lengths
        return examples.repeat_interleave(self.lengths, output_size=len(self.ids))

    @cached_property
    def ranks(self) -> Tensor:
        """Index of each token among the tokens of its example, `[token]`."""
        first = self.lengths.cumsum(0) - self.lengths
        return torch.arange(len(self.ids), device=self.ids.device) - first[self.example_of]

    @cached_property
    def compact(self) -> Packed:
        """The same tokens in the first slots, as many as the longest example needs."""
        longest = int((self.on_host or self).lengths.max())
        return Packed(self.ids, self.ranks, self.segments, self.lengths, n=longest)

    def by_length(self) -> Iterator[tuple[Tensor, Packed]]:
        """Yield parts of the batch and their tokens' indices; no example of a part is twice as long as another."""
        powers = self.lengths.float().log2().floor()
        for power in powers.unique():
            members = powers == power
            tokens = members[self.example_of].nonzero().squeeze(1)
            part = Packed(
                self.ids[tokens],
                self.slots[tokens],
                self.segments[tokens],
                self.lengths[members],
                self.n,
            )
            yield tokens, part

    def to(self, device: torch.device) -> Packed:
        """Return the same batch on `device`."""
        # on the CPU, nothing else waits for a copy from a GPU
        to_cpu = device.type == "cpu"
        moved = self._each(lambda values: values.to(device, non_blocking=not to_cpu))
        from_cpu = self.ids.device.type == "cpu"
        return replace(moved, on_host=self if from_cpu and not to_cpu else self.on_host)

    def pinned(self) -> Packed:
        """Return the same batch in pinned memory, from which a GPU can copy while it computes."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Packed:
        return Packed(
            change(self.ids),
            change(self.slots),
            change(self.segments),
            change(self.lengths),
            n=self.n,
        )

    @classmethod
    def of(cls, inputs: Inputs, pad_id: int | None = None) -> Packed:
        """Pack dense inputs.

        If `pad_id` is given, the mask must exclude exactly the tokens with this id.
        """
        _check_inputs(inputs)
        ids = inputs["input_ids"]
        mask = inputs["attention_mask"]
        _check_mask(ids, mask, pad_id)
        segments = inputs.get("token_type_ids")
        if segments is None:
            segments = torch.zeros_like(ids)
        if segments.shape != ids.shape:
            raise InputError(
                f"token_type_ids {list(segments.shape)} and input_ids {list(ids.shape)} must have the same shape."
            )
        real = mask.bool()
        slots = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return cls(ids[real], slots[real], segments[real], real.sum(dim=1), n=ids.shape[1])

    def unpack(self, tokens: Tensor) -> Tensor:
        """Return `tokens` `[token, ...]` as `[example, slot, ...]`, zero at padding; differentiable."""
        dense = tokens.new_zeros(len(self.lengths) * self.n, *tokens.shape[1:])
        dense = dense.index_copy(0, self.example_of * self.n + self.slots, tokens)
        return dense.view(len(self.lengths), self.n, *tokens.shape[1:])


def _check_inputs(inputs: Inputs) -> None:
    """Raise `InputError` if a model's inputs are incomplete, without effect, or no tensors."""
    for name in ("input_ids", "attention_mask"):
        if inputs.get(name) is None:
            raise InputError(
                f"The inputs have no {name}; lay_out returns input_ids together with attention_mask."
            )
    if unused := sorted({*inputs} - {*USED, *WITHOUT_EFFECT}):
        raise InputError(
            f"The inputs have {unused[0]}, which papa would ignore; leave it out. papa reads {', '.join(USED)}, "
            "and numbers positions by itself."
        )
    if not all(isinstance(inputs.get(name), Tensor | None) for name in USED):
        raise InputError(
            'The inputs are lists, not tensors; call the tokenizer with return_tensors="pt".'
        )


def _check_mask(ids: Tensor, mask: Tensor, pad_id: int | None) -> None:
    """Raise `InputError` if a mask does not fit the ids `[example, slot]`, or leaves an example without a token."""
    if ids.ndim != 2 or ids.shape != mask.shape:
        raise InputError(
            f"input_ids {list(ids.shape)} and attention_mask {list(mask.shape)} must both be [example, slot]."
        )
    if not ((mask == 0) | (mask == 1)).all():
        raise InputError(
            "attention_mask contains values other than 0 and 1; it marks real tokens with 1."
        )
    real = mask.bool()
    empty = ~real.any(dim=1)
    if empty.any():
        raise InputError(
            f"Example {int(empty.nonzero()[0])} has no real token in its attention_mask."
        )
    if pad_id is None:
        return
    wrong = (ids != pad_id) != real
    if wrong.any():
        row, slot = wrong.nonzero()[0].tolist()
        by_id, by_mask = ("padding", "a token") if real[row, slot] else ("a token", "padding")
        raise InputError(
            f"input_ids and attention_mask disagree in example {row}, slot {slot}: "
            f"the id is {by_id}, but the mask marks {by_mask}."
        )


# compared by identity, by which Averaging recognises the layout of a batch
@dataclass(frozen=True, eq=False)
class Examples:
    """The layout of a batch as attention needs it: `[example, position]`, each example padded to the longest one.

    Args:
        slots: int64 `[example, position]`, the slot of each key; with `from_first`, it is counted from the example's
            first token.
        columns: int64 `[example, position]`, the slot of each key, always counted from slot 0 of the model's input.
        real: bool `[example, position]`, whether a position has a token; None if all have one.
        n: number of slots in the layout, including padding.
        positions: int64 `[token]`, the position of each token of a packed row, as a flat index into
            `[example, position]`; None if token i is at position i.
        last_queries: number of positions with a query; these are the last ones. None means all.
        packed: whether the tokens are one row.
        known_same_slots: the value of `same_slots`, if it is known without reading from a device.
        known_on_host: the same layout on the CPU, if it is known without reading from a device.
    """

    slots: Tensor
    columns: Tensor
    real: Tensor | None
    n: int
    positions: Tensor | None = None
    last_queries: int | None = None
    packed: bool = False
    known_same_slots: bool | None = None
    known_on_host: Examples | None = None
    _selections: dict[int, tuple[Selection, Selection]] = field(default_factory=dict)

    @classmethod
    def of_packed(cls, batch: Packed, from_first: bool) -> Examples:
        """Return the layout of a packed row.

        With `from_first`, slots are counted from the first token of each example, even if padding precedes it.
        """
        on_host = batch.on_host or batch
        device = batch.slots.device
        longest = int(on_host.lengths.max())
        shape = (len(batch.lengths), longest)
        same_slots = False
        if (on_host.lengths == longest).all():
            columns = batch.slots.view(shape)
            real = None
            positions = None
            same_slots = bool((on_host.slots.view(shape) == on_host.slots[:longest]).all())
        else:
            occupied = torch.arange(longest) < on_host.lengths.cpu()[:, None]
            positions = sent(occupied.flatten().nonzero().squeeze(1), device)
            real = torch.arange(longest, device=device) < batch.lengths[:, None]
            columns = batch.slots.new_zeros(shape[0] * longest)
            columns = columns.index_copy_(0, positions, batch.slots).view(shape)
        # clamped, because empty positions have column 0, which may be before the first token
        slots = (columns - columns[:, :1]).clamp(min=0) if from_first else columns
        host = None if on_host is batch else cls.of_packed(on_host, from_first)
        return cls(
            slots=slots,
            columns=columns,
            real=real,
            n=batch.n,
            positions=positions,
            packed=True,
            known_same_slots=same_slots,
            known_on_host=host,
        )

    @classmethod
    def of_mask(
        cls, mask: Tensor, queries: int | None = None, from_first: bool = False
    ) -> Examples:
        """Return the layout of dense inputs with this attention mask `[example, slot]`; see `of_packed`."""
        real = mask.bool()
        columns = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        slots = columns
        if from_first and not real[:, 0].all():
            # argmax does not support bool
            slots = (columns - real.int().argmax(1, keepdim=True)).clamp(min=0)
        return cls(
            slots, columns, None if real.all() else real, mask.shape[1], last_queries=queries
        )

    @property
    def real_keys(self) -> Tensor | None:
        """Whether a key has a token, `[example, 1, 1, key]`; None if all have one."""
        return None if self.real is None else self.real[:, None, None, :]

    def distinct(self, values: Tensor) -> Tensor:
        """Return `[example or 1, ...]` of slots or columns `[example, ...]`: one row if they are the same for all."""
        return values[:1] if self.same_slots else values

    def last(self, keys: int, queries: int) -> Examples:
        """Return the layout for a layer that has only the last keys and queries, such as one with a sliding window."""
        if self.packed or (keys, queries) == (self.slots.shape[1], self.queries):
            return self
        real = None if self.real is None else self.real[:, -keys:]
        slots = self.slots[:, -keys:]
        columns = self.columns[:, -keys:]
        return Examples(slots, columns, real, self.n, last_queries=queries)

    @property
    def queries(self) -> int:
        """Number of positions with a query; these are the last ones."""
        return self.slots.shape[1] if self.last_queries is None else self.last_queries

    @cached_property
    def same_slots(self) -> bool:
        """Whether all examples use the same slots, and no position is empty."""
        if self.known_same_slots is not None:
            return self.known_same_slots
        return self.real is None and bool((self.columns == self.columns[:1]).all())

    @cached_property
    def left_aligned(self) -> bool:
        """Whether the tokens of every example precede its padding."""
        return (
            self.real is None or self.packed or bool((self.real[:, :-1] >= self.real[:, 1:]).all())
        )

    @cached_property
    def by_slot(self) -> tuple[Tensor, ...]:
        """The slots that any example uses, `[slot]`, and the index of each position's slot, `[example, position]`.

        The third tensor, bool `[example, slot]`, is True if an example has a token in the slot.
        """
        # a GPU would have to report how many slots `unique` finds
        if self.known_on_host is not None:
            return tuple(sent(values, self.slots.device) for values in self.known_on_host.by_slot)
        slots = (self.slots if self.real is None else self.slots[self.real]).unique()
        # clamped, because an empty position may have a slot after all used ones
        place = torch.searchsorted(slots, self.slots.contiguous()).clamp(max=len(slots) - 1)
        real = torch.ones_like(place) if self.real is None else self.real.long()
        return slots, place, real.new_zeros(len(place), len(slots)).scatter_add(1, place, real) > 0

    def spread(self, row: Tensor) -> Tensor:
        """Rearrange a row `[token, head, channel]` as `[example, head, position, channel]`.

        An empty position gets a copy of its example's first token; the copy is never read.
        """
        tokens, heads, channels = row.shape
        if row.device.type != "cpu":  # a GPU moves whole tokens, or none if no position is empty
            whole = row.reshape(tokens, -1)
            if self.positions is not None:
                whole = _Moved.apply(whole, *self._selections_of(1))
            return whole.view(*self.slots.shape, heads, channels).transpose(1, 2)
        to, back = self._selections_of(heads)
        moved: Tensor = _Moved.apply(row.reshape(-1, channels), to, back)
        return moved.view(len(self.slots), heads, self.slots.shape[1], channels)

    def gather(self, spread: Tensor) -> Tensor:
        """Rearrange `[example, head, position, channel]` as a row `[token, head, channel]`, the reverse of `spread`."""
        heads = spread.shape[1]
        channels = spread.shape[3]
        together = spread.transpose(1, 2)
        if spread.device.type != "cpu" and self.positions is None:
            return together.reshape(-1, heads, channels)
        # fused attention returns a token's heads side by side, and a GPU moves them faster than single heads
        if heads > 1 and (together.is_contiguous() or spread.device.type != "cpu"):
            return self.gather(together.flatten(2).unsqueeze(1)).view(-1, heads, channels)
        back, to = self._selections_of(heads)
        moved: Tensor = _Moved.apply(spread.reshape(-1, channels), to, back)
        return moved.view(-1, heads, channels)

    def spread_heads(self, heads: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Return the `chosen` heads (None: all) as `[example, head, position, channel]`.

        For a packed row, `heads` is `[1, head, token, channel]`; otherwise it already has the shape of the result.
        """
        if not self.packed:
            return heads if chosen is None else heads[:, chosen]
        tokens = heads.squeeze(0).transpose(0, 1)
        return self.spread(tokens if chosen is None else tokens.index_select(1, chosen))

    def gather_heads(self, spread: Tensor) -> Tensor:
        """Return `[example, head, position, channel]` in the model's form.

        This is a packed row `[1, token, head, channel]` or, if inputs are dense, `[example, position, head, channel]`.
        """
        if not self.packed:
            return spread.transpose(1, 2).contiguous()  # models reshape it by views
        return self.gather(spread).unsqueeze(0)

    def _selections_of(self, heads: int) -> tuple[Selection, Selection]:
        """Return the moves from rows (token, head) to rows (example, head, position) and back, shared by all layers."""
        if heads not in self._selections:
            examples, longest = self.slots.shape
            places = examples * longest
            device = self.slots.device
            head = torch.arange(heads, device=device)
            positions = self.positions
            if positions is None:
                positions = torch.arange(places, device=device)
            token_at = torch.full((places,), -1, device=device)
            token_at[positions] = torch.arange(len(positions), device=device)
            token_at = token_at.view(examples, longest)
            empty = (token_at < 0)[:, None].expand(-1, heads, -1)
            empty = _true_indices(empty.flatten(), heads * (places - len(positions)))
            token_at = token_at.where(token_at >= 0, token_at[:, :1])
            rows = token_at[:, None] * heads + head[:, None]  # [example, head, position]
            example = positions // longest
            column = positions % longest
            back = (example * heads)[:, None] * longest + head * longest + column[:, None]
            to = Selection(rows.flatten(), empty.new_empty(0))
            self._selections[heads] = to, Selection(back.flatten(), empty)
        return self._selections[heads]


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return the values on `device`. They are pinned for a GPU, or the host would wait until it is idle."""
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def _true_indices(mask: Tensor, number: int) -> Tensor:
    """Return the indices of the `number` true values of a mask, in order; a GPU need not wait for their number."""
    if mask.device.type == "cpu":
        return mask.nonzero().squeeze(1)
    return mask.int().argsort(descending=True, stable=True)[:number]


@dataclass(frozen=True)
class Selection:
    """A move of rows to other positions.

    `taken` has the index of the source row for each new position. `unread` has the indices of source rows that are
    never read and get no gradient. Both are int64.
    """

    taken: Tensor
    unread: Tensor


class _Moved(torch.autograd.Function):
    """Move rows `[row, channel]` by `selection`, and their gradients by `inverse`.

    For examples of different lengths, this is several times as fast as copying into zeros.
    """

    @staticmethod
    def forward(
        context: FunctionCtx, rows: Tensor, selection: Selection, inverse: Selection
    ) -> Tensor:
        context.save_for_backward(inverse.taken, selection.unread)
        return rows.index_select(0, selection.taken)

    @staticmethod
    def backward(context: BackwardCFunction, gradient: Tensor) -> tuple[Tensor, None, None]:
        taken, unread = list(context.saved_tensors)
        return gradient.index_select(0, taken).index_fill_(0, unread, 0), None, None
