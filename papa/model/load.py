"""Load a pretrained model, and check it before anything is computed with it.

A model whose attention were not replaced, or whose positions were not those of its own code, would give plausible
numbers that are wrong. One tiny batch through the stock model and through the patched one finds that out.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from papa.config.settings import Machine
from papa.config.stages import Encoding
from papa.data.weights import OWN_CODE, WEIGHTS, place_of, revision_of, weights_digest
from papa.errors import InputError, first_line
from papa.model.families import family_of, slots_limit
from papa.model.model import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
Dtype = Literal["float32", "float16", "bfloat16"]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far hidden states may be from the stock model's, relative to their norm: a few roundings per layer."""


def load_model(
    path_or_id: str | os.PathLike[str], revision: str | None = None, device: str = "auto", dtype: Dtype = "float32"
) -> Model:
    """Load a pretrained encoder whose heads can be replaced, and check it on one tiny batch.

    Args:
        path_or_id: a local folder, or an id on the hub.
        revision: a branch, tag or commit of the hub.
        device: "auto" takes a GPU if there is one; else "cpu", "cuda", "cuda:1", "mps".
        dtype: type of the weights.

    Raises:
        InputError: the model cannot be had, its attention is not supported, it does not pass the check, or the
            device is not there.
    """
    if not isinstance(path_or_id, str | os.PathLike):
        raise InputError(
            f"load_model takes a folder or a hub id, and a {type(path_or_id).__name__} was given; "
            "papa.Model(model) takes a model that is loaded."
        )
    name = os.fspath(path_or_id)
    if dtype not in get_args(Dtype):
        raise InputError(f"dtype {dtype!r} is not known; it is one of {', '.join(get_args(Dtype))}.")
    stock = _loaded(name, revision, _found(device), getattr(torch, dtype))
    expected = stock_states(stock)
    model = Model(stock)
    check(model, expected, name)
    return model


def model_of(encoding: Encoding) -> Model:
    """The model that a config names, from its place on this machine and on this machine's device.

    Its weights are float32; it computes in the encoding's precision, by autocast.

    Raises:
        InputError: as `load_model`, and if the weights found are others than the encoding says.
    """
    identity = encoding.model
    digest = weights_digest(identity)
    if identity.weights is not None and identity.weights != digest:
        raise InputError(
            f"The weights of model {identity.name} in {place_of(identity)} have SHA-256 {digest}, but those that the "
            f"workflow began with have {identity.weights}; put those back, or start the workflow again, which makes "
            "all results of this model with the weights that are there now."
        )
    model = load_model(place_of(identity), revision_of(identity), Machine.current().device)
    model.precision, model.weights = getattr(torch, encoding.precision), digest
    return model


