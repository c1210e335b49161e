"""Linear layers at the speed of the processor.

On processors, PyTorch hands linear layers to MKL, which gets about half out of AMD chips of what they can do. oneDNN
gets more, and can keep weights that never change in the order its kernels read them. Where it is missing, or weights
are not float32 on an x86 processor, everything here is plain `torch.nn.functional.linear`.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`inputs @ weight.T + bias`, `[..., out]`; differentiable in all three."""
    if not _onednn_takes(weight):
        return nn.functional.linear(inputs, weight, bias)
    return _by_rows(inputs, lambda rows: _Linear.apply(rows, weight, bias))


class FrozenLinear(nn.Module):
    """A linear layer, differentiable in its input alone."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._ordered: dict[bool, tuple[Any, Tensor]] = {}
        self._part: tuple[list[int], FrozenLinear] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """`[..., out]` from `[..., in]`."""
        if not _onednn_takes(self.weight):
            return nn.functional.linear(inputs, self.weight, self.bias)
        return _by_rows(inputs, lambda rows: _FrozenLinear.apply(rows, self))

    def only(self, outputs: Tensor) -> FrozenLinear:
        """The layer that computes these outputs and no others; the last one asked for is kept."""
        asked = outputs.tolist()
        if self._part is None or self._part[0] != asked:
            with torch.inference_mode(False):
                outputs = torch.tensor(asked, device=self.weight.device)
                bias = None if self.bias is None else self.bias[outputs]
                self._part = asked, FrozenLinear(self.weight[outputs], bias)
        return self._part[1]

    def ordered(self, transposed: bool = False) -> Tensor:
        """The weight, or its transpose, as oneDNN reads it fastest; made again where the weight has changed."""
        state = self.weight.data_ptr(), self.weight._version
        kept = self._ordered.get(transposed)
        if kept is None or kept[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                weight = self.weight.t() if transposed else self.weight
                kept = state, torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
            self._ordered[transposed] = kept
        return kept[1]


def freeze_linears(model: nn.Module) -> None:
    """Put a `FrozenLinear` in the place of every linear layer of `model`, with its weights."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, FrozenLinear(child.weight, child.bias))


def rounded_up(rows: int) -> int:
    """The next of few numbers of rows: oneDNN compiles and keeps a kernel for every number it meets."""
    if rows <= 64:  # batches of examples, all of one size
        return rows
    step = 32 if rows <= 1024 else 256
    return -(-rows // step) * step


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(inputs, weight)
        return _multiply(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (inputs, weight), wanted = context.saved_tensors, context.needs_input_grad
        return (
            _multiply(gradient, weight.t()) if wanted[0] else None,
            _multiply(gradient.t(), inputs.t()) if wanted[1] else None,
            gradient.sum(0) if wanted[2] else None,
        )


class _FrozenLinear(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: Tensor, layer: FrozenLinear) -> Tensor:
        context.layer = layer
        return _multiply(inputs, layer.ordered(), layer.bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _multiply(gradient.contiguous(), context.layer.ordered(transposed=True)), None


def _multiply(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def _by_rows(inputs: Tensor, layer: Any) -> Tensor:
    """`layer` on `inputs` as a matrix with a rounded number of rows."""
    rows = inputs.reshape(-1, inputs.shape[-1])
    idle = rounded_up(len(rows)) - len(rows)
    whole = torch.cat([rows, rows.new_zeros(idle, rows.shape[1])]) if idle else rows
    return layer(whole)[: len(rows)].view(*inputs.shape[:-1], -1)


def _onednn_takes(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
    )
