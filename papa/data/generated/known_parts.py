"""The components that known models share: sizes, heads with weights written by hand, and the tokenizer.

A hidden state is divided into segments, such as a value for each token or a value for each position. The first segment,
`TOKENS` values, encodes the token. The highest attention score is far above the others, so the softmax puts all weight
on one key.
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
SCORE_GAP = 60.0
"""Score of the key that a head attends to, relative to the scores of other keys."""
SHARPENING = (SCORE_GAP * HEAD_SIZE**0.5) ** 0.5
"""Factor of queries and of keys; it yields this gap after attention has divided scores by the root of the head size."""
IDLE_SCALE = 0.2
"""Size of the output of idle heads, relative to that of other heads."""


@dataclass(frozen=True)
class Head:
    """Weights of a head: query, key and value `[hidden, HEAD_SIZE]`, and output `[HEAD_SIZE, hidden]`.

    A score is the product of query and key, times `SCORE_GAP`.
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
        """Return a head that attends to a slot; `position` is the segment of a hidden state with the position."""
        head = cls.empty()
        head.query[position, 0] = 1.0
        head.key[position.start + slot, 0] = 1.0
        return head

    @classmethod
    def at_previous(cls, position: slice, divisors: Sequence[int] = ()) -> Head:
        """Return a head that attends to the previous slot, and from the first slot to itself.

        Args:
            position: the segment of a hidden state with the position: one-hot, or its remainders, one-hot each.
            divisors: the divisors of the remainders. Without any, the position is one-hot. With several, the head is
                only for decoders: its first slot attends to itself because it sees no other.
        """
        import torch

        head, slots = cls.empty(), torch.eye(position.stop - position.start)
        sizes = divisors or [len(slots)]
        head.query[position, : len(slots)] = torch.block_diag(*(torch.eye(size).roll(-1, 1) for size in sizes))
        if len(sizes) == 1:
            head.query[position.start, : len(slots)] = slots[0]
        head.key[position, : len(slots)] = slots
        return head

    @classmethod
    def idle(cls, chance: Generator, by_content: bool, position: slice, unused: slice) -> Head:
        """Return a head whose output, in the segment `unused` of hidden states, is never read.

        It attends to all tokens equally and writes the tokens. With `by_content`, it attends to some tokens more than
        to others, and its output is constant.
        """
        import torch

        head = cls.empty()
        if by_content:
            for part in (head.query, head.key):  # scores differ by about 1
                part[:TOKENS] = torch.randn(TOKENS, HEAD_SIZE, generator=chance) / SHARPENING
            head.value[position, 0], head.output[0, unused.start + 1] = 1.0, IDLE_SCALE
        else:
            unread = slice(unused.start + 2, unused.stop)
            head.value[:TOKENS] = torch.eye(TOKENS)
            head.output[:, unread] = IDLE_SCALE * torch.randn(TOKENS, unread.stop - unread.start, generator=chance)
        return head

    @staticmethod
    def projections(heads: Sequence[Head]) -> list[Tensor]:
        """Return the weights of queries, keys and values of all heads, each `[hidden, channel]`."""
        import torch

        queries, keys = torch.hstack([head.query for head in heads]), torch.hstack([head.key for head in heads])
        return [SHARPENING * queries, SHARPENING * keys, torch.hstack([head.value for head in heads])]


def word_tokenizer(
    ids: Mapping[str, int], template: tuple[str, str], slots: int, special_tokens: Mapping[str, str]
) -> PreTrainedTokenizerBase:
    """Return a tokenizer whose tokens are words.

    Args:
        ids: the id of each word and of each special token.
        template: the templates of a single text and of a pair, in the notation of `tokenizers`.
        slots: the maximum number of tokens of a text.
        special_tokens: special tokens by their names in transformers; `unk_token` is required.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel(dict(ids), unk_token=special_tokens["unk_token"]))
    words.pre_tokenizer = Whitespace()
    used = [(token, index) for token, index in ids.items() if token in template[0].split()]
    words.post_processor = TemplateProcessing(*template, used)
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=words, model_max_length=slots, **special_tokens
    )
    return tokenizer
