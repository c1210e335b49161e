"""Prepare the tables of a corpus (texts) and of its tasks (labels, subsets, clusters), with the same rows in one order.

Errors in texts and labels are reported here, before any model runs.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from reprlib import repr as shortened
from typing import TYPE_CHECKING, TypeVar, cast

from papa.config.job import AnyJob, Job
from papa.config.measures import check_metric, frequent_class
from papa.config.settings import SPLITS, Corpus, Machine, OnHub
from papa.config.stages import ClustersOf, LabelsOf, OfCorpus, SubsetsOf, TextsOf
from papa.data.columns import Columns, class_name
from papa.data.sources import describe, load_rows, source_digests
from papa.errors import WARNING, DamagedArtefact, InputError, count, listing
from papa.files import REBUILD, digest_of_table, provenance_of, read_table, write_table

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Prepared = TypeVar("Prepared", bound=OfCorpus)
ALL = "all"
"""Name of the subset of all examples, in tables of scores."""
SAMPLE_SEED = 0
CHUNK_ROWS = 4096
"""Number of rows that are converted to Python objects at a time."""
ROW_KEYS = ["split", "row"]
"""Columns that identify a row, in all tables."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedSplit:
    """A split of a corpus: the columns of all rows, the indices of the rows used, and the number of usable rows."""

    name: str
    columns: Columns
    indices: list[int]
    available: int

    def used(self, values: Sequence[T]) -> list[T]:
        """Return the values of the rows used; `values` has one for every row."""
        return [values[index] for index in self.indices]


def prepare_texts(job: Job[TextsOf]) -> str:
    """Stage *texts*: write the table `texts` of a corpus: split, row, then first [, second], or words.

    `row` is the row's index in its split of the source. With `train_limit`, this number of training rows is drawn at
    random. The draw is reproducible, and the draw of a smaller limit is a subset of that of a larger one. All rows are
    checked, including those not drawn. In a corpus with `blocks` (running text), rows without text are skipped and not
    counted.

    Facts: the fingerprint of the table, the number of rows used and available in each split, and the number of rows in
    each validation split that also occur in the training split (`shared`).
    """
    corpus = job.settings.corpus
    splits = _load_splits(corpus, job.machine)
    table = _texts(corpus, splits)
    _check_source(job)
    used = {split.name: len(split.indices) for split in splits}
    shared = {} if corpus.blocks else _shared(table)
    facts = {
        "fingerprint": digest_of_table(table),
        "rows": used,
        "rows_available": {split.name: split.available for split in splits},
        "shared": shared,
    }
    write_table(table, job.output("texts"), facts, job.trace())
    report, warnings = list[str](), list[str]()
    for split in splits:
        report.append(f"{len(split.indices):,} of {count(split.available, f'{split.name} row')}")
        if repeated := shared.get(split.name):
            rows = f"{repeated:,} of {count(used[split.name], f'{split.name} row')}"
            warnings.append(f"{WARNING}{rows} {'is' if repeated == 1 else 'are'} also in training")
    return ". ".join([", ".join(report), *warnings])


def prepare_labels(job: Job[LabelsOf]) -> str:
    """Stage *labels*: write a task's labels as the table `labels` (split, row, label), with the same rows as `texts`.

    `label` is an index into the fact `label_names`. If the corpus has `words`, `label` is a list of such indices, one
    per word, and the column `by_word` lists the most frequent label of each word in the training rows. The fact
    `train_counts` is the number of training rows, or words, with each label.

    The label names are those that the task lists, otherwise the class names in the data, otherwise the sorted values of
    the training rows. Values and names are compared as text, ignoring surrounding spaces. Numbers without class names
    may instead be indices into the task's list. With two names, the second is the positive class of `f1` (for MRPC,
    "equivalent").
    """
    import pyarrow as pa

    settings, corpus, column = job.settings, job.settings.corpus, job.settings.label
    splits, texts = _with_texts(job, column)
    names, indices, counts = _labels(settings, splits)
    report = f"{count(len(indices), 'row')}, {count(len(names), 'label')} in column {column}"
    if corpus.words:
        by_word = _by_word(texts.column("words").to_pylist(), indices, len(splits[0].indices), counts)
        list_type = pa.list_(pa.int64())
        columns = {"label": pa.array(indices, list_type), "by_word": pa.array(by_word, list_type)}
    else:
        columns = {"label": pa.array([row[0] for row in indices], pa.int64())}
    _write_columns(job, texts, columns, label_names=names, train_counts=counts, column=column)
    warning = "" if settings.labels else frequent_class(settings.metric, names, counts)
    return f"{report}. {WARNING}{warning}" if warning else report


