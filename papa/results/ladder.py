"""The ladder of constants: the loss as attention uses more and more information about the text.

Every rung adds one kind of information, from none to the content of the text itself. Losses are measured from the first
rung, whatever the floor of other tables. The step from one rung to the next is a share of the way from the first rung
to the model's own attention, given the information of all rungs above it in the table, so all steps add up to 1. From
`uniform` on, each rung is a coarser average of the next, so information can be added in only one order
(docs/constants.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Any

import pandas as pd

from papa.config.job import Job
from papa.config.settings import Plots
from papa.config.stages import AnalysisOf, TaskOf
from papa.config.variant import LADDER
from papa.files import read_table
from papa.results.analysis import Analysis, Computed, Drawing
from papa.results.figures import SUBSET_COLORS
from papa.results.losses import COUNTS, difference, interval_of, status_of
from papa.results.outcomes import ALL, ORIGINALS, Setting, TaskOutcomes, outcomes_in
from papa.results.panels import Layers, PanelGrid, curves, line_legend, panels, percent_axis, words_only
from papa.results.phrases import constant_name, loss_text
from papa.results.table import Table, metric_name, score_text, texts

OWN_ATTENTION = "own attention"
ADDED_INFORMATION = {
    "zeros": "nothing",
    "mean-output": "a bias in each slot",
    "uniform": "which tokens there are",
    "sink": "the first token",
    "by-distance": "the distance of two slots",
    "average": "the slots themselves",
    OWN_ATTENTION: "the content of the text",
}
"""The information that each rung adds to the rung above it in the table."""
BLIND_GUESS = "nothing: a blind guess, because this floor does worse"
KEYS = ["model", "task", "title", "metric", "subset"]
LOSS, STEP = ("loss", "low", "high"), ("step", "step_low", "step_high")
COLUMNS = dict.fromkeys((*KEYS, "rung", "adds", "status"), "string")
COLUMNS |= dict.fromkeys(("score", *LOSS, *STEP), "float64")
TITLE = "Ladder of constants"
NOTE = (
    "In every row but the last, constants replace every head; they contain the information of this row and of the "
    "rows above. In the last row, no head is replaced. Loss: (original - score) / (original - score of the first row). "
    "Step, given the rung above: the loss in the row above minus this loss. It is the value of the added information "
    "for a model that already has the information of the rows above, and not the value of this information by itself. "
    "All steps add up to 100 %. In brackets: 95 % intervals over probe seeds and validation examples. A step can be "
    "negative: more information can mislead, and the rows below the bias in each slot lose that bias."
)
FLOORS_NOTE = " Losses in other tables differ from these if the best context-free floor is not the first row."


class Ladder(Analysis):
    """Measure the loss on each rung, and the step to it from the rung above it in the table.

    Args:
        tasks: title and metric of each task.
        plots: the size of the panels.
        floors: the constants of the context-free floors, unless they are the default.
    """

    columns = COLUMNS
    title_text = TITLE

    tasks: dict[str, TaskOf]
    plots: Plots
    floors: tuple[str, ...] = ()

    def note(self, rows: pd.DataFrame) -> str:
        return NOTE + FLOORS_NOTE * bool(self.floors)

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Compute the rungs from `all_outcomes`."""
        metrics = {name: task.metric for name, task in self.tasks.items()}
        titles = {name: task.title for name, task in self.tasks.items()}
        outcomes = outcomes_in(read_table(job.input("all_outcomes")), metrics)
        return Computed(ladder_of(outcomes, titles), {"table": "ladder"})

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return tables_of(rows)

    def drawing(self, rows: pd.DataFrame, job: Job[AnalysisOf]) -> Drawing:
        """Draw the loss on each rung."""
        caption = self.sentence(rows) if rows["loss"].notna().any() else ""
        alternative = f"Loss on each rung of the ladder: {self.sentence(rows)}"
        return Drawing(ladder_figure(rows, self.plots), alternative, caption)

    def sentence(self, rows: pd.DataFrame) -> str:
        return sentence_of(rows)


def ladder_of(task_outcomes: Iterable[TaskOutcomes], titles: dict[str, str]) -> pd.DataFrame:
    """Return a row for each model, task, subset and rung, with `COLUMNS`, in the order of the ladder.

    Args:
        task_outcomes: all outcomes.
        titles: the title of each task.
    """
    rows = [row for outcomes in task_outcomes for row in _rows(outcomes, titles[outcomes.task])]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(outcomes: TaskOutcomes, title: str) -> Iterator[dict[str, object]]:
    for subset, mask in outcomes.subsets().items():
        if not mask.any():
            continue
        sample = outcomes.sample(outcomes.metric, mask)
        settings: dict[str, Setting] = {rung: Setting(rung, fraction="0") for rung in LADDER} | {
            OWN_ATTENTION: ORIGINALS
        }
        rungs = [rung for rung, setting in settings.items() if setting in sample.settings]
        if len(rungs) < 4:  # a ladder needs at least two constants between its ends
            continue
        sample = sample.against(rungs[0])
        common = dict(zip(KEYS, (outcomes.model, outcomes.task, title, outcomes.metric, subset), strict=True))
        common["status"] = status_of(sample, outcomes, outcomes.metric)
        for below, rung in zip([None, *rungs], rungs, strict=False):
            score, setting = sample.mean(settings[rung]), settings[rung]
            row: dict[str, object] = common | {"rung": rung, "adds": _added(below, rung), "score": score}
            if setting == sample.floor_setting and sample.guess_as_floor:
                row |= {"adds": BLIND_GUESS, "score": sample.trivial}
            if common["status"] == COUNTS:
                loss = difference({ORIGINALS: 1.0}, {setting: 1.0})
                row |= dict(zip(LOSS, interval_of(sample, loss), strict=False))
                if below is not None:
                    step = difference({setting: 1.0}, {settings[below]: 1.0})
                    row |= dict(zip(STEP, interval_of(sample, step), strict=False))
            yield row


