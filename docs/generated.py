"""Write the generated parts of pages: commands, keys of configs, tables of measured studies, and figures of reliance.

`make docs` calls it. The tables of a study are in docs/measured/STUDY/tables, as papa wrote them.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import altair as alt
import pandas as pd
import typer.cli
import vl_convert as vlc
from pydantic.json_schema import GenerateJsonSchema
from typer.testing import CliRunner

from papa.config.reading import description_of, keys
from papa.config.settings import Config
from papa.method.pictures import inline, styled
from papa.results.figures import COLORS
from papa.results.forest import AMOUNTS, COLUMNS, SCORES, figure_of
from papa.results.reliance import RELIANCE
from papa.stages import STAGES

DOCS = Path(__file__).parent
GENERATED = "<!-- Written by `make docs`; change {} instead. -->"


def commands() -> str:
    """The commands and options of papa, as typer tells them."""
    asked = ["papa.cli", "utils", "docs", "--name", "papa", "--title", "Commands"]
    written = CliRunner().invoke(typer.cli.app, asked, catch_exceptions=False).output
    title, _, rest = written.partition("\n")
    listed = re.sub(
        r"^\* `(\w+)`: .*$", r"* [`papa \1`](#papa-\1)", rest.strip(), flags=re.MULTILINE
    )
    return f"""{title}

{GENERATED.format("papa/cli.py")}

{listed}

