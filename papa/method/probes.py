"""Probes: small classifiers on all hidden states of a frozen model (paper, Sec. 4 and its appendix on training).

They read packed hidden states, `[token, L+1, hidden]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, linear

from papa.data.packed import Packed
from papa.errors import InputError
from papa.model.forms import probe_dropout
from papa.model.model import Model

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class ProbeSizes:
    """The sizes of hidden states, and the settings of a probe that follow from the model.

    Args:
        layers: number of hidden states per token: L+1, including the embeddings.
        hidden: size of a hidden state.
        slots: number of slots in the layout.
        initializer_range: standard deviation of initial weights.
        probe_dropout: dropout before the output of a sequence probe.
    """

    layers: int
    hidden: int
    slots: int
    initializer_range: float
    probe_dropout: float

    @classmethod
    def of(cls, model: Model, slots: int) -> ProbeSizes:
        return cls(
            model.states, model.hidden, slots, spread_of(model.config), probe_dropout(model.config)
        )


ACTIVATION_KEYS = (
    "hidden_act",
    "hidden_activation",
    "activation",
    "activation_function",
    "dense_act_fn",
)
"""The names that model configs use for the activation."""


def spread_of(config: PreTrainedConfig) -> float:
    """Return the standard deviation of a model's initial weights; 0.02 if its config has none."""
    return float(getattr(config, "initializer_range", 0.02))


def activation_of(config: PreTrainedConfig) -> str:
    """Return the activation in a model's config, under any of `ACTIVATION_KEYS`; gelu if there is none."""
    values = (getattr(config.get_text_config(), name, None) for name in ACTIVATION_KEYS)
    return next((value for value in values if isinstance(value, str)), "gelu")


class SequenceProbe(nn.Module):
    """A probe for whole examples: a learned weighted sum over slots in each layer, then dense, tanh, dropout, output.

    The weights `slot_weights` `[L+1, slot]` start at 1/slots; the L+1 sums are concatenated.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        hidden: int,
        labels: int,
        dropout: float = 0.0,
        initializer_range: float = 0.02,
    ):
        super().__init__()
        self.slot_weights = nn.Parameter(torch.full((layers, slots), 1.0 / slots))
        self.dense = nn.Linear(layers * hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, labels)
        _initialise(self, initializer_range)

    def packed(self, hidden: Tensor, batch: Packed) -> Tensor:
        """Return logits `[example, label]` from packed `hidden` `[token, L+1, hidden]`."""
        tokens, layers, size = hidden.shape
        layer = torch.arange(layers, device=hidden.device)[:, None]
        begin = batch.lengths.cumsum(0) - batch.lengths
        pooled = embedding_bag(
            (torch.arange(tokens, device=hidden.device) * layers + layer).flatten(),
            hidden.reshape(-1, size),
            (begin + layer * tokens).flatten(),  # a bag for every layer and example
            mode="sum",
            per_sample_weights=self.slot_weights.index_select(1, batch.slots).flatten(),
        )
        pooled = (
            pooled.view(layers, -1, size).transpose(0, 1).flatten(1)
        )  # [example, (L+1) * hidden]
        dense = torch.tanh(linear(pooled, self.dense.weight, self.dense.bias))
        logits: Tensor = self.output(self.dropout(dense))
        return logits


class TokenProbe(nn.Module):
    """A probe for tokens: the L+1 vectors of each token are concatenated, then dense, tanh, output."""

    def __init__(self, layers: int, hidden: int, labels: int, initializer_range: float = 0.02):
        super().__init__()
        self.dense = nn.Linear(layers * hidden, hidden)
        self.output = nn.Linear(hidden, labels)
        _initialise(self, initializer_range)

    def packed(self, hidden: Tensor) -> Tensor:
        """Return logits `[token, label]` from packed `hidden` `[token, L+1, hidden]`."""
        logits: Tensor = self.output(
            torch.tanh(linear(hidden.flatten(1), self.dense.weight, self.dense.bias))
        )
        return logits


class MlmProbe(nn.Module):
    """A probe for masked tokens: the L+1 vectors of each are concatenated, then dense, activation, decoder.

    logits = embeddings · activation(dense(hidden)) + bias. The decoder is tied to the model's input embeddings, which
    are frozen and are neither parameters of the probe nor part of its state. `bias` `[vocabulary]` is initially 0. If
    embeddings and hidden states differ in size (ELECTRA small), a learned projection precedes the decoder.
    """

    embeddings: Tensor

    def __init__(
        self,
        layers: int,
        hidden: int,
        embeddings: Tensor,
        activation: str = "gelu",
        initializer_range: float = 0.02,
    ):
        """Create a probe for a model's `embeddings` `[vocabulary, size]` and `activation` (see `activation_of`)."""
        super().__init__()
        from transformers.activations import ACT2FN

        if activation not in ACT2FN:
            raise InputError(
                f"{activation!r} is not an activation; give one of {', '.join(sorted(ACT2FN))}."
            )
        vocabulary, size = embeddings.shape
        self.dense = nn.Linear(layers * hidden, hidden)
        self.activation = ACT2FN[activation]
        self.projection = nn.Linear(hidden, size) if size != hidden else None
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.register_buffer("embeddings", embeddings.detach(), persistent=False)
        _initialise(self, initializer_range)

    def packed(self, hidden: Tensor) -> Tensor:
        """Return logits `[token, vocabulary]` from packed `hidden` `[token, L+1, hidden]`."""
        return linear(self.states(hidden), self.embeddings, self.bias)

    def states(self, hidden: Tensor) -> Tensor:
        """Return the decoder's input, `[token, size]`, from packed `hidden` `[token, L+1, hidden]`."""
        states = self.activation(linear(hidden.flatten(1), self.dense.weight, self.dense.bias))
        return (
            states
            if self.projection is None
            else linear(states, self.projection.weight, self.projection.bias)
        )


def _initialise(probe: nn.Module, spread: float) -> None:
    for module in probe.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=spread)
            nn.init.zeros_(module.bias)
