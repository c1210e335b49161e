"""What a file of papa is, what made it, whether it is intact, and the beginning of what it contains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from papa.config.measures import METRICS, TARGETS, check_metric
from papa.errors import DamagedArtefact, InputError, count
from papa.files import JSON, MEND, Trace, opened_table, read_json, read_provenance, read_tensors, trace_of
from papa.jobs.resources import size
from papa.results.conclusion import Conclusion

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

Shown = dict[str, Any]
WORDS = {
    "texts": "Texts of a corpus",
    "labels": "Labels of a task",
    "subsets": "Subsets of a task",
    "tokens": "Texts laid out in slots for a model",
    "average": "Average attention over a corpus",
    "resample": "Attention to single texts of a corpus",
    "lambda": "Learned weights λ of heads",
    "weights": "Weights of heads by a measure other than λ",
    "rank": "Order of heads by their weights",
    "order": "Order of heads that needs no text",
    "hidden": "Hidden states",
    "probe": "Runs of a variant, one for each seed",
    "summary": "Runs and their means",
    "claims": "Claims: what may be concluded at a margin",
    "stability": "How alike orders of heads are",
    "grid": "Table of a grid of runs",
    "ladder": "Loss on each rung of the ladder of constants",
    "drops": "Original scores and drops",
    "published": "Scores beside published ones",
    "patterns": "Patterns of averaged attention",
    "page": "Report: all results on one page",
}
OUTCOMES = "outcomes.parquet"
TABLES = {
    ("probe", OUTCOMES): "Outcomes of probes",
    ("probe", ".safetensors"): "Probes",
    ("summary", "outcomes.parquet"): "Outcomes of all probes",
    ("summary", "curves.parquet"): "Losses and scores after each epoch",
}
"""What the files are that a stage makes beside others, by the ends of their names."""
ROWS, LONGEST, DIGEST = 5, 60, 12
"""Rows that are shown of a table, and characters of a cell and of a digest."""
SHADES = " .:-=+*#%@"


def inspect(path: Path, layer: int | None = None, head: int | None = None) -> Shown:
    """What is known of one file, in plain values.

    Args:
        path: a file that papa wrote.
        layer: of averages, the layer whose heads are shown; None leaves it open.
        head: of averages, the head that is shown; None leaves it open.

    Returns:
        `what` it is, `made` (stage, version, settings and digests of inputs), `intact`, the `damage` in a sentence,
        `facts`, and where there are any a `table`, a value for each head (`heads`) and matrices of heads (`pictures`).

    Raises:
        InputError: there is no such file, papa writes no such files, or the layer or head is not in it.
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
            raise DamagedArtefact(f"{index} does not say what is in it: it is damaged or no file of papa; {MEND}.")
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
    beside = (said for (stage, end), said in TABLES.items() if trace.stage == stage and path.name.endswith(end))
    return next(beside, WORDS.get(trace.stage, trace.stage))


def _rows(path: Path, trace: Trace | None) -> Shown:
    """Any table; of λ and of orders a value for each head, of the outcomes of probes their mean scores."""
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
    """The mean scores of each split by every metric that fits; the metric of the task is no part of its outcomes."""
    import pyarrow.compute as pc

    from papa.method.metrics import counts_of

    target = next(target for target in TARGETS if target.column in (None, *outcomes.column_names))
    names, found = facts.get("label_names", ()), dict[str, dict[str, float]]()
    for metric, measure in METRICS.items():
        try:
            check_metric(metric, target, names)
        except InputError:
            continue
        for split in outcomes["split"].unique().to_pylist():
            own = outcomes.filter(pc.equal(outcomes["split"], split))
            seeds = [own.filter(pc.equal(own["seed"], seed)) for seed in own["seed"].unique().to_pylist()]
            scores = [float(measure.score(counts_of(metric, rows, names).sum(0))) for rows in seeds]
            found.setdefault(split, {})[metric] = fmean(scores)
    return found


