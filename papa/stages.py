"""Jobs: what each stage computes, from which settings and inputs, into which file.

A job makes one file. The file's name ends in the first digits of its key, the digest of everything that decides its
numbers. So a file that exists is up to date.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from papa.config.measures import Target, target_of
from papa.config.settings import Machine, Task
from papa.files import KEY_DIGITS, PathLike, Record

S = TypeVar("S", bound="Settings", covariant=True)
LONGEST_NAME = 150
"""Longer names for people are cut, because a file's name may have at most 255 bytes."""


class Settings(BaseModel):
    """The settings of a stage; all of them decide numbers. A default that changes no number is in no key."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    stage: ClassVar[str] = ""
    version: ClassVar[int] = 1
    """Raise this when a change to the code changes the numbers of the stage."""
    suffix: ClassVar[str] = ".parquet"
    runs_encoder: ClassVar[bool] = True
    """Whether the stage loads the model, and runs on the config's device."""
    result: ClassVar[str] = ""
    """The name of what the stage makes, as an input of other rules of the workflow."""

    def recorded(self) -> dict[str, object]:
        """Return the settings as JSON, without default values."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Training(BaseModel):
    """Hyperparameters for training a probe, λ or constants."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float
    batch_size: int
    epochs: int

    @classmethod
    def of(cls, task: Task, epochs: int | None = None) -> Training:
        """Return the hyperparameters of a task; `epochs`, if given, replaces the task's number of epochs."""
        return cls(
            learning_rate=task.learning_rate,
            batch_size=task.batch_size,
            epochs=epochs or task.epochs,
        )

    @classmethod
    def of_probe(cls, task: Task, batch_size: int = 1) -> Training:
        """Return the hyperparameters of a task's probe; if it has none, zero epochs in batches of this size."""
        return (
            cls.of(task)
            if task.target.probed
            else cls(learning_rate=0, batch_size=batch_size, epochs=0)
        )


class Tokenize(Settings):
    """Tokens: the texts of a corpus, tokenized for a model and laid out in slots.

    Inputs: texts, model.
    """

    stage = "tokenize"
    result = "tokens"
    runs_encoder = False

    slots: int
    layout: str
    blocks: bool = False


class Average(Settings):
    """Averages of every head over the training texts of a corpus: of attention, or of outputs (`mean-output`).

    Inputs: tokens (those of the training texts), model.
    """

    stage = "average"
    result = "averages"
    suffix = ".h5"

    kind: str = "average"
    precision: str = "float32"


class OfTask(Settings):
    """A stage that uses the loss of a task; `kind` is its `Target.name`."""

    kind: str
    training: Training
    seed: int
    precision: str = "float32"
    encoder_dropout: bool = False

    @property
    def target(self) -> Target:
        """The target that a model has to predict."""
        return target_of(self.kind)


class LearnLambda(OfTask):
    """Weights of heads, learned on the training texts of a task: λ, or the mean absolute gradient of each gate.

    Inputs: tokens (those of the training texts), model, labels (those of the training texts), constants.
    """

    stage = "learn_lambda"
    result = "order"

    constant: str
    """the kind of constant (`Constant.start`)"""
    weights: str = "lambda"
    """what is learned: lambda or gradient"""


class HiddenStates(Settings):
    """Hidden states of a corpus under a variant.

    Inputs: tokens, model, constants, weights (of the heads, which give their order).
    """

    stage = "hidden_states"
    result = "states"
    suffix = ".hidden"

    constant: str | None = None
    """the kind of constant (`Constant.start`); None if nothing is replaced"""
    trained: bool = False
    """whether the constant is trained with the probe, so these states are never stored"""
    order: str | None = None
    """the name of the order of heads (`Order.name`); None for a list"""
    heads: tuple[tuple[int, int], ...] | None = None
    """a list of heads (layer, head); the first one is replaced last"""
    order_seed: int = 0
    """the seed of random orders"""
    fraction: str = "1"
    """the share of heads that keep their attention"""
    precision: str = "float32"


