"""`papa inspect` of a file: what it is, what made it, and whether it is intact."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from papa.config.artefacts import ARTEFACTS
from papa.config.stages import STAGES
from papa.errors import DamagedArtefact, InputError, format_bytes
from papa.files import REBUILD, Trace, opened_table, read_json, read_provenance, read_tensors, trace_of

if TYPE_CHECKING:
    from rich.console import Console

DESCRIPTIONS = {
    ("probe", "outcomes"): "Outcomes of probes",
    ("probe", "probes"): "Probes",
    ("summary", "all_outcomes"): "Outcomes of all probes",
    ("summary", "curves"): "Losses and scores after each epoch",
}
"""Descriptions by stage and artefact, for files that no stage's docstring describes."""
DIGEST_LENGTH = 12  # number of characters shown of a digest
STAGE_SENTENCE = re.compile(r"Stage \*\w+\*[^:]*: (.+?)(; |\. |\.?$)")
"""Matches the first sentence of a stage's docstring, which describes the stage's product."""

Facts = Mapping[str, object]


class Inspected(TypedDict):
    """The return value of `inspect`; `inputs` are digests, and `damage` is a sentence."""

    path: str
    what: str
    made: dict[str, object] | None
    inputs: dict[str, str]
    bytes: int
    intact: bool
    damage: str | None
    facts: Facts


def inspect(path: Path) -> Inspected:
    """Describe one file in plain values; to check whether it is intact, read it completely.

    Raises:
        InputError: the file does not exist, or is not of a kind that papa writes.
    """
    if not path.is_file():
        raise InputError(f"There is no file {path} (relative paths start from {Path.cwd()}).")
    if path.suffix not in READERS:
        raise InputError(f"papa cannot show {path}; it shows its files whose names end in {', '.join(READERS)}.")
    sealed = path.with_suffix(ARTEFACTS["index"].suffix) if path.suffix == ARTEFACTS["hidden"].suffix else path
    trace, damage = trace_of(sealed), None
    facts: Facts = {}
    try:
        if read_provenance(sealed) is None:
            raise DamagedArtefact(f"{sealed} has no record of its content: it is damaged or not papa's; {REBUILD}.")
        facts = READERS[path.suffix](path)
    except DamagedArtefact as error:
        damage = str(error)
    return {
        "path": str(path),
        "what": _description(path, trace),
        "made": {name: getattr(trace, name) for name in ("stage", "version", "settings")} if trace else None,
        "inputs": dict(trace.inputs) if trace else {},
        "bytes": path.stat().st_size,
        "intact": damage is None,
        "damage": damage,
        "facts": facts,
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


def _table(path: Path) -> Facts:
    with opened_table(path) as file:
        table = file.read()
        return {"rows": table.num_rows, "columns": table.column_names, **file.facts}


def _values(path: Path) -> Facts:
    content = read_json(path)
    if "runs" not in content:
        return content
    runs = content["runs"]
    shared = {name: value for name, value in runs[0].items() if name not in ("seed", "curve")}
    return {"seeds": [run["seed"] for run in runs], **shared}


def _averages(path: Path) -> Facts:
    from papa.method.averages import Constants

    constants = Constants.load(path)
    layers, heads = constants.sum.shape[:2]
    sizes = {"layers": layers, "heads per layer": heads, "slots": constants.n, "examples": constants.examples}
    return {**sizes, "memory of all heads": format_bytes(constants.mean.nbytes), **constants.about}


def _tensors(path: Path) -> Facts:
    tensors, facts = read_tensors(path)
    return {**facts, "tensors": {name: "×".join(map(str, tensor.shape)) or "1" for name, tensor in tensors.items()}}


def _hidden(path: Path) -> Facts:
    from papa.method.hidden import check_hidden

    index = path.with_suffix(ARTEFACTS["index"].suffix)
    check_hidden(index)
    facts: Facts = read_json(index)
    return facts


READERS: dict[str, Callable[[Path], Facts]] = {
    ".parquet": _table,
    ".json": _values,
    ".h5": _averages,
    ".safetensors": _tensors,
    ".hidden": _hidden,
    ".html": lambda path: {},
}
"""Functions that check the content of a file and return facts about it, by suffix."""


def print_inspected(shown: Inspected, out: Console) -> None:
    """Print the return value of `inspect`."""
    from papa.results.table import printable

    out.print(f"{shown['what']} ({format_bytes(shown['bytes'])})", style="bold")
    state = printable(shown["damage"] or "Intact: the file has not changed since it was written.")
    out.print(state, style="green" if shown["intact"] else "bold red")
    if made := shown["made"]:
        _print_values("Made by stage {stage}, version {version}".format(**made), cast(Facts, made["settings"]), out)
    if inputs := shown["inputs"]:
        _print_values("From", {name: digest[:DIGEST_LENGTH] for name, digest in inputs.items()}, out)
    if facts := shown["facts"]:
        _print_values("Content", facts, out)


def _print_values(title: str, values: Facts, out: Console) -> None:
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
