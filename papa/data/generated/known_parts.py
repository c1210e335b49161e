"""Parts that the known models share: sizes, heads whose behaviour is written in their weights, and the tokenizer.

A hidden state has parts with a number for each token, each position and so on. The first `TOKENS` numbers are the
token. Attention scores are so different that the softmax gives all weight to a single key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from transformers import PreTrainedTokenizerBase

LAYERS, HEADS, HEAD_SIZE, SIZE = 2, 5, 64, 320
TOKENS = 64
SHARP = 60.0
"""Score of the key that a head attends to, above the score of any other key."""
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
    def idle(cls, chance: Generator, by_content: bool, position: slice, spare: slice) -> Head:
        """Return a head whose output is never read.

        It attends to all tokens equally and writes the tokens. With `by_content` it attends to some tokens more than to
        others, and always writes the same.

        Args:
            chance: source of random numbers.
            by_content: whether attention depends on content.
            position: the part of a hidden state that holds the position.
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


def word_tokenizer(
    numbers: Mapping[str, int], template: tuple[str, str], slots: int, marks: Mapping[str, str]
) -> PreTrainedTokenizerBase:
    """Return a tokenizer that makes each word a token.

    Args:
        numbers: the token of each word and of each mark.
        template: a single text and a pair, as `tokenizers` writes templates.
        slots: most tokens of a text.
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