Next: [../config/README.md](../config/README.md) has the keys of a config, [api.md](api.md) the same in Python.
"""


CONFIG_PAGE = "../config/README.md"
TYPES = {
    "array": "list",
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "string": "text",
}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


class _Plain(GenerateJsonSchema):
    """The schema of a config without null for optional keys."""

    def nullable_schema(self, schema):
        return self.generate_inner(schema["schema"])


def with_part(page: str, name: str, written: str) -> str:
    """A page with what is written between its marks of this name."""
    text = (DOCS / page).read_text(encoding="utf-8")
    marks = rf"(<!-- {name}: written by `make docs` -->\n).*?(<!-- end of {name} -->)"
    return re.sub(marks, lambda match: f"{match[1]}{written}{match[2]}", text, flags=re.DOTALL)


def with_table(page: str, name: str, table: str) -> str:
    """A page with a table between its marks of this name."""
    return with_part(page, name, f"\n{table}\n\n")


def key_table() -> str:
    """A row for each key; a block precedes its keys, and a grid reads from `run` what it lacks."""
    schema = Config.model_json_schema(schema_generator=_Plain)
    blocks = {"Config": schema, **schema["$defs"]}
    rows = ["| key | type | default | unit | effect |", "|---|---|---|---|---|"]
    for key, kinds in keys():
        name = key.rpartition(".")[2]
        kind = next(kind for kind in kinds if name in kind.model_fields)
        rules = blocks[kind.__name__]["properties"][name]
        required = all(
            name in kind.model_fields and kind.model_fields[name].is_required() for kind in kinds
        )
        default = (
            f"`{json.dumps(rules['default'])}`" if rules.get("default") not in (None, {}) else ""
        )
        default = (
            ""
            if key.startswith("grids.") or key == "layout"
            else "required"
            if required
            else default
        )
        effect = description_of(kind, name).replace("<", "&lt;")  # Markdown would take it for HTML
        rows.append(
            f"| `{key}` | {_type(rules)} | {default} | {rules.get('unit', '')} | {effect} |"
        )
    return "\n".join(rows)


def _type(rules: dict) -> str:
    options = rules.get("anyOf") or rules.get("oneOf")
    if "enum" in rules or "const" in rules:
        return ", ".join(f"`{value}`" for value in rules.get("enum", [rules.get("const")]))
    if options:
        return " or ".join(dict.fromkeys(map(_type, options)))
    if "$ref" in rules or rules["type"] == "object":
        return "block of keys"
    if "prefixItems" in rules:
        return f"[{', '.join(map(_type, rules['prefixItems']))}]"
    if rules["type"] == "array":
        return f"list of {_type(rules['items'])}"
    shown = ", ".join(
        f"{sign} {rules[bound]:,}" for bound, sign in BOUNDS.items() if bound in rules
    )
    return f"{TYPES[rules['type']]} {shown}".strip()


MEASURED = DOCS / "measured"
TABLE = r"<!-- table (?P<study>[\w+]+)/(?P<table>\w+)(?P<section>(?: [^>\n]+?)?) -->\n.*?<!-- end of table -->"
"""A table of measured studies on a page: studies, with + between them, file, heading of the section (default: the
first), and, after a |, some tasks (default: all)."""


def with_tables(name: str) -> str:
    """A page with the tables of measured studies between their marks."""
    return re.sub(TABLE, _table, (DOCS / name).read_text(encoding="utf-8"), flags=re.DOTALL)


def _table(match: re.Match[str]) -> str:
    """The mark of a table, the table as papa wrote it, and the mark of its end."""
    before, *_, after = match[0].splitlines()
    heading, _, tasks = (part.strip() for part in match["section"].partition("|"))
    some = list[str]()
    for study in match["study"].split("+"):
        file = MEASURED / study / "tables" / f"{match['table']}.md"
        first, *others = re.split(r"^## ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        text = next(text for text in others or [first] if heading in ("", text.splitlines()[0]))
        head, rule, *rows = (line for line in text.splitlines() if line.startswith("|"))
        some += [
            row
            for row in rows
            if not tasks or row.split(" | ")[0].removeprefix("| ") in tasks.split(", ")
        ]
    table = re.sub(r"(?<=[ (])-(?=\d)", "−", "\n".join([head, rule, *some]))
    return "\n\n".join([before, table, after])


SPEEDS = {"MPNet on NER": "mpnet_ner", "Gemma on WikiText-103": "gemma_128"}
"""What `benchmarks/real_texts.py` printed, by what it is about."""


def speed_table() -> str:
    """A row for each kind of work; time and memory relative to the stock model on padded texts."""
    columns = dict[str, dict[str, str]]()
    for title, file in SPEEDS.items():
        rows = _cells(f"measured/speed/tables/{file}.md", "| stock, all slots")
        memory = {name: float(cell) for name, *_, cell in rows}
        column = columns[title] = {}
        for name, _, time, _, peak in rows[1:]:
            stock = "stock, forward and backward" if "λ" in name else "stock, all slots"
            column[name] = f"{time} ({float(peak) / memory[stock]:.1f})"
    kinds = [name for name in next(iter(columns.values())) if "backward" not in name]
    lines = [f"| | {' | '.join(columns)} |", "|---|--:|--:|"]
    for name in kinds:
        lines.append(f"| {name} | {' | '.join(column[name] for column in columns.values())} |")
    return "\n".join(lines)


NUMBERS = r"-?[\d.]+"


PAGE_OF = {"MPNet": "results.md", "MiniLM": "results.md", "Gemma 3 270M": "decoders.md"}
"""The pages with a section for each measured model, which begins with its table."""


def _measured(model: str) -> dict[str, list[str]]:
    """The cells of a model's table by task: metric, three scores, lost, contributed, reliance."""
    page = (DOCS / PAGE_OF[model]).read_text(encoding="utf-8").replace("−", "-")
    section = page.partition(f"\n## {model}")[2]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    return {task: cells for task, *cells in rows}


def _measured_rows(model: str) -> list[dict[str, object]]:
    """The rows of a model in a figure, one for each task."""
    rows = []
    for task, (_, original, averages, floor, lost, contributed, reliance) in _measured(
        model
    ).items():
        row = _row(model, task, original, averages, floor, reliance)
        unit = 1 if "nats" in lost else 100
        for name, cell in (("lost", lost), ("contributed", contributed)):
            numbers = [float(number) / unit for number in re.findall(NUMBERS, cell)]
            row |= dict(zip((name, f"{name}_low", f"{name}_high"), numbers, strict=False))
        rows.append(row)
    return rows


