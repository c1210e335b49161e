"""Columns of a source, read as texts, words, choices or names of classes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from string import ascii_uppercase
from typing import TYPE_CHECKING

from papa.config.reading import UNPRINTABLE
from papa.data.readers import ONE_OBJECT_PER_ROW, SourceRows
from papa.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Value = str | int | None
MISSING = ("-1", "-100")
"""Labels that mean "unknown": -1 in the test splits of GLUE, -100 for words that a loss skips."""
TRUTH = ("false", "true")
INVISIBLE = "[\\s\u200b-\u200d\u2060\ufeff]+"
"""Pattern of spaces and of characters without width."""


def class_name(text: str) -> str:
    """Return the name of a class in normal form, without invisible characters around it."""
    return unicodedata.normalize("NFC", re.sub(f"^{INVISIBLE}|{INVISIBLE}$", "", text))


def alike(names: Iterable[str]) -> list[list[str]]:
    """Return groups of names that a reader would not distinguish, such as "Yes" and "yes", or "1" and "1.0"."""
    groups: dict[str, list[str]] = {}
    for name in names:
        folded = unicodedata.normalize("NFKC", name).casefold()
        key = "".join(letter for letter in folded if unicodedata.category(letter) != "Cf")
        with suppress(ValueError):
            key = str(float(key))
        groups.setdefault(key, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


@dataclass(frozen=True)
class Columns:
    """The columns of a split, called `where` in errors. Every row is checked; errors count rows from 0."""

    where: str
    rows: SourceRows

    def texts(self, name: str, blank: bool = False) -> list[str]:
        """Return texts [row]; with `blank`, they may be empty."""
        column = self._column(name)
        if not _is_string(column.type):
            raise self._wrong_type(name, column.type, "a text in each row")
        texts: list[str] = column.to_pylist()
        if not blank:
            self._refuse([_is_blank(text) for text in texts], f"no text in column {name}")
        return texts

    def words(self, name: str) -> list[list[str]]:
        """Return words [row][word]; no row and no word is empty."""
        column = self._column(name)
        if not (_is_list(column.type) and _is_string(column.type.value_type)):
            raise self._wrong_type(name, column.type, "a list of words in each row (texts in one piece go under first)")
        words: list[list[str]] = column.to_pylist()
        self._refuse([not row for row in words], f"no words in column {name}")
        self._refuse([any(map(_is_blank, row)) for row in words], f"an empty word (or only spaces) in column {name}")
        return words

    def choices(self, names: str | Sequence[str]) -> list[list[str]]:
        """Return choices [row][choice] from one column of lists, or from a column for each choice."""
        if not isinstance(names, str):
            return [list(row) for row in zip(*map(self.texts, names), strict=True)]
        choices = self._lists_of_choices(names, "text")
        self._refuse([row is None or len(row) < 2 for row in choices], f"fewer than two choices in column {names}")
        self._refuse([any(map(_is_blank, row)) for row in choices], f"an empty choice in column {names}")
        return choices

    def right(
        self, name: str, names: str | Sequence[str], choices: Sequence[Sequence[str]], listed: Sequence[str] | None
    ) -> tuple[str, list[int]]:
        """Return the form of the labels in a column, and the index of the right choice [row].

        If the column of choices, `names`, has labels with its texts, a label is one of them. Otherwise it is one of the
        names that the task has `listed`, in the order of the choices. Without such names it is a number from 0. A
        string may also be the text of a choice or a letter from A; the form that fits most rows is used.
        """
        values = [_text(row[0]) for row in self._values(name, None, "label")]
        most = range(max(map(len, choices), default=0))
        numbers = {str(number): number for number in most}
        letters = dict(zip(ascii_uppercase, most, strict=False))
        forms: dict[str, Sequence[Mapping[str, int]]] = {}
        if isinstance(names, str) and self._has_labels(names):
            forms["a label of the choices"] = [_places(row) for row in self._lists_of_choices(names, "label")]
        elif listed:
            forms["a name under labels"] = [_places(listed)] * len(values)
        else:
            if _is_string(self._column(name).type):
                forms["the text of a choice"] = [_places(row) for row in choices]
            forms["a number from 0"] = [numbers] * len(values)
            if _is_string(self._column(name).type):
                forms["a letter from A"] = [letters] * len(values)
        indices = {
            form: [places.get(value, -1) for value, places in zip(values, rows, strict=True)]
            for form, rows in forms.items()
        }
        wrong = {
            form: [not 0 <= place < len(row) for place, row in zip(places, choices, strict=True)]
            for form, places in indices.items()
        }
        best = min(wrong, key=lambda form: sum(wrong[form]))
        self._refuse(wrong[best], f"a label in column {name} that is no choice (it has to be {' or '.join(forms)})")
        return best, indices[best]

    def _has_labels(self, name: str) -> bool:
        from pyarrow import types

        data_type = self._column(name).type
        return bool(types.is_struct(data_type)) and data_type.get_field_index("label") >= 0

    def _lists_of_choices(self, name: str, part: str) -> list[list[str]]:
        """Return the list in each row of a column; if rows are {text, label}, the list under `part`."""
        import pyarrow.compute as pc
        from pyarrow import types

        column = self._column(name)
        if types.is_struct(column.type) and column.type.get_field_index(part) >= 0:
            column = pc.struct_field(column, part)
        if not (_is_list(column.type) and _is_string(column.type.value_type)):
            raise self._wrong_type(
                name, column.type, "a list of choices in each row (one choice each: list the columns)"
            )
        choices: list[list[str]] = column.to_pylist()
        return choices

    def class_names(self, name: str) -> list[str] | None:
        """Return the names of a column's numbered classes, in order, if the data has them."""
        return self.rows.class_names.get(name)

    def classes(
        self, name: str, listed: Sequence[str] | None, words: Sequence[Sequence[str]] | None
    ) -> list[list[str]]:
        """Return names of classes [row][word]; without `words`, each row has a single name.

        A number without a class name is a position in the names that the task has `listed`, unless these are numbers.
        """
        values = self._values(name, words, "label")
        names = self.class_names(name)
        if names is None and listed and all(isinstance(value, int | None) for row in values for value in row):
            names = None if any(text in TRUTH or _is_number(text) for text in listed) else list(listed)
        beyond = [any(_is_beyond(value, names) for value in row) for row in values]
        self._refuse(beyond, f"a label in column {name} that is out of range: there are {len(names or ())} classes")
        meaning = {value: class_name(_name_of(value, names)) for value in set(chain.from_iterable(values))}
        unknown = {"", *MISSING}.difference(names or listed or ())
        named = [[meaning[value] for value in row] for row in values]
        self._refuse(
            [not unknown.isdisjoint(row) for row in named],
            f"no label in column {name} (it is empty, -1 or -100; if -1 is a class, list it under labels)",
        )
        self._refuse_unprintable(named, name, "label")
        return named

    def subsets(self, name: str, words: Sequence[Sequence[str]] | None) -> list[str] | list[list[str]]:
        """Return names of subsets [row], or [row][word] if the column has lists; an empty name means no subset."""
        by_word = words is not None and _is_list(self._column(name).type)
        values = self._values(name, words if by_word else None, "subset")
        named = [[_name_of(value, self.class_names(name)) for value in row] for row in values]
        self._refuse_unprintable(named, name, "subset")
        return named if by_word else [row[0] for row in named]

    def _values(self, name: str, words: Sequence[Sequence[str]] | None, role: str) -> list[list[Value]]:
        """Return strings, whole numbers or truth values [row][word]; without `words`, each row has a single one."""
        column = self._column(name)
        is_list = _is_list(column.type)
        if is_list != (words is not None) or not _is_class(column.type.value_type if is_list else column.type):
            each = f"a list with one {role} per word" if words is not None else f"one {role}"
            raise self._wrong_type(name, column.type, f"{each} in each row, as strings or whole numbers")
        values = column.to_pylist()
        if words is None:
            return [[value] for value in values]
        unlike = [row is None or len(row) != len(words_of_row) for row, words_of_row in zip(values, words, strict=True)]
        self._refuse(unlike, f"a list in column {name} without one {role} per word")
        return list(values)

    def check(self, names: Iterable[str]) -> None:
        """Raise `InputError` unless each of `names` is the name of one column."""
        columns = self.rows.names
        for name in names:
            if columns.count(name) != 1:
                fault = "no column" if name not in columns else "more than one column"
                raise InputError(f"{self.where} has {fault} {name!r}; its columns are {', '.join(columns)}.")

    def _column(self, name: str) -> pa.ChunkedArray:
        self.check([name])
        return self.rows.table.column(name)

    def _wrong_type(self, name: str, data_type: pa.DataType, expected: str) -> InputError:
        is_object = PurePath(self.where).suffix in (".json", ".jsonl") and self.rows.table.num_rows == 1
        advice = f"; {ONE_OBJECT_PER_ROW}" if is_object and _is_list(data_type) else ""
        return InputError(
            f"Column {name} of {self.where} contains {data_type}, but it must contain {expected}{advice}."
        )

    def _refuse_unprintable(self, names: Sequence[Sequence[str]], column: str, role: str) -> None:
        """Refuse names with control characters, because they crash the library that draws figures."""
        bad = {name for name in set(chain.from_iterable(names)) if UNPRINTABLE.search(name)}
        unprintable = [not bad.isdisjoint(row) for row in names]
        self._refuse(unprintable, f"a control character in a {role} in column {column}")

    def _refuse(self, bad: Sequence[bool], fault: str) -> None:
        rows = [number for number, is_bad in enumerate(bad) if is_bad]
        if rows:
            line = f" in line {self.rows.lines[rows[0]]}" if self.rows.lines else ""
            few = f"{rows[0]}{line}" + "".join(f", {row}" for row in rows[1:5]) + (", ..." if len(rows) > 5 else "")
            raise InputError(
                f"{self.where} has {fault} in {len(rows)} of {len(bad)} rows (counted from 0: {few}); fix or remove "
                "these rows (rows from the hub can be saved as local files first)."
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


def _places(names: Iterable[str] | None) -> dict[str, int]:
    """Return the position of each name; the first one of equal names."""
    texts = [_text(name) for name in names or ()]
    return {text: texts.index(text) for text in texts}


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def _is_beyond(value: Value, names: Collection[str] | None) -> bool:
    if names is None or not isinstance(value, int) or str(value) in MISSING:
        return False
    return not 0 <= value < len(names)


def _name_of(value: Value, names: Sequence[str] | None) -> str:
    """Return the name of a class; the name of a missing label is empty or negative."""
    if value is None:
        return ""
    if names is not None and isinstance(value, int) and value >= 0:
        return names[value]
    return str(value).lower() if isinstance(value, bool) else str(value)
