"""Linear layers at the speed of the processor.

On processors, PyTorch hands linear layers to MKL. Where there is AVX-512, they go through oneDNN, which can keep
weights that never change in the order its kernels read them. MKL was measured to be faster without AVX-512, and on
processors of Intel for weights that are not kept in such an order, as those of a probe. oneDNN's operations are private
in torch: if they are missing or take other arguments, if there is no AVX-512, or if weights are not float32 on an x86
processor, everything here is plain `torch.nn.functional.linear`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`inputs @ weight.T + bias`, `[..., out]`; differentiable in all three."""
    # oneDNN has no gradient of a weight from no rows
    if not inputs.numel() or not _onednn_takes(weight) or _intel():
        return nn.functional.linear(inputs, weight, bias)
    rows = inputs.reshape(-1, inputs.shape[-1])
    outputs = _by_rows(rows, lambda whole: _Linear.apply(whole, weight, bias))
    return outputs.view(*inputs.shape[:-1], len(weight))


class FrozenLinear(nn.Module):
    """A linear layer, differentiable in its input alone."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._ordered: dict[bool, tuple[tuple[int, int], Tensor]] = {}
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
                kept = state, _reordered(weight)
            self._ordered[transposed] = kept
        return kept[1]


def some_outputs(projection: nn.Module, inputs: Tensor, rows: Tensor) -> Tensor:
    """The outputs `rows` of a projection, `[..., row]`; if it is a linear layer, the others are not computed."""
    if isinstance(projection, FrozenLinear):
        outputs: Tensor = projection.only(rows)(inputs)
    elif type(projection) is nn.Linear:
        bias = None if projection.bias is None else projection.bias[rows]
        outputs = linear(inputs, projection.weight[rows], bias)
    else:  # somebody's own, which may do more than its weight says
        outputs = projection(inputs).index_select(-1, rows)
    return outputs


def freeze_linears(model: nn.Module) -> None:
    """Put a `FrozenLinear` in the place of every linear layer of `model`, with its weights.

    A module that stands in several places stays one.
    """
    frozen: dict[nn.Module, FrozenLinear] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            own = frozen.get(child)
            if own is None and type(child) is nn.Linear:
                own = FrozenLinear(child.weight, child.bias)
            elif own is None and type(child).__name__ == "Conv1D" and hasattr(child, "nf"):  # GPT-2's, transposed
                weight, bias = cast(Tensor, child.weight), cast(Tensor, child.bias)
                own = FrozenLinear(weight.t().contiguous(), bias)
            if own is not None:
                frozen[child] = own
                setattr(parent, name, own)


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
    product: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return product


def _reordered(weight: Tensor) -> Tensor:
    reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return reordered


def _by_rows(inputs: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
    """`layer` on `inputs` with a rounded number of rows."""
    size = inputs.shape[-1]
    count = inputs.numel() // size
    idle = rounded_up(count) - count
    if not idle:  # as rows of a packed batch are by themselves; every cut would cost a copy on the way back
        return layer(inputs)
    rows = inputs.reshape(-1, size)
    outputs = layer(torch.cat([rows, rows.new_zeros(idle, size)]))[:count]
    return outputs.view(*inputs.shape[:-1], outputs.shape[-1])


def _onednn_takes(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and bool(torch.backends.mkldnn.enabled)
        and _wide()
        and not torch.is_autocast_enabled("cpu")
        and _onednn_works()
    )


@cache
def _wide() -> bool:
    """Whether the processor has AVX-512. On one of AMD without it, MKL took 0.8 to 0.9 of oneDNN's time."""
    return "AVX512" in torch.backends.cpu.get_cpu_capability()


@cache
def _intel() -> bool:
    """Whether Intel made the processor. On a Xeon MKL took 0.5 to 0.9 of oneDNN's time for the weights of a probe."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        told = platform.processor()
    return "GenuineIntel" in told


@cache
def _onednn_works() -> bool:
    """Whether this torch has oneDNN's operations, they take what they are given here, and they multiply."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    inputs, weight, bias = torch.ones(2, 3), torch.ones(5, 3), torch.ones(5)
    try:
        with torch.inference_mode(False), torch.no_grad():
            products = _multiply(inputs, weight, bias), _multiply(inputs, _reordered(weight), bias)
    except (AttributeError, RuntimeError, TypeError):  # in this order: not there, other arguments, other types
        return False
    return all(torch.equal(product, torch.full((2, 5), 4.0)) for product in products)
