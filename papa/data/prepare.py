"""One normalised table per corpus (its texts) and per task (its labels, its subsets), in the same rows and order.

Whatever can be wrong with texts or labels is found here, before any model runs.
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
from papa.files import MEND, digest_of_table, provenance_of, read_table, write_table

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Prepared = TypeVar("Prepared", bound=OfCorpus)
ALL = "all"  # the name under which tables keep the score over all examples
SAMPLE_SEED = 0
CHUNK = 4096  # rows that are looked at as Python's own at a time
BESIDE = ["split", "row"]
"""The columns of texts that the tables beside them repeat."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """A split of a corpus: its columns with all their rows, and the numbers of the rows that the corpus takes."""

    split: str
    columns: Columns
    numbers: list[int]
    available: int

    def taken(self, values: Sequence[T]) -> list[T]:
        return [values[number] for number in self.numbers]


def prepare_texts(job: Job[TextsOf]) -> str:
    """Stage *texts*: write the corpus's texts as the table `texts`: split, row, and first [, second] or words.

    Of a corpus with choices these are the question (`first`), if there is one, and the list of its `choices`.

    `row` is the row's number in the source's split, from 0. `train_limit` takes that many training rows at random:
    always the same ones, kept in their order, those of a smaller limit among those of a larger one. All rows are
    checked, whatever `train_limit` is. Of a corpus with `blocks`, which is running text, rows without text are left out
    and not counted. Facts: the fingerprint of the table, the rows taken, the rows available, and how many rows of each
    validation split also stand in the training split (`shared`).

    Returns:
        How many rows of each split were taken, and how many are shared.

    Raises:
        InputError: A column is unknown or of another type, a split is empty, or a text is.
    """
    corpus = job.settings.corpus
    parts = _parts(corpus, job.machine)
    table = _texts(corpus, parts)
    _check_source(job)
    shared = {} if corpus.blocks else _shared(table)
    facts = {
        "fingerprint": digest_of_table(table),
        "rows": {part.split: len(part.numbers) for part in parts},
        "rows_available": {part.split: part.available for part in parts},
        "shared": shared,
    }
    write_table(table, job.output("texts"), facts, job.trace())
    said = [f"{len(part.numbers):,} of {count(part.available, f'{part.split} row')}" for part in parts]
    for part in parts:
        if number := shared.get(part.split):
            said.append(f"{count(number, f'{part.split} row')} also in training")
            log.warning(
                "Of %s, %s of %d can also be found in the training split, where a probe may learn them by heart.",
                *(part.columns.where, count(number, "row"), len(part.numbers)),
            )
    return ", ".join(said)


def prepare_labels(job: Job[LabelsOf]) -> str:
    """Stage *labels*: write a task's labels as the table `labels`, row by row beside `texts`: split, row, label.

    Words also have `by_word`, the label that each word has most often in the training rows, whatever stands around it.
    The fact `train_counts` says how often each label stands in the training rows.

    `label` is an index into the fact `label_names` (a list of them, one per word, if the corpus has `words`). The names
    are those that the task lists, else the class names that the data brings, else the sorted distinct values of the
    training rows. Values and names are matched as text, without spaces around them; only numbers without class names
    may be positions in the list of the task. The second of two names is the positive class of `f1` (for MRPC
    "equivalent").

    Of a corpus with choices, `label` is the index of the right one, and `label_names` are these indices as text.

    Raises:
        InputError: A column is unknown, labels are missing, out of range or not one per word, there is a single class,
            a label is in validation rows alone (unless the task lists it), or the metric does not fit.
        DamagedArtefact: `texts` was made from another state of the source.
    """
    import pyarrow as pa

    corpus, column = job.settings.corpus, job.settings.label
    check_metric(job.settings.metric, corpus.target)
    parts, table = _beside_texts(job, column)
    if corpus.choices is not None:
        return _label_questions(job, corpus.choices, parts, table)
    words = [part.columns.words(corpus.words) if corpus.words else None for part in parts]
    given = _given_names(job.settings.labels)
    classes = [part.columns.classes(column, given, its) for part, its in zip(parts, words, strict=True)]
    names = given or _names_in_data(parts[0].columns, column) or in_order(_distinct(classes[0]))
    _check_classes(column, given, parts, classes)
    check_metric(job.settings.metric, corpus.target, names)
    for group in alike(names):
        log.warning("Column %s has %s as different labels; if they are one, mend the data.", column, _few(group))

    index = {name: number for number, name in enumerate(names)}
    numbered = [
        [index[name] for name in row] for part, its in zip(parts, classes, strict=True) for row in part.taken(its)
    ]
    if corpus.words:
        label = pa.array(numbered, pa.list_(pa.int64()))
    else:
        label = pa.array([row[0] for row in numbered], pa.int64())
    beside = table.select(BESIDE).append_column("label", label)
    taught = Counter(chain.from_iterable(numbered[: len(parts[0].numbers)]))
    counts = [taught[number] for number in range(len(names))]
    if corpus.words:
        tagged = _by_word(table.column("words").to_pylist(), numbered, len(parts[0].numbers), counts)
        beside = beside.append_column("by_word", pa.array(tagged, pa.list_(pa.int64())))
    facts = {"label_names": names, "train_counts": counts, "fingerprint": digest_of_table(table), "column": column}
    write_table(beside, job.output("labels"), facts, job.trace())
    return f"{count(table.num_rows, 'row')}, {count(len(names), 'label')} in column {column}"


def _label_questions(job: Job[LabelsOf], names: str | Sequence[str], parts: Sequence[Part], table: pa.Table) -> str:
    """Write which choice of each question is right."""
    import pyarrow as pa

    column, given, numbered = job.settings.label, _given_names(job.settings.labels), list[list[int]]()
    choices = [part.columns.choices(names) for part in parts]
    ways = {}
    for part, its in zip(parts, choices, strict=True):
        way, right = part.columns.right(column, names, its, given)
        ways[part.columns.where] = way
        numbered.append(part.taken(right))
    if len(set(ways.values())) > 1:
        said = ", in ".join(f"{where} {way}" for where, way in ways.items())
        raise InputError(f"A label in column {column} is not the same everywhere (in {said}); write all of them alike.")
    taught = Counter(numbered[0])
    if len(taught) < 2:
        raise InputError(
            f"All training rows have the same right choice in column {column}, which a guess would get right too; "
            "leave label out if it is the first, and put the right one first if it is another."
        )
    most = max(len(row) for its in choices for row in its)
    label = pa.array(list(chain.from_iterable(numbered)), pa.int64())
    facts = {
        "label_names": [str(number) for number in range(most)],
        "train_counts": [taught[number] for number in range(most)],
        "fingerprint": digest_of_table(table),
        "column": column,
    }
    write_table(table.select(BESIDE).append_column("label", label), job.output("labels"), facts, job.trace())
    return f"{count(table.num_rows, 'question')}; a label in column {column} is {way}"


def prepare_subsets(job: Job[SubsetsOf]) -> str:
    """Stage *subsets*: write which examples or words are also scored apart, row by row beside `texts`.

    The table `subsets` has split, row and subset, a name or a list of one per word; what has an empty one is in none.

    Raises:
        InputError: The column is unknown or of another type, or calls a subset what means something else.
        DamagedArtefact: `texts` was made from another state of the source.
    """
    import pyarrow as pa

    corpus, column = job.settings.corpus, job.settings.subset
    parts, table = _beside_texts(job, column)
    values: list[str | list[str]] = []
    for part in parts:
        words = part.columns.words(corpus.words) if corpus.words else None
        values += part.taken(part.columns.subsets(column, words))
    by_word = any(isinstance(value, list) for value in values)
    if by_word and not all(isinstance(value, list) for value in values):
        raise InputError(f"Column {column} has one subset per word in one split and one per row in the other.")
    names = set(chain.from_iterable(value if isinstance(value, list) else [value] for value in values))
    scored_apart = {part.split: "a further validation split" for part in parts[2:]}
    for name, meaning in ({ALL: "all examples"} | scored_apart).items():
        if name in names:
            raise InputError(f"Column {column} calls a subset {name!r}, which is the name for {meaning}; rename it.")
    subset = pa.array(values, pa.list_(pa.string()) if by_word else pa.string())
    facts = {"fingerprint": digest_of_table(table), "column": column}
    write_table(table.select(BESIDE).append_column("subset", subset), job.output("subsets"), facts, job.trace())
    names.discard("")
    return f"{count(table.num_rows, 'row')}, {count(len(names), 'subset')} in column {column}"


def _parts(corpus: Corpus, machine: Machine, *columns: str) -> list[Part]:
    """The splits of a corpus, with the columns of its texts and `columns`."""
    named = (corpus.first, corpus.second, corpus.words, *corpus.columns_of_choices, *columns)
    wanted = {name for name in named if name}
    if not corpus.first and not corpus.words and corpus.choices is None:
        raise InputError(
            "A corpus names its column of texts under first (and second), or its lists of words under words."
        )
    return [_part(corpus, split, wanted, machine.hub_mirror) for split in corpus.splits]


def _part(corpus: Corpus, split: str, wanted: set[str], mirror: str | None) -> Part:
    import numpy as np

    where, rows = describe(corpus, split), load_rows(corpus, split, wanted, mirror)
    columns, limit = Columns(where, rows), corpus.train_limit
    columns.check(sorted(wanted))
    numbers = np.arange(rows.table.num_rows)
    if corpus.blocks and corpus.first:  # blank lines part the paragraphs of running text
        numbers = numbers[[bool(text and text.strip()) for text in columns.texts(corpus.first, blank=True)]]
    available = len(numbers)
    if available == 0:
        what = "text" if rows.table.num_rows else "rows"
        raise InputError(f"{where} has no {what}; every split needs some.")
    if split == "train" and limit is not None:
        numbers = numbers[np.sort(np.random.default_rng(SAMPLE_SEED).permutation(available)[:limit])]
    return Part(split, columns, numbers.tolist(), available)


def _texts(corpus: Corpus, parts: Sequence[Part]) -> pa.Table:
    import pyarrow as pa

    columns = {
        "split": pa.array([part.split for part in parts for _ in part.numbers]),
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
    """How many rows of each further split have the same texts as a training row, spaces around them apart."""
    train: set[bytes] = set()
    shared: dict[str, int] = {}
    for chunk in texts.to_batches(CHUNK):
        splits, _, *columns = (column.to_pylist() for column in chunk.columns)
        for split, *row in zip(splits, *columns, strict=True):
            own = [[part.strip() for part in ([text] if isinstance(text, str) else text)] for text in row]
            key = hashlib.blake2b(repr(own).encode(), digest_size=16).digest()  # smaller than the texts themselves
            if split == "train":
                train.add(key)
            else:
                shared[split] = shared.get(split, 0) + (key in train)
    return shared


def _beside_texts(job: Job[Prepared], column: str) -> tuple[list[Part], pa.Table]:
    """The splits with one more column, and their table of texts, which must be the job's `texts`."""
    corpus, texts = job.settings.corpus, job.input("texts")
    parts = _parts(corpus, job.machine, column)
    table = _texts(corpus, parts)
    _check_source(job)
    if provenance_of(read_table(texts)).get("fingerprint") != digest_of_table(table):
        raise DamagedArtefact(f"{texts} contains other texts than the source has now; {MEND}.")
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
    """The most frequent label of every word in the first `taught` rows; of words not in there, that of all words."""
    found: dict[str, Counter[int]] = {}
    for row, own in zip(words[:taught], labels, strict=False):
        for word, label in zip(row, own, strict=True):
            found.setdefault(word, Counter())[label] += 1
    likely = {word: own.most_common(1)[0][0] for word, own in found.items()}
    usual = counts.index(max(counts))
    return [[likely.get(word, usual) for word in row] for row in words]


