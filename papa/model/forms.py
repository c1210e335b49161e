"""How a model takes a batch: as one packed row where that gives what it gives by itself, else padded.

What differs between models is asked of the model and not of a list: whether it takes positions, and which ones, is
found by trying (`check.py`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from papa.data.packed import Examples, Packed, RawBatch
from papa.errors import InputError
from papa.model.attention import NAME, Session, registered
from papa.model.deberta import DebertaAttention, DebertaV2Attention, DisentangledAttention
from papa.model.linear import rounded_up

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

MODULES: Mapping[str, Callable[..., DisentangledAttention]] = {
    "deberta": DebertaAttention,
    "deberta-v2": DebertaV2Attention,
}
"""Model types whose attention is a module of its own, for they call none by its name."""
NO_PROBE_DROPOUT = ("camembert", "data2vec-text", "roberta", "xlm-roberta")
"""Model types whose sequence classifiers, and so probes, drop nothing between pooler and output."""
RAW_INPUTS = ("pixel_values", "input_features", "input_values")
"""What models of transformers call pictures and sound that they are given."""
BY_ROW = "attn_temperature_tuning"
"""What a config calls a scale of queries that grows along the row, whichever example a token is of (Llama 4).

It begins after thousands of tokens, where no tiny batch sees it.
"""
Positions = Literal["slot", "rank", "none"]


@dataclass(frozen=True)
class Form:
    """How a model takes a batch.

    Args:
        packed: as one row of tokens; else padded, as the stock model does.
        positions: what a token of a packed row has as its position id: its slot, or its rank among the tokens of its
            example; "none" if the model takes no position ids.
        offset: what is added to ranks.
    """

    packed: bool
    positions: Positions = "none"
    offset: int = 0

    def __str__(self) -> str:
        return "packed" if self.packed else "padded"

    def examples(self, batch: Packed) -> Examples:
        """Where the tokens of a batch stand."""
        return Examples.of_packed(batch) if self.packed else Examples.of_mask(dense(batch)[1])

    def arguments(self, model: PreTrainedModel, batch: Packed) -> dict[str, Tensor]:
        """What the model is called with; idle tokens round a packed row up."""
        if isinstance(batch, RawBatch):
            return dict(batch.arguments)
        taken = taken_by(model)
        if self.packed:
            idle = rounded_up(len(batch.ids)) - len(batch.ids)
            ids, segments, positions = (
                pad(values, (0, idle))[None] for values in (batch.ids, batch.segments, self._positions(batch))
            )
            found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            if self.positions != "none":
                found["position_ids"] = positions
        else:
            ids, mask = dense(batch)
            segments = batch.unpack(batch.segments)
            padding = vars(model.config).get("pad_token_id")
            found = {"input_ids": ids.masked_fill(mask == 0, padding or 0), "attention_mask": mask}
        if "token_type_ids" in taken and bool(getattr(model.config, "type_vocab_size", None)):
            found["token_type_ids"] = segments
        return found

    def tokens(self, output: Tensor, batch: Packed) -> Tensor:
        """What a model gives for the tokens of a batch, `[token, ...]`."""
        if self.packed:
            return output.squeeze(0)[: len(batch.ids)]
        if output.shape[:2] != (len(batch.lengths), batch.n):
            raise InputError(f"it gives hidden states of {output.shape[1]} tokens for inputs of {batch.n}.")
        return output[batch.example_of, batch.slots]

    def _positions(self, batch: Packed) -> Tensor:
        if self.positions != "rank":
            return batch.slots
        rank = torch.arange(len(batch.ids), device=batch.ids.device)
        return rank - (batch.lengths.cumsum(0) - batch.lengths)[batch.example_of] + self.offset


def forms_of(model: PreTrainedModel) -> Iterator[Form]:
    """The forms in which a model may be right, the fastest first."""
    if not takes_text(model) or getattr(model.config.get_text_config(), BY_ROW, False):
        yield Form(False)
        return
    if "position_ids" in taken_by(model):
        yield Form(True, "slot")
        padding = getattr(model.config, "pad_token_id", None)
        for offset in (0, *([padding + 1] if padding is not None else [])):
            yield Form(True, "rank", offset)
    else:
        yield Form(True)
    yield Form(False)


def dense(batch: Packed) -> tuple[Tensor, Tensor]:
    """Ids and mask `[example, slot]`, 0 at padding."""
    return batch.unpack(batch.ids), batch.unpack(torch.ones_like(batch.ids))


def taken_by(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """What the forward pass of a model takes, by name."""
    return _parameters(type(model).forward)


@cache
def _parameters(forward: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(forward).parameters


def takes_text(model: PreTrainedModel) -> bool:
    """Whether a model is given the ids of words, and not pictures or sound alone."""
    taken = taken_by(model)
    return "input_ids" in taken or not any(name in taken for name in RAW_INPUTS)


def raw_input_of(model: PreTrainedModel) -> str:
    """What a model that takes no text calls its input."""
    return next(name for name in RAW_INPUTS if name in taken_by(model))


def options_of(model: PreTrainedModel) -> dict[str, bool]:
    """What a model is told in every forward pass: to keep no keys and values."""
    return {"use_cache": False} if "use_cache" in taken_by(model) else {}


def slots_limit(config: PreTrainedConfig, form: Form) -> int:
    """How many slots a model has positions for; as many as there are numbers if it counts none."""
    longest = next(
        (own for name in ("max_position_embeddings", "n_positions", "n_ctx") if (own := getattr(config, name, None))),
        None,
    )
    return sys.maxsize if longest is None or longest < 0 else int(longest) - form.offset


def probe_dropout(config: PreTrainedConfig) -> float:
    """Dropout before the output of a sequence probe: the model's own for BERT and DeBERTa, none for RoBERTa.

    Models that the paper does not have go with their own config: what it says of classifiers, else of hidden states.
    """
    if config.model_type in NO_PROBE_DROPOUT:
        return 0.0
    own = getattr(config, "classifier_dropout", None)
    return float(getattr(config, "hidden_dropout_prob", 0.0) if own is None else own)


def patch(model: PreTrainedModel, session: Session) -> Callable[[], None]:
    """Let `model` attend as `session` says; return what puts everything back.

    Raises:
        InputError: the attention of the model cannot be replaced.
    """
    own = MODULES.get(model.config.model_type)
    if own is not None:
        stock = {
            name: module
            for name, module in model.named_modules()
            if type(module).__module__.startswith("transformers.") and type(module).__name__.endswith("SelfAttention")
        }
        for layer, (name, module) in enumerate(stock.items()):
            model.set_submodule(name, own(module, layer, session))
        encoder: Any = next(module for module in model.modules() if hasattr(module, "get_rel_pos"))
        # the stock encoder makes masks and distances between all tokens of a row, which nobody here reads
        encoder.get_attention_mask, encoder.get_rel_pos = (lambda mask: mask), (lambda *_: None)

        def put_back() -> None:
            del encoder.get_attention_mask, encoder.get_rel_pos
            for name, module in stock.items():
                model.set_submodule(name, module)

        return put_back
    # a part of a model may have a config of its own, and another name in it
    before = {id(config): (config, config._attn_implementation) for config in _configs_of(model)}

    def back() -> None:
        for config, name in before.values():  # that of the whole first, since it hands its name on to its parts
            config._attn_implementation = name

    try:
        model.set_attn_implementation(registered())
    except Exception as error:  # each model has reasons of its own
        back()
        raise InputError(f"The attention of {type(model).__name__} cannot be replaced: {error}") from error
    if model.config._attn_implementation != NAME:
        back()
        raise InputError(f"The attention of {type(model).__name__} cannot be replaced: it takes none by its name.")
    return back


def is_patched(model: PreTrainedModel) -> bool:
    """Whether papa's attention is in `model` now."""
    return any(config._attn_implementation == NAME for config in _configs_of(model)) or any(
        isinstance(module, DisentangledAttention) for module in model.modules()
    )


def _configs_of(model: PreTrainedModel) -> Iterator[PreTrainedConfig]:
    """The config of a model and those of its parts, wholes first."""
    waiting = [
        cast("PreTrainedConfig", own.config) for own in model.modules() if hasattr(own, "set_attn_implementation")
    ]
    while waiting:
        config = waiting.pop(0)
        yield config
        parts = [getattr(config, name, None) for name in config.sub_configs]
        waiting += [part for part in parts if part is not None]
