"""The paper's Tables 1 and 4 read as losses, next to the losses of a study.

Both tables have a score for identity and for zeros, two models in which no token sees another. With these scores as
floors, every printed score has a loss. The paper prints two decimals and no interval of these scores, so the range of a
published loss comes from rounding only; seeds and examples are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from papa.config.job import Job
from papa.config.settings import Plots
from papa.config.stages import AnalysisOf
from papa.config.variant import RETRAINED
from papa.method.pictures import inline, styled
from papa.results.analysis import Analysis, Computed, Drawing
from papa.results.grids import ORIGINAL
from papa.results.outcomes import ALL
from papa.results.panels import COLORS, described, percent_axis
from papa.results.phrases import constant_name, loss_text
from papa.results.published import METRIC_NAMES, ROUNDING, SETTINGS, published_values
from papa.results.summary import read_summary
from papa.results.table import Table, metric_name, texts

if TYPE_CHECKING:
    import altair as alt

FLOOR_SETTINGS = ("zeros", "identity")
BETTER = "better"
"""The floor with the higher score."""
MAIN_CONSTANT = "average"
"""The constant that the figure shows."""
OTHER_CONSTANTS = ("average-trained", "toeplitz", "toeplitz-trained")
MODEL_TITLES = {"roberta-base": "RoBERTa BASE", "roberta-large": "RoBERTa LARGE"}
TASK_TITLES = {"mnli_mismatched": "MNLI", "cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "ner": "NER", "pos": "POS"}
"""The published tasks, in the order of tables and of the figure."""
PAPER, STUDY = "paper", "study"
"""The values of the column `source`."""
INTERVALS = {PAPER: "from rounding only", STUDY: "95 %, over seeds, examples and orders"}
"""The meaning of an interval, by source."""
LOSS_COLUMNS = ("loss", "low", "high")
KEYS = ("source", "table", "model", "published_task", "title", "metric", "constant", "interval")
COLUMNS = dict.fromkeys(KEYS, "string")
COLUMNS |= dict.fromkeys((ORIGINAL, *FLOOR_SETTINGS, "score"), "float64")
COLUMNS |= {f"{name}_{floor}": "float64" for floor in FLOOR_SETTINGS for name in LOSS_COLUMNS}
COLUMNS |= dict.fromkeys(LOSS_COLUMNS, "float64")
AXIS = (-0.25, 1.25)
"""The losses that the figure shows; the ends of longer intervals are cut."""
TITLE = "The paper's tables read as losses"
NOTE = (
    "Constants replace every head. Loss: (original - score) / (original - floor). The paper prints the floors zeros "
    "and identity, in which no token sees another; the better floor is the one with the higher score. Each published "
    "score is one mean over seeds, printed with two decimals. In brackets: for published losses, all losses that agree "
    "with the printed scores (from rounding only, without seeds and examples); for losses of this study, the 95 % "
    "interval."
)


class LossRange(NamedTuple):
    """A loss with its lowest and its highest value."""

    loss: float
    low: float
    high: float


class PublishedLosses(Analysis):
    """Compute the losses of published scores, and show them next to the losses of the study.

    Args:
        tasks: the published name of each task.
        plots: the size of the figure.
        values: the digest of the published values.
    """

    columns = COLUMNS
    title_text = TITLE
    note_text = NOTE

    tasks: dict[str, str]
    plots: Plots
    values: str

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Compute the published losses, and look up those of the study in the `summary`."""
        study = losses_of_study(read_summary(job.input("summary")), self.tasks)
        rows = pd.concat([published_losses(), study], ignore_index=True) if len(study) else published_losses()
        return Computed(rows, {"table": "published_losses", "rounding": ROUNDING})

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return tables_of(rows)

    def drawing(self, rows: pd.DataFrame, job: Job[AnalysisOf]) -> Drawing:
        """Draw the losses with averages in all heads."""
        sentence = self.sentence(rows)
        return Drawing(losses_figure(rows, self.plots), sentence, sentence)

    def sentence(self, rows: pd.DataFrame) -> str:
        """Return the published losses with averages in all heads."""
        averages = rows[rows["source"].eq(PAPER) & rows["constant"].eq(MAIN_CONSTANT)]
        parts = []
        for model, group in averages.groupby("model", sort=False):
            losses = ", ".join(texts(lambda title, *loss: f"{title} {loss_text(*loss)}", group, "title", *LOSS_COLUMNS))
            parts.append(f"{model}: {losses}")
        return f"Published losses with averages in all heads, ranges from rounding only: {'; '.join(parts)}"