def check_labels(job: AnyJob, machine: Machine) -> tuple[list[str], list[int]]:
    """Return the label names and their numbers of training rows; raise `InputError` as stage *labels* will."""
    settings = cast(LabelsOf, job.settings)
    names, _, counts = _labels(settings, _load_splits(settings.corpus, machine, settings.label))
    return names, counts


def _labels(settings: LabelsOf, splits: Sequence[PreparedSplit]) -> tuple[list[str], list[list[int]], list[int]]:
    """Return the label names, and the indices of labels [row][word] and counts of training labels in the rows used."""
    corpus, column, listed = settings.corpus, settings.label, _listed_names(settings.labels)
    check_metric(settings.metric, corpus.target)
    classes = [split.columns.classes(column, listed, _words(corpus, split)) for split in splits]
    names = listed or _names_in_data(splits[0].columns, column) or sorted_names(_distinct(classes[0]))
    _check_classes(column, listed, splits, classes)
    check_metric(settings.metric, corpus.target, names)
    index_of = {name: index for index, name in enumerate(names)}
    used = chain.from_iterable(split.used(rows) for split, rows in zip(splits, classes, strict=True))
    counts = Counter(chain.from_iterable(splits[0].used(classes[0])))
    return names, [[index_of[name] for name in row] for row in used], [counts[name] for name in names]


def prepare_subsets(job: Job[SubsetsOf]) -> str:
    """Stage *subsets*: assign the rows of `texts`, or their words, to subsets that are scored separately.

    The table `subsets` has split, row and subset: a name, or a list with a name for each word. Rows and words with an
    empty name belong to no subset.
    """
    import pyarrow as pa

    corpus, column = job.settings.corpus, job.settings.subset
    splits, table = _with_texts(job, column)
    values: list[str | list[str]] = []
    for split in splits:
        values += split.used(split.columns.subsets(column, _words(corpus, split)))
    by_word = any(isinstance(value, list) for value in values)
    if by_word and not all(isinstance(value, list) for value in values):
        raise InputError(
            f"Column {column} has one subset per word in one split and one per row in another; use one form in all."
        )
    names = set(chain.from_iterable(value if isinstance(value, list) else [value] for value in values))
    further_splits = {split.name: "a further validation split" for split in splits if split.name not in SPLITS}
    for name, meaning in ({ALL: "all examples"} | further_splits).items():
        if name in names:
            raise InputError(f"Column {column} has a subset {name!r}, a name reserved for {meaning}; rename it.")
    subset = pa.array(values, pa.list_(pa.string()) if by_word else pa.string())
    _write_columns(job, table, {"subset": subset}, column=column)
    names.discard("")
    return f"{count(table.num_rows, 'row')}, {count(len(names), 'subset')} in column {column}"


def prepare_clusters(job: Job[ClustersOf]) -> str:
    """Stage *clusters*: assign the rows of `texts` to clusters, which intervals resample as a whole.

    The table `clusters` has split, row and cluster: an index, the same for rows with the same value in the column. A
    cluster with training and validation rows is reported, because validation rows then resemble training rows.
    """
    import pyarrow as pa

    column = job.settings.cluster
    splits, table = _with_texts(job, column)
    train, *others = (split.used(split.columns.clusters(column)) for split in splits)
    scored = list(chain.from_iterable(others))
    values, on_both_sides = [*train, *scored], sum(map(set(train).__contains__, scored))
    index_of = {value: index for index, value in enumerate(dict.fromkeys(values))}
    cluster = pa.array([index_of[value] for value in values], pa.int32())
    _write_columns(job, table, {"cluster": cluster}, column=column)
    report = f"{count(table.num_rows, 'row')}, {count(len(index_of), 'cluster')} in column {column}"
    if not on_both_sides:
        return report
    log.warning(
        "In column %s, %d of %s have the cluster of a training row, so scores may be too high for new clusters.",
        *(column, on_both_sides, count(len(scored), "validation row")),
    )
    return f"{report}, {count(on_both_sides, 'validation row')} in clusters of training rows"


