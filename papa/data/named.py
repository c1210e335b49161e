"""Models as users name them: by a folder, an installed package (or its distribution), or an id on the hub."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from difflib import get_close_matches
from importlib.metadata import distributions
from pathlib import Path

from papa.config.packages import package_of
from papa.config.settings import Config
from papa.data.hub import BUSY, refusal, status_of
from papa.errors import HOW_TO_FETCH, InputError

HUB_ID = r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?"
OWNERS = {
    "albert-": "albert",
    "bert-": "google-bert",
    "distil": "distilbert",
    "gpt2": "openai-community",
    "roberta-": "FacebookAI",
    "xlm-roberta-": "FacebookAI",
}
"""The owners of models that were once known by a bare name, by the begin of the name."""
TIMEOUT_SECONDS = 5
"""Time limit for the hub to answer."""
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
    if "/" not in model and not _cached(model):
        raise InputError(
            f"{model} is neither a folder here nor an installed package, and an id on the hub is owner/name; "
            f"{_meant(model) or 'give one of these.'}"
        )
    return {"hub": model}


def is_local(name: str) -> bool:
    """Return whether a name can only be a folder, because it cannot be an id on the hub."""
    return name.startswith((".", "/", "~")) or re.fullmatch(HUB_ID, name, re.ASCII) is None


def facts_in_package(package: str) -> Facts | None:
    """Read a model's config.json from an installed package, without running the package; None if there is none."""
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or []:
        for path in sorted(Path(folder).rglob("config.json"), key=lambda path: len(path.parts)):
            if "model_type" in (facts := facts_in(path.parent)):
                return facts
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


def facts_on_hub(model: str) -> Facts | None:
    """Read a model's config.json from the hub's cache or else from the hub; None if the hub cannot be reached.

    Raises:
        InputError: the hub has no such model.
    """
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return facts_in(os.path.dirname(hf_hub_download(model, "config.json", local_files_only=True)))
    except (OSError, ValueError):
        pass
    if _cached(model):
        return {}  # the cache has another revision
    try:
        return HfApi().model_info(model, timeout=TIMEOUT_SECONDS).config or {}
    except GatedRepoError:
        return {}
    except RepositoryNotFoundError as error:
        raise InputError(
            f"There is no folder {model} here and no model {model} on the hub, or the model is private; "
            f"{_meant(model) or 'check the id, or log in.'}"
        ) from error
    except Exception as error:  # libraries report a missing network in many ways
        status = status_of(error)
        if status is None:
            return None
        if status in BUSY:
            return {}  # loading the model repeats its requests
        raise refusal(f"The model {model}", error, model) from error


def _cached(model: str) -> bool:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE, f"models--{model.replace('/', '--')}").is_dir()


def check_on_hub(model: str) -> None:
    """Raise `InputError` at once, without retries, if the hub has no such model or cannot be reached."""
    if facts_on_hub(model) is None:
        raise InputError(
            f"{model} is neither a folder here nor an installed package nor in the hub's cache, and the hub cannot be "
            f"reached; {_meant(model) or f'give a folder, or {HOW_TO_FETCH}.'}"
        )


def check_models(config: Config) -> None:
    """Raise `InputError` if a model's `hub` is an installed package with a model."""
    for name in dict.fromkeys(model for model, _ in config.pairs):
        model = config.models[name]
        hub = None if model.path or model.package else model.hub
        if hub and "/" not in hub and (package := package_of(hub)) and facts_in_package(package):
            raise InputError(
                f"models.{name}.hub is {hub}, which is an installed package; replace `hub` by `package: {package}`."
            )


def _meant(name: str) -> str:
    """Suggest an installed package with a model and a similar name, or an id with its owner; empty if there is none."""
    for close in get_close_matches(name, {installed.name for installed in distributions() if installed.name}, 3, 0.75):
        if (package := package_of(close)) and facts_in_package(package):
            return f"did you mean the installed package {package}?"
    owner = next((owner for begin, owner in OWNERS.items() if name.startswith(begin)), None)
    return f"did you mean {owner}/{name}?" if owner and "/" not in name else ""