def _published_rows() -> list[dict[str, object]]:
    """The rows of the paper's models in a figure."""
    table = _cells("published.md", "| RoBERTa BASE | MNLI")
    return [
        _row(model, task, original, averages, max(floors), reliance)
        for model, task, original, *floors, averages, reliance in table
    ]


def _cells(page: str, first: str) -> list[list[str]]:
    """The cells of a table, from the row that begins with some text."""
    rows = f"\n{(DOCS / page).read_text(encoding='utf-8')}".partition(f"\n{first}")[2].partition(
        "\n\n"
    )[0]
    return [row.strip("| ").split(" | ") for row in f"{first}{rows}".replace("−", "-").splitlines()]


def _row(
    line: str, task: str, original: str, constants: str, floor: str, reliance: str
) -> dict[str, object]:
    """A row of a figure; scores of all metrics are in points."""
    scores = [float(cell) for cell in (original, constants, floor)]
    known = [float(number) / 100 for number in re.findall(NUMBERS, reliance) if number != "-"]
    known = known if len(known) == 3 else [sum(known) / 2, *known] if known else [math.nan] * 3
    row: dict[str, object] = dict.fromkeys(COLUMNS, math.nan)
    row |= {"line": line, "task": task, "subset": None, "metric": "accuracy"}
    row |= {"lost": scores[0] - scores[1], "contributed": scores[0] - scores[2]}
    row |= dict.fromkeys(("lost_low", "contributed_low"), -math.inf)
    row |= dict.fromkeys(("lost_high", "contributed_high"), math.inf)
    return row | dict(zip((*SCORES, *RELIANCE[:3]), [*scores, *known], strict=True))


def draw() -> None:
    """Draw the figures of reliance in the style of the report; published scores have two decimals."""
    mpnet = _measured_rows("MPNet")
    for name, rows in (("reliance", mpnet), ("published", _published_rows() + mpnet)):
        figure = figure_of(pd.DataFrame(rows), "10%")
        text = json.dumps(figure.to_dict(), ensure_ascii=False)
        if name == "published":
            text = re.sub(r'"(\d+)\.0 points of (\d+)\.0"', r'"\1 points of \2"', text)
        (DOCS / "figures" / f"{name}.svg").write_text(vlc.vegalite_to_svg(text), encoding="utf-8")


TASKS = {
    "MNLI": "inference",
    "CoLA": "acceptability",
    "SST-2": "sentiment",
    "MRPC": "paraphrases",
    "NER": "named entities",
    "POS": "part-of-speech tags",
}
"""The paper's tasks, and what they are about."""


def result_table() -> str:
    """A row for each task of the paper, and a column for each model."""
    lines = [
        "| task | RoBERTa BASE, [the paper](docs/published.md) | MPNet, [measured here](docs/results.md) | "
        "MiniLM, [measured here](docs/results.md#minilm-six-tasks) |",
        "|---|--:|--:|--:|",
    ]
    mpnet, minilm = _measured("MPNet"), _measured("MiniLM")
    for model, task, original, *floors, averages, share in _cells(
        "published.md", "| RoBERTa BASE | MNLI"
    ):
        if model != "RoBERTa BASE":
            continue
        best = max(map(float, floors))
        printed = [round(100 * (float(original) - score)) for score in (float(averages), best)]
        cells = [f"{TASKS[task]} ({task})", "{} of {}: {}".format(*printed, share)]
        cells += [_result(*results[task][-3:]) for results in (mpnet, minilm)]
        lines.append(f"| {' | '.join(cells)} |".replace("(-", "(−"))
    return "\n".join(lines)


