"""Claims: how much is lost, how many heads are replaceable at a margin, and which tasks are excluded.

k heads are replaceable at margin δ if, for k and every smaller measured number, the one-sided 95 % upper bound of the
loss of every task that counts is below δ. All tasks have to pass (intersection-union), in the order of k (fixed
sequence), so no correction for many tests is needed; see docs/statistics.md.
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
)
from papa.results.grids import rows_of
from papa.results.losses import (
    COUNTS,
    ContributionShare,
    Weights,
    at_ceiling,
    difference,
    loss_of,
    lost,
    mean_of,
    share_of,
)
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, Sample, Setting, TaskOutcomes, is_probed, measured_in
from papa.results.phrases import MORE_THAN_ALL, conclusion_of, interval_text, percent
from papa.results.statistics import Estimate, Interval, holm, together
from papa.results.summary import is_main, read_summary
from papa.results.table import Table, read_frame, texts

CLAIM_COLUMNS = dict.fromkeys(("grid", "line", "model", "constant", "order", "fraction"), "string")
CLAIM_COLUMNS |= {"replaced": "int64", "heads": "int64", "tasks": "int64"}
CLAIM_COLUMNS |= dict.fromkeys(("loss", "low", "high", "bound", "margin"), "float64") | {"worst": "string"}

LEAST_GAIN = 0.005
"""A score that gained more than this in the last quarter of its epochs was not trained to the end."""
ENDS = {ORIGINALS: "original", FLOOR: "contextless floor"}
REPLACED = "replaced heads"
"""The names of runs in `RisingTask`: the two ends of a loss, and the point between them."""

NOTHING_REPLACED = "No heads are replaced, so there is nothing to conclude."

ABOUT = (
    "Loss: mean over the tasks that count of (original - score) / (original - contextless), with its 95 % interval "
    "over probe seeds, validation examples and, if there are several, orders of heads. Largest bound: the largest of "
    "the tasks' one-sided 95 % upper bounds. Margin: this number of heads is replaceable at every larger margin, "
    "because the bound of every task that counts is smaller, for this number and every smaller measured number. Tasks "
    f"whose original does not beat both floors are excluded. Above 100 %, {MORE_THAN_ALL}."
)


@dataclass(frozen=True)
class Line:
    """A model, a constant and an order, measured along the number of replaced heads.

    Args:
        grid, name: the grid and the name of the line in it.
        rows: rows of the summary: main scores on all examples.
        samples: the scores of each task by its metric on all validation examples.
        parts: rows of the summary: main scores on subsets, with every head replaced.
    """

    grid: str
    name: str
    rows: pd.DataFrame
    samples: Mapping[str, Sample]
    parts: pd.DataFrame

    @property
    def heads(self) -> int:
        """The number of heads of the model."""
        return int(self.rows["heads"].iloc[0])

    @property
    def steps(self) -> pd.DataFrame:
        """The measured numbers of replaced heads, rising: `fraction` and `replaced`."""
        steps = self.rows[["fraction"]].assign(replaced=self.heads - self.rows["kept"]).drop_duplicates("replaced")
        return steps[steps["replaced"] > 0].sort_values("replaced", kind="stable")

    @property
    def counting(self) -> list[str]:
        """The tasks that count."""
        status = self.rows.drop_duplicates("task").set_index("task")["status"]
        return [task for task in status.index if status[task] == COUNTS and task in self.samples]

    def first(self, column: str) -> str | None:
        """Return the first value of a column; None if there is none."""
        return next(iter(self.rows[column].dropna()), None)

    def setting(self, task: str, fraction: str) -> Setting | None:
        """Return the setting that was run for a task at a fraction; None if none was."""
        rows = self.rows[self.rows["task"].eq(task) & self.rows["fraction"].eq(fraction)]
        if rows.empty:
            return None
        constant, order = rows[["ran", "order"]].astype(object).where(rows.notna(), None).iloc[0]
        return (constant, order, fraction)

    def loss(self, fraction: str) -> tuple[Interval, int] | None:
        """Return the mean loss over the tasks that count and were run at a fraction, and the number of these tasks."""
        shares = []
        for task in self.counting:
            setting = self.setting(task, fraction)
            if setting and (share := loss_of(self.samples[task], {setting: 1.0})) is not None:
                shares.append(share)
        return (mean_of(shares), len(shares)) if shares else None

    def widths(self, task: str) -> Weights | None:
        """Return the weight of each setting's loss in the area under the loss of a task; None if it was not measured.

        The area is under straight lines through the measured points, along the share of replaced heads, from none, at
        which nothing is lost, to all.
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
        """Return the area under the loss of a task; None if it was not measured from none to all."""
        widths = self.widths(task)
        return None if widths is None else loss_of(self.samples[task], widths)


