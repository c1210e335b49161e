"""`papa config`: print the documentation of the keys of a config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from papa.config.reading import DocumentedKey

DETAILED_KEYS = 12
"""Up to this many keys are printed with their type, default and unit; of more keys, only the effect is printed."""


def print_keys(keys: Sequence[DocumentedKey], out: Console) -> None:
    """Print keys with their effects; if they are few, also with their types, defaults and units."""
    from rich.padding import Padding
    from rich.text import Text

    def indented(text: str, style: str = "") -> None:
        out.print(Padding(Text(text, style), (0, 0, 0, 2), expand=False))

    for key in keys:
        required = key["default"] == "required"
        out.print(Text(key["key"], style="bold") + Text(" (required)" if required else "", style="dim"))
        indented(f"{key['effect']}.")
        if len(keys) <= DETAILED_KEYS:
            indented(f"type: {key['type'].replace('`', '')}", "dim")
            if key["default"] and not required:
                indented(f"default: {key['default']}", "dim")
            if key["unit"] not in ("", "none"):
                indented(f"unit: {key['unit']}", "dim")
