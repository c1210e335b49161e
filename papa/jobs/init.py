"""A first config: for one model and one local data set, with the reason of every choice beside it."""

from __future__ import annotations

import math
import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papa.config.reading import UNPRINTABLE, config_of
from papa.data.named import Facts, facts_in, facts_in_package, facts_on_hub, named
from papa.data.weights import says_next
from papa.errors import InputError
from papa.files import PathLike
from papa.jobs.start import home

if TYPE_CHECKING:
    from rich.console import Console

    from papa.data.columns import Columns

FIRST = ("text", "sentence", "sentence1", "premise", "question", "first", "words", "tokens", "content", "review")
SECOND = ("sentence2", "hypothesis", "second", "answer", "question2", "text2", "premise2")
LABEL = ("label", "labels", "class", "category", "target", "tag", "tags", "ner_tags", "pos_tags", "entity")
"""What columns are called, the likeliest first."""
SAYS_NOTHING = re.compile(
    "models?|checkpoint.*|snapshots?|final|best|output|[0-9a-f]{40}|data|datasets?|corpus|train(ing)?|validation|dev|"
    f"labels?|class|category|target|tags?|column-?[0-9]*|on|off|yes|no|true|false|null|y|n|{'|'.join(LABEL)}"
)
"""What files, folders and columns are called that is no name for a model or a task."""
TOKENS_OF_A_WORD, LEAST_SLOTS, MOST_SLOTS, ROUND = 1.3, 16, 256, 8
MOST_CLASSES, MOST_NAMED = 50, 8
"""A column with more values is not guessed to be one of labels; of a data set with more columns the first are named."""
MAJORITY = 0.75
"""If one of two classes is as common as this, accuracy says little."""
MANY_ROWS, SMALL_HIDDEN = 10_000, 768
TRIED = r"^\| ([\w-]+) \| (packed|padded|refused) \| (.*?) \|$"
"""A line of docs/models.md: a type, how it runs, and if it is refused, why."""
SMALL_NAMES = re.compile("mini|small|tiny|distil|xs", re.IGNORECASE)
METRIC_TASKS = {
    "entity_f1": "entities",
    "token_accuracy": "tagging",
    "negative_log_perplexity": "masked",
    "log_likelihood": "next",
}


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


EXAMPLE = Data(
    {"train": "data/train.csv", "validation": "data/validation.csv"},
    {"first": "text", "label": "label"},
    64,
    "accuracy",
    1000,
    {
        "files": "replace both paths: Parquet, JSONL, CSV, TSV, CoNLL, or .txt with a text on each line",
        "first": "replace: the column of texts; pairs have `second` besides, lists of words `words` instead",
        "label": "replace: the column of labels, one for each text, or a list with one for each word",
        "slots": "replace: room for so many tokens of a text; what is longer is cut, counted and reported",
        "metric": "or f1, matthews_correlation; for words entity_f1, token_accuracy",
    },
)


