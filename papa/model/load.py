"""Pretrained models from folders, the hub or the config of a study."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from papa.config.job import Job
from papa.config.settings import Machine
from papa.config.stages import Encoding
from papa.data.weights import NO_CODE, WEIGHTS, place_of, revision_of, sources_of, weights_digest
from papa.errors import InputError, first_line
from papa.files import Trace
from papa.model.check import refused
from papa.model.model import Model

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

log = logging.getLogger(__name__)
Dtype = Literal["float32", "float16", "bfloat16"]
_kept: ContextVar[dict[tuple[object, ...], Model] | None] = ContextVar("papa_kept", default=None)


def load_model(
    path_or_id: str | os.PathLike[str], revision: str | None = None, device: str = "auto", dtype: Dtype = "float32"
) -> Model:
    """Load a pretrained transformer whose heads can be replaced, and check it on a tiny batch.

    Args:
        path_or_id: a local folder, or an id on the hub.
        revision: a branch, tag or commit of the hub.
        device: "auto" uses a GPU if there is one; or "cpu", "cuda", "cuda:1", "mps".
        dtype: type of the weights.

    Raises:
        InputError: the model cannot be loaded, its attention is not supported, it does not pass the check, or the
            device is missing.
    """
    stock = stock_model(path_or_id, revision, device, dtype)
    with refused(os.fspath(path_or_id)):
        return Model(stock)


def stock_model(
    path_or_id: str | os.PathLike[str], revision: str | None = None, device: str = "auto", dtype: Dtype = "float32"
) -> PreTrainedModel:
    """Return the model as transformers loads it, with its head if it is a language model; see `load_model`."""
    if not isinstance(path_or_id, str | os.PathLike):
        raise InputError(
            f"load_model takes a folder or a hub id, and a {type(path_or_id).__name__} was given; "
            "papa.Model(model) takes a loaded model."
        )
    name = os.fspath(path_or_id)
    if dtype not in get_args(Dtype):
        raise InputError(f"dtype {dtype!r} is not known; it is one of {', '.join(get_args(Dtype))}.")
    return _loaded(name, revision, _usable(device), getattr(torch, dtype))


def model_of(encoding: Encoding, machine: Machine) -> Model:
    """Return the model that a config names, on this machine's device.

    Its weights are float32; it computes in the encoding's precision, by autocast.

    Raises:
        InputError: as for `load_model`, or the weights differ from those that the encoding records.
    """
    identity = encoding.model
    digest = weights_digest(identity, machine)
    if identity.weights is not None and identity.weights != digest:
        raise InputError(
            f"The weights of model {identity.name} in {place_of(identity, machine)} have SHA-256 {digest}, "
            f"but those at the start of the workflow had {identity.weights}; restore those, or start the workflow "
            "again, which rebuilds all results of this model with the new weights."
        )
    device, kept = machine.device, _kept.get()
    key = (digest, place_of(identity, machine), revision_of(identity, machine), device)
    model = None if kept is None else kept.get(key)
    if model is None:
        model = load_model(place_of(identity, machine), revision_of(identity, machine), device)
        if kept is not None:
            kept[key] = model
    model.precision, model.weights = getattr(torch, encoding.precision), digest
    model.token_budget = machine.token_budget
    return model


def trace_with(job: Job[Any], model: Model) -> Trace:
    """Return the trace of a job that reads a model; its settings have the encoding as `model`."""
    return job.trace(**sources_of(job.settings.model.model, str(model.weights), job.machine))


@contextmanager
def keeping_models() -> Iterator[None]:
    """Let `model_of` return the same object for the same weights, in a process that runs many jobs."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def saved(model: object, folder: Path) -> str:
    """Save a loaded model, and the tokenizer from its origin, to a folder; return the path of the folder.

    Raises:
        InputError: it is no model of transformers, or its tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer, PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise InputError(
            "A model is an id on the hub, a folder or a model of transformers; a "
            f"{'papa.Model' if isinstance(model, Model) else type(model).__name__} was given."
        )
    origin = str(model.name_or_path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(origin, trust_remote_code=False)
    except Exception as error:  # places fail in many ways
        raise InputError(
            f"The tokenizer of this {type(model).__name__} could not be loaded from {origin!r}; save model and "
            "tokenizer to one folder, and give the folder."
        ) from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _loaded(name: str, revision: str | None, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model as transformers loads it, with all weights from its files, and dropout off."""
    from transformers import AutoConfig
    from transformers.utils import logging as loading

    verbosity, collecting = loading.get_verbosity(), gc.isenabled()
    gc.disable()  # importing a model's code makes many objects, which take a second to scan, and no garbage
    loading.set_verbosity_error()
    loading.disable_progress_bar()
    try:
        options = {"revision": revision, "trust_remote_code": False}
        config = AutoConfig.from_pretrained(name, **options)
        # eager, because the config may name a kernel, which is code from the hub; the argument is needed, because
        # AutoModel prefers config.json to our config
        model, report = class_of(config, name).from_pretrained(
            name, config=config, attn_implementation="eager", dtype=dtype, output_loading_info=True, **options
        )
    except InputError:
        raise
    except Exception as error:  # damaged files raise many errors
        raise InputError(
            f"The model {name} could not be loaded ({first_line(error)}); give a hub id that can be reached, "
            f"or a local folder with config.json and model.safetensors. {NO_CODE}"
        ) from error
    finally:
        loading.set_verbosity(verbosity)
        if collecting:
            gc.enable()
    missing = sorted(key for key in report["missing_keys"] if "pooler." not in key)
    if missing:
        tensors = "1 tensor" if len(missing) == 1 else f"{len(missing)} tensors"
        raise InputError(
            f"The weights of {name} lack {tensors} of the model, {missing[0]} first, which would be random; "
            "give a checkpoint of the whole model."
        )
    if _pickled(name, revision):
        log.warning(
            "%s has no safetensors; its pickled weights were loaded weights-only, so that nothing in them is run", name
        )
    stock: PreTrainedModel = model.to(device, dtype).eval()  # without this, two biases of DeBERTa stay float32
    return stock


LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "GenerationDecoder", "ForMaskedLM", "ForConditionalGeneration")
"""Endings of the names of classes that have the head of a language model."""


def class_of(config: PreTrainedConfig, name: str) -> Any:
    """Return the class that loads a checkpoint: with the head of a language model, or only the encoder of two stacks.

    Raises:
        InputError: transformers has no class for the encoder of a model with two stacks.
    """
    import transformers
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForTextEncoding
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

    if config.is_encoder_decoder:
        if config.model_type not in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
            encoder = f"transformers.AutoModel.from_pretrained({name!r}).get_encoder()"
            raise InputError(
                f"The model {name} is an encoder with a decoder ({config.model_type}), and papa takes one of the two; "
                f"in Python, give papa.Model the encoder, {encoder}, or load another model."
            )
        config.is_encoder_decoder = False  # only the encoder is left, and T5Gemma needs to know
        return AutoModelForTextEncoding
    named = (config.architectures or [""])[0]
    named_class = getattr(transformers, named, None)
    of_config = getattr(named_class, "config_class", None) is type(config)
    if of_config and named.endswith((*LANGUAGE_MODELS, "EncoderModel")):
        return named_class
    if named.endswith(("ForCausalLM", "LMHeadModel")):
        return AutoModelForCausalLM
    return AutoModelForMaskedLM if named.endswith("ForMaskedLM") else AutoModel


def _usable(device: str) -> str:
    """Return the device that `device` means on this machine; raise `InputError` if it is missing."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda" if gpus else "cpu"
    try:
        parsed = torch.device(device)
        if parsed.type not in ("cuda", "mps"):
            torch.zeros(1, device=parsed).item()
    except Exception as error:  # torch has another error for each kind of device
        raise InputError(
            f"device is {device!r}, which torch {torch.__version__} cannot compute on here; give auto, cpu, cuda, "
            "a GPU by its number (cuda:1) or mps."
        ) from error
    available = {"cuda": (parsed.index or 0) < gpus, "mps": torch.backends.mps.is_available()}
    if not available.get(parsed.type, True):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise InputError(
            f"device is {device}, but torch {torch.__version__} finds {gpus} CUDA GPUs here"
            f"{'' if visible is None else f' (CUDA_VISIBLE_DEVICES is {visible!r})'}; "
            "give auto, cpu or a GPU that is there, or install a torch built for this machine."
        )
    return device


def _pickled(path_or_id: str, revision: str | None) -> bool:
    """Return whether a loaded model came from pickled files; transformers prefers safetensors."""
    safe = [name for name in WEIGHTS if name.startswith("model.safetensors")]
    if Path(path_or_id).is_dir():
        return not any(Path(path_or_id, name).is_file() for name in safe)
    from huggingface_hub import try_to_load_from_cache

    return not any(isinstance(try_to_load_from_cache(path_or_id, name, revision=revision), str) for name in safe)