def _result(lost: str, contributed: str, reliance: str) -> str:
    """Points lost and contributed, without their intervals, and reliance with its interval."""
    points = lost.split()[0]
    most = contributed.split()[0]
    # "1.0 of 0.2" would look like a mistake
    if "%" not in reliance:
        return f"{points}; contribution ({most}) not significant"
    return f"{points} of {most}: {reliance}"


def points() -> str:
    """Draw what is lost, of what attention contributes: points of encoders, and nats of a decoder."""
    published = [row for row in _published_rows() if row["line"] == "RoBERTa BASE"]
    paper = _panel(_in_points(published), "RoBERTa BASE (the paper)")
    mpnet, minilm = (
        _panel(_in_points(_measured_rows(model)), model) for model in ("MPNet", "MiniLM")
    )
    gemma = pd.DataFrame(_measured_rows("Gemma 3 270M"))
    gemma["task"] = ["128 slots", "1,024 slots"]
    decoder = _panel(gemma, "Gemma 3 270M", unit="nats per token", most=3.8)
    known = alt.vconcat(mpnet, decoder, spacing=16)
    return vlc.vegalite_to_svg(styled(alt.hconcat(paper, known, minilm, spacing=16)).to_json())


def _in_points(rows: list[dict[str, object]]) -> pd.DataFrame:
    scaled = pd.DataFrame(rows)
    scaled[list(AMOUNTS)] *= 100
    return scaled.replace([math.inf, -math.inf], math.nan)


def _panel(
    rows: pd.DataFrame, title: str, unit: str = "points", most: float = 46
) -> alt.LayerChart:
    """A grey bar for what attention contributes to a task, and a blue one with its interval for what is lost."""
    task = alt.Y(
        "task:N", sort=rows["task"].tolist(), title=None, axis=alt.Axis(ticks=False, domain=False)
    )
    base = alt.Chart(inline(rows)).encode(y=task)
    axis = alt.Axis(grid=False, tickCount=5)
    scale = alt.Scale(domain=[0, most], nice=False)
    contributed = base.mark_bar(height=15, color="#c9ced6").encode(
        x=alt.X("contributed:Q", title=unit, axis=axis, scale=scale)
    )
    lost = base.mark_bar(height=7, color=COLORS[0]).encode(x="lost:Q")
    interval = base.mark_rule(strokeWidth=1.6).encode(x="lost_low:Q", x2="lost_high:Q")
    digits = "0" if "paper" in title else ".1f" if unit == "points" else ".2f"
    amounts = f"format(datum.lost, '{digits}') + ' of ' + format(datum.contributed, '{digits}')"
    end = "max(datum.contributed, datum.lost, datum.lost_high)"
    words = (
        base.transform_calculate(amounts=amounts, end=end)
        .mark_text(align="left", dx=6)
        .encode(x="end:Q", text="amounts:N")
    )
    drawn: alt.LayerChart = alt.layer(contributed, lost, interval, words)
    return drawn.properties(width=190, title=title)


FULL = (5, 11, 17)
"""The layers of Gemma that see the whole text."""
KINDS = {2: "all tokens", 5: "tokens that complete a repeated pair"}
"""The columns of the table of Gemma's layers that the picture shows, and their titles."""


def layers() -> str:
    """Draw what Gemma loses with averages in one layer, without <unk>."""
    cells = _cells("measured/gemma_layers/tables/tokens.md", "| layer-0 |")
    rows = [row for row in cells if row[0].startswith("layer-")]
    sees = ["whole text" if layer in FULL else "window of 512 tokens" for layer in range(len(rows))]
    color = alt.Color("sees:N", scale=alt.Scale(range=list(COLORS[1::-1])), title="layer sees")
    panels = [
        _by_layer([row[column] for row in rows], sees, color, "nats lost").properties(title=title)
        for column, title in KINDS.items()
    ]
    both = alt.hconcat(*panels, spacing=24).resolve_scale(y="shared")
    return vlc.vegalite_to_svg(styled(both).to_json())


