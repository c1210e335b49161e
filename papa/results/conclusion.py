"""A conclusion as typed values: the claims about each line, with losses, exclusions, bounds and differences.

Stage *claims* computes a `Conclusion` and writes it as JSON. The HTML report, the terminal, `papa inspect`,
`papa compare` reads it; `papa.results.phrases` puts it into words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf, nan
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from papa.errors import DamagedArtefact
from papa.files import REBUILD, PathLike, read_json

INCONCLUSIVE = "cannot tell"
"""The verdict of comparisons that show neither a difference nor equality, as stored results contain it."""


def _null_is(number: float) -> BeforeValidator:
    """Read `null` as `number`, because JSON has neither infinity nor NaN."""
    return BeforeValidator(lambda value: number if value is None else value)


Number = Annotated[float, _null_is(nan)]
Low = Annotated[float, _null_is(-inf)]
High = Annotated[float, _null_is(inf)]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=True, ser_json_inf_nan="null")


class TaskLoss(_Value):
    """The loss on a task, with its 95 % interval."""

    task: str
    loss: Number
    low: Low
    high: High


class NeededSample(_Value):
    """The difference that excluded a task, and the sample that would show a difference of this size.

    Args:
        floor: "trivial" or "context-free": the floor that the original does not significantly beat.
        difference, low, high: the original minus this floor, with its 95 % interval.
        seeds: the number of probe seeds; None if no probe was trained.
        examples: the number of validation examples.
        needed_seeds, needed_examples: the numbers that would show this difference; None if there are none.
        power: the probability of showing it.
    """

    floor: str
    difference: Number
    low: Low
    high: High
    seeds: int | None
    examples: int
    needed_seeds: int | None
    needed_examples: int | None
    power: float


class Exclusion(_Value):
    """A task excluded from claims, and the reason.

    Args:
        needed: the sample that would include the task; None if it is unknown, and in results of earlier versions.
    """

    task: str
    why: str
    needed: NeededSample | None = None


class SubsetLosses(_Value):
    """Losses on a subset of the validation examples, with every head replaced."""

    subset: str
    tasks: tuple[TaskLoss, ...]
    excluded: tuple[Exclusion, ...] = Field(validation_alias="without", serialization_alias="without")


class EndLoss(_Value):
    """The loss with every head replaced: its mean, and the losses on each task that counts and on subsets."""

    loss: Number
    low: Low
    high: High
    tasks: tuple[TaskLoss, ...]
    subsets: tuple[SubsetLosses, ...]


class RisingTask(_Value):
    """A task on which scores were still rising when training ended.

    Args:
        runs: the probes that were still improving: those of the original, of the floor, of a floor that was not
            chosen, or with replaced heads.
        loss: whether longer training may make the loss `larger`, `smaller` or either; None if the task has no loss.
    """

    task: str
    runs: tuple[str, ...]
    loss: str | None


class TaskTraining(_Value):
    """The training of a task's probes, for which a conclusion holds.

    Args:
        probe: the kind of probe.
        layouts: the layouts of texts, one unless models differ.
        learning_rate: the learning rate.
        batch_size: the number of examples in a training step.
        epochs: the smallest and the largest number of epochs of the probes that are used.
        maximum: the number of epochs after which training ends.
        patience: training ends if the loss on held-out rows has not fallen for this number of epochs; None: never.
        rows: the number of training rows.
        resampled: whether each seed has its own training rows, so intervals cover the choice of rows.
    """

    task: str
    probe: str
    layouts: tuple[str, ...]
    learning_rate: float
    batch_size: int
    epochs: tuple[float, float]
    maximum: int
    patience: int | None
    rows: int
    resampled: bool


class Step(_Value):
    """A measured number of replaced heads.

    Args:
        replaced, heads: the number of replaced heads, and the number of heads in the model.
        tasks: the number of tasks that count and were run with this many heads replaced.
        loss, low, high: their mean loss with its 95 % interval; unset if none has a loss.
        bound, worst: the largest upper bound of a loss, and its task; unset if no task counts.
        margin: the largest `bound` of this step and those before it. This number of heads is replaceable at any larger
            margin.
        corrected_margin: the same after the correction for all lines of the grid.
    """

    grid: str
    line: str
    model: str
    heads: int
    constant: str | None
    order: str | None
    fraction: str
    replaced: int
    tasks: int
    loss: Annotated[float | None, _null_is(nan)] = None
    low: Annotated[float | None, _null_is(-inf)] = None
    high: Annotated[float | None, _null_is(inf)] = None
    bound: Annotated[float | None, _null_is(inf)] = None
    margin: Annotated[float | None, _null_is(inf)] = None
    corrected_margin: Annotated[float | None, _null_is(inf)] = None
    worst: str | None = None


class TaskStep(_Value):
    """A measured number of replaced heads, for one task by itself.

    Args:
        replaced: the number of replaced heads.
        loss, low, high: the loss with its 95 % interval; unset if it is unknown.
        bound: the one-sided 95 % upper bound of the loss.
        margin: this number of heads is replaceable at any larger margin, if only this claim is made.
        corrected_margin: the same after the correction for all claims.
        p, corrected_p: the p value at the margin of the study, without and with the correction.
    """

    replaced: int
    loss: Annotated[float | None, _null_is(nan)] = None
    low: Annotated[float | None, _null_is(-inf)] = None
    high: Annotated[float | None, _null_is(inf)] = None
    bound: High
    margin: High
    corrected_margin: High
    p: float
    corrected_p: float


class TaskClaim(_Value):
    """The claims about a line on one task by itself.

    Args:
        task: the title of the task.
        replaceable: the number of heads that are replaceable at the margin, if only this claim is made.
        corrected: the same after the correction for all claims.
        steps: the measured numbers of replaced heads.
    """

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
        ceiling, rising: the tasks whose original is at its ceiling, and those on which scores still rose.
        replaceable: the number of heads that are replaceable at the margin; None if no task counts.
        measured: every number of replaced heads whose bound is known.
        half_margin: the margin above which half of the heads are replaceable.
        at_end: the loss with every head replaced; None if it was not measured.
        lines: the number of lines of the grid with a claim; `corrected` is corrected for them.
        corrected: the number of heads that are replaceable after this correction; None if no task counts.
        task_claims: the number of claims about single tasks in the grid; those in `by_task` are corrected for them.
        by_task: the claims about each task that counts, by itself.
        sentence: the claims in words.
        floors: the context-free floors of each task, the first one is used; None if there is only one.
        by_floor: the number of replaceable heads if all losses are measured against one floor.
        clusters: the number of clusters of validation examples of each task whose intervals resample clusters.
        guesses: the tasks on which a blind guess is the floor, because it scores higher on the validation examples.
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
    excluded: tuple[Exclusion, ...] = Field(validation_alias="without", serialization_alias="without")
    ceiling: tuple[str, ...]
    rising: tuple[RisingTask, ...]
    replaceable: int | None
    measured: tuple[int, ...]
    half_margin: float | None
    at_end: EndLoss | None
    steps: tuple[Step, ...]
    lines: int = 0
    corrected: int | None = None
    task_claims: int = 0
    by_task: tuple[TaskClaim, ...] = ()
    sentence: str
    floors: dict[str, tuple[str, ...]] | None = None
    by_floor: dict[str, int | None] | None = None
    clusters: dict[str, int] = {}
    guesses: tuple[str, ...] = ()

    @property
    def bounded(self) -> list[Step]:
        """The steps with a known bound."""
        return [step for step in self.steps if step.margin is not None]

    @property
    def stopped_at(self) -> Step | None:
        """The first step that is not replaceable; None if all are."""
        return next((step for step in self.bounded if step.replaced > (self.replaceable or 0)), None)

    @property
    def passed(self) -> Step | None:
        """The last step that is replaceable; None if none is."""
        return next((step for step in reversed(self.bounded) if step.replaced <= (self.replaceable or 0)), None)

    @property
    def half(self) -> Step | None:
        """The first step that replaces half of the heads or more."""
        return next((step for step in self.bounded if 2 * step.replaced >= self.heads), None)


class Estimand(_Value):
    """The quantity that is claimed: (original - score) / (original - floor).

    Args:
        floors: the constants that were measured as context-free floors.
    """

    quantity: str
    floors: tuple[str, ...]


class TaskTest(_Value):
    """A test of an assumption on one task.

    Args:
        p: the one-sided p value; None if it is unknown.
        passed: whether the test passed at 5 %.
    """

    model: str
    task: str
    p: float | None
    passed: bool


class Assumption(_Value):
    """An assumption of the claims.

    Args:
        name: a key of `papa.results.phrases.ASSUMPTIONS`.
        tests: the tests of this assumption in this study; empty if it was not tested.
        sentence: the assumption in words.
        tasks: the tasks that the assumption is about; empty if it is about all of them.
    """

    name: str
    tasks: tuple[str, ...] = ()
    tests: tuple[TaskTest, ...] = ()
    sentence: str

    @property
    def tested(self) -> bool:
        """Whether this study tested the assumption."""
        return bool(self.tests)


class Conclusion(_Value):
    """The conclusion of a study.

    Args:
        sentence: the conclusion about the first grid, in words.
        margin: the accepted loss.
        lines: the claims about each line of each grid.
        estimand: the claimed quantity; None in results of earlier versions.
        assumptions: the assumptions of the claims, and the tests of them.
        training: the training of each task's probes in the first grid; empty if no probe was trained.
    """

    sentence: str
    margin: float
    lines: tuple[LineClaim, ...]
    estimand: Estimand | None = None
    assumptions: tuple[Assumption, ...] = ()
    training: tuple[TaskTraining, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return plain values for JSON, with null for NaN and infinity, and without unset fields."""
        content: dict[str, object] = json.loads(self.model_dump_json(exclude_unset=True, by_alias=True))
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> Conclusion:
        """Return the conclusion from values that `to_json` returned."""
        return cls.model_validate(content)

    @classmethod
    def read(cls, path: PathLike) -> Conclusion:
        """Read a conclusion from its file.

        Raises:
            DamagedArtefact: the file is missing or damaged, or contains something else.
        """
        content = read_json(path)
        try:
            return cls.from_json(content)
        except ValidationError as error:
            key = ".".join(map(str, error.errors()[0]["loc"]))
            raise DamagedArtefact(f"{path} has no valid `{key}`, so papa cannot read its claims; {REBUILD}.") from None
