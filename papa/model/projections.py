"""Pruned projections: linear layers that skip outputs which feed only queries and keys of replaced heads.

Gradients identify these outputs; names are not used. So fused projections, grouped heads, modules that layers share,
norms over all heads and gates next to queries need no special treatment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor, nn

from papa.model.attention import Session
from papa.model.linear import FrozenLinear, part_of
from papa.model.replacement import Replace

Call = tuple[str, int]
"""The name of a linear layer, and the index of the transformer layer whose attention follows the call."""


@dataclass(frozen=True)
class Feeds:
    """The uses of each output of a linear layer.

    Args:
        elsewhere: bool `[output]`, True if the output feeds anything but queries and keys.
        queries: bool `[head, output]`, True if the output feeds the head's query.
        keys: bool `[key head, output]`, True if the output feeds the key head.
    """

    elsewhere: Tensor
    queries: Tensor
    keys: Tensor

    def needed(self, kept: Tensor) -> Tensor:
        """Return bool `[output]`, True if the output is needed when the heads in `kept` keep their attention."""
        kept = kept.to(self.elsewhere.device)
        groups = kept // (len(self.queries) // len(self.keys))
        return self.elsewhere | self.queries[kept].any(0) | self.keys[groups].any(0)


class PrunedProjection(FrozenLinear):
    """A linear layer that computes only the outputs that kept heads need; the others are zero, unless it is `whole`.

    Its weights have the names of the layer that it replaces, so a model can still be saved.
    """

    def __init__(self, full: nn.Linear, feeds: dict[int, Feeds], session: Session):
        transposed = isinstance(full, FrozenLinear) and full.transposed
        super().__init__(full.weight, full.bias, transposed)
        self.feeds = feeds
        self.session = session
        self.whole = False
        self._partial: dict[int, tuple[Tensor, PartialLinear | None]] = {}

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[..., out]` from `[..., in]`."""
        layer = self.session.calls
        instruction = (
            self.session.replacement[layer] if layer < len(self.session.replacement) else None
        )
        kept = instruction.kept if isinstance(instruction, Replace) else None
        if self.whole or kept is None or layer not in self.feeds:
            return super().forward(inputs)
        cached = self._partial.get(layer)
        # replacements of the same heads share `kept`, even if their constants differ
        if cached is None or cached[0] is not kept:
            needed = self.feeds[layer].needed(kept)
            cached = self._partial[layer] = (
                kept,
                PartialLinear.of(self, needed) if needed.any() else None,
            )
        partial = cached[1]
        return (
            inputs.new_zeros(*inputs.shape[:-1], len(self.weight))
            if partial is None
            else partial(inputs)
        )


