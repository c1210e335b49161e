"""Splits of a data set before a study: columns of tables in memory, rows without text, rows held out for validation."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import compress
from math import floor
from pathlib import Path
from random import Random

from papa.config.settings import fraction
from papa.data.columns import ClassNames, Columns, Roles, Rows, class_name, missing_labels
from papa.data.readers import class_names_of
from papa.errors import InputError, count, first_line, listing
from papa.files import replacing


@dataclass(frozen=True)
class Wanted:
    """Choices and changes that a user asks for; raise `InputError` if one is impossible.

    Args:
        columns: columns by role: first, second, label; or only text, for running text without labels.
        hold_out: the share of the distinct training texts that are held out for validation, or None.
        drop_empty: whether rows without text or label are dropped, also those with a label such as -1 or nan.
        labels: the names of the classes in order. If they are given, -1 means no label unless it is one of them.
    """

    columns: Roles = field(default_factory=dict)
    hold_out: float | str | None = None
    drop_empty: bool = False
    labels: ClassNames = None

    def __post_init__(self) -> None:
        given = ", ".join(f"{role}={name}" for role, name in self.columns.items())
        known = self.columns.keys() <= {"first", "second", "label"} or [*self.columns] == ["text"]
        if not known or not all(self.columns.values()):
            raise InputError(
                f"The columns are {given}; they must be first=, second= or label=COLUMN, or only text=COLUMN."
            )
        if len({*self.columns.values()}) < len(self.columns):
            raise InputError(
                f"The columns {given} name one column twice; give each role a column of its own."
            )
        share = self.hold_out
        if share is not None and not 0 < Fraction(fraction(share)) < 1:
            raise InputError(
                f"The share of texts to hold out is {share}; it must be between 0 and 1, such as 0.2."
            )

    @property
    def changes_rows(self) -> bool:
        """Whether rows change, so splits differ from the files that they were read from."""
        return self.drop_empty or self.hold_out is not None

    def changed(
        self, splits: Mapping[str, Columns], roles: Roles
    ) -> tuple[dict[str, Columns], list[str]]:
        """Return the splits with changed rows, and a sentence about each change; `roles` are columns by role.

        Raises:
            InputError: there are too few texts to hold some out, a split is empty, or a row cannot be used.
        """
        changed = dict(splits)
        notes = list[str]()
        if self.drop_empty:
            for name, columns in splits.items():
                changed[name], dropped, missing = _without_empty(columns, roles, self.labels)
                rows = count(columns.table.num_rows, "row")
                lack = "no text or no label"
                if missing:
                    lack += f" (or the label {' or '.join(sorted(missing))})"
                notes.append(
                    f"Dropped {dropped:,} of {rows} of {columns.source}, which have {lack}."
                )
                if not changed[name].table.num_rows:
                    raise InputError(
                        f"Each of the {rows} of {columns.source} lacks a text or a label; fix the rows."
                    )
        if self.hold_out is not None:
            train = changed["train"]
            # before it is split, so messages count all its rows
            _, classes = train.examples(roles, self.labels)
            if self.labels:  # then validation may have labels that training lacks
                classes = []
            text = roles.get("words") or roles["first"]
            out, kept = _held_out(train, text, Fraction(fraction(self.hold_out)), classes)
            changed |= {
                "train": _rows_of(train, [not held for held in out]),
                "validation": _rows_of(train, out),
            }
            note = f"Held out {sum(out):,} of {count(len(out), 'row')} of {train.source} for validation"
            if kept:
                note += f"; kept {count(kept, 'more text')}, so training has every label"
            notes.append(f"{note}.")
        return changed, notes


ANYTHING = Wanted()


def columns_of_table(name: str, table: object, wanted: Collection[str]) -> Columns:
    """Return the columns that are `wanted` of a table in memory; `name` is that of the split, for messages.

    Raises:
        InputError: it is no pandas DataFrame, `datasets.Dataset` or Arrow table, lacks a column, or none is wanted.
    """
    import pandas as pd
    import pyarrow as pa

    every = getattr(table, "column_names", getattr(table, "columns", ()))
    if isinstance(every, Mapping):
        raise InputError(
            f"A dataset has the splits {', '.join(every)}; give one of them, as in data['train']."
        )
    names = [str(column) for column in every]
    if not wanted:
        example = 'columns={"first": "text", "label": "mood"}'
        raise InputError(
            f"{name} is a table; name the columns to use, as in {example}: it has {listing(names)}."
        )
    Columns(name, pa.table({}), names).check(wanted)
    chosen = [column for column in every if str(column) in wanted]
    try:
        if isinstance(table, pa.Table):
            return Columns(name, table.select(chosen), names)
        if isinstance(table, pd.DataFrame):
            return Columns(name, pa.Table.from_pandas(table[chosen], preserve_index=False), names)
        # `datasets` takes long to import, so only for what may be one of its tables
        if hasattr(table, "select_columns"):
            from datasets import Dataset

            if isinstance(table, Dataset):
                rows = table.select_columns(chosen).with_format("arrow")[:]
                return Columns(name, rows, names, class_names_of(table.features.to_dict()))
    except (UnicodeError, TypeError, OverflowError, pa.ArrowException) as error:
        raise InputError(
            f"A column among {listing(map(str, chosen))} has unsuitable values ({first_line(error)})."
        ) from error
    raise InputError(
        f"A {type(table).__name__} was given; give a pandas DataFrame or a datasets.Dataset."
    )


def is_table(texts: object) -> bool:
    """Return whether texts are given as a table, by its attributes; iterating over a table yields column names."""
    return hasattr(texts, "columns") or hasattr(texts, "column_names")


def write_rows(path: Path, rows: Columns) -> None:
    """Write rows as Parquet with the names of their classes."""
    import pyarrow.parquet as pq

    path = path.absolute()  # pyarrow takes a relative path such as "a: b" for a URI
    table = rows.table
    if rows.class_names:
        features = {
            name: {"_type": "ClassLabel", "names": names}
            for name, names in rows.class_names.items()
        }
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        pq.write_table(table, temporary)


def _without_empty(
    columns: Columns, roles: Roles, labels: ClassNames
) -> tuple[Columns, int, set[str]]:
    """Return the rows that have a value in each of these columns, the number of others, and labels that are none."""
    rows = zip(*(columns.table.column(name).to_pylist() for name in roles.values()), strict=True)
    full = [not any(map(_is_empty, row)) for row in rows]
    missing = set[str]()
    if "label" in roles:
        values = columns.table.column(roles["label"]).to_pylist()
        # pandas writes 1 as 1.0 if the column has missing values
        given = [
            "" if _is_empty(value) else class_name(str(value)).removesuffix(".0")
            for value in values
        ]
        missing = missing_labels(given, columns.class_names.get(roles["label"]) or labels)
        full = [
            is_full and label not in missing for is_full, label in zip(full, given, strict=True)
        ]
    return _rows_of(columns, full), len(full) - sum(full), missing


def _is_empty(value: object) -> bool:
    return (
        value is None
        or value == []
        or (isinstance(value, str) and not value.strip())
        or value != value
    )


def _held_out(
    columns: Columns, name: str, share: Fraction, classes: Rows
) -> tuple[list[bool], int]:
    """Return for each row whether it is held out; rows with the same first text stay in one split.

    Texts drawn with a label that no training row would have stay in training; the second value is their number.
    """
    texts = list(map(str, columns.table.column(name).to_pylist()))
    distinct = list(dict.fromkeys(texts))
    # always the same seed, so the same file gives the same split
    Random(0).shuffle(distinct)
    # the share is a Fraction, because 100 * 0.29 is less than 29 in floating point
    number = floor(len(distinct) * share)
    labels: dict[str, set[str]] = {text: set() for text in distinct}
    for text, row in zip(texts, classes or [()] * len(texts), strict=True):
        labels[text].update(row)
    in_training = set[str]().union(*(labels[text] for text in distinct[number:]))
    chosen = set[str]()
    for text in distinct[:number]:
        if labels[text] <= in_training:
            chosen.add(text)
        in_training |= labels[text]
    if not chosen:
        few = f"{len(distinct)} distinct texts of {columns.source} are too few to hold some out"
        raise InputError(f"{few}; give validation texts.")
    return [text in chosen for text in texts], number - len(chosen)


def _rows_of(columns: Columns, mask: Sequence[bool]) -> Columns:
    """Return the rows that `mask` selects; messages still name their places in the source."""
    import pyarrow as pa

    table = columns.table.filter(pa.array(mask, pa.bool_()))
    lines = list(compress(columns.lines, mask))
    indices = list(compress(columns.indices or range(len(mask)), mask))
    return replace(
        columns, table=table, lines=lines, indices=indices, total=columns.total or len(mask)
    )