def start(
    path: Path,
    model: str | None = None,
    train: PathLike | None = None,
    validation: PathLike | None = None,
    columns: Sequence[str] = (),
) -> dict[str, Any]:
    """Write a commented config to a new file.

    Args:
        path: where to write it; the config is called after the file. Paths start from the current folder, so those in
            a config that is written elsewhere are absolute.
        model: an id on the hub, a folder, or an installed package that contains a model.
        train: training texts; without them paths and columns are examples to replace.
        validation: validation texts.
        columns: columns as "first=NAME", "second=NAME" or "label=NAME"; the others are guessed from names and values.

    Returns:
        What was chosen, why, and what to do next.

    Raises:
        InputError: the file is there already, a name or model cannot be one, the model is not there or of a type that
            papa refuses, or the data cannot be read or has no such columns; nothing is written then.
    """
    import yaml

    given = columns_of(columns)
    name = re.sub("[^a-z0-9_-]+", "-", path.stem.lower()).strip("-_")[:64] or "mine"
    if path.exists():
        raise InputError(f"{path} is there already and is never overwritten; give another FILE, or delete it.")
    if train is None and (validation or any(given.values())):
        raise InputError("Columns and validation texts need training texts to look at; add --train FILE.")
    data = EXAMPLE if train is None else look_at(train, validation, given)
    facts = None if model is None else facts_of(model)
    remark = "" if model is None else check_type(model, facts)
    known = facts or {}
    if data.metric == "negative_log_perplexity" and says_next(known.get("architectures"), known.get("is_decoder")):
        why = "running text without labels: the decoder's own head says the next token, in blocks that fill the slots"
        data = replace(data, metric="log_likelihood", reasons={**data.reasons, "metric": why})
    if path.parent.resolve() != Path.cwd():
        data = replace(data, files={split: os.path.abspath(own) for split, own in data.files.items()})
        model = os.path.abspath(model) if model and os.path.isdir(model) else model
    written = text_of(name, model or "google-bert/bert-base-uncased", data, facts)
    config_of(yaml.safe_load(written))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(written)
    except OSError as error:
        raise InputError(f"{path} could not be written ({error.strerror}).") from error
    missing = {split: own for split, own in data.files.items() if not os.path.isfile(own)}
    return {
        "config": str(path),
        "files": data.files,
        "columns": data.columns,
        "slots": data.slots,
        "metric": data.metric,
        "reasons": data.reasons,
        "remark": remark,
        "missing_files": missing,
        "to_split": how_to_split(data.files) if list(missing) == ["validation"] else None,
        "next": [shlex.join(["papa", verb, str(path)]) for verb in ("plan", "run")],
    }


def columns_of(given: Sequence[str]) -> dict[str, str | None]:
    """The columns by what they are; raises `InputError` for what is no WHAT=COLUMN."""
    columns: dict[str, str | None] = dict.fromkeys(("first", "second", "label"))
    for text in given:
        what, _, column = text.partition("=")
        if what not in columns or not column:
            raise InputError(f"--column is {text!r}, but must be first=COLUMN, second=COLUMN or label=COLUMN.")
        columns[what] = column
    return columns


def text_of(name: str, model: str, data: Data, facts: Mapping[str, object] | None = None) -> str:
    """The config as text; `facts` are those of the model's own config, as far as they are known."""
    place = _place(model)
    known = facts_in(model) if facts is None and os.path.isdir(model) else facts or {}
    width = known.get("hidden_size")
    hidden = width if isinstance(width, int) else 0
    small = hidden < SMALL_HIDDEN if hidden else bool(SMALL_NAMES.search(model))
    rate, epochs = _training(small, data.rows)
    learned = f"of probes: a first guess for a {'small' if small else 'BASE'} model; search on training rows"
    seeds = ["  seeds: [1, 2, 3, 4, 5]  # a probe for each; scores come with an interval over them"]
    if data.metric == "log_likelihood":
        rate, epochs, learned, seeds = "1.0e-2", 1, "of λ: a first guess; no probe is trained", []
    folders = [*reversed(Path(model).resolve().parts)] if os.path.isdir(model) else model.split("/")[::-1]
    own = _named(folders) or "encoder"
    masked = "label" not in data.columns
    train = re.sub("[._-]?(train(ing)?|dev)", "", Path(data.files["train"]).stem, flags=re.IGNORECASE)
    guesses = [] if masked else [data.columns["label"], train, Path(data.files["train"]).resolve().parent.name]
    task = _named(guesses) or METRIC_TASKS.get(data.metric, "classes")

    def line(key: str, value: str, why: str) -> str:
        return f"    {key}: {_scalar(value)}  # {_printable(why)}"

    texts = [
        line(key, data.columns[key], data.reasons[key]) for key in ("first", "second", "words") if key in data.columns
    ]
    if masked:
        texts.append("    blocks: true  # running text")
    if data.names:
        texts.append(f"    columns: [{', '.join(map(_scalar, data.names))}]  # of a file without a header")
    return "\n".join(
        [
            "# How much does this model rely on attention that depends on its input? All keys: config/README.md.",
            "# First `papa plan` on this file, which says what it takes; then `papa run` on it.",
            f"name: {_scalar(name)}  # results go to results/{name}/",
            "",
            "run:",
            f"  models: [{own}]",
            f"  tasks: [{task}]",
            "  # of heads that keep their attention; the others get its average over the training texts",
            '  fractions: ["1", "1/2", "1/8", "0"]',
            *seeds,
            "",
            "models:",
            f"  {own}: {{{place}}}  # an encoder or a decoder; `papa verify` says whether papa takes it",
            "",
            "corpora:",
            "  texts:",
            *([f"    # {data.reasons['files']}"] if "files" in data.reasons else []),
            "    files:",
            *(f"      {split}: {_scalar(path)}" for split, path in data.files.items()),
            *texts,
            f"    slots: {data.slots}  # {_printable(data.reasons['slots'])}",
            "",
            "tasks:",
            f"  {task}:",
            "    corpus: texts",
            *([] if masked else [line("label", data.columns["label"], data.reasons["label"])]),
            f"    metric: {data.metric}  # {_printable(data.reasons['metric'])}",
            f"    learning_rate: {rate}  # {learned}",
            "    batch_size: 16",
            f"    epochs: {epochs}",
            "",
        ]
    )


