"""The HTML report of a study: claims, figures, an explorer of heads, tables, and the settings of its runs.

The file is self-contained: it includes the drawing library, the specifications of the figures and all data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from papa.config.analyses import grid_view
from papa.config.job import Job
from papa.config.settings import RUN, Config
from papa.config.stages import AnalysisOf, PageOf
from papa.config.study import Study
from papa.errors import count
from papa.files import write_page
from papa.results import attention_patterns, claims, phrases
from papa.results.analysis import analysis_of
from papa.results.conclusion import Conclusion, LineClaim
from papa.results.explorer import explorer_data
from papa.results.leakage import leakage_note
from papa.results.page_claims import NOTHING_CLAIMED, claim_sections, facts_of, is_claim
from papa.results.page_html import render
from papa.results.page_learning import learning_section
from papa.results.page_runs import (
    analyses_table,
    config_text,
    data_table,
    jobs_table,
    models_table,
    run_in_words,
    weights_table,
)
from papa.results.page_section import Section, data_note, examples_in, sentence, subset_note, unbroken
from papa.results.summary import CURVE_COLUMNS, read_summary, recipe_tables
from papa.results.table import read_frame

LOSSES = "losses"
"""The analysis that the report begins with."""
GLOSSARY = {
    "Constant": "a fixed matrix in place of a head's attention, the same for every text; the average constant is the "
    "head's mean attention over the training texts",
    "Order": "the sequence in which heads are replaced; for the order of λ, a weight λ is learned for every head, and "
    "heads with a small λ are replaced first",
    "Fraction": "the share of heads that keep their attention: 1 for all, 0 for none",
    "Slot": "a numbered position for a token; a constant sets how much one slot attends to another, whatever their "
    "tokens are",
    "Probe": "a small classifier that is trained on the model's hidden states; the model itself is not trained",
    "Original": "the model with no head replaced",
    "Context-free floor": "the best of the models that were tried in which no token sees another; zeros replace all "
    "attention unless the config lists other floors",
    "Trivial": "the best guess that ignores the input, such as the most frequent class of the training rows",
    "Loss": "(original − score) / (original − context-free), the share of attention's contribution that is lost; a "
    "task is excluded unless its original significantly beats both floors, context-free and trivial; above 100 %, "
    f"{phrases.MORE_THAN_ALL}",
    "Estimate": "a number with its variance over seeds, orders, examples and their interactions; it determines every "
    "interval, bound and p value",
    "Margin": "the accepted loss, set in the config before the run; k heads are replaceable at a margin if the upper "
    "bound of the loss on every task that counts (one-sided, 95 %) is smaller, with k heads replaced and with every "
    "smaller measured number",
    "Declaration": "the file in which `papa freeze` writes what a study will claim, before it has any outcome; the "
    "report says whether the study is the declared one",
    "Analysis": "rows that are computed from finished runs, with their tables, figure and sentence",
    "Outcome": "a probe's prediction for one validation example; all scores, losses and intervals are computed from "
    "outcomes",
}


def write_report(job: Job[PageOf]) -> str:
    """Stage *page*: write the HTML report of finished results.

    The same results give the same report, except for seconds, memory and dates, which come from the workflow's files.

    Args:
        job: the job, whose output `page` is in a subfolder of the results.

    Returns:
        A summary of the content for the terminal.

    Raises:
        DamagedArtefact: a result is damaged.
    """
    study = Study(reported_config(job.settings.config), Path(job.output("page")).parents[1])
    summary = read_summary(study.results / study.path("summary"))
    conclusion = Conclusion.read(job.input("claims"))
    lines = [line for line in conclusion.lines if line.grid == RUN]
    claim_parts = claim_sections(study, summary, conclusion)
    learning = learning_section(study, summary, read_frame(job.input("curves"), CURVE_COLUMNS, "table of curves"))
    sections = [section for analysis in study.analyses() if (section := section_of(study, analysis, summary))]
    losses = next((section for section in sections if section.id == LOSSES), None)
    parts = [*claim_parts, *([learning] if learning else []), *sections]
    figures = {part.id: part.figure for part in parts if part.figure}
    entries, sets = explorer_data(study, grid_view(study, RUN), summary)
    content = {
        "name": study.config.name,
        "lead": [{"line": line.line} | _lead(line, conclusion.margin, losses is not None) for line in lines]
        or [{"line": "", "first": conclusion.sentence, "rest": ""}],
        "losses": losses,
        "declared": conclusion.declared if lines else "",
        "blocks": [facts_of(line, conclusion.margin) for line in lines],
        "glossary": GLOSSARY,
        "claims": claim_parts,
        "claims_note": claims.CLAIMS_NOTE if any(map(is_claim, claim_parts)) else NOTHING_CLAIMED,
        "learning": learning,
        "sections": [section for section in sections if section is not losses],
        "explored": bool(entries),
        "patterns_note": attention_patterns.NOTE,
        "run": run_in_words(study),
        "analyses": analyses_table(study),
        "subsets": data_note(study, summary),
        "data": data_table(study, summary),
        "recipes": recipe_tables(summary),
        "holds_for": phrases.holds_for(conclusion.training),
        "leakage": leakage_note(study.results, grid_view(study, RUN).tasks.values()) if lines else "",
        "models": models_table(study),
        "jobs": jobs_table(study),
        "weights": weights_table(study),
        "config": config_text(job.settings.config),
        "for_scripts": {
            "figures": figures,
            "explorer": {"entries": entries, "sets": sets},
            "flags": attention_patterns.FLAGS,
            "lines": {line.line: line.model_dump(include={"model", "constant", "order"}) for line in lines},
        },
    }
    write_page(render(content), job.output("page"), job.trace())
    numbers = [count(len(lines), "line"), count(len(figures), "figure"), count(len(entries), "set")]
    return "{}, {} and {} of heads in the HTML report".format(*numbers)


def _lead(line: LineClaim, margin: float, drawn: bool) -> dict[str, str]:
    """Split a line's conclusion into its lead and the rest, which follows the figure of losses if there is one."""
    first = phrases.lead(line, margin) if drawn else ""
    if not first or not line.sentence.startswith(first):  # claims of an earlier version have other words
        first = line.sentence
    return {"first": unbroken(first), "rest": unbroken(line.sentence.removeprefix(first).strip())}


def reported_config(recorded: Mapping[str, Any]) -> Config:
    """Rebuild a valid config from the one that the report records, which lacks the paths of local models."""
    models = {
        name: model if {"hub", "random", "known"} & model.keys() else {"path": "elsewhere", **model}
        for name, model in recorded["models"].items()
    }
    return Config.model_validate({**recorded, "models": models})


def section_of(study: Study, job: Job[AnalysisOf], summary: pd.DataFrame) -> Section | None:
    """Return the section of a finished analysis; None if it has no section, or if there is nothing to compare."""
    analysis = analysis_of(job.settings)
    if not analysis.in_report:
        return None
    rows = analysis.read(study.results / job.main)
    if not analysis.comparable(rows):
        return None
    name, tables = job.wildcards["analysis"], analysis.report_tables(rows)
    section = Section(name, analysis.heading(), analysis.note(rows), tables, caption=sentence(analysis.caption(rows)))
    drawing = analysis.drawing(rows, job.placed(study.results))
    if drawing is None or not drawing.caption:
        return section
    has_examples = "examples" in rows
    caption = [sentence(drawing.caption), f"{examples_in(rows if has_examples else summary)}."]
    caption += [subset_note(study, rows)] if has_examples else []
    return section.drawn(drawing.chart, drawing.alternative, " ".join(filter(None, caption)))
