"""`papa.measure` and `papa measure`: run a study's jobs in this process, without the workflow.

The study has an ordinary config and ordinary results, so `papa inspect`, `papa compare` and the workflow can read them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict, TypeGuard, Unpack, cast

from papa.config.freshness import FRESH
from papa.config.job import AnyJob, Job
from papa.config.reading import config_of
from papa.config.settings import FORMATS, Config, Machine, check_files
from papa.config.stages import ModelId
from papa.config.study import Plan
from papa.data.columns import Columns
from papa.data.hub import with_snapshots
from papa.data.local_digests import LocalSourceDigests
from papa.data.named import named
from papa.data.readers import SourceRows
from papa.data.splits import RowChanges, columns_of_table, is_table
from papa.errors import InputError
from papa.files import PathLike
from papa.jobs.init import (
    Data,
    as_config,
    choices_of,
    columns_of,
    describe,
    facts_of,
    look_at,
    validation_file,
    with_settings,
)
from papa.jobs.stage import performed
from papa.jobs.start import lock
from papa.model.load import keeping_models, saved
from papa.results.study_results import Study

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset
    from transformers import PreTrainedModel

Texts: TypeAlias = Sequence[str] | Sequence[tuple[str, str]] | Sequence[Sequence[str]]
"""Texts, pairs of texts (tuples), or lists of words."""
Labels: TypeAlias = Sequence[str] | Sequence[int] | Sequence[Sequence[str]] | Sequence[Sequence[int]]
"""One label per text or pair, or one list of labels per list of words."""
Source: TypeAlias = "Texts | pd.DataFrame | Dataset | PathLike"
"""Texts in a list, a table or a file."""

HELD_OUT = "1/5"
"""If no validation texts are given, this share of the distinct texts is held out."""


SETTINGS = ("seeds", "fractions", "slots", "order")
"""Arguments of `measure` that are keys of the config."""


class MeasureOptions(TypedDict, total=False):
    """More arguments of `measure`."""

    columns: Mapping[str, str]
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
    """Measure how much a model needs input-dependent attention: run a whole study in this process.

    All results equal those of the workflow with the same config. By default, papa trains probes with five seeds, and
    keeps the attention of all, 1/2, 1/8 or none of the heads in turn.

    Args:
        model: a hub id, a folder, an installed package, or a loaded transformers model, whose tokenizer is loaded from
            its `name_or_path`.
        train: texts for averaging attention and for training λ and probes: a list, a table (a pandas DataFrame or a
            `datasets.Dataset`), or a file.
        labels: for a list, one label per text, or one list of labels per list of words. Without labels, a decoder is
            measured by the loss of its prediction head, and an encoder by masked language modelling.
        validation: texts and their labels, or only texts if there are no labels; or another table or file. By default,
            a random fifth of the training texts is held out; for a file, only if there is no similar file, such as
            validation.csv for train.csv.
        settings: config keys to change, such as `{"run": {"orders": ["lambda", "random"]}, "margin": 0.05}`. Below
            `models`, `tasks` and `corpora`, leave out the name, because there is only one: `{"tasks": {"epochs": 3}}`.
        folder: folder for the results; finished jobs of the same study are not run again. By default a temporary
            folder, which is deleted together with the returned object.
        options: `columns`, the columns of a table or a file by role: first, second (for pairs) and label. A table needs
            them, for a file papa guesses the others. `hold_out`, the share of texts to hold out, such as 0.2.
            `drop_empty`, whether rows without text or label are dropped and counted. `seeds`, `fractions` and `slots`,
            the keys of the config with these names. `order`, the order of heads, such as "gradient".

    Raises:
        InputError: the model, the texts or a setting cannot be used, or another run is writing to the folder.

    >>> study = papa.measure("sentence-transformers/all-MiniLM-L6-v2", texts, labels, seeds=[1, 2])  # doctest: +SKIP
    >>> print(study.claims)  # doctest: +SKIP
    """
    if unknown := options.keys() - MeasureOptions.__annotations__:
        raise InputError(f"measure has no {min(unknown)}; it has {', '.join(MeasureOptions.__annotations__)}.")
    temporary = tempfile.TemporaryDirectory(prefix="papa-") if folder is None else None
    results = Path(temporary.name if temporary else os.fspath(folder or "")).absolute()
    if isinstance(model, str):
        named(model)  # a wrong name fails before texts are read
    data = _data_of(train, labels, validation, results / "data", options)
    with os.fdopen(lock(results)):
        data.write()
        location = os.fspath(model) if isinstance(model, str | os.PathLike) else saved(model, results / "model")
        for note in data.notes:
            print(note, file=sys.stderr)
        chosen = {name: value for name, value in options.items() if name in SETTINGS}
        config = _config(location, data, settings or {}, chosen)
        check_files(config)
        study = Plan(config, results, LocalSourceDigests(config.machine))
        study.check_weights()
        run_here(study)
        return Study(results, config, temporary)


def run_here(study: Plan, *targets: AnyJob) -> None:
    """Run all outdated jobs of a study in this process; if there are `targets`, only these and their dependencies.

    A job runs after its dependencies, and all jobs share one copy of each model.
    """
    waiting = [job for job in study.jobs(*targets) if study.state(job) != FRESH]
    machine = with_snapshots(study.config.machine, waiting, print)
    with keeping_models():
        for number, job in enumerate(waiting, 1):
            begin = time.monotonic()
            result = performed(_placed(study, job, machine))
            if "ipykernel" not in sys.modules:  # a notebook would keep each line as an output of the cell
                name = " ".join([job.rule, *job.wildcards.values()])
                line = f"{number} of {len(waiting)}, {name}: {result} ({time.monotonic() - begin:.0f} s)"
                print(line, file=sys.stderr, flush=True)


def _placed(study: Plan, job: AnyJob, machine: Machine) -> AnyJob:
    """Rebuild a job from its plain parameters, as a workflow process does, with its paths in the results folder."""
    placed = job.placed(study.results)
    return Job.of(study.parameters(job), placed.inputs, placed.outputs, machine)


# -- the config and the texts -----------------------------------------------------------------------------------------


def _config(model: str, data: Data, settings: Mapping[str, object], options: Mapping[str, object]) -> Config:
    """Return the config that `papa init` would write for this model and data, with some settings changed."""
    from papa.data.tokenize import is_decoder

    facts = facts_of(model)
    data = data.within(facts)
    if "label" not in data.columns:
        probed = as_config(choices_of("study", model, data, facts))
        config, (name,) = config_of(probed), probed["models"]
        if is_decoder(ModelId.of(name, config.models[name]), config.machine):
            data = data.for_decoder()
    values = as_config(with_settings(choices_of("study", model, data, facts), options))
    for key, value in settings.items():
        if not isinstance(value, Mapping):
            values[key] = value
        elif key in ("models", "tasks", "corpora"):
            (only,) = values[key].values()
            only |= value
        else:
            values[key] = values.get(key, {}) | dict(value)
    return config_of(values)


def _data_of(
    train: Source,
    labels: Labels | None,
    validation: tuple[Texts, Labels] | Source | None,
    target: Path,
    options: MeasureOptions,
) -> Data:
    """Return the columns, slots and metric for texts in lists, tables or files.

    Texts that are in no file, and texts whose rows change, are to be written to the folder `target`.
    """
    roles, changes = (
        options.get("columns", {}),
        RowChanges.of(options.get("hold_out"), options.get("drop_empty", False)),
    )
    asked = columns_of([f"{role}={column}" for role, column in roles.items()])
    if _is_file(train):
        if labels is not None or not (validation is None or _is_file(validation)):
            raise InputError("Training texts are in a file, so labels and validation texts must be in files, too.")
        if validation is None and not changes.hold_out and not validation_file(train).is_file():
            changes = replace(changes, hold_out=Fraction(HELD_OUT))
        return look_at(train, validation, asked, changes, target / "{}.parquet")
    splits = {"train": _columns("train", train, labels, roles)}
    if validation is None:
        changes = replace(changes, hold_out=changes.hold_out or Fraction(HELD_OUT))
    elif changes.hold_out:
        raise InputError("Both validation texts and a share to hold out were given; give only one.")
    else:
        splits["validation"] = _validation(validation, labels is not None, roles)
    names = roles or {name: name for name in splits["train"].rows.table.column_names}
    if "label" not in names and set(names) != {"first"}:
        raise InputError("Pairs of texts or lists of words were given without labels; give labels, or single texts.")
    if "label" in names and splits["train"].is_list(names["first"]):
        names = {"words": names["first"]} | {"label": names["label"]}
    splits, notes = changes.applied(splits, names)
    files = {split: str(target / f"{split}.parquet") for split in splits}
    data = describe(splits, files, names, dict.fromkeys(names, "as given"))
    shown = notes if changes.drop_empty or options.get("hold_out") else ()
    return replace(data, notes=shown, unwritten={split: columns.rows for split, columns in splits.items()})


def _is_file(texts: object) -> TypeGuard[PathLike]:
    """Return whether texts are given as a file, by its path."""
    if isinstance(texts, str):
        return Path(texts).suffix.lower() in FORMATS or os.path.isfile(texts)
    return isinstance(texts, os.PathLike)


def _validation(validation: tuple[Texts, Labels] | Source, labelled: bool, roles: Mapping[str, str]) -> Columns:
    """Return the columns of the validation split, which has the form of the training split."""
    if not labelled:
        return _columns("validation", cast("Source", validation), None, roles)
    if not (isinstance(validation, tuple) and len(validation) == 2):
        raise InputError(
            f"With labels, validation must be a pair (texts, labels); a {type(validation).__name__} was given."
        )
    texts, labels = cast("tuple[Texts, Labels]", validation)
    return _columns("validation", texts, labels, roles)


def _columns(split: str, texts: Source, labels: Labels | None, roles: Mapping[str, str]) -> Columns:
    """Return texts and labels as columns; raise `InputError` if they do not match."""
    import pyarrow as pa

    if is_table(texts):
        if labels is not None:
            raise InputError(f"{split} is a table, so its labels must be in a column; give columns={{'label': NAME}}.")
        return columns_of_table(split, texts, roles.values())
    if roles:
        raise InputError(f"{split} is a {type(texts).__name__}, so it has no columns; leave out `columns`.")
    columns = _lists(split, texts)
    if isinstance(labels, str):
        raise InputError(f"labels is the single text {labels!r}; give one label per text, or a table and its columns.")
    if labels is not None:
        rows = len(next(iter(columns.values())))
        if rows != len(labels):
            raise InputError(f"{split} has {rows} texts but {len(labels)} labels; give one label per text.")
        columns["label"] = list(labels)
    try:
        table = pa.table(columns)
    except pa.ArrowException as error:
        raise InputError(f"All texts must have one type, and all labels one type ({error}).") from error
    return Columns(split, SourceRows(table, table.column_names))


def _lists(split: str, texts: object) -> dict[str, list[object]]:
    """Return texts, pairs of texts or lists of words as columns."""
    listed: list[object] = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else []
    if not listed:
        problem = "is a single text" if isinstance(texts, str) else "is empty"
        raise InputError(f"{split} {problem}; give a list of texts, of pairs of texts or of lists of words.")
    if isinstance(listed[0], str) and all(text is None or isinstance(text, str) for text in listed):
        return {"first": listed}
    if all(isinstance(text, tuple) and len(text) == 2 for text in listed):
        pairs = cast(list[tuple[str, str]], listed)
        return {"first": [first for first, _ in pairs], "second": [second for _, second in pairs]}
    if all(isinstance(text, list) and all(isinstance(word, str) for word in text) for text in listed):
        return {"words": listed}
    index, other = next(pair for pair in enumerate(listed) if not isinstance(pair[1], type(listed[0])))
    raise InputError(
        f"{split} must contain only texts, only tuples of two texts, or only lists of words; {split}[{index}] is a "
        f"{type(other).__name__}."
    )
