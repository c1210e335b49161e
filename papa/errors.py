"""Errors that a user can fix. Their text is the whole message: what was given, what was expected, what to do."""

from __future__ import annotations

HOW_TO_FETCH = (
    "run `papa run CONFIG fetch --config hub_mirror=FOLDER` where there is a network, "
    "then `papa run CONFIG --config hub_mirror=FOLDER`"
)
"""Advice if a model or data set is not on this machine, and the hub cannot be reached."""


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error, to quote it in a message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, as in "1 model" and "1,024 heads"; name a plural that does not end in s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


class InputError(ValueError):
    """A config, file, model or argument is not what it has to be."""


class DamagedArtefact(InputError):
    """A file that papa wrote earlier cannot be read any more, or belongs to something else."""
