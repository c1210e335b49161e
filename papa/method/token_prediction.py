"""Objectives that predict tokens: a decoder's next tokens, or masked tokens by a new probe (paper, Sec. 4).

Of the tokens that are not special, each is masked independently with probability 0.15. Of these, 80% become the mask
token, 10% become a random token, and 10% stay unchanged. The masks of a whole split are drawn at once from (seed,
epoch), so they depend neither on the batches nor on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable
from torch.nn.functional import cross_entropy, linear

from papa.config.measures import MASKED, NEXT
from papa.data.packed import Packed
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.objectives import (
    IGNORED,
    Batch,
    Objective,
    OutcomesBySplit,
    Splits,
    initialise,
    outcomes_table,
    spread_of,
)
from papa.model.model import Model

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

DECODED_AT_ONCE = 256
"""Number of tokens that are decoded at once; each needs a logit for every word of the vocabulary."""
SCORED_AT_ONCE = 64
"""Number of tokens whose logits are copied at once to score them."""
LOGITS_AT_ONCE = 1 << 27
"""Maximum number of logits of a model's own head in a batch of several texts; more would need gigabytes."""
CHOSEN_SHARE = 0.15
MASKED_SHARE = 0.8
RANDOM_SHARE = 0.1
"""Probability that a token is chosen, and that a chosen token becomes the mask token or a random token."""
VALIDATION = (0, 0)
"""Seed and epoch of the validation masks of every variant and probe; epochs of training start at 1."""
ACTIVATION_KEYS = (
    "hidden_act",
    "hidden_activation",
    "activation",
    "activation_function",
    "dense_act_fn",
)
"""The names that model configs use for the activation."""


class TokenPrediction(Objective):
    """An objective that predicts tokens; validation texts are scored in batches of about equal numbers of tokens."""

    model: Model

    def scored(self) -> Iterator[Batch]:
        if "validation" in self.splits:
            for examples in self._batches(self.splits["validation"]):
                yield self._batch("validation", examples)

    def _batches(self, tokens: Tokens) -> Iterator[Tensor]:
        """Yield the indices of examples in batches for which memory suffices."""
        return tokens.batches(self.model.token_budget, self.model.form.padded)

    def table_of(self, chosen: Tensor, word_counts: Tensor, outcomes: OutcomesBySplit) -> pa.Table:
        """Return a row for each token that is predicted: its text, its place there, and its loss in nats.

        `chosen` `[token]` marks these tokens. `trivial` is the loss of a guess from `word_counts` `[word]`.
        """
        tokens = self.splits["validation"]
        # texts as `scored` yields them; a budget decides where batches end, but not on the order
        order = torch.cat(list(self._batches(tokens)))
        of_scored = tokens.tokens_of(order)
        of_scored = of_scored[chosen[of_scored]]
        losses = outcomes["validation"].float()[of_scored.argsort()]
        text = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
        place = torch.arange(len(tokens.ids)) - tokens.offsets[text]
        blind = -(word_counts / word_counts.sum()).log()[tokens.ids[chosen].long()]
        columns = {
            "example": text[chosen],
            "position": place[chosen],
            "loss": losses,
            "trivial": blind.float(),
        }
        return outcomes_table("validation", columns)


