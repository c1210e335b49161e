"""`papa init`: write a first config for one model and one local data set, with a reason for each choice.

`choices_of` chooses the values once. Both the YAML file of `papa init` and the config of `papa.measure` use them.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from papa.config.measures import MASKED, METRICS, NEXT
from papa.config.reading import UNPRINTABLE, config_of
from papa.config.settings import SPLITS
from papa.config.variant import CONTEXT_FREE
from papa.data.columns import Columns
from papa.data.named import Facts, facts_in, facts_in_package, facts_on_hub, named
from papa.data.readers import SourceRows, read_file
from papa.data.splits import UNCHANGED, RowChanges, write_rows
from papa.data.weights import predicts_next
from papa.errors import InputError
from papa.files import PathLike
from papa.jobs.resources import SPECIAL_TOKENS_PER_TEXT, TOKENS_PER_WORD
from papa.jobs.start import argument

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
FIRST_NAMES = ("text", "sentence", "sentence1", "premise", "question", "first", "words", "tokens", "content", "review")
SECOND_NAMES = ("sentence2", "hypothesis", "second", "answer", "question2", "text2", "premise2")
LABEL_NAMES = ("label", "labels", "class", "category", "target", "tag", "tags", "ner_tags", "pos_tags", "entity")
"""Common column names by role, the likeliest first."""
MEANINGLESS = re.compile(
    "models?|checkpoint.*|snapshots?|final|best|output|[0-9a-f]{40}|data|datasets?|corpus|train(ing)?|validation|dev|"
    f".|labels?|class|category|target|tags?|column-?[0-9]*|on|off|yes|no|true|false|null|y|n|{'|'.join(LABEL_NAMES)}"
)
"""Common names of files, folders and columns that do not identify a model or a task."""
MINIMUM_SLOTS, MAXIMUM_SLOTS, SLOTS_STEP = 16, 256, 8
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
"""Keys of a model's config for its number of positions."""
BLOCK_SLOTS = 128
"""Number of slots for running text, as in the paper."""
LISTED_COLUMNS = 8
"""Maximum number of columns that a reason lists."""
MAJORITY = 0.75
"""With two classes, accuracy shows little if the larger class has more than this share of the rows."""
REPEATED_SHARE = 0.1
"""If more than this share of pairs repeat the first text of another pair, the pairs of a text form a cluster."""
MANY_ROWS, BASE_HIDDEN_SIZE = 10_000, 768
EXAMPLE_MODEL = "google-bert/bert-base-uncased"


@dataclass(frozen=True)
class Data:
    """The data section of a config, with a reason for each key.

    Args:
        names: the columns of a file without a header.
        notes: sentences about held-out and dropped rows.
        unwritten: rows of those splits whose files have to be written.
    """

    files: dict[str, str]
    columns: dict[str, str]
    slots: int
    metric: str
    training_rows: int
    reasons: dict[str, str]
    names: Sequence[str] = ()
    notes: Sequence[str] = ()
    unwritten: Mapping[str, SourceRows] = field(default_factory=dict)

    @classmethod
    def unlabelled(cls, files: dict[str, str], columns: dict[str, str], training_rows: int) -> Data:
        """Describe running text without labels, for masked language modelling."""
        reason = "running text without labels: masked language modelling, in blocks that fill the slots"
        reasons = dict.fromkeys(columns, "as given") | {"slots": "as in the paper", "metric": reason}
        return cls(files, columns, BLOCK_SLOTS, MASKED.usual_metric, training_rows, reasons)

    def write(self) -> None:
        """Write the files of the splits that are `unwritten`."""
        for split, rows in self.unwritten.items():
            write_rows(Path(self.files[split]), rows)

    def for_decoder(self) -> Data:
        """Return the data for a decoder, which predicts the next tokens of unlabelled text."""
        if "label" in self.columns:
            return self
        reason = "running text without labels: the decoder predicts the next token, in blocks that fill the slots"
        return replace(self, metric=NEXT.usual_metric, reasons={**self.reasons, "metric": reason})

    def within(self, facts: Facts) -> Data:
        """Return the data with no more slots than the model's config has positions, if it says how many."""
        positions = next((facts[name] for name in POSITIONS if facts.get(name)), self.slots)
        if isinstance(positions, int) and "roberta" in str(facts.get("model_type")):
            padding = facts.get("pad_token_id")
            positions -= 1 + (
                padding if isinstance(padding, int) else 1
            )  # its position ids start after that of padding
        if not isinstance(positions, int) or not 0 < positions < self.slots:
            return self
        return replace(self, slots=positions, reasons={**self.reasons, "slots": "the model has no more positions"})


