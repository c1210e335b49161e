"""Masked tokens: which tokens a probe has to guess, and what the model reads in their places (paper, its MLM task).

Each token that is not special is chosen on its own with probability 0.15; of those chosen 80 % become the mask token,
10 % a random token and 10 % stay. Masks are drawn for a whole split at once from (seed, epoch), so they depend on
neither batches nor machine.
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
VALIDATION = (0, 0)
"""Seed and epoch of the validation masks, alike for every fraction, constant and probe; training begins at epoch 1."""


@dataclass(frozen=True)
class Masks:
    """Masks of one split: what the model reads, `ids` `[token]`, and which tokens are to be guessed, `chosen`
    bool `[token]`, those that stay what they are among them."""

    ids: Tensor
    chosen: Tensor


@dataclass(frozen=True)
class MaskedBatch:
    """A batch whose tokens are masked: `packed` for the model, the tokens to be guessed, `places` int64 `[masked]` in
    the packed row, and what they were, `gold` int64 `[masked]`."""

    packed: Packed
    places: Tensor
    gold: Tensor


@dataclass(frozen=True)
class Masking:
    """What masking has to know of a tokenizer: the mask token, and which ids are special (int64 `[special]`) or not
    (`[ordinary]`). Special tokens are never chosen, [UNK] among them, and never take the place of another token."""

    mask_id: int
    special: Tensor
    ordinary: Tensor

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, name: str) -> Masking:
        """Read off the tokenizer of the model `name`; raises `InputError` if it has no mask token."""
        if tokenizer.mask_token_id is None:
            raise InputError(
                f"The tokenizer of model {name} has no mask token, which masked language modelling needs; "
                "leave the model out of this task or give it a tokenizer with a mask_token."
            )
        special = set(tokenizer.all_special_ids)
        ordinary = sorted(set(tokenizer.get_vocab().values()) - special)
        return cls(int(tokenizer.mask_token_id), torch.tensor(sorted(special)), torch.tensor(ordinary))

    def draw(self, ids: Tensor, seed: int, epoch: int) -> Masks:
        """Masks for the tokens `ids` `[token]` of a split, from (seed, epoch) alone."""
        state = np.random.SeedSequence([seed, epoch]).generate_state(1)
        generator = torch.Generator().manual_seed(int(state[0]))
        chosen = (torch.rand(len(ids), generator=generator) < CHOSEN) & ~torch.isin(ids, self.special)
        places = chosen.nonzero().squeeze(1)
        fate = torch.rand(len(places), generator=generator)
        random = self.ordinary[torch.randint(len(self.ordinary), (len(places),), generator=generator)]
        read = torch.where(fate < MASKED, self.mask_id, torch.where(fate < MASKED + RANDOM, random, ids[places]))
        return Masks(ids.index_copy(0, places, read.to(ids.dtype)), chosen)


def masked_batch(tokens: Tokens, masks: Masks, examples: Tensor) -> MaskedBatch:
    """The packed row of `examples` with their masks; `masks` are those of the whole split `tokens`."""
    where = tokens.tokens_of(examples)
    packed = tokens.batch(examples)
    places = masks.chosen[where].nonzero().squeeze(1)
    return MaskedBatch(replace(packed, ids=masks.ids[where].long()), places, packed.ids[places])
