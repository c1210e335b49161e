"""Files that stages hand to each other: whole or absent, with their provenance inside, checked when read.

Every file holds a seal: a digest of all its other bytes, in a place where the format has room for a text, and beside it
where below a workflow's results the file belongs. Whatever is cut, flipped, written over or put in the place of another
is found when the file is read, before a number of it is used.
"""

from __future__ import annotations

import glob
import hashlib
import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papa.errors import DamagedArtefact, InputError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

PathLike = str | os.PathLike[str]
PROVENANCE = b"papa"
SEAL = "papa_seal"
"""What formats with named texts call the text that holds the seal."""
UNSEALED = "blake2b-" + "0" * 64
"""The seal of a file that is being written; `replacing` puts the digest in its place."""
MEND = "delete it and run the workflow again"
"""What to do about a damaged file."""
_SEALED = re.compile(rb"blake2b-[0-9a-f]{64}(?: \(([^()]*)\))?")
_BELOW_RESULTS = re.compile(r"(?:.*/)?results/[^/]+/((?:corpora|models|tables|tasks)/[\w./-]+)", re.ASCII)


def unsealed(path: PathLike) -> str:
    """The text to write where the seal of a file at `path` shall be: with its place, if it is one of a workflow."""
    place = _place_of(path)
    return f"{UNSEALED} ({place})" if place else UNSEALED