class Choice(NamedTuple):
    """The path of a config key, its value, and the reason for the value, if any.

    If the value is None, the reason becomes a comment line in the key's place.
    """

    path: tuple[str, ...]
    value: object
    reason: str = ""


PLACEHOLDER_DATA = Data(
    {"train": "data/train.csv", "validation": "data/validation.csv"},
    {"first": "text", "label": "label"},
    64,
    "accuracy",
    1000,
    {
        "files": "replace both paths: Parquet, JSONL, CSV, TSV, CoNLL, or .txt with one text per line",
        "first": "replace: the column with the texts; for pairs, add `second`; for lists of words, rename it `words`",
        "label": "replace: the column with the labels: one per text, or a list with one per word",
        "slots": "replace: the maximum number of tokens per text; longer texts are cut, counted and reported",
        "metric": "or f1, matthews_correlation; for words entity_f1, token_accuracy",
    },
)


@dataclass(frozen=True)
class DataFiles:
    """The files of a data set, and how to read them.

    Args:
        train, validation: the files; without `validation`, a file with a similar name is used if there is one.
        columns: columns as "first=NAME", "second=NAME" or "label=NAME"; papa guesses the others from names and values.
        changes: rows to hold out or to drop.
    """

    train: PathLike | None = None
    validation: PathLike | None = None
    columns: Sequence[str] = ()
    changes: RowChanges = UNCHANGED


