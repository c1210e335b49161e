"""Find the fastest form of batches that works for a model, and check the patched model against the stock one.

The stock model is the unmodified transformers model. If attention were not replaced, or positions were wrong, results
would be plausible but wrong. So papa runs tiny batches and compares their hidden states with those of the stock model.
When heads are replaced, it compares them with a reference implementation of the paper's formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from papa.data.packed import Packed
from papa.errors import InputError, first_line
from papa.model.attention import (
    AttentionFacts,
    NotLookedUp,
    Observed,
    Session,
    SoftmaxCalls,
    running,
)
from papa.model.check import TOLERANCE, Padding, distance, tiny_batch
from papa.model.forms import (
    PADDED,
    Form,
    configs_of,
    dense,
    forms_of,
    options_of,
    patch,
    patch_own_code,
    slots_limit,
)
from papa.model.projections import freeze_linears, prune_projections
from papa.model.reference import Reference
from papa.model.replacement import AnyConstants, Head, Keep, Replacement, replacement_of
from papa.model.softmax import recorded_calls, window_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LONG_LAYOUT = 1024
"""A model with at most this many positions is tried on a packed row with more tokens than positions."""
LEAK = 1e-6
"""Largest relative change of tokens by another token that counts as rounding."""
Stock = tuple[Packed, list[Tensor]]
"""A batch, and the hidden states of its tokens in the stock model."""


@dataclass(frozen=True)
class Checked:
    """The findings of the checks of a model.

    Args:
        form: the fastest form of batches that gives correct results.
        facts: facts about the model's attention.
        states: the number of hidden states, embeddings included.
        hidden: the size of the last hidden state.
        padding_before: whether padding may precede the tokens.
    """

    form: Form
    facts: AttentionFacts
    states: int
    hidden: int
    padding_before: bool


def settle(full: PreTrainedModel, session: Session, checked: Checked | None = None) -> Checked:
    """Replace a model's attention with papa's, in place, and check it; the model may have a prediction head.

    A model that was `checked` before, with the same files and the same code, is not checked again.

    Raises:
        InputError: the model's attention cannot be replaced, or a check fails.
    """
    model = cast("PreTrainedModel", full.base_model)
    # first, because the next lines change the model
    stock = {} if checked else stock_by_padding(model)
    trial = Trial(full, session)
    with trial.undone_if_refused():
        trial.patch(None if checked is None else checked.facts)
        # after the patch and before linear layers are replaced, because undoing runs backwards
        trial.undo.callback(snapshot(full))
        freeze_linears(full)
        return trial.settle(stock, checked)


def snapshot(model: nn.Module) -> Callable[[], None]:
    """Return a function that restores a model's attributes and modules, and lets the same weights learn as now."""
    before = [(module, dict(vars(module)), dict(module._modules)) for module in model.modules()]
    learning = [weights for weights in model.parameters() if weights.requires_grad]

    def restore() -> None:
        for module, attributes, parts in before:
            vars(module).update(attributes)
            module._modules.update(parts)
        for weights in learning:
            weights.requires_grad_(True)

    return restore


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore attributes and submodules that a model changes inside the `with` block.

    After one short text, BigBird would never return to the attention that its config asks for.
    """
    with ExitStack() as after:
        after.callback(snapshot(model))
        yield


def settle_plain(model: PreTrainedModel, session: Session) -> tuple[bool, Callable[[], None]]:
    """Replace only the attention of a model, and check it on a tiny batch; the model is unchanged if that fails.

    Returns:
        whether padding may precede the tokens, and a function that restores the model.
    """
    trial = Trial(model, session)
    with _eval_without_gradients(model), trial.undone_if_refused():
        stock = _stock_with_padding_before(trial.base)
        trial.patch()
        trial.check_formula(tiny_batch(trial.base, "after"))
        padding_before = not trial.facts.causal
        for before in stock.values() if trial.facts.causal else ():
            padding_before = trial.distance_from(before) <= trial.tolerance
    return padding_before, trial.undo.close


def stock_of(model: PreTrainedModel, padding: Padding) -> Stock:
    """Return a tiny batch with padding at this position, and its hidden states in the stock model."""
    batch = tiny_batch(model, padding)
    with unchanged(model):
        return batch, PADDED.states(model, batch)


def _stock_with_padding_before(model: PreTrainedModel) -> dict[Padding, Stock]:
    """Return `stock_of` the model with left padding; nothing if the model does not support it."""
    with suppress(Exception):
        return {"before": stock_of(model, "before")}
    return {}


def stock_by_padding(model: PreTrainedModel) -> dict[Padding, Stock]:
    """Return `stock_of` the model by padding; raise `InputError` if the model cannot run."""
    stock: dict[Padding, Stock] = {}
    for padding in ("between", "after"):
        try:
            stock[padding] = stock_of(model, padding)
        except Exception as error:  # models raise many types of errors
            pad_id = getattr(model.config, "pad_token_id", 0)
            remedy = "" if pad_id is not None else "; set pad_token_id in its config.json"
            problem = first_line(error).removesuffix(".")
            raise InputError(
                f"{type(model).__name__} cannot run as it is ({problem}){remedy}."
            ) from error
        if not all(state.isfinite().all() for state in stock[padding][1]):
            dtype = next(model.parameters()).dtype
            raise InputError(f"its hidden states are not finite in {dtype}; load it in float32.")
    return stock | _stock_with_padding_before(model)


class Trial:
    """A patched model while it is compared with the stock model.

    `form` is the form of batches that is tried, and `undo` has what restores the model.
    """

    def __init__(self, full: PreTrainedModel, session: Session):
        self.full = full
        self.base = cast("PreTrainedModel", full.base_model)
        self.session = session
        self.name = type(self.base).__name__
        self.form = PADDED
        self.weight = next(self.base.parameters())
        self.undo = ExitStack()
        if self.weight.dtype not in TOLERANCE:
            raise InputError(
                f"the weights of {type(full).__name__} are {self.weight.dtype}; load it in float32 or bfloat16."
            )
        self.tolerance = TOLERANCE[self.weight.dtype]

    @property
    def facts(self) -> AttentionFacts:
        """The facts about the model's attention, once they are known."""
        return self.session.known

    @property
    def padding(self) -> Padding:
        """The padding of texts with which the model is checked; the tokens of a causal model have no gaps."""
        return "after" if self.facts.causal else "between"

    @property
    def every_head(self) -> list[Head]:
        """All heads of the model."""
        return list(product(range(self.facts.layers), range(self.facts.heads)))

    @contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """Restore the model if an error is raised, and turn errors in its code into an `InputError`.

        The code may need features that papa's attention lacks.
        """
        with ExitStack() as refused:
            refused.callback(self.undo.close)
            try:
                yield
            except InputError:
                raise
            except Exception as error:
                raise InputError(
                    f"{self.name} cannot run with papa's attention ({first_line(error)})."
                ) from error
            refused.pop_all()

    def run(self, batch: Packed, replacement: Replacement | None = None) -> list[Tensor]:
        examples = self.form.examples(batch, self.session.causal)
        with unchanged(self.base), self.session.over(examples, replacement):
            return self.form.states(self.base, batch)

    def check_distance(self, difference: float, problem: str, where: str = "") -> None:
        """Raise `InputError` with `problem`, the relative difference and `where` if this is more than rounding."""
        # `>` would accept NaN
        if not difference <= self.tolerance:
            raise InputError(f"{problem} by {difference:.1e} (relative){where}.")

    def distance_from(self, stock: Stock) -> float:
        """Return the distance of a batch's states from those of the stock model."""
        batch, states = stock
        return distance(self.run(batch), states)

    def _stock_states(self, batch: Packed) -> list[Tensor]:
        """Return the states of a model with its own attention, which is not caught if no pass has begun."""
        with unchanged(self.base), running(self.session):
            return PADDED.states(self.base, batch)

    def patch(self, known: AttentionFacts | None = None) -> None:
        """Replace the model's attention, and read facts about it unless they are `known`.

        The attention is looked up by name or, if the model looks up none, caught in the model's own code.

        Raises:
            InputError: neither is possible.
        """
        batch = tiny_batch(self.base, "after")
        if known is None or known.softmax is None:
            try:
                patch(self.base, self.undo)
                self._accept(
                    known or AttentionFacts.of(self.name, self.session, lambda: self.run(batch))
                )
                return
            except NotLookedUp:
                self.undo.close()
        patch_own_code(self.base, self.session, self.undo)
        self._accept(known or self._softmax_facts(batch))
        if known is None and self.facts.causal:
            self._accept(self._with_windows(self.facts))

    def _softmax_facts(self, batch: Packed) -> AttentionFacts:
        """Run a model with its own attention on a tiny batch, and return facts about its attention."""
        recorded, candidates = recorded_calls(self.session, lambda: self.run(batch))
        if not recorded:
            raise InputError(
                f"{self.name} neither looks up its attention by name nor multiplies values by the softmax over all "
                "tokens of each head, so papa cannot replace it; if it was loaded with another attention, load it with "
                "attn_implementation='eager'."
            )
        heads = {call.attention.shape[1] for call in recorded}
        if len(heads) > 1:
            raise InputError(f"the layers of {self.name} have different numbers of heads.")
        # the last example of a tiny batch fills all slots
        sees_later = {bool(call.attention[-1].triu(1).any()) for call in recorded}
        if len(sees_later) > 1:
            raise InputError(f"only some layers of {self.name} see later tokens.")
        layers = len(recorded)
        per_layer = heads.pop()
        calls = SoftmaxCalls(
            numbers=tuple(call.number for call in recorded),
            candidates=candidates[per_layer],
            axes=tuple(call.axes for call in recorded),
            windows=(None,) * layers,
        )
        indices = tuple(range(layers))
        return AttentionFacts(layers, per_layer, per_layer, indices, not sees_later.pop(), calls)

    def _with_windows(self, facts: AttentionFacts) -> AttentionFacts:
        """Return the facts with the windows of layers, read from a text longer than any window in the config."""
        values = self.base.config.to_dict().items()
        sizes = [size for name, size in values if "window" in name and isinstance(size, int)]
        if not sizes or facts.softmax is None:
            return facts
        length = min(max(sizes) + 2, slots_limit(self.base, self.form))
        ids = tiny_batch(self.base, "after").ids[-1:].repeat(1, length)
        text = Packed.of({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        windows = tuple(map(window_of, self.observed(text)))
        return replace(facts, softmax=replace(facts.softmax, windows=windows))

    def observed(self, text: Packed) -> list[Tensor]:
        """Return the attention of each layer, `[1, head, query, key]`, of a single text."""
        observed: list[Tensor] = []
        self.session.observer = lambda _, attention, __: observed.append(attention)
        try:
            self.run(text)
        finally:
            self.session.observer = None
        return observed

    def _accept(self, facts: AttentionFacts) -> None:
        self.session.facts = facts
        self.session.replacement = [Keep() for _ in range(facts.layers)]

    def replacement(self, constants: AnyConstants, heads: list[Head] | None = None) -> Replacement:
        return replacement_of(
            (self.facts.layers, self.facts.heads), constants, heads, like=self.weight
        )

    def settle(self, stock: Mapping[Padding, Stock], checked: Checked | None) -> Checked:
        """Run all checks, and choose the form of batches; or take both from those of an earlier process."""
        if checked is not None:
            self.form = checked.form
            self._prune(tiny_batch(self.base, self.padding))
            return checked
        batch, expected = stock[self.padding]
        padding_before = self._choose_form(stock, batch)
        self._check_effect(batch)
        self.check_formula(batch)
        self._check_pruning(batch)
        hidden = int(expected[-1].shape[-1])
        return Checked(self.form, self.facts, len(expected), hidden, padding_before)

    def _prune(self, batch: Packed) -> None:
        if self.facts.softmax is None:
            prune_projections(self.full, self.session, lambda: self.run(batch)[-1])

    def _check_pruning(self, batch: Packed) -> None:
        """Prune projections; raise `InputError` if that changes hidden states."""
        constants = self._identity(batch)
        even, odd = (
            [head for head in self.every_head if head[0] % 2 == remainder] for remainder in (0, 1)
        )
        replacements = [self.replacement(constants, heads) for heads in (even, odd, None)]

        def states() -> list[Tensor]:
            return [state for each in replacements for state in self.run(batch, each)]

        whole = states()
        self._prune(batch)
        self.check_distance(
            distance(states(), whole),
            f"hidden states of {self.name} change",
            " if layers without attention compute no query and no key",
        )

    def _choose_form(self, stock: Mapping[Padding, Stock], batch: Packed) -> bool:
        """Choose the fastest correct form; return whether padding may precede the tokens."""
        problems: dict[Form, str] = {}
        wanted = [stock[padding] for padding in ("after", "before") if padding in stock]
        # prefer any form that is also correct if padding precedes the tokens
        for needed in (wanted, wanted[:1]) if self.facts.causal else ([stock["between"]],):
            for form in forms_of(self.base, self.facts.softmax is not None):
                self.form = form
                try:
                    difference = self._distance_in_form(needed, batch)
                except Exception as error:  # a wrong form may fail in any way
                    problems[form] = str(error) or type(error).__name__
                    continue
                if difference <= self.tolerance:
                    return not self.facts.causal or len(needed) == 2
                problems[form] = (
                    f"with no head replaced, its hidden states differ from those of transformers by {difference:.1e} "
                    f"(relative); at most {self.tolerance:.0e} is allowed in {self.weight.dtype}"
                )
        # the stock model has padded rows, so only their problem is one of the model and not of the form
        raise InputError(f"{problems[PADDED].removesuffix('.')}.")

    def _distance_in_form(self, needed: list[Stock], batch: Packed) -> float:
        """Return the largest distance from the stock model in the form that is tried; infinity if examples mix."""
        difference = distance(
            [state for tiny, _ in needed for state in self.run(tiny)],
            [state for _, states in needed for state in states],
        )
        if self.form.rows == "compact":
            return max(difference, self._distance_with_far_slots())
        if self.form.rows == "packed":
            if not self._isolates_examples(batch):
                return inf
            self._check_long_rows(batch)
        return difference

    def _distance_with_far_slots(self) -> float:
        """Return the distance from the stock model of a short text in a long layout, whose unused slots are left out.

        Some models use another attention for long inputs, and positions may matter only far apart.
        """
        if self.facts.causal:  # its texts have no gaps
            return 0.0
        text = only_last(tiny_batch(self.base, "after"))
        slots = min(slots_limit(self.full, self.form), LONG_LAYOUT)
        used = torch.linspace(0, slots - 1, text.n, device=text.slots.device).long()
        spread = Packed(text.ids, used, text.segments, text.lengths, slots)
        return self.distance_from((spread, self._stock_states(spread)))

    def _check_long_rows(self, batch: Packed) -> None:
        """Raise the model's error if a packed row cannot have more tokens than the model has positions.

        Models that check the length of a row do so before their first attention, so papa stops the pass there.
        """
        limit = slots_limit(self.full, self.form)
        if limit > LONG_LAYOUT:
            return
        copies = limit // len(batch.ids) + 1
        ids, slots, segments = (
            values.repeat(copies) for values in (batch.ids, batch.slots, batch.segments)
        )
        self.session.stand_in = _stop
        try:
            with suppress(Observed):
                self.run(Packed(ids, slots, segments, batch.lengths.repeat(copies), batch.n))
        finally:
            self.session.stand_in = None

    def _isolates_examples(self, batch: Packed) -> bool:
        """Return whether examples in a packed row are independent; a convolution, for example, would leak between them.

        Gradients show even a leak whose effect on hidden states is tiny.
        """
        shifts: list[Tensor] = []

        def shift(_: nn.Module, __: object, embedded: Tensor) -> Tensor:
            shifts.append(torch.zeros_like(embedded, requires_grad=True))
            return embedded + shifts[-1]

        hook = self.base.get_input_embeddings().register_forward_hook(shift)
        try:
            with torch.enable_grad():
                inside = batch.example_of == 1
                states = torch.cat([state[inside] for state in self.run(batch)], dim=1)
                # the plain sum of the outputs of a layer norm is constant, so its gradients are zero
                weights = torch.rand(states.shape, generator=torch.Generator().manual_seed(0)) + 0.5
                feeding = torch.autograd.grad((states * weights.to(states)).sum(), shifts)
        finally:
            hook.remove()
        of_tokens = feeding[0].flatten(0, -2)[: len(inside)]
        return len(shifts) == 1 and not of_tokens[~inside].any()

    def _identity(self, batch: Packed) -> Tensor:
        """Return constants with which each token sees only itself; softmax over several tokens never gives the same."""
        shape = self.facts.layers, self.facts.heads, batch.n, batch.n
        return torch.eye(batch.n, device=self.weight.device, dtype=self.weight.dtype).expand(shape)

    def _check_effect(self, batch: Packed) -> None:
        """Raise `InputError` if replacing all heads of a layer does not change the output of the model."""
        constants = self._identity(batch)
        kept = self.run(batch)[-1]
        for layer in range(self.facts.layers):
            heads = [head for head in self.every_head if head[0] == layer]
            replacement = self.replacement(constants, heads)
            # no tolerance, because any difference proves that the attention is used
            if torch.equal(self.run(batch, replacement)[-1], kept):
                raise InputError(
                    f"replacing the attention of all heads of layer {layer} changes nothing."
                )

    def check_formula(self, batch: Packed) -> None:
        """Raise `InputError` unless the model matches the reference with half of its heads replaced."""
        if self.facts.softmax is not None:
            self._check_kernel(batch)
            self._check_own_attention(only_last(batch))
            self._check_isolation(batch)
            return
        # alternating from layer to layer, so heads or layers that are mixed up show
        half = [(layer, head) for layer, head in self.every_head if head % 2 == layer % 2]
        self.check_distance(
            self.distance_from_formula(batch, half),
            f"with half of the heads of {self.name} replaced, hidden states differ from the formula",
        )

    def distance_from_formula(self, batch: Packed, heads: list[Head]) -> float:
        """Return the distance of a batch's states from the reference, with random constants for these heads."""
        shape = self.facts.layers, self.facts.heads, batch.n, batch.n
        # drawn on the CPU, so a model is checked with the same constants on every device
        constants = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        states = self.run(batch, self.replacement(constants, heads))
        with Reference(self.base, constants.to(self.weight), heads, dense(batch)[1]):
            return distance(states, PADDED.states(self.base, batch))

    def _check_kernel(self, batch: Packed) -> None:
        """Raise `InputError` if eager attention, which can be caught, differs from the model's default kernel.

        With alibi, Falcon adds positions twice if it is eager.
        """
        if not getattr(self.base, "_supports_sdpa", False):
            return
        eager = self._stock_states(batch)
        with ExitStack() as after:
            for config in configs_of(self.base):
                after.callback(setattr, config, "_attn_implementation", "eager")
                config._attn_implementation = "sdpa"
            difference = distance(eager, self._stock_states(batch))
        self.check_distance(
            difference,
            f"papa can only replace the eager attention of {self.name}, whose hidden states differ from those of its "
            "default kernel",
        )

    def _check_own_attention(self, text: Packed) -> None:
        """Raise `InputError` unless a text has the stock model's states if its own attention replaces all heads.

        The attention must also be what the stock model returns, if it returns rows that sum to one.
        """
        attention = torch.cat(self.observed(text))
        if not is_distribution(attention):
            raise InputError(f"the attention weights of {self.name} do not sum to one.")
        states = self.run(text, self.replacement(attention))
        difference = distance(states, self._stock_states(text))
        returned = self._returned_attention(text)
        if returned is not None and returned.shape == attention.shape:
            difference = max(difference, distance([attention], [returned]))
        self.check_distance(
            difference,
            f"with its own attention as constants, {self.name} differs from the stock model",
        )

    def _returned_attention(self, text: Packed) -> Tensor | None:
        """Return the attention that the stock model returns; None if it returns none, or scores before the softmax."""
        arguments = PADDED.arguments(self.base, text)
        try:
            with unchanged(self.base), running(self.session):
                output = self.base(**arguments, **options_of(self.base), output_attentions=True)
            attention = torch.cat(list(output.attentions))
        except Exception:  # models without attentions raise many types of errors
            return None
        return attention if is_distribution(attention) else None

    def _check_isolation(self, batch: Packed) -> None:
        """Raise `InputError` if a token changes others although each one attends only to itself."""
        replacement = self.replacement(self._identity(batch))
        words = self.base.config.get_text_config().vocab_size
        # the last token is in the example that fills all slots
        changed_ids = batch.ids.clone()
        changed_ids[-1] = (changed_ids[-1] + 1) % min(words, 29)
        changed = replace(batch, ids=changed_ids)
        before = [state[:-1] for state in self.run(batch, replacement)]
        after = [state[:-1] for state in self.run(changed, replacement)]
        if distance(after, before) > LEAK:
            raise InputError(
                f"other parts of {self.name} than its attention also mix tokens, such as a convolution, "
                "so it would not be free of context without attention."
            )


def only_last(batch: Packed) -> Packed:
    """Return the last example of a tiny batch, which fills all slots."""
    begin = len(batch.ids) - batch.n
    tokens = batch.ids[begin:], batch.slots[begin:], batch.segments[begin:]
    return Packed(*tokens, batch.lengths[-1:], batch.n)


def is_distribution(attention: Tensor) -> bool:
    """Return whether each query's attention sums to one; it does not with sinks, or before the softmax."""
    total = attention.sum(-1)
    # bfloat16 rounds each weight, so their sum is not exactly one
    return torch.allclose(total, torch.ones_like(total), atol=1e-2)


def _stop(*_: object) -> Tensor:
    """End a forward pass at its first attention."""
    raise Observed


@contextmanager
def _eval_without_gradients(model: PreTrainedModel) -> Iterator[None]:
    """Switch off dropout, gradients and autocast inside the `with` block."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(model.device.type, enabled=False):
            yield
    finally:
        for module in training:
            module.training = True
