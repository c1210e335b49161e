"""The known encoder `lookup`: a BERT of 2 layers of 5 heads that says whether the first word of a text comes again.

Every hidden state of the last layer says so, and any probe can read it. Its texts are those of `twice`. Its heads:

| layer | head | looks at | writes |
|---|---|---|---|
| 0 | 1 | the first word (by position alone) | which word that is |
| 0 | 3 | the second word (by position alone) | which word that is |
| 1 | 2 | where the first word stands again, from the third word on; if nowhere, [CLS] | the token of that place |
| 1 | 1 | [CLS] (by position alone) | what nothing reads |
| 1 | 3 | the slot before (by position alone); [SEP] in the last slot looks at [CLS] | what nothing reads |
| both | others | some tokens more than others, by their content | the same, whatever they look at |

The MLP of the last layer compares the first word with the second and with what the lookup head found. It says "twice"
only where more than a share of `SURE` of one of them is the first word.

All states of a layer have nearly the same length, because every head writes as much whatever it finds, and a constant
part (`BALLAST`) outweighs what heads write. So LayerNorm, whose weight is this length, leaves a state as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from papa.data.generated.heads import HEAD_SIZE, HEADS, LAYERS, SHARP, SIZE, TOKENS, WHISPER, Head
from papa.data.generated.twice import LENGTHS, WORDS

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from transformers import PreTrainedTokenizerBase

RECIPE = 1
"""Raised whenever the code below makes another model."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SLOTS = 32
FIRST_WORD, SECOND_WORD, START, PREVIOUS, LOOKUP = (0, 1), (0, 3), (1, 1), (1, 3), (1, 2)
"""The heads, (layer, head), counted from 0; the others are idle."""
NOTHING_FOUND = 0.4
"""The score of [CLS] in the lookup head, as a share of that of a place that is found."""
SURE = 0.2
"""The share of attention to the first word from which on it is said to come again."""
SAID = 2.0
"""How large the two numbers of the answer are: SAID and -SAID for "twice", -SAID and SAID for "once"."""
WEIGHT = 2.0
"""How large the two numbers of the ballast are."""

TOKEN, FIRST, SECOND, FOUND = (slice(begin, begin + TOKENS) for begin in (0, 64, 128, 192))
POSITION, SPARE, ANSWER, BALLAST = slice(256, 288), slice(288, 300), slice(300, 302), slice(302, 304)
REST = slice(304, SIZE)
"""Which numbers of a hidden state say what: the token, the first and the second word, the one found, the position, what
nothing reads, the answer, what is always the same, and what makes the mean 0."""
UNREAD = 10
"""How many of the numbers that nothing reads the head writes that looks at the slot before."""


def recipe() -> list[object]:
    """What the model is made of."""
    return [RECIPE, WORDS, LENGTHS, SLOTS, SHARP, NOTHING_FOUND, SURE, SAID, WEIGHT, WHISPER]


