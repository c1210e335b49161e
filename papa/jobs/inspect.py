"""`papa inspect`: describe a papa file, how it was made, whether it is intact, and the beginning of its content."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypedDict

from papa.config.artefacts import ARTEFACTS
from papa.config.measures import METRICS, check_metric, labelled_target
from papa.config.stages import STAGES
from papa.errors import DamagedArtefact, InputError, count
from papa.files import REBUILD, Trace, opened_table, read_json, read_provenance, read_tensors, trace_of
from papa.jobs.resources import format_bytes
from papa.results.conclusion import Conclusion

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

DESCRIPTIONS = {
    ("probe", "outcomes"): "Outcomes of probes",
    ("probe", "probes"): "Probes",
    ("summary", "all_outcomes"): "Outcomes of all probes",
    ("summary", "curves"): "Losses and scores after each epoch",
}
"""Descriptions by stage and artefact, for files that no stage's docstring describes."""
SHOWN_ROWS, CELL_LENGTH, SHORT_CELL_LENGTH, DIGEST_LENGTH = 5, 60, 16, 12
"""Number of table rows shown, and number of characters shown of a cell, of a cell of a wide table, and of a digest."""
STAGE_SENTENCE = re.compile(r"Stage \*\w+\*[^:]*: (.+?)(; |\. |\.?$)")
"""Matches the first sentence of a stage's docstring, which describes the stage's product."""


class Made(TypedDict):
    """The stage that made a file."""

    stage: str
    version: int
    settings: dict[str, object]


