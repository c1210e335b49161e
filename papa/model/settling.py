"""Find the fastest form of batches that works for a model, and check the patched model against the stock one.

The stock model is the unmodified transformers model. If attention were not replaced, or positions were wrong, results
would be plausible but wrong. So papa runs tiny batches and compares their hidden states with those of the stock model.
When heads are replaced, it compares them with a reference implementation of the paper's formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from papa.data.packed import Packed
from papa.errors import InputError, first_line
from papa.model.attention import AttentionFacts, Observed, Session
from papa.model.check import TOLERANCE, Padding, distance, tiny_batch
from papa.model.forms import MODULES, Form, dense, forms_of, patch, slots_limit, states_of
from papa.model.linear import freeze_linears
from papa.model.projections import PrunedProjection, prune_projections
from papa.model.reference import Reference
from papa.model.replacement import AnyConstants, Head, Keep, Replacement, replacement_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LONG_LAYOUT = 1024
"""A model with at most this many positions is tried on a packed row with more tokens than positions."""
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
    stock = {} if checked else _stock_by_padding(model)
    with _errors_as_input_errors(type(model).__name__), ExitStack() as refused:
        refused.callback(_restoring(full))
        refused.callback(patch(model))
        freeze_linears(full)
        found = Trial(full, session).settle(stock, checked)
        refused.pop_all()
    return found


def _restoring(model: nn.Module) -> Callable[[], None]:
    """Return a function that puts back the modules of a model, and lets the same weights learn as before."""
    modules = dict(model.named_modules(remove_duplicate=False))
    learning = [weights for weights in model.parameters() if weights.requires_grad]

    def restore() -> None:
        for name, module in modules.items():
            if name:
                model.set_submodule(name, module)
        for weights in learning:
            weights.requires_grad_(True)

    return restore


def settle_plain(model: PreTrainedModel, before: Stock | None) -> tuple[AttentionFacts, bool]:
    """Check a patched model that accepts the same inputs as the stock model.

    Args:
        model: a model in which only the attention is papa's.
        before: results of the stock model on left-padded input; None if it does not support left padding.

    Returns:
        The facts about the model's attention, and whether padding may precede the tokens.
    """
    with _errors_as_input_errors(type(model).__name__), _eval_without_gradients(model):
        trial = Trial(model, Session())
        batch = tiny_batch(trial.base, "after")
        facts = trial.read_facts(type(model).__name__, batch)
        trial.check_formula(batch)
        if before is None or not facts.causal:
            return facts, not facts.causal
        return facts, distance(trial.run(before[0]), before[1]) <= trial.tolerance


def stock_of(model: PreTrainedModel, padding: Padding) -> Stock:
    """Return a tiny batch with padding at this position, and its hidden states in the stock model."""
    batch = tiny_batch(model, padding)
    return batch, Form(False).states(model, batch)


def stock_with_padding_before(model: PreTrainedModel) -> Stock | None:
    """Return `stock_of` the model with left padding; None if the model does not support it."""
    with _eval_without_gradients(model), suppress(Exception):
        return stock_of(cast("PreTrainedModel", model.base_model), "before")
    return None


def _stock_by_padding(model: PreTrainedModel) -> dict[Padding, Stock]:
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
        if not all(bool(state.isfinite().all()) for state in stock[padding][1]):
            dtype = next(model.parameters()).dtype
            raise InputError(f"its hidden states are not finite in {dtype}; load it in float32.")
    with suppress(Exception):  # some models do not support left padding
        stock["before"] = stock_of(model, "before")
    return stock


class Trial:
    """A patched model while it is compared with the stock model.

    `form` is the form of batches that is tried, and `facts` describe the model's attention.
    """

    facts: AttentionFacts

    def __init__(self, full: PreTrainedModel, session: Session):
        self.full, self.base, self.session = full, cast("PreTrainedModel", full.base_model), session
        self.form, self.weight = Form(False), next(full.base_model.parameters())
        if self.weight.dtype not in TOLERANCE:
            raise InputError(
                f"the weights of {type(full).__name__} are {self.weight.dtype}; load it in float32 or bfloat16."
            )
        self.tolerance = TOLERANCE[self.weight.dtype]

    def run(self, batch: Packed, replacement: Replacement | None = None) -> list[Tensor]:
        with self.session.over(self.form.examples(batch, self.session.causal), replacement):
            return self.form.states(self.base, batch)

    def read_facts(self, name: str, batch: Packed) -> AttentionFacts:
        return self._accept(AttentionFacts.of(name, self.session, lambda: self.run(batch)))

    def _accept(self, facts: AttentionFacts) -> AttentionFacts:
        self.facts = self.session.facts = facts
        self.session.replacement = [Keep() for _ in range(facts.layers)]
        return facts

    def replacement(self, constants: AnyConstants, heads: list[Head]) -> Replacement:
        return replacement_of(
            (self.facts.layers, self.facts.heads), constants, heads, like=self.weight
        )

    def settle(self, stock: Mapping[Padding, Stock], checked: Checked | None) -> Checked:
        """Run all checks, and choose the form of batches; or take both from those of an earlier process."""
        if checked is not None:
            self.form = checked.form
            batch = tiny_batch(
                self.base, "after" if self._accept(checked.facts).causal else "between"
            )
            prune_projections(self.full, self.session, lambda: self.run(batch)[-1])
            return checked
        facts = self.read_facts(type(self.base).__name__, stock["after"][0])
        batch, expected = stock["after" if facts.causal else "between"]
        padding_before = self._choose_form(stock, batch)
        self._check_effect(batch)
        self.check_formula(batch)
        prune_projections(self.full, self.session, lambda: self.run(batch)[-1])
        self._check_pruning(batch)
        return Checked(self.form, facts, len(expected), int(expected[-1].shape[-1]), padding_before)

    def _choose_form(self, stock: Mapping[Padding, Stock], batch: Packed) -> bool:
        """Choose the fastest correct form; return whether padding may precede the tokens."""
        problems: dict[Form, str] = {}
        wanted = [stock[padding] for padding in ("after", "before") if padding in stock]
        # prefer any form that is also correct if padding precedes the tokens
        for needed in (wanted, wanted[:1]) if self.facts.causal else ([stock["between"]],):
            for form in forms_of(self.base):
                self.form = form
                try:
                    difference = distance(
                        [state for tiny, _ in needed for state in self.run(tiny)],
                        [state for _, states in needed for state in states],
                    )
                    if form.packed and not (
                        self._isolates_examples(batch) and self._accepts_long_rows(batch)
                    ):
                        continue
                except Exception as error:  # a wrong form may fail in any way
                    problems[form] = str(error) or type(error).__name__
                    continue
                if difference <= self.tolerance:
                    return not self.facts.causal or len(needed) == 2
                problems[form] = (
                    f"with no head replaced, its hidden states differ from those of transformers by {difference:.1e} "
                    f"(relative); at most {self.tolerance:.0e} is allowed in {self.weight.dtype}"
                )
        raise InputError(f"{problems[Form(False)].removesuffix('.')}.")

    def _accepts_long_rows(self, batch: Packed) -> bool:
        """Return True if a packed row may have more tokens than the model has positions; else raise the model's error.

        Models that check the length of a row do so before their first attention, so papa stops the pass there.
        """
        limit = slots_limit(self.full.config, self.form)
        if limit > LONG_LAYOUT:
            return True
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
        return True

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
                weights = torch.rand(states.shape, generator=torch.Generator().manual_seed(0)).to(
                    states
                )
                feeding = torch.autograd.grad((states * (weights + 0.5)).sum(), shifts)
        finally:
            hook.remove()
        return len(shifts) == 1 and not bool(
            feeding[0].reshape(-1, feeding[0].shape[-1])[: len(inside)][~inside].any()
        )

    def _identity(self, batch: Packed) -> Tensor:
        """Return constants with which each token sees only itself; softmax over several tokens never gives the same."""
        shape = self.facts.layers, self.facts.heads, batch.n, batch.n
        return torch.eye(batch.n, device=self.weight.device, dtype=self.weight.dtype).expand(shape)

    def _check_effect(self, batch: Packed) -> None:
        """Raise `InputError` if replacing all heads of a layer does not change the output of the model."""
        constants, kept = self._identity(batch), self.run(batch)[-1]
        for layer in range(self.facts.layers):
            replacement = self.replacement(
                constants, [(layer, head) for head in range(self.facts.heads)]
            )
            if torch.equal(self.run(batch, replacement)[-1], kept):
                raise InputError(
                    f"replacing the attention of all heads of layer {layer} changes nothing."
                )

    def check_formula(self, batch: Packed) -> None:
        """Raise `InputError` unless the model matches the reference with half of its heads replaced."""
        if self.base.config.model_type in MODULES:
            return
        padded, (layers, heads) = Form(False), (self.facts.layers, self.facts.heads)
        generator = torch.Generator().manual_seed(0)
        matrices = torch.rand(layers, heads, batch.n, batch.n, generator=generator)
        replaced = [(layer, head) for layer in range(layers) for head in range(layer % 2, heads, 2)]
        arguments = padded.arguments(self.base, batch)
        states = self.run(batch, self.replacement(matrices, replaced))
        with Reference(self.base, matrices.to(self.weight), replaced, dense(batch)[1]):
            expected = [padded.tokens(state, batch) for state in states_of(self.base, arguments)]
        if not (difference := distance(states, expected)) <= self.tolerance:
            raise InputError(
                f"with half of the heads of {type(self.base).__name__} replaced, hidden states differ from the "
                f"formula by {difference:.1e} (relative)."
            )

    def _check_pruning(self, batch: Packed) -> None:
        """Raise `InputError` if pruned projections change hidden states."""
        layers, per_layer = self.facts.layers, self.facts.heads
        every = [(layer, head) for layer in range(layers) for head in range(per_layer)]
        # covers different heads in each layer, groups with all heads replaced, and a single kept head
        chosen = [
            [(layer, head) for layer, head in every if (head + layer) % step]
            for step in (2, 3, per_layer)
        ]
        constants = self._identity(batch)
        replacements = [self.replacement(constants, heads) for heads in (*chosen, every)]
        pruned, states = (
            [module for module in self.full.modules() if isinstance(module, PrunedProjection)],
            [],
        )
        for whole in (True, False):
            for module in pruned:
                module.whole = whole
            states.append(
                [state for replacement in replacements for state in self.run(batch, replacement)]
            )
        if not (difference := distance(states[1], states[0])) <= self.tolerance:
            raise InputError(
                f"hidden states of {type(self.base).__name__} change by {difference:.1e} (relative) if replaced heads "
                "compute no query and no key."
            )


def _stop(*_: object) -> Tensor:
    """End a forward pass at its first attention."""
    raise Observed


@contextmanager
def _errors_as_input_errors(name: str) -> Iterator[None]:
    """Turn errors in a model's code into an `InputError`; the code may need features that papa's attention lacks."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{name} cannot run with papa's attention ({first_line(error)})."
        ) from error


@contextmanager
def _eval_without_gradients(model: PreTrainedModel) -> Iterator[None]:
    """Switch off dropout and gradients inside the `with` block."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
