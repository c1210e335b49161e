"""Read a corpus once into one table: texts, and for each task labels and subsets, and clusters.

A corpus is read again only if its files or the settings that decide on the table change. Errors in texts and labels are
reported here, before any model runs.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from reprlib import repr as shortened
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

from papa.config.measures import check_metric, frequent_class
from papa.config.settings import SPLITS, Corpus, InFiles, Machine, OnHub, Task
from papa.data.columns import Columns, Rows, class_name
from papa.data.sources import load_splits, source_digests
from papa.errors import InputError, count, listing
from papa.files import (
    KEY_DIGITS,
    Json,
    PathLike,
    Record,
    digest_of_json,
    digest_of_table,
    read_facts,
    read_table,
    write_table,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Tasks = Mapping[str, Task]
"""The tasks on a corpus by name."""
VERSION = 3
"""Raise this when a change to the code changes tables of corpora."""
ALL = "all"
"""Name of the subset of all examples, in tables of scores."""
TEXTS = ("first", "second", "words")
"""The columns of texts, each the role of a column of the source."""
SAMPLE_SEED = 0
SAMPLED_ROWS = 2000
"""Number of rows per split in which words are counted."""


@dataclass(frozen=True)
class Prepared:
    """The table of a corpus.

    It has the columns split and row (the index in the split of the source), then first and perhaps second, or words.
    For each task with labels, `label TASK` has indices of labels, and `subset TASK` names of subsets; if the corpus has
    words, lists of them. `cluster` has indices of clusters.

    Args:
        path: the path of the table, which exists unless the corpus is not on this machine or nothing is to be saved.
        facts: `rows` and `rows_available` (the numbers of rows that are used, and that could be), `shared` (validation
            rows that are also in training), `characters` (bytes of text) and `sizes` by split; `labels` (`names` and
            `train_counts`) by task; `digests` of the columns' values, in the part "train" and in "all"; `warnings`. If
            the corpus is not on this machine, the digests are provisional, and the other facts are empty.
        warnings: sentences about what may be wrong with the data.
    """

    path: str
    facts: Json
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class PreparedSplit:
    """A split of a corpus: columns and lists of words of all rows, indices of the rows used, number of usable rows."""

    name: str
    columns: Columns
    words: Rows | None
    indices: list[int]
    available: int

    def used(self, values: Sequence[T]) -> list[T]:
        """Return the values of the rows used; `values` has one for every row."""
        return [values[index] for index in self.indices]


def prepared(
    corpus: Corpus,
    tasks: Tasks,
    machine: Machine,
    folder: PathLike,
    name: str,
    save: bool = True,
) -> Prepared:
    """Return the table of a corpus; if there is none, read the corpus, check all rows and labels, and write it.

    With `train_limit`, this number of training rows is drawn at random. The draw is reproducible, and the draw of a
    smaller limit is a subset of that of a larger one. In a corpus with `blocks` (running text), rows without text are
    skipped and not counted.

    Label names are those that the task lists, otherwise the class names in the data, otherwise the sorted values of the
    training rows. Values and names are compared as text, ignoring surrounding spaces. Numbers without class names may
    instead be indices into the task's list. With two names, the second is the positive class of `f1` (for MRPC,
    "equivalent"). Rows and words with an empty subset belong to no subset.

    Args:
        corpus: the corpus.
        tasks: the tasks on the corpus by name; only those with labels add columns.
        machine: where the corpus is.
        folder: the folder of the tables of corpora.
        name: the corpus's name for people.
        save: whether a new table is written.

    Raises:
        InputError: the corpus cannot be used.
    """
    labelled = {
        task: settings for task, settings in sorted(tasks.items()) if settings.label is not None
    }
    digests = source_digests(corpus, machine)
    at = {"hub": f"{corpus.hub}@{corpus.revision or 'main'}"} if isinstance(corpus, OnHub) else {}
    record = Record("data", VERSION, _settings(corpus, labelled), digests or at)
    path = os.path.join(folder, f"{name}-{record.key[:KEY_DIGITS]}.parquet")
    if digests is None:
        return Prepared(path, _provisional(corpus, labelled, record.key))
    if os.path.exists(path):
        facts = read_facts(path)
        # the metric is not part of the key, so it is compared with the labels again
        return Prepared(path, facts, _warnings(corpus, labelled, facts))
    table, facts = _table(corpus, labelled, machine)
    warnings = _warnings(corpus, labelled, facts)
    _check_unchanged(corpus, machine, digests)
    if save:
        write_table(table, path, facts, record)
    return Prepared(path, facts, warnings)


def texts_in(path: PathLike) -> Iterator[str]:
    """Yield all texts in the table of a corpus; words are joined by spaces."""
    table = read_table(path)
    for name in TEXTS:
        for text in table[name].to_pylist() if name in table.column_names else ():
            yield " ".join(text) if isinstance(text, list) else text


def _settings(corpus: Corpus, tasks: Tasks) -> Json:
    """Return what decides on the content of the table, besides the files."""
    keys = {*TEXTS, "blocks", "train_limit", "cluster", "columns", "config", "train", "validation"}
    settings = corpus.model_dump(mode="json", include=keys, exclude_none=True)
    if isinstance(
        corpus, InFiles
    ):  # the format is in the file's name, and so is a slice of its rows
        settings["files"] = {
            split: Path(file).suffix.lower() for split, file in corpus.sources.items()
        }
    settings["tasks"] = {
        name: task.model_dump(mode="json", include={"label", "labels", "subset"}, exclude_none=True)
        for name, task in tasks.items()
    }
    return settings


def _provisional(corpus: Corpus, tasks: Tasks, key: str) -> Json:
    """Return the facts of a corpus that is not on this machine: digests that no table has."""
    names = [column for column in TEXTS if getattr(corpus, column)]
    names += [f"label {task}" for task in tasks]
    if isinstance(corpus.cluster, str):
        names.append("cluster")
    digests = {column: digest_of_json([key, column]) for column in names}
    empty: Json = {
        name: {} for name in ("rows", "rows_available", "shared", "characters", "sizes", "labels")
    }
    return empty | {"digests": {"train": digests, "all": digests}, "warnings": []}


def _warnings(corpus: Corpus, tasks: Tasks, facts: Json) -> list[str]:
    """Return sentences about doubtful data; raise `InputError` if a metric does not fit the names of the labels."""
    sentences = dict.fromkeys(facts["warnings"])
    for name, task in tasks.items():
        names = facts["labels"][name]["names"]
        counts = facts["labels"][name]["train_counts"]
        check_metric(task.metric, corpus.target, names)
        if not task.labels and (sentence := frequent_class(task.metric, names, counts)):
            sentences[sentence] = None
    return list(sentences)


def _check_unchanged(corpus: Corpus, machine: Machine, before: Mapping[str, str]) -> None:
    """Raise `InputError` if the source's digests, computed after reading it, differ from those before."""
    now = source_digests(corpus, machine) or {}
    for name, digest in before.items():
        if digest != now.get(name):
            source = corpus.hub if isinstance(corpus, OnHub) else corpus.sources[name]
            raise InputError(
                f"{source} has changed since this run began; run again to read its new content."
            )


