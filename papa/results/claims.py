"""Claims: how much is lost, how many heads are replaceable at a margin, and which tasks are excluded.

k heads are replaceable at margin δ if, for k and every smaller measured number of replaced heads, the one-sided 95 %
upper bound of the loss on every task that counts is below δ. Because all tasks have to pass (intersection-union) and
numbers are tested in ascending order (fixed sequence), multiple testing needs no correction; see docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf

import numpy as np
import pandas as pd

from papa.config.job import Job
from papa.config.stages import AnalysisOf, GridView, TaskOf
from papa.config.variant import Constant, Order
from papa.files import read_table
from papa.results.analysis import Analysis, Computed
from papa.results.conclusion import (
    INCONCLUSIVE,
    Area,
    AreaDifference,
    Conclusion,
    EndLoss,
    Exclusion,
    LineClaim,
    RisingTask,
    Step,
    SubsetLosses,
    TaskLoss,
    TaskTraining,
)
from papa.results.grids import rows_of
from papa.results.losses import (
    COUNTS,
    Combination,
    ContributionShare,
    at_ceiling,
    difference,
    loss_of,
    lost_score,
    mean_of,
    share_of,
)
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, Sample, Setting, TaskOutcomes, is_probed, outcomes_in
from papa.results.phrases import MORE_THAN_ALL, conclusion_of, holds_for, interval_text, percent
from papa.results.statistics import Estimate, Interval, combine, holm
from papa.results.summary import is_main, read_summary
from papa.results.table import Table, read_frame, texts

CLAIM_COLUMNS = dict.fromkeys(("grid", "line", "model", "constant", "order", "fraction"), "string")
CLAIM_COLUMNS |= {"replaced": "int64", "heads": "int64", "tasks": "int64"}
CLAIM_COLUMNS |= dict.fromkeys(("loss", "low", "high", "bound", "margin"), "float64") | {"worst": "string"}

MINIMUM_RISE = 0.005
"""Training was too short if a probe's score rose by more than this over the last quarter of the epochs."""
END_RUNS = {ORIGINALS: "original", FLOOR: "contextless floor"}
REPLACED_RUNS = "replaced heads"
"""The names of runs in `RisingTask`: those at the two ends of the scale of losses, and those between them."""

NOTHING_REPLACED = "No heads are replaced, so there is nothing to conclude."

CLAIMS_NOTE = (
    "Loss: (original - score) / (original - contextless), averaged over the tasks that count. Its 95 % interval is "
    "over probe seeds, validation examples and, if there are several, orders of heads. Largest bound: the largest of "
    "the tasks' one-sided 95 % upper bounds. Margin: this number of heads is replaceable at every larger margin, "
    "because no task that counts has a larger bound at this or any smaller measured number. Tasks whose original does "
    f"not beat both floors are excluded. Above 100 %, {MORE_THAN_ALL}."
)


@dataclass(frozen=True)
class Line:
    """A curve of a grid: a model, a constant and an order, measured along the number of replaced heads.

    Args:
        grid, name: the name of the grid, and the name of the line in the grid.
        rows: the summary rows of the line, with main scores on all examples.
        samples: the scores on all validation examples by each task's main metric.
        subset_rows: the summary rows with main scores on subsets, with every head replaced.
    """

    grid: str
    name: str
    rows: pd.DataFrame
    samples: Mapping[str, Sample]
    subset_rows: pd.DataFrame

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
        return (constant, order, fraction)

    def loss(self, fraction: str) -> tuple[Interval, int] | None:
        """Return the mean loss at a fraction over the tasks that count and were run there, and how many these are."""
        shares = []
        for task in self.counting:
            setting = self.setting(task, fraction)
            if setting and (share := loss_of(self.samples[task], {setting: 1.0})) is not None:
                shares.append(share)
        return (mean_of(shares), len(shares)) if shares else None

    def area_weights(self, task: str) -> Combination | None:
        """Return the weight of each setting's loss in the area under a task's loss; None if it was not measured.

        The area is a trapezoidal integral over the share of replaced heads, from 0, where nothing is lost, to 1.
        """
        steps = self.steps
        settings = [self.setting(task, fraction) for fraction in steps["fraction"]]
        x = np.array([0.0, *(steps["replaced"] / self.heads)])
        if len(x) < 2 or x[-1] != 1:
            return None
        widths = np.diff(x)
        weights = (np.append(widths[1:], 0) + widths) / 2
        known = {setting: float(weight) for setting, weight in zip(settings, weights, strict=True) if setting}
        return known if len(known) == len(settings) else None

    def area(self, task: str) -> ContributionShare | None:
        """Return the area under a task's loss; None if it was not measured up to all heads."""
        weights = self.area_weights(task)
        return None if weights is None else loss_of(self.samples[task], weights)


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
        curves = read_frame(job.input("curves"), {"epoch": "int64", "score": "float64"}, "table of curves")
        lines = [line for grid in self.grids for line in lines_of(grid, summary, outcomes)]
        frame, conclusion = claims_of(lines, self.margin, curves)
        facts = {"table": "claims", "margin": self.margin}
        return Computed(frame, facts, {"claims": conclusion.to_json()}, sentence=conclusion.sentence)

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return tables_of(rows)


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
        line = Line(grid.name, str(name), line_rows[main], samples, subset_rows)
        if len(line.steps):
            lines.append(line)
    return lines


