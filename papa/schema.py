"""A value checked against a JSON schema, with defaults filled in. What is wrong is said in one sentence for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from papa.errors import InputError


def filled_in(given: Mapping[str, Any], rules: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `given` with the defaults of the schema `rules`; raises `InputError` where it does not fit them."""
    _check_keys(given, "")
    filled = _with_defaults(given, rules)
    _check(filled, rules)
    return filled


def _check_keys(value: Any, where: str) -> None:
    """YAML reads keys such as 1, no and 2020-01-01 as something else than text; names must be text."""
    if isinstance(value, Mapping):
        for key, own in value.items():
            if not isinstance(key, str):
                raise InputError(
                    f"{where or 'The config'} has the key {key!r}, which YAML does not read as text; quote it."
                )
            _check_keys(own, _join(where, key))
    elif isinstance(value, list):
        for number, own in enumerate(value):
            _check_keys(own, f"{where}[{number}]")


def _with_defaults(value: Any, rules: Mapping[str, Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    known, others = rules.get("properties", {}), rules.get("additionalProperties") or {}
    filled = {key: deepcopy(own["default"]) for key, own in known.items() if "default" in own} | dict(value)
    return {key: _with_defaults(own, known.get(key, others)) for key, own in filled.items()}


def _check(given: Mapping[str, Any], rules: Mapping[str, Any]) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    def whole(_: Any, value: Any) -> bool:  # JSON-schema takes 3.0 for an integer, range() does not
        return isinstance(value, int) and not isinstance(value, bool)

    strict = extend(Draft202012Validator, type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", whole))
    errors = sorted(strict(rules).iter_errors(given), key=lambda error: [str(part) for part in error.absolute_path])
    if errors:
        raise InputError(_sentence(errors[0]))


def _sentence(error: Any) -> str:
    where = ""
    for part in error.absolute_path:
        where = f"{where}[{part}]" if isinstance(part, int) else _join(where, part)
    value, rule = error.instance, error.schema
    if error.validator == "additionalProperties":
        known = list(rule["properties"])
        key = next(key for key in value if key not in known)
        close = get_close_matches(key, known, 1)
        meant = f"did you mean {close[0]}? " if close else ""
        return f"The config has an unknown key {_join(where, key)}; {meant}Known there: {', '.join(known)}."
    if error.validator == "required":
        key = next(key for key in error.validator_value if key not in value)
        return f"The config needs the key {_join(where, key)}: {rule['properties'][key]['description']}."
    if error.validator == "type":
        return f"{where or 'The config'} must be {_kinds(rule)}, but it is {short(value)}{_advice(value, rule)}."
    if error.validator == "enum":
        return f"{where} is {short(value)}; it must be one of {', '.join(map(str, error.validator_value))}."
    meaning = f" ({rule['description']})" if "description" in rule else ""
    if error.validator == "pattern":
        return f"{where} is {short(value)}, which cannot be right{meaning}; it must match {error.validator_value}."
    if error.validator in ("minItems", "minProperties", "minLength"):
        return f"{where} has too little in it, at least {error.validator_value} is needed{meaning}."
    if error.validator == "maxItems":
        return f"{where} has too much in it, at most {error.validator_value} fit{meaning}."
    bound = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "above"}[error.validator]
    return f"{where} is {short(value)}, but must be {bound} {error.validator_value}{meaning}."


KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "a block of keys",
    "string": "text",
}


def _kinds(rule: Mapping[str, Any]) -> str:
    kinds = [rule["type"]] if isinstance(rule["type"], str) else rule["type"]
    return " or ".join(KINDS[kind] for kind in kinds)


def _advice(value: Any, rule: Mapping[str, Any]) -> str:
    """What to do about numbers that YAML reads as text, and text that it reads as numbers."""
    if rule["type"] == "string" and isinstance(value, int | float):
        return "; put it in quotes"
    if rule["type"] == "integer" and isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value):
        return "; write it without quotes, and in a file: --config reads numbers inside {...} and [...] as text"
    if rule["type"] == "number" and isinstance(value, str):
        mantissa, _, exponent = value.lower().partition("e")
        if re.fullmatch(r"[+-]?\d+", mantissa) and re.fullmatch(r"[+-]?\d+", exponent):
            return (
                f", for YAML reads it as text; write {mantissa}.0e{exponent if exponent[0] in '+-' else '+' + exponent}"
            )
    return ""


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