def encoder_layers() -> str:
    """Draw what MPNet loses for NER with averages in one layer."""
    rows = _cells("measured/mpnet_layers/tables/claims.md", "| list layer 0 | NER")
    lost = [lost for _, _, _, lost, *_ in rows]
    chart = _by_layer(lost, ["the whole text"] * len(lost), alt.value(COLORS[0]), "points lost")
    return vlc.vegalite_to_svg(styled(chart).to_json())


def _by_layer(
    lost: list[str], sees: list[str], color: alt.Color | alt.Value, unit: str
) -> alt.LayerChart:
    """A bar for what each layer loses, with its interval; its colour may tell what the layer sees."""
    measured = [list(map(float, re.findall(NUMBERS, cell))) for cell in lost]
    table = pd.DataFrame(measured, columns=["lost", "low", "high"])
    table = table.assign(layer=table.index, sees=sees)
    base = alt.Chart(inline(table)).encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0, ticks=False))
    )
    height = alt.Y("lost:Q", title=unit, axis=alt.Axis(grid=False, tickCount=5))
    bars = base.mark_bar(size=9).encode(y=height, color=color)
    intervals = base.mark_rule(strokeWidth=1.2).encode(y="low:Q", y2="high:Q")
    drawn: alt.LayerChart = alt.layer(bars, intervals).properties(width=330, height=130)
    return drawn


IDEA = "figures/idea.svg"
SHOWN_IN_IDEA = {"NER": "named entities", "SST-2": "sentiment", "MNLI": "inference"}
"""Tasks of results.md whose reliance the first picture shows, and their names in it."""
ZERO = 200
PERCENT = 2.7
"""The place of a reliance of 0 in the first picture, and the width of 1%."""


def measured_part() -> str:
    """Draw the reliance of some tasks with its interval, and the points that they lose."""
    bottom = 334
    lines = [
        _words(
            20, 196, "3. Reliance is where constants score between original and floor.", bold=True
        ),
        _words(20, 214, "MPNet with averages in all heads; lines are 95% intervals", grey=True),
    ]
    for percent, name in ((0, "original: 0%"), (100, "context-free floor: 100%")):
        place = ZERO + PERCENT * percent
        lines.append(_words(place, 240, name, anchor="middle"))
        lines.append(
            f'<line x1="{place}" y1="248" x2="{place}" y2="{bottom}" stroke="#888" stroke-dasharray="4 3"/>'
        )
    lines.append(_words(640, 240, "lost, of what attention contributes", grey=True))
    rows = _measured("MPNet")
    for number, (task, name) in enumerate(SHOWN_IN_IDEA.items()):
        *_, lost, contributed, reliance = rows[task]
        middle, low, high = (
            ZERO + PERCENT * float(percent) for percent in re.findall(NUMBERS, reliance)
        )
        height = 266 + 28 * number
        lines.append(_words(20, height + 4, name))
        lines.append(
            f'<line x1="{low:.0f}" y1="{height}" x2="{high:.0f}" y2="{height}" stroke="#d55e00" stroke-width="2"/>'
        )
        lines.append(f'<circle cx="{middle:.0f}" cy="{height}" r="6" fill="#d55e00"/>')
        points = f"{lost.split()[0]} of {contributed.split()[0]} points: {reliance}"
        lines.append(_words(640, height + 4, points))
    return "\n".join([*lines, ""])


def _words(
    left: float,
    bottom: float,
    words: str,
    anchor: str = "start",
    bold: bool = False,
    grey: bool = False,
) -> str:
    return (
        f'<text x="{left:.0f}" y="{bottom}" text-anchor="{anchor}" '
        f'font-weight="{"bold" if bold else "normal"}" fill="{"#555" if grey else "#222"}">{words}</text>'
    )


