"""Where texts and models come from: the hub, a mirror folder laid out like it, local files, a package, or generated."""

from __future__ import annotations


def how_to_fetch(hub: str, kind: str, revision: str | None = None) -> str:
    """The sentence that tells a user without a network how to bring `hub` into a mirror folder.

    `kind` is "dataset" or "model". The mirror holds one folder per id: `FOLDER/owner/name/` with the files of the hub.
    """
    dataset = " --repo-type dataset" if kind == "dataset" else ""
    pinned = f" --revision {revision}" if revision else ""
    return (
        f"run `hf download {hub}{dataset}{pinned} --local-dir FOLDER/{hub}` where there is a network, "
        "then the workflow with `--config hub_mirror=FOLDER`"
    )


def first_line(error: BaseException) -> str:
    """The first line of an error of a library, to be quoted inside a message of ours."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