def _scores_beside(runs: Path, trace: Trace) -> Shown:
    """The mean scores of runs, if their outcomes lie beside them."""
    path = runs.with_name(OUTCOMES)
    if trace_of(path) != trace:
        return {}
    try:
        with opened_table(path) as file:
            return {"scores": _scores(file.read(), file.facts)}
    except DamagedArtefact as error:
        return {"scores": f"not known: {error}"}


def _claims(path: Path) -> Shown:
    """The sentence of a conclusion, and a row for each line of each grid."""
    conclusion = Conclusion.read(path)
    areas = {f"{pair.a} and {pair.b} ({pair.grid})": pair.verdict for pair in conclusion.areas}
    columns = ["grid", "line", "heads", "replaceable", "tasks"]
    rows = [[line.grid, line.line, line.heads, line.replaceable, ", ".join(line.tasks)] for line in conclusion.lines]
    facts = {"sentence": conclusion.sentence, "margin": conclusion.margin, "areas": areas}
    return {"facts": facts, "table": {"columns": columns, "rows": rows, "total": len(rows)}}


def _values(path: Path, trace: Trace | None) -> Shown:
    """Runs, an index or claims: plain values; of runs what is common to them, mean scores, and losses by epoch."""
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
            runs[0]["curve"], *([own["loss"] for own in run["curve"]] for run in runs), strict=True
        )
    ]
    columns = ["epoch", *(f"loss, seed {run['seed']}" for run in runs)]
    return {"facts": facts, "table": {"columns": columns, "rows": rows, "total": len(rows)}}


def _tensors(path: Path, trace: Trace | None) -> Shown:
    tensors, facts = read_tensors(path)
    rows = [[name, " × ".join(map(str, own.shape)) or "1", str(own.dtype)[6:]] for name, own in tensors.items()]
    return {"facts": facts, "table": {"columns": ["name", "shape", "type"], "rows": rows, "total": len(rows)}}


def _hidden(path: Path, trace: Trace | None) -> Shown:
    """Hidden states, each example held against its checksum if the tokens that they are of are still there."""
    from papa.data.tokens import TokensFile
    from papa.method.hidden import check_part

    index, lengths = path.with_suffix(".json"), None
    about = read_json(index)
    model = next((folder for folder in path.absolute().parents if folder.parent.name == "models"), path.parent)
    for tokens in sorted(model.glob("corpora/**/tokens.parquet")):
        found = read_provenance(tokens)
        if lengths is None and trace and found and found.digest == trace.inputs.get("tokens"):
            with TokensFile.opened(tokens) as file:
                lengths = [length for _, own in file.between(*about["rows"]) for length in own.lengths.tolist()]
    check_part(index, lengths)
    return {"facts": about}


def _page(path: Path, trace: Trace | None) -> Shown:
    return {"facts": {}}


