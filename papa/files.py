"""Files that stages write and read: intact or absent, with a record of how they were made, and checked when read.

An artefact contains its *provenance* if its format has room for a text. The provenance has facts about the content,
the *trace* of the job that made it (stage, version, settings, digests of inputs), and a digest of facts and content.
The digest is one of values, not of bytes: the same values have the same digest in every file.
"""

from __future__ import annotations

import glob
import hashlib
import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from papa.errors import DamagedArtefact, InputError, first_line

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from torch import Tensor

PathLike = str | os.PathLike[str]
KEY = "papa"
"""Name of the provenance in formats with named texts."""
REBUILD = "delete it and run the workflow again"
"""Advice about a damaged file."""
PAGE = re.compile(r'<meta name="papa-provenance" content="([^"]*)">')
"""Pattern of the provenance in an HTML page."""


@dataclass(frozen=True)
class Trace:
    """The record of how an artefact was made: a stage, its settings, and the content of its inputs.

    An artefact is up to date if its trace is the one that the config asks for now. For example, λ has the stage
    "lambda", version 1, settings such as `{"seed": 0, "constant": "average", ...}`, and digests of `tokens`,
    `labels`, `constants` and `model`. Times of files, paths and the machine are no part of it.

    Args:
        stage: the name of the stage.
        version: the version of that stage, which changes when its numbers do.
        settings: the settings of the stage, as JSON.
        inputs: the digest of the content of each input, by the stage's name for it.
    """

    stage: str
    version: int
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]

    @property
    def request(self) -> str:
        """Digest of stage, version and settings."""
        return digest_of_json([self.stage, self.version, self.settings])


@dataclass(frozen=True)
class Provenance:
    """The record in an artefact: `facts` about its content, the `trace` if a job made it, and the `digest`."""

    facts: Mapping[str, Any]
    trace: Trace | None
    digest: str

    def text(self) -> str:
        trace = None if self.trace is None else asdict(self.trace)
        return _json({"facts": self.facts, "trace": trace, "traced": digest_of_json(trace), "digest": self.digest})

    @classmethod
    def parse(cls, text: str | bytes | None) -> Provenance:
        """Read the result of `text()`; raises ValueError, KeyError or TypeError if it is something else."""
        content = json.loads(text or "")
        if content["traced"] != digest_of_json(content["trace"]):
            raise ValueError("its trace is not what was written")
        return cls(content["facts"], Trace(**content["trace"]) if content["trace"] else None, content["digest"])