def facts_of(model: str) -> Facts | None:
    """Return the content of a model's config.json; None if it cannot be looked up now.

    Raises:
        InputError: there is no such model.
    """
    match named(model):
        case {"path": folder}:
            return facts_in(folder)
        case {"package": package}:
            return facts_in_package(package)
    return facts_on_hub(model)


def check_type(model: str, facts: Mapping[str, object] | None) -> str:
    """A remark on a model whose type could not be looked up, or was not tried; empty if papa takes the type.

    Raises:
        InputError: papa refuses the type.
    """
    verify = shlex.join(["papa", "verify", model])
    kind = (facts or {}).get("model_type")
    if not isinstance(kind, str):
        return f"The type of {model} could not be looked up; `{verify}` checks the model."
    page = home() / "docs/models.md"
    tried = re.findall(TRIED, page.read_text(encoding="utf-8"), re.MULTILINE) if page.is_file() else []
    how, why = {name: (how, why) for name, how, why in tried}.get(kind, ("", ""))
    if how == "refused":
        raise InputError(f"{model} is of the type {kind}, which papa cannot use: {why.rstrip('.')}.")
    return "" if how else f"Models of the type {kind} were not tried; `{verify}` checks this one."


def _place(model: str) -> str:
    """Return the key of a model and its value as YAML."""
    key, value = next(iter(named(model).items()))
    return f"{key}: {_scalar(value)}"


def _named(guesses: Sequence[str]) -> str:
    """The first of some ids, columns, files or folders that can be a name in tables and paths; empty if none can."""
    for guess in guesses:
        plain = unicodedata.normalize("NFKD", guess).encode("ascii", "ignore").decode().lower()
        name = re.sub("[^a-z0-9]+", "-", plain).strip("-")[:64].strip("-")
        if name[:1].isalpha() and not SAYS_NOTHING.fullmatch(name):
            return name
    return ""


def _training(small: bool, rows: int) -> tuple[str, int]:
    """Learning rate and epochs: the paper's for BASE models, ours for smaller ones; less for many rows."""
    if small:
        return ("3.0e-4", 3) if rows >= MANY_ROWS else ("1.0e-3", 6)
    return ("1.0e-4", 4) if rows >= MANY_ROWS else ("2.0e-5", 15)


def _scalar(text: str) -> str:
    """A text as YAML, in quotes if it needs them, in a block and in a list."""
    import yaml

    return str(yaml.safe_dump([text], default_flow_style=True, allow_unicode=True, width=10**9)).strip()[1:-1]


def _printable(text: object) -> str:
    """A text on one line, without characters that would steer a terminal or end a comment."""
    return UNPRINTABLE.sub("·", str(text))


