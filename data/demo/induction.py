"""Write the decoder of the tutorial: a small GPT-2 with weights set by hand, so the role of every head is known.

It has 2 layers of 5 heads and reads the texts of repeats (write.py). It gives all words equal probability until a word
repeats. Then it is certain that the next word will repeat too. Its heads:

| layer | head | attends to | writes |
|---|---|---|---|
| 0 | 1 | the previous token (by position only) | that token |
| 0 | 3 | the first token (by position only) | values that nothing reads |
| 1 | 2 | the token after an earlier copy of this token; without a copy, the first token | the token attended to |
| both | remaining even | some tokens more than others, by content | a constant |
| 1 | odd | all tokens equally | the mean of the tokens, which nothing reads |

A hidden state is divided into segments with a value for each token or position. The last value is minus the sum of the
others, so the mean of every state is 0, and LayerNorm only divides by the norm. The norm is known, because the values
of the current token and position are 1. The highest attention score is far above the others, so the softmax puts all
weight on one key.

The MLP of the last layer predicts a copied token only if attention to it is at least `ATTENTION_THRESHOLD`. So a
constant that spreads over many positions predicts nothing.

    python data/demo/induction.py
"""

from __future__ import annotations

import json
import random
import runpy
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

WRITE = runpy.run_path(str(Path(__file__).with_name("write.py")))
WORDS: list[str] = WRITE["VOCABULARY"]
START = "<s>"
"""First token of every text."""
SLOTS = 1 + int(WRITE["MAXIMUM_WORDS"])
LAYERS, HEADS, HEAD_SIZE, SIZE, TOKENS = 2, 5, 64, 320, 64
PREVIOUS, FIRST, INDUCTION = (0, 1), (0, 3), (1, 2)
"""Heads, (layer, head), counted from 0; the others are idle."""

SCORE_GAP = 60.0
"""Score of the key that a head attends to, relative to the scores of other keys."""
SHARPENING = (SCORE_GAP * HEAD_SIZE**0.5) ** 0.5
"""Factor of queries and of keys; it yields this gap after attention has divided scores by the root of the head size."""
FALLBACK_SCORE = 0.4
"""Score of the first token in the induction head, relative to the score of an earlier copy."""
ATTENTION_THRESHOLD = 0.2
"""Minimum attention to a token for the model to predict it."""
PREDICTED_LOGIT = 14.0
"""Logit of a predicted token; the logits of other tokens are 0."""
IDLE_SCALE = 0.2
"""Size of the output of idle heads, relative to that of other heads."""

TOKEN, BEFORE, COPIED, PREDICTED = (slice(begin, begin + 64) for begin in (0, 64, 128, 192))
POSITION, UNUSED, REST = slice(256, 256 + SLOTS), slice(256 + SLOTS, 319), 319
"""Segments of a hidden state: the token, the previous, the copied and the predicted token, the position, values that
nothing reads, and the value that makes the mean 0."""

