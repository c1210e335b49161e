"""Readers of files of rows: Parquet, JSON, CSV, TSV, CoNLL, plain text."""

from __future__ import annotations

import csv
import json
import os
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from papa.errors import InputError, count, first_line

if TYPE_CHECKING:
    import pyarrow as pa

MAXIMUM_CHARACTERS = 2**31 - 1
"""Maximum length of a value in a CSV file; Python's default, 131,072, is less than a chapter of a book."""
COMMENT_MARK = "# "
ONE_OBJECT_PER_ROW = "write one object for each row, on a line of its own or in an array"


@dataclass(frozen=True)
class SourceRows:
    """The rows of a split of a corpus.

    Args:
        table: the requested columns.
        names: the names of all columns of the source.
        class_names: the class names, in order, of columns with numbered classes.
        lines: the line of the file in which each row begins, counted from 1; empty if the file has no lines.
        indices: the index of each row in the source, if some rows are left out; otherwise empty.
    """

    table: pa.Table
    names: list[str]
    class_names: dict[str, list[str]] = field(default_factory=dict)
    lines: Sequence[int] = ()
    indices: Sequence[int] = ()


def read_file(
    path: Path, wanted: Collection[str] | None = None, words: bool = False, columns: Sequence[str] | None = None
) -> SourceRows:
    """Read the rows of a file in order; its suffix determines the format.

    Args:
        path: A .parquet, .json, .jsonl, .csv, .tsv, .conll or .txt file.
        wanted: Names of the columns to read; all of them if None.
        words: Whether a .txt file has the format of a .conll file; otherwise each of its lines is a text.
        columns: Names of the columns of a CoNLL file, which has no header.

    Raises:
        InputError: The file is missing or malformed, or its format is unknown.
    """
    suffix = path.suffix.lower()
    file_format = ".conll" if suffix == ".txt" and words else suffix
    if file_format not in READERS:
        raise InputError(f"The format of {path} is not supported; supported suffixes are {', '.join(READERS)}.")
    if not os.path.isfile(path):
        raise InputError(f"There is no file {path} (relative paths start from {Path.cwd()}).")
    try:
        if file_format != ".parquet":
            _check_encoding(path)
        rows = READERS[file_format](path, wanted)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8.") from error
    except InputError:
        raise
    except Exception as error:  # malformed files raise more errors than readers document
        raise InputError(f"{path} cannot be read as {file_format[1:]} ({first_line(error)}).") from error
    return _with_names(path, rows, columns) if file_format == ".conll" and columns else rows


def class_names_of(features: object) -> dict[str, list[str]]:
    """Map each column of class numbers, or of lists of them, to the class names that `datasets` has recorded."""
    names = {}
    for column, feature in features.items() if isinstance(features, Mapping) else ():
        while (isinstance(feature, list) and feature) or (isinstance(feature, Mapping) and "feature" in feature):
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel":
            names[column] = [str(name) for name in feature.get("names") or ()]
    return {column: classes for column, classes in names.items() if classes}


def _read_parquet(path: Path, wanted: Collection[str] | None) -> SourceRows:
    import pyarrow.parquet as pq

    # pq.read_table would import pyarrow.dataset, which costs 50 MB of memory in every job
    with pq.ParquetFile(path.absolute()) as file:  # pyarrow takes a relative path such as "a: b" for a URI
        names = file.schema_arrow.names
        table = file.read(columns=names if wanted is None else [name for name in names if name in wanted])
        try:
            described = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
            features = described["info"]["features"]
        except (ValueError, LookupError, TypeError):  # other programs may store anything under this key
            features = None
    return SourceRows(table, names, class_names_of(features))


def _read_json(path: Path, wanted: Collection[str] | None) -> SourceRows:
    """Read an array of objects, or an object on each line; a missing key is null."""
    # newline="\n", because JSON strings may contain other line ends
    with open(path, encoding="utf-8-sig", newline="\n") as lines:
        begin = next((line for line in lines if line.strip()), "")
        lines.seek(0)
        by_line = not begin.lstrip().startswith("[")
        records = _objects(path, lines) if by_line else ((0, record) for record in json.load(lines))
        names: dict[str, None] = {}
        kept, numbers = [], array("q")
        for number, record in records:
            numbers.append(number)
            if not isinstance(record, dict):
                raise InputError(f"{path} must contain objects (column names to values); {ONE_OBJECT_PER_ROW}.")
            names.update(dict.fromkeys(record))
            kept.append(record if wanted is None else {name: record[name] for name in wanted if name in record})
    columns = [name for name in names if wanted is None or name in wanted]
    table = _table(path, {name: [record.get(name) for record in kept] for name in columns})
    return SourceRows(table, list(names), lines=numbers if by_line else ())


