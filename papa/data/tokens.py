"""The laid-out tokens of a corpus as *tokenize* left them: real tokens only, and the slots where they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from papa.data.packed import Packed
from papa.errors import DamagedArtefact, InputError
from papa.files import JSON, MEND, PathLike, TableFile, opened_table

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def whole_numbers(values: pa.Array) -> Tensor:
    """An Arrow array of whole numbers, none of them missing, in its own type."""
    return torch.from_dlpack(values)  # values.to_numpy() would load pandas


@dataclass(frozen=True)
class Questions:
    """The choices of questions, each an example; those of a question stand together.

    Args:
        question: int64 `[example]`, the number of the question of each choice, from 0.
        begin: int64 `[example]`, the number of the first token of each choice in its example.
        characters: int64 `[example]`, how long each choice is.
        sizes: int64 `[question]`, how many choices each question has.
    """

    question: Tensor
    begin: Tensor
    characters: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, table: pa.Table) -> Questions:
        """From a table of choices, in which those of a question have the same `row`."""
        row, *own = (
            whole_numbers(table.column(name).combine_chunks()).long() for name in ("row", "begin", "characters")
        )
        _, question, sizes = torch.unique_consecutive(row, return_inverse=True, return_counts=True)
        return cls(question, own[0], own[1], sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def choices_of(self, questions: Tensor) -> Tensor:
        """Numbers of the choices of some questions, one question after another."""
        sizes = self.sizes[questions]
        begin = (self.sizes.cumsum(0) - self.sizes)[questions] - (sizes.cumsum(0) - sizes)
        return torch.arange(int(sizes.sum())) + begin.repeat_interleave(sizes)


class Tokens:
    """Laid-out examples that stand together in one split of a corpus, as *tokenize* left them: all of it, or a part.

    An example is a text, or a choice behind its question; `questions` is then which belong together, else None.

    `offsets[i]:offsets[i+1]` are the tokens of example i in `ids`, `slots`, `segments` and `words` (None for texts),
    all int32; `rows` are the number of the first example and how many there are, in the tables of the corpus.
    """

    def __init__(self, table: pa.Table, split: str, first: int, provenance: dict[str, JSON]):
        self.split, self.provenance, self.n = split, provenance, int(provenance["slots"])
        self.rows = first, table.num_rows
        lists = {name: table.column(name).combine_chunks() for name in ("ids", "slots", "segments")}
        if "words" in table.column_names:
            lists["words"] = table.column("words").combine_chunks()
        flat = {name: whole_numbers(values.flatten()) for name, values in lists.items()}
        self.ids, self.slots, self.segments = flat["ids"], flat["slots"], flat["segments"]
        self.words = flat.get("words")
        self.lengths = whole_numbers(lists["ids"].value_lengths()).long()
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.long), self.lengths.cumsum(0)])
        self.cut = int(whole_numbers(table.column("cut").combine_chunks()).count_nonzero())
        self.questions = Questions.of(table) if "begin" in table.column_names else None

    @classmethod
    def of(cls, batches: Iterable[Packed], split: str, of_words: bool = False) -> Tokens:
        """Examples that lie in no file, batch by batch in one layout; `of_words` makes a word of every token."""
        import pyarrow as pa

        own = list(batches)
        flat = {name: torch.cat([getattr(batch, name).cpu() for batch in own]) for name in ("ids", "slots", "segments")}
        flat |= {"words": flat["slots"]} if of_words else {}
        lengths = torch.cat([batch.lengths.cpu() for batch in own])
        offsets = pa.array(torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).int().numpy())
        lists = {name: pa.ListArray.from_arrays(offsets, pa.array(own.int().numpy())) for name, own in flat.items()}
        table = pa.table(lists | {"cut": pa.array(torch.zeros(len(lengths), dtype=torch.int32).numpy())})
        return cls(table, split, 0, {"slots": own[0].n})

    @classmethod
    def read(cls, path: PathLike, *splits: str) -> dict[str, Tokens]:
        """The named splits of a tokens file, or all of a task's: train, validation, others that are scored apart."""
        with TokensFile.opened(path) as file:
            return {
                split: file.split(split) for split in splits or dict.fromkeys(["train", "validation", *file.splits])
            }

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
        ids, slots, segments = (values[where].long() for values in (self.ids, self.slots, self.segments))
        return Packed(ids, slots, segments, self.lengths[examples], self.n)

    def batches(self, token_budget: int | Callable[[], int]) -> Iterator[Tensor]:
        """Example numbers in batches of at most `token_budget` tokens, examples of one length side by side.

        A budget that may shrink on the way is given as a function, which is asked before every batch.
        """
        budget = token_budget if callable(token_budget) else lambda: token_budget
        order = torch.from_numpy(np.lexsort((self._pattern(), self.lengths.numpy())))
        start, taken, allowed = 0, 0, budget()
        for place, length in enumerate(self.lengths[order].tolist()):
            if taken and taken + length > allowed:
                yield order[start:place]
                start, taken, allowed = place, 0, budget()
            taken += length
        yield order[start:]

    def _pattern(self) -> np.ndarray:
        """A number per example that differs where the slots in use differ: the sum of its slots."""
        return np.add.reduceat(self.slots.numpy(), self.offsets[:-1].numpy(), dtype=np.int64)


