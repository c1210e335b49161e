"""The runs of a study: the record of each measured point, the files of runs, and a check that runs are comparable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from papa.errors import DamagedArtefact, InputError
from papa.files import REBUILD, PathLike, Trace, read_json, write_json

SPLITS = ("train", "validation")
"""The splits that every corpus has."""
TRAINING_FIELDS = ("learning_rate", "batch_size", "epochs", "resampled")
"""The training settings that a run records."""
IDENTITY_FIELDS = ("model", "task", "constant", "order", "fraction", "seed")
"""The fields that identify a run."""
COMMON_FIELDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("model",): ("weights",),
    ("task",): (*TRAINING_FIELDS, "corpus", "slots", "style", "encoder_dropout"),
    ("model", "task"): ("style",),
}
"""The fields that must be equal in all runs of a model, of a task, and of a model on a task."""
DECODER_STYLE = "contiguous"
"""The layout of decoders, which may differ from that of the task's other models."""


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class SplitCounts(_Record):
    """A count for each split; a corpus may have more splits than these two."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int] = Field(init=False)

    train: int
    validation: int


class Origin(_Record):
    """The origin of a run: weights, texts, layout and version, each None if not recorded."""

    weights: str | None = None
    corpus: str | None = None
    slots: int | None = None
    style: str | None = None
    encoder_dropout: bool | None = None
    papa_version: str | None = None


class Run(_Record):
    """One measured point: a model on a task, with some heads replaced. Its outcomes are in a separate file.

    Args:
        model, task: their names in the config.
        constant, order: their names; None if they are not used.
        fraction: share of heads that keep their attention, such as "1/8".
        kept: number of heads that keep their attention.
        heads: number of heads in the model.
        learning_rate, batch_size, epochs, resampled: the training of the probe; see `papa.config.stages.Training`.
        seed: seed of the probe.
        rows: number of examples in each split; for `train`, those that the probe was trained with.
        rows_available: number of examples in each split without the limits of the config.
        cut: number of examples in each split that were cut to fit the slots.
        curve: mean training loss after each epoch, empty if nothing was trained.
        provenance: the origin of the run.
    """

    model: str
    task: str
    constant: str | None
    order: str | None
    fraction: Annotated[str, Field(pattern=r"^\d+(/0*[1-9]\d*)?$")]
    kept: int
    heads: int
    learning_rate: float
    batch_size: int
    epochs: int
    seed: int
    rows: SplitCounts
    rows_available: SplitCounts
    cut: SplitCounts
    curve: list[dict[str, int | float]]
    provenance: Origin
    resampled: bool = False


class _RunsFile(_Record):
    runs: list[Run]


def write_runs(runs: Sequence[Run], path: PathLike, trace: Trace) -> None:
    """Write the runs of a variant, one for each seed."""
    records = [run.model_dump(exclude_defaults=True) for run in runs]
    write_json({"runs": records}, path, trace, {"seeds": [run.seed for run in runs]})


def read_runs(path: PathLike) -> list[Run]:
    """Read the runs of a variant; raise `DamagedArtefact` if a field is missing or invalid."""
    try:
        return _RunsFile.model_validate(read_json(path)).runs
    except ValidationError as error:
        first = error.errors()[0]
        name = next(part for part in reversed(first["loc"]) if isinstance(part, str))
        reason = "is missing" if first["type"] == "missing" else f"is {first['input']!r}"
        raise DamagedArtefact(f"The runs in {path} are damaged ({name!r} {reason}); {REBUILD}.") from None


def check_comparable(runs: Iterable[tuple[Run, PathLike]]) -> None:
    """Raise `InputError` if a run occurs twice, or contradicts an earlier one in a field of `COMMON_FIELDS`."""
    seen: dict[tuple[object, ...], tuple[PathLike, object]] = {}
    for run, path in runs:
        fields: Mapping[str, object] = run.model_dump() | run.provenance.model_dump()
        identity = tuple(fields[name] for name in IDENTITY_FIELDS)
        if identity in seen:
            raise InputError(f"{path} and {seen[identity][0]} contain the same run; give each run once.")
        seen[identity] = path, None
        for keys, name in ((keys, name) for keys, names in COMMON_FIELDS.items() for name in names):
            if "model" not in keys and name == "style" and fields[name] == DECODER_STYLE:
                continue
            scope = " and ".join(f"{key} {fields[key]}" for key in keys)
            first, expected = seen.setdefault((scope, name), (path, fields[name]))
            if fields[name] != expected:
                raise InputError(
                    f"{path} has {name} {fields[name]!r}, but {first} of the same {scope} has {expected!r}; "
                    "delete the wrong run and run the workflow again."
                )
