"""Read a config from YAML, and report the first problem in one sentence."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from reprlib import Repr
from typing import TYPE_CHECKING, get_args, get_origin

import yaml
from pydantic import ValidationError

from papa.config.settings import CLOSE, Block, Config
from papa.errors import InputError
from papa.files import PathLike

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

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


def read_config(path: PathLike, changes: Mapping[str, object] | None = None) -> Config:
    """Read the config in a YAML file; `changes` replace its keys, block by block.

    Raises:
        InputError: the file cannot be read or contains no valid config; the message names the key.
    """
    return config_of(changed(read_yaml(path), changes or {}))


def changed(content: object, changes: Mapping[str, object]) -> object:
    """Return a config with other keys, block by block."""
    if not isinstance(content, dict):
        return content
    new = dict(changes)
    for key, value in changes.items():
        old = content.get(key, {})
        if isinstance(value, Mapping) and isinstance(old, dict):
            new[key] = changed(old, value)
    return content | new


def config_of(content: object) -> Config:
    """Build a config from a mapping that was read from YAML; raises `InputError`, which names the invalid key."""
    for where, value in _values(content):
        # before pydantic, which would take an empty key for its default if that is None
        if value is None and where and where.rpartition(".")[2] not in MAY_BE_NULL:
            raise InputError(
                f"{where} is empty; set a value, or leave out the key if it is not needed."
            )
        if isinstance(value, str) and (odd := UNPRINTABLE.search(value) or DIRECTION.search(value)):
            code = f"U+{ord(odd[0]):04X}"
            raise InputError(
                f"{where} contains {code}, a line break or another invisible character; remove it."
            )
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        problems = map(Problem.of, error.errors(include_url=False))
        raise InputError(min(problems, key=Problem.rank).sentence()) from None


def _values(value: object, where: str = "") -> Iterator[tuple[str, object]]:
    yield where, value
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _values(part, _join(where, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _values(part, _join(where, number))


# -- YAML -------------------------------------------------------------------------------------------------------------


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
        number: int | float = yaml.SafeLoader.yaml_constructors[node.tag](self, node)
        if ":" in node.value or re.fullmatch("[+-]?0[0-7_]+", node.value):
            raise InputError(
                f"{self.name} contains {node.value} in line {node.start_mark.line + 1}, which YAML reads as {number}; "
                f'write "{node.value}" if text is meant, and a plain number otherwise.'
            )
        return number


for _tag in ("int", "float"):
    CarefulLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", CarefulLoader.number)


def read_yaml(path: PathLike) -> object:
    """Read a YAML file; raise `InputError` if it is invalid, or contains what YAML silently reads in a strange way."""
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.load(file, Loader=CarefulLoader)
        # fails if a block contains itself by an alias
        json.dumps(content, default=str, skipkeys=True)
        return content
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{os.fspath(path)} cannot be read ({error.strerror}).") from error
    # PyYAML lets errors of many types through, for example those of dates and numbers
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            problem = " ".join(filter(None, (error.context, error.problem)))
            hint = next((hint for part, hint in YAML_HINTS.items() if part in problem), problem)
            why = f"line {error.problem_mark.line + 1}: {hint}"
        raise InputError(f"{os.fspath(path)} cannot be read as YAML ({why}).") from error


# -- keys -------------------------------------------------------------------------------------------------------------


def keys(
    blocks: Sequence[type[Block]] = (Config,), where: str = ""
) -> Iterator[tuple[str, list[type[Block]]]]:
    """Yield the path of every key, and the kinds of blocks that its block can be; a block precedes its keys."""
    for name in dict.fromkeys(name for block in blocks for name in block.model_fields):
        yield f"{where}{name}", list(blocks)
        annotation = next(
            block.model_fields[name].annotation for block in blocks if name in block.model_fields
        )
        if get_origin(annotation) is not tuple:
            placeholder = "NAME." if get_origin(annotation) is dict else ""
            yield from keys(_blocks_in(annotation), f"{where}{name}.{placeholder}")


def _blocks_in(annotation: object) -> list[type[Block]]:
    """Return the blocks that values of a type may be or contain."""
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return [annotation]
    return [block for part in get_args(annotation) for block in _blocks_in(part)]


def description_of(block: type[Block], key: str) -> str:
    """Return the description of a key: the docstring below it in `papa.config.settings`."""
    return " ".join((block.model_fields[key].description or "").split())


# -- sentences --------------------------------------------------------------------------------------------------------

TYPES = {
    "bool_type": "true or false",
    "float_type": "a number",
    "int_type": "a whole number",
    "model_type": "a block of keys",
    "dict_type": "a block of keys",
    "string_type": "text",
    "tuple_type": "a list",
}
"""The values that a key may have, by pydantic's type of the error that another value causes."""
BOOLEAN = re.compile("(?i)yes|no|on|off|true|false")
"""Texts that are meant as true or false."""