def _given_names(labels: Sequence[str] | None) -> list[str] | None:
    names = [class_name(name) for name in labels or ()]
    if len(set(names)) < len(names):
        raise InputError(f"labels lists a name twice: {', '.join(names)}.")
    return names or None


def _names_in_data(columns: Columns, column: str) -> list[str]:
    return list(dict.fromkeys(map(class_name, columns.class_names(column) or ())))


def _check_classes(
    column: str, given: Sequence[str] | None, parts: Sequence[Part], classes: Sequence[list[list[str]]]
) -> None:
    """All names are listed, training rows have two or more, and no name is in validation rows alone."""
    train, validation = _distinct(classes[0]), _distinct(chain.from_iterable(classes[1:]))
    taken = _distinct(parts[0].taken(classes[0]))
    in_data = _names_in_data(parts[0].columns, column)
    unknown = in_order((train | validation).difference(given or in_data)) if given or in_data else []
    if given and unknown:
        raise InputError(f"Column {column} contains {_few(unknown)}, but labels lists only {', '.join(given)}.")
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
    if unseen and not given:
        where = next(
            part.columns.where for part, rows in zip(parts, classes, strict=True) if unseen[0] in _distinct(rows)
        )
        raise InputError(
            f"Column {column} contains {_few(unseen)} in {where}, but in no training row: no probe can "
            "learn that. Use splits with the same labels, or list all names under labels to go on nevertheless."
        )
    if not validation <= taken:
        untaught = _few(in_order(validation - taken))
        log.warning(
            "Column %s contains %s in validation rows, but in no training row taken: not learned.", column, untaught
        )


def _distinct(rows: Iterable[Iterable[str]]) -> set[str]:
    return set(chain.from_iterable(rows))


def in_order(names: set[str]) -> list[str]:
    """Names in their order; names that are whole numbers in the order of numbers."""
    try:
        return sorted(names, key=int)
    except ValueError:
        return sorted(names)


def _few(names: Sequence[str]) -> str:
    few = ", ".join(repr(name if len(name) <= 40 else f"{name[:37]}...") for name in names[:5])
    return few + (f" and {len(names) - 5} more" if len(names) > 5 else "")
