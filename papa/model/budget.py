"""Run a model over a corpus in batches with a token budget, which shrinks if memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from papa.data.packed import Packed
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.model.model import Model

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Work = Callable[[Tensor, Packed, int], None]
"""Called with example indices, their packed row on the model's device, and the index of the layer to resume at."""


class TokenBudget:
    """The maximum number of tokens per batch, which is halved whenever a device runs out of memory."""

    def __init__(self, tokens: int):
        self.tokens = tokens

    def run(self, model: Model, group: Tokens, work: Work, done: Callable[[], int] = lambda: 0) -> Iterator[Tensor]:
        """Do `work` on all examples of a group, batch by batch, and yield the indices of finished examples.

        A batch that does not fit into memory is halved; both halves resume at the layer that `done` returns.

        Raises:
            InputError: a single example does not fit.
        """
        pinned = model.device.type == "cuda"

        def batches() -> Iterator[tuple[Tensor, Packed]]:
            for examples in group.batches(lambda: self.tokens):
                batch = group.batch(examples)
                yield examples, batch.pinned() if pinned else batch

        for examples, batch in _prefetched(batches()) if pinned else batches():
            left: list[tuple[Tensor, Packed | None, int]] = [(examples, batch, 0)]
            del batch
            while left:
                part, packed, first = left.pop()
                packed = group.batch(part) if packed is None else packed
                if not self._fits(model, work, part, packed, first):
                    # no reference to the tensors of the failed attempt is left, so their memory can be freed
                    self._halve(model, int(packed.lengths.sum()), len(part))
                    middle = -(-len(part) // 2)
                    left += [(half, None, done()) for half in (part[middle:], part[:middle])]
            yield examples

    def _fits(self, model: Model, work: Work, examples: Tensor, batch: Packed, first: int) -> bool:
        try:
            work(examples, model.pack(batch), first)
        except torch.OutOfMemoryError:
            return False
        return True

    def _halve(self, model: Model, tokens: int, examples: int) -> None:
        if examples == 1:
            raise InputError(
                f"The memory of {model.device} is too small for one example of {tokens} tokens; "
                "use fewer slots, a smaller model or a device with more memory."
            )
        self.tokens = max(1, tokens // 2)
        gc.collect()
        if model.device.type != "cpu":
            torch.accelerator.empty_cache()
        log.warning(
            "%s is out of memory with a batch of %d tokens; continuing with token_budget %d.",
            *(model.device, tokens, self.tokens),
        )


def _prefetched(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, while a thread prepares the next one."""
    source = iter(items)
    with ThreadPoolExecutor(1) as worker:
        ahead = worker.submit(next, source, None)
        while (item := ahead.result()) is not None:
            ahead = worker.submit(next, source, None)
            yield item
