"""Variants: which constant replaces attention, in which order, and which fraction of heads is kept.

This module defines which constants and orders are valid, and how paths name variants.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property

from papa.errors import InputError

AVERAGES = ("average", "mean-output")
"""Averages over texts, each in a file of its own: of attention or, for mean-output, of the outputs of heads."""
TIED = ("sink", "by-distance")
"""Averages in which pairs of slots share an entry: with the first key or not, or also at the same distance. They are
computed from the file of `average`."""
AVERAGED = ("average", *TIED, *AVERAGES[1:])
"""All constants that are computed from texts."""
DATA_FREE = ("identity", "toeplitz", "zeros", "uniform")
"""Constants that need no text: those of the paper's Table 1, and equal weights for all tokens."""
KINDS = (*AVERAGED, *DATA_FREE)  # all kinds of constants by name
OBSERVED_AT_ONCE = 2**26
"""The number of values of a layer's attention that are computed and summed at once, in blocks of queries."""
TRAINED_SUFFIX = "-trained"
AVERAGE_OF = "average-of-"
TRAINABLE = ("average", "toeplitz")  # constants from which training can start
NAMES = (
    "average",
    f"{AVERAGE_OF}CORPUS",
    *AVERAGED[1:],
    *DATA_FREE,
)  # the names of untrained constants in a config
TRAINED_NAMES = tuple(
    f"{start}{TRAINED_SUFFIX}" for start in TRAINABLE
)  # the names of trained constants in a config
BY_LAMBDA = ("lambda", "lambda-reversed")
SEEDED = (*BY_LAMBDA, "gradient")  # orders by head weights, which depend on a seed
RANDOM = "random"
BY_POSITION: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "first-layer-first": lambda layer, head: (layer, head),
    "last-layer-first": lambda layer, head: (-layer, head),
}
"""Orders by position. Each function maps a layer and an index in it to a sort key; the smallest is replaced first."""
ORDERS = (*BY_LAMBDA, *BY_POSITION, RANDOM, "gradient")
NUMBERED = (*SEEDED, RANDOM)
"""Orders whose names end in a number: the seed of their weights, or the index of a random draw."""
LIST_PREFIX = "list-"  # the beginning of the names of orders by a list in a file
LIST_NAME_PATTERN = "[a-z][a-z0-9-]{0,39}"

CONTEXT_FREE = ("zeros", "identity", "mean-output")
"""The constants with which no token receives information from another; each can be a context-free floor."""


@dataclass(frozen=True)
class Constant:
    """The constant that replaces attention."""

    # one of `KINDS`, from which training starts if the constant is trained; stages need no more of a constant, because
    # the rest decides which file they read
    start: str
    corpus: str | None = None  # the corpus of an average; None means the task's own texts
    trained: bool = False  # whether the constant is trained with the probe

    @classmethod
    @cache
    def parse(cls, name: str) -> Constant:
        """Return the constant with this name: average, average-of-CORPUS, zeros, …, average-trained, …"""
        if name.startswith(AVERAGE_OF) and name != AVERAGE_OF:
            return cls("average", name.removeprefix(AVERAGE_OF))
        start = name.removesuffix(TRAINED_SUFFIX)
        trained = start != name
        if start not in KINDS or (trained and start not in TRAINABLE):
            raise InputError(
                f"The constant {name!r} does not exist; use one of {', '.join((*NAMES, *TRAINED_NAMES))}."
            )
        return cls(start, None, trained)

    @property
    def name(self) -> str:
        """The name of the constant in the config."""
        return self.untrained + TRAINED_SUFFIX * self.trained

    @property
    def untrained(self) -> str:
        """The name of the constant before training; λ is learned with that constant."""
        return self.start if self.corpus is None else f"{AVERAGE_OF}{self.corpus}"

    @property
    def data_free(self) -> bool:
        """Whether the constant is not computed from a corpus."""
        return self.start in DATA_FREE

    @property
    def averaged(self) -> str:
        """The kind of average in the file from which the constant is computed."""
        return self.start if self.start in AVERAGES else "average"

    def for_corpus(self, corpus: str) -> Constant:
        """Return the constant as tasks on `corpus` name it: for them, `average-of-<corpus>` is simply `average`."""
        return replace(self, corpus=None) if self.corpus == corpus else self


@dataclass(frozen=True)
class Order:
    """The order in which heads are replaced."""

    base: str  # one of `ORDERS`, or `LIST_PREFIX` and the name of a list
    # the index of a random draw, counted from 1, or the seed of the head weights that give the order
    draw: int | None = None

    @classmethod
    @cache
    def parse(cls, name: str) -> Order:
        """Return the order with this name, which may end in a draw or seed: random-1, lambda-0, list-mine, …"""
        # no leading zeros, because an order must have one name
        numbered = re.fullmatch(f"({'|'.join(NUMBERED)})-(0|[1-9][0-9]*)", name)
        order = cls(numbered[1], int(numbered[2])) if numbered else cls(name)
        known = order.base in ORDERS or re.fullmatch(LIST_PREFIX + LIST_NAME_PATTERN, order.base)
        with_number = (order.base in NUMBERED) == (order.draw is not None)
        if not known or not with_number or order == cls(RANDOM, 0):
            raise InputError(
                f"The order {name!r} does not exist; use one of {', '.join(ORDERS)} (with a draw: random-1, …; with "
                "a seed: lambda-0, …)."
            )
        return order

    @property
    def name(self) -> str:
        """The name of the order in paths and tables."""
        return self.base if self.draw is None else f"{self.base}-{self.draw}"

    @property
    def by_weight(self) -> bool:
        """Whether the order follows head weights for a task: λ or others."""
        return self.base in SEEDED


@dataclass(frozen=True)
class Variant:
    """A replacement of attention. Fraction 1 has neither constant nor order, and 0 has no order."""

    constant: Constant | None  # the constant that replaces attention; None if nothing is replaced
    order: Order | None  # the order in which heads are replaced; None unless some heads are kept
    fraction: Fraction  # the share of heads that keep their own attention

    @classmethod
    def of(cls, constant: Constant, order: Order | None, fraction: Fraction | str) -> Variant:
        """Return a point of a grid, without the parts that do not matter there."""
        fraction = Fraction(fraction)
        return cls(
            constant if fraction < 1 else None, order if 0 < fraction < 1 else None, fraction
        )

    @cached_property
    def path(self) -> str:
        """The variant as a part of paths: original, CONSTANT/all or CONSTANT/ORDER/kept-AofB."""
        if self.constant is None:
            return "original"
        if self.order is None:
            return f"{self.constant.name}/all"
        return (
            f"{self.constant.name}/{self.order.name}/kept-{str(self.fraction).replace('/', 'of')}"
        )

    @property
    def trained(self) -> bool:
        """Whether the constant is trained with the probe, so hidden states change during training."""
        return self.constant is not None and self.constant.trained


ORIGINAL = Variant(None, None, Fraction(1))
"""The model as it is."""
