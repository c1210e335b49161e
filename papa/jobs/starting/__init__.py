"""A first config: for one model and one local data set, with the reason of every choice beside it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from papa.config.settings import NAME, checked
from papa.errors import InputError
from papa.files import PathLike
from papa.jobs.starting.data import Data, how_to_split, look_at

MANY_ROWS = 10_000
SMALL_HIDDEN = 768
SMALL_NAMES = re.compile("mini|small|tiny|distil|xs", re.IGNORECASE)

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
    config: PathLike,
    schema: PathLike,
    name: str = "mine",
    model: str | None = None,
    train: PathLike | None = None,
    validation: PathLike | None = None,
    text: str | None = None,
    second: str | None = None,
    label: str | None = None,
) -> dict[str, Any]:
    """Write a commented config to the new file `config`; return what was chosen, why, and what to do next.

    Without `train` paths and columns are examples to replace. With it columns that are not given are guessed from
    their names and values. Raises `InputError` where the file is there already, a name or model cannot be one, or the
    data cannot be read or has no such columns; nothing is written then.
    """
    import yaml

    path = Path(config)
    if path.exists():
        raise InputError(f"{path} is there already and is never overwritten; give another FILE, or delete it.")
    if not re.fullmatch(NAME, name):
        raise InputError(
            f"{name!r} cannot be a name: names are 1 to 64 characters out of a-z, 0-9, _ and -, and begin with a "
            "letter or digit."
        )
    if train is None and (validation or text or second or label):
        raise InputError("Columns and validation texts need training texts to look at; add --train FILE.")
    data = EXAMPLE if train is None else look_at(train, validation, {"first": text, "second": second, "label": label})
    written = text_of(name, model or "google-bert/bert-base-uncased", data)
    checked(yaml.safe_load(written), str(schema))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(written)
    except OSError as error:
        raise InputError(f"{path} could not be written ({error.strerror}).") from error
    missing = [split for split, own in data.files.items() if not os.path.isfile(own)]
    return {
        "config": str(path),
        "files": data.files,
        "columns": data.columns,
        "slots": data.slots,
        "metric": data.metric,
        "reasons": data.reasons,
        "missing_files": {split: data.files[split] for split in missing},
        "to_split": how_to_split(data.files) if missing == ["validation"] else None,
        "next": [f"papa plan {path}", f"snakemake --cores 2 --configfile {path}"],
    }


def text_of(name: str, model: str, data: Data) -> str:
    """The config as text."""
    place, hidden = _model(model)
    small = hidden < SMALL_HIDDEN if hidden else bool(SMALL_NAMES.search(model))
    rate, epochs = _training(small, data.rows)
    own = _name(Path(model).name, "model")
    task = "masked" if data.masked else _name(data.columns["label"], "task")
    why = data.reasons
    texts = [
        f"    {key}: {_scalar(data.columns[key])}  # {why[key]}"
        for key in ("first", "second", "words")
        if key in data.columns
    ]
    if data.masked:
        texts = ["    blocks: true  # running text"]
    if data.names:
        texts.append(f"    columns: {json.dumps(data.names, ensure_ascii=False)}  # of a file without a header")
    labelled = [] if data.masked else [f"    label: {_scalar(data.columns['label'])}  # {why['label']}"]
    files = [f"      {split}: {_scalar(path)}" for split, path in data.files.items()]
    above = [f"    # {why['files']}"] if "files" in why else []
    return "\n".join(
        [
            "# How much does this model rely on attention that depends on its input? All keys: config/README.md.",
            "# First `papa plan` on this file, which says what it takes; then snakemake --cores N --configfile on it.",
            f"name: {name}  # results go to results/{name}/",
            "",
            "run:",
            f"  models: [{own}]",
            f"  tasks: [{task}]",
            "  # of heads that keep their attention; the others get its average over the training texts",
            '  fractions: ["1", "1/2", "1/8", "0"]',
            "  seeds: [1, 2, 3]  # a probe for each; scores come with an interval over them",
            "",
            "models:",
            f"  {own}: {{{place}}}  # an encoder of the BERT, RoBERTa, ELECTRA or (first) DeBERTa family",
            "",
            "corpora:",
            "  texts:",
            *above,
            "    files:",
            *files,
            *texts,
            f"    slots: {data.slots}  # {why['slots']}",
            "",
            "tasks:",
            f"  {task}:",
            "    corpus: texts",
            *labelled,
            f"    metric: {data.metric}  # {why['metric']}",
            f"    learning_rate: {rate}  # of probes: a first guess for a {'small' if small else 'BASE'} model; search "
            "on training rows",
            "    batch_size: 16",
            f"    epochs: {epochs}",
            "",
        ]
    )


def _model(model: str) -> tuple[str, int]:
    """The key of a model and its value, and the size of its hidden states where its folder tells (0 elsewhere)."""
    if os.path.isdir(model):
        try:
            config = json.loads(Path(model, "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{model} is a folder without a config.json that can be read, so it is no model; give one that "
                "save_pretrained wrote."
            ) from error
        return f"path: {_scalar(model)}", int(config.get("hidden_size", 0)) if isinstance(config, dict) else 0
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", model, re.ASCII):
        raise InputError(f"{model!r} is neither a folder here nor an id on the hub, owner/name.")
    return f"hub: {_scalar(model)}", 0


def _name(text: str, otherwise: str) -> str:
    """What a model or a task may be called after its id, folder or column, in tables and paths."""
    name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:64].strip("-")
    # what YAML would not read as a text, or what every column of labels is called, is no name
    said = name[:1].isalpha() and _scalar(name) == name and name not in ("label", "labels")
    return name if said else otherwise


def _training(small: bool, rows: int) -> tuple[str, int]:
    """Learning rate and epochs: the paper's for BASE models, ours for smaller ones; less for many rows."""
    if small:
        return ("3.0e-4", 3) if rows >= MANY_ROWS else ("1.0e-3", 6)
    return ("1.0e-4", 4) if rows >= MANY_ROWS else ("2.0e-5", 15)


def _scalar(text: str) -> str:
    """A text as YAML, in quotes where it needs them."""
    plain = re.fullmatch(r"[A-Za-z_./][\w./-]*", text, re.ASCII) and text.lower() not in (
        "y",
        "n",
        "yes",
        "no",
        "on",
        "off",
        "true",
        "false",
        "null",
    )
    return text if plain else json.dumps(text, ensure_ascii=False)
