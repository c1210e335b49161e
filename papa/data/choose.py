"""Choose the columns, the metric and the slots of a data set; a choice that is not certain is a question.

`papa init`, `papa measure` and `papa.measure` choose here, and print what they chose (`DataSet.line`).
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from papa.config.measures import MASKED, METRICS, NEXT
from papa.config.settings import SPLITS
from papa.data.columns import ClassNames, Columns, Roles, Rows
from papa.data.readers import read_file
from papa.data.splits import ANYTHING, Wanted, write_rows
from papa.data.weights import POSITIONS, Facts, predicts_next
from papa.errors import WARNING, InputError, count, listing
from papa.files import PathLike

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LABELS = """label labels gold_label class category target sentiment intent emotion is_duplicate tag tags ner_tags
pos_tags""".split()
"""Usual names of a column of labels; no other column becomes a label without a question."""
WORDS = {"words", "tokens", "form"}
"""Usual names of a column of lists of words."""
PAIRS = """premise-hypothesis sentence1-sentence2 sentence_a-sentence_b text1-text2 question1-question2
question-sentence question-answer question-passage query-passage first-second""".split()
"""Usual names of the two columns of pairs of texts."""
TEXTS = {"text", "sentence", "review", "comment", "comment_text", "tweet", "content", "message"}
TEXTS.update(*(pair.split("-") for pair in PAIRS))
"""Usual names of columns of texts; no other column becomes a text without a question."""
UNSPACED = "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
"""Letters of languages without spaces between words, such as Chinese, Japanese and Thai."""
SAMPLED_ROWS = 2000
"""Number of rows, evenly spaced, by which columns and slots are chosen."""
MINIMUM_SLOTS = 16
MAXIMUM_SLOTS = 256
SLOTS_STEP = 8
BLOCK_SLOTS = 128
"""The range of slots for texts, and the slots for running text (as in the paper)."""
VALIDATION = ("validation", "valid", "val", "dev", "test")
"""What the name of a file of validation texts has in place of "train"; the first file that exists is used."""
FITTING_SHARE = 0.99
"""Slots are chosen for this share of the texts; if fewer fit, that is a warning."""
MAJORITY = 0.75
"""With two classes, accuracy shows little if the larger class has more than this share of the rows."""
REPEATED_SHARE = 0.1
"""If more than this share of pairs repeat the first text of another pair, the pairs of a text form a cluster."""


@dataclass(frozen=True)
class DataSet:
    """The data section of a config, with a reason for each choice.

    Args:
        columns: columns by role: first, second or words; label; cluster.
        notes: sentences about validation texts, and about held-out and dropped rows.
        unwritten: rows of those splits whose files have to be written.
        examples: examples of all splits by which slots are chosen, each a text, the two texts of a pair, or the words
            of a list; none for running text in which lines are empty.
        blocks: whether texts are joined and cut into blocks.
    """

    files: dict[str, str]
    columns: dict[str, str]
    metric: str
    training_rows: int
    reasons: dict[str, str]
    slots: int = BLOCK_SLOTS
    unused: Sequence[str] = ()
    labels: ClassNames = None
    notes: Sequence[str] = ()
    unwritten: Mapping[str, Columns] = field(default_factory=dict)
    examples: Rows = ()
    blocks: bool = False

    @property
    def running(self) -> bool:
        """Whether the texts have no labels."""
        return "label" not in self.columns

    @property
    def line(self) -> str:
        """The choices in one line."""
        chosen = [f"{role} = {column}" for role, column in self.columns.items()]
        slots = f"slots = {self.slots} ({self.reasons['slots']})"
        unused = f"; not used: {listing(self.unused)}" if self.unused else ""
        return f"chose: {', '.join([*chosen, f'metric = {self.metric}', slots])}{unused}"

    def write(self) -> None:
        for split, rows in self.unwritten.items():
            write_rows(Path(self.files[split]), rows)

    def fitted(self, facts: Facts, folder: PathLike | None, slots: int | None = None) -> DataSet:
        """Return the data set with its slots, and with the metric of a decoder if the model is one.

        Running text is cut into blocks, unless a decoder reads it and its texts are short: then each is an example.

        Args:
            facts: the content of the model's config.json; empty if it is unknown.
            folder: the folder of the model, whose tokenizer counts tokens; None if it is not on this machine.
            slots: the slots to use; by default enough for `FITTING_SHARE` of the texts.
        """
        from papa.data.tokenize import meaningless_tokens, tokenizer_of

        metric = self.metric
        reasons = dict(self.reasons)
        decoder = self.running and predicts_next(facts)
        if decoder:
            metric = NEXT.usual_metric
            reasons["metric"] = "running text: the decoder predicts next tokens"
        tokenizer = None
        limit = _positions(facts)
        if folder is not None:
            name = os.path.basename(folder) or "model"
            tokenizer = tokenizer_of(os.fspath(folder), name, words="words" in self.columns)
            limit = min(limit, tokenizer.model_max_length)
        examples = () if self.running and not decoder else self.examples
        needed, unknown = _slots_needed(examples, "words" in self.columns, tokenizer)
        enough = _slots_for(needed)
        if self.running and not 0 < enough <= min(MAXIMUM_SLOTS, limit):
            reasons["slots"] = "texts are joined and cut into blocks, which cross texts"
            slots = min(BLOCK_SLOTS, limit) if slots is None else slots
            return replace(self, metric=metric, reasons=reasons, slots=slots, blocks=True)
        slots = min(enough, MAXIMUM_SLOTS, limit) if slots is None else slots
        share = sum(number <= slots for number in needed) / len(needed)
        reasons["slots"] = f"{math.floor(100 * share)}% of {count(len(needed), 'text')} fit"
        if tokenizer is None:
            reasons["slots"] += ", estimated without the model's tokenizer"
        notes = list(self.notes)
        if share < FITTING_SHARE:
            notes.append(
                f"{WARNING}{1 - share:.0%} of the texts have more than {slots} tokens and are cut."
            )
        if tokenizer is not None and unknown > (1 - FITTING_SHARE) * len(needed):
            share = unknown / len(needed)
            notes.append(
                f"{WARNING}{share:.0%} of the texts are only {meaningless_tokens(tokenizer)} to the tokenizer."
            )
        return replace(self, metric=metric, reasons=reasons, slots=slots, notes=notes)


def _positions(facts: Facts) -> int:
    """Return the number of positions for tokens in a model's config; a large number if it does not say."""
    positions = next((facts[name] for name in POSITIONS if facts.get(name)), None)
    if not isinstance(positions, int) or positions < 1:
        return MAXIMUM_SLOTS
    if "roberta" not in str(facts.get("model_type")):
        return positions
    # the position ids of RoBERTa start after that of padding
    padding = facts.get("pad_token_id")
    return positions - 1 - (padding if isinstance(padding, int) else 1)


