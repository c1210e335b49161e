"""The laid-out tokens of a corpus as *tokenize* left them: real tokens only, and the slots where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from papa.artefacts import PathLike, provenance_of, read_table
from papa.errors import DamagedArtefact, InputError
from papa.packed import Packed

if TYPE_CHECKING:
    import pyarrow as pa


def whole_numbers(values: pa.Array) -> Tensor:
    """An Arrow array of whole numbers, none of them missing, as int64."""
    return torch.from_dlpack(values).long()  # values.to_numpy() would load pandas


class Tokens:
    """The laid-out examples of one split of a corpus, as *tokenize* left them.

    `offsets[i]:offsets[i+1]` are the tokens of example i in `ids`, `slots`, `segments` and `words` (None for texts);
    `rows` are the first row and the number of rows of the split, which stands together, in the tables of the corpus.
    """

    def __init__(self, table: pa.Table, split: str):
        self.provenance = provenance_of(table)
        splits = table.column("split").to_pylist()
        if split not in splits:
            raise InputError(f"The {split} split has no examples.")
        self.rows = splits.index(split), splits.count(split)
        rows = table.slice(*self.rows)
        lists = {name: rows.column(name).combine_chunks() for name in ("ids", "slots", "segments")}
        if "words" in rows.column_names:
            lists["words"] = rows.column("words").combine_chunks()
        flat = {name: whole_numbers(values.flatten()) for name, values in lists.items()}
        self.ids, self.slots, self.segments = flat["ids"], flat["slots"], flat["segments"]
        self.words = flat.get("words")
        self.lengths = whole_numbers(lists["ids"].value_lengths())
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.long), self.lengths.cumsum(0)])
        self.split, self.n = split, int(self.provenance["slots"])
        self.cut = int(whole_numbers(rows.column("cut").combine_chunks()).count_nonzero())

    @classmethod
    def read(cls, path: PathLike, *splits: str) -> dict[str, Tokens]:
        """The named splits of a tokens file, or all of a task's: train, validation, others that are scored apart."""
        table = read_table(path)
        if not {"split", "ids", "slots", "segments", "cut"} <= set(table.column_names):
            raise DamagedArtefact(f"{path} holds no laid-out tokens; delete it and run the workflow again.")
        found = dict.fromkeys(["train", "validation", *table.column("split").unique().to_pylist()])
        return {split: cls(table, split) for split in splits or found}

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens_of(self, examples: Tensor) -> Tensor:
        """Numbers of the tokens of `examples`, one example after another."""
        lengths = self.lengths[examples]
        begin = self.offsets[examples] - (lengths.cumsum(0) - lengths)
        return torch.arange(int(lengths.sum())) + begin.repeat_interleave(lengths)

    def batch(self, examples: Tensor) -> Packed:
        """The packed row of `examples`, in the order given."""
        where = self.tokens_of(examples)
        return Packed(self.ids[where], self.slots[where], self.segments[where], self.lengths[examples], self.n)

    def batches(self, token_budget: int) -> Iterator[Tensor]:
        """Example numbers in batches of at most `token_budget` tokens, examples of one length side by side."""
        order = torch.from_numpy(np.lexsort((self._pattern(), self.lengths.numpy())))
        start, held = 0, 0
        for place, length in enumerate(self.lengths[order].tolist()):
            if held and held + length > token_budget:
                yield order[start:place]
                start, held = place, 0
            held += length
        yield order[start:]

    def _pattern(self) -> np.ndarray:
        """A number per example that differs where the slots in use differ: the sum of its slots."""
        return np.add.reduceat(self.slots.numpy(), self.offsets[:-1].numpy())
