"""Models and datasets of the hub: a run downloads and checks them when it starts, and its jobs read only folders."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Literal

from papa.config.settings import HUB_ID, Config, HubModel, Machine, OnHub
from papa.errors import InputError, first_line, listing

RepoType = Literal["model", "dataset"]
WEIGHT_PATTERNS = (
    r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?",
    r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?",
)
"""Name patterns of weight files; if a pattern matches any file, the patterns after it are not used."""
# an index of shards is excluded, because it belongs to the weights
CONFIGS_AND_TOKENIZERS = r"[^/]+(?<!\.index)\.(json|txt|model|spm|codes|tokenizer)"
"""Pattern of the names of config and tokenizer files."""
METADATA_OF_DATASETS = ("README.md", "dataset_infos.json", ".huggingface.yaml")
HOW_TO_FETCH = (
    "start a run where there is a network, which fills the hub's cache (HF_HOME), or put its files into "
    "FOLDER/owner/name and set `hub_mirror: FOLDER`"
)
"""Advice for a model or dataset that is not on this machine."""


def is_local(name: str) -> bool:
    """Return whether a name can only be a folder, because it cannot be an id on the hub."""
    return name.startswith((".", "/", "~")) or re.fullmatch(HUB_ID, name) is None


def folder_of(repo_type: RepoType, hub: str, revision: str | None, machine: Machine) -> Path | None:
    """Return the folder of a repository on this machine: in the mirror, of this run, or in the hub's cache."""
    if machine.hub_mirror and os.path.isdir(folder := Path(machine.hub_mirror, hub)):
        return folder
    if snapshot := machine.snapshots.get(_key(repo_type, hub, revision)):
        return Path(snapshot)
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(hub, repo_type=repo_type, revision=revision, local_files_only=True)
        )
    except (OSError, ValueError):  # it is not in the cache, or the id is none
        return None
    # `papa init` reads only config.json of a model
    return folder if repo_type == "dataset" or weights_among(os.listdir(folder)) else None


def fetch(config: Config, machine: Machine, say: Callable[[str], None]) -> Machine:
    """Download what the runs of a config read from the hub to its cache, and return the machine with the folders.

    Each revision is resolved to a commit once, so a branch that moves later does not change the run.

    Raises:
        InputError: a repository can neither be downloaded nor read from the cache.
    """
    configs: dict[tuple[RepoType, str, str | None], set[str | None]] = {
        ("model", model.hub, model.revision): set()
        for model in (config.models[name] for name, _ in config.pairs)
        if isinstance(model, HubModel)
    }
    for corpus in (config.corpora[name] for name in config.corpora_run):
        if isinstance(corpus, OnHub):
            configs.setdefault(("dataset", corpus.hub, corpus.revision), set()).add(corpus.config)
    snapshots = {
        _key(*place): str(download(*place, configs[place], say))
        for place in configs
        if not (machine.hub_mirror and os.path.isdir(Path(machine.hub_mirror, place[1])))
    }
    return replace(machine, snapshots=snapshots)