def look_at(train: PathLike, validation: PathLike | None, given: Mapping[str, str | None]) -> Data:
    """Choose columns, slots and metric for a data set by what is in its training texts."""
    from papa.data.columns import Columns
    from papa.data.readers import read_file

    path, conll = Path(train), Path(train).suffix.lower() == ".conll"
    held = Path(validation) if validation else path.with_stem(_stem_for_validation(path))
    files = {"train": str(train), "validation": str(held)}
    columns = Columns(str(train), read_file(path, words=conll))
    names, reasons = columns.rows.names, dict[str, str]()
    for what, name in given.items():
        if name is not None and name not in names:
            raise InputError(f"{train} has no column {name!r} ({what}); its columns are {', '.join(names)}.")
    if path.suffix.lower() == ".txt" and given.get("label") is None:
        reasons = {"slots": "the paper's"}
        reasons["metric"] = "running text without labels: masked language modelling, in blocks that fill the slots"
        return Data(files, {}, 128, "negative_log_perplexity", len(columns.texts("text")), reasons)
    chosen = _choose(columns, given, reasons)
    words = columns.words(chosen["words"]) if "words" in chosen else None
    halves = [
        [len(text.split()) for text in columns.texts(chosen[key])] for key in ("first", "second") if key in chosen
    ]
    # each of a pair gets half of the slots
    counts = [len(own) for own in words] if words else [max(own) * len(halves) for own in zip(*halves, strict=True)]
    slots, reasons["slots"] = _slots(counts, "lists of words" if words else "pairs" if len(halves) == 2 else "texts")
    metric, reasons["metric"] = _metric(columns.classes(chosen["label"], None, words), words is not None)
    if held.is_file():
        others = read_file(held, words=conll).names
        for name in chosen.values():
            if name not in others:
                raise InputError(
                    f"{held} has no column {name!r}, which {train} has; its columns are {', '.join(others)}."
                )
    elif validation is not None:
        raise InputError(f"There is no file {held} (relative paths start from {Path.cwd()}).")
    return Data(files, chosen, slots, metric, len(counts), reasons, names if conll else ())


def _stem_for_validation(train: Path) -> str:
    """The name that a validation file beside a training file is expected to have."""
    stem = re.sub("train(ing)?", "validation", train.stem)
    return stem if stem != train.stem else f"{stem}.validation"


def _choose(columns: Columns, given: Mapping[str, str | None], reasons: dict[str, str]) -> dict[str, str]:
    """Which column is what: as given, else by what columns are called, else by what is in them."""
    names = columns.rows.names
    types = {field.name: str(field.type) for field in columns.rows.table.schema}
    lists = [name for name in names if "list" in types[name]]
    texts = [name for name in names if types[name] in ("string", "large_string") or name in lists]
    distinct = {name: _distinct(columns.rows.table.column(name).to_pylist()) for name in names}
    taken = {name for name in given.values() if name}
    label = given.get("label") or _called(LABEL, names, taken)
    if label is None:
        few = [name for name in names if name not in taken and distinct[name] <= MOST_CLASSES and distinct[name] > 1]
        label = min(few, key=distinct.__getitem__, default=None)
    if label is None:
        raise _looks_like(columns, "labels", "label")
    others = [name for name in texts if name != label and name not in taken and (name in lists) == (label in lists)]
    first = given.get("first") or _called(FIRST, others, taken) or max(others, key=distinct.__getitem__, default=None)
    if first is None:
        raise _looks_like(columns, "texts", "first")
    guessed = f"guessed from the columns {', '.join(names[:MOST_NAMED])}" + ", …" * (len(names) > MOST_NAMED)
    key = "words" if label in lists or first in lists else "first"
    chosen = {key: first, "label": label}
    other = given.get("second") or _called(SECOND, [name for name in others if name != first], taken)
    if other is not None and key == "first":
        chosen = {key: first, "second": other, "label": label}
    for what in chosen:
        reasons[what] = "as given" if given.get("first" if what == "words" else what) else guessed
    return chosen


def _looks_like(columns: Columns, what: str, option: str) -> InputError:
    names = ", ".join(columns.rows.names)
    return InputError(
        f"No column of {columns.where} looks like {what}; its columns are {names}: name one by "
        f"--column {option}=COLUMN."
    )


def _distinct(values: Sequence[object]) -> int:
    """How many different values there are; of lists, in all of them."""
    return len(set(map(str, chain.from_iterable(value if isinstance(value, list) else [value] for value in values))))


