"""Readers of files of rows: Parquet, JSON, CSV, TSV, CoNLL, plain text.

A file is read as it is meant, or refused in one sentence that names the line. Values of CSV, TSV and CoNLL files remain
text, even "NA" and "1984".
"""

from __future__ import annotations

import csv
import json
import os
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from pathlib import Path
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any

from papa.config.settings import TO_PARQUET, readable
from papa.data.columns import ONE_OBJECT_PER_ROW, Columns, Rows
from papa.errors import InputError, count, first_line, listing
from papa.files import check_file

if TYPE_CHECKING:
    import pyarrow as pa

WantedColumns = Collection[str] | None
"""The names of the columns to read; None for all."""
MAXIMUM_CHARACTERS = 2**31 - 1
"""Maximum length of a value in a CSV file; Python's default, 131,072, is less than a chapter of a book."""
CONLLU = ("id", "words", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
NOT_UTF8 = re.compile("[\0\udc80-\udcff]")
"""NUL, which UTF-16 read as UTF-8 contains, and bytes that `open` could not decode."""
ENTITY_TAG = re.compile(r"O|[BIESLUM]-\S+")
IN_ENTITY = re.compile(rf"{ENTITY_TAG.pattern}|[BIESLUM]")
"""Tags of entities, also of those without a type."""
TAGGED = re.compile(rf"\S+(\s+\S+){{0,8}}\s+({ENTITY_TAG.pattern})")
"""A line of a CoNLL file with tags of entities."""
COMMENT = re.compile(r"#([ \t]|$|(begin|end) document)")
TAG = re.compile("[0-9]+|O|[A-Z]-.+")
"""Numbers and tags of entities; a column with nothing else has no words."""
WORD_NUMBER = re.compile(r"([0-9]+)([-.][0-9]+)?")
"""The number of a word in its sentence; 3-4 (two words written as one) and 5.1 (a word left out) number no words."""


def read_file(
    path: Path,
    wanted: WantedColumns = None,
    words: bool = False,
    columns: Sequence[str] | None = None,
) -> Columns:
    """Read the rows of a file in order; its suffix determines the format.

    Args:
        path: A .parquet, .json, .jsonl, .csv, .tsv, .conll, .conllu or .txt file.
        wanted: Names of the columns to read; all of them if None.
        words: Whether a .txt file has the format of a .conll file; otherwise each of its lines is a text.
        columns: Names of the columns of a CoNLL file, or of a CSV or TSV file without a line of names.

    Raises:
        InputError: The file is missing or malformed, or its format is unknown.
    """
    suffix = path.suffix.lower()
    file_format = ".conll" if suffix == ".txt" and words else suffix
    if file_format not in READERS:
        readable(os.fspath(path))
    if os.path.isdir(path):
        raise InputError(
            f"{path} is a folder; give a file, or, if save_to_disk wrote it, {TO_PARQUET}."
        )
    check_file(path)
    if columns and file_format not in WITHOUT_NAMES:
        raise InputError(
            f"`columns` is for files without column names, but {path} has names; leave out `columns`."
        )
    try:
        rows = READERS[file_format](path, wanted, columns)
    except InputError:
        raise
    except Exception as error:  # malformed files raise more errors than readers document
        raise InputError(
            f"{path} cannot be read as {file_format[1:]} ({first_line(error)})."
        ) from error
    if not rows.table.num_rows and (rows.table.num_columns or not rows.names):
        raise InputError(f"{path} has no rows; every split needs some.")
    return rows


def class_names_of(features: object) -> dict[str, list[str]]:
    """Map each column of class numbers, or of lists of them, to the class names that `datasets` has recorded."""
    every = features if isinstance(features, Mapping) else {}
    names = {column: _classes(feature) for column, feature in every.items()}
    return {column: classes for column, classes in names.items() if classes}


def _classes(feature: object) -> list[str]:
    match feature:
        case [inner, *_] | {"feature": inner}:
            return _classes(inner)
        case {"_type": "ClassLabel", "names": [*names]}:
            return [str(name) for name in names]
    return []


def _is_wanted(column: str, wanted: WantedColumns) -> bool:
    return wanted is None or column in wanted


def _read_parquet(path: Path, wanted: WantedColumns, _: object) -> Columns:
    import pyarrow.parquet as pq

    # pq.read_table would import pyarrow.dataset, which costs 50 MB of memory in every job
    # pyarrow takes a relative path such as "a: b" for a URI
    with pq.ParquetFile(path.absolute()) as file:
        names = file.schema_arrow.names
        columns = [name for name in names if _is_wanted(name, wanted)]
        table = file.read(columns)
        features = None
        # other programs may store anything under this key
        with suppress(ValueError, LookupError, TypeError):
            features = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
    return Columns(str(path), table, names, class_names_of(features))


def _read_json(path: Path, wanted: WantedColumns, _: object) -> Columns:
    """Read an array of objects, or an object on each line; a missing key is null."""
    names: dict[str, None] = {}
    records = list[dict[str, object]]()
    # an array, because integers in a list take several times the memory
    lines = array("q")
    for number, record in _json_records(path):
        if not isinstance(record, dict):
            raise InputError(
                f"{path} contains {shortened(record)}, not only objects; {ONE_OBJECT_PER_ROW}."
            )
        names.update(dict.fromkeys(record))
        records.append(record)
        if number:
            lines.append(number)
    # perhaps a table, as pandas writes it by default, or a data set such as SQuAD
    if len(records) == 1 and any(map(_is_nested, records[0].values())):
        raise InputError(
            f"{path} contains one object for all rows ({listing(names)}); {ONE_OBJECT_PER_ROW}."
        )
    columns = [name for name in names if _is_wanted(name, wanted)]
    table = _table(path, {name: [record.get(name) for record in records] for name in columns})
    return Columns(str(path), table, list(names), lines=lines)


def _json_records(path: Path) -> Iterator[tuple[int, object]]:
    """Yield the items of an array, each with 0, or the number and the value of each line that is not blank."""
    # JSON strings may contain other line ends
    numbered = enumerate(_lines(path, newline="\n"), start=1)
    full = ((number, line) for number, line in numbered if line.strip())
    start, begin = next(full, (1, "{}"))
    if begin.lstrip().startswith("["):
        text = begin + "".join(line for _, line in numbered)
        yield from ((0, record) for record in _json(path, start, text))
    else:
        for number, line in chain([(start, begin)], full):
            yield number, _json(path, number, line)


def _is_nested(value: object) -> bool:
    """Return whether a value is an object, or a list with objects or lists."""
    items = value if isinstance(value, list) else [value]
    return any(isinstance(item, list | dict) for item in items)


def _json(path: Path, number: int, text: str) -> Any:
    """Parse JSON that begins in a line of a file; NaN is null, as pandas writes it."""
    text = text.rstrip()
    try:
        return json.loads(text, parse_constant={"NaN": None}.__getitem__)
    except (ValueError, KeyError) as error:
        line = number + getattr(error, "lineno", 1) - 1
        problem = getattr(error, "msg", error)
        raise InputError(
            f"{path} line {line} cannot be read as JSON ({problem}); {ONE_OBJECT_PER_ROW}."
        ) from error


def _read_csv(path: Path, wanted: WantedColumns, columns: Sequence[str] | None) -> Columns:
    """Read a line of names, unless there are `columns`, then rows. In TSV files, a quote is an ordinary character."""
    csv.field_size_limit(MAXIMUM_CHARACTERS)
    tabs = path.suffix.lower() == ".tsv"
    records = _records(path, tabs)
    start, header = (0, columns) if columns else next(records, (0, ()))
    names = [name.strip() for name in header]
    if not any(names):
        raise InputError(
            f"{path} must start with a line of column names, but it has none; add this line."
        )
    tagged = tabs and IN_ENTITY.fullmatch(names[-1])
    if tagged and not columns:
        _refuse_tagged(path, [line for line in _lines(path) if line.strip()])
    rows = list[list[str]]()
    numbers = array("q")
    for number, record in records:
        _check_record(path, number, record, names)
        numbers.append(number)
        rows.append(record)
    if tabs:
        _refuse_quotes(path, start, header, zip(numbers, rows, strict=True))
    read = [index for index, name in enumerate(names) if name and _is_wanted(name, wanted)]
    table = _table(path, {names[index]: [row[index] for row in rows] for index in read})
    return Columns(str(path), table, [name for name in names if name], lines=numbers)


def _check_record(path: Path, number: int, record: Sequence[str], names: Sequence[str]) -> None:
    """Raise `InputError` unless a row has a value for each name, and is not the line of names again."""
    if len(record) != len(names):
        raise InputError(
            f"{path} line {number} has {count(len(record), 'value')} for {count(len(names), 'column')} "
            f"({listing(names)}); write one value per column; only .csv has quotes for commas inside."
        )
    # a file that was appended may begin with a byte order mark
    pairs = zip(record, names, strict=True)
    repeated = all(value.strip("\ufeff ") == name for value, name in pairs)
    if repeated and len(names) > 1:
        raise InputError(
            f"{path} line {number} repeats the column names ({listing(names)}); remove this line."
        )


def _refuse_quotes(
    path: Path, start: int, header: Sequence[str], records: Iterable[tuple[int, Sequence[str]]]
) -> None:
    """Raise `InputError` if a program has added quotes around values of a TSV file, or around names in line `start`."""
    lines: dict[bool | None, int] = {}
    if any(_in_quotes(name) is not False for name in header):
        lines[True] = start
    for number, record in records:
        for value in record:
            if '"' in value:
                lines.setdefault(_in_quotes(value), number)
    # if quotes belong to some values, they may belong to all those of which it is not certain
    uncertain = 0 if False in lines else lines.get(None)
    if line := lines.get(True) or uncertain:
        raise InputError(
            f"{path} line {line} has a value in quotes, which TSV does not have, so they may not belong to the text; "
            "if they do not, save the rows as .csv."
        )


def _in_quotes(value: str) -> bool | None:
    """Return whether a program has added quotes around a value; None if they may also belong to the value."""
    if len(value) < 2 or not value[0] == value[-1] == '"' or '"' in value[1:-1].replace('""', ""):
        return False
    return '"' in value[1:-1] or None


def _records(path: Path, tabs: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the values of each row that is not blank."""
    # as they are, because a value in quotes may contain line ends
    lines = _lines(path, newline="")
    begin = 1
    # strict, or an open quote would swallow all later rows; spaces are skipped, or quotes after them would stay
    reader = csv.reader(lines, strict=True, skipinitialspace=True)
    if tabs:
        reader = csv.reader(lines, "excel-tab", quoting=csv.QUOTE_NONE)
    try:
        for record in reader:
            if record:
                yield begin, record
            begin = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path} line {begin} begins a row with a wrong quote ({error}); close each quote, and double those inside "
            "quotes."
        ) from error


def _read_lines(path: Path, wanted: object, _: object) -> Columns:
    """Read each line as a text, into the column `text`; skip blank lines."""
    texts = list[str]()
    numbers = array("q")
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            texts.append(line.rstrip("\n"))
            numbers.append(number)
    _refuse_tagged(path, texts)
    return Columns(str(path), _table(path, {"text": texts}), ["text"], lines=numbers)


def _refuse_tagged(path: Path, lines: Sequence[str]) -> None:
    """Raise `InputError` if most of these lines have the form of a CoNLL file."""
    if 2 * sum(bool(TAGGED.fullmatch(line.strip())) for line in lines) > len(lines):
        raise InputError(
            f"Most lines of {path} are a word with a tag, as in CoNLL files; name it .conll."
        )


def _read_conll(path: Path, _: object, columns: Sequence[str] | None) -> Columns:
    """Read sentences separated by blank lines, with a word and its tags on each line.

    If the first column numbers the words, as in CoNLL-U, the second contains them, and lines that number no word are
    skipped.
    """
    import pyarrow as pa

    words, starts, lines = _words(path)
    if not words:
        return Columns(str(path), pa.table({}), [])
    sentences = pairwise([*starts, len(words)])
    first = [[word[0] for word in words[begin:end]] for begin, end in sentences]
    width = len(words[0])
    numbered = width > 1 and all(map(_numbers_words, first))
    if path.suffix.lower() == ".conllu" and not (numbered and width == len(CONLLU)):
        raise InputError(
            f"{path} line {lines[0]} begins no sentence of CoNLL-U, which has ten columns separated by tabs, and "
            "numbers the words in the first; correct the file, or name it .conll."
        )
    if numbered:
        first = [[number for number in each if number.isdigit()] for each in first]
        words = [word for word in words if word[0].isdigit()]
    names = list(columns or _names(first, width, numbered))
    if len(names) != width:
        raise InputError(
            f"{path} has {count(width, 'column')}, but the corpus lists {len(names)} (`columns`: {listing(names)}); "
            "list a name for each column."
        )
    offsets = pa.array(accumulate(map(len, first), initial=0), pa.int32())
    arrays = [
        pa.ListArray.from_arrays(offsets, pa.array(values)) for values in zip(*words, strict=True)
    ]
    return Columns(str(path), pa.Table.from_arrays(arrays, names=names), names, lines=lines)


def _names(first: Rows, width: int, numbered: bool) -> list[str]:
    """Return names for columns, by the values [sentence][word] of the first one."""
    names = [f"column_{index + 1}" for index in range(width)]
    if numbered:
        return list(CONLLU) if width == len(CONLLU) else [*CONLLU[:2], *names[2:]]
    several = [each for each in first if len(each) > 1]
    # the name of a document, for example, is the same for all words of a sentence
    same = bool(several) and all(len(set(each)) == 1 for each in several)
    has_words = not same and not all(TAG.fullmatch(value) for each in first for value in each)
    return [CONLLU[1], *names[1:]] if has_words else names


def _numbers_words(values: Sequence[str]) -> bool:
    """Return whether values count the words of a sentence, from 0 or 1."""
    numbers = [WORD_NUMBER.fullmatch(value) for value in values]
    counted = [int(number[1]) for number in numbers if number and not number[2]]
    return all(numbers) and counted in ([*range(len(counted))], [*range(1, len(counted) + 1)])


def _words(path: Path) -> tuple[list[tuple[str, ...]], list[int], Sequence[int]]:
    """Return the fields of all words, the first word of each sentence, and its line; skip -DOCSTART- and comments."""
    lines = [line.strip("\r\n ") for line in _lines(path)]
    first = next(filter(_is_surely_word, lines), "")
    width = len(_fields(first))
    is_conllu = path.suffix.lower() == ".conllu" or (
        width == len(CONLLU) and "\t" in first and first[0].isdigit()
    )
    words = list[tuple[str, ...]]()
    starts = list[int]()
    begins = array("q")
    tags = set[str]()
    inside = False
    for number, line in enumerate(lines, start=1):
        if not _is_word(line):
            inside = False
            continue
        if line[0] == "#":
            tags = tags or _tags(lines)
            comment = is_conllu or _is_comment(line, first, tags, inside)
            if comment is None:
                raise InputError(
                    f"{path} line {number} may be a comment or a word ({shortened(line)}); write a space after # in "
                    "comments; a word needs a tag that other words also have, separated as theirs."
                )
            if comment:
                continue
        fields = _fields(line)
        if len(fields) != width:
            raise InputError(
                f"{path} line {number} has {count(len(fields), 'column')}, but the lines above it have {width}: "
                f"{shortened(line)}; write the same number of columns in all lines."
            )
        if not inside:
            starts.append(len(words))
            begins.append(number)
        inside = True
        words.append(tuple(fields))  # the garbage collector does not track tuples of strings
    return words, starts, begins


def _tags(lines: Sequence[str]) -> set[str]:
    """Return the tags of lines that are surely words, or follow such a line and look like it."""
    return {
        _fields(line)[-1]
        for before, line in pairwise(["", *lines])
        if _is_surely_word(line)
        or (_is_word(line) and _is_surely_word(before) and _same_separator(before, line))
    }


def _is_comment(line: str, word: str, tags: set[str], inside: bool) -> bool | None:
    """Return whether a line that begins with # is a comment; None if it may also be a word.

    Args:
        line: The line; "#" and hashtags may also be words, but then they have tags.
        word: A line that is surely a word.
        tags: The tags of other words.
        inside: Whether the line follows a word of its sentence.
    """
    fields = _fields(line)
    width = len(_fields(word))
    tag = fields[-1]
    tagged = len(fields) == width and (tag in tags or ENTITY_TAG.fullmatch(tag) is not None)
    same_separator = _same_separator(line, word)
    if same_separator and len(fields) == width and (inside or tagged):
        return False
    if COMMENT.match(line):
        return True
    if not same_separator and "\t" in word:
        return None if tagged else True
    return False if inside or tagged or width == 1 else None


def _same_separator(line: str, other: str) -> bool:
    return ("\t" in line) == ("\t" in other)


def _is_surely_word(line: str) -> bool:
    return _is_word(line) and line[0] != "#"


def _is_word(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("-DOCSTART-")


def _fields(line: str) -> list[str]:
    if "\t" in line:
        return line.split("\t")
    # str.split() would also split at no-break spaces
    return [part for part in line.split(" ") if part]


def _lines(path: Path, newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without its byte order mark."""
    # other bytes are decoded, too, so the message can name their line
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline=newline) as lines:
        for number, line in enumerate(lines, start=1):
            if ("\0" in line or not line.isascii()) and NOT_UTF8.search(line):
                problem = "is not UTF-8 text"
                if "\0" in line:
                    problem = "contains NUL characters, as UTF-16 does"
                raise InputError(f"{path} line {number} {problem}; save the file as UTF-8.")
            yield line


def _table(path: Path, columns: Mapping[str, Sequence[object]]) -> pa.Table:
    import pyarrow as pa

    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pa.array(values)
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            raise InputError(
                f"Column {name} of {path} has a value of another type, too large or no text ({first_line(error)}); use "
                "one type in all rows."
            ) from error
    return pa.table(arrays)


READERS: dict[str, Callable[[Path, WantedColumns, Sequence[str] | None], Columns]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_json,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".conll": _read_conll,
    ".conllu": _read_conll,
    ".txt": _read_lines,
}
WITHOUT_NAMES = (".csv", ".tsv", ".conll", ".conllu")
"""Formats whose columns a config can name."""
