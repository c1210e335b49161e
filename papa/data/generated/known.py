"""Small models with weights written by hand, so that the role of every head is known; papa is tested with them.

`induction` is a GPT-2 with 2 layers of 5 heads that reads the texts `repeats` and `no-repeats` (`recall`). It gives all
words equal probability until a word repeats. Then it is certain that the next word will repeat too. Its heads:

| layer | head | attends to | writes |
|---|---|---|---|
| 0 | 1 | the previous token (by position only) | that token |
| 0 | 3 | the first token (by position only) | values that nothing reads |
| 1 | 2 | the token after an earlier copy of this token; without a copy, the first token | the token attended to |
| both | remaining even | some tokens more than others, by content | a constant |
| 1 | odd | all tokens equally | the mean of the tokens, which nothing reads |

A hidden state is divided into segments with a value for each token or position (`TOKEN` and the slices after it). The
last value is minus the sum of the others, so the mean of every state is 0, and LayerNorm only divides by the norm. The
norm is known, because the values of the current token and position are 1. The highest attention score is far above the
others, so the softmax puts all weight on one key.

The MLP of the last layer predicts a copied token only if attention to it is at least `ATTENTION_THRESHOLD`. So a
constant that spreads over many positions predicts nothing.

Two variations of this decoder have heads that interact. They differ in heads of layer 1 that are idle in `induction`,
and all of these attend like the induction head:

| model | head | writes |
|---|---|---|
| `redundant` | 3 *second copy* | the same as the induction head, so either of them is enough |
| `trap` | 0 *canceller* | minus `WRONG_SIZE` times a wrong token |
| `trap` | 4 *wrong token* | plus `WRONG_SIZE` times the same wrong token |

`long` has the heads of `induction` and reads texts of 4,096 tokens (`cycles`). It differs only in how its states show
positions (`Positions`). Its induction head attends equally to the tokens after all earlier copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from papa.data.generated import looking, shifting
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
from papa.data.generated.models import made_once
from papa.data.generated.recall import LONG_WORDS, MAXIMUM_WORDS, WORDS
from papa.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

KNOWN = ("induction", "long", "lookup", "redundant", "shifted", "trap")
RECIPE = 1
"""Increase this whenever the code below makes a different model."""
START = "<s>"
"""First token of every text."""
SLOTS = 1 + MAXIMUM_WORDS
PREVIOUS, FIRST, INDUCTION = (0, 1), (0, 3), (1, 2)
"""Heads of `induction`, (layer, head), counted from 0; the others are idle."""
SECOND_COPY, CANCELLER, WRONG_TOKEN = (1, 3), (1, 0), (1, 4)
"""Heads of `redundant` and of `trap`."""
NEEDED: dict[str, tuple[tuple[int, int], ...]] = {
    "induction": (INDUCTION,),
    "long": (INDUCTION,),
    "lookup": (looking.LOOKUP,),
    "shifted": (shifting.MARK,),
}
NEEDED |= {"redundant": (INDUCTION, SECOND_COPY), "trap": (INDUCTION,)}
"""Heads of each known model. One of them must keep its attention: no constant can replace all of them. In `shifted`,
training can make up for it."""

FALLBACK_SCORE = 0.4
"""Score of the first token in the induction head, relative to the score of an earlier copy."""
ATTENTION_THRESHOLD = 0.2
"""Minimum attention to a token for the model to predict it."""
PREDICTED_LOGIT = 14.0
"""Logit of a predicted token; the logits of other tokens are 0."""

WRONG_SIZE = 3.0
"""Size of the output of the canceller and of the wrong token, relative to that of the induction head."""

TOKEN, BEFORE, COPIED, PREDICTED = (slice(begin, begin + 64) for begin in (0, 64, 128, 192))
POSITION_START, REST = 256, 319
"""Segments of a hidden state: the token, the previous, the copied and the predicted token, the position, values that
nothing reads, and the value that makes the mean 0. The lengths of two of them depend on how a model shows positions."""


@dataclass(frozen=True)
class Positions:
    """The positions of a decoder, and how its states show them: as a one-hot remainder for each divisor.

    The remainders of the previous position are those of this position, each rotated by one. So a head can find the
    previous token with few values, however long the text is.

    Args:
        slots: the number of positions.
        divisors: numbers without a common factor. Their product is at least `slots`, so no two positions have the same
            remainders. A single divisor, `slots`, has a value for each position.
    """

    slots: int
    divisors: tuple[int, ...]

    @property
    def segment(self) -> slice:
        """The segment of a hidden state with the position."""
        return slice(POSITION_START, POSITION_START + sum(self.divisors))

    @property
    def first_remainder(self) -> slice:
        """The part of `segment` with the first remainder: exactly one of its values is 1."""
        return slice(POSITION_START, POSITION_START + self.divisors[0])

    @property
    def unused(self) -> slice:
        """The segment with values that nothing reads."""
        return slice(self.segment.stop, REST)

    def remainders(self) -> Tensor:
        """Return the values of `segment` in each position: `[position, value]`."""
        import torch

        return torch.hstack([torch.eye(divisor)[torch.arange(self.slots) % divisor] for divisor in self.divisors])


SHORT = Positions(SLOTS, (SLOTS,))
LONG = Positions(1 + LONG_WORDS, (13, 17, 19))


def known_model(name: str) -> Path:
    """Return the folder of a known model, one of `KNOWN`; it is generated once, in the user's cache."""
    if name not in KNOWN:
        raise InputError(f"There is no known model {name!r}; there are {', '.join(KNOWN)}.")
    encoders = {"lookup": looking, "shifted": shifting}
    if encoder := encoders.get(name):
        return made_once(f"known-{name}", encoder.recipe(), encoder.make)
    recipe = [RECIPE, WORDS, SLOTS, SCORE_GAP, FALLBACK_SCORE, ATTENTION_THRESHOLD, PREDICTED_LOGIT, IDLE_SCALE]
    recipe += [WRONG_SIZE] if name == "trap" else []
    recipe += [LONG.slots, LONG.divisors] if name == "long" else []
    return made_once(f"known-{name}", recipe, lambda folder: _decoder(folder, name))


