"""Read a config from YAML, and report the first problem in one sentence.

`python -m papa.config.reading` writes the key table of config/README.md from the types in `papa.config.settings`.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from reprlib import Repr
from typing import TYPE_CHECKING

import yaml
from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from papa.config import settings
from papa.config.settings import CLOSE, Config
from papa.errors import InputError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from pydantic_core.core_schema import LiteralSchema, NullableSchema, TaggedUnionSchema, WithDefaultSchema

UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
"""Control characters, line breaks, surrogates, and characters that XML, and therefore SVG figures, cannot contain."""
DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Invisible characters that reorder the text around them, and so mislead readers."""

MAY_BE_NULL = ("hub_mirror", "validation")
"""Keys for which null is a value."""

YAML_HINTS = {
    "'\\t'": "it is indented by a tab; use spaces",
    "<block end>": "it does not fit the lines above; check their indentation, colons and quotes",
    "mapping values": "a key needs a colon and a space after it, and a value with a colon needs quotes",
}
"""Advice for mistakes, by a part of PyYAML's message."""

INTEGER, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"

ROOT = Path(__file__).parents[2]
README = ROOT / "config/README.md"
BEGIN, END = "<!-- keys: written by `make docs` -->", "<!-- end of keys -->"


def read_config(path: str | os.PathLike[str], changes: Mapping[str, object] | None = None) -> Config:
    """Read the config in a YAML file; `changes` replace its keys, block by block, unless they are None.

    Raises:
        InputError: the file cannot be read or contains no valid config; the message names the key.
    """
    content = _yaml(path)
    return config_of(_changed(content, changes or {}))


def _changed(content: object, changes: Mapping[str, object]) -> object:
    if not isinstance(content, dict):
        return content
    values = {
        key: _changed(content.get(key, {}), value) if isinstance(value, Mapping) else value
        for key, value in changes.items()
        if value is not None
    }
    return content | values


def config_of(content: object) -> Config:
    """Build a config from a mapping that was read from YAML; raises `InputError`, which names the invalid key."""
    for where, value in _values(content):
        if value is None and where and where.rpartition(".")[2] not in MAY_BE_NULL:
            raise InputError(f"{where} is empty; set a value, or leave out the key if it is not needed.")
        if isinstance(value, str) and (odd := UNPRINTABLE.search(value) or DIRECTION.search(value)):
            code = f"U+{ord(odd[0]):04X}"
            raise InputError(f"{where} contains {code}, a line break or another invisible character; remove it.")
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise InputError(_sentence(min(error.errors(include_url=False), key=_rank))) from None


def _rank(error: ErrorDetails) -> int:
    """Rank errors; the first is reported. What decides on the kind of a block comes before what follows."""
    _, _, block = _rules_at(error["loc"])
    name = error["loc"][-1] if error["loc"] else ""
    if error["type"] == "extra_forbidden" and name not in _family(block):  # it may be a misspelt key that is missing
        return 0
    if error["type"] == "missing" and _instead(str(name), block):
        return 1
    # of a value that may have several types, an error within the right type says more
    return 3 if error["type"].endswith("_type") and _is_type(name) else 2


def check_yaml(path: str | os.PathLike[str]) -> None:
    """Raise `InputError` if a YAML file is invalid, or contains what YAML silently reads in an unexpected way."""
    _yaml(path)