def download(
    repo_type: RepoType,
    hub: str,
    revision: str | None = None,
    configs: Iterable[str | None] = (None,),
    say: Callable[[str], None] = print,
) -> Path:
    """Download a model, or some configs of a dataset, to the hub's cache, and return the folder of its commit there.

    New files are compared with the hub's checksums. If the hub cannot be reached or refuses, the copy in the cache is
    used, and a line says so.

    Raises:
        InputError: the repository can neither be downloaded nor read from the cache, or a file is damaged.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HTTPError

    try:
        about = HfApi().model_info if repo_type == "model" else HfApi().dataset_info
        info = about(hub, revision=revision)
        files = [file.rfilename for file in info.siblings or []]
        if repo_type == "model":
            names = files_of_model(hub, files)
        else:
            card = info.card_data.get("configs") if info.card_data else None
            names = files_of_configs(files, card, configs)
        cached = folder_of(repo_type, hub, info.sha, Machine())
        # before the download, after which every file exists
        complete = cached is not None and all(os.path.exists(cached / name) for name in names)
        folder = Path(
            snapshot_download(hub, repo_type=repo_type, revision=revision, allow_patterns=names)
        )
        damaged = []
        if not complete:
            # the commit, because a branch may have moved since the download
            commit = folder.name
            verified = HfApi().verify_repo_checksums(hub, repo_type=repo_type, revision=commit)
            damaged = verified.mismatches
    except (HTTPError, OSError) as error:
        cached = folder_of(repo_type, hub, revision, Machine())
        if cached is None:
            raise refusal(repo_type, hub, revision, error) from error
        say(
            f"The {repo_type} {hub} is read from the hub's cache, at commit {cached.name} ({first_line(error)})."
        )
        return cached
    for path in (folder / file["path"] for file in damaged):
        path.resolve().unlink()  # in the cache, the path is a link
        path.unlink(missing_ok=True)
    if damaged:
        raise InputError(
            f"{damaged[0]['path']} of the {repo_type} {hub} differs from the hub's checksum; it was deleted, and "
            "complete files are kept; run the same command again."
        )
    return folder


def _key(repo_type: RepoType, hub: str, revision: str | None) -> str:
    """Return the key of a repository in `Machine.snapshots`."""
    return f"{repo_type} {hub}@{revision or 'main'}"


def weights_among(names: Sequence[str]) -> list[str]:
    """Return the names that match the first of `WEIGHT_PATTERNS` that any name matches."""
    by_pattern = (
        [name for name in names if re.fullmatch(pattern, name)] for pattern in WEIGHT_PATTERNS
    )
    return next(filter(None, by_pattern), [])


def files_of_model(hub: str, names: Sequence[str]) -> list[str]:
    """Select from `names` the files that transformers loads: none in folders, none for other libraries."""
    weights = weights_among(names)
    if not weights or "config.json" not in names:
        raise InputError(
            f"papa cannot load the model {hub}: config.json and model.safetensors or pytorch_model.bin are required, "
            f"and the repository has {listing(names) or 'no files'}."
        )
    return [*weights, *(name for name in names if re.fullmatch(CONFIGS_AND_TOKENIZERS, name))]


def files_of_configs(
    files: Sequence[str], card: object, configs: Iterable[str | None]
) -> list[str]:
    """Return the files of some configs of a dataset, for None those of the default config.

    A config has the files that the dataset's card lists, or else a folder of its name. If it has neither, all files are
    returned.
    """
    names = dict.fromkeys(name for name in METADATA_OF_DATASETS if name in files)
    for config in configs:
        patterns = _patterns(card, config) or ([f"{config}/*"] if config else ["*"])
        patterns = [pattern.removeprefix("./").replace("**/", "*") for pattern in patterns]
        chosen = [[name for name in files if fnmatch(name, pattern)] for pattern in patterns]
        # a pattern that nothing matches is one that is not understood here
        names |= dict.fromkeys(chain.from_iterable(chosen) if all(chosen) else files)
    return list(names)


def _patterns(entries: object, config: str | None) -> list[str]:
    """Return the patterns of the files of a config on the dataset's card; empty if it lists none."""
    every = entries if isinstance(entries, list) else []
    listed = [entry for entry in every if isinstance(entry, Mapping)]
    if config is None and len(listed) == 1:
        config = listed[0].get("config_name")
    by_name = {entry.get("config_name"): entry for entry in reversed(listed)}
    entry = by_name.get(config or "default", {})
    paths = _texts(entry.get("data_files"))
    if folder := entry.get("data_dir"):
        paths = [f"{folder}/{path}" for path in paths or ["*"]]
    return paths


def _texts(value: object) -> list[str]:
    """Return all paths in the `data_files` of a config: a path, a list, a mapping by split, or `{split, path}`."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = [value["path"]] if "path" in value else list(value.values())
    return [text for part in value for text in _texts(part)] if isinstance(value, list) else []


def refusal(
    repo_type: RepoType, hub: str, revision: str | None, error: BaseException
) -> InputError:
    """Return the error for a repository that cannot be downloaded, with the reason and what to do."""
    from huggingface_hub import constants, errors

    advice = "check the network and HF_ENDPOINT, and run again; complete files are kept"
    if constants.HF_HUB_OFFLINE:
        advice = "HF_HUB_OFFLINE is set; unset it"
    # before RepositoryNotFoundError, because huggingface_hub derives it from that
    elif isinstance(error, errors.GatedRepoError):
        advice = f"ask for access on the page of {hub}, and set HF_TOKEN to a token of that account"
    elif isinstance(error, errors.RevisionNotFoundError):
        advice = "correct `revision`; there is no such branch, tag or commit"
    elif isinstance(error, errors.RepositoryNotFoundError):
        advice = f"check the id; if the {repo_type} is private, set HF_TOKEN"
    at = f" at revision {revision}" if revision else ""
    reason = first_line(error).rstrip(".")
    return InputError(
        f"The {repo_type} {hub}{at} is not on this machine, and cannot be downloaded ({reason}); {advice}."
    )
