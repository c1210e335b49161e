"""What a file of a workflow's results is, of what, where it belongs, and whether it is whole."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from papa.errors import DamagedArtefact, InputError
from papa.files import MEND, PathLike, check_seal, is_sealed, opened_table, provenance_of, read_json
from papa.jobs.inspecting.places import ELSEWHERE, Kind, kind_at, said


def inspect(path: PathLike, layer: int | None = None, head: int | None = None) -> dict[str, Any]:
    """What is known of one file, in plain values: `kind`, `words`, `of` what, its `place` below a results folder,
    `bytes`, whether it is `whole` (None where nothing in it tells), the `damage` in a sentence, its `provenance`, and
    what `papa.jobs.inspecting.previews.preview` makes of its content.

    Of constants, `layer` and `head` choose whose matrix is shown. Raises `InputError` where there is no such file, it
    is none of papa, or `layer` and `head` are not in it.
    """
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{path} is a folder; give one file in it, or two results folders to papa compare.")
    if not file.is_file():
        raise InputError(f"There is no file {path} (relative paths start from {Path.cwd()}).")
    place, damage = _place(file), ""
    kind, of = kind_at(place) or (None, {})
    try:
        written_at = _check(file, kind)
        if kind is None and written_at:
            place = written_at
            kind, of = kind_at(place) or (None, {})
    except DamagedArtefact as error:
        damage = str(error)
    kind = kind or ELSEWHERE.get(file.suffix) or Kind("unknown", "File of a kind that is not known here", "")
    if (layer is not None or head is not None) and kind.name != "averages":
        raise InputError(f"{path} has no heads to choose from; only averages are shown by layer and head.")
    shown: dict[str, Any] = {"provenance": {}, "content": {}}
    if not damage and kind.name != "partial":
        from papa.jobs.inspecting.previews import preview

        try:
            shown = preview(kind.name, file, layer, head)
        except DamagedArtefact as error:
            damage = str(error)
    return {
        "path": str(path),
        "kind": kind.name,
        "words": kind.words,
        "of": said(of),
        "place": place,
        "bytes": file.stat().st_size,
        "whole": False if damage else True if kind.sealed or kind.name == "hidden" else None,
        "damage": damage or None,
        **shown,
    }


def _place(file: Path) -> str:
    """Where below a results folder a file lies; empty where it does not."""
    found = re.fullmatch(r".*/results/[^/]+/(.+)", os.path.abspath(file))
    return found[1] if found else ""


def _check(file: Path, kind: Kind | None) -> str:
    """Where a file was written, where it says so; raises `DamagedArtefact` where it is not whole."""
    if kind is None and not is_sealed(file) and file.suffix != ".hidden":
        raise InputError(
            f"{file} is no file of papa: it lies in no results/NAME/ folder where papa would put it, and has no seal."
        )
    if file.suffix == ".hidden":
        _check_hidden(file)
    elif kind is not None and kind.name == "partial":
        raise DamagedArtefact(
            f"{file} is what a job left half-written when it was killed; nothing reads it, and the next such job "
            "deletes it."
        )
    elif kind is None or kind.sealed:
        whole = os.path.abspath(file)  # for what it is called where it lies is checked too
        try:
            return check_seal(whole)
        except DamagedArtefact as error:
            raise DamagedArtefact(str(error).replace(whole, str(file))) from None
    return ""


def _check_hidden(file: Path) -> None:
    """Hold hidden states against their index, and each example against its checksum where its length can be known."""
    from papa.method.hidden import check_part

    index = file.with_suffix(".json")
    if not index.is_file():
        raise DamagedArtefact(f"{file} has no {index.name} beside it, which says what it is; {MEND}.")
    check_part(file, index, _lengths(index))


def _lengths(index: Path) -> list[int] | None:
    """How many tokens each example has of which there are hidden states; None where the tokens are not there, or are
    others by now."""
    from papa.data.tokens import TokensFile

    about, tokens = read_json(index), tokens_behind(index)
    if tokens is None:
        return None
    with TokensFile.opened(tokens) as laid_out:
        groups = laid_out.between(*about["rows"])
        lengths = [length for _, group in groups for length in group.lengths.tolist()]
    same = (len(lengths), sum(lengths)) == (about["rows"][1] - about["rows"][0], about["tokens"])
    return lengths if same else None


def tokens_behind(index: PathLike) -> Path | None:
    """The laid-out tokens that hidden states are of, found by corpus and slots; None where they are not there."""
    about = read_json(index)
    owner = Path(os.path.abspath(index).rpartition("/features/")[0])  # models/MODEL/corpora/CORPUS or …/tasks/TASK
    for tokens in sorted(owner.parents[1].glob("corpora/**/tokens.parquet")):
        with suppress(DamagedArtefact), opened_table(tokens) as file:
            found = provenance_of(file)
            if (found.get("corpus"), found.get("slots")) == (about["corpus"], about["slots"]):
                return tokens
    return None