@contextmanager
def replacing(path: PathLike, seal: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it into place on success, remove it on any error.

    A reader therefore sees the old file, the new file or none, never a part of one. What a writer that was killed left
    of the same file is deleted. With `seal` the digest of what was written takes the place of the last `UNSEALED`.
    """
    place = Path(path)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        for left in place.parent.glob(f".{glob.escape(place.name)}.*.partial"):
            left.unlink()
        yield temporary
        with open(temporary, "rb+") as written:
            if seal:
                _seal(written)
            os.fsync(written.fileno())
        os.replace(temporary, place)
    except OSError as error:
        raise InputError(
            f"{place} could not be written ({_reason(error)}), and nothing of it was left; mend that and run again."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def check_seal(path: PathLike) -> str:
    """Raise `DamagedArtefact` where a file is not what was written (cut, changed, written over), or written as another.

    A file outside of a workflow's results may be any. Returns where below results it was written; empty for elsewhere.
    """
    try:
        with open(path, "rb") as file, _mapped(file) as content:
            seals = [(match.start(), (match[1] or b"").decode()) for match in _SEALED.finditer(content)]
            # texts of a corpus might look like a seal; only the real one fits
            own = next((own for at, own in seals if content[at : at + len(UNSEALED)] == _seal_of(content, at)), None)
    except (OSError, ValueError) as error:  # mmap calls an empty file a wrong value
        raise DamagedArtefact(f"{path} cannot be read ({_reason(error)}); {MEND}.") from error
    if own is None:
        what = "it is not what was written" if seals else "it has no seal, which papa puts into its files"
        raise DamagedArtefact(f"{path} cannot be read: it is damaged or no file of papa ({what}); {MEND}.")
    place = _place_of(path)
    if own and place and own != place:
        raise DamagedArtefact(f"{path} was written as {own} and does not belong here; {MEND}.")
    return own


def is_sealed(path: PathLike) -> bool:
    """Whether a file has a seal at all, be it broken."""
    try:
        with open(path, "rb") as file, _mapped(file) as content:
            return _SEALED.search(content) is not None
    except (OSError, ValueError):
        return False


def _place_of(path: PathLike) -> str:
    """Where below the results of a workflow a file is, which says what it is of; empty for files elsewhere."""
    found = _BELOW_RESULTS.fullmatch(os.fspath(path))
    return found[1] if found else ""


def _seal(file: Any) -> None:
    """Put the digest of a file that is open for reading and writing in the place of its last `UNSEALED`."""
    with _mapped(file) as content:
        place = content.rfind(UNSEALED.encode())
        seal = _seal_of(content, place)
    file.seek(place)
    file.write(seal)
    file.flush()


def _mapped(file: Any) -> mmap.mmap:
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _seal_of(content: mmap.mmap, place: int) -> bytes:
    """The seal of `content` that stands at `place`: of all bytes, with the seal itself as it was before."""
    digest = hashlib.blake2b(digest_size=32)
    with memoryview(content) as view:
        digest.update(view[:place])
        digest.update(UNSEALED.encode())
        digest.update(view[place + len(UNSEALED) :])
    return b"blake2b-" + digest.hexdigest().encode()


def write_table(table: pa.Table, path: PathLike, provenance: Mapping[str, Any]) -> None:
    """Write `table` as Parquet with `provenance` (anything JSON can hold) in the file's own metadata."""
    import pyarrow.parquet as pq

    with replacing(path, seal=True) as temporary:
        pq.write_table(with_provenance(table, path, provenance), temporary, compression="zstd")


def with_provenance(table: pa.Table | pa.Schema, path: PathLike, provenance: Mapping[str, Any]) -> Any:
    """A table or schema whose metadata has `provenance`, and room for the seal of the file at `path`."""
    text = json.dumps(provenance, sort_keys=True, allow_nan=False).encode()
    metadata = {PROVENANCE: text, SEAL.encode(): unsealed(path).encode()}
    return table.with_metadata(metadata) if hasattr(table, "with_metadata") else table.replace_schema_metadata(metadata)


def read_table(path: PathLike) -> pa.Table:
    """Read a Parquet file; raises `DamagedArtefact` where it is missing or not whole."""
    with opened_table(path) as file:
        return file.read(use_threads=False)


@contextmanager
def opened_table(path: PathLike) -> Iterator[pq.ParquetFile]:
    """A Parquet file to read in parts; raises `DamagedArtefact` where it is missing or not whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_seal(path)
    try:
        # pq.read_table would load what reads datasets of many files: 50 MB of every job
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise DamagedArtefact(f"{path} cannot be read as Parquet ({_first_line(error)}); {MEND}.") from error


def provenance_of(table: Any) -> dict[str, Any]:
    """What `write_table` was told about where a table (or a file of one, or its schema) came from."""
    schema = table if not hasattr(table, "schema") else getattr(table, "schema_arrow", table.schema)
    return json.loads((schema.metadata or {}).get(PROVENANCE, b"{}"))


def write_json(content: Mapping[str, Any], path: PathLike) -> None:
    """Write `content` as JSON with sorted keys: the same content gives the same bytes. NaN is refused."""
    text = json.dumps({**content, SEAL: unsealed(path)}, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
    with replacing(path, seal=True) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: PathLike) -> dict[str, Any]:
    """Read a JSON file that `write_json` wrote; raises `DamagedArtefact` where it is missing or not whole."""
    check_seal(path)
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # whole, but of another form
        raise DamagedArtefact(f"{path} cannot be read as JSON ({_first_line(error)}); {MEND}.") from error
    return {key: value for key, value in content.items() if key != SEAL}


def fingerprint_of_table(table: pa.Table) -> str:
    """SHA-256 over column names and values: equal tables have equal fingerprints, wherever they were read from."""
    digest = hashlib.sha256()
    for name in table.column_names:
        digest.update(json.dumps([name, table.column(name).to_pylist()], ensure_ascii=False).encode())
    return digest.hexdigest()


def footer_of(path: PathLike) -> tuple[dict[str, Any], dict[str, int]]:
    """What the footer of a Parquet file tells, its data unread: the provenance, and how many values each column holds.

    Of a column of lists these are the values in the lists. Raises FileNotFoundError with this path in `filename` where
    there is no file.
    """
    import pyarrow.parquet as pq

    os.stat(path)
    footer = pq.read_metadata(path)
    held: dict[str, int] = {}
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema.split(".")[0]
            held[name] = held.get(name, 0) + column.num_values
    return json.loads((footer.metadata or {}).get(PROVENANCE, b"{}")), held


def _reason(error: Exception) -> str:
    """Why the system refused something, in its own words and without those of a library."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
