"""The tables of a corpus (texts) and of a task (labels, subsets), with the same rows in the same order.

Every error in texts and labels is reported here, before any model runs.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pkgutil import resolve_name
from typing import TYPE_CHECKING, TypeVar

from papa.config.job import Job
from papa.config.measures import check_metric, measure_of
from papa.config.settings import Corpus, Machine
from papa.config.stages import LabelsOf, OfCorpus, SubsetsOf, TextsOf
from papa.data.columns import Columns, alike, class_name
from papa.data.sources import describe, load_rows, source_digests
from papa.errors import DamagedArtefact, InputError, count
from papa.files import REBUILD, digest_of_table, provenance_of, read_table, write_table

if TYPE_CHECKING:
    import pyarrow as pa

Labels = tuple[dict[str, "pa.Array"], list[str], list[int], str]
"""Columns of labels, the names of the labels, how often training rows have each, and a line about them."""
ReadLabels = Callable[[LabelsOf, Sequence["PartOfCorpus"], "pa.Table"], Labels]
"""Reads the labels of a task from its corpus; the last argument is the table of texts."""
T = TypeVar("T")
Prepared = TypeVar("Prepared", bound=OfCorpus)
ALL = "all"
"""Subset of all examples in tables of scores."""
SAMPLE_SEED = 0
CHUNK = 4096
"""Rows that are converted to Python objects at once."""
ROW_KEYS = ["split", "row"]
"""Columns that identify a row of texts, in labels and subsets too."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartOfCorpus:
    """A split of a corpus: all its rows as columns, the numbers of the used ones, and how many could be used."""

    name: str
    columns: Columns
    numbers: list[int]
    available: int

    def used(self, values: Sequence[T]) -> list[T]:
        """Return the values of the used rows, out of those of all rows."""
        return [values[number] for number in self.numbers]


def prepare_texts(job: Job[TextsOf]) -> str:
    """Stage *texts*: write the table `texts` of a corpus: split, row, and first [, second], words or choices.

    Choices may have a question, `first`. `row` is the number of the row in the source's split, from 0. `train_limit`
    draws this number of training rows at random: always the same ones, and a smaller limit draws a subset of a larger
    one. All rows are checked, also those that are not drawn. In a corpus with `blocks`, which is running text, rows
    without text are skipped and not counted.

    Facts: the fingerprint of the table, the rows used, the rows available, and the rows of each validation split that
    are also in the training split (`shared`).

    Returns:
        A line with the numbers of rows used and shared.

    Raises:
        InputError: A column is unknown or of a wrong type, or a split or a text is empty.
    """
    corpus = job.settings.corpus
    parts = _parts(corpus, job.machine)
    table = _texts(corpus, parts)
    _check_source(job)
    shared = {} if corpus.blocks else _shared(table)
    facts = {
        "fingerprint": digest_of_table(table),
        "rows": {part.name: len(part.numbers) for part in parts},
        "rows_available": {part.name: part.available for part in parts},
        "shared": shared,
    }
    write_table(table, job.output("texts"), facts, job.trace())
    report = [f"{len(part.numbers):,} of {count(part.available, f'{part.name} row')}" for part in parts]
    for part in parts:
        if number := shared.get(part.name):
            report.append(f"{count(number, f'{part.name} row')} also in training")
            log.warning(
                "Of %s, %s of %d are also in the training split, so a probe may memorise them.",
                *(part.columns.where, count(number, "row"), len(part.numbers)),
            )
    return ", ".join(report)


def prepare_labels(job: Job[LabelsOf]) -> str:
    """Stage *labels*: write a task's labels as the table `labels`, with the rows of `texts`: split, row, label.

    `label` is an index into the fact `label_names`, or a list with an index for each word if the corpus has `words`.
    Words also have `by_word`, the most frequent label of the word in the training rows, in any context. The fact
    `train_counts` has the number of training rows, or words, with each label.

    The names are those that the task lists, else the class names in the data, else the sorted values of the training
    rows. Values and names are compared as text, without spaces around them. Only numbers without class names may be
    positions in the task's list. The second of two names is the positive class of `f1` (for MRPC "equivalent").

    In a corpus with choices, `label` is the index of the right choice, and `label_names` are these indices as text.

    Raises:
        InputError: A column is unknown, labels are missing, out of range or not one per word, there is a single class,
            a label is only in validation rows (unless the task lists it), or the metric does not fit.
        DamagedArtefact: `texts` was made from a different state of the source.
    """
    settings, column = job.settings, job.settings.label
    targets = settings.corpus.targets
    check_metric(settings.metric, targets)
    parts, table = _with_texts(job, column)
    read: ReadLabels = resolve_name(str(measure_of(settings.metric).target.labels))
    columns, names, train_counts, report = read(settings, parts, table)
    check_metric(settings.metric, targets, names)
    rows = table.select(ROW_KEYS)
    for name, values in columns.items():
        rows = rows.append_column(name, values)
    facts = {"label_names": names, "train_counts": train_counts, "column": column}
    write_table(rows, job.output("labels"), facts | {"fingerprint": digest_of_table(table)}, job.trace())
    return report


