"""Masked tokens: which tokens a probe predicts, and which tokens the model reads in their places (paper, MLM task).

Each token that is not special is chosen independently with probability 0.15. Of the chosen tokens, 80 % become the mask
token, 10 % a random token, and 10 % stay. Masks are drawn for a whole split at once from (seed, epoch), so they depend
on neither batches nor machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from papa.data.packed import Packed
from papa.data.tokens import Tokens
from papa.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
"""Probability that a token is chosen; shares of chosen tokens that are masked and replaced at random."""
VALIDATION = (0, 0)
"""Seed and epoch of the validation masks of every fraction, constant and probe; training begins at epoch 1."""


@dataclass(frozen=True)
class Masks:
    """Masks of a split.

    Args:
        ids: `[token]`, the tokens that the model reads.
        chosen: bool `[token]`, whether a token is to be predicted, even if the model reads it unchanged.
    """

    ids: Tensor
    chosen: Tensor


@dataclass(frozen=True)
class MaskedBatch:
    """A batch with masked tokens.

    Args:
        packed: the batch for the model.
        places: int64 `[masked]`, positions in the packed row of the tokens to be predicted.
        gold: int64 `[masked]`, the original tokens at these positions.
    """

    packed: Packed
    places: Tensor
    gold: Tensor


@dataclass(frozen=True)
class Masking:
    """The tokens of a tokenizer, for masking. Special tokens, also [UNK], are never chosen and never replace a token.

    Args:
        mask_id: the mask token.
        special: int64 `[special]`.
        ordinary: int64 `[ordinary]`, the tokens that are not special.
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
        ordinary = sorted(set(tokenizer.get_vocab().values()) - special)
        return cls(int(tokenizer.mask_token_id), torch.tensor(sorted(special)), torch.tensor(ordinary))

    def draw(self, ids: Tensor, seed: int, epoch: int) -> Masks:
        """Draw masks for the tokens `ids` `[token]` of a split from (seed, epoch)."""
        state = np.random.SeedSequence([seed, epoch]).generate_state(1)
        generator = torch.Generator().manual_seed(int(state[0]))
        chosen = (torch.rand(len(ids), generator=generator) < CHOSEN) & ~torch.isin(ids, self.special)
        places = chosen.nonzero().squeeze(1)
        fate = torch.rand(len(places), generator=generator)
        random = self.ordinary[torch.randint(len(self.ordinary), (len(places),), generator=generator)]
        read = torch.where(fate < MASKED, self.mask_id, torch.where(fate < MASKED + RANDOM, random, ids[places]))
        return Masks(ids.index_copy(0, places, read.to(ids.dtype)), chosen)


def masked_batch(tokens: Tokens, masks: Masks, examples: Tensor) -> MaskedBatch:
    """Return the packed row of `examples` with their masks; `masks` are those of the whole split `tokens`."""
    where = tokens.tokens_of(examples)
    packed = tokens.batch(examples)
    places = masks.chosen[where].nonzero().squeeze(1)
    return MaskedBatch(replace(packed, ids=masks.ids[where].long()), places, packed.ids[places])
