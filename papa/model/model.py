"""The frozen model: drop padding, run it with some heads replaced, hand out its hidden states and logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from html import escape
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from papa.data.packed import Examples, Packed, RawBatch
from papa.errors import InputError, first_line
from papa.model.attention import Facts, Layer, Observed, Session, running
from papa.model.check import TOLERANCE, Where, distance, states_of, tiny_batch, tiny_raw_inputs
from papa.model.forms import (
    MODULES,
    Form,
    dense,
    forms_of,
    is_patched,
    options_of,
    patch,
    raw_input_of,
    slots_limit,
    taken_by,
    takes_text,
)
from papa.model.linear import freeze_linears
from papa.model.projections import SparingLinear, Way, spare
from papa.model.reference import Reference
from papa.model.replacement import Constants, Head, Keep, Observer, Replacement, check_slots, replacement_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


LONG = 1024
"""Models with no more positions than this are tried on a packed row of more tokens than they have positions."""
BEFORE = "{name} is right only where padding stands behind the tokens; put padding there."
Stock = tuple[Packed, list[Tensor]]
"""A batch, and the hidden states of its tokens in the stock model."""
Batches = Iterable[Mapping[str, Tensor] | Packed]
"""Inputs `[example, slot]` as `papa.lay_out` returns them, batch by batch."""


class Model:
    """A pretrained transformer whose heads can be replaced. Its weights are frozen, dropout is off unless asked for.

    Its stock form and this one have to agree on a tiny batch, which also decides whether batches are packed into one
    row of tokens or padded.

    `layers`, `heads` (per layer), `groups` (heads of keys), `states` (hidden states that it gives) and `hidden` are its
    sizes, `numbers` what the model itself calls these layers, which leave some out if not all of its layers attend,
    `slots_limit` the number of positions it has, `causal` says that no token sees a later one, `form` how it takes a
    batch, `before` whether padding may stand before the tokens.

    Args:
        model: a model as transformers loads it, with or without a head; its modules are replaced in place.

    Raises:
        InputError: the attention of the model cannot be replaced, or the model does not pass the check.
    """

    def __init__(self, model: PreTrainedModel):
        _check_stock(model)
        if any(isinstance(module, SparingLinear) for module in model.modules()):
            raise InputError(f"This {type(model).__name__} has been given to papa.Model before; load it again.")
        self.full = model.eval().requires_grad_(False)
        self.model = cast("PreTrainedModel", model.base_model)
        self.config: PreTrainedConfig = model.config
        if getattr(self.config, "is_encoder_decoder", False) and hasattr(self.model, "decoder"):
            raise InputError(f"{type(model).__name__} is an encoder with a decoder; load one of the two alone.")
        self.session = Session()
        self.precision = self.dtype
        """What it computes in: the type of its weights, or a smaller one, by autocast."""
        self.weights: str | None = None
        """SHA-256 of the files that its weights are from, if it was loaded by `model_of`."""
        with torch.no_grad(), torch.inference_mode(False):
            self._settle()

    def _settle(self) -> None:
        """Find out what the model is, and that it is right."""
        name, stock = type(self.model).__name__, dict[Where, Stock]()
        if not takes_text(self.model):
            given = raw_batch(self.model, tiny_raw_inputs(self.model))
            states = states_of(self.model, dict(given.arguments))
            stock["between"] = stock["behind"] = given, [Form(False).tokens(state, given) for state in states]
        else:
            for where in ("between", "behind"):
                try:
                    stock[where] = stock_of(self.model, where)
                except Exception as error:  # each model has reasons of its own
                    padding = getattr(self.config, "pad_token_id", 0)
                    mend = "" if padding is not None else "; set pad_token_id in its config.json"
                    raise InputError(f"{name} cannot run as it is ({first_line(error)}){mend}.") from error
                if not all(bool(state.isfinite().all()) for state in stock[where][1]):
                    raise InputError(f"its hidden states are not finite in {self.dtype}; load it in float32.")
            with suppress(Exception):  # not every model takes padding there
                stock["before"] = stock_of(self.model, "before")
        try:
            self._take_over(name, stock)
        except InputError:
            raise
        except Exception as error:  # the code of a model may count on more than attention functions are promised
            raise InputError(f"{name} does not run with papa's attention ({first_line(error)}).") from error

    def _take_over(self, name: str, stock: dict[Where, Stock]) -> None:
        """Put papa's attention into the model, and find out how it takes a batch."""
        patch(self.model, self.session)
        freeze_linears(self.full)
        self.form = Form(False)
        facts = Facts.of(name, self.session, lambda: self.run(stock["behind"][0]))
        self.layers, self.heads, self.groups, self.causal = facts.layers, facts.heads, facts.groups, facts.causal
        self.numbers = self.session.numbers = facts.numbers
        batch, expected = stock["behind" if self.causal else "between"]
        self.states, self.hidden = len(expected), int(expected[-1].shape[-1])
        usual: Replacement = [Keep() for _ in range(self.layers)]
        self.session.replacement = usual
        wanted = [stock[where] for where in ("behind", "before") if where in stock]
        tried: dict[Form, str] = {}
        # of forms that are right for padding behind the tokens, one that is so for padding before them comes first
        for needed in (wanted, wanted[:1]) if self.causal else ([stock["between"]],):
            self.before = not self.causal or len(needed) == 2
            for form in forms_of(self.model):
                self.form = form
                try:
                    off = distance(
                        [one for own, _ in needed for one in self.run(own)],
                        [one for _, states in needed for one in states],
                    )
                    if form.packed and not (self._keeps_apart(batch) and self._takes_long_rows(batch)):
                        continue
                except Exception as error:  # a form that is not the model's may fail in any way
                    tried[form] = str(error) or type(error).__name__
                    continue
                if off <= TOLERANCE[self.dtype]:
                    self.slots_limit = slots_limit(self.config, self.form)
                    self._check_replaced(name, batch)
                    return
                tried[form] = (
                    f"with nothing replaced its hidden states are {off:.1e} (relative) from those of transformers; "
                    f"{TOLERANCE[self.dtype]:.0e} is allowed in {self.dtype}"
                )
        raise InputError(f"{tried[Form(False)].removesuffix('.')}.")

    def _takes_long_rows(self, batch: Packed) -> bool:
        """Whether a packed row may have more tokens than the model has positions; an error of the model says no.

        What a model says of the length of its row, it says before it attends.
        """
        limit = slots_limit(self.config, self.form)
        if limit > LONG:
            return True
        copies = limit // len(batch.ids) + 1
        ids, slots, segments = (own.repeat(copies) for own in (batch.ids, batch.slots, batch.segments))

        def stop(*_: object) -> Tensor:
            raise Observed

        self.session.spy = stop
        try:
            with suppress(Observed):
                self.run(Packed(ids, slots, segments, batch.lengths.repeat(copies), batch.n))
        finally:
            self.session.spy = None
        return True

    def _keeps_apart(self, batch: Packed) -> bool:
        """Whether a token of one example feeds no other in a packed row, as it does through a convolution.

        Gradients say so exactly, also where what is fed is too small to be seen in hidden states.
        """
        shifts: list[Tensor] = []

        def shift(_: nn.Module, __: object, embedded: Tensor) -> Tensor:
            shifts.append(torch.zeros_like(embedded, requires_grad=True))
            return embedded + shifts[-1]

        hook = self.model.get_input_embeddings().register_forward_hook(shift)
        try:
            with torch.enable_grad():
                own = batch.example_of == 1
                states = torch.cat([state[own] for state in self.run(batch)], dim=1)
                chance = torch.rand(states.shape, generator=torch.Generator().manual_seed(0)).to(states)
                feeding = torch.autograd.grad((states * (chance + 0.5)).sum(), shifts)
        finally:
            hook.remove()
        return len(shifts) == 1 and not bool(feeding[0].reshape(-1, feeding[0].shape[-1])[: len(own)][~own].any())

    def _check_replaced(self, name: str, batch: Packed) -> None:
        """Refuse a model that replacing changes not, and let replaced heads compute no query and no key."""
        n = batch.n
        shape = (self.layers, self.heads)
        # every token attends to itself alone, which no softmax over several tokens does
        identity = torch.eye(n, device=self.device, dtype=self.dtype).expand(*shape, n, n)
        kept = self.run(batch)[-1]
        for layer in range(self.layers):
            own = self.replacement(identity, [(layer, head) for head in range(self.heads)])
            if torch.equal(self.run(batch, own)[-1], kept):
                raise InputError(f"replacing the attention of all heads of layer {layer} changes nothing.")
        self._check_reference(batch)
        spare(self.full, self.session, lambda: torch.cat([state.flatten() for state in self.run(batch)[-1:]]))
        self._settle_projections(name, batch, identity)

    def _settle_projections(self, name: str, batch: Packed, constants: Tensor) -> None:
        """Choose what projections give if heads are replaced, the fastest that gives what all they have gives."""
        every = [(layer, head) for layer in range(self.layers) for head in range(self.heads)]
        # other heads in every layer, of some groups none, and once a single one
        chosen = [[(layer, head) for layer, head in every if (head + layer) % step] for step in (2, 3, self.heads)]
        replacements = [self.replacement(constants, heads) for heads in (*chosen, every)]

        def states(way: Way) -> list[Tensor]:
            for module in self.full.modules():
                if isinstance(module, SparingLinear):
                    module.way = way
            return [state for own in replacements for state in self.run(batch, own)]

        expected = states("whole")
        with suppress(Exception):  # a model that counts heads by itself cannot take fewer
            if distance(states("apart"), expected) <= TOLERANCE[self.dtype]:
                return
        if not (off := distance(states("between zeros"), expected)) <= TOLERANCE[self.dtype]:
            raise InputError(f"{name} is {off:.1e} from itself if replaced heads compute no query and no key.")

    def _check_reference(self, batch: Packed) -> None:
        """Refuse a model whose replaced heads give something else than the formula says, dense and padded."""
        _check_formula(self.model, (self.layers, self.heads), batch, self.run)

    def __repr__(self) -> str:
        return (
            f"<papa.Model: {type(self.full).__name__}, {self.layers} layers of {self.heads} heads, "
            f"hidden size {self.hidden}, {str(self.precision).removeprefix('torch.')} on {self.device}>"
        )

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self)[1:-1])}</p>"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self._weight.dtype

    @property
    def _weight(self) -> Tensor:
        weight: Tensor = next(self.model.parameters())
        return weight

    def pack(self, inputs: Mapping[str, Tensor] | Packed) -> Packed:
        """The real tokens of `inputs` (dense as `lay_out` returns them, or packed already) on the model's device.

        Raises:
            InputError: ids and mask disagree, or the model lacks an id, a segment or a position.
        """
        if not isinstance(inputs, Packed | Mapping):
            raise InputError(
                f"The inputs of a model are a dict as lay_out returns it, and a {type(inputs).__name__} was given; "
                "several batches are a list of such dicts."
            )
        if not takes_text(self.model):
            return inputs if isinstance(inputs, Packed) else raw_batch(self.model, inputs)
        packed = inputs if isinstance(inputs, Packed) else Packed.of(inputs, _padding_of(self.config))
        if not self.before and bool(packed.slots[packed.lengths.cumsum(0) - packed.lengths].any()):
            raise InputError(BEFORE.format(name=type(self.model).__name__))
        if packed.n > self.slots_limit:
            raise InputError(f"The inputs have {packed.n} slots, the model has positions for {self.slots_limit}.")
        words = self.config.get_text_config().vocab_size
        segments = getattr(self.config, "type_vocab_size", 0)
        if len(packed.ids) and int(packed.ids.max()) >= words:
            raise InputError(f"Id {int(packed.ids.max())} is not in the model's vocabulary of {words}.")
        # DeBERTa, with no segments, ignores them
        if segments and len(packed.segments) and int(packed.segments.max()) >= segments:
            raise InputError(f"Segment {int(packed.segments.max())} is not one of the model's {segments}.")
        return packed.to(self.device)

    def replacement(
        self, constants: Constants | None = None, heads: Iterable[Head] | None = None, mixing: Tensor | None = None
    ) -> Replacement:
        """What every layer does with these constants; see `hidden_states`. Reusable over batches."""
        return replacement_of((self.layers, self.heads), constants, heads, mixing, like=self._weight)

    @contextmanager
    def _running(
        self,
        packed: Packed,
        replacement: Replacement | None,
        observer: Callable[[Layer, Tensor], None] | None = None,
        dropout: bool = False,
    ) -> Iterator[None]:
        session = self.session
        if replacement is not None:
            check_slots(replacement, packed.n)
        examples = self.form.examples(packed)
        with session.lock:
            usual = session.replacement
            session.replacement = usual if replacement is None else replacement
            if dropout:
                self.full.train()
            session.begin(examples)
            session.observer, session.last = observer, len(usual) - 1
            try:
                with (
                    running(session),
                    torch.autocast(self.device.type, self.precision, enabled=self.precision != self.dtype),
                ):
                    yield
            finally:
                session.replacement, session.examples, session.observer = usual, None, None
                if dropout:
                    self.full.eval()

    def run(self, packed: Packed, replacement: Replacement | None = None, dropout: bool = False) -> list[Tensor]:
        """Hidden states of a packed batch, embeddings first, as the stock model gives them: tensors `[token, hidden]`.

        With `dropout` the model drops as its config says, wherever it did when it was trained.
        """
        with self._running(packed, replacement, dropout=dropout):
            states = states_of(self.model, self.form.arguments(self.model, packed))
        return [self.form.tokens(state, packed) for state in states]

    def observe(self, packed: Packed, observer: Observer) -> None:
        """Show `observer` the attention of every layer; what follows the last attention is not computed."""
        self.watch(packed, lambda layer, attention: observer(layer.number, attention, layer.examples))

    def watch(self, packed: Packed, observer: Callable[[Layer, Tensor], None]) -> None:
        """Show `observer` every layer and its attention, as `observe` does: so it also sees values, and constants."""
        with self._running(packed, None, observer), suppress(Observed):
            self.model(**self.form.arguments(self.model, packed), **options_of(self.model))

    def hidden_states(
        self,
        inputs: Mapping[str, Tensor],
        constants: Constants | None = None,
        heads: Iterable[Head] | None = None,
        mixing: Tensor | None = None,
    ) -> Tensor:
        """All hidden states of a batch, some heads replaced (paper, Sec. 3.3).

        Args:
            inputs: `input_ids` and `attention_mask` `[example, slot]`, as `lay_out` returns them.
            constants: averages, or a tensor `[layer, head, query, key]`, differentiable, that replace the attention of
                `heads`; or `Matrices` or `Outputs` of all heads.
            heads: pairs (layer, head); None means all.
            mixing: weights `[layer, head]` in [0, 1], differentiable: every head uses mixing * attention +
                (1 - mixing) * constant instead (Sec. 3.2); not together with `heads`.

        Returns:
            `[example, L+1, slot, hidden]`, layer 0 = embeddings, zero at padding; the last one is what the stock model
            gives as its last, in decoders after the final norm.

        Raises:
            InputError: inputs, constants, heads and model do not go together.
        """
        packed = self.pack(inputs)
        states = self.run(packed, self.replacement(constants, heads, mixing))
        return packed.unpack(torch.stack(states, dim=1)).transpose(1, 2)

    def logits(
        self,
        inputs: Mapping[str, Tensor],
        constants: Constants | None = None,
        heads: Iterable[Head] | None = None,
        mixing: Tensor | None = None,
    ) -> Tensor:
        """What the model's own head makes of a batch, some heads replaced; arguments as for `hidden_states`.

        Returns:
            `[example, slot, word]`, zero at padding.

        Raises:
            InputError: the model was loaded without a head, or with one that says nothing of each token.
        """
        packed = self.pack(inputs)
        return packed.unpack(self.scores(packed, self.replacement(constants, heads, mixing)))

    def scores(self, packed: Packed, replacement: Replacement | None = None, dropout: bool = False) -> Tensor:
        """Logits of a packed batch by the model's own head, `[token, word]`; `dropout` as in `run`."""
        arguments, name = self.form.arguments(self.model, packed), type(self.full).__name__
        with self._running(packed, replacement, dropout=dropout):
            output = getattr(self.full(**arguments, **options_of(self.full)), "logits", None)
        if output is None:
            raise InputError(f"{name} has no head, and so no logits; load a checkpoint with one.")
        rows = list(arguments["input_ids"].shape) if "input_ids" in arguments else [len(packed.lengths), packed.n]
        if output.ndim != 3 or list(output.shape[:2]) != rows:
            raise InputError(
                f"The head of {name} gives logits {list(output.shape)} for inputs {rows}, and not some for each token; "
                "load a checkpoint with the head of a language model."
            )
        return self.form.tokens(output, packed)


