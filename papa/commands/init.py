"""`papa init`: write a first config for one model and one local data set, with a reason for each choice.

One template makes the file of `papa init` and the config of `papa.measure`.
"""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files as resources
from numbers import Integral
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined
from rich.console import Console

from papa.config.measures import METRICS
from papa.config.reading import UNPRINTABLE, config_of
from papa.config.settings import Config, Machine
from papa.config.variant import CONTEXT_FREE
from papa.data.choose import DataSet, data_in_files
from papa.data.hub import folder_of
from papa.data.splits import ANYTHING, Wanted
from papa.data.weights import Facts, facts_in, facts_on_hub, folder_in_package, named
from papa.errors import WARNING, InputError
from papa.files import PathLike
from papa.run.start import argument

MEANINGLESS = re.compile(
    "models?|checkpoint.*|snapshots?|final|best|output|[0-9a-f]{40}|data|datasets?|corpus|train(ing)?|validation|dev|"
    ".|(gold-)?labels?|class|category|target|tags?|entity|column-?[0-9]*|on|off|yes|no|true|false|null|y|n"
)
"""Common names of files, folders and columns that do not identify a model or a task."""
MANY_ROWS = 10_000
BASE_HIDDEN_SIZE = 768
TRAINING = {
    (True, True): (3e-4, 3),
    (True, False): (1e-3, 6),
    (False, True): (1e-4, 4),
    (False, False): (2e-5, 15),
}
"""Learning rate and epochs of probes, by whether the model is small and whether there are many rows."""
EXAMPLE_MODEL = "google-bert/bert-base-uncased"
FRACTIONS = (1, "1/2", "1/8", 0)
SEEDS = (1, 2, 3, 4, 5)
EXAMPLE_FILES = {"train": "data/train.csv", "validation": "data/validation.csv"}
EXAMPLE_DATA = DataSet(
    EXAMPLE_FILES, {"first": "text", "label": "label"}, "accuracy", 1, {"slots": "example"}, 64
)
"""Files and columns to replace, if there are no training texts."""


def start(
    path: Path,
    model: str | None = None,
    train: PathLike | None = None,
    validation: PathLike | None = None,
    wanted: Wanted = ANYTHING,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a commented config to a new file, and return the choices, their reasons, and the next commands.

    Args:
        path: the file to write; the config is named after it. It has absolute paths if it is in another folder.
        model: a hub id, a folder or an installed package.
        train, validation: the files; validation texts that are not given are those of `data_in_files`. Without training
            texts, paths and columns are examples to replace. If rows are held out or dropped, the others are written to
            NAME.train.parquet and NAME.validation.parquet.
        wanted: requests about columns, rows and labels.
        settings: values to use instead of the chosen ones: seeds, fractions, slots; and the order of heads.

    Raises:
        InputError: the file exists; the model does not exist; or the data cannot be read or a choice is not certain.
    """
    settings = settings or {}
    _check_new([path])
    if train is None and (validation or wanted != ANYTHING):
        raise InputError("Options about texts were given without training texts; add --train FILE.")
    folder, facts = (None, {}) if model is None else _model(model)
    if train is None:
        data = replace(EXAMPLE_DATA, slots=settings.get("slots", EXAMPLE_DATA.slots))
    else:
        data = data_in_files(train, validation, wanted, path.parent / f"{path.stem}.{{}}.parquet")
        data = data.fitted(facts, folder, settings.get("slots"))
        _check_new(data.files[split] for split in data.unwritten)
    if path.parent.resolve() != Path.cwd():
        files = {split: os.path.abspath(file) for split, file in data.files.items()}
        data = replace(data, files=files)
        model = os.path.abspath(model) if model and os.path.isdir(model) else model
    name = re.sub("[^a-z0-9_-]+", "-", path.stem.lower()).strip("-_")[:64] or "mine"
    text = config_text(name, model or EXAMPLE_MODEL, data, facts, settings)
    # a config that `papa run` would refuse must not be written
    config_of(yaml.safe_load(text))
    _write(path, text, data)
    shown = ["line", "files", "columns", "slots", "metric", "reasons", "notes"]
    missing = {split: file for split, file in data.files.items() if not os.path.isfile(file)}
    config = argument(path)
    return {
        "config": str(path),
        **{name: getattr(data, name) for name in shown},
        "missing_files": missing,
        "next": [shlex.join(["papa", "plan", config]), shlex.join(["papa", "run", config])],
    }


def _check_new(files: Iterable[PathLike]) -> None:
    """Raise `InputError` if a file exists."""
    for file in files:
        if os.path.exists(file):
            raise InputError(
                f"{file} exists, and papa never overwrites a file; give another FILE, or delete it."
            )


def _write(path: Path, text: str, data: DataSet) -> None:
    """Write a config and the files of its data, or none of them."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # the config last: if it exists, its data exist, too
        data.write()
        # a file that has appeared since the check is not overwritten, either
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except (OSError, InputError) as error:
        for split in data.unwritten:  # there were no such files before
            with suppress(OSError):
                os.unlink(data.files[split])
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} could not be written ({error.strerror}); give another FILE."
        ) from error


