"""Masks: the tokens that a probe predicts, and those that the model reads instead (paper, MLM task).

Each token that is not special is chosen independently with probability 0.15. Of the chosen tokens, 80 % become the mask
token, 10 % become a random token, and 10 % stay unchanged. The masks of a whole split are drawn at once from (seed,
epoch), so they depend neither on the batches nor on the machine.
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

CHOSEN_SHARE, MASKED_SHARE, RANDOM_SHARE = 0.15, 0.8, 0.1
"""Probability that a token is chosen, and that a chosen token becomes the mask token or a random token."""
VALIDATION = (0, 0)
"""Seed and epoch of the validation masks of every variant and probe; epochs of training start at 1."""


@dataclass(frozen=True)
class Masks:
    """Masks of a split: `ids` `[token]`, as the model reads them; `chosen` `[token]`, true for tokens to predict."""

    ids: Tensor
    chosen: Tensor


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
        ordinary = sorted(set(tokenizer.get_vocab().values()) - special)
        return cls(int(tokenizer.mask_token_id), torch.tensor(sorted(special)), torch.tensor(ordinary))

    def draw(self, ids: Tensor, seed: int, epoch: int) -> Masks:
        """Draw masks for the tokens `ids` `[token]` of a split from (seed, epoch)."""
        state = np.random.SeedSequence([seed, epoch]).generate_state(1)
        generator = torch.Generator().manual_seed(int(state[0]))
        chosen = (torch.rand(len(ids), generator=generator) < CHOSEN_SHARE) & ~torch.isin(ids, self.special)
        indices = chosen.nonzero().squeeze(1)
        draw = torch.rand(len(indices), generator=generator)
        random = self.ordinary[torch.randint(len(self.ordinary), (len(indices),), generator=generator)]
        unmasked = torch.where(draw < MASKED_SHARE + RANDOM_SHARE, random, ids[indices])
        read = torch.where(draw < MASKED_SHARE, self.mask_id, unmasked)
        return Masks(ids.index_copy(0, indices, read.to(ids.dtype)), chosen)
