"""The layout of texts: each token of an example gets a fixed slot (paper, App. A).

A single text is `[CLS] tokens` from slot 0 on, then padding, and `[SEP]` in slot n-1. In a pair, `[CLS]` and the first
text start in slot 0. The separators and the second text start in slot n/2, and the last `[SEP]` is in slot n-1.
Running text is cut into blocks that fill all slots. For decoders, and in the natural
layout, tokens start in slot 0 and leave no gaps, as in pretraining.

The special tokens and their positions, such as RoBERTa's two separators, are inferred from the tokenizer's output.
DeBERTa is the only exception: the second separator that its tokenizer adds is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from papa.errors import InputError, count

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

WITHOUT_GAPS = ("natural", "contiguous")
"""The styles that leave no gaps between tokens: for encoders, and for decoders, which have no other."""
STYLES = "paper", "published_code", *WITHOUT_GAPS
Texts = Sequence[str] | Sequence[Sequence[str]]
"""Texts `[example]`, or lists of words `[example][word]`."""
CHUNK_TEXTS = 4096
"""Number of texts that are tokenized at a time."""


class SubTokens(NamedTuple):
    """The sub-tokens of a text.

    `words` has each word's index at its first sub-token and -1 elsewhere; it is empty if the text was not split into
    words. `unknown` is the number of words for which the tokenizer has no sub-token.
    """

    ids: list[int]
    words: list[int]
    unknown: int = 0


@dataclass(frozen=True)
class Placed:
    """The real tokens of an example and their slots; `ids`, `slots`, `segments` and `words` have an entry per token.

    `words` is as in `SubTokens`. `cut` counts tokens that did not fit, and `unknown` counts words that became the
    unknown token.
    """

    ids: list[int]
    slots: list[int]
    segments: list[int]
    words: list[int]
    cut: int
    unknown: int


@dataclass(frozen=True)
class Template:
    """The special tokens around and between texts, and the segment of a second text."""

    start: list[int]
    between: list[int]
    end: list[int]
    second_segment: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Template:
        """Infer the template from a tokenized pair of texts; decoders have few special tokens or none."""
        pair = tokenizer("a", "a", return_special_tokens_mask=True, return_token_type_ids=True)
        tokens = pair["input_ids"]
        special = pair["special_tokens_mask"]
        ordinary = [index for index, is_special in enumerate(special) if not is_special]
        if len(ordinary) < 2:
            raise InputError(
                f"{type(tokenizer).__name__} turns two texts into {count(len(ordinary), 'token')}, so its layout "
                "cannot be inferred; use a model with another tokenizer."
            )
        begin = ordinary[0]
        end = ordinary[-1] + 1
        between = [tokens[index] for index in range(begin, end) if special[index]]
        if type(tokenizer).__name__ == "DebertaTokenizer":
            # transformers 5 gives it RoBERTa's two separators; DeBERTa was pretrained with one
            between = between[:1]
        return cls(tokens[:begin], between, tokens[end:], pair["token_type_ids"][ordinary[-1]])

    def rooms(
        self, slots: int, pairs: bool, contiguous: bool, halved: bool = False
    ) -> tuple[int, int]:
        """Return the number of slots for the tokens of the first text, and for those of the second.

        In a `contiguous` layout, the first number is the room for both texts together, and the second is 0. In a
        `halved` layout, a single text has only the first half of the slots.
        """
        start = len(self.start)
        between = len(self.between)
        end = len(self.end)
        rooms = [(slots // 2 if halved else slots - end) - start]
        if contiguous:
            rooms = [slots - start - end - between * pairs]
        elif pairs:
            rooms = [slots // 2 - start, slots - slots // 2 - between - end]
        if min(rooms) < 1:
            raise InputError(
                f"{slots} slots leave no room for text between the special tokens; set more slots."
            )
        return rooms[0], sum(rooms[1:])


def lay_out(
    tokenizer: PreTrainedTokenizerBase,
    first: Texts,
    second: Sequence[str] | None = None,
    *,
    slots: int,
    style: str = "paper",
) -> dict[str, Tensor]:
    """Lay out texts (or lists of words) in fixed slots; tokens without a slot are cut off (paper, App. A).

    Args:
        tokenizer: A tokenizer of transformers.
        first: The texts `[example]`, or lists of words `[example][word]`.
        second: The second texts `[example]` of pairs.
        slots: Number of slots.
        style: "published_code" cuts single texts to the first half of the slots, as the published code does, and leaves
            the segment ids of pairs at the tokens' positions before they moved to their slots.
            "natural" leaves no gaps between tokens, as in pretraining, and so does "contiguous", which is the style of
            decoders. If the tokenizer adds no special token at the end, no style leaves gaps.

    Returns:
        `input_ids`, `attention_mask` and `token_type_ids`, each int64 `[example, slot]`.

    Raises:
        InputError: The texts cannot be laid out this way, for example because the slots leave no room.

    Example:
        >>> inputs = papa.lay_out(tokenizer, ["who is that ?"], slots=16)  # doctest: +SKIP
    """
    import torch  # the stage that tokenizes does not need it

    # a Series has other indices
    first = first if isinstance(first, str) else [*first]
    second = second if second is None or isinstance(second, str) else [*second]
    for texts in filter(None, (first, second)):  # a tuple may be meant as a pair or as words
        if not any(all(isinstance(text, kind) for text in texts) for kind in (str, list)):
            raise InputError(
                "Texts must be strings, or each a list of words; pairs are two lists, first and second."
            )
    # without an id of padding, any id will do, because the mask hides it
    ids = torch.full((len(first), slots), tokenizer.pad_token_id or 0)
    mask = torch.zeros_like(ids)
    segments = torch.zeros_like(ids)
    for row, placed in enumerate(place_texts(tokenizer, first, second, slots=slots, style=style)):
        # an empty text may have no token, so the type cannot be inferred
        used = torch.tensor(placed.slots, dtype=torch.long)
        ids[row, used] = torch.tensor(placed.ids, dtype=torch.long)
        mask[row, used] = 1
        segments[row, used] = torch.tensor(placed.segments, dtype=torch.long)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}


def place_texts(
    tokenizer: PreTrainedTokenizerBase,
    first: Texts,
    second: Sequence[str] | None,
    *,
    slots: int,
    style: str = "paper",
) -> Iterator[Placed]:
    """Yield the `Placed` tokens of each example; see `lay_out`."""
    if style not in STYLES:
        raise InputError(f"style is {style!r}; it must be one of {', '.join(STYLES)}.")
    if isinstance(first, str) or isinstance(second, str):
        raise InputError(
            "A single string was given; lay_out takes a list of texts (or of lists of words)."
        )
    if second is not None and len(second) != len(first):
        raise InputError(
            f"There are {len(first)} first texts and {len(second)} second texts; give equally long lists."
        )
    template = _template(tokenizer, slots)
    split = bool(len(first)) and not isinstance(first[0], str)
    if split:
        _check_words(tokenizer, second)
    contiguous = style in WITHOUT_GAPS or not template.end
    published = style == "published_code" and not contiguous
    rooms = template.rooms(slots, second is not None, contiguous, halved=published and not split)
    partners = [None] * len(first) if second is None else _sub_tokens(tokenizer, second, False)
    for text, partner in zip(_sub_tokens(tokenizer, first, split), partners, strict=True):
        placed = _place_text(template, text, partner, rooms, None if contiguous else slots)
        if published and partner is not None:
            # the published code moves tokens to their slots, but not their segments
            whole = template.rooms(slots, pairs=True, contiguous=True)
            before = _place_text(template, text, partner, whole, None)
            segment_of = dict(zip(before.slots, before.segments, strict=True))
            placed = replace(placed, segments=[segment_of.get(slot, 0) for slot in placed.slots])
        yield placed


def _check_words(tokenizer: PreTrainedTokenizerBase, second: Sequence[str] | None) -> None:
    """Raise `InputError` if lists of words have second texts, or if the tokenizer would join their words."""
    if second is not None:
        raise InputError(
            "Lists of words were given together with second texts; leave out the second texts."
        )
    if not separates_words(tokenizer):
        raise InputError(
            f"{type(tokenizer).__name__} joins the words of a list without spaces; load it with "
            "add_prefix_space=True, or use a model whose tokenizer separates words."
        )


def texts_in_blocks(
    tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], slots: int, contiguous: bool = False
) -> Iterator[Placed]:
    """Yield running text in blocks of `slots` tokens: `[CLS] tokens [SEP]`, without padding.

    Texts follow one another without a separator, and no token is lost. The last block may be shorter; its `[SEP]` is
    still in slot n-1, unless the layout is `contiguous`. The paper does not describe the layout of its texts for masked
    language modelling; this is our interpretation.

    Raises:
        InputError: the slots leave no room for text.
    """
    template = _template(tokenizer, slots)
    rooms = template.rooms(slots, pairs=False, contiguous=contiguous)
    room = rooms[0]
    waiting: list[int] = []
    left = iter(texts)

    def block(ids: list[int]) -> Placed:
        return _place_text(template, SubTokens(ids, []), None, rooms, None if contiguous else slots)

    while chunk := list(islice(left, CHUNK_TEXTS)):
        waiting += [token for text in _sub_tokens(tokenizer, chunk, False) for token in text.ids]
        full = len(waiting) - len(waiting) % room
        yield from (block(waiting[begin : begin + room]) for begin in range(0, full, room))
        waiting = waiting[full:]
    if waiting:
        yield block(waiting)


def _template(tokenizer: PreTrainedTokenizerBase, slots: int) -> Template:
    limit = getattr(tokenizer, "model_max_length", None)
    if limit is not None and slots > limit:
        raise InputError(
            f"{slots} slots are more than the {limit} of the tokenizer (model_max_length); set fewer slots."
        )
    return Template.of(tokenizer)


def separates_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a list of words is tokenized like a text; byte-level tokenizers may leave out the spaces."""
    first, text = (text.ids for text in _sub_tokens(tokenizer, ["a", "a a"], False))
    (words,) = _sub_tokens(tokenizer, [["a", "a"]], True)
    # only the last word is compared, because the first one may or may not get a space
    second = text[len(first) :]
    return words.ids[-len(second) :] == second


