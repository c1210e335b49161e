"""A step of a study, with the files that it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Generic, TypedDict, TypeVar

from papa.config import stages
from papa.config.artefacts import ARTEFACTS
from papa.config.settings import Machine
from papa.files import Trace, digest_of, digest_of_json

S = TypeVar("S", bound=stages.Settings, covariant=True)


class JobParameters(TypedDict):
    """A job's settings, the name of the settings class, and what each input must record (`Trace.request`)."""

    settings_of: str
    settings: dict[str, object]
    requests: dict[str, list[str]]


@dataclass(frozen=True)
class Job(Generic[S]):
    """A step of a study: a stage, its settings, and the files that it reads and writes.

    A job is a plain value that can be planned, compared and run without the workflow. The numbers in its outputs depend
    only on its settings and on the content of its inputs. Both are recorded in the outputs as a `Trace`, which later
    shows whether the job has to run again.

    For example, `Plan.job("train_lambda", model="m", task="t", constant="average", seed="0")` has the inputs `tokens`,
    `labels` and `constants`, and the output `lambdas`, which is models/m/tasks/t/average/lambda-0.parquet.
    """

    stage: str  # the name of the stage
    settings: S  # the settings of the stage
    inputs: Mapping[str, tuple[str, ...]]  # the paths of each input, by name
    outputs: Mapping[str, str]  # the path of each output, by name
    # for inputs that papa made, the `Trace.request` that each file must have
    requests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rule: str = ""  # the workflow rule that runs the job
    wildcards: Mapping[str, str] = field(default_factory=dict)  # the wildcards of that rule
    # the jobs that make the inputs, by the same names
    needs: Mapping[str, tuple[AnyJob, ...]] = field(default_factory=dict)
    # locations and limits of the machine that runs the job; beyond rounding, no result depends on them
    machine: Machine = field(default_factory=Machine)

    @classmethod
    def of(
        cls,
        parameters: JobParameters,
        inputs: Mapping[str, tuple[str, ...]],
        outputs: Mapping[str, str],
        machine: Machine,
    ) -> AnyJob:
        """Return a job with these files and with the parameters that `Plan.parameters` returned."""
        settings = stages.STAGES[parameters["settings_of"]].model_validate(parameters["settings"])
        requests = {name: tuple(several) for name, several in parameters["requests"].items()}
        return Job(settings.stamp[0], settings, dict(inputs), dict(outputs), requests, machine=machine)

    def placed(self, folder: Path) -> Job[S]:
        """Return the job with its paths in a results folder."""
        inputs = {name: tuple(str(folder / path) for path in paths) for name, paths in self.inputs.items()}
        return replace(self, inputs=inputs, outputs={name: str(folder / path) for name, path in self.outputs.items()})

    def input(self, name: str) -> str:
        """Return the path of an input that consists of one file."""
        (path,) = self.inputs[name]
        return path

    def optional_input(self, name: str) -> str | None:
        """Return the path of an input that consists of one file; None if the job does not have it."""
        return self.input(name) if self.inputs.get(name) else None

    def output(self, name: str) -> str:
        """Return the path of an output."""
        return self.outputs[name]

    @cached_property
    def needed(self) -> tuple[AnyJob, ...]:
        """The jobs that make the inputs."""
        return tuple(dict.fromkeys(job for jobs in self.needs.values() for job in jobs))

    def trace(self, **sources: str) -> Trace:
        """Return the trace of the outputs; `sources` are digests of files that papa did not make, such as weights."""
        read = {name: _digest_of_all(paths) for name, paths in self.inputs.items() if paths and has_trace(paths[0])}
        return Trace(self.stage, self.settings.stamp[1], self.settings.recorded(), read | sources)

    @cached_property
    def main(self) -> str:
        """The output whose trace describes the job."""
        return next(path for path in self.outputs.values() if has_trace(path))

    def __hash__(self) -> int:
        return hash(self.main)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.main == other.main


AnyJob = Job[stages.Settings]  # A job of any stage


def has_trace(path: str) -> bool:
    """Return whether files of this format contain a trace; figures, Markdown and LaTeX contain none."""
    return path.endswith((".parquet", ".h5", ".json", ".safetensors")) or path.endswith(ARTEFACTS["page"].pattern)


def _digest_of_all(paths: tuple[str, ...]) -> str:
    digests = [digest_of(path) for path in paths]
    return digests[0] if len(digests) == 1 else digest_of_json(digests)