PLACES = {
    "tokenize": (70, 130),
    "average": (210, 130),
    "learn_lambda": (360, 130),
    "hidden_states": (525, 130),
    "probe": (675, 130),
    "probe_encoder": (675, 220),
    "report": (820, 130),
}
"""The middle of each rule in the picture of the rules."""
RESULTS = {settings.stage: settings.result for settings in STAGES.values()}
COLOURS = dict(
    zip(PLACES, ("#2f70a9", "#b5651d", "#7b4fa3", "#2e8b57", "#a33", "#a33", "#444"), strict=True)
)


def rules() -> str:
    """Draw the rules, and what flows between them, as `snakemake --rulegraph` prints them for the paper's config."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "snakemake",
            "--snakefile",
            str(DOCS.parent / "Snakefile"),
            "--directory",
            folder,
        ]
        command += ["--configfile", str(DOCS.parent / "config/paper.yaml"), "--rulegraph", "dot"]
        command += ["results/paper/report/index.html"]
        graph = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = dict(re.findall(r'(\d+)\[label = "(\w+)"', graph))
    arrows = sorted((names[one], names[two]) for one, two in re.findall(r"(\d+) -> (\d+)", graph))
    drawn = []
    for made, read in arrows:
        (x, y) = PLACES[made]
        (end, height) = PLACES[read]
        start = x + 55
        end = end - 60
        bend = (end - start) / 2
        # long arrows to a rule in the same row pass above or below the rules between
        away = {"probe_encoder": 80, "report": -140}.get(read, -70) if end - start > 110 else 0
        path = (
            f"M{start},{y} C{start + bend},{y + away} {end - bend},{height + away} {end},{height}"
        )
        drawn.append(
            f'<path d="{path}" fill="none" stroke="{COLOURS[made]}" stroke-width="1.6" '
            f'marker-end="url(#{made})"><title>{RESULTS[made]}, from {made} to {read}</title></path>'
        )
    for name, (x, y) in PLACES.items():
        drawn += [
            f'<rect x="{x - 55}" y="{y - 20}" width="110" height="40" rx="6" fill="#fff" '
            f'stroke="{COLOURS[name]}" stroke-width="2"/>',
            f'<text x="{x}" y="{y - 2}" text-anchor="middle" font-weight="bold">{name}</text>',
            f'<text x="{x}" y="{y + 13}" text-anchor="middle" font-size="11" fill="#555">'
            f"{RESULTS[name] or 'page, tables, figures'}</text>",
        ]
    markers = "".join(
        f'<marker id="{name}" markerWidth="7" markerHeight="7" refX="6" refY="3.5" orient="auto">'
        f'<path d="M0,0 L7,3.5 L0,7 z" fill="{colour}"/></marker>'
        for name, colour in COLOURS.items()
    )
    title = "The rules, what each one makes, and which rules read it"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 890 280" width="890" height="280" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="13"><title>{title}</title>'
        f'<defs>{markers}</defs><rect width="890" height="280" rx="8" fill="#ffffff"/>'
        + "\n".join(["", *drawn, "</svg>", ""])
    )


PAGES = {
    "../README.md": lambda: with_table("../README.md", "results", result_table()),
    CONFIG_PAGE: lambda: with_table(CONFIG_PAGE, "keys", key_table()),
    "cli.md": commands,
    "error-rates.md": lambda: with_tables("error-rates.md"),
    "results.md": lambda: with_tables("results.md"),
    "decoders.md": lambda: with_tables("decoders.md"),
    "performance.md": lambda: with_table("performance.md", "speeds", speed_table()),
    IDEA: lambda: with_part(IDEA, "reliance", measured_part()),
    "figures/points.svg": points,
    "figures/layers.svg": layers,
    "figures/mpnet-layers.svg": encoder_layers,
}

if __name__ == "__main__":
    for name, written in PAGES.items():
        (DOCS / name).write_text(written(), encoding="utf-8")
    draw()
    (DOCS / "figures/rules.svg").write_text(rules(), encoding="utf-8")