@dataclass(frozen=True)
class Group:
    """A group of rows of a tokens file: its split, its first row in the file, and how many rows and tokens it has."""

    split: str
    first: int
    rows: int
    tokens: int


class TokensFile:
    """A tokens file that is read in parts: `groups` tells what is where, `splits` what each split has in all."""

    def __init__(self, file: TableFile):
        if not {"split", "ids", "slots", "segments", "cut"} <= set(file.schema.names):
            raise DamagedArtefact(f"{file.path} contains no laid-out tokens; {MEND}.")
        self._file, self.provenance = file, file.facts
        self.groups: list[Group] = groups_of(file.metadata)
        self.splits: dict[str, Group] = {}
        """Each split as if it were one group."""
        for group in self.groups:
            before = self.splits.get(group.split, Group(group.split, group.first, 0, 0))
            total = before.rows + group.rows, before.tokens + group.tokens
            self.splits[group.split] = Group(group.split, before.first, *total)

    @classmethod
    @contextmanager
    def opened(cls, path: PathLike) -> Iterator[TokensFile]:
        """The file at `path`, open inside the block; raises `DamagedArtefact` if it is not intact."""
        with opened_table(path) as file:
            yield cls(file)

    def extent(self, split: str) -> Group:
        """Where a split is and how large; raises `InputError` if it has no examples."""
        if split not in self.splits:
            raise InputError(f"The {split} split has no examples.")
        return self.splits[split]

    def split(self, name: str) -> Tokens:
        """All examples of a split."""
        first = self.extent(name).first
        numbers = [number for number, group in enumerate(self.groups) if group.split == name]
        return Tokens(self._file.read(numbers), name, first, self.provenance)

    @property
    def rows(self) -> int:
        """How many rows the file has."""
        return sum(group.rows for group in self.groups)

    def tokens_before(self, row: int) -> int:
        """How many tokens the rows before `row` have."""
        total = 0
        for number, group in enumerate(self.groups):
            if row >= group.first + group.rows:
                total += group.tokens
            elif row > group.first:
                ids = self._file.group(number).column("ids")
                total += int(whole_numbers(ids.combine_chunks().value_lengths())[: row - group.first].sum())
        return total

    def between(self, begin: int, end: int, group: int = 0) -> Iterator[tuple[int, Tokens]]:
        """The examples from row `begin` to before row `end` of the file, those of one group at a time, with its number.

        Groups before number `group` are passed over.
        """
        for number, own in enumerate(self.groups):
            first, last = max(begin, own.first), min(end, own.first + own.rows)
            if number >= group and first < last:
                rows = self._file.group(number).slice(first - own.first, last - first)
                yield number, Tokens(rows, own.split, first, self.provenance)


def groups_of(metadata: pq.FileMetaData) -> list[Group]:
    """The groups of a tokens file, from its footer alone."""
    found, first = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(place) for place in range(group.num_columns)]
        named = {column.path_in_schema.split(".")[0]: column for column in columns}
        split = named["split"].statistics
        if split.min != split.max:
            raise DamagedArtefact(f"Rows of {split.min} and {split.max} stand in one group of laid-out tokens; {MEND}.")
        found.append(Group(split.min, first, group.num_rows, named["ids"].num_values))
        first += group.num_rows
    return found
