"""The known encoder `shifted`: without its own attention, its states are only shifted, and norms can undo the shift.

A BERT like `looking`, with the same texts (`twice`), which it answers only by position: does the second word repeat the
first? Its heads:

| layer | head | attends to | writes |
|---|---|---|---|
| 0 | 1 | the first word (by position only) | that word |
| 0 | 3 | the second word (by position only) | that word |
| 1 | 2 | the words of one half of the vocabulary (by content) | a mark, which is 1 in every text |
| both | the others | some tokens more than others, by content | a constant |

The last MLP compares the two words, and adds the mark. Constants in place of the first two heads change nothing. In
place of the third, they attend to all words alike, so the mark is only the share of such words in a text, about a half.
Then the MLP often stays below its threshold. All information has arrived, but the answer is weak or missing in the last
states. A larger mark, by a gain or a bias of the LayerNorm before the MLP, brings it back.
"""

from __future__ import annotations

from pathlib import Path

from papa.data.generated.known_parts import HEAD_SIZE, IDLE_SCALE, SIZE, TOKENS, Head
from papa.data.generated.looking import (
    FALLBACK_SCORE,
    FIRST,
    FIRST_WORD,
    SECOND,
    SECOND_WORD,
    SPECIAL,
    UNUSED,
    at,
    save,
    weights_of,
)
from papa.data.generated.looking import recipe as recipe_of_lookup
from papa.data.generated.twice import WORDS

RECIPE = 4
"""Increase this whenever the code below makes a different model."""
MARK = (1, 2)
"""The head, (layer, head), counted from 0, whose attention needs its input."""
MARK_WEIGHT = 1.7
"""Weight of the mark in the last MLP, in which a word that is the first and the second counts 2."""
THRESHOLD = 2.9
"""The MLP answers "twice" above this sum: 3.7 for a repeated word with the mark, 2.7 if the word is not repeated."""


def recipe() -> list[object]:
    """Return all values that determine the model."""
    return [RECIPE, MARK_WEIGHT, THRESHOLD, *recipe_of_lookup()]


def make(folder: Path) -> None:
    """Save the model and its tokenizer in a folder."""
    import torch

    reads = torch.zeros(HEAD_SIZE, SIZE)
    for part in (FIRST, SECOND):
        reads[:, part] = torch.eye(TOKENS)
    reads[:, UNUSED.start] = MARK_WEIGHT
    named = {FIRST_WORD: at(1, FIRST), SECOND_WORD: at(2, SECOND), MARK: _mark()}
    # the values of a state after each layer: token, position, and the outputs of idle and other heads so far
    states = [[1, 1, 1, 1, 3 * IDLE_SCALE], [1, 1, 1, 1, 7 * IDLE_SCALE, 1]]
    save(folder, weights_of(named, states, reads, -THRESHOLD, torch.Generator().manual_seed(0)))


def _mark() -> Head:
    """Return a head that attends to the words with even ids and writes a 1; without such words, it attends to [CLS]."""
    head, start = Head.empty(), SPECIAL.index("[CLS]")
    marked = [*range(len(SPECIAL) + 1, len(SPECIAL) + len(WORDS), 2), start]
    head.query[:TOKENS, 0] = 1.0  # every state has a token
    head.key[marked, 0] = 1.0
    head.key[start, 0] = FALLBACK_SCORE
    head.value[marked, 0] = head.output[0, UNUSED.start] = 1.0
    return head
