"""Attention that a model computes in its own code, caught at its softmax.

Some models look up no attention function. They compute scores, call softmax, and multiply the result by the values. A
torch function mode sees both calls while the model runs. It can observe the attention, replace it or mix it with
constants, and change the outputs of heads. Calls of softmax are counted, because a router or a pooling layer may call
it, too; `SoftmaxCalls` has the numbers of those that compute attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from papa.data.packed import Examples
from papa.errors import InputError
from papa.model.attention import Observed, Session
from papa.model.replacement import Keep, Matrices, Mix, ObservedLayer, Outputs, Replace, restrict

SOFTMAX = frozenset({torch.softmax, functional.softmax, Tensor.softmax})
PRODUCTS = frozenset(
    {torch.matmul, torch.bmm, torch.einsum, Tensor.matmul, Tensor.bmm, Tensor.__matmul__}
)
"""Functions by which models multiply attention and values."""
Product = Callable[[Tensor], Tensor]
"""Maps attention `[example, head, query, key]` to what the model computes from it and the values."""


@dataclass(frozen=True)
class CaughtLayer(ObservedLayer):
    """A layer of a model with its own attention; `product` multiplies attention by the values."""

    product: Product

    def outputs(self, attention: Tensor) -> Tensor:
        return self.product(attention)


class SoftmaxCatcher(TorchFunctionMode):
    """A torch function mode for one pass of a model: it applies the instructions of a session to the attention.

    If `recorded` is given, nothing is replaced, and each call that computes attention is added to it.
    """

    def __init__(self, session: Session, recorded: list[Recorded] | None = None):
        super().__init__()
        self.session, self.recorded = session, recorded
        self.softmaxes = 0
        """Number of calls of softmax in this pass."""
        self.awaited: list[Tensor] = []
        """The attention of the last layer, and what was made from it, until it is multiplied by the values."""
        self.attention = torch.zeros(0)

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if self.session.examples is None:
            return function(*args, **keywords)
        if function in SOFTMAX:
            return self._softmax(partial(function, *args, **keywords))
        place = self._awaited_place(args)
        if place is None:
            return function(*args, **keywords)
        if function in PRODUCTS:
            return self._multiplied(function, args, place, keywords)
        result = function(*args, **keywords)
        # dropout, a cast or a view of the attention is still the attention
        if isinstance(result, Tensor) and result.numel() == self.awaited[0].numel():
            self.awaited.append(result)
        return result

    def _awaited_place(self, args: tuple[Any, ...]) -> int | None:
        """Return the index of the argument that is the awaited attention; None if there is none."""
        for index, argument in enumerate(args):
            if any(argument is attention for attention in self.awaited):
                return index
        return None

    def _softmax(self, compute: Callable[[], Tensor]) -> Tensor:
        number, self.softmaxes = self.softmaxes, self.softmaxes + 1
        session, result = self.session, compute()
        if self.recorded is not None:
            attention = by_head(result, session.layout)
            if attention is not None:
                self.attention, self.awaited = attention, [result]
            return result
        calls, layer = session.softmax_calls, session.calls
        if layer == len(calls.numbers) or number != calls.numbers[layer]:
            return result
        attention = by_head(result, session.layout)
        if attention is None or attention.shape[1] != session.known.heads:
            raise InputError(
                f"The model's softmax number {number + 1} gives {list(result.shape)}, which is not the attention of "
                f"{session.known.heads} heads over {session.layout.slots.shape[1]} tokens; such inputs cannot be used."
            )
        self.attention = attention
        replaced = self._replaced(attention, layer).view(result.shape)
        self.awaited = [replaced]
        return replaced

    def _replaced(self, attention: Tensor, layer: int) -> Tensor:
        """Return attention in which heads have their constants, if these are matrices."""
        instruction = self.session.replacement[layer]
        if isinstance(instruction, Keep) or not isinstance(instruction.substitute, Matrices):
            return attention
        allowed = visible_keys(self.session, layer)
        constants = restrict(instruction.substitute, self.session.layout, allowed).to(attention)
        constants = constants.expand(len(attention), -1, -1, -1)
        if isinstance(instruction, Mix):
            weights = instruction.weights[..., None, None].to(attention)
            return torch.lerp(constants, attention, weights)
        kept = attention.index_select(1, instruction.kept)
        return torch.cat([kept, constants], dim=1).index_select(1, instruction.order)

    def _multiplied(
        self,
        function: Callable[..., Tensor],
        args: tuple[Any, ...],
        place: int,
        keywords: dict[str, Any],
    ) -> Tensor:
        """Return the model's product of attention and values, in which heads have their outputs, if any."""
        awaited, self.awaited = args[place], []

        def product(attention: Tensor) -> Tensor:
            changed = attention.reshape(awaited.shape).to(awaited)
            return function(*args[:place], changed, *args[place + 1 :], **keywords)

        if self.recorded is not None:
            number = self.softmaxes - 1
            axes = axes_of(product, self.attention)
            self.recorded.append(Recorded(number, axes, self.attention))
            return function(*args, **keywords)
        session = self.session
        layer, session.calls = session.calls, session.calls + 1
        instruction = session.replacement[layer]
        axes = session.softmax_calls.axes[layer]
        shape = self.attention.shape
        caught = CaughtLayer(
            layer,
            session.layout,
            product=lambda attention: _unflattened(product(attention), shape).permute(axes),
        )
        if session.observer is not None:
            session.observer(caught, self.attention, 0)
            if layer == session.last_layer:
                raise Observed
        result = function(*args, **keywords)
        if isinstance(instruction, Keep) or not isinstance(instruction.substitute, Outputs):
            return result
        outputs = _unflattened(result, shape).permute(axes)
        changed = with_outputs(instruction, instruction.substitute, caught, outputs)
        inverse = torch.tensor(axes).argsort().tolist()
        return changed.permute(inverse).reshape(result.shape).contiguous()


