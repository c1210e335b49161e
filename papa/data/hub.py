"""Requests to the hub: list and download the files of a repository, repeat what failed, and word refusals."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from papa.data.digests import digest_of_file
from papa.errors import HOW_TO_FETCH, InputError, first_line, without_secrets

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo, ModelInfo, RepoSibling

logger = logging.getLogger(__name__)

RepoType = Literal["model", "dataset"]
T = TypeVar("T")
ATTEMPTS = 4
"""Number of times that a request is sent if the hub answers that it is busy."""
MAXIMUM_WAIT_SECONDS = 300
"""Longest time to wait for the hub; if it asks for more, the request fails at once."""
BUSY = (408, 429, 500, 502, 503, 504)
"""Status codes of answers that may differ if the request is repeated."""
PARALLEL_DOWNLOADS = 8


@dataclass(frozen=True)
class Listing:
    """The files of a repository at a commit, by name, and the configs on the card of a dataset."""

    commit: str
    files: dict[str, RepoSibling]
    configs: object = None


def snapshot_key(repo_type: RepoType, hub: str, revision: str | None) -> str:
    """Return the key of a repository in `Machine.snapshots`."""
    return f"{repo_type} {hub}@{revision or 'main'}"


def listing(hub: str, repo_type: RepoType, revision: str | None) -> Listing:
    """Ask the hub for the commit of a revision, and for the names and digests of its files."""
    from huggingface_hub import HfApi

    info: ModelInfo | DatasetInfo
    if repo_type == "model":
        info = retried(partial(HfApi().model_info, hub, revision=revision, files_metadata=True))
    else:
        info = retried(partial(HfApi().dataset_info, hub, revision=revision, files_metadata=True))
    card = info.card_data.to_dict() if info.card_data else {}
    return Listing(str(info.sha), {file.rfilename: file for file in info.siblings or []}, card.get("configs"))


def download(
    hub: str, repo_type: RepoType, files: Listing, names: Sequence[str], folder: Path | None = None
) -> list[Path]:
    """Download files to a folder, by default to the hub's cache, and check them against the hub's digests.

    Files that are already complete are not downloaded again, so a repeated download resumes.

    Raises:
        DamagedDownload: a file differs from the hub's digest; it is deleted.
    """
    from huggingface_hub import hf_hub_download

    def one(name: str) -> Path:
        options = {"repo_type": repo_type, "revision": files.commit, "local_dir": folder}
        return Path(retried(partial(hf_hub_download, hub, name, **options)))

    with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
        paths = list(pool.map(one, names))
    for name, path in zip(names, paths, strict=True):
        _check(files.files[name], path)
    return paths


class DamagedDownload(OSError):
    """A downloaded file differs from the hub's digest."""


def _check(file: RepoSibling, path: Path) -> None:
    """Delete a file and raise `DamagedDownload` if it differs from the digest that the hub reports, if it reports one.

    The hub reports a SHA-256 for large files, and git's SHA-1 for the others.
    """
    if file.lfs is not None:
        reported, digest = file.lfs.sha256, digest_of_file(path)
    elif file.blob_id is not None:
        content = path.read_bytes()
        reported, digest = file.blob_id, hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    else:
        return
    if digest != reported:
        path.resolve().unlink()  # in the hub's cache, the path is a link
        path.unlink(missing_ok=True)
        raise DamagedDownload(f"{file.rfilename} has the digest {digest}, but the hub reports {reported}")


def retried(request: Callable[[], T]) -> T:
    """Return the result of a request; repeat it a few times if the hub answers that it is busy.

    The wait is the one that the hub asks for in the header Retry-After, or else one second, doubled every time.
    """
    for attempt in range(1, ATTEMPTS):
        try:
            return request()
        except Exception as error:  # the libraries raise many types of errors
            seconds = _wait(error, attempt)
            if seconds is None:
                raise
            logger.info("the hub is busy (%s); trying again in %.0f s", reason_of(error), seconds)
        time.sleep(seconds)
    return request()


