"""Measures of the importance of heads that, unlike λ, need no learned gates.

Two need a loss, and therefore a probe trained on the original: `gradient` is the slope of the loss with respect to a
gate on each head, and `leave-one-out` is the increase of the loss if a head is replaced. Two need only attention: its
`variance` around the constant, and the `output-norm` of heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from papa.data.packed import Packed
from papa.data.tokens import Tokens
from papa.method.objective import Objective
from papa.method.progress import progress
from papa.method.states import StreamedStates
from papa.model.attention import Layer
from papa.model.budget import BatchParts, TokenBudget
from papa.model.model import Model
from papa.model.replacement import Constants, Mix, Replace, Replacement

MeasureRows = Callable[[Layer, Tensor], Tensor]
"""Maps a layer and its attention `[example, head, query, key]` to values `[example, head, query]`."""


@dataclass(frozen=True)
class LossOfHeads:
    """The loss of a model on training rows of a task, with a trained probe or with the model's prediction head.

    Masks, if any, have already been drawn. The seed determines the sample of `rows` for `left_out`.
    """

    model: Model
    objective: Objective
    rows: Tensor
    batch_size: int
    seed: int

    def _loss(self, replacement: Callable[[], Replacement]) -> Callable[[Tensor], Tensor]:
        states = StreamedStates(self.model, replacement, probed=self.objective.target.probed)
        return self.objective.loss_on(states)

    def gradients(self, constants: Constants, units: int) -> Tensor:
        """Return |∂loss/∂gate| of each unit's gate, averaged over training examples, float64 `[layer, unit]`.

        Head (l, h) uses gate·attention + (1-gate)·constant with gate = 1. Each example has its own gates, so absolute
        values are taken before averaging (Michel et al. 2019). All heads of a unit share a gate.
        """
        open_gates = torch.ones(self.model.layers, self.model.heads)
        mixes = [mix for mix in self.model.replacement(constants, mixing=open_gates) if isinstance(mix, Mix)]
        gates: list[Tensor] = []  # one per layer, [example, head]
        mixed: Replacement = []
        loss, examples = self._loss(lambda: mixed), len(self.rows)
        total = torch.zeros(self.model.layers, units, dtype=torch.float64, device=self.model.device)

        def slopes_of(parts: Sequence[Tensor]) -> Tensor:
            """Return the summed slopes of the loss of all parts together, `[layer, unit]`."""
            summed = torch.zeros_like(total)
            for part, share in zip(parts, self.objective.shares(parts), strict=True):
                gates[:] = [mix.weights.new_ones(len(part), self.model.heads).requires_grad_() for mix in mixes]
                mixed[:] = [replace(mix, weights=gate) for mix, gate in zip(mixes, gates, strict=True)]
                of_layers = torch.autograd.grad(loss(part), gates)  # on the devices of their layers
                slopes = torch.stack([slopes.to(total) for slopes in of_layers])  # [layer, example, head]
                summed += slopes.unflatten(2, (units, -1)).sum(3).abs().sum(1) * share
            return summed

        parts_of = BatchParts(self.model.device, self.model.recompute)
        for batch in progress(self.rows.split(self.batch_size), "gradients", examples):
            # the loss is the mean over a batch, which divides slopes by the number of its examples
            total += parts_of.run(batch, slopes_of) * len(batch)
        return total / examples

    def left_out(self, constants: Constants, units: int, at_most: int) -> Tensor:
        """Return how much the loss increases, in nats, if only one unit is replaced, float64 `[layer, unit]`.

        The loss is computed on at most `at_most` training examples, the same ones for all units.
        """
        drawn = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(self.seed))
        sample, size = self.rows[drawn[:at_most]].sort().values, self.model.heads // units

        parts_of = BatchParts(self.model.device)

        def loss_with(replacement: Replacement) -> float:
            loss = self._loss(lambda: replacement)

            def mean_loss(parts: Sequence[Tensor]) -> float:
                shares = self.objective.shares(parts)
                return sum(float(loss(part)) * share for part, share in zip(parts, shares, strict=True))

            with torch.inference_mode():
                batches = sample.split(self.batch_size)
                return sum(parts_of.run(batch, mean_loss) * len(batch) for batch in batches) / len(sample)

        original = loss_with(self.model.replacement())
        values = torch.zeros(self.model.layers, units, dtype=torch.float64)
        layers_and_units = torch.tensor(list(product(range(self.model.layers), range(units))))
        for pair in progress(layers_and_units.split(1), "units left out", len(layers_and_units)):
            layer, unit = pair[0].tolist()
            heads = [(layer, head) for head in range(unit * size, (unit + 1) * size)]
            values[layer, unit] = loss_with(self.model.replacement(constants, heads)) - original
        return values


def mean_over_tokens(model: Model, train: Tokens, measure_rows: MeasureRows) -> Tensor:
    """Average a measure of attention rows over all tokens of some texts, float64 `[layer, head]`."""
    total = torch.zeros(model.layers, model.heads, dtype=torch.float64, device=model.device)

    def add(_: Tensor, batch: Packed, __: int) -> None:
        sums = torch.zeros_like(total)  # separate, so a batch that runs out of memory adds nothing

        def watch(layer: Layer, attention: Tensor, _: int) -> None:
            rows, real = measure_rows(layer, attention).double(), layer.examples.real
            sums[layer.index] = (rows if real is None else rows.where(real[:, None], 0)).sum((0, 2))

        with torch.no_grad():
            model.watch(batch, watch)
        total.add_(sums)

    budget = TokenBudget(model.token_budget)
    for _ in progress(budget.run(model, train, add), "weighing heads", len(train)):
        pass
    return total / len(train.ids)


def distances_to(replacement: Replacement) -> MeasureRows:
    """Return a measure: the squared distance of an attention row from the row that would replace it.

    `replacement` replaces all heads. If constants replace the outputs of heads, the distance is between outputs.
    """
    substitutes = [layer.substitute for layer in replacement if isinstance(layer, Replace)]

    def measure_rows(layer: Layer, attention: Tensor) -> Tensor:
        return substitutes[layer.index].distances(attention, layer)

    return measure_rows


def norms_of_contexts(layer: Layer, attention: Tensor) -> Tensor:
    """Return the norm of each head's context for a query: attention times values, before any projection."""
    return (attention @ layer.values(None)).float().square().sum(-1).sqrt()