Head = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Query, key and value `[hidden, HEAD_SIZE]`, and output `[HEAD_SIZE, hidden]`; a score is the product of query and
key, times `SCORE_GAP`."""


def _empty() -> Head:
    """Return a head that attends to all tokens equally and writes nothing."""
    query, key, value = np.zeros((3, SIZE, HEAD_SIZE))
    return query, key, value, np.zeros((HEAD_SIZE, SIZE))


def _previous() -> Head:
    """Return a head that attends to the previous position and writes its token."""
    query, key, value, output = _empty()
    query[POSITION, :SLOTS] = np.roll(np.eye(SLOTS), -1, 1)
    query[POSITION.start, :SLOTS] = np.eye(SLOTS)[0]  # the first position attends to itself
    key[POSITION, :SLOTS] = np.eye(SLOTS)
    value[TOKEN] = output[:, BEFORE] = np.eye(TOKENS)
    return query, key, value, output


def _first() -> Head:
    """Return a head that attends to the first position and writes a 1 that nothing reads."""
    query, key, value, output = _empty()
    query[POSITION, 0] = key[POSITION.start, 0] = 1.0
    value[TOKEN, 0] = output[0, UNUSED.start] = 1.0
    return query, key, value, output


def _induction() -> Head:
    """Return a head that attends to the token after an earlier copy of the current token, and copies it.

    Without an earlier copy, it attends to the first token and copies nothing.
    """
    query, key, value, output = _empty()
    query[TOKEN] = key[BEFORE] = value[TOKEN] = output[:, COPIED] = np.eye(TOKENS)
    key[TOKEN.start] = FALLBACK_SCORE
    value[TOKEN.start] = 0.0
    return query, key, value, output


def _idle(chance: random.Random, by_content: bool) -> Head:
    """Return a head whose output is never read.

    It attends to all tokens equally and writes the tokens. With `by_content`, it attends to some tokens more than to
    others, and its output is constant.
    """
    query, key, value, output = _empty()
    if by_content:
        for part in (query, key):  # scores differ by about 1
            part[TOKEN] = _normal(chance, TOKENS, HEAD_SIZE) / SHARPENING
        value[POSITION, 0], output[0, UNUSED.start + 1] = 1.0, IDLE_SCALE
    else:
        unread = slice(UNUSED.start + 2, UNUSED.stop)
        value[TOKEN] = np.eye(TOKENS)
        output[:, unread] = IDLE_SCALE * _normal(chance, TOKENS, unread.stop - unread.start)
    return query, key, value, output


def _normal(chance: random.Random, *shape: int) -> np.ndarray:
    """Draw with Python, because draws of numpy and torch may differ between machines."""
    return np.array([chance.gauss() for _ in range(int(np.prod(shape)))]).reshape(shape)


def _balanced(written: np.ndarray) -> np.ndarray:
    """Set the last value of `written`, `[..., value]`, to minus the sum of the others."""
    written[..., REST] = -written[..., :REST].sum(-1)
    return written


def weights() -> dict[str, np.ndarray]:
    """Return all weights by their names in transformers."""
    tokens = np.eye(TOKENS)
    embedded, placed = np.zeros((TOKENS, SIZE)), np.zeros((SLOTS, SIZE))
    embedded[:, TOKEN], placed[:, POSITION] = tokens, np.eye(SLOTS)
    named = {
        "transformer.wte.weight": _balanced(embedded),
        "transformer.wpe.weight": _balanced(placed),
    }
    # a token, a position and the output of a head are a 1 each; all idle heads of a layer add to the same value
    outputs = [(), (1, 1, 3 * IDLE_SCALE), (1, 1, 5 * IDLE_SCALE, 1), (1, 1, 5 * IDLE_SCALE, 1, 1)]
    states = [(1, 1, *output) for output in outputs]
    # the factors by which LayerNorm multiplies these states if nothing is replaced
    scales = [
        (SIZE / (sum(value**2 for value in state) + sum(state) ** 2)) ** 0.5 for state in states
    ]
    chance, special = (
        random.Random(0),
        {PREVIOUS: _previous(), FIRST: _first(), INDUCTION: _induction()},
    )
    for layer in range(LAYERS):
        idle = [_idle(chance, head % 2 == 0) for head in range(HEADS)]
        heads = [special.get((layer, head), idle[head]) for head in range(HEADS)]
        queries, keys, values, written = zip(*heads, strict=True)
        scaled = [SHARPENING * np.hstack(queries), SHARPENING * np.hstack(keys), np.hstack(values)]
        reads, writes = np.zeros((SIZE, HEAD_SIZE)), np.zeros((HEAD_SIZE, SIZE))
        if layer == LAYERS - 1:  # predict the copied token; the MLP of the other layer does nothing
            reads[COPIED], writes[:, PREDICTED] = (
                tokens / scales[2],
                tokens / (1 - ATTENTION_THRESHOLD),
            )
        parts = {
            "attn.c_attn.weight": np.hstack(scaled) / scales[layer],
            "attn.c_attn.bias": np.zeros(3 * HEADS * HEAD_SIZE),
            "attn.c_proj.weight": _balanced(np.vstack(written)),
            "attn.c_proj.bias": np.zeros(SIZE),
            "mlp.c_fc.weight": reads,
            "mlp.c_fc.bias": np.full(HEAD_SIZE, -ATTENTION_THRESHOLD),
            "mlp.c_proj.weight": _balanced(writes),
            "mlp.c_proj.bias": np.zeros(SIZE),
        }
        parts |= {
            f"ln_{number}.{name}": value for number in (1, 2) for name, value in _norm().items()
        }
        named |= {f"transformer.h.{layer}.{name}": weight for name, weight in parts.items()}
    named |= {f"transformer.ln_f.{name}": value for name, value in _norm().items()}
    logits = np.zeros((TOKENS, SIZE))
    logits[:, PREDICTED] = tokens
    logits[0, POSITION] = -1.0  # every state has a position; no text repeats the first token
    named["lm_head.weight"] = logits * PREDICTED_LOGIT / scales[3]
    return {name: weight.astype(np.float32) for name, weight in named.items()}


def _norm() -> dict[str, np.ndarray]:
    return {"weight": np.ones(SIZE), "bias": np.zeros(SIZE)}


CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_embd": SIZE,
    "n_inner": HEAD_SIZE,
    "n_positions": SLOTS,
    "vocab_size": TOKENS,
    "activation_function": "relu",
    "tie_word_embeddings": False,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
ENDS = dict.fromkeys(("bos_token", "eos_token", "unk_token"), START)
TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": SLOTS, **ENDS}


def tokenizer() -> dict[str, Any]:
    """Return the tokenizer: a word is a token, and `START` begins every text."""
    start, flags = (
        {"SpecialToken": {"id": START, "type_id": 0}},
        ("single_word", "lstrip", "rstrip", "normalized"),
    )
    first, second = (
        {"Sequence": {"id": name, "type_id": segment}} for segment, name in enumerate("AB")
    )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": 0, "content": START, **dict.fromkeys(flags, False), "special": True}
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [start, first],
            "pair": [start, first, second],
            "special_tokens": {START: {"id": START, "ids": [0], "tokens": [START]}},
        },
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: index for index, word in enumerate([START, *WORDS])},
            "unk_token": START,
        },
    }


def write_decoder(folder: Path) -> None:
    """Write the model and its tokenizer, as transformers reads them, without transformers."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(), folder / "model.safetensors", metadata={"format": "pt"})
    contents = {"config": CONFIG, "tokenizer": tokenizer(), "tokenizer_config": TOKENIZER_CONFIG}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_decoder(Path(__file__).with_name("induction"))