def _decoder(folder: Path, name: str) -> None:
    import transformers

    positions = LONG if name == "long" else SHORT
    ids = {word: index for index, word in enumerate([START, *WORDS])}
    special_tokens = dict.fromkeys(("bos_token", "eos_token", "unk_token"), START)
    word_tokenizer(ids, (f"{START} $A", f"{START} $A $B:1"), positions.slots, special_tokens).save_pretrained(folder)
    config = transformers.GPT2Config(
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=SIZE,
        n_inner=HEAD_SIZE,
        n_positions=positions.slots,
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
    norms = {name: value for name, value in model.state_dict().items() if ".ln_" in name}
    model.load_state_dict(norms | _weights(_copying_heads(name), positions))  # raises if a weight is missing
    model.save_pretrained(folder)


def _balanced(written: Tensor) -> Tensor:
    """Set the last value of `written`, `[..., value]`, to minus the sum of the others."""
    written[..., REST] = -written[..., :REST].sum(-1)
    return written


def _copying_heads(name: str) -> dict[tuple[int, int], Head]:
    """Return the heads of a decoder that attend to the token after an earlier copy of the current token."""
    heads = {INDUCTION: _induced()}
    if name == "redundant":
        heads[SECOND_COPY] = _induced()
    elif name == "trap":
        heads |= {CANCELLER: _induced(-WRONG_SIZE, shift=1), WRONG_TOKEN: _induced(WRONG_SIZE, shift=1)}
    return heads


def _weights(copying: Mapping[tuple[int, int], Head], positions: Positions) -> dict[str, Tensor]:
    """Return the weights of a decoder by name, except those of LayerNorm, which keep their defaults.

    LayerNorm multiplies states by factors that are computed for the heads of `induction`. Copying heads in other places
    change the norm of the last states, but no prediction.
    """
    import torch

    tokens = torch.eye(TOKENS)
    embedded, placed = torch.zeros(TOKENS, SIZE), torch.zeros(positions.slots, SIZE)
    embedded[:, TOKEN], placed[:, positions.segment] = tokens, positions.remainders()
    weights = {"transformer.wte.weight": _balanced(embedded), "transformer.wpe.weight": _balanced(placed)}
    # a token, a remainder and the output of a head are a 1 each; all idle heads of a layer add to the same value
    embedding = (1,) * (1 + len(positions.divisors))
    outputs = [(), (1, 1, 3 * IDLE_SCALE), (1, 1, 5 * IDLE_SCALE, 1), (1, 1, 5 * IDLE_SCALE, 1, 1)]
    states = [(*embedding, *output) for output in outputs]
    # the factors by which LayerNorm multiplies these states if nothing is replaced
    scales = [(SIZE / (sum(value**2 for value in state) + sum(state) ** 2)) ** 0.5 for state in states]
    chance = torch.Generator().manual_seed(0)
    for layer in range(LAYERS):
        scale = scales[layer]
        always, unread = positions.first_remainder, positions.unused
        parts = {(layer, head): Head.idle(chance, head % 2 == 0, always, unread) for head in range(HEADS)}
        if layer == 0:
            parts |= {PREVIOUS: _previous(positions), FIRST: _first(positions)}
        else:
            parts |= copying
        name, heads = f"transformer.h.{layer}", list(parts.values())
        weights[f"{name}.attn.c_attn.weight"] = torch.cat(Head.projections(heads), 1) / scale
        weights[f"{name}.attn.c_attn.bias"] = torch.zeros(3 * HEADS * HEAD_SIZE)
        weights[f"{name}.attn.c_proj.weight"] = _balanced(torch.cat([head.output for head in heads]))
        weights[f"{name}.attn.c_proj.bias"] = torch.zeros(SIZE)
        weights |= {f"{name}.mlp.{part}": weight for part, weight in _mlp(scales[2], layer == LAYERS - 1).items()}
    logits = torch.zeros(TOKENS, SIZE)
    logits[:, PREDICTED] = tokens
    logits[0, positions.first_remainder] = -1.0  # every state has a position; no text repeats the first token
    weights["lm_head.weight"] = logits * PREDICTED_LOGIT / scales[3]
    return weights


def _previous(positions: Positions) -> Head:
    """Return a head that attends to the previous position and writes its token."""
    import torch

    head = Head.at_previous(positions.segment, positions.divisors)
    head.value[TOKEN] = head.output[:, BEFORE] = torch.eye(TOKENS)
    return head


def _first(positions: Positions) -> Head:
    """Return a head that attends to the first position and writes a 1 that nothing reads."""
    head = Head.at(positions.segment, 0)
    head.key[positions.segment, 0] = positions.remainders()[0]
    head.value[TOKEN, 0] = head.output[0, positions.unused.start] = 1.0
    return head


def _induced(size: float = 1.0, shift: int = 0) -> Head:
    """Return a head that attends to the token after an earlier copy of the current token, and copies it.

    Without an earlier copy, it attends to the first token and copies nothing.

    Args:
        size: the size of the output.
        shift: the difference between the ids of the token that is written and the token attended to.
    """
    import torch

    head = Head.empty()
    head.query[TOKEN] = head.key[BEFORE] = torch.eye(TOKENS)
    head.key[TOKEN.start] = FALLBACK_SCORE
    head.value[TOKEN] = torch.eye(TOKENS)
    head.value[TOKEN.start] = 0.0
    head.output[:, COPIED] = size * torch.eye(TOKENS).roll(shift, 1)
    return head


def _mlp(scale: float, predicts: bool) -> dict[str, Tensor]:
    """Return the weights of an MLP that predicts copied tokens, or of one that does nothing."""
    import torch

    reads, writes = torch.zeros(SIZE, HEAD_SIZE), torch.zeros(HEAD_SIZE, SIZE)
    if predicts:
        reads[COPIED], writes[:, PREDICTED] = torch.eye(TOKENS) / scale, torch.eye(TOKENS) / (1 - ATTENTION_THRESHOLD)
    return {
        "c_fc.weight": reads,
        "c_fc.bias": torch.full((HEAD_SIZE,), -ATTENTION_THRESHOLD),
        "c_proj.weight": _balanced(writes),
        "c_proj.bias": torch.zeros(SIZE),
    }