class NextTokens(TokenPrediction):
    """Next tokens: each token of a text except the first, special or not, is predicted from those before it."""

    target = NEXT

    def __init__(self, splits: Splits, model: Model, user: str = "log_likelihood"):
        """Check that the model can predict next tokens; `user` names what needs them, for errors."""
        if not model.causal:
            raise InputError(
                f"{type(model.full).__name__} sees later tokens, so it cannot predict the next one; log_likelihood "
                "needs a decoder, and negative_log_perplexity masks tokens."
            )
        if model.full is model.model:
            raise InputError(
                f"The checkpoint of {type(model.full).__name__} has no language-modelling head, which {user} needs; "
                "give a checkpoint with its head, or tasks with labels."
            )
        if "validation" in splits and not (splits["validation"].lengths > 1).any():
            raise InputError(
                "No text of the validation split has a next token, because each has only one token; use longer texts."
            )
        self.splits = splits
        self.model = model
        self.probe = nn.Identity()
        self.tokens_at_once = LOGITS_AT_ONCE // model.config.get_text_config().vocab_size

    def _batches(self, tokens: Tokens) -> Iterator[Tensor]:
        return tokens.batches(min(self.model.token_budget, self.tokens_at_once))

    def divided(self, examples: Tensor) -> Sequence[Tensor]:
        longest = int(self.splits["train"].lengths[examples].max())
        parts: Sequence[Tensor] = examples.split(max(1, self.tokens_at_once // longest))
        return parts

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats, differentiable in the logits `hidden` `[token, word]`."""
        gold = batch.gold.to(hidden.device)
        total = cross_entropy(hidden, gold, ignore_index=IGNORED, reduction="sum")
        return total / max(1, self.predictions(batch))

    def predictions(self, batch: Batch) -> int:
        return int((batch.gold != IGNORED).sum())

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the loss of each predicted token in nats, in the order of the packed row."""
        gold = batch.gold.to(hidden.device)
        losses = []
        for chunk in torch.arange(len(gold), device=hidden.device).split(SCORED_AT_ONCE):
            rows = chunk[gold[chunk] != IGNORED]
            losses.append(cross_entropy(hidden[rows], gold[rows], reduction="none"))
        return torch.cat(losses)

    def table(self, outcomes: OutcomesBySplit) -> pa.Table:
        """Return a row for each token but the first of a text; the guess is from the counts in training, plus one."""
        tokens = self.splits["validation"]
        train = self.splits["train"]
        words = self.model.config.get_text_config().vocab_size
        counts = torch.bincount(train.ids[_has_predecessor(train)].long(), minlength=words).double()
        # plus one, or the loss of a word that training lacks would be infinite
        return self.table_of(_has_predecessor(tokens), counts + 1, outcomes)

    def _batch(self, split: str, examples: Tensor) -> Batch:
        tokens = self.splits[split]
        packed = tokens.batch(examples)
        return Batch(tokens, examples, packed, _next_tokens(packed))


def _next_tokens(packed: Packed) -> Tensor:
    """Return the token that follows each token of a packed row in its text, `[token]`; IGNORED at the end of a text."""
    gold = packed.ids.roll(-1)
    gold[packed.lengths.cumsum(0) - 1] = IGNORED
    return gold


def _has_predecessor(tokens: Tokens) -> Tensor:
    """Return whether each token of a split is preceded by another in its text, bool `[token]`."""
    preceded = torch.ones(len(tokens.ids), dtype=torch.bool)
    preceded[tokens.offsets[:-1]] = False
    return preceded


@dataclass(frozen=True)
class Masks:
    """Masks of a split: `ids` `[token]`, as the model reads them; `chosen` `[token]`, true for tokens to predict."""

    ids: Tensor
    chosen: Tensor


def activation_of(config: PreTrainedConfig) -> str:
    """Return the activation in a model's config, under any of `ACTIVATION_KEYS`; gelu if there is none."""
    values = (getattr(config.get_text_config(), name, None) for name in ACTIVATION_KEYS)
    return next((value for value in values if isinstance(value, str)), "gelu")


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
        self.projection = nn.Identity() if size == hidden else nn.Linear(hidden, size)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.register_buffer("embeddings", embeddings.detach(), persistent=False)
        initialise(self, initializer_range)

    def packed(self, hidden: Tensor) -> Tensor:
        """Return logits `[token, vocabulary]` from packed `hidden` `[token, L+1, hidden]`."""
        return linear(self.states(hidden), self.embeddings, self.bias)

    def states(self, hidden: Tensor) -> Tensor:
        """Return the decoder's input, `[token, size]`, from packed `hidden` `[token, L+1, hidden]`."""
        states: Tensor = self.projection(self.activation(self.dense(hidden.flatten(1))))
        return states


@dataclass(frozen=True)
class Masking:
    """The mask token of a tokenizer, its special tokens, and its ordinary tokens, int64.

    Special tokens, including [UNK], are never chosen and never replace another token.
    """

    mask_id: int
    special: Tensor
    ordinary: Tensor

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, name: str) -> Masking:
        """Return the masking for the tokenizer of the model `name`; raise `InputError` if it has no mask token."""
        if tokenizer.mask_token_id is None:
            raise InputError(
                f"The tokenizer of model {name} has no mask token, which masked language modelling needs; "
                "leave the model out of this task or give it a tokenizer with a mask_token."
            )
        special = set(tokenizer.all_special_ids)
        # sorted, because draws are indices into this list
        ordinary = sorted(set(tokenizer.get_vocab().values()) - special)
        return cls(
            int(tokenizer.mask_token_id), torch.tensor(sorted(special)), torch.tensor(ordinary)
        )

    def draw(self, ids: Tensor, seed: int, epoch: int) -> Masks:
        """Draw masks for the tokens `ids` `[token]` of a split from (seed, epoch)."""
        # with seed + epoch, epoch 2 of a seed would have the masks of epoch 1 of the next seed
        state = np.random.SeedSequence([seed, epoch]).generate_state(1)
        generator = torch.Generator().manual_seed(int(state[0]))
        chosen = (torch.rand(len(ids), generator=generator) < CHOSEN_SHARE) & ~torch.isin(
            ids, self.special
        )
        indices = chosen.nonzero().squeeze(1)
        draw = torch.rand(len(indices), generator=generator)
        random = self.ordinary[
            torch.randint(len(self.ordinary), (len(indices),), generator=generator)
        ]
        unmasked = torch.where(draw < MASKED_SHARE + RANDOM_SHARE, random, ids[indices])
        read = torch.where(draw < MASKED_SHARE, self.mask_id, unmasked)
        return Masks(ids.index_copy(0, indices, read.to(ids.dtype)), chosen)


class MaskedTokens(TokenPrediction):
    """Masked tokens; the masks of training texts are drawn again in every epoch, from (seed, epoch).

    The probe is tied to the input embeddings of `model`. Only masked tokens are decoded, at most `DECODED_AT_ONCE` at
    a time, because their logits need most of the memory.
    """

    target = MASKED
    probe: MlmProbe

    def __init__(self, splits: Splits, model: Model, masking: Masking, seed: int):
        self.check(model)
        self.splits = splits
        self.model = model
        self.masking = masking
        self.seed = seed
        self.masks: dict[str, Masks] = {}
        if "validation" in splits:
            self.masks["validation"] = masking.draw(splits["validation"].ids, *VALIDATION)
            if not self.masks["validation"].chosen.any():
                raise InputError(
                    "No token of the validation split is masked; use more or longer validation texts."
                )
        embeddings = _embeddings_of(model)
        self.vocabulary = len(embeddings)
        config = model.config
        self.probe = MlmProbe(
            model.states, model.hidden, embeddings.float(), activation_of(config), spread_of(config)
        )

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

    def table(self, outcomes: OutcomesBySplit) -> pa.Table:
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
    indices = tokens.tokens_of(examples)
    packed = tokens.batch(examples)
    positions = masks.chosen[indices].nonzero().squeeze(1)
    return Batch(
        tokens,
        examples,
        replace(packed, ids=masks.ids[indices].long()),
        packed.ids[positions],
        positions,
    )


def _embeddings_of(model: Model) -> Tensor:
    """Return the input embeddings of a model, `[word, size]`; raise `InputError` if it has none."""
    try:
        weight = model.model.get_input_embeddings().weight
    except (
        AttributeError,
        NotImplementedError,
    ):  # several tables, or none that transformers can return
        weight = None
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise InputError(
            f"{type(model.model).__name__} has no single table of input embeddings, which the probe for masked tokens "
            "needs; leave the model out of masked language modelling."
        )
    return weight


def token_losses(probe: MlmProbe, hidden: Tensor, gold: Tensor) -> Tensor:
    """Return the cross-entropy in nats of each token `gold` `[masked]`, from `hidden` `[masked, L+1, hidden]`."""
    chunks = zip(
        hidden.split(DECODED_AT_ONCE), gold.to(hidden.device).split(DECODED_AT_ONCE), strict=True
    )
    return torch.cat(
        [cross_entropy(probe.packed(states), tokens, reduction="none") for states, tokens in chunks]
    )


def summed_loss(probe: MlmProbe, hidden: Tensor, gold: Tensor) -> Tensor:
    """Return the cross-entropy in nats of `gold` `[masked]` from `hidden` `[masked, L+1, hidden]`, summed over tokens.

    Gradients reach the probe's parameters and `hidden`, but not the embeddings.
    """
    states = probe.states(hidden)
    gold = gold.to(hidden.device)
    learning = torch.is_grad_enabled()
    total: Tensor = _TiedCrossEntropy.apply(states, probe.embeddings, probe.bias, gold, learning)
    return total


class _TiedCrossEntropy(torch.autograd.Function):
    """The cross-entropy of a frozen decoder, summed over tokens.

    The forward pass computes the gradients chunk by chunk, so the backward pass needs no logits.
    """

    @staticmethod
    def forward(
        context: FunctionCtx,
        states: Tensor,
        embeddings: Tensor,
        bias: Tensor,
        gold: Tensor,
        learning: bool,
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=states.device)
        state_slopes = torch.empty_like(states)
        bias_slopes = torch.zeros_like(bias)
        for begin in range(0, len(states), DECODED_AT_ONCE):
            rows = slice(begin, begin + DECODED_AT_ONCE)
            right = gold[rows, None]
            logits = linear(states[rows], embeddings, bias)  # [chunk, vocabulary]
            # in place, because logits are by far the largest tensor here
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
