"""Diagnostic corpora that papa makes itself: one half can be solved from fixed positions, the other needs content.

`generate` is deterministic by name, split and seed. Train and validation share no open-class word (`lexicon`); labels
and kinds are balanced; no text occurs twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from itertools import cycle, product
from random import Random
from typing import TYPE_CHECKING, Any

from papa.errors import InputError
from papa.sources.generated.lexicon import Fillers
from papa.sources.generated.pairs import inference, roles
from papa.sources.generated.reading import reading
from papa.sources.generated.single import agreement, negation

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("position", "lookup")
# What makes one example of a given label and kind, and the labels.
_LABELLED: Mapping[str, tuple[Callable[[Random, Fillers, str, str], dict[str, str]], tuple[str, ...]]] = {
    "agreement": (agreement, ("is", "are")),
    "negation": (negation, ("negative", "positive")),
    "roles": (roles, ("different", "paraphrase")),
    "inference": (inference, ("contradiction", "entailment", "neutral")),
}
NAMES = (*_LABELLED, "reading")
TRIES = 1000


def generate(name: str, split: str, rows: int, seed: int) -> pd.DataFrame:
    """`rows` examples of a split ("train" or "validation") of the corpus `name`.

    Columns: `first` (and `second`), `label` and `kind`; of `reading` `words`, `entities`, `classes`, `entity_kind` and
    `class_kind`, one entry per word. Raises `InputError` for an unknown corpus or split, and where the grammar has no
    more texts.
    """
    import pandas as pd

    if name not in NAMES:
        raise InputError(f"There is no generated corpus {name!r}; there are {', '.join(NAMES)}.")
    if split not in ("train", "validation"):
        raise InputError(f"A generated corpus has the splits train and validation, and no {split!r}.")
    random = Random(sha256(f"{name} {split} {seed}".encode()).digest())
    fillers = Fillers(split)
    wanted = cycle(product(_LABELLED[name][1], KINDS) if name in _LABELLED else [("", "")])
    seen: set[tuple[Any, ...]] = set()
    examples: list[dict[str, Any]] = []
    for label, kind in wanted:
        if len(examples) == rows:
            break
        for _ in range(TRIES):
            example = _one(name, random, fillers, label, kind)
            text = (example.get("first"), example.get("second"), *example.get("words", ()))
            if text not in seen:
                break
        else:
            raise InputError(
                f"The grammar of {name} gives about {len(examples):,} {split} rows, not {rows:,}; ask for less."
            )
        seen.add(text)
        examples.append(example)
    random.shuffle(examples)
    return pd.DataFrame(examples)


def _one(name: str, random: Random, fillers: Fillers, label: str, kind: str) -> dict[str, Any]:
    if name not in _LABELLED:
        return dict(reading(random, fillers))
    return _LABELLED[name][0](random, fillers, label, kind) | {"label": label, "kind": kind}
