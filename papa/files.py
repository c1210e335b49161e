"""Write and read the files of stages: each is complete or absent, records how it was made, and is checked when read.

An artefact is a file that a stage wrote. If its format can store text, the file contains its *provenance*: facts about
the content, the *record* of the job that made it, the versions of packages, and a digest of facts and content. A record
lists the stage, its version and settings, and the keys of its inputs; the digest of the record is the key in the file's
name. A digest depends on values, not on bytes, so equal values have equal digests in every file.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import platform
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import version
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from papa import __version__
from papa.errors import DamagedArtefact, InputError, first_line

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from torch import Tensor

PathLike = str | os.PathLike[str]
Json = dict[str, Any]
"""A JSON object, such as facts about the content of a file."""
KEY = "papa"
"""Key under which a file stores its provenance."""
# 64 bits: two keys of a cache hardly ever agree by chance, and names stay short; files contain the whole key
KEY_DIGITS = 16
"""The number of digits of a key in the name of a file."""
KEYED = re.compile(f"-([0-9a-f]{{{KEY_DIGITS}}})$")
"""Matches the key at the end of a file's name, without its suffix."""
PACKAGES = ("torch", "transformers", "numpy")
"""The packages whose versions an artefact contains."""
REBUILD = "delete it and run the workflow again"
"""Advice for a damaged file."""


