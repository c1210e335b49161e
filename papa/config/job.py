"""One step of a study, with the files that it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from papa.config import stages
from papa.config.artefacts import ARTEFACTS
from papa.config.settings import Machine
from papa.files import Trace, digest_of, digest_of_json

S = TypeVar("S", bound=stages.Settings, covariant=True)


@dataclass(frozen=True)
class Job(Generic[S]):
    """One step of a study: a stage, its settings, and the files that it reads and writes.

    A job is a plain value, which anything can plan, compare and run. Correctness rests on this: the numbers in the
    outputs depend on the settings and on the content of the inputs, and on nothing else. Both are recorded in the
    outputs as a `Trace`, so a later plan knows from these files only whether the job has to run again.

    For example, `Study.job("train_lambda", model="m", task="t", constant="average", seed="0")` has the inputs `tokens`,
    `labels` and `constants`, and the output `lambdas`, which is models/m/tasks/t/average/lambda-0.parquet.

    Args:
        stage: the name of the stage.
        settings: the settings of the stage.
        inputs: paths by the name that the stage gives them.
        outputs: one path for each name.
        wanted: for inputs that papa made, the `Trace.request` that each must have.
        rule: the rule of the workflow that runs the job.
        wildcards: the wildcards of that rule.
        needs: the jobs that make the inputs, by the same names.
        machine: the places and limits of the machine that runs the job; no result depends on it, beyond rounding.
    """

    stage: str
    settings: S
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, str]
    wanted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rule: str = ""
    wildcards: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, tuple[AnyJob, ...]] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)

    @classmethod
    def of(
        cls,
        parameters: Mapping[str, Any],
        inputs: Mapping[str, tuple[str, ...]],
        outputs: Mapping[str, str],
        machine: Machine,
    ) -> AnyJob:
        """Return the job that `Study.parameters` describes, with these files."""
        settings = stages.STAGES[parameters["settings_of"]].model_validate(parameters["settings"])
        wanted = {name: tuple(requests) for name, requests in parameters["wanted"].items()}
        return Job(settings.stamp[0], settings, dict(inputs), dict(outputs), wanted, machine=machine)

    def placed(self, folder: Path) -> Job[S]:
        """Return the job with its paths in a folder of results."""
        inputs = {name: tuple(str(folder / path) for path in paths) for name, paths in self.inputs.items()}
        return replace(self, inputs=inputs, outputs={name: str(folder / path) for name, path in self.outputs.items()})

    def input(self, name: str) -> str:
        """Return the path of an input that is one file."""
        (path,) = self.inputs[name]
        return path

    def maybe(self, name: str) -> str | None:
        """Return the path of an input that is one file; None if the job has no such input."""
        return self.input(name) if self.inputs.get(name) else None

    def output(self, name: str) -> str:
        """Return the path of an output."""
        return self.outputs[name]

    @property
    def needed(self) -> tuple[AnyJob, ...]:
        """The jobs that make the inputs."""
        return tuple(dict.fromkeys(job for jobs in self.needs.values() for job in jobs))

    def trace(self, **sources: str) -> Trace:
        """Return the trace of the outputs; `sources` are digests of other files that are read, such as weights."""
        read = {name: _digest_of_all(paths) for name, paths in self.inputs.items() if paths and has_trace(paths[0])}
        return Trace(self.stage, self.settings.stamp[1], self.settings.recorded(), read | sources)

    @property
    def main(self) -> str:
        """The output whose trace describes the job."""
        return next(path for path in self.outputs.values() if has_trace(path))

    def __hash__(self) -> int:
        return hash(self.main)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.main == other.main


AnyJob = Job[stages.Settings]
"""A job of any stage."""


def has_trace(path: str) -> bool:
    """Whether an artefact has a format that contains its trace; figures and pages of tables have none."""
    return path.endswith((".parquet", ".h5", ".json")) or path.endswith(ARTEFACTS["page"].pattern)


def _digest_of_all(paths: tuple[str, ...]) -> str:
    digests = [digest_of(path) for path in paths]
    return digests[0] if len(digests) == 1 else digest_of_json(digests)