def class_labels(settings: LabelsOf, parts: Sequence[PartOfCorpus], texts: pa.Table) -> Labels:
    """Read one class for each row, or for each word."""
    import pyarrow as pa

    corpus, column = settings.corpus, settings.label
    listed = _listed_names(settings.labels)
    classes = [part.columns.classes(column, listed, _words(corpus, part)) for part in parts]
    names = listed or _names_in_data(parts[0].columns, column) or in_order(_distinct(classes[0]))
    _check_classes(column, listed, parts, classes)
    for group in alike(names):
        log.warning("Column %s has %s as different labels; if they are the same, fix the data.", column, _few(group))
    index = {name: number for number, name in enumerate(names)}
    numbered = [
        [index[name] for name in row] for part, rows in zip(parts, classes, strict=True) for row in part.used(rows)
    ]
    training_rows = len(parts[0].numbers)
    occurrences = Counter(chain.from_iterable(numbered[:training_rows]))
    counts = [occurrences[number] for number in range(len(names))]
    if corpus.words:
        by_word = _by_word(texts.column("words").to_pylist(), numbered, training_rows, counts)
        values, list_type = {"label": numbered, "by_word": by_word}, pa.list_(pa.int64())
        columns = {name: pa.array(lists, list_type) for name, lists in values.items()}
    else:
        columns = {"label": pa.array([row[0] for row in numbered], pa.int64())}
    report = f"{count(len(numbered), 'row')}, {count(len(names), 'label')} in column {column}"
    return columns, names, counts, report


def right_choices(settings: LabelsOf, parts: Sequence[PartOfCorpus], _: pa.Table) -> Labels:
    """Read the index of the right choice in each row."""
    import pyarrow as pa

    column, names = settings.label, settings.corpus.choices or ()
    listed, numbered = _listed_names(settings.labels), list[list[int]]()
    choices = [part.columns.choices(names) for part in parts]
    forms = {}
    for part, of_part in zip(parts, choices, strict=True):
        form, right = part.columns.right(column, names, of_part, listed)
        forms[part.columns.where] = form
        numbered.append(part.used(right))
    if len(set(forms.values())) > 1:
        several = ", in ".join(f"{where} {form}" for where, form in forms.items())
        raise InputError(
            f"Labels in column {column} differ in form (in {several}); write all of them in the same form."
        )
    occurrences = Counter(numbered[0])
    if len(occurrences) < 2:
        raise InputError(
            f"All training rows have the same right choice in column {column}, so a guess would always be right; "
            "leave label out if it is the first choice, and put the right choice first if it is not."
        )
    indices, numbers = range(max(len(row) for rows in choices for row in rows)), list(chain.from_iterable(numbered))
    report = f"{count(len(numbers), 'question')}; a label in column {column} is {form}"
    columns = {"label": pa.array(numbers, pa.int64())}
    return columns, [str(index) for index in indices], [occurrences[index] for index in indices], report


