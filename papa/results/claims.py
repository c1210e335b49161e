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
from types import MappingProxyType

import numpy as np
import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf, GridView, TaskOf
from papa.config.variant import Constant, Order
from papa.errors import count
from papa.files import read_table
from papa.results.analysis import Analysis, Computed
from papa.results.assumptions import framed
from papa.results.conclusion import (
    Conclusion,
    EndLoss,
    Exclusion,
    LineClaim,
    RisingTask,
    Step,
    SubsetLosses,
    TaskClaim,
    TaskLoss,
    TaskStep,
    TaskTraining,
)
from papa.results.grids import rows_of
from papa.results.losses import (
    COUNTS,
    Combination,
    ContributionShare,
    Term,
    at_ceiling,
    interval_of,
    is_counted,
    loss_of,
    lost_score,
    mean_share,
)
from papa.results.needed import needed_sample
from papa.results.outcomes import ALL, ORIGINALS, Sample, Setting, TaskOutcomes, is_probed, outcomes_in
from papa.results.phrases import MORE_THAN_ALL, bound_text, conclusion_of, holds_for, interval_text, percent
from papa.results.simultaneous import ClaimSequence, corrected_margins, corrected_p_values
from papa.results.statistics import Interval
from papa.results.summary import is_main, read_summary
from papa.results.table import Table, read_frame, texts

CLAIM_COLUMNS = dict.fromkeys(("grid", "line", "model", "constant", "order", "fraction"), "string")
CLAIM_COLUMNS |= {"replaced": "int64", "heads": "int64", "tasks": "int64"}
CLAIM_COLUMNS |= dict.fromkeys(("loss", "low", "high", "bound", "margin"), "float64") | {"worst": "string"}
CLAIM_COLUMNS |= {"task": "string", "p": "float64", "corrected_p": "float64", "corrected_margin": "float64"}
CLAIM_COLUMNS |= {"claims": "int64"}

MINIMUM_RISE = 0.005
"""Training was too short if a probe's score rose by more than this over the last quarter of the epochs."""
ORIGINAL_RUNS, FLOOR_RUNS, REPLACED_RUNS = "original", "contextless floor", "replaced heads"
OTHER_FLOOR_RUNS = "other floor"
"""The names of runs in `RisingTask`: those at the two ends of the scale of losses, those between them, and floors that
were not chosen."""

SHARED_BY_STEPS = ("grid", "line", "model", "heads", "constant", "order", "fraction")
"""The columns of a step that do not depend on the task."""
NOTHING_REPLACED = "No heads are replaced, so there is nothing to conclude."

