"""Linear layers with frozen weights, which can compute some of their outputs only."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn


def frozen_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer with these weights, `[out, in]` and `[out]`, which need no gradients."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def part_of(layer: nn.Linear, outputs: Tensor) -> nn.Linear:
    """Return a layer that computes only these outputs."""
    with torch.inference_mode(False):  # it may be made while scoring and used while training
        outputs = outputs.clone()
        return frozen_linear(
            layer.weight[outputs], None if layer.bias is None else layer.bias[outputs]
        )


def some_outputs(projection: nn.Module, inputs: Tensor, rows: Tensor) -> Tensor:
    """Return the outputs `rows` of a projection, `[..., row]`; a frozen linear layer computes only these."""
    if type(projection) is nn.Linear and not projection.weight.requires_grad:
        outputs: Tensor = part_of(projection, rows)(inputs)
    else:
        outputs = projection(inputs).index_select(-1, rows)
    return outputs


def freeze_linears(model: nn.Module) -> None:
    """Freeze a model, and replace GPT-2's transposed linear layers by torch's; shared modules stay shared."""
    frozen: dict[nn.Module, nn.Linear] = {}
    for parent in list(model.requires_grad_(False).modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "Conv1D" and hasattr(child, "nf"):
                weight, bias = cast(Tensor, child.weight), cast(Tensor, child.bias)
                layer = frozen.setdefault(child, frozen_linear(weight.t().contiguous(), bias))
                setattr(parent, name, layer)
