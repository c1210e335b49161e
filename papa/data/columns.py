"""Columns of a source, read as texts, words or class names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING

from papa.config.reading import UNPRINTABLE
from papa.data.readers import ONE_OBJECT_PER_ROW, SourceRows
from papa.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Value = str | int | None
MISSING_LABELS = ("-1", "-100")
"""Labels that mean "no label": -1 in the test splits of GLUE, -100 for words that the loss skips."""
BOOLEANS = ("false", "true")
INVISIBLE = "[\\s\u200b-\u200d\u2060\ufeff]+"
"""Pattern of whitespace and zero-width characters."""


def class_name(text: str) -> str:
    """Normalise a class name, and strip invisible characters from its ends."""
    return unicodedata.normalize("NFC", re.sub(f"^{INVISIBLE}|{INVISIBLE}$", "", text))


@dataclass(frozen=True)
class Columns:
    """The columns of a split. Every row is checked.

    Error messages begin with `source`, and name lines of the file; if it has no lines, they count rows from 0. If the
    source is a Python object, `source` is its name, and messages name its items, such as train[103].
    """

    source: str
    rows: SourceRows

    def texts(self, name: str, blank: bool = False) -> list[str]:
        """Return texts [row]; with `blank`, a text may be empty."""
        column = self._column(name)
        if not _is_string(column.type):
            raise self._wrong_type(name, column.type, "a text in each row")
        texts: list[str] = column.to_pylist()
        if not blank:
            self._refuse([_is_blank(text) for text in texts], f"no text in column {name}")
        return texts

    def words(self, name: str) -> list[list[str]]:
        """Return words [row][word]; raise `InputError` if a row or a word is empty."""
        column = self._column(name)
        if not (_is_list(column.type) and _is_string(column.type.value_type)):
            raise self._wrong_type(name, column.type, "a list of words in each row (for whole texts, set `first`)")
        words: list[list[str]] = column.to_pylist()
        self._refuse([not row for row in words], f"no words in column {name}")
        self._refuse([any(map(_is_blank, row)) for row in words], f"an empty word (or only spaces) in column {name}")
        return words

    def class_names(self, name: str) -> list[str] | None:
        """Return the names of a column's numbered classes, in order; None if the data has no names."""
        return self.rows.class_names.get(name)

    def classes(
        self, name: str, listed: Sequence[str] | None, words: Sequence[Sequence[str]] | None
    ) -> list[list[str]]:
        """Return class names [row][word]; without `words`, each row has a single name.

        If the data has no class names, numbers are indices into the names that the task has `listed`. If a listed name
        is itself a number or a boolean, they are not.
        """
        values = self._values(name, words, "label")
        names = self.class_names(name)
        if names is None and listed and all(isinstance(value, int | None) for row in values for value in row):
            names = None if any(text in BOOLEANS or _is_number(text) for text in listed) else list(listed)
        out_of_range = [any(_is_out_of_range(value, names) for value in row) for row in values]
        fault = f"a label in column {name} that is out of range for {len(names or ())} classes"
        self._refuse(out_of_range, fault)
        name_of = {value: class_name(_name_of(value, names)) for value in set(chain.from_iterable(values))}
        missing = {"", *MISSING_LABELS}.difference(names or listed or ())
        named = [[name_of[value] for value in row] for row in values]
        self._refuse(
            [not missing.isdisjoint(row) for row in named],
            f"no label in column {name} (it is empty, -1 or -100; if -1 is a class, list it under `labels`)",
        )
        self._refuse_unprintable(named, name, "label")
        return named

    def subsets(self, name: str, words: Sequence[Sequence[str]] | None) -> list[str] | list[list[str]]:
        """Return subset names [row], or [row][word] if the column contains lists; an empty name means no subset."""
        by_word = words is not None and _is_list(self._column(name).type)
        values = self._values(name, words if by_word else None, "subset")
        named = [[_name_of(value, self.class_names(name)) for value in row] for row in values]
        self._refuse_unprintable(named, name, "subset")
        return named if by_word else [row[0] for row in named]

    def clusters(self, name: str) -> list[str]:
        """Return the names of clusters [row]; raise `InputError` if a row has none."""
        names = [_text(row[0]) for row in self._values(name, None, "cluster")]
        self._refuse([not text for text in names], f"no cluster in column {name}")
        return names

    def _values(self, name: str, words: Sequence[Sequence[str]] | None, role: str) -> list[list[Value]]:
        """Return strings, whole numbers or booleans [row][word]; without `words`, each row has a single value."""
        column = self._column(name)
        is_list = _is_list(column.type)
        if is_list != (words is not None) or not _is_class(column.type.value_type if is_list else column.type):
            each = f"a list with one {role} per word" if words is not None else f"one {role}"
            raise self._wrong_type(name, column.type, f"{each} in each row, as strings or whole numbers")
        values = column.to_pylist()
        if words is None:
            return [[value] for value in values]
        wrong = [row is None or len(row) != len(words_of_row) for row, words_of_row in zip(values, words, strict=True)]
        self._refuse(wrong, f"a list in column {name} without one {role} per word")
        return list(values)

    def check(self, names: Iterable[str]) -> None:
        """Raise `InputError` unless each of `names` is the name of exactly one column."""
        columns = self.rows.names
        for name in names:
            if columns.count(name) != 1:
                fault = "no column" if name not in columns else "more than one column"
                raise InputError(f"{self.source} has {fault} {name!r}; its columns are {', '.join(columns)}.")

    def is_list(self, name: str) -> bool:
        """Return whether a column has a list in each row."""
        return _is_list(self._column(name).type)

    def _column(self, name: str) -> pa.ChunkedArray:
        self.check([name])
        return self.rows.table.column(name)

    def _wrong_type(self, name: str, data_type: pa.DataType, expected: str) -> InputError:
        is_object = PurePath(self.source).suffix in (".json", ".jsonl") and self.rows.table.num_rows == 1
        advice = f"; {ONE_OBJECT_PER_ROW}" if is_object and _is_list(data_type) else ""
        return InputError(
            f"Column {name} of {self.source} contains {data_type}, but it must contain {expected}{advice}."
        )

    def _refuse_unprintable(self, names: Sequence[Sequence[str]], column: str, role: str) -> None:
        """Refuse names with control characters, which crash the library that draws figures."""
        unprintable = {name for name in set(chain.from_iterable(names)) if UNPRINTABLE.search(name)}
        wrong = [not unprintable.isdisjoint(row) for row in names]
        self._refuse(wrong, f"a control character in a {role} in column {column}")

    def _refuse(self, wrong: Sequence[bool], fault: str) -> None:
        """Raise `InputError` if any row is `wrong`, with the lines of the first five, or their indices."""
        rows = [row for row, is_wrong in enumerate(wrong) if is_wrong]
        if rows:
            lines, indices = self.rows.lines, self.rows.indices or range(len(wrong))
            item = f"{self.source}[{{}}]" if self.source.isidentifier() else "{}"
            named = [str(lines[row]) if lines else item.format(indices[row]) for row in rows[:5]]
            places = ", ".join(named) + ", ..." * (len(rows) > 5)
            unit = ("line" if len(rows) == 1 else "lines") if lines else "counted from 0:"
            raise InputError(
                f"{self.source} has {fault} in {len(rows)} of {len(wrong)} rows ({unit} {places}); fix or remove these "
                "rows (rows from the hub can be saved as local files first)."
            )


