"""Fast linear layers on CPUs.

On CPUs, PyTorch computes linear layers with MKL. On CPUs with AVX-512, papa uses oneDNN, which can prepack frozen
weights in the order in which its kernels read them. In our measurements, MKL was faster on CPUs without AVX-512. On
Intel CPUs it was also faster for weights that are not prepacked, such as those of a probe.

oneDNN's operations are private in torch. If they are missing or take other arguments, papa uses
`torch.nn.functional.linear`. It also does so without AVX-512, and for weights that are not float32 on an x86 CPU.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `inputs @ weight.T + bias`, `[..., out]`; differentiable in all three."""
    # for inputs without rows, oneDNN computes no gradient of the weight
    if not inputs.numel() or not _onednn_supports(weight) or _is_intel():
        return nn.functional.linear(inputs, weight, bias)
    rows = inputs.reshape(-1, inputs.shape[-1])
    outputs = _by_rows(rows, lambda whole: _Linear.apply(whole, weight, bias))
    return outputs.view(*inputs.shape[:-1], len(weight))


class FrozenLinear(nn.Module):
    """A linear layer that computes gradients only for its input."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._prepacked: dict[bool, tuple[tuple[int, int], Tensor]] = {}
        self._partial: tuple[list[int], FrozenLinear] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[..., out]` from `[..., in]`."""
        inputs = inputs.to(self.weight.device)  # a prediction head may be on another device than the last layer
        if not _onednn_supports(self.weight):
            return nn.functional.linear(inputs, self.weight, self.bias)
        return _by_rows(inputs, lambda rows: _FrozenLinear.apply(rows, self))

    def only(self, outputs: Tensor) -> FrozenLinear:
        """Return a layer that computes only these outputs; the last such layer is cached."""
        rows = outputs.tolist()
        if self._partial is None or self._partial[0] != rows:
            with torch.inference_mode(False):
                outputs = torch.tensor(rows, device=self.weight.device)
                bias = None if self.bias is None else self.bias[outputs]
                self._partial = rows, FrozenLinear(self.weight[outputs], bias)
        return self._partial[1]

    def prepacked(self, transposed: bool = False) -> Tensor:
        """Return the current weight, or its transpose, in the order that oneDNN reads fastest."""
        state = self.weight.data_ptr(), self.weight._version
        cached = self._prepacked.get(transposed)
        if cached is None or cached[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                weight = self.weight.t() if transposed else self.weight
                cached = state, _prepack(weight)
            self._prepacked[transposed] = cached
        return cached[1]


def some_outputs(projection: nn.Module, inputs: Tensor, rows: Tensor) -> Tensor:
    """Return the outputs `rows` of a projection, `[..., row]`; a linear layer computes only these."""
    if isinstance(projection, FrozenLinear):
        outputs: Tensor = projection.only(rows)(inputs)
    elif type(projection) is nn.Linear:
        bias = None if projection.bias is None else projection.bias[rows]
        outputs = linear(inputs, projection.weight[rows], bias)
    else:  # an unknown module may do more than multiply by its weight
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


def rounded_up(rows: int) -> int:
    """Round a number of rows up to one of few sizes, because oneDNN compiles and caches a kernel for each size."""
    if rows <= 64:  # batches of examples have few sizes anyway
        return rows
    step = 32 if rows <= 1024 else 256
    return -(-rows // step) * step


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(context: FunctionCtx, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
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
        return _multiply(inputs, layer.prepacked(), layer.bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _multiply(gradient.contiguous(), context.layer.prepacked(transposed=True)), None


def _multiply(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return product


def _prepack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return packed


def _by_rows(inputs: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `layer` to `inputs` with a rounded number of rows."""
    size = inputs.shape[-1]
    count = inputs.numel() // size
    idle = rounded_up(count) - count
    if not idle:  # packed rows are already rounded; slicing would cost a copy in the backward pass
        return layer(inputs)
    rows = inputs.reshape(-1, size)
    outputs = layer(torch.cat([rows, rows.new_zeros(idle, size)]))[:count]
    return outputs.view(*inputs.shape[:-1], outputs.shape[-1])


def _onednn_supports(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and bool(torch.backends.mkldnn.enabled)
        and _has_avx512()
        and not torch.is_autocast_enabled("cpu")
        and _onednn_works()
    )


@cache
def _has_avx512() -> bool:
    """Whether the CPU has AVX-512. On an AMD CPU without it, MKL took 0.8 to 0.9 of oneDNN's time."""
    return "AVX512" in torch.backends.cpu.get_cpu_capability()


@cache
def _is_intel() -> bool:
    """Whether Intel made the CPU. On a Xeon, MKL took 0.5 to 0.9 of oneDNN's time for the weights of a probe."""
    try:
        description = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        description = platform.processor()
    return "GenuineIntel" in description


@cache
def _onednn_works() -> bool:
    """Whether this torch has oneDNN's operations, with the expected arguments and the right result."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    inputs, weight, bias = torch.ones(2, 3), torch.ones(5, 3), torch.ones(5)
    try:
        with torch.inference_mode(False), torch.no_grad():
            products = _multiply(inputs, weight, bias), _multiply(inputs, _prepack(weight), bias)
    except (AttributeError, RuntimeError, TypeError):  # missing, other arguments, other types
        return False
    return all(torch.equal(product, torch.full((2, 5), 4.0)) for product in products)
