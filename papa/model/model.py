"""The frozen encoder: load a pretrained model, drop padding, run it, hand out its hidden states."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from papa.config import machine
from papa.data.packed import Examples, Packed
from papa.data.weights import OWN_CODE, WEIGHTS, place_of, revision_of
from papa.errors import InputError, first_line
from papa.model import selfcheck
from papa.model.families import embed, hidden_state, layer_options, slots_limit
from papa.model.linear import freeze_linears
from papa.model.replacement import Head, LayerPlan, Observer, Session, plan_layers
from papa.model.surgery import attention_modules, patch, shape_of

log = logging.getLogger(__name__)
Dtype = Literal["float32", "float16", "bfloat16"]


class Encoder:
    """A pretrained encoder whose attention can be replaced. Its weights are frozen, dropout is off unless asked for.

    `layers`, `heads` (per layer) and `hidden` are its sizes, `slots_limit` the number of positions it has.
    """

    def __init__(self, model: Any):
        self.layers, self.heads = shape_of(attention_modules(model))
        self.session = Session(plan_layers((self.layers, self.heads)))
        patch(model, self.session)
        freeze_linears(model)
        self.model: Any = model.eval().requires_grad_(False)
        self.config: Any = model.config
        self.hidden = int(self.config.hidden_size)
        self.slots_limit = slots_limit(model)
        self.precision = self.dtype
        """What it computes in: the type of its weights, or a smaller one, by autocast."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return next(self.model.parameters()).dtype

    def pack(self, inputs: dict[str, Tensor] | Packed) -> Packed:
        """The real tokens of `inputs` (dense as `lay_out` returns them, or packed already) on the encoder's device.

        Raises `InputError` where ids and mask disagree, or the model lacks an id, a segment or a position.
        """
        batch = inputs if isinstance(inputs, Packed) else Packed.of(inputs, self.config.pad_token_id)
        if batch.n > self.slots_limit:
            raise InputError(f"The inputs have {batch.n} slots, the model has positions for {self.slots_limit}.")
        if len(batch.ids) and int(batch.ids.max()) >= self.config.vocab_size:
            raise InputError(f"Id {int(batch.ids.max())} is not in the model's vocabulary of {self.config.vocab_size}.")
        segments = self.config.type_vocab_size  # DeBERTa, with none, ignores them
        if segments and len(batch.segments) and int(batch.segments.max()) >= segments:
            raise InputError(f"Segment {int(batch.segments.max())} is not one of the model's {segments}.")
        return batch.to(self.device)

    def plan(
        self, constants: Any = None, heads: Iterable[Head] | None = None, mixing: Tensor | None = None
    ) -> list[LayerPlan]:
        """What every layer does with these replacements; see `hidden_states`. Reusable over batches."""
        shape = (self.layers, self.heads)
        return plan_layers(shape, constants, heads, mixing, device=self.device, dtype=self.dtype)

    @contextmanager
    def _running(
        self, batch: Packed, plan: list[LayerPlan] | None, observer: Observer | None = None, dropout: bool = False
    ) -> Iterator[None]:
        usual = self.session.plans
        if dropout:
            self.model.train()
        self.session.examples, self.session.observer = Examples.of_packed(batch), observer
        self.session.plans = usual if plan is None else plan
        try:
            with torch.autocast(self.device.type, self.precision, enabled=self.precision != self.dtype):
                yield
        finally:
            self.session.plans, self.session.examples, self.session.observer = usual, None, None
            if dropout:
                self.model.eval()

    def run(self, batch: Packed, plan: list[LayerPlan] | None = None, dropout: bool = False) -> list[Tensor]:
        """Hidden states of a packed batch, embeddings first: L+1 tensors `[token, hidden]`.

        With `dropout` the encoder drops as its config says, wherever it did when it was trained.
        """
        options = layer_options(self.model)
        with self._running(batch, plan, dropout=dropout):
            state = embed(self.model, batch)
            states = [state]
            for layer in self.model.encoder.layer:
                state = hidden_state(layer(state, **options))
                states.append(state)
        return [state[0, : len(batch.ids)] for state in states]

    def observe(self, batch: Packed, observer: Observer) -> None:
        """Show `observer` the attention of every layer; what follows the last attention is not computed."""
        options = layer_options(self.model)
        with self._running(batch, None, observer):
            state = embed(self.model, batch)
            for layer in self.model.encoder.layer[:-1]:
                state = hidden_state(layer(state, **options))
            self.model.encoder.layer[-1].attention.self(state, **options)

    def hidden_states(
        self,
        inputs: dict[str, Tensor],
        constants: Any = None,
        heads: Iterable[Head] | None = None,
        mixing: Tensor | None = None,
    ) -> Tensor:
        """All hidden states `[example, L+1, slot, hidden]`, layer 0 = embeddings, zero at padding (paper, Sec. 3.3).

        `constants` (`ConstantMatrices` or a tensor `[layer, head, query, key]`, differentiable) replace the attention
        of `heads`, a list of (layer, head); None means all. With `mixing` `[layer, head]` in [0, 1], differentiable,
        every head uses mixing * attention + (1 - mixing) * constant instead (Sec. 3.2); not together with `heads`.
        """
        batch = self.pack(inputs)
        plan = self.plan(constants, heads, mixing)
        matrices = plan[0].matrices
        if matrices is not None and matrices.shape[-1] != batch.n:
            raise InputError(
                f"The constants have {matrices.shape[-1]} slots and the inputs {batch.n}; they must agree."
            )
        states = torch.stack(self.run(batch, plan), dim=1)  # [token, L+1, hidden]
        return batch.unpack(states).transpose(1, 2)


def load_encoder(
    path_or_id: str, revision: str | None = None, device: str = "auto", dtype: Dtype = "float32"
) -> Encoder:
    """Load a pretrained encoder from a local folder or the hub, with its attention made replaceable.

    The model is checked on one tiny batch (`selfcheck`). Raises `InputError` for a model that cannot be had, is no
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
    stock = selfcheck.stock_states(model)
    encoder = Encoder(model)
    selfcheck.check(encoder, stock, path_or_id)
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


def encoder_of(model: Mapping[str, Any]) -> Encoder:
    """The encoder of a config's model, from its place on this machine and on this machine's device.

    Its weights are float32; it computes in the model's `precision`, where one is given, by autocast.
    """
    encoder = load_encoder(place_of(model), revision_of(model), machine.current().device)
    encoder.precision = getattr(torch, model.get("precision", "float32"))
    return encoder
