"""Two results held against each other, as `papa compare` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from papa.jobs.terminal import console, printable, table_of
from papa.results.summary import ALL, metric_name, percent

DIGEST = 16
"""Characters that are shown of a digest, or of another text without an end."""
MOST = 10
"""Lines of settings that only one side has."""


def print_differences(found: dict[str, Any]) -> None:
    """Print what `papa.results.compare.compare` found."""
    out = console()
    out.print(f"A: {printable(found['a'])}\nB: {printable(found['b'])}\n")
    if found["settings"]:
        _print_settings(out, found["settings"])
    _print_scores(out, "Beyond intervals", found["beyond"])
    _print_scores(out, "Different, but with one seed there is no interval", found["untested"])
    if found["mean_drops"]:
        out.print("Mean relative drops over tasks that differ (not tested)", style="bold")
        table = table_of()
        for name in ("model", "setting"):
            table.add_column(name)
        for name in ("A", "B"):
            table.add_column(name, justify="right")
        for drop in found["mean_drops"]:
            table.add_row(drop["model"], _setting(drop), percent(drop["a"]), percent(drop["b"]))
        out.print(table, "")
    for side in ("a", "b"):
        only = found[f"only_{side}"]
        if only:
            out.print(f"Only in {side.upper()}: {len(only):,} settings", style="bold")
            for row in only[:MOST]:
                out.print(f"  {row['model']}, {_reading(row)}, {_setting(row)}")
            out.print(f"  and {len(only) - MOST:,} more\n" if len(only) > MOST else "")
    _print_verdict(out, found)


def _print_verdict(out: Any, found: dict[str, Any]) -> None:
    beyond, untested = len(found["beyond"]), len(found["untested"])
    if found["equal"] == found["compared"]:
        everything = not (found["only_a"] or found["only_b"])
        what = "the scores" if everything else f"the {found['compared']:,} scores that both have"
        but = "; settings differ" if found["settings"] else ""
        out.print(f"The same: {what} agree to the last digit{but}.", style="bold green")
        return
    said = f"{found['compared']:,} settings in both: {found['equal']:,} equal, {found['within']:,} different within "
    said += f"intervals, {beyond:,} beyond them" + (f", {untested:,} without an interval" if untested else "")
    out.print(f"{said}.", style="bold red" if beyond else "bold yellow" if untested else "bold green")
    if found["tested"]:
        out.print(
            f"Welch's t-test over seeds, {found['tested']:,} tests, {100 * (1 - found['confidence']):.0f} % for all of "
            f"them together ({found['correction']}'s correction). Outside of its own 95 % interval, but not after the "
            f"correction: {found['within_but_outside_own_interval']:,}."
        )


def _print_settings(out: Any, settings: Sequence[dict[str, Any]]) -> None:
    out.print("Settings that differ", style="bold")
    table = table_of()
    for name in ("model", "task", "setting", "A", "B"):
        table.add_column(name, overflow="fold")
    for entry in settings:
        values = (" ".join(map(_value, entry[side])) or "none" for side in ("a", "b"))
        table.add_row(entry["model"], entry["task"] or "", entry["setting"], *values)
    out.print(table, "")


def _print_scores(out: Any, title: str, entries: Sequence[dict[str, Any]]) -> None:
    if not entries:
        return
    tested = entries[0]["p"] is not None
    models = len({entry["model"] for entry in entries}) > 1
    out.print(title, style="bold")
    table = table_of()
    for name in (*(["model"] if models else []), "task", "setting"):
        table.add_column(name)
    for name in ("A", "B", "B - A [95 %]" if tested else "B - A", *(["p (Holm)"] if tested else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in entries:
        cells = [entry["model"]] if models else []
        cells += [_reading(entry), _setting(entry), _score(entry["a"]), _score(entry["b"])]
        shift = "" if entry["difference"] is None else f"{entry['difference']:+.3f}"
        if tested:
            shift += f" [{entry['low']:+.3f}, {entry['high']:+.3f}]"
            cells += [shift, f"{entry['p_holm']:.1g}"]
        else:
            cells.append(shift)
        table.add_row(*cells)
    out.print(table, "")


def _reading(row: dict[str, Any]) -> str:
    """Which score of which task: its metric where it is not clear, and its subset."""
    subset = "" if row["subset"] == ALL else f", {printable(row['subset'])}"
    return f"{row['task']}{subset} ({metric_name(row['metric'])})"


def _setting(row: dict[str, Any]) -> str:
    return " ".join(filter(None, (row["fraction"], row["constant"], row["order"])))


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _value(value: Any) -> str:
    text = printable(value)
    return text if len(text) <= DIGEST or " " in text else f"{text[:DIGEST]}…"
