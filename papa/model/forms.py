"""The forms in which a model accepts a batch: as one packed row if the results are the same, otherwise padded.

There is no list of models; `settling.py` tries the forms.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from papa.data.packed import Examples, Packed
from papa.data.weights import POSITIONS
from papa.errors import InputError
from papa.model.attention import NAME, NotLookedUp, Session, current, register, set_attention
from papa.model.slots import set_relative_positions
from papa.model.softmax import SoftmaxReplacer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

NO_PROBE_DROPOUT = ("camembert", "data2vec-text", "roberta", "xlm-roberta")
"""Model types whose sequence classifiers have no dropout before the output; their probes have none either."""
SCALES_ALONG_ROW = "attn_temperature_tuning"
"""Config key of models that scale queries by their position in the row, even across examples (Llama 4).

The scale changes only after thousands of tokens, so a tiny batch cannot reveal it.
"""
OWN_CODE = "papa_own_code"
"""Attribute of the models whose own attention a session catches; their copies have it, too."""
BEGINS_PASS = "papa_begins_pass"
"""Attribute of the functions in place of a model's `forward` that make a session current."""
Positions = Literal["slot", "rank", "none"]
Rows = Literal["packed", "compact", "padded"]
"""One row of tokens; an example a row, without the slots that it does not use; or an example a row with all slots."""


@dataclass(frozen=True)
class Form:
    """The form in which a model accepts a batch.

    Args:
        rows: how tokens are arranged; the stock model has padded rows.
        positions: a token's position id in packed and compact rows: its slot, or its rank among the tokens of its
            example; "none" if the model gets no position ids.
        offset: number that is added to ranks.
    """

    rows: Rows
    positions: Positions = "none"
    offset: int = 0

    @property
    def padded(self) -> bool:
        """Whether the model computes all slots of an example."""
        return self.rows == "padded"

    def examples(self, batch: Packed, from_first: bool) -> Examples:
        """Return the layout of a batch; see `Examples.of_packed`."""
        if self.rows == "padded":
            return Examples.of_mask(dense(batch)[1], from_first=from_first)
        row = Examples.of_packed(batch, from_first)
        return replace(row, positions=None, packed=False) if self.rows == "compact" else row

    def arguments(self, model: PreTrainedModel, batch: Packed) -> dict[str, Tensor]:
        """Return the model's arguments."""
        arranged = self._arranged(batch)
        positions = self._positions(batch)
        if self.rows == "packed":
            ids = batch.ids[None]
            segments = batch.segments[None]
            positions = positions[None]
            # without a mask, transformers finds the examples of a row by its own rule, from restarting position ids
            mask = torch.ones_like(ids)
        else:
            ids, mask = dense(arranged)
            segments = arranged.unpack(batch.segments)
            positions = arranged.unpack(positions)
            padding = vars(model.config).get("pad_token_id")
            # RoBERTa numbers positions by the ids that are not padding, and does not look at the mask
            ids = ids.masked_fill(mask == 0, padding or 0)
        arguments = {"input_ids": ids, "attention_mask": mask}
        if self.positions != "none":
            arguments["position_ids"] = positions
        # DeBERTa accepts segments, although its config has none
        has_segments = getattr(model.config, "type_vocab_size", None)
        if has_segments and "token_type_ids" in accepted_by(model):
            arguments["token_type_ids"] = segments
        return arguments

    def tokens(self, output: Tensor, batch: Packed) -> Tensor:
        """Select the rows of a model's output that belong to a batch's tokens, `[token, ...]`."""
        if self.rows == "packed":
            return output.squeeze(0)
        arranged = self._arranged(batch)
        if output.shape[:2] != (len(batch.lengths), arranged.n):
            raise InputError(
                f"it returns hidden states for {output.shape[1]} tokens, but the inputs have {arranged.n}."
            )
        return output[batch.example_of, arranged.slots]

    def states(self, model: PreTrainedModel, batch: Packed) -> list[Tensor]:
        """Return the hidden states of a batch's tokens, embeddings first: one tensor `[token, hidden]` per layer.

        Raise `InputError` if the model has none.
        """
        arguments = self.arguments(model, batch)
        output = model(**arguments, **options_of(model), output_hidden_states=True)
        states = getattr(output, "hidden_states", None)
        if not states:
            raise InputError(f"{type(model).__name__} returns no hidden states.")
        return [self.tokens(state, batch) for state in states]

    def _arranged(self, batch: Packed) -> Packed:
        return batch.compact if self.rows == "compact" else batch

    def _positions(self, batch: Packed) -> Tensor:
        return batch.ranks + self.offset if self.positions == "rank" else batch.slots


PADDED = Form("padded")
"""The form in which a stock model gets a batch."""


def forms_of(model: PreTrainedModel, own_code: bool) -> Iterator[Form]:
    """Yield the forms that may be correct for a model, the fastest first.

    A model that computes attention in its `own_code` accepts no packed row, because its attention spans the whole row.
    """
    takes_positions = "position_ids" in accepted_by(model)
    if own_code:
        if takes_positions:
            yield Form("compact", "slot")
        yield Form("compact")
    elif not getattr(model.config.get_text_config(), SCALES_ALONG_ROW, False):
        if takes_positions:
            yield Form("packed", "slot")
            padding = getattr(model.config, "pad_token_id", None)
            yield Form("packed", "rank")
            # RoBERTa's first token has the position after the id of padding
            if padding is not None:
                yield Form("packed", "rank", padding + 1)
        else:
            yield Form("packed")
    yield PADDED


