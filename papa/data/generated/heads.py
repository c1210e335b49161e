"""The parts that known models have in common: their sizes, and heads of which it is written down what they do.

A hidden state is cut in parts that have one number for each token, each position and so on. The first `TOKENS` numbers
say which token stands there. Attention scores are so far apart that a softmax gives one key all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor

LAYERS, HEADS, HEAD_SIZE, SIZE = 2, 5, 64, 320
TOKENS = 64
SHARP = 60.0
"""How much higher the score of the key is that is looked for than that of any other."""
WHISPER = 0.2
"""How much idle heads write, as a share of what others write."""


@dataclass(frozen=True)
class Head:
    """What a head reads for its query, key and value, `[number, HEAD_SIZE]`, and what it writes, `[HEAD_SIZE, number]`.

    The score of a key is their product, times `SHARP`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor

    @classmethod
    def empty(cls) -> Head:
        """A head that looks at all tokens alike and writes nothing."""
        import torch

        query, key, value = torch.zeros(3, SIZE, HEAD_SIZE)
        return cls(query, key, value, torch.zeros(HEAD_SIZE, SIZE))

    @classmethod
    def idle(cls, chance: Generator, by_content: bool, position: slice, spare: slice) -> Head:
        """A head that looks at all tokens alike, and writes which they are, where nothing reads it.

        Or `by_content` a head that looks at some tokens more than at others, and writes the same whatever it looks at.

        Args:
            chance: where random numbers come from.
            by_content: which of the two it is.
            position: the part of a hidden state that says the position.
            spare: the part that nothing reads.
        """
        import torch

        head = cls.empty()
        if by_content:
            for part in (head.query, head.key):  # so that scores differ by about 1
                part[:TOKENS] = torch.randn(TOKENS, HEAD_SIZE, generator=chance) / (SHARP * HEAD_SIZE**0.5) ** 0.5
            head.value[position, 0], head.output[0, spare.start + 1] = 1.0, WHISPER
        else:
            unread = slice(spare.start + 2, spare.stop)
            head.value[:TOKENS] = torch.eye(TOKENS)
            head.output[:, unread] = WHISPER * torch.randn(TOKENS, unread.stop - unread.start, generator=chance)
        return head
