"""Jobs: what each stage computes, from which settings and inputs, into which file; and batches of jobs.

A job makes one file. The file's name ends in the first digits of its key, the digest of everything that decides its
numbers. So a file that exists is up to date.

Jobs of one stage that run together in one process are a batch. Snakemake knows a batch by one file, its handle. The
main process writes each batch to a small file, and the process that runs the batch reads only that.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from papa.config.measures import TARGETS, Target
from papa.config.settings import Machine, Task
from papa.errors import InputError
from papa.files import KEY_DIGITS, KEYED, Json, PathLike, Record

S = TypeVar("S", bound="Settings", covariant=True)
JOBS = "jobs"
"""The folder with one small file for each batch that has something to do. A process reads only its own."""
OTHER_FILES_MB = 1000
"""Space for what a batch writes, but for hidden states."""
STUDY = "study"
"""The name of the file with what the rules need to know of the study."""


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

    def record(self, inputs: Mapping[str, str]) -> Record:
        """Return the record of a file that is made with these settings from inputs with these keys."""
        # so a new setting, whose default is the old behaviour, leaves the keys of existing files as they are
        settings = self.model_dump(mode="json", exclude_defaults=True)
        return Record(self.stage, self.version, settings, dict(sorted(inputs.items())))


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
        # fixed values, because the task's own would be in the key, although nothing is trained with them
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
        return TARGETS[self.kind]


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
    version = 13
    suffix = ".json"
    runs_encoder = False

    config: Json
    """the config as `Config.shown` returns it"""


STAGES: dict[str, type[Settings]] = {
    settings.stage: settings
    for settings in (Tokenize, Average, LearnLambda, HiddenStates, Probe, ProbeEncoder, Report)
}
"""The settings of all stages, in the order of the workflow."""


PLAIN = ("reads", "output", "about", "label")
"""The fields of a job that are plain values."""


@dataclass(frozen=True)
class Job(Generic[S]):
    """The settings and inputs from which one file is made, and the place of the file.

    Args:
        settings: the settings of the stage.
        record: what decides the file's numbers; the file contains it.
        reads: the path of each file or folder that is read, by name.
        output: the path of the file; its name is one for people, then the first digits of the key.
        about: names and places for people and tables: model, task, corpus, constant, order, fraction, seed, ….
        label: the column of the labels in `reads["labels"]`.
        variant: the variant whose hidden states a probe reads or computes.
        machine: the device and the limits of this machine; beyond rounding, no number depends on them.
    """

    settings: S
    record: Record
    reads: Mapping[str, str]
    output: str
    about: Json = field(default_factory=dict)
    label: str = ""
    variant: HiddenStates = field(default_factory=HiddenStates)
    machine: Machine = field(default_factory=Machine)

    @property
    def stage(self) -> str:
        """The name of the stage."""
        return self.settings.stage

    @property
    def inputs(self) -> Mapping[str, str]:
        """The key of each input by name; keys are digests of content, or keys of other jobs."""
        return self.record.inputs

    @property
    def key(self) -> str:
        """The key of the file, 40 hexadecimal digits."""
        return self.record.key

    @property
    def name(self) -> str:
        """The name of the file for people."""
        return KEYED.sub("", Path(self.output).stem)

    def __hash__(self) -> int:
        return hash(self.output)

    def __eq__(self, other: object) -> bool:
        # tasks that differ only in their names share a file, but each has its rows in the report
        return isinstance(other, Job) and (self.output, self.about) == (other.output, other.about)

    def content(self) -> Json:
        """Return the job as JSON, from which `of_content` makes it again."""
        return {name: getattr(self, name) for name in PLAIN} | {
            "stage": self.stage,
            "settings": self.settings.model_dump(mode="json"),
            "inputs": self.inputs,
            "variant": self.variant.model_dump(mode="json", exclude_defaults=True),
            "machine": asdict(self.machine),
        }

    @staticmethod
    def of_content(content: Json) -> AnyJob:
        """Return the job with this content."""
        settings = STAGES[content["stage"]].model_validate(content["settings"])
        variant = HiddenStates.model_validate(content["variant"])
        machine = Machine(**content["machine"])
        plain = {name: content[name] for name in PLAIN}
        record = settings.record(content["inputs"])
        return Job(settings, record, **plain, variant=variant, machine=machine)


AnyJob = Job[Settings]  # A job of any stage


def states_read(jobs: Iterable[AnyJob]) -> list[str]:
    """Return the files of hidden states that jobs read, each once."""
    return list(dict.fromkeys(job.reads["states"] for job in jobs if "states" in job.reads))


# compared by identity, because batches are keys, and equality would walk through all that they need
@dataclass(eq=False)
class JobBatch:
    """Jobs of one stage that run together in one process, such as the seeds of a probe.

    Args:
        rule: the rule of the workflow, which is named after the stage.
        name: a name for people.
        jobs: all jobs, in the order in which they run.
        marker: for hidden states, an empty file; it is their handle, because the states may be deleted.
        needs: the batches whose files the jobs read, by the name of the input.
        disk_mb: the disk space of the hidden states that the jobs write or read, and some for other files.
        lacking: the jobs that have to run, because their files are missing or their rule is forced.
        forced: whether the jobs run although their files exist.
    """

    rule: str
    name: str
    jobs: list[AnyJob]
    marker: str | None = None
    needs: dict[str, list[JobBatch]] = field(default_factory=dict)
    disk_mb: int = OTHER_FILES_MB
    lacking: Sequence[AnyJob] = ()
    forced: bool = False

    # cached, because Snakemake must see the same path after the files of the batch have appeared
    @cached_property
    def handle(self) -> str:
        """The only path that Snakemake knows: the file that is, or was, written last."""
        if self.marker:
            return self.marker
        if self.lacking:
            return self.lacking[-1].output
        return max((job.output for job in self.jobs), key=os.path.getmtime)

    @property
    def states(self) -> set[str]:
        """The hidden states that the jobs write or read."""
        if self.marker:
            return {job.output for job in self.jobs}
        return set(states_read(self.jobs))

    @property
    def all_needs(self) -> list[JobBatch]:
        """The batches that have to run before this one."""
        return [batch for batches in self.needs.values() for batch in batches]

    def inputs(self, complete: bool = True) -> dict[str, list[str]]:
        """Return the handles of what the batch needs, by the name of the input.

        Unless they are to be `complete`, a batch that has all of its files lists none that has to be made, because it
        would not read it; Snakemake would run it after every job that it lists.
        """
        listed = complete or self.lacking
        return {
            name: [batch.handle for batch in batches if listed or not batch.lacking]
            for name, batches in self.needs.items()
        }

    def content(self) -> Json:
        """Return what the job needs to know, as JSON."""
        return {
            "rule": self.rule,
            "name": self.name,
            "marker": self.marker,
            "forced": self.forced,
            "inputs": self.inputs(),
            "jobs": [job.content() for job in self.lacking],
        }

    @classmethod
    def of_content(cls, content: Json) -> JobBatch:
        """Return the batch with this content, as the process that runs it needs it."""
        jobs = [Job.of_content(job) for job in content["jobs"]]
        plain = {name: content[name] for name in ("rule", "name", "marker", "forced")}
        return cls(jobs=jobs, lacking=jobs, **plain)


# -- the files of jobs ------------------------------------------------------------------------------------------------


def key_in(path: str) -> str:
    """Return the digits of the key at the end of the name of a file, with or without suffix."""
    return path.rpartition("-")[2][:KEY_DIGITS]


def write_jobs(folder: Path, contents: Json) -> None:
    """Replace the folder of the jobs' files; `contents` maps names, without suffix, to JSON.

    Raises:
        InputError: a file cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        for outdated in (partial, folder):
            shutil.rmtree(outdated, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, content in contents.items():
            (partial / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        partial.rename(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        reason = f"{folder} could not be written ({error.strerror})"
        raise InputError(f"{reason}; fix the cause and run again.") from error


def read_job(folder: PathLike, name: str) -> Json | None:
    """Return the content of a job's file in the results of a study; None if there is nothing to do."""
    try:
        content: Json = json.loads(Path(folder, JOBS, f"{name}.json").read_bytes())
    except FileNotFoundError:
        return None
    return content