def _sub_tokens(tokenizer: PreTrainedTokenizerBase, texts: Texts, split: bool) -> list[SubTokens]:
    options = {
        "add_special_tokens": False,
        "return_attention_mask": False,
        "return_token_type_ids": False,
        # transformers would warn of long texts, which papa cuts and counts
        "verbose": False,
    }
    if not len(texts):
        return []
    if not split:
        return [SubTokens(ids, []) for ids in tokenizer([*texts], **options)["input_ids"]]
    if not tokenizer.is_fast:  # it does not return the word of each token
        ids_of = {
            word: tokenizer(word, **options)["input_ids"]
            for word in set(chain.from_iterable(texts))
        }
        return [_joined(words, [ids_of[word] for word in words], tokenizer) for words in texts]
    encoded = tokenizer([[*words] for words in texts], is_split_into_words=True, **options)
    joined = []
    for row, words in enumerate(texts):
        ids_of_words: list[list[int]] = [[] for _ in words]
        for token, word in zip(encoded["input_ids"][row], encoded.word_ids(row), strict=True):
            ids_of_words[word].append(token)
        joined.append(_joined(words, ids_of_words, tokenizer))
    return joined


def _joined(
    words: Sequence[str], ids_of_words: list[list[int]], tokenizer: PreTrainedTokenizerBase
) -> SubTokens:
    """Join the sub-tokens of words; a word without any becomes the unknown token, so all models predict all words."""
    ids = list[int]()
    begun = list[int]()
    empty = [word for word, part in enumerate(ids_of_words) if not part]
    if empty and tokenizer.unk_token_id is None:
        raise InputError(
            f"{type(tokenizer).__name__} has no token for the word {words[empty[0]]!a}, and no unknown token; leave "
            "such words out."
        )
    for word, sub_tokens in enumerate(ids_of_words):
        ids += sub_tokens or [tokenizer.unk_token_id]
        begun += [word, *(-1 for _ in sub_tokens[1:])]
    return SubTokens(ids, begun, len(empty))