def _is_string(data_type: pa.DataType) -> bool:
    from pyarrow import types

    strings = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    return any(is_a(_values_of(data_type)) for is_a in strings)


def _is_class(data_type: pa.DataType) -> bool:
    from pyarrow import types

    values = _values_of(data_type)
    return _is_string(values) or bool(types.is_integer(values) or types.is_boolean(values))


def _is_list(data_type: pa.DataType) -> bool:
    from pyarrow import types

    return any(is_a(data_type) for is_a in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def _values_of(data_type: pa.DataType) -> pa.DataType:
    from pyarrow import types

    return _values_of(data_type.value_type) if types.is_dictionary(data_type) else data_type


def _is_blank(text: str | None) -> bool:
    return text is None or not text.strip()


def _text(value: Value) -> str:
    return "" if value is None else str(value).strip()


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def _is_out_of_range(value: Value, names: Collection[str] | None) -> bool:
    if names is None or not isinstance(value, int) or str(value) in MISSING_LABELS:
        return False
    return not 0 <= value < len(names)


def _name_of(value: Value, names: Sequence[str] | None) -> str:
    """Return the class name of a value; a missing label becomes an empty string or a negative number."""
    if value is None:
        return ""
    if names is not None and isinstance(value, int) and value >= 0:
        return names[value]
    return str(value).lower() if isinstance(value, bool) else str(value)
