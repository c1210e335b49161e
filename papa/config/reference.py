"""The table of all keys of a config, as config/README.md has it: what the schema says of each, and nothing else.

`python -m papa.config.reference SCHEMA PAGE` writes it into a page, between two marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from papa.config.schema import KINDS
from papa.errors import InputError

BEGIN, END = "<!-- keys: written by `make docs` from the schema -->", "<!-- end of keys -->"
HEAD = ("| key | type | default | unit | effect |", "|---|---|---|---|---|")
NAMED = "NAME"
"""What stands for a name of the user's own in the path of a key."""
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}


def table_of_keys(schema: Mapping[str, Any]) -> str:
    """The table as Markdown, a line for every key of a schema, blocks before the keys in them."""
    return "\n".join([*HEAD, *(_line(key, rules, needed) for key, rules, needed in keys(schema))])


def keys(rules: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Every key below `rules`: its path, what the schema says of it, and whether its block needs it."""
    for name, own in rules.get("properties", {}).items():
        key = f"{where}{name}"
        yield key, own, name in rules.get("required", [])
        yield from keys(own, f"{key}.")
        if isinstance(own.get("additionalProperties"), dict):
            yield from keys(own["additionalProperties"], f"{key}.{NAMED}.")


def with_keys(page: str, schema: Mapping[str, Any]) -> str:
    """`page` with the table in place of what stands between its marks; raises `InputError` where it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"The page lacks the lines {BEGIN} and {END}; put them where the table belongs.")
    return f"{before}{BEGIN}\n\n{table_of_keys(schema)}\n\n{END}{after}"


def _line(key: str, rules: Mapping[str, Any], needed: bool) -> str:
    # a block that may be left out has defaults for each of its keys
    default = f"`{json.dumps(rules['default'])}`" if rules.get("default", {}) != {} else "needed" if needed else ""
    unit = rules.get("unit", "")
    effect = rules["description"].replace("<", "&lt;")  # which Markdown takes for HTML
    return f"| `{key}` | {_kind(rules)} | {default} | {unit} | {effect} |"


def _kind(rules: Mapping[str, Any]) -> str:
    if "enum" in rules:
        return ", ".join(f"`{value}`" for value in rules["enum"])
    kinds = [rules["type"]] if isinstance(rules["type"], str) else rules["type"]
    if kinds == ["array"]:
        return f"list of {_kind(rules['items'])}"
    named = " or ".join(KINDS[kind].removeprefix("a ") for kind in kinds)
    bounds = [f"{sign} {rules[bound]:,}" for bound, sign in BOUNDS.items() if bound in rules]
    return f"{named} {', '.join(bounds)}".strip()


if __name__ == "__main__":
    import yaml

    rules, page = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])
    page.write_text(with_keys(page.read_text(encoding="utf-8"), rules), encoding="utf-8")
