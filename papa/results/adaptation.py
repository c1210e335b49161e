"""Losses by what may adapt to the constants: nothing, the probe, the constants too, or the norms too.

Attention is replaced in every head. A loss with nothing trained has two possible reasons. Information is lost, or it
arrives in states that the upper layers and the probe have never seen. Training can only repair the second.

All losses of a task have the same denominator: attention's contribution with retrained probes. The numerator compares
the score with the original under the same adaptation, so gains that the original also has are no recovery. The losses
of two adaptations can therefore be subtracted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pandas as pd

from papa.config.job import Job
from papa.config.settings import Plots
from papa.config.stages import AnalysisOf, TaskOf
from papa.config.variant import (
    ADAPTATIONS,
    CONTEXT_FREE,
    RETRAINED,
    TRAINABLE,
    UNADAPTED,
    WITH_CONSTANTS,
    WITH_NORMS,
    Constant,
)
from papa.files import read_table
from papa.results.analysis import Analysis, Computed, Drawing
from papa.results.losses import COUNTS, difference, interval_of, is_harmed, lost_score, status_of
from papa.results.outcomes import ALL, Sample, Setting, TaskOutcomes, outcomes_in
from papa.results.panels import COLORS, Layers, PanelGrid, described, line_legend, panels, percent_axis, words_only
from papa.results.phrases import (
    AdaptedLoss,
    adaptation_name,
    constant_name,
    loss_text,
    recovery,
    with_noun,
)
from papa.results.table import Table, metric_name, score_text, texts

if TYPE_CHECKING:
    import altair as alt

COMPARED_WITH = {RETRAINED: UNADAPTED, WITH_CONSTANTS: RETRAINED, WITH_NORMS: RETRAINED}
"""The adaptation from which each step starts: constants and norms are each trained along with a probe."""
KEYS = ["model", "task", "title", "metric", "subset", "constant", "adapt"]
LOSS, RECOVERED = ("loss", "low", "high"), ("recovered", "recovered_low", "recovered_high")
COLUMNS = dict.fromkeys((*KEYS, "status"), "string")
COLUMNS |= dict.fromkeys(("original", "score", *LOSS, *RECOVERED), "float64")
HARMED = "training made the original worse"
"""The status of an adaptation without a loss, because its original scores significantly less than the ordinary one."""
TITLE = "Lost information, or unfamiliar states"
NOTE = (
    "Constants replace every head. Nothing trained: the original's probe reads the modified model. Retrained probe: "
    "as in the paper. Trained constants, trained norms: trained along with a new probe; norms are the gains and "
    "biases of the normalisation layers. Loss: (original - score) / attention's contribution. The original has the "
    "same adaptation, so the loss is what heads still contribute after everything that may adapt has adapted. It is "
    "left out (-) if training made this original significantly worse (one-sided, 95 %). The contribution is always "
    "that of retrained probes, so losses can be subtracted. Recovered: the loss with nothing trained minus the loss of "
    "the retrained probe, or the loss of the retrained probe minus this loss. If zeros recover too, adaptation helps "
    "without any context. In brackets: 95 % intervals over probe seeds and validation examples."
)


class AdaptationAnalysis(Analysis):
    """Measure the loss under each adaptation, and how much each step recovers.

    Args:
        tasks: title and metric of each task.
        plots: the size of the panels.
    """

    columns = COLUMNS
    title_text = TITLE
    note_text = NOTE

    tasks: dict[str, TaskOf]
    plots: Plots

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Compute losses and recoveries from `all_outcomes`."""
        metrics = {name: task.metric for name, task in self.tasks.items()}
        titles = {name: task.title for name, task in self.tasks.items()}
        outcomes = outcomes_in(read_table(job.input("all_outcomes")), metrics)
        return Computed(adaptation_of(outcomes, titles), {"table": "recovery"})

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return tables_of(rows)

    def drawing(self, rows: pd.DataFrame, job: Job[AnalysisOf]) -> Drawing:
        """Draw the loss under each adaptation."""
        caption = self.sentence(rows) if rows["loss"].notna().any() else ""
        alternative = f"Loss by what may adapt: {self.sentence(rows)}"
        return Drawing(adaptation_figure(rows, self.plots), alternative, caption)

    def sentence(self, rows: pd.DataFrame) -> str:
        return sentence_of(rows)


