"""One page that tells the results of a config: claims, figures, an explorer of heads, tables, and how it was run.

The page stands alone: the drawing library, the specifications of the figures and all data are in it. Its own security
policy lets nothing run but its two scripts and forbids every connection; the template escapes all texts.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from papa import __version__
from papa.config.settings import RUN, Config
from papa.config.stages import GridOf, PageOf
from papa.config.study import Job, Study
from papa.errors import count
from papa.files import JSON, opened_table, read_json, read_table, write_page
from papa.results import drops, published
from papa.results.claims import ABOUT_DROP, ABOUT_FREE, Claim, Drop, claims_of
from papa.results.explorer import explored
from papa.results.figures import drop_figure, grid_figure
from papa.results.grids import note_on, rows_of, tables_of
from papa.results.patterns import FLAGS
from papa.results.patterns import NOTE as ABOUT_PATTERNS
from papa.results.runs import read_runs, undrawn
from papa.results.summary import is_main, read_summary
from papa.results.table import Table, read_frame

if TYPE_CHECKING:
    import altair as alt

PAGES = files("papa.results") / "pages"


@dataclass(frozen=True)
class Section:
    """Part of the page: an analysis with its tables, and with its figure if it has one, which `shown` describes."""

    id: str
    title: str
    note: str
    tables: Sequence[Table]
    figure: dict[str, object] | None = None
    shown: str = ""

    def drawn(self, figure: alt.TopLevelMixin, shown: str) -> Section:
        """The section with a figure, without its title, which the section has as a heading."""
        specification = {key: value for key, value in figure.to_dict().items() if key != "title"}
        return replace(self, figure=specification, shown=shown)


def write_report(job: Job[PageOf]) -> str:
    """Stage *page*: write one HTML file about finished results.

    Seconds and memory are those of the files that the workflow leaves beside the artefacts, if there are some; all else
    of the page is the same for the same results.

    Args:
        job: writes `page`, two folders below which the results lie.

    Returns:
        What is on the page, for the terminal.

    Raises:
        DamagedArtefact: a result is damaged.
    """
    study = Study(_config(job.settings.config), Path(job.output("page")).parents[1])
    summary = read_summary(study.results / study.path("summary"))
    runs = undrawn(read_runs(study.results / study.path("runs")))
    grid = study.grid_settings(RUN)
    claims = claims_of(rows_of(grid, summary), rows_of(grid, runs))
    sections = _sections(study, summary)
    figures = {section.id: section.figure for section in sections if section.figure}
    entries, sets = explored(study, grid, summary)
    content = {
        "name": study.config.name,
        "version": __version__,
        "claims": [_told(claim) for claim in claims],
        "all_claims": _all_claims(claims),
        "about_claims": [ABOUT_DROP, ABOUT_FREE],
        "sections": sections,
        "about_patterns": ABOUT_PATTERNS,
        "data": _data(study, summary),
        "models": _models(study),
        "jobs": _jobs(study),
        "config": _yaml(job.settings.config),
        "told": {
            "figures": figures,
            "explorer": {"entries": entries, "sets": sets},
            "flags": FLAGS,
            "lines": {claim["line"]: {key: claim[key] for key in ("model", "constant", "order")} for claim in claims},
        },
    }
    write_page(_rendered(content), job.output("page"), job.trace())
    shown = [count(len(claims), "line"), count(len(figures), "figure"), count(len(entries), "set")]
    return "{}, {} and {} of heads on one page".format(*shown)


def _config(told: Mapping[str, JSON]) -> Config:
    """The config that the page is told, which does not say where models lie; finished results need no model."""
    models = {
        name: given if {"hub", "random"} & given.keys() else {"path": "elsewhere", **given}
        for name, given in told["models"].items()
    }
    return Config.model_validate({**told, "models": models})


def _sections(study: Study, summary: pd.DataFrame) -> list[Section]:
    """A section for each analysis of the study, in the order of its config."""
    wanted = {job.rule: job for job in study.analyses()}
    sections = [_grid_section(study.grid_settings(name), summary) for name in study.grids]
    if job := wanted.get("score_and_drop"):
        frame = read_frame(study.results / job.main, drops.COLUMNS, "table of drops")
        section = Section(job.rule, drops.TITLE, drops.NOTE, drops.tables_of(frame))
        sections.append(section.drawn(*drop_figure(frame, job.settings.plots)))
    if job := wanted.get("published"):
        rows = read_table(study.results / job.main).to_pandas()
        if len(rows):
            sections.append(Section(job.rule, published.TITLE, published.NOTE, published.tables_of(rows)))
    return sections


def _grid_section(grid: GridOf, summary: pd.DataFrame) -> Section:
    rows = rows_of(grid, summary)
    section = Section(grid.name, grid.title, note_on(grid, rows), tables_of(grid, rows))
    if not grid.drawn:
        return section
    figure, shown = grid_figure(rows, grid)
    return section.drawn(figure, f"{grid.title}: {shown}")


def _told(claim: Claim) -> dict[str, object]:
    """A claim as three numbers with what they are."""
    heads, free, part = claim["heads"], claim["free"], claim["part"]
    least, most = claim["seeds"][0], claim["seeds"][-1]
    seeds = count(most, "seed") if least == most else f"{least} to {count(most, 'seed')}"
    share = "" if free is None else f" ({100 * free / heads:.0f} %)"
    replaced = count(part["heads"], "head") if part else "some heads"
    numbers = [
        {
            "value": _percent(claim["drop"]),
            "name": f"mean relative drop with all {count(heads, 'head')} replaced",
            "interval": f"{_interval(claim['drop'])}; {count(claim['tasks'], 'task')}, {seeds}",
        },
        {
            "value": "–" if free is None else f"{free} of {heads}",
            "name": f"heads are free: no task lost{share}",
            "interval": _bracket(claim),
        },
        {
            "value": _percent(part),
            "name": f"mean relative drop with {replaced} replaced",
            "interval": _interval(part),
        },
    ]
    without = f"No drop is defined for {', '.join(claim['without'])}." if claim["without"] else ""
    return {"line": claim["line"], "numbers": numbers, "without": without}


def _all_claims(claims: Sequence[Claim]) -> Table:
    """The claims of all lines, to be compared."""
    lines = [
        {
            "line": claim["line"],
            "drop, all heads": _percent(claim["drop"]),
            "95 % interval": _interval(claim["drop"]).removeprefix("95 % interval "),
            "heads": str(claim["heads"]),
            "free": "–" if claim["free"] is None else str(claim["free"]),
            "next measured": "–" if claim["next"] is None else str(claim["next"]),
            "lost there": ", ".join(claim["lost"]),
        }
        for claim in claims
    ]
    return Table("", pd.DataFrame(lines), 1)


def _percent(drop: Drop | None) -> str:
    return "–" if drop is None or drop["mean"] is None else f"{100 * drop['mean']:.1f} %".replace("-", "−")


def _interval(drop: Drop | None) -> str:
    """The interval of a drop in words."""
    if drop is None or drop["mean"] is None:
        return "not measured, or not defined"
    if drop["low"] is None or drop["high"] is None:
        return "no interval: one seed"
    return f"95 % interval {100 * drop['low']:.1f} to {100 * drop['high']:.1f} %".replace("-", "−")


def _bracket(claim: Claim) -> str:
    """Between which measured numbers the true number of free heads lies, in words."""
    if claim["free"] is None:
        return "not known: to tell a loss from chance takes two seeds or more"
    if claim["next"] is None:
        return "all that were measured"
    return f"measured: with {claim['next']} replaced, {', '.join(claim['lost'])} lost"


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
    """What every model is: its id, the revision asked for, and the digest of the weights that really were read."""
    first = {model: study.runs(model, task)[0].main for model, task in reversed(study.config.pairs)}
    lines = []
    for name in dict.fromkeys(model for model, _ in study.config.pairs):
        given, made = study.config.models[name], read_json(study.results / first[name])["provenance"]
        origin = given.hub or (f"random {given.random}" if given.random else "a folder")
        lines.append([name, origin, given.revision or "", made["weights"], made["papa_version"]])
    return Table("", pd.DataFrame(lines, columns=["model", "hub id", "revision", "SHA-256 of the weights", "papa"]), 5)


def _jobs(study: Study) -> Table:
    """What the jobs of each rule took, as far as the workflow left files of that; what is not known is –."""
    jobs = pd.DataFrame([{"rule": job.rule, "path": job.main} for job in study.jobs() if job.stage != "page"])
    left = [study.results / Path(path).with_suffix(".benchmark.tsv") for path in jobs["path"]]
    took = [
        pd.read_csv(path, sep="\t", na_values="-").iloc[:1] if path.exists() else pd.DataFrame([{}]) for path in left
    ]
    took = pd.concat(took, ignore_index=True).reindex(columns=["s", "max_rss"]).apply(pd.to_numeric, errors="coerce")
    by_rule = pd.concat([jobs, took], axis=1).groupby("rule", sort=False)
    frame = by_rule.agg(jobs=("path", "size"), measured=("s", "count"), seconds=("s", "sum"), memory=("max_rss", "max"))
    frame["seconds"] = frame["seconds"].where(frame["measured"] > 0)
    printed = frame.map(lambda number: "–" if pd.isna(number) else f"{number:,.0f}").reset_index(names="stage")
    printed["stage"] = printed["stage"].str.replace("_", " ")
    return Table("", printed.rename(columns={"memory": "most memory, MB"}), 1)


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
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}  # and keys in the order that they have
    template = environment.from_string(_text("report.html"))
    return template.render(content, scripts=scripts, style=_text("report.css"), policy="; ".join(policy))


def _text(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")
