"""What commands print: colours and half blocks on a terminal, plain characters in a pipe, numbers as people say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from papa.config.schema import UNPRINTABLE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console() -> Console:
    """Standard output. Nothing that is printed is markup, and a name between square brackets stays what it is."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False)


def table_of(title: str = "", **more: Any) -> Table:
    """An empty table in the form that all commands share."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    form: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False, "padding": (0, 1)} | more
    return Table(title=title or None, title_justify="left", title_style="bold", **form)


def printable(text: object) -> str:
    """`text` on one line, without characters that would steer a terminal: files may hold any."""
    return UNPRINTABLE.sub("·", str(text))


def duration(seconds: float) -> str:
    """Seconds as people say it: "40 s", "5 min", "1.2 hours", "3.4 days"."""
    if 0 < seconds < 1:
        return "< 1 s"
    for limit, unit, name, digits in ((120, 1, "s", 0), (7200, 60, "min", 0), (172800, 3600, "hours", 1)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds / 86400:.1f} days"


def size(amount: float) -> str:
    """Bytes as people say it: "41 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{short(amount)} {unit}"
        amount /= 1000
    return f"{short(amount)} TB"


def count(number: float) -> str:
    """How many, as people say it: "1.2 M"."""
    for unit in ("", " k", " M"):
        if number < 1000:
            return f"{short(number)}{unit}"
        number /= 1000
    return f"{short(number)} G"


def short(number: float) -> str:
    """A number with at most one decimal."""
    return f"{number:.1f}" if 0 < number < 9.95 and number != int(number) else f"{number:,.0f}"
