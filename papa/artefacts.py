"""Files that stages hand to each other: whole or absent, with their provenance inside, checked when read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papa.errors import DamagedArtefact, InputError

if TYPE_CHECKING:
    import pyarrow as pa

PathLike = str | os.PathLike[str]
PROVENANCE = b"papa"


@contextmanager
def replacing(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it into place on success, remove it on any error.

    A reader therefore sees the old file, the new file or none, never a part of one.
    """
    place = Path(path)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, place)
    except OSError as error:
        raise InputError(
            f"{place} could not be written ({error.strerror or error}); nothing was left behind."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_table(table: pa.Table, path: PathLike, provenance: Mapping[str, Any]) -> None:
    """Write `table` as Parquet with `provenance` (anything JSON can hold) in the file's own metadata."""
    import pyarrow.parquet as pq

    metadata = {PROVENANCE: json.dumps(provenance, sort_keys=True).encode()}
    with replacing(path) as temporary:
        pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd")


def read_table(path: PathLike) -> pa.Table:
    """Read a Parquet file; raises `DamagedArtefact` where it is missing or not whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # pq.read_table would load what reads datasets of many files: 50 MB of every job
        return pq.ParquetFile(path).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DamagedArtefact(
            f"{path} cannot be read as Parquet ({_first_line(error)}); delete it and run the workflow again."
        ) from error


def provenance_of(table: pa.Table) -> dict[str, Any]:
    """What `write_table` was told about where the table came from."""
    return json.loads((table.schema.metadata or {}).get(PROVENANCE, b"{}"))


def write_json(content: Any, path: PathLike) -> None:
    """Write `content` as JSON with sorted keys: the same content gives the same bytes. NaN is refused."""
    text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: PathLike) -> Any:
    """Read a JSON file; raises `DamagedArtefact` where it is missing or not whole."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedArtefact(
            f"{path} cannot be read as JSON ({_first_line(error)}); delete it and run the workflow again."
        ) from error


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


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
