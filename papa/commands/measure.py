"""`papa.measure` and `papa measure`: run a study's jobs in this process, without the workflow.

The study has an ordinary config and ordinary results, so `papa inspect`, `papa compare` and the workflow can read them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeGuard, Unpack, cast

import yaml

from papa.commands.init import config_text
from papa.config.reading import config_of
from papa.config.settings import FORMATS, Config, FolderModel, Machine
from papa.data.choose import DataSet, data_in_files, described
from papa.data.columns import Columns
from papa.data.hub import fetch, folder_of
from papa.data.splits import Wanted, columns_of_table, is_table, write_rows
from papa.data.weights import facts_in, locate, model_source, named
from papa.errors import WARNING, InputError
from papa.files import PathLike
from papa.model.load import keeping_models, saved
from papa.plan.study import Plan, read_plan
from papa.results.study_results import Study, load
from papa.run.execute import run
from papa.run.start import lock

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset
    from transformers import PreTrainedModel

Texts: TypeAlias = Sequence[str] | Sequence[tuple[str, str]] | Sequence[Sequence[str]]
Labels: TypeAlias = (
    Sequence[str] | Sequence[int] | Sequence[Sequence[str]] | Sequence[Sequence[int]]
)
Source: TypeAlias = "Texts | pd.DataFrame | Dataset | PathLike"
"""Texts, pairs of texts (tuples) or lists of words, with a label for each word; in a list, a table or a file."""
HELD_OUT = "1/5"
"""If no validation texts are given, this share of the distinct texts is held out."""


class MeasureOptions(TypedDict, total=False):
    """More arguments of `measure`."""

    columns: Mapping[str, str]
    label_names: Sequence[str]
    hold_out: float | str
    drop_empty: bool
    seeds: Sequence[int]
    fractions: Sequence[float | str]
    slots: int
    order: str


def measure(
    model: PathLike | PreTrainedModel,
    train: Source,
    labels: Labels | None = None,
    validation: tuple[Texts, Labels] | Source | None = None,
    settings: Mapping[str, object] | None = None,
    folder: PathLike | None = None,
    **options: Unpack[MeasureOptions],
) -> Study:
    """Measure how much a model relies on input-dependent attention: run a whole study in this process.

    Results equal those of the workflow with the same config. By default, papa trains probes with five seeds, and keeps
    the attention of all, 1/2, 1/8 or none of the heads in turn.

    Args:
        model: a hub id, a folder, an installed package, or a loaded transformers model, whose tokenizer is loaded from
            its `name_or_path`.
        train: training texts: a list, a table (a pandas DataFrame or a `datasets.Dataset`), or a file.
        labels: for a list, one label per text, or one list of labels per list of words. Without labels, a decoder is
            measured by the loss of its prediction head, and an encoder by masked language modelling.
        validation: texts and their labels, or only texts if there are no labels; or another table or file. By default,
            a random fifth of the training texts is held out; for a file, only if none beside it has validation, valid,
            val, dev or test in its name in place of train.
        settings: config keys to change, such as `{"run": {"orders": ["lambda", "random"]}, "margin": 0.05}`. Below
            `models`, `tasks` and `corpora`, leave out the name, because there is only one: `{"tasks": {"epochs": 3}}`.
        folder: folder for the results, whose finished jobs are not run again; by default a temporary folder, which is
            deleted together with the returned object.
        options: `columns` by role: first, second (for pairs) and label, or only text for running text without labels; a
            table needs them, for a file papa chooses the others or asks. `label_names`, the classes in order, needed if
            -1 is one. `hold_out`, the share of texts to hold out, such as 0.2. `drop_empty`, whether rows without text
            or label are dropped and counted. `seeds`, `fractions` and `slots`, the keys of the config. `order`, the
            order of heads, such as "gradient".

    Raises:
        InputError: the model, the texts or a setting cannot be used, the folder has results of another model or of
            other texts, or another run is writing to it.

    >>> study = papa.measure("sentence-transformers/all-MiniLM-L6-v2", texts, labels, seeds=[1, 2])  # doctest: +SKIP
    >>> print(study.claims)  # doctest: +SKIP
    """
    if unknown := options.keys() - MeasureOptions.__annotations__:
        raise InputError(
            f"measure has no {min(unknown)}; it has {', '.join(MeasureOptions.__annotations__)}."
        )
    temporary = tempfile.TemporaryDirectory(prefix="papa-") if folder is None else None
    results = Path(temporary.name if temporary else folder or "").absolute()
    if isinstance(model, str):
        named(model)  # a wrong name fails before texts are read
    data = _data_of(train, labels, validation, results / "data", options)
    with ExitStack() as held:
        for file in lock(results, results / "cache"):
            # unlike `papa run`, the process continues, so locks have to be given back
            held.callback(os.close, file)
        config, chosen = _config(_location(model, results), data, settings or {}, options)
        run_here(_plan(config, chosen, results))
        return replace(load(results), _temporary=temporary)


def _plan(config: Config, data: DataSet, results: Path) -> Plan:
    """Write the texts of a data set that are in no file, and return the plan of the study.

    Raises:
        InputError: the folder has results of another model or of other texts.
    """
    has_results = (results / "tables").is_dir()
    # before anything is written, because earlier results need their rows
    if has_results and not _is_written(data):
        raise _another_study(results)
    data.write()
    say = partial(print, file=sys.stderr)  # stdout may be JSON
    for line in (data.line, *data.notes):
        say(line)
    machine = fetch(config, config.machine, say)
    study = Plan(config, results, machine, cache=results / "cache")
    if has_results and not _shares_sources(study.content(), read_plan(results)):
        raise _another_study(results)
    return study


def run_here(study: Plan) -> None:
    """Run all batches of a plan in this process, in order; they share one copy of each model."""
    study.write()
    for text in study.warnings:
        print(f"{WARNING}{text}", file=sys.stderr)
    with keeping_models():
        for number, batch in enumerate(study.missing, 1):
            begin = time.monotonic()
            result = run(batch, study.results)
            seconds = time.monotonic() - begin
            # a notebook would keep each line as an output of the cell
            if "ipykernel" not in sys.modules:
                job = f"{number} of {len(study.missing)}, {batch.rule} {batch.name}"
                print(f"{job}: {result} ({seconds:.0f} s)", file=sys.stderr, flush=True)


def _is_written(data: DataSet) -> bool:
    """Return whether the rows that have to be written are those that an earlier study of the folder has written."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(prefix="papa-") as folder:
        for split, rows in data.unwritten.items():
            written = Path(data.files[split])
            again = Path(folder, "rows.parquet")
            # compared as read back, because Parquet changes types, such as the names of items of lists
            write_rows(again, rows)
            if written.is_file() and not pq.read_table(written).equals(pq.read_table(again)):
                return False
    return True


