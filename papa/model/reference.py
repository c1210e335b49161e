"""The reference for replaced heads: an independent, dense and padded implementation of Sec. 3.3's formula.

It is a separate registered attention function, which uses no slots, packs no tokens and skips no outputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from papa.model.attention import set_attention
from papa.model.replacement import Head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "papa_reference"
_current: ContextVar[Reference] = ContextVar(NAME)


def reference_attention(
    module: nn.Module, *tensors: Tensor, **keywords: Any
) -> tuple[Tensor, None]:
    """Call the attention of the current `Reference`; transformers keeps a registered function forever."""
    return _current.get().attention(module, *tensors, **keywords)


def whole_mask(**keywords: Any) -> Tensor | None:
    """Return transformers' mask, even if no token is hidden."""
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(
        **keywords | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    )


class Reference:
    """A context in which a stock model uses the reference attention, with some heads replaced."""

    def __init__(
        self, model: PreTrainedModel, constants: Tensor, heads: Iterable[Head], mask: Tensor
    ):
        self.model = model
        self.constants = constants
        self.real = mask.bool()
        self.heads: dict[int, list[int]] = defaultdict(list)
        for layer, head in heads:
            self.heads[layer].append(head)

    def __enter__(self) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface

        AttentionInterface.register(NAME, reference_attention)
        AttentionMaskInterface.register(NAME, whole_mask)
        self.token = _current.set(self)
        self.calls = 0
        self.before = self.model.config._attn_implementation
        set_attention(self.model, NAME)

    def __exit__(self, *_: object) -> None:
        set_attention(self.model, self.before)
        _current.reset(self.token)

    def attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **keywords: Any,
    ) -> tuple[Tensor, None]:
        """Compute softmax attention term by term, then overwrite the replaced heads with constants."""
        del module
        layer = self.calls
        self.calls += 1
        group_size = query.shape[1] // key.shape[1]
        keys, values = (grouped.repeat_interleave(group_size, dim=1) for grouped in (key, value))
        scaling = keywords.get("scaling")
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = query @ keys.transpose(2, 3) * scaling
        if (cap := keywords.get("softcap")) is not None:
            scores = torch.tanh(scores / cap) * cap
        if (bias := keywords.get("position_bias")) is not None:
            scores = scores + bias
        seen = self.real[:, None, None, :].to(scores.device)
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            seen = attention_mask
        elif attention_mask is not None:
            scores = scores + attention_mask
            seen = attention_mask > torch.finfo(attention_mask.dtype).min / 2
        # only over visible keys: if a hidden key had a much higher score, their exponentials would vanish
        highest = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).amax(-1, keepdim=True)
        weights = torch.where(seen, (scores - highest).exp(), 0)
        total = weights.sum(-1, keepdim=True)
        if (sinks := keywords.get("s_aux")) is not None:
            total = total + (sinks.view(1, -1, 1, 1) - highest).exp()
        # clamped, because a padding query may see no key
        attention = weights / total.clamp(min=1e-30)
        constants = self.constants[layer, self.heads[layer]].to(scores.device) * seen
        # constants of checks are not negative, so their sum is that of absolute values
        total = constants.sum(-1, keepdim=True)
        attention[:, self.heads[layer]] = constants / total.clamp(min=1e-30)
        return (attention @ values).transpose(1, 2).contiguous(), None
