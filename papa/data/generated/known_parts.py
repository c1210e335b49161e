"""The parts that known models share: sizes, heads with written weights, and the tokenizer.

A hidden state consists of parts, such as a number for each token or a number for each position. The first part,
`TOKENS` numbers, is the token. The highest attention score is far above the others, so the softmax gives all weight to
one key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from transformers import PreTrainedTokenizerBase

LAYERS, HEADS, HEAD_SIZE, SIZE = 2, 5, 64, 320
TOKENS = 64
SHARP = 60.0
"""Score of the key that a head attends to, above the score of any other key."""
SHARPENING = (SHARP * HEAD_SIZE**0.5) ** 0.5
"""Factor of queries and of keys for these scores, which attention divides by the root of the size of a head."""
WHISPER = 0.2
"""Size of the output of idle heads, relative to that of other heads."""


@dataclass(frozen=True)
class Head:
    """Weights of a head: query, key and value `[number, HEAD_SIZE]`, and output `[HEAD_SIZE, number]`.

    A score is the product of query and key, times `SHARP`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor

    @classmethod
    def empty(cls) -> Head:
        """Return a head that attends to all tokens equally and writes nothing."""
        import torch

        query, key, value = torch.zeros(3, SIZE, HEAD_SIZE)
        return cls(query, key, value, torch.zeros(HEAD_SIZE, SIZE))

    @classmethod
    def at(cls, position: slice, slot: int) -> Head:
        """Return a head that attends to a slot; `position` is the part of a hidden state with the position."""
        head = cls.empty()
        head.query[position, 0] = 1.0
        head.key[position.start + slot, 0] = 1.0
        return head

    @classmethod
    def at_previous(cls, position: slice) -> Head:
        """Return a head that attends to the slot before, and from the first slot to itself."""
        import torch

        head, slots = cls.empty(), torch.eye(position.stop - position.start)
        head.query[position, : len(slots)] = slots.roll(-1, 1)
        head.query[position.start, : len(slots)] = slots[0]
        head.key[position, : len(slots)] = slots
        return head

    @classmethod
    def idle(cls, chance: Generator, by_content: bool, position: slice, spare: slice) -> Head:
        """Return a head whose output, in the part `spare` of hidden states, is never read.

        It attends to all tokens equally and writes the tokens. With `by_content`, it attends to some tokens more than
        to others, and its output is constant.
        """
        import torch

        head = cls.empty()
        if by_content:
            for part in (head.query, head.key):  # scores differ by about 1
                part[:TOKENS] = torch.randn(TOKENS, HEAD_SIZE, generator=chance) / SHARPENING
            head.value[position, 0], head.output[0, spare.start + 1] = 1.0, WHISPER
        else:
            unread = slice(spare.start + 2, spare.stop)
            head.value[:TOKENS] = torch.eye(TOKENS)
            head.output[:, unread] = WHISPER * torch.randn(TOKENS, unread.stop - unread.start, generator=chance)
        return head

    @staticmethod
    def projections(heads: Sequence[Head]) -> list[Tensor]:
        """Return the queries, the keys and the values of all heads, each `[number, channel]`."""
        import torch

        queries, keys = torch.hstack([head.query for head in heads]), torch.hstack([head.key for head in heads])
        return [SHARPENING * queries, SHARPENING * keys, torch.hstack([head.value for head in heads])]


def word_tokenizer(
    numbers: Mapping[str, int], template: tuple[str, str], slots: int, marks: Mapping[str, str]
) -> PreTrainedTokenizerBase:
    """Return a tokenizer whose tokens are words.

    Args:
        numbers: the token of each word and of each mark.
        template: a single text and a pair, as `tokenizers` writes templates.
        slots: the largest number of tokens of a text.
        marks: special tokens by their names in transformers; `unk_token` is required.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel(dict(numbers), unk_token=marks["unk_token"]))
    words.pre_tokenizer = Whitespace()
    used = [(mark, number) for mark, number in numbers.items() if mark in template[0].split()]
    words.post_processor = TemplateProcessing(*template, used)
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=words, model_max_length=slots, **marks
    )
    return tokenizer
