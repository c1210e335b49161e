"""Linear layers with frozen weights, which can compute some of their outputs only."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class FrozenLinear(nn.Module):
    """A linear layer that computes gradients only for its input."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._partial: tuple[list[int], FrozenLinear] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[..., out]` from `[..., in]`."""
        return linear(inputs, self.weight, self.bias)

    def only(self, outputs: Tensor) -> FrozenLinear:
        """Return a layer that computes only these outputs; the last such layer is cached."""
        rows = outputs.tolist()
        if self._partial is None or self._partial[0] != rows:
            with torch.inference_mode(False):
                outputs = torch.tensor(rows, device=self.weight.device)
                bias = None if self.bias is None else self.bias[outputs]
                self._partial = rows, FrozenLinear(self.weight[outputs], bias)
        return self._partial[1]


def some_outputs(projection: nn.Module, inputs: Tensor, rows: Tensor) -> Tensor:
    """Return the outputs `rows` of a projection, `[..., row]`; a frozen layer computes only these."""
    if isinstance(projection, FrozenLinear):
        outputs: Tensor = projection.only(rows)(inputs)
    else:
        outputs = projection(inputs).index_select(-1, rows)
    return outputs


def freeze_linears(model: nn.Module) -> None:
    """Replace every linear layer of `model` by a `FrozenLinear` with its weights; shared modules stay shared."""
    frozen: dict[nn.Module, FrozenLinear] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            layer = frozen.get(child)
            if layer is None and type(child) is nn.Linear:
                layer = FrozenLinear(child.weight, child.bias)
            elif layer is None and type(child).__name__ == "Conv1D" and hasattr(child, "nf"):  # GPT-2's, transposed
                weight, bias = cast(Tensor, child.weight), cast(Tensor, child.bias)
                layer = FrozenLinear(weight.t().contiguous(), bias)
            if layer is not None:
                frozen[child] = layer
                setattr(parent, name, layer)
