"""Linear layers with frozen weights."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn


class FrozenLinear(nn.Linear):
    """A linear layer whose weights, `[out, in]` and `[out]`, need no gradients.

    If it is `transposed`, it takes the place of GPT-2's transposed layer, so it is saved and loaded as `[in, out]`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, transposed: bool = False):
        super().__init__(weight.shape[1], weight.shape[0], bias is not None, device="meta")
        self.transposed = transposed
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        if bias is not None:
            self.bias = nn.Parameter(bias.detach(), requires_grad=False)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.transposed:
            destination[f"{prefix}weight"] = destination[f"{prefix}weight"].t().contiguous()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        name = f"{prefix}weight"
        if self.transposed and name in state_dict:
            state_dict[name] = state_dict[name].t().contiguous()
        super()._load_from_state_dict(state_dict, prefix, *rest)


def freeze_linears(model: nn.Module) -> None:
    """Freeze a model, and replace GPT-2's transposed linear layers by torch's; shared modules stay shared."""
    frozen: dict[nn.Module, FrozenLinear] = {}
    for parent in list(model.requires_grad_(False).modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "Conv1D" and hasattr(child, "nf"):
                weight = cast(Tensor, child.weight)
                bias = cast(Tensor, child.bias)
                layer = FrozenLinear(weight.t().contiguous(), bias, transposed=True)
                layer = frozen.setdefault(child, layer)
                setattr(parent, name, layer)