@dataclass(frozen=True)
class Recorded:
    """A call of softmax that computes attention: its number in the pass, and the attention.

    `axes` are the axes of examples, heads, queries and channels in the product of attention and values.
    """

    number: int
    axes: tuple[int, ...]
    attention: Tensor


def recorded_calls(session: Session, run: Callable[[], object]) -> list[Recorded]:
    """Run a model once, and return the calls of softmax whose result is multiplied by values."""
    recorded: list[Recorded] = []
    catching = session.catching
    session.catching = partial(SoftmaxCatcher, session, recorded)
    try:
        run()
    finally:
        session.catching = catching
    return recorded


def by_head(softmax: Tensor, examples: Examples) -> Tensor | None:
    """Return the result of a softmax as `[example, head, query, key]`; None if it is not attention of all tokens."""
    number, keys = examples.slots.shape
    if softmax.shape[-2:] != (examples.queries, keys) or len(softmax) % number:
        return None
    if softmax.dim() == 3:
        by_example: Tensor = softmax.unflatten(0, (number, -1))
        return by_example
    return softmax if softmax.dim() == 4 and len(softmax) == number else None


def _unflattened(product: Tensor, shape: torch.Size) -> Tensor:
    """Return a product with four axes; examples and heads may share its first one."""
    return product if product.dim() == 4 else product.unflatten(0, shape[:2])


def axes_of(product: Product, attention: Tensor) -> tuple[int, ...]:
    """Return the axes of examples, heads, queries and channels in the product of attention and values.

    Without the attention of the first example, head or query, the product changes only at the first index of its axis.

    Raises:
        InputError: the product has no such axes.
    """
    whole = _unflattened(product(attention), attention.shape)
    axes: list[int] = []
    for axis in range(3):
        without_first = attention.clone()
        without_first.select(axis, 0).zero_()
        changed = _unflattened(product(without_first), attention.shape) != whole
        fitting = [
            candidate
            for candidate in range(4)
            if candidate not in axes
            and whole.shape[candidate] == attention.shape[axis]
            and not changed.transpose(0, candidate)[1:].any()
        ]
        if not fitting:
            raise InputError("the outputs of its heads cannot be identified.")
        axes.append(fitting[0])
    (channels,) = {0, 1, 2, 3} - {*axes}
    return (*axes, channels)


