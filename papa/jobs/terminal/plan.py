"""What a config takes, as `papa plan` prints it: a table for each model, then the sum."""

from __future__ import annotations

from typing import Any

from papa.jobs.terminal import console, count, duration, short, size, table_of

SHOWN = {"encoder_passes": short, "encoder_tokens": count, "disk_bytes": size, "processor_seconds": duration}


def print_plan(content: dict[str, Any]) -> None:
    """Print the content of a plan, as `papa plan --json` gives it."""
    out = console()
    for model in dict.fromkeys(row["model"] for row in content["rows"]):
        own = [row for row in content["rows"] if row["model"] == model]
        if model and f"model {model}" in content["problems"]:
            out.print(f"Model {model}", style="bold")
            out.print(", ".join(f"{row['rule']} {row['jobs']:,}" for row in own) + " jobs\n")
            continue
        table = table_of(f"Model {model}" if model else "Data and tables")
        for name in ("", "jobs", "encoder\npasses", "encoder\ntokens", "disk", "processor\ntime"):
            table.add_column(name, justify="right" if name else "left")
        for row in own:
            jobs, known = f"{row['jobs']:,}", row["estimated_jobs"]
            numbers = [shown(row[key]) if row[key] else "" for key, shown in SHOWN.items()]
            jobs += f" ({known:,} known)" if 0 < known < row["jobs"] else ""
            table.add_row(row["rule"], jobs, *(numbers if known else ["?"] * len(SHOWN)))
        out.print(table, "")
    total = content["total"]
    known = "" if total["estimated_jobs"] == total["jobs"] else f", {total['estimated_jobs']:,} of them estimated"
    out.print(
        f"{total['jobs']:,} jobs{known}: about {duration(content['elapsed_seconds'])} on {content['cores']} cores "
        f"({duration(total['processor_seconds'])} of processor time; encoders on {content['device']}) and "
        f"{size(total['disk_bytes'])} of disk ({size(content['free_disk_bytes'])} are free).",
        style="bold",
    )
    for note in content["notes"]:
        out.print(note)
    for what, problem in content["problems"].items():
        out.print(f"Not estimated: {what}. {problem}", style="yellow")
