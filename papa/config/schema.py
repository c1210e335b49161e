"""A value checked against a JSON schema, with defaults filled in. What is wrong is said in one sentence for people."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from difflib import get_close_matches
from reprlib import Repr
from typing import Any

from papa.errors import InputError

DEEPEST, MOST = 8, 20_000
"""How deep keys and lists may lie within each other, and how many values there may be in all; no config comes near."""
LARGEST = 2**32 - 1
"""The largest number, either way; a schema may say less."""
LONGEST, LONGEST_PART = 4095, 255
"""Bytes of a text, and of what stands between its slashes: what a path and its parts may have."""
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line breaks and halves of characters."""


def filled_in(given: Any, rules: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `given` with the defaults of the schema `rules`; raises `InputError` where it does not fit them.

    Whatever the schema says, patterns must match from the first character to the last, and some things are in no
    config: texts with line breaks, numbers without end, values within themselves.
    """
    _check_values(given)
    filled = _with_defaults(given, rules)
    _check(filled, rules)
    return filled


def _check_values(given: Any) -> None:
    for number, (where, value) in enumerate(_values(given), start=1):
        problem = _problem(value)
        if number > MOST:
            problem = f"is beyond the first {MOST:,} values, and no config needs more"
        if problem:
            raise InputError(f"{where or 'The config'} {problem}.")


def _values(value: Any, where: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """All keys and values with their places, down to where they lie too deep, as what holds itself does."""
    yield where, value
    if depth > DEEPEST and isinstance(value, Mapping | list):
        raise InputError(f"{where} lies deeper than any key of a config does; it may hold itself (*name within &name).")
    if isinstance(value, Mapping):
        for key, own in value.items():
            if not isinstance(key, str):
                raise InputError(
                    f"{where or 'The config'} has the key {short(key)}, which YAML does not read as text; quote it."
                )
            place = _join(where, key)
            if problem := _problem(key):
                raise InputError(f"The key {place} {problem}.")
            yield from _values(own, place, depth + 1)
    elif isinstance(value, list):
        for number, own in enumerate(value):
            yield from _values(own, f"{where}[{number}]", depth + 1)


def _problem(value: Any) -> str:
    """What is wrong with a value wherever it stands, as the end of a sentence."""
    if isinstance(value, str):
        if UNPRINTABLE.search(value):
            return "has a line break or another control character in it; write it on one line, without"
        size = len(value.encode())
        longest = max(len(part.encode()) for part in value.split("/"))
        if size > LONGEST or longest > LONGEST_PART:
            return f"is too long, {size:,} bytes; it may have {LONGEST:,} of them, and {LONGEST_PART} between slashes"
    elif isinstance(value, float) and not math.isfinite(value):
        return f"is {value}, but must be a finite number"
    elif isinstance(value, int) and abs(value) > LARGEST:
        bound = f"at most {LARGEST:,}" if value > 0 else f"at least {-LARGEST:,}"
        return f"is {short(value)}, but must be {bound}"
    elif not isinstance(value, str | float | int | Mapping | list | None):
        return f"is {short(value)}, which YAML reads neither as text nor as a number; put it in quotes"
    return ""


def _with_defaults(value: Any, rules: Mapping[str, Any]) -> Any:
    if not isinstance(value, Mapping):
        return deepcopy(value)
    known, others = rules.get("properties", {}), rules.get("additionalProperties") or {}
    filled = {key: deepcopy(own["default"]) for key, own in known.items() if "default" in own} | dict(value)
    return {key: _with_defaults(own, known.get(key, others)) for key, own in filled.items()}


def _check(given: Any, rules: Mapping[str, Any]) -> None:
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.validators import extend

    def whole(_: Any, value: Any) -> bool:  # JSON-schema takes 3.0 for an integer, range() does not
        return isinstance(value, int) and not isinstance(value, bool)

    def match(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:  # "^a$" finds itself in "a\n"
        if isinstance(value, str) and not re.fullmatch(pattern, value):
            yield ValidationError(f"{short(value)} does not match {pattern}")

    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", whole)
    strict = extend(Draft202012Validator, {"pattern": match}, type_checker=types)
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
        found = "empty" if value is None else short(value)
        return f"{where or 'The config'} must be {_kinds(rule)}, but it is {found}{_advice(value, rule)}."
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


_REPR = Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 80


def short(value: Any) -> str:
    """`value` as messages show it, cut to a part of a line."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # Python does not write numbers of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


def _join(where: str, key: str) -> str:
    shown = key if re.fullmatch("[A-Za-z0-9_-]{1,80}", key) else short(key)
    return f"{where}.{shown}" if where else shown
