"""The store of hidden states: flat files of float16, one for each part of a corpus, and an index that says what it is.

A file contains `[token, L+1, hidden]` of the real tokens of its examples, in the order of the laid-out tokens, and
behind them one checksum (CRC-32) for each example; the index beside it has the digest of those. So every example is
known to be what was written, wherever reading begins, and a file cannot be taken for another.
"""

from __future__ import annotations

import os
import shutil
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from papa.data.tokens import Group, Tokens
from papa.errors import DamagedArtefact, InputError
from papa.files import JSON, MEND, PathLike, hashing, read_json, replacing

Index = dict[str, JSON]
"""What the index beside a file says."""
OF_PART = ("part", "rows", "first_token", "tokens", "checksums")
"""What indices of the parts of a corpus differ in."""


@dataclass(frozen=True)
class Extent:
    """Which rows of a corpus a file is of.

    Args:
        begin: the first row.
        end: the row after the last.
        first_token: the number of the first token in the corpus.
        tokens: how many tokens these rows have.
        size: bytes of the hidden states of a token.
    """

    begin: int
    end: int
    first_token: int
    tokens: int
    size: int

    @classmethod
    def of(cls, index: Index) -> Extent:
        """The extent of a file of which this is the index."""
        begin, end = index["rows"]
        return cls(begin, end, index["first_token"], index["tokens"], index["layers"] * index["hidden"] * 2)

    @property
    def checksums_at(self) -> int:
        """Where in the file the checksums begin."""
        return self.tokens * self.size

    @property
    def bytes(self) -> int:
        """How large the file is."""
        return self.checksums_at + 4 * (self.end - self.begin)


class HiddenWriter:
    """Hidden states of some rows of a corpus, written in any order."""

    def __init__(self, file: BinaryIO, extent: Extent):
        self._file, self._extent = file, extent
        self._checksums = np.zeros(extent.end - extent.begin, dtype="<u4")
        self._written = np.zeros(extent.end - extent.begin, dtype=bool)

    def write(self, group: Tokens, first_token: int, examples: Tensor, half: Tensor) -> None:
        """Write float16 `[token, L+1, hidden]` of `examples` of a group whose first token has number `first_token`."""
        lengths, begins = group.lengths[examples].tolist(), group.offsets[examples].tolist()
        rows = (examples + (group.rows[0] - self._extent.begin)).tolist()
        size, at = self._extent.size, 0
        view = half.contiguous().view(-1).numpy().data.cast("B")
        for length, begin, row in zip(lengths, begins, rows, strict=True):
            own = view[at : at + length * size]
            _write_all(self._file.fileno(), own, (first_token - self._extent.first_token + begin) * size)
            self._checksums[row] = zlib.crc32(own)
            self._written[row] = True
            at += len(own)

    def close(self) -> str:
        """Write the checksums behind the hidden states; their digest belongs into the index."""
        if not self._written.all():
            raise RuntimeError(f"{int((~self._written).sum())} examples were not written")
        _write_all(self._file.fileno(), self._checksums.data.cast("B"), self._extent.checksums_at)
        return _digest(self._checksums)


@contextmanager
def writing_hidden(path: PathLike, extent: Extent) -> Iterator[HiddenWriter]:
    """A writer of the rows of an extent; nothing is left if writing fails.

    Raises:
        InputError: the disk does not have the room, which is found before anything is written.
    """
    with replacing(path) as temporary:
        free = shutil.disk_usage(temporary.parent).free
        if extent.bytes > free:
            raise InputError(
                f"The hidden states need {_size(extent.bytes)} and the disk of {path} has {_size(free)} free; set "
                "`features: stream` for the task, lower train_limit, delete old features, or put results on a larger "
                "disk."
            )
        with open(temporary, "wb") as file:
            yield HiddenWriter(file, extent)