def claims_of(lines: Sequence[Line], margin: float, curves: pd.DataFrame) -> tuple[pd.DataFrame, Conclusion]:
    """Return the table of claims (`CLAIM_COLUMNS`) and the conclusion; its sentence covers only the first grid."""
    claims = [_claim(line, margin, curves) for line in lines]
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
        areas=tuple(_area_differences(lines, margin)),
        training=training,
    )
    rows = [step.model_dump(exclude_unset=True) for claim in claims for step in claim.steps]
    return pd.DataFrame(rows, columns=list(CLAIM_COLUMNS)), conclusion


def _claim(line: Line, margin: float, curves: pd.DataFrame) -> LineClaim:
    """Return the claims about a line, with an empty sentence."""
    tasks, steps, counting = line.rows.drop_duplicates("task"), _steps(line), line.counting
    titles = dict(zip(tasks["task"], tasks["title"], strict=True))
    bounded = [step for step in steps if step.margin is not None]
    passed = [step.replaced for step in bounded if step.margin is not None and step.margin < margin]
    half_margins = [step.margin for step in bounded if 2 * step.replaced >= line.heads]
    example_counts = [line.samples[task].values.shape[1] for task in titles if task in line.samples]
    return LineClaim(
        grid=line.grid,
        line=line.name,
        model=tasks["model"].iloc[0],
        constant=line.value("constant"),
        order=line.value("order"),
        heads=line.heads,
        seeds=_seeds(line),
        orders=_orders(line),
        examples=(min(example_counts), max(example_counts)) if example_counts else None,
        tasks=tuple(title for task, title in titles.items() if task in counting),
        excluded=tuple(_excluded(tasks)),
        ceiling=tuple(
            title for task, title in titles.items() if task in line.samples and at_ceiling(line.samples[task])
        ),
        rising=tuple(_rising(line, curves)),
        replaceable=passed[-1] if passed else 0 if bounded else None,
        measured=tuple(step.replaced for step in bounded),
        half_margin=half_margins[0] if half_margins else None,
        at_end=_at_end(line),
        area=_area(line),
        steps=tuple(steps),
        sentence="",
    )


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
    common = {"grid": line.grid, "line": line.name, "model": line.rows["model"].iloc[0], "heads": line.heads}
    common |= {"constant": line.value("constant"), "order": line.value("order")}
    titles = dict(zip(line.rows["task"], line.rows["title"], strict=True))
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
            row |= {"bound": float(bounds.max()), "margin": margin, "worst": titles[bounds.idxmax()]}
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


def _excluded(rows: pd.DataFrame) -> list[Exclusion]:
    reasons = rows.loc[rows["status"].ne(COUNTS), ["title", "status"]].itertuples(index=False)
    return [Exclusion(task=task, why=why) for task, why in reasons]


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


def _area(line: Line) -> Area | None:
    """Average the area under the loss over the tasks that count; None if one of them has no area."""
    areas = [area for task in line.counting if (area := line.area(task)) is not None]
    if not areas or len(areas) < len(line.counting):
        return None
    mean = mean_of(areas)
    return Area(mean=mean.mean, low=mean.low, high=mean.high)


def _area_differences(lines: Sequence[Line], margin: float) -> list[AreaDifference]:
    """Compare the areas of all pairs of lines in each grid.

    Verdicts that two lines differ are corrected for all pairs of a grid (Holm's method). Verdicts that two lines are
    equal within the margin are not corrected.
    """
    differences = []
    for grid in dict.fromkeys(line.grid for line in lines):
        all_pairs = combinations([line for line in lines if line.grid == grid], 2)
        pairs = [(a, b, estimate) for a, b in all_pairs if (estimate := _area_difference(a, b)) is not None]
        corrected = holm([estimate.p() for _, _, estimate in pairs])
        for (a, b, estimate), p in zip(pairs, corrected, strict=True):
            interval, narrow = estimate.interval(), estimate.interval(0.9)
            verdict = INCONCLUSIVE
            if p < 0.05:
                verdict = "differs"
            elif -margin < narrow.low and narrow.high < margin:
                verdict = "equal within the margin"
            numbers = {"p": p, "difference": interval.mean, "low": interval.low, "high": interval.high}
            differences.append(AreaDifference(grid=grid, a=a.name, b=b.name, verdict=verdict, **numbers))
    return differences


