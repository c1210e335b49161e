"""Small models whose heads are known, because their weights say what each head does: they test papa, and not the world.

`induction` is a GPT-2 of 2 layers of 5 heads that reads the texts `repeats` and `no-repeats` (`recall`). It gives every
word the same chance until a word comes again; then it is sure that the word follows that followed it before. Its heads:

| layer | head | looks at | writes |
|---|---|---|---|
| 0 | 1 | the token before (by position alone) | which token that is |
| 0 | 3 | the first token (by position alone) | what nothing reads |
| 1 | 2 | the place whose token before is this token; if there is none, the first token | the token of that place |
| both | other even ones | some tokens more than others, by their content | the same, whatever they look at |
| 1 | odd ones | all tokens alike | the mean of the tokens, which nothing reads |

A hidden state is cut in parts that have one number for each token or position (`TOKEN` and the others below). The last
number is minus the sum of all others, so that the mean of every state is 0 and LayerNorm only divides by its length,
which is known: a token or position that is there is a 1. Attention scores are so far apart that a softmax gives one key
all.

The MLP of the last layer says a copied token only where attention surely found it: a share of less than `SURE` is as
none. So a constant that spreads over many places says nothing, and does not merely say a little.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from papa.data.generated import looking
from papa.data.generated.heads import HEAD_SIZE, HEADS, LAYERS, SHARP, SIZE, TOKENS, WHISPER, Head
from papa.data.generated.models import made_once
from papa.data.generated.recall import LONGEST, WORDS
from papa.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

KNOWN = ("induction", "lookup")
RECIPE = 1
"""Raised whenever the code below makes another model."""
START = "<s>"
"""The token with which every text begins."""
SLOTS = 1 + LONGEST
PREVIOUS, FIRST, INDUCTION = (0, 1), (0, 3), (1, 2)
"""The heads of `induction`, (layer, head), counted from 0; the others are idle."""
NEEDED = {"induction": (INDUCTION,), "lookup": (looking.LOOKUP,)}
"""The heads of each known model that need their input: no constant does what they do."""

NOTHING_FOUND = 0.4
"""The score of the first token in the induction head, as a share of that of a place that is found."""
SURE = 0.2
"""The share of attention to a token from which on it is said."""
SAID = 14.0
"""The logit of a token that is said; the others have 0."""

TOKEN, BEFORE, COPIED, SAID_HERE = (slice(begin, begin + 64) for begin in (0, 64, 128, 192))
POSITION, SPARE, REST = slice(256, 304), slice(304, 319), 319
"""Which numbers of a hidden state say what: the token, the one before it, the one copied, the one said, the position,
what nothing reads, and what makes the mean 0."""


def known_model(name: str) -> Path:
    """The folder of the known model `name`, one of `KNOWN`; made in the user's cache when first asked for."""
    if name not in KNOWN:
        raise InputError(f"There is no known model {name!r}; there is {', '.join(KNOWN)}.")
    if name == "lookup":
        return made_once(f"known-{name}", looking.recipe(), looking.make)
    return made_once(f"known-{name}", [RECIPE, WORDS, SLOTS, SHARP, NOTHING_FOUND, SURE, SAID, WHISPER], _induction)


