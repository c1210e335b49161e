"""Digests of files. A file is read once; its digest is cached until the file changes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from papa.files import PathLike, replacing

MAXIMUM_ENTRIES = 1000
"""Maximum number of digests in the cache; the oldest are dropped first."""
MINIMUM_AGE_SECONDS = 2.0
"""Digests of younger files are not cached, because coarse timestamps may hide another change."""

Entry = list[int | str]
"""The state of some files, followed by their digest."""


def user_cache() -> Path:
    """Return papa's folder in the user's cache; papa can rebuild all its files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "papa"


def digest_of_file(*paths: PathLike) -> str:
    """Return the SHA-256 of a file, or of several files one after another.

    The cache identifies the content of a file by its inode, its size, and its times of modification and status change
    in nanoseconds. No program can set the time of the status change. So a file that `mv` or `cp -p` has replaced is
    read again, even if the new one has the same size and time of modification.
    """
    key = "\n".join(map(os.path.abspath, paths))
    state = state_of(paths)
    *known_state, known_digest = _cached().get(key, [""])
    if known_state == state:
        return str(known_digest)
    sha256 = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            # it reads blocks, because the weights of a model may not fit into memory
            hashlib.file_digest(file, lambda: sha256)
    digest = sha256.hexdigest()
    newest = max(os.stat(path).st_ctime for path in paths)
    # a file that changed while it was read has the digest of neither content
    if state_of(paths) == state and time.time() - newest > MINIMUM_AGE_SECONDS:
        _cache(key, [*state, digest])
    return digest


def state_of(paths: Iterable[PathLike]) -> Entry:
    """Return the state of some files, which changes whenever one of them is written or replaced."""
    state: Entry = []
    for file in map(os.stat, paths):
        state += file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns
    return state


def _cached() -> dict[str, Entry]:
    with suppress(OSError, ValueError, AttributeError):  # a damaged cache counts as empty
        entries = json.loads((user_cache() / "digests.json").read_bytes())
        return {key: entry for key, entry in entries.items() if isinstance(entry, list) and entry}
    return {}


def _cache(key: str, entry: Entry) -> None:
    entries = _cached()
    entries.pop(key, None)
    entries[key] = entry
    newest = dict([*entries.items()][-MAXIMUM_ENTRIES:])
    with (
        suppress(OSError, ValueError),
        replacing(user_cache() / "digests.json") as temporary,
    ):  # papa also works without a cache
        temporary.write_text(json.dumps(newest), encoding="utf-8")
