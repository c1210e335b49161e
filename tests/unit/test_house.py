"""The house keeps its shape: rooms, imports in one direction, few parameters, few untyped values."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path, PurePosixPath

from papa.config import measures
from papa.config.artefacts import ARTEFACTS

ROOT = Path(__file__).parents[2]
PAPA = ROOT / "papa"
ORDER = ["errors", "files", "config", "data", "model", "method", "results", "jobs", "cli", "__main__"]
"""A room imports only from rooms before it; model and method never see data's neighbours above them."""
TRANSFORMERS = {
    "data/tokenize.py": "tokenizers, and sizes from configs",
    "data/weights.py": "the progress bars of files of weights",
    "method/probes.py": "the activations of heads for masked tokens",
    "model/attention.py": "the registries of attention and of masks",
    "model/load.py": "pretrained models",
    "model/reference.py": "the attention of the stock model, which papa's is compared with",
}
"""Modules that import transformers when they run, and for what."""
MODULES = {path.relative_to(PAPA): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PAPA.rglob("*.py"))}
UNTYPED_ALLOWED = 80


def imported(module: Path) -> set[str]:
    """The imports of a module, except those that only type checkers see."""
    checking = [node for node in ast.walk(MODULES[module]) if isinstance(node, ast.If)]
    checking = [node for node in checking if "TYPE_CHECKING" in ast.dump(node.test)]
    left_out = {child for node in checking for child in ast.walk(node)}
    names = set()
    for node in (node for node in ast.walk(MODULES[module]) if node not in left_out):
        if isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
    return names


def test_rooms_import_in_one_direction() -> None:
    entries = [path.name for path in PAPA.iterdir() if path.name not in ("__pycache__", "py.typed")]
    assert len(entries) <= 12, entries
    wrong = []
    for module in MODULES:
        room = module.parts[0].removesuffix(".py")
        others = {name.split(".")[1] for name in imported(module) if name.startswith("papa.")} & set(ORDER)
        if room != "__init__":
            wrong += [f"{module} imports {other}" for other in others if ORDER.index(other) > ORDER.index(room)]
    assert wrong == []


def test_few_modules_know_transformers_and_kinds_of_tasks() -> None:
    knowing = {str(module) for module in MODULES if "transformers" in {name.split(".")[0] for name in imported(module)}}
    assert knowing == set(TRANSFORMERS)
    kinds = {f"papa.config.measures.{name}" for name, value in vars(measures).items() if value in measures.TARGETS}
    naming = {str(module) for module in MODULES if kinds & imported(module)}
    objectives = {target.objective.partition(":")[0].removeprefix("papa.") for target in measures.TARGETS}
    files = {f"{name.replace('.', '/')}.py" for name in objectives}
    assert naming == files | {"config/settings.py", "data/choose.py"}


def test_papa_depends_on_what_it_imports() -> None:
    """Nothing less, and nothing more: a package that only tests import is in the extra `dev`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["study"], *extras["workflow"]]
    declared = {re.split("[>=<]", line)[0] for line in lines} - {"papa-attention[study]"}
    packages = {name.split(".")[0] for module in MODULES for name in imported(module)} - set(sys.stdlib_module_names)
    of_import = packages_distributions()
    wanted = {of_import[name][0].lower().replace("_", "-") for name in packages - {"papa"} if name in of_import}
    assert wanted - {"huggingface-hub", "tokenizers"} == declared, "transformers brings these two"


def test_functions_have_few_parameters_and_no_asserts() -> None:
    """`python -O` leaves out asserts, so papa checks types and values in other ways."""
    wrong = []
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                names = [argument.arg for argument in given if argument.arg not in ("self", "cls")]
                if len(names) > 6 and node.name != "learn_lambda":  # whose settings are keywords
                    wrong.append(f"{module}:{node.lineno} {node.name} takes {len(names)}")
            elif isinstance(node, ast.Assert):
                wrong.append(f"{module}:{node.lineno} asserts")
    assert wrong == []


def names_in(tree: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def test_few_values_are_untyped() -> None:
    """Uses of `Any` count, and so do uses of names for types that contain it."""
    untyped, before = {"Any"}, set[str]()
    while untyped != before:
        before = set(untyped)
        for node in (node for tree in MODULES.values() for node in tree.body if isinstance(node, ast.Assign)):
            if untyped & set(names_in(node.value)):
                untyped |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    uses = {module: sum(name in untyped for name in names_in(tree)) for module, tree in MODULES.items()}
    most = sorted(((number, str(module)) for module, number in uses.items()), reverse=True)
    assert sum(uses.values()) <= UNTYPED_ALLOWED, most[:9]


def spelled_paths(module: Path) -> Iterator[str]:
    """Places of a module that spell a file, a folder or a suffix of an artefact."""
    patterns = [PurePosixPath(artefact.pattern) for artefact in ARTEFACTS.values()]
    folders = {part for pattern in patterns for part in pattern.parent.parts if "{" not in part}
    parts = {pattern.name for pattern in patterns if "{" not in pattern.name} | {f"{name}/" for name in folders}
    suffixes = {pattern.suffix for pattern in patterns} | {".benchmark.tsv"}
    inside = re.compile("|".join(rf"(?<![\w.-]){re.escape(part)}" for part in parts))
    documented = {
        child.lineno
        for node in ast.walk(MODULES[module])
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for child in node.body
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
    }

    def texts(node: ast.AST) -> list[str]:
        return [str(part.value) for part in ast.walk(node) if isinstance(part, ast.Constant)]

    for node in ast.walk(MODULES[module]):
        spelled = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno not in documented:
            spelled = [] if " " in node.value else inside.findall(node.value)  # a sentence may show an example
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            spelled = [text for text in texts(node.right) if text in folders]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("with_name", "with_suffix"):
            spelled = [text for part in node.args for text in texts(part) if text.endswith(tuple(suffixes))]
        if spelled:
            yield f"{module}:{node.lineno} spells {spelled[0]}"


def test_paths_of_artefacts_are_written_once() -> None:
    assert [place for module in MODULES if module.name != "artefacts.py" for place in spelled_paths(module)] == []
