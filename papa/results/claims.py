"""Claims: how much is lost, how many heads are replaceable at a margin, and which tasks are excluded.

k heads are replaceable at margin δ if, for k and every smaller measured number of replaced heads, the one-sided 95 %
upper bound of the loss on every task that counts is below δ. Because all tasks have to pass (intersection-union) and
numbers are tested in ascending order (fixed sequence), this joint claim needs no correction for tasks and numbers. The
claims about single tasks, and those of several lines, are corrected (`papa.results.simultaneous`); see
docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isnan

import numpy as np
import pandas as pd

from papa.config.variant import Constant, Order
from papa.results.conclusion import (
    Conclusion,
    EndLoss,
    Exclusion,
    JointStep,
    LineClaim,
    SubsetLosses,
    TaskClaim,
    TaskLoss,
    TaskStep,
)
from papa.results.losses import COUNTS, Loss, examples_needed, loss_of, mean_loss
from papa.results.outcomes import ALL, Sample, Setting, TaskOutcomes, is_probed
from papa.results.phrases import MORE_THAN_ALL, bound_text, conclusion_of, interval_text, percent
from papa.results.simultaneous import ClaimSequence, corrected_margins, corrected_p_values
from papa.results.statistics import Interval
from papa.results.summary import is_main
from papa.results.table import Table, texts
from papa.results.views import GridView, rows_of

CLAIM_COLUMNS = dict.fromkeys(("grid", "line", "model", "constant", "order", "fraction"), "string")
CLAIM_COLUMNS |= {"replaced": "int64", "heads": "int64", "tasks": "int64"}
CLAIM_COLUMNS |= dict.fromkeys(("loss", "low", "high", "bound", "margin"), "float64") | {"worst": "string"}
CLAIM_COLUMNS |= {"task": "string", "p": "float64", "corrected_p": "float64", "corrected_margin": "float64"}
CLAIM_COLUMNS |= {"claims": "int64"}

CLAIMS_NOTE = (
    "Loss: (original - score) / (original - context-free), averaged over the tasks that count. Its 95 % interval is "
    "over probe seeds, validation examples and, if there are several, orders of heads. Largest bound: the largest of "
    "the tasks' one-sided 95 % upper bounds. Margin: this number of heads is replaceable at every larger margin, "
    "because no task that counts has a larger bound at this or any smaller measured number. Tasks whose original does "
    f"not beat every floor are excluded. Above 100 %, {MORE_THAN_ALL}."
)
BY_TASK_NOTE = (
    "Each task by itself: the largest number of heads that is replaceable at a margin of {margin}, if only this claim "
    "is made, and corrected for all {claims} claims of this table (Holm's method). Passes at margins above: the "
    "smallest margin for this corrected number. Next: the next measured number, and the margin above which it would "
    "pass. A number that does not pass was not shown to be replaceable; this does not show that it is not."
)


@dataclass(frozen=True)
class Line:
    """A curve of a grid: a model, a constant and an order, measured along the number of replaced heads.

    Args:
        grid, name: the name of the grid, and the name of the line in the grid.
        rows: the summary rows of the line, with main scores on all examples; `subset_rows` have scores on subsets, with
            every head replaced.
        samples: the scores on all validation examples by each task's main metric.
        corpora: the corpus of each task; tasks on one corpus have the same examples.
    """

    grid: str
    name: str
    rows: pd.DataFrame
    samples: Mapping[str, Sample]
    subset_rows: pd.DataFrame
    corpora: Mapping[str, str]

    @property
    def model(self) -> str:
        return str(self.rows["model"].iloc[0])

    @property
    def heads(self) -> int:
        return int(self.rows["heads"].iloc[0])

    @property
    def steps(self) -> pd.DataFrame:
        """The measured numbers of replaced heads in ascending order: `fraction` and `replaced`."""
        steps = self.rows[["fraction"]].assign(replaced=self.heads - self.rows["kept"]).drop_duplicates("replaced")
        return steps[steps["replaced"] > 0].sort_values("replaced", kind="stable")

    @property
    def titles(self) -> dict[str, str]:
        return dict(zip(self.rows["task"], self.rows["title"], strict=True))

    @property
    def counting(self) -> list[str]:
        status = self.rows.drop_duplicates("task").set_index("task")["status"]
        return [task for task in status.index if status[task] == COUNTS and task in self.samples]

    def value(self, column: str) -> str | None:
        """Return the only value of a column; None if it has none."""
        return next(iter(self.rows[column].dropna()), None)

    def setting(self, task: str, fraction: str) -> Setting | None:
        """Return the setting that was run for a task at a fraction; None if none was."""
        rows = self.rows[self.rows["task"].eq(task) & self.rows["fraction"].eq(fraction)]
        if rows.empty:
            return None
        constant, order = rows[["run_constant", "order"]].astype(object).where(rows.notna(), None).iloc[0]
        return Setting(constant, order, fraction)

    @cached_property
    def losses(self) -> dict[str, list[Loss | None]]:
        """The losses on each task that counts, one for each step; None if it is unknown."""
        losses: dict[str, list[Loss | None]] = {}
        for task in self.counting:
            settings = [self.setting(task, fraction) for fraction in self.steps["fraction"]]
            losses[task] = [loss_of(self.samples[task], name) if name else None for name in settings]
        return losses

    def claims_about(self, *tasks: str) -> ClaimSequence:
        """Return the claims that the loss on all these tasks is below a margin, one for each step."""
        by_step = zip(*(self.losses[task] for task in tasks), strict=True)
        return ClaimSequence(self.steps["replaced"].tolist(), list(by_step))

    def loss(self, fraction: str) -> tuple[Interval, int] | None:
        """Return the mean loss at a fraction over the tasks that count and were run there, and how many these are."""
        settings = {task: self.setting(task, fraction) for task in self.counting}
        terms = [
            (self.samples[task], self.corpora[task], setting)
            for task, setting in settings.items()
            if setting is not None and setting in self.samples[task].settings
        ]
        mean = mean_loss(terms) if terms else None
        return None if mean is None else (mean, len(terms))


def lines_of(grid: GridView, summary: pd.DataFrame, task_outcomes: Sequence[TaskOutcomes]) -> list[Line]:
    """Return the lines of a grid, except those without replaced heads."""
    rows = rows_of(grid, summary[summary["main"].eq(True)])
    run_constants = [
        Constant.parse(constant).for_corpus(grid.tasks[task]).name if isinstance(constant, str) else None
        for constant, task in zip(rows["constant"], rows["task"], strict=True)
    ]
    rows = rows.assign(run_constant=pd.Series(run_constants, rows.index, object))
    lines = []
    for name, line_rows in rows.groupby("line", sort=False):
        model = line_rows["model"].iloc[0]
        samples = {
            outcomes.task: outcomes.sample(outcomes.metric, outcomes.subsets()[ALL])
            for outcomes in task_outcomes
            if outcomes.model == model and outcomes.task in grid.tasks
        }
        main = is_main(line_rows)
        subset_rows = line_rows[~main & line_rows["fraction"].eq("0")]
        line = Line(grid.name, str(name), line_rows[main], samples, subset_rows, grid.tasks)
        if len(line.steps):
            lines.append(line)
    return lines


def claims_of(lines: Sequence[Line], margin: float) -> tuple[pd.DataFrame, Conclusion]:
    """Return the table of claims (`CLAIM_COLUMNS`) and the conclusion; its sentence covers only the first grid."""
    claims, sentences = list[LineClaim](), list[str]()
    for grid in dict.fromkeys(line.grid for line in lines):
        of_grid = _claims([line for line in lines if line.grid == grid], margin)
        groups: dict[tuple[str, str | None], list[LineClaim]] = {}
        for claim in of_grid:
            groups.setdefault((claim.model, claim.constant), []).append(claim)
        named = len(groups) > 1
        sentences = sentences or [conclusion_of(group, margin, named) for group in groups.values()]
        claims += [each.model_copy(update={"sentence": conclusion_of([each], margin, named)}) for each in of_grid]
    sentence = " ".join(sentences or ["No heads are replaced, so there is nothing to conclude."])
    frame = pd.DataFrame([row for claim in claims for row in _rows(claim)], columns=list(CLAIM_COLUMNS))
    return frame, Conclusion(sentence=sentence, margin=margin, lines=tuple(claims))


def _claims(lines: Sequence[Line], margin: float) -> list[LineClaim]:
    """Return the claims about the lines of a grid, with empty sentences.

    Claims about single tasks are corrected for all tasks and lines of the grid, and joint claims for all lines.
    """
    counting = [line for line in lines if line.counting]
    least = iter(corrected_margins([line.claims_about(*line.counting) for line in counting]))
    single = [line.claims_about(task) for line in counting for task in line.counting]
    p_values = [sequence.p_values(margin) for sequence in single]
    tested = iter(zip(p_values, corrected_margins(single), corrected_p_values(p_values), strict=True))
    claims = []
    for line in lines:
        joint = next(least) if line.counting else None
        by_task = tuple(_task_claim(line, task, margin, *next(tested)) for task in line.counting)
        about = {"lines": len(counting), "task_claims": len(single), "by_task": by_task}
        claims.append(_claim(line, margin, joint).model_copy(update=about))
    return claims


def _task_claim(
    line: Line, task: str, margin: float, p: Sequence[float], margins: Sequence[float], corrected_p: Sequence[float]
) -> TaskClaim:
    """Return the claims about one task by itself; `margins` and `corrected_p` are corrected for all such claims."""
    sequence = line.claims_about(task)
    rows = line.rows[line.rows["task"].eq(task)].set_index("fraction").reindex(line.steps["fraction"])
    bounds = rows["loss_bound"].fillna(inf)
    smallest = bounds.clip(lower=0).cummax().tolist()
    names = ("replaced", "bound", "margin", "corrected_margin", "p", "corrected_p", "loss", "low", "high")
    losses = [rows[name].tolist() for name in ("loss", "loss_low", "loss_high")]
    numbers = zip(sequence.numbers, bounds, smallest, margins, p, corrected_p, *losses, strict=True)
    steps = [{name: value for name, value in zip(names, values, strict=True) if not isnan(value)} for values in numbers]
    return TaskClaim(
        task=line.titles[task],
        replaceable=sequence.passed(smallest, margin),
        corrected=sequence.passed(margins, margin),
        steps=tuple(map(TaskStep.model_validate, steps)),
    )


def _rows(claim: LineClaim) -> Iterator[dict[str, object]]:
    about = claim.model_dump(include={"grid", "line", "model", "heads", "constant", "order"})
    for step in claim.steps:
        yield about | {"claims": claim.lines} | step.model_dump(exclude_unset=True)
    for task in claim.by_task:
        for step, by_task in zip(claim.steps, task.steps, strict=True):
            shared = about | {"fraction": step.fraction, "tasks": 1, "task": task.task}
            yield shared | {"claims": claim.task_claims} | by_task.model_dump()


def _claim(line: Line, margin: float, corrected: Sequence[float] | None) -> LineClaim:
    """Return the joint claims about a line; `corrected` has the corrected margin of each step."""
    steps, counting, titles = _steps(line, corrected), line.counting, line.titles
    bounded = [step for step in steps if step.margin is not None]
    passed = [step.replaced for step in bounded if step.margin is not None and step.margin < margin]
    samples = {title: line.samples[task] for task, title in titles.items() if task in line.samples}
    trained = line.rows.loc[is_probed(line.rows["metric"]) & line.rows["fraction"].ne("1"), "seeds"]
    example_counts = [sample.examples for sample in samples.values()]
    return LineClaim(
        grid=line.grid,
        line=line.name,
        model=line.model,
        constant=line.value("constant"),
        order=line.value("order"),
        heads=line.heads,
        seeds=int(trained.min()) if len(trained) else None,
        orders=_orders(line),
        examples=(min(example_counts), max(example_counts)) if example_counts else None,
        tasks=tuple(title for task, title in titles.items() if task in counting),
        excluded=_excluded(line.rows.drop_duplicates("task"), line.samples),
        replaceable=passed[-1] if passed else 0 if bounded else None,
        corrected=None if corrected is None else line.claims_about(*counting).passed(corrected, margin),
        at_end=_at_end(line),
        steps=tuple(steps),
        sentence="",
        floors={title: tuple(str(floor.constant) for floor in each.floor_settings) for title, each in samples.items()},
        guesses=tuple(
            title for title, each in samples.items() if each.floor_settings and each.floor_settings[0] in each.guesses
        ),
        clusters={title: len(each.trivial_values) for title, each in samples.items() if each.clusters is not None},
    )


def _steps(line: Line, corrected: Sequence[float] | None) -> list[JointStep]:
    titles, counting = line.titles, line.counting
    steps, margin = [], 0.0
    for place, (fraction, replaced) in enumerate(line.steps.to_numpy().tolist()):
        loss = line.loss(fraction)
        row = {"fraction": fraction, "replaced": int(replaced), "tasks": loss[1] if loss else 0}
        if loss is not None:
            row |= {"loss": loss[0].mean, "low": loss[0].low, "high": loss[0].high}
        if corrected is not None:
            bounds = line.rows[line.rows["fraction"].eq(fraction)].set_index("task")["loss_bound"]
            bounds = bounds.reindex(counting).fillna(inf)  # a task with an unknown loss passes at no margin
            margin = max(margin, float(bounds.max()))
            row |= {"bound": float(bounds.max()), "margin": margin, "worst": titles[str(bounds.idxmax())]}
            row |= {"corrected_margin": corrected[place]}
        steps.append(JointStep.model_validate(row))
    return steps


def _orders(line: Line) -> int:
    """Count how many times the line's order was drawn or learned."""
    runs = pd.concat([line.samples[task].runs for task in line.rows["task"].unique() if task in line.samples])
    names = runs.loc[runs["constant"].isin(line.rows["run_constant"].dropna()), "order"].dropna().unique()
    orders = map(Order.parse, names)
    return sum(order.base == line.value("order") and order.draw is not None for order in orders)


