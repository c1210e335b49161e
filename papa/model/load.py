"""Load a pretrained model, and check it before anything is computed with it.

A model whose attention were not replaced, or whose positions were not those of its own code, would give plausible
numbers that are wrong.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from papa.config import machine
from papa.data.weights import OWN_CODE, WEIGHTS, place_of, revision_of
from papa.errors import InputError, first_line
from papa.model.families import slots_limit
from papa.model.model import Model
from papa.model.surgery import attention_modules

log = logging.getLogger(__name__)
Dtype = Literal["float32", "float16", "bfloat16"]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far hidden states may be from the stock model's, relative to their norm: a few roundings per layer."""


def load_model(path_or_id: str, revision: str | None = None, device: str = "auto", dtype: Dtype = "float32") -> Model:
    """Load a pretrained encoder from a local folder or the hub, with its attention made replaceable.

    The model is checked on one tiny batch (`check`). Raises `InputError` for a model that cannot be had, is no
    encoder, whose attention is not supported, or that does not pass, and for a device that is not there.
    """
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging as loading

    if dtype not in ("float32", "float16", "bfloat16"):
        raise InputError(f"dtype {dtype!r} is not known; it is one of float32, float16, bfloat16.")
    chosen = _found(device)
    verbosity = loading.get_verbosity()
    loading.set_verbosity_error()
    loading.disable_progress_bar()
    try:
        own = {"revision": revision, "trust_remote_code": False}
        config = AutoConfig.from_pretrained(path_or_id, **own)
        # eager whatever the config says, which may name a kernel: code from the hub; and said to the model, for what
        # AutoModel makes of config.json would go before it
        model, loaded = AutoModel.from_pretrained(
            path_or_id,
            config=config,
            attn_implementation="eager",
            dtype=getattr(torch, dtype),
            output_loading_info=True,
            **own,
        )
    except Exception as error:  # files can be wrong in more ways than the library has errors for
        raise InputError(
            f"The model {path_or_id} could not be loaded ({first_line(error)}); give a hub id that can be reached, "
            f"or a local folder with config.json and model.safetensors. {OWN_CODE}"
        ) from error
    finally:
        loading.set_verbosity(verbosity)
    missing = sorted(key for key in loaded["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise InputError(
            f"The weights of {path_or_id} lack {len(missing)} tensors of its encoder, {missing[0]} first; "
            "they would be random. Give a checkpoint of the whole encoder."
        )
    if _pickled(path_or_id, revision):
        log.warning(
            "%s has no safetensors; its pickled weights were loaded weights-only, so that nothing in them is run",
            path_or_id,
        )
    model = model.to(chosen, getattr(torch, dtype)).eval()  # transformers leaves two biases of DeBERTa at float32
    attention_modules(model)  # says what is supported before a model of another kind is called
    stock = stock_states(model)
    encoder = Model(model)
    check(encoder, stock, path_or_id)
    return encoder


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


def model_of(model: Mapping[str, Any]) -> Model:
    """The encoder of a config's model, from its place on this machine and on this machine's device.

    Its weights are float32; it computes in the model's `precision`, where one is given, by autocast.
    """
    encoder = load_model(place_of(model), revision_of(model), machine.current().device)
    encoder.precision = getattr(torch, model.get("precision", "float32"))
    return encoder


def stock_states(model: Any) -> Tensor:
    """Hidden states `[token, L+1, hidden]` of the tiny batch from a model that is not patched, padded."""
    inputs = _tiny_batch(model)
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    return torch.stack(states, dim=2)[inputs["attention_mask"].bool()]


def check(encoder: Model, stock: Tensor, name: str) -> None:
    """Raise `InputError` unless `encoder` reaches every layer, equals `stock` as it is, and differs when replaced."""
    inputs = _tiny_batch(encoder.model)
    real, n = inputs["attention_mask"].bool(), inputs["input_ids"].shape[1]
    refused = f"The model {name} cannot be used:"
    if not stock.isfinite().all():
        raise InputError(f"{refused} its hidden states are not finite in {stock.dtype}; load it in float32.")
    # every token attends to itself alone, which no softmax over several tokens does
    identity = torch.eye(n).expand(encoder.layers, encoder.heads, n, n)
    found = []
    for constants in (None, identity):
        encoder.session.reached.clear()
        with torch.no_grad():
            found.append(encoder.hidden_states(inputs, constants).transpose(1, 2)[real])  # [token, L+1, hidden]
        missed = sorted(set(range(encoder.layers)) - encoder.session.reached)
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
    same = [layer for layer in range(encoder.layers) if torch.equal(own[:, layer + 1], replaced[:, layer + 1])]
    if same:
        raise InputError(f"{refused} replacing the attention of all heads changes nothing in its layers {same}.")


def _tiny_batch(model: Any) -> dict[str, Tensor]:
    """Two examples of different lengths, with padding between their tokens."""
    mask = torch.tensor([[1, 1, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 0, 1]])[:, : slots_limit(model)]
    padding = model.config.pad_token_id
    known = torch.tensor([number for number in range(min(model.config.vocab_size, 17)) if number != padding])
    ids = known[torch.arange(mask.numel()) % len(known)].view(mask.shape).masked_fill(mask == 0, padding or 0)
    return {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