def dense(batch: Packed) -> tuple[Tensor, Tensor]:
    """Return ids and mask `[example, slot]`, with 0 for padding."""
    return batch.unpack(batch.ids), batch.unpack(torch.ones_like(batch.ids))


def accepted_by(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Map the names of a model's forward parameters to the parameters."""
    return _parameters(type(model).forward)


@cache
def _parameters(forward: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(forward).parameters


def options_of(model: PreTrainedModel) -> dict[str, bool]:
    """Return options for every forward pass: a result with names, and no key-value cache if there is one."""
    accepted = accepted_by(model)
    options = {"use_cache": False} if "use_cache" in accepted else {}
    if "return_dict" in accepted or any(
        each.kind is each.VAR_KEYWORD for each in accepted.values()
    ):
        options["return_dict"] = True  # config.json may ask for tuples
    return options


def slots_limit(model: PreTrainedModel, form: Form) -> int:
    """Return the largest number of slots that a model has positions for; `sys.maxsize` if there is no limit."""
    limits = [getattr(model.config, name, None) for name in POSITIONS]
    longest = int(next(filter(None, limits), -1))
    # XLNet has -1, which stands for no limit
    if longest < 0:
        return sys.maxsize
    return longest - max(form.offset, _reserved_positions(model, longest))


def _reserved_positions(model: nn.Module, positions: int) -> int:
    """Return the number of positions that no token has, because they come before or belong to padding."""
    for name, module in model.named_modules():
        is_table = isinstance(module, nn.Embedding) and module.num_embeddings == positions
        if is_table and "position" in name and module.padding_idx is not None:
            return int(module.padding_idx) + 1
    return 0


def probe_dropout(config: PreTrainedConfig) -> float:
    """Return the dropout before the output of a sequence probe: none for RoBERTa and its kin, otherwise as configured.

    It is the config's classifier dropout or, without one, its dropout of hidden states.
    """
    if config.model_type in NO_PROBE_DROPOUT:
        return 0.0
    classifier_dropout = getattr(config, "classifier_dropout", None)
    if classifier_dropout is not None:
        return float(classifier_dropout)
    return float(getattr(config, "hidden_dropout_prob", 0.0))


def patch(model: PreTrainedModel, undo: ExitStack) -> None:
    """Replace a model's attention by papa's, and add to `undo` what restores it.

    Raises:
        NotLookedUp: the model does not look up its attention by name.
    """
    _restore_names(model, undo)
    try:
        set_attention(model, register())
    except Exception as error:  # models raise many types of errors
        raise NotLookedUp from error
    if model.config._attn_implementation != NAME:
        raise NotLookedUp


def patch_own_code(model: PreTrainedModel, session: Session, undo: ExitStack) -> None:
    """Let a session catch the attention that a model computes in its own code; add to `undo` what ends this.

    Attention must go through a softmax, which fused kernels do not call, so the model computes it eagerly.

    Raises:
        InputError: the model was compiled in place, so Python does not run its code.
    """
    if any(module._compiled_call_impl is not None for module in model.modules()):
        raise InputError(
            f"{type(model).__name__} was compiled with its method `compile`, so papa cannot catch its attention; load "
            "it again, and do not compile it."
        )
    _restore_names(model, undo)
    for config in configs_of(model):
        config._attn_implementation = "eager"
    set_relative_positions(model, session, undo)
    session.catching = partial(SoftmaxReplacer, session)
    undo.callback(setattr, session, "catching", nullcontext)
    setattr(model.base_model, OWN_CODE, True)
    undo.callback(delattr, model.base_model, OWN_CODE)
    # without a session, nothing would be caught
    guard = model.base_model.register_forward_pre_hook(_check_session)
    undo.callback(guard.remove)


def _check_session(module: nn.Module, _: object) -> None:
    if not hasattr(module.forward, BEGINS_PASS):
        current()


def _restore_names(model: PreTrainedModel, undo: ExitStack) -> None:
    """Add to `undo` what restores the names by which a model and its submodels look up their attention."""
    # submodels may be configured with another attention; outer configs, restored first, overwrite those of submodels
    configs = {id(config): config for config in configs_of(model)}  # configs cannot be hashed
    for config in reversed(configs.values()):
        undo.callback(setattr, config, "_attn_implementation", config._attn_implementation)


def is_patched(model: PreTrainedModel) -> bool:
    """Return whether a model has papa's attention."""
    return hasattr(model.base_model, OWN_CODE) or any(
        config._attn_implementation == NAME for config in configs_of(model)
    )


def configs_of(model: nn.Module) -> list[PreTrainedConfig]:
    """Return the configs of a model and its submodels, outer ones first."""
    configs: list[Any] = [
        module.config for module in model.modules() if hasattr(module, "set_attn_implementation")
    ]
    for config in configs:  # the list grows
        parts = (getattr(config, name, None) for name in config.sub_configs)
        configs += [part for part in parts if part is not None]
    return configs
