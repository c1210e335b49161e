"""Masked language modelling: a probe guesses masked tokens from all hidden states of the frozen encoder (MLM task).

Every epoch masks its training texts anew, so hidden states cannot be stored and the encoder runs along. What bounds
memory is the vocabulary: only masked tokens are decoded, and never more than `DECODED_AT_ONCE` of them together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from papa.config import machine
from papa.data.masking import MaskedBatch, Masking, Masks, masked_batch
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.probes import MlmProbe
from papa.model.linear import linear
from papa.model.model import Model
from papa.model.replacement import Replacement

IDLE = -1
DECODED_AT_ONCE = 256
ROWS = 64
"""Masked tokens are rounded up to a multiple: oneDNN keeps a kernel for every number, each as large as the decoder."""
Plan = Replacement | None


def mlm_probe(encoder: Model) -> MlmProbe:
    """A new probe for this encoder, on its device, tied to its input embeddings."""
    config, embeddings = encoder.config, encoder.model.get_input_embeddings().weight
    probe = MlmProbe(
        encoder.layers + 1, encoder.hidden, embeddings.float(), config.hidden_act, config.initializer_range
    )
    return probe.to(encoder.device)


def masked_hidden(encoder: Model, batch: MaskedBatch, plan: Plan = None, dropout: bool = False) -> Tensor:
    """Hidden states of the masked tokens alone, float32 `[masked, L+1, hidden]`; differentiable in a plan's mixing."""
    states = encoder.run(encoder.pack(batch.packed), plan, dropout)
    places = batch.places.to(encoder.device)
    return torch.stack([state.index_select(0, places) for state in states], dim=1).float()


def mlm_loss(probe: MlmProbe, hidden: Tensor, gold: Tensor) -> Tensor:
    """Mean cross-entropy in nats of guessing `gold` `[masked]` from `hidden` `[masked, L+1, hidden]`; 0 for no token.

    Differentiable in the probe's parameters and in `hidden`; the embeddings get no gradient.
    """
    return summed_loss(probe, hidden, gold) / max(1, len(gold))


def summed_loss(probe: MlmProbe, hidden: Tensor, gold: Tensor) -> Tensor:
    """As `mlm_loss`, the sum over tokens."""
    idle = ROWS - len(gold) % ROWS
    states = probe.states(pad(hidden, (0, 0, 0, 0, 0, idle)))
    gold = pad(gold.to(hidden.device), (0, idle), value=IDLE)
    return _TiedCrossEntropy.apply(states, probe.embeddings, probe.bias, gold, torch.is_grad_enabled())


class MaskedTraining:
    """A new probe, and its loss on training texts that are masked anew every epoch, from (seed, epoch).

    `begin` comes before the first step of every epoch.
    """

    def __init__(self, encoder: Model, tokens: Tokens, masking: Masking, seed: int, dropout: bool = False):
        self.encoder, self.tokens, self.masking, self.seed, self.dropout = encoder, tokens, masking, seed, dropout
        self.probe = mlm_probe(encoder)

    def begin(self, epoch: int) -> None:
        """Draw the masks of an epoch, counted from 1."""
        self.masks = self.masking.draw(self.tokens.ids, self.seed, epoch)

    def loss(self, examples: Tensor, plan: Plan = None) -> Tensor:
        """`mlm_loss` on `examples`; differentiable in the probe and, where the plan mixes, in its weights."""
        batch = masked_batch(self.tokens, self.masks, examples)
        return mlm_loss(self.probe, masked_hidden(self.encoder, batch, plan, self.dropout), batch.gold)


class _TiedCrossEntropy(torch.autograd.Function):
    """Sum of cross-entropies of a frozen decoder, over tokens whose `gold` is not IDLE.

    Gradients are made on the way forward, chunk by chunk, so that no logits have to be kept for the way back.
    """

    @staticmethod
    def forward(context: Any, states: Tensor, embeddings: Tensor, bias: Tensor, gold: Tensor, learning: bool) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=states.device)
        of_states, of_bias = torch.empty_like(states), torch.zeros_like(bias)
        for begin in range(0, len(states), DECODED_AT_ONCE):
            rows = slice(begin, begin + DECODED_AT_ONCE)
            real, own = gold[rows, None] != IDLE, gold[rows, None].clamp(min=0)
            logits = linear(states[rows], embeddings).add_(bias)  # [chunk, vocabulary]
            logits.sub_(logits.logsumexp(1, keepdim=True))
            total -= logits.gather(1, own)[real].sum(dtype=torch.float64)
            if learning:
                slopes = logits.exp_().scatter_add_(1, own, logits.new_full(own.shape, -1.0)).mul_(real)
                of_states[rows] = linear(slopes, embeddings.t())
                of_bias += slopes.sum(0)
        if learning:
            context.save_for_backward(of_states, of_bias)
        return total.to(states.dtype)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_states, of_bias = context.saved_tensors
        return gradient * of_states, None, gradient * of_bias, None, None


def negative_log_perplexity(probe: MlmProbe, encoder: Model, plan: Plan, tokens: Tokens, masks: Masks) -> float:
    """Minus the mean cross-entropy in nats over all masked tokens of a split: -log perplexity, 0 at best.

    Raises `InputError` where no token is masked.
    """
    masked = int(masks.chosen.count_nonzero())
    if not masked:
        raise InputError(f"No token of the {tokens.split} split is masked: its texts are too few and too short.")
    total = 0.0
    with torch.no_grad():
        for examples in tokens.batches(machine.current().token_budget):
            batch = masked_batch(tokens, masks, examples)
            total += float(summed_loss(probe, masked_hidden(encoder, batch, plan), batch.gold))
    return -total / masked
