"""The frozen model: drop padding, run it, hand out its hidden states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from papa.data.packed import Examples, Packed
from papa.errors import InputError
from papa.model.families import embed, hidden_state, layer_options, slots_limit
from papa.model.linear import freeze_linears
from papa.model.replacement import Head, Observer, Replacement, Session, plan_layers
from papa.model.surgery import attention_modules, patch, shape_of


class Model:
    """A pretrained encoder whose attention can be replaced. Its weights are frozen, dropout is off unless asked for.

    `layers`, `heads` (per layer) and `hidden` are its sizes, `slots_limit` the number of positions it has.
    """

    def __init__(self, model: Any):
        self.layers, self.heads = shape_of(attention_modules(model))
        self.session = Session(plan_layers((self.layers, self.heads)))
        patch(model, self.session)
        freeze_linears(model)
        self.model: Any = model.eval().requires_grad_(False)
        self.config: Any = model.config
        self.hidden = int(self.config.hidden_size)
        self.slots_limit = slots_limit(model)
        self.precision = self.dtype
        """What it computes in: the type of its weights, or a smaller one, by autocast."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return next(self.model.parameters()).dtype

    def pack(self, inputs: dict[str, Tensor] | Packed) -> Packed:
        """The real tokens of `inputs` (dense as `lay_out` returns them, or packed already) on the encoder's device.

        Raises `InputError` where ids and mask disagree, or the model lacks an id, a segment or a position.
        """
        batch = inputs if isinstance(inputs, Packed) else Packed.of(inputs, self.config.pad_token_id)
        if batch.n > self.slots_limit:
            raise InputError(f"The inputs have {batch.n} slots, the model has positions for {self.slots_limit}.")
        if len(batch.ids) and int(batch.ids.max()) >= self.config.vocab_size:
            raise InputError(f"Id {int(batch.ids.max())} is not in the model's vocabulary of {self.config.vocab_size}.")
        segments = self.config.type_vocab_size  # DeBERTa, with none, ignores them
        if segments and len(batch.segments) and int(batch.segments.max()) >= segments:
            raise InputError(f"Segment {int(batch.segments.max())} is not one of the model's {segments}.")
        return batch.to(self.device)

    def replacement(
        self, constants: Any = None, heads: Iterable[Head] | None = None, mixing: Tensor | None = None
    ) -> Replacement:
        """What every layer does with these replacements; see `hidden_states`. Reusable over batches."""
        shape = (self.layers, self.heads)
        return plan_layers(shape, constants, heads, mixing, device=self.device, dtype=self.dtype)

    @contextmanager
    def _running(
        self, batch: Packed, replacement: Replacement | None, observer: Observer | None = None, dropout: bool = False
    ) -> Iterator[None]:
        usual = self.session.plans
        if dropout:
            self.model.train()
        self.session.examples, self.session.observer = Examples.of_packed(batch), observer
        self.session.plans = usual if replacement is None else replacement
        try:
            with torch.autocast(self.device.type, self.precision, enabled=self.precision != self.dtype):
                yield
        finally:
            self.session.plans, self.session.examples, self.session.observer = usual, None, None
            if dropout:
                self.model.eval()

    def run(self, batch: Packed, replacement: Replacement | None = None, dropout: bool = False) -> list[Tensor]:
        """Hidden states of a packed batch, embeddings first: L+1 tensors `[token, hidden]`.

        With `dropout` the encoder drops as its config says, wherever it did when it was trained.
        """
        options = layer_options(self.model)
        with self._running(batch, replacement, dropout=dropout):
            state = embed(self.model, batch)
            states = [state]
            for layer in self.model.encoder.layer:
                state = hidden_state(layer(state, **options))
                states.append(state)
        return [state[0, : len(batch.ids)] for state in states]

    def observe(self, batch: Packed, observer: Observer) -> None:
        """Show `observer` the attention of every layer; what follows the last attention is not computed."""
        options = layer_options(self.model)
        with self._running(batch, None, observer):
            state = embed(self.model, batch)
            for layer in self.model.encoder.layer[:-1]:
                state = hidden_state(layer(state, **options))
            self.model.encoder.layer[-1].attention.self(state, **options)

    def hidden_states(
        self,
        inputs: dict[str, Tensor],
        constants: Any = None,
        heads: Iterable[Head] | None = None,
        mixing: Tensor | None = None,
    ) -> Tensor:
        """All hidden states `[example, L+1, slot, hidden]`, layer 0 = embeddings, zero at padding (paper, Sec. 3.3).

        `constants` (`ConstantMatrices` or a tensor `[layer, head, query, key]`, differentiable) replace the attention
        of `heads`, a list of (layer, head); None means all. With `mixing` `[layer, head]` in [0, 1], differentiable,
        every head uses mixing * attention + (1 - mixing) * constant instead (Sec. 3.2); not together with `heads`.
        """
        batch = self.pack(inputs)
        replacement = self.replacement(constants, heads, mixing)
        matrices = replacement[0].matrices
        if matrices is not None and matrices.shape[-1] != batch.n:
            raise InputError(
                f"The constants have {matrices.shape[-1]} slots and the inputs {batch.n}; they must agree."
            )
        states = torch.stack(self.run(batch, replacement), dim=1)  # [token, L+1, hidden]
        return batch.unpack(states).transpose(1, 2)
