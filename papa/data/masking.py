"""Masks: the tokens that a probe predicts, and those that the model reads in their places (paper, MLM task).

Each token that is not special is chosen independently with probability 0.15. Of the chosen tokens, 80 % become the mask
token, 10 % a random token, and 10 % stay. The masks of a whole split are drawn at once from (seed, epoch), so they
depend on neither batches nor machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from papa.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
"""Probability that a token is chosen; shares of chosen tokens that are masked and replaced at random."""
VALIDATION = (0, 0)
"""Seed and epoch of the validation masks of every fraction, constant and probe; training begins at epoch 1."""


@dataclass(frozen=True)
class Masks:
    """Masks of a split: the tokens `ids` `[token]` that the model reads, and whether each is predicted, `chosen`."""

    ids: Tensor
    chosen: Tensor


@dataclass(frozen=True)
class Masking:
    """The mask token of a tokenizer, its special tokens, and all other tokens, int64.

    Special tokens, also [UNK], are never chosen and never replace a token.
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
