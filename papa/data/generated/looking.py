"""The known encoder `lookup`: a BERT with 2 layers of 5 heads that detects whether the first word of a text repeats.

Every hidden state of the last layer contains the answer, so any probe can read it. The texts are those of `twice`. The
heads:

| layer | head | attends to | writes |
|---|---|---|---|
| 0 | 1 | the first word (by position only) | that word |
| 0 | 3 | the second word (by position only) | that word |
| 1 | 2 | a copy of the first word, from the third word on; without a copy, [CLS] | the token attended to |
| 1 | 1 | [CLS] (by position only) | values that nothing reads |
| 1 | 3 | the previous slot (by position only); [SEP] in the last slot attends to [CLS] | values that nothing reads |
| both | the others | some tokens more than others, by content | a constant |

The MLP of the last layer compares the first word with the second and with the output of the lookup head. The answer is
"twice" only if the share of the first word in one of these exceeds `ATTENTION_THRESHOLD`.

All states of a layer have nearly the same norm: the output of a head has the same norm for all inputs, and a constant
segment (`BALLAST`) outweighs it. LayerNorm has this norm as its weight, so it leaves states unchanged. Or rather, it
multiplies all states by `STATE_SCALE`, and the weights that read or extend them are scaled accordingly. Sizes in this
module are relative to this scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from papa.data.generated.known_parts import (
    HEAD_SIZE,
    HEADS,
    IDLE_SCALE,
    LAYERS,
    SCORE_GAP,
    SIZE,
    TOKENS,
    Head,
    word_tokenizer,
)
from papa.data.generated.twice import LENGTHS, WORDS

if TYPE_CHECKING:
    from torch import Generator, Tensor

RECIPE = 2
"""Increase this whenever the code below makes a different model."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SLOTS = 32
FIRST_WORD, SECOND_WORD, START, PREVIOUS, LOOKUP = (0, 1), (0, 3), (1, 1), (1, 3), (1, 2)
"""Heads, (layer, head), counted from 0; the others are idle."""
FALLBACK_SCORE = 0.4
"""Score of [CLS] in the lookup head, relative to the score of a copy of the first word."""
ATTENTION_THRESHOLD = 0.2
"""Minimum attention to the first word for the answer "twice"."""
ANSWER_SIZE = 2.0
"""Size of the two values of the answer: (+, -) for "twice", (-, +) for "once"."""
BALLAST_SIZE = 2.0
"""Size of the two values of the ballast."""
STATE_SCALE = 16.0
"""Size of all states, so that training of the norms (by steps of a fixed size) changes them slowly. With 1, it fits the
words of the training texts, and attention becomes wrong for all other words before the probe has learned anything."""

TOKEN, FIRST, SECOND, COPIED = (slice(begin, begin + TOKENS) for begin in (0, 64, 128, 192))
POSITION, UNUSED, ANSWER, BALLAST = slice(256, 288), slice(288, 300), slice(300, 302), slice(302, 304)
REST = slice(304, SIZE)
"""Segments of a hidden state: the token, the first and the second word, the copied word, the position, values that
nothing reads, the answer, a constant, and the values that make the mean 0."""
UNREAD = 10
"""Number of values in the output of the head that attends to the previous slot; nothing reads them."""


def recipe() -> list[object]:
    """Return all values that determine the model."""
    sizes = [SCORE_GAP, FALLBACK_SCORE, ATTENTION_THRESHOLD, ANSWER_SIZE, BALLAST_SIZE, IDLE_SCALE, STATE_SCALE]
    return [RECIPE, WORDS, LENGTHS, SLOTS, *sizes]


def make(folder: Path) -> None:
    """Save the model and its tokenizer in a folder."""
    import torch

    chance = torch.Generator().manual_seed(0)
    named = {FIRST_WORD: at(1, FIRST), SECOND_WORD: at(2, SECOND), LOOKUP: _lookup()}
    named |= {START: _start(), PREVIOUS: _previous(chance)}
    # the values of a state after each layer: token, position, and the outputs of idle and other heads so far
    unread = UNREAD // 2 * [IDLE_SCALE, -IDLE_SCALE]
    states = [[1, 1, 1, 1, 3 * IDLE_SCALE], [1, 1, 1, 1, 5 * IDLE_SCALE, 1, 1, *unread]]
    save(folder, weights_of(named, states, _reads(), -1 - ATTENTION_THRESHOLD, chance))