@dataclass(frozen=True)
class Problem:
    """An error that pydantic reports, and its place in the config.

    Args:
        error: pydantic's description.
        where: the place as text.
        blocks: the kinds of blocks there, first the written one.
        description: the description of the key.
    """

    error: ErrorDetails
    where: str
    blocks: list[type[Block]]
    description: str

    @classmethod
    def of(cls, error: ErrorDetails) -> Problem:
        """Find the place of an error.

        If a block may be of several kinds, pydantic names its class before its keys.
        """
        where = ""
        description = ""
        inner: list[type[Block]] = [Config]
        blocks = inner
        named = False
        for part in error["loc"]:
            if chosen := [block for block in inner if block.__name__ == part]:
                inner = chosen + [block for block in inner if block not in chosen]
            elif _is_key(part):
                where = _join(where, part)
                # an index, and a name that the user chose, are keys of no block
                if isinstance(part, int) or named:
                    named = False
                    continue
                blocks = inner
                known = next((block for block in blocks if part in block.model_fields), None)
                description = description_of(known, part) if known else ""
                annotation = known.model_fields[part].annotation if known else None
                inner = _blocks_in(annotation)
                named = get_origin(annotation) is dict
        return cls(error, where, blocks, description)

    @property
    def name(self) -> int | str:
        """The last part of the place: a key, an index or pydantic's name of a type; empty for the whole config."""
        return next(reversed(self.error["loc"]), "")

    @property
    def known(self) -> list[str]:
        """The keys that blocks at this place may have."""
        return list(dict.fromkeys(key for block in self.blocks for key in block.model_fields))

    @property
    def deciding(self) -> list[str]:
        """The first required key of each kind of block, which decides on the kind."""
        return [
            next((key for key, field in block.model_fields.items() if field.is_required()), "")
            for block in self.blocks
        ]

    def rank(self) -> int:
        """Rank errors; the first is reported. What decides on the kind of a block comes before what follows."""
        kind = self.error["type"]
        if kind == "extra_forbidden" and self.name not in self.known:
            return 0  # it may be a misspelt key that is missing
        if kind == "missing" and len(self.blocks) > 1:
            return 1
        # of a value that may have several types, an error within the right type says more
        return 3 if kind in TYPES and not _is_key(self.name) else 2

    def sentence(self) -> str:
        """Describe the problem in one sentence that names the key."""
        usual = _key_not_text if self.name == "[key]" else _unsuitable_value
        return SENTENCES.get(self.error["type"], usual)(self)


def _is_key(part: int | str) -> bool:
    """Return whether a part of a place is a key or an index, and not pydantic's name of a type or of a key."""
    return not str(part).startswith(("constrained-", "[key]", "[name]"))


def _failed_check(problem: Problem) -> str:
    reason = str(problem.error["ctx"]["error"])
    return f"{problem.where}: {reason}" if problem.where else reason


def _superfluous_key(problem: Problem) -> str:
    name = str(problem.name)
    if name in problem.known:
        return f"{problem.where}: `{problem.deciding[0]}` and `{name}` do not go together; remove one of them."
    elsewhere = [key for key, _ in keys() if key.endswith(f".{name}")]
    close = get_close_matches(name, problem.known, 1, CLOSE) or elsewhere
    meant = f"did you mean {close[0]}?" if close else f"valid keys are {', '.join(problem.known)}."
    return f"The config has an unknown key {problem.where}; {meant}"


def _missing_key(problem: Problem) -> str:
    if isinstance(problem.name, int):
        return f"{problem.where.rpartition('[')[0]} has too few values."
    if len(problem.blocks) > 1:
        *others, last = (f"`{key}`" for key in problem.deciding)
        return f"{problem.where.rpartition('.')[0]} needs {', '.join(others)} or {last}."
    return f"The config needs the key {problem.where}: {problem.description}."


def _key_not_text(problem: Problem) -> str:
    return f"{problem.where} is a key that YAML does not read as text; put it in quotes."


def _unsuitable_value(problem: Problem) -> str:
    """Describe a value of a wrong type, or one that its type excludes."""
    value = problem.error["input"]
    if expected := TYPES.get(kind := problem.error["type"]):
        shown = "empty" if value is None else short(value)
        return f"{problem.where or 'The config'} must be {expected}, but it is {shown}{_advice(kind, value)}."
    wrong = re.sub(r"^\w+ should", "should", problem.error["msg"]).replace(" after validation", "")
    meaning = f" ({problem.description})" if problem.description else ""
    return f"{problem.where} is {short(value)}, but {wrong}{meaning}."


SENTENCES: dict[str, Callable[[Problem], str]] = {
    "value_error": _failed_check,
    "extra_forbidden": _superfluous_key,
    "missing": _missing_key,
    "invalid_key": _key_not_text,
}
"""What describes an error, by pydantic's type of it; other types are those of unsuitable values."""


def _advice(kind: str, value: object) -> str:
    """Say how to write a number that YAML reads as text, or a text that YAML reads as something else."""
    text = str(value)
    if kind == "string_type" and isinstance(value, bool):
        return "; put it in quotes, because YAML reads yes, no, on and off as true and false"
    if kind == "string_type" and not isinstance(value, dict | list | None):
        return "; put it in quotes"
    if kind == "tuple_type" and isinstance(value, str | int | float):
        return f"; write [{text}]"
    if kind == "int_type" and re.fullmatch("[+-]?[0-9]+", text):
        return "; write it without quotes (snakemake reads numbers in a block of --config as text, papa run does not)"
    if kind == "bool_type" and isinstance(value, str) and BOOLEAN.fullmatch(value):
        return "; write it without quotes, or after --config as True or False"
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
    plain = isinstance(part, str) and re.fullmatch("[A-Za-z0-9_-]{1,80}", part)
    shown = str(part) if plain else short(part)
    return f"{where}.{shown}" if where else shown