def _table(corpus: Corpus, tasks: Tasks, machine: Machine) -> tuple[pa.Table, Json]:
    """Read and check a corpus; return its table and the facts."""
    import pyarrow as pa

    splits = _splits(corpus, tasks, machine)
    columns = _texts(corpus, splits)
    warnings = list[str]()
    rows = {split.name: len(split.indices) for split in splits}
    shared = {} if corpus.blocks else _shared(pa.table(columns))
    for split, repeated in shared.items():
        if repeated:
            number = f"{repeated:,} of {count(rows[split], f'{split} row')}"
            warnings.append(f"{number} {'is' if repeated == 1 else 'are'} also in training.")
    labels: dict[str, Json] = {}
    for name, task in tasks.items():
        names, indices, counts, doubts = _labels(task, splits)
        labels[name] = {"names": names, "train_counts": counts}
        values = indices if corpus.words else [row[0] for row in indices]
        columns[f"label {name}"] = pa.array(
            values, pa.list_(pa.int64()) if corpus.words else pa.int64()
        )
        warnings += doubts
    for name, task in tasks.items():
        if task.subset:
            columns[f"subset {name}"] = _subsets(task.subset, splits)
    if isinstance(corpus.cluster, str):
        columns["cluster"], doubts = _clusters(corpus.cluster, splits)
        warnings += doubts
    table = pa.table(columns)
    return table, {
        "rows": rows,
        "rows_available": {split.name: split.available for split in splits},
        "shared": shared,
        "labels": labels,
        "digests": _digests(table, rows["train"], corpus.blocks, labels),
        **_sizes(table, rows, corpus.cluster),
        "warnings": list(dict.fromkeys(warnings)),
    }


def _digests(
    table: pa.Table, train: int, blocks: bool, labels: Mapping[str, Json]
) -> dict[str, dict[str, str]]:
    """Return the digests of each column, in the training rows and in all: of its values and their rows.

    They depend on no name of a column or a task. Those of labels also depend on the names of the labels.
    """
    keys = ["split"] if blocks else ["split", "row"]  # which rows make a block decides no number
    names = {f"label {task}": facts["names"] for task, facts in labels.items()}

    def digest(rows: pa.Table, column: str) -> str:
        values = rows.select([*keys, column]).rename_columns([*keys, "value"])
        return digest_of_json(names.get(column), [digest_of_table(values).encode()])

    return {
        part: {column: digest(rows, column) for column in table.column_names[2:]}
        for part, rows in (("train", table.slice(0, train)), ("all", table))
    }


