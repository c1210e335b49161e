"""What a replaced head need not compute: which outputs of which linear layers feed its query and key, and nothing else.

It is found by gradients and not by names, so that fused projections, grouped heads, modules that layers share, norms
over all heads and gates that stand beside queries come out right by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Literal

import torch
from torch import Tensor, nn

from papa.model.attention import Session
from papa.model.linear import FrozenLinear
from papa.model.replacement import Replace

Way = Literal["whole", "apart", "between zeros"]
"""What a layer that feeds queries and keys gives if heads are replaced: all it has, what kept heads need alone, which
the model then cuts into fewer heads, or that in its place between zeros."""
Place = tuple[str, int]
"""The name of a linear layer, and the number of the attention that is called next after it."""


@dataclass(frozen=True)
class Feeds:
    """What the outputs of a linear layer feed.

    `other` bool `[output]`: something else than queries and keys; `queries` and `keys` bool `[head, output]` and
    `[group, output]`: the query or key of each.
    """

    other: Tensor
    queries: Tensor
    keys: Tensor

    def needed(self, kept: Tensor) -> Tensor:
        """The outputs that are needed if the heads in `kept` attend, bool `[output]`."""
        kept = kept.to(self.other.device)
        groups = kept // (len(self.queries) // len(self.keys))
        return self.other | self.queries[kept].any(0) | self.keys[groups].any(0)

    @property
    def apart(self) -> bool:
        """Whether every head, of queries or of keys, has as many outputs as the next, one head after another."""
        outputs = torch.arange(len(self.other), device=self.other.device)
        feeding = [heads for heads in (self.queries, self.keys) if heads.any()]
        return not self.other.any() and all(
            len(outputs) % len(heads) == 0 and torch.equal(heads, (outputs // (len(outputs) // len(heads))).eq(own))
            for heads in feeding
            for own in [torch.arange(len(heads), device=self.other.device)[:, None]]
        )


class SparingLinear(nn.Module):
    """A linear layer that computes what kept heads need alone; `way` says what it gives."""

    def __init__(self, whole: FrozenLinear, feeds: dict[int, Feeds], session: Session):
        super().__init__()
        self.whole, self.feeds, self.session = whole, feeds, session
        self.way: Way = "between zeros"
        self._parts: dict[int, tuple[Replace, Way, Part | None]] = {}

    @property
    def weight(self) -> Tensor:
        """`[out, in]`."""
        return self.whole.weight

    @property
    def bias(self) -> Tensor | None:
        """`[out]`."""
        return self.whole.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """`[..., out]` from `[..., in]`."""
        layer = self.session.called
        own = self.session.replacement[layer] if layer < len(self.session.replacement) else None
        if self.way == "whole" or not isinstance(own, Replace) or layer not in self.feeds:
            outputs: Tensor = self.whole(inputs)
            return outputs
        part = self._part(layer, own)
        if part is not None:
            return part(inputs)
        shape = *inputs.shape[:-1], len(self.whole.weight)
        # one zero that stands for all costs nothing, but some models take apart how numbers lie in memory
        return inputs.new_zeros(()).expand(shape) if self.way == "apart" else inputs.new_zeros(shape)

    def _part(self, layer: int, own: Replace) -> Part | None:
        """What computes the outputs that are needed; None if none are."""
        found = self._parts.get(layer)
        if found is None or found[0] is not own or found[1] != self.way:
            feeds = self.feeds[layer]
            needed, apart = feeds.needed(own.kept), self.way == "apart" and feeds.apart
            found = self._parts[layer] = own, self.way, Part.of(self.whole, needed, apart) if needed.any() else None
        return found[2]


@dataclass(frozen=True)
class Part:
    """Some outputs of a linear layer, alone or with zeros in the place of the others.

    Args:
        layer: computes these outputs alone.
        outputs: how many there are in the whole.
        blocks: int64, which blocks of so many outputs that follow each other are computed; None if there are to be no
            others.
    """

    layer: FrozenLinear
    outputs: int
    blocks: Tensor | None

    @classmethod
    def of(cls, whole: FrozenLinear, needed: Tensor, apart: bool) -> Part:
        """The part of a layer that gives the `needed` outputs, bool `[output]`, alone if `apart`."""
        if needed.all():
            return cls(whole, len(needed), None)
        rows = needed.nonzero().squeeze(1)
        if apart:
            return cls(whole.only(rows), len(needed), None)
        # heads are blocks, which are copied faster than single outputs
        edges = (needed[1:] != needed[:-1]).nonzero().squeeze(1) + 1
        size = gcd(len(needed), *edges.tolist())
        with torch.inference_mode(False):  # it may be made while a probe is scored, and used while one learns
            blocks = torch.tensor([row // size for row in rows.tolist()[::size]], device=whole.weight.device)
        return cls(whole.only(rows), len(needed), blocks)

    def __call__(self, inputs: Tensor) -> Tensor:
        """`[..., out]` from `[..., in]`."""
        some: Tensor = self.layer(inputs)
        if self.blocks is None:
            return some
        size = some.shape[-1] // len(self.blocks)
        whole = some.new_zeros(*inputs.shape[:-1], self.outputs // size, size)
        return whole.index_copy_(-2, self.blocks, some.view(*inputs.shape[:-1], -1, size)).flatten(-2)


def spare(model: nn.Module, session: Session, run: Callable[[], Tensor]) -> None:
    """Let no linear layer of `model` compute what replaced heads alone would use.

    Args:
        model: a model whose linear layers are frozen and whose attention is papa's.
        session: its session.
        run: runs the model on a few tokens, nothing replaced, and gives what depends on all of it.
    """
    linears = {name: module for name, module in model.named_modules() if isinstance(module, FrozenLinear)}
    found: dict[str, dict[int, Feeds]] = {}
    for (name, layer), feeds in scan(linears, session, run).items():
        found.setdefault(name, {})[layer] = feeds
    for name, feeds_of in found.items():
        model.set_submodule(name, SparingLinear(linears[name], feeds_of, session))


def scan(linears: dict[str, FrozenLinear], session: Session, run: Callable[[], Tensor]) -> dict[Place, Feeds]:
    """What the outputs of all linear layers feed that feed queries or keys of some head alone."""
    shifts: dict[Place, Tensor] = {}
    several: set[Place] = set()
    asked: list[tuple[set[nn.Module], Tensor, Tensor]] = []

    def shifting(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def shift(_: nn.Module, __: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
            place = name, session.called
            if place in shifts:
                several.add(place)
                return outputs
            shifts[place] = torch.zeros_like(outputs, requires_grad=True)
            return outputs + shifts[place]

        return shift

    def spy(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        asked.append((set(module.modules()), query, key))
        # some context of the values that depends on no query and no key
        weights = torch.rand(query.shape[2], value.shape[2], generator=chance).to(value).softmax(-1)
        return (weights @ value.repeat_interleave(query.shape[1] // value.shape[1], 1)).transpose(1, 2).contiguous()

    chance = torch.Generator().manual_seed(0)

    def slopes(values: Tensor, of: list[Tensor]) -> list[Tensor]:
        """Which of the last dimension of each of the shifts `values` depend on, bool `[output]`."""
        nothing = [torch.zeros(shift.shape[-1], dtype=torch.bool, device=shift.device) for shift in of]
        if not values.requires_grad:
            return nothing
        weights = torch.rand(values.shape, generator=chance).to(values) + 0.5
        gradients = torch.autograd.grad((values * weights).sum(), of, retain_graph=True, allow_unused=True)
        return [
            none if gradient is None else gradient.flatten(0, -2).ne(0).any(0)
            for none, gradient in zip(nothing, gradients, strict=True)
        ]

    hooks = [module.register_forward_hook(shifting(name)) for name, module in linears.items()]
    session.spy = spy
    try:
        with torch.inference_mode(False), torch.enable_grad():
            output = run()
            others = dict(zip(shifts, slopes(output, list(shifts.values())), strict=True))
            found = {}
            for layer, (inside, query, key) in enumerate(asked):
                # what stands outside of attention, such as a router of experts, may feed what these tokens do not show
                within = [place for place in shifts if place[1] == layer and linears[place[0]] in inside]
                places = [place for place in within if not others[place].all()]
                own = [shifts[place] for place in places]
                if not own:
                    continue
                of_query, of_key = (
                    list(zip(*(slopes(projected[:, head], own) for head in range(projected.shape[1])), strict=True))
                    for projected in (query, key)
                )
                for number, place in enumerate(places):
                    feeds = Feeds(others[place], torch.stack(of_query[number]), torch.stack(of_key[number]))
                    alone = ~feeds.other & (feeds.queries.any(0) | feeds.keys.any(0))
                    if place not in several and alone.any():
                        # what feeds nothing that was seen is computed all the same
                        unseen = ~(feeds.queries.any(0) | feeds.keys.any(0))
                        found[place] = Feeds(feeds.other | unseen, feeds.queries, feeds.keys)
            return found
    finally:
        session.spy = None
        for hook in hooks:
            hook.remove()
