"""The replacement in a run: a constant, an order of heads and the fraction that is kept (paper, Sec. 3 and 5).

This module decides which variants are legal, and which part of a path each has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING

from papa.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ConstantKind:
    """A kind of constants. Entries are tied if pairs of slots of one class have the same value.

    Args:
        classes: maps the number of slots to the number of classes; None if entries are not tied.
        class_of: maps slots `[query, 1]` and `[1, key]` to the class of each pair.
        values: maps the number of slots to the value of each class, before rows are normalised; None if the values
            follow from texts.
        trainable: whether matrices can be trained, with these at the start.
    """

    classes: Callable[[int], int] | None = None
    class_of: Callable[[Tensor, Tensor], Tensor] | None = None
    values: Callable[[int], list[float]] | None = None
    trainable: bool = False


RESAMPLED = "resample"
"""Attention to single texts, drawn at random."""
KINDS = {
    "average": ConstantKind(trainable=True),
    "sink": ConstantKind(lambda slots: 2, lambda query, key: (key > 0).long() + 0 * query, trainable=True),
    # the first slot is a separate class, because heads attend to it if no other token matters
    "by-distance": ConstantKind(
        lambda slots: 2 * slots, lambda query, key: (key > 0) * (query - key + len(query)), trainable=True
    ),
    "mean-output": ConstantKind(),
    RESAMPLED: ConstantKind(),
    "identity": ConstantKind(lambda slots: 2, lambda query, key: (query == key).long(), lambda slots: [0.0, 1.0]),
    "toeplitz": ConstantKind(
        lambda slots: slots,
        lambda query, key: (query - key).abs(),
        lambda slots: [1 / (1 + distance) for distance in range(slots)],
        trainable=True,
    ),
    "zeros": ConstantKind(lambda slots: 1, lambda query, key: 0 * (query - key), lambda slots: [0.0]),
    "uniform": ConstantKind(lambda slots: 1, lambda query, key: 0 * (query - key), lambda slots: [1.0]),
}
"""All kinds of constants by name. The average of heads' outputs, `mean-output`, is the only one without matrices."""
DATA_FREE = tuple(name for name, kind in KINDS.items() if kind.values)
"""Constants that need no text (the paper's Table 1, and the same weight for every token)."""
AVERAGED = tuple(name for name, kind in KINDS.items() if not kind.values and name != RESAMPLED)
"""Constants that are averages over texts: of attention, of attention with tied entries, of outputs of heads."""
LADDER = ("zeros", "mean-output", "uniform", "sink", "by-distance", "average")
"""Constants by their information about texts, from none to the paper's."""
TRAINED, OF = "-trained", "average-of-"
STARTS = tuple(name for name, kind in KINDS.items() if kind.trainable)
"""Constants that can be trained on."""
NAMES = (AVERAGED[0], f"{OF}CORPUS", *AVERAGED[1:], RESAMPLED, *DATA_FREE)
TRAINED_NAMES = tuple(f"{start}{TRAINED}" for start in STARTS)
"""The names of all constants in a config, without training and with it."""
BY_LAMBDA = ("lambda", "lambda-reversed")
PROBED, OBSERVED = ("gradient", "leave-one-out"), ("variance", "output-norm")
"""Weights of heads other than λ: those from a loss, which depends on a seed, and those from attention itself."""
SEEDED = (*BY_LAMBDA, *PROBED)
RANDOM = "random"
BY_PLACE: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "first-layer-first": lambda layer, unit: (layer, unit),
    "last-layer-first": lambda layer, unit: (-layer, unit),
}
"""Orders by the layer of a head (or of another unit) and its number in the layer; small keys are replaced first."""
ORDERS = (*BY_LAMBDA, *BY_PLACE, RANDOM, *PROBED, *OBSERVED)
DRAWN = (*SEEDED, RANDOM)
"""Orders with a number: the seed of the weights that they are made from, or the draw."""