def _sizes(table: pa.Table, rows: Mapping[str, int], cluster: str | int | None) -> dict[str, Json]:
    """Return `characters` and `sizes` of each split: mean words per row, and how many rows count as one."""
    characters = {}
    sizes = {}
    begin = 0
    names = [name for name in TEXTS if name in table.column_names]
    for split, number in rows.items():
        part = table.slice(begin, number)
        begin += number
        sample = part.slice(0, SAMPLED_ROWS)
        texts = [
            [text if isinstance(text, list) else text.split() for text in sample[name].to_pylist()]
            for name in names
        ]
        if isinstance(cluster, str):
            clusters = part["cluster"].to_pylist()
        else:
            clusters = [row // (cluster or 1) for row in range(number)]
        # the mean size of the cluster of a row: by so much the variance of a mean grows if a cluster's rows are alike
        effect = sum(size**2 for size in Counter(clusters).values()) / number
        sizes[split] = {
            "words": sum(fmean(map(len, column)) for column in texts),
            "design_effect": effect,
        }
        characters[split] = sum(_bytes(part[name]) for name in names)
    return {"characters": characters, "sizes": sizes}


def _bytes(texts: pa.ChunkedArray) -> int:
    """Return the bytes of texts, or of lists of words with a space before each: no text has more tokens."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = bool(pa.types.is_list(texts.type))
    values = pc.list_flatten(texts) if words else texts
    return int(pc.sum(pc.binary_length(values)).as_py() or 0) + words * len(values)


def _labels(
    task: Task, splits: Sequence[PreparedSplit]
) -> tuple[list[str], list[list[int]], list[int], list[str]]:
    """Return names, indices of labels [row][word], counts of training labels in the rows used, and warnings."""
    column = str(task.label)
    listed = [class_name(name) for name in task.labels or ()]
    if len(set(listed)) < len(listed):
        raise InputError(f"`labels` lists a name twice: {listing(listed)}; list each name once.")
    classes = [split.columns.classes(column, listed, split.words) for split in splits]
    in_data = list(dict.fromkeys(map(class_name, splits[0].columns.class_names.get(column) or ())))
    names = listed or in_data or sorted_names(_distinct(classes[0]))
    doubts = _check_classes(column, (listed, in_data), splits, classes)
    index_of = {name: index for index, name in enumerate(names)}
    used = [row for split, rows in zip(splits, classes, strict=True) for row in split.used(rows)]
    indices = [[index_of[name] for name in row] for row in used]
    counts = Counter(chain.from_iterable(splits[0].used(classes[0])))
    return names, indices, [counts[name] for name in names], doubts


def _subsets(column: str, splits: Sequence[PreparedSplit]) -> pa.Array:
    """Return the names of subsets: one for each row, or a list with one for each word."""
    import pyarrow as pa

    values: list[str | list[str]] = []
    for split in splits:
        values += split.used(split.columns.subsets(column, split.words))
    kinds = set(map(type, values))
    by_word = list in kinds
    if len(kinds) > 1:
        raise InputError(
            f"Column {column} has one subset per word in one split and one per row in another; use one form in all."
        )
    names = _distinct(value if isinstance(value, list) else [value] for value in values)
    further = [split.name for split in splits if split.name not in SPLITS]
    reserved = {ALL: "all examples"} | dict.fromkeys(further, "a further validation split")
    for name, use in reserved.items():
        if name in names:
            raise InputError(
                f"Column {column} has a subset {name!r}, a name reserved for {use}; rename it."
            )
    return pa.array(values, pa.list_(pa.string()) if by_word else pa.string())


def _clusters(column: str, splits: Sequence[PreparedSplit]) -> tuple[pa.Array, list[str]]:
    """Return the cluster of each row, an index that is the same for rows with the same value, and warnings.

    A cluster with training and validation rows is a warning, because validation rows then resemble training rows.
    """
    import pyarrow as pa

    train, *others = (split.used(split.columns.clusters(column)) for split in splits)
    scored = list(chain.from_iterable(others))
    known = set(train)
    cluster = pa.array([*train, *scored]).dictionary_encode().indices
    on_both_sides = sum(value in known for value in scored)
    if not on_both_sides:
        return cluster, []
    rows = f"{on_both_sides:,} of {count(len(scored), 'validation row')}"
    why = "have the cluster of a training row, so scores may be too high for new clusters"
    return cluster, [f"In column {column}, {rows} {why}."]


def _splits(corpus: Corpus, tasks: Tasks, machine: Machine) -> list[PreparedSplit]:
    """Load the splits of a corpus with all columns that are used."""
    used = [getattr(corpus, role) for role in (*TEXTS, "cluster")]
    used += [part for task in tasks.values() for part in (task.label, task.subset)]
    # a cluster may also be a number of rows
    wanted = sorted({name for name in used if isinstance(name, str)})
    splits = load_splits(corpus, wanted, machine)
    for columns in splits.values():
        columns.check(wanted)
    return [_split(corpus, name, columns) for name, columns in splits.items()]


def _split(corpus: Corpus, name: str, columns: Columns) -> PreparedSplit:
    import numpy as np

    indices = np.arange(columns.table.num_rows)
    if corpus.blocks and corpus.first:  # blank lines separate the paragraphs of running text
        texts = columns.texts(corpus.first, blank=True)
        indices = indices[[bool(text and text.strip()) for text in texts]]
    available = len(indices)
    if available == 0:
        missing = "text" if columns.table.num_rows else "rows"
        raise InputError(f"{columns.source} has no {missing}; every split needs some.")
    if name == "train" and corpus.train_limit is not None:
        order = np.random.default_rng(SAMPLE_SEED).permutation(available)
        indices = indices[np.sort(order[: corpus.train_limit])]
    words = columns.words(corpus.words) if corpus.words else None
    return PreparedSplit(name, columns, words, indices.tolist(), available)


def _texts(corpus: Corpus, splits: Sequence[PreparedSplit]) -> dict[str, pa.Array]:
    """Return the columns split and row, and those of texts."""
    import pyarrow as pa

    columns = {
        "split": pa.array([split.name for split in splits for _ in split.indices]),
        "row": pa.array([index for split in splits for index in split.indices], pa.int64()),
    }
    if corpus.words:
        values = [words for split in splits for words in split.used(split.words or [])]
        columns["words"] = pa.array(values, pa.list_(pa.string()))
    for role in ("first", "second"):
        if name := getattr(corpus, role):
            texts = (split.used(split.columns.texts(name, corpus.blocks)) for split in splits)
            columns[role] = pa.array(chain.from_iterable(texts), pa.string())
    return columns


def _shared(texts: pa.Table) -> dict[str, int]:
    """Count the rows of each validation split that equal a training row, ignoring surrounding spaces."""
    splits, _, *columns = (column.to_pylist() for column in texts.columns)
    train = set[int]()
    shared = dict[str, int]()
    for split, *row in zip(splits, *columns, strict=True):
        # hashes, because the texts of a large corpus would fill the memory
        stripped = [
            text.strip() if isinstance(text, str) else (*map(str.strip, text),) for text in row
        ]
        key = hash(tuple(stripped))
        if split == "train":
            train.add(key)
        else:
            shared[split] = shared.get(split, 0) + (key in train)
    return shared


def _check_classes(
    column: str,
    known_names: tuple[Sequence[str], Sequence[str]],
    splits: Sequence[PreparedSplit],
    classes: Sequence[Rows],
) -> list[str]:
    """Refuse unknown labels, labels that occur only in validation rows, and training rows with a single label.

    Return warnings.
    """
    used = [split.used(rows) for split, rows in zip(splits[1:], classes[1:], strict=True)]
    train = _distinct(classes[0])
    validation = _distinct(chain.from_iterable(used))
    train_used = _distinct(splits[0].used(classes[0]))
    listed, in_data = known_names
    known = listed or in_data
    unknown = (train | validation).difference(known)
    if known and unknown:
        lists = "`labels` lists only"
        advice = "list all labels"
        if not listed:
            lists = "the class names in the data are only"
            advice = "correct these names, or list all labels under `labels`"
        raise InputError(
            f"Column {column} contains {_quoted(sorted_names(unknown))}, but {lists} {listing(known)}; {advice}."
        )
    if len(train_used) < 2:
        only = f"All training rows have the label {_quoted(train_used)} in column {column}"
        raise InputError(f"{only}; a task needs at least two labels.")
    unseen = sorted_names(validation - train)
    if unseen and not listed:
        every = zip(splits, classes, strict=True)
        source = next(split.columns.source for split, rows in every if unseen[0] in _distinct(rows))
        raise InputError(
            f"Column {column} contains {_quoted(unseen)} in {source}, but in no training row, so no probe can "
            "learn it. Use splits with the same labels, or list all names under `labels` to continue anyway."
        )
    if unseen := sorted_names(validation - train_used):
        return [
            f"Column {column} contains {_quoted(unseen)} in validation rows, but in none of the training rows used."
        ]
    return []


def _distinct(rows: Iterable[Iterable[str]]) -> set[str]:
    return set(chain.from_iterable(rows))


def sorted_names(names: set[str]) -> list[str]:
    """Sort names: as numbers if all are whole numbers, otherwise as text."""
    try:
        return sorted(sorted(names), key=int)
    except ValueError:
        return sorted(names)


def _quoted(names: Iterable[str]) -> str:
    return listing(map(shortened, names))