class ClaimsAnalysis(Analysis):
    """Conclude how many heads are replaceable, for each line of each grid.

    Args:
        grids: the grids.
        tasks: the title and the metric of each task.
        margin: the loss that is accepted.
    """

    columns = CLAIM_COLUMNS
    title_text = "Claims"
    note_text = ABOUT
    in_report = False  # the HTML report opens with claims

    grids: tuple[GridView, ...]
    tasks: dict[str, TaskOf]
    margin: float

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Conclude from `all_outcomes`; the conclusion is also written as JSON."""
        summary = read_summary(job.input("summary"))
        metrics = {name: task.metric for name, task in self.tasks.items()}
        measured = list(measured_in(read_table(job.input("all_outcomes")), metrics))
        curves = read_frame(job.input("curves"), {"epoch": "int64", "score": "float64"}, "table of curves")
        lines = [line for grid in self.grids for line in lines_of(grid, summary, measured)]
        frame, conclusion = claims_of(lines, self.margin, curves)
        facts = {"table": "claims", "margin": self.margin}
        return Computed(frame, facts, {"claims": conclusion.to_json()}, sentence=conclusion.sentence)

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return tables_of(rows)


def lines_of(grid: GridView, summary: pd.DataFrame, measured: Sequence[TaskOutcomes]) -> list[Line]:
    """Return the lines of a grid along which some heads are replaced."""
    rows = rows_of(grid, summary[summary["main"].eq(True)])
    ran = [
        Constant.parse(constant).on(grid.tasks[task]).name if isinstance(constant, str) else None
        for constant, task in zip(rows["constant"], rows["task"], strict=True)
    ]
    rows = rows.assign(ran=pd.Series(ran, rows.index, object))
    lines = []
    for name, along in rows.groupby("line", sort=False):
        model = along["model"].iloc[0]
        samples = {
            outcomes.task: outcomes.sample(outcomes.metric, outcomes.subsets()[ALL])
            for outcomes in measured
            if outcomes.model == model and outcomes.task in grid.tasks
        }
        whole = is_main(along)
        line = Line(grid.name, str(name), along[whole], samples, along[~whole & along["fraction"].eq("0")])
        if len(line.steps):
            lines.append(line)
    return lines


def claims_of(lines: Sequence[Line], margin: float, curves: pd.DataFrame) -> tuple[pd.DataFrame, Conclusion]:
    """Return the table of claims with `CLAIM_COLUMNS`, and the conclusion, whose sentence is about the first grid."""
    claims = [_claim(line, margin, curves) for line in lines]
    # by grid, and in it by model and constant
    groups: dict[str, dict[tuple[str, str | None], list[LineClaim]]] = {}
    for claim in claims:
        groups.setdefault(claim.grid, {}).setdefault((claim.model, claim.constant), []).append(claim)
    first = next(iter(groups.values()), {})
    worded = [
        claim.model_copy(update={"sentence": conclusion_of([claim], margin, len(groups[claim.grid]) > 1)})
        for claim in claims
    ]
    conclusion = Conclusion(
        sentence=" ".join(conclusion_of(group, margin, len(first) > 1) for group in first.values()) or NOTHING_REPLACED,
        margin=margin,
        lines=tuple(worded),
        areas=tuple(_area_differences(lines, margin)),
    )
    rows = [step.model_dump(exclude_unset=True) for claim in claims for step in claim.steps]
    return pd.DataFrame(rows, columns=list(CLAIM_COLUMNS)), conclusion


def _claim(line: Line, margin: float, curves: pd.DataFrame) -> LineClaim:
    """Return the claims about a line, without words."""
    tasks, steps, counting = line.rows.drop_duplicates("task"), _steps(line), line.counting
    titles = dict(zip(tasks["task"], tasks["title"], strict=True))
    known = [step for step in steps if step.margin is not None]
    passed = [step.replaced for step in known if step.margin is not None and step.margin < margin]
    half = [step.margin for step in known if 2 * step.replaced >= line.heads]
    sizes = [line.samples[task].values.shape[1] for task in titles if task in line.samples]
    return LineClaim(
        grid=line.grid,
        line=line.name,
        model=tasks["model"].iloc[0],
        constant=line.first("constant"),
        order=line.first("order"),
        heads=line.heads,
        seeds=_seeds(line),
        orders=_orders(line),
        examples=(min(sizes), max(sizes)) if sizes else None,
        tasks=tuple(title for task, title in titles.items() if task in counting),
        excluded=tuple(_excluded(tasks)),
        ceiling=tuple(
            title for task, title in titles.items() if task in line.samples and at_ceiling(line.samples[task])
        ),
        rising=tuple(_rising(line, curves)),
        replaceable=passed[-1] if passed else 0 if known else None,
        measured=tuple(step.replaced for step in known),
        half_margin=half[0] if half else None,
        at_end=_at_end(line),
        area=_area(line),
        steps=tuple(steps),
        sentence="",
    )


def _steps(line: Line) -> list[Step]:
    about = {"grid": line.grid, "line": line.name, "model": line.rows["model"].iloc[0], "heads": line.heads}
    about |= {"constant": line.first("constant"), "order": line.first("order")}
    titles = dict(zip(line.rows["task"], line.rows["title"], strict=True))
    steps, margin, counting = [], 0.0, line.counting
    for fraction, replaced in line.steps.to_numpy().tolist():
        loss = line.loss(fraction)
        row = about | {"fraction": fraction, "replaced": int(replaced), "tasks": loss[1] if loss else 0}
        if loss is not None:
            row |= {"loss": loss[0].mean, "low": loss[0].low, "high": loss[0].high}
        if counting:
            at = line.rows[line.rows["fraction"].eq(fraction)].set_index("task")["loss_bound"]
            bounds = at.reindex(counting).fillna(inf)  # a task whose loss is not known here passes at no margin
            margin = max(margin, float(bounds.max()))
            row |= {"bound": float(bounds.max()), "margin": margin, "worst": titles[bounds.idxmax()]}
        steps.append(Step.model_validate(row))
    return steps


def _seeds(line: Line) -> int | None:
    trained = is_probed(line.rows["metric"]) & line.rows["fraction"].ne("1")
    return int(line.rows.loc[trained, "seeds"].min()) if trained.any() else None


def _orders(line: Line) -> int:
    """Count the orders of a line's name that were drawn or learned."""
    runs = pd.concat([line.samples[task].runs for task in line.rows["task"].unique() if task in line.samples])
    names = runs.loc[runs["constant"].isin(line.rows["ran"].dropna()), "order"].dropna().unique()
    orders = map(Order.parse, names)
    return sum(order.base == line.first("order") and order.draw is not None for order in orders)