def prepare_subsets(job: Job[SubsetsOf]) -> str:
    """Stage *subsets*: write the subsets of examples or words that get a separate score, with the rows of `texts`.

    The table `subsets` has split, row and subset: a name, or a list with a name for each word. Rows and words with an
    empty name are in no subset.

    Raises:
        InputError: The column is unknown or of a wrong type, or a subset has a reserved name.
        DamagedArtefact: `texts` was made from a different state of the source.
    """
    import pyarrow as pa

    corpus, column = job.settings.corpus, job.settings.subset
    parts, table = _with_texts(job, column)
    values: list[str | list[str]] = []
    for part in parts:
        values += part.used(part.columns.subsets(column, _words(corpus, part)))
    by_word = any(isinstance(value, list) for value in values)
    if by_word and not all(isinstance(value, list) for value in values):
        raise InputError(f"Column {column} has one subset per word in a split and one per row in another.")
    names = set(chain.from_iterable(value if isinstance(value, list) else [value] for value in values))
    further_splits = {part.name: "a further validation split" for part in parts[2:]}
    for name, meaning in ({ALL: "all examples"} | further_splits).items():
        if name in names:
            raise InputError(f"Column {column} calls a subset {name!r}, which is the name for {meaning}; rename it.")
    subset = pa.array(values, pa.list_(pa.string()) if by_word else pa.string())
    facts = {"fingerprint": digest_of_table(table), "column": column}
    write_table(table.select(ROW_KEYS).append_column("subset", subset), job.output("subsets"), facts, job.trace())
    names.discard("")
    return f"{count(table.num_rows, 'row')}, {count(len(names), 'subset')} in column {column}"


def _parts(corpus: Corpus, machine: Machine, *columns: str) -> list[PartOfCorpus]:
    """Load the splits of a corpus, with the columns of texts and `columns`."""
    named = (corpus.first, corpus.second, corpus.words, *corpus.columns_of_choices, *columns)
    wanted = {name for name in named if name}
    if not corpus.first and not corpus.words and corpus.choices is None:
        raise InputError(
            "A corpus names its column of texts under first (and second), or its lists of words under words."
        )
    return [_part(corpus, split, wanted, machine.hub_mirror) for split in corpus.splits]


def _part(corpus: Corpus, split: str, wanted: set[str], mirror: str | None) -> PartOfCorpus:
    import numpy as np

    where, rows = describe(corpus, split), load_rows(corpus, split, wanted, mirror)
    columns, limit = Columns(where, rows), corpus.train_limit
    columns.check(sorted(wanted))
    numbers = np.arange(rows.table.num_rows)
    if corpus.blocks and corpus.first:  # blank lines separate the paragraphs of running text
        numbers = numbers[[bool(text and text.strip()) for text in columns.texts(corpus.first, blank=True)]]
    available = len(numbers)
    if available == 0:
        missing = "text" if rows.table.num_rows else "rows"
        raise InputError(f"{where} has no {missing}; every split needs some.")
    if split == "train" and limit is not None:
        numbers = numbers[np.sort(np.random.default_rng(SAMPLE_SEED).permutation(available)[:limit])]
    return PartOfCorpus(split, columns, numbers.tolist(), available)


def _texts(corpus: Corpus, parts: Sequence[PartOfCorpus]) -> pa.Table:
    import pyarrow as pa

    def column(read: Callable[[Columns], Sequence[object]], data_type: pa.DataType) -> pa.Array:
        return pa.array([value for part in parts for value in part.used(read(part.columns))], data_type)

    columns = {
        "split": pa.array([part.name for part in parts for _ in part.numbers]),
        "row": pa.array([number for part in parts for number in part.numbers], pa.int64()),
    }
    lists = pa.list_(pa.string())
    if words := corpus.words:
        columns["words"] = column(lambda split: split.words(words), lists)
    if first := corpus.first:
        columns["first"] = column(lambda split: split.texts(first, corpus.blocks), pa.string())
    if second := corpus.second:
        columns["second"] = column(lambda split: split.texts(second, corpus.blocks), pa.string())
    if (choices := corpus.choices) is not None:
        columns["choices"] = column(lambda split: split.choices(choices), lists)
    return pa.table(columns)


def _words(corpus: Corpus, part: PartOfCorpus) -> list[list[str]] | None:
    return part.columns.words(corpus.words) if corpus.words else None


def _shared(texts: pa.Table) -> dict[str, int]:
    """Count the rows of each other split whose texts, without spaces around them, are those of a training row."""
    train: set[bytes] = set()
    shared: dict[str, int] = {}
    for chunk in texts.to_batches(CHUNK):
        splits, _, *columns = (column.to_pylist() for column in chunk.columns)
        for split, *row in zip(splits, *columns, strict=True):
            texts_of_row = [[part.strip() for part in ([text] if isinstance(text, str) else text)] for text in row]
            key = hashlib.blake2b(repr(texts_of_row).encode(), digest_size=16).digest()  # takes less memory than texts
            if split == "train":
                train.add(key)
            else:
                shared[split] = shared.get(split, 0) + (key in train)
    return shared


