"""Parts of a corpus that are worked on apart: what they are called, and which rows they have."""

from __future__ import annotations

from papa.errors import InputError

WHOLE = "1of1"
"""The part that is everything."""


def parts_of(shards: int) -> list[str]:
    """The names of all parts of a corpus: "1of2", "2of2"."""
    return [f"{number}of{shards}" for number in range(1, shards + 1)]


def rows_of(part: str, rows: int) -> tuple[int, int]:
    """The first of `rows` rows that belongs to a part, and the one after its last; `InputError` where it has none."""
    number, shards = (int(value) for value in part.split("of"))
    begin, end = (rows * place // shards for place in (number - 1, number))
    if begin == end:
        raise InputError(f"{rows} examples cannot be cut in {shards} parts; lower shards of the corpus.")
    return begin, end