def _excluded(rows: pd.DataFrame) -> list[Exclusion]:
    named = rows.loc[rows["status"].ne(COUNTS), ["title", "status"]].itertuples(index=False)
    return [Exclusion(task=task, why=why) for task, why in named]


def _at_end(line: Line) -> EndLoss | None:
    """Return the loss with every head replaced: the mean, for each task that counts, and on subsets."""
    loss = line.loss("0")
    if loss is None:
        return None
    rows = line.rows[line.rows["fraction"].eq("0") & line.rows["task"].isin(line.counting)]
    subsets = tuple(
        SubsetLosses(
            subset=str(name),
            tasks=_losses(part[part["status"].eq(COUNTS) & part["loss"].notna()]),
            excluded=tuple(_excluded(part)),
        )
        for name, part in line.parts.groupby("subset", sort=False)
    )
    mean = loss[0]
    return EndLoss(loss=mean.mean, low=mean.low, high=mean.high, tasks=_losses(rows), subsets=subsets)


def _losses(rows: pd.DataFrame) -> tuple[TaskLoss, ...]:
    columns = rows[["title", "loss", "loss_low", "loss_high"]].to_numpy().tolist()
    return tuple(TaskLoss(task=task, loss=loss, low=low, high=high) for task, loss, low, high in columns)


def _area(line: Line) -> Area | None:
    """Return the mean area under the loss over the tasks that count; None if one of them has none."""
    areas = [area for task in line.counting if (area := line.area(task)) is not None]
    if not areas or len(areas) < len(line.counting):
        return None
    mean = mean_of(areas)
    return Area(mean=mean.mean, low=mean.low, high=mean.high)


def _area_differences(lines: Sequence[Line], margin: float) -> list[AreaDifference]:
    """Return differences between areas of two lines of a grid: paired within a model, unpaired between models.

    The verdict that two lines differ is corrected for all pairs of a grid (Holm); the verdict that they are equal
    within the margin is not.
    """
    differences = []
    for grid in dict.fromkeys(line.grid for line in lines):
        both = combinations([line for line in lines if line.grid == grid], 2)
        pairs = [(a, b, estimate) for a, b in both if (estimate := _area_difference(a, b)) is not None]
        corrected = holm([estimate.p() for _, _, estimate in pairs])
        for (a, b, estimate), p in zip(pairs, corrected, strict=True):
            interval, narrow = estimate.interval(), estimate.interval(0.9)
            verdict = "cannot tell"
            if p < 0.05:
                verdict = "differs"
            elif -margin < narrow.low and narrow.high < margin:
                verdict = "equal within the margin"
            numbers = {"p": p, "difference": interval.mean, "low": interval.low, "high": interval.high}
            differences.append(AreaDifference(grid=grid, a=a.name, b=b.name, verdict=verdict, **numbers))
    return differences