def _objects(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, object]]:
    """Yield the number and the object of each line that is not blank."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise InputError(
                    f"{path} line {number} cannot be read as JSON ({error}); {ONE_OBJECT_PER_ROW}."
                ) from error


def _read_csv(path: Path, wanted: Collection[str] | None) -> SourceRows:
    """Read a header line, then rows. Every value remains text, even "NA" and "1984".

    Only CSV files have quoting; in TSV files, a quote is an ordinary character.
    """
    csv.field_size_limit(MAXIMUM_CHARACTERS)
    with open(path, encoding="utf-8-sig", newline="") as lines:
        tabs = path.suffix.lower() == ".tsv"
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines, strict=True)
        begin = 1
        try:
            header = next(reader, [])
            if not header or len(set(header)) < len(header):
                raise InputError(f"{path} must start with a line of distinct column names; it starts with {header}.")
            indices = [index for index, name in enumerate(header) if wanted is None or name in wanted]
            columns: list[list[str]] = [[] for _ in indices]
            numbers = array("q")
            begin = reader.line_num + 1
            for record in reader:
                if record and len(record) != len(header):
                    raise InputError(
                        f"{path} line {begin} has {count(len(record), 'value')} for the columns "
                        f"{', '.join(header)}; quote values that contain the separator (only CSV files may have "
                        "quotes)."
                    )
                if record:
                    numbers.append(begin)
                    for column, index in zip(columns, indices, strict=True):
                        column.append(record[index])
                begin = reader.line_num + 1
        except csv.Error as error:
            raise InputError(
                f"{path} cannot be read as csv: the row that begins in line {begin} is malformed ({error})."
            ) from error
    table = _table(path, dict(zip((header[index] for index in indices), columns, strict=True)))
    return SourceRows(table, header, lines=numbers)


def _read_lines(path: Path, _: Collection[str] | None) -> SourceRows:
    """Read each line as a text, into the column `text`; skip blank lines."""
    with open(path, encoding="utf-8-sig") as lines:
        rows = [(number, line.rstrip("\n")) for number, line in enumerate(lines, start=1) if line.strip()]
    numbers = array("q", (number for number, _ in rows))
    return SourceRows(_table(path, {"text": [text for _, text in rows]}), ["text"], lines=numbers)


def _read_conll(path: Path, _: Collection[str] | None) -> SourceRows:
    """Read sentences separated by blank lines, with a word and its tags on each line."""
    sentences, lines = [], []
    for line, sentence in _sentences(path):
        sentences.append(list(zip(*sentence, strict=True)))
        lines.append(line)
    names = ["words", *(f"column_{index + 1}" for index in range(1, len(sentences[0]) if sentences else 1))]
    columns = {name: [list(sentence[index]) for sentence in sentences] for index, name in enumerate(names)}
    return SourceRows(_table(path, columns), names, lines=lines)


def _with_names(path: Path, rows: SourceRows, columns: Sequence[str]) -> SourceRows:
    """Rename the columns of a CoNLL file as in the config of the corpus."""
    if rows.table.num_rows and len(columns) != len(rows.names):
        raise InputError(
            f"{path} has {count(len(rows.names), 'column')}, but the corpus lists {len(columns)} "
            f"(`columns`: {', '.join(columns)}); list a name for each column."
        )
    table = rows.table.rename_columns(list(columns)) if rows.table.num_rows else rows.table
    return replace(rows, table=table, names=list(columns))


def _sentences(path: Path) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield each sentence: the line number of its first word, and the fields of its words.

    Lines with -DOCSTART- and comments are skipped.
    """
    sentence: list[list[str]] = []
    begin = 0
    with open(path, encoding="utf-8-sig") as lines:
        stripped = [line.strip("\r\n ") for line in lines]
    first = next((line for line in stripped if _is_word(line) and not line.startswith(COMMENT_MARK)), "")
    width, tabs = len(_fields(first)), "\t" in first
    for number, line in enumerate(stripped, start=1):
        if _is_word(line):
            fields = _fields(line)
            # "#" may also be a word, but then it has tags
            if line.startswith(COMMENT_MARK) and (len(fields) != width or tabs != ("\t" in line)):
                continue
            if len(fields) != width:
                raise InputError(
                    f"{path} line {number} has {count(len(fields), 'column')}, but the lines above it have {width}: "
                    f"{line!r}; write the same number of columns in all lines."
                )
            begin = begin if sentence else number
            sentence.append(fields)
        elif sentence:
            yield begin, sentence
            sentence = []
    if sentence:
        yield begin, sentence


def _is_word(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("-DOCSTART-")


def _fields(line: str) -> list[str]:
    # split() without an argument would split at a no-break space, which is part of a word
    return line.split("\t") if "\t" in line else [part for part in line.split(" ") if part]


def _table(path: Path, columns: Mapping[str, Sequence[object]]) -> pa.Table:
    import pyarrow as pa

    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pa.array(values)
        except OverflowError as error:
            raise InputError(
                f"Column {name} of {path} contains a whole number of more than 64 bits; write it as a string."
            ) from error
        except pa.ArrowException as error:
            raise InputError(
                f"Column {name} of {path} mixes types of values ({first_line(error)}); use one type in all rows."
            ) from error
    return pa.table(arrays)


def _check_encoding(path: Path) -> None:
    """Refuse UTF-16, which may also be valid UTF-8 with many NUL characters."""
    with open(path, "rb") as file:
        if b"\0" in file.read(4096):
            raise InputError(f"{path} is not UTF-8 text (it contains NUL bytes, as UTF-16 does); save it as UTF-8.")


READERS: dict[str, Callable[[Path, Collection[str] | None], SourceRows]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_json,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".conll": _read_conll,
    ".txt": _read_lines,
}
