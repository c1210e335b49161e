"""Attention that a model computes in its own code, caught at its softmax.

Some models look up no attention function. They compute scores, call softmax, and multiply the result by the values. A
torch function mode sees both calls while the model runs. It can observe the attention, replace it or mix it with
constants, and change the outputs of heads. Calls of softmax are counted, because a router or a pooling layer may call
it, too; `SoftmaxCalls` has the numbers of those that compute attention.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from papa.data.packed import Examples
from papa.errors import InputError
from papa.model.attention import Observed, Session
from papa.model.replacement import Keep, Matrices, ObservedLayer, Outputs, restrict

SOFTMAX = frozenset({torch.softmax, functional.softmax, Tensor.softmax})
PRODUCTS = frozenset(
    {torch.matmul, torch.bmm, torch.einsum, Tensor.matmul, Tensor.bmm, Tensor.__matmul__}
)
"""Functions by which models multiply attention and values."""
Product = Callable[[Tensor], Tensor]
"""Maps attention `[example, head, query, key]` to what the model computes from it and the values."""


@dataclass(frozen=True)
class CaughtLayer(ObservedLayer):
    """A layer of a model with its own attention.

    Args:
        product: multiplies attention by the values.
        axes: the axes of examples, heads, queries and channels in the product.
    """

    product: Product
    axes: tuple[int, ...]

    def outputs(self, attention: Tensor) -> Tensor:
        return _unflattened(self.product(attention), attention.shape).permute(self.axes)


class SoftmaxMode(TorchFunctionMode, ABC):
    """A torch function mode for one pass of a model, which follows attention from its softmax to the values."""

    def __init__(self, session: Session):
        super().__init__()
        self.session = session
        self.softmaxes = 0
        """Number of calls of softmax in this pass."""
        self.candidates = Counter[int]()
        """Numbers of those whose result has the shape of attention, by the number of its heads."""
        self.awaited: list[Tensor] = []
        """The attention of the last layer, and what was made from it, until it is multiplied by the values."""
        self.attention = torch.zeros(0)

    @abstractmethod
    def after_softmax(self, result: Tensor, attention: Tensor | None) -> Tensor:
        """Return what the model gets as the result of the last call of softmax.

        `attention` is the result as `[example, head, query, key]`; None if its shape does not fit.
        """

    @abstractmethod
    def after_product(self, product: Product, awaited: Tensor) -> Tensor:
        """Return what the model gets as the product of the `awaited` attention and the values."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        place = self._awaited_place(args)
        if place is not None and function in PRODUCTS:
            awaited = args[place]
            self.awaited = []

            def product(attention: Tensor) -> Tensor:
                changed = attention.reshape(awaited.shape).to(awaited)
                multiplied: Tensor = function(
                    *args[:place], changed, *args[place + 1 :], **keywords
                )
                return multiplied

            return self.after_product(product, awaited)
        result = function(*args, **keywords)
        if function in SOFTMAX and self.session.examples is not None:
            self.softmaxes += 1
            attention = by_head(result, self.session.layout)
            if attention is not None:
                # by number of heads, because a router over as many experts as tokens has the shape of attention, too
                self.candidates[attention.shape[1]] += 1
            return self.after_softmax(result, attention)
        is_tensor = place is not None and isinstance(result, Tensor)
        if is_tensor and self.is_still_attention(result):
            self.awaited.append(result)
        return result

    def is_still_attention(self, result: Tensor) -> bool:
        """Return whether what was computed from attention is still attention, as after dropout or a cast."""
        return result.numel() == self.attention.numel()

    def _awaited_place(self, args: tuple[Any, ...]) -> int | None:
        """Return the index of the argument that is the awaited attention; None if there is none."""
        for index, argument in enumerate(args):
            # `in` would compare the values of tensors
            if any(argument is attention for attention in self.awaited):
                return index
        return None