def _area_difference(a: Line, b: Line) -> Estimate | None:
    """Return the mean over tasks of the area of one line minus the area of another; None if either has none."""
    parts, same_model = [], a.rows["model"].iloc[0] == b.rows["model"].iloc[0]
    for task in (task for task in a.counting if task in b.counting):
        estimate: Estimate | None = None
        if same_model:
            widths = a.widths(task), b.widths(task)
            if widths[0] and widths[1]:
                share = share_of(a.samples[task], difference(lost(widths[0]), lost(widths[1])))
                estimate = None if share is None else share.estimate()
        else:
            areas = [area.estimate() for line in (a, b) if (area := line.area(task)) is not None]
            estimate = together(areas, [1, -1]) if len(areas) == 2 else None
        if estimate is None:
            return None
        parts.append(estimate)
    return together(parts, [1 / len(parts)] * len(parts)) if parts else None


def _rising(line: Line, curves: pd.DataFrame) -> list[RisingTask]:
    """Return the tasks with a setting of the line whose probes still gained at the end.

    Scores of single epochs go up and down, so the mean over the last quarter of the epochs has to exceed the mean over
    the quarter before. And the gain must not be over: from the first to the last epoch of the last quarter, seeds gain
    on average by more than twice the standard error. If the quarter is a single epoch, they gain in that epoch.
    """
    tasks, setting = [], ["constant", "order", "fraction"]
    for task, title in line.rows[["task", "title"]].drop_duplicates().itertuples(index=False):
        curve = curves[curves["model"].eq(line.rows["model"].iloc[0]) & curves["task"].eq(task)]
        scores = curve.fillna({name: "" for name in setting}).pivot(
            index=[*setting, "seed"], columns="epoch", values="score"
        )
        epochs = scores.shape[1]
        if epochs < 2:
            continue
        part = max(epochs // 4, 1)
        late, before = scores.iloc[:, -part:], scores.iloc[:, -2 * part : -part]
        higher = (late.mean(axis=1) - before.mean(axis=1)).groupby(setting).mean() > LEAST_GAIN
        gains = (late.iloc[:, -1] - (late if part > 1 else before).iloc[:, 0]).groupby(setting)
        gained = (gains.mean() > LEAST_GAIN) & ~(gains.mean() <= 2 * gains.sem())
        settings = scores.groupby(setting).size()[higher & gained].index
        runs = tuple(dict.fromkeys(filter(None, (_role(line, task, *rising) for rising in settings))))
        if runs:
            tasks.append(RisingTask(task=str(title), runs=runs, loss=_moved(line, task, runs)))
    return tasks


def _role(line: Line, task: str, constant: str, order: str, fraction: str) -> str:
    """Return the role of a setting in a line; empty if it belongs to another line."""
    setting = (constant or None, Order.parse(order).base if order else None, fraction)
    if setting in ENDS:
        return ENDS[setting]
    return REPLACED if setting == line.setting(task, fraction) else ""


def _moved(line: Line, task: str, rising: Sequence[str]) -> str | None:
    """Return whether longer training may make a loss of a task `larger` or `smaller`; None without a loss.

    A higher floor makes attention's contribution smaller, so a loss is a larger share of it. A higher original moves a
    loss towards 100 %, and a higher score makes it smaller.
    """
    losses = line.rows.loc[line.rows["task"].eq(task), "loss"].dropna()
    if losses.empty:
        return None
    first = ENDS[ORIGINALS] in rising
    ways = {
        "larger": ENDS[FLOOR] in rising or (first and losses.min() < 1),
        "smaller": REPLACED in rising or (first and losses.max() > 1),
    }
    return " or ".join(way for way, may_be in ways.items() if may_be) or None


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """Return the claims of each grid."""
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
                "of": rows["worst"].fillna("-"),
                "margin": [percent(margin, upper=True) for margin in rows["margin"]],
            }
        )
        rules = np.flatnonzero(rows["line"].ne(rows["line"].shift()).to_numpy()).tolist()
        tables.append(Table(str(grid).replace("_", " ").capitalize(), text, 2, rules=tuple(rules)))
    return tables
