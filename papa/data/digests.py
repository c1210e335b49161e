"""Digests of files, which are read once and remembered in the user's cache until the files change."""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from papa.files import PathLike, replacing

MOST = 1000
"""Digests that are remembered; the oldest are forgotten first."""
SETTLED = 2.0
"""Seconds after its last change when a file's times tell any further change."""


def user_cache() -> Path:
    """The folder where papa keeps what it can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "papa"


def digest_of_file(*paths: PathLike) -> str:
    """SHA-256 of a file, or of several files one after another.

    A digest is remembered with each file's inode, size, and times of change to the nanosecond. Among them is the time
    that no program can set, so that a file that was replaced by `mv` or `cp -p`, or written over with as many bytes and
    its old time of modification, is read again.
    """
    key, state = "\n".join(map(os.path.abspath, paths)), _state(paths)
    known = _remembered()
    if known.get(key, [None])[:-1] == state:
        return str(known[key][-1])
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    found = digest.hexdigest()
    newest = max(os.stat(path).st_ctime for path in paths)
    if _state(paths) == state and time.time() - newest > SETTLED:
        _remember(key, [*state, found])
    return found


def _state(paths: tuple[PathLike, ...]) -> list[int | str]:
    found = map(os.stat, paths)
    return [value for its in found for value in (its.st_ino, its.st_size, its.st_mtime_ns, its.st_ctime_ns)]


def _file() -> Path:
    return user_cache() / "digests.json"


def _remembered() -> dict[str, list[int | str]]:
    """What is remembered; nothing if that is damaged, because it can be made again."""
    with suppress(OSError, ValueError):
        known = json.loads(_file().read_text(encoding="utf-8"))
        if isinstance(known, dict):
            return {key: its for key, its in known.items() if isinstance(its, list) and its}
    return {}


def _remember(key: str, its: list[int | str]) -> None:
    known = {**_remembered()}
    known.pop(key, None)
    kept = dict([*known.items(), (key, its)][-MOST:])
    with suppress(OSError, ValueError), replacing(_file()) as temporary:  # a cache that cannot be written is none
        temporary.write_text(json.dumps(kept), encoding="utf-8")