def _induction(folder: Path) -> None:
    import transformers

    _words().save_pretrained(folder)
    config = transformers.GPT2Config(
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=SIZE,
        n_inner=HEAD_SIZE,
        n_positions=SLOTS,
        vocab_size=TOKENS,
        activation_function="relu",
        tie_word_embeddings=False,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    usual = {name: value for name, value in model.state_dict().items() if ".ln_" in name}
    model.load_state_dict(usual | _weights())  # raises if one is missing
    model.save_pretrained(folder)


def _words() -> PreTrainedTokenizerBase:
    """A tokenizer to which every word is a token, and which begins each text with `START`."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({word: number for number, word in enumerate([START, *WORDS])}, unk_token=START))
    words.pre_tokenizer = Whitespace()
    words.post_processor = TemplateProcessing(f"{START} $A", f"{START} $A $B:1", [(START, 0)])
    made: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=words, model_max_length=SLOTS, bos_token=START, eos_token=START, unk_token=START
    )
    return made


def _balanced(written: Tensor) -> Tensor:
    """What is written, `[..., number]`, with the last number minus the sum of the others."""
    written[..., REST] = -written[..., :REST].sum(-1)
    return written


def _weights() -> dict[str, Tensor]:
    """The weights of the decoder by their names; those of LayerNorm are as usual."""
    import torch

    tokens, positions = torch.eye(TOKENS), torch.eye(SLOTS)
    embedded, placed = torch.zeros(TOKENS, SIZE), torch.zeros(SLOTS, SIZE)
    embedded[:, TOKEN], placed[:, POSITION] = tokens, positions
    found = {"transformer.wte.weight": _balanced(embedded), "transformer.wpe.weight": _balanced(placed)}
    # a token, a position and what heads have written are each a 1; heads that look by content write in one place
    states = [(1, 1), (1, 1, 1, 1, 3 * WHISPER), (1, 1, 1, 1, 5 * WHISPER, 1), (1, 1, 1, 1, 5 * WHISPER, 1, 1)]
    # what LayerNorm multiplies such a state by, as long as nothing is replaced
    scales = [(SIZE / (sum(own**2 for own in state) + sum(state) ** 2)) ** 0.5 for state in states]
    chance = torch.Generator().manual_seed(0)
    for layer in range(LAYERS):
        scale = scales[layer]
        parts = {(layer, head): Head.idle(chance, head % 2 == 0, POSITION, SPARE) for head in range(HEADS)}
        if layer == 0:
            parts |= {PREVIOUS: _previous(), FIRST: _first()}
        else:
            parts |= {INDUCTION: _induced()}
        name, heads = f"transformer.h.{layer}", list(parts.values())
        # scores are divided by the root of the size of a head
        sharp = (SHARP * HEAD_SIZE**0.5) ** 0.5
        read = [*(sharp * head.query for head in heads), *(sharp * head.key for head in heads)]
        found[f"{name}.attn.c_attn.weight"] = torch.cat([*read, *(head.value for head in heads)], 1) / scale
        found[f"{name}.attn.c_attn.bias"] = torch.zeros(3 * HEADS * HEAD_SIZE)
        found[f"{name}.attn.c_proj.weight"] = _balanced(torch.cat([head.output for head in heads]))
        found[f"{name}.attn.c_proj.bias"] = torch.zeros(SIZE)
        found |= {f"{name}.mlp.{part}": own for part, own in _mlp(scales[2], speaks=layer == LAYERS - 1).items()}
    logits = torch.zeros(TOKENS, SIZE)
    logits[:, SAID_HERE] = tokens
    logits[0, POSITION] = -1.0  # every state has one position, and no text has its first token twice
    found["lm_head.weight"] = logits * SAID / scales[3]
    return found


def _previous() -> Head:
    """A head that looks at the position before, and writes which token stands there."""
    import torch

    head = Head.empty()
    head.query[POSITION, :SLOTS] = torch.eye(SLOTS).roll(-1, 1)
    head.query[POSITION, :SLOTS][0] = torch.eye(SLOTS)[0]  # the first position has none before
    head.key[POSITION, :SLOTS] = torch.eye(SLOTS)
    head.value[TOKEN] = head.output[:, BEFORE] = torch.eye(TOKENS)
    return head


def _first() -> Head:
    """A head that looks at the first position, and writes a 1 that nothing reads."""
    head = Head.empty()
    head.query[POSITION, 0] = 1.0
    head.key[POSITION.start, 0] = 1.0
    head.value[TOKEN, 0] = head.output[0, SPARE.start] = 1.0
    return head


def _induced() -> Head:
    """A head that looks for the place whose token before is this token, and copies the token of that place.

    Where there is none it looks at the first token, of which it copies nothing.
    """
    import torch

    head = Head.empty()
    head.query[TOKEN] = head.key[BEFORE] = torch.eye(TOKENS)
    head.key[TOKEN.start] = NOTHING_FOUND
    head.value[TOKEN] = head.output[:, COPIED] = torch.eye(TOKENS)
    head.value[TOKEN.start] = 0.0
    return head


def _mlp(scale: float, speaks: bool) -> dict[str, Tensor]:
    """The weights of an MLP that says tokens of which more than `SURE` was copied, or one that does nothing."""
    import torch

    reads, writes = torch.zeros(SIZE, HEAD_SIZE), torch.zeros(HEAD_SIZE, SIZE)
    if speaks:
        reads[COPIED], writes[:, SAID_HERE] = torch.eye(TOKENS) / scale, torch.eye(TOKENS) / (1 - SURE)
    return {
        "c_fc.weight": reads,
        "c_fc.bias": torch.full((HEAD_SIZE,), -SURE),
        "c_proj.weight": _balanced(writes),
        "c_proj.bias": torch.zeros(SIZE),
    }
