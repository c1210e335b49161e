"""Replace attention in a plain transformers model that the user calls, and restore the model afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from papa.data.packed import Examples
from papa.errors import InputError
from papa.model.attention import Session
from papa.model.check import check_checkpointing, without_hooks
from papa.model.forms import BEGINS_PASS, accepted_by, is_patched
from papa.model.model import PADDING_BEFORE, check_stock
from papa.model.replacement import AnyConstants, Heads, check_slots, replacement_of
from papa.model.settling import settle_plain

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def replaced_attention(
    model: PreTrainedModel, constants: AnyConstants, heads: Heads = None
) -> Iterator[PreTrainedModel]:
    """Replace the attention of `heads` (None: all) by `constants` in a plain transformers model (Sec. 3.3).

    Inside the `with` block, call the model as usual, or let it `generate`. Text inputs are `[example, slot]`, padded on
    either side, with their attention_mask. A decoder needs no attention_mask if padding is only after the tokens. The
    model is always restored afterwards.

    Raises:
        InputError: the model's attention cannot be replaced, its results on a tiny batch differ from the formula, or
            constants or heads do not fit the model.
    """
    check_stock(model)
    if is_patched(model):
        raise InputError(
            f"The attention of this {type(model).__name__} is already papa's; leave the other replaced_attention, or "
            "load the model again."
        )
    session = Session()
    with without_hooks(model):
        padding_before, undo = settle_plain(model, session)
    with ExitStack() as held:
        held.callback(undo)
        shape = session.known.layers, session.known.heads
        like = next(model.parameters())
        session.replacement = replacement_of(shape, constants, heads, like=like)
        _Calls(model, session, padding_before).wrap(held)
        yield model


OF_XLNET = (
    "changes attention in a way that papa does not replace; leave it out. `generate` of XLNet passes it, so it cannot "
    "be used while attention is replaced."
)
REFUSED = {
    "encoder_hidden_states": "would add attention to another text, which papa does not replace; leave it out.",
    "head_mask": "would have no effect; name the heads in replaced_attention.",
    **dict.fromkeys(("perm_mask", "target_mapping", "input_mask", "mems"), OF_XLNET),
}
"""Arguments that papa refuses, each with the reason."""


@dataclass(frozen=True)
class _Calls:
    """Calls of a plain model: they read the batch's layout, and run the session of the model's attention."""

    model: PreTrainedModel
    session: Session
    padding_before: bool

    def wrap(self, undo: ExitStack) -> None:
        """Wrap the model's `forward`, which libraries may call directly; add to `undo` what restores it."""
        model = self.model
        _, *parameters = accepted_by(model).values()
        positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        forward = model.forward
        # libraries such as accelerate also set `forward` on the instance
        before = vars(model).get("forward")

        @wraps(forward)
        def forward_with_session(*args: object, **kwargs: object) -> object:
            check_checkpointing(model)
            arguments = dict(zip(positional, args, strict=False)) | kwargs
            layout = self._layout(arguments)
            with self.session.over(layout):  # threads take turns
                output = forward(*args, **kwargs)
            if not self.session.causal:
                check_slots(self.session.replacement, layout.n)
            return output

        begun = forward_with_session
        if self.session.known.softmax is not None:
            # attention is caught while Python runs the model, which compiled code does not do
            begun = torch.compiler.disable(begun)
        setattr(begun, BEGINS_PASS, True)
        model.forward = begun
        if before is not None:
            # added first, so it is undone last, after the deletion
            undo.callback(setattr, model, "forward", before)
        undo.callback(delattr, model, "forward")

    def _layout(self, arguments: dict[str, object]) -> Examples:
        self._check_attention(arguments)
        ids, mask = self._ids_and_mask(arguments)
        causal = self.session.causal
        if causal and not self.padding_before and not mask[:, 0].all():
            raise InputError(PADDING_BEFORE.format(name=type(self.model).__name__))
        if not ((mask == 0) | (mask == 1)).all():
            raise InputError(
                "attention_mask contains values other than 0 and 1; give each text a separate row."
            )
        positions = arguments.get("position_ids")
        if isinstance(positions, Tensor):
            # only between real tokens: `generate` gives all padding the same position
            real = mask[:, -ids.shape[1] :].bool()
            if ((positions.diff(dim=-1) < 1) & real[:, 1:] & real[:, :-1]).any():
                raise InputError(
                    "position_ids restart within a row, as if it held several texts; give each text a separate row."
                )
        return Examples.of_mask(mask, queries=ids.shape[1], from_first=causal)

    def _check_attention(self, arguments: dict[str, object]) -> None:
        """Raise `InputError` if an argument asks for attentions, or changes attention in a way papa does not follow."""
        attentions = arguments.get("output_attentions")
        if self.model.config.output_attentions if attentions is None else attentions:
            raise InputError(
                "A model with replaced attention cannot return attentions; leave out output_attentions."
            )
        for argument, problem in REFUSED.items():
            if arguments.get(argument) is not None:
                raise InputError(f"{argument} {problem}")

    def _ids_and_mask(self, arguments: dict[str, object]) -> tuple[Tensor, Tensor]:
        """Return input_ids and attention_mask, both `[example, slot]`; the mask also covers a cache."""
        ids = arguments.get("input_ids")
        mask = arguments.get("attention_mask")
        # transformers 5.24 calls it `cache`
        cache = arguments.get("cache", arguments.get("past_key_values"))
        if mask is None and self.session.causal and isinstance(ids, Tensor):
            # no token sees padding after it; `generate` leaves out a mask of ones
            cached = int(getattr(cache, "get_seq_length", int)())
            mask = ids.new_ones(len(ids), cached + ids.shape[-1])
        if not isinstance(ids, Tensor) or not isinstance(mask, Tensor):
            raise InputError(
                "Call the model with input_ids and attention_mask while its attention is replaced; `generate` of "
                "encoders and of XLM passes no mask, so it cannot be used."
            )
        fits = mask.shape == ids.shape or (cache is not None and len(mask) == len(ids))
        if not (fits and ids.ndim == mask.ndim == 2):
            raise InputError(
                f"input_ids {list(ids.shape)} and attention_mask {list(mask.shape)} must be [example, slot]."
            )
        return ids, mask
