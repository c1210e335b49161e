"""One normalised table per corpus (its texts) and per task (its labels), in the same rows and order.

Whatever can be wrong with texts or labels is found here, before any model runs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from papa.data.columns import Columns
from papa.data.sources import Corpus, describe, load_rows, splits_of
from papa.errors import DamagedArtefact, InputError
from papa.files import MEND, PathLike, fingerprint_of_table, provenance_of, read_table, write_table

if TYPE_CHECKING:
    import pyarrow as pa

# Which metrics there are, and for which kind of task.
METRICS = {
    "accuracy": "text",
    "f1": "text",
    "matthews_correlation": "text",
    "entity_f1": "token",
    "token_accuracy": "token",
    "negative_log_perplexity": "masked",
}
KINDS = {
    "text": "with one label per text (on a corpus without words)",
    "token": "with one label per word (on a corpus of words)",
    "masked": "without labels (masked language modelling)",
}
ALL = "all"  # the name under which tables keep the score over all examples
SAMPLE_SEED = 0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """A split of a corpus: its columns with all their rows, and the numbers of the rows that the corpus takes."""

    split: str
    columns: Columns
    numbers: list[int]
    available: int

    def taken(self, values: Sequence[Any]) -> list[Any]:
        return [values[number] for number in self.numbers]


def prepare_texts(corpus: Corpus, texts: PathLike) -> str:
    """Write the corpus's texts as the table `texts`: split, row, and first [, second] or words.

    Its splits are train, validation and those that it names under `more_validation`.
    `row` is the row's number in the source's split, from 0. `train_limit` takes that many training rows at random:
    always the same ones, kept in their order, those of a smaller limit among those of a larger one. The provenance
    holds the source, the fingerprint of the table, the rows taken and the rows available. All rows
    are checked, whatever `train_limit` is. Of a corpus with `blocks`, which is running text, rows without text are left
    out and not counted.

    Raises `InputError` for an unknown column, a column of another type, an empty split and an empty text.
    """
    parts = [_part(corpus, split) for split in splits_of(corpus)]
    table = _texts(corpus, parts)
    provenance = {
        "source": dict(corpus),
        "fingerprint": fingerprint_of_table(table),
        "rows": {part.split: len(part.numbers) for part in parts},
        "rows_available": {part.split: part.available for part in parts},
    }
    write_table(table, texts, provenance)
    rows = (f"{len(part.numbers):,} of {part.available:,} {part.split} rows" for part in parts)
    return ", ".join(rows)


def prepare_labels(task: Mapping[str, Any], corpus: Corpus, texts: PathLike, labels: PathLike) -> str:
    """Write the task's labels as the table `labels`, row by row beside `texts`: split, row, label [, subset].

    `label` is an index into the provenance's `label_names` (a list of them, one per word, where the corpus has
    `words`). The names are `task["labels"]`, else the class names that the data brings, else the sorted distinct
    values of the training rows. Values and names are matched as text; only numbers without class names may be
    positions in `task["labels"]`. The second of two names is the positive class of `f1` (for MRPC "equivalent"). A
    row or word whose `subset` is empty belongs to no subset.

    Raises `InputError` for an unknown column, missing labels, labels out of range, lists that do not fit the words, a
    single class, a label in validation rows alone (unless `task["labels"]` has it) and a metric that does not fit;
    `DamagedArtefact` where `texts` was made from another state of the source.
    """
    import pyarrow as pa

    kind = "token" if corpus.get("words") else "text"
    check_metric(task["metric"], kind)
    parts = [_part(corpus, split) for split in splits_of(corpus)]
    table = _texts(corpus, parts)
    fingerprint = fingerprint_of_table(table)
    if provenance_of(read_table(texts)).get("fingerprint") != fingerprint:
        raise DamagedArtefact(f"{texts} holds other texts than the source has now; {MEND}.")

    words = [part.columns.words(corpus["words"]) if kind == "token" else None for part in parts]
    given = _given_names(task)
    classes = [part.columns.classes(task["label"], given, its) for part, its in zip(parts, words, strict=True)]
    names = given or parts[0].columns.class_names(task["label"]) or _sorted(_distinct(classes[0]))
    _check_classes(task, names, parts, classes)
    check_metric(task["metric"], kind, names)

    index = {name: number for number, name in enumerate(names)}
    numbered = [
        [index[name] for name in row] for part, its in zip(parts, classes, strict=True) for row in part.taken(its)
    ]
    if kind == "token":
        label = pa.array(numbered, pa.list_(pa.int64()))
    else:
        label = pa.array([row[0] for row in numbered], pa.int64())
    columns = {"split": table.column("split"), "row": table.column("row"), "label": label}
    if task.get("subset"):
        columns["subset"] = _subsets(task["subset"], parts, words)
    write_table(pa.table(columns), labels, {"label_names": names, "fingerprint": fingerprint, "column": task["label"]})
    return f"{table.num_rows:,} rows, {len(names)} labels in column {task['label']}"


def check_metric(metric: str, kind: str, names: Sequence[str] | None = None) -> None:
    """Raise `InputError` where the metric is unknown, or not for this kind of task (of `KINDS`) or label names."""
    fitting = ", ".join(name for name, its in METRICS.items() if its == kind)
    if metric not in METRICS:
        raise InputError(f"There is no metric {metric!r}; for a task {KINDS[kind]} there are {fitting}.")
    if METRICS[metric] != kind:
        raise InputError(
            f"The metric {metric} is for tasks {KINDS[METRICS[metric]]}, but this is one {KINDS[kind]}; "
            f"use one of {fitting}."
        )
    if names and metric == "f1" and len(names) != 2:
        raise InputError(
            f"The metric f1 needs two labels, but there are {len(names)} ({', '.join(names)}); use accuracy."
        )
    unlike = [name for name in names or () if not re.fullmatch(r"O|[BIES]-.+", name)] if metric == "entity_f1" else []
    if unlike:
        raise InputError(
            f"The metric entity_f1 needs labels O, B-..., I-... (and E-..., S-...), but there is {_few(unlike)}; "
            "use token_accuracy, or name the classes under labels."
        )


def _part(corpus: Corpus, split: str) -> Part:
    import numpy as np

    where, rows = describe(corpus, split), load_rows(corpus, split)
    columns, limit = Columns(where, rows), corpus.get("train_limit")
    numbers = np.arange(rows.table.num_rows)
    if corpus.get("blocks"):  # blank lines part the paragraphs of running text
        numbers = numbers[[bool(text and text.strip()) for text in columns.texts(corpus["first"], blank=True)]]
    available = len(numbers)
    if available == 0:
        what = "text" if rows.table.num_rows else "rows"
        raise InputError(f"{where} has no {what}; every split needs some.")
    if split == "train" and limit is not None:
        if limit < 1:
            raise InputError(f"train_limit is {limit}, but at least one training row is needed.")
        numbers = numbers[np.sort(np.random.default_rng(SAMPLE_SEED).permutation(available)[:limit])]
    return Part(split, columns, numbers.tolist(), available)


def _texts(corpus: Corpus, parts: Sequence[Part]) -> pa.Table:
    import pyarrow as pa

    columns: dict[str, Any] = {
        "split": pa.array([part.split for part in parts for _ in part.numbers]),
        "row": pa.array([number for part in parts for number in part.numbers], pa.int64()),
    }
    if corpus.get("words"):
        words = [row for part in parts for row in part.taken(part.columns.words(corpus["words"]))]
        columns["words"] = pa.array(words, pa.list_(pa.string()))
    elif corpus.get("first"):
        for name in ("first", "second"):
            if corpus.get(name):
                blank = bool(corpus.get("blocks"))
                texts = [text for part in parts for text in part.taken(part.columns.texts(corpus[name], blank))]
                columns[name] = pa.array(texts, pa.string())
    else:
        raise InputError(
            "A corpus names its column of texts under first (and second), or its lists of words under words."
        )
    return pa.table(columns)


def _given_names(task: Mapping[str, Any]) -> list[str] | None:
    if not task.get("labels"):
        return None
    names = [str(name).lower() if isinstance(name, bool) else str(name) for name in task["labels"]]
    if len(set(names)) < len(names):
        raise InputError(f"labels lists a name twice: {', '.join(names)}.")
    return names


def _check_classes(
    task: Mapping[str, Any], names: Sequence[str], parts: Sequence[Part], classes: Sequence[Any]
) -> None:
    """All names are listed, training rows have two or more, and no name is in validation rows alone."""
    column, given = task["label"], bool(task.get("labels"))
    train, validation = _distinct(classes[0]), _distinct(chain.from_iterable(classes[1:]))
    taken = _distinct(parts[0].taken(classes[0]))
    unknown = _sorted((train | validation) - set(names))
    if given and unknown:
        raise InputError(f"Column {column} holds {_few(unknown)}, but labels lists only {', '.join(names)}.")
    if len(taken) < 2:
        raise InputError(
            f"All training rows have the label {_few(_sorted(taken))} in column {column}; a task needs two or more."
        )
    unseen = _sorted(validation - train)
    if unseen and not given:
        where = next(
            part.columns.where for part, rows in zip(parts, classes, strict=True) if unseen[0] in _distinct(rows)
        )
        raise InputError(
            f"Column {column} holds {_few(unseen)} in {where}, but in no training row: no probe can "
            "learn that. Use splits with the same labels, or list all names under labels to go on nevertheless."
        )
    if not validation <= taken:
        untaught = _few(_sorted(validation - taken))
        log.warning(
            "Column %s holds %s in validation rows, but in no training row taken: not learned.", column, untaught
        )


def _subsets(column: str, parts: Sequence[Part], words: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    values = [
        value for part, its in zip(parts, words, strict=True) for value in part.taken(part.columns.subsets(column, its))
    ]
    by_word = any(isinstance(value, list) for value in values)
    if by_word and not all(isinstance(value, list) for value in values):
        raise InputError(f"Column {column} has one subset per word in one split and one per row in the other.")
    scored_apart = {part.split: "a further validation split" for part in parts[2:]}
    for name, meaning in ({ALL: "all examples"} | scored_apart).items():
        if name in (_distinct(values) if by_word else values):
            raise InputError(f"Column {column} calls a subset {name!r}, which is the name for {meaning}; rename it.")
    return pa.array(values, pa.list_(pa.string()) if by_word else pa.string())


def _distinct(rows: Iterable[Iterable[str]]) -> set[str]:
    return set(chain.from_iterable(rows))


def _sorted(names: set[str]) -> list[str]:
    """Names in their order; names that are whole numbers in the order of numbers."""
    try:
        return sorted(names, key=int)
    except ValueError:
        return sorted(names)


def _few(names: Sequence[str]) -> str:
    few = ", ".join(repr(name if len(name) <= 40 else f"{name[:37]}...") for name in names[:5])
    return few + (f" and {len(names) - 5} more" if len(names) > 5 else "")
