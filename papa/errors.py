"""Errors that a user can mend. Their text is the whole message: what was given, what was expected, what to do."""

from __future__ import annotations

HOW_TO_FETCH = (
    "run `snakemake fetch --cores 1 --configfile CONFIG --config hub_mirror=FOLDER` where there is a network, "
    "then the workflow with the same hub_mirror"
)
"""What messages tell a user whose model or data can neither be found here nor be asked for."""


def first_line(error: BaseException) -> str:
    """The first line of an error of a library, to be quoted inside a message of ours."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def count(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun, as in "1 model" and "1,024 heads"; the plural is given if it does not end in s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


class InputError(ValueError):
    """Something given to papa (a config, a file, a model, an argument) is not what it has to be."""


class DamagedArtefact(InputError):
    """A file that papa wrote earlier cannot be read any more, or belongs to something else."""
