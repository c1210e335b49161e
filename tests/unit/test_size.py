"""papa stays small: ceilings for lines, modules, keys, commands, public names and circles of imports.

A ceiling only goes down. A change that needs more room removes something else.
"""

import ast
from pathlib import Path

import pytest
import typer

import papa
from papa.cli import app
from papa.config.reading import keys
from papa.config.settings import RunSettings

ROOT = Path(__file__).parents[2]
CEILINGS = {
    "lines of papa": 18_500,
    "modules of papa": 88,
    "lines of tests": 14_350,
    "lines of benchmarks, workflow and templates": 3_000,
    "keys of a config": 54,
    "commands": 7,
    "public names": 12,
    "modules in circles of imports": 0,
}


def lines(*patterns: str) -> int:
    files = [path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()]
    assert files, patterns
    return sum(len(path.read_bytes().splitlines()) for path in files)


def modules() -> dict[str, Path]:
    """The modules of papa by name; an empty `__init__.py` is none."""
    paths = [path for path in (ROOT / "papa").rglob("*.py") if path.stat().st_size]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imports() -> dict[str, set[str]]:
    """The modules of papa that each module imports anywhere, in functions and for type checkers, too."""
    named = modules()
    found: dict[str, set[str]] = {}
    for name, path in named.items():
        nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
        wanted = {node.module for node in nodes} | {f"{node.module}.{a.name}" for node in nodes for a in node.names}
        found[name] = (wanted & named.keys()) - {name, "papa"}
    return found


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """The nodes that reach themselves."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(graph[start])
        while ahead:
            node = ahead.pop()
            if node not in seen:
                seen.add(node)
                ahead += graph[node]
        return seen

    return {node for node in graph if node in reached(node)}


def keys_of_values() -> list[str]:
    """The keys that have values of their own; a grid repeats those of `run`, which count once."""
    blocks = {key.rpartition(".")[0] for key, _ in keys()}
    repeated = {f"grids.NAME.{name}" for name in RunSettings.model_fields}
    return [key for key, _ in keys() if not {key, f"{key}.NAME"} & blocks and key not in repeated]


def test_circles_and_keys_are_recognised():
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"b", "c"}
    known = {"name", "run.models", "grids.NAME.title", "models.NAME.hub", "corpora.NAME.files.train"}
    assert known <= {*keys_of_values()}


@pytest.mark.parametrize("what", CEILINGS)
def test_papa_stays_small(what):
    measured = {
        "lines of papa": lambda: lines("papa/**/*.py"),
        "modules of papa": lambda: len(modules()),
        "lines of tests": lambda: lines("tests/**/*.py"),
        "lines of benchmarks, workflow and templates": lambda: lines(
            "benchmarks/*.py", "Snakefile", "workflow/**/*.smk", "workflow/**/*.py", "papa/**/*.html", "papa/**/*.js",
            "papa/**/*.css",
        ),
        "keys of a config": lambda: len(keys_of_values()),
        "commands": lambda: len(typer.main.get_command(app).commands),
        "public names": lambda: len(papa.__all__),
        "modules in circles of imports": lambda: len(in_circles(imports())),
    }  # fmt: skip
    assert measured[what]() <= CEILINGS[what]
