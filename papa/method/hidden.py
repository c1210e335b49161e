"""The store of hidden states: flat files of float16, one for each part of a corpus, and an index that says what it is.

A file holds `[token, L+1, hidden]` of the real tokens of its examples, in the order of the laid-out tokens, and behind
them one checksum (CRC-32) for each example; the index holds the digest of those. So every example is known to be what
was written, wherever reading begins, and a file cannot be taken for another.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from papa.data.tokens import Group, Tokens
from papa.errors import DamagedArtefact, InputError
from papa.files import MEND, PathLike, read_json, replacing


@dataclass(frozen=True)
class HiddenPart:
    """A file with the hidden states of the rows from `begin` to before `end` of a corpus, whose first token has the
    number `first_token` there. `checksums` uint32 `[row]`, or None where none are kept."""

    path: PathLike
    begin: int
    end: int
    first_token: int
    checksums: np.ndarray | None


class HiddenWriter:
    """Hidden states of some rows of a corpus, written in any order; `index` says what they are in the end."""

    def __init__(self, file: Any, begin: int, first_token: int, rows: int, tokens: int, row: int):
        self._file, self._begin, self._first_token, self._row = file, begin, first_token, row
        self._checksums = np.zeros(rows, dtype="<u4")
        self._written = np.zeros(rows, dtype=bool)
        self._tokens = tokens

    def write(self, group: Tokens, first_token: int, examples: Tensor, half: Tensor) -> None:
        """Write float16 `[token, L+1, hidden]` of `examples` of a group whose first token has number `first_token`."""
        lengths, begins = group.lengths[examples].tolist(), group.offsets[examples].tolist()
        rows = (examples + (group.rows[0] - self._begin)).tolist()
        view = half.contiguous().view(-1).numpy().data.cast("B")
        held = 0
        for length, begin, row in zip(lengths, begins, rows, strict=True):
            own = view[held : held + length * self._row]
            _write_all(self._file.fileno(), own, (first_token - self._first_token + begin) * self._row)
            self._checksums[row] = zlib.crc32(own)
            self._written[row] = True
            held += len(own)

    def close(self) -> str:
        """Write the checksums behind the hidden states; their digest belongs into the index."""
        if not self._written.all():
            raise RuntimeError(f"{int((~self._written).sum())} examples were not written")
        _write_all(self._file.fileno(), self._checksums.data.cast("B"), self._tokens * self._row)
        return _digest(self._checksums)


@contextmanager
def writing_hidden(
    path: PathLike, begin: int, first_token: int, rows: int, tokens: int, row: int
) -> Iterator[HiddenWriter]:
    """A writer for `rows` rows with `tokens` tokens, `row` bytes each; nothing is left where writing fails.

    Raises `InputError` where the disk does not have the room, before anything is written.
    """
    with replacing(path) as temporary:
        needed, free = tokens * row + 4 * rows, shutil.disk_usage(temporary.parent).free
        if needed > free:
            raise InputError(
                f"The hidden states need {_size(needed)} and the disk of {path} has {_size(free)} free; set `features: "
                "stream` for the task, lower train_limit, delete old features, or put results on a larger disk."
            )
        with open(temporary, "wb") as file:
            yield HiddenWriter(file, begin, first_token, rows, tokens, row)


class HiddenStates:
    """Hidden states on disk, read by example, so that memory holds a batch and never a corpus.

    `first_tokens` says which number the first token of each split has in the corpus; `layers` counts embeddings too.
    """

    def __init__(self, parts: Sequence[HiddenPart], first_tokens: Mapping[str, int], layers: int, hidden: int):
        self.parts, self.first_tokens, self.shape = (
            sorted(parts, key=lambda part: part.begin),
            first_tokens,
            (layers, hidden),
        )
        self.row = layers * hidden * 2  # bytes of a token
        self._begins = [part.begin for part in self.parts]
        self._files = [open(part.path, "rb", buffering=0) for part in self.parts]  # noqa: SIM115 (open while it lives)
        self._checked = np.zeros(max(part.end for part in parts), dtype=bool)

    @classmethod
    def opened(cls, files: Sequence[PathLike], indices: Sequence[PathLike]) -> tuple[HiddenStates, dict[str, Any]]:
        """The hidden states in all parts of a corpus, and what their index says of them all.

        Raises `DamagedArtefact` where a file is not what its index says, or the parts are not those of one corpus.
        """
        abouts = [read_json(index) for index in indices]
        own = ("part", "rows", "first_token", "tokens", "checksums")
        shared = [{key: value for key, value in about.items() if key not in own} for about in abouts]
        for index, about in zip(indices, shared, strict=True):
            if about != shared[0]:
                differ = sorted(key for key in about | shared[0] if about.get(key) != shared[0].get(key))
                raise DamagedArtefact(f"{index} and {indices[0]} differ in {', '.join(differ)}; {MEND}.")
        splits = [Group(*split) for split in shared[0]["splits"]]
        row = shared[0]["layers"] * shared[0]["hidden"] * 2
        parts = [
            HiddenPart(
                path, about["rows"][0], about["rows"][1], about["first_token"], _read_checksums(path, about, row)
            )
            for path, about in zip(files, abouts, strict=True)
        ]
        covered = 0
        for part in sorted(parts, key=lambda part: part.begin):
            if part.begin != covered:
                raise DamagedArtefact(f"{part.path} begins with row {part.begin} where {covered} was expected; {MEND}.")
            covered = part.end
        if covered != sum(split.rows for split in splits):
            raise DamagedArtefact(f"{files[-1]} ends before row {covered}, not all rows are there; {MEND}.")
        first_tokens, number = {}, 0
        for split in splits:
            first_tokens[split.split] = number
            number += split.tokens
        return cls(parts, first_tokens, shared[0]["layers"], shared[0]["hidden"]), shared[0]

    def read(self, examples: Tensor, tokens: Tokens) -> Tensor:
        """Float32 `[token, L+1, hidden]` of the tokens of `examples` of a split, one example after another.

        Each example is held against its checksum when it is read for the first time.
        """
        lengths = tokens.lengths[examples].tolist()
        begins = (tokens.offsets[examples] + self.first_tokens[tokens.split]).tolist()
        rows = (examples + tokens.rows[0]).tolist()
        half = torch.empty(sum(lengths), *self.shape, dtype=torch.float16)
        view, held = half.view(-1).numpy().data.cast("B"), 0
        for length, begin, row in zip(lengths, begins, rows, strict=True):
            number = bisect_right(self._begins, row) - 1
            part, own = self.parts[number], view[held : held + length * self.row]
            place = (begin - part.first_token) * self.row
            if os.preadv(self._files[number].fileno(), [own], place) != len(own):
                raise DamagedArtefact(f"{part.path} ends too early; {MEND}.")
            if part.checksums is not None and not self._checked[row]:
                if zlib.crc32(own) != part.checksums[row - part.begin]:
                    raise _damaged(part.path, row)
                self._checked[row] = True
            held += len(own)
        return half.float()


def check_part(path: PathLike, index: PathLike, lengths: Iterable[int] | None = None) -> None:
    """Raise `DamagedArtefact` where a file of hidden states is not what its index says.

    Its size and the digest of its checksums are looked at; with `lengths`, how many tokens each of its examples has,
    every example is read and held against its checksum.
    """
    about = read_json(index)
    row = about["layers"] * about["hidden"] * 2
    checksums = _read_checksums(path, about, row)
    if lengths is None:
        return
    with open(path, "rb") as file:
        for number, (length, checksum) in enumerate(zip(lengths, checksums, strict=True)):
            if zlib.crc32(file.read(length * row)) != checksum:
                raise _damaged(path, about["rows"][0] + number)


def _damaged(path: PathLike, row: int) -> DamagedArtefact:
    return DamagedArtefact(f"{path} is damaged: the hidden states of row {row} are not what was written; {MEND}.")


def _read_checksums(path: PathLike, about: Mapping[str, Any], row: int) -> np.ndarray:
    begin, end = about["rows"]
    expected = about["tokens"] * row + 4 * (end - begin)
    try:
        with open(path, "rb") as file:
            found = file.seek(0, os.SEEK_END)
            file.seek(about["tokens"] * row)
            content = file.read()
    except OSError as error:
        raise DamagedArtefact(f"{path} cannot be read ({error.strerror}); {MEND}.") from error
    if expected != found:
        raise DamagedArtefact(f"{path} has {found:,} bytes and should have {expected:,}; {MEND}.")
    checksums = np.frombuffer(content, dtype="<u4")
    if _digest(checksums) != about["checksums"]:
        raise DamagedArtefact(f"{path} is damaged or of other hidden states than its index says; {MEND}.")
    return checksums


def _digest(checksums: np.ndarray) -> str:
    return hashlib.blake2b(checksums.tobytes(), digest_size=32).hexdigest()


def _write_all(descriptor: int, content: memoryview, place: int) -> None:
    """`os.pwrite` may write less than it is given, where a disk is nearly full, and says so by a number alone."""
    while content:
        written = os.pwrite(descriptor, content, place)
        content, place = content[written:], place + written


def _size(amount: int) -> str:
    unit, size = next(((unit, size) for unit, size in (("GB", 1e9), ("MB", 1e6)) if amount >= size), ("kB", 1e3))
    return f"{amount / size:.1f} {unit}"