def _write_columns(job: Job[Prepared], texts: pa.Table, columns: Mapping[str, pa.Array], **facts: object) -> None:
    """Write columns with the keys of the rows of `texts` as the output of a job, which its stage names."""
    rows = texts.select(ROW_KEYS)
    for name, values in columns.items():
        rows = rows.append_column(name, values)
    write_table(rows, next(iter(job.outputs.values())), facts | {"fingerprint": digest_of_table(texts)}, job.trace())


def _load_splits(corpus: Corpus, machine: Machine, *columns: str) -> list[PreparedSplit]:
    """Load the splits of a corpus with the columns of its texts and the additional `columns`."""
    wanted = {name for name in (corpus.first, corpus.second, corpus.words, *columns) if name}
    return [_load_split(corpus, split, wanted, machine) for split in corpus.splits]


def _load_split(corpus: Corpus, name: str, wanted: set[str], machine: Machine) -> PreparedSplit:
    import numpy as np

    source, rows = describe(corpus, name), load_rows(corpus, name, wanted, machine)
    columns = Columns(source, rows)
    columns.check(sorted(wanted))
    indices = np.arange(rows.table.num_rows)
    if corpus.blocks and corpus.first:  # blank lines separate the paragraphs of running text
        indices = indices[[bool(text and text.strip()) for text in columns.texts(corpus.first, blank=True)]]
    available = len(indices)
    if available == 0:
        missing = "text" if rows.table.num_rows else "rows"
        raise InputError(f"{source} has no {missing}; every split needs some.")
    if name == "train" and corpus.train_limit is not None:
        order = np.random.default_rng(SAMPLE_SEED).permutation(available)
        indices = indices[np.sort(order[: corpus.train_limit])]
    return PreparedSplit(name, columns, indices.tolist(), available)


def _texts(corpus: Corpus, splits: Sequence[PreparedSplit]) -> pa.Table:
    import pyarrow as pa

    def column(read: Callable[[Columns], Sequence[object]], data_type: pa.DataType) -> pa.Array:
        return pa.array([value for split in splits for value in split.used(read(split.columns))], data_type)

    columns = {
        "split": pa.array([split.name for split in splits for _ in split.indices]),
        "row": pa.array([index for split in splits for index in split.indices], pa.int64()),
    }
    if words := corpus.words:
        columns["words"] = column(lambda source: source.words(words), pa.list_(pa.string()))
    if first := corpus.first:
        columns["first"] = column(lambda source: source.texts(first, corpus.blocks), pa.string())
    if second := corpus.second:
        columns["second"] = column(lambda source: source.texts(second, corpus.blocks), pa.string())
    return pa.table(columns)


def _words(corpus: Corpus, split: PreparedSplit) -> list[list[str]] | None:
    return split.columns.words(corpus.words) if corpus.words else None


def _shared(texts: pa.Table) -> dict[str, int]:
    """Count the rows of each validation split that equal a training row, ignoring surrounding spaces."""
    train: set[bytes] = set()
    shared: dict[str, int] = {}
    for chunk in texts.to_batches(CHUNK_ROWS):
        splits, _, *columns = (column.to_pylist() for column in chunk.columns)
        for split, *row in zip(splits, *columns, strict=True):
            texts_of_row = [[part.strip() for part in ([text] if isinstance(text, str) else text)] for text in row]
            key = hashlib.blake2b(repr(texts_of_row).encode(), digest_size=16).digest()  # needs less memory than texts
            if split == "train":
                train.add(key)
            else:
                shared[split] = shared.get(split, 0) + (key in train)
    return shared