class SoftmaxRecorder(SoftmaxMode):
    """Records the calls of softmax whose result is multiplied by values; nothing is replaced."""

    def __init__(self, session: Session):
        super().__init__(session)
        self.calls: list[Recorded] = []

    def after_softmax(self, result: Tensor, attention: Tensor | None) -> Tensor:
        if attention is not None:
            self.attention = attention
            self.awaited = [result]
        return result

    def is_still_attention(self, result: Tensor) -> bool:
        """Return whether a result has the values of the attention; it does not if the model mixes heads."""
        if not super().is_still_attention(result):
            return False
        # sorted, because the model may swap axes; the tolerance is for a cast to bfloat16, which rounds by up to 0.002
        values = result.to(self.attention).flatten().sort().values
        return torch.allclose(values, self.attention.flatten().sort().values, atol=1e-2)

    def after_product(self, product: Product, awaited: Tensor) -> Tensor:
        axes = axes_of(product, self.attention)
        self.calls.append(Recorded(self.softmaxes - 1, axes, self.attention))
        return product(awaited)


class SoftmaxReplacer(SoftmaxMode):
    """Applies the instructions of a session to the attention, and shows it to the session's observer."""

    def after_softmax(self, result: Tensor, attention: Tensor | None) -> Tensor:
        session = self.session
        layer = session.calls
        numbers = session.softmax_calls.numbers
        if self.candidates[session.known.heads] > session.softmax_calls.candidates:
            raise InputError(
                "Attention was computed more often than the model has layers, perhaps because a hook called another "
                "model; call it before or afterwards."
            )
        if layer == len(numbers) or self.softmaxes - 1 != numbers[layer]:
            return result
        if attention is None or attention.shape[1] != session.known.heads:
            raise InputError(
                f"The model's softmax number {self.softmaxes} gives {list(result.shape)}, which is not the attention "
                f"of {session.known.heads} heads over {session.layout.slots.shape[1]} tokens; such inputs "
                "cannot be used."
            )
        self.attention = attention
        # models view it in other shapes, which expanded constants do not allow
        replaced = self._replaced(attention, layer).contiguous().view(result.shape)
        self.awaited = [replaced]
        return replaced

    def _replaced(self, attention: Tensor, layer: int) -> Tensor:
        """Return attention in which heads have their constants, if these are matrices."""
        instruction = self.session.replacement[layer]
        if isinstance(instruction, Keep) or not isinstance(instruction.substitute, Matrices):
            return attention
        allowed = visible_keys(self.session, layer)
        constants = restrict(instruction.substitute, self.session.layout, allowed).to(attention)
        return instruction.applied(attention, constants.expand(len(attention), -1, -1, -1))

    def after_product(self, product: Product, awaited: Tensor) -> Tensor:
        """Return the product in which heads have their constants, if these are outputs."""
        session = self.session
        layer = session.calls
        session.calls += 1
        axes = session.softmax_calls.axes[layer]
        caught = CaughtLayer(layer, session.layout, product, axes)
        if session.observer is not None:
            session.observer(caught, self.attention, 0)
            if layer == session.last_layer:
                raise Observed
        result = product(awaited)
        instruction = session.replacement[layer]
        if isinstance(instruction, Keep) or not isinstance(instruction.substitute, Outputs):
            return result
        outputs = _unflattened(result, self.attention.shape).permute(axes)
        constants = instruction.substitute.context(caught, None).to(outputs)
        changed = instruction.applied(outputs, constants)
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


def recorded_calls(
    session: Session, run: Callable[[], object]
) -> tuple[list[Recorded], Counter[int]]:
    """Run a model once, and return the calls of softmax whose result is multiplied by values.

    The second result has the numbers of all calls whose result has the shape of attention, by the number of its heads.
    """
    recorder = SoftmaxRecorder(session)
    catching = session.catching
    session.catching = lambda: recorder
    try:
        run()
    finally:
        session.catching = catching
    return recorder.calls, recorder.candidates


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


def visible_keys(session: Session, layer: int) -> Tensor | None:
    """Return the keys that queries see, `[example or 1, 1, query or 1, key]`; None if every query sees every key.

    They follow from padding, causality and the layer's window. Masked scores do not show them, because models mask
    with numbers that other scores may reach after rounding.
    """
    examples = session.layout
    real = examples.real_keys
    if not session.causal:
        return real
    window = session.softmax_calls.windows[layer]
    columns = examples.distinct(examples.columns)
    distances = columns[:, None, -examples.queries :, None] - columns[:, None, None, :]
    seen = distances >= 0 if window is None else (distances >= 0) & (distances < window)
    return seen if real is None else seen & real


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
    if outside.any() or hidden.any():
        raise InputError("a layer hides keys that are not outside of a window.")
    return farthest + 1
