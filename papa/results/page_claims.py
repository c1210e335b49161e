"""The claims in the HTML report: facts about each line, curves of replaceable heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import pandas as pd

from papa.config.analyses import grid_view
from papa.config.stages import GridView
from papa.config.study import Study
from papa.errors import count
from papa.files import read_table
from papa.method.pictures import styled
from papa.results import claims, phrases
from papa.results.conclusion import Conclusion, LineClaim
from papa.results.grids import common_settings, rows_of, varied
from papa.results.page_section import Section, examples_in, span, unbroken
from papa.results.panels import COLORS, REPORT_LEGEND, curves, line_legend, percent_axis
from papa.results.table import Table

EACH_TASK = "Each task by itself"
CLAIMS_ID = "_claims-"
"""The ids of sections with claims begin with this."""
NOTHING_CLAIMED = "Nothing can be concluded, so there is no table of claims."


def facts_of(line: LineClaim, margin: float) -> dict[str, object]:
    """Return the main results of a line, each with its interval or why it is missing, and remarks on tasks."""
    facts = line.tasks and [
        _fact(f"loss with all {count(line.heads, 'head')} replaced", *_at_end(line)),
        _fact(f"replaceable at a margin of {phrases.percent(margin, None)}", *_replaceable(line, margin)),
        _fact("margin at which half of the heads are replaceable", *_half_margin(line, margin)),
    ]
    tasks: dict[str, Sequence[str]] = {
        "Excluded": [phrases.excluded(exclusion) for exclusion in line.excluded],
        "At their ceiling": line.ceiling,
        phrases.STILL_RISING.format(""): [phrases.rising(line.rising)] * bool(line.rising),
    }
    return {"line": line.line, "facts": facts, "tasks": {name: titles for name, titles in tasks.items() if titles}}


def _fact(name: str, value: str, note: str) -> dict[str, str]:
    return {"name": unbroken(name), "value": value.replace("-", "−"), "note": unbroken(note)}


def _at_end(line: LineClaim) -> tuple[str, str]:
    end, tasks = line.at_end, line.tasks
    if end is None:
        return "–", "no run has every head replaced"
    on_tasks = f"mean over {count(len(tasks), 'task')}" if len(tasks) > 1 else f"on {tasks[0]}"
    above = phrases.above_all(end.loss).strip().rstrip(".")
    note = f"{phrases.with_interval(end.low, end.high)}; {on_tasks}"
    return phrases.percent(end.loss), f"{note}; {above[0].lower()}{above[1:]}" if above else note


def _replaceable(line: LineClaim, margin: float) -> tuple[str, str]:
    """Return the number of replaceable heads with the smallest margin that passes, and the bound at the next number."""
    if line.replaceable is None:
        return "–", "no number of replaced heads was measured"
    passed, stop = line.passed, line.stopped_at
    notes = [f"smallest margin that passes: {phrases.bound_text(passed.margin, margin)}"] if passed else []
    notes.append(phrases.bound(stop, margin) if stop else "the most that were replaced")
    return f"{line.replaceable} of {line.heads} heads" if passed else "none shown", "; ".join(notes)


def _half_margin(line: LineClaim, margin: float) -> tuple[str, str]:
    half = line.half
    if half is None or half.margin is None:
        return "–", "no run has half of the heads replaced"
    measured = f"measured with {half.replaced} of {line.heads} replaced"
    if not isfinite(half.margin):
        return "–", f"no margin is large enough; {measured}"
    return phrases.bound_text(half.margin, margin), measured


def is_claim(section: Section) -> bool:
    """Return whether a section has the claims of a grid."""
    return section.id.startswith(CLAIMS_ID)


def claim_sections(study: Study, summary: pd.DataFrame, conclusion: Conclusion) -> list[Section]:
    """Return a section for the claims of each grid, with their curves."""
    frame = read_table(study.results / study.path("claims")).to_pandas()
    sections = []
    for name, tables in claims.tables_of(frame, conclusion.margin).items():
        if frame.loc[frame["grid"] == name, "loss"].isna().all():
            continue
        grid, lines = grid_view(study, name), [line for line in conclusion.lines if line.grid == name]
        section = Section(
            f"{CLAIMS_ID}{name}",
            grid.title,
            "",
            [replace(table, title=EACH_TASK if place else "") for place, table in enumerate(tables)],
        )
        if any(len(line.measured) > 1 for line in lines):
            seeds = sorted({line.seeds for line in lines if line.seeds})
            n = f"{span(seeds)} {'seed' if seeds == [1] else 'seeds'}, " if seeds else ""
            n += f"{examples_in(rows_of(grid, summary))}."
            caption = (
                "Number of replaceable heads by the accepted loss. Dashed: the margin of the config, "
                f"{phrases.percent(conclusion.margin, None)}. {common_settings(grid)} {n}"
            )
            passed = [
                f"{step.replaced} of {line.heads} heads of {line.line} at margins above {phrases.percent(step.margin)}"
                for line in lines
                for step in line.steps
                if step.margin is not None and isfinite(step.margin)
            ]
            alternative = f"Number of replaceable heads by margin: {'; '.join(passed) or 'none'}"
            section = section.drawn(_margins(grid, lines, conclusion.margin), alternative, caption)
        sections.append(section)
    if conclusion.assumptions:
        sections.append(_assumptions(conclusion))
    return sections


def _assumptions(conclusion: Conclusion) -> Section:
    """Return the section with the claimed quantity, the assumptions, and which of them were tested."""
    rows = [
        {"assumption": item.sentence, "tested here": "yes" if item.tested else "no"} for item in conclusion.assumptions
    ]
    note = f"{phrases.estimand(conclusion.estimand)} " if conclusion.estimand else ""
    note += conclusion.declared
    return Section("_assumptions", "What the claims assume", note, [Table("", pd.DataFrame(rows), 2)])


def _margins(grid: GridView, lines: Sequence[LineClaim], margin: float) -> Any:
    """Draw the number of replaceable heads against the margin, as steps, with a rule at the margin of the config."""
    import altair as alt

    bounded = {
        line.line: [(step.margin, step) for step in line.steps if step.margin is not None and isfinite(step.margin)]
        for line in lines
    }
    largest = max([2 * margin, *(at for steps in bounded.values() for at, _ in steps)])
    end = 1.05 * min(1.0, largest)
    shares, heads = len({line.heads for line in lines}) > 1, max(line.heads for line in lines)
    rows: list[dict[str, object]] = []
    for line in lines:
        unit = 100 / line.heads if shares else 1
        steps = [(at, step) for at, step in bounded[line.line] if at <= end]
        points = [(0.0, 0, None), *((at, step.replaced, step) for at, step in steps)]
        for at, replaced, step in [*points, (end, points[-1][1], None)]:
            row = {"line": line.line, "margin": at, "k": replaced * unit}
            if step:
                row |= {"replaced": f"{replaced} of {line.heads}", "loss": phrases.percent(step.loss)}
                row |= {"above": phrases.bound_text(at, margin)}
                row |= {"worst": f"{step.worst}, {phrases.bound_text(step.bound, margin)}"}
            rows.append(row)
    titles = {"line": " / ".join(varied(grid)), "replaced": "heads replaced", "above": "replaceable at margins above"}
    titles |= {"loss": "mean loss", "worst": "largest bound"}
    names = [line.line for line in lines]
    colors = [COLORS[index % len(COLORS)] for index in range(len(names))]
    scale, top = (alt.Scale(domain=[0, maximum], nice=False) for maximum in (end, 100 if shares else heads))
    x = alt.X("margin:Q", scale=scale, title="margin: the accepted loss", axis=percent_axis(8))
    y = alt.Y("k:Q", title=f"replaceable heads{', %' if shares else ''}", scale=top, axis=alt.Axis(tickMinStep=1))
    clicked = alt.selection_point(name="lines", fields=["line"], bind="legend")
    color = alt.Scale(domain=names, range=colors)
    base = alt.Chart(alt.InlineData(rows)).encode(
        x,
        y,
        alt.Color("line:N", scale=color, legend=line_legend(titles["line"], names)),
        opacity=alt.when(clicked).then(alt.value(1)).otherwise(alt.value(1 / 12)),
    )
    rule = alt.Chart(alt.InlineData([{"margin": margin, "text": f"margin {phrases.percent(margin, None)}"}])).encode(x)
    curve, dots = curves(base, titles, {"interpolate": "step-after", "strokeWidth": 2}, {"size": 45})
    figure = alt.layer(
        rule.mark_rule(strokeDash=[4, 3], color="#000000", opacity=0.6),
        rule.mark_text(align="left", baseline="top", dx=5, fontSize=11).encode(alt.YValue(3), text="text:N"),
        curve.add_params(clicked),
        dots.transform_filter("isValid(datum.replaced)"),
        width=3 * grid.plots.width,
        height=1.2 * grid.plots.height,
    )
    return styled(figure).configure_legend(orient="bottom", **REPORT_LEGEND)