ORIGINAL, ALL_REPLACED = "original", "all"
CONTEXTLESS = f"zeros/{ALL_REPLACED}"
"""The context-free floor, in which no token receives information from another."""
CONSTANT = f"(?:{'|'.join(KINDS)}|{OF}[a-z0-9_-]+)"
"""Pattern of constants that are not trained, so that hidden states under them can be stored."""
ORDER, KEPT = "[a-z0-9-]+", "kept-[0-9]+of[0-9]+"
WEIGHTS = f"(?:{'|'.join(PROBED)})-[0-9]+|{'|'.join(OBSERVED)}"
"""Pattern of the names of weights of heads other than λ; orders made from them have the same names."""
OF_CORPUS = f"{ORIGINAL}|{CONSTANT}/{ALL_REPLACED}"
"""Pattern of variants that depend on texts only: nothing is replaced, or every head."""
OF_TASK = f"{CONSTANT}/{ORDER}/{KEPT}"
"""Pattern of variants that depend on an order of heads."""
OF_TRAINED = f"(?:{'|'.join(STARTS)}){TRAINED}/(?:{ALL_REPLACED}|{ORDER}/{KEPT})"
"""Pattern of variants whose constants are trained with the probe."""

WHOLE = "1of1"
"""The part of a corpus that is all of it."""
PART = "[0-9]+of[0-9]+"


@dataclass(frozen=True)
class Constant:
    """The constant that replaces attention.

    Args:
        start: what the matrices are, or begin as: one of `KINDS`.
        corpus: the corpus of an average; None stands for the task's own texts.
        trained: whether the matrices are trained with the probe.
    """

    start: str
    corpus: str | None = None
    trained: bool = False

    @classmethod
    def parse(cls, name: str) -> Constant:
        """Return the constant called `name`: average, average-of-CORPUS, zeros, …, average-trained, …"""
        if name.startswith(OF) and len(name) > len(OF):
            return cls("average", name.removeprefix(OF))
        start = name.removesuffix(TRAINED)
        trained = start != name
        if start not in KINDS or (trained and not KINDS[start].trainable):
            raise InputError(f"There are no constants {name!r}; there are {', '.join((*NAMES, *TRAINED_NAMES))}.")
        return cls(start, None, trained)

    @property
    def name(self) -> str:
        """The name of the constant in the config."""
        return self.untrained + TRAINED * self.trained

    @property
    def untrained(self) -> str:
        """The constant before any training, with which λ is learned."""
        return self.start if self.corpus is None else OF + self.corpus

    @property
    def data_free(self) -> bool:
        """Whether the matrices follow from their size only."""
        return self.start in DATA_FREE

    def on(self, corpus: str) -> Constant:
        """Return the constant as tasks on `corpus` name it: the average of their own texts is the average."""
        return Constant(self.start, None, self.trained) if self.corpus == corpus else self


@dataclass(frozen=True)
class Order:
    """The order in which heads are replaced.

    Args:
        base: one of `ORDERS`.
        draw: the number of a random order, from 1; or the seed of the weights that the order is made from.
    """

    base: str
    draw: int | None = None

    @classmethod
    def parse(cls, name: str) -> Order:
        """Return the order called `name`, with its draw or seed: random-1, lambda-0, …"""
        drawn = re.fullmatch(f"({'|'.join(DRAWN)})-(0|[1-9][0-9]*)", name)
        order = cls(drawn[1], int(drawn[2])) if drawn else cls(name)
        if order.base not in ORDERS or (order.base in DRAWN) != (order.draw is not None) or name == f"{RANDOM}-0":
            raise InputError(
                f"The order {name!r} does not exist; it is one of {', '.join(ORDERS)} (drawn: random-1, …; with a "
                "seed: lambda-0, …)."
            )
        return order

    @property
    def name(self) -> str:
        """The name of the order in paths and tables."""
        return self.base if self.draw is None else f"{self.base}-{self.draw}"

    @property
    def by_lambda(self) -> bool:
        """Whether the order is made from the λ of a task."""
        return self.base in BY_LAMBDA

    @property
    def by_weight(self) -> bool:
        """Whether the order is made from weights of heads on a task: λ, or others."""
        return self.base in (*SEEDED, *OBSERVED)


