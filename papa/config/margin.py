"""Margins of claims: what a task may lose, as a share of attention's contribution or in points of its metric."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from papa.config.measures import MEASURES
from papa.errors import InputError

SHARE = "%"
POINTS = "points"
NATS = "nats"
"""The units of margins: percent of attention's contribution, hundredths of a score, and nats per token."""
EXAMPLES = '"10%" of what attention contributes, "1 point" or "0.05 nats"'


class Margin(NamedTuple):
    """A margin: its number, as people write it, and its unit."""

    number: float
    unit: str

    @classmethod
    def parse(cls, written: object) -> Margin:
        """Read a margin, such as "10%", "1 point" or "0.05 nats"; a number below 1, such as 0.1, is a share.

        Raises:
            InputError: this is not a margin.

        >>> Margin.parse("1 point").size, Margin.parse(0.1) == Margin.parse("10%")
        (0.01, True)
        """
        match = re.fullmatch(r"([0-9]+|[0-9]*\.[0-9]+) ?(%|points?|nats?|)", str(written))
        if match is None:
            raise InputError(f"{written!r} is not a margin; write {EXAMPLES}.")
        number = float(match[1])
        unit = {"p": POINTS, "n": NATS}.get(match[2][:1], SHARE)
        if not match[2]:  # a share as a number
            # 100 * 0.07 is 7.000000000000001
            number = float(f"{100 * number:.12g}")
        # losses in nats have no largest value
        if number == 0 or (unit != NATS and number >= 100):
            raise InputError(
                f"{written!r} is not a margin: a share is above 0% and below 100%; write {EXAMPLES}."
            )
        return cls(number, unit)

    @property
    def size(self) -> float:
        """The margin as a share, or in units of the score."""
        return self.number if self.unit == NATS else self.number / 100

    @property
    def in_points(self) -> bool:
        """Whether the margin is in units of the score, and not a share of attention's contribution."""
        return self.unit != SHARE

    def __str__(self) -> str:
        number = f"{self.number:.12f}".rstrip("0").rstrip(".")  # never 5e-05, which `parse` refuses
        if self.unit == SHARE:
            return f"{number}%"
        unit = self.unit.removesuffix("s") if self.number == 1 else self.unit
        return f"{number} {unit}"


def unit_of(metric: str) -> str:
    """Return the unit of differences in a metric: points or, on a log scale, nats."""
    return NATS if MEASURES[metric].log_scaled else POINTS


def margin_for(margins: Sequence[str], metric: str) -> Margin:
    """Return the margin of a study that applies to a metric; raise `InputError` if there is none."""
    for margin in map(Margin.parse, margins):
        if margin.unit in (SHARE, unit_of(metric)):
            return margin
    raise InputError(
        f"margin: none fits the metric {metric}, whose differences are in {unit_of(metric)}; list one for each kind of "
        'metric, such as ["1 point", "0.05 nats"].'
    )