def _added(below: str | None, rung: str) -> str:
    """Return the information that a rung adds to the one above it in the table, including that of skipped rungs."""
    kinds = list(ADDED_INFORMATION)
    first = kinds.index(rung) if below is None else kinds.index(below) + 1
    return ", ".join(ADDED_INFORMATION[kind] for kind in kinds[first : kinds.index(rung) + 1])


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """Return a table with the ladders of each model."""
    tables = []
    for model, rows in frame.groupby("model", sort=False):
        text = pd.DataFrame(
            {
                "task": rows["title"].where(rows["subset"].eq(ALL), rows["title"] + ", " + rows["subset"]),
                "added information": rows["adds"],
                "constants": rows["rung"].map(_rung_name),
                "score": [score_text(score, float("nan")) for score in rows["score"]],
                "loss": texts(loss_text, rows, *LOSS),
                "step, given the rung above": texts(loss_text, rows, *STEP),
            }
        )
        first = rows[["task", "subset"]].ne(rows[["task", "subset"]].shift()).any(axis=1)
        tables.append(Table(str(model), text, 3, rules=tuple(first.to_numpy().nonzero()[0].tolist())))
    return tables


def _rung_name(rung: str) -> str:
    return f"the model's {rung}" if rung == OWN_ATTENTION else constant_name(rung)


def sentence_of(frame: pd.DataFrame) -> str:
    """List the two largest steps of each task on all examples; the difference between them is not tested."""
    sentences = []
    several = frame["model"].nunique() > 1
    for (model, title), rows in frame[frame["subset"].eq(ALL)].groupby(["model", "title"], sort=False):
        name = f"{title} ({model})" if several else str(title)
        if rows["step"].isna().all():
            sentences.append(f"{name}: {rows['status'].iloc[0]}, so no step is known")
            continue
        steps = rows.dropna(subset="step").sort_values("step", ascending=False, kind="stable")
        worded = texts(lambda adds, *step: f"{adds}, {loss_text(*step)}", steps, "adds", *STEP)
        sentences.append(f"{name}: given the rungs above, the largest step is {worded[0]}; the next is {worded[1]}")
    return "; ".join(sentences) + "." if sentences else "No model was run with enough constants for a ladder."


def ladder_figure(frame: pd.DataFrame, plots: Plots) -> Any:
    """Draw the loss on each rung: a panel for each task and model, a line for each subset of the examples."""
    import altair as alt

    known = frame[frame["loss"].notna()]
    width, height = 1.6 * plots.width, plots.height
    if known.empty:
        return words_only(TITLE, sentence_of(frame), width)
    rungs = [kind for kind in ADDED_INFORMATION if kind in set(frame["rung"])]
    labels = {kind: wrap(ADDED_INFORMATION[kind], 13) for kind in rungs}
    subsets = list(dict.fromkeys(known["subset"]))
    spare = [color for color in ("#009E73", "#CC79A7", "#E69F00", "#56B4E9") if color not in SUBSET_COLORS.values()]
    colors = [SUBSET_COLORS.get(subset, spare[index % len(spare)]) for index, subset in enumerate(subsets)]
    scale = alt.Scale(domain=subsets, range=colors)
    color = alt.Color("subset:N", scale=scale, legend=line_legend("examples", subsets))
    top = max([1.0, *known["high"][known["high"] < 2], *known["loss"].clip(upper=2)])
    bottom = min([0.0, *known["low"][known["low"] > -1], *known["loss"].clip(lower=-1)])
    losses: dict[str, Any] = {"title": "loss", "axis": percent_axis(5)}
    losses["scale"] = alt.Scale(domain=[bottom, top], nice=False, clamp=True)
    axis = alt.Axis(labelExpr=f"{labels}[datum.value]", labelAngle=0, labelFontSize=9, labelLineHeight=10)
    domain = alt.Scale(domain=rungs)
    x = alt.X(
        "rung:N", sort=rungs, scale=domain, title="information added by each rung, given the rungs before it", axis=axis
    )

    def draw(rows: pd.DataFrame) -> Layers:
        data = [{str(name): value for name, value in row.items()} for row in _points(rows).to_dict("records")]
        base = alt.Chart(alt.InlineData(data)).encode(x, color)
        bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.2, opacity=0.8)
        line = base.encode(alt.Y("loss:Q", **losses))
        dots = {"size": 36, "opacity": 1}
        return [
            bars.encode(alt.Y("low:Q", **losses), alt.Y2("high:Q")),
            *curves(line, TOOLTIP_TITLES, {"strokeWidth": 1.8}, dots),
        ]

    return panels(known, draw, PanelGrid(width, height, 2, TITLE))


TOOLTIP_TITLES = {"adds": "added information", "constant": "constants", "subset": "examples", "score_text": "score"}
TOOLTIP_TITLES |= {"loss_text": "loss", "step_text": "step, given the rung above", "metric": "metric"}
"""The columns that a tooltip shows, and their titles."""


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    finite = rows[["low", "high"]].abs().max(axis=1) < float("inf")
    points = rows[["rung", "subset", "loss"]].assign(
        low=rows["low"].where(finite),
        high=rows["high"].where(finite),
        adds=rows["adds"],
        constant=rows["rung"].map(_rung_name),
        score_text=rows["score"].map("{:.3f}".format),
        loss_text=texts(loss_text, rows, *LOSS),
        step_text=texts(loss_text, rows, *STEP),
        metric=rows["metric"].map(metric_name),
    )
    return points.astype(object).where(points.notna(), None)
