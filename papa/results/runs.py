"""All runs of a config, with checks that runs which are compared were made alike, and their scores as one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from papa.config.measures import MEASURES
from papa.config.variant import Order
from papa.errors import DamagedArtefact, InputError
from papa.files import MEND, PathLike, read_json
from papa.results.outcomes import ALL, TaskOutcomes
from papa.results.table import read_frame

SPLITS = ("train", "validation")
SETTING_COLUMNS = dict.fromkeys(("model", "task", "title", "constant", "order", "fraction"), "string")
SETTING_COLUMNS |= {"kept": "int64", "heads": "int64"}
READING_COLUMNS = {"metric": "string", "main": "bool", "subset": "string"}
COUNTS = ("rows", "rows_available", "cut")
DATA_COLUMNS = dict.fromkeys(("examples", *(f"{name}_{split}" for name in COUNTS for split in SPLITS)), "int64")
TRAINING_COLUMNS = {"learning_rate": "float64", "batch_size": "int64", "epochs": "int64"}
RUN_COLUMNS = SETTING_COLUMNS | {"seed": "int64"} | READING_COLUMNS | {"score": "float64"}
RUN_COLUMNS |= DATA_COLUMNS | TRAINING_COLUMNS

IDENTITY = ("model", "task", "constant", "order", "fraction", "seed")
"""What tells one run from another."""
OF_TASK = (*TRAINING_COLUMNS, "corpus", "slots", "style", "segments", "encoder_dropout")
ALIKE: dict[tuple[str, ...], tuple[str, ...]] = {
    ("model",): ("weights",),
    ("task",): OF_TASK,
    ("model", "task"): ("style",),
}
"""What all runs of one model, of one task and of one model on one task have in common."""
OF_DECODERS = "contiguous"
"""How decoders lay their texts out, whatever the other models of a task do."""


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Split(_Checked):
    """A number of each split."""

    train: int
    validation: int


class Origin(_Checked):
    """What a run says of its origin; None for what it does not say."""

    weights: str | None = None
    corpus: str | None = None
    slots: int | None = None
    style: str | None = None
    segments: str | None = None
    encoder_dropout: bool | None = None
    papa_version: str | None = None


class RunFile(_Checked):
    """What a run says of itself, as far as tables are made of it."""

    model: str
    task: str
    constant: str | None
    order: str | None
    fraction: Annotated[str, Field(pattern=r"^\d+(/0*[1-9]\d*)?$")]
    kept: int
    heads: int
    seed: int
    curve: list[dict[str, float]]
    rows: Split
    rows_available: Split
    cut: Split
    learning_rate: float
    batch_size: int
    epochs: int
    provenance: Origin


class _RunsFile(_Checked):
    runs: list[RunFile]


def runs_in(path: PathLike) -> list[RunFile]:
    """Read the runs of a variant; raises `DamagedArtefact` if something of them is missing or is no number."""
    try:
        return _RunsFile.model_validate(read_json(path)).runs
    except ValidationError as error:
        first = error.errors()[0]
        name = next(part for part in reversed(first["loc"]) if isinstance(part, str))
        why = "is missing" if first["type"] == "missing" else f"is {first['input']!r}"
        raise DamagedArtefact(f"{path} has no intact runs of papa ({name!r} {why}); {MEND}.") from None


def collect_runs(
    runs: Sequence[tuple[RunFile, PathLike]], measured: Iterable[TaskOutcomes], titles: Mapping[str, str]
) -> pd.DataFrame:
    """The scores of all runs as one table with `RUN_COLUMNS`: a row for each run, metric and subset.

    The score on all validation examples has the subset "all"; the task's own metric is marked by `main`. Subsets and
    further splits are scored by that metric alone.

    Args:
        runs: what each run says of itself, and the file that it is in.
        measured: the outcomes of these runs.
        titles: what tasks are called where people read of them.

    Raises:
        InputError: a run is given twice, or runs that are averaged or compared were not made alike.
    """
    _check_alike(runs)
    about = {tuple(getattr(run, name) for name in IDENTITY): run for run, _ in runs}
    rows: list[dict[str, object]] = []
    for own in measured:
        scores = {
            (metric, name): (MEASURES[metric].score(own.counts(metric, part).sum(1)), own.examples(part))
            for name, part in own.subsets().items()
            for metric in (own.readings if name == ALL else own.readings[:1])
            if part.any()
        }
        for place, run in enumerate(own.runs[["constant", "order", "fraction", "seed"]].itertuples(index=False)):
            told = about[(own.model, own.task, *run)]
            row = told.model_dump(include=set(RUN_COLUMNS)) | {"title": titles.get(own.task, own.task)}
            row |= {f"{name}_{split}": getattr(getattr(told, name), split) for name in COUNTS for split in SPLITS}
            for (metric, name), (score, examples) in scores.items():
                reading = {"metric": metric, "main": metric == own.metric, "subset": name}
                rows.append(row | reading | {"score": float(score[place]), "examples": examples})
    return pd.DataFrame(rows, columns=list(RUN_COLUMNS))


def _check_alike(runs: Sequence[tuple[RunFile, PathLike]]) -> None:
    """Raise `InputError` for the first run that is given again, or that contradicts an earlier one."""
    seen: dict[tuple[object, ...], tuple[PathLike, object]] = {}
    for run, path in runs:
        about = run.model_dump() | run.provenance.model_dump()
        identity = tuple(about[name] for name in IDENTITY)
        if identity in seen:
            raise InputError(f"{path} and {seen[identity][0]} have the same run; give each run once.")
        seen[identity] = path, None
        for owners, name in ((owners, name) for owners, names in ALIKE.items() for name in names):
            if "model" not in owners and name == "style" and about[name] == OF_DECODERS:
                continue
            whose = " and ".join(f"{owner} {about[owner]}" for owner in owners)
            first, expected = seen.setdefault((whose, name), (path, about[name]))
            if about[name] != expected:
                raise InputError(
                    f"{path} has {name} {about[name]!r}, but {first} of the same {whose} has {expected!r}; "
                    "delete the wrong run and run the workflow again."
                )


def read_runs(path: PathLike) -> pd.DataFrame:
    """The table of runs; raises `DamagedArtefact` if it is another table, or empty."""
    return read_frame(path, RUN_COLUMNS, "table of runs")


def undrawn(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with their orders named as if there were one draw of each."""
    orders = runs["order"].map(lambda order: Order.parse(order).base, na_action="ignore")
    return runs.assign(order=orders.astype("str"))  # also where no run has an order
