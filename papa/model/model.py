"""The frozen model: drop padding, run it with some heads replaced, hand out its hidden states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from papa.data.packed import Examples, Packed
from papa.errors import InputError
from papa.model import families
from papa.model.linear import freeze_linears
from papa.model.replacement import Constants, Head, Observer, Replacement, Session, check_slots, replacement_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class Model:
    """A pretrained encoder whose heads can be replaced. Its weights are frozen, dropout is off unless asked for.

    `layers`, `heads` (per layer) and `hidden` are its sizes, `slots_limit` the number of positions it has.

    Args:
        model: an encoder as transformers loads it; its modules are replaced in place.

    Raises:
        InputError: the attention of the model is not supported.
    """

    def __init__(self, model: PreTrainedModel):
        stock = families.attention_in(model)
        self.layers, self.heads = families.shape_of(model.config)
        self.slots_limit = families.slots_limit(model)
        self.session = Session(replacement_of((self.layers, self.heads)))
        families.patch(model, stock, self.session)
        freeze_linears(model)
        self.model = model.eval().requires_grad_(False)
        self.config: PreTrainedConfig = model.config
        self.hidden = int(self.config.hidden_size)
        self.precision = self.dtype
        """What it computes in: the type of its weights, or a smaller one, by autocast."""
        self.weights: str | None = None
        """SHA-256 of the files that its weights are from, if it was loaded by `model_of`."""

    def __repr__(self) -> str:
        return (
            f"<papa.Model: {type(self.model).__name__}, {self.layers} layers of {self.heads} heads, "
            f"hidden size {self.hidden}, {str(self.precision).removeprefix('torch.')} on {self.device}>"
        )

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
        packed = inputs if isinstance(inputs, Packed) else Packed.of(inputs, self.config.pad_token_id)
        if packed.n > self.slots_limit:
            raise InputError(f"The inputs have {packed.n} slots, the model has positions for {self.slots_limit}.")
        words, segments = self.config.vocab_size, self.config.type_vocab_size
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
        self, packed: Packed, replacement: Replacement | None, observer: Observer | None = None, dropout: bool = False
    ) -> Iterator[None]:
        session, usual = self.session, self.session.replacement
        if replacement is not None:
            check_slots(replacement, packed.n)
            session.replacement = replacement
        if dropout:
            self.model.train()
        session.examples, session.observer = Examples.of_packed(packed), observer
        try:
            with torch.autocast(self.device.type, self.precision, enabled=self.precision != self.dtype):
                yield
        finally:
            session.replacement, session.examples, session.observer = usual, None, None
            if dropout:
                self.model.eval()

    def run(self, packed: Packed, replacement: Replacement | None = None, dropout: bool = False) -> list[Tensor]:
        """Hidden states of a packed batch, embeddings first: L+1 tensors `[token, hidden]`.

        With `dropout` the model drops as its config says, wherever it did when it was trained.
        """
        options = families.layer_options(self.model)
        with self._running(packed, replacement, dropout=dropout):
            states = [families.embed(self.model, packed)]
            for layer in families.layers_of(self.model):
                states.append(families.hidden_state(layer(states[-1], **options)))
        return [state[0, : len(packed.ids)] for state in states]

    def observe(self, packed: Packed, observer: Observer) -> None:
        """Show `observer` the attention of every layer; what follows the last attention is not computed."""
        options = families.layer_options(self.model)
        with self._running(packed, None, observer):
            state = families.embed(self.model, packed)
            *before, last = families.layers_of(self.model)
            for layer in before:
                state = families.hidden_state(layer(state, **options))
            last.get_submodule("attention.self")(state, **options)

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
            constants: `ConstantMatrices`, or a tensor `[layer, head, query, key]`, differentiable, that replace the
                attention of `heads`.
            heads: pairs (layer, head); None means all.
            mixing: weights `[layer, head]` in [0, 1], differentiable: every head uses mixing * attention +
                (1 - mixing) * constant instead (Sec. 3.2); not together with `heads`.

        Returns:
            `[example, L+1, slot, hidden]`, layer 0 = embeddings, zero at padding.

        Raises:
            InputError: inputs, constants, heads and model do not go together.
        """
        packed = self.pack(inputs)
        states = self.run(packed, self.replacement(constants, heads, mixing))
        return packed.unpack(torch.stack(states, dim=1)).transpose(1, 2)


def check_model(value: object) -> Model:
    """`value`, if it is a `Model`; else raise `InputError` with how to get one."""
    if isinstance(value, Model):
        return value
    raise InputError(
        f"A papa.Model is needed, and a {type(value).__name__} was given; papa.load_model(folder or hub id) gives one."
    )


@contextmanager
def replaced_attention(
    model: PreTrainedModel, constants: Constants, heads: Iterable[Head] | None = None
) -> Iterator[PreTrainedModel]:
    """Run a plain transformers encoder with the attention of `heads` (None: all) replaced by `constants`.

    Inside, call the model as ever, with laid-out inputs `[example, slot]` and their attention_mask. The model's own
    modules are put back on leaving, whatever happened inside. Paper, Sec. 3.3.
    """
    stock = families.attention_in(model)
    replacement = replacement_of(families.shape_of(model.config), constants, heads, like=next(model.parameters()))
    session = Session(replacement)

    def note_examples(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        asked = kwargs.get("output_attentions")
        if model.config.output_attentions if asked is None else asked:
            raise InputError("A model whose attention is replaced returns no attentions; leave output_attentions out.")
        ids = kwargs.get("input_ids", args[0] if args else None)
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        if not isinstance(ids, Tensor) or not isinstance(mask, Tensor):
            raise InputError("Call the model with input_ids and attention_mask while its attention is replaced.")
        if mask.shape != ids.shape or ids.ndim != 2:
            raise InputError(
                f"input_ids {list(ids.shape)} and attention_mask {list(mask.shape)} must be [example, slot]."
            )
        check_slots(replacement, ids.shape[1])
        session.examples = Examples.of_mask(mask)

    hook = model.register_forward_pre_hook(note_examples, with_kwargs=True)
    try:
        families.patch(model, stock, session)
        yield model
    finally:
        hook.remove()
        for name, module in stock.items():
            model.set_submodule(name, module)
