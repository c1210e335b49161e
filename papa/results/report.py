"""The last stage: the tables, figures, claims and the HTML report of a study.

Everything is computed from the study's outcomes, weights and averages. The list of what it was made from is written
last, so a report that was interrupted is written again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from papa.errors import InputError, count
from papa.files import read_provenance, replacing, write_json, write_table
from papa.results.attention_patterns import patterns
from papa.results.claims import CLAIM_COLUMNS, CLAIMS_NOTE
from papa.results.claims import tables_of as tables_of_claims
from papa.results.drops import drops
from papa.results.finished import Finished
from papa.results.forest import reliance
from papa.results.grids import grids
from papa.results.heads_map import HEAD_COLUMNS, heads_of
from papa.results.outcomes import is_probed
from papa.results.page import page_of
from papa.results.phrases import effects_note
from papa.results.published import published
from papa.results.scores import RECIPE_COLUMNS, RUN_COLUMNS
from papa.results.section import Section
from papa.results.stability import stability
from papa.results.statistics import LEVEL
from papa.results.summary import DATA_NOTE, SUMMARY_COLUMNS, data_of, is_main
from papa.results.table import Row, Table, arrow_of
from papa.stages import AnyJob

RECIPE_NAMES = {"title": "task", "learning_rate": "learning rate", "batch_size": "batch size"}


def summary(finished: Finished) -> Section:
    """Return the mean scores of all settings; each grid has tables of its rows, and these are of the data."""
    rows = finished.summary
    facts = {"confidence": LEVEL}
    columns = SUMMARY_COLUMNS | RECIPE_COLUMNS
    probed = rows[is_main(rows) & is_probed(rows["metric"])]
    recipes = probed[["title", "model", *RECIPE_COLUMNS]].drop_duplicates().astype("str")
    recipes = recipes.rename(columns=RECIPE_NAMES)
    tables = [Table("Data", data_of(rows[is_main(rows)]), 2, DATA_NOTE)]
    tables += [Table("Training of probes", recipes, 2)] if len(recipes) else []
    return Section("summary", "Data", rows, columns, tables, "", facts, in_report=False)


def claims(finished: Finished) -> Section:
    """Conclude how many heads are replaceable along each line of each grid; the HTML report opens with this."""
    rows = finished.claims
    margins = list(finished.config.margin)
    tables = tables_of_claims(rows)
    facts = {"margin": margins}
    note = f"{effects_note(finished.covered)} {CLAIMS_NOTE}"
    return Section("claims", "Claims", rows, CLAIM_COLUMNS, tables, note, facts, in_report=False)


Analysis = Callable[[Finished], Section | Sequence[Section] | None]
"""Returns sections; None if the study lacks what the analysis needs."""
ANALYSES: tuple[Analysis, ...] = (
    grids,
    summary,
    claims,
    reliance,
    stability,
    drops,
    published,
    patterns,
)
"""All analyses, in the order of the HTML report. To add one, write a module, and add its function here."""


def write_report(job: AnyJob, finished: Finished) -> str:
    """Stage *report*: write the tables, figures, claims and the HTML report of a study."""
    folder = finished.folder
    made_from = Path(job.output)
    for outdated in made_from.parent.glob("*.json"):
        outdated.unlink()  # from now on, the report is unfinished until it is listed again
    sections = list[Section]()
    for analysis in ANALYSES:
        made = analysis(finished)
        sections += [made] if isinstance(made, Section) else made or ()
    names = [section.name for section in sections]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{double} is the name of a table and of a grid; rename the grid.")
    written = set[Path]()
    drawn = []
    for section in sections:
        paths, svg = section.write(folder, job.record)
        written.update(paths)
        drawn.append((section, svg))
    outcomes, facts = finished.outcomes_table()
    runs = arrow_of(finished.runs, RUN_COLUMNS)
    heads = arrow_of(heads_of(finished.jobs), HEAD_COLUMNS)
    for name, table, about in (
        ("runs", runs, {}),
        ("heads", heads, {}),
        ("outcomes", outcomes, facts),
    ):
        path = folder / f"tables/{name}.parquet"
        write_table(table, path, {"table": name} | about, job.record)
        written.add(path)
    claimed = folder / "tables/claims.json"
    write_json(finished.conclusion, claimed, job.record)
    _remove_others(folder, written)
    page = folder / "report/index.html"
    with replacing(page) as temporary:
        temporary.write_text(page_of(finished, drawn), encoding="utf-8")
    files = sorted(os.path.relpath(path, folder) for path in (*written, claimed, page))
    write_json(_made_from(finished) | {"files": files}, made_from, job.record)
    figures = [svg for _, svg in drawn if svg]
    return f"{count(len(sections), 'table')} and {count(len(figures), 'figure')}"


def _made_from(finished: Finished) -> Row:
    artefacts = [
        {
            "stage": job.stage,
            "name": job.name,
            "key": job.key,
            "about": dict(job.about),
            "path": os.path.relpath(job.output, finished.folder),
        }
        for job in finished.jobs
    ]
    config = finished.config.model_dump(mode="json", exclude_none=True)
    return {"config": config, "artefacts": artefacts, "packages": finished.packages}


def _remove_others(folder: Path, written: set[Path]) -> None:
    """Delete the tables and figures of analyses that no longer exist; files that are not papa's stay."""
    for table in [path for path in (folder / "tables").glob("*.parquet") if read_provenance(path)]:
        figures = [folder / f"figures/{table.stem}.{suffix}" for suffix in ("svg", "png")]
        for path in (*figures, table.with_suffix(".md"), table.with_suffix(".tex"), table):
            if path not in written:
                path.unlink(missing_ok=True)
