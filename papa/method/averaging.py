"""Averages of attention, summed batch by batch while the model runs (Sec. 3.1), and the stage that makes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from papa.config.variant import AVERAGED, OBSERVED_AT_ONCE, TIED
from papa.data.packed import Examples, Packed
from papa.data.tokens import Tokens, TokensFile
from papa.errors import InputError
from papa.method.averages import Constants
from papa.method.checkpoints import Checkpoint, State, progress
from papa.model.budget import TokenBudget, memory_of
from papa.model.load import model_of
from papa.model.model import Batches, Model, check_model, packed_batches
from papa.model.replacement import ObservedLayer
from papa.stages import Average, Job

log = logging.getLogger(__name__)
SHARE_OF_GPU = 0.85
"""The largest share of a GPU's memory that weights and sums may take; larger sums are on the host."""


class Averaging:
    """Running sums of a model's attention, or of the outputs of its heads, over batches with `n` slots.

    The sums of all layers are on the model's device or, if this is a GPU with too little memory, on the host. The
    device then has the sums of one layer at a time. Raise `InputError` if they do not fit into memory.
    """

    def __init__(self, model: Model, n: int, kind: str = "average"):
        self.device = _device_of_sums(model, n, kind)
        self.model = model
        self.n = n
        self.kind = kind
        self.examples = 0
        self.outputs = kind == "mean-output"
        self.entries = n if self.outputs else n**2
        self.count = torch.zeros(self.entries, dtype=torch.long, device=model.device)
        self.total = torch.zeros(0)
        """`[layer, query * key, head]` or `[layer, slot, head * channel]`; empty before the first batch."""
        self._entries_of: tuple[tuple[object, ...], Tensor, Tensor | None] | None = None
        self.added = 0
        """Number of rows of attention of the last batch that have been added to the sums: `n` in each layer."""

    def add(self, batch: Packed, first: int = 0) -> None:
        """Add the attention of `batch`, which is on the model's device, without the `first` rows, as `added` counts."""
        self.added = first

        def watch(layer: ObservedLayer, attention: Tensor, begin: int) -> None:
            index = layer.index
            examples = layer.examples
            end = begin + attention.shape[2]
            known = max(0, first - index * self.n - begin)
            if known >= end - begin:
                return
            attention = attention[:, :, known:]
            begin = begin + known
            observed = layer.outputs(attention) if self.outputs else attention
            # examples that use the same slots are summed first
            summed = (
                observed.sum(0, keepdim=True, dtype=torch.float64)
                if examples.same_slots
                else observed.double()
            )
            values = (
                summed.transpose(1, 2).flatten(2) if self.outputs else summed.permute(0, 2, 3, 1)
            ).flatten(0, -2)
            entries, counted = self._entries_and_counted(examples, begin, end)
            if counted is not None:
                values = values.index_select(0, counted)
            counts = None
            # all layers share counts, because they see the same tokens
            if index == 0:
                repeats = len(examples.slots) if examples.same_slots else 1
                counts = entries.new_zeros(self.entries).index_add_(
                    0, entries, torch.full_like(entries, repeats)
                )
            if not self.total.numel():
                shape = (self.model.layers, self.entries, values.shape[-1])
                # float32 would round away small attention weights once the sum over a corpus is large
                self.total = torch.zeros(shape, dtype=torch.float64, device=self.device)
            if values.shape[-1] != self.total.shape[-1]:
                raise InputError(
                    "Heads have outputs of different sizes in different layers, so there is no mean-output; leave it "
                    "out of `constants` and `floors`."
                )
            if self.device == values.device:
                self.total[index].index_add_(0, entries, values)
            else:
                of_layer = values.new_zeros(self.entries, values.shape[1])
                self.total[index] += of_layer.index_add_(0, entries, values).to(self.device)
            if (
                counts is not None
            ):  # last, so running out of memory cannot leave counts without sums
                self.count += counts.to(self.count.device)
            self.added = index * self.n + (self.n if end == examples.queries else end)

        with torch.no_grad():
            self.model.watch(batch, watch, OBSERVED_AT_ONCE)
        self.examples += len(batch.lengths)
        self.added = 0

    def _entries_and_counted(
        self, examples: Examples, begin: int, end: int
    ) -> tuple[Tensor, Tensor | None]:
        """Return the entry of each counted value, and the indices of these values (None: all).

        The values are those of the queries from `begin` up to `end`. Layers share both if all queries are one block.
        """
        block = examples, begin, end
        if self._entries_of is None or self._entries_of[0] != block:
            self._entries_of = None  # free the memory of the last block
            slots = examples.distinct(examples.slots)
            real = examples.real
            entries = slots[:, begin:end]
            if not self.outputs:  # pairs of slots, [example, query, key]
                entries = entries[:, :, None] * self.n + slots[:, None, :]
            counted = None
            if real is not None:
                used = real[:, begin:end]
                used = used if self.outputs else used[:, :, None] & real[:, None, :]
                counted = used.flatten().nonzero().squeeze(1)
            entries = entries.flatten()
            self._entries_of = block, entries if counted is None else entries[counted], counted
        return self._entries_of[1:]

    def add_group(self, group: Tokens, budget: TokenBudget) -> Iterator[Tensor]:
        """Add all examples of a group, and yield their indices batch by batch."""
        return budget.run(
            self.model, group, lambda _, batch, first: self.add(batch, first), lambda: self.added
        )

    def state(self, groups: int) -> State:
        """Return the state after a number of `groups`, from which averaging can `resume`."""
        return State(
            {"total": self.total, "count": self.count},
            {"examples": self.examples, "groups": groups},
        )

    def resume(self, state: State) -> int:
        """Resume from a state, and return the number of groups that it includes."""
        self.total = state.tensors["total"].to(self.device)
        self.count.copy_(state.tensors["count"])
        self.examples = state.values["examples"]
        return int(state.values["groups"])

    def averages(self) -> Constants:
        heads = self.model.heads
        layers = self.model.layers
        sums = torch.empty(
            layers, heads, self.entries, self.total.shape[-1] // heads, dtype=torch.float64
        )
        for layer, total in enumerate(
            self.total
        ):  # the device may have no memory for a copy of all layers
            sums[layer] = total.cpu().view(self.entries, heads, -1).transpose(0, 1)
        count = self.count.cpu()
        about = {"causal": "True"} if self.model.causal else {}
        if not self.outputs:
            sums = sums.view(layers, heads, self.n, self.n)
            count = count.view(self.n, self.n)
        return Constants(sums, count, self.examples, about, self.kind)