class ShownTable(TypedDict):
    """The first rows of a table, and the number of all rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    total: int


class ShownHeads(TypedDict):
    """A value for each head, `[layer][head]`, and what the values are."""

    title: str
    values: list[list[float]]


class Picture(TypedDict):
    """The matrix of a head, `[query][key]` at the used slots; None for pairs that no example has."""

    layer: int
    head: int
    slots: list[int]
    values: list[list[float | None]]


class Content(TypedDict, total=False):
    """Facts about a file; some files also have a table, a value for each head, or matrices of heads."""

    facts: Mapping[str, object]
    table: ShownTable
    heads: ShownHeads
    pictures: list[Picture]


class Inspected(Content):
    """The return value of `inspect`; `inputs` are digests, and `damage` is a sentence."""

    path: str
    what: str
    made: Made | None
    inputs: dict[str, str]
    bytes: int
    intact: bool
    damage: str | None


def inspect(path: Path, layer: int | None = None, head: int | None = None) -> Inspected:
    """Describe one file in plain values.

    Args:
        path: a file that papa wrote.
        layer, head: for averages, the layer and the head to show. If one is None, all of them are shown. If both are
            None, only the head with the most concentrated attention is shown.

    Returns:
        `what` the file is, how it was `made` (stage, version and settings), the digests of its `inputs`, whether it is
        `intact`, the `damage` as a sentence, and `facts`. Some files also have a `table`, a value per head (`heads`) or
        matrices of some heads (`pictures`).

    Raises:
        InputError: the file does not exist, is not of a kind that papa writes, or lacks the layer or head.
    """
    if not path.is_file():
        raise InputError(f"There is no file {path} (relative paths start from {Path.cwd()}).")
    if path.suffix not in READERS:
        raise InputError(f"papa cannot show {path}; it shows its files whose names end in {', '.join(READERS)}.")
    chosen = {name: index for name, index in (("layer", layer), ("head", head)) if index is not None}
    if chosen and READERS[path.suffix] is not _averages:
        raise InputError(f"{path} does not contain averages; use --layer and --head only with averages.")
    sealed = _index_of(path) if path.suffix == ARTEFACTS["hidden"].suffix else path
    trace, damage, content = trace_of(sealed), None, Content()
    try:
        if read_provenance(sealed) is None:
            raise DamagedArtefact(f"{sealed} has no record of its content: it is damaged or not papa's; {REBUILD}.")
        content = READERS[path.suffix](path, trace, **chosen)
    except DamagedArtefact as error:
        damage = str(error)
    return {
        "path": str(path),
        "what": _description(path, trace),
        "made": Made(stage=trace.stage, version=trace.version, settings=dict(trace.settings)) if trace else None,
        "inputs": dict(trace.inputs) if trace else {},
        "bytes": path.stat().st_size,
        "intact": damage is None,
        "damage": damage,
        **content,
    }


def _description(path: Path, trace: Trace | None) -> str:
    if trace is None:
        return "papa file"
    for (stage, artefact), description in DESCRIPTIONS.items():
        if trace.stage == stage and path.name.endswith(ARTEFACTS[artefact].name):
            return description
    settings = next((kind for kind in STAGES.values() if kind.stage == trace.stage), None)
    sentence = STAGE_SENTENCE.match(" ".join(((settings and settings.__doc__) or "").split()))
    description = sentence[1] if sentence else f"analysis: {trace.stage}"
    return description[0].upper() + description[1:]


# -- readers ----------------------------------------------------------------------------------------------------------


def _shown(
    facts: Mapping[str, object], columns: Sequence[str], rows: Sequence[Sequence[object]], total: int = 0
) -> Content:
    return {"facts": facts, "table": {"columns": columns, "rows": rows, "total": total or len(rows)}}


def _table(path: Path, trace: Trace | None) -> Content:
    """Describe a table. Weights and orders also have a value for each head; outcomes also have mean scores."""
    with opened_table(path) as file:
        table = file.read()
        facts = {"rows": table.num_rows, **file.facts}
    stage, settings = (trace.stage, trace.settings) if trace else ("", {})
    if stage in ("lambda", "weights", "rank", "order"):
        frame, title, name = table.to_pandas(), "Rank: the head of rank 0 is replaced first", "rank"
        if stage == "weights":
            title, name = f"{settings['by']}: heads with small values are replaced first", "value"
        if stage == "lambda":
            last, name = int(frame["epoch"].max()), "value"
            frame = frame[frame["epoch"] == last]
            part = f" on part {settings['part']} of the texts" if settings.get("part") else ""
            title = f"λ after {count(last, 'epoch')}{part}; heads with small λ are replaced first"
        values = frame.pivot(index="layer", columns="head", values=name).to_numpy().tolist()
        return {"facts": facts, "heads": {"title": title, "values": values}}
    if stage == "probe":
        facts["scores"] = _scores(table, facts)
    rows = [list(row.values()) for row in table.slice(0, SHOWN_ROWS).to_pylist()]
    return _shown(facts, table.column_names, rows, table.num_rows)


def _scores(outcomes: pa.Table, facts: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return each split's mean score by every metric that fits, because outcomes of labels record no metric."""
    import pyarrow.compute as pc

    from papa.method.metrics import counts_of

    names, scores = facts.get("label_names", ()), dict[str, dict[str, float]]()
    target = METRICS[facts["metric"]].target if "metric" in facts else labelled_target("word" in outcomes.column_names)
    for metric, measure in METRICS.items():
        try:
            check_metric(metric, target, names)
        except InputError:
            continue
        for split in outcomes["split"].unique().to_pylist():
            rows = outcomes.filter(pc.equal(outcomes["split"], split))
            seeds = [rows.filter(pc.equal(rows["seed"], seed)) for seed in rows["seed"].unique().to_pylist()]
            by_seed = [float(measure.score(counts_of(metric, part, names).sum(0))) for part in seeds]
            scores.setdefault(split, {})[metric] = fmean(by_seed)
    return scores