class HiddenStates:
    """Hidden states on disk, read by example, so that memory contains a batch and never a corpus; see `opened`.

    `index` is what the indices of all parts say alike.
    """

    def __init__(self, indices: Sequence[PathLike], stack: ExitStack):
        abouts = [read_json(path) for path in indices]
        self.index, *others = [{key: about[key] for key in about if key not in OF_PART} for about in abouts]
        for path, other in zip(indices[1:], others, strict=True):
            if other != self.index:
                differ = sorted(key for key in other | self.index if other.get(key) != self.index.get(key))
                raise DamagedArtefact(f"{path} and {indices[0]} differ in {', '.join(differ)}; {MEND}.")
        splits = [Group(*split) for split in self.index["splits"]]
        self._first_tokens, number = {}, 0
        for split in splits:
            self._first_tokens[split.split] = number
            number += split.tokens
        parts = sorted(
            ((Extent.of(about), hidden_beside(path), about) for path, about in zip(indices, abouts, strict=True)),
            key=lambda part: part[0].begin,
        )
        covered = 0
        for extent, path, _ in parts:
            if extent.begin != covered:
                raise DamagedArtefact(f"{path} begins with row {extent.begin} where {covered} was expected; {MEND}.")
            covered = extent.end
        if covered != sum(split.rows for split in splits):
            raise DamagedArtefact(f"{parts[-1][1]} ends before row {covered}, not all rows are there; {MEND}.")
        self._extents, self._paths = [part[0] for part in parts], [part[1] for part in parts]
        self._checksums = [_read_checksums(path, about) for _, path, about in parts]
        self._files = [stack.enter_context(open(path, "rb", buffering=0)) for path in self._paths]  # noqa: SIM115
        self._begins = [extent.begin for extent in self._extents]
        self._checked = np.zeros(covered, dtype=bool)

    @classmethod
    @contextmanager
    def opened(cls, indices: Sequence[PathLike]) -> Iterator[HiddenStates]:
        """The hidden states in all parts of a corpus, each beside its index, open inside the block.

        Raises:
            DamagedArtefact: a file is not what its index says, or the parts are not those of one corpus.
        """
        with ExitStack() as stack:
            yield cls(indices, stack)

    def read(self, examples: Tensor, tokens: Tokens, places: Tensor | None = None) -> Tensor:
        """Float32 `[token, L+1, hidden]` of the tokens of `examples` of a split, one example after another.

        If there are `places`, int64, these tokens among them are given and no others. Each example is held against its
        checksum when it is read for the first time.
        """
        lengths = tokens.lengths[examples].tolist()
        begins = (tokens.offsets[examples] + self._first_tokens[tokens.split]).tolist()
        rows = (examples + tokens.rows[0]).tolist()
        half = torch.empty(sum(lengths), self.index["layers"], self.index["hidden"], dtype=torch.float16)
        view, at = half.view(-1).numpy().data.cast("B"), 0
        for length, begin, row in zip(lengths, begins, rows, strict=True):
            number = bisect_right(self._begins, row) - 1
            extent, path = self._extents[number], self._paths[number]
            own = view[at : at + length * extent.size]
            place = (begin - extent.first_token) * extent.size
            if os.preadv(self._files[number].fileno(), [own], place) != len(own):
                raise DamagedArtefact(f"{path} ends too early; {MEND}.")
            if not self._checked[row]:
                if zlib.crc32(own) != self._checksums[number][row - extent.begin]:
                    raise _damaged(path, row)
                self._checked[row] = True
            at += len(own)
        return (half if places is None else half.index_select(0, places)).float()


def hidden_beside(index: PathLike) -> Path:
    """The file of hidden states that an index belongs to."""
    return Path(index).with_suffix(".hidden")


def check_part(index: PathLike, lengths: Iterable[int] | None = None) -> None:
    """Look whether a file of hidden states is what its index says.

    Args:
        index: the index, beside which the file is.
        lengths: how many tokens each of its examples has; then every example is read and held against its checksum.

    Raises:
        DamagedArtefact: it is not.
    """
    about, path = read_json(index), hidden_beside(index)
    checksums, extent = _read_checksums(path, about), Extent.of(about)
    with open(path, "rb") as file:
        for row, length in enumerate(lengths or ()):
            if zlib.crc32(file.read(length * extent.size)) != checksums[row]:
                raise _damaged(path, extent.begin + row)


def _damaged(path: PathLike, row: int) -> DamagedArtefact:
    return DamagedArtefact(f"{path} is damaged: the hidden states of row {row} are not what was written; {MEND}.")


def _read_checksums(path: PathLike, about: Mapping[str, JSON]) -> np.ndarray:
    """The checksums of a file of hidden states, uint32 `[row]`, held against what its index says."""
    extent = Extent.of(dict(about))
    try:
        with open(path, "rb") as file:
            found = file.seek(0, os.SEEK_END)
            file.seek(extent.checksums_at)
            content = file.read()
    except OSError as error:
        raise DamagedArtefact(f"{path} cannot be read ({error.strerror}); {MEND}.") from error
    if extent.bytes != found:
        raise DamagedArtefact(f"{path} has {found:,} bytes and should have {extent.bytes:,}; {MEND}.")
    checksums = np.frombuffer(content, dtype="<u4")
    if _digest(checksums) != about["checksums"]:
        raise DamagedArtefact(f"{path} is damaged or of other hidden states than its index says; {MEND}.")
    return checksums


def _digest(checksums: np.ndarray) -> str:
    digest = hashing()
    digest.update(checksums.tobytes())
    return digest.hexdigest()


def _write_all(descriptor: int, content: memoryview, place: int) -> None:
    """Write all of `content`, because `os.pwrite` may write less when a disk is nearly full."""
    while content:
        written = os.pwrite(descriptor, content, place)
        content, place = content[written:], place + written


def _size(amount: int) -> str:
    unit, size = next(((unit, size) for unit, size in (("GB", 1e9), ("MB", 1e6)) if amount >= size), ("kB", 1e3))
    return f"{amount / size:.1f} {unit}"
