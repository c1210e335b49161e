"""Run a model over a corpus in batches with a token budget, which shrinks if memory runs out."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from papa.data.packed import Packed
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.model.model import Model

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[Tensor, Packed, int], None]
"""Called with example indices, their packed row on the model's device, and the progress at which to resume."""


@dataclass
class TokenBudget:
    """The maximum number of tokens per batch, which is halved whenever a device runs out of memory."""

    tokens: int

    def run(
        self, model: Model, group: Tokens, work: Work, done: Callable[[], int] = lambda: 0
    ) -> Iterator[Tensor]:
        """Do `work` on all examples of a group, batch by batch, and yield the indices of finished examples.

        A batch that does not fit into memory is halved; both halves resume at the progress that `done` returns.

        Raises:
            InputError: a single example does not fit.
        """
        pinned = model.device.type == "cuda"

        def batches() -> Iterator[tuple[Tensor, Packed]]:
            for examples in group.batches(lambda: self.tokens, model.form.padded):
                batch = group.batch(examples)
                yield examples, batch.pinned() if pinned else batch

        for examples, batch in _prefetched(batches()) if pinned else batches():
            left: list[tuple[Tensor, Packed | None, int]] = [(examples, batch, 0)]
            # or this frame would keep the whole batch in memory while its halves run
            del batch
            while left:
                part, packed, first = left.pop()
                packed = group.batch(part) if packed is None else packed
                try:
                    work(part, model.pack(packed), first)
                    continue
                except torch.OutOfMemoryError:
                    pass  # after this block, nothing refers to the tensors of the failed attempt
                tokens = int(packed.lengths.sum())
                _free_memory(model.device, len(part) == 1, f"one example of {tokens} tokens")
                # half of the batch that failed, which may have been smaller than the budget
                self.tokens = max(1, tokens // 2)
                problem = "%s is out of memory with a batch of %d tokens; continuing with token_budget %d."
                log.warning(problem, model.device, tokens, self.tokens)
                left += [(half, None, max(first, done())) for half in reversed(part.chunk(2))]
            yield examples


@dataclass
class BatchParts:
    """The parts in which a batch is trained on or weighed; they are halved whenever a device runs out of memory.

    `size` is the maximum number of examples in a part; 0 means that a batch is one part.
    """

    device: torch.device
    size: int = 0

    def run(self, batch: Tensor, work: Callable[[Sequence[Tensor]], Result]) -> Result:
        """Return the result of `work` on the parts of a batch; if memory runs out, begin again with smaller parts.

        Raises:
            InputError: a single example does not fit.
        """
        while True:
            size = min(self.size or len(batch), len(batch))
            try:
                return work(batch.split(max(1, size)))
            except torch.OutOfMemoryError:
                pass  # after this block, nothing refers to the tensors of the failed attempt
            _free_memory(self.device, size <= 1, "one training example")
            self.size = -(-size // 2)
            log.warning(
                "%s is out of memory with %d examples at once; continuing with %d. Gradients still follow from whole "
                "batches.",
                *(self.device, size, self.size),
            )


def memory_of(device: torch.device) -> int | None:
    """Return the bytes of memory that a GPU or this machine has; None if they are unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    if device.type == "cpu":
        with suppress(OSError, ValueError):  # not Linux
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _free_memory(device: torch.device, smallest: bool, part: str) -> None:
    """Free memory that nothing refers to; raise `InputError` if the `part` that did not fit was the smallest one."""
    if smallest:
        raise InputError(
            f"The memory of {device} is too small for {part}; use fewer slots, a smaller model or a device with more "
            "memory."
        )
    # tensors in reference cycles stay in memory until these are collected
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.empty_cache()


def _prefetched(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, while a thread prepares the next one."""
    source = iter(items)
    # one thread, because two cannot advance the same generator
    with ThreadPoolExecutor(1) as worker:
        ahead = worker.submit(next, source, None)
        while (item := ahead.result()) is not None:
            ahead = worker.submit(next, source, None)
            yield item
