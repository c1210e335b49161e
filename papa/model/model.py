"""The frozen model: it packs batches, runs with some heads replaced, and returns hidden states and logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from papa.config.settings import budget_on
from papa.data.packed import Inputs, Packed
from papa.errors import InputError
from papa.model.attention import BlockObserver, Observed, Session
from papa.model.check import check_checkpointing, without_hooks
from papa.model.forms import is_patched, options_of, slots_limit
from papa.model.replacement import AnyConstants, Heads, Replacement, check_slots, replacement_of
from papa.model.settling import Checked, settle, unchanged

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


PADDING_BEFORE = "{name} gives correct results only with padding after the tokens; put it there."
Batches = Iterable[Inputs | Packed]
"""Batches of inputs `[example, slot]`, each as `papa.lay_out` returns it."""


class Model:
    """A pretrained transformer with replaceable heads. Its weights are frozen, and dropout is off by default.

    On construction, papa checks on a tiny batch that it gives the same hidden states as the unmodified transformers
    model. The same check selects how batches are run: packed into one row of tokens, or padded.

    Sizes are `layers`, `heads` (per layer), `groups` (key heads per layer), `states` (number of hidden states) and
    `hidden`. `numbers` are the indices, in the model's code, of the layers with attention. `slots_limit` is the largest
    number of slots, and `form` is how batches are run. `causal` is True if no token sees a later one, and
    `padding_before` if padding may precede the tokens.

    Its parts:

        full            the transformers model, with a prediction head if it has one
        └── model       its base model, with papa's attention
        session         what a pass of the model does: instructions for each layer, an observer
        checked         what the check has found
        └── form        how a batch is arranged: packed, compact or padded

    Args:
        model: a transformers model, with or without a prediction head; it is modified in place.
        checked: what an earlier check of the same model found, which is then not repeated.

    Raises:
        InputError: the model's attention cannot be replaced, or the model fails the check.
    """

    def __init__(self, model: PreTrainedModel, checked: Checked | None = None):
        check_stock(model)
        if is_patched(model):
            raise InputError(
                f"This {type(model).__name__} was already passed to papa.Model; load it again."
            )
        # before the check, because with dropout no two passes give the same hidden states
        self.full = model.eval()
        self.model = cast("PreTrainedModel", model.base_model)
        self.config: PreTrainedConfig = model.config
        # the encoder of BART, for example, keeps the config of the whole model
        if getattr(self.config, "is_encoder_decoder", False) and hasattr(self.model, "decoder"):
            raise InputError(
                f"{type(model).__name__} is an encoder-decoder; load only one of the two."
            )
        self.precision = self.dtype
        """The dtype of computations: that of the weights, or a lower precision, used by autocast."""
        self.token_budget = budget_on(self.device.type)
        """The default number of tokens per batch."""
        self.session = Session()
        with (
            torch.no_grad(),
            # tensors made in a caller's inference mode could never take part in a backward pass
            torch.inference_mode(False),
            # autocast would round more than the tolerance for the weights' dtype allows
            torch.autocast(self.device.type, enabled=False),
            without_hooks(model),
        ):
            self.checked = settle(model, self.session, checked)
        self.form = self.checked.form
        facts = self.checked.facts
        self.layers = facts.layers
        self.heads = facts.heads
        self.groups = facts.key_heads
        self.causal = facts.causal
        self.numbers = facts.layer_indices
        self.states = self.checked.states
        self.hidden = self.checked.hidden
        self.padding_before = self.checked.padding_before
        self.slots_limit = slots_limit(self.model, self.form)

    def __deepcopy__(self, _: object) -> Model:
        raise InputError(
            "A papa.Model cannot be copied; copy the transformers model first, and make a papa.Model of each."
        )

    def __repr__(self) -> str:
        return (
            f"<papa.Model: {type(self.full).__name__}, {self.layers} layers of {self.heads} heads, "
            f"hidden size {self.hidden}, {str(self.precision).removeprefix('torch.')} on {self.device}>"
        )

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self._weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self._weight.dtype

    @property
    def _weight(self) -> Tensor:
        return next(self.model.parameters())

    def pack(self, inputs: Inputs | Packed) -> Packed:
        """Return the real tokens of `inputs` (as `lay_out` returns them, or already packed) on the model's device.

        Raises:
            InputError: the ids contradict the mask, or an id, segment or position is out of the model's range.
        """
        if not isinstance(inputs, Packed | Mapping):
            raise InputError(
                f"A model takes a dict as lay_out returns it, but a {type(inputs).__name__} was given; pass several "
                "batches as a list of such dicts."
            )
        packed = (
            inputs if isinstance(inputs, Packed) else Packed.of(inputs, _padding_of(self.config))
        )
        first_slots = packed.slots[packed.lengths.cumsum(0) - packed.lengths]
        if not self.padding_before and first_slots.any():
            raise InputError(PADDING_BEFORE.format(name=type(self.model).__name__))
        if packed.n > self.slots_limit:
            raise InputError(
                f"The inputs have {packed.n} slots, but the model has {self.slots_limit} positions."
            )
        # configs of models with images keep it in their part for text. A GPU that looks up an index out of range is
        # unusable for the rest of the process, so papa checks first
        words = self.config.get_text_config().vocab_size
        segments = getattr(self.config, "type_vocab_size", 0)
        unknown = packed.ids[(packed.ids < 0) | (packed.ids >= words)]
        if len(unknown):
            raise InputError(
                f"Token id {int(unknown[0])} is not in the model's vocabulary of {words}."
            )
        unknown = packed.segments[(packed.segments < 0) | (packed.segments >= segments)]
        # models without segments, such as DeBERTa, ignore them
        if segments and len(unknown):
            raise InputError(
                f"Segment {int(unknown[0])} is not one of the model's {segments} segments."
            )
        return packed.to(self.device)

    def replacement(
        self,
        constants: AnyConstants | None = None,
        heads: Heads = None,
        mixing: Tensor | None = None,
    ) -> Replacement:
        """Return a replacement of heads by constants that can be reused for any batch; see `hidden_states`."""
        return replacement_of(
            (self.layers, self.heads), constants, heads, mixing, like=self._weight
        )

    @contextmanager
    def _running(
        self,
        packed: Packed,
        replacement: Replacement | None,
        dropout: bool = False,
    ) -> Iterator[None]:
        if replacement is not None:
            check_slots(replacement, packed.n)
        session = self.session
        examples = self.form.examples(packed, self.causal)
        kept = nullcontext() if session.known.softmax is None else unchanged(self.full)
        with session.over(examples, replacement), kept:  # other threads wait for the session
            session.last_layer = self.layers - 1
            if dropout:
                # only now that this thread has the session, or another thread's pass would have dropout, too
                self.full.train()
            try:
                check_checkpointing(self.full)
                with torch.autocast(
                    self.device.type, self.precision, enabled=self.precision != self.dtype
                ):
                    yield
            finally:
                if dropout:
                    self.full.eval()

    def run(
        self, packed: Packed, replacement: Replacement | None = None, dropout: bool = False
    ) -> list[Tensor]:
        """Return the hidden states of a packed batch, embeddings first: one tensor `[token, hidden]` per layer.

        With `dropout`, the model uses the dropout in its config, as in training.
        """
        with self._running(packed, replacement, dropout):
            return self.form.states(self.model, packed)

    def watch(self, packed: Packed, observer: BlockObserver, at_once: int | None = None) -> None:
        """Call `observer` with every layer and its attention, in blocks of queries with at most `at_once` values.

        The forward pass ends after the attention of the last layer.
        """
        with self._running(packed, None), suppress(Observed):
            self.session.observer = observer
            self.session.observed_at_once = at_once
            try:
                self.model(**self.form.arguments(self.model, packed), **options_of(self.model))
            finally:
                self.session.observer = None

    def hidden_states(
        self,
        inputs: Inputs,
        constants: AnyConstants | None = None,
        heads: Heads = None,
        mixing: Tensor | None = None,
    ) -> Tensor:
        """Return all hidden states of a batch with some heads replaced (paper, Sec. 3.3).

        Args:
            inputs: `input_ids` and `attention_mask` `[example, slot]`, as `lay_out` returns them.
            constants: what replaces the attention of `heads`: averages, a differentiable tensor `[layer, head, query,
                key]`, or `Outputs` of all heads.
            heads: pairs (layer, head); None means all.
            mixing: differentiable weights `[layer, head]` in [0, 1]: every head uses mixing * attention +
                (1 - mixing) * constant instead (Sec. 3.2); cannot be combined with `heads`.

        Returns:
            `[example, layer + 1, slot, hidden]`, embeddings first, zero for padding. The last state is the stock
            model's last state, which in decoders follows the final norm.

        Raises:
            InputError: inputs, constants, heads and model do not match.
        """
        packed = self.pack(inputs)
        states = self.run(packed, self.replacement(constants, heads, mixing))
        return packed.unpack(stacked(states)).transpose(1, 2)

    def logits(
        self,
        inputs: Inputs,
        constants: AnyConstants | None = None,
        heads: Heads = None,
        mixing: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of the model's prediction head with some attention heads replaced; see `hidden_states`.

        Returns:
            `[example, slot, word]`, zero for padding.

        Raises:
            InputError: the model has no prediction head, or one that does not return logits for every token.
        """
        packed = self.pack(inputs)
        return packed.unpack(self.scores(packed, self.replacement(constants, heads, mixing)))

    def scores(
        self, packed: Packed, replacement: Replacement | None = None, dropout: bool = False
    ) -> Tensor:
        """Return the prediction head's logits for a packed batch, `[token, word]`; `dropout` as in `run`."""
        arguments = self.form.arguments(self.model, packed)
        name = type(self.full).__name__
        with self._running(packed, replacement, dropout):
            output = getattr(self.full(**arguments, **options_of(self.full)), "logits", None)
        if output is None:
            raise InputError(
                f"{name} has no head, so it returns no logits; load a checkpoint with one."
            )
        rows = list(arguments["input_ids"].shape)
        if output.ndim != 3 or list(output.shape[:2]) != rows:
            raise InputError(
                f"The head of {name} returns logits {list(output.shape)} for inputs {rows}, not logits for each token; "
                "load a checkpoint with a language-modelling head."
            )
        return self.form.tokens(output, packed)