def _wait(error: BaseException, attempt: int) -> float | None:
    """Return the number of seconds to wait before a request is repeated; None if it should not be."""
    answer = _answer(error)
    if answer is None or answer.status_code not in BUSY:
        return None
    asked = answer.headers.get("Retry-After", "").strip()
    seconds: float = 2 ** (attempt - 1)
    if asked.isdigit():
        seconds = int(asked)
    elif asked:
        with suppress(ValueError, TypeError):  # not a date
            seconds = max(0.0, (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds())
    return seconds if seconds <= MAXIMUM_WAIT_SECONDS else None


def status_of(error: BaseException) -> int | None:
    """Return the status code of the answer that caused an error; None if the hub did not answer."""
    answer = _answer(error)
    return None if answer is None else answer.status_code


def reason_of(error: BaseException) -> str:
    """Return the hub's reason for an error, with its status code, or else the first line of the error; no token."""
    from huggingface_hub import get_token

    answer = _answer(error)
    if answer is None:
        reason = first_line(error)
        known = type(error).__name__ if not isinstance(error, DamagedDownload) else ""
        reason = f"{known}: {reason}" if known and known not in reason else reason
    else:
        said = answer.headers.get("X-Error-Message") or answer.reason_phrase
        reason = f"status {answer.status_code}, {first_line(ValueError(said))}"
    token = get_token()
    return (reason.replace(token, "[token]") if token else reason).rstrip(".")


def advice_on(error: BaseException, hub: str, repo_type: RepoType = "model") -> str:
    """Return what to do about a failed request to a repository, as a clause."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled

    page = without_secrets(f"{constants.ENDPOINT}/{'datasets/' if repo_type == 'dataset' else ''}{hub}")
    answer, chain = _answer(error), list(_chain(error))
    if any(isinstance(each, DamagedDownload) for each in chain):
        return "the file was deleted, and the others are kept; run the same command again"
    if constants.HF_HUB_OFFLINE or any(isinstance(each, OfflineModeIsEnabled) for each in chain):
        return f"HF_HUB_OFFLINE is set; unset it, or {HOW_TO_FETCH}"
    if answer is None:
        return "check the network and HF_ENDPOINT, and run again; complete files are kept"
    gated = any(isinstance(each, GatedRepoError) for each in chain)
    if answer.status_code == 403:
        return f"ask for access at {page}, with the account whose token is in HF_TOKEN"
    if gated:
        return f"ask for access at {page}, and set HF_TOKEN to a token of that account"
    if answer.headers.get("X-Error-Code") == "RevisionNotFound":
        return f"correct `revision`; {page} has no such branch, tag or commit"
    if answer.status_code in (401, 404):
        return f"check the id; if the {repo_type} is private, set HF_TOKEN"
    if answer.status_code == 429:
        return "the hub limits the number of requests; wait some minutes and run again; complete files are kept"
    if answer.status_code in BUSY:
        return "this is a fault of the hub; run again later; complete files are kept"
    return "check the id, the network and HF_ENDPOINT"


def refusal(what: str, error: BaseException, hub: str, repo_type: RepoType = "model") -> InputError:
    """Return the error for a repository that cannot be downloaded, with the hub's reason and advice."""
    return InputError(
        f"{what} cannot be fetched from the hub ({reason_of(error)}); {advice_on(error, hub, repo_type)}."
    )


class Answer(Protocol):
    """An answer of the hub; its class depends on the version of huggingface_hub."""

    status_code: int
    reason_phrase: str
    headers: Mapping[str, str]


def _answer(error: BaseException) -> Answer | None:
    """Return the hub's answer that caused an error, if there is one."""
    answers = (getattr(each, "response", None) for each in _chain(error))
    return next((answer for answer in answers if hasattr(answer, "status_code")), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
