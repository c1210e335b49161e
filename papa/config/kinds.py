"""What can take the place of attention, and in which order heads give it up: by name, without any heavy import."""

from __future__ import annotations

import re
from dataclasses import dataclass

from papa.errors import InputError

DATA_FREE = ("identity", "toeplitz", "zeros")
"""Constants that no text is needed for (the paper's Table 1)."""

TRAINED = "-trained"
OF = "average-of-"

BY_LAMBDA = ("lambda", "lambda-reversed")
"""Orders that hang on the λ of a task."""

BY_LAYER = ("first-layer-first", "last-layer-first")
RANDOM = "random"
ORDERS = (*BY_LAMBDA, *BY_LAYER, RANDOM)


@dataclass(frozen=True)
class Kind:
    """A kind of constant: what the matrices are (`start`), the corpus of an average (None: the task's own), and whether
    they only begin as that and are trained with the probe."""

    start: str
    corpus: str | None = None
    trained: bool = False

    @property
    def name(self) -> str:
        """The kind before any training: what λ is learned with."""
        return self.start if self.corpus is None else OF + self.corpus

    @property
    def data_free(self) -> bool:
        """Whether the matrices follow from their size alone."""
        return self.start in DATA_FREE


def kind_of(name: str) -> Kind:
    """The kind called `name`: average, average-of-CORPUS, identity, toeplitz, zeros, average- or toeplitz-trained."""
    if name.startswith(OF) and len(name) > len(OF):
        return Kind("average", name.removeprefix(OF))
    start = name.removesuffix(TRAINED)
    trained = start != name
    if start not in ("average", *DATA_FREE) or (trained and start not in ("average", "toeplitz")):
        known = ", ".join(["average", f"{OF}CORPUS", *DATA_FREE, f"average{TRAINED}", f"toeplitz{TRAINED}"])
        raise InputError(f"There are no constants {name!r}; there are {known}.")
    return Kind(start, None, trained)


def on_corpus(constant: str, corpus: str) -> str:
    """`constant` as tasks on `corpus` call it: the average of their own texts is the average."""
    return "average" if constant == OF + corpus else constant


def order_of(name: str) -> tuple[str, int | None]:
    """The order called `name`, and which draw it is of a random one: "random-2" is ("random", 2)."""
    drawn = re.fullmatch(f"{RANDOM}-([1-9][0-9]*)", name)
    order, draw = (RANDOM, int(drawn[1])) if drawn else (name, None)
    if order not in ORDERS or (order == RANDOM) != (draw is not None):
        raise InputError(f"The order {name!r} does not exist; it is one of {', '.join(ORDERS)} (drawn: random-1, …).")
    return order, draw