def _shares_sources(plan: Mapping[str, Any], earlier: Mapping[str, Any]) -> bool:
    """Return whether two plans are of the same model, texts and labels; a study may get other settings later."""
    for source in ("model", "texts", "labels"):
        ours, theirs = (
            {made["inputs"].get(source) for made in each["artefacts"]} - {None}
            for each in (plan, earlier)
        )
        if ours and theirs and ours.isdisjoint(theirs):
            return False
    return True


def _location(model: PathLike | PreTrainedModel, results: Path) -> str:
    """Return the place of a model; a loaded one is saved in the results folder unless it is there.

    Raises:
        InputError: the folder has another model, of an earlier study.
    """
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    folder = results / "model"
    results.mkdir(parents=True, exist_ok=True)
    # next to its place, because a folder cannot be renamed to another disk
    with tempfile.TemporaryDirectory(prefix="model-", dir=results) as new:
        copy = Path(new, "model")
        saved(model, copy)
        if folder.is_dir() and _digest(copy) == _digest(folder):
            return str(folder)
        if (results / "tables").is_dir():
            raise _another_study(results)
        if folder.is_dir():  # of a study that failed
            os.replace(folder, Path(new, "earlier"))
        os.replace(copy, folder)
    return str(folder)


def _digest(folder: Path) -> str:
    return model_source("model", FolderModel(path=str(folder)), Machine()).digest


def _another_study(results: Path) -> InputError:
    return InputError(
        f"{results} has results of another model or of other texts, which would be replaced; give another folder "
        "(--folder), or delete this one."
    )


# -- the config and the texts -----------------------------------------------------------------------------------------


def _config(
    model: str, data: DataSet, settings: Mapping[str, Any], options: MeasureOptions
) -> tuple[Config, DataSet]:
    """Return the config that `papa init` would write for this model, with some settings changed, and the data set."""
    blocks = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    revision = blocks.get("models", {}).get("revision")
    machine = Machine(hub_mirror=settings.get("hub_mirror"))
    folder = ("hub" in named(model) and folder_of("model", model, revision, machine)) or locate(
        model, revision
    )
    facts = facts_in(folder)
    data = data.fitted(facts, folder, options.get("slots", blocks.get("corpora", {}).get("slots")))
    values = yaml.safe_load(config_text("study", model, data, facts, options))
    for key, value in settings.items():
        if key in blocks and key in ("models", "tasks", "corpora"):
            (only,) = values[key].values()
            only |= value
        else:
            values[key] = values.get(key, {}) | dict(value) if key in blocks else value
    return config_of(values), data