def _model(model: str) -> tuple[PathLike | None, Facts]:
    """Return the folder of a model if it is on this machine, and the content of its config.json if it is known."""
    location = named(model)
    if "hub" in location:
        return folder_of("model", model, None, Machine()), facts_on_hub(model)
    folder = location.get("path") or folder_in_package(location.get("package", ""))
    return folder, facts_in(folder) if folder else {}


# -- the config -------------------------------------------------------------------------------------------------------


def config_text(
    name: str, model: str, data: DataSet, facts: Facts, settings: Mapping[str, Any]
) -> str:
    """Return a config as YAML, with reasons as comments; see `start` for its arguments."""
    width = facts.get("hidden_size")
    probed = METRICS[data.metric].target.probed
    small = isinstance(width, int) and width < BASE_HIDDEN_SIZE
    rate, epochs = TRAINING[small, data.training_rows >= MANY_ROWS] if probed else (1e-2, 1)
    if not probed and settings.get("seeds"):
        raise InputError("Nothing is trained here, so seeds has no effect; leave it out.")
    environment = Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
        keep_trailing_newline=True,
    )
    environment.filters["yaml"] = _on_one_line
    file = resources("papa.commands") / "study.yaml.jinja"
    template = environment.from_string(file.read_text("utf-8"))
    parts = Path(model).resolve().parts if os.path.isdir(model) else model.split("/")
    names = {"name": name, "model": _first_name(parts[::-1]) or "encoder", "task": _task_name(data)}
    chosen = {"fractions": FRACTIONS, "seeds": SEEDS, "order": None} | dict(settings)
    training = {"rate": rate, "epochs": epochs, "small": small, "probed": probed}
    reasons = defaultdict(str, data.reasons)
    return template.render(
        names | chosen | training,
        location=named(model),
        data=data,
        reasons=reasons,
        floors=CONTEXT_FREE,
        resamples=Config.model_fields["resamples"].default,
    )


def _on_one_line(value: object) -> str:
    """Return a value, or a list of values, as YAML."""
    content = _plain(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        content = list(map(_plain, value))
    # in a list, whose brackets are cut off, because YAML ends a lone scalar with a document marker
    text = yaml.safe_dump([content], default_flow_style=True, allow_unicode=True, width=10**9)
    return text.strip()[1:-1]


def _plain(value: object) -> object:
    """Return a value of a type that YAML has; NumPy's integers become int, and a Fraction becomes text."""
    if type(value) in yaml.SafeDumper.yaml_representers:
        return value
    return int(value) if isinstance(value, Integral) else str(value)


def _printable(text: object) -> str:
    return UNPRINTABLE.sub("·", str(text))  # these could control a terminal or end a comment


def _task_name(data: DataSet) -> str:
    label = data.columns.get("label")
    train = Path(data.files["train"])
    stem = re.sub("[._-]?(train(ing)?|dev)", "", train.stem, flags=re.IGNORECASE)
    # only a folder that the user named
    return (
        _first_name([label, stem, train.parent.name] if label else [])
        or METRICS[data.metric].task_name
    )


def _first_name(guesses: Sequence[str]) -> str:
    """Turn the first suitable guess into a name for tables and paths; empty if none is suitable."""
    for guess in guesses:
        plain = unicodedata.normalize("NFKD", guess).encode("ascii", "ignore").decode().lower()
        name = re.sub("[^a-z0-9]+", "-", plain).strip("-")[:64].strip("-")
        if re.search("[a-z]", name) and not MEANINGLESS.fullmatch(name):
            return name
    return ""


def print_started(config: Mapping[str, Any], out: Console) -> None:
    """Print the choices of `start`, and the next commands."""

    def say(line: str, style: str = "") -> None:
        # a command must stay on one line to be copied
        out.print(_printable(line), style=style, soft_wrap=True)

    say(f"Wrote {config['config']}", "bold green")
    say(f"  {config['line']}")
    for note in config["notes"]:
        say(f"  {note}", "yellow" if note.startswith(WARNING) else "")
    if missing := config["missing_files"]:
        files = ", ".join(missing.values())
        say(
            f"Not found: {files}. Add what is missing, or change the paths in the config.", "yellow"
        )
    say("Next:")
    for command in config["next"]:
        say(f"  {command}")
