"""config/README.md describes every key, in the words of the schema."""

import json

import yaml
from tiny import REPOSITORY

KINDS = {
    "array": "list",
    "boolean": "true or false",
    "integer": "whole number",
    "null": "null",
    "number": "number",
    "object": "keys",
    "string": "text",
}


def kind(rules):
    if "enum" in rules:
        return ", ".join(f"`{value}`" for value in rules["enum"])
    kinds = [rules["type"]] if isinstance(rules["type"], str) else rules["type"]
    if kinds == ["array"]:
        return f"list of {kind(rules['items'])}"
    return " or ".join(KINDS[name] for name in kinds)


def lines(rules, where=""):
    """One line of the table for every key below `rules`."""
    for name, own in rules.get("properties", {}).items():
        key = f"{where}{name}"
        needed = "needed" if name in rules.get("required", []) else ""
        default = f"`{json.dumps(own['default'])}`" if own.get("default", {}) != {} else needed
        yield f"| `{key}` | {kind(own)} | {default} | {own['description']} |"
        yield from lines(own, f"{key}.")
        if isinstance(own.get("additionalProperties"), dict):
            yield from lines(own["additionalProperties"], f"{key}.NAME.")


def test_every_key_is_described():
    schema = yaml.safe_load((REPOSITORY / "workflow/schemas/config.schema.yaml").read_text(encoding="utf-8"))
    expected = ["| key | type | default | meaning |", "|---|---|---|---|", *lines(schema)]
    readme = (REPOSITORY / "config/README.md").read_text(encoding="utf-8")
    found = [line for line in readme.splitlines() if line.startswith("|")]
    assert found == expected, "the table of keys in config/README.md should be:\n" + "\n".join(expected)