def loss_range(original: Sequence[float], score: Sequence[float], floor: Sequence[float]) -> LossRange:
    """Return a loss with its exact range if all three scores may lie anywhere between two ends.

    The loss is monotone in each score, so its extremes lie at the corners of the box. The range is unbounded if the
    original might not exceed the floor.

    Args:
        original, score, floor: the value, its lower end and its upper end.

    Example:
        >>> [round(100 * end, 1) for end in loss_range(rounded(0.78), rounded(0.69), rounded(0.66))]
        [75.0, 66.7, 83.3]
    """

    def loss(original: float, score: float, floor: float) -> float:
        return (original - score) / (original - floor) if original > floor else float("nan")

    value = loss(original[0], score[0], floor[0])
    if round(original[1] - floor[2], 9) <= 0:
        return LossRange(value, -inf, inf)
    corners = [loss(*corner) for corner in product(original[1:], score[1:], floor[1:])]
    return LossRange(value, min(corners), max(corners))


def rounded(value: float) -> tuple[float, float, float]:
    """Return a printed score with the ends of the range that rounds to it."""
    return value, value - ROUNDING, value + ROUNDING


def published_losses() -> pd.DataFrame:
    """Return a row, with `COLUMNS`, for each score of Tables 1 and 4 that is neither an original nor a floor."""
    values = published_values()
    constants = {name: constant for constant, names in SETTINGS.items() for name in names}
    rows = []
    for (table, model, task), group in values.groupby(["table", "model", "task"], sort=False):
        scores = dict(zip(group["setting"], group["value"], strict=True))
        ends = (ORIGINAL, *FLOOR_SETTINGS)
        if not scores.keys() >= set(ends):
            continue
        model, task = str(model), str(task)
        common = {"source": PAPER, "table": table, "model": MODEL_TITLES[model], "interval": INTERVALS[PAPER]}
        common |= {"published_task": task, "title": TASK_TITLES[task]} | {name: scores[name] for name in ends}
        common["metric"] = METRIC_NAMES.get(task, group["metric"].iloc[0])
        rows += [
            common | {"constant": constants[setting], "score": score} | dict(_losses(scores, score))
            for setting, score in scores.items()
            if setting not in ends
        ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return _in_order(frame)


def _losses(scores: Mapping[str, float], score: float) -> Iterator[tuple[str, float]]:
    """Yield the columns of the losses of a published score: against each floor, and against the better one."""
    floors = {name: rounded(scores[name]) for name in FLOOR_SETTINGS}
    # the better floor may be any of the two, but its ends are the larger ones of both
    better = tuple(max(ends) for ends in zip(*floors.values(), strict=True))
    for suffix, floor in [*((f"_{name}", floor) for name, floor in floors.items()), ("", better)]:
        for name, value in loss_range(rounded(scores[ORIGINAL]), rounded(score), floor)._asdict().items():
            yield f"{name}{suffix}", value


def losses_of_study(summary: pd.DataFrame, tasks: Mapping[str, str]) -> pd.DataFrame:
    """Return a row, with `COLUMNS`, for each loss of a study at fraction 0 whose task and constant the paper prints.

    Args:
        summary: the rows of a summary.
        tasks: the published name of each task.
    """
    summary = summary[summary["adapt"].eq(RETRAINED)]
    at_end = summary["fraction"].eq("0") & summary["constant"].isin([MAIN_CONSTANT, *OTHER_CONSTANTS])
    rows = summary[at_end & summary["main"] & summary["subset"].eq(ALL) & summary["task"].isin(list(tasks))]
    rows = rows.dropna(subset="loss")
    originals = summary[summary["constant"].isna() & summary["main"] & summary["subset"].eq(ALL)]
    by_run = originals.set_index(["model", "task"])["mean"].to_dict()
    frame = rows.assign(
        source=STUDY,
        table=None,
        interval=INTERVALS[STUDY],
        published_task=rows["task"].map(tasks),
        score=rows["mean"],
        original=pd.MultiIndex.from_frame(rows[["model", "task"]]).map(by_run).to_numpy(float),
        low=rows["loss_low"],
        high=rows["loss_high"],
    )
    return _in_order(frame.reindex(columns=list(COLUMNS)))


def _in_order(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort rows by task; models and constants keep their order."""
    tasks, models = list(TASK_TITLES), list(dict.fromkeys(frame["model"]))
    keys = frame.assign(model=frame["model"].map(models.index), published_task=frame["published_task"].map(tasks.index))
    return frame.loc[keys.sort_values(["model", "published_task"], kind="stable").index].reset_index(drop=True)


def tables_of(rows: pd.DataFrame) -> list[Table]:
    """Return the losses with averages, with other constants, and those of the study next to the published ones."""
    paper, averages = rows[rows["source"].eq(PAPER)], rows[rows["constant"].eq(MAIN_CONSTANT)]
    return [
        averages_table(averages[averages["source"].eq(PAPER)]),
        other_constants_table(paper),
        *([_side_by_side(averages)] if averages["source"].eq(STUDY).any() else []),
    ]


def averages_table(rows: pd.DataFrame) -> Table:
    """Return published scores with averages in all heads, and their losses against each floor and the better one."""
    text = pd.DataFrame({"model": rows["model"], "task": rows["title"], "metric": rows["metric"].map(metric_name)})
    for name, column in {ORIGINAL: ORIGINAL, **{floor: floor for floor in FLOOR_SETTINGS}, "averages": "score"}.items():
        text[name] = rows[column].map("{:.2f}".format)
    for floor in FLOOR_SETTINGS:
        text[f"loss, floor {floor}"] = texts(loss_text, rows, *(f"{name}_{floor}" for name in LOSS_COLUMNS))
    text["loss, better floor"] = texts(loss_text, rows, *LOSS_COLUMNS)
    starts = rows["model"].ne(rows["model"].shift()).to_numpy().nonzero()[0].tolist()
    return Table("Published losses with averages in all heads", text, 3, rules=tuple(starts))


def other_constants_table(rows: pd.DataFrame) -> Table:
    """Return published losses with other constants: a row for each model and constant, a column for each task."""
    others = rows[rows["constant"].isin(OTHER_CONSTANTS)]
    cells = others.assign(text=texts(loss_text, others, *LOSS_COLUMNS), constants=others["constant"].map(constant_name))
    keys = ["model", "constants"]
    wide = cells.pivot_table(index=keys, columns="title", values="text", aggfunc="first", sort=False).reset_index()
    return Table("Published losses with other constants, against the better floor", wide, 2)


def _side_by_side(rows: pd.DataFrame) -> Table:
    """Return the losses with averages in all heads, with a row for each task and a column for each model."""
    cells = rows.assign(text=texts(loss_text, rows, *LOSS_COLUMNS), task=rows["published_task"].map(TASK_TITLES))
    wide = cells.pivot_table(index="task", columns="model", values="text", aggfunc="first", sort=False)
    order = [title for title in TASK_TITLES.values() if title in wide.index]
    wide = wide.loc[order, list(dict.fromkeys(cells["model"]))].reset_index()
    return Table("Averages in all heads: published losses and those of this study", wide.fillna("-"), 1)


def losses_figure(rows: pd.DataFrame, plots: Plots) -> alt.LayerChart:
    """Draw the losses with averages in all heads: a row for each task, a dot for each model.

    Published dots are hollow, and their intervals come from rounding only. Dots of a study are filled.
    """
    import altair as alt

    drawn = rows[rows["constant"].eq(MAIN_CONSTANT)]
    labels = {PAPER: "published, interval from rounding only", STUDY: "measured by papa, 95 % interval"}
    points = pd.DataFrame(
        {
            "task": drawn["published_task"].map(TASK_TITLES),
            "model": drawn["model"],
            "source": drawn["source"].map(labels),
            "loss": drawn["loss"].clip(*AXIS),
            "low": drawn["low"].clip(*AXIS),
            "high": drawn["high"].clip(*AXIS),
            "loss_text": texts(loss_text, drawn, *LOSS_COLUMNS),
            "interval": drawn["interval"],
        }
    )
    models, tasks = list(dict.fromkeys(points["model"])), [*TASK_TITLES.values()]
    scale = alt.Scale(domain=models, range=[COLORS[index % len(COLORS)] for index in range(len(models))])
    axis = alt.Scale(domain=list(AXIS), nice=False)
    color = alt.Color("model:N", scale=scale, legend=alt.Legend(title=None, symbolFillColor="white", orient="right"))
    base = alt.Chart(inline(points)).encode(
        alt.Y("task:N", sort=tasks, title=None, axis=alt.Axis(grid=False, ticks=False)),
        color,
        yOffset=alt.YOffset("model:N", sort=models, scale=alt.Scale(domain=models, paddingOuter=0.35)),
    )
    x = alt.X("loss:Q", scale=axis, title="loss: share of attention's contribution", axis=percent_axis(7))
    zero_and_all = alt.Chart(inline(pd.DataFrame({"at": [0.0, 1.0]}))).mark_rule(strokeDash=[4, 3], color="#858585")
    intervals = base.mark_rule(strokeWidth=1.6).encode(alt.X("low:Q", scale=axis), alt.X2("high:Q"))
    fill = alt.Fill(
        "source:N",
        scale=alt.Scale(domain=list(labels.values()), range=["white", "#333333"]),
        legend=alt.Legend(title=None, symbolStrokeColor="#333333", labelLimit=300, orient="bottom"),
    )
    titles = {"task": "task", "model": "model", "loss_text": "loss", "interval": "interval"}
    dots = described(base.mark_point(size=55, opacity=1, strokeWidth=1.6).encode(x), titles)
    hollow = dots.transform_filter(alt.datum.source == labels[PAPER]).encode(fill=fill)
    filled = dots.transform_filter(alt.datum.source == labels[STUDY]).encode(
        alt.Fill("model:N", scale=scale, legend=None)
    )
    layers = alt.layer(zero_and_all.encode(alt.X("at:Q", scale=axis)), intervals, hollow, filled)
    chart = layers.properties(title=TITLE, width=1.6 * plots.width, height=34 * len(tasks) * max(1, len(models) / 3))
    figure: alt.LayerChart = styled(chart.resolve_scale(fill="independent"))
    return figure
