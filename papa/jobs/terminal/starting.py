"""What `papa init` says when it has written a config."""

from __future__ import annotations

from typing import Any

from papa.jobs.terminal import console, printable


def print_started(found: dict[str, Any]) -> None:
    """Print what `papa.jobs.starting.start` chose, and what to do next."""
    out = console()
    out.print(f"Written: {printable(found['config'])}", style="bold green")
    chosen = found["columns"] | {"slots": found["slots"], "metric": found["metric"]}
    for name, value in chosen.items():
        out.print(f"  {name}: {printable(value)} ({printable(found['reasons'][name])})", soft_wrap=True)
    if found["missing_files"]:
        missing = " and ".join(map(printable, found["missing_files"].values()))
        out.print(f"There is no {missing} yet: put it there, or another path into the config.", style="yellow")
    if found["to_split"]:
        out.print("To hold a tenth of the training rows out, and write the rest beside them:")
        out.print(f"  {printable(found['to_split'])}", soft_wrap=True)
    out.print("Next:")
    for command in found["next"]:
        out.print(f"  {printable(command)}", soft_wrap=True)
