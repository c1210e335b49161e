"""Columns of a source read as what they should be: texts, words, choices, classes by name; or refused, saying why."""

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
from papa.data.readers import ONE_EACH, Rows
from papa.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Value = str | int | None
MISSING = ("-1", "-100")
"""How data says that a label is not known: -1 in the test splits of GLUE, -100 where a loss was to skip it."""
TRUTH = ("false", "true")
UNSEEN = "[\\s\u200b-\u200d\u2060\ufeff]+"
"""Pattern of spaces, and of characters that take no room."""


def class_name(text: str) -> str:
    """The name of a class without what nobody sees: spaces around it, and how its accents are encoded."""
    return unicodedata.normalize("NFC", re.sub(f"^{UNSEEN}|{UNSEEN}$", "", text))


def alike(names: Iterable[str]) -> list[list[str]]:
    """Groups of different names that people would take for one: "Yes" and "yes", "1" and "1.0"."""
    groups: dict[str, list[str]] = {}
    for name in names:
        seen = unicodedata.normalize("NFKC", name).casefold()
        key = "".join(letter for letter in seen if unicodedata.category(letter) != "Cf")
        with suppress(ValueError):
            key = str(float(key))
        groups.setdefault(key, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


@dataclass(frozen=True)
class Columns:
    """The columns of a split that messages call `where`. Every row is checked; messages count rows from 0."""

    where: str
    rows: Rows

    def texts(self, name: str, blank: bool = False) -> list[str]:
        """Texts [row], none of them empty unless `blank` says that they may be."""
        column = self._column(name)
        if not _is_string(column.type):
            raise self._wrong_type(name, column.type, "a text in each row")
        texts: list[str] = column.to_pylist()
        if not blank:
            self._refuse([_is_blank(text) for text in texts], f"no text in column {name}")
        return texts

    def words(self, name: str) -> list[list[str]]:
        """Words [row][word], no row and no word of them empty."""
        column = self._column(name)
        if not (_is_list(column.type) and _is_string(column.type.value_type)):
            raise self._wrong_type(name, column.type, "a list of words in each row (texts in one piece go under first)")
        words: list[list[str]] = column.to_pylist()
        self._refuse([not row for row in words], f"no words in column {name}")
        self._refuse([any(map(_is_blank, row)) for row in words], f"an empty word (or only spaces) in column {name}")
        return words

    def choices(self, names: str | Sequence[str]) -> list[list[str]]:
        """Choices [row][choice], two or more in each row and none of them empty: of one column, or one of each."""
        if not isinstance(names, str):
            return [list(row) for row in zip(*map(self.texts, names), strict=True)]
        choices = self._lists_of_choices(names, "text")
        self._refuse([row is None or len(row) < 2 for row in choices], f"fewer than two choices in column {names}")
        self._refuse([any(map(_is_blank, row)) for row in choices], f"an empty choice in column {names}")
        return choices

    def right(
        self, name: str, names: str | Sequence[str], choices: Sequence[Sequence[str]], given: Sequence[str] | None
    ) -> tuple[str, list[int]]:
        """Which of its `choices` is right in each row: how the labels of a column are read, and indices [row].

        A label is one of those that stand beside the choices of its row, if `names` is a column that has such. Else it
        is one of the names that are `given`, in the order of the choices; if none are, a number from 0, or in a column
        of strings the text of a choice, a number from 0 or a letter from A, the first of these that fits every row.
        """
        values = [_written(row[0]) for row in self._values(name, None, "label")]
        most = range(max(map(len, choices), default=0))
        numbers = {str(number): number for number in most}
        letters = dict(zip(ascii_uppercase, most, strict=False))
        ways: dict[str, Sequence[Mapping[str, int]]] = {}
        if isinstance(names, str) and self._has_labels(names):
            ways["a label of the choices"] = [_places(row) for row in self._lists_of_choices(names, "label")]
        elif given:
            ways["a name under labels"] = [_places(given)] * len(values)
        else:
            if _is_string(self._column(name).type):
                ways["the text of a choice"] = [_places(row) for row in choices]
            ways["a number from 0"] = [numbers] * len(values)
            if _is_string(self._column(name).type):
                ways["a letter from A"] = [letters] * len(values)
        found = {
            way: [places.get(value, -1) for value, places in zip(values, rows, strict=True)]
            for way, rows in ways.items()
        }
        wrong = {
            way: [not 0 <= place < len(row) for place, row in zip(places, choices, strict=True)]
            for way, places in found.items()
        }
        best = min(wrong, key=lambda way: sum(wrong[way]))
        self._refuse(wrong[best], f"a label in column {name} that is no choice (it has to be {' or '.join(ways)})")
        return best, found[best]

    def _has_labels(self, name: str) -> bool:
        """Whether a column of choices has labels beside their texts."""
        from pyarrow import types

        form = self._column(name).type
        return bool(types.is_struct(form)) and form.get_field_index("label") >= 0

    def _lists_of_choices(self, name: str, part: str) -> list[list[str]]:
        """A list in each row of a column; of {text, label} that of one part."""
        import pyarrow.compute as pc
        from pyarrow import types

        column = self._column(name)
        if types.is_struct(column.type) and column.type.get_field_index(part) >= 0:
            column = pc.struct_field(column, part)
        if not (_is_list(column.type) and _is_string(column.type.value_type)):
            raise self._wrong_type(
                name, column.type, "a list of choices in each row (one choice each: list the columns)"
            )
        found: list[list[str]] = column.to_pylist()
        return found

    def class_names(self, name: str) -> list[str] | None:
        """The names that the data itself gives the numbered classes of a column, in order."""
        return self.rows.class_names.get(name)

    def classes(self, name: str, given: Sequence[str] | None, words: Sequence[Sequence[str]] | None) -> list[list[str]]:
        """Names of classes [row][word]; one in each row if there are no `words`.

        `given` are the names that the task lists. Numbers without class names are positions in it unless it lists
        numbers.
        """
        values = self._values(name, words, "label")
        names = self.class_names(name)
        if names is None and given and all(isinstance(value, int | None) for row in values for value in row):
            names = None if any(text in TRUTH or _is_number(text) for text in given) else list(given)
        beyond = [any(_is_beyond(value, names) for value in row) for row in values]
        self._refuse(beyond, f"a label in column {name} that is out of range: there are {len(names or ())} classes")
        meaning = {value: class_name(_name_of(value, names)) for value in set(chain.from_iterable(values))}
        unknown = {"", *MISSING}.difference(names or given or ())
        named = [[meaning[value] for value in row] for row in values]
        self._refuse(
            [not unknown.isdisjoint(row) for row in named],
            f"no label in column {name} (it is empty, -1 or -100; if -1 is a class, list it under labels)",
        )
        self._refuse_unprintable(named, name, "label")
        return named

    def subsets(self, name: str, words: Sequence[Sequence[str]] | None) -> list[str] | list[list[str]]:
        """Names of subsets [row], or [row][word] if the column has lists; empty if a row or word is in none."""
        by_word = words is not None and _is_list(self._column(name).type)
        values = self._values(name, words if by_word else None, "subset")
        named = [[_name_of(value, self.class_names(name)) for value in row] for row in values]
        self._refuse_unprintable(named, name, "subset")
        return named if by_word else [row[0] for row in named]

    def _values(self, name: str, words: Sequence[Sequence[str]] | None, what: str) -> list[list[Value]]:
        """Strings, whole numbers or truth values [row][word]; one in each row if there are no `words`."""
        column = self._column(name)
        is_list = _is_list(column.type)
        if is_list != (words is not None) or not _is_class(column.type.value_type if is_list else column.type):
            each = f"a list with one {what} per word" if words is not None else f"one {what}"
            raise self._wrong_type(name, column.type, f"{each} in each row, as strings or whole numbers")
        values = column.to_pylist()
        if words is None:
            return [[value] for value in values]
        unlike = [row is None or len(row) != len(its) for row, its in zip(values, words, strict=True)]
        self._refuse(unlike, f"a list in column {name} that has not one {what} per word")
        return list(values)

    def check(self, names: Iterable[str]) -> None:
        """Raise `InputError` unless each of `names` is the name of one column."""
        columns = self.rows.names
        for name in names:
            if columns.count(name) != 1:
                found = "no column" if name not in columns else "more than one column"
                raise InputError(f"{self.where} has {found} {name!r}; its columns are {', '.join(columns)}.")

    def _column(self, name: str) -> pa.ChunkedArray:
        self.check([name])
        return self.rows.table.column(name)

    def _wrong_type(self, name: str, found: pa.DataType, expected: str) -> InputError:
        is_object = PurePath(self.where).suffix in (".json", ".jsonl") and self.rows.table.num_rows == 1
        advice = f"; {ONE_EACH}" if is_object and _is_list(found) else ""
        return InputError(f"Column {name} of {self.where} contains {found}, but it must contain {expected}{advice}.")

    def _refuse_unprintable(self, names: Sequence[Sequence[str]], column: str, what: str) -> None:
        """Refuse names that no figure can show; the library that draws figures ends the whole process at them."""
        bad = {name for name in set(chain.from_iterable(names)) if UNPRINTABLE.search(name)}
        unprintable = [not bad.isdisjoint(row) for row in names]
        self._refuse(unprintable, f"a control character in a {what} in column {column}")

    def _refuse(self, bad: Sequence[bool], what: str) -> None:
        rows = [number for number, is_bad in enumerate(bad) if is_bad]
        if rows:
            line = f" in line {self.rows.lines[rows[0]]}" if self.rows.lines else ""
            few = f"{rows[0]}{line}" + "".join(f", {row}" for row in rows[1:5]) + (", ..." if len(rows) > 5 else "")
            raise InputError(
                f"{self.where} has {what} in {len(rows)} of {len(bad)} rows (counted from 0: {few}); mend or remove "
                "these rows (what comes from the hub can be saved as local files first)."
            )


def _is_string(data_type: pa.DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(data_type):
        return _is_string(data_type.value_type)
    strings = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    return any(is_one(data_type) for is_one in strings)


def _is_list(data_type: pa.DataType) -> bool:
    from pyarrow import types

    return any(is_one(data_type) for is_one in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def _is_class(data_type: pa.DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(data_type):
        return _is_class(data_type.value_type)
    return _is_string(data_type) or bool(types.is_integer(data_type) or types.is_boolean(data_type))


def _is_blank(text: str | None) -> bool:
    return text is None or not text.strip()


def _written(value: Value) -> str:
    return "" if value is None else str(value).strip()


def _places(names: Iterable[str] | None) -> dict[str, int]:
    """Where each name stands; of several alike the first."""
    found: dict[str, int] = {}
    for place, name in enumerate(names or ()):
        found.setdefault(_written(name), place)
    return found


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def _is_beyond(value: Value, names: Collection[str] | None) -> bool:
    if names is None or not isinstance(value, int) or str(value) in MISSING:
        return False
    return not 0 <= value < len(names)


def _name_of(value: Value, names: Sequence[str] | None) -> str:
    """The name of a class; a missing one is empty or negative."""
    if value is None:
        return ""
    if names is not None and isinstance(value, int) and value >= 0:
        return names[value]
    return str(value).lower() if isinstance(value, bool) else str(value)
