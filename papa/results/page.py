"""One page that tells the results of a config: claims, figures, an explorer of heads, tables, and how it was run.

The page stands alone: the drawing library, the figures' specifications and all data are in it. Its own security policy
lets nothing run but its two scripts and forbids every connection; texts go through the template's escaping.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from papa import __version__
from papa.config.graph import Graph
from papa.config.grids import RUN, Config
from papa.config.parameters import Parameters
from papa.files import PathLike, read_json, read_table, replacing
from papa.method.patterns import DIAGONAL_LIFT, DOMINANT_ENTRY, DOMINANT_ROWS, FLAGS, SPECIAL_MASS
from papa.method.patterns import NOTE as ABOUT_PATTERNS
from papa.results.analyses import constant_name, note_on, order_name, rows_of, tables_of
from papa.results.claims import ABOUT_DROP, ABOUT_FREE, claims_of
from papa.results.costs import costs_of
from papa.results.drops import COLUMNS as DROP_COLUMNS
from papa.results.drops import NOTE as ABOUT_DROPS
from papa.results.drops import TITLE as SCORE_AND_DROP
from papa.results.drops import tables_of as tables_of_drops
from papa.results.explorer import explored
from papa.results.latex import Part
from papa.results.plots import drop_figure, full_style, grid_figure
from papa.results.published import NOTE as ABOUT_PUBLISHED
from papa.results.published import tables_of as tables_of_published
from papa.results.summary import Row, is_main, read_rows, unique
from papa.results.tables import RUN_COLUMNS, undrawn

PAGES = files("papa.results") / "pages"

Section = dict[str, Any]
"""Part of the page: `id`, `title`, `note`, `tables`, and `shown`, what its figure shows, where it has one."""


def write_report(results: PathLike, page: PathLike, config: Config) -> str:
    """Write `page`, the report of the finished `results` of a checked `config` (places left out), as one HTML file.

    Seconds and memory are those of the files that the workflow leaves beside the artefacts, where there are some; all
    else of the page is the same for the same results. Raises `DamagedArtefact` for a result that is not whole.
    """
    folder, graph = Path(results), Graph(config)
    summary = read_rows(folder / "tables/summary.parquet")
    runs = [undrawn(run) for run in read_rows(folder / "tables/runs.parquet", RUN_COLUMNS)]
    grid = Parameters(config).grid(RUN)["grid"]
    claims = claims_of(rows_of(grid, summary), rows_of(grid, runs))
    sections, specifications = _sections(folder, graph, summary)
    heads = explored(folder, graph, grid, summary)
    for entry in heads["entries"]:
        order = entry["order"] and f"{order_name(entry['order'])} order"
        entry["words"] = ", ".join(filter(None, [constant_name(entry["constant"]), order]))
    content = {
        "name": config["name"],
        "version": __version__,
        "claims": [_told(claim) for claim in claims],
        "all_claims": _tables("all-claims", [("", _all_claims(claims), 1)] if len(claims) > 1 else []),
        "about_claims": [ABOUT_DROP, ABOUT_FREE],
        "sections": sections,
        "about_patterns": _about_patterns(),
        "data": _tables("data", [("", [[list(DATA)], _data(summary)], 2)]),
        "models": _tables("models", [("", _models(folder, graph), 7)]),
        "jobs": _tables("jobs", [("", _jobs(folder, graph), 1)]),
        "config": _yaml(config),
        "told": {
            "figures": specifications,
            "explorer": heads,
            "flags": FLAGS,
            "lines": {claim["line"]: {key: claim[key] for key in ("model", "constant", "order")} for claim in claims},
        },
    }
    with replacing(page) as temporary:
        temporary.write_text(_page(content), encoding="utf-8")
    return f"{len(claims)} lines, {len(specifications)} figures and {len(heads['entries'])} sets of heads on one page"


def _sections(folder: Path, graph: Graph, summary: Sequence[Row]) -> tuple[list[Section], dict[str, Any]]:
    """A section for each analysis that the graph has, and the specifications of their figures by section."""
    style, wanted = full_style(graph.config["plots"]), set(graph.analyses())
    sections, specifications = [], {}
    for name in graph.grids:
        given = Parameters(graph.config).grid(name)
        rows = rows_of(given["grid"], summary)
        section = _section(name, given["title"], note_on(given["grid"], rows), tables_of(given["grid"], rows))
        if name in graph.drawn():
            figure, section["shown"] = grid_figure(folder / f"tables/{name}.parquet", style)
            specifications[name] = _for_page(figure)
        sections.append(section)
    if f"<results>/tables/{(name := 'score_and_drop')}.parquet" in wanted:
        table = folder / f"tables/{name}.parquet"
        section = _section(name, SCORE_AND_DROP, ABOUT_DROPS, tables_of_drops(read_rows(table, DROP_COLUMNS)))
        drops, section["shown"] = drop_figure(table, style)
        specifications[name] = _for_page(drops)
        sections.append(section)
    if f"<results>/tables/{(name := 'published')}.parquet" in wanted:
        rows = read_table(folder / f"tables/{name}.parquet").to_pylist()
        if rows:
            sections.append(_section(name, "Beside the published values", ABOUT_PUBLISHED, tables_of_published(rows)))
    return sections, specifications


def _for_page(figure: Any) -> dict[str, Any]:
    """A figure's specification without its title, which the page has as a heading."""
    return {key: value for key, value in figure.to_dict().items() if key != "title"}


