"""The models and datasets of a run in the hub's cache, each at one commit, so jobs send no requests to the hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from papa.config.job import AnyJob
from papa.config.settings import Machine
from papa.config.stages import ModelId, OfCorpus
from papa.data.hub import (
    BUSY,
    DamagedDownload,
    Listing,
    RepoType,
    download,
    listing,
    reason_of,
    refusal,
    snapshot_key,
    status_of,
)
from papa.data.mirror import files_of_model
from papa.data.named import is_local

COMMIT = "[0-9a-f]{40}"
METADATA_OF_DATASETS = ("README.md", "dataset_infos.json", ".huggingface.yaml")
REFUSED = (401, 403, 404)
"""Status codes of answers that another request would not change; a copy in the cache may still be used."""


def with_snapshots(machine: Machine, jobs: Iterable[AnyJob], say: Callable[[str], None]) -> Machine:
    """Download what jobs read from the hub to its cache, and return the machine with the folders.

    Each revision is resolved to a commit once, so a branch that moves later does not change the run. If the hub cannot
    be reached or refuses a repository, the copy in the cache is used, and a line says so. With a mirror, nothing is
    downloaded.

    Args:
        machine: the machine that runs the jobs.
        jobs: the jobs that have to run.
        say: prints a line.

    Raises:
        InputError: a repository can neither be downloaded nor read from the cache.
    """
    if machine.hub_mirror:
        return machine
    configs: dict[tuple[RepoType, str, str | None], set[str | None]] = {}
    for job in jobs:
        model, corpus = _model_of(job), job.settings.corpus if isinstance(job.settings, OfCorpus) else None
        if model is not None and model.hub and not is_local(model.hub) and model.name not in machine.models:
            configs.setdefault(("model", model.hub, model.revision), set())
        if corpus is not None and corpus.hub:
            configs.setdefault(("dataset", corpus.hub, corpus.revision), set()).add(corpus.config)
    folders = {snapshot_key(*place): _snapshot(*place, configs[place], say) for place in configs}
    return replace(machine, snapshots={key: str(folder) for key, folder in folders.items()})


def _model_of(job: AnyJob) -> ModelId | None:
    model = getattr(job.settings, "model", None)
    model = getattr(model, "model", model)  # an encoding contains a model
    return model if isinstance(model, ModelId) else None


def _snapshot(
    repo_type: RepoType, hub: str, revision: str | None, configs: Iterable[str | None], say: Callable[[str], None]
) -> Path:
    """Download a repository to the hub's cache, and return its folder there."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HTTPError

    try:
        files = listing(hub, repo_type, revision)
        names = files_of_model(hub, [*files.files]) if repo_type == "model" else files_of_configs(files, configs)
        paths = download(hub, repo_type, files, names)
        if revision is None or re.fullmatch(COMMIT, revision) is None:
            # a request by the branch's name lets the cache note the commit, which offline runs and `papa plan` need
            hf_hub_download(hub, names[0], repo_type=repo_type, revision=revision)
        return paths[0].parents[names[0].count("/")]
    except (HTTPError, OSError) as error:
        cached = None if isinstance(error, DamagedDownload) else _cached(hub, repo_type, revision)
        if cached is None or status_of(error) not in (None, *REFUSED, *BUSY):
            at = f" at revision {revision}" if revision else ""
            raise refusal(f"The {repo_type} {hub}{at}", error, hub, repo_type) from error
        say(f"The {repo_type} {hub} is read from the hub's cache, at commit {cached.name} ({reason_of(error)}).")
        return cached


def _cached(hub: str, repo_type: RepoType, revision: str | None) -> Path | None:
    """Return the folder of a revision in the hub's cache; None if it is not there, or is a model without weights."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub, repo_type=repo_type, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, FileNotFoundError):
        return None
    weights = [*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*.bin")]
    return folder if weights or repo_type == "dataset" else None


def files_of_configs(files: Listing, configs: Iterable[str | None]) -> list[str]:
    """Return the files of some configs of a dataset, for None those of the default config.

    A config has the files that the dataset's card lists, or else a folder of its name. If it has neither, all files are
    returned.
    """
    names: dict[str, None] = dict.fromkeys(name for name in METADATA_OF_DATASETS if name in files.files)
    for config in configs:
        patterns = _patterns(files.configs, config) or ([f"{config}/*"] if config else ["*"])
        chosen = [name for name in files.files if any(fnmatch(name, pattern) for pattern in patterns)]
        names |= dict.fromkeys(chosen or files.files)
    return list(names)


def _patterns(entries: object, config: str | None) -> list[str]:
    """Return the patterns of the files of a config on the dataset's card; empty if it lists none."""
    listed = [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
    if config is None and len(listed) == 1:
        config = listed[0].get("config_name")
    entry = next((entry for entry in listed if entry.get("config_name") == (config or "default")), {})
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
