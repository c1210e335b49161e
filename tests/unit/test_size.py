"""papa stays small: ceilings for syntax nodes, modules, keys, commands, public names and circles of imports.

Syntax nodes measure code, because joining or breaking lines does not change their number.
"""

import ast
from pathlib import Path

import typer

import papa
from papa.cli import app
from papa.config.reading import keys
from papa.config.settings import RunSettings

ROOT = Path(__file__).parents[2]
CEILINGS = {
    "nodes of papa": 108_180,  # 108,000, and what the examples of docs/extending.md add to a copy
    "modules of papa": 92,
    "nodes of tests": 104_000,
    "keys of a config": 54,
    "commands": 7,
    "public names": 12,
    "modules in circles of imports": 0,
}


def nodes_in(source: str) -> int:
    """The number of syntax nodes, without the marks that tell reading a name from writing it."""
    marks = (ast.Load, ast.Store, ast.Del)
    return sum(1 for node in ast.walk(ast.parse(source)) if not isinstance(node, marks))


def nodes(folder: str) -> int:
    """The number of syntax nodes in all Python files of a folder."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths, folder
    return sum(nodes_in(path.read_text("utf-8")) for path in paths)


def modules() -> dict[str, Path]:
    """The modules of papa by name; an empty `__init__.py` is none."""
    paths = [path for path in (ROOT / "papa").rglob("*.py") if path.stat().st_size]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def imports() -> dict[str, set[str]]:
    """The modules of papa that each module imports anywhere, in functions and for type checkers, too."""
    named = modules()
    found: dict[str, set[str]] = {}
    for name, path in named.items():
        nodes = [
            node
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.ImportFrom)
        ]
        wanted = {node.module for node in nodes} | {
            f"{node.module}.{a.name}" for node in nodes for a in node.names
        }
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
    known = {
        "name",
        "run.models",
        "grids.NAME.title",
        "models.NAME.hub",
        "corpora.NAME.files.train",
    }
    assert known <= {*keys_of_values()}


def test_nodes_do_not_depend_on_lines():
    spread = "total = (\n    first\n    + second\n)\n"
    # Module, Assign, the name total, BinOp, Add, and the names first and second
    assert nodes_in(spread) == nodes_in("total = first + second") == 7


def test_papa_stays_small():
    measured = {
        "nodes of papa": nodes("papa"),
        "modules of papa": len(modules()),
        "nodes of tests": nodes("tests"),
        "keys of a config": len(keys_of_values()),
        "commands": len(typer.main.get_command(app).commands),
        "public names": len(papa.__all__),
        "modules in circles of imports": len(in_circles(imports())),
    }
    assert measured.keys() == CEILINGS.keys()
    too_large = {what: number for what, number in measured.items() if number > CEILINGS[what]}
    assert not too_large
