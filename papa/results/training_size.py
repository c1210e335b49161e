"""Attention's contribution and the loss by the number of training rows of the probes.

Tasks that differ only in `train_rows` form a group. They share texts, averages and hidden states, so a difference
between them is due to the training rows: those of the probe, and of λ or other head weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from papa.config.job import Job
from papa.config.settings import Plots
from papa.config.stages import AnalysisOf, TaskOf
from papa.files import read_table
from papa.results.analysis import Analysis, Computed, Drawing
from papa.results.losses import COUNTS, contribution_of, lost_score, share_of, status_of
from papa.results.outcomes import ALL, Setting, TaskOutcomes, outcomes_in
from papa.results.panels import (
    COLORS,
    Layers,
    PanelGrid,
    curves,
    line_legend,
    panels,
    percent_axis,
    words_only,
)
from papa.results.phrases import constant_name, constants_heading, loss_text, with_noun
from papa.results.table import Table, metric_name, texts

if TYPE_CHECKING:
    import altair as alt

CONTRIBUTED, LOST = "contribution", "loss"
"""The two quantities, which are columns and panels."""
COLUMNS = dict.fromkeys(("group", "model", "task", "title", "metric", "constant", "status"), "string")
COLUMNS |= {"rows": "int64"}
COLUMNS |= {name: "float64" for kind in (CONTRIBUTED, LOST) for name in (kind, f"{kind}_low", f"{kind}_high")}
TITLE = "Contribution and loss by training rows"
NOTE = (
    "Rows: training rows that a probe learns from; averages use all texts of the corpus. Contribution: original minus "
    "context-free floor, in units of the metric. Loss: the share of this contribution that is lost with every head "
    "replaced. In brackets: 95 % intervals over probe seeds and validation examples. They do not cover the choice of "
    "training rows, unless each seed has its own (`resample_training`)."
)


class TrainingSize(Analysis):
    """Measure the contribution and the loss with all heads replaced, for each number of training rows.

    Args:
        groups: the tasks that differ only in their training rows, by the title of the group.
        tasks: title and metric of each task.
        plots: the size of the panels.
    """

    columns = COLUMNS
    title_text = TITLE
    note_text = NOTE

    groups: dict[str, tuple[str, ...]]
    tasks: dict[str, TaskOf]
    plots: Plots

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Compute the rows from `all_outcomes`, and the numbers of training rows from `runs`."""
        runs = read_table(job.input("runs")).select(["model", "task", "rows_train"]).to_pandas()
        numbers = runs.drop_duplicates(["model", "task"]).set_index(["model", "task"])["rows_train"].to_dict()
        outcomes = outcomes_in(
            read_table(job.input("all_outcomes")), {name: task.metric for name, task in self.tasks.items()}
        )
        rows = sizes_of(list(outcomes), self.groups, {key: int(number) for key, number in numbers.items()})
        rows["title"] = rows["task"].map({name: task.title for name, task in self.tasks.items()})
        return Computed(rows, {"table": "training_size"})

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return tables_of(rows)

    def sentence(self, rows: pd.DataFrame) -> str:
        return sentence_of(rows)

    def drawing(self, rows: pd.DataFrame, job: Job[AnalysisOf]) -> Drawing:
        """Draw both quantities against the number of training rows."""
        alternative = f"Contribution and loss by training rows: {self.sentence(rows)}"
        return Drawing(figure_of(rows, self.plots), alternative, self.sentence(rows) if len(rows) else "")