def _excluded(rows: pd.DataFrame, samples: Mapping[str, Sample]) -> tuple[Exclusion, ...]:
    """Return the excluded tasks; with samples, also the number of examples that would include each."""
    excluded = rows.loc[rows["status"].ne(COUNTS), ["task", "title", "status"]].itertuples(index=False)
    needed = {task: examples_needed(sample) for task, sample in samples.items()}
    return tuple(Exclusion(task=title, why=why, needed=needed.get(task)) for task, title, why in excluded)


def _at_end(line: Line) -> EndLoss | None:
    loss = line.loss("0")
    if loss is None:
        return None
    rows = line.rows[line.rows["fraction"].eq("0") & line.rows["task"].isin(line.counting)]
    subsets = tuple(
        SubsetLosses(
            subset=str(name),
            tasks=_losses(group[group["status"].eq(COUNTS) & group["loss"].notna()]),
            excluded=_excluded(group, {}),
        )
        for name, group in line.subset_rows.groupby("subset", sort=False)
    )
    mean = loss[0]
    return EndLoss(loss=mean.mean, low=mean.low, high=mean.high, tasks=_losses(rows), subsets=subsets)


def _losses(rows: pd.DataFrame) -> tuple[TaskLoss, ...]:
    columns = rows[["title", "loss", "loss_low", "loss_high"]].to_numpy().tolist()
    return tuple(TaskLoss(task=task, loss=loss, low=low, high=high) for task, loss, low, high in columns)