def _data_of(
    train: Source,
    labels: Labels | None,
    validation: tuple[Texts, Labels] | Source | None,
    target: Path,
    options: MeasureOptions,
) -> DataSet:
    """Return the columns and the metric; texts that are in no file are to be written to the folder `target`."""
    share = options.get("hold_out")
    names = _class_names(options.get("label_names"))
    roles = dict(options.get("columns", {}))
    wanted = Wanted(roles, share, options.get("drop_empty", False), names)
    if _is_file(train):
        if labels is not None or not (validation is None or _is_file(validation)):
            raise InputError(
                "Training texts are in a file, so labels and validation texts must be in files, too."
            )
        return data_in_files(train, validation, wanted, target / "{}.parquet", HELD_OUT)
    if validation is None:
        wanted = replace(wanted, hold_out=share or HELD_OUT)
    splits = {"train": _columns("train", train, labels, roles)}
    if validation is not None:
        if share:
            raise InputError(
                "Both validation texts and a share to hold out were given; give only one."
            )
        texts, gold = (validation, None) if labels is None else _labelled(validation)
        splits["validation"] = _columns("validation", texts, gold, roles)
    roles = _roles(splits["train"], roles)
    splits, notes = wanted.changed(splits, roles)
    files = {split: str(target / f"{split}.parquet") for split in splits}
    data = described(splits, files, roles, names)
    return replace(data, notes=notes, unwritten=splits)


def _class_names(names: Sequence[object] | None) -> list[str] | None:
    """Return the names of classes as texts; -1 and 1 are also given as numbers, and False as a boolean."""
    if isinstance(names, str):
        raise InputError(
            f"label_names is the single text {names!r}; give a list of all classes in order."
        )
    if names is None:
        return None
    return [str(name).lower() if isinstance(name, bool) else str(name) for name in names]


def _labelled(validation: object) -> tuple[Texts, Labels]:
    """Return validation texts and their labels."""
    if isinstance(validation, tuple) and len(validation) == 2:
        return validation
    given = type(validation).__name__
    raise InputError(
        f"With labels, validation must be a pair (texts, labels); a {given} was given."
    )


def _roles(train: Columns, given: dict[str, str]) -> dict[str, str]:
    """Return columns by role: those that were `given` for a table, or those of lists."""
    if "text" in given:
        return {"first": given["text"]}
    roles = given or {name: name for name in train.table.column_names}
    if "label" not in roles and set(roles) != {"first"}:
        raise InputError(
            "Pairs of texts or lists of words were given without labels; give labels, or single texts."
        )
    texts = roles.get("words") or roles.get("first")
    if texts is None:
        raise InputError(
            "`columns` names no column of texts; give first=, as in columns={'first': NAME}."
        )
    if "label" in roles and train.is_list(texts):
        others = {role: name for role, name in roles.items() if name != texts}
        return {"words": texts} | others
    return roles


def _is_file(texts: object) -> TypeGuard[PathLike]:
    """Return whether texts are given as a file, by its path."""
    if isinstance(texts, str):
        return Path(texts).suffix.lower() in FORMATS or os.path.isfile(texts)
    return isinstance(texts, os.PathLike)


def _columns(split: str, texts: Source, labels: Labels | None, roles: Mapping[str, str]) -> Columns:
    """Return texts and labels as columns; raise `InputError` if they do not match."""
    import pyarrow as pa

    if is_table(texts):
        if labels is not None:
            raise InputError(
                f"{split} is a table, so its labels must be in a column; give columns={{'label': NAME}}."
            )
        return columns_of_table(split, texts, roles.values())
    if roles:
        raise InputError(
            f"{split} is a {type(texts).__name__}, so it has no columns; leave out `columns`."
        )
    columns = _lists(split, texts)
    if isinstance(labels, str):
        raise InputError(
            f"labels is the single text {labels!r}; give one label per text, or a table and its columns."
        )
    if labels is not None:
        rows = len(next(iter(columns.values())))
        if rows != len(labels):
            raise InputError(
                f"{split} has {rows} texts but {len(labels)} labels; give one label per text."
            )
        columns["label"] = list(labels)
    try:
        table = pa.table(columns)
    except pa.ArrowException as error:
        raise InputError(
            f"All texts must have one type, and all labels one type ({error})."
        ) from error
    return Columns(split, table, table.column_names)


def _lists(split: str, texts: object) -> dict[str, list[object]]:
    """Return texts, pairs of texts or lists of words as columns."""
    items: list[object] = (
        list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else []
    )
    if not items:
        problem = "is a single text" if isinstance(texts, str) else "is empty"
        raise InputError(
            f"{split} {problem}; give a list of texts, of pairs of texts or of lists of words."
        )
    if all(text is None or isinstance(text, str) for text in items):
        return {"first": items}
    if all(isinstance(text, tuple) and len(text) == 2 for text in items):
        first, second = zip(*cast(list[tuple[str, str]], items), strict=True)
        return {"first": [*first], "second": [*second]}
    if all(
        isinstance(text, list) and all(isinstance(word, str) for word in text) for text in items
    ):
        return {"words": items}
    others = (pair for pair in enumerate(items) if not isinstance(pair[1], type(items[0])))
    index, other = next(others, (0, items[0]))
    only = f"{split} must contain only texts, only tuples of two texts, or only lists of words"
    raise InputError(f"{only}; {split}[{index}] is a {type(other).__name__}.")