class Probe(OfTask):
    """Predictions of a probe on all validation examples, from stored hidden states.

    Inputs: states (the key of `HiddenStates`), labels (those of the training texts), clusters (those of the training
    texts, if samples are drawn from them).
    """

    stage = "probe"
    result = "predictions"
    runs_encoder = False

    sample: int = 0
    """the number of the training sample, drawn with replacement; 0: all training rows"""
    cluster: int = 1
    """the number of consecutive training rows that are drawn together"""


class ProbeEncoder(Probe):
    """Predictions, or losses, while the encoder runs: for trained constants, masked and next tokens, and dropout.

    Inputs: as for `Probe`; reads also the inputs of `HiddenStates`.
    """

    stage = "probe_encoder"
    runs_encoder = True


class Report(Settings):
    """Tables, figures, claims and the HTML report of a study. Its file is the list of what they were made from."""

    stage = "report"
    version = 8
    suffix = ".json"
    runs_encoder = False

    config: dict[str, Any]
    """the config as `Config.shown` returns it"""


STAGES: dict[str, type[Settings]] = {
    settings.stage: settings
    for settings in (Tokenize, Average, LearnLambda, HiddenStates, Probe, ProbeEncoder, Report)
}
"""The settings of all stages, in the order of the workflow."""


PLAIN = ("inputs", "reads", "name", "folder", "about", "label")
"""The fields of a job that are plain values."""


@dataclass(frozen=True)
class Job(Generic[S]):
    """The settings and inputs from which one file is made, and the place of the file.

    Args:
        settings: the settings of the stage.
        inputs: the key of each input by name; keys are digests of content, or keys of other jobs.
        reads: the path of each file or folder that is read, by name.
        name: a name for people, which is part of the file's name.
        folder: the folder of the file.
        about: names and places for people and tables: model, task, corpus, constant, order, fraction, seed, ….
        label: the column of the labels in `reads["labels"]`.
        variant: the variant whose hidden states a probe reads or computes.
        machine: the device and the limits of this machine; beyond rounding, no number depends on them.
    """

    settings: S
    inputs: Mapping[str, str]
    reads: Mapping[str, str]
    name: str
    folder: str
    about: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    variant: HiddenStates = field(default_factory=HiddenStates)
    machine: Machine = field(default_factory=Machine)

    @cached_property
    def record(self) -> Record:
        """The record that the file contains."""
        kind = self.settings
        return Record(kind.stage, kind.version, kind.recorded(), dict(sorted(self.inputs.items())))

    @property
    def stage(self) -> str:
        """The name of the stage."""
        return self.settings.stage

    @property
    def key(self) -> str:
        """The key of the file, 40 hexadecimal digits."""
        return self.record.key

    @cached_property
    def output(self) -> str:
        """The path of the file."""
        name = self.name[:LONGEST_NAME]
        return str(Path(self.folder, f"{name}-{self.key[:KEY_DIGITS]}{self.settings.suffix}"))

    def __hash__(self) -> int:
        return hash(self.output)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (self.output, self.about) == (other.output, other.about)

    def content(self) -> dict[str, Any]:
        """Return the job as JSON, from which `of_content` makes it again."""
        return {name: getattr(self, name) for name in PLAIN} | {
            "stage": self.stage,
            "settings": self.settings.model_dump(mode="json"),
            "variant": self.variant.recorded(),
            "machine": asdict(self.machine),
        }

    @staticmethod
    def of_content(content: Mapping[str, Any]) -> AnyJob:
        """Return the job with this content."""
        settings = STAGES[content["stage"]].model_validate(content["settings"])
        variant = HiddenStates.model_validate(content["variant"])
        machine = Machine(**content["machine"])
        plain = {name: content[name] for name in PLAIN}
        return Job(settings, **plain, variant=variant, machine=machine)

    def named_like(self, path: PathLike) -> Job[S]:
        """Return the job with the folder and the name of an existing file of its key; only the key counts."""
        return replace(self, name=Path(path).stem[: -KEY_DIGITS - 1], folder=str(Path(path).parent))


AnyJob = Job[Settings]  # A job of any stage