def _device_of_sums(model: Model, n: int, kind: str) -> torch.device:
    """Return the device for the sums of all layers; raise `InputError` if neither device nor host can hold them."""
    needed = 8 * model.layers * model.heads * n**2
    device = model.device
    host = torch.device("cpu")
    memory = memory_of(model.device)
    if kind != "average" or memory is None:
        return device
    if device != host:
        weights = sum(
            values.nbytes for values in model.full.parameters() if values.device == device
        )
        if weights + needed <= SHARE_OF_GPU * memory:
            return device
        log.info("The sums of averages are on the host, because %s has too little memory.", device)
        memory = memory_of(host)
    if memory is not None and needed > memory:
        raise InputError(
            f"The averages of {model.layers} layers of {model.heads} heads in {n:,} slots need {needed / 1e9:,.3g} GB "
            f"on {host}, which has {memory / 1e9:,.3g} GB; use fewer slots."
        )
    return host


def average_attention(model: Model, batches: Batches, kind: str = "average") -> Constants:
    """Average the attention of all heads over batches, which are read once (Sec. 3.1).

    Args:
        model: a model that `load_model` returned.
        batches: inputs `[example, slot]` as `lay_out` returns them, all with the same number of slots.
        kind: `average`; `sink` or `by-distance`, in which pairs of slots share entries; or `mean-output`, a head's
            average output in each slot.

    Returns:
        Sums `[layer, head, query, key]` and counts `[query, key]`, with the average as `mean`. `Constants` lists
        the shapes of the other kinds.

    Raises:
        InputError: there is no batch, a batch is passed instead of a list of batches, the number of slots changes, or
            there is no such kind.
    """
    check_model(model)
    if kind not in AVERAGED:
        raise InputError(f"{kind!r} is not a kind of average; give one of {', '.join(AVERAGED)}.")
    packed = packed_batches(model, batches, "average_attention")
    first = next(packed)  # raises InputError if there is no batch
    averaging = Averaging(model, first.n, "average" if kind in TIED else kind)
    for batch in chain([first], packed):
        averaging.add(batch)
    averages = averaging.averages()
    return averages.tied(kind) if kind in TIED else averages


def average_corpus(jobs: Sequence[Job[Average]]) -> str:
    """Stage *average*: average a model's attention, or the outputs of its heads, over the training texts."""
    return "; ".join(map(_average, jobs))


def _average(job: Job[Average]) -> str:
    model = model_of(job)
    budget = TokenBudget(model.token_budget)
    checkpoint = Checkpoint(job, model.device.type)
    with TokensFile.opened(job.reads["tokens"]) as file:
        train = file.extent("train")
        averaging = Averaging(model, file.slots, job.settings.kind)
        groups = 0
        if (state := checkpoint.restore()) is not None:
            groups = averaging.resume(state)
            checkpoint.resumed = f", resumed after {averaging.examples:,}"

        def batches() -> Iterator[Tensor]:
            for index, group in file.between(train.first, train.first + train.rows, groups):
                yield from averaging.add_group(group, budget)
                checkpoint.save(partial(averaging.state, index + 1))

        for _ in progress(batches(), "averaging", train.rows, averaging.examples):
            pass
    averages = averaging.averages()
    averages.save(job.output, job.record)
    # only after the result is saved, or a job that is killed in between would start from the beginning
    checkpoint.discard()
    content = "the outputs of heads" if averages.kind == "mean-output" else "attention"
    return f"averaged {content} over {averages.examples:,} examples{checkpoint.resumed}"
