"""Generated diagnostic tasks: small grammars whose sentences fixed positions can solve, or only looking content up.

| corpus    | columns                         | labels                             | asks                      |
|-----------|---------------------------------|------------------------------------|---------------------------|
| agreement | first, label, kind              | is, are                            | which noun is the subject |
| negation  | first, label, kind              | positive, negative                 | what the negation reaches |
| roles     | first, second, label, kind      | paraphrase, different              | who did it to whom        |
| inference | first, second, label, kind      | entailment, neutral, contradiction | what follows              |
| reading   | words, entity, word_class, kind | O, B-PER, B-EVENT; universal tags  | what a word is in context |

`kind` is "position" or "lookup". In the position kind the telling words always stand in the same slots, or beside the
word in question. In the lookup kind the label hangs on how words relate, and a bag of words is at chance. In reading
the kind is given per word, "" for words that are not ambiguous. Text is in lower case, spaces around punctuation.

Labels are balanced, each kind makes up half (in reading about half) of a split, no example occurs twice, and the splits
share no fillers (`lexicon`). The grammars are in `single`, `pairs` and `reading`.

`twice` (first, label, kind; labels once, twice) is made in the same way; the known encoder reads it (`twice`).

`repeats` and `no-repeats` (one column, first) have no labels: the known decoder reads them, and they are described in
`recall`. There, too, no example occurs twice; both splits have the same words, which is all that this model knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle, product
from random import Random
from typing import TYPE_CHECKING

from papa.data.generated.lexicon import Fillers
from papa.data.generated.pairs import inference, roles
from papa.data.generated.reading import reading
from papa.data.generated.recall import no_repeats, repeats
from papa.data.generated.single import agreement, negation
from papa.data.generated.twice import twice
from papa.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Example = Mapping[str, object]
Write = Callable[[Random, Fillers, str, str], dict[str, str]]
LABELLED: dict[str, tuple[Write, tuple[str, ...]]] = {
    "agreement": (agreement, ("is", "are")),
    "negation": (negation, ("negative", "positive")),
    "roles": (roles, ("paraphrase", "different")),
    "inference": (inference, ("entailment", "neutral", "contradiction")),
}
NAMES = (*LABELLED, "reading")
RECALL: dict[str, Callable[[Random], dict[str, str]]] = {"repeats": repeats, "no-repeats": no_repeats}
ASKED: dict[str, tuple[Write, tuple[str, ...]]] = {"twice": (twice, ("once", "twice"))}
KINDS = ("position", "lookup")
GRAMMAR_VERSION = 1
"""Raised whenever the grammars write other texts for the same seed."""

# What every grammar can write without repeating itself. The narrowest has 1,210 validation and 10,648 training
# sentences for each label and kind: negation, position, which chooses a thing, a word of praise and one of blame.
MOST_ROWS = {"train": 20_000, "validation": 4_000}


def generate(name: str, split: str, rows: int, seed: int) -> pd.DataFrame:
    """Return `rows` examples of a corpus: always the same for a name, split and seed, and more rows only add to them.

    name: one of `NAMES`, `ASKED` or `RECALL`; split: "train" or "validation". Columns are those of the table above.
    Raises `InputError` for an unknown name or split, and for rows under 1 or over `MOST_ROWS`.
    """
    import pandas as pd

    names = (*NAMES, *ASKED, *RECALL)
    if name not in names:
        raise InputError(f"There is no generated corpus {name!r}; there are {', '.join(names)}.")
    if split not in MOST_ROWS:
        raise InputError(f"Generated corpora have no split {split!r}; they have {', '.join(MOST_ROWS)}.")
    if not 1 <= rows <= MOST_ROWS[split]:
        raise InputError(
            f"{rows} {split} rows of generated {name} were asked for; give 1 to {MOST_ROWS[split]}, "
            "which is as many as it can write without repeating an example."
        )
    digest = hashlib.sha256(f"{name}/{split}/{seed}".encode()).digest()
    random, fillers = Random(int.from_bytes(digest)), Fillers(split)
    if name == "reading":
        draws: list[Callable[[], Example]] = [partial(reading, random, fillers)]
    elif name in RECALL:
        draws = [partial(RECALL[name], random)]
    else:
        write, labels = (LABELLED | ASKED)[name]
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
    """What must not occur twice: the example without its labels."""
    return " | ".join(str(example[column]) for column in ("first", "second", "words") if column in example)