@dataclass(frozen=True)
class Record:
    """The origin of an artefact: a stage, its version and settings, and the keys of its inputs.

    Whatever decides a number is in the record, and nothing else: no paths, names, titles, threads or devices. The
    version of a stage is raised when a change to the code changes its numbers.
    """

    stage: str
    version: int
    settings: Json
    inputs: Mapping[str, str]

    @cached_property
    def key(self) -> str:
        """The key of the artefact: the digest of its record, 40 hexadecimal digits."""
        # `asdict` would copy the values, which is slow for the thousands of jobs of a plan
        names = ("stage", "version", "settings", "inputs")
        return digest_of_json({name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class Provenance:
    """The contents of an artefact's metadata.

    Args:
        facts: facts about the content.
        record: what the artefact was made from; None if no stage made it.
        digest: the digest of facts and content.
        packages: the versions of the packages that made the artefact; no key depends on them.
    """

    facts: Json
    record: Record | None
    digest: str
    packages: Mapping[str, str]

    @classmethod
    def parse(cls, text: str | bytes | None) -> Provenance:
        """Parse the result of `sealed`; raise ValueError, KeyError or TypeError if `text` is anything else."""
        content = json.loads(text or "")
        record = Record(**content["record"]) if content["record"] else None
        # the digest covers facts and content; only the key protects the record
        if content["key"] != (record and record.key):
            raise ValueError("its record was changed")
        return cls(content["facts"], record, content["digest"], content["packages"])


def hashing(content: bytes = b"") -> hashlib.blake2b:
    """Return a new hash object, fed with `content`."""
    return hashlib.blake2b(content, digest_size=20)


def digest_of_json(value: object, parts: Iterable[bytes] = ()) -> str:
    """Return the digest of a JSON value and of content in `parts`."""
    digest = hashing()
    for part in chain([_json(value).encode()], parts):
        digest.update(part)
    return digest.hexdigest()


@contextmanager
def replacing(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path next to `path`; rename it to `path` on success, remove it on any error.

    A reader therefore sees the old file, the new file or none, but never a partial one. Partial files of writers that
    were killed are deleted; those of running ones stay, because several may make the same file.

    Raises:
        InputError: the file cannot be written; the message gives the system's reason.
    """
    target = Path(path)
    # with the machine's name, because a process id is meaningless on another machine that shares the disk
    begin = f".{target.name}.{platform.node()}@"
    temporary = target.with_name(f"{begin}{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        share(target.parent)
        for leftover in target.parent.glob(f"{glob.escape(begin)}*.partial"):
            # one of this name, too: it is a dead process's, or a link through which another file would be overwritten
            if leftover == temporary or not _is_running(
                leftover.name.removeprefix(begin).removesuffix(".partial")
            ):
                leftover.unlink(missing_ok=True)
        yield temporary
        # before the rename, or after a power cut the new name may be there, and its content not
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        # before the rename, so the group never sees a file that it cannot change
        share(temporary)
        os.replace(temporary, target)
    except OSError as error:
        reason = f"{target} could not be written ({_reason(error)})"
        raise InputError(
            f"{reason}, and the partial file was removed; fix the cause and run again."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def share(path: Path) -> None:
    """Let the group change a file or folder if its folder is one of a group (setgid, writable), whatever the umask."""
    of_group = stat.S_ISGID | stat.S_IWGRP
    if path.parent.stat().st_mode & of_group == of_group:
        own = path.stat()
        # the system lets only the owner change a mode
        if own.st_uid == os.geteuid():
            path.chmod(stat.S_IMODE(own.st_mode) | (0o2070 if path.is_dir() else 0o060))


def checkpoint_of(path: PathLike) -> Path:
    """Return the path of the last state of the job that makes a file, from which a job that was stopped resumes."""
    return Path(path).with_name(f".{Path(path).name}.checkpoint")


def _is_running(process: str) -> bool:
    """Return whether there is a process with this id on this machine."""
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:  # it is another user's
        pass
    return True


def check_file(path: PathLike) -> None:
    """Raise `InputError` if there is no file at this path."""
    if not os.path.isfile(path):
        raise InputError(f"There is no file {path} (relative paths start from {Path.cwd()}).")


@contextmanager
def reading(path: PathLike, form: str, *damage: type[Exception]) -> Iterator[None]:
    """Explain the errors of a `with` block that reads `path`; `form` names its content, such as "a papa table".

    `damage` are the errors that damaged content causes.

    Raises:
        DamagedArtefact: the file is missing or damaged.
        InputError: the system refused to read the file, for example because of permissions, missing locks or a
            disconnected disk. Nothing is known about the content then, so the file must be kept.
    """
    explained: tuple[type[Exception], ...] = (OSError, *damage)
    try:
        yield
    # already explained by an inner reader; it is a ValueError, which `damage` may contain
    except InputError:
        raise
    except explained as error:
        code = getattr(error, "errno", None)  # libraries also raise OSError, without a code
        if not code:
            raise damaged(path, f"cannot be read as {form} ({first_line(error)})") from error
        problem = f"{path} cannot be read ({_reason(error)})"
        if code in (errno.ENOENT, errno.ENOTDIR):
            raise DamagedArtefact(f"{problem}; run the workflow again.") from error
        raise InputError(f"{problem}; fix the cause and run again.") from error


def damaged(path: PathLike, problem: str) -> DamagedArtefact:
    """Return the error for a damaged file, whose path and `problem` begin the sentence."""
    return DamagedArtefact(f"{path} {problem}; {REBUILD}.")


# -- tables -----------------------------------------------------------------------------------------------------------


@dataclass
class TableWriter:
    """A Parquet file that is being written, one row group after another; callers may add to its `facts`.

    `groups` has the digest of each row group.
    """

    file: pq.ParquetWriter
    facts: Json
    groups: list[str] = field(default_factory=list)

    def write(self, table: pa.Table) -> None:
        """Add a row group."""
        # one group a call, because each has a digest; pyarrow would split a large table
        self.file.write_table(table, row_group_size=max(1, table.num_rows))
        self.groups.append(digest_of_table(table))


@contextmanager
def writing_table(
    path: PathLike, schema: pa.Schema, facts: Json, record: Record | None = None
) -> Iterator[TableWriter]:
    """Write a Parquet file by row groups; it appears only if the `with` block succeeds."""
    import pyarrow.parquet as pq

    # Outcomes repeat the same columns for every run; in pages that contain several runs, they are five times smaller.
    has_large_pages = "max_rows_per_page" in signature(pq.ParquetWriter).parameters
    options = {"max_rows_per_page": 2**31 - 1} if has_large_pages else {}
    with (
        replacing(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd", **options) as file,
    ):
        writer = TableWriter(file, dict(facts))
        yield writer
        # Parquet keeps its metadata at the end of a file, so the digests of all groups can be in it
        provenance = sealed({**writer.facts, "groups": writer.groups}, record)
        file.add_key_value_metadata({KEY: provenance})


def write_table(table: pa.Table, path: PathLike, facts: Json, record: Record | None = None) -> None:
    """Write a table as Parquet, with its record and with `facts` about it (JSON values)."""
    with writing_table(path, table.schema, facts, record) as writer:
        writer.write(table)


@dataclass(frozen=True)
class TableFile:
    """A Parquet file that is read by row groups; its `provenance` was read on opening."""

    path: PathLike
    parquet: pq.ParquetFile
    provenance: Provenance

    @property
    def facts(self) -> Json:
        """The facts that the table was written with."""
        return {key: value for key, value in self.provenance.facts.items() if key != "groups"}

    def group(self, index: int) -> pa.Table:
        """Return a row group; raise `DamagedArtefact` if its digest is wrong."""
        table = self.parquet.read_row_group(index, use_threads=False)
        if digest_of_table(table) != self.provenance.facts["groups"][index]:
            raise damaged(self.path, "is damaged (rows have changed since they were written)")
        return table

    def read(self, indices: Iterable[int] | None = None) -> pa.Table:
        """Return some row groups (None: all) as one table."""
        import pyarrow as pa

        chosen = range(self.parquet.num_row_groups) if indices is None else indices
        tables = [self.group(index) for index in chosen]
        # pyarrow refuses an empty list of tables
        table = pa.concat_tables(tables) if tables else self.parquet.schema_arrow.empty_table()
        return table.replace_schema_metadata()


@contextmanager
def opened_table(path: PathLike) -> Iterator[TableFile]:
    """Open a Parquet file to read it by row groups; raise `DamagedArtefact` if it is missing, damaged or not papa's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # pq.read_table would also import pyarrow.dataset, which costs 50 MB of memory in every job
    with reading(path, "a papa table", pa.ArrowException, KeyError), pq.ParquetFile(path) as file:
        provenance = unsealed(path, (file.metadata.metadata or {}).get(KEY.encode()))
        if len(provenance.facts["groups"]) != file.metadata.num_row_groups:
            raise damaged(path, "is damaged (rows are missing)")
        yield TableFile(path, file, provenance)


def read_table(path: PathLike) -> pa.Table:
    """Read a Parquet file; raise `DamagedArtefact` if it is missing, damaged or not papa's."""
    with opened_table(path) as file:
        return file.read()


def read_facts(path: PathLike) -> Json:
    """Return the facts that a table was written with, without reading its rows."""
    with opened_table(path) as file:
        return file.facts


def digest_of_table(table: pa.Table) -> str:
    """Return the digest of a table's column names, types and values; chunking does not change it."""
    digest = hashing()
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = re.sub(r"<\w+: ", "<", str(column.type))  # Parquet renames the items of lists
        digest.update(f"{name} {kind} {len(column)}\n".encode())
        _feed(digest, column.combine_chunks())
    return digest.hexdigest()


def _feed(digest: hashlib.blake2b, values: pa.Array) -> None:
    """Update a digest with an Arrow array: missing values, lengths, and content."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if isinstance(values, pa.ChunkedArray):  # no chunks, or too much data to combine into one chunk
        for chunk in values.chunks:
            _feed(digest, chunk)
    # a column without values; its length is already in the digest
    elif pa.types.is_null(kind):
        pass
    elif pa.types.is_dictionary(kind):  # hash the decoded values, not the dictionary codes
        _feed(digest, values.dictionary_decode())
    else:
        # below, nulls become 0 or empty texts, and only this mask distinguishes them
        if values.null_count:
            digest.update(values.is_valid().to_numpy(zero_copy_only=False).tobytes())
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            digest.update(
                np.asarray(pc.list_value_length(values).fill_null(0), dtype="<i8").tobytes()
            )
            _feed(digest, values.flatten())
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            filled = values.fill_null("")
            # without lengths, "ab", "c" would have the digest of "a", "bc"
            digest.update(np.asarray(pc.binary_length(filled), dtype="<i8").tobytes())
            width = np.dtype("<i8" if pa.types.is_large_string(kind) else "<i4")
            _, offsets, content = filled.buffers()
            if len(filled) and content is not None:
                # a slice shares the buffers of its array, so its own content begins later
                ends = np.frombuffer(
                    offsets, width, len(filled) + 1, filled.offset * width.itemsize
                )
                digest.update(memoryview(content)[int(ends[0]) : int(ends[-1])])
        else:
            filled = values.fill_null(False if pa.types.is_boolean(kind) else 0)
            digest.update(np.ascontiguousarray(filled.to_numpy(zero_copy_only=False)).tobytes())


# -- JSON, tensors ----------------------------------------------------------------------------------------------------


def write_json(content: Mapping[str, object], path: PathLike, record: Record | None = None) -> None:
    """Write `content` as JSON with sorted keys, so the same content gives the same bytes. NaN raises ValueError."""
    signed = {**content, KEY: json.loads(sealed({}, record, [_json(content).encode()]))}
    text = json.dumps(signed, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: PathLike) -> Json:
    """Read a file that `write_json` wrote; raise `DamagedArtefact` if it is missing, damaged or something else."""
    content, provenance = _json_of(path)
    unsealed(path, provenance, [_json(content).encode()])
    return content


def write_tensors(
    tensors: Mapping[str, Tensor],
    path: PathLike,
    facts: Json,
    record: Record | None = None,
) -> None:
    """Write `tensors` as safetensors, with their record and with `facts` about them."""
    from safetensors.torch import save

    content = save(dict(tensors), {KEY: sealed(facts, record, _parts_of_tensors(tensors))})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_tensors(path: PathLike) -> tuple[dict[str, Tensor], Json]:
    """Return tensors and facts that `write_tensors` wrote; raise `DamagedArtefact` if the file is something else."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    with reading(path, "safetensors", SafetensorError, ValueError, AttributeError):
        tensors = load(Path(path).read_bytes())
        text = _text_in_tensors(path)
    return tensors, unsealed(path, text, _parts_of_tensors(tensors)).facts


def text_at_end(file: BinaryIO) -> bytes:
    """Return the text at the end of a file, before its length in 8 bytes; raise ValueError if there is none."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    length = int.from_bytes(file.read(8), "little")
    # a file that was cut ends in bytes of something else, which may be any number
    if length + 8 > size:
        raise ValueError("its end is missing")
    file.seek(size - 8 - length)
    return file.read(length)


# -- provenance -------------------------------------------------------------------------------------------------------


def read_provenance(path: PathLike) -> Provenance | None:
    """Return an artefact's provenance without reading or checking its content; None if it has none.

    Raises:
        InputError: the system refused to read the file, which therefore must not be taken for outdated.
    """
    try:
        with reading(
            path, "a papa file", Exception
        ):  # a damaged file can make a reader raise any error
            text = _READERS[Path(path).suffix](path)
            return None if text is None else Provenance.parse(text)
    except DamagedArtefact:
        return None


def _text_in_parquet(path: PathLike) -> bytes | None:
    import pyarrow.parquet as pq

    return (pq.read_metadata(path).metadata or {}).get(KEY.encode())


def _text_in_tensors(path: PathLike) -> str | None:
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        # in a damaged file the size may be any number, and must not be allocated
        header = json.loads(file.read(min(size, 1 << 24)))
    metadata: dict[str, str] = header.get("__metadata__", {})
    return metadata.get(KEY)


def _text_in_arrays(path: PathLike) -> str | None:
    import h5py

    with h5py.File(path, "r", locking=False) as store:  # some file systems have no locks
        return str(store.attrs[KEY])


def _text_in_hidden(path: PathLike) -> bytes:
    with open(path, "rb") as file:
        return text_at_end(file)


_READERS = {
    ".parquet": _text_in_parquet,
    ".json": lambda path: _json_of(path)[1],
    ".safetensors": _text_in_tensors,
    ".h5": _text_in_arrays,
    ".hidden": _text_in_hidden,
}


def sealed(facts: Json, record: Record | None, parts: Iterable[bytes] = ()) -> str:
    """Return a provenance as text, with the digest of the facts and of the content in `parts`."""
    # as they will be read back: keys that are numbers become texts, which sort otherwise
    facts = json.loads(_json(facts))
    packages = {"papa": __version__, **{name: version(name) for name in PACKAGES}} if record else {}
    provenance = Provenance(facts, record, digest_of_json(facts, parts), packages)
    return _json({**asdict(provenance), "key": record and record.key})


def unsealed(path: PathLike, text: str | bytes | None, parts: Iterable[bytes] = ()) -> Provenance:
    """Return the provenance in `text`; raise `DamagedArtefact` unless its digest matches the content in `parts`."""
    try:
        provenance = Provenance.parse(text)
    except (ValueError, KeyError, TypeError) as error:
        problem = "has no record of how it was made: it is damaged or not papa's"
        raise damaged(path, problem) from error
    named = KEYED.search(Path(path).stem)
    key = provenance.record.key if provenance.record else "none"
    # a file that was copied over another is intact, but has other content than its name says
    if named and not key.startswith(named[1]):
        raise damaged(path, f"contains the artefact with the key {key}")
    if provenance.digest != digest_of_json(provenance.facts, parts):
        raise damaged(path, "is damaged (it has changed since it was written)")
    return provenance


def _json_of(path: PathLike) -> tuple[Json, str | None]:
    with reading(path, "JSON", ValueError, AttributeError):
        content = json.loads(Path(path).read_bytes())
        provenance = content.pop(KEY, None)
    return content, None if provenance is None else _json(provenance)


def _parts_of_tensors(tensors: Mapping[str, Tensor]) -> Iterator[bytes]:
    import torch

    for name in sorted(tensors):
        values = tensors[name].detach().cpu().contiguous()
        yield f"{name} {values.dtype} {list(values.shape)}\n".encode()
        # as bytes, because NumPy has no bfloat16
        yield bytes(values.reshape(-1).view(torch.uint8).numpy().data) if values.numel() else b""


def _json(value: object) -> str:
    return json.dumps(
        value, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":")
    )


def _reason(error: Exception) -> str:
    """Return the operating system's reason for an error or, if there is none, the first line of its message."""
    code = getattr(error, "errno", None)
    return os.strerror(code) if code else first_line(error)
