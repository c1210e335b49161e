"""The house keeps its shape: rooms, and imports in one direction."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

from tiny import REPOSITORY

from papa.config import measures

PAPA = REPOSITORY / "papa"
ORDER = "errors files config stages data model method results plan run commands cli".split()
"""Files and rooms; each imports only from those before it."""
TRANSFORMERS = {
    "data/tokenize.py": "tokenizers, and sizes from configs",
    "data/weights.py": "the progress bars of files of weights",
    "method/token_prediction.py": "the activations of heads for masked tokens",
    "model/attention.py": "the registries of attention and of masks",
    "model/load.py": "pretrained models",
    "model/reference.py": "the attention of the stock model, which papa's is compared with",
}
"""Modules that import transformers when they run, and for what."""
LATE = set("__init__ __main__ cli commands/inspect data/choose method/averages run/execute".split())
"""Modules that import others of papa inside functions, so that a light command or stage loads no torch or pandas."""
HEAVY = set(
    "altair datasets h5py huggingface_hub numpy pandas psutil pyarrow rich safetensors scipy snakemake torch"
    " transformers".split()
)
"""Packages that may be imported inside functions: to load them takes time."""
MODULES = {
    path.relative_to(PAPA): ast.parse(path.read_text()) for path in sorted(PAPA.rglob("*.py"))
}


NAMES = {
    f"papa.{'.'.join(path.with_suffix('').parts)}".removesuffix(".__init__"): path
    for path in MODULES
}


def imported(module, inside=True):
    """The imports of a module, except those that only type checkers see; `inside`: also those inside functions."""
    names = set()
    nodes = list(MODULES[module].body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if not checking and (inside or not function):
            nodes += ast.iter_child_nodes(node)
    return names


def test_modules_import_down_one_list():
    entries = [path.name for path in PAPA.iterdir() if path.name not in ("__pycache__", "py.typed")]
    assert len(entries) <= 14, entries

    def place(name):
        return ORDER.index(name.split(".")[1])

    wrong = []
    for name, module in NAMES.items():
        if name not in ("papa", "papa.__main__"):
            others = imported(module) & (NAMES.keys() - {"papa"})
            wrong += [
                f"{name} imports {other}" for other in sorted(others) if place(other) > place(name)
            ]
    assert wrong == []


def test_functions_import_only_what_is_heavy():
    late = {str(m.with_suffix("")): imported(m) - imported(m, inside=False) for m in MODULES}
    packages = {m: {name.split(".")[0] for name in names} for m, names in late.items()}
    assert {m for m, names in packages.items() if "papa" in names} == LATE
    assert {
        m: names - HEAVY - {"papa"} for m, names in packages.items() if names - HEAVY - {"papa"}
    } == {}


def test_few_modules_know_transformers_and_kinds_of_tasks():
    knowing = {
        str(module)
        for module in MODULES
        if "transformers" in {name.split(".")[0] for name in imported(module)}
    }
    assert knowing == set(TRANSFORMERS)
    kinds = {
        f"papa.config.measures.{name}"
        for name, value in vars(measures).items()
        if value in measures.TARGETS.values()
    }
    naming = {str(module) for module in MODULES if kinds & imported(module)}
    files = {f"method/{name}.py" for name in ("objectives", "token_prediction")}
    assert naming == files | {"config/settings.py", "data/choose.py"}


def test_papa_depends_on_what_it_imports():
    """Nothing less, and nothing more: a package that only tests import is in the extra `dev`."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["study"], *extras["workflow"]]
    declared = {re.split("[>=<]", line)[0] for line in lines} - {"papa-attention[study]"}
    packages = {name.split(".")[0] for module in MODULES for name in imported(module)} - set(
        sys.stdlib_module_names
    )
    of_import = packages_distributions()
    wanted = {
        of_import[name][0].lower().replace("_", "-")
        for name in packages - {"papa"}
        if name in of_import
    }
    imported_by_transformers = {"sentencepiece", "protobuf"}  # and which it does not bring
    assert wanted - {"huggingface-hub", "tokenizers"} == declared - imported_by_transformers, (
        "transformers brings these two"
    )
    assert imported_by_transformers <= declared
