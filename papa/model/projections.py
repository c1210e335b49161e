"""Linear layers with frozen weights, which skip outputs that feed only queries and keys of replaced layers.

If all heads of a layer are replaced, nothing reads its queries and keys. Gradients identify the outputs that feed only
these; names are not used. So fused projections, modules that layers share, norms over all heads and gates next to
queries need no special treatment. A layer that keeps some of its heads computes everything: skipping the outputs of the
other heads saved about 5% of a pass with half of the heads replaced, against about 15% with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from papa.model.attention import Session
from papa.model.replacement import Replace

Call = tuple[str, int]
"""The name of a linear layer, and the index of the transformer layer whose attention follows the call."""


@dataclass(frozen=True)
class Uses:
    """The uses of each output of a linear layer.

    Args:
        scores: bool `[output]`, True if the output feeds queries or keys.
        needed: int64, the indices of the outputs that are needed even if nothing reads queries and keys.
    """

    scores: Tensor
    needed: Tensor


UsesByLayer = dict[int, Uses]
"""The uses of a linear layer's outputs, by the index of the transformer layer whose attention follows."""


class FrozenLinear(nn.Linear):
    """A linear layer whose weights, `[out, in]` and `[out]`, need no gradients.

    If it is `transposed`, it takes the place of GPT-2's transposed layer, so it is saved and loaded as `[in, out]`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, transposed: bool = False):
        # the meta device allocates nothing; the weights follow below
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


class PrunedProjection(FrozenLinear):
    """A linear layer that computes only the needed outputs if all heads are replaced; the others are then zero.

    Its weights have the names of the layer that it replaces, so a model can still be saved.
    """

    def __init__(self, full: nn.Linear, uses: UsesByLayer, session: Session):
        transposed = isinstance(full, FrozenLinear) and full.transposed
        super().__init__(full.weight, full.bias, transposed)
        self.uses = uses
        self.session = session

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[..., out]` from `[..., in]`."""
        layer = self.session.calls
        replacement = self.session.replacement
        instruction = replacement[layer] if layer < len(replacement) else None
        replaced = isinstance(instruction, Replace) and not len(instruction.kept)
        if not replaced or layer not in self.uses:
            return super().forward(inputs)
        needed = self.uses[layer].needed.to(inputs.device)
        bias = None if self.bias is None else self.bias[needed]
        computed = linear(inputs, self.weight[needed], bias)
        outputs = computed.new_zeros(*inputs.shape[:-1], self.out_features)
        return outputs.index_copy(-1, needed, computed)


def prune_projections(model: nn.Module, session: Session, run: Callable[[], Tensor]) -> None:
    """Replace linear layers so that they skip outputs that nothing reads if all heads of a layer are replaced.

    Args:
        model: a model with frozen linear layers and papa's attention.
        session: the session of the model.
        run: runs the model on a few tokens with no head replaced; returns values that depend on all modules.
    """
    linears = {
        name: module
        for name, module in model.named_modules()
        # exactly these, because a subclass may compute something else
        if type(module) in (nn.Linear, FrozenLinear)
    }
    for name, by_layer in scan(linears, session, run).items():
        model.set_submodule(name, PrunedProjection(linears[name], by_layer, session))


def scan(
    linears: dict[str, nn.Linear], session: Session, run: Callable[[], Tensor]
) -> dict[str, UsesByLayer]:
    """Return the uses of outputs by linear layer and call, if some of the outputs are only for queries or keys.

    A call is known by the transformer layer whose attention follows it.
    """
    trace = Trace(linears, session)
    hooks = [
        module.register_forward_hook(partial(trace.shift, name)) for name, module in linears.items()
    ]
    session.stand_in = trace.context
    try:
        with torch.inference_mode(False), torch.enable_grad():
            return trace.uses(run())
    finally:
        session.stand_in = None
        for hook in hooks:
            hook.remove()


class Trace:
    """A run of a model with a shift of zeros added to each output of a linear layer; gradients show its uses.

    `shifts` has the shift of each call, `repeated` the calls that a layer makes more than once, and `attended` the
    modules of each attention, with its queries and keys as one tensor.
    """

    def __init__(self, linears: dict[str, nn.Linear], session: Session):
        self.linears = linears
        self.session = session
        self.shifts: dict[Call, Tensor] = {}
        self.repeated: set[Call] = set()
        self.attended: list[tuple[set[nn.Module], Tensor]] = []
        self.generator = torch.Generator().manual_seed(0)

    def shift(self, name: str, _: nn.Module, __: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        """Return the outputs of a linear layer with a shift; a hook of the layer."""
        call = name, self.session.calls
        if call in self.shifts:
            self.repeated.add(call)
            return outputs
        self.shifts[call] = torch.zeros_like(outputs, requires_grad=True)
        return outputs + self.shifts[call]

    def context(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return a context that depends on the values but on no query and no key."""
        scored = torch.cat([query.flatten(), key.flatten()])
        self.attended.append((set(module.modules()), scored))
        weights = torch.rand(query.shape[2], value.shape[2], generator=self.generator)
        values = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        return (weights.to(value).softmax(-1) @ values).transpose(1, 2).contiguous()

    def uses(self, output: Tensor) -> dict[str, UsesByLayer]:
        """Return the result of `scan`, after a run that returned `output`."""
        uses: dict[str, UsesByLayer] = {}
        for layer, (inside, scored) in enumerate(self.attended):
            # modules outside attention, such as a router of experts, may have uses that these tokens do not show
            calls = [
                call for call in self.shifts if call[1] == layer and self.linears[call[0]] in inside
            ]
            # later layers may read the keys of this one, as in Gemma 4
            later = [scored for _, scored in self.attended[layer + 1 :]]
            elsewhere = self._dependencies(torch.cat([output.flatten(), *later]), calls)
            for call, scores in self._dependencies(scored, calls).items():
                # outputs without a visible use are computed anyway
                needed = elsewhere[call] | ~scores
                if call not in self.repeated and not needed.all():
                    indices = needed.nonzero().squeeze(1)
                    uses.setdefault(call[0], {})[layer] = Uses(scores, indices)
        return uses

    def _dependencies(self, values: Tensor, calls: list[Call]) -> dict[Call, Tensor]:
        """Return for each call the outputs that `values` depend on, bool `[output]`."""
        shifts = [self.shifts[call] for call in calls]
        gradients: Sequence[Tensor | None] = [None] * len(calls)
        if calls and values.requires_grad:
            # random, so contributions to the sum do not cancel out, and not near 0, so none vanishes
            weights = torch.rand(values.shape, generator=self.generator).to(values) + 0.5
            # the graph is retained, because every layer asks for gradients of the same pass
            gradients = torch.autograd.grad(
                (values * weights).sum(), shifts, retain_graph=True, allow_unused=True
            )
        return {
            call: (torch.zeros_like(shift) if gradient is None else gradient)
            .flatten(0, -2)
            .ne(0)
            .any(0)
            for call, shift, gradient in zip(calls, shifts, gradients, strict=True)
        }
