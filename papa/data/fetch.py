"""Bring models and data from the hub into a mirror folder, each repository whole at one commit, or not at all."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from papa.data.mirror import Record, recorded
from papa.errors import InputError, first_line

logger = logging.getLogger(__name__)

WEIGHTS = r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?", r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?"
"""Names of files of weights; of a model that has the first the second are left where they are."""
BESIDE_WEIGHTS = r"[^/]+(?<!\.index)\.(json|txt|model)"
"""Names of configs, vocabularies and other files of tokenizers."""


@dataclass(frozen=True)
class Repository:
    """What is wanted of one hub id; `configs` None stands for all of them."""

    hub: str
    kind: str
    revision: str | None
    configs: frozenset[str] | None = None


def fetch(models: Sequence[Mapping[str, Any]], corpora: Sequence[Mapping[str, Any]], mirror: str | Path) -> str:
    """Fetch what `models` and `corpora` take from the hub into `mirror/owner/name/`; returns what was done as a line.

    Each has `hub` and may have `revision`; a corpus may have `config`, and where the dataset has a folder for each
    config only those asked for are taken. A repository is downloaded beside its place and renamed into it with a record
    of its commit (`papa.data.mirror.Record`). What the mirror has stays as it is, and the hub is not asked,

    - where nothing was recorded, for that was laid out by other hands;
    - where what is recorded is the revision asked for, the commit asked for, or anything if no revision is.

    Any other revision replaces what was fetched before, whole and with the configs that were there.

    Raises `InputError` where a repository cannot be fetched (those before it are in place then), where two revisions of
    one are asked for, or a model and a dataset of the same id.
    """
    sizes = [_fetched(repository, Path(mirror)) for repository in _repositories(models, corpora)]
    new = [size for size in sizes if size is not None]
    megabytes = sum(new) / 1e6
    return (
        f"{len(new)} repositories fetched into {mirror} ({megabytes:.1f} MB), {len(sizes) - len(new)} left as they are"
    )


def _repositories(models: Iterable[Mapping[str, Any]], corpora: Iterable[Mapping[str, Any]]) -> Iterable[Repository]:
    """What is wanted, each id once."""
    found: dict[str, Repository] = {}
    given = [Repository(model["hub"], "model", model.get("revision")) for model in models]
    for corpus in corpora:
        configs = frozenset([corpus["config"]]) if corpus.get("config") else None
        given.append(Repository(corpus["hub"], "dataset", corpus.get("revision"), configs))
    for one in given:
        other = found.setdefault(one.hub, one)
        if one.kind != other.kind:
            raise InputError(
                f"{one.hub} is asked for as a model and as a dataset, but a mirror holds one folder for an id; "
                "download the model elsewhere and give it a path."
            )
        if one.revision and other.revision and one.revision != other.revision:
            raise InputError(
                f"{one.hub} is asked for at the revisions {other.revision} and {one.revision}, but a mirror holds one "
                f"of each {one.kind}; take one revision, or fetch into two mirrors with a config each."
            )
        configs = _both(one.configs, other.configs)
        found[one.hub] = Repository(one.hub, one.kind, one.revision or other.revision, configs)
    return found.values()


def _both(some: frozenset[str] | None, others: Iterable[str] | None) -> frozenset[str] | None:
    return None if some is None or others is None else some.union(others)


def _fetched(wanted: Repository, mirror: Path) -> int | None:
    """Bytes that were downloaded; None where there was nothing to do."""
    place = mirror / wanted.hub
    there = recorded(place)
    if there is None:
        if place.is_dir() and any(place.iterdir()):
            logger.info("%s is left as it is, for it was not fetched but laid out by other hands", place)
            return None
        return _download(wanted, place)
    if there.kind != wanted.kind:
        raise InputError(
            f"{place} holds the {there.kind} {wanted.hub}, but a {wanted.kind} of the same id is asked for; "
            "give another folder as hub_mirror."
        )
    known = wanted.revision in (None, there.revision, there.commit)
    configs = _both(wanted.configs, there.configs)
    if known and configs == (None if there.configs is None else frozenset(there.configs)):
        logger.info("%s is there already, at commit %s", wanted.hub, there.commit)
        return None
    if known:  # more configs of what is there
        return _download(replace(wanted, revision=there.revision, configs=configs), place, there, there.commit)
    return _download(replace(wanted, configs=configs), place, there)


def _download(wanted: Repository, place: Path, there: Record | None = None, commit: str | None = None) -> int | None:
    """Download `wanted` beside its `place` and rename it into it; returns bytes, None where `there` is the same.

    `commit` says what the revision stands for where that is known.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HTTPError

    hub, kind = wanted.hub, wanted.kind
    try:
        look_up = HfApi().model_info if kind == "model" else HfApi().dataset_info
        info = look_up(hub, revision=commit or wanted.revision)
        names = [file.rfilename for file in info.siblings or []]
        configs = wanted.configs
        if configs is not None and not configs <= {name.split("/")[0] for name in names if "/" in name}:
            configs = None
        record = Record(hub, kind, wanted.revision, str(info.sha), None if configs is None else sorted(configs))
        if there is not None and (there.commit, there.configs) == (record.commit, record.configs):
            logger.info("%s is there already, at commit %s", hub, there.commit)
            return None
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as beside:
            new = Path(beside, "new")
            patterns = _files_of_model(hub, names) if kind == "model" else _files_of_dataset(configs)
            snapshot_download(hub, repo_type=kind, revision=record.commit, local_dir=new, allow_patterns=patterns)
            shutil.rmtree(new / ".cache", ignore_errors=True)  # what the download remembers of itself
            size = sum(file.stat().st_size for file in new.rglob("*") if file.is_file())
            record.write(new)
            if place.is_dir():
                place.rename(Path(beside, "old"))
            new.rename(place)
    except (HTTPError, OSError) as error:
        at = f" at revision {wanted.revision}" if wanted.revision else ""
        why = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
        raise InputError(
            f"The {kind} {hub}{at} cannot be fetched from the hub ({why}); "
            "check the network, the id and the revision, and HF_TOKEN where the hub wants to know who asks."
        ) from error
    logger.info("%s fetched at commit %s (%.1f MB)", hub, record.commit, size / 1e6)
    return size


def _files_of_model(hub: str, names: Sequence[str]) -> list[str]:
    """The files that a model is loaded from, out of `names`: none in folders, and none for other libraries."""
    kinds_of_weights = ([name for name in names if re.fullmatch(pattern, name)] for pattern in WEIGHTS)
    weights = next(filter(None, kinds_of_weights), [])
    if not weights or "config.json" not in names:
        raise InputError(
            f"{hub} is no model that papa can load: it needs config.json and model.safetensors or pytorch_model.bin, "
            f"and has {', '.join(names) or 'no files'}."
        )
    return [*weights, *(name for name in names if re.fullmatch(BESIDE_WEIGHTS, name))]


def _files_of_dataset(configs: Iterable[str] | None) -> list[str] | None:
    """Patterns of the files of `configs`, each in its folder; None for all files."""
    return None if configs is None else ["README.md", *(f"{config}/*" for config in configs)]
