"""`papa freeze`: declare what a study will claim, before any outcome exists."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from papa.config.artefacts import ARTEFACTS, declaration_path
from papa.config.declaration import Declaration, declared_by, differences
from papa.config.reading import read_config
from papa.config.settings import Config
from papa.config.stages import ModelId
from papa.config.study import Study
from papa.data.local_digests import LocalSourceDigests
from papa.errors import InputError
from papa.files import replacing
from papa.jobs.plan import ASSUMED_IN_CLUSTERS, POWER, expected_margins

if TYPE_CHECKING:
    from rich.console import Console


LISTED_KEYS = 5
"""The number of differing keys that an error lists."""


@dataclass(frozen=True)
class Frozen:
    """A declaration with its file; `changed` is False if the file was there before."""

    path: Path
    declaration: Declaration
    changed: bool


def freeze(path: str | os.PathLike[str], changes: Mapping[str, object] | None = None) -> Frozen:
    """Write the declaration of a config next to it, unless there is one that declares the same.

    Args:
        path: the file of the config.
        changes: values that replace keys of the config, unless they are None.

    Raises:
        InputError: the config is invalid, outcomes of it exist, or the file contains something else, which may be
            another declaration.
    """
    config = read_config(path, changes)
    study = Study(config, Path("results", config.name), LocalSourceDigests(config.machine))
    outcomes = [path for name in ("outcomes", "all_outcomes") for path in ARTEFACTS[name].existing(study.results)]
    if outcomes:
        raise InputError(
            f"{study.results} has outcomes ({outcomes[0].relative_to(study.results)}), so nothing can be declared "
            "before them; give the config another `name` for a new study."
        )
    declared, file = declared_by(study), declaration_path(path)
    if file.exists():
        return Frozen(file, _unchanged(file, declared), changed=False)
    declaration = Declaration.of(declared, _expected(study), datetime.now(UTC).isoformat(timespec="seconds"))
    text = json.dumps(declaration.model_dump(), indent=1, sort_keys=True, ensure_ascii=False)
    with replacing(file) as temporary:
        temporary.write_text(f"{text}\n", encoding="utf-8")
    return Frozen(file, declaration, changed=True)


def _unchanged(file: Path, declared: dict[str, JsonValue]) -> Declaration:
    """Return the declaration in a file; raise `InputError` if it is not intact, or declares something else."""
    before = Declaration.read(file)
    if not before.intact:
        raise InputError(
            f"{file} was edited after it was written, so its digest does not match; restore it from version control, "
            "or delete it to declare the study again."
        )
    if keys := [str(difference["key"]) for difference in differences(before.declared, declared)]:
        more = f" and {len(keys) - LISTED_KEYS} more" if len(keys) > LISTED_KEYS else ""
        raise InputError(
            f"{file} already declares other values of {', '.join(keys[:LISTED_KEYS])}{more}; undo this change of the "
            "config, or delete the file to declare the study again."
        )
    return before


def _expected(study: Study) -> dict[str, JsonValue]:
    """Return the numbers of replaced heads and the smallest margin of each task, as far as they are known."""
    content = {
        "heads_replaced": {name: _heads_replaced(study.config, name) for name in study.grids},
        "power": POWER,
        **expected_margins(study),
    }
    plain: dict[str, JsonValue] = json.loads(json.dumps(content))
    return plain


def _heads_replaced(config: Config, grid: str) -> dict[str, list[int] | None]:
    """Return the numbers of replaced heads of a grid by model; None if the model is not on this machine."""
    from papa.data.tokenize import shape_of_model
    from papa.method.orders import units_of

    replaced: dict[str, list[int] | None] = {}
    for name in config.analyses[grid].models:
        try:
            layers, heads, key_heads = shape_of_model(ModelId.of(name, config.models[name]), config.machine)
        except InputError:
            replaced[name] = None
            continue
        size = heads // units_of(config.ranking.unit, heads, key_heads)
        units = layers * heads // size
        kept = {size * floor(Fraction(fraction) * units) for fraction in config.analyses[grid].fractions}
        replaced[name] = sorted(layers * heads - number for number in kept)
    return replaced


def print_frozen(frozen: Frozen, console: Console) -> None:
    """Print what was declared, and what to do with the file."""
    from papa.results.table import printable

    declared, expected = frozen.declaration.declared, frozen.declaration.expected
    state = "Declared in" if frozen.changed else "Nothing has changed since it was declared in"
    console.print(f"{state} {frozen.path} (digest {frozen.declaration.digest[:12]}).", soft_wrap=True)
    grids = cast(dict[str, dict[str, list[str]]], declared["grids"])
    for name, grid in grids.items():
        parts = [f"{key} {', '.join(map(str, values))}" for key, values in grid.items()]
        console.print(printable(f"{name}: {'; '.join(parts)}."))
    floors = ", ".join(cast(list[str], declared["floors"])) or "none"
    console.print(f"Margin: {100 * cast(float, declared['margin']):g} %. Context-free floors: {floors}.")
    if margins := _listed(expected["smallest_margins"]):
        console.print(printable(f"With {100 * POWER:.0f} % power, a task that loses nothing passes at: {margins}."))
    if margins := _listed(expected.get("independent_margins")):
        console.print(printable(f"{ASSUMED_IN_CLUSTERS} {margins}."))
    console.print(
        "Commit this file before the run, because only a commit that others have proves the time. The report compares "
        "the study with the file."
    )


def _listed(margins: JsonValue) -> str:
    """List the smallest margin of each task."""
    return ", ".join(f"{task} {100 * margin:.1f} %" for task, margin in cast(dict[str, float], margins or {}).items())