def _loaded(name: str, revision: str | None, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """The model as transformers loads it, with all weights from its files, and dropout off."""
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging as loading

    verbosity = loading.get_verbosity()
    loading.set_verbosity_error()
    loading.disable_progress_bar()
    try:
        own = {"revision": revision, "trust_remote_code": False}
        config = AutoConfig.from_pretrained(name, **own)
        # before weights are looked for, which would be said to be missing if only a part of the model is an encoder
        family_of(config, (config.architectures or [type(config).__name__])[0])
        # eager whatever the config says, which may name a kernel: code from the hub; and said to the model, for what
        # AutoModel makes of config.json would go before it
        model, report = AutoModel.from_pretrained(
            name, config=config, attn_implementation="eager", dtype=dtype, output_loading_info=True, **own
        )
    except InputError:
        raise
    except Exception as error:  # files can be wrong in more ways than the library has errors for
        raise InputError(
            f"The model {name} could not be loaded ({first_line(error)}); give a hub id that can be reached, "
            f"or a local folder with config.json and model.safetensors. {OWN_CODE}"
        ) from error
    finally:
        loading.set_verbosity(verbosity)
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        tensors = "1 tensor" if len(missing) == 1 else f"{len(missing)} tensors"
        raise InputError(
            f"The weights of {name} lack {tensors} of its encoder, {missing[0]} first; "
            "they would be random. Give a checkpoint of the whole encoder."
        )
    if _pickled(name, revision):
        log.warning(
            "%s has no safetensors; its pickled weights were loaded weights-only, so that nothing in them is run", name
        )
    stock: PreTrainedModel = model.to(device, dtype).eval()  # two biases of DeBERTa are left at float32 without this
    return stock


def _found(device: str) -> str:
    """What `device` stands for on this machine; raises `InputError` for a GPU that is not there."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda" if gpus else "cpu"
    asked = torch.device(device)
    there = {"cuda": (asked.index or 0) < gpus, "mps": torch.backends.mps.is_available()}
    if not there.get(asked.type, True):
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise InputError(
            f"device is {device}, but torch {torch.__version__} finds {gpus} CUDA GPUs here"
            f"{'' if seen is None else f' (CUDA_VISIBLE_DEVICES is {seen!r})'}; "
            "give auto, cpu or a GPU that is there, or install a torch built for this machine."
        )
    return device


def _pickled(path_or_id: str, revision: str | None) -> bool:
    """Whether a loaded model came from pickled files: transformers takes safetensors wherever there are some."""
    safe = [name for name in WEIGHTS if name.startswith("model.safetensors")]
    if Path(path_or_id).is_dir():
        return not any(Path(path_or_id, name).is_file() for name in safe)
    from huggingface_hub import try_to_load_from_cache

    return not any(isinstance(try_to_load_from_cache(path_or_id, name, revision=revision), str) for name in safe)


def stock_states(model: PreTrainedModel) -> Tensor:
    """Hidden states `[token, L+1, hidden]` of the tiny batch from a model that is not patched, padded."""
    inputs = _tiny_batch(model)
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    return torch.stack(states, dim=2)[inputs["attention_mask"].bool()]


def check(model: Model, stock: Tensor, name: str) -> None:
    """Raise `InputError` unless `model` reaches every layer, equals `stock` as it is, and differs when replaced."""
    inputs = _tiny_batch(model.model)
    real, n = inputs["attention_mask"].bool(), inputs["input_ids"].shape[1]
    refused = f"The model {name} cannot be used:"
    if not stock.isfinite().all():
        raise InputError(f"{refused} its hidden states are not finite in {stock.dtype}; load it in float32.")
    # every token attends to itself alone, which no softmax over several tokens does
    identity = torch.eye(n).expand(model.layers, model.heads, n, n)
    found = []
    for constants in (None, identity):
        model.session.reached.clear()
        with torch.no_grad():
            found.append(model.hidden_states(inputs, constants).transpose(1, 2)[real])  # [token, L+1, hidden]
        missed = sorted(set(range(model.layers)) - model.session.reached)
        if missed:
            raise InputError(f"{refused} the attention of its layers {missed} was not replaced, as it is never called.")
    own, replaced = found
    distance, size = (states.float().norm(dim=(0, 2)) for states in (own - stock, stock))
    off = float((distance / size).max())
    if not off <= TOLERANCE[stock.dtype]:
        raise InputError(
            f"{refused} with nothing replaced its hidden states are {off:.1e} (relative) from those of transformers; "
            f"{TOLERANCE[stock.dtype]:.0e} is allowed in {stock.dtype}."
        )
    same = [layer for layer in range(model.layers) if torch.equal(own[:, layer + 1], replaced[:, layer + 1])]
    if same:
        raise InputError(f"{refused} replacing the attention of all heads changes nothing in its layers {same}.")


def _tiny_batch(model: PreTrainedModel) -> dict[str, Tensor]:
    """Two examples of different lengths, with padding between their tokens."""
    mask = torch.tensor([[1, 1, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 0, 1]])[:, : slots_limit(model)]
    padding = model.config.pad_token_id
    known = torch.tensor([number for number in range(min(model.config.vocab_size, 17)) if number != padding])
    ids = known[torch.arange(mask.numel()) % len(known)].view(mask.shape).masked_fill(mask == 0, padding or 0)
    return {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