def stacked(states: Sequence[Tensor]) -> Tensor:
    """Stack hidden states `[token, hidden]`, `[token, state, hidden]`; raise `InputError` if they differ in size."""
    if len({state.shape[-1] for state in states}) > 1:
        raise InputError(
            "The last hidden state of this model has another size than the others, so no probe can read its states; "
            "measure its own head, with the metric log_likelihood."
        )
    return torch.stack(list(states), dim=1)


def _padding_of(config: PreTrainedConfig) -> int | None:
    """Return the padding id; None if another special token, such as the end of a text, has the same id."""
    padding = getattr(config, "pad_token_id", None)
    # decoders are often padded with the end of a text, whose id then does not show where padding is
    for name in ("bos", "eos", "sep", "unk"):
        special = getattr(config, f"{name}_token_id", None)
        if padding in (special if isinstance(special, list) else [special]):
            return None
    return padding


def check_model(value: object) -> Model:
    """Return `value` if it is a `Model`; else raise `InputError`."""
    if isinstance(value, Model):
        return value
    raise InputError(
        f"A papa.Model is needed, but a {type(value).__name__} was given; load one with papa.load_model(folder or hub "
        "id)."
    )


def check_stock(value: object) -> None:
    """Raise `InputError` unless `value` is a transformers model."""
    has_config = getattr(value, "config", None) is not None
    if isinstance(value, nn.Module) and has_config and hasattr(value, "base_model"):
        return
    description = repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
    if isinstance(value, Model):
        description = "a papa.Model, whose methods already take constants,"
    raise InputError(
        f"A transformers model is needed, such as AutoModel loads, but {description} was given."
    )


def packed_batches(model: Model, batches: Batches, caller: str) -> Iterator[Packed]:
    """Yield batches as packed rows on the model's device; `batches` are read once, and `caller` is named in errors.

    Raises:
        InputError: there is no batch, `batches` is a single batch, or the number of slots changes.
    """
    if isinstance(batches, Mapping | Packed | Tensor):
        raise InputError(
            f"{caller} takes a list of batches, but a single batch was given; put it into a list."
        )
    slots: int | None = None
    for inputs in batches:
        batch = model.pack(inputs)
        slots = slots or batch.n
        if batch.n != slots:
            raise InputError(
                f"A batch has {batch.n} slots, but earlier ones have {slots}; {caller} needs the same number in all."
            )
        yield batch
    if slots is None:
        raise InputError(
            f"{caller} takes a list of batches, but the list was empty; give at least one batch."
        )
