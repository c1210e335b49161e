"""`papa inspect`: what a file of papa is, what made it, whether it is intact, and the beginning of its content."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from papa.config.measures import METRICS, TARGETS, check_metric
from papa.config.stages import STAGES
from papa.errors import DamagedArtefact, InputError, count
from papa.files import JSON, REBUILD, Trace, opened_table, read_json, read_provenance, read_tensors, trace_of
from papa.jobs.resources import size
from papa.results.conclusion import Conclusion

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

Shown = dict[str, Any]
OUTCOMES = "outcomes.parquet"
TABLES = {
    ("probe", OUTCOMES): "Outcomes of probes",
    ("probe", ".safetensors"): "Probes",
    ("summary", "outcomes.parquet"): "Outcomes of all probes",
    ("summary", "curves.parquet"): "Losses and scores after each epoch",
}
"""Descriptions of a stage's further files, by the ends of their names."""
ROWS, LONGEST, DIGEST = 5, 60, 12
"""Rows of a table that are shown, and characters of a cell and of a digest."""
STAGE = re.compile(r"Stage \*\w+\*[^:]*: (.+?)(\. |\.?$)")
"""The first sentence of a stage's settings, which names what the stage makes."""


def inspect(path: Path, layer: int | None = None, head: int | None = None) -> Shown:
    """Describe one file in plain values.

    Args:
        path: a file that papa wrote.
        layer: of averages, the layer whose heads are shown; None means any.
        head: of averages, the head that is shown; None means any.

    Returns:
        `what` it is, `made` (stage, version, settings and digests of inputs), `intact`, the `damage` in a sentence,
        and `facts`. Some files also have a `table`, a value for each head (`heads`) or matrices of heads (`pictures`).

    Raises:
        InputError: there is no such file, papa writes no such files, or the file has no such layer or head.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; give one file in it, or two results folders to papa compare.")
    if not path.is_file():
        raise InputError(f"There is no file {path} (relative paths start from {Path.cwd()}).")
    if path.suffix not in READERS:
        known = ", ".join(READERS)
        raise InputError(f"{path} does not say how it was made; files of papa that do end in {known}.")
    if (layer is not None or head is not None) and path.suffix != ".h5":
        raise InputError(f"{path} has no heads to choose from; only averages are shown by layer and head.")
    index = path.with_suffix(".json") if path.suffix == ".hidden" else path
    trace, damage, content = trace_of(index), "", dict[str, Any]()
    try:
        if read_provenance(index) is None:
            raise DamagedArtefact(f"{index} does not say what is in it: it is damaged or no file of papa; {REBUILD}.")
        content = READERS[path.suffix](path, trace) if path.suffix != ".h5" else _averages(path, layer, head)
    except DamagedArtefact as error:
        damage = str(error)
    return {
        "path": str(path),
        "what": _what(path, trace),
        "made": trace and {"stage": trace.stage, "version": trace.version, "settings": dict(trace.settings)},
        "inputs": dict(trace.inputs) if trace else {},
        "bytes": path.stat().st_size,
        "intact": not damage,
        "damage": damage or None,
        **content,
    }


def _what(path: Path, trace: Trace | None) -> str:
    if trace is None:
        return "File of papa"
    for (stage, end), words in TABLES.items():
        if trace.stage == stage and path.name.endswith(end):
            return words
    settings = next((kind for kind in STAGES.values() if kind.stage == trace.stage), None)
    described = STAGE.match(" ".join(((settings and settings.__doc__) or "").split()))
    words = described[1] if described else f"analysis: {trace.stage}"
    return words[0].upper() + words[1:]


def _rows(path: Path, trace: Trace | None) -> Shown:
    """Describe a table; λ and orders also have a value for each head, outcomes of probes their mean scores."""
    with opened_table(path) as file:
        table, facts = file.read(), file.facts
    shown = {"rows": table.num_rows, **facts}
    if trace and trace.stage == "probe":
        shown["scores"] = _scores(table, facts)
    if trace and trace.stage in ("lambda", "weights", "rank", "order"):
        frame, title, name = table.to_pandas(), "Rank: the head with 0 is replaced first", "rank"
        if trace.stage == "weights":
            title, name = f"{trace.settings['by']}: heads of small values are replaced first", "value"
        if trace.stage == "lambda":
            frame, name = frame[frame["epoch"] == frame["epoch"].max()], "value"
            part = f" of part {trace.settings['part']} of the texts" if trace.settings.get("part") else ""
            title = f"λ after {count(int(frame['epoch'].max()), 'epoch')}{part}; heads of small λ are replaced first"
        values = frame.pivot(index="layer", columns="head", values=name).to_numpy().tolist()
        return {"facts": shown, "heads": {"title": title, "values": values}}
    rows = [list(row.values()) for row in table.slice(0, ROWS).to_pylist()]
    return {"facts": shown, "table": {"columns": table.column_names, "rows": rows, "total": table.num_rows}}


def _scores(outcomes: pa.Table, facts: Mapping[str, JSON]) -> dict[str, dict[str, float]]:
    """Return the mean scores of each split by every metric that fits; outcomes do not name the metric of their task."""
    import pyarrow.compute as pc

    from papa.method.metrics import counts_of

    target = next(target for target in TARGETS if target.column in (None, *outcomes.column_names))
    names, scores = facts.get("label_names", ()), dict[str, dict[str, float]]()
    for metric, measure in METRICS.items():
        try:
            check_metric(metric, target, names)
        except InputError:
            continue
        for split in outcomes["split"].unique().to_pylist():
            of_split = outcomes.filter(pc.equal(outcomes["split"], split))
            seeds = [
                of_split.filter(pc.equal(of_split["seed"], seed)) for seed in of_split["seed"].unique().to_pylist()
            ]
            by_seed = [float(measure.score(counts_of(metric, rows, names).sum(0))) for rows in seeds]
            scores.setdefault(split, {})[metric] = fmean(by_seed)
    return scores


def _scores_beside(runs: Path, trace: Trace) -> Shown:
    """Return the mean scores of runs, if their outcomes are in the same folder."""
    path = runs.with_name(OUTCOMES)
    if trace_of(path) != trace:
        return {}
    try:
        with opened_table(path) as file:
            return {"scores": _scores(file.read(), file.facts)}
    except DamagedArtefact as error:
        return {"scores": f"not known: {error}"}


def _claims(path: Path) -> Shown:
    """Describe a conclusion: its sentence, and a row for each line of each grid."""
    conclusion = Conclusion.read(path)
    areas = {f"{pair.a} and {pair.b} ({pair.grid})": pair.verdict for pair in conclusion.areas}
    columns = ["grid", "line", "heads", "replaceable", "tasks"]
    rows = [[line.grid, line.line, line.heads, line.replaceable, ", ".join(line.tasks)] for line in conclusion.lines]
    facts = {"sentence": conclusion.sentence, "margin": conclusion.margin, "areas": areas}
    return {"facts": facts, "table": {"columns": columns, "rows": rows, "total": len(rows)}}


def _values(path: Path, trace: Trace | None) -> Shown:
    """Describe runs, an index or claims; runs have common values, mean scores, and losses by epoch."""
    if trace and trace.stage == "claims":
        return _claims(path)
    content = read_json(path)
    if not (trace and trace.stage == "probe"):
        return {"facts": content}
    runs = content["runs"]
    common = {name: value for name, value in runs[0].items() if name not in ("seed", "curve")}
    facts = {"seeds": [run["seed"] for run in runs]} | common | _scores_beside(path, trace)
    rows = [
        [epoch["epoch"], *losses]
        for epoch, *losses in zip(
            runs[0]["curve"], *([epoch["loss"] for epoch in run["curve"]] for run in runs), strict=True
        )
    ]
    columns = ["epoch", *(f"loss, seed {run['seed']}" for run in runs)]
    return {"facts": facts, "table": {"columns": columns, "rows": rows, "total": len(rows)}}


def _tensors(path: Path, trace: Trace | None) -> Shown:
    tensors, facts = read_tensors(path)
    rows = [
        [name, " × ".join(map(str, tensor.shape)) or "1", str(tensor.dtype)[6:]] for name, tensor in tensors.items()
    ]
    return {"facts": facts, "table": {"columns": ["name", "shape", "type"], "rows": rows, "total": len(rows)}}


def _hidden(path: Path, trace: Trace | None) -> Shown:
    """Describe hidden states, after comparing each example with its checksum if its tokens are still there."""
    from papa.data.tokens import TokensFile
    from papa.method.hidden import check_part

    index, lengths = path.with_suffix(".json"), None
    about = read_json(index)
    model = next((folder for folder in path.absolute().parents if folder.parent.name == "models"), path.parent)
    for tokens in sorted(model.glob("corpora/**/tokens.parquet")):
        provenance = read_provenance(tokens)
        if lengths is None and trace and provenance and provenance.digest == trace.inputs.get("tokens"):
            with TokensFile.opened(tokens) as file:
                lengths = [length for _, part in file.between(*about["rows"]) for length in part.lengths.tolist()]
    check_part(index, lengths)
    return {"facts": about}


def _page(path: Path, trace: Trace | None) -> Shown:
    return {"facts": {}}


def _averages(path: Path, layer: int | None, head: int | None) -> Shown:
    """Describe averages, with the matrices of the chosen heads: by default the one that looks at single slots most."""
    from papa.method.averages import ConstantMatrices

    constants = ConstantMatrices.load(path)
    layers, heads = constants.sum.shape[:2]
    for noun, number, total in (("layer", layer, layers), ("head", head, heads)):
        if number is not None and not 0 <= number < total:
            raise InputError(f"{path} has no {noun} {number}; {noun}s are 0 to {total - 1}.")
    if outputs := constants.kind == "mean-output":
        used = constants.count.nonzero().flatten().tolist()
    else:
        constants = constants.by_pair()
        used = constants.count.diagonal().nonzero().flatten().tolist()
    mean = constants.mean
    facts = {"layers": layers, "heads of a layer": heads, "slots": constants.n, "slots in use": len(used)}
    shown: Shown = {"facts": facts | {"examples": constants.examples} | constants.about}
    if not used:
        return shown
    if outputs:
        norms = mean[:, :, used].norm(dim=-1).mean(-1)
        return shown | {"heads": {"title": "Mean length of a head's output", "values": norms.tolist()}}
    mean = mean[:, :, used][..., used]
    seen = (constants.count[used][:, used] > 0).tolist()
    peaks = mean.amax(-1).mean(-1)
    if layer is None and head is None:
        layer, head = divmod(int(peaks.argmax()), heads)
    pictures = [
        {
            "layer": where,
            "head": which,
            "slots": used,
            "values": [
                [round(value, 4) if known else None for value, known in zip(*row, strict=True)]
                for row in zip(mean[where, which].tolist(), seen, strict=True)
            ],
        }
        for where in range(layers)
        for which in range(heads)
        if layer in (None, where) and head in (None, which)
    ]
    title = "Largest attention of a query slot, on average"
    return shown | {"heads": {"title": title, "values": peaks.tolist()}, "pictures": pictures}


READERS: dict[str, Callable[[Path, Trace | None], Shown]] = {
    ".parquet": _rows,
    ".json": _values,
    ".h5": lambda path, trace: _averages(path, None, None),
    ".safetensors": _tensors,
    ".hidden": _hidden,
    ".html": _page,
}
"""Functions that check the content of a file and describe it, by the end of its name."""


def print_inspected(shown: Shown, out: Console) -> None:
    """Print the return value of `inspect`."""
    import pandas as pd

    from papa.results.table import Table, printable

    out.print(f"{shown['what']} ({size(shown['bytes'])})", style="bold")
    style = "green" if shown["intact"] else "bold red"
    out.print(
        printable(shown["damage"]) if shown["damage"] else "Intact: nothing changed since it was written.", style=style
    )
    if made := shown["made"]:
        out.print(f"Made by stage {made['stage']}, version {made['version']}", style="bold")
        _print_values(made["settings"], out)
    if shown["inputs"]:
        out.print("From", style="bold")
        _print_values({name: digest[:DIGEST] for name, digest in shown["inputs"].items()}, out)
    if shown.get("facts"):
        out.print("Content", style="bold")
        _print_values(shown["facts"], out)
    if table := shown.get("table"):
        cells = [[_text(cell)[:LONGEST] for cell in row] for row in table["rows"]]
        title = f"{len(cells)} of {count(table['total'], 'row')}" if len(cells) < table["total"] else ""
        for part in Table(title, pd.DataFrame(cells, columns=table["columns"]), 1).fitting(out.width):
            part.print(out)
    if heads := shown.get("heads"):
        digits = 0 if isinstance(heads["values"][0][0], int) else 3
        out.print(f"\n{heads['title']}", style="bold")
        frame = pd.DataFrame([[f"{value:.{digits}f}" for value in row] for row in heads["values"]])
        frame.insert(0, "layer", [str(layer) for layer in range(len(frame))])
        frame.columns = ["layer", *(f"head {head}" for head in range(len(frame.columns) - 1))]
        Table("", frame, 1).print(out)
    if pictures := shown.get("pictures"):
        out.print("\nMean attention of a query slot to some key slots, and the largest entry", style="bold")
        frame = pd.DataFrame(map(_summary, pictures))
        for part in Table("", frame, 2).fitting(out.width):
            part.print(out)


def _summary(picture: Shown) -> dict[str, str]:
    """Summarise the averaged attention of a head: how much goes to single places, and the largest entry."""
    values, slots = picture["values"], picture["slots"]
    entries = [
        (value, row, column)
        for row, line in enumerate(values)
        for column, value in enumerate(line)
        if value is not None
    ]
    places = {"itself": 0, "before": -1, "after": 1}
    near = {name: [value for value, row, column in entries if column == row + step] for name, step in places.items()}
    near["first"] = [value for value, _, column in entries if column == 0]
    largest, row, column = max(entries)
    return {
        "layer": str(picture["layer"]),
        "head": str(picture["head"]),
        **{name: f"{fmean(part):.3f}" if part else "-" for name, part in near.items()},
        "largest": f"{largest:.3f} ({slots[row]} to {slots[column]})",
    }


def _print_values(values: Mapping[str, Any], out: Console) -> None:
    from rich.table import Table

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