def adaptation_of(task_outcomes: Iterable[TaskOutcomes], titles: dict[str, str]) -> pd.DataFrame:
    """Return a row for each model, task, subset, constant and adaptation, with `COLUMNS`.

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
        common = dict(zip(KEYS, (outcomes.model, outcomes.task, title, outcomes.metric, subset), strict=False))
        common["status"] = status_of(sample, outcomes, outcomes.metric)
        replaced = [setting.constant for setting in sample.settings if setting.constant and setting.fraction == "0"]
        for constant in dict.fromkeys(Constant.parse(name).untrained for name in replaced):
            settings = _settings(constant, sample)
            if len(settings) > 1:
                yield from (common | row for row in _rows_of(constant, settings, sample, common["status"] == COUNTS))


def _settings(constant: str, sample: Sample) -> dict[str, Setting]:
    """Return the measured settings with this constant in every head, by adaptation, from nothing to more."""
    settings = {adapt: Setting(constant, fraction="0", adapt=adapt) for adapt in ADAPTATIONS}
    if constant in TRAINABLE:
        settings[WITH_CONSTANTS] = Setting(Constant.parse(constant).made_trainable().name, fraction="0")
    return {adapt: setting for adapt, setting in settings.items() if setting in sample.settings}


def _rows_of(constant: str, settings: dict[str, Setting], sample: Sample, counts: bool) -> Iterator[dict[str, object]]:
    for adapt, setting in settings.items():
        row: dict[str, object] = {"constant": constant, "adapt": adapt, "score": sample.mean(setting)}
        row["original"] = sample.mean(setting.original)
        if counts and is_harmed(sample, setting):
            row["status"] = HARMED
        elif counts:
            lost = lost_score({setting: 1.0})
            row |= dict(zip(LOSS, interval_of(sample, lost), strict=False))
            before = settings.get(COMPARED_WITH.get(adapt, ""))
            if before is not None and not is_harmed(sample, before):
                step = difference(lost_score({before: 1.0}), lost)
                row |= dict(zip(RECOVERED, interval_of(sample, step), strict=False))
        yield row


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """Return a table for each model."""
    tables = []
    for model, rows in frame.groupby("model", sort=False):
        text = pd.DataFrame(
            {
                "task": rows["title"].where(rows["subset"].eq(ALL), rows["title"] + ", " + rows["subset"]),
                "constants": rows["constant"].map(constant_name),
                "adapted": rows["adapt"].map(adaptation_name),
                "original": [score_text(score, float("nan")) for score in rows["original"]],
                "score": [score_text(score, float("nan")) for score in rows["score"]],
                "loss": texts(loss_text, rows, *LOSS),
                "recovered": texts(loss_text, rows, *RECOVERED),
            }
        )
        first = rows[["task", "subset", "constant"]].ne(rows[["task", "subset", "constant"]].shift()).any(axis=1)
        tables.append(Table(str(model), text, 3, rules=tuple(first.to_numpy().nonzero()[0].tolist())))
    return tables


def sentence_of(frame: pd.DataFrame) -> str:
    """Describe, for each task and constant, how much of the loss each step recovers, and what remains."""
    rows = frame[frame["subset"].eq(ALL) & ~frame["constant"].isin(CONTEXT_FREE)]
    several_models, several = rows["model"].nunique() > 1, rows["constant"].nunique() > 1
    sentences = []
    for (model, title, constant), group in rows.groupby(["model", "title", "constant"], sort=False):
        name = f"{title} ({model})" if several_models else str(title)
        name += f", {with_noun(str(constant))}" if several else ""
        if group["loss"].isna().all():
            sentences.append(f"{name}: {group['status'].iloc[0]}, so there is no loss to recover.")
            continue
        columns = group.loc[group["loss"].notna(), ["adapt", *LOSS, *RECOVERED]].itertuples(index=False)
        harmed = group.loc[group["status"].eq(HARMED), "adapt"]
        sentences.append(recovery(name, [AdaptedLoss(*row) for row in columns], harmed, "input-dependent attention"))
    return " ".join(sentences) or "No constant was run with several adaptations."


def adaptation_figure(frame: pd.DataFrame, plots: Plots) -> alt.TopLevelMixin:
    """Draw the loss under each adaptation: a panel for each task and model, and a colour for each constant."""
    import altair as alt

    known = frame[frame["loss"].notna() & frame["subset"].eq(ALL)]
    width, height = 1.4 * plots.width, plots.height
    if known.empty:
        return words_only(TITLE, sentence_of(frame), width)
    names = [adaptation_name(adapt) for adapt in ADAPTATIONS if known["adapt"].eq(adapt).any()]
    constants = list(dict.fromkeys(known["constant"].map(constant_name)))
    colors = alt.Scale(domain=constants, range=[COLORS[index % len(COLORS)] for index in range(len(constants))])
    color = alt.Color("constant:N", scale=colors, legend=line_legend("constants", constants))
    top = max([1.0, *known["high"][known["high"] < 3], *known["loss"].clip(upper=3)])
    bottom = min([0.0, *known["low"][known["low"] > -1], *known["loss"].clip(lower=-1)])
    scale = alt.Scale(domain=[bottom, top], nice=False, clamp=True)
    loss, low = (alt.Y(f"{name}:Q", title="loss", axis=percent_axis(5), scale=scale) for name in ("loss", "low"))
    axis = alt.Axis(labelAngle=0, labelExpr="split(datum.value, ' ')", labelFontSize=10)
    x = alt.X("adapted:N", sort=names, scale=alt.Scale(domain=names), title="adapted to the replacement", axis=axis)
    offset = alt.XOffset("constant:N", sort=constants, scale=alt.Scale(domain=constants))

    def draw(rows: pd.DataFrame) -> Layers:
        data = [{str(name): value for name, value in row.items()} for row in _points(rows).to_dict("records")]
        base = alt.Chart(alt.InlineData(data)).encode(x, offset, color)
        bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.6)
        zero = alt.Chart(alt.InlineData([{"loss": 0}])).mark_rule(strokeDash=[4, 3], opacity=0.6)
        dots = described(base.mark_circle(size=48, opacity=1).encode(loss), TOOLTIP_TITLES)
        return [zero.encode(loss), bars.encode(low, alt.Y2("high:Q")), dots]

    return panels(known, draw, PanelGrid(width, height, 2, TITLE))


TOOLTIP_TITLES = {"constant": "constants", "adapted": "adapted", "score_text": "score", "loss_text": "loss"}
TOOLTIP_TITLES |= {"recovered_text": "recovered", "metric": "metric"}
"""The columns that a tooltip shows, and their titles."""


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    finite = rows[["low", "high"]].abs().max(axis=1) < float("inf")
    points = rows[["loss"]].assign(
        low=rows["low"].where(finite),
        high=rows["high"].where(finite),
        constant=rows["constant"].map(constant_name),
        adapted=rows["adapt"].map(adaptation_name),
        score_text=rows["score"].map("{:.3f}".format),
        loss_text=texts(loss_text, rows, *LOSS),
        recovered_text=texts(loss_text, rows, *RECOVERED),
        metric=rows["metric"].map(metric_name),
    )
    return points.astype(object).where(points.notna(), None)
