"""The HTML report of a study: its conclusion, figures, a map of heads, tables, data, models and config.

The file is self-contained: it includes the figures, the matrices of all heads and a script that shows them.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

import yaml
from jinja2 import BaseLoader, Environment, StrictUndefined

from papa import __version__
from papa.results.heads_map import head_maps
from papa.results.page_data import (
    data_note,
    data_table,
    examples_in,
    first_rows,
    models_table,
    sentence,
    unbroken,
    versions_note,
)
from papa.results.section import Section

if TYPE_CHECKING:
    from papa.results.finished import Finished

NOTHING_CLAIMED = "Nothing can be concluded, so there is no table of claims."
FOLDED_ROWS = 30
"""Tables are folded at first if they have more rows than this in total."""
SHOWN = ("name", "title", "note", "tables", "alternative", "in_report")
"""The fields of a section that the report shows as they are."""
PAGES = files("papa.results") / "pages"


def page_of(finished: Finished, sections: Sequence[tuple[Section, str]]) -> str:
    """Return the HTML report; each section has its figure as SVG."""
    shown = {section.name: _shown(section, svg, finished) for section, svg in sections}
    losses = shown.pop("losses", None)
    maps, matrices = head_maps(finished)
    return _rendered(
        {
            "name": finished.config.name,
            "sentences": finished.conclusion["sentences"],
            "losses": losses if losses and losses["in_report"] else None,
            "notes": [*finished.conclusion["notes"], versions_note(finished)],
            "claims": shown["claims"] if finished.claims["loss"].notna().any() else None,
            "nothing_claimed": NOTHING_CLAIMED,
            "sections": [section for section in shown.values() if section["in_report"]],
            "maps": maps,
            "matrices": matrices,
            "data_note": data_note(finished),
            "data": data_table(finished),
            "first_rows": first_rows(finished),
            "models": models_table(finished),
            "config": yaml.safe_dump(finished.config.shown(), sort_keys=False, allow_unicode=True, width=100),
        }
    )


def _shown(section: Section, svg: str, finished: Finished) -> dict[str, object]:
    """Return the fields of a section with its figure as data and, below it, the number of examples."""
    caption, shown = sentence(section.caption), {name: getattr(section, name) for name in SHOWN}
    if svg and caption:
        caption += f" {examples_in(section.frame if 'examples' in section.frame else finished.summary)}."
        shown["figure"] = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
    rows = sum(len(table.rows) for table in section.tables)
    return {"figure": "", **shown, "caption": caption, "folded": "figure" in shown or rows > FOLDED_ROWS}


def _rendered(content: Mapping[str, object]) -> str:
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