def _with_texts(job: Job[Prepared], column: str) -> tuple[list[PartOfCorpus], pa.Table]:
    """Load the splits with a further column, and the table of texts; refuse a source whose texts have changed."""
    corpus, texts = job.settings.corpus, job.input("texts")
    parts = _parts(corpus, job.machine, column)
    table = _texts(corpus, parts)
    _check_source(job)
    if provenance_of(read_table(texts)).get("fingerprint") != digest_of_table(table):
        raise DamagedArtefact(f"{texts} contains other texts than the source has now; {REBUILD}.")
    return parts, table


def _check_source(job: Job[Prepared]) -> None:
    """Raise `InputError` if the source, after it was read, has other digests than the settings record."""
    settings = job.settings
    if not settings.source:  # only the hub has it
        return
    now = source_digests(settings.corpus, job.machine.hub_mirror)
    changed = next((name for name in settings.source | now if settings.source.get(name) != now.get(name)), None)
    if changed is not None:
        where = settings.corpus.hub or describe(settings.corpus, changed)
        raise InputError(f"{where} has changed since this run began; run again, so that its new content is read.")


def _by_word(
    words: Sequence[Sequence[str]], labels: Sequence[Sequence[int]], taught: int, counts: Sequence[int]
) -> list[list[int]]:
    """Return the most frequent label of each word in the first `taught` rows; for other words, that of all words."""
    counts_of: dict[str, Counter[int]] = {}
    for row, labels_of_row in zip(words[:taught], labels, strict=False):
        for word, label in zip(row, labels_of_row, strict=True):
            counts_of.setdefault(word, Counter())[label] += 1
    likely = {word: of_word.most_common(1)[0][0] for word, of_word in counts_of.items()}
    usual = counts.index(max(counts))
    return [[likely.get(word, usual) for word in row] for row in words]


def _listed_names(labels: Sequence[str] | None) -> list[str] | None:
    names = [class_name(name) for name in labels or ()]
    if len(set(names)) < len(names):
        raise InputError(f"labels lists a name twice: {', '.join(names)}.")
    return names or None


def _names_in_data(columns: Columns, column: str) -> list[str]:
    return list(dict.fromkeys(map(class_name, columns.class_names(column) or ())))


def _check_classes(
    column: str, listed: Sequence[str] | None, parts: Sequence[PartOfCorpus], classes: Sequence[list[list[str]]]
) -> None:
    """Refuse names that are unknown or only in validation rows, and training rows with a single name."""
    train, validation = _distinct(classes[0]), _distinct(chain.from_iterable(classes[1:]))
    taken = _distinct(parts[0].used(classes[0]))
    in_data = _names_in_data(parts[0].columns, column)
    unknown = in_order((train | validation).difference(listed or in_data)) if listed or in_data else []
    if listed and unknown:
        raise InputError(f"Column {column} contains {_few(unknown)}, but labels lists only {', '.join(listed)}.")
    if unknown:
        raise InputError(
            f"Column {column} contains {_few(unknown)}, but the class names in the data are only "
            f"{', '.join(in_data)}; correct these names, or list all labels under labels."
        )
    if len(taken) < 2:
        raise InputError(
            f"All training rows have the label {_few(in_order(taken))} in column {column}; a task needs two or more."
        )
    unseen = in_order(validation - train)
    if unseen and not listed:
        where = next(
            part.columns.where for part, rows in zip(parts, classes, strict=True) if unseen[0] in _distinct(rows)
        )
        raise InputError(
            f"Column {column} contains {_few(unseen)} in {where}, but in no training row, so no probe can "
            "learn it. Use splits with the same labels, or list all names under labels to continue nevertheless."
        )
    if not validation <= taken:
        unlearned = _few(in_order(validation - taken))
        log.warning("Column %s contains %s in validation rows, but in no training row that is used.", column, unlearned)


def _distinct(rows: Iterable[Iterable[str]]) -> set[str]:
    return set(chain.from_iterable(rows))


def in_order(names: set[str]) -> list[str]:
    """Sort names, as numbers if all are whole numbers."""
    try:
        return sorted(names, key=int)
    except ValueError:
        return sorted(names)


def _few(names: Sequence[str]) -> str:
    few = ", ".join(repr(name if len(name) <= 40 else f"{name[:37]}...") for name in names[:5])
    return few + (f" and {len(names) - 5} more" if len(names) > 5 else "")
