"""Models as users name them: by a folder, an installed package (or its distribution), or an id on the hub."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from papa.config.settings import Machine
from papa.data.hub import folder_of, is_local, refusal
from papa.errors import InputError

Facts = dict[str, object]
"""The content of a model's config.json."""


def named(model: str) -> dict[str, str]:
    """Return the key and the value that identify a model in a config; the key is `path`, `package` or `hub`.

    Args:
        model: a name from a user. A folder has priority over a package, and a package over an id on the hub.

    Raises:
        InputError: the name is none of these.
    """
    if os.path.isdir(model):
        return {"path": model}
    if package := package_of(model):
        return {"package": package}
    if is_local(model):
        raise InputError(
            f"{model!r} is neither a folder here, nor an id on the hub (owner/name), nor an installed package; "
            "give one of these."
        )
    return {"hub": model}


def package_of(name: str) -> str | None:
    """Return the installed package of this name, or the package with a model in the distribution of this name."""
    with suppress(ValueError):  # a module without a spec
        if re.fullmatch("[a-z][a-z0-9_]*", name) and importlib.util.find_spec(name):
            return name
    try:
        files = distribution(name).files or []
    except (PackageNotFoundError, ValueError):
        return None
    folders = {file.parts[0] for file in files if file.name == "config.json" and len(file.parts) > 1}
    return next(iter(folders)) if len(folders) == 1 else None


def folder_in_package(package: str) -> Path | None:
    """Return the folder of a model in an installed package, without running the package; None if there is none."""
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or []:
        for path in sorted(Path(folder).rglob("config.json"), key=lambda path: len(path.parts)):
            if "model_type" in facts_in(path.parent):
                return path.parent
    return None


def facts_in(folder: str | os.PathLike[str]) -> Facts:
    """Read the config.json in a folder; raise `InputError` if it cannot be read."""
    try:
        facts = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder} has no readable config.json, so it is not a model; give a folder that save_pretrained wrote."
        ) from error
    return facts if isinstance(facts, dict) else {}


def facts_on_hub(model: str) -> Facts:
    """Read a model's config.json from the hub's cache or else from the hub; empty if that fails.

    Raises:
        InputError: the hub has no such model.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HTTPError, RepositoryNotFoundError

    folder = folder_of("model", model, None, Machine())
    try:
        return facts_in(folder or os.path.dirname(hf_hub_download(model, "config.json")))
    except (HTTPError, OSError) as error:
        if type(error) is RepositoryNotFoundError:  # a gated one exists
            raise refusal("model", model, None, error) from error
        return {}
