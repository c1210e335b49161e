"""The constants and the heads that a variant replaces."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING

from papa.config.variant import Constant
from papa.method.constants import constants_for
from papa.method.orders import ordered_heads
from papa.model.model import Model
from papa.model.replacement import Head, Loaded

if TYPE_CHECKING:
    from papa.plan.jobs import HiddenStates, Job, Settings


def replaced_by(
    job: Job[Settings], variant: HiddenStates, model: Model, slots: int
) -> tuple[Loaded | None, list[Head] | None]:
    """Return the constants of a variant (None if nothing is replaced) and the replaced heads (None for all).

    `job` reads the files of the variant; `slots` is the number of slots of its tokens.
    """
    if variant.constant is None:
        return None, None
    constants = constants_for(Constant(variant.constant), job.reads.get("constants"), model, slots)
    if variant.order is None and variant.heads is None:
        return constants, None
    ranked = ordered_heads(job, variant, model)
    return constants, ranked[: len(ranked) - floor(Fraction(variant.fraction) * len(ranked))]