def _averages(path: Path, layer: int | None, head: int | None) -> Shown:
    """Averages, and the matrices of the heads that are chosen: by default the one that looks at single slots most."""
    from papa.method.averages import ConstantMatrices

    constants = ConstantMatrices.load(path)
    layers, heads = constants.sum.shape[:2]
    for what, number, many in (("layer", layer, layers), ("head", head, heads)):
        if number is not None and not 0 <= number < many:
            raise InputError(f"{path} has no {what} {number}; {what}s are 0 to {many - 1}.")
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
        return shown | {"heads": {"title": "Length of what a head gives, on average", "values": norms.tolist()}}
    mean = mean[:, :, used][..., used]
    seen = (constants.count[used][:, used] > 0).tolist()
    peaks = mean.amax(-1).mean(-1)
    if layer is None and head is None:
        layer, head = divmod(int(peaks.argmax()), heads)
    pictures = [
        {
            "layer": one,
            "head": other,
            "slots": used,
            "values": [
                [round(value, 4) if there else None for value, there in zip(*pair, strict=True)]
                for pair in zip(mean[one, other].tolist(), seen, strict=True)
            ],
        }
        for one in range(layers)
        for other in range(heads)
        if layer in (None, one) and head in (None, other)
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
"""By the end of a file's name: what checks its content and shows the beginning of it."""


def print_inspected(found: Shown, out: Console) -> None:
    """Print what `inspect` found."""
    import pandas as pd

    from papa.results.table import Table, printable

    out.print(f"{found['what']} ({size(found['bytes'])})", style="bold")
    style = "green" if found["intact"] else "bold red"
    out.print(printable(found["damage"]) if found["damage"] else "Intact: it is what was written.", style=style)
    if found["made"]:
        made = found["made"]
        out.print(f"Made by stage {made['stage']}, version {made['version']}", style="bold")
        _print_values(made["settings"], out)
    if found["inputs"]:
        out.print("From", style="bold")
        _print_values({name: digest[:DIGEST] for name, digest in found["inputs"].items()}, out)
    if found.get("facts"):
        out.print("Content", style="bold")
        _print_values(found["facts"], out)
    if table := found.get("table"):
        cells = [[_said(cell)[:LONGEST] for cell in row] for row in table["rows"]]
        shown = f"{len(cells)} of {count(table['total'], 'row')}" if len(cells) < table["total"] else ""
        for part in Table(shown, pd.DataFrame(cells, columns=table["columns"]), 1).fitting(out.width):
            part.print(out)
    if heads := found.get("heads"):
        digits = 0 if isinstance(heads["values"][0][0], int) else 3
        out.print(f"\n{heads['title']}", style="bold")
        frame = pd.DataFrame([[f"{value:.{digits}f}" for value in row] for row in heads["values"]])
        frame.insert(0, "layer", [str(layer) for layer in range(len(frame))])
        frame.columns = ["layer", *(f"head {head}" for head in range(len(frame.columns) - 1))]
        Table("", frame, 1).print(out)
    for picture in found.get("pictures", []):
        print_picture(picture, out)


def _print_values(values: Mapping[str, Any], out: Console) -> None:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        if value not in (None, "", {}, []):
            table.add_row(f"  {name}", _said(value))
    out.print(table)


def _said(value: object) -> str:
    from papa.results.table import printable

    if isinstance(value, Mapping):
        return ", ".join(f"{printable(str(name))} {_said(own)}" for name, own in value.items() if own is not None)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(_said, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else printable(str(value))


def print_picture(picture: Shown, out: Console) -> None:
    """Draw a matrix of a head: in blocks of colour, two rows in a line, or as characters from light to dark in a pipe.

    The scale is from 0 to the largest entry; a pair of slots that no example has is blank.
    """
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    slots, values = picture["slots"], picture["values"]
    largest = max((value for row in values for value in row if value is not None), default=0) or 1.0
    colours = out.color_system is not None and not out.no_color and out.encoding.lower().startswith("utf")
    wide = 1 if colours or 2 * len(slots) + 4 > out.width else 2
    title = f"\nlayer {picture['layer']}, head {picture['head']}: 0 ({'dark' if colours else 'light'}) to {largest:.3f}"
    out.print(f"{title} ({'bright' if colours else 'dark'}); lines are queries", style="bold", soft_wrap=True)
    shares = [[None if value is None else value / largest for value in row] for row in values]

    def colour(share: float | None) -> Color | None:
        if share is None:
            return None
        low, high = VIRIDIS[min(int(share * 4), 3)], VIRIDIS[min(int(share * 4), 3) + 1]
        part = share * 4 - min(int(share * 4), 3)
        return Color.from_rgb(*(one + part * (two - one) for one, two in zip(low, high, strict=True)))

    for number in range(0, len(shares), 2 if colours else 1):
        line = Text().append(f"{slots[number]:>3} ", "dim")
        if colours:
            lower = shares[number + 1] if number + 1 < len(shares) else [None] * len(slots)
            for one, two in zip(shares[number], lower, strict=True):
                blank = one is None
                line.append(
                    "▄" if blank else "▀",
                    Style(color=colour(two if blank else one), bgcolor=None if blank else colour(two)),
                )
        else:
            marks = (" " if share is None else SHADES[min(9, 1 + int(share * 9))] for share in shares[number])
            line.append("".join(mark * wide for mark in marks))
        out.print(line, no_wrap=True, overflow="crop", crop=True)


VIRIDIS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""From low to high: told apart by colour-blind readers, on light and on dark ground."""
