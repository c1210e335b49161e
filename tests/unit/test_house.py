"""The house keeps its shape: rooms, imports in one direction, few parameters, few untyped values."""

import ast
import re
from pathlib import Path

PAPA = Path(__file__).parents[2] / "papa"
ORDER = ["errors", "files", "config", "data", "model", "method", "results", "jobs", "cli"]
"""A room imports only from rooms before it; model and method never see data's neighbours above them."""
TRANSFORMERS = {
    "data/tokenize.py",
    "data/generated/known.py",
    "data/generated/looking.py",
    "data/generated/models.py",
    "model/attention.py",
    "model/load.py",
    "model/reference.py",
}
TRANSFORMERS |= {"method/probes.py"}
MODULES = sorted(PAPA.rglob("*.py"))


def imported(module: Path) -> set[str]:
    """What a module imports, wherever in the module that stands, apart from what is only for type checkers."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    checking = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    left_out = {child for node in checking for child in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in left_out:
            found |= {node.module or "", *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import) and node not in left_out:
            found |= {name.name for name in node.names}
    return found


def test_rooms_import_in_one_direction() -> None:
    wrong = []
    for module in MODULES:
        room = module.relative_to(PAPA).parts[0].removesuffix(".py")
        others = {name.split(".")[1] for name in imported(module) if name.startswith("papa.")} & set(ORDER)
        if room != "__init__":
            wrong += [
                f"{module.relative_to(PAPA)} imports {other}"
                for other in others
                if ORDER.index(other) > ORDER.index(room)
            ]
    assert wrong == []


def test_few_modules_know_transformers() -> None:
    found = {
        str(module.relative_to(PAPA))
        for module in MODULES
        if any(n.split(".")[0] == "transformers" for n in imported(module))
    }
    assert found <= TRANSFORMERS


def test_there_are_few_rooms() -> None:
    entries = [path.name for path in PAPA.iterdir() if path.name not in ("__pycache__", "py.typed")]
    assert len(entries) <= 12, entries


def test_no_function_takes_more_than_six_parameters() -> None:
    wide = []
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                names = [argument.arg for argument in given if argument.arg not in ("self", "cls")]
                if len(names) > 6:
                    wide.append(f"{module.relative_to(PAPA)}:{node.lineno} {node.name} takes {len(names)}")
    assert wide == []


def test_few_values_are_untyped() -> None:
    found = {module: len(re.findall(r"\bAny\b", module.read_text(encoding="utf-8"))) for module in MODULES}
    assert sum(found.values()) <= 80, sorted(
        ((n, str(m.relative_to(PAPA))) for m, n in found.items() if n), reverse=True
    )[:9]


def test_paths_of_artefacts_are_written_once() -> None:
    spelled = [
        f"{module.relative_to(PAPA)}: {match[0]}"
        for module in MODULES
        if module.name != "artefacts.py"
        for match in re.finditer(
            r"(models|tasks|corpora)/\{\w+\}/|[\"']tables/\w+\.parquet", module.read_text(encoding="utf-8")
        )
    ]
    assert spelled == []