class _Hash(Protocol):
    def update(self, content: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def hashing() -> _Hash:
    """Return a new digest, to which content is added."""
    return hashlib.blake2b(digest_size=20)


def digest_of_json(value: object) -> str:
    """Return the digest of a value that JSON can contain."""
    digest = hashing()
    digest.update(_json(value).encode())
    return digest.hexdigest()


@contextmanager
def replacing(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path next to `path`; rename it to `path` on success, remove it on any error.

    A reader therefore sees the old file, the new file or none, never a part of one. Parts of the same file that a
    killed writer left are deleted.

    Raises:
        InputError: the file cannot be written, with the system's reason.
    """
    place = Path(path)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        for left in place.parent.glob(f".{glob.escape(place.name)}.*.partial"):
            left.unlink()
        yield temporary
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, place)
    except OSError as error:
        reason = f"{place} could not be written ({_reason(error)})"
        raise InputError(f"{reason}, and the partial file was removed; fix the cause and run again.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


# -- tables -----------------------------------------------------------------------------------------------------------


class TableWriter:
    """A Parquet file that is written in groups of rows."""

    def __init__(self, file: pq.ParquetWriter, facts: Mapping[str, object], trace: Trace | None):
        self._file, self.facts, self._trace = file, dict(facts), trace
        self._groups: list[str] = []

    def write(self, table: pa.Table) -> None:
        """Add a group of rows."""
        self._file.write_table(table, row_group_size=max(1, table.num_rows))
        self._groups.append(digest_of_table(table))

    def end(self) -> None:
        """Write the provenance, with the digest of each group; `facts` may have grown until now."""
        provenance = _sealed({**self.facts, "groups": self._groups}, self._trace, [])
        self._file.add_key_value_metadata({KEY: provenance.text()})


@contextmanager
def writing_table(
    path: PathLike, schema: pa.Schema, facts: Mapping[str, object], trace: Trace | None = None
) -> Iterator[TableWriter]:
    """Write a Parquet file group by group; it appears after the block, or not at all."""
    import pyarrow.parquet as pq

    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as file:
        writer = TableWriter(file, facts, trace)
        yield writer
        writer.end()


def write_table(table: pa.Table, path: PathLike, facts: Mapping[str, object], trace: Trace | None = None) -> None:
    """Write `table` as Parquet with `facts` about it, which JSON can contain, and its trace."""
    with writing_table(path, table.schema, facts, trace) as writer:
        writer.write(table)


class TableFile:
    """A Parquet file that is read group by group; its `provenance` is read first."""

    def __init__(self, path: PathLike, file: pq.ParquetFile, provenance: Provenance):
        self.path, self.file, self.provenance = path, file, provenance
        self.schema: pa.Schema = file.schema_arrow
        self.metadata: pq.FileMetaData = file.metadata
        self._digests = list(provenance.facts["groups"])

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the table was written with."""
        return {key: value for key, value in self.provenance.facts.items() if key != "groups"}

    def group(self, number: int) -> pa.Table:
        """Return the rows of a group; raises `DamagedArtefact` if they do not have their digest."""
        table = self.file.read_row_group(number, use_threads=False)
        if digest_of_table(table) != self._digests[number]:
            raise DamagedArtefact(f"{self.path} is damaged (its rows are not what was written); {REBUILD}.")
        return table

    def read(self, numbers: Iterable[int] | None = None) -> pa.Table:
        """Return the rows of some groups, by default of all; `provenance_of` returns the facts of this table."""
        import pyarrow as pa

        tables = [self.group(number) for number in (range(len(self._digests)) if numbers is None else numbers)]
        table = pa.concat_tables(tables) if tables else self.schema.empty_table()
        return table.replace_schema_metadata({KEY: self.provenance.text()})


@contextmanager
def opened_table(path: PathLike) -> Iterator[TableFile]:
    """Open a Parquet file to read it in parts; raises `DamagedArtefact` if it is missing, damaged or not papa's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # pq.read_table would load code for datasets of many files: 50 MB in every job
        with pq.ParquetFile(path) as file:
            provenance = _checked(path, (file.metadata.metadata or {}).get(KEY.encode()), [])
            if len(provenance.facts["groups"]) != file.metadata.num_row_groups:
                raise DamagedArtefact(f"{path} is damaged (it has lost rows); {REBUILD}.")
            yield TableFile(path, file, provenance)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DamagedArtefact(f"{path} cannot be read as a table of papa ({_reason(error)}); {REBUILD}.") from error


def read_table(path: PathLike) -> pa.Table:
    """Read a Parquet file; raises `DamagedArtefact` if it is missing, damaged or not papa's."""
    with opened_table(path) as file:
        return file.read()


def digest_of_table(table: pa.Table) -> str:
    """Return the digest of column names, types and values, which does not depend on chunks."""
    digest = hashing()
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = re.sub(r"<\w+: ", "<", str(column.type))  # Parquet renames the values of lists
        digest.update(f"{name} {kind} {len(column)}\n".encode())
        _feed(digest, column.combine_chunks())
    return digest.hexdigest()


def _feed(digest: _Hash, values: pa.Array) -> None:
    """Add the values of an Arrow array to a digest: which are missing, how long they are, and their content."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if isinstance(values, pa.ChunkedArray):  # an array without a chunk, or with too many bytes for one
        for chunk in values.chunks:
            _feed(digest, chunk)
    elif pa.types.is_null(kind):
        pass
    elif pa.types.is_dictionary(kind):  # the texts count, not their numbers
        _feed(digest, values.dictionary_decode())
    else:
        if values.null_count:
            digest.update(values.is_valid().to_numpy(zero_copy_only=False).tobytes())
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            digest.update(np.asarray(pc.list_value_length(values).fill_null(0), dtype="<i8").tobytes())
            _feed(digest, values.flatten())
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            filled = values.fill_null("")
            digest.update(np.asarray(pc.binary_length(filled), dtype="<i8").tobytes())
            width = np.dtype("<i8" if pa.types.is_large_string(kind) else "<i4")
            _, offsets, content = filled.buffers()
            if len(filled) and content is not None:
                ends = np.frombuffer(offsets, width, len(filled) + 1, filled.offset * width.itemsize)
                digest.update(memoryview(content)[int(ends[0]) : int(ends[-1])])
        else:
            filled = values.fill_null(False if pa.types.is_boolean(kind) else 0) if values.null_count else values
            digest.update(np.ascontiguousarray(filled.to_numpy(zero_copy_only=False)).tobytes())


def footer_of(path: PathLike) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the facts of a Parquet file and the number of values in each column, without reading rows.

    For a column of lists, these are the values in the lists. Raises FileNotFoundError if there is no file.
    """
    import pyarrow.parquet as pq

    os.stat(path)
    footer = pq.read_metadata(path)
    values: dict[str, int] = {}
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema.split(".")[0]
            values[name] = values.get(name, 0) + column.num_values
    return dict(Provenance.parse((footer.metadata or {}).get(KEY.encode())).facts), values


def provenance_of(table: pa.Table | TableFile) -> dict[str, Any]:
    """Return the facts that a table was written with."""
    if isinstance(table, TableFile):
        return table.facts
    facts = Provenance.parse((table.schema.metadata or {}).get(KEY.encode())).facts
    return {key: value for key, value in facts.items() if key != "groups"}


# -- JSON, tensors, arrays, pages -------------------------------------------------------------------------------------


def write_json(
    content: Mapping[str, object], path: PathLike, trace: Trace | None = None, facts: Mapping[str, object] | None = None
) -> None:
    """Write `content` as JSON with sorted keys: the same content gives the same bytes. NaN is refused."""
    provenance = _sealed(facts or {}, trace, [_json(content).encode()])
    signed = {**content, KEY: json.loads(provenance.text())}
    text = json.dumps(signed, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: PathLike) -> dict[str, Any]:
    """Read a file of `write_json`; raises `DamagedArtefact` if it is missing, damaged or something else."""
    content, provenance = _json_of(path)
    _checked(path, provenance, [_json(content).encode()])
    return content


def write_tensors(
    tensors: Mapping[str, Tensor], path: PathLike, facts: Mapping[str, object], trace: Trace | None = None
) -> None:
    """Write `tensors` as safetensors with `facts` about them and their trace."""
    from safetensors.torch import save

    provenance = _sealed(facts, trace, _parts_of_tensors(tensors))
    with replacing(path) as temporary:
        temporary.write_bytes(save(dict(tensors), {KEY: provenance.text()}))


def read_tensors(path: PathLike) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and facts of `write_tensors`; raises `DamagedArtefact` if the file is something else."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(Path(path).read_bytes())
        text = _header_of(path).get("__metadata__", {}).get(KEY)
    except (SafetensorError, OSError, ValueError, AttributeError) as error:
        raise DamagedArtefact(f"{path} cannot be read as safetensors ({_reason(error)}); {REBUILD}.") from error
    return tensors, dict(_checked(path, text, _parts_of_tensors(tensors)).facts)


def provenance_of_arrays(facts: Mapping[str, object], trace: Trace | None, arrays: Mapping[str, np.ndarray]) -> str:
    """Return the provenance of an HDF5 file with these `arrays`, to write as its attribute `KEY`."""
    digests = {name: digest_of_array(values) for name, values in arrays.items()}
    return _sealed({**facts, "arrays": digests}, trace, []).text()


def check_arrays(path: PathLike, text: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the facts of an HDF5 file; raises `DamagedArtefact` if these `arrays` are not what was written."""
    facts = dict(_checked(path, text, []).facts)
    digests = facts.pop("arrays", {})
    for name, values in arrays.items():
        if digests.get(name) != digest_of_array(values):
            raise DamagedArtefact(f"{path} is damaged (its {name} is not what was written); {REBUILD}.")
    return facts


def digest_of_array(values: np.ndarray) -> str:
    """Return the digest of type, shape and values."""
    import numpy as np

    digest = hashing()
    digest.update(f"{values.dtype.str} {list(values.shape)}\n".encode())
    digest.update(np.ascontiguousarray(values).reshape(-1).view("u1").data)
    return digest.hexdigest()


def write_page(text: str, path: PathLike, trace: Trace | None = None) -> None:
    """Write an HTML page with its provenance as the first element of `<head>`."""
    provenance = html.escape(_sealed({}, trace, [text.encode()]).text())
    with replacing(path) as temporary:
        signed = text.replace("<head>", f'<head>\n<meta name="papa-provenance" content="{provenance}">', 1)
        temporary.write_text(signed, encoding="utf-8")


# -- provenance -------------------------------------------------------------------------------------------------------


def read_provenance(path: PathLike) -> Provenance | None:
    """Return the provenance of an artefact without reading its content; None if it has none or cannot be read.

    The content is not checked.
    """
    try:
        text = _READERS[Path(path).suffix](path)
        return None if text is None else Provenance.parse(text)
    except Exception:  # a damaged file can make its reader raise any error
        return None


def trace_of(path: PathLike) -> Trace | None:
    """Return the trace of an artefact; None if it has none."""
    provenance = read_provenance(path)
    return None if provenance is None else provenance.trace


def must_agree(path: PathLike, actual: Mapping[str, object], expected: Mapping[str, object]) -> None:
    """Raise `InputError` if the actual facts of an artefact are not the expected ones."""
    for key, value in expected.items():
        if str(actual.get(key)) != str(value):
            raise InputError(
                f"{path} was made with {key} {actual.get(key)}, but {value} is needed; "
                "compute it again for this model and layout."
            )


def digest_of(path: PathLike) -> str:
    """Return the digest of content that an artefact records; raises `DamagedArtefact` if it records none."""
    provenance = read_provenance(path)
    if provenance is None:
        raise DamagedArtefact(f"{path} has no record of its content: it is damaged or no file of papa; {REBUILD}.")
    return provenance.digest


def _text_in_parquet(path: PathLike) -> bytes | None:
    import pyarrow.parquet as pq

    return (pq.read_metadata(path).metadata or {}).get(KEY.encode())


def _text_in_json(path: PathLike) -> str | None:
    return _json_of(path)[1]


def _text_in_tensors(path: PathLike) -> str | None:
    return _header_of(path).get("__metadata__", {}).get(KEY)


def _text_in_arrays(path: PathLike) -> str | None:
    import h5py

    with h5py.File(path, "r") as store:
        return str(store.attrs[KEY])


def _text_in_page(path: PathLike) -> str | None:
    with open(path, encoding="utf-8") as page:
        match = PAGE.search(page.read(1 << 20))
    return html.unescape(match[1]) if match else None


_READERS = {
    ".parquet": _text_in_parquet,
    ".json": _text_in_json,
    ".safetensors": _text_in_tensors,
    ".h5": _text_in_arrays,
    ".html": _text_in_page,
}


def _sealed(facts: Mapping[str, object], trace: Trace | None, parts: Iterable[bytes]) -> Provenance:
    """Return a provenance whose digest covers the facts and `parts` of the content."""
    facts = json.loads(_json(facts))
    return Provenance(facts, trace, _digest_of(facts, parts))


def _digest_of(facts: object, parts: Iterable[bytes]) -> str:
    digest = hashing()
    digest.update(_json(facts).encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _checked(path: PathLike, text: str | bytes | None, parts: Iterable[bytes]) -> Provenance:
    """Return the provenance in `text`; raises `DamagedArtefact` if the content in `parts` does not have its digest."""
    try:
        provenance = Provenance.parse(text)
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedArtefact(
            f"{path} has no record of how it was made: it is damaged or no file of papa; {REBUILD}."
        ) from error
    if provenance.digest != _digest_of(provenance.facts, parts):
        raise DamagedArtefact(f"{path} is damaged (it is not what was written); {REBUILD}.")
    return provenance


def _json_of(path: PathLike) -> tuple[dict[str, Any], str | None]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        provenance = content.pop(KEY, None)
    except (ValueError, OSError, AttributeError) as error:
        raise DamagedArtefact(f"{path} cannot be read as JSON ({_reason(error)}); {REBUILD}.") from error
    return content, None if provenance is None else _json(provenance)


def _header_of(path: PathLike) -> dict[str, dict[str, str]]:
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: dict[str, dict[str, str]] = json.loads(file.read(min(size, 1 << 24)))
    return header


def _parts_of_tensors(tensors: Mapping[str, Tensor]) -> Iterator[bytes]:
    import torch

    for name in sorted(tensors):
        values = tensors[name].detach().cpu().contiguous()
        yield f"{name} {values.dtype} {list(values.shape)}\n".encode()
        yield bytes(values.reshape(-1).view(torch.uint8).numpy().data) if values.numel() else b""


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _reason(error: Exception) -> str:
    """Return the system's reason if it has one, else the first line of a library's message."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else first_line(error)