def _area_difference(a: Line, b: Line) -> Estimate | None:
    """Return the area of line a minus that of line b, averaged over tasks; None if an area is missing.

    Lines of one model are compared run by run. Lines of two models are independent.
    """
    by_task, same_model = [], a.rows["model"].iloc[0] == b.rows["model"].iloc[0]
    for task in (task for task in a.counting if task in b.counting):
        estimate: Estimate | None = None
        if same_model:
            weights = a.area_weights(task), b.area_weights(task)
            if weights[0] and weights[1]:
                share = share_of(a.samples[task], difference(lost_score(weights[0]), lost_score(weights[1])))
                estimate = None if share is None else share.estimate()
        else:
            areas = [area.estimate() for line in (a, b) if (area := line.area(task)) is not None]
            estimate = combine(areas, [1, -1]) if len(areas) == 2 else None
        if estimate is None:
            return None
        by_task.append(estimate)
    return combine(by_task, [1 / len(by_task)] * len(by_task)) if by_task else None


def _rising(line: Line, curves: pd.DataFrame) -> list[RisingTask]:
    """Return the tasks on which scores still rose when training ended, in at least one setting of the line.

    Scores fluctuate from epoch to epoch, so the mean over the last quarter of the epochs has to exceed the mean over
    the quarter before. Scores must also still rise within the last quarter: from its first epoch to its last, by more
    than twice the standard error over seeds. If the quarter is a single epoch, the rise is from the epoch before. If
    training has `patience`, scores still rose if most probes of a setting were trained for all epochs.
    """
    tasks, setting = [], ["constant", "order", "fraction"]
    for task, title in line.rows[["task", "title"]].drop_duplicates().itertuples(index=False):
        curve = curves[curves["model"].eq(line.rows["model"].iloc[0]) & curves["task"].eq(task)]
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
    """Return the settings whose scores still rose when training ended; see `_rising`."""
    setting, epochs = ["constant", "order", "fraction"], scores.shape[1]
    quarter = max(epochs // 4, 1)
    late, before = scores.iloc[:, -quarter:], scores.iloc[:, -2 * quarter : -quarter]
    higher = (late.mean(axis=1) - before.mean(axis=1)).groupby(setting).mean() > MINIMUM_RISE
    rises = (late.iloc[:, -1] - (late if quarter > 1 else before).iloc[:, 0]).groupby(setting)
    still_rising = (rises.mean() > MINIMUM_RISE) & ~(rises.mean() <= 2 * rises.sem())
    return list(scores.groupby(setting).size()[higher & still_rising].index)


def _role(line: Line, task: str, constant: str, order: str, fraction: str) -> str:
    """Return the role of a setting in a line; empty if it belongs to another line."""
    setting = (constant or None, Order.parse(order).base if order else None, fraction)
    if setting in END_RUNS:
        return END_RUNS[setting]
    return REPLACED_RUNS if setting == line.setting(task, fraction) else ""


def _loss_direction(line: Line, task: str, rising: Sequence[str]) -> str | None:
    """Return whether longer training may make the losses on a task `larger` or `smaller`; None if it has no loss.

    A higher floor makes attention's contribution smaller, so a loss is a larger share of it. A higher original moves a
    loss towards 100 %. A higher score with replaced heads makes the loss smaller.
    """
    losses = line.rows.loc[line.rows["task"].eq(task), "loss"].dropna()
    if losses.empty:
        return None
    original_rises = END_RUNS[ORIGINALS] in rising
    directions = {
        "larger": END_RUNS[FLOOR] in rising or (original_rises and losses.min() < 1),
        "smaller": REPLACED_RUNS in rising or (original_rises and losses.max() > 1),
    }
    return " or ".join(direction for direction, possible in directions.items() if possible) or None


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """Return a table of claims for each grid."""
    tables = []
    for grid, rows in frame.groupby("grid", sort=False):
        text = pd.DataFrame(
            {
                "line": rows["line"],
                "heads replaced": rows["replaced"].map("{:,}".format) + " of " + rows["heads"].map("{:,}".format),
                "tasks": rows["tasks"],
                "loss": rows["loss"].map(percent),
                "95 % interval": texts(interval_text, rows, "low", "high"),
                "largest bound": [percent(bound, upper=True) for bound in rows["bound"]],
                "on": rows["worst"].fillna("-"),
                "margin": [percent(margin, upper=True) for margin in rows["margin"]],
            }
        )
        rules = np.flatnonzero(rows["line"].ne(rows["line"].shift()).to_numpy()).tolist()
        tables.append(Table(str(grid).replace("_", " ").capitalize(), text, 2, rules=tuple(rules)))
    return tables
