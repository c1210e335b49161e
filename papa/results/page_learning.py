"""The learning curves of the HTML report."""

from __future__ import annotations

import numpy as np
import pandas as pd

from papa.config.measures import MEASURES
from papa.config.study import Study
from papa.config.variant import CONTEXT_FREE, Order
from papa.method.pictures import inline
from papa.results.outcomes import VARIANT_KEYS
from papa.results.page_section import Section, examples_in, span
from papa.results.panels import (
    COLORS,
    MINIMUM_SPAN,
    REPORT_LEGEND,
    Layers,
    PanelGrid,
    curves,
    line_legend,
    panels,
)
from papa.results.phrases import constant_name, order_name
from papa.results.summary import is_main
from papa.results.table import metric_name, texts

KEPT_SCORES = "A run that ended early keeps its last score. "
"""Part of the caption if `patience` ended a run before the others of its setting."""


def learning_section(study: Study, summary: pd.DataFrame, scores: pd.DataFrame) -> Section | None:
    """Draw the validation scores of all settings after each epoch; None if nothing was trained for several epochs.

    Args:
        study: the study, whose config sets the size of the panels.
        summary: the rows of the summary.
        scores: the table of learning curves.
    """
    scores = scores[(scores.groupby(["model", "task"])["epoch"].transform("max") > 1) & scores["epoch"].gt(0)]
    if scores.empty:
        return None
    import altair as alt

    main = summary[is_main(summary)].drop_duplicates("task").set_index("task")
    settings = scores[VARIANT_KEYS].itertuples(index=False)
    rows = scores.assign(setting=[_setting(*setting) for setting in settings])
    points = mean_curves(rows)
    ended_early = KEPT_SCORES if points["runs"].sum() > len(rows) else ""
    points = points.assign(title=points["task"].map(main["title"]), text=points["score"].map("{:.3f}".format))
    names = points["setting"].unique().tolist()
    colors = {"range": COLORS[: len(names)]} if len(names) <= len(COLORS) else {"scheme": "tableau20"}
    scale = alt.Scale(domain=names, **colors)
    color = alt.Color("setting:N", scale=scale, legend=line_legend("heads kept", names))
    titles = {"setting": "replaced", "epoch": "epoch", "text": "mean score", "runs": "runs"}

    def draw(panel: pd.DataFrame) -> Layers:
        metric, score = main["metric"][panel["task"].iloc[0]], panel["score"]
        middle, height = (score.min() + score.max()) / 2, max(MINIMUM_SPAN, np.ptp(score))
        top = min(MEASURES[metric].high, middle + height / 2)
        scale = alt.Scale(domain=[top - height, top], zero=False, padding=4)
        epochs = sorted(panel["epoch"].unique().tolist())
        ticks = alt.Axis(values=epochs[:: 1 + len(epochs) // 8], format="d", grid=False)
        epoch = alt.X("epoch:Q", title="epoch", axis=ticks)
        base = alt.Chart(inline(panel.drop(columns=["title"]))).encode(
            epoch.scale(zero=False, nice=False, padding=6),
            alt.Y("score:Q", title=metric_name(metric), scale=scale),
            color,
        )
        return curves(base, titles, {"strokeWidth": 1.5}, {"size": 24})

    layout = PanelGrid(study.config.plots.width, 0.8 * study.config.plots.height, legend=REPORT_LEGEND)
    figure = panels(points, draw, layout).configure_axisY(minExtent=36, tickCount=4)
    seeds = sorted(rows.groupby(["model", "task", "setting", "order"], dropna=False)["seed"].nunique())
    caption = (
        f"Validation score after each epoch, mean over {span(seeds)} {'seed' if seeds[-1] == 1 else 'seeds'}; "
        f"{examples_in(summary)}. {ended_early}If a curve still rises at the end, train longer."
    )
    last = points.sort_values("epoch", kind="stable").drop_duplicates(["model", "task", "setting"], keep="last")
    ends = texts("{}, {}, {}: {} after {} epochs".format, last, "model", "title", "setting", "text", "epoch")
    alternative = f"Validation scores by epoch. {'; '.join(ends)}"
    return Section("_learning", "Learning curves", "", []).drawn(figure, alternative, caption)


def mean_curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean score of each setting after each epoch; a run that ended early keeps its last score.

    Otherwise the mean over late epochs would be that of only the runs that lasted, and could rise or fall by chance.

    Args:
        rows: a row for each epoch of a run, up to the epoch that is used: `model`, `task`, `setting`, `order`, `seed`,
            `epoch` and `score`.
    """
    by, rows = ["model", "task", "setting"], rows.fillna({"order": ""})
    run = [*by, "order", "seed"]
    runs = pd.MultiIndex.from_frame(rows[run].drop_duplicates())
    scores = rows.pivot(index=run, columns="epoch", values="score").ffill(axis=1).reindex(runs)
    long = scores.melt(ignore_index=False, value_name="score").reset_index()
    long = long.merge(rows.groupby(by)["epoch"].max().rename("last").reset_index(), on=by)
    points = long[long["epoch"] <= long["last"]].groupby([*by, "epoch"], sort=False)["score"]
    return points.agg(score="mean", runs="size").reset_index()


def _setting(constant: str | None, order: str | None, fraction: str) -> str:
    if not isinstance(constant, str):
        return "original"
    if constant in CONTEXT_FREE and fraction == "0":
        return f"context-free, {constant}"
    ordered = f", {order_name(Order.parse(order).base)} order" if isinstance(order, str) else ""
    return f"{fraction} kept, {constant_name(constant)}{ordered}"
