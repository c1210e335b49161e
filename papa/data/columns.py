"""The rows of a split, whose columns are read as texts, words or class names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from pathlib import PurePath
from reprlib import repr as shortened
from typing import TYPE_CHECKING

from papa.config.reading import UNPRINTABLE
from papa.errors import InputError, listing

if TYPE_CHECKING:
    import pyarrow as pa

ONE_OBJECT_PER_ROW = (
    "write one object per row, as DataFrame.to_json(path, orient='records', lines=True) does"
)
Value = str | int | float | None
Rows = Sequence[Sequence[str]]
"""Words, labels or names `[row][word]`; if they belong to whole texts, each row has one."""
ClassNames = Sequence[str] | None
"""The names of the classes of labels, in order; None if they are not known."""
Roles = Mapping[str, str]
"""Names of columns by role: first, second or words; label."""
NO_CLASS = ("-1", "-100")
"""Numbers that may mean "no label": -1 in test splits of GLUE, -100 for words that the loss skips."""
NO_TAG = re.compile("-1|-100|-?nan|<na>|none|null", re.IGNORECASE)
"""Labels of words that may mean "no label": those numbers, and how programs write a missing value."""
NO_LABEL = re.compile(f"{NO_TAG.pattern}|-|#?na|#?n/a", re.IGNORECASE)
"""Labels of texts that may mean "no label"; - is that of SNLI. For words, - and NA are tags of parts of speech."""
FIX_ROWS = "fix or remove these rows (rows from the hub can be saved as local files first)"
BOOLEANS = ("false", "true")
WHOLE = re.compile(r"-?[0-9]+(\.0+)?")
"""Whole numbers, also as pandas writes them in a column with missing values: 1.0."""
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?", re.IGNORECASE)
INVISIBLE = "[\\s\u200b-\u200d\u2060\ufeff]+"
"""Pattern of whitespace and zero-width characters."""


def class_name(text: str) -> str:
    """Normalise a class name, and strip invisible characters from its ends."""
    # é may be one character or two, which nobody can tell apart on a screen
    return unicodedata.normalize("NFC", re.sub(f"^{INVISIBLE}|{INVISIBLE}$", "", text))


@dataclass(frozen=True)
class Columns:
    """The columns of a split of a corpus. Every row is checked.

    Error messages begin with `source`, and name lines of the file; if it has no lines, they count rows from 0. If the
    source is a Python object, `source` is its name, and messages name its items, such as train[103].

    Args:
        table: the requested columns.
        names: the names of all columns of the source.
        class_names: those of numbered classes, in order, by column.
        lines: the lines of the file in which rows begin, counted from 1, if it has lines.
        indices: if some rows of the source are left out, the indices of the others.
        total: then, the number of all rows of the source.
    """

    source: str
    table: pa.Table
    names: Sequence[str]
    class_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lines: Sequence[int] = ()
    indices: Sequence[int] = ()
    total: int = 0

    def texts(self, name: str, blank: bool = False) -> list[str]:
        """Return texts [row]; with `blank`, a text may be empty."""
        texts: list[str] = self._column(name, ["text"], "a text in each row").to_pylist()
        if not blank:
            self._refuse([_is_blank(text) for text in texts], f"no text in column {name}")
        return texts

    def words(self, name: str) -> Rows:
        """Return words [row][word]; raise `InputError` if a row or a word is empty."""
        expected = "a list of words in each row (for whole texts, set `first`)"
        words: Rows = self._column(name, ["list of text"], expected).to_pylist()
        self._refuse([not row for row in words], f"no words in column {name}")
        self._refuse(
            [any(map(_is_blank, row)) for row in words],
            f"an empty word (or only spaces) in column {name}",
        )
        return words

    def classes(self, name: str, listed: ClassNames, words: Rows | None) -> Rows:
        """Return class names [row][word]; without `words`, each row has a single name.

        If the data has no class names, numbers are indices into the names that the task has `listed`. If a listed name
        is itself a number or a boolean, they are not.
        """
        by_word = words is not None
        values = self._values(name, words, "label")
        # by distinct values, because there are many rows but few classes
        number_of = {value: value for value in set(chain.from_iterable(values))}
        names = self.class_names.get(name)
        if names is None and listed and not any(map(_is_number_or_boolean, listed)):
            whole = {value: _whole_number(value) for value in number_of}
            if all(isinstance(number, int | None) for number in whole.values()):
                number_of = whole
                names = listed
        beyond = {value for value, number in number_of.items() if _is_out_of_range(number, names)}
        fault = f"a label in column {name} that is out of range for {len(names or ())} classes"
        self._refuse_values(values, beyond, fault)
        known = names or listed or ()
        name_of = {
            value: class_name(_name_of(number, names)) for value, number in number_of.items()
        }
        missing = missing_labels(name_of.values(), known, by_word)
        unknown = set(name_of.values()).difference({""}, missing, known)
        if all(map(NUMBER.fullmatch, unknown)):
            plain = self._plain_numbers(name, unknown)
            name_of = {value: plain.get(text, text) for value, text in name_of.items()}
        named = [[name_of[value] for value in row] for row in values]
        self._refuse_missing(name, named, known, by_word)
        self._refuse_unprintable(named, name, "label")
        return named

    def _plain_numbers(self, name: str, numbers: Iterable[str]) -> dict[str, str]:
        """Return whole numbers that a program wrote with a point, without it; raise `InputError` for other numbers."""
        scores = sorted(text for text in numbers if float(text) % 1)
        if scores:
            raise InputError(
                f"Column {name} of {self.source} contains numbers such as {scores[0]}, but papa predicts classes and "
                "has no regression; write whole numbers or names, or list all classes under `labels`."
            )
        return {text: str(int(float(text))) for text in numbers if not _is_number(text)}

    def _refuse_missing(
        self, name: str, named: Rows, known: Collection[str], by_word: bool
    ) -> None:
        """Refuse rows without a label; unless the classes are `known`, a label such as -1 may also be a class."""
        present = set(chain.from_iterable(named))
        missing = missing_labels(present, known, by_word)
        if present and present <= {"", *missing}:
            each = " or ".join(label or "empty" for label in sorted(present))
            raise InputError(
                f"Column {name} of {self.source} has no labels (each is {each}); use a split with labels."
            )
        none = {"", *missing} if known else {""}
        each = " or ".join(label or "empty" for label in sorted(present & none))
        self._refuse_values(named, none, f"no label in column {name} (it is {each})")
        uncertain = " or ".join(sorted(missing))
        fault = f"the label {uncertain}, which may mean no label, in column {name}"
        remedy = "remove these rows" if by_word else "drop these rows with --drop-empty"
        advice = f"list all classes under `labels` (--labels), with this one if it is a class; or {remedy}"
        self._refuse_values(named, missing, fault, advice)

    def subsets(self, name: str, words: Rows | None) -> list[str] | list[list[str]]:
        """Return subset names [row], or [row][word] if the column contains lists; an empty name means no subset."""
        by_word = words is not None and self.is_list(name)
        values = self._values(name, words if by_word else None, "subset")
        named = [
            [class_name(_name_of(value, self.class_names.get(name))) for value in row]
            for row in values
        ]
        self._refuse_unprintable(named, name, "subset")
        return named if by_word else [row[0] for row in named]

    def clusters(self, name: str) -> list[str]:
        """Return the names of clusters [row]; raise `InputError` if a row has none."""
        names = [_name_of(row[0], None).strip() for row in self._values(name, None, "cluster")]
        self._refuse([not text for text in names], f"no cluster in column {name}")
        return names

    def _values(self, name: str, words: Rows | None, role: str) -> list[list[Value]]:
        """Return strings, numbers or booleans [row][word]; without `words`, each row has a single value."""
        kinds = ["text", "whole number"]
        if role == "label":
            kinds.append("fraction")
        each = f"one {role}"
        if words is not None:
            kinds = [f"list of {kind}" for kind in kinds]
            each = f"a list with one {role} per word"
        expected = f"{each} in each row, as strings or whole numbers"
        values = self._column(name, kinds, expected).to_pylist()
        if words is None:
            return [[value] for value in values]
        wrong = [
            row is None or len(row) != len(words_of_row)
            for row, words_of_row in zip(values, words, strict=True)
        ]
        self._refuse(wrong, f"a list in column {name} without one {role} per word")
        return list(values)

    def examples(self, roles: Roles, labels: ClassNames) -> tuple[Rows, Rows]:
        """Return the texts (or the words) of each row, and its classes, from columns by role; check all rows."""
        words = self.words(roles["words"]) if "words" in roles else None
        texts = [self.texts(roles[role]) for role in ("first", "second") if role in roles]
        classes = self.classes(roles["label"], labels, words) if "label" in roles else []
        return list(zip(*texts, strict=True)) if words is None else words, classes

    def check(self, names: Iterable[str]) -> None:
        """Raise `InputError` unless each of `names` is the name of exactly one column."""
        for name in names:
            if self.names.count(name) != 1:
                fault = "no column" if name not in self.names else "more than one column"
                raise InputError(
                    f"{self.source} has {fault} {name!r}; its columns are {listing(self.names)}."
                )

    def check_header(self, names: Iterable[str]) -> None:
        """Raise `InputError` if one of these names, which nobody has written in a config, looks like a value."""
        for name in names:
            values = self._column(name).to_pylist()
            if len(name) > 40 or NUMBER.fullmatch(name) or name in values:
                raise InputError(
                    f"{self.source} seems to have no line of column names, because {shortened(name)} in its first line "
                    "is a value; add this line, or list names under `columns` in a config."
                )

    def is_list(self, name: str) -> bool:
        """Return whether a column has a list in each row."""
        return _kind(self._column(name).type).startswith("list of ")

    def _column(
        self, name: str, kinds: Collection[str] = (), expected: str = ""
    ) -> pa.ChunkedArray:
        """Return a column; raise `InputError` if it is not of one of these kinds."""
        self.check([name])
        column = self.table.column(name)
        if kinds and _kind(column.type) not in kinds:
            is_object = PurePath(self.source).suffix in (".json", ".jsonl") and len(column) == 1
            advice = f"; {ONE_OBJECT_PER_ROW}" if is_object else ""
            raise InputError(
                f"Column {name} of {self.source} contains {listing([str(column.type)], 60)}, but it must contain "
                f"{expected}{advice}."
            )
        return column

    def _refuse_unprintable(self, names: Rows, column: str, role: str) -> None:
        """Refuse names with control characters, which crash the library that draws figures."""
        unprintable = {name for name in set(chain.from_iterable(names)) if UNPRINTABLE.search(name)}
        self._refuse_values(
            names, unprintable, f"a control character in a {role} in column {column}"
        )

    def _refuse_values(
        self, rows: Sequence[Sequence[Value]], wrong: Set[Value], fault: str, advice: str = FIX_ROWS
    ) -> None:
        """Raise `InputError` if any of the rows contains a `wrong` value."""
        self._refuse([not wrong.isdisjoint(row) for row in rows], fault, advice)

    def _refuse(self, wrong: Sequence[bool], fault: str, advice: str = FIX_ROWS) -> None:
        """Raise `InputError` if any row is `wrong`, with the lines of the first five, or their indices."""
        rows = [row for row, is_wrong in enumerate(wrong) if is_wrong]
        if rows:
            numbers = self.lines or self.indices or range(len(wrong))
            item = f"{self.source}[{{}}]" if self.source.isidentifier() else "{}"
            places = [item.format(numbers[row]) for row in rows[:5]]
            if len(rows) > 5:
                places.append("...")
            unit = "counted from 0:"
            if self.lines:
                unit = "line" if len(rows) == 1 else "lines"
            total = self.total or len(wrong)
            raise InputError(
                f"{self.source} has {fault} in {len(rows)} of {total} rows ({unit} {', '.join(places)}); {advice}."
            )


def missing_labels(
    labels: Iterable[str], known: Collection[str] | None, by_word: bool = False
) -> set[str]:
    """Return those labels that may mean "no label", unless they are `known` classes."""
    pattern = NO_TAG if by_word else NO_LABEL
    return {label for label in labels if pattern.fullmatch(label)}.difference(known or ())


def _kind(data_type: pa.DataType) -> str:
    """Return "text", "whole number", "fraction", or a list of one of these; otherwise Arrow's name of the type."""
    from pyarrow import types

    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if any(is_a(data_type) for is_a in lists):
        return f"list of {_kind(data_type.value_type)}"
    # categories of pandas have this type
    if types.is_dictionary(data_type):
        return _kind(data_type.value_type)
    kinds = {
        # a column without any value has the type null
        "text": (types.is_string, types.is_large_string, types.is_string_view, types.is_null),
        "whole number": (types.is_integer, types.is_boolean),
        "fraction": (types.is_floating, types.is_decimal),
    }
    for kind, tests in kinds.items():
        if any(is_a(data_type) for is_a in tests):
            return kind
    return str(data_type)


def _is_blank(text: str | None) -> bool:
    return text is None or not text.strip()


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def _is_number_or_boolean(text: str) -> bool:
    return text.lower() in BOOLEANS or NUMBER.fullmatch(text) is not None


def _whole_number(value: Value) -> Value:
    """Return a whole number as an integer, also one that is written as text; return other values unchanged."""
    return int(float(value)) if value is not None and WHOLE.fullmatch(str(value)) else value


def _is_out_of_range(value: Value, names: ClassNames) -> bool:
    # these are reported as missing labels
    if names is None or str(value) in NO_CLASS:
        return False
    return isinstance(value, int) and value not in range(len(names))


def _name_of(value: Value, names: ClassNames) -> str:
    """Return the class name of a value; a missing label becomes an empty string or a negative number."""
    if value is None or value != value:
        return ""
    if names is not None and isinstance(value, int) and value >= 0:
        return names[value]
    return str(value).lower() if isinstance(value, bool) else str(value)
