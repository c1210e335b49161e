"""Matrices as blocks of colour on a terminal, two rows in a line, or as characters from light to dark in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

SHADES = " .:-=+*#%@"
VIRIDIS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""From low to high: told apart by colour-blind readers, on light and on dark ground."""
UPPER_HALF = "▀"
MARGIN = 4
"""Columns left of a picture, for numbers of slots."""

Values = Sequence[Sequence[float | None]]


def pictures(entries: Sequence[dict[str, Any]], console: Console) -> list[Text]:
    """Lines that show matrices `[query][key]` of heads, as `papa.jobs.inspecting` gives them, side by side as they fit.

    Each has its own scale, from 0 to its largest entry. Slots of special tokens are marked by s; a pair of slots that
    no example has is left blank.
    """
    colours = in_colours(console)
    drawn = [_picture(entry, colours, console.width) for entry in entries]
    width = max((len(line) for lines in drawn for line in lines), default=1)
    abreast = max(1, (console.width + 2) // (width + 2))
    shown: list[Text] = []
    for begin in range(0, len(drawn), abreast):
        row = drawn[begin : begin + abreast]
        for parts in zip(*row, strict=True):
            line = Text()
            for part in parts:
                part.pad_right(width - len(part) + 2)
                line.append_text(part)
            line.rstrip()
            shown.append(line)
        shown.append(Text())
    return shown


def grid(values: Values, console: Console, digits: int) -> list[Text]:
    """Lines that show a value for each head, a line for each layer: numbers, on a colour where there are colours."""
    flat = [value for row in values for value in row if value is not None]
    low, high = min(flat), max(flat)
    shown = [[f"{value:.{digits}f}" for value in row] for row in values]
    width = max(len(text) for row in shown for text in row) + 1
    fit = max(1, (console.width - 9) // width)
    heads = len(values[0])
    lines: list[Text] = []
    for begin in range(0, heads, fit):
        numbers = "".join(f"{head:>{width}}" for head in range(begin, min(heads, begin + fit)))
        lines.append(Text(f"{'head':>9}{numbers}", style="dim"))
        for layer, (row, texts) in enumerate(zip(values, shown, strict=True)):
            line = Text().append(f"layer {layer:>3}", "dim")
            for value, text in zip(row[begin : begin + fit], texts[begin : begin + fit], strict=True):
                share = 0.0 if value is None or high == low else (value - low) / (high - low)
                line.append(f"{text:>{width}}", style=_on(share) if in_colours(console) else Style.null())
            lines.append(line)
    return lines


def in_colours(console: Console) -> bool:
    """Whether pictures are made of colours: on a terminal that has them and knows half blocks, and wants them."""
    return console.color_system is not None and not console.no_color and console.encoding.lower().startswith("utf")


def _picture(entry: dict[str, Any], colours: bool, width: int) -> list[Text]:
    """Lines of one picture; what is wider than the terminal is left out at the right."""
    slots, special, values = entry["slots"], set(entry["special"]), entry["values"]
    cell = 1 if colours or 2 * len(slots) + MARGIN > width else 2
    fit = slots[: max(1, (width - MARGIN) // cell)]
    largest = max((value for row in values for value in row if value is not None), default=0) or 1
    title = f"layer {entry['layer']}, head {entry['head']}: 0 to {largest:.3f}"
    marks = "".join(f"{'s' if slot in special else ' '}".ljust(cell) for slot in fit).rstrip()
    lines = [Text().append(title, "bold"), *([Text(" " * MARGIN + marks)] if marks else [])]
    shares = [[None if value is None else value / largest for value in row[: len(fit)]] for row in values]
    if colours:
        shares += [[None] * len(fit)] * (len(shares) % 2)
        pairs = list(zip(shares[::2], shares[1::2], strict=True))
        for number, (upper, lower) in enumerate(pairs):
            line = _margin(slots[2 * number : 2 * number + 2], special, number % 4 == 0)
            for one, two in zip(upper, lower, strict=True):
                line.append(*_half_blocks(one, two))
            lines.append(line)
    else:
        for number, row in enumerate(shares):
            line = _margin(slots[number : number + 1], special, number % 4 == 0)
            line.append("".join(_shade(share) * cell for share in row))
            lines.append(line)
    return lines


def _margin(slots: Sequence[int], special: set[int], numbered: bool) -> Text:
    mark = "s" if special & set(slots) else " "
    return Text().append(f"{slots[0] if numbered else '':>{MARGIN - 1}}{mark}", "dim")


def _half_blocks(upper: float | None, lower: float | None) -> tuple[str, Style]:
    """One character for two cells, the upper in its own colour and the lower in that behind it."""
    if upper is None:
        return ("▄", Style(color=_colour(lower))) if lower is not None else (" ", Style.null())
    behind = None if lower is None else _colour(lower)
    return UPPER_HALF, Style(color=_colour(upper), bgcolor=behind)


def _shade(share: float | None) -> str:
    """A character for a share of the largest entry: a point for what is there but small, a blank where nothing is."""
    if share is None:
        return " "
    return SHADES[min(len(SHADES) - 1, 1 + int(share * (len(SHADES) - 1)))]


def _on(share: float) -> Style:
    return Style(color="#ffffff" if share < 0.45 else "#000000", bgcolor=_colour(share))


def _colour(share: float | None) -> Color:
    place = min(max(share or 0.0, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low, high = list(pairwise(VIRIDIS))[min(int(place), len(VIRIDIS) - 2)]
    part = place - min(int(place), len(VIRIDIS) - 2)
    return Color.from_rgb(*(one + part * (two - one) for one, two in zip(low, high, strict=True)))
