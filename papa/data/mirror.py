"""The mirror folder: models and data brought from the hub, each repository complete at one commit, or not at all."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from papa.config.job import Job
from papa.config.settings import Corpus
from papa.config.stages import FetchOf, ModelId
from papa.errors import DamagedArtefact, InputError, count, first_line

logger = logging.getLogger(__name__)

RECORD = ".papa-revision.json"
COMMIT = "[0-9a-f]{40}"
WEIGHTS = r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?", r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?"
"""Names of files of weights; if a model has the first, the second are left where they are."""
BESIDE_WEIGHTS = r"[^/]+(?<!\.index)\.(json|txt|model)"
"""Names of configs, vocabularies and other files of tokenizers."""


@dataclass(frozen=True)
class Record:
    """What was fetched into a folder of the mirror; lies beside the files.

    `repo_type` is "model" or "dataset". `revision` is what was asked for (None for the default branch) and `commit`
    what it stood for. `configs` are those of a dataset that are here, None if all are.
    """

    repository: str
    repo_type: str
    revision: str | None
    commit: str
    configs: list[str] | None = None

    def write(self, folder: Path) -> None:
        (folder / RECORD).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def recorded(folder: Path) -> Record | None:
    """The record of a folder of the mirror; None if it has none, because it was laid out by other hands."""
    try:
        return Record(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise DamagedArtefact(f"{folder / RECORD} is damaged ({error}); delete {folder} and fetch it again.") from error


def check_recorded(folder: Path, revision: str | None, config: str | None = None) -> None:
    """Check that a folder of the mirror is what a config asks for.

    What a branch or tag stands for only the hub can tell, and folders without a record are taken as they are.

    Raises:
        InputError: `revision` is a commit and the folder is recorded as another, or it is recorded without `config`.
    """
    record = recorded(folder)
    if record is None:
        return
    if revision and re.fullmatch(COMMIT, revision) and record.commit != revision:
        raise InputError(
            f"{folder} contains {record.repository} at commit {record.commit}, but the config has revision {revision}; "
            "run `papa run CONFIG fetch`, which replaces it, or correct the revision."
        )
    if config and record.configs is not None and config not in record.configs:
        raise InputError(
            f"{folder} contains of {record.repository} only {', '.join(record.configs)}, not {config}; "
            "run `papa run CONFIG fetch`, which adds it."
        )


@dataclass(frozen=True)
class Repository:
    """What is wanted of one hub id; `configs` None stands for all of them."""

    hub: str
    repo_type: str
    revision: str | None
    configs: frozenset[str] | None = None


def fetch(job: Job[FetchOf]) -> str:
    """Stage *fetch*: bring models and corpora from the hub into the mirror folder of this machine, as owner/name/.

    If a dataset has a folder for each config, only the configs asked for are taken. A repository is downloaded beside
    its place and renamed into it with a `Record` of its commit. What the mirror has stays as it is, and the hub is not
    asked,

    - if nothing was recorded, because that was laid out by other hands;
    - if what is recorded is the revision asked for, the commit asked for, or anything if no revision is.

    Any other revision replaces what was fetched before, completely and with the configs that were there.

    Returns:
        What was done, in a line.

    Raises:
        InputError: There is no mirror folder, a repository cannot be fetched (those before it are in place then), two
            revisions of one are asked for, or a model and a dataset of the same id.
    """
    mirror = job.machine.hub_mirror
    if mirror is None:
        raise InputError("fetch brings models and data into hub_mirror; add --config hub_mirror=FOLDER.")
    wanted = _repositories(job.settings.models, job.settings.corpora)
    sizes = [_fetched(repository, Path(mirror)) for repository in wanted]
    new = [size for size in sizes if size is not None]
    return (
        f"{count(len(new), 'repository', 'repositories')} fetched into {mirror} ({sum(new) / 1e6:.1f} MB), "
        f"{len(sizes) - len(new)} left as {'it is' if len(sizes) - len(new) == 1 else 'they are'}"
    )


def _repositories(models: Iterable[ModelId], corpora: Iterable[Corpus]) -> Iterable[Repository]:
    """What is wanted, each id once."""
    found: dict[str, Repository] = {}
    given = [Repository(str(model.hub), "model", model.revision) for model in models]
    for corpus in corpora:
        configs = frozenset([corpus.config]) if corpus.config else None
        given.append(Repository(str(corpus.hub), "dataset", corpus.revision, configs))
    for one in given:
        other = found.setdefault(one.hub, one)
        if one.repo_type != other.repo_type:
            raise InputError(
                f"{one.hub} is asked for as a model and as a dataset, but a mirror has one folder for an id; "
                "download the model elsewhere and give it a path."
            )
        if one.revision and other.revision and one.revision != other.revision:
            raise InputError(
                f"{one.hub} is asked for at the revisions {other.revision} and {one.revision}, but a mirror has one "
                f"of each {one.repo_type}; take one revision, or fetch into two mirrors with a config each."
            )
        configs = _both(one.configs, other.configs)
        found[one.hub] = Repository(one.hub, one.repo_type, one.revision or other.revision, configs)
    return found.values()


def _both(some: frozenset[str] | None, others: Iterable[str] | None) -> frozenset[str] | None:
    return None if some is None or others is None else some.union(others)


def _fetched(wanted: Repository, mirror: Path) -> int | None:
    """Bytes that were downloaded; None if there was nothing to do."""
    place = mirror / wanted.hub
    there = recorded(place)
    if there is None:
        if place.is_dir() and any(place.iterdir()):
            logger.info("%s is left as it is, because it was not fetched but laid out by other hands", place)
            return None
        return _download(wanted, place)
    if there.repo_type != wanted.repo_type:
        raise InputError(
            f"{place} contains the {there.repo_type} {wanted.hub}, but a {wanted.repo_type} of the same id is asked "
            "for; give another folder as hub_mirror."
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
    """Download `wanted` beside its `place` and rename it into it; returns bytes, None if `there` is the same.

    `commit` says what the revision stands for if that is known.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HTTPError

    hub, repo_type = wanted.hub, wanted.repo_type
    try:
        look_up = HfApi().model_info if repo_type == "model" else HfApi().dataset_info
        info = look_up(hub, revision=commit or wanted.revision)
        names = [file.rfilename for file in info.siblings or []]
        configs = wanted.configs
        if configs is not None and not configs <= {name.split("/")[0] for name in names if "/" in name}:
            configs = None
        record = Record(hub, repo_type, wanted.revision, str(info.sha), None if configs is None else sorted(configs))
        if there is not None and (there.commit, there.configs) == (record.commit, record.configs):
            logger.info("%s is there already, at commit %s", hub, there.commit)
            return None
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as beside:
            new = Path(beside, "new")
            patterns = _files_of_model(hub, names) if repo_type == "model" else _files_of_dataset(configs)
            snapshot_download(hub, repo_type=repo_type, revision=record.commit, local_dir=new, allow_patterns=patterns)
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
            f"The {repo_type} {hub}{at} cannot be fetched from the hub ({why}); "
            "check the network, the id and the revision, and HF_TOKEN if the hub wants to know who asks."
        ) from error
    logger.info("%s fetched at commit %s (%.1f MB)", hub, record.commit, size / 1e6)
    return size


def _files_of_model(hub: str, names: Sequence[str]) -> list[str]:
    """The files that a model is loaded from, out of `names`: none in folders, and none for other libraries."""
    forms_of_weights = ([name for name in names if re.fullmatch(pattern, name)] for pattern in WEIGHTS)
    weights = next(filter(None, forms_of_weights), [])
    if not weights or "config.json" not in names:
        raise InputError(
            f"{hub} is no model that papa can load: it needs config.json and model.safetensors or pytorch_model.bin, "
            f"and has {', '.join(names) or 'no files'}."
        )
    return [*weights, *(name for name in names if re.fullmatch(BESIDE_WEIGHTS, name))]


def _files_of_dataset(configs: Iterable[str] | None) -> list[str] | None:
    """Patterns of the files of `configs`, each in its folder; None for all files."""
    return None if configs is None else ["README.md", *(f"{config}/*" for config in configs)]
