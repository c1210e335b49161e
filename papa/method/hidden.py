"""The store of hidden states: flat files of float16.

A file contains the hidden states `[token, L+1, hidden]` of the real tokens, in the order of the tokens file, then a
checksum (CRC-32) of each example, then facts and the record of the job as JSON, and the length of this JSON in 8 bytes.
The facts have the digest of the checksums. So each example is verified when it is read, and no file can be mistaken for
another.

If a state of the corpus is beyond the range of float16, the file is `scaled`: each state `[hidden]` is divided by a
power of two and followed by its exponent. The exponent is 0 for states within the range, so their values stay the same.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from papa.data.tokens import Tokens
from papa.errors import InputError, format_bytes
from papa.files import (
    PathLike,
    Record,
    damaged,
    hashing,
    reading,
    replacing,
    sealed,
    text_at_end,
    unsealed,
)

if TYPE_CHECKING:
    from papa.method.objectives import Batch

Index = dict[str, Any]
"""Facts about a file, among them its sizes: rows, tokens, layers (L+1) and hidden."""
LARGEST_EXPONENT = 15
"""Numbers below two to this power are finite in float16."""


def stored_values(index: Index) -> int:
    """Return the number of stored values of a hidden state; in a scaled file, the last one is its exponent."""
    return int(index["hidden"]) + bool(index.get("scaled"))


def states_bytes(index: Index) -> int:
    """Return the bytes of all hidden states, after which the checksums begin; values have 2 bytes, checksums 4."""
    return 2 * int(index["tokens"]) * int(index["layers"]) * stored_values(index)


def exponents_of(hidden: Tensor) -> Tensor:
    """Return the exponent of the power of two that brings each state into the range of float16, 0 if it is there.

    It depends on nothing but the state, so stored and streamed states are rounded alike. `hidden` is float32 `[...,
    hidden]`; the result is int32 `[..., 1]`.
    """
    within = hidden.half().isfinite().all(-1, keepdim=True)
    exponents = torch.frexp(hidden.abs().amax(-1, keepdim=True)).exponent
    return (exponents - LARGEST_EXPONENT).masked_fill(within, 0)


def rounded(hidden: Tensor) -> Tensor:
    """Round hidden states like stored ones; `hidden` and the result are float32 `[..., hidden]`."""
    half = hidden.half()
    if half.isfinite().all():
        return half.float()
    exponents = exponents_of(hidden)
    # powers of two change no digit, so only the rounding to float16 loses some
    return torch.ldexp(torch.ldexp(hidden, -exponents).half().float(), exponents)


def scaled(hidden: Tensor) -> Tensor:
    """Return states as a scaled file stores them, float16 `[..., hidden + 1]`, from float32 `[..., hidden]`."""
    exponents = exponents_of(hidden)
    return torch.cat([torch.ldexp(hidden, -exponents), exponents.float()], dim=-1).half()


class HiddenWriter:
    """A file of hidden states that is written example by example, in any order."""

    def __init__(self, file: BinaryIO, index: Index):
        self._file = file
        self._index = index
        self.scaled = bool(index.get("scaled"))
        self._checksums = np.zeros(index["rows"], dtype="<u4")
        self._written = np.zeros(index["rows"], dtype=bool)

    def write(self, group: Tokens, first_token: int, examples: Tensor, half: Tensor) -> None:
        """Write the hidden states of `examples`; `first_token` is the index of the group's first token in the corpus.

        `half` is float16 `[token, L+1, hidden]`, or what `scaled` returns.
        """
        for content, place, row in _parts(half.contiguous(), group, first_token, examples):
            _moved(os.pwritev, self._file.fileno(), content, place)
            self._checksums[row] = zlib.crc32(content)
            self._written[row] = True

    def close(self, record: Record) -> None:
        """Write the checksums after the hidden states, and then the facts."""
        if not self._written.all():
            raise RuntimeError(f"{int((~self._written).sum())} examples were not written")
        checksums = self._checksums.tobytes()
        text = sealed({**self._index, "checksums": hashing(checksums).hexdigest()}, record).encode()
        end = checksums + text + len(text).to_bytes(8, "little")
        _moved(os.pwritev, self._file.fileno(), memoryview(end), states_bytes(self._index))


@contextmanager
def writing_hidden(path: PathLike, index: Index, record: Record) -> Iterator[HiddenWriter]:
    """Open a writer for a file with these facts; raise `InputError` if the disk is too small."""
    with replacing(path) as temporary:
        free = shutil.disk_usage(temporary.parent).free
        needed = states_bytes(index) + 4 * index["rows"]
        if needed > free:
            raise InputError(
                f"The hidden states need {format_bytes(needed)}, but the disk of {path} has only "
                f"{format_bytes(free)} free; lower `train_limit`, delete old hidden states, or put the results on a "
                "larger disk."
            )
        with open(temporary, "wb") as file:
            writer = HiddenWriter(file, index)
            yield writer
            writer.close(record)


class StoredStates:
    """Hidden states on disk, read example by example; see `opened`. `index` contains the facts about them."""

    def __init__(self, path: PathLike, file: BinaryIO):
        self.index, self._checksums = read_index(path)
        self._file = file
        self._path = path
        self._first_tokens = {}
        tokens = 0
        for name, _, _, number in self.index["splits"]:
            self._first_tokens[name] = tokens
            tokens += number
        self._checked = np.zeros(self.index["rows"], dtype=bool)

    @classmethod
    @contextmanager
    def opened(cls, path: PathLike) -> Iterator[StoredStates]:
        """Open a file of hidden states; raise `DamagedArtefact` if it is damaged."""
        with reading(path, "hidden states"):
            file = open(path, "rb", buffering=0)  # noqa: SIM115  closed below, where other files can cause errors
        with file:
            yield cls(path, file)

    def __call__(self, batch: Batch) -> Tensor:
        """Return the hidden states of a batch; see `read`."""
        return self.read(batch.examples, batch.tokens, batch.positions)

    def read(self, examples: Tensor, tokens: Tokens, positions: Tensor | None = None) -> Tensor:
        """Return the hidden states of a split's `examples`, float32 `[position, L+1, hidden]`.

        `positions` selects some of their tokens; None means all. Each example is compared with its checksum when it is
        first read.
        """
        shape = int(tokens.lengths[examples].sum()), self.index["layers"], stored_values(self.index)
        half = torch.empty(shape, dtype=torch.float16)
        first_token = self._first_tokens[tokens.split]
        for content, place, row in _parts(half, tokens, first_token, examples):
            # straight into the memory of the tensor, without a copy
            if not _moved(os.preadv, self._file.fileno(), content, place):
                raise damaged(self._path, "ends too early")
            if not self._checked[row]:
                if zlib.crc32(content) != self._checksums[row]:
                    problem = f"is damaged: the hidden states of row {row} are not what was written"
                    raise damaged(self._path, problem)
                self._checked[row] = True
        values = (half if positions is None else half.index_select(0, positions)).float()
        if not self.index.get("scaled"):
            return values
        hidden = self.index["hidden"]
        return torch.ldexp(values[..., :hidden], values[..., hidden:])


def _parts(
    half: Tensor, tokens: Tokens, first_token: int, examples: Tensor
) -> Iterator[tuple[memoryview, int, int]]:
    """Yield the memory of each example's states in `half`, its place in the file, and the row of the example.

    `first_token` is the index of the first of these `tokens` in the corpus.
    """
    view = half.view(-1).numpy().data.cast("B")
    size = half[:1].nbytes
    begins = (tokens.offsets[examples] + first_token) * size
    lengths = tokens.lengths[examples] * size
    rows = examples + tokens.first
    at = 0
    for length, begin, row in torch.stack([lengths, begins, rows], dim=1).tolist():
        yield view[at : at + length], begin, row
        at += length


def read_index(path: PathLike) -> tuple[Index, np.ndarray]:
    """Return the facts and the checksums `[row]` of a file of hidden states; raise `DamagedArtefact` if damaged."""
    with reading(path, "hidden states", ValueError, KeyError, TypeError), open(path, "rb") as file:
        text = text_at_end(file)
        size = file.seek(0, os.SEEK_END)
        facts = dict(unsealed(path, text).facts)
        file.seek(states_bytes(facts))
        content = file.read(4 * facts["rows"])
    if (expected := states_bytes(facts) + 4 * facts["rows"] + len(text) + 8) != size:
        raise damaged(path, f"has {size:,} bytes but should have {expected:,}")
    if hashing(content).hexdigest() != facts["checksums"]:
        raise damaged(path, "is damaged (its checksums have changed since they were written)")
    return facts, np.frombuffer(content, dtype="<u4")


def _moved(call: Callable[..., int], descriptor: int, content: memoryview, offset: int) -> bool:
    """Read or write all of `content`, of which a single call may move less, such as 2 GB; false if the file ends."""
    while content and (moved := call(descriptor, [content], offset)):
        content = content[moved:]
        offset += moved
    return not content