def start(
    path: Path, model: str | None = None, files: DataFiles | None = None, settings: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Write a commented config to a new file.

    Args:
        path: the file to write; the config is named after it. Paths in a config are relative to the current folder, so
            papa writes absolute paths if the file is in another folder.
        model: a hub id, a folder or an installed package.
        files: the data set; without training texts, paths and columns are examples to replace. If rows are held out or
            dropped, the others are written to NAME.train.parquet and NAME.validation.parquet next to the config.
        settings: values to use instead of the chosen ones: seeds, fractions, slots; and the order of heads.

    Returns:
        The choices, their reasons, and the next commands.

    Raises:
        InputError: the file exists; the model does not exist; or the data cannot be read or
            lack a column. Nothing is written in these cases.
    """
    files = files or DataFiles()
    asked = columns_of(files.columns)
    name = re.sub("[^a-z0-9_-]+", "-", path.stem.lower()).strip("-_")[:64] or "mine"
    if path.exists():
        raise InputError(f"{path} exists, and papa never overwrites a file; give another FILE, or delete it.")
    if files.train is None and files != DataFiles():
        raise InputError("Options about texts were given without training texts; add --train FILE.")
    data = PLACEHOLDER_DATA
    if files.train is not None:
        data = look_at(files.train, files.validation, asked, files.changes, path.parent / f"{path.stem}.{{}}.parquet")
        for split in data.unwritten:
            if os.path.exists(data.files[split]):
                raise InputError(f"{data.files[split]} exists, and papa never overwrites a file; give another FILE.")
    facts = {} if model is None else facts_of(model)
    if predicts_next(facts.get("architectures"), facts.get("is_decoder")):
        data = data.for_decoder()
    data = data.within(facts)
    if path.parent.resolve() != Path.cwd():
        data = replace(data, files={split: os.path.abspath(file) for split, file in data.files.items()})
        model = os.path.abspath(model) if model and os.path.isdir(model) else model
    named, *others = with_settings(choices_of(name, model or EXAMPLE_MODEL, data, facts), settings or {})
    floors = Choice(("floors",), list(CONTEXT_FREE), "no token sees another; claims must hold against each of them")
    choices = [named, floors, *others]
    config_of(as_config(choices))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        data.write()
        with open(path, "x", encoding="utf-8") as file:
            file.write(as_yaml(choices))
    except OSError as error:
        raise InputError(f"{path} could not be written ({error.strerror}).") from error
    missing = {split: file for split, file in data.files.items() if not os.path.isfile(file)}
    return {
        "config": str(path),
        **{name: getattr(data, name) for name in ("files", "columns", "slots", "metric", "reasons")},
        "notes": list(data.notes),
        "missing_files": missing,
        "next": [shlex.join(["papa", verb, argument(path)]) for verb in ("plan", "run")],
    }


def columns_of(options: Sequence[str]) -> dict[str, str | None]:
    """Parse options ROLE=COLUMN into columns by role; raise `InputError` for any other option."""
    columns: dict[str, str | None] = dict.fromkeys(("first", "second", "label"))
    for option in options:
        role, _, column = option.partition("=")
        if role not in columns or not column:
            raise InputError(f"A column is {option!r}, but must be first=COLUMN, second=COLUMN or label=COLUMN.")
        columns[role] = column
    return columns


def list_of(text: str | None, option: str, kind: type[T]) -> list[T] | None:
    """Parse the comma-separated values of an option; None if it was not given."""
    try:
        return None if text is None else [kind(part.strip()) for part in text.split(",")]  # type: ignore[call-arg]
    except ValueError:
        raise InputError(f"{option} is {text!r}, but must be whole numbers separated by commas, as in 1,2,3.") from None


# -- choices as a config and as a file --------------------------------------------------------------------------------


def choices_of(name: str, model: str, data: Data, facts: Mapping[str, object]) -> list[Choice]:
    """Choose the values of a config.

    Args:
        name: name of the config.
        model: a hub id, a folder or an installed package.
        data: the data set.
        facts: contents of the model's config.json; empty if unknown.
    """
    width = facts.get("hidden_size")
    small = isinstance(width, int) and width < BASE_HIDDEN_SIZE
    seeds: list[Choice] = []
    if METRICS[data.metric].target.probed:
        reason = "one probe per seed; scores have an interval over seeds"
        seeds = [Choice(("run", "seeds"), [1, 2, 3, 4, 5], reason)]
        rate, epochs = _training(small, data.training_rows)
        training = f"for probes: a guess for a {'small' if small else 'BASE'} model; tune it on training rows"
    else:
        rate, epochs, training = 1e-2, 1, "used only for λ, an untuned guess; no probe is trained"
    key, task, label = _model_name(model), _task_name(data), data.columns.get("label")
    columns = {role: column for role, column in data.columns.items() if role != "label"}
    corpus: dict[str, tuple[object, str]] = {role: (column, data.reasons[role]) for role, column in columns.items()}
    if label is None:
        corpus["blocks"] = True, "running text"
    if data.names:
        corpus["columns"] = list(data.names), "the file has no header"
    return [
        Choice(("name",), name, f"results go to results/{name}/"),
        Choice(("run", "models"), [key]),
        Choice(("run", "tasks"), [task]),
        Choice(("run", "fractions"), None, "fractions of heads that keep their attention; the rest use its average"),
        Choice(("run", "fractions"), [1, "1/2", "1/8", 0]),
        *seeds,
        Choice(("models", key), named(model), "an encoder or a decoder; `papa inspect` checks it"),
        Choice(("corpora", "texts", "files"), None, data.reasons.get("files", "")),
        *(Choice(("corpora", "texts", "files", split), file) for split, file in data.files.items()),
        *(Choice(("corpora", "texts", name), *choice) for name, choice in corpus.items()),
        Choice(("corpora", "texts", "slots"), data.slots, data.reasons["slots"]),
        Choice(("tasks", task, "corpus"), "texts"),
        *([] if label is None else [Choice(("tasks", task, "label"), label, data.reasons["label"])]),
        Choice(("tasks", task, "metric"), data.metric, data.reasons["metric"]),
        Choice(("tasks", task, "learning_rate"), rate, training),
        Choice(("tasks", task, "batch_size"), 16),
        Choice(("tasks", task, "epochs"), epochs),
    ]


def with_settings(choices: Sequence[Choice], settings: Mapping[str, object]) -> list[Choice]:
    """Return the choices with some values replaced, by their last key: seeds, fractions or slots; and with an order."""
    settings, order = {name: value for name, value in settings.items() if name != "order"}, settings.get("order")
    changed = [
        choice._replace(value=settings[choice.path[-1]], reason="as given")
        if choice.value is not None and settings.get(choice.path[-1]) is not None
        else choice
        for choice in choices
    ]
    missing = settings.keys() - {choice.path[-1] for choice in choices if choice.value is not None}
    if any(settings[name] is not None for name in missing):
        raise InputError(f"Nothing is trained here, so {', '.join(sorted(missing))} has no effect; leave it out.")
    if order is not None:
        place = next(index for index, choice in enumerate(changed) if choice.path == ("run", "tasks"))
        changed.insert(place + 1, Choice(("run", "orders"), [order], "as given"))
    return changed


def as_config(choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the choices as a nested mapping."""
    config: dict[str, Any] = {}
    for path, value, _ in choices:
        block = config
        for key in path[:-1]:
            block = block.setdefault(key, {})
        if value is not None:
            block[path[-1]] = value
    return config


def as_yaml(choices: Sequence[Choice]) -> str:
    """Return the choices as YAML, with reasons as comments."""
    lines = [
        "# How much does this model rely on attention that depends on its input?",
        "# First run `papa plan` on this file, which estimates time and disk space; then `papa run`.",
        "# config/README.md explains all keys.",
    ]
    blocks: list[str] = []
    for path, value, reason in choices:
        *parents, key = path
        shared = sum(blocks[: depth + 1] == parents[: depth + 1] for depth in range(min(len(blocks), len(parents))))
        if not shared and parents:
            lines.append("")
        remark = f"# {_printable(reason)}" if reason else ""
        lines += [f"{'  ' * depth}{parent}:" for depth, parent in enumerate(parents) if depth >= shared]
        blocks, indent = parents, "  " * len(parents)
        lines.append(indent + (remark if value is None else f"{key}: {_inline(value)}  {remark}".rstrip()))
    return "\n".join(line for line in lines if line.strip() or not line) + "\n"


def _inline(value: object) -> str:
    """Return a value as YAML on one line."""
    import yaml

    return str(yaml.safe_dump([value], default_flow_style=True, allow_unicode=True, width=10**9)).strip()[1:-1]


def _printable(text: object) -> str:
    """Replace characters that could control a terminal or end a comment."""
    return UNPRINTABLE.sub("·", str(text))


def _training(small: bool, rows: int) -> tuple[float, int]:
    """Return learning rate and epochs by the size of the model; fewer epochs for many rows."""
    if small:
        return (3e-4, 3) if rows >= MANY_ROWS else (1e-3, 6)
    return (1e-4, 4) if rows >= MANY_ROWS else (2e-5, 15)


def _model_name(model: str) -> str:
    parts = Path(model).resolve().parts if os.path.isdir(model) else model.split("/")
    return _first_name(parts[::-1]) or "encoder"


def _task_name(data: Data) -> str:
    guesses = []
    if label := data.columns.get("label"):
        train = Path(data.files["train"])
        stem = re.sub("[._-]?(train(ing)?|dev)", "", train.stem, flags=re.IGNORECASE)
        guesses = [label, stem, train.parent.name]  # only a folder that the user named
    return _first_name(guesses) or METRICS[data.metric].task_name


def _first_name(guesses: Sequence[str]) -> str:
    """Turn the first suitable guess into a name for tables and paths; empty if none is suitable."""
    for guess in guesses:
        plain = unicodedata.normalize("NFKD", guess).encode("ascii", "ignore").decode().lower()
        name = re.sub("[^a-z0-9]+", "-", plain).strip("-")[:64].strip("-")
        if name[:1].isalpha() and not MEANINGLESS.fullmatch(name):
            return name
    return ""


# -- the model --------------------------------------------------------------------------------------------------------


def facts_of(model: str) -> Facts:
    """Return the contents of a model's config.json; empty if they are unknown.

    Raises:
        InputError: the model does not exist.
    """
    match named(model):
        case {"path": folder}:
            return facts_in(folder)
        case {"package": package}:
            return facts_in_package(package) or {}
    return facts_on_hub(model)


# -- the data ---------------------------------------------------------------------------------------------------------


def look_at(
    train: PathLike,
    validation: PathLike | None,
    asked: Mapping[str, str | None],
    changes: RowChanges = UNCHANGED,
    target: PathLike = "",
) -> Data:
    """Choose columns, slots and metric for a data set from the content of its files.

    Args:
        train, validation: the files; without `validation`, a file with a similar name is used if there is one.
        asked: columns by role; papa guesses those that are None.
        changes: rows to hold out or to drop; if there are any, `Data.write` writes the others.
        target: path of these files, with {} for the name of the split.
    """
    path = Path(train)
    held_out = Path(validation) if validation else validation_file(path)
    splits, files = {"train": _columns_in(path)}, {"train": str(train), "validation": str(held_out)}
    roles, reasons = _choose(splits["train"], asked)
    if validation and changes.hold_out:
        raise InputError(f"Both {validation} and texts to hold out were given; give only one.")
    if held_out.is_file() and not changes.hold_out:
        splits["validation"] = _columns_in(held_out)
    elif validation is not None:
        raise InputError(f"There is no file {held_out} (relative paths start from {Path.cwd()}).")
    for columns in splits.values():
        columns.check(roles.values())
    splits, notes = changes.applied(splits, roles)
    if changes.any:
        files = {split: os.fspath(target).replace("{}", split) for split in SPLITS}
    elif path.suffix.lower() == ".txt" and "label" not in roles:
        roles, reasons = {}, {}  # the column of lines needs no name
    data = describe(splits, files, roles, reasons)
    unwritten = {split: columns.rows for split, columns in splits.items()} if changes.any else {}
    names = splits["train"].rows.names if path.suffix.lower() == ".conll" and not changes.any else ()
    return replace(data, names=names, notes=notes, unwritten=unwritten)


def _columns_in(path: Path) -> Columns:
    return Columns(str(path), read_file(path, words=path.suffix.lower() == ".conll"))


def describe(
    splits: Mapping[str, Columns], files: dict[str, str], roles: Mapping[str, str], reasons: Mapping[str, str]
) -> Data:
    """Choose slots and metric for the texts in some columns, and check the rows of all splits.

    Args:
        splits: the columns of the training split and, if they are known, of the validation split.
        files: the files of the splits.
        roles: columns by role; without labels, the texts are running text.
        reasons: reasons for these columns.
    """
    train, chosen, reasons = splits["train"], dict(roles), dict(reasons)
    if "label" not in chosen:
        return Data.unlabelled(files, chosen, train.rows.table.num_rows)
    for columns in list(splits.values())[::-1]:  # the training split last
        words = columns.words(chosen["words"]) if "words" in chosen else None
        texts = [columns.texts(chosen[role]) for role in ("first", "second") if role in chosen]
        classes = columns.classes(chosen["label"], None, words)
    if words is not None:
        content, counts = "lists of words", [len(row) for row in words]
    else:
        content = "pairs" if len(texts) == 2 else "texts"
        # each text of a pair gets half of the slots
        counts = [len(row) * max(len(text.split()) for text in row) for row in zip(*texts, strict=True)]
        distinct, rows = len(set(texts[0])), len(counts)
        if len(texts) == 2 and rows - distinct > REPEATED_SHARE * rows:
            chosen["cluster"] = chosen["first"]
            reasons["cluster"] = f"{distinct:,} different first texts in {rows:,} pairs, so intervals resample texts"
    slots, reasons["slots"] = _slots(counts, content)
    metric, reasons["metric"] = _metric(classes, words is not None)
    return Data(files, chosen, slots, metric, len(counts), reasons)


def validation_file(train: PathLike) -> Path:
    """Return the path of the validation texts for training texts in a file, by the name of the file."""
    stem = re.sub("train(ing)?", "validation", Path(train).stem)
    return Path(train).with_stem(stem if stem != Path(train).stem else f"{stem}.validation")


def _choose(columns: Columns, asked: Mapping[str, str | None]) -> tuple[dict[str, str], dict[str, str]]:
    """Return columns and reasons by role; columns that are not given are guessed by their names.

    Without a given label, lines of text have none.
    """
    names = columns.rows.names
    columns.check(name for name in asked.values() if name)
    if Path(columns.source).suffix.lower() == ".txt" and not asked.get("label"):
        return {"first": "text"}, {"first": "as given"}
    types = {field.name: str(field.type) for field in columns.rows.table.schema}
    lists = [name for name in names if "list" in types[name]]
    texts = [name for name in names if types[name] in ("string", "large_string") or name in lists]
    taken = {name for name in asked.values() if name}
    label = asked.get("label") or _with_name(LABEL_NAMES, names, taken)
    if label is None:
        raise _not_recognised(columns, "labels", "label")
    others = [name for name in texts if name != label and name not in taken and (name in lists) == (label in lists)]
    first = asked.get("first") or _with_name(FIRST_NAMES, others, taken) or (others[0] if len(others) == 1 else None)
    if first is None:
        raise _not_recognised(columns, "texts", "first")
    guessed = f"guessed from the columns {', '.join(names[:LISTED_COLUMNS])}" + ", …" * (len(names) > LISTED_COLUMNS)
    chosen = {"words" if label in lists or first in lists else "first": first}
    second = asked.get("second") or _with_name(SECOND_NAMES, [name for name in others if name != first], taken)
    if second is not None and "first" in chosen:
        chosen["second"] = second
    chosen["label"] = label
    given = {role for role in chosen if asked.get("first" if role == "words" else role)}
    return chosen, {role: "as given" if role in given else guessed for role in chosen}


def _not_recognised(columns: Columns, content: str, option: str) -> InputError:
    names = ", ".join(columns.rows.names)
    return InputError(
        f"No column of {columns.source} looks like {content}; choose one of its columns ({names}) with --column "
        f"{option}=COLUMN."
    )


def _with_name(known: Sequence[str], names: Sequence[str], taken: set[str]) -> str | None:
    """Return the column whose name is first in `known`, ignoring case; None if there is none."""
    by_name = {name.lower(): name for name in reversed(names) if name not in taken}
    return next((by_name[name] for name in known if name in by_name), None)


def _slots(counts: Sequence[int], content: str) -> tuple[int, str]:
    """Choose slots that fit 99 of 100 texts, given the number of words in each; return them with the reason."""
    longest = sorted(counts)[min(len(counts) - 1, math.ceil(0.99 * len(counts)))]
    needed = math.ceil((longest * TOKENS_PER_WORD + SPECIAL_TOKENS_PER_TEXT) / SLOTS_STEP) * SLOTS_STEP
    slots = min(MAXIMUM_SLOTS, max(MINIMUM_SLOTS, needed))
    reason = f"99 of 100 {content} have at most {longest} words, at about {TOKENS_PER_WORD} tokens each"
    return slots, reason + (f"; at most {MAXIMUM_SLOTS}, longer ones are cut" if needed > slots else "")


def _metric(labels: Sequence[Sequence[str]], words: bool) -> tuple[str, str]:
    counts = Counter(label for row in labels for label in row)
    if words and any(label.startswith(("B-", "I-")) for label in counts):
        return "entity_f1", "labels are B-/I-/O tags; alternative: token_accuracy"
    if words:
        return "token_accuracy", f"{len(counts)} word labels; entity_f1 if they are B-, I- and O"
    [(most, rows)] = counts.most_common(1)
    share = rows / counts.total()
    if len(counts) == 2 and share > MAJORITY:
        return "matthews_correlation", f"{share:.0%} of the rows are {most!r}, so always guessing it is often right"
    reason = f"{len(counts)} labels, the most common in {share:.0%} of the rows; or f1, matthews_correlation"
    return "accuracy", reason


def print_started(config: Mapping[str, Any], out: Console) -> None:
    """Print the choices of `start`, and the next commands."""
    lines = [(f"Wrote {config['config']}", "bold green")]
    for name, value in (config["columns"] | {"slots": config["slots"], "metric": config["metric"]}).items():
        lines.append((f"  {name}: {value} ({config['reasons'][name]})", ""))
    lines += [(f"  {note}", "") for note in config["notes"]]
    if config["missing_files"]:
        missing = ", ".join(config["missing_files"].values())
        lines.append((f"Not found: {missing}. Add what is missing, or change the paths in the config.", "yellow"))
        if list(config["missing_files"]) == ["validation"]:
            lines.append(("`papa init` with --hold-out 0.2 holds out a fifth of the training texts instead.", "yellow"))
    lines += [("Next:", ""), *((f"  {command}", "") for command in config["next"])]
    for line, style in lines:
        if line:
            out.print(_printable(line), style=style, soft_wrap=True)
