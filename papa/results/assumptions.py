"""The frame of the claims: the quantity, its assumptions, and the tests of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from papa.config.variant import CONTEXT_FREE
from papa.results import phrases
from papa.results.conclusion import Assumption, Conclusion, Estimand, TaskTest
from papa.results.losses import COUNTS
from papa.results.outcomes import ORIGINALS, Setting

if TYPE_CHECKING:
    from papa.results.claims import Line

QUANTITY = "(original - score) / (original - floor)"


def framed(conclusion: Conclusion, lines: Iterable[Line]) -> Conclusion:
    """Add the estimand and the assumptions with their tests to a conclusion."""
    tasks = {(line.model, task): line for line in lines for task in line.titles if task in line.samples}
    samples = [line.samples[task] for (_, task), line in tasks.items()]
    measured = {floor for each in samples for floor in each.floors if Setting(floor, fraction="0") in each.settings}
    return conclusion.model_copy(
        update={
            "estimand": Estimand(quantity=QUANTITY, floors=tuple(name for name in CONTEXT_FREE if name in measured)),
            "assumptions": tuple(_assumptions(tasks)),
        }
    )


def _resampled(line: Line, task: str) -> bool:
    """Return whether each seed has its own training rows on a task."""
    return bool(line.rows.loc[line.rows["task"].eq(task), "resampled"].eq(True).any())


CONDITIONS: Mapping[str, Callable[[Line, str], bool]] = {
    "seeds": lambda line, task: line.samples[task].seeded,
    "examples": lambda line, task: line.samples[task].clusters is None,
    "clusters": lambda line, task: line.samples[task].clusters is not None,
    "texts": lambda line, task: not _resampled(line, task),
    "resampled": _resampled,
}
"""The tasks about which an assumption is made; all others are about every task."""


def _assumptions(tasks: Mapping[tuple[str, str], Line]) -> Iterator[Assumption]:
    """Yield the assumptions about these tasks; those that are not about all of them name the tasks."""
    for name in phrases.ASSUMPTIONS:
        condition = CONDITIONS.get(name, lambda line, task: True)
        titles = {pair: line.titles[pair[1]] for pair, line in tasks.items() if condition(line, pair[1])}
        fields: dict[str, object] = {"name": name, "sentence": ""}
        if name == "contribution":
            fields["tests"] = tuple(_contribution(line, task) for (_, task), line in tasks.items())
        if len(titles) < len(tasks):
            fields["tasks"] = tuple(dict.fromkeys(titles.values()))
        if titles or name not in CONDITIONS:
            assumption = Assumption.model_validate(fields)
            yield assumption.model_copy(update={"sentence": phrases.assumption(assumption)})


def _contribution(line: Line, task: str) -> TaskTest:
    """Test whether the original beats both floors: the larger of the two one-sided p values."""
    status = line.rows.loc[line.rows["task"].eq(task), "status"].iloc[0]
    sample, p = line.samples[task], None
    spread = sample.spread(ORIGINALS, sample.floor_setting)
    if spread is not None and spread.known:
        p = max(spread.estimate(weights).p_above() for weights in ([-1, 1, 0], [0, 1, -1]))
    return TaskTest(model=line.model, task=line.titles[task], p=p, passed=status == COUNTS)
