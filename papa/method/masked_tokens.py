"""The objective of a new probe that predicts masked tokens (masked language modelling; paper, Sec. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable
from torch.nn.functional import cross_entropy, linear

from papa.config.measures import MASKED
from papa.data.masking import VALIDATION, Masking, Masks
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.fitting import Recorded
from papa.method.objective import Batch
from papa.method.probes import MlmProbe, activation_of, spread_of
from papa.method.token_prediction import DECODED_AT_ONCE, TokenPrediction
from papa.model.model import Model

if TYPE_CHECKING:
    import pyarrow as pa


class MaskedTokens(TokenPrediction):
    """Masked tokens; the masks of training texts are drawn again in every epoch, from (seed, epoch).

    The probe is tied to the input embeddings of `model`. Only masked tokens are decoded, at most `DECODED_AT_ONCE` at
    a time, because their logits need most of the memory.
    """

    target = MASKED
    probe: MlmProbe

    def __init__(self, splits: Mapping[str, Tokens], model: Model, masking: Masking, seed: int):
        self.check(model)
        self.splits, self.model, self.masking, self.seed = splits, model, masking, seed
        self.masks: dict[str, Masks] = {}
        if "validation" in splits:
            self.masks["validation"] = masking.draw(splits["validation"].ids, *VALIDATION)
            if not self.masks["validation"].chosen.any():
                raise InputError("No token of the validation split is masked; use more or longer validation texts.")
        embeddings = _embeddings_of(model)
        self.vocabulary, config = len(embeddings), model.config
        self.probe = MlmProbe(model.states, model.hidden, embeddings.float(), activation_of(config), spread_of(config))

    @staticmethod
    def check(model: Model) -> None:
        """Raise `InputError` if the model is a decoder."""
        if model.causal:
            raise InputError(
                f"{type(model.model).__name__} sees no later tokens, so it cannot predict masked tokens from both "
                "sides; measure it by log_likelihood, or leave it out of masked language modelling."
            )

    def begin(self, epoch: int) -> None:
        self.masks["train"] = self.masking.draw(self.splits["train"].ids, self.seed, epoch)

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats, differentiable in the probe and in `hidden` but not in embeddings."""
        return summed_loss(self.probe, hidden, batch.gold) / max(1, len(batch.gold))

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the loss of each masked token in nats."""
        return token_losses(self.probe, hidden, batch.gold)

    def table(self, outcomes: Recorded) -> pa.Table:
        """Return a row for each masked token of the validation split.

        The guess is from the counts of tokens in training, plus one. Special tokens are never masked, so the guess
        never predicts them.
        """
        counts = torch.bincount(self.splits["train"].ids.long(), minlength=self.vocabulary).double()
        ordinary = self.masking.ordinary
        word_counts = torch.zeros_like(counts).index_copy(0, ordinary, counts[ordinary] + 1)
        return self.table_of(self.masks["validation"].chosen, word_counts, outcomes)

    def _batch(self, split: str, examples: Tensor) -> Batch:
        return masked_batch(self.splits[split], self.masks[split], examples)


def masked_batch(tokens: Tokens, masks: Masks, examples: Tensor) -> Batch:
    """Return examples of a split with its `masks` applied; `gold` has the original tokens at the chosen positions."""
    indices, packed = tokens.tokens_of(examples), tokens.batch(examples)
    positions = masks.chosen[indices].nonzero().squeeze(1)
    return Batch(tokens, examples, replace(packed, ids=masks.ids[indices].long()), packed.ids[positions], positions)


def _embeddings_of(model: Model) -> Tensor:
    """Return the input embeddings of a model, `[word, size]`; raise `InputError` if it has none."""
    try:
        weight = model.model.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):  # several tables, or none that transformers can return
        weight = None
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise InputError(
            f"{type(model.model).__name__} has no single table of input embeddings, which the probe for masked tokens "
            "needs; leave the model out of masked language modelling."
        )
    return weight


def token_losses(probe: MlmProbe, hidden: Tensor, gold: Tensor) -> Tensor:
    """Return the cross-entropy in nats of each token `gold` `[masked]`, from `hidden` `[masked, L+1, hidden]`."""
    chunks = zip(hidden.split(DECODED_AT_ONCE), gold.to(hidden.device).split(DECODED_AT_ONCE), strict=True)
    return torch.cat([cross_entropy(probe.packed(states), tokens, reduction="none") for states, tokens in chunks])


def summed_loss(probe: MlmProbe, hidden: Tensor, gold: Tensor) -> Tensor:
    """Return the cross-entropy in nats of `gold` `[masked]` from `hidden` `[masked, L+1, hidden]`, summed over tokens.

    Gradients reach the probe's parameters and `hidden`, but not the embeddings.
    """
    states, gold, learning = probe.states(hidden), gold.to(hidden.device), torch.is_grad_enabled()
    total: Tensor = _TiedCrossEntropy.apply(states, probe.embeddings, probe.bias, gold, learning)
    return total


class _TiedCrossEntropy(torch.autograd.Function):
    """The cross-entropy of a frozen decoder, summed over tokens.

    The forward pass computes the gradients chunk by chunk, so the backward pass needs no logits.
    """

    @staticmethod
    def forward(
        context: FunctionCtx, states: Tensor, embeddings: Tensor, bias: Tensor, gold: Tensor, learning: bool
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=states.device)
        state_slopes, bias_slopes = torch.empty_like(states), torch.zeros_like(bias)
        for begin in range(0, len(states), DECODED_AT_ONCE):
            rows = slice(begin, begin + DECODED_AT_ONCE)
            right = gold[rows, None]
            logits = linear(states[rows], embeddings, bias)  # [chunk, vocabulary]
            logits.sub_(logits.logsumexp(1, keepdim=True))
            total -= logits.gather(1, right).sum(dtype=torch.float64)
            if learning:
                slopes = logits.exp_().scatter_add_(1, right, logits.new_full(right.shape, -1.0))
                state_slopes[rows] = linear(slopes, embeddings.t())
                bias_slopes += slopes.sum(0)
        if learning:
            context.save_for_backward(state_slopes, bias_slopes)
        return total.to(states.dtype)

    @staticmethod
    @once_differentiable
    def backward(context: BackwardCFunction, gradient: Tensor) -> tuple[Tensor | None, ...]:
        state_slopes, bias_slopes = list(context.saved_tensors)
        return gradient * state_slopes, None, gradient * bias_slopes, None, None
