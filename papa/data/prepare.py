"""Normalised tables of a corpus (texts) and of a task (labels, subsets), all with the same rows in the same order.

Every fault in texts or labels is reported here, before any model runs.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from papa.config.job import Job
from papa.config.measures import check_metric
from papa.config.settings import Corpus, Machine
from papa.config.stages import LabelsOf, OfCorpus, SubsetsOf, TextsOf
from papa.data.columns import Columns, alike, class_name
from papa.data.sources import describe, load_rows, source_digests
from papa.errors import DamagedArtefact, InputError, count
from papa.files import REBUILD, digest_of_table, provenance_of, read_table, write_table

if TYPE_CHECKING:
    import pyarrow as pa

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
    """A split of a corpus: the columns with all rows, and the numbers of the rows that are used."""

    name: str
    columns: Columns
    numbers: list[int]
    available: int

    def taken(self, values: Sequence[T]) -> list[T]:
        return [values[number] for number in self.numbers]


def prepare_texts(job: Job[TextsOf]) -> str:
    """Stage *texts*: write the texts of a corpus as the table `texts`: split, row, and first [, second] or words.

    A corpus with choices has the question (`first`), if there is one, and the list of `choices`.

    `row` is the number of the row in the source's split, from 0. `train_limit` draws this number of training rows at
    random: always the same ones, in their order, and a smaller limit draws a subset of a larger one. All rows are
    checked, whatever `train_limit` is. In a corpus with `blocks`, which is running text, rows without text are skipped
    and not counted.

    Facts: the fingerprint of the table, the rows used, the rows available, and the rows of each validation split that
    are also in the training split (`shared`).

    Returns:
        The numbers of rows used and shared, in words.

    Raises:
        InputError: A column is unknown or of a wrong type, a split is empty, or a text is.
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
    said = [f"{len(part.numbers):,} of {count(part.available, f'{part.name} row')}" for part in parts]
    for part in parts:
        if number := shared.get(part.name):
            said.append(f"{count(number, f'{part.name} row')} also in training")
            log.warning(
                "Of %s, %s of %d are also in the training split, so a probe may memorise them.",
                *(part.columns.where, count(number, "row"), len(part.numbers)),
            )
    return ", ".join(said)


def prepare_labels(job: Job[LabelsOf]) -> str:
    """Stage *labels*: write a task's labels as the table `labels`, with the rows of `texts`: split, row, label.

    Words also have `by_word`, the most frequent label of the word in the training rows, in any context. The fact
    `train_counts` is the number of training rows with each label.

    `label` is an index into the fact `label_names`, or a list of one index per word if the corpus has `words`. The
    names are those that the task lists, else the class names in the data, else the sorted distinct values of the
    training rows. Values and names are matched as text, without spaces around them. Only numbers without class names
    may be positions in the task's list. The second of two names is the positive class of `f1` (for MRPC "equivalent").

    In a corpus with choices, `label` is the index of the right choice, and `label_names` are these indices as text.

    Raises:
        InputError: A column is unknown, labels are missing, out of range or not one per word, there is a single class,
            a label is only in validation rows (unless the task lists it), or the metric does not fit.
        DamagedArtefact: `texts` was made from a different state of the source.
    """
    import pyarrow as pa

    corpus, column = job.settings.corpus, job.settings.label
    check_metric(job.settings.metric, corpus.target)
    parts, table = _with_texts(job, column)
    if corpus.choices is not None:
        return _label_questions(job, corpus.choices, parts, table)
    words = [part.columns.words(corpus.words) if corpus.words else None for part in parts]
    listed = _listed_names(job.settings.labels)
    classes = [part.columns.classes(column, listed, of_part) for part, of_part in zip(parts, words, strict=True)]
    names = listed or _names_in_data(parts[0].columns, column) or in_order(_distinct(classes[0]))
    _check_classes(column, listed, parts, classes)
    check_metric(job.settings.metric, corpus.target, names)
    for group in alike(names):
        log.warning("Column %s has %s as different labels; if they are the same, fix the data.", column, _few(group))

    index = {name: number for number, name in enumerate(names)}
    numbered = [
        [index[name] for name in row] for part, rows in zip(parts, classes, strict=True) for row in part.taken(rows)
    ]
    if corpus.words:
        label = pa.array(numbered, pa.list_(pa.int64()))
    else:
        label = pa.array([row[0] for row in numbered], pa.int64())
    labels = table.select(ROW_KEYS).append_column("label", label)
    taught = Counter(chain.from_iterable(numbered[: len(parts[0].numbers)]))
    counts = [taught[number] for number in range(len(names))]
    if corpus.words:
        tagged = _by_word(table.column("words").to_pylist(), numbered, len(parts[0].numbers), counts)
        labels = labels.append_column("by_word", pa.array(tagged, pa.list_(pa.int64())))
    facts = {"label_names": names, "train_counts": counts, "fingerprint": digest_of_table(table), "column": column}
    write_table(labels, job.output("labels"), facts, job.trace())
    return f"{count(table.num_rows, 'row')}, {count(len(names), 'label')} in column {column}"


