"""One page that tells the results of a config: claims, figures, an explorer of heads, tables, and how it was run.

The page stands alone: the drawing library, the specifications of the figures and all data are in it. Its own security
policy lets nothing run but its two scripts and forbids every connection; the template escapes all texts.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from papa import __version__
from papa.config.analyses import about_weights, grid_view
from papa.config.measures import MEASURES
from papa.config.settings import RUN, Config
from papa.config.stages import AnalysisOf, GridView, ModelId, PageOf
from papa.config.study import Job, Study
from papa.config.variant import CONTEXTLESS, SEEDED, Constant, Order
from papa.errors import count
from papa.files import JSON, opened_table, read_table, write_page
from papa.method.pictures import PANELS
from papa.results import claims, phrases
from papa.results.analysis import analysis_of
from papa.results.attention_patterns import FLAGS
from papa.results.attention_patterns import NOTE as ABOUT_PATTERNS
from papa.results.conclusion import AreaDifference, Conclusion, LineClaim
from papa.results.explorer import explored
from papa.results.grids import once, rows_of, varied
from papa.results.outcomes import ALL
from papa.results.panels import COLORS, LEAST_SPAN
from papa.results.phrases import MORE_THAN_ALL, constant_name, order_name
from papa.results.runs import runs_in
from papa.results.summary import CURVE_COLUMNS, is_main, read_summary
from papa.results.table import Table, metric_name, read_frame

if TYPE_CHECKING:
    import altair as alt

PAGES = files("papa.results") / "pages"
ENDS = {"0", "1"}
MOST_LINES = 30
"""Lines of tables that the HTML report shows without being asked."""

GLOSSARY = {
    "Constant": "a fixed matrix in place of a head's attention, the same for every text; the average is the mean of "
    "what the head attends to in the training texts",
    "Order": "which heads are replaced first; λ, which is learned for every head, gives an order: small λ first",
    "Fraction": "the share of heads that keep their own attention: 1 for all, 0 for none",
    "Slot": "a numbered place for a token; a constant says how much one slot attends to another, whatever tokens are "
    "there",
    "Probe": "a small classifier that is trained on what the model makes of a text; the model itself is not trained",
    "Original": "the model with no head replaced",
    "Contextless": "the same probe with zeros in place of all attention, so that no token sees another; also "
    "called the context-free floor",
    "Trivial": "the best guess that ignores the input, such as the most frequent class of the training rows",
    "Loss": "(original − score) / (original − contextless), the share of what attention contributes that is gone; a "
    "task is excluded unless its original beats both floors, contextless and trivial, significantly; above 100 %, "
    f"{MORE_THAN_ALL}",
    "Estimate": "a number with its variance over seeds, orders, examples and what they make together; every interval, "
    "bound and p follows from one",
    "Margin": "the loss that is accepted, set in the config before the run; k heads are replaceable at a margin if "
    "every task that counts loses less, with k heads replaced and with every smaller measured number (one-sided, "
    "95 %)",
    "Outcome": "what a probe makes of one validation example; all scores, losses and intervals are made of outcomes",
}
ABOUT_AREA = (
    "Area: the mean loss along the share of heads that is replaced, from none to all. Difference: the area of the "
    "first line minus that of the second. Two lines differ if p, corrected for all pairs of an analysis (Holm), is "
    "below 0.05. Otherwise they are equal within the margin if the 90 % interval lies within it. Each pair is judged "
    "equal by itself, without correction."
)


@dataclass(frozen=True)
class Section:
    """Part of the page: an analysis with its tables, and with its figure if it has one.

    Args:
        id, title: what the part is called, by the page and by its readers.
        note: how to read the tables.
        figure: a specification of Vega-Lite.
        shown: the alternative text of the figure.
        caption: a sentence under the figure, or in place of one.
    """

    id: str
    title: str
    note: str
    tables: Sequence[Table]
    figure: dict[str, object] | None = None
    shown: str = ""
    caption: str = ""

    @property
    def folded(self) -> bool:
        """Whether the reader has to open the tables: below a figure, and if they are long."""
        return self.figure is not None or sum(len(table.lines) for table in self.tables) > MOST_LINES

    def drawn(self, figure: alt.TopLevelMixin, shown: str, caption: str) -> Section:
        """The section with a figure, without its title, which the section has as a heading."""
        specification = {key: value for key, value in figure.to_dict().items() if key != "title"}
        return replace(self, figure=specification, shown=shown, caption=caption)


def write_report(job: Job[PageOf]) -> str:
    """Stage *page*: write one HTML file about finished results.

    Seconds, memory and dates are those of the files that the workflow leaves, if there are some; all else of the page
    is the same for the same results.

    Args:
        job: writes `page`, two folders below which the results lie.

    Returns:
        What is on the page, for the terminal.

    Raises:
        DamagedArtefact: a result is damaged.
    """
    study = Study(config_told(job.settings.config), Path(job.output("page")).parents[1])
    summary = read_summary(study.results / study.path("summary"))
    conclusion = Conclusion.read(job.input("claims"))
    lines = [line for line in conclusion.lines if line.grid == RUN]
    about_claims = _claim_sections(study, summary, conclusion)
    curves = read_frame(job.input("curves"), CURVE_COLUMNS, "table of curves")
    learning = _learning(study, summary, curves)
    sections = _sections(study, summary)
    parts = [*about_claims, *([learning] if learning else []), *sections]
    figures = {part.id: part.figure for part in parts if part.figure}
    entries, sets = explored(study, grid_view(study, RUN), summary)
    content = {
        "name": study.config.name,
        "version": __version__,
        "lead": [{"line": line.line, "sentence": _unbroken(line.sentence)} for line in lines]
        or [{"line": "", "sentence": conclusion.sentence}],
        "blocks": [_block(line, conclusion.margin) for line in lines],
        "glossary": GLOSSARY,
        "claims": about_claims,
        "about_claims": claims.ABOUT,
        "learning": learning,
        "sections": sections,
        "explored": bool(entries),
        "about_patterns": ABOUT_PATTERNS,
        "run": _run(study),
        "analyses": _analyses(study),
        "subsets": _about_subsets(study, summary),
        "data": _data(study, summary),
        "models": _models(study),
        "jobs": _jobs(study),
        "weights": _weights(study),
        "config": _yaml(job.settings.config),
        "told": {
            "figures": figures,
            "explorer": {"entries": entries, "sets": sets},
            "flags": FLAGS,
            "lines": {line.line: line.model_dump(include={"model", "constant", "order"}) for line in lines},
        },
    }
    write_page(_rendered(content), job.output("page"), job.trace())
    shown = [count(len(lines), "line"), count(len(figures), "figure"), count(len(entries), "set")]
    return "{}, {} and {} of heads on one page".format(*shown)


def config_told(told: Mapping[str, JSON]) -> Config:
    """The config that a page is told, which does not say where models lie; finished results need no model."""
    models = {
        name: given if {"hub", "random", "known"} & given.keys() else {"path": "elsewhere", **given}
        for name, given in told["models"].items()
    }
    return Config.model_validate({**told, "models": models})


# -- claims -----------------------------------------------------------------------------------------------------------


def _block(line: LineClaim, margin: float) -> dict[str, object]:
    """The facts of a line of the run, each with its interval or a reason, and the tasks to be careful with."""
    facts = line.tasks and [
        _fact(f"loss with all {count(line.heads, 'head')} replaced", *_at_end(line)),
        _fact(f"replaceable at a margin of {100 * margin:g} %", *_replaceable(line)),
        _fact("margin at which half of the heads are replaceable", *_half(line)),
        _fact("area under the loss, from no head replaced to all", *_area(line)),
    ]
    tasks: dict[str, Sequence[str]] = {
        "Excluded": [phrases.excluded(exclusion) for exclusion in line.excluded],
        "At their ceiling": line.ceiling,
        "Still rising, train longer": [phrases.rising(task) for task in line.rising],
    }
    return {"line": line.line, "facts": facts, "tasks": {name: titles for name, titles in tasks.items() if titles}}


def _fact(name: str, value: str, note: str) -> dict[str, str]:
    return {"name": _unbroken(name), "value": value.replace("-", "−"), "note": _unbroken(note)}


def _unbroken(text: str) -> str:
    """`text` whose numbers stay on one line with their %, and have a minus instead of a hyphen."""
    return re.sub(r"(?<![\w.])-(?=\.?\d)", "−", text.replace(" %", "\u00a0%"))


def _at_end(line: LineClaim) -> tuple[str, str]:
    end, tasks = line.at_end, line.tasks
    if end is None:
        return "–", "no run has every head replaced"
    where = f"mean over {count(len(tasks), 'task')}" if len(tasks) > 1 else f"on {tasks[0]}"
    above = phrases.above_all(end.loss).strip().rstrip(".")
    note = f"{phrases.with_interval(end.low, end.high)}; {where}"
    return phrases.percent(end.loss), f"{note}; {above[0].lower()}{above[1:]}" if above else note


def _replaceable(line: LineClaim) -> tuple[str, str]:
    """How many heads, and the bound that stops the next measured number."""
    if line.replaceable is None:
        return "–", "no number of heads was measured"
    stop = line.stopped_at
    return f"{line.replaceable} of {line.heads} heads", phrases.bound(stop) if stop else "all that were measured"


def _half(line: LineClaim) -> tuple[str, str]:
    half = line.half
    if half is None or half.margin is None:
        return "–", "half of the heads were never replaced together"
    measured = f"measured with {half.replaced} of {line.heads} replaced"
    if not isfinite(half.margin):
        return "–", f"no margin is wide enough; {measured}"
    return phrases.percent(half.margin, upper=True), measured


def _area(line: LineClaim) -> tuple[str, str]:
    area = line.area
    if area is None:
        return "–", "not measured from none to all"
    return (
        phrases.percent(area.mean),
        f"{phrases.with_interval(area.low, area.high)}; 0 % if nothing is lost on the way",
    )


def _claim_sections(study: Study, summary: pd.DataFrame, conclusion: Conclusion) -> list[Section]:
    """The claims of each grid with their curve, differences between areas, and how stable orders are."""
    frame = read_table(study.results / study.path("claims")).to_pandas()
    tables = dict(zip(frame["grid"].unique(), claims.tables_of(frame), strict=True))
    sections = []
    for name, table in tables.items():
        if frame.loc[frame["grid"] == name, "loss"].isna().all():
            continue
        grid, lines = grid_view(study, name), [line for line in conclusion.lines if line.grid == name]
        section = Section(f"_claims-{name}", grid.title, "", [replace(table, title="")])
        if any(len(line.measured) > 1 for line in lines):
            seeds = sorted({line.seeds for line in lines if line.seeds})
            n = f"{_range(seeds)} {'seed' if seeds == [1] else 'seeds'}, " if seeds else ""
            n += f"{_n(rows_of(grid, summary))}."
            caption = (
                "How many heads are replaceable, by the loss that is accepted. Dashed: the margin that the config set, "
                f"{100 * conclusion.margin:g} %. {once(grid)} {n}"
            )
            shown = f"Heads that are replaceable by margin: {count(len(lines), 'line')}"
            section = section.drawn(_margins(grid, lines, conclusion.margin), shown, caption)
        sections.append(section)
    titles = {name: grid_view(study, name).title for name in study.grids}
    if conclusion.areas:
        areas = _areas(conclusion.areas, titles)
        sections.append(Section("_areas", "Differences between lines", ABOUT_AREA, [areas]))
    return sections


def _areas(pairs: Sequence[AreaDifference], titles: Mapping[str, str]) -> Table:
    lines = [
        {
            "lines": f"{pair.a} and {pair.b}",
            "analysis": titles[pair.grid],
            "verdict": pair.verdict,
            "difference of areas": phrases.percent(pair.difference).replace("-", "−"),
            "95 % interval": phrases.interval_text(pair.low, pair.high).replace("-", "−"),
            "p": "–" if pair.p is None else "<0.001" if pair.p < 0.001 else f"{pair.p:.3f}",
        }
        for pair in pairs
    ]
    return Table("", pd.DataFrame(lines), 3)


def _margins(grid: GridView, lines: Sequence[LineClaim], margin: float) -> alt.LayerChart:
    """How many heads are replaceable at each margin: a step for each measured number, and a rule at `margin`."""
    import altair as alt

    known = {
        line.line: [(step.margin, step) for step in line.steps if step.margin is not None and isfinite(step.margin)]
        for line in lines
    }
    widest = max([2 * margin, *(at for steps in known.values() for at, _ in steps)])
    end = 1.05 * min(1.0, widest)
    shares, heads = len({line.heads for line in lines}) > 1, max(line.heads for line in lines)
    rows: list[dict[str, object]] = []
    for line in lines:
        unit = 100 / line.heads if shares else 1
        steps = [(at, step) for at, step in known[line.line] if at <= end]
        places = [(0.0, 0, None), *((at, step.replaced, step) for at, step in steps)]
        for at, replaced, step in [*places, (end, places[-1][1], None)]:
            row = {"line": line.line, "margin": at, "k": replaced * unit}
            if step:
                row |= {"replaced": f"{replaced} of {line.heads}", "loss": phrases.percent(step.loss)}
                largest = phrases.percent(step.bound, upper=True)
                row |= {"least": phrases.percent(at, upper=True), "worst": f"{step.worst}, {largest}"}
            rows.append(row)
    words = {"line": " / ".join(varied(grid)), "replaced": "heads replaced", "least": "replaceable at margins above"}
    words |= {"loss": "mean loss", "worst": "largest bound"}
    names = [line.line for line in lines]
    colors = [COLORS[number % len(COLORS)] for number in range(len(names))]
    legend = alt.Legend(title=words["line"], symbolType="stroke", symbolSize=400) if len(names) > 1 else None
    scale = alt.Scale(domain=[0, end], nice=False)
    percents = alt.Axis(labelExpr="format(100 * datum.value, '.0f') + ' %'", tickCount=8)
    x = alt.X("margin:Q", scale=scale, title="margin: the loss that is accepted", axis=percents)
    top = alt.Scale(domain=[0, 100 if shares else heads], nice=False)
    y = alt.Y("k:Q", title=f"heads replaceable{', %' if shares else ''}", scale=top, axis=alt.Axis(tickMinStep=1))
    clicked = alt.selection_point(name="lines", fields=["line"], bind="legend")
    base = alt.Chart(alt.InlineData(rows)).encode(
        x,
        y,
        alt.Color("line:N", scale=alt.Scale(domain=names, range=colors), legend=legend),
        opacity=alt.when(clicked).then(alt.value(1)).otherwise(alt.value(1 / 12)),
    )
    tooltip = [alt.Tooltip(f"{name}:N", title=title) for name, title in words.items()]
    rule = alt.Chart(alt.InlineData([{"margin": margin, "text": f"margin {100 * margin:g} %"}])).encode(x)
    drawn: alt.LayerChart = (
        alt.layer(
            rule.mark_rule(strokeDash=[4, 3], color="#000000", opacity=0.6),
            rule.mark_text(align="left", baseline="top", dx=5, fontSize=11).encode(alt.YValue(3), text="text:N"),
            base.mark_line(interpolate="step-after", strokeWidth=2).add_params(clicked),
            base.transform_filter("isValid(datum.replaced)").mark_circle(size=45).encode(tooltip=tooltip),
            width=3 * grid.plots.width,
            height=1.2 * grid.plots.height,
        )
        .configure_legend(orient="bottom", columns=PANELS, labelFontSize=12, labelLimit=400)
        .configure_axis(labelFontSize=11, titleFontSize=11, titleFontWeight="normal", gridColor="#e6e6e6")
        .configure_view(stroke=None)
    )
    return drawn


def _learning(study: Study, summary: pd.DataFrame, curves: pd.DataFrame) -> Section | None:
    """The scores of all settings after each epoch, a panel for each task and model; None if there was one epoch."""
    curves = curves[curves.groupby(["model", "task"])["epoch"].transform("max") > 1]
    if curves.empty:
        return None
    import altair as alt

    several = curves["model"].nunique() > 1
    main = summary[is_main(summary)].drop_duplicates("task").set_index("task")
    rows = curves.assign(
        setting=[_setting(*own) for own in curves[["constant", "order", "fraction"]].itertuples(index=False)]
    )
    by = ["model", "task", "setting", "epoch"]
    points = rows.groupby(by, sort=False).agg(score=("score", "mean"), runs=("score", "size")).reset_index()
    names = points["setting"].unique().tolist()
    colors = {"range": COLORS[: len(names)]} if len(names) <= len(COLORS) else {"scheme": "tableau20"}
    look = alt.Legend(title="heads kept" if len(names) > 1 else None, symbolType="stroke", symbolSize=400)
    color = alt.Color("setting:N", scale=alt.Scale(domain=names, **colors), legend=look)
    words = {"setting": "replaced", "epoch": "epoch", "said": "mean score", "runs": "runs"}
    tooltip = [alt.Tooltip(f"{name}:N", title=title) for name, title in words.items()]

    def panel(model: str, task: str) -> alt.LayerChart | alt.FacetChart:
        own = points[points["model"].eq(model) & points["task"].eq(task)]
        texts = own.assign(said=own["score"].map("{:.3f}".format)).to_dict("records")
        data = [{str(name): value for name, value in row.items()} for row in texts]
        middle, span = (own["score"].min() + own["score"].max()) / 2, max(LEAST_SPAN, np.ptp(own["score"]))
        top = min(MEASURES[main["metric"][task]].high, middle + span / 2)
        scale = alt.Scale(domain=[top - span, top], zero=False, padding=4)
        score = alt.Y("score:Q", title=metric_name(main["metric"][task]), scale=scale)
        epoch = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1, format="d", grid=False))
        base = alt.Chart(alt.InlineData(data)).encode(epoch.scale(zero=False, nice=False, padding=6), score, color)
        return alt.layer(
            base.mark_line(strokeWidth=1.5),
            base.mark_circle(size=24).encode(tooltip=tooltip),
            title=f"{main['title'][task]} ({model})" if several else main["title"][task],
            width=study.config.plots.width,
            height=0.8 * study.config.plots.height,
        )

    pairs = curves[["model", "task"]].drop_duplicates().itertuples(index=False)
    figure = (
        alt.concat(*(panel(*pair) for pair in pairs), columns=PANELS, spacing=24)
        .configure_axis(labelFontSize=11, titleFontSize=11, titleFontWeight="normal", gridColor="#e6e6e6")
        .configure_axisY(minExtent=36, tickCount=4)
        .configure_title(fontSize=13, anchor="start", frame="group")
        .configure_legend(orient="bottom", columns=PANELS, labelFontSize=12, labelLimit=400)
        .configure_view(stroke=None)
    )
    seeds = sorted(curves.groupby(["model", "task", "constant", "order", "fraction"], dropna=False)["seed"].nunique())
    caption = (
        f"Validation score after each epoch, mean over {_range(seeds)} {'seed' if seeds[-1] == 1 else 'seeds'}; "
        f"{_n(summary)}. A line that still rises at its end was not trained long enough."
    )
    shown = f"Validation scores by epoch: {count(len(points.groupby(['model', 'task'])), 'panel')}"
    return Section("_learning", "Learning curves", "", []).drawn(figure, shown, caption)


def _setting(constant: str | None, order: str | None, fraction: str) -> str:
    """What was replaced, in few words."""
    if not isinstance(constant, str):
        return "original"
    if f"{constant}/all" == CONTEXTLESS and fraction == "0":
        return "contextless"
    ordered = f", {order_name(Order.parse(order).base)} order" if isinstance(order, str) else ""
    return f"{fraction} kept, {constant_name(constant)}{ordered}"


# -- analyses ---------------------------------------------------------------------------------------------------------


def _sections(study: Study, summary: pd.DataFrame) -> list[Section]:
    """A section for each analysis that has something to compare."""
    sections = (_section(study, job, summary) for job in study.analyses())
    return [section for section in sections if section is not None]


def _section(study: Study, job: Job[AnalysisOf], summary: pd.DataFrame) -> Section | None:
    """The section of an analysis, read back from its table; None if the report has none."""
    analysis = analysis_of(job.settings)
    if not analysis.in_report:
        return None
    rows = analysis.read(study.results / job.main)
    if not analysis.comparable(rows):
        return None
    tables = analysis.report_tables(rows)
    section = Section(
        job.wildcards["analysis"],
        analysis.heading(),
        analysis.note(rows),
        tables,
        caption=_sentence(analysis.caption(rows)),
    )
    drawing = analysis.drawing(rows, job.placed(study.results))
    if drawing is None or not drawing.caption:
        return section
    scored = rows if "examples" in rows else summary
    caption = [_sentence(drawing.caption), f"{_n(scored)}.", _about_subsets(study, scored) if scored is rows else ""]
    return section.drawn(drawing.chart, drawing.alternative, " ".join(filter(None, caption)))


def _sentence(text: str) -> str:
    """`text` as a sentence, with a capital and a full stop; empty if it is."""
    return _unbroken(f"{text[:1].upper()}{text[1:].removesuffix('.')}.") if text else ""


def _n(rows: pd.DataFrame) -> str:
    """How many validation examples tasks have."""
    numbers = sorted(rows.loc[is_main(rows), "examples"].unique())
    return f"n = {_range(numbers)} validation examples{' per task' if rows['task'].nunique() > 1 else ''}"


def _range(numbers: Sequence[int]) -> str:
    least, most = numbers[0], numbers[-1]
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _about_subsets(study: Study, rows: pd.DataFrame) -> str:
    """What subsets are, in a sentence; empty if rows have none."""
    columns: dict[str, dict[str, None]] = {}
    further: dict[str, None] = {}
    for task, subset in rows.loc[rows["subset"].ne(ALL), ["task", "subset"]].itertuples(index=False):
        splits = study.config.corpora[study.config.tasks[task].corpus].more_validation or ()
        column = study.config.tasks[task].subset
        (further if subset in splits or column is None else columns.setdefault(column, {}))[subset] = None
    said = [f"column {column}: {', '.join(names)}" for column, names in columns.items()]
    text = f"Subsets: parts of the validation examples that the config scores separately ({'; '.join(said)})."
    more = f"Further validation splits, scored separately: {', '.join(further)}."
    return " ".join([text] * bool(columns) + [more] * bool(further))


# -- how it was run ---------------------------------------------------------------------------------------------------


def _run(study: Study) -> str:
    """What was run, in a line."""
    pairs = study.config.pairs
    jobs = [job.settings for model, task in pairs for job in study.runs(model, task)]
    probes = [seed for told in jobs if not told.direct for seed in told.seeds]
    seeds, direct = list(dict.fromkeys(probes)), sum(bool(told.direct) for told in jobs)
    models, tasks = (len(set(names)) for names in zip(*pairs, strict=True))
    runs = [count(len(probes), "probe")] * bool(probes)
    runs += [f"{count(direct, 'measurement')} by the model's own head"] * bool(direct)
    of = f"{' and '.join(runs)} of {count(models, 'model')} on {count(tasks, 'task')}"
    named = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    return f"{of}, {named}" if seeds else of


def _analyses(study: Study) -> Table:
    """What each grid of the config replaced, and with which seeds."""
    lines = []
    for name, grid in study.grids.items():
        between = bool(set(grid.fractions) - ENDS)
        orders = study.orders(grid) if between else []
        titles = [study.config.tasks[task].title or task for task in grid.tasks]
        lines.append(
            {
                "analysis": grid_view(study, name).title,
                "models": ", ".join(grid.models),
                "tasks": ", ".join(titles),
                "constants": ", ".join(constant_name(Constant.parse(own).name) for own in grid.constants),
                "fractions": ", ".join(grid.fractions),
                "orders": ", ".join(dict.fromkeys(order_name(own.base) for own in orders)) or "–",
                "seeds of orders": ", ".join(dict.fromkeys(str(own.draw) for own in orders if own.base in SEEDED))
                or "–",
                "seeds of probes": ", ".join(map(str, grid.seeds)),
            }
        )
    return Table("", pd.DataFrame(lines), len(lines[0]))


def _data(study: Study, summary: pd.DataFrame) -> Table:
    """How many rows of each task were used, cut, and seen in training already."""
    rows = summary[is_main(summary)]
    corpora = rows["task"].map(lambda task: study.config.tasks[task].corpus)
    shared = {corpus: _shared(study, corpus) for corpus in corpora.unique()}

    def used(split: str) -> pd.Series[str]:
        return rows[f"rows_{split}"].map("{:,}".format) + " / " + rows[f"rows_available_{split}"].map("{:,}".format)

    columns = {
        "task": rows["title"],
        "model": rows["model"],
        "training rows used / available": used("train"),
        "validation rows used / available": used("validation"),
        "validation rows also in training": corpora.map(shared),
        "training examples cut": rows["cut_train"].map("{:,}".format),
        "validation examples cut": rows["cut_validation"].map("{:,}".format),
    }
    return Table("", pd.DataFrame(columns).drop_duplicates(), 2)


def _shared(study: Study, corpus: str) -> str:
    """How many validation rows of a corpus also stand in its training split, if its texts say so."""
    with opened_table(study.results / study.path("texts", corpus=corpus)) as texts:
        number = texts.facts.get("shared", {}).get("validation")
    return "–" if number is None else f"{number:,}"


def _models(study: Study) -> Table:
    """What every model is, the digest of the weights that really were read, and the versions of what read them."""
    first = {model: study.runs(model, task)[0].main for model, task in reversed(study.config.pairs)}
    lines = []
    for name in dict.fromkeys(model for model, _ in study.config.pairs):
        given, run = study.config.models[name], runs_in(study.results / first[name])[0]
        made = run.provenance.model_dump(exclude_none=True)
        origin = given.hub or ModelId.of(name, given).origin
        line = {"model": name, "hub id": origin, "revision": given.revision or ""}
        line |= {"SHA-256 of the weights": made.get("weights", "")}
        line |= {key.removesuffix("_version"): made[key] for key in sorted(made) if key.endswith("_version")}
        lines.append(line)
    return Table("", pd.DataFrame(lines), len(lines[0]))


def _jobs(study: Study) -> Table:
    """What the jobs of each rule took and when they ended, as far as files tell; what is not known is –."""
    jobs = pd.DataFrame([{"rule": job.rule, "path": job.main} for job in study.jobs() if job.stage != "page"])
    there = [study.results / path for path in jobs["path"]]
    took = _took(there)
    took["ended"] = [path.stat().st_mtime if path.exists() else float("nan") for path in there]
    jobs = pd.concat([jobs, took], axis=1)
    every = pd.concat([jobs, jobs.assign(rule="all")])
    frame = every.groupby("rule", sort=False).agg(
        jobs=("path", "size"),
        measured=("s", "count"),
        seconds=("s", "sum"),
        memory=("max_rss", "max"),
        ended=("ended", "max"),
    )
    frame["seconds"] = frame["seconds"].where(frame["measured"] > 0)
    ended = frame.pop("ended").map(_date)
    printed = frame.map(lambda number: "–" if pd.isna(number) else f"{number:,.0f}").assign(ended=ended)
    printed = printed.reset_index(names="stage")
    printed["stage"] = printed["stage"].str.replace("_", " ")
    return Table("", printed.rename(columns={"memory": "most memory, MB", "ended": "last ended, UTC"}), 1)


def _took(there: Sequence[Path]) -> pd.DataFrame:
    """Seconds `s` and most memory `max_rss` of the jobs that made these files, as far as files beside them tell."""
    left = [path.with_suffix(".benchmark.tsv") for path in there]
    took = [
        pd.read_csv(path, sep="\t", na_values="-").iloc[:1] if path.exists() else pd.DataFrame([{}]) for path in left
    ]
    every = pd.concat(took, ignore_index=True).reindex(columns=["s", "max_rss"])
    return pd.DataFrame({name: pd.to_numeric(values, errors="coerce") for name, values in every.items()})


def _weights(study: Study) -> Table | None:
    """What the weights that orders are made of took, if there are several measures; a mean over seeds and tasks."""
    known = [about_weights(job) | {"path": job.main} for job in study.weights() if "part" not in job.wildcards]
    if len({own["order"] for own in known}) < 2:
        return None
    frame = pd.DataFrame(known).assign(s=_took([study.results / own["path"] for own in known])["s"])
    titles = {task: study.config.tasks[task].title or task for task in frame["task"]}
    groups = frame.groupby(["task", "model", "constant", "order"], sort=False)["s"].agg(["size", "mean", "min", "max"])
    shown = groups.reset_index()
    columns = {
        "task": shown["task"].map(titles),
        "model": shown["model"],
        "constants": shown["constant"].map(constant_name),
        "order": shown["order"].map(order_name),
        "jobs": shown["size"].map(str),
    }
    for what in ("mean", "min", "max"):
        columns[f"seconds, {what}"] = shown[what].map(lambda number: "–" if pd.isna(number) else f"{number:,.0f}")
    return Table("", pd.DataFrame(columns), 4)


def _date(seconds: float) -> str:
    return "–" if pd.isna(seconds) else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def _yaml(config: Mapping[str, JSON]) -> str:
    import yaml

    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)


def _rendered(content: Mapping[str, object]) -> str:
    """The template with `content` in it, and the policy that lets its own scripts run and nothing else."""
    import vl_convert
    from jinja2 import BaseLoader, Environment, StrictUndefined

    scripts = [vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"), _text("report.js")]
    digests = [f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts]
    policy = [
        "default-src 'none'",
        f"script-src {' '.join(digests)} 'unsafe-eval'",  # vega compiles its expressions
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
    ]
    environment = Environment(
        loader=BaseLoader(), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["unbroken"] = _unbroken
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}  # and keys in the order that they have
    template = environment.from_string(_text("report.html"))
    return template.render(content, scripts=scripts, style=_text("report.css"), policy="; ".join(policy))


def _text(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")
