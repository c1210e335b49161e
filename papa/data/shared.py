"""Files that others share: in a folder, or in a repository on the hub."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

from papa.data.hub import reason_of, retried
from papa.data.named import HUB_ID
from papa.errors import InputError
from papa.files import PathLike


def shared_file(place: PathLike, name: str, revision: str | None = None) -> Path:
    """Return a file in a folder, or in a repository on the hub, from which it is downloaded into the hub's cache.

    Args:
        place: the folder, or the id of the repository, owner/name; a folder has priority.
        name: name of the file.
        revision: branch, tag or commit of the repository.

    Raises:
        InputError: the folder or the repository has no such file, or cannot be read.
    """
    if os.path.isdir(place):
        if not os.path.isfile(path := Path(place, name)):
            raise InputError(f"The folder {os.fspath(place)} has no {name}; give a folder of `papa heads --save`.")
        return path
    if not is_repository(place):
        raise InputError(f"{os.fspath(place)} is neither a folder here nor an id on the hub (owner/name).")
    from huggingface_hub import hf_hub_download

    try:
        return Path(retried(partial(hf_hub_download, str(place), name, revision=revision)))
    except Exception as error:  # libraries report a missing network in many ways
        raise InputError(
            f"There is no folder {place} here, and {name} cannot be read from {place} on the hub ({reason_of(error)}); "
            "check the name, log in, or give a folder."
        ) from error


def is_repository(place: PathLike) -> bool:
    """Return whether a name that is no file here has the form of a repository on the hub, owner/name."""
    return (
        isinstance(place, str)
        and place.count("/") == 1
        and re.fullmatch(HUB_ID, place, re.ASCII) is not None
        and not os.path.exists(place)
    )