def _values(path: Path, trace: Trace | None) -> Content:
    """Describe claims, runs or an index; for runs, show their shared values, mean scores, and losses by epoch."""
    if trace and trace.stage == "claims":
        conclusion = Conclusion.read(path)
        rows = [
            [line.grid, line.line, line.heads, line.replaceable, ", ".join(line.tasks)] for line in conclusion.lines
        ]
        facts = {"sentence": conclusion.sentence, "margin": conclusion.margin}
        return _shown(facts, ["grid", "line", "heads", "replaceable", "tasks"], rows)
    content = read_json(path)
    if not (trace and trace.stage == "probe"):
        return {"facts": content}
    runs = content["runs"]
    facts = {"seeds": [run["seed"] for run in runs]}
    facts |= {name: value for name, value in runs[0].items() if name not in ("seed", "curve")}
    outcomes = path.with_name(ARTEFACTS["outcomes"].name)
    if trace_of(outcomes) == trace:
        try:
            with opened_table(outcomes) as file:
                facts["scores"] = _scores(file.read(), file.facts)
        except DamagedArtefact as error:
            facts["scores"] = f"unknown: {error}"
    epochs = zip(*(run["curve"] for run in runs), strict=True)
    rows = [[epoch[0]["epoch"], *(curve["loss"] for curve in epoch)] for epoch in epochs]
    return _shown(facts, ["epoch", *(f"loss, seed {run['seed']}" for run in runs)], rows)


def _tensors(path: Path, trace: Trace | None) -> Content:
    tensors, facts = read_tensors(path)
    shapes = {name: " × ".join(map(str, tensor.shape)) or "1" for name, tensor in tensors.items()}
    rows = [[name, shape, str(tensors[name].dtype).removeprefix("torch.")] for name, shape in shapes.items()]
    return _shown(facts, ["name", "shape", "type"], rows)


def _index_of(hidden: Path) -> Path:
    return hidden.with_suffix(ARTEFACTS["index"].suffix)


def _hidden(path: Path, trace: Trace | None) -> Content:
    """Describe hidden states, and compare each example with its checksum if the tokens still exist."""
    from papa.data.tokens import TokensFile
    from papa.method.hidden import check_part

    index, lengths = _index_of(path), None
    facts = read_json(index)
    results, _ = ARTEFACTS["hidden"].parsed(path) or (path.parent, {})
    for tokens in sorted(results.glob(ARTEFACTS["tokens"].path(model="*", laid_out="**"))):
        provenance = read_provenance(tokens)
        if lengths is None and trace and provenance and provenance.digest == trace.inputs.get("tokens"):
            with TokensFile.opened(tokens) as file:
                lengths = [length for _, part in file.between(*facts["rows"]) for length in part.lengths.tolist()]
    check_part(index, lengths)
    return {"facts": facts}


def _averages(path: Path, trace: Trace | None, layer: int | None = None, head: int | None = None) -> Content:
    """Describe averages, and show the chosen heads or else the head with the most concentrated attention."""
    from papa.method.averages import ConstantMatrices

    constants = ConstantMatrices.load(path)
    layers, heads = constants.sum.shape[:2]
    mean = constants.mean  # in the form that replaces attention
    numbers = {"numbers per head": mean[0, 0].numel(), "memory of all heads": format_bytes(mean.nbytes)}
    for noun, index, total in (("layer", layer, layers), ("head", head, heads)):
        if index is not None and not 0 <= index < total:
            raise InputError(f"{path} has no {noun} {index}; {noun}s are 0 to {total - 1}.")
    has_matrices = constants.kind != "mean-output"
    constants = constants.by_pair() if has_matrices else constants
    used = (constants.count.diagonal() if has_matrices else constants.count).nonzero().flatten().tolist()
    facts = {"layers": layers, "heads per layer": heads, "slots": constants.n, "slots in use": len(used)} | numbers
    shown: Content = {"facts": {**facts, "examples": constants.examples, **constants.about}}
    if not used:
        return shown
    mean = constants.mean[:, :, used]
    if not has_matrices:
        norms = mean.norm(dim=-1).mean(-1)
        return {**shown, "heads": {"title": "Mean norm of a head's output", "values": norms.tolist()}}
    mean = mean[..., used]
    observed = (constants.count[used][:, used] > 0).tolist()
    peaks = mean.amax(-1).mean(-1)
    if layer is None and head is None:
        layer, head = divmod(int(peaks.argmax()), heads)
    pictures: list[Picture] = [
        {
            "layer": at_layer,
            "head": at_head,
            "slots": used,
            "values": [
                [round(value, 4) if known else None for value, known in zip(*row, strict=True)]
                for row in zip(mean[at_layer, at_head].tolist(), observed, strict=True)
            ],
        }
        for at_layer in (range(layers) if layer is None else [layer])
        for at_head in (range(heads) if head is None else [head])
    ]
    title = "Largest attention weight of each query slot, averaged over query slots"
    return {**shown, "heads": {"title": title, "values": peaks.tolist()}, "pictures": pictures}