@dataclass(frozen=True)
class PartialLinear:
    """Some outputs of a linear layer; the others are zero.

    Args:
        layer: the layer restricted to the computed outputs.
        outputs: number of outputs of the full layer.
        blocks: int64, the indices of the computed blocks of adjacent outputs.
    """

    layer: nn.Linear
    outputs: int
    blocks: Tensor

    @classmethod
    def of(cls, full: nn.Linear, needed: Tensor) -> PartialLinear:
        """Restrict a layer to the `needed` outputs, bool `[output]`."""
        rows = needed.nonzero().squeeze(1)
        # the outputs of a head are a block, which is copied faster than single outputs
        edges = (needed[1:] != needed[:-1]).nonzero().squeeze(1) + 1
        size = gcd(len(needed), *edges.tolist())
        with torch.inference_mode(False):  # it may be created while scoring and used while training
            blocks = torch.tensor(
                [row // size for row in rows.tolist()[::size]], device=full.weight.device
            )
        return cls(part_of(full, rows), len(needed), blocks)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return `[..., out]` from `[..., in]`."""
        computed: Tensor = self.layer(inputs)
        size = computed.shape[-1] // len(self.blocks)
        filled = computed.new_zeros(*inputs.shape[:-1], self.outputs // size, size)
        return filled.index_copy_(
            -2, self.blocks, computed.view(*inputs.shape[:-1], -1, size)
        ).flatten(-2)


def prune_projections(model: nn.Module, session: Session, run: Callable[[], Tensor]) -> None:
    """Replace linear layers so that they skip outputs that only replaced heads would use.

    Args:
        model: a model with frozen linear layers and papa's attention.
        session: the session of the model.
        run: runs the model on a few tokens with no head replaced; returns values that depend on all modules.
    """
    linears = {
        name: module
        for name, module in model.named_modules()
        if type(module) in (nn.Linear, FrozenLinear)
    }
    feeds_of: dict[str, dict[int, Feeds]] = {}
    for (name, layer), feeds in scan(linears, session, run).items():
        feeds_of.setdefault(name, {})[layer] = feeds
    for name, by_layer in feeds_of.items():
        model.set_submodule(name, PrunedProjection(linears[name], by_layer, session))


def scan(
    linears: dict[str, nn.Linear], session: Session, run: Callable[[], Tensor]
) -> dict[Call, Feeds]:
    """Return, for each call of a linear layer that has outputs only for queries or keys, the uses of its outputs."""
    shifts: dict[Call, Tensor] = {}
    repeated: set[Call] = set()
    attended: list[tuple[set[nn.Module], Tensor, Tensor]] = []
    generator = torch.Generator().manual_seed(0)

    def shifting(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def shift(_: nn.Module, __: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
            call = name, session.calls
            if call in shifts:
                repeated.add(call)
                return outputs
            shifts[call] = torch.zeros_like(outputs, requires_grad=True)
            return outputs + shifts[call]

        return shift

    def constant_context(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return a context that depends on the values but on no query and no key."""
        attended.append((set(module.modules()), query, key))
        weights = (
            torch.rand(query.shape[2], value.shape[2], generator=generator).to(value).softmax(-1)
        )
        return (
            (weights @ value.repeat_interleave(query.shape[1] // value.shape[1], 1))
            .transpose(1, 2)
            .contiguous()
        )

    def dependencies(values: Tensor, of: list[Tensor]) -> list[Tensor]:
        """Return for each shift in `of` the outputs that `values` depend on, bool `[output]`."""
        nothing = [
            torch.zeros(shift.shape[-1], dtype=torch.bool, device=shift.device) for shift in of
        ]
        if not values.requires_grad:
            return nothing
        weights = torch.rand(values.shape, generator=generator).to(values) + 0.5
        gradients = torch.autograd.grad(
            (values * weights).sum(), of, retain_graph=True, allow_unused=True
        )
        return [
            none if gradient is None else gradient.flatten(0, -2).ne(0).any(0)
            for none, gradient in zip(nothing, gradients, strict=True)
        ]

    hooks = [module.register_forward_hook(shifting(name)) for name, module in linears.items()]
    session.stand_in = constant_context
    try:
        with torch.inference_mode(False), torch.enable_grad():
            output = run()
            others = dict(zip(shifts, dependencies(output, list(shifts.values())), strict=True))
            uses = {}
            for layer, (inside, query, key) in enumerate(attended):
                # modules outside attention, such as a router of experts, may have uses that these tokens do not show
                within = [
                    call for call in shifts if call[1] == layer and linears[call[0]] in inside
                ]
                calls = [call for call in within if not others[call].all()]
                if not calls:
                    continue
                possible = [shifts[call] for call in calls]
                of_query, of_key = (
                    [dependencies(head, possible) for head in projected.unbind(1)]
                    for projected in (query, key)
                )
                for index, call in enumerate(calls):
                    queries, keys = (
                        torch.stack([uses_of[index] for uses_of in of]) for of in (of_query, of_key)
                    )
                    # outputs without a visible use are computed anyway
                    elsewhere = others[call] | ~(queries.any(0) | keys.any(0))
                    if call not in repeated and not elsewhere.all():
                        uses[call] = Feeds(elsewhere, queries, keys)
            return uses
    finally:
        session.stand_in = None
        for hook in hooks:
            hook.remove()
