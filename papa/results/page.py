"""The HTML report of a study: its conclusion, figures, a map of heads, tables, data, models and config.

The file is self-contained: it includes the figures, the matrices of all heads and a script that shows them.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files

import pandas as pd
import yaml
from jinja2 import BaseLoader, Environment, StrictUndefined

from papa import __version__
from papa.files import opened_table
from papa.results.finished import Finished
from papa.results.heads_map import head_maps
from papa.results.outcomes import ALL
from papa.results.phrases import span
from papa.results.section import Section, narrow_svg
from papa.results.summary import data_of, is_main
from papa.results.table import Row, Table, used_columns
from papa.results.views import grid_views, rows_of

FOLDED_ROWS = 30
"""Tables are folded at first if they have more rows than this in total."""
ROWS_SHOWN = 3
LINE_CHARACTERS = 120
PAGES = files("papa.results") / "pages"


def page_of(finished: Finished, sections: Sequence[tuple[Section, str]]) -> str:
    """Return the HTML report; each section has its figure as SVG."""
    shown = {section.name: _shown(section, svg, finished) for section, svg in sections}
    reliance = shown.pop("reliance", None)
    maps, matrices = head_maps(finished)
    return _rendered(
        {
            "name": finished.config.name,
            "sentences": finished.conclusion["sentences"],
            "reliance": reliance if reliance and reliance["in_report"] else None,
            "notes": [*finished.conclusion["notes"], versions_note(finished)],
            "claims": shown["claims"] if len(finished.claims) else None,
            "sections": [section for section in shown.values() if section["in_report"]],
            "maps": maps,
            "matrices": matrices,
            "data_note": _data_note(finished),
            "data": _data_table(finished),
            "first_rows": first_rows(finished),
            "models": _models_table(finished),
            "config": yaml.safe_dump(
                finished.config.shown(), sort_keys=False, allow_unicode=True, width=100
            ),
        }
    )


def _shown(section: Section, svg: str, finished: Finished) -> Row:
    """Return the fields of a section with its figure as data and, below it, the number of examples."""
    size = sum(len(table.rows) for table in section.tables)
    shown = {"figure": "", "narrow": "", "caption": "", "folded": size > FOLDED_ROWS}
    if svg:
        rows = section.frame
        if "examples" not in rows:  # a figure of the first grid
            rows = rows_of(grid_views(finished.config)[0], finished.summary)
        numbers = span(rows.loc[is_main(rows), "examples"], "validation example")
        per_task = " per task" if rows["task"].nunique() > 1 else ""
        shown = {
            "figure": _as_address(svg),
            "narrow": _as_address(narrow_svg(section.chart)),
            "caption": f"{section.caption.removesuffix('.')}. n = {numbers}{per_task}.",
            "folded": True,
        }
    return vars(section) | shown


def _as_address(svg: str) -> str:
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}" if svg else ""


def _rendered(content: Mapping[str, object]) -> str:
    """Fill the template with `content`, with a policy that allows only the report's script."""
    script = _text("report.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    environment = Environment(
        loader=BaseLoader(),
        autoescape=True,
        # a name that the template misspells must be an error, and not an empty place
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["with_minus"] = with_minus
    environment.policies["json.dumps_kwargs"] = {
        "allow_nan": False
    }  # jinja's default would also sort keys
    template = environment.from_string(_text("report.html"))
    return template.render(
        content, version=__version__, script=script, style=_text("report.css"), policy=policy
    )


def _text(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def _data_table(finished: Finished) -> Table:
    """Return a table with the numbers of rows used, of examples cut, and of validation rows also in training."""
    rows = finished.summary[is_main(finished.summary)]
    corpora = rows["task"].map(lambda task: finished.config.tasks[task].corpus)
    shared = corpora.map(
        lambda corpus: f"{finished.facts[corpus]['shared'].get('validation', 0):,}"
    )
    return Table(
        "",
        data_of(rows).assign(**{"validation rows also in training": shared}),
        2,
    )


def first_rows(finished: Finished) -> dict[str, list[dict[str, str]]]:
    """Return the first training rows of each corpus as papa read them, with the labels of its tasks, cut to a line."""
    shown = {}
    for corpus, path in finished.data.items():
        shown[corpus] = rows = list[dict[str, str]]()
        with opened_table(path) as table:
            head = table.group(0).slice(0, ROWS_SHOWN).to_pylist()
        for read in head:
            if read["split"] != "train":
                continue
            texts = {name: read.get(name) for name in ("first", "second", "words")}
            row = {name: _on_a_line(text) for name, text in texts.items() if text is not None}
            for task, labels in finished.facts[corpus]["labels"].items():
                title = finished.config.titles[task]
                label = read[f"label {task}"]
                values = label if isinstance(label, list) else [label]
                names = [labels["names"][value] for value in values]
                row[f"{title} (label)" if title in row else title] = _on_a_line(names)
            rows.append(row)
    return shown


def _on_a_line(value: object) -> str:
    words = value if isinstance(value, list) else [value]
    text = " ".join(" ".join(map(str, words)).split())
    return text if len(text) <= LINE_CHARACTERS else f"{text[: LINE_CHARACTERS - 2]} …"


def _models_table(finished: Finished) -> Table:
    """Return a table with every model's origin and the versions of libraries, with which the study was made."""
    packages = {name: ", ".join(used) for name, used in sorted(finished.packages.items())}
    rows = []
    for name in dict.fromkeys(model for model, _ in finished.config.pairs):
        model = finished.config.models[name]
        row = {"model": name, "hub id": model.hub or "a folder", "revision": model.revision or ""}
        rows.append(row | packages)
    table = used_columns(pd.DataFrame(rows).fillna(""))
    return Table("", table, len(rows[0]))


def versions_note(finished: Finished) -> str:
    """Return a sentence if the study's artefacts were made with different versions of packages; otherwise nothing."""
    packages = finished.packages.items()
    several = [f"{name} {' and '.join(sorted(used))}" for name, used in packages if len(used) > 1]
    if not several:
        return ""
    return f"The study's files were made with different versions of packages: {'; '.join(several)}."


def with_minus(text: str) -> str:
    """Replace hyphens before numbers by minus signs."""
    return re.sub(r"(?<![\w.])-(?=\.?\d)", "−", text)


def _data_note(finished: Finished) -> str:
    """Return sentences about subsets and clusters of the examples; empty if there are none."""
    config = finished.config
    rows = finished.summary
    names = dict[str | None, dict[str, None]]()  # dictionaries as ordered sets
    parts = rows.loc[rows["subset"].ne(ALL), ["task", "subset"]].drop_duplicates()
    for task, subset in parts.itertuples(index=False):
        splits = config.corpora[config.tasks[task].corpus].further_splits
        column = None if subset in splits else config.tasks[task].subset
        names.setdefault(column, {})[subset] = None
    further = names.pop(None, {})
    sources = [f"column {column}: {', '.join(subsets)}" for column, subsets in names.items()]
    sentences = {
        "Subsets of the validation examples": "; ".join(sources),
        "Further validation splits": ", ".join(further),
    }
    return " ".join(
        f"{what}, scored separately: {which}." for what, which in sentences.items() if which
    )