def _place_text(
    template: Template,
    text: SubTokens,
    partner: SubTokens | None,
    rooms: tuple[int, int],
    slots: int | None,
) -> Placed:
    """Place a text between special tokens. A partner starts at slots/2; if `slots` is None, there are no gaps."""
    ids, words, unknown = text
    partner_ids = [] if partner is None else partner.ids
    room, partner_room = rooms if slots else _shares(len(ids), len(partner_ids), sum(rooms))
    first = ids[:room]
    second = partner_ids[:partner_room]
    between = [] if partner is None else template.between
    pieces = [[*template.start, *first], [*between, *second], template.end]
    kept = list(chain.from_iterable(pieces))
    slot_of = list(range(len(kept)))
    if slots is not None:
        begins = (0, slots // 2, slots - len(template.end))
        places = zip(begins, pieces, strict=True)
        slot_of = [begin + index for begin, tokens in places for index in range(len(tokens))]
    last_segment = 0 if partner is None else template.second_segment
    in_first = len(pieces[0]) + len(between)
    segments = [0] * in_first + [last_segment] * (len(kept) - in_first)
    word_of = [-1] * len(kept)
    if words:
        word_of[len(template.start) : len(template.start) + len(first)] = words[:room]
    cut = len(ids) + len(partner_ids) - len(first) - len(second)
    return Placed(kept, slot_of, segments, word_of, cut, unknown)


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each text fit in `room` slots: the longer text is cut first, then both equally."""
    if first + second <= room:
        return first, second
    short = max(min(first, second, room // 2), 0)
    return (short, room - short) if first <= second else (room - short, short)
