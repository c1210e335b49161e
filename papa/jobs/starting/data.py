"""A local data set as a first config sees it: which columns are what, how many slots, which metric, and why."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from papa.config.schema import UNPRINTABLE
from papa.data.columns import Columns
from papa.data.sources import load_rows
from papa.errors import InputError
from papa.files import PathLike

FIRST = ("text", "sentence", "sentence1", "premise", "question", "first", "words", "tokens", "content", "review")
SECOND = ("sentence2", "hypothesis", "second", "answer", "question2", "text2", "premise2")
LABEL = ("label", "labels", "class", "category", "target", "tag", "tags", "ner_tags", "pos_tags", "entity")
"""What columns are called, the likeliest first."""

TOKENS_OF_A_WORD = 1.3
LEAST_SLOTS, MOST_SLOTS = 16, 256
ROUND = 8
MOST_CLASSES = 50
"""A column with more values than this is not guessed to be one of labels."""
MOST_NAMED = 8
"""Of a data set with more columns than this, the first are named."""
MAJORITY = 0.75
"""Where one of two classes is as common as this, accuracy says little."""


@dataclass(frozen=True)
class Data:
    """What a data set is to a config: columns, slots, metric, each with the reason for it, and rows to train on."""

    files: dict[str, str]
    columns: dict[str, str]
    slots: int
    metric: str
    rows: int
    reasons: dict[str, str]
    names: Sequence[str] = ()

    @property
    def masked(self) -> bool:
        return "label" not in self.columns


def look_at(train: PathLike, validation: PathLike | None, given: dict[str, str | None]) -> Data:
    """Choose columns, slots and metric for a data set by what is in its training texts."""
    files = {"train": str(train)}
    files["validation"] = str(validation or Path(train).with_stem(_stem_for_validation(Path(train))))
    rows = load_rows({"files": files, **({"words": "words"} if _is_conll(train) else {})}, "train")
    columns = Columns(str(train), rows)
    names = rows.table.column_names
    reasons: dict[str, str] = {}
    for what, name in given.items():
        if name is not None and name not in names:
            raise InputError(f"{train} has no column {name!r} ({what}); its columns are {', '.join(names)}.")
    if Path(train).suffix.lower() == ".txt" and given["label"] is None:
        texts = columns.texts("text")
        reason = "running text without labels: masked language modelling, in blocks that fill the slots"
        return Data(files, {}, 128, "negative_log_perplexity", len(texts), {"metric": reason, "slots": "the paper's"})
    chosen = _choose(columns, given, reasons)
    if "words" in chosen:
        counts = [len(words) for words in columns.words(chosen["words"])]
        texts_of = "lists of words"
    else:
        halves = [
            [len(text.split()) for text in columns.texts(chosen[key])] for key in ("first", "second") if key in chosen
        ]
        counts = [max(own) * len(halves) for own in zip(*halves, strict=True)]  # each of a pair gets half of the slots
        texts_of = "pairs" if len(halves) == 2 else "texts"
    slots, reasons["slots"] = _slots(counts, texts_of)
    labels = columns.classes(chosen["label"], None, columns.words(chosen["words"]) if "words" in chosen else None)
    metric, reasons["metric"] = _metric(labels, "words" in chosen)
    if validation is not None or Path(files["validation"]).is_file():
        _check_validation(files, chosen)
    shown = list(names) if _is_conll(train) else ()
    return Data(files, chosen, slots, metric, len(counts), reasons, shown)


def _is_conll(path: PathLike) -> bool:
    return Path(path).suffix.lower() == ".conll"


def _stem_for_validation(train: Path) -> str:
    """The name that a validation file beside a training file is expected to have."""
    stem = re.sub("train(ing)?", "validation", train.stem)
    return stem if stem != train.stem else f"{stem}.validation"


def _choose(columns: Columns, given: dict[str, str | None], reasons: dict[str, str]) -> dict[str, str]:
    """Which column is what: as given, else by what columns are called, else by what is in them."""
    names = columns.rows.table.column_names
    types = {field.name: str(field.type) for field in columns.rows.table.schema}
    lists = [name for name in names if "list" in types[name]]
    shown = UNPRINTABLE.sub("·", ", ".join(names[:MOST_NAMED])) + (", …" if len(names) > MOST_NAMED else "")
    texts = [name for name in names if types[name] in ("string", "large_string") or name in lists]
    distinct = {name: _distinct(columns.rows.table.column(name).to_pylist()) for name in names}
    taken = {name for name in given.values() if name}
    label = given["label"] or _called(LABEL, names, taken)
    if label is None:
        few = [name for name in names if name not in taken and distinct[name] <= MOST_CLASSES and distinct[name] > 1]
        label = min(few, key=distinct.__getitem__, default=None)
    if label is None:
        raise InputError(
            f"No column of {columns.where} looks like labels; its columns are {', '.join(names)}: name one by --label."
        )
    others = [name for name in texts if name != label and name not in taken and (name in lists) == (label in lists)]
    first = given["first"] or _called(FIRST, others, taken) or max(others, key=distinct.__getitem__, default=None)
    if first is None:
        raise InputError(
            f"No column of {columns.where} looks like texts; its columns are {', '.join(names)}: name one by --text."
        )
    for what in ("label", "first"):
        reasons[what] = "as given" if given[what] else f"guessed from the columns {shown}"
    if label in lists or first in lists:
        reasons["words"] = reasons.pop("first")
        return {"words": first, "label": label}
    other = given["second"] or _called(SECOND, [name for name in others if name != first], taken)
    if other is None:
        return {"first": first, "label": label}
    reasons["second"] = "as given" if given["second"] else f"guessed from the columns {shown}"
    return {"first": first, "second": other, "label": label}


def _distinct(values: Sequence[object]) -> int:
    """How many different values there are; of lists, in all of them."""
    return len(set(map(str, chain.from_iterable(value if isinstance(value, list) else [value] for value in values))))


def _called(known: Sequence[str], names: Sequence[str], taken: set[str]) -> str | None:
    """The first of the `known` names that a column has, in whatever case."""
    there = {name.lower(): name for name in reversed(names) if name not in taken}
    return next((there[name] for name in known if name in there), None)


def _slots(counts: Sequence[int], what: str) -> tuple[int, str]:
    """Slots for nearly all texts, of so many words each, and why."""
    ordered = sorted(counts)
    longest = ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)))]
    needed = math.ceil((longest * TOKENS_OF_A_WORD + 3) / ROUND) * ROUND
    slots = min(MOST_SLOTS, max(LEAST_SLOTS, needed))
    reason = f"99 of 100 {what} have at most {longest} words, at about {TOKENS_OF_A_WORD} tokens each"
    return slots, reason + (f"; not more than {MOST_SLOTS}, longer ones are cut" if needed > slots else "")


def _metric(labels: Sequence[Sequence[str]], words: bool) -> tuple[str, str]:
    counts = Counter(label for row in labels for label in row)
    if words:
        if any(label.startswith(("B-", "I-")) for label in counts):
            return "entity_f1", "labels are B-, I- and O; or token_accuracy"
        return "token_accuracy", f"{len(counts)} labels of words; entity_f1 where they are B-, I- and O"
    most, share = counts.most_common(1)[0][0], max(counts.values()) / counts.total()
    if len(counts) == 2 and share > MAJORITY:
        return "matthews_correlation", f"{share:.0%} of the rows are {most!r}, which alone would be a high accuracy"
    return (
        "accuracy",
        f"{len(counts)} labels, the most common with {share:.0%} of the rows; or f1, matthews_correlation",
    )


def _check_validation(files: dict[str, str], chosen: dict[str, str]) -> None:
    more = {"words": chosen["words"]} if "words" in chosen else {}
    names = load_rows({"files": files, **more}, "validation").table.column_names
    for name in chosen.values():
        if name not in names:
            raise InputError(
                f"{files['validation']} has no column {name!r}, which {files['train']} has; its columns are "
                f"{', '.join(names)}."
            )


def how_to_split(files: dict[str, str]) -> str:
    """A command that moves a tenth of the training rows to the validation file; empty for forms that have no rows."""
    train, validation = files["train"], files["validation"]
    forms = {
        ".csv": ("read_csv({}, dtype=str, keep_default_na=False)", "to_csv({}, index=False)"),
        ".tsv": (
            "read_csv({}, sep='\\t', dtype=str, keep_default_na=False, quoting=3)",
            "to_csv({}, sep='\\t', index=False, quoting=3)",
        ),
        ".parquet": ("read_parquet({})", "to_parquet({}, index=False)"),
        ".jsonl": ("read_json({}, lines=True)", "to_json({}, lines=True, orient='records')"),
    }
    if Path(train).suffix.lower() not in forms:
        return ""
    read, write = forms[Path(train).suffix.lower()]
    kept = str(Path(train).with_stem(f"{Path(train).stem}.rest"))
    return (
        f'python -c "import pandas; rows = pandas.{read.format(repr(train))}; held = rows.sample(frac=0.1, '
        f"random_state=0); held.{write.format(repr(validation))}; "
        f'rows.drop(held.index).{write.format(repr(kept))}"'
    )
