"""The HTML report of a study: its conclusion, figures, a map of heads, tables, data, models and config.

The file is self-contained: it includes the figures, the matrices of all heads and a script that shows them.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import BaseLoader, Environment, StrictUndefined

from papa import __version__
from papa.config.analyses import grid_view
from papa.config.job import Job
from papa.config.settings import RUN, Config
from papa.config.stages import AnalysisOf, PageOf
from papa.config.study import Plan
from papa.errors import count
from papa.files import read_table, write_page
from papa.results import claims
from papa.results.analysis import analysis_of
from papa.results.caveats import data_caveats
from papa.results.conclusion import Conclusion
from papa.results.heads_map import head_maps
from papa.results.page_data import data_note, data_table, examples_in, first_rows, models_table, sentence, unbroken
from papa.results.summary import read_summary
from papa.results.table import Table

LOSSES = "losses"
"""The analysis that the report begins with."""
NOTHING_CLAIMED = "Nothing can be concluded, so there is no table of claims."
EACH_TASK = "Each task by itself"
FOLDED_ROWS = 30
"""Tables are folded at first if they have more rows than this in total."""
PAGES = files("papa.results") / "pages"


@dataclass(frozen=True)
class Section:
    """A section of the HTML report: a figure if there is one, as data, and tables, with a note below them.

    `id` is the target of links; `alternative` is a text for the figure, and `caption` one below or in place of it.
    """

    id: str
    title: str
    note: str
    tables: Sequence[Table]
    figure: str = ""
    alternative: str = ""
    caption: str = ""

    @property
    def folded(self) -> bool:
        """Whether the tables are folded at first, because there is a figure or they are long."""
        return bool(self.figure) or sum(len(table.rows) for table in self.tables) > FOLDED_ROWS


def write_report(job: Job[PageOf]) -> str:
    """Stage *page*: write the HTML report of finished results; the same results give the same report."""
    study = Plan(reported_config(job.settings.config), Path(job.output("page")).parents[1])
    summary = read_summary(study.results / study.path("summary"))
    conclusion = Conclusion.read(job.input("claims"))
    lines = [line for line in conclusion.lines if line.grid == RUN]
    sections = [section for analysis in study.analyses() if (section := section_of(study, analysis, summary))]
    losses = next((section for section in sections if section.id == LOSSES), None)
    of_claims = claim_sections(study, conclusion.margin)
    maps, matrices = head_maps(study, summary)
    content = {
        "name": study.config.name,
        "sentences": [line.sentence for line in lines] or [conclusion.sentence],
        "losses": losses,
        "remarks": [data_caveats(study.results, grid_view(study, RUN).tasks) if lines else ""],
        "claims": of_claims,
        "claims_note": claims.CLAIMS_NOTE if of_claims else NOTHING_CLAIMED,
        "sections": [section for section in sections if section is not losses],
        "maps": maps,
        "matrices": matrices,
        "data_note": data_note(study, summary),
        "data": data_table(study, summary),
        "first_rows": first_rows(study),
        "models": models_table(study),
        "config": yaml.safe_dump(job.settings.config, sort_keys=False, allow_unicode=True, width=100),
    }
    write_page(render(content), job.output("page"), job.trace())
    figures = sum(bool(section.figure) for section in sections)
    numbers = [count(len(lines), "line"), count(figures, "figure"), count(len(maps), "map")]
    return "{}, {} and {} of heads in the HTML report".format(*numbers)


def reported_config(recorded: Mapping[str, Any]) -> Config:
    """Rebuild a valid config from the one that the report records, which lacks the paths of local models."""
    models = {
        name: model if {"hub", "random", "known"} & model.keys() else {"path": "elsewhere", **model}
        for name, model in recorded["models"].items()
    }
    return Config.model_validate({**recorded, "models": models})


def section_of(study: Plan, job: Job[AnalysisOf], summary: pd.DataFrame) -> Section | None:
    """Return the section of a finished analysis; None if it has no section, or if there is nothing to compare."""
    analysis = analysis_of(job.settings)
    if not analysis.in_report:
        return None
    placed = job.placed(study.results)
    rows = analysis.read(placed.main)
    if not analysis.comparable(rows):
        return None
    name, tables = job.wildcards["analysis"], analysis.tables(rows)
    section = Section(name, analysis.heading(), analysis.note(rows), tables, caption=sentence(analysis.caption(rows)))
    drawing = analysis.drawing(rows, placed) if "svg" in placed.outputs else None
    if drawing is None or not drawing.caption:
        return section
    examples = examples_in(rows if "examples" in rows else summary)
    svg = b64encode(Path(placed.output("svg")).read_bytes()).decode()
    return replace(
        section,
        figure=f"data:image/svg+xml;base64,{svg}",
        alternative=drawing.alternative,
        caption=f"{sentence(drawing.caption)} {examples}.",
    )


def claim_sections(study: Plan, margin: float) -> list[Section]:
    """Return a section for the claims of each grid; none if nothing can be concluded."""
    frame = read_table(study.results / study.path("claims")).to_pandas()
    known = set(frame.loc[frame["loss"].notna(), "grid"])
    return [
        Section(
            f"claims-{name}",
            grid_view(study, name).title,
            "",
            [replace(table, title=EACH_TASK if place else "") for place, table in enumerate(tables)],
        )
        for name, tables in claims.tables_of(frame, margin).items()
        if name in known
    ]


def render(content: Mapping[str, object]) -> str:
    """Fill the template with `content`, with a policy that allows only the report's script."""
    script = _text("report.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    environment = Environment(
        loader=BaseLoader(), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["unbroken"] = unbroken
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}  # jinja's default would also sort keys
    template = environment.from_string(_text("report.html"))
    return template.render(content, version=__version__, script=script, style=_text("report.css"), policy=policy)


def _text(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")