READERS: dict[str, Callable[..., Content]] = {
    ".parquet": _table,
    ".json": _values,
    ".h5": _averages,
    ".safetensors": _tensors,
    ".hidden": _hidden,
    ".html": lambda path, trace: {"facts": {}},
}
"""Functions that check and describe the content of a file, by suffix."""


# -- the terminal -----------------------------------------------------------------------------------------------------


def print_inspected(shown: Inspected, out: Console) -> None:
    """Print the return value of `inspect`."""
    import pandas as pd

    from papa.results.table import Table, printable

    def show(title: str, frame: pd.DataFrame, names: int) -> None:
        for part in Table(title, frame, names).fitting(out.width):
            part.print(out)

    out.print(f"{shown['what']} ({format_bytes(shown['bytes'])})", style="bold")
    state = printable(shown["damage"] or "Intact: the file has not changed since it was written.")
    out.print(state, style="green" if shown["intact"] else "bold red")
    if made := shown["made"]:
        _print_values(f"Made by stage {made['stage']}, version {made['version']}", made["settings"], out)
    if inputs := shown["inputs"]:
        _print_values("From", {name: digest[:DIGEST_LENGTH] for name, digest in inputs.items()}, out)
    if facts := shown.get("facts"):
        _print_values("Content", facts, out)
    if table := shown.get("table"):
        cells = [[_text(cell)[:CELL_LENGTH] for cell in row] for row in table["rows"]]
        rows, part = len(cells), Table("", pd.DataFrame(cells, columns=list(table["columns"])), 1)
        if part.is_wider(out.width):
            part = Table("", part.frame.map(_shortened), 1).transposed(out.width)[0]
            rows = len(part.header) - 1
        replace(part, title=f"{rows} of {count(table['total'], 'row')}" if rows < table["total"] else "").print(out)
    if heads := shown.get("heads"):
        out.print(f"\n{heads['title']}", style="bold")
        frame = pd.DataFrame(heads["values"]).add_prefix("head ")
        form = "{:.0f}" if isinstance(heads["values"][0][0], int) else "{:.3f}"
        show("", frame.map(form.format).reset_index(names="layer"), 1)
    if pictures := shown.get("pictures"):
        out.print(
            "\nMean attention from a slot to itself, its neighbours and the first slot, and the largest entry",
            style="bold",
        )
        show("", pd.DataFrame(map(_summary, pictures)), 2)


def _shortened(cell: str) -> str:
    return cell if len(cell) <= SHORT_CELL_LENGTH else f"{cell[: SHORT_CELL_LENGTH - 1]}…"


def _summary(picture: Picture) -> dict[str, str]:
    """Summarise a head's averaged attention: the means over some pairs of slots, and the largest entry."""
    import numpy as np

    values, slots = np.array(picture["values"], float), picture["slots"]
    near = {"itself": values.diagonal(), "before": values.diagonal(-1), "after": values.diagonal(1)}
    near["first"] = values[:, 0]
    row, column = divmod(int(np.nanargmax(values)), len(slots))
    return {
        "layer": str(picture["layer"]),
        "head": str(picture["head"]),
        **{name: "-" if np.isnan(part).all() else f"{np.nanmean(part):.3f}" for name, part in near.items()},
        "largest": f"{values[row, column]:.3f} ({slots[row]} to {slots[column]})",
    }


def _print_values(title: str, values: Mapping[str, object], out: Console) -> None:
    from rich.table import Table

    out.print(title, style="bold")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        if value not in (None, "", {}, []):
            table.add_row(f"  {name}", _text(value))
    out.print(table)


def _text(value: object) -> str:
    from papa.results.table import printable

    if isinstance(value, Mapping):
        return ", ".join(f"{printable(str(name))} {_text(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(_text, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else printable(str(value))