def make(folder: Path) -> None:
    """Save the model and its tokenizer in a folder."""
    import transformers

    _tokenizer().save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=SIZE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=HEAD_SIZE,
        max_position_embeddings=SLOTS,
        hidden_act="relu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=0,
    )
    model = transformers.BertModel(config)
    nothing = {name: value.zero_() for name, value in model.state_dict().items() if "pooler" in name}
    model.load_state_dict(nothing | _weights())  # raises if one is missing
    model.save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerBase:
    """A tokenizer to which every word is a token."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    words = Tokenizer(WordLevel(numbers, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    marks = [(mark, numbers[mark]) for mark in ("[CLS]", "[SEP]")]
    words.post_processor = TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", marks)
    names = {f"{mark[1:-1].lower()}_token": mark for mark in SPECIAL}
    made: PreTrainedTokenizerBase = PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=SLOTS, **names)
    return made


def _balanced(written: Tensor) -> Tensor:
    """What is written, `[..., number]`, with the last numbers minus the sum of the others."""
    written[..., REST] = -written[..., : REST.start].sum(-1, keepdim=True) / (REST.stop - REST.start)
    return written


def _weights() -> dict[str, Tensor]:
    """The weights of the encoder by their names; those of its pooler, which nothing reads, are not among them."""
    import torch

    vocabulary = len(SPECIAL) + len(WORDS)
    tokens, positions, segments = torch.zeros(vocabulary, SIZE), torch.zeros(SLOTS, SIZE), torch.zeros(2, SIZE)
    tokens[:, :vocabulary], positions[:, POSITION] = torch.eye(vocabulary), torch.eye(SLOTS)
    segments[:, BALLAST] = torch.tensor([WEIGHT, -WEIGHT])
    found = {
        "embeddings.word_embeddings.weight": _balanced(tokens),
        "embeddings.position_embeddings.weight": _balanced(positions),
        "embeddings.token_type_embeddings.weight": segments,
        **_norm("embeddings.LayerNorm", [1, 1]),  # a token and a position
    }
    # with what the heads of a layer have written, three or two of them idle
    states = [[1, 1, 1, 1, 3 * WHISPER], [1, 1, 1, 1, 5 * WHISPER, 1, 1, *(UNREAD // 2 * [WHISPER, -WHISPER])]]
    chance = torch.Generator().manual_seed(0)
    named = {FIRST_WORD: _at(1, FIRST), SECOND_WORD: _at(2, SECOND), LOOKUP: _lookup()}
    named |= {START: _start(), PREVIOUS: _previous(chance)}
    for layer, state in enumerate(states):
        heads = []
        for head in range(HEADS):
            own = named.get((layer, head))
            heads.append(Head.idle(chance, True, POSITION, SPARE) if own is None else own)
        name, last = f"encoder.layer.{layer}", layer == LAYERS - 1
        # scores are divided by the root of the size of a head
        sharp = (SHARP * HEAD_SIZE**0.5) ** 0.5
        reads = {
            "query": [sharp * head.query for head in heads],
            "key": [sharp * head.key for head in heads],
            "value": [head.value for head in heads],
        }
        for what, weights in reads.items():
            found[f"{name}.attention.self.{what}.weight"] = torch.cat(weights, 1).T.contiguous()
            found[f"{name}.attention.self.{what}.bias"] = torch.zeros(SIZE)
        written = _balanced(torch.cat([head.output for head in heads]))
        found[f"{name}.attention.output.dense.weight"] = written.T.contiguous()
        found[f"{name}.attention.output.dense.bias"] = torch.zeros(SIZE)
        found |= _norm(f"{name}.attention.output.LayerNorm", state)
        found |= {f"{name}.{part}": weight for part, weight in _mlp(speaks=last).items()}
        found |= _norm(f"{name}.output.LayerNorm", state, says=last)
    return found


def _norm(name: str, state: list[float], says: bool = False) -> dict[str, Tensor]:
    """A LayerNorm that leaves states as they are which have these numbers beside the ballast, and perhaps an answer."""
    import torch

    numbers = [*state, WEIGHT, -WEIGHT, *([SAID, -SAID] if says else [])]
    length = sum(number**2 for number in numbers) + sum(numbers) ** 2 / (REST.stop - REST.start)
    return {f"{name}.weight": torch.full((SIZE,), (length / SIZE) ** 0.5), f"{name}.bias": torch.zeros(SIZE)}


def _at(slot: int, part: slice) -> Head:
    """A head that looks at a slot, and writes which token stands there."""
    import torch

    head = Head.empty()
    head.query[POSITION, 0] = 1.0
    head.key[POSITION.start + slot, 0] = 1.0
    head.value[TOKEN] = head.output[:, part] = torch.eye(TOKENS)
    return head


def _start() -> Head:
    """A head that looks at [CLS], and writes a 1 that nothing reads."""
    head = Head.empty()
    head.query[POSITION, 0] = head.key[POSITION.start, 0] = 1.0
    head.value[SPECIAL.index("[CLS]"), 0] = head.output[0, SPARE.start] = 1.0
    return head


def _previous(chance: Generator) -> Head:
    """A head that looks at the slot before, and writes which token stands there, where nothing reads it.

    The first and the last slot have none before, and look at the first.
    """
    import torch

    head = Head.empty()
    head.query[POSITION, :SLOTS] = torch.eye(SLOTS).roll(-1, 1)
    head.query[[POSITION.start, POSITION.stop - 1], :SLOTS] = torch.eye(SLOTS)[0]
    head.key[POSITION, :SLOTS] = torch.eye(SLOTS)
    head.value[TOKEN] = torch.eye(TOKENS)
    signs = torch.randn(TOKENS, UNREAD // 2, generator=chance).sign() * WHISPER
    head.output[:, SPARE.stop - UNREAD : SPARE.stop] = torch.cat([signs, -signs], 1)  # as long for every token
    return head


def _lookup() -> Head:
    """A head that looks for the first word from the third word on, and copies the token of that place.

    Where there is none it looks at [CLS], which it copies as well.
    """
    import torch

    head = Head.empty()
    place = HEAD_SIZE - 1  # no token has this number
    head.query[FIRST] = head.key[TOKEN] = torch.eye(TOKENS)
    head.query[POSITION, place] = 1.0
    head.key[[POSITION.start + 1, POSITION.start + 2], place] = -2.0  # neither the first word itself nor the second
    head.key[SPECIAL.index("[CLS]"), place] = NOTHING_FOUND
    head.value[TOKEN] = head.output[:, FOUND] = torch.eye(TOKENS)
    return head


def _mlp(speaks: bool) -> dict[str, Tensor]:
    """The weights of an MLP that says whether the first word comes again, or of one that does nothing."""
    import torch

    reads, writes, always = torch.zeros(HEAD_SIZE, SIZE), torch.zeros(SIZE, HEAD_SIZE), torch.zeros(SIZE)
    if speaks:
        for part in (FIRST, SECOND, FOUND):
            reads[:, part] = torch.eye(TOKENS)
        answer = torch.tensor([SAID, -SAID])
        writes[ANSWER] = (2 * answer / (1 - SURE))[:, None].expand(2, HEAD_SIZE)
        always[ANSWER] = -answer
    return {
        "intermediate.dense.weight": reads,
        "intermediate.dense.bias": torch.full((HEAD_SIZE,), -1 - SURE),
        "output.dense.weight": writes,
        "output.dense.bias": always,
    }
