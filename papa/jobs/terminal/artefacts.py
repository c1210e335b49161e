"""A file of papa, as `papa inspect` prints it."""

from __future__ import annotations

from typing import Any

from papa.jobs.terminal import console, printable, size, table_of

WHOLE = {
    True: ("Whole: it is what was written.", "green"),
    False: ("Damaged.", "bold red"),
    None: ("Without a seal: nothing in such a file tells whether it is whole.", "yellow"),
}
WIDE = 6
"""A table with more columns than this is set without space between them."""
SHORT = 8
"""A name of a column with more characters than this is broken between its words."""
LONGEST = 60
"""Characters of a cell of a table."""


def print_artefact(found: dict[str, Any]) -> None:
    """Print what `papa.jobs.inspecting.inspect` found."""
    out = console()
    of = ", ".join(f"{name} {value}" for name, value in found["of"].items())
    out.print(f"{found['words']}{f': {of}' if of else ''}", style="bold")
    words, style = WHOLE[found["whole"]]
    out.print(printable(found["damage"]) if found["damage"] else words, style=style)
    facts = {"size": size(found["bytes"])}
    if not found["path"].endswith(found["place"] or "?"):
        facts["belongs"] = f"to results/NAME/{found['place']}" if found["place"] else "nothing in it says where"
    content = found["content"]
    _print_values(out, "", facts | content.get("facts", {}))
    if found["provenance"]:
        out.print()
        _print_values(out, "Where it came from", found["provenance"])
    for table in content.get("tables", []):
        out.print()
        _print_table(out, table)
    if "heads" in content:
        from papa.jobs.terminal.heatmaps import grid

        heads = content["heads"]
        out.print(f"\n{heads['title']}", style="bold")
        whole = all(isinstance(value, int) for row in heads["values"] for value in row)
        for line in grid(heads["values"], out, digits=0 if whole else 2):
            out.print(line, no_wrap=True)
    if "pictures" in content:
        _print_pictures(out, content["pictures"])
    if "text" in content:
        out.print()
        for line in content["text"]:
            out.print(printable(line), no_wrap=True, overflow="ellipsis")


def _print_values(out: Any, title: str, values: dict[str, Any]) -> None:
    if title:
        out.print(title, style="bold")
    table = table_of(show_header=False, box=None)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(printable(name), _said(value))
    out.print(table)


def _print_table(out: Any, content: dict[str, Any]) -> None:
    rows, total = content["rows"], content["total"]
    more = f" ({len(rows)} of {total:,})" if len(rows) < total else ""
    out.print(content["title"] + more, style="bold")
    table = table_of(padding=0 if len(content["columns"]) > WIDE else (0, 1))
    numbers = [
        all(isinstance(row[place], int | float | None) for row in rows) for place in range(len(content["columns"]))
    ]
    for name, number in zip(content["columns"], numbers, strict=True):
        words = printable(name).replace("_", "\n" if len(name) > SHORT else " ")
        table.add_column(words, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    out.print(table)


def _print_pictures(out: Any, entries: list[dict[str, Any]]) -> None:
    from papa.jobs.terminal.heatmaps import SHADES, in_colours, pictures

    scale = "from dark (0) to bright" if in_colours(out) else f"from {SHADES[1]} (0) to {SHADES[-1]}"
    out.print("\nAverage attention of a query slot (line) to a key slot (column)", style="bold")
    special = "; s marks slots of special tokens" if any(entry["special"] for entry in entries) else ""
    out.print(f"Shown {scale}{special}; a pair that no example has is blank.\n")
    for line in pictures(entries, out):
        out.print(line, no_wrap=True, overflow="crop")
    if len(entries) == 1:
        out.print("Other heads: --layer L --head H; either alone shows all that it leaves open.", style="dim")


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{printable(name)}: {_said(own)}" for name, own in value.items() if own is not None)
    if isinstance(value, list):
        return " ".join(map(printable, value))
    return _number(value)


def _cell(value: Any) -> str:
    text = "" if value is None else _said(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(value)
