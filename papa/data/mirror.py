"""The mirror folder: local copies of models and datasets from the hub, each with all its files from one commit."""

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
from papa.data.hub import RepoType, download, listing, refusal
from papa.errors import DamagedArtefact, InputError, count

logger = logging.getLogger(__name__)

RECORD_NAME = ".papa-revision.json"
WEIGHT_PATTERNS = (
    r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?",
    r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?",
)
"""Name patterns of weight files; if a pattern matches any file, the patterns after it are not used."""
CONFIGS_AND_TOKENIZERS = r"[^/]+(?<!\.index)\.(json|txt|model|spm|codes|tokenizer)"
"""Pattern of the names of config and tokenizer files."""


@dataclass(frozen=True)
class Record:
    """The origin of a folder in the mirror, recorded in a file of the folder.

    Args:
        repository: the id on the hub.
        repo_type: "model" or "dataset".
        revision: the requested revision; None for the default branch.
        commit: the commit of this revision when it was fetched.
        configs: the configs of a dataset that were fetched; None means all.
    """

    repository: str
    repo_type: str
    revision: str | None
    commit: str
    configs: list[str] | None = None

    def write(self, folder: Path) -> None:
        (folder / RECORD_NAME).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def recorded(folder: Path) -> Record | None:
    """Read the record of a folder in the mirror; None if papa did not fetch the folder."""
    path = folder / RECORD_NAME
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise DamagedArtefact(f"{path} is damaged ({error}); delete {folder} and fetch it again.") from error


def check_recorded(folder: Path, revision: str | None, config: str | None = None) -> None:
    """Check that a folder in the mirror has the requested revision and config.

    A folder without a record passes. If no revision is requested, the folder may have any revision. A branch or a tag
    passes only if it was fetched by that name, because only the hub can resolve a name to a commit.

    Raises:
        InputError: `revision` is neither the recorded one nor its commit, or `config` was not fetched.
    """
    record = recorded(folder)
    if record is None:
        return
    fetched = record.revision or "main"
    if revision not in (None, fetched, record.commit):
        name = "" if fetched == record.commit else f" ({fetched})"
        raise InputError(
            f"{folder} contains {record.repository} at commit {record.commit}{name}, but the config has revision "
            f"{revision}; run `papa run CONFIG fetch`, which replaces it, or correct the revision."
        )
    if config and record.configs is not None and config not in record.configs:
        raise InputError(
            f"{folder} contains only {', '.join(record.configs)} of {record.repository}, not {config}; "
            "run `papa run CONFIG fetch` to add it."
        )


@dataclass(frozen=True)
class Repository:
    """A requested repository; `configs` are the requested configs of a dataset, None for all."""

    hub: str
    repo_type: RepoType
    revision: str | None
    configs: frozenset[str] | None = None


def fetch(job: Job[FetchOf]) -> str:
    """Stage *fetch*: download models and corpora from the hub to the mirror folder of this machine, as owner/name/.

    If a dataset has a folder for each config, only the requested configs are fetched. A repository is downloaded to a
    hidden folder, checked against the hub's digests, and then renamed. If that fails, complete files stay there for the
    next fetch. A repository in the mirror is left unchanged, without a request to the hub,

    - if it has no record, because papa did not fetch it;
    - if its record has the requested configs and, if a revision is requested, this revision or commit.

    A new revision replaces the old one completely and includes the configs that were fetched before.

    Returns:
        A line with the numbers of repositories fetched and unchanged.

    Raises:
        InputError: There is no mirror folder, a repository cannot be fetched (earlier ones are kept), or one id is
            requested at two revisions or both as a model and as a dataset.
    """
    mirror = job.machine.hub_mirror
    if mirror is None:
        raise InputError("fetch needs a mirror folder for models and data; add --config hub_mirror=FOLDER.")
    requested = _repositories(job.settings.models, job.settings.corpora)
    sizes = [_fetch(repository, Path(mirror)) for repository in requested]
    new = [size for size in sizes if size is not None]
    return (
        f"{count(len(new), 'repository', 'repositories')} fetched into {mirror} ({sum(new) / 1e6:.1f} MB), "
        f"{len(sizes) - len(new)} unchanged"
    )


def _repositories(models: Iterable[ModelId], corpora: Iterable[Corpus]) -> Iterable[Repository]:
    """Return each requested repository once, with all its requested configs."""
    repositories: dict[str, Repository] = {}
    requests = [Repository(str(model.hub), "model", model.revision) for model in models]
    for corpus in corpora:
        configs = frozenset([corpus.config]) if corpus.config else None
        requests.append(Repository(str(corpus.hub), "dataset", corpus.revision, configs))
    for request in requests:
        hub, known = request.hub, repositories.get(request.hub, request)
        if request.repo_type != known.repo_type:
            raise InputError(
                f"{hub} is requested as a model and as a dataset, but a mirror has one folder per id; "
                "download the model elsewhere and set its `path`."
            )
        if request.revision and known.revision and request.revision != known.revision:
            raise InputError(
                f"{hub} is requested at the revisions {known.revision} and {request.revision}, but a mirror has one "
                f"revision of each {request.repo_type}; choose one, or use two configs with separate mirrors."
            )
        configs, revision = _union(request.configs, known.configs), request.revision or known.revision
        repositories[hub] = replace(request, revision=revision, configs=configs)
    return repositories.values()


