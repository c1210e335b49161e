"""Which modules of papa a script depends on, read from the source: nobody keeps a list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ASIDE = ("papa.jobs.stage",)
"""Modules that no result depends on: how a job reports to its log and the terminal."""


@cache
def modules_behind(script: str, root: str) -> tuple[str, ...]:
    """Paths of the modules of papa that `script` imports, they import, and so on; sorted, beginning with `root`.

    `root` is the folder that holds papa/. Imports inside functions count, those for type checkers alone do not. A
    package counts with its __init__.py, but for papa's own, which loads nothing until asked.
    """
    found: set[str] = set()
    waiting = set(_imported(Path(root, script), Path(root))) - set(ASIDE)
    while waiting:
        module = waiting.pop()
        found.add(module)
        waiting |= set(_imported(_path(module, Path(root)), Path(root))) - found - set(ASIDE)
    return tuple(sorted(str(_path(module, Path(root))) for module in found))


@cache
def _imported(source: Path, root: Path) -> tuple[str, ...]:
    """Names of the modules of papa that a file imports, each with the packages it lies in."""
    tree = ast.parse(source.read_text(encoding="utf-8"), filename=str(source))
    return tuple({part for name in _names(tree) for part in _with_packages(name) if _path(part, root).is_file()})


def _names(node: ast.AST) -> Iterator[str]:
    """What import statements below `node` name; "from a import b" names a and a.b, and a.b need not be a module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from _names(ast.Module(child.orelse, []))
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from _names(child)


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    if parts[0] == "papa":
        yield from (".".join(parts[:end]) for end in range(2, len(parts) + 1))


def _path(module: str, root: Path) -> Path:
    place = root.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