@dataclass(frozen=True)
class Variant:
    """The replacement of a run.

    Args:
        constant: the constant that replaces attention; None if nothing is replaced.
        order: the order in which heads are replaced; None unless some heads are kept.
        fraction: the share of heads that keep their own attention.

    Raises:
        InputError: a fraction strictly between 0 and 1 needs a constant and an order, fraction 0 a constant and no
            order, fraction 1 neither.
    """

    constant: Constant | None
    order: Order | None
    fraction: Fraction

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise InputError(f"The fraction is {self.fraction}, but must lie between 0 and 1.")
        needed = {"constant": self.fraction < 1, "order": 0 < self.fraction < 1}
        for part, value in (("constant", self.constant), ("order", self.order)):
            if needed[part] != (value is not None):
                actual = "none was given" if value is None else f"{value.name} was given"
                needs = f"needs {'an' if part == 'order' else 'a'} {part}" if needed[part] else f"has no {part}"
                raise InputError(f"A variant that keeps the fraction {self.fraction} of the heads {needs}; {actual}.")

    @classmethod
    def of(cls, constant: Constant | None, order: Order | None, fraction: Fraction | str) -> Variant:
        """Return the variant at a point of a grid, which has a constant and an order even if none is used."""
        fraction = Fraction(fraction)
        return cls(constant if fraction < 1 else None, order if 0 < fraction < 1 else None, fraction)

    @classmethod
    def parse(cls, path: str) -> Variant:
        """Return the variant with this `path`; raises `InputError` if there is none.

        >>> Variant.parse("average/lambda-0/kept-1of8").fraction
        Fraction(1, 8)
        """
        parts = path.split("/")
        if path == ORIGINAL:
            return cls(None, None, Fraction(1))
        if len(parts) == 2 and parts[1] == ALL_REPLACED:
            return cls(Constant.parse(parts[0]), None, Fraction(0))
        if len(parts) == 3 and re.fullmatch(KEPT, parts[2]):
            kept = Fraction(parts[2].removeprefix("kept-").replace("of", "/"))
            return cls(Constant.parse(parts[0]), Order.parse(parts[1]), kept)
        raise InputError(f"{path!r} is no variant; a variant is original, CONSTANT/all or CONSTANT/ORDER/kept-AofB.")

    @property
    def path(self) -> str:
        """The part of a path that names the replacement."""
        if self.constant is None:
            return ORIGINAL
        if self.order is None:
            return f"{self.constant.name}/{ALL_REPLACED}"
        return f"{self.constant.name}/{self.order.name}/kept-{str(self.fraction).replace('/', 'of')}"

    @property
    def of_corpus(self) -> bool:
        """Whether hidden states depend on texts only, so all tasks on them share these states."""
        return self.order is None

    @property
    def trained(self) -> bool:
        """Whether constants are trained with the probe, so hidden states cannot be stored."""
        return self.constant is not None and self.constant.trained

    def kept(self, heads: int) -> int:
        """Return the number of `heads` that keep their attention, rounded down."""
        return floor(self.fraction * heads)


def entries_of(kind: str, slots: int) -> int:
    """Return the number of free entries in a head's matrix: fewer than slots² if some are tied.

    >>> entries_of("by-distance", 1024), entries_of("average", 1024)
    (2048, 1048576)
    """
    classes = KINDS[kind].classes
    return slots**2 if classes is None else classes(slots)


def parts_of(shards: int) -> list[str]:
    """Return the names of all parts of a corpus: "1of2", "2of2"."""
    return [f"{number}of{shards}" for number in range(1, shards + 1)]


def rows_of(part: str, rows: int) -> tuple[int, int]:
    """Return the first of `rows` rows in a part, and the row after its last.

    Raises:
        InputError: the part has no row.
    """
    number, shards = (int(value) for value in part.split("of"))
    begin, end = (rows * place // shards for place in (number - 1, number))
    if begin == end:
        raise InputError(f"{rows} examples cannot be cut in {shards} parts; lower shards of the corpus.")
    return begin, end
