"""The laid-out tokens of a corpus: real tokens only, with their slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from papa.data.packed import Packed
from papa.errors import InputError
from papa.files import PathLike, TableFile, damaged, opened_table

if TYPE_CHECKING:
    import pyarrow as pa


def whole_numbers(values: pa.Array) -> Tensor:
    """Convert an Arrow array of whole numbers without missing values to a tensor of the same type."""
    return torch.from_dlpack(values)  # values.to_numpy() would load pandas


class Tokens:
    """Consecutive laid-out examples of a split: all of them, or some.

    The tokens of example i are `offsets[i]:offsets[i+1]` in `ids`, `slots`, `segments` and `words` (None without
    words), all int32.

    Args:
        flat: `ids`, `slots`, `segments` and perhaps `words` of all tokens, int32 `[token]`.
        lengths: number of tokens of each example.
        split, first: name of the split, and the row of its first example in the tokens file.
        slots: number of slots in the layout, `n`.
    """

    def __init__(
        self, flat: Mapping[str, Tensor], lengths: Tensor, split: str, first: int, slots: int
    ):
        self.split = split
        self.n = slots
        self.first = first
        self.ids = flat["ids"]
        self.slots = flat["slots"]
        self.segments = flat["segments"]
        self.words = flat.get("words")
        self.lengths = lengths.long()
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.long), self.lengths.cumsum(0)])

    @classmethod
    def of(cls, batches: Iterable[Packed], as_words: bool = False) -> Tokens:
        """Collect training examples in batches with the same layout; with `as_words`, every token is a word."""
        packed = list(batches)
        flat = {
            name: torch.cat([getattr(batch, name).cpu() for batch in packed]).int()
            for name in ("ids", "slots", "segments")
        }
        if as_words:
            flat["words"] = flat["slots"]
        lengths = torch.cat([batch.lengths.cpu() for batch in packed])
        return cls(flat, lengths, "train", 0, packed[0].n)

    @classmethod
    def of_table(cls, table: pa.Table, split: str, first: int, slots: int) -> Tokens:
        """Return rows of a tokens file; `first` is the index of the first row."""
        # tensors cannot be made of arrays in chunks
        lists = {
            name: table.column(name).combine_chunks()
            for name in ("ids", "slots", "segments", "words")
            if name in table.column_names
        }
        flat = {name: whole_numbers(values.flatten()) for name, values in lists.items()}
        return cls(flat, whole_numbers(lists["ids"].value_lengths()), split, first, slots)

    @classmethod
    def read(cls, path: PathLike, *splits: str) -> dict[str, Tokens]:
        """Read these splits of a tokens file, by default all of them."""
        with TokensFile.opened(path) as file:
            return {
                split: file.split(split)
                for split in splits or dict.fromkeys(["train", "validation", *file.splits])
            }

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens_of(self, examples: Tensor) -> Tensor:
        """Return the indices of the tokens of `examples`, example by example."""
        sizes = self.lengths[examples]
        shift = self.offsets[examples] - (sizes.cumsum(0) - sizes)
        return torch.arange(int(sizes.sum())) + shift.repeat_interleave(sizes)

    def batch(self, examples: Tensor) -> Packed:
        """Return the packed row of `examples`, in this order."""
        tokens = self.tokens_of(examples)
        ids, slots, segments = (
            values[tokens].long() for values in (self.ids, self.slots, self.segments)
        )
        return Packed(ids, slots, segments, self.lengths[examples], self.n)

    def batches(
        self, token_budget: int | Callable[[], int], padded: bool = False
    ) -> Iterator[Tensor]:
        """Yield the indices of examples in batches of at most `token_budget` tokens, sorted by length.

        If the budget is a function, it is called before every batch, because a budget may shrink. If batches are
        `padded`, all slots of an example count as tokens, because the model computes them.
        """
        budget = token_budget if callable(token_budget) else lambda: token_budget
        # examples with different slots nearly always have different sums
        sums = np.add.reduceat(self.slots.numpy(), self.offsets[:-1].numpy(), dtype=np.int64)
        order = torch.from_numpy(np.lexsort((sums, self.lengths.numpy())))
        begin = 0
        tokens = 0
        allowed = budget()
        lengths = torch.full_like(self.lengths, self.n) if padded else self.lengths[order]
        for end, length in enumerate(lengths.tolist()):
            if tokens and tokens + length > allowed:
                yield order[begin:end]
                begin = end
                tokens = 0
                allowed = budget()
            tokens += length
        yield order[begin:]


@dataclass(frozen=True)
class Group:
    """Consecutive rows of a split in a tokens file: the first row, and the numbers of rows and tokens."""

    split: str
    first: int
    rows: int
    tokens: int


class TokensFile:
    """A tokens file that is read group by group; `splits` maps each split to its extent."""

    def __init__(self, file: TableFile):
        if not {"split", "ids", "slots", "segments", "cut"} <= set(file.parquet.schema_arrow.names):
            raise damaged(file.path, "contains no laid-out tokens")
        self._file = file
        self.slots = file.facts["slots"]
        self.groups: list[Group] = []
        self.splits: dict[str, Group] = {}
        self.rows = 0
        """Number of rows in the file."""
        # from the footer of the file
        for group in map(file.parquet.metadata.row_group, range(file.parquet.num_row_groups)):
            every = map(group.column, range(group.num_columns))
            # Parquet calls the values of a list column ids.list.element
            columns = {column.path_in_schema.split(".")[0]: column for column in every}
            # a group has rows of a single split, so the smallest value is the only one
            split = columns["split"].statistics.min
            tokens = columns["ids"].num_values
            self.groups.append(Group(split, self.rows, group.num_rows, tokens))
            before = self.splits.get(split, Group(split, self.rows, 0, 0))
            self.splits[split] = replace(
                before, rows=before.rows + group.num_rows, tokens=before.tokens + tokens
            )
            self.rows += group.num_rows

    @classmethod
    @contextmanager
    def opened(cls, path: PathLike) -> Iterator[TokensFile]:
        """Open the file at `path` inside the `with` block; raise `DamagedArtefact` if it is damaged."""
        with opened_table(path) as file:
            yield cls(file)

    def extent(self, split: str) -> Group:
        """Return the extent of a split; raise `InputError` if it has no examples."""
        if split not in self.splits:
            raise InputError(f"The {split} split has no examples.")
        return self.splits[split]

    def split(self, name: str) -> Tokens:
        """Return all examples of a split."""
        first = self.extent(name).first
        indices = [index for index, group in enumerate(self.groups) if group.split == name]
        return Tokens.of_table(self._file.read(indices), name, first, self.slots)

    def between(self, begin: int, end: int, first_group: int = 0) -> Iterator[tuple[int, Tokens]]:
        """Yield the examples from row `begin` up to row `end` (excluded), as groups with their indices.

        Groups before the index `first_group` are skipped.
        """
        for index, extent in enumerate(self.groups):
            first = max(begin, extent.first)
            last = min(end, extent.first + extent.rows)
            if index >= first_group and first < last:
                rows = self._file.group(index).slice(first - extent.first, last - first)
                yield index, Tokens.of_table(rows, extent.split, first, self.slots)