CLAIMS_NOTE = (
    "Loss: (original - score) / (original - context-free), averaged over the tasks that count. Its 95 % interval is "
    "over probe seeds, validation examples and, if there are several, orders of heads. Largest bound: the largest of "
    "the tasks' one-sided 95 % upper bounds. Margin: this number of heads is replaceable at every larger margin, "
    "because no task that counts has a larger bound at this or any smaller measured number. Tasks whose original does "
    f"not beat both floors are excluded. Above 100 %, {MORE_THAN_ALL}."
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
        rows: the summary rows of the line, with main scores on all examples.
        samples: the scores on all validation examples by each task's main metric.
        subset_rows: the summary rows with main scores on subsets, with every head replaced.
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
        """The name of the model."""
        return str(self.rows["model"].iloc[0])

    @property
    def heads(self) -> int:
        """The number of heads in the model."""
        return int(self.rows["heads"].iloc[0])

    @property
    def steps(self) -> pd.DataFrame:
        """The measured numbers of replaced heads in ascending order: `fraction` and `replaced`."""
        steps = self.rows[["fraction"]].assign(replaced=self.heads - self.rows["kept"]).drop_duplicates("replaced")
        return steps[steps["replaced"] > 0].sort_values("replaced", kind="stable")

    @property
    def titles(self) -> dict[str, str]:
        """The title of each task."""
        return dict(zip(self.rows["task"], self.rows["title"], strict=True))

    @property
    def counting(self) -> list[str]:
        """The tasks that count."""
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
    def losses(self) -> dict[str, list[ContributionShare | None]]:
        """The losses on each task that counts, one for each step; None if it is unknown."""
        losses: dict[str, list[ContributionShare | None]] = {}
        for task in self.counting:
            settings = [self.setting(task, fraction) for fraction in self.steps["fraction"]]
            losses[task] = [loss_of(self.samples[task], {name: 1.0}) if name else None for name in settings]
        return losses

    def claims_about(self, *tasks: str) -> ClaimSequence:
        """Return the claims that the loss on all these tasks is below a margin, one for each step."""
        by_step = zip(*(self.losses[task] for task in tasks), strict=True)
        return ClaimSequence(self.steps["replaced"].tolist(), list(by_step))

    def loss(self, fraction: str) -> tuple[Interval, int] | None:
        """Return the mean loss at a fraction over the tasks that count and were run there, and how many these are."""
        settings = {task: self.setting(task, fraction) for task in self.counting}
        terms = [
            self.term(task, {setting: 1.0})
            for task, setting in settings.items()
            if setting is not None and setting in self.samples[task].settings
        ]
        mean = mean_share(terms) if terms else None
        return None if mean is None else (mean, len(terms))

    def term(self, task: str, weights: Combination, weight: float = 1.0) -> Term:
        """Return a weighted sum of the losses of several settings on a task, as a term of a sum over tasks."""
        return Term(self.samples[task], self.corpora[task], lost_score(weights), weight)


class ClaimsAnalysis(Analysis):
    """Conclude how many heads are replaceable along each line of each grid.

    Args:
        grids: the grids of the config.
        tasks: title and metric of each task.
        margin: the accepted loss.
    """

    columns = CLAIM_COLUMNS
    title_text = "Claims"
    note_text = CLAIMS_NOTE
    in_report = False  # the HTML report opens with claims

    grids: tuple[GridView, ...]
    tasks: dict[str, TaskOf]
    margin: float

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Draw the conclusion from `all_outcomes`, and also return it as JSON."""
        summary = read_summary(job.input("summary"))
        metrics = {name: task.metric for name, task in self.tasks.items()}
        outcomes = list(outcomes_in(read_table(job.input("all_outcomes")), metrics))
        columns = {"epoch": "int64", "score": "float64"}
        curves = read_frame(job.input("curves"), columns, "table of curves")
        lines = [line for grid in self.grids for line in lines_of(grid, summary, outcomes)]
        frame, conclusion = claims_of(lines, self.margin, curves)
        conclusion = framed(conclusion, lines)
        facts = {"table": "claims", "margin": self.margin}
        return Computed(frame, facts, {"claims": conclusion.to_json()}, sentence=f"{count(len(lines), 'line')}")

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return [table for tables in tables_of(rows, self.margin).values() for table in tables]


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


def claims_of(lines: Sequence[Line], margin: float, curves: pd.DataFrame) -> tuple[pd.DataFrame, Conclusion]:
    """Return the table of claims (`CLAIM_COLUMNS`) and the conclusion; its sentence covers only the first grid."""
    claims = [_claim(line, margin, curves) for line in lines]
    for grid in dict.fromkeys(line.grid for line in lines):
        places = [place for place, line in enumerate(lines) if line.grid == grid]
        corrected = _corrected([lines[place] for place in places], [claims[place] for place in places], margin)
        for place, claim in zip(places, corrected, strict=True):
            claims[place] = claim
    # by grid, then by model and constant
    groups: dict[str, dict[tuple[str, str | None], list[LineClaim]]] = {}
    for claim in claims:
        groups.setdefault(claim.grid, {}).setdefault((claim.model, claim.constant), []).append(claim)
    first = next(iter(groups.values()), {})
    worded = [
        claim.model_copy(update={"sentence": conclusion_of([claim], margin, len(groups[claim.grid]) > 1)})
        for claim in claims
    ]
    training = _training([line for line in lines if line.grid == lines[0].grid])
    sentences = [conclusion_of(group, margin, len(first) > 1) for group in first.values()] or [NOTHING_REPLACED]
    conclusion = Conclusion(
        sentence=" ".join(filter(None, [*sentences, holds_for(training)])),
        margin=margin,
        lines=tuple(worded),
        training=training,
    )
    return pd.DataFrame([row for claim in claims for row in _rows(claim)], columns=list(CLAIM_COLUMNS)), conclusion


def _corrected(lines: Sequence[Line], claims: Sequence[LineClaim], margin: float) -> list[LineClaim]:
    """Add the claims about single tasks to the claims of a grid's lines, and correct both kinds.

    Claims about single tasks are corrected for all tasks and lines of the grid, and joint claims for all lines.
    """
    counting = [line for line in lines if line.counting]
    joint = [line.claims_about(*line.counting) for line in counting]
    of_lines = dict(zip(map(id, counting), corrected_margins(joint), strict=True))
    pairs = [(line, task) for line in counting for task in line.counting]
    by_task = {id(line): list[TaskClaim]() for line in lines}
    sequences = [line.claims_about(task) for line, task in pairs]
    p_values = [sequence.p_values(margin) for sequence in sequences]
    corrected = zip(corrected_margins(sequences), corrected_p_values(p_values), strict=True)
    for (line, task), sequence, p, (margins, corrected_p) in zip(pairs, sequences, p_values, corrected, strict=True):
        rows = line.rows[line.rows["task"].eq(task)].set_index("fraction").reindex(line.steps["fraction"])
        bounds = rows["loss_bound"].fillna(inf)
        smallest = bounds.clip(lower=0).cummax().tolist()
        numbers = zip(sequence.numbers, bounds, smallest, margins, p, corrected_p, strict=True)
        names = ("replaced", "bound", "margin", "corrected_margin", "p", "corrected_p")
        steps = [dict(zip(names, values, strict=True)) for values in numbers]
        for step, loss in zip(steps, rows[["loss", "loss_low", "loss_high"]].to_numpy().tolist(), strict=True):
            if not isnan(loss[0]):
                step |= dict(zip(("loss", "low", "high"), loss, strict=True))
        by_task[id(line)].append(
            TaskClaim(
                task=line.titles[task],
                replaceable=sequence.passed(smallest, margin),
                corrected=sequence.passed(margins, margin),
                steps=tuple(map(TaskStep.model_validate, steps)),
            )
        )
    claimed = []
    for line, claim in zip(lines, claims, strict=True):
        least = of_lines.get(id(line))
        steps_of_line = claim.steps
        if least is not None:
            pairs_of_steps = zip(steps_of_line, least, strict=True)
            steps_of_line = tuple(step.model_copy(update={"corrected_margin": at}) for step, at in pairs_of_steps)
        update = {
            "steps": steps_of_line,
            "lines": len(counting),
            "corrected": None if least is None else line.claims_about(*line.counting).passed(least, margin),
            "task_claims": len(pairs),
            "by_task": tuple(by_task[id(line)]),
        }
        claimed.append(claim.model_copy(update=update))
    return claimed


def _rows(claim: LineClaim) -> Iterator[dict[str, object]]:
    """Yield the rows of a line in the table of claims: those of all tasks together, then those of each task."""
    for step in claim.steps:
        yield {"claims": claim.lines} | step.model_dump(exclude_unset=True)
    for task in claim.by_task:
        for step, by_task in zip(claim.steps, task.steps, strict=True):
            shared = step.model_dump(include=set(SHARED_BY_STEPS))
            yield shared | {"claims": claim.task_claims, "tasks": 1, "task": task.task} | by_task.model_dump()


def _claim(line: Line, margin: float, curves: pd.DataFrame) -> LineClaim:
    """Return the claims about a line, with an empty sentence."""
    tasks, steps, counting = line.rows.drop_duplicates("task"), _steps(line), line.counting
    titles = line.titles
    bounded = [step for step in steps if step.margin is not None]
    passed = [step.replaced for step in bounded if step.margin is not None and step.margin < margin]
    half_margins = [step.margin for step in bounded if 2 * step.replaced >= line.heads]
    example_counts = [line.samples[task].examples for task in titles if task in line.samples]
    claim = LineClaim(
        grid=line.grid,
        line=line.name,
        model=line.model,
        constant=line.value("constant"),
        order=line.value("order"),
        heads=line.heads,
        seeds=_seeds(line),
        orders=_orders(line),
        examples=(min(example_counts), max(example_counts)) if example_counts else None,
        tasks=tuple(title for task, title in titles.items() if task in counting),
        excluded=tuple(_excluded(tasks, line.samples)),
        ceiling=tuple(
            title for task, title in titles.items() if task in line.samples and at_ceiling(line.samples[task])
        ),
        rising=tuple(_rising(line, curves)),
        replaceable=passed[-1] if passed else 0 if bounded else None,
        measured=tuple(step.replaced for step in bounded),
        half_margin=half_margins[0] if half_margins else None,
        at_end=_at_end(line),
        steps=tuple(steps),
        sentence="",
    )
    samples = {title: line.samples[task] for task, title in titles.items() if task in line.samples}
    clusters = {title: len(each.trivial_values) for title, each in samples.items() if each.clusters is not None}
    update = _floors(line, samples, margin) | ({"clusters": clusters} if clusters else {})
    return claim.model_copy(update=update)


def _floors(line: Line, samples: Mapping[str, Sample], margin: float) -> dict[str, object]:
    """Return the floors of each task, best first, and the replaceable heads against each, unless there is only one.

    Also return the tasks on which a blind guess is the floor, if there are any.
    """
    guesses = tuple(title for title, sample in samples.items() if sample.guess_as_floor)
    several = sorted({floor for sample in samples.values() for floor in sample.floors})
    floors: dict[str, object] = {"guesses": guesses} if guesses else {}
    if len(several) > 1:
        floors["floors"] = {title: sample.floors for title, sample in samples.items()}
        floors["by_floor"] = {floor: _replaceable_against(line, floor, margin) for floor in several}
    return floors


def _replaceable_against(line: Line, floor: str, margin: float) -> int | None:
    """Return the number of heads that are replaceable if all losses are measured against one context-free floor.

    None if no task counts then.
    """
    samples = {task: sample.against(floor) for task, sample in line.samples.items()}
    counting = [task for task in samples if is_counted(samples[task])]
    replaceable = 0 if counting else None
    for fraction, replaced in line.steps.to_numpy().tolist() if counting else ():
        settings = {task: line.setting(task, fraction) for task in counting}
        intervals = [
            interval_of(samples[task], lost_score({setting: 1.0})) if setting else ()
            for task, setting in settings.items()
        ]
        if any(not interval or not interval[3] < margin for interval in intervals):
            break
        replaceable = int(replaced)
    return replaceable


def _training(lines: Sequence[Line]) -> tuple[TaskTraining, ...]:
    """Return the training of the probes of each task, as far as the summary records it."""
    rows = pd.concat([line.rows for line in lines]) if lines else pd.DataFrame()
    if "style" not in rows:
        return ()
    trained = rows[rows["learning_rate"].gt(0) & rows["style"].notna()]
    training = []
    for title, group in trained.groupby("title", sort=False):
        first, patience = group.iloc[0], group["patience"].dropna()
        training.append(
            TaskTraining(
                task=str(title),
                probe=str(first["probe"]),
                layouts=tuple(dict.fromkeys(group["style"])),
                learning_rate=float(first["learning_rate"]),
                batch_size=int(first["batch_size"]),
                epochs=(float(group["epochs_used"].min()), float(group["epochs_used"].max())),
                maximum=int(first["epochs"]),
                patience=int(patience.iloc[0]) if len(patience) else None,
                rows=int(first["rows_train"]),
                resampled=bool(first["resampled"]),
            )
        )
    return tuple(training)


def _steps(line: Line) -> list[Step]:
    common = {"grid": line.grid, "line": line.name, "model": line.model, "heads": line.heads}
    common |= {"constant": line.value("constant"), "order": line.value("order")}
    titles = line.titles
    steps, margin, counting = [], 0.0, line.counting
    for fraction, replaced in line.steps.to_numpy().tolist():
        loss = line.loss(fraction)
        row = common | {"fraction": fraction, "replaced": int(replaced), "tasks": loss[1] if loss else 0}
        if loss is not None:
            row |= {"loss": loss[0].mean, "low": loss[0].low, "high": loss[0].high}
        if counting:
            bounds = line.rows[line.rows["fraction"].eq(fraction)].set_index("task")["loss_bound"]
            bounds = bounds.reindex(counting).fillna(inf)  # a task with an unknown loss passes at no margin
            margin = max(margin, float(bounds.max()))
            row |= {"bound": float(bounds.max()), "margin": margin, "worst": titles[str(bounds.idxmax())]}
        steps.append(Step.model_validate(row))
    return steps


def _seeds(line: Line) -> int | None:
    trained = is_probed(line.rows["metric"]) & line.rows["fraction"].ne("1")
    return int(line.rows.loc[trained, "seeds"].min()) if trained.any() else None


def _orders(line: Line) -> int:
    """Count how many times the line's order was drawn or learned."""
    runs = pd.concat([line.samples[task].runs for task in line.rows["task"].unique() if task in line.samples])
    names = runs.loc[runs["constant"].isin(line.rows["run_constant"].dropna()), "order"].dropna().unique()
    orders = map(Order.parse, names)
    return sum(order.base == line.value("order") and order.draw is not None for order in orders)


def _excluded(rows: pd.DataFrame, samples: Mapping[str, Sample] = MappingProxyType({})) -> list[Exclusion]:
    """Return the excluded tasks; with samples, also the sample that would include each."""
    exclusions = []
    for task, title, why in rows.loc[rows["status"].ne(COUNTS), ["task", "title", "status"]].itertuples(index=False):
        needed = needed_sample(samples[task]) if task in samples else None
        exclusions.append(Exclusion(task=title, why=why, **({"needed": needed} if needed else {})))
    return exclusions


def _at_end(line: Line) -> EndLoss | None:
    """Return the loss with every head replaced: its mean, and the losses on each task that counts and on subsets."""
    loss = line.loss("0")
    if loss is None:
        return None
    rows = line.rows[line.rows["fraction"].eq("0") & line.rows["task"].isin(line.counting)]
    subsets = tuple(
        SubsetLosses(
            subset=str(name),
            tasks=_losses(group[group["status"].eq(COUNTS) & group["loss"].notna()]),
            excluded=tuple(_excluded(group)),
        )
        for name, group in line.subset_rows.groupby("subset", sort=False)
    )
    mean = loss[0]
    return EndLoss(loss=mean.mean, low=mean.low, high=mean.high, tasks=_losses(rows), subsets=subsets)


def _losses(rows: pd.DataFrame) -> tuple[TaskLoss, ...]:
    columns = rows[["title", "loss", "loss_low", "loss_high"]].to_numpy().tolist()
    return tuple(TaskLoss(task=task, loss=loss, low=low, high=high) for task, loss, low, high in columns)


def _rising(line: Line, curves: pd.DataFrame) -> list[RisingTask]:
    """Return the tasks on which scores were still rising when training ended, in at least one setting of the line.

    Scores fluctuate from epoch to epoch, so the mean over the last quarter of the epochs has to exceed the mean over
    the quarter before. Scores must also still rise within the last quarter: from its first epoch to its last, by more
    than twice the standard error over seeds. If the quarter is a single epoch, the rise is from the epoch before. If
    training has `patience`, scores still rose if most probes of a setting were trained for all epochs.
    """
    tasks, setting = [], ["constant", "order", "fraction"]
    for task, title in line.rows[["task", "title"]].drop_duplicates().itertuples(index=False):
        curve = curves[curves["model"].eq(line.model) & curves["task"].eq(task)]
        scores = curve.fillna({name: "" for name in setting}).pivot(
            index=[*setting, "seed"], columns="epoch", values="score"
        )
        still_rising = _unsettled(line, task, scores)
        if still_rising is None:
            still_rising = _rising_settings(scores) if scores.shape[1] > 1 else []
        runs = tuple(dict.fromkeys(filter(None, (_role(line, task, *rising) for rising in still_rising))))
        if runs:
            tasks.append(RisingTask(task=str(title), runs=runs, loss=_loss_direction(line, task, runs)))
    return tasks


def _unsettled(line: Line, task: str, scores: pd.DataFrame) -> list[tuple[str, str, str]] | None:
    """Return the settings in which most probes were trained for all epochs; None if training cannot end early.

    Args:
        scores: the score after each epoch (columns) of each setting and seed (rows), up to the epoch that is used.
    """
    recipe = line.rows[line.rows["task"].eq(task)].iloc[0]
    patience = recipe.get("patience")
    if patience is None or pd.isna(patience):
        return None
    reached = scores.notna().sum(axis=1) + patience > recipe["epochs"]
    most = reached.groupby(["constant", "order", "fraction"]).mean() > 0.5
    return list(most[most].index)


def _rising_settings(scores: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Return the settings whose scores were still rising when training ended; see `_rising`."""
    setting, epochs = ["constant", "order", "fraction"], scores.shape[1]
    quarter = max(epochs // 4, 1)
    late, before = scores.iloc[:, -quarter:], scores.iloc[:, -2 * quarter : -quarter]
    higher = (late.mean(axis=1) - before.mean(axis=1)).groupby(setting).mean() > MINIMUM_RISE
    rises = (late.iloc[:, -1] - (late if quarter > 1 else before).iloc[:, 0]).groupby(setting)
    still_rising = (rises.mean() > MINIMUM_RISE) & ~(rises.mean() <= 2 * rises.sem())
    return list(scores.groupby(setting).size()[higher & still_rising].index)


def _role(line: Line, task: str, constant: str, order: str, fraction: str) -> str:
    """Return the role of a setting in a line; empty if it belongs to another line.

    A floor that was not chosen has a role too, because with longer training it might have been the best.
    """
    setting = Setting(constant or None, Order.parse(order).base if order else None, fraction)
    floors = line.samples[task].floors if task in line.samples else ()
    roles: dict[Setting | None, str] = {Setting(floor, fraction="0"): OTHER_FLOOR_RUNS for floor in floors}
    roles |= {line.setting(task, fraction): REPLACED_RUNS}  # a floor may also be a constant of the grid
    roles |= {Setting(floor, fraction="0"): FLOOR_RUNS for floor in floors[:1]}
    return (roles | {ORIGINALS: ORIGINAL_RUNS}).get(setting, "")


def _loss_direction(line: Line, task: str, rising: Sequence[str]) -> str | None:
    """Return whether longer training may make the losses on a task `larger` or `smaller`; None if it has no loss.

    A higher floor makes attention's contribution smaller, so a loss is a larger share of it. A higher original moves a
    loss towards 100 %. A higher score with replaced heads makes the loss smaller.
    """
    losses = line.rows.loc[line.rows["task"].eq(task), "loss"].dropna()
    if losses.empty:
        return None
    original_rises = ORIGINAL_RUNS in rising
    directions = {
        "larger": bool({FLOOR_RUNS, OTHER_FLOOR_RUNS} & {*rising}) or (original_rises and losses.min() < 1),
        "smaller": REPLACED_RUNS in rising or (original_rises and losses.max() > 1),
    }
    return " or ".join(direction for direction, possible in directions.items() if possible) or None


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
    """Return the cells of a line and a task in the table of each task by itself."""
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
    """Return the indices of rows at which another line begins."""
    return tuple(np.flatnonzero(lines.ne(lines.shift()).to_numpy()).tolist())