def _slots_for(needed: Sequence[int]) -> int:
    """Return the slots in which `FITTING_SHARE` of the texts fit, each of which needs a number; 0 without texts."""
    if not needed:
        return 0
    enough = sorted(needed)[math.ceil(FITTING_SHARE * len(needed)) - 1]
    return max(MINIMUM_SLOTS, math.ceil(enough / SLOTS_STEP) * SLOTS_STEP)


def _slots_needed(
    examples: Rows, words: bool, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[list[int], int]:
    """Return the number of slots that each example needs, and how many examples have only unknown tokens.

    In a pair, each text has half of the slots.
    """
    from papa.data.layout import Template
    from papa.data.tokenize import without_meaning

    if not examples:
        return [], 0
    columns = [examples] if words else zip(*examples, strict=True)
    first, *second = (_tokens(texts, tokenizer) for texts in columns)
    template = Template([0], [0], [0], 1)
    unknown = 0
    if tokenizer is not None:
        template = Template.of(tokenizer)
        meaningless = without_meaning(tokenizer)
        for parts in zip(first, *second, strict=True):
            tokens = set(chain.from_iterable(parts))  # an empty text has none
            unknown += bool(tokens) and tokens <= meaningless
    start = len(template.start)
    end = len(template.end)
    if not second:
        return [start + len(tokens) + end for tokens in first], unknown
    after = len(template.between) + end
    pairs = zip(first, *second, strict=True)
    return [2 * max(len(a) + start, len(b) + after) for a, b in pairs], unknown


def _tokens(texts: Rows, tokenizer: PreTrainedTokenizerBase | None) -> Sequence[Sequence[object]]:
    """Return the tokens of texts or lists of words, or estimate them."""
    if tokenizer is None:
        # a token has about five letters, or one if words have no spaces
        joined = (text if isinstance(text, str) else " ".join(text) for text in texts)
        return [re.findall(rf"{UNSPACED}|\w{{1,5}}|[^\w\s]", text) for text in joined]
    split = not isinstance(texts[0], str)
    encoded = tokenizer(
        list(texts), add_special_tokens=False, is_split_into_words=split, verbose=False
    )
    ids: list[list[int]] = encoded["input_ids"]
    return ids


def data_in_files(
    train: PathLike,
    validation: PathLike | None = None,
    wanted: Wanted = ANYTHING,
    target: PathLike = "",
    hold_out: str | None = None,
) -> DataSet:
    """Choose columns and metric for a data set from the content of its files.

    Without `validation`, a file with a similar name is used, or else the share `hold_out` of the training texts.
    `target` is the path of the files of changed rows, with {} for the name of the split.

    Raises:
        InputError: there are no validation texts; or the data cannot be read or a choice is not certain.
    """
    path = Path(train)
    splits = {"train": read_file(path)}
    files = {"train": str(train)}
    found = list[str]()
    roles = roles_of(splits["train"], wanted.columns)
    if validation and wanted.hold_out:
        raise InputError(f"Both {validation} and texts to hold out were given; give only one.")
    if not validation and not wanted.hold_out:
        validation = validation_file(path)
        found.append(f"Validation texts: {validation}, found beside {path.name}.")
        if validation is None:
            names = f"its name with {', '.join(VALIDATION)} in place of train"
            none = f"{train} has no validation file beside it ({names})"
            if hold_out is None:
                raise InputError(
                    f"{none}; give --validation FILE, or --hold-out 0.2 to hold out a fifth of the texts."
                )
            found = [f"{none}."]
            wanted = replace(wanted, hold_out=hold_out)
    if validation:
        files["validation"] = str(validation)
        splits["validation"] = read_file(Path(validation))
    for columns in splits.values():
        columns.check(roles.values())
        if path.suffix.lower() in (".csv", ".tsv"):
            columns.check_header(set(roles.values()) - set(wanted.columns.values()))
    splits, notes = wanted.changed(splits, roles)
    if wanted.changes_rows:
        # by real path, because a link may lead to a file that is read
        given = {*map(os.path.realpath, files.values())}
        files = {split: os.fspath(target).replace("{}", split) for split in SPLITS}
        for file in files.values():
            if os.path.realpath(file) in given:
                raise InputError(
                    f"{file} would be replaced by the rows that are left; choose another folder."
                )
    data = described(splits, files, roles, wanted.labels)
    return replace(data, notes=found + notes, unwritten=splits if wanted.changes_rows else {})


def validation_file(train: Path) -> Path | None:
    """Return the first file beside training texts that has a name of `VALIDATION` in place of "train"."""
    stems = (re.sub("(?<![a-z])train(ing)?(?![a-z])", name, train.stem) for name in VALIDATION)
    beside = (train.with_stem(stem) for stem in stems if stem != train.stem)
    return next(filter(Path.is_file, beside), None)


def described(
    splits: dict[str, Columns],
    files: dict[str, str],
    roles: Roles,
    labels: ClassNames = None,
) -> DataSet:
    """Describe the texts in the columns `roles`, choose a metric for their labels, and check the rows of all splits."""
    train = splits["train"]
    chosen = dict(roles)
    if "words" in chosen and "second" in chosen:
        raise InputError(
            f"{train.source} has lists of words in column {chosen['words']}, which have no second text; leave out the "
            f"column {chosen['second']} as second."
        )
    unused = [name for name in train.names if name and name not in chosen.values()]
    every = list[Sequence[str]]()
    reasons = {}
    if "label" in chosen:
        for columns in reversed(splits.values()):  # the training split last
            examples, classes = columns.examples(chosen, labels)
            every += examples
        distinct = len({example[0] for example in examples})
        rows = len(examples)
        if "second" in chosen and rows - distinct > REPEATED_SHARE * rows:
            chosen["cluster"] = chosen["first"]
            reasons["cluster"] = (
                f"{distinct:,} different first texts in {rows:,} pairs, so intervals resample texts"
            )
        metric, reasons["metric"] = _metric(classes, "words" in chosen)
    else:
        for columns in reversed(splits.values()):
            every += [(text,) for text in columns.texts(chosen["first"], blank=True)]
        # lines of a longer text are no examples
        every = every if all(text.strip() for [text] in every) else []
        metric = MASKED.usual_metric
        reasons["metric"] = "running text without labels: masked language modelling"
    return DataSet(
        files=files,
        columns=chosen,
        metric=metric,
        training_rows=train.table.num_rows,
        reasons=reasons,
        unused=unused,
        labels=labels if "label" in chosen else None,
        # evenly spaced
        examples=every[:: max(1, len(every) // SAMPLED_ROWS)],
    )


def _metric(labels: Rows, words: bool) -> tuple[str, str]:
    counts = Counter(label for row in labels for label in row)
    if words:
        misfit = METRICS["entity_f1"].misfit(sorted(counts))
        if misfit is None and counts.keys() != {"O"}:
            return "entity_f1", "labels are O, B-, I- and the like; alternative: token_accuracy"
        reason = f"{count(len(counts), 'label')} of words; entity_f1 {misfit or 'needs entities'}"
        return "token_accuracy", reason
    label, rows = counts.most_common()[0]
    share = rows / counts.total()
    if len(counts) == 2 and share > MAJORITY:
        reason = f"{share:.0%} of the rows are {label!r}, so always guessing it is often right"
        return "matthews_correlation", reason
    reason = f"{len(counts)} labels, the most common in {share:.0%} of the rows; or f1, matthews_correlation"
    return "accuracy", reason


def roles_of(columns: Columns, given: Roles) -> dict[str, str]:
    """Return columns by role: first (and second) or words, and label; only first for running text.

    Running text is a column `given` as text, or the only column. Other columns that are not `given` are chosen by their
    usual names.

    Raises:
        InputError: a column is missing, or a choice is not certain.
    """
    columns.check(given.values())
    if "text" in given:
        return {"first": given["text"]}
    if len(columns.names) == 1 and given.keys() <= {"first"}:
        return {"first": columns.names[0]}
    usable = [name for name in columns.names if name and columns.names.count(name) == 1]
    lists = [
        name
        for name in usable
        if columns.is_list(name) and isinstance(_values(columns, name)[0], str)
    ]
    label = given.get("label") or _label(columns, usable, lists)
    roles = {role: given[role] for role in ("first", "second") if role in given}
    if columns.is_list(label):
        words = _words(columns, lists, label, roles.pop("first", None))
        return {"words": words, **roles, "label": label}
    taken = (label, *lists, *roles.values())
    texts = [name for name in usable if name.lower() in TEXTS and name not in taken]
    return _texts(columns, texts, roles) | {"label": label}


def _texts(columns: Columns, texts: Sequence[str], given: Roles) -> dict[str, str]:
    """Return the columns of texts by role: those `given`, or the two of `texts` that are a pair, or the only one."""
    if "first" in given:
        return dict(given)
    if len(texts) == 2 and not given:
        for first, second in (texts, texts[::-1]):
            if f"{first}-{second}".lower() in PAIRS:
                return {"first": first, "second": second}
    return {"first": _only(columns, texts, "first", "texts"), **given}


def _label(columns: Columns, usable: Sequence[str], lists: Sequence[str]) -> str:
    """Return the column of labels: it has a usual name, or it is the only one next to the words of a CoNLL file."""
    named = []
    for name in usable:
        values = _values(columns, name)
        distinct = len(set(map(str, values)))
        # each label occurs twice on average, unless there are very few rows
        if name.lower() in LABELS and 2 * distinct <= max(len(values), 4):
            named.append(name)
    if not lists:
        # a list of labels for each text is no label
        single = [name for name in named if not columns.is_list(name)]
        return _only(columns, single, "label", "labels")
    # tags may also come first
    next_to_words = len(usable) == len(lists) == 2 and usable[0].lower() in WORDS
    return _only(columns, usable[1:] if next_to_words else named, "label", "labels")


def _words(columns: Columns, lists: Sequence[str], label: str, given: str | None) -> str:
    """Return the column of words: the `given` one, or the one with a usual name."""
    others = [given] if given else [name for name in lists if name != label]
    if not any(map(columns.is_list, others)):
        raise InputError(
            f"{columns.source} has a list of labels for each text in column {label}, but papa predicts one class per "
            "text (no multi-label tasks); write one label per text."
        )
    named = [name for name in others if name.lower() in WORDS]
    return given or _only(columns, named, "first", "words")


def _only(columns: Columns, names: Sequence[str], role: str, meaning: str) -> str:
    if len(names) == 1:
        return names[0]
    fault = f"has no column with a usual name for {meaning}"
    if names:
        fault = f"could have {meaning} in {' or '.join(names[:3])}"
    more = "or text=COLUMN for running text without labels"
    if role == "first":
        more = "and second=COLUMN for pairs"
    raise InputError(
        f"{columns.source} {fault}; give {role}=COLUMN (--column), {more}. Its columns: {listing(columns.names)}."
    )


def _values(columns: Columns, name: str) -> list[object]:
    """Return values of a column that are not empty, from evenly spaced rows; of lists, their items."""
    column = columns.table.column(name)
    rows = range(0, len(column), max(1, len(column) // SAMPLED_ROWS))
    values = column.take(list(rows)).to_pylist()
    items = chain.from_iterable(row or () for row in values) if columns.is_list(name) else values
    return [value for value in items if value not in (None, "")] or [None]