def _called(known: Sequence[str], names: Sequence[str], taken: set[str]) -> str | None:
    """The first of the `known` names that a column has, in whatever case."""
    there = {name.lower(): name for name in reversed(names) if name not in taken}
    return next((there[name] for name in known if name in there), None)


def _slots(counts: Sequence[int], what: str) -> tuple[int, str]:
    """Slots for nearly all texts, of so many words each, and why."""
    longest = sorted(counts)[min(len(counts) - 1, math.ceil(0.99 * len(counts)))]
    needed = math.ceil((longest * TOKENS_OF_A_WORD + 3) / ROUND) * ROUND
    slots = min(MOST_SLOTS, max(LEAST_SLOTS, needed))
    reason = f"99 of 100 {what} have at most {longest} words, at about {TOKENS_OF_A_WORD} tokens each"
    return slots, reason + (f"; not more than {MOST_SLOTS}, longer ones are cut" if needed > slots else "")


def _metric(labels: Sequence[Sequence[str]], words: bool) -> tuple[str, str]:
    counts = Counter(label for row in labels for label in row)
    if words and any(label.startswith(("B-", "I-")) for label in counts):
        return "entity_f1", "labels are B-, I- and O; or token_accuracy"
    if words:
        return "token_accuracy", f"{len(counts)} labels of words; entity_f1 if they are B-, I- and O"
    [(most, number)] = counts.most_common(1)
    share = number / counts.total()
    if len(counts) == 2 and share > MAJORITY:
        return "matthews_correlation", f"{share:.0%} of the rows are {most!r}, which alone would be a high accuracy"
    also = f"{len(counts)} labels, the most common with {share:.0%} of the rows; or f1, matthews_correlation"
    return "accuracy", also


def how_to_split(files: Mapping[str, str]) -> str:
    """A command that moves a tenth of the training rows to the validation file; empty for forms that have no rows."""
    train, validation = Path(files["train"]), files["validation"]
    tabs = ", sep='\\t', quoting=3"
    forms = {
        ".csv": ("csv", ", dtype=str, keep_default_na=False", ", index=False"),
        ".tsv": ("csv", f"{tabs}, dtype=str, keep_default_na=False", f"{tabs}, index=False"),
        ".parquet": ("parquet", "", ", index=False"),
        ".jsonl": ("json", ", lines=True", ", lines=True, orient='records'"),
    }
    if train.suffix.lower() not in forms:
        return ""
    form, reading, writing = forms[train.suffix.lower()]
    rest = str(train.with_stem(f"{train.stem}.rest"))
    code = (
        f"import pandas; rows = pandas.read_{form}({str(train)!r}{reading}); "
        f"held = rows.sample(frac=0.1, random_state=0); held.to_{form}({validation!r}{writing}); "
        f"rows.drop(held.index).to_{form}({rest!r}{writing})"
    )
    return shlex.join(["python", "-c", code])


def print_started(found: Mapping[str, Any], out: Console) -> None:
    """Print what `start` chose, and what to do next."""
    out.print(f"Written: {_printable(found['config'])}", style="bold green")
    for name, value in (found["columns"] | {"slots": found["slots"], "metric": found["metric"]}).items():
        out.print(f"  {name}: {_printable(value)} ({_printable(found['reasons'][name])})", soft_wrap=True)
    if found["remark"]:
        out.print(_printable(found["remark"]), style="yellow", soft_wrap=True)
    if found["missing_files"]:
        missing = " and ".join(map(_printable, found["missing_files"].values()))
        out.print(f"There is no {missing} yet: put it there, or another path into the config.", style="yellow")
    if found["to_split"]:
        out.print("To hold a tenth of the training rows out, and write the rest beside them, run this,")
        out.print(f"  {_printable(found['to_split'])}", soft_wrap=True)
        told = f"and then name the rest as train in {found['config']}, so that no row is in both."
        out.print(_printable(told), soft_wrap=True)
    out.print("Next:")
    for command in found["next"]:
        out.print(f"  {_printable(command)}", soft_wrap=True)
