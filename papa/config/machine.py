"""What may differ from machine to machine and must never change a path, a parameter or, beyond rounding, a result."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields

VARIABLE = "PAPA_MACHINE"


@dataclass(frozen=True)
class Machine:
    """Where data and models lie and what they run on.

    `models` maps a model's name to its place on this machine, `{"path": folder}` or `{"package": module}`;
    a model without a place is taken from the mirror or the hub.
    """

    hub_mirror: str | None = None
    device: str = "auto"
    encoder_threads: int = 2
    probe_threads: int = 1
    token_budget: int = 1024
    checkpoint_minutes: float = 10
    models: dict[str, dict[str, str]] = field(default_factory=dict)


def current() -> Machine:
    """The machine as the workflow describes it in the environment variable PAPA_MACHINE; else the defaults."""
    given = json.loads(os.environ.get(VARIABLE, "{}"))
    known = {entry.name for entry in fields(Machine)}
    return Machine(**{key: value for key, value in given.items() if key in known})
