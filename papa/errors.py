"""Errors that users can fix. Their text is the whole message: what was given, what was expected, what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import accumulate

STUDY = (
    "altair",
    "datasets",
    "jinja2",
    "pandas",
    "psutil",
    "pyarrow",
    "rich",
    "scipy",
    "tqdm",
    "vl_convert",
    "yaml",
)
EXTRAS = {
    "study": STUDY,
    "workflow": (*STUDY, "snakemake", "typer"),
    "slurm": ("snakemake_executor_plugin_slurm",),
}
"""The modules that each extra of the distribution brings."""

WARNING = "Warning: "
"""The line of a job contains this if its user should know of something."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, to quote in a message; without a text, return the error's type.

    The line has no secrets.
    """
    lines = without_secrets(str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def without_secrets(text: str) -> str:
    """Return a text without the hub's token in HF_TOKEN, and without names and passwords in addresses.

    Example:
        >>> without_secrets("https://me:password@hub.example/api does not answer")
        'https://hub.example/api does not answer'
    """
    if token := os.environ.get("HF_TOKEN"):
        text = text.replace(token, "[token]")
    return re.sub(r"(?<=://)[^/@\s]+@", "", text)


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun, such as "1 model" or "1,024 heads"; pass `plural` unless it is the noun plus s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listing(items: Iterable[str], limit: int = 200) -> str:
    """List names, separated by commas, in about `limit` characters; count those that are left out."""
    names = list(items)
    fitting = sum(length <= limit for length in accumulate(len(name) + 2 for name in names)) or 1
    shown = ", ".join(
        name if len(name) <= limit else f"{name[:limit]}..." for name in names[:fitting]
    )
    return shown + f" and {len(names) - fitting:,} more" * (len(names) > fitting)


def format_bytes(amount: float) -> str:
    """Format a number of bytes: "1.2 GB", "41 GB"."""
    step = next((step for step in range(4) if amount < 1000 ** (step + 1)), 4)
    number = amount / 1000**step
    unit = ("B", "kB", "MB", "GB", "TB")[step]
    return (
        f"{number:.1f} {unit}"
        # 9.95 would be rounded to 10.0
        if number < 9.95 and number != int(number)
        else f"{number:,.0f} {unit}"
    )


def missing_extra(extra: str, feature: str) -> str | None:
    """Return a sentence if modules of an extra are missing that `feature` needs; otherwise None."""
    # only searched for, because importing all of them takes seconds
    missing = ", ".join(name for name in EXTRAS[extra] if find_spec(name) is None)
    return f"{feature} needs {missing}: pip install 'papa-attention[{extra}]'." if missing else None


# a ValueError, because pydantic turns only these into errors of a key, with its place
class InputError(ValueError):
    """A config, file, model or argument cannot be used."""


class DamagedArtefact(InputError):
    """An artefact is missing, damaged or of another kind."""


def format_duration(seconds: float) -> str:
    """Format a duration: "40 s", "5 min", "1.2 hours", "3.4 days"."""
    if 0 < seconds < 1:
        return "< 1 s"
    for limit, unit, name, digits in (
        (120, 1, "s", 0),
        (7200, 60, "min", 0),
        (172800, 3600, "hours", 1),
    ):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds / 86400:.1f} days"