def stock_of(model: PreTrainedModel, where: Where) -> Stock:
    """A tiny batch with padding there, and the hidden states of its tokens as the stock model gives them."""
    batch, padded = tiny_batch(model, where), Form(False)
    return batch, [padded.tokens(state, batch) for state in states_of(model, padded.arguments(model, batch))]


def _padding_of(config: PreTrainedConfig) -> int | None:
    """The id of padding; None if a token has it too, such as the one that ends a text, so that it tells nothing."""
    padding = getattr(config, "pad_token_id", None)
    others = [getattr(config, f"{name}_token_id", None) for name in ("bos", "eos", "sep", "unk")]
    also = [own for other in others for own in (other if isinstance(other, list) else [other])]
    return None if padding in also else padding


def raw_batch(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> RawBatch:
    """A batch of pictures or sound, and the tokens that a model makes of them: those that its first layer attends to.

    Raises:
        InputError: the model does not run on these inputs.
    """
    name = raw_input_of(model)
    if name not in inputs:
        raise InputError(f"{type(model).__name__} takes {name}, and {', '.join(inputs) or 'nothing'} was given.")
    weight = next(model.parameters())
    arguments = {
        key: own.to(weight) if own.is_floating_point() else own.to(weight.device) for key, own in inputs.items()
    }
    session = Session(late=True)

    def stop(*_: object) -> Tensor:
        raise Observed

    session.spy, undo = stop, patch(model, session)
    try:
        with running(session), torch.no_grad(), suppress(Observed):
            model(**arguments)
    except InputError:
        raise
    except Exception as error:  # inputs can be wrong in as many ways as there are models
        shape = list(arguments[name].shape)
        raise InputError(f"{type(model).__name__} cannot run on {name} {shape} ({first_line(error)}).") from error
    finally:
        undo()
    if session.examples is None:
        raise InputError(f"{type(model).__name__} calls no attention function by its name.")
    real = session.examples.real
    mask = torch.ones_like(session.examples.slots) if real is None else real.long()
    return RawBatch.masked(arguments, mask)


def _check_formula(
    model: PreTrainedModel,
    shape: tuple[int, int],
    batch: Packed,
    run: Callable[[Packed, Replacement], list[Tensor]],
) -> None:
    """Raise `InputError` unless half of the heads, replaced, give what the formula gives, dense and padded."""
    if model.config.model_type in MODULES:
        return
    padded, weight = Form(False), next(model.parameters())
    mask = dense(batch)[1]
    constants = torch.rand(*shape, batch.n, batch.n, generator=torch.Generator().manual_seed(0)).to(weight)
    heads = [(layer, head) for layer in range(shape[0]) for head in range(layer % 2, shape[1], 2)]
    found, arguments = run(batch, replacement_of(shape, constants, heads)), padded.arguments(model, batch)
    with Reference(model, constants, heads, mask):
        expected = [padded.tokens(state, batch) for state in states_of(model, arguments)]
    if not (off := distance(found, expected)) <= TOLERANCE[weight.dtype]:
        raise InputError(
            f"with half of the heads of {type(model).__name__} replaced it is {off:.1e} from what the formula gives."
        )


def _check_plain(
    model: PreTrainedModel, given: Mapping[str, Tensor] | None, before: Stock | None
) -> tuple[Facts, bool]:
    """The same for a model whose attention papa's has taken the place of, and nothing else; what it has.

    Args:
        model: of which the attention is papa's.
        given: what it is given if it takes no text.
        before: what it gave as it was where padding stood before the tokens; None if it does not run so.

    Returns:
        What it has, and whether padding may stand before the tokens.
    """
    base, padded, own = cast("PreTrainedModel", model.base_model), Form(False), Session()

    def run(batch: Packed, replacement: Replacement) -> list[Tensor]:
        own.replacement = replacement
        own.begin(padded.examples(batch))
        with running(own):
            return [padded.tokens(state, batch) for state in states_of(base, padded.arguments(base, batch))]

    with _resting(model):
        batch = tiny_batch(base, "behind") if given is None else raw_batch(base, given)
        facts = Facts.of(type(model).__name__, own, lambda: run(batch, []))
        own.numbers = facts.numbers
        _check_formula(base, (facts.layers, facts.heads), batch, run)
        if not facts.causal:
            return facts, True
        keep: Replacement = [Keep() for _ in range(facts.layers)]
        dtype = next(model.parameters()).dtype
        return facts, before is not None and distance(run(before[0], keep), before[1]) <= TOLERANCE[dtype]


@contextmanager
def _resting(model: PreTrainedModel) -> Iterator[None]:
    """Let a model drop nothing and learn nothing, and put it back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def check_model(value: object) -> Model:
    """`value`, if it is a `Model`; else raise `InputError` with how to get one."""
    if isinstance(value, Model):
        return value
    raise InputError(
        f"A papa.Model is needed, and a {type(value).__name__} was given; papa.load_model(folder or hub id) gives one."
    )


def _check_stock(value: object) -> None:
    """Raise `InputError` unless `value` is a model of transformers."""
    if isinstance(value, nn.Module) and getattr(value, "config", None) is not None:
        return
    given = repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
    if isinstance(value, Model):
        given = "a papa.Model, whose own methods take constants,"
    raise InputError(f"A model of transformers is needed, such as AutoModel loads; {given} was given.")


def packed_batches(model: Model | None, batches: Batches, asked: str) -> Iterator[Packed]:
    """Batches as packed rows, on the model's device if there is a model; they are read once.

    Args:
        model: what is to run on them.
        batches: several, of one number of slots.
        asked: the function that asks for batches, which errors name.

    Raises:
        InputError: no batch is given, or one instead of several, or the number of slots changes.
    """
    if isinstance(batches, Mapping | Packed | Tensor):
        raise InputError(f"{asked} takes several batches, and one was given; put it into a list.")
    slots: int | None = None
    for inputs in batches:
        batch = Packed.of(inputs) if model is None and isinstance(inputs, Mapping) else cast(Model, model).pack(inputs)
        slots = slots or batch.n
        if batch.n != slots:
            raise InputError(f"A batch has {batch.n} slots after batches of {slots}; {asked} needs one layout for all.")
        yield batch
    if slots is None:
        raise InputError(f"{asked} takes several batches, and there is no batch; give a list of one or more.")


def _cached_tokens(cache: object) -> int:
    length = getattr(cache, "get_seq_length", None)
    return int(length()) if callable(length) else 0


@contextmanager
def replaced_attention(
    model: PreTrainedModel, constants: Constants, heads: Iterable[Head] | None = None
) -> Iterator[PreTrainedModel]:
    """Run a plain transformers model with the attention of `heads` (None: all) replaced by `constants`.

    Inside, call the model as ever, with inputs `[example, slot]` and their attention_mask, padded on either side, or
    let it `generate`. A decoder needs no attention_mask if padding stands behind the tokens. Encoders of pictures and
    sound are given what they take by themselves. The model is put back on leaving, whatever happened inside. Paper,
    Sec. 3.3.

    Raises:
        InputError: the attention of the model cannot be replaced, or a tiny batch shows that it is not as the formula
            says; constants or heads do not fit the model.
    """
    _check_stock(model)
    if is_patched(model):
        raise InputError(
            f"The attention of this {type(model).__name__} is papa's already; leave the other replaced_attention, or "
            "load the model again."
        )
    session, name = Session(late=not takes_text(model)), type(model).__name__
    names = [own.name for own in taken_by(model).values() if own.kind is own.POSITIONAL_OR_KEYWORD][1:]

    def before(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        given = dict(zip(names, args, strict=False)) | kwargs
        asked = given.get("output_attentions")
        if model.config.output_attentions if asked is None else asked:
            raise InputError("A model whose attention is replaced returns no attentions; leave output_attentions out.")
        if session.late:
            session.begin(None)
            return
        ids, mask, positions = (given.get(one) for one in ("input_ids", "attention_mask", "position_ids"))
        cache = given.get("past_key_values")
        if isinstance(positions, Tensor) and mask is None and bool((positions.diff(dim=-1) < 0).any()):
            raise InputError(
                "position_ids start anew within a row, as where texts are joined; give each a row of its own."
            )
        if mask is None and session.causal and isinstance(ids, Tensor):
            # padding may only follow the tokens, which do not see it; `generate` drops a mask of ones
            mask = ids.new_ones(len(ids), _cached_tokens(cache) + ids.shape[-1])
        if not isinstance(ids, Tensor) or not isinstance(mask, Tensor):
            raise InputError("Call the model with input_ids and attention_mask while its attention is replaced.")
        if ids.ndim != 2 or mask.ndim != 2 or len(mask) != len(ids) or (mask.shape != ids.shape and cache is None):
            raise InputError(
                f"input_ids {list(ids.shape)} and attention_mask {list(mask.shape)} must be [example, slot]."
            )
        if session.causal and not padded_before and not bool(mask[:, 0].all()):
            raise InputError(BEFORE.format(name=name))
        session.begin(Examples.of_mask(mask, queries=ids.shape[1]))

    def after(_: nn.Module, __: object, ___: object) -> None:
        if not session.causal and session.examples is not None:
            check_slots(session.replacement, session.examples.n)
        session.examples = None  # of this call alone
        layers = len(session.replacement)
        if session.called != layers:
            raise InputError(
                f"{name} called attention {session.called} times for {layers} layers; its attention cannot be replaced."
            )

    base, alone = cast("PreTrainedModel", model.base_model), None
    tiny = tiny_raw_inputs(base) if session.late else None
    if not session.late:
        with _resting(model), suppress(Exception):  # not every model runs so
            alone = stock_of(base, "before")
    undo, hooks = patch(model, session), list[RemovableHandle]()
    try:
        try:
            facts, padded_before = _check_plain(model, tiny, alone)
        except InputError:
            raise
        except Exception as error:  # the code of a model may count on more than attention functions are promised
            raise InputError(f"{name} does not run with papa's attention ({first_line(error)}).") from error
        session.replacement = replacement_of(
            (facts.layers, facts.heads), constants, heads, like=next(model.parameters())
        )
        session.numbers, session.causal = facts.numbers, facts.causal
        hooks += [model.register_forward_pre_hook(before, with_kwargs=True), model.register_forward_hook(after)]
        with running(session):
            yield model
    finally:
        for hook in hooks:
            hook.remove()
        undo()