def _with_texts(job: Job[Prepared], column: str) -> tuple[list[PreparedSplit], pa.Table]:
    """Load the splits with an additional column, and build their table of texts; refuse texts that have changed."""
    corpus, texts = job.settings.corpus, job.input("texts")
    splits = _load_splits(corpus, job.machine, column)
    table = _texts(corpus, splits)
    _check_source(job)
    if provenance_of(read_table(texts)).get("fingerprint") != digest_of_table(table):
        raise DamagedArtefact(f"{texts} no longer matches the texts of its source; {REBUILD}.")
    return splits, table


def _check_source(job: Job[Prepared]) -> None:
    """Raise `InputError` if the source's digests, computed after reading it, differ from those of the run's start."""
    settings = job.settings
    if not settings.source:  # the source is only on the hub
        return
    current = source_digests(settings.corpus, job.machine.hub_mirror)
    changed = next((name for name in settings.source | current if settings.source.get(name) != current.get(name)), None)
    if changed is not None:
        source = settings.corpus.hub if isinstance(settings.corpus, OnHub) else describe(settings.corpus, changed)
        raise InputError(f"{source} has changed since this run began; run again to read its new content.")


def _by_word(
    words: Sequence[Sequence[str]], labels: Sequence[Sequence[int]], training_rows: int, counts: Sequence[int]
) -> list[list[int]]:
    """Return, for each word in every row, its most frequent label in the first `training_rows` rows.

    Words that do not occur there get the label with the highest of `counts`.
    """
    counts_by_word: dict[str, Counter[int]] = {}
    for row, labels_of_row in zip(words[:training_rows], labels, strict=False):
        for word, label in zip(row, labels_of_row, strict=True):
            counts_by_word.setdefault(word, Counter())[label] += 1
    label_of = {word: label_counts.most_common(1)[0][0] for word, label_counts in counts_by_word.items()}
    most_frequent = counts.index(max(counts))
    return [[label_of.get(word, most_frequent) for word in row] for row in words]


def _listed_names(labels: Sequence[str] | None) -> list[str] | None:
    names = [class_name(name) for name in labels or ()]
    if len(set(names)) < len(names):
        raise InputError(f"`labels` lists a name twice: {listing(names)}; list each name once.")
    return names or None


def _names_in_data(columns: Columns, column: str) -> list[str]:
    return list(dict.fromkeys(map(class_name, columns.rows.class_names.get(column) or ())))


def _check_classes(
    column: str, listed: Sequence[str] | None, splits: Sequence[PreparedSplit], classes: Sequence[list[list[str]]]
) -> None:
    """Refuse unknown labels, labels that occur only in validation rows, and training rows with a single label."""
    used = [split.used(rows) for split, rows in zip(splits[1:], classes[1:], strict=True)]
    train, validation = _distinct(classes[0]), _distinct(chain.from_iterable(used))
    train_used = _distinct(splits[0].used(classes[0]))
    in_data = _names_in_data(splits[0].columns, column)
    unknown = sorted_names((train | validation).difference(listed or in_data)) if listed or in_data else []
    if unknown:
        known, advice = f"`labels` lists only {listing(listed or ())}", "list all labels"
        if not listed:
            known = f"the class names in the data are only {listing(in_data)}"
            advice = "correct these names, or list all labels under `labels`"
        raise InputError(f"Column {column} contains {_quoted(unknown)}, but {known}; {advice}.")
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
        message = "Column %s contains %s in validation rows, but in none of the training rows used."
        log.warning(message, column, _quoted(unseen))


def _distinct(rows: Iterable[Iterable[str]]) -> set[str]:
    return set(chain.from_iterable(rows))


def sorted_names(names: set[str]) -> list[str]:
    """Sort names: as numbers if all are whole numbers, otherwise as text."""
    try:
        return sorted(names, key=int)
    except ValueError:
        return sorted(names)


def _quoted(names: Iterable[str]) -> str:
    return listing(map(shortened, names))
