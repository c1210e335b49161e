"""Where texts and models come from: the hub, a mirror folder laid out like it, local files, a package, or generated."""

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