def _union(first: frozenset[str] | None, second: Iterable[str] | None) -> frozenset[str] | None:
    return None if first is None or second is None else first.union(second)


def _fetch(request: Repository, mirror: Path) -> int | None:
    """Fetch a repository unless the mirror has it; return the size in bytes, None if nothing was downloaded."""
    folder = mirror / request.hub
    record = recorded(folder)
    if record is None:
        if folder.is_dir() and any(folder.iterdir()):
            logger.info("%s is left unchanged, because papa did not fetch it", folder)
            return None
        return _download(request, folder)
    if record.repo_type != request.repo_type:
        raise InputError(
            f"{folder} contains the {record.repo_type} {request.hub}, but a {request.repo_type} with the same id is "
            "requested; set hub_mirror to another folder."
        )
    same_revision = request.revision in (None, record.revision, record.commit)
    configs = _union(request.configs, record.configs)
    if not same_revision:
        return _download(replace(request, configs=configs), folder, record)
    if configs == (None if record.configs is None else frozenset(record.configs)):
        logger.info("%s is already in the mirror, at commit %s", request.hub, record.commit)
        return None
    extended = replace(request, revision=record.revision, configs=configs)
    return _download(extended, folder, record, record.commit)


def _download(request: Repository, folder: Path, record: Record | None = None, commit: str | None = None) -> int | None:
    """Download a repository to `folder`; return its size in bytes, None if `record` shows that it is already there.

    `commit` is the commit of the revision, if it is known.
    """
    from huggingface_hub.errors import HTTPError

    hub, repo_type, configs = request.hub, request.repo_type, request.configs
    try:
        files = listing(hub, repo_type, commit or request.revision)
        if configs is not None and not configs <= {name.split("/")[0] for name in files.files if "/" in name}:
            configs = None
        new_record = Record(
            hub, repo_type, request.revision, files.commit, None if configs is None else sorted(configs)
        )
        if record is not None and (record.commit, record.configs) == (new_record.commit, new_record.configs):
            logger.info("%s is already in the mirror, at commit %s", hub, record.commit)
            new_record.write(folder)  # adds the requested revision, because jobs accept only recorded ones
            return None
        names = files_of_model(hub, [*files.files]) if repo_type == "model" else _of_configs(files.files, configs)
        partial = folder.with_name(f".{folder.name}-{files.commit}")
        download(hub, repo_type, files, names, partial)
        size = _complete(partial, names)
        new_record.write(partial)
        with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
            if folder.is_dir():
                folder.rename(Path(temporary, "old"))
            partial.rename(folder)
    except (HTTPError, OSError) as error:
        at = f" at revision {request.revision}" if request.revision else ""
        raise refusal(f"The {repo_type} {hub}{at}", error, hub, repo_type) from error
    for outdated in folder.parent.glob(f".{folder.name}-{'[0-9a-f]' * 40}"):  # of other commits
        shutil.rmtree(outdated, ignore_errors=True)
    logger.info("%s fetched at commit %s (%.1f MB)", hub, files.commit, size / 1e6)
    return size


def _complete(folder: Path, names: Iterable[str]) -> int:
    """Delete all files of a finished download except `names`, and return their size in bytes."""
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # metadata of the download
    paths = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    for path in paths.keys() - {folder / name for name in names}:  # of an interrupted fetch of other configs
        path.unlink()
        del paths[path]
    return sum(paths.values())


def files_of_model(hub: str, names: Sequence[str]) -> list[str]:
    """Select from `names` the files that transformers loads: none in folders, none for other libraries."""
    by_pattern = ([name for name in names if re.fullmatch(pattern, name)] for pattern in WEIGHT_PATTERNS)
    weights = next(filter(None, by_pattern), [])
    if not weights or "config.json" not in names:
        raise InputError(
            f"papa cannot load the model {hub}: config.json and model.safetensors or pytorch_model.bin are required, "
            f"and the repository has {', '.join(names) or 'no files'}."
        )
    return [*weights, *(name for name in names if re.fullmatch(CONFIGS_AND_TOKENIZERS, name))]


def _of_configs(names: Iterable[str], configs: Iterable[str] | None) -> list[str]:
    """Select the README and the files of `configs`, each in its folder; all files if `configs` is None."""
    folders = None if configs is None else tuple(f"{config}/" for config in configs)
    return [name for name in names if folders is None or name == "README.md" or name.startswith(folders)]