def _section(name: str, title: str, note: str, tables: Sequence[tuple[str, Sequence[Part], int]]) -> Section:
    return {"id": name, "title": title, "note": note, "tables": _tables(name, tables)}


def _tables(name: str, tables: Sequence[tuple[str, Sequence[Part], int]]) -> list[dict[str, Any]]:
    """Tables as the template takes them: the header, all lines, how many columns hold names."""
    return [
        {"id": f"{name}-{number}", "title": title, "header": parts[0][0], "names": names}
        | {"lines": [line for part in parts[1:] for line in part]}
        for number, (title, parts, names) in enumerate(tables)
    ]


def _told(claim: Row) -> Row:
    """A claim as three numbers with what they are."""
    heads, free, tasks, part = claim["heads"], claim["free"], claim["tasks"], claim["part"]
    seeds = f"{' to '.join(map(str, unique([claim['seeds'][0], claim['seeds'][-1]])))} seeds"
    numbers = [
        {
            "value": _percent(claim["drop"]),
            "name": f"mean relative drop with all {heads} heads replaced",
            "interval": f"{_interval(claim['drop'])}; {tasks} task{'s' * (tasks != 1)}, {seeds}",
        },
        {
            "value": "–" if free is None else f"{free} of {heads}",
            "name": "heads are free: no task lost" + (f" ({100 * free / heads:.0f} %)" if free is not None else ""),
            "interval": _bracket(claim),
        },
        {
            "value": _percent(part),
            "name": f"mean relative drop with {part['heads'] if part else 'some'} heads replaced",
            "interval": _interval(part),
        },
    ]
    without = f"No drop is defined for {', '.join(claim['without'])}." if claim["without"] else ""
    return {"line": claim["line"], "numbers": numbers, "without": without}


def _all_claims(claims: Sequence[Row]) -> list[Part]:
    """The claims of all lines, to be compared."""
    header = ["line", "drop, all heads", "95 % interval", "heads", "free", "next measured", "lost there"]
    lines = [
        [claim["line"], _percent(claim["drop"]), _interval(claim["drop"]).removeprefix("95 % interval ")]
        + ["–" if claim[name] is None else str(claim[name]) for name in ("heads", "free", "next")]
        + [", ".join(claim["lost"])]
        for claim in claims
    ]
    return [[header], lines]


def _percent(drop: Row | None) -> str:
    return "–" if drop is None or drop["mean"] is None else f"{100 * drop['mean']:.1f} %".replace("-", "−")


def _interval(drop: Row | None) -> str:
    """The interval of a drop in words."""
    if drop is None or drop["mean"] is None:
        return "not measured, or not defined"
    if drop["low"] is None:
        return "no interval: one seed"
    return f"95 % interval {100 * drop['low']:.1f} to {100 * drop['high']:.1f} %".replace("-", "−")


def _bracket(claim: Row) -> str:
    """Between which measured numbers the true number of free heads lies, in words."""
    if claim["free"] is None:
        return "not known: to tell a loss from chance takes two seeds or more"
    if claim["next"] is None:
        return "all that were measured"
    return f"measured: with {claim['next']} replaced, {', '.join(claim['lost'])} lost"


def _about_patterns() -> str:
    return ABOUT_PATTERNS.format(
        diagonal_lift=DIAGONAL_LIFT,
        special_mass=SPECIAL_MASS,
        dominant_entry=DOMINANT_ENTRY,
        dominant_rows=DOMINANT_ROWS,
    )


DATA = {
    "task": "title",
    "model": "model",
    "training rows": "rows_train",
    "of": "rows_available_train",
    "validation rows": "rows_validation",
    "of ": "rows_available_validation",
    "training examples cut": "cut_train",
    "validation examples cut": "cut_validation",
}
"""Columns of the table of data, and those of the summary that they are."""


def _data(summary: Sequence[Row]) -> list[list[str]]:
    rows = unique(tuple(row[name] for name in DATA.values()) for row in summary if is_main(row))
    return [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows]


def _models(folder: Path, graph: Graph) -> list[Part]:
    """What every model is: its id, the revision asked for, and the digest of the weights that really were read."""
    lines = []
    for name, given in graph.config["models"].items():
        first = next(path for path in graph.runs() if path.startswith(f"<results>/models/{name}/"))
        about = read_json(folder / first.removeprefix("<results>/"))["provenance"]
        origin = given.get("hub") or (f"random {given['random']}" if "random" in given else "a folder")
        lines.append([name, origin, given.get("revision") or "", about["weights"], about["papa_version"]])
    return [[["model", "hub id", "revision", "SHA-256 of the weights", "papa"]], lines]


def _jobs(folder: Path, graph: Graph) -> list[Part]:
    header = ["stage", "jobs", "measured", "seconds", "longest memory, MB"]
    rows = costs_of(folder, graph)
    lines = [
        [row["rule"].replace("_", " "), f"{row['jobs']:,}", f"{row['measured']:,}"]
        + ["–" if row[name] is None else f"{row[name]:,.0f}" for name in ("seconds", "memory")]
        for row in rows
    ]
    return [[header], lines]


def _yaml(config: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)


def _page(content: Mapping[str, Any]) -> str:
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
