"""The variant of a job: its constants, the heads that it replaces, and the names of both in artefacts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from papa.config.variant import Variant
from papa.errors import InputError
from papa.method.constants import constants_for
from papa.method.orders import heads_to_replace
from papa.model.model import Model
from papa.model.replacement import Head, Loaded

if TYPE_CHECKING:
    from papa.config.job import Job
    from papa.config.stages import HiddenOf, ProbeOf


def names_of(variant: Variant) -> dict[str, str | None]:
    """Return the names of a variant's constant and order, None for each that it lacks."""
    parts = {"constant": variant.constant, "order": variant.order}
    return {key: None if part is None else part.name for key, part in parts.items()}


def replaced_by(
    job: Job[HiddenOf] | Job[ProbeOf], model: Model, facts: Mapping[str, object]
) -> tuple[Loaded | None, list[Head] | None]:
    """Return the constants of a job's variant (None if nothing is replaced) and the replaced heads (None for all).

    `facts` are the facts of the texts; see `constants_for`.
    """
    variant, order = Variant.parse(job.settings.variant), job.optional_input("order")
    if variant.constant is None:
        return None, None
    constants = constants_for(variant.constant, job.optional_input("constants"), model, facts)
    if variant.order is None:
        return constants, None
    if order is None:
        raise InputError(f"The variant {variant.path} needs an order of heads, but none was given; give one.")
    return constants, heads_to_replace(order, variant, model)
