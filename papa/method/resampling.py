"""Attention to single texts, drawn at random: a constant that shows what averaging contributes."""

from __future__ import annotations

import torch
from torch import Tensor

from papa.config.variant import RESAMPLED
from papa.data.packed import Examples
from papa.data.tokens import Tokens
from papa.method.averages import ConstantMatrices
from papa.model.model import Model


def resampled_attention(model: Model, train: Tokens, seed: int = 0) -> ConstantMatrices:
    """Draw a text for each slot; return matrices in which each row is a slot's attention in the text drawn for it.

    The text is drawn from those with a token in the slot, and is the same for all heads. `count` is 1 in rows of slots
    that any text uses, and `examples` is the number of distinct texts drawn.
    """
    chance = torch.Generator().manual_seed(seed)
    example_of = torch.arange(len(train)).repeat_interleave(train.lengths)
    rows_of_text: dict[int, list[int]] = {}
    for slot in train.slots.unique().tolist():
        candidates = example_of[train.slots == slot]
        drawn = int(candidates[torch.randint(len(candidates), (1,), generator=chance)])
        rows_of_text.setdefault(drawn, []).append(slot)
    matrices = torch.zeros(model.layers, model.heads, train.n, train.n, dtype=torch.float64)
    filled = torch.zeros(train.n, train.n, dtype=torch.long)
    for text, slots in rows_of_text.items():
        batch, rows = train.batch(torch.tensor([text])), torch.tensor(slots)

        def observe(layer: int, attention: Tensor, _: Examples) -> None:
            tokens = attention[0].double().cpu()  # [head, query, key], over the tokens of this text
            chosen = torch.searchsorted(batch.slots, rows)  # noqa: B023  called before the next text
            matrices[layer][:, rows[:, None], batch.slots] = tokens[:, chosen]  # noqa: B023

        with torch.no_grad():
            model.observe(batch.to(model.device), observe)
        filled[rows] = 1
    return ConstantMatrices(matrices, filled, len(rows_of_text), {}, RESAMPLED)