def with_outputs(
    instruction: Replace | Mix, substitute: Outputs, layer: CaughtLayer, outputs: Tensor
) -> Tensor:
    """Return outputs of heads `[example, head, query, channel]`, some of them replaced by or mixed with constants."""
    heads = instruction.heads if isinstance(instruction, Replace) else None
    constants = substitute.context(layer, heads).to(outputs)
    if isinstance(instruction, Mix):
        return torch.lerp(constants, outputs, instruction.weights[..., None, None].to(outputs))
    kept = outputs.index_select(1, instruction.kept)
    return torch.cat([kept, constants], dim=1).index_select(1, instruction.order)


def visible_keys(session: Session, layer: int) -> Tensor | None:
    """Return the keys that queries see, `[example or 1, 1, query or 1, key]`; None if every query sees every key.

    They follow from padding, causality and the layer's window. Masked scores do not show them, because models mask
    with numbers that other scores may reach after rounding.
    """
    examples = session.layout
    real = None if examples.real is None else examples.real[:, None, None, :]
    if not session.causal:
        return real
    window = session.softmax_calls.windows[layer]
    columns = examples.columns[:1] if examples.same_slots else examples.columns
    distances = columns[:, -examples.queries :, None] - columns[:, None, :]
    seen = distances >= 0 if window is None else (distances >= 0) & (distances < window)
    return seen[:, None] if real is None else seen[:, None] & real


def window_of(attention: Tensor) -> int | None:
    """Return the number of keys that a query of a causal layer sees at most; None if it sees all earlier ones.

    `attention` is `[1, head, query, key]` of a text without padding.

    Raises:
        InputError: the layer hides other keys than those outside a window.
    """
    seen = attention[0].amax(0) > 0
    positions = torch.arange(len(seen), device=seen.device)
    distances = positions[:, None] - positions
    farthest = int(distances[seen].max())
    if farthest == len(seen) - 1:
        return None
    outside = seen & ((distances < 0) | (distances > farthest))
    hidden = ~seen & (distances >= 0) & (distances <= farthest)
    if bool(outside.any()) or bool(hidden.any()):
        raise InputError("a layer hides keys that are not outside of a window.")
    return farthest + 1


def set_slots_of_bias(model: nn.Module, session: Session) -> Callable[[], None]:
    """Let MPNet's encoder compute relative positions from slots; return a function that restores it.

    Its code counts the columns of its input, in which slots that no example uses may be missing.
    """
    changed = [
        module
        for module in model.modules()
        if hasattr(module, "relative_position_bucket")
        and hasattr(module, "relative_attention_bias")
        and hasattr(module, "compute_position_bias")
    ]
    for module in changed:
        module.compute_position_bias = _bias_by_slot(module, session)  # type: ignore[assignment]

    def undo() -> None:
        for module in changed:
            del module.compute_position_bias

    return undo


def _bias_by_slot(encoder: Any, session: Session) -> Callable[..., Tensor]:
    stock = encoder.compute_position_bias

    def bias(hidden: Tensor, *args: Any, num_buckets: int = 32, **keywords: Any) -> Tensor:
        if session.examples is None:
            result: Tensor = stock(hidden, *args, num_buckets=num_buckets, **keywords)
            return result
        buckets = encoder.relative_position_bucket(
            -session.layout.distances, num_buckets=num_buckets
        )
        by_head: Tensor = encoder.relative_attention_bias(buckets).permute(0, 3, 1, 2)
        return by_head.expand(len(hidden), -1, -1, -1).contiguous()

    return bias
