"""A conclusion as typed values: the claims about each line, with losses, exclusions, bounds and differences.

Stage *claims* computes a `Conclusion` and writes it as JSON. The HTML report, the terminal, `papa inspect`
and `papa compare` read it; `papa.results.phrases` puts it into words.
"""

from __future__ import annotations

import json
from math import inf, nan
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from papa.errors import DamagedArtefact
from papa.files import REBUILD, PathLike, read_json


def _null_is(number: float) -> BeforeValidator:
    """Read `null` as `number`, because JSON has neither infinity nor NaN."""
    return BeforeValidator(lambda value: number if value is None else value)


Number = Annotated[float, _null_is(nan)]
Low = Annotated[float, _null_is(-inf)]
High = Annotated[float, _null_is(inf)]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class TaskLoss(_Value):
    """The loss on a task, with its 95 % interval."""

    task: str
    loss: Number
    low: Low
    high: High


class Exclusion(_Value):
    """A task excluded from claims, and the reason; for `needed` see `losses.examples_needed`."""

    task: str
    why: str
    needed: int | None = None


class SubsetLosses(_Value):
    """Losses on a subset of the validation examples, with every head replaced."""

    subset: str
    tasks: tuple[TaskLoss, ...]
    excluded: tuple[Exclusion, ...]


class EndLoss(_Value):
    """The loss with every head replaced: its mean, and the losses on each task that counts and on subsets."""

    loss: Number
    low: Low
    high: High
    tasks: tuple[TaskLoss, ...]
    subsets: tuple[SubsetLosses, ...]


class Step(_Value):
    """A measured number of replaced heads.

    Args:
        loss, low, high: the loss with its 95 % interval; unset if it is unknown.
        bound: the one-sided 95 % upper bound of the loss; unset if no task counts.
        margin: the largest `bound` of this step and those before it. This number of heads is replaceable at any larger
            margin.
        corrected_margin: the same after the correction for all lines, or for all claims about single tasks.
    """

    replaced: int
    loss: Annotated[float | None, _null_is(nan)] = None
    low: Annotated[float | None, _null_is(-inf)] = None
    high: Annotated[float | None, _null_is(inf)] = None
    bound: Annotated[float | None, _null_is(inf)] = None
    margin: Annotated[float | None, _null_is(inf)] = None
    corrected_margin: Annotated[float | None, _null_is(inf)] = None


class JointStep(Step):
    """A step of all `tasks` that count and were run there: their mean loss, and the largest bound, on the `worst`."""

    fraction: str
    tasks: int
    worst: str | None = None


class TaskStep(Step):
    """A step of one task by itself, with the p value at the margin of the study, without and with the correction."""

    p: float
    corrected_p: float


class TaskClaim(_Value):
    """The claims about a line on one task: heads that are replaceable if only this claim is made, and `corrected`."""

    task: str
    replaceable: int
    corrected: int
    steps: tuple[TaskStep, ...]


class LineClaim(_Value):
    """The claims about a line: a model, a constant and an order.

    Args:
        seeds: the smallest number of probe seeds; None if no probe was trained.
        orders: how many times the order was drawn or learned.
        examples: the smallest and the largest number of validation examples; None if there are none.
        tasks, excluded: the tasks that count, and the excluded tasks.
        replaceable: the number of heads that are replaceable at the margin; None if no task counts.
        at_end: the loss with every head replaced; None if it was not measured.
        lines: the number of lines of the grid with a claim; `corrected` is corrected for them.
        corrected: the number of heads that are replaceable after this correction; None if no task counts.
        task_claims: the number of claims about single tasks in the grid; those in `by_task` are corrected for them.
        by_task: the claims about each task that counts, by itself.
        sentence: the claims in words.
        floors: the context-free floors of each task, the one with the highest score first.
        clusters: the number of clusters of validation examples of each task whose intervals resample clusters.
        guesses: the tasks on which a blind guess replaces the floor, because it scores higher.
    """

    grid: str
    line: str
    model: str
    constant: str | None
    order: str | None
    heads: int
    seeds: int | None
    orders: int
    examples: tuple[int, int] | None
    tasks: tuple[str, ...]
    excluded: tuple[Exclusion, ...]
    replaceable: int | None
    at_end: EndLoss | None
    steps: tuple[JointStep, ...]
    lines: int = 0
    corrected: int | None = None
    task_claims: int = 0
    by_task: tuple[TaskClaim, ...] = ()
    sentence: str
    floors: dict[str, tuple[str, ...]] = {}
    clusters: dict[str, int] = {}
    guesses: tuple[str, ...] = ()

    @property
    def bounded(self) -> list[JointStep]:
        """The steps with a known bound."""
        return [step for step in self.steps if step.margin is not None]

    @property
    def stopped_at(self) -> JointStep | None:
        """The first step that is not replaceable; None if all are."""
        return next((step for step in self.bounded if step.replaced > (self.replaceable or 0)), None)

    @property
    def passed(self) -> JointStep | None:
        """The last step that is replaceable; None if none is."""
        return next((step for step in reversed(self.bounded) if step.replaced <= (self.replaceable or 0)), None)


class Conclusion(_Value):
    """The conclusion of a study: a sentence about the first grid, and the claims about each line of each grid."""

    sentence: str
    margin: float
    lines: tuple[LineClaim, ...]

    def to_json(self) -> dict[str, object]:
        """Return plain values for JSON, with null for NaN and infinity, and without unset fields."""
        content: dict[str, object] = json.loads(self.model_dump_json(exclude_unset=True))
        return content

    @classmethod
    def read(cls, path: PathLike) -> Conclusion:
        """Read a conclusion from its file; raise `DamagedArtefact` if it is missing, damaged or something else."""
        content = read_json(path)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            key = ".".join(map(str, error.errors()[0]["loc"]))
            raise DamagedArtefact(f"{path} has no valid `{key}`, so papa cannot read its claims; {REBUILD}.") from None