def _label_questions(
    job: Job[LabelsOf], names: str | Sequence[str], parts: Sequence[PartOfCorpus], table: pa.Table
) -> str:
    """Write the index of the right choice of each question."""
    import pyarrow as pa

    column, listed, numbered = job.settings.label, _listed_names(job.settings.labels), list[list[int]]()
    choices = [part.columns.choices(names) for part in parts]
    forms = {}
    for part, of_part in zip(parts, choices, strict=True):
        form, right = part.columns.right(column, names, of_part, listed)
        forms[part.columns.where] = form
        numbered.append(part.taken(right))
    if len(set(forms.values())) > 1:
        said = ", in ".join(f"{where} {form}" for where, form in forms.items())
        raise InputError(f"Labels in column {column} differ in form (in {said}); write all of them in the same form.")
    taught = Counter(numbered[0])
    if len(taught) < 2:
        raise InputError(
            f"All training rows have the same right choice in column {column}, so a guess would always be right; "
            "leave label out if it is the first choice, and put the right choice first if it is not."
        )
    most = max(len(row) for rows in choices for row in rows)
    label = pa.array(list(chain.from_iterable(numbered)), pa.int64())
    facts = {
        "label_names": [str(number) for number in range(most)],
        "train_counts": [taught[number] for number in range(most)],
        "fingerprint": digest_of_table(table),
        "column": column,
    }
    write_table(table.select(ROW_KEYS).append_column("label", label), job.output("labels"), facts, job.trace())
    return f"{count(table.num_rows, 'question')}; a label in column {column} is {form}"


def prepare_subsets(job: Job[SubsetsOf]) -> str:
    """Stage *subsets*: write the subsets of examples or words that get a separate score, with the rows of `texts`.

    The table `subsets` has split, row and subset: a name, or a list with a name per word. An empty name is no subset.

    Raises:
        InputError: The column is unknown or of a wrong type, or a subset has a reserved name.
        DamagedArtefact: `texts` was made from a different state of the source.
    """
    import pyarrow as pa

    corpus, column = job.settings.corpus, job.settings.subset
    parts, table = _with_texts(job, column)
    values: list[str | list[str]] = []
    for part in parts:
        words = part.columns.words(corpus.words) if corpus.words else None
        values += part.taken(part.columns.subsets(column, words))
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

    columns = {
        "split": pa.array([part.name for part in parts for _ in part.numbers]),
        "row": pa.array([number for part in parts for number in part.numbers], pa.int64()),
    }
    if corpus.words:
        words = [row for part in parts for row in part.taken(part.columns.words(corpus.words))]
        columns["words"] = pa.array(words, pa.list_(pa.string()))
    for name, column in {"first": corpus.first, "second": corpus.second}.items():
        if column:
            texts = [text for part in parts for text in part.taken(part.columns.texts(column, corpus.blocks))]
            columns[name] = pa.array(texts, pa.string())
    if corpus.choices is not None:
        choices = [row for part in parts for row in part.taken(part.columns.choices(corpus.choices))]
        columns["choices"] = pa.array(choices, pa.list_(pa.string()))
    return pa.table(columns)


def _shared(texts: pa.Table) -> dict[str, int]:
    """Count the rows of each further split with the same texts as a training row, up to spaces around them."""
    train: set[bytes] = set()
    shared: dict[str, int] = {}
    for chunk in texts.to_batches(CHUNK):
        splits, _, *columns = (column.to_pylist() for column in chunk.columns)
        for split, *row in zip(splits, *columns, strict=True):
            texts_of_row = [[part.strip() for part in ([text] if isinstance(text, str) else text)] for text in row]
            key = hashlib.blake2b(repr(texts_of_row).encode(), digest_size=16).digest()  # smaller than the texts
            if split == "train":
                train.add(key)
            else:
                shared[split] = shared.get(split, 0) + (key in train)
    return shared


def _with_texts(job: Job[Prepared], column: str) -> tuple[list[PartOfCorpus], pa.Table]:
    """Load the splits with a further column, and the table of texts, which must be the job's `texts`."""
    corpus, texts = job.settings.corpus, job.input("texts")
    parts = _parts(corpus, job.machine, column)
    table = _texts(corpus, parts)
    _check_source(job)
    if provenance_of(read_table(texts)).get("fingerprint") != digest_of_table(table):
        raise DamagedArtefact(f"{texts} contains other texts than the source has now; {REBUILD}.")
    return parts, table


def _check_source(job: Job[Prepared]) -> None:
    """Check after reading that the source is still the one whose digest the settings, and so the trace, record.

    Raises:
        InputError: A file was replaced after the workflow had looked at it.
    """
    settings = job.settings
    if not settings.source:  # only the hub knew it
        return
    now = source_digests(settings.corpus, job.machine.hub_mirror)
    changed = next((name for name in settings.source | now if settings.source.get(name) != now.get(name)), None)
    if changed is not None:
        where = settings.corpus.hub or describe(settings.corpus, changed)
        raise InputError(f"{where} has changed since this run began; run again, so that its new content is read.")


def _by_word(
    words: Sequence[Sequence[str]], labels: Sequence[Sequence[int]], taught: int, counts: Sequence[int]
) -> list[list[int]]:
    """Return the most frequent label of every word in the first `taught` rows; for new words, of all words."""
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
    """Check that all names are known, training rows have two or more, and no name is only in validation rows."""
    train, validation = _distinct(classes[0]), _distinct(chain.from_iterable(classes[1:]))
    taken = _distinct(parts[0].taken(classes[0]))
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
            f"Column {column} contains {_few(unseen)} in {where}, but in no training row: no probe can "
            "learn that. Use splits with the same labels, or list all names under labels to continue nevertheless."
        )
    if not validation <= taken:
        untaught = _few(in_order(validation - taken))
        log.warning(
            "Column %s contains %s in validation rows, but in no training row used: not learned.", column, untaught
        )


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