def tables_of(frame: pd.DataFrame, margin: float) -> dict[str, list[Table]]:
    """Return the tables of claims of each grid: of all tasks together, and of each task by itself."""
    tables = {}
    for grid, rows in frame.groupby("grid", sort=False):
        title = str(grid).replace("_", " ").capitalize()
        joint, single = rows[rows["task"].isna()], rows[rows["task"].notna()]
        text = pd.DataFrame(
            {
                "line": joint["line"],
                "heads replaced": joint["replaced"].map("{:,}".format) + " of " + joint["heads"].map("{:,}".format),
                "tasks": joint["tasks"],
                "loss": joint["loss"].map(percent),
                "95 % interval": texts(interval_text, joint, "low", "high"),
                "largest bound": [bound_text(bound, margin) for bound in joint["bound"]],
                "on": joint["worst"].fillna("-"),
                "margin": [bound_text(least, margin) for least in joint["margin"]],
            }
        )
        if (joint["claims"] > 1).any():
            text["corrected for lines"] = [bound_text(least, margin) for least in joint["corrected_margin"]]
        tables[str(grid)] = [Table(title, text, 2, rules=_rules(joint["line"]))]
        if len(single):
            note = BY_TASK_NOTE.format(margin=percent(margin, None), claims=single["claims"].iloc[0])
            by_task = pd.DataFrame(
                [_task_cells(group, margin) for _, group in single.groupby(["line", "task"], sort=False)]
            )
            tables[str(grid)].append(Table(f"{title}, each task by itself", by_task, 2, note, _rules(by_task["line"])))
    return tables


def _task_cells(rows: pd.DataFrame, margin: float) -> dict[str, str]:
    heads = f" of {rows['heads'].iloc[0]:,}"
    uncorrected = rows.loc[rows["margin"] < margin, "replaced"].max()
    passes = rows["corrected_margin"] < margin
    numbers = rows["replaced"].map("{:,}".format).tolist()
    margins = [bound_text(float(least), margin) for least in rows["corrected_margin"]]
    passed = int(passes.sum())  # numbers pass in ascending order
    return {
        "line": rows["line"].iloc[0],
        "task": rows["task"].iloc[0],
        "by itself": "none shown" if pd.isna(uncorrected) else f"{uncorrected:,.0f}{heads}",
        "corrected": f"{numbers[passed - 1]}{heads}" if passed else "none shown",
        "passes at margins above": margins[passed - 1] if passed else "-",
        "next": f"{numbers[passed]}: {margins[passed]}" if passed < len(numbers) else "-",
    }


def _rules(lines: pd.Series[str]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(lines.ne(lines.shift()).to_numpy()).tolist())