def save(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Save an encoder with these weights, and its tokenizer, in a folder."""
    import transformers

    ids = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}
    special_tokens = {f"{token[1:-1].lower()}_token": token for token in SPECIAL}
    template = ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    word_tokenizer(ids, template, SLOTS, special_tokens).save_pretrained(folder)
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
    pooler = {name: value.zero_() for name, value in model.state_dict().items() if "pooler" in name}
    model.load_state_dict(pooler | dict(weights))  # raises if a weight is missing
    model.save_pretrained(folder)


def _balanced(written: Tensor) -> Tensor:
    """Set the last values of `written`, `[..., value]`, such that the sum of each state is 0."""
    written[..., REST] = -written[..., : REST.start].sum(-1, keepdim=True) / (REST.stop - REST.start)
    return written


def weights_of(
    named: Mapping[tuple[int, int], Head],
    states: Sequence[Sequence[float]],
    reads: Tensor,
    bias: float,
    chance: Generator,
) -> dict[str, Tensor]:
    """Return the weights of an encoder by name, without the pooler, which nothing reads.

    Args:
        named: the heads that are not idle, by (layer, head).
        states: the values of a state after each layer; they determine the weights of LayerNorm.
        reads: the values of a state that the last MLP reads, `[HEAD_SIZE, hidden]`.
        bias: the bias of the last MLP, which answers "twice" if one of its values is above 0.
        chance: draws the attention of idle heads.
    """
    import torch

    vocabulary = len(SPECIAL) + len(WORDS)
    tokens, positions, segments = torch.zeros(vocabulary, SIZE), torch.zeros(SLOTS, SIZE), torch.zeros(2, SIZE)
    tokens[:, :vocabulary], positions[:, POSITION] = torch.eye(vocabulary), torch.eye(SLOTS)
    segments[:, BALLAST] = torch.tensor([BALLAST_SIZE, -BALLAST_SIZE])
    all_weights = {
        "embeddings.word_embeddings.weight": _balanced(tokens),
        "embeddings.position_embeddings.weight": _balanced(positions),
        "embeddings.token_type_embeddings.weight": segments,
        **_norm("embeddings.LayerNorm", [1, 1]),  # a token and a position
    }
    for layer, state in enumerate(states):
        heads = []
        for head in range(HEADS):
            known = named.get((layer, head))
            heads.append(Head.idle(chance, True, POSITION, UNUSED) if known is None else known)
        name, last = f"encoder.layer.{layer}", layer == LAYERS - 1
        for projection, weights in zip(("query", "key", "value"), Head.projections(heads), strict=True):
            scale = 1.0 if projection == "value" else 1 / STATE_SCALE  # scores do not depend on the scale
            all_weights[f"{name}.attention.self.{projection}.weight"] = scale * weights.T.contiguous()
            all_weights[f"{name}.attention.self.{projection}.bias"] = torch.zeros(SIZE)
        written = _balanced(torch.cat([head.output for head in heads]))
        all_weights[f"{name}.attention.output.dense.weight"] = written.T.contiguous()
        all_weights[f"{name}.attention.output.dense.bias"] = torch.zeros(SIZE)
        all_weights |= _norm(f"{name}.attention.output.LayerNorm", state)
        mlp = _mlp(reads if last else torch.zeros_like(reads), bias, answers=last)
        all_weights |= {f"{name}.{part}": weight for part, weight in mlp.items()}
        all_weights |= _norm(f"{name}.output.LayerNorm", state, answers=last)
    return all_weights


def _norm(name: str, state: Sequence[float], answers: bool = False) -> dict[str, Tensor]:
    """Return a LayerNorm that changes no state with these values, the ballast and, with `answers`, an answer."""
    import torch

    values = [*state, BALLAST_SIZE, -BALLAST_SIZE, *([ANSWER_SIZE, -ANSWER_SIZE] if answers else [])]
    square = sum(value**2 for value in values) + sum(values) ** 2 / (REST.stop - REST.start)
    return {
        f"{name}.weight": torch.full((SIZE,), STATE_SCALE * (square / SIZE) ** 0.5),
        f"{name}.bias": torch.zeros(SIZE),
    }


def at(slot: int, part: slice) -> Head:
    """Return a head that attends to a slot and writes its token."""
    import torch

    head = Head.at(POSITION, slot)
    head.value[TOKEN] = head.output[:, part] = torch.eye(TOKENS)
    return head


def _start() -> Head:
    """Return a head that attends to [CLS] and writes a 1 that nothing reads."""
    head = Head.at(POSITION, 0)
    head.value[SPECIAL.index("[CLS]"), 0] = head.output[0, UNUSED.start] = 1.0
    return head


def _previous(chance: Generator) -> Head:
    """Return a head that attends to the previous slot, and from the last slot to [CLS]; nothing reads its output."""
    import torch

    head = Head.at_previous(POSITION)
    head.query[POSITION.stop - 1, :SLOTS] = torch.eye(SLOTS)[0]
    head.value[TOKEN] = torch.eye(TOKENS)
    signs = torch.randn(TOKENS, UNREAD // 2, generator=chance).sign() * IDLE_SCALE
    head.output[:, UNUSED.stop - UNREAD : UNUSED.stop] = torch.cat([signs, -signs], 1)  # the same norm for all tokens
    return head


def _lookup() -> Head:
    """Return a head that attends to a copy of the first word, from the third word on, and copies it.

    Without a copy, it attends to [CLS] and copies that.
    """
    import torch

    head = Head.empty()
    free = HEAD_SIZE - 1  # a channel that no token uses
    head.query[FIRST] = head.key[TOKEN] = torch.eye(TOKENS)
    head.query[POSITION, free] = 1.0
    head.key[[POSITION.start + 1, POSITION.start + 2], free] = -2.0  # exclude the first and the second word
    head.key[SPECIAL.index("[CLS]"), free] = FALLBACK_SCORE
    head.value[TOKEN] = head.output[:, COPIED] = torch.eye(TOKENS)
    return head


def _reads() -> Tensor:
    """Return a value for each word: whether it is the first, the second and the copied word, added up."""
    import torch

    reads = torch.zeros(HEAD_SIZE, SIZE)
    for part in (FIRST, SECOND, COPIED):
        reads[:, part] = torch.eye(TOKENS)
    return reads


def _mlp(reads: Tensor, bias: float, answers: bool) -> dict[str, Tensor]:
    """Return the weights of an MLP that answers whether the first word repeats, or of one that does nothing."""
    import torch

    writes, always = torch.zeros(SIZE, HEAD_SIZE), torch.zeros(SIZE)
    if answers:
        answer = torch.tensor([ANSWER_SIZE, -ANSWER_SIZE])
        writes[ANSWER] = (2 * answer / (1 - ATTENTION_THRESHOLD))[:, None].expand(2, HEAD_SIZE)
        always[ANSWER] = -answer
    return {
        "intermediate.dense.weight": reads,
        "intermediate.dense.bias": torch.full((HEAD_SIZE,), STATE_SCALE * bias),
        "output.dense.weight": writes,
        "output.dense.bias": STATE_SCALE * always,
    }