def sizes_of(
    task_outcomes: Sequence[TaskOutcomes],
    groups: Mapping[str, Sequence[str]],
    numbers: Mapping[tuple[str, str], int],
) -> pd.DataFrame:
    """Return a row for each group, model, task and constant, in ascending order of training rows.

    Args:
        task_outcomes: all outcomes.
        groups: the tasks of each group.
        numbers: the number of training rows by model and task.
    """
    rows = [
        {"group": group, "rows": numbers[outcomes.model, outcomes.task], **row}
        for group, tasks in groups.items()
        for outcomes in task_outcomes
        if outcomes.task in tasks
        for row in _rows(outcomes)
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.sort_values(["group", "model", "rows"], kind="stable").reset_index(drop=True)


def _rows(outcomes: TaskOutcomes) -> Iterator[dict[str, object]]:
    """Yield a row for each constant that replaces every head, except the context-free floor."""
    sample = outcomes.sample(outcomes.metric, outcomes.subsets()[ALL])
    common: dict[str, object] = {"model": outcomes.model, "task": outcomes.task, "metric": outcomes.metric}
    common["status"] = status = status_of(sample, outcomes, outcomes.metric)
    if not contribution_of(sample).keys() <= sample.settings.keys():
        return
    if (contribution := share_of(sample, contribution_of(sample))) is not None:
        interval = contribution.in_scores().interval()
        common |= dict(zip(_names(CONTRIBUTED), interval, strict=False))
    for setting in sample.settings:
        if setting == Setting(setting.constant, fraction="0") and setting.constant not in sample.floors:
            share = share_of(sample, lost_score({setting: 1.0})) if status == COUNTS else None
            lost = {} if share is None else dict(zip(_names(LOST), share.interval(), strict=False))
            yield common | {"constant": setting.constant} | lost


def _names(quantity: str) -> tuple[str, str, str]:
    return quantity, f"{quantity}_low", f"{quantity}_high"


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """Return a table for each group, with a row for each model, number of training rows and constant."""
    tables = []
    for group, rows in frame.groupby("group", sort=False):
        text = pd.DataFrame(
            {
                "model": rows["model"],
                "training rows": rows["rows"].map("{:,}".format),
                "contribution": texts(_score_text, rows, *_names(CONTRIBUTED)),
                constants_heading(rows["constant"]).removesuffix("s"): rows["constant"].map(constant_name),
                "loss": texts(loss_text, rows, *_names(LOST)),
                "status": rows["status"],
            }
        )
        tables.append(Table(str(group), text, 2))
    return tables


def _score_text(score: float, low: float, high: float) -> str:
    if pd.isna(score):
        return "-"
    return f"{score:.3f}" + ("" if pd.isna(low) else f" ({low:.3f} to {high:.3f})")


def sentence_of(frame: pd.DataFrame) -> str:
    """Describe the contribution and the loss with the fewest and with the most training rows; no trend is tested."""
    sentences = []
    for (group, model), rows in frame.groupby(["group", "model"], sort=False):
        first, last = rows.iloc[0], rows.iloc[-1]
        parts = [
            f"{group} ({model}): from {first['rows']:,} to {last['rows']:,} training rows, attention's contribution "
            f"changes from {first[CONTRIBUTED]:.3f} to {last[CONTRIBUTED]:.3f}"
        ]
        for constant, known in rows.dropna(subset=LOST).groupby("constant", sort=False):
            losses = texts(loss_text, known, *_names(LOST))
            if len(losses) > 1:
                parts.append(f"the loss with {with_noun(str(constant))} from {losses[0]} to {losses[-1]}")
        sentences.append("; ".join(parts))
    return ". ".join(sentences) + "." if sentences else "No task was run with several numbers of training rows."


def figure_of(frame: pd.DataFrame, plots: Plots) -> alt.TopLevelMixin:
    """Draw a panel of contributions and a panel of losses for each group; a line for each model and constant."""
    points = _points(frame)
    if points.empty:
        return words_only(TITLE, sentence_of(frame), 2 * plots.width)
    import altair as alt

    names = list(dict.fromkeys(points["line"]))
    scale = alt.Scale(domain=names, range=[COLORS[index % len(COLORS)] for index in range(len(names))])
    color = alt.Color("line:N", scale=scale, legend=line_legend("model and replacement", names))

    def draw(rows: pd.DataFrame) -> Layers:
        quantity, numbers = rows["quantity"].iloc[0], sorted(rows["rows"].unique().tolist())
        axis = alt.Axis(values=numbers, format=",d", grid=False, labelOverlap=True)
        domain = alt.Scale(type="log", domain=[numbers[0] / 1.2, numbers[-1] * 1.2], nice=False)
        x = alt.X("rows:Q", title="training rows (log scale)", scale=domain, axis=axis)
        low = min(0.0, *rows["low"].fillna(rows["value"]))
        high = max([*rows["high"].fillna(rows["value"]), *rows["value"]])
        share = quantity == LOST
        title = LOST if share else f"contribution, {metric_name(rows['metric'].iloc[0])}"
        height = alt.Scale(domain=[max(low, -1.0), min(high, 2.0)] if share else [low, high], clamp=True)
        ticks = percent_axis(5) if share else alt.Axis()

        def y(column: str) -> alt.Y:
            return alt.Y(f"{column}:Q", title=title, scale=height, axis=ticks)

        shown = rows[["line", "rows", "value", "low", "high", "text"]]
        records = shown.astype(object).where(shown.notna(), None).to_dict("records")
        data = [{str(name): value for name, value in row.items()} for row in records]
        base = alt.Chart(alt.InlineData(data)).encode(x, color)
        bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.2, opacity=0.8)
        titles = {"line": "line", "rows": "training rows", "text": str(quantity)}
        return [
            bars.encode(y("low"), alt.Y2("high:Q")),
            *curves(base.encode(y("value")), titles, {"strokeWidth": 1.8}, {"size": 36, "opacity": 1}),
        ]

    return panels(points, draw, PanelGrid(1.2 * plots.width, plots.height, 2, TITLE))


def _points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each point: contributions once for each model, losses for each model and constant."""
    parts = []
    for quantity in (CONTRIBUTED, LOST):
        names = list(_names(quantity))
        rows = frame.dropna(subset=quantity)
        if quantity == CONTRIBUTED:
            rows = rows.drop_duplicates(["group", "model", "rows"])
        text = _score_text if quantity == CONTRIBUTED else loss_text
        limits = rows[names[1:]].where(rows[names[1:]].abs() < float("inf"))
        line = rows["model"] if quantity == CONTRIBUTED else rows["model"] + ", " + rows["constant"].map(constant_name)
        parts.append(
            rows[["group", "metric", "rows"]].assign(
                line=line,
                value=rows[quantity],
                low=limits[names[1]],
                high=limits[names[2]],
                text=texts(text, rows, *names),
                quantity=quantity,
                model="",
                task=rows["group"] + f"/{quantity}",
                title=rows["group"] + f": {quantity}",
            )
        )
    return pd.concat(parts).sort_values("group", kind="stable")
