"""Pruned projections: linear layers that skip outputs which feed only queries and keys of replaced heads.

Gradients identify these outputs; names are not used. So fused projections, grouped heads, modules that layers share,
norms over all heads and gates next to queries need no special treatment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
        replacement = self.session.replacement
        instruction = replacement[layer] if layer < len(replacement) else None
        kept = instruction.kept if isinstance(instruction, Replace) else None
        feeds = None if self.whole else self.feeds.get(layer)
        if kept is None or feeds is None:
            return super().forward(inputs)
        cached = self._partial.get(layer)
        # replacements of the same heads share `kept`, even if their constants differ
        if cached is None or cached[0] is not kept:
            needed = feeds.needed(kept)
            cached = (kept, PartialLinear.of(self, needed) if needed.any() else None)
            self._partial[layer] = cached
        restricted = cached[1]
        if restricted is None:
            return inputs.new_zeros(*inputs.shape[:-1], len(self.weight))
        return restricted(inputs)


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
        # it may be created while scoring and used while training
        with torch.inference_mode(False):
            blocks = torch.tensor(rows.tolist()[::size], device=full.weight.device) // size
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
    for name, by_layer in scan(linears, session, run).items():
        model.set_submodule(name, PrunedProjection(linears[name], by_layer, session))


def scan(
    linears: dict[str, nn.Linear], session: Session, run: Callable[[], Tensor]
) -> dict[str, dict[int, Feeds]]:
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
            return trace.feeds(run())
    finally:
        session.stand_in = None
        for hook in hooks:
            hook.remove()


class Trace:
    """A run of a model with a shift of zeros added to each output of a linear layer; gradients show its uses.

    `shifts` has the shift of each call, `repeated` the calls that a layer makes more than once, and `attended` the
    modules, the queries and the keys of each attention.
    """

    def __init__(self, linears: dict[str, nn.Linear], session: Session):
        self.linears = linears
        self.session = session
        self.shifts: dict[Call, Tensor] = {}
        self.repeated: set[Call] = set()
        self.attended: list[tuple[set[nn.Module], Tensor, Tensor]] = []
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
        self.attended.append((set(module.modules()), query, key))
        weights = torch.rand(query.shape[2], value.shape[2], generator=self.generator)
        values = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        return (weights.to(value).softmax(-1) @ values).transpose(1, 2).contiguous()

    def feeds(self, output: Tensor) -> dict[str, dict[int, Feeds]]:
        """Return the result of `scan`, after a run that returned `output`."""
        elsewhere = self._dependencies(output, list(self.shifts))
        feeds: dict[str, dict[int, Feeds]] = {}
        for layer, (inside, query, key) in enumerate(self.attended):
            # modules outside attention, such as a router of experts, may have uses that these tokens do not show
            within = [
                call for call in self.shifts if call[1] == layer and self.linears[call[0]] in inside
            ]
            calls = [call for call in within if not elsewhere[call].all()]
            of_query = [self._dependencies(head, calls) for head in query.unbind(1)]
            of_key = [self._dependencies(head, calls) for head in key.unbind(1)]
            for call in calls:
                queries = torch.stack([outputs[call] for outputs in of_query])
                keys = torch.stack([outputs[call] for outputs in of_key])
                # outputs without a visible use are computed anyway
                needed = elsewhere[call] | ~(queries.any(0) | keys.any(0))
                if call not in self.repeated and not needed.all():
                    feeds.setdefault(call[0], {})[layer] = Feeds(needed, queries, keys)
        return feeds

    def _dependencies(self, values: Tensor, calls: list[Call]) -> dict[Call, Tensor]:
        """Return for each call the outputs that `values` depend on, bool `[output]`."""
        shifts = [self.shifts[call] for call in calls]
        gradients: Sequence[Tensor | None] = [None] * len(calls)
        if calls and values.requires_grad:
            weights = torch.rand(values.shape, generator=self.generator).to(values) + 0.5
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
