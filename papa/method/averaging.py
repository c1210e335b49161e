"""Averages of attention, summed batch by batch while the model runs (paper, Sec. 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from papa.config.variant import AVERAGED, free_entries
from papa.data.packed import Examples, Packed
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.averages import ConstantMatrices
from papa.method.checkpoints import State
from papa.method.tied import TIED, classes_of
from papa.model.attention import Layer
from papa.model.budget import TokenBudget
from papa.model.model import Batches, Model, check_model, packed_batches


class Averaging:
    """Running sums of a model's attention, or of the outputs of its heads, over batches with `n` slots."""

    def __init__(self, model: Model, n: int, kind: str = "average"):
        self.model, self.n, self.kind, self.examples = model, n, kind, 0
        self.outputs, self.places = kind == "mean-output", n if kind == "mean-output" else free_entries(kind, n)
        self.classes = classes_of(kind, n).long().flatten().to(model.device) if kind in TIED else None
        self.count = torch.zeros(self.places, dtype=torch.long, device=model.device)
        self.total = torch.zeros(0)
        """`[layer, query * key, head]`, `[layer, class, head]` or `[layer, slot, head * channel]`; empty before the
        first batch."""
        self.added = 0
        """Layers of the last batch that are in the sums."""

    def add(self, batch: Packed, first: int = 0) -> None:
        """Add the layers from `first` on in `batch`, which is on the model's device."""
        self.added = first

        def watch(of: Layer, attention: Tensor) -> None:
            layer, examples = of.index, of.examples
            if layer < first:
                return
            seen = attention @ of.values(None) if self.outputs else attention
            # examples that use the same slots are summed first
            summed = seen.sum(0, keepdim=True, dtype=torch.float64) if examples.same_slots else seen.double()
            entries, counted = self._entries(examples)
            values = summed.transpose(1, 2).flatten(2) if self.outputs else summed.permute(0, 2, 3, 1)
            if counted is None:
                entries, values = entries.flatten(), values.flatten(0, -2)
            else:
                counted = counted.expand(entries.shape)
                entries, values = entries[counted], values[counted]
            repeats = len(examples.slots) if examples.same_slots else 1
            pairs = torch.bincount(entries, minlength=self.places) * repeats if layer == 0 else None
            if not self.total.numel():
                shape = (self.model.layers, self.places, values.shape[-1])
                self.total = torch.zeros(shape, dtype=torch.float64, device=self.model.device)
            self.total[layer].index_add_(0, entries, values)
            if pairs is not None:  # last, because an error of memory must not leave counts without sums
                self.count += pairs
            self.added = layer + 1

        with torch.no_grad():
            self.model.watch(batch, watch)
        self.examples += len(batch.lengths)

    def _entries(self, examples: Examples) -> tuple[Tensor, Tensor | None]:
        """Return the entry of the sums for each slot or pair of slots, and which of these count (None: all)."""
        slots, real = examples.slots[:1] if examples.same_slots else examples.slots, examples.real
        if self.outputs:
            return slots, real
        entries = slots[:, :, None] * self.n + slots[:, None, :]  # [example, query, key]
        counted = None if real is None else real[:, :, None] & real[:, None, :]
        if self.classes is None:
            return entries, counted
        if self.model.causal:  # no query sees later keys, so they do not count as zeros
            seen = slots[:, :, None] >= slots[:, None, :]
            counted = seen if counted is None else counted & seen
        return self.classes[entries], counted

    def add_group(self, group: Tokens, budget: TokenBudget) -> Iterator[Tensor]:
        """Add all examples of a group, and yield their numbers batch by batch."""
        return budget.run(self.model, group, lambda _, batch, first: self.add(batch, first), lambda: self.added)

    def state(self, groups: int) -> State:
        """Return the state after this number of groups, for `resume`."""
        return State({"total": self.total, "count": self.count}, {"examples": self.examples, "groups": groups})

    def resume(self, state: State) -> int:
        """Continue from a state; return its number of groups."""
        self.total = state.tensors["total"].to(self.count.device)
        self.count.copy_(state.tensors["count"])
        self.examples = state.values["examples"]
        return int(state.values["groups"])

    def averages(self) -> ConstantMatrices:
        heads, layers = self.model.heads, self.model.layers
        if self.outputs:
            sums, axes = self.total.view(layers, self.n, heads, -1).transpose(1, 2), [self.n]
        else:
            axes = [self.n, self.n] if self.classes is None else [self.places]
            sums = self.total.transpose(1, 2).reshape(layers, heads, *axes)
        about = {"causal": str(self.model.causal)} if self.classes is not None else {}
        return ConstantMatrices(sums.cpu(), self.count.view(axes).cpu(), self.examples, about, self.kind, self.n)


def average_attention(model: Model, batches: Batches, kind: str = "average") -> ConstantMatrices:
    """Average the attention of all heads over batches, which are read once (Sec. 3.1).

    Args:
        model: a model that `load_model` returned.
        batches: inputs `[example, slot]` as `lay_out` returns them, all with the same number of slots.
        kind: `average`. Three kinds need much less memory and keep less information: in `sink` and `by-distance`, pairs
            of slots share entries; `mean-output` is the average output of a head in each slot.

    Returns:
        Sums `[layer, head, query, key]` and counts `[query, key]`, whose `mean` is the average. `ConstantMatrices`
        lists the shapes of the other kinds.

    Raises:
        InputError: there is no batch, a batch is passed instead of a list of batches, the number of slots changes, or
            there is no such kind.
    """
    check_model(model)
    if kind not in AVERAGED:
        raise InputError(f"There is no average {kind!r}; there are {', '.join(AVERAGED)}.")
    packed = packed_batches(model, batches, "average_attention")
    first = next(packed)  # raises InputError if there is no batch
    averaging = Averaging(model, first.n, kind)
    for batch in chain([first], packed):
        averaging.add(batch)
    return averaging.averages()
