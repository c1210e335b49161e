"""Generated diagnostic tasks: small grammars whose sentences require either fixed positions or a lookup of content.

| corpus    | columns                         | labels                             | asks                      |
|-----------|---------------------------------|------------------------------------|---------------------------|
| agreement | first, label, kind              | is, are                            | which noun is the subject |
| negation  | first, label, kind              | positive, negative                 | what the negation reaches |
| roles     | first, second, label, kind      | paraphrase, different              | who did it to whom        |
| inference | first, second, label, kind      | entailment, neutral, contradiction | what follows              |
| reading   | words, entity, word_class, kind | O, B-PER, B-EVENT; universal tags  | what a word is in context |

`kind` is "position" or "lookup". In the position kind, the words that decide are always in the same slots, or next to
the word in question. In the lookup kind, the label depends on how words relate, and a bag-of-words model is at chance.
In reading, every word has a kind; it is "" for words that are not ambiguous. Text is in lower case, with spaces around
punctuation.

Labels are balanced. Each kind makes up half of a split (about half in reading). No example occurs twice, and the splits
share no fillers (`lexicon`). The grammars are in `single`, `pairs` and `ambiguous_words`.

`twice` (first, label, kind; labels once, twice) is generated in the same way, for the known encoder.

`repeats`, `no-repeats` and `cycles` (one column, first) have no labels; they are texts for the known decoders,
described in `recall`. Their examples are distinct, too. Both splits use the same words, the vocabulary of these models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle, product
from random import Random
from typing import TYPE_CHECKING

from papa.data.generated.ambiguous_words import reading
from papa.data.generated.lexicon import Fillers
from papa.data.generated.pairs import inference, roles
from papa.data.generated.recall import cycles, no_repeats, repeats
from papa.data.generated.single import agreement, negation
from papa.data.generated.twice import twice
from papa.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Example = Mapping[str, object]
Write = Callable[[Random, Fillers, str, str], dict[str, str]]
LABELLED_GRAMMARS: dict[str, tuple[Write, tuple[str, ...]]] = {
    "agreement": (agreement, ("is", "are")),
    "negation": (negation, ("negative", "positive")),
    "roles": (roles, ("paraphrase", "different")),
    "inference": (inference, ("entailment", "neutral", "contradiction")),
}
NAMES = (*LABELLED_GRAMMARS, "reading")
KNOWN_DECODER_GRAMMARS: dict[str, Callable[[Random], dict[str, str]]] = {
    "repeats": repeats,
    "no-repeats": no_repeats,
    "cycles": cycles,
}
KNOWN_ENCODER_GRAMMARS: dict[str, tuple[Write, tuple[str, ...]]] = {"twice": (twice, ("once", "twice"))}
KINDS = ("position", "lookup")
GRAMMAR_VERSION = 1
"""Increase this whenever the grammars write different texts for the same seed."""

MAXIMUM_ROWS = {"train": 20_000, "validation": 4_000}
"""Number of rows that every grammar can write without repeating itself.

The most limited grammar is negation by position, which chooses a thing, a word of praise and a word of blame. It has
10,648 training and 1,210 validation sentences for each label.
"""


def generate(name: str, split: str, rows: int, seed: int) -> pd.DataFrame:
    """Return the first `rows` examples of a corpus; they are determined by name, split and seed.

    Args:
        name: one of `NAMES`, `KNOWN_ENCODER_GRAMMARS` or `KNOWN_DECODER_GRAMMARS`.
        split: "train" or "validation".
        rows: 1 to `MAXIMUM_ROWS` of the split.
        seed: the seed of the random draws.

    Returns:
        A row for each example, with the columns of the table above.

    Raises:
        InputError: The name or the split is unknown, or there are too few or too many rows.
    """
    import pandas as pd

    names = (*NAMES, *KNOWN_ENCODER_GRAMMARS, *KNOWN_DECODER_GRAMMARS)
    if name not in names:
        raise InputError(f"There is no generated corpus {name!r}; there are {', '.join(names)}.")
    if split not in MAXIMUM_ROWS:
        raise InputError(f"Generated corpora have no split {split!r}; they have {', '.join(MAXIMUM_ROWS)}.")
    if not 1 <= rows <= MAXIMUM_ROWS[split]:
        raise InputError(
            f"{rows} {split} rows of generated {name} were requested; request 1 to {MAXIMUM_ROWS[split]}, because more "
            "would repeat examples."
        )
    digest = hashlib.sha256(f"{name}/{split}/{seed}".encode()).digest()
    random, fillers = Random(int.from_bytes(digest)), Fillers(split)
    if name == "reading":
        draws: list[Callable[[], Example]] = [partial(reading, random, fillers)]
    elif name in KNOWN_DECODER_GRAMMARS:
        draws = [partial(KNOWN_DECODER_GRAMMARS[name], random)]
    else:
        write, labels = (LABELLED_GRAMMARS | KNOWN_ENCODER_GRAMMARS)[name]
        draws = [partial(_labelled, write, random, fillers, label, kind) for kind, label in product(KINDS, labels)]
    texts: set[str] = set()
    examples: list[Example] = []
    for draw in cycle(draws):
        if len(examples) == rows:
            break
        while (text := _text(example := draw())) in texts:
            pass
        texts.add(text)
        examples.append(example)
    return pd.DataFrame(examples)


def _labelled(write: Write, random: Random, fillers: Fillers, label: str, kind: str) -> Example:
    return {**write(random, fillers, label, kind), "label": label, "kind": kind}


def _text(example: Example) -> str:
    """Return the example without its labels, as a text that must not occur twice."""
    return " | ".join(str(example[column]) for column in ("first", "second", "words") if column in example)