class CarefulLoader(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys and misleading numbers.

    YAML reads `1:30` as 90 and `020` as 16, and keeps the last of duplicate keys.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise InputError(
                        f"{self.name} contains the key {short(key.value)} twice in one block, in lines "
                        f"{lines[key.value]} and {line}; keep one of the two."
                    )
                lines[key.value] = line
        return super().construct_mapping(node, deep)

    def number(self, node: yaml.ScalarNode) -> int | float:
        """Read a number; reject it if YAML does not read it as people do."""
        number = self.construct_yaml_int(node) if node.tag == INTEGER else self.construct_yaml_float(node)
        if ":" in node.value or re.fullmatch("[+-]?0[0-7_]+", node.value):
            raise InputError(
                f"{self.name} contains {node.value} in line {node.start_mark.line + 1}, which YAML reads as {number}; "
                f'write "{node.value}" if text is meant, and a plain number otherwise.'
            )
        return number


CarefulLoader.add_constructor(INTEGER, CarefulLoader.number)
CarefulLoader.add_constructor(FLOAT, CarefulLoader.number)


def _yaml(path: str | os.PathLike[str]) -> object:
    try:
        with open(path, encoding="utf-8") as file:
            content: object = yaml.load(file, Loader=CarefulLoader)
        json.dumps(content, default=str, skipkeys=True)  # fails if a block contains itself by an alias
        return content
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{os.fspath(path)} cannot be read ({error.strerror}).") from error
    except Exception as error:  # PyYAML lets errors of many types through, for example those of dates and numbers
        why = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            problem = " ".join(filter(None, (error.context, error.problem)))
            hint = next((hint for part, hint in YAML_HINTS.items() if part in problem), problem)
            why = f"line {error.problem_mark.line + 1}: {hint}"
        raise InputError(f"{os.fspath(path)} cannot be read as YAML ({why}).") from error


def _values(value: object, where: str = "") -> Iterator[tuple[str, object]]:
    yield where, value
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _values(part, _join(where, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _values(part, _join(where, number))


# Sentences


TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "a block of keys",
    "string": "text",
}
SENTENCES = {
    "string_pattern_mismatch": "{where} is {shown}, but must match {pattern}{meaning}.",
    "too_short": "{where} is too short; its minimum length is {min_length}{meaning}.",
    "string_too_short": "{where} is too short; its minimum length is {min_length}{meaning}.",
    "too_long": "{where} is too long; its maximum length is {max_length}{meaning}.",
    "finite_number": "{where} is {shown}, but must be a finite number{meaning}.",
    "greater_than": "{where} is {shown}, but must be above {gt:g}{meaning}.",
    "greater_than_equal": "{where} is {shown}, but must be at least {ge:g}{meaning}.",
    "less_than": "{where} is {shown}, but must be below {lt:g}{meaning}.",
    "less_than_equal": "{where} is {shown}, but must be at most {le:g}{meaning}.",
    "literal_error": "{where} is {shown}; it must be one of {valid}.",
}
"""Sentences for pydantic's types of errors, with the values in an error's context."""


def _is_type(part: int | str) -> bool:
    """Return whether a part of a place is no key: pydantic adds the name of a type if a value may be of several."""
    return str(part).startswith("constrained-")


def _sentence(error: ErrorDetails) -> str:
    """Describe an error in one sentence that names the key."""
    value, context = error["input"], error.get("ctx", {})
    name = error["loc"][-1] if error["loc"] else ""
    where, rules, block = _rules_at(error["loc"])
    family = _family(block)
    match error["type"]:
        case "value_error":
            return f"{where}: {context['error']}" if where else str(context["error"])
        case "none_required" | "extra_forbidden" if name in family:
            return _misplaced(where, str(name), block)
        case "literal_error" if name in family and "enum" not in family[str(name)]:
            return _misplaced(where, str(name), block)
        case "extra_forbidden":
            elsewhere = [key for key, *_ in keys(schema()) if key.endswith(f".{name}")]
            close = get_close_matches(str(name), family, 1, CLOSE) or elsewhere[:1]
            meant = f"did you mean {close[0]}?" if close else f"valid keys are {', '.join(family)}."
            return f"The config has an unknown key {where}; {meant}"
        case "missing" if isinstance(name, int):
            return f"{where.rpartition('[')[0]} has too few values; it needs {block['minItems']}."
        case "missing" if others := _instead(str(name), block):
            return f"{where.rpartition('.')[0]} needs {', '.join([f'`{name}`', *others[:-1]])} or {others[-1]}."
        case "missing":
            return f"The config needs the key {where}: {rules['description']}."
        case "invalid_key" | "string_type" if name == "[key]" or error["type"] == "invalid_key":
            return f"{where} is a key that YAML does not read as text; put it in quotes."
        case kind if kind in SENTENCES:
            meaning = f" ({rules['description']})" if "description" in rules else ""
            valid = ", ".join(map(str, rules.get("enum", ())))
            shown = str(value) if kind == "finite_number" else short(value)
            return SENTENCES[kind].format(where=where, shown=shown, meaning=meaning, valid=valid, **context)
    shown = "empty" if value is None else short(value)
    return f"{where or 'The config'} must be {_types(rules)}, but it is {shown}{_advice(value, _type_names(rules))}."


def _family(block: JsonSchemaValue) -> dict[str, JsonSchemaValue]:
    """Return the rules of all keys that a block can have if it is of the right kind."""
    keys: dict[str, JsonSchemaValue] = block.get("family", block).get("properties") or block.get("properties", {})
    return keys


def _deciding(kind: JsonSchemaValue) -> list[str]:
    """Return the keys that decide on the kind of a block."""
    return re.findall("`(\\w+)`", kind["kind"])


def _has(kind: JsonSchemaValue, name: str) -> bool:
    rules = _resolved(kind)["properties"].get(name, {"type": "null"})
    return (rules.get("type"), rules.get("enum", [True])) not in (("null", [True]), ("boolean", [False]))


def _misplaced(where: str, name: str, block: JsonSchemaValue) -> str:
    """Say that blocks of this kind do not have a key, and which key to change instead."""
    allowed = {key for kind in block["family"]["anyOf"] if _has(kind, name) for key in _deciding(kind)}
    instead = next((f" or `{key}`" for key in _deciding(block) if key not in allowed), "")
    remedy = ", or change `metric`" if "metric" in allowed else instead
    return f"{where}: {block['kind']} has no `{name}`; remove it{remedy}."


def _instead(name: str, block: JsonSchemaValue) -> list[str]:
    """Return the keys that a block could have instead of a missing one, and would then be of another kind."""
    mine = _deciding(block) if "family" in block else []
    kinds = block["family"]["anyOf"] if name in mine else []
    others = [kind for kind in kinds if name not in _resolved(kind)["required"]]
    several = [[key for key in _deciding(kind) if key not in mine] for kind in others]
    return [f"`{keys[0]}`" for keys in several if len(keys) == 1]


def _advice(value: object, expected: Sequence[str]) -> str:
    """Say how to write a number that YAML reads as text, or a text that YAML reads as something else."""
    if "string" in expected and not isinstance(value, dict | list | None):
        return "; put it in quotes" + ", because YAML reads yes, no, on and off as true and false" * isinstance(
            value, bool
        )
    if expected == ["array"] and isinstance(value, str | int | float):
        return f"; write [{value}]"
    if expected in (["boolean"], ["integer"]) and re.fullmatch("(?i)yes|no|on|off|true|false|[+-]?[0-9]+", str(value)):
        return "; write it without quotes" * isinstance(value, str)
    if expected == ["number"] and (power := re.fullmatch("([+-]?[0-9]+)[eE]([+-]?)([0-9]+)", str(value))):
        return f", because YAML reads it as text; write {power[1]}.0e{power[2] or '+'}{power[3]}"
    return ""


_REPR = Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 80


def short(value: object) -> str:
    """Return `value` as messages show it, in at most 80 characters."""
    text = _REPR.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _join(where: str, part: object) -> str:
    if isinstance(part, int):
        return f"{where}[{part}]"
    shown = part if isinstance(part, str) and re.fullmatch("[A-Za-z0-9_-]{1,80}", part) else short(part)
    return f"{where}.{shown}" if where else shown


# The schema, and the table of all keys


class _Plain(GenerateJsonSchema):
    """The schema without titles, and without null for optional keys."""

    def nullable_schema(self, schema: NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> JsonSchemaValue:
        return {"anyOf": [self.generate_inner(part) | {"kind": kind} for kind, part in schema["choices"].items()]}

    def literal_schema(self, schema: LiteralSchema) -> JsonSchemaValue:
        rules = super().literal_schema(schema)
        if "const" in rules:  # write a single valid value as a list of one
            rules["enum"] = [rules.pop("const")]
        return rules

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        rules = super().default_schema(schema)
        return {key: value for key, value in rules.items() if key != "default" or value is not None}

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


@cache
def schema() -> JsonSchemaValue:
    """Return the rules of configs: every key with its type, bounds, default, description and unit."""
    rules = Config.model_json_schema(schema_generator=_Plain)
    rules["properties"]["layout"].pop("default")  # `fidelity` sets it
    documented = _documented()
    for name, block in {"Config": rules, **rules["$defs"]}.items():
        for key, described in block["properties"].items():
            owners = [(kind.__name__, key) for kind in getattr(settings, name).__mro__]
            described.setdefault("description", next(filter(None, map(documented.get, owners)), ""))
    return rules


def _documented() -> dict[tuple[str, str], str]:
    """Return the docstrings below the keys of `papa.config.settings`, by the names of the class and the key."""
    tree, descriptions = ast.parse(inspect.getsource(settings)), {}
    for block in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for key, below in pairwise(block.body):
            if isinstance(key, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(key.target, ast.Name):
                descriptions[block.name, key.target.id] = " ".join(ast.literal_eval(below.value).split())
    return descriptions


def key_table() -> str:
    """Return a Markdown table with a row for each key, in which a block precedes its keys."""
    head = ["| key | type | default | unit | effect |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(_row(key, rules, required) for key, rules, required in keys(schema()))])


def keys(rules: JsonSchemaValue, where: str = "") -> Iterator[tuple[str, JsonSchemaValue, bool]]:
    """Yield every key in a block: its path, its rules in the schema, and whether it is required."""
    for name, reference in rules.get("properties", {}).items():
        key, nested = f"{where}{name}", _resolved(reference)
        yield key, nested, name in rules.get("required", [])
        yield from keys(nested, f"{key}.")
        if isinstance(nested.get("additionalProperties"), dict):
            yield from keys(_resolved(nested["additionalProperties"]), f"{key}.NAME.")


def with_key_table(page: str) -> str:
    """Return `page` with the key table between its two markers."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{key_table()}\n\n{END}{rest.partition(END)[2]}"


def _resolved(rules: JsonSchemaValue) -> JsonSchemaValue:
    """Return the rules of a key, merged with those of the block, or of all kinds of blocks, that they refer to."""
    name = rules.get("$ref", "").rpartition("/")[2]
    rules = {**schema()["$defs"][name], **rules} if name else rules
    kinds = [_resolved(option) for option in rules.get("anyOf", ()) if "$ref" in option]
    if not kinds or len(kinds) < len(rules["anyOf"]):
        return rules
    order = [*chain.from_iterable(map(_deciding, kinds)), *chain.from_iterable(kind["properties"] for kind in kinds)]
    merged = {name: next(kind["properties"][name] for kind in kinds if _has(kind, name)) for name in order}
    required = [name for name in merged if all(name in kind["required"] for kind in kinds)]
    return rules | {"type": "object", "properties": merged, "required": required}


def _rules_at(place: tuple[int | str, ...]) -> tuple[str, JsonSchemaValue, JsonSchemaValue]:
    """Follow the place of an error through the schema.

    Returns:
        The place as text, the rules of the value there, and those of the block with it. A block of one of several kinds
        has the rules of all of them as `family`.
    """
    where, rules, block = "", schema(), schema()
    for part in place:
        options = {option.get("kind"): option for option in rules.get("anyOf", ())}
        if part in options:
            rules = _resolved(options[part]) | {"family": rules}
        elif part == "[key]":
            rules = {"type": "string"}
        elif not _is_type(part):
            where, block = _join(where, part), rules
            if isinstance(part, int):
                lists = [each for each in (*rules.get("anyOf", ()), rules, {}) if each.get("type", "array") == "array"]
                several = lists[0].get("prefixItems") or [lists[0].get("items", {})]
                rules = several[min(part, len(several) - 1)]
            else:
                rules = rules.get("properties", {}).get(part) or rules.get("additionalProperties") or {}
            rules = _resolved(rules)
    return where, rules, block


def _row(key: str, rules: JsonSchemaValue, required: bool) -> str:
    has_default = rules.get("default", {}) != {}
    default = f"`{json.dumps(rules['default'])}`" if has_default else "required" if required else ""
    effect = rules["description"].replace("<", "&lt;")  # Markdown would take it for HTML
    return f"| `{key}` | {_type(rules)} | {default} | {rules.get('unit', '')} | {effect} |"


def _type(rules: JsonSchemaValue) -> str:
    if "enum" in rules:
        return ", ".join(f"`{value}`" for value in rules["enum"])
    if "anyOf" in rules:
        return " or ".join(map(_type, map(_resolved, rules["anyOf"])))
    if "prefixItems" in rules:
        return f"[{', '.join(map(_type, rules['prefixItems']))}]"
    if rules["type"] == "array":
        return f"list of {_type(rules['items'])}"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
    shown = ", ".join(f"{sign} {rules[bound]:,}" for bound, sign in bounds.items() if bound in rules)
    return f"{_types(rules).replace('a ', '')} {shown}".strip()


def _types(rules: JsonSchemaValue) -> str:
    return " or ".join(TYPES[name] for name in _type_names(rules))


def _type_names(rules: JsonSchemaValue) -> list[str]:
    """Return the names of the JSON types that a value may have."""
    if "anyOf" in rules:
        return [name for option in rules["anyOf"] for name in _type_names(_resolved(option))]
    return [rules["type"]] if isinstance(rules["type"], str) else list(rules["type"])


if __name__ == "__main__":
    README.write_text(with_key_table(README.read_text(encoding="utf-8")), encoding="utf-8")
