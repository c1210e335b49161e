"""`papa inspect` of a file: what it is, what made it, whether it is intact; and files that no study needs."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from papa.errors import DamagedArtefact, InputError, format_bytes
from papa.files import (
    KEY_DIGITS,
    check_file,
    checkpoint_of,
    opened_table,
    read_json,
    read_provenance,
    read_tensors,
)
from papa.plan.study import PLAN, STUDIES
from papa.run.start import locked
from papa.stages import STAGES

Facts = Mapping[str, object]


def inspect(path: Path) -> dict[str, Any]:
    """Describe one file in plain values; to check whether it is intact, read it completely.

    `inputs` are keys, and `damage` is a sentence.

    Raises:
        InputError: the file does not exist, or is not of a kind that papa writes.
    """
    check_file(path)
    if path.suffix not in READERS:
        raise InputError(
            f"papa cannot show {path}; it shows its files whose names end in {', '.join(READERS)}."
        )
    provenance = read_provenance(path)
    damage = None
    record = provenance.record if provenance else None
    facts: Facts = {}
    try:
        facts = READERS[path.suffix](path)
    except DamagedArtefact as error:
        damage = str(error)
    stage = STAGES.get(record.stage) if record else None
    made = (
        {name: getattr(record, name) for name in ("stage", "version", "settings", "key")}
        if record
        else None
    )
    return {
        "path": str(path),
        "what": " ".join((stage.__doc__ or "").split(".")[0].split()) if stage else "papa file",
        "made": made,
        "inputs": record.inputs if record else {},
        "packages": provenance.packages if provenance else {},
        "bytes": path.stat().st_size,
        "intact": damage is None,
        "damage": damage,
        "facts": facts,
    }


def _table(path: Path) -> Facts:
    with opened_table(path) as file:
        table = file.read()
        return {"rows": table.num_rows, "columns": table.column_names, **file.facts}


def _averages(path: Path) -> Facts:
    from papa.method.averages import Constants

    constants = Constants.load(path)
    layers, heads = constants.sum.shape[:2]
    return {
        "layers": layers,
        "heads per layer": heads,
        "slots": constants.n,
        "examples": constants.examples,
        "memory of all heads": format_bytes(constants.mean.nbytes),
        **constants.about,
    }


def _tensors(path: Path) -> Facts:
    tensors, facts = read_tensors(path)
    return {
        **facts,
        "tensors": {
            name: "×".join(map(str, tensor.shape)) or "1" for name, tensor in tensors.items()
        },
    }


def _hidden(path: Path) -> Facts:
    from papa.method.hidden import read_index

    return read_index(path)[0]


READERS: dict[str, Callable[[Path], Facts]] = {
    ".parquet": _table,
    ".json": read_json,
    ".h5": _averages,
    ".safetensors": _tensors,
    ".hidden": _hidden,
}
"""Functions that check the content of a file and return facts about it, by suffix."""


def unneeded(results: Path) -> dict[Path, int]:
    """Return the files of the cache that no study names, and hidden states that no study here names, with their bytes.

    Several users may share a cache, so it lists what each study needs.

    Raises:
        InputError: the folder has no cache, or a plan or an entry in the list cannot be read.
    """
    cache = results / "cache"
    if not cache.is_dir():
        raise InputError(
            f"{results} has no folder cache; give the folder that contains the results of all studies."
        )
    named = list(cache.glob("check/*"))  # they are small, and no study names them
    # `papa measure` writes the first
    for path in (*results.glob(PLAN), *results.glob(f"*/{PLAN}")):
        plan = read_json(path)
        names = [
            *plan["data"].values(),
            *plan["states"],
            *(artefact["path"] for artefact in plan["artefacts"]),
        ]
        named += [path.parent / name for name in names]
    for path in cache.glob(f"{STUDIES}/*.json"):
        entry = read_json(path)
        if not _is_gone(entry):
            named += [path, *(cache / name for name in entry["files"])]
    # a job that was stopped resumes from a checkpoint
    needed = {os.path.normpath(path) for file in named for path in (file, checkpoint_of(file))}
    states = f"states/*-{'?' * KEY_DIGITS}.*"  # another folder of this name may hold anything
    files = [*cache.glob("*/*"), *results.glob(states), *results.glob(f"*/{states}")]
    return {
        path: path.stat().st_size
        for path in sorted(files)
        if path.is_file() and os.path.normpath(path) not in needed
    }


def _is_gone(entry: Mapping[str, str]) -> bool:
    """Return whether a study was deleted. A disk that only another machine has, or a closed folder, is no proof."""
    try:
        os.stat(entry["folder"])
    except FileNotFoundError:
        # if the parent folder is here, so is the disk
        return entry["host"] == platform.node() or os.path.isdir(os.path.dirname(entry["folder"]))
    except OSError:
        return False
    return False


def prune(results: Path, unwanted: Iterable[Path]) -> None:
    """Delete those of these files that are still unneeded; raise `InputError` if a run holds the cache."""
    taken = f"A run holds {results / 'cache'}; wait until it has ended."
    # runs share this lock, so it is free only if none reads or writes the cache
    with os.fdopen(locked(results / "cache", fcntl.LOCK_EX, taken)):
        # a run may have ended since they were listed
        for path in unneeded(results).keys() & unwanted:
            path.unlink(missing_ok=True)


def print_inspected(shown: Mapping[str, Any], out: Console) -> None:
    """Print the return value of `inspect`."""
    from papa.results.table import printable

    out.print(f"{shown['what']} ({format_bytes(shown['bytes'])})", style="bold")
    state = printable(shown["damage"] or "Intact: the file has not changed since it was written.")
    out.print(state, style="green" if shown["intact"] else "bold red")
    parts = {name: shown[name] for name in ("made", "inputs", "packages", "facts") if shown[name]}
    text = yaml.safe_dump(
        parts, sort_keys=False, allow_unicode=True, default_flow_style=None, width=out.width
    )
    out.print("\n".join(map(printable, text.splitlines())))
