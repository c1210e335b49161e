"""Heads for other tools: which are kept and which are replaced at a fraction, and what each weighs.

DuoAttention and its like read a table of one number for each layer and head of keys; head pruning reads the heads of
each layer. Both follow from an order of heads and the weights that it is made of.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING

from papa.config.artefacts import ARTEFACTS
from papa.config.settings import RUN
from papa.config.settings import fraction as fraction_of
from papa.config.study import Study
from papa.config.variant import Constant, Order
from papa.errors import InputError
from papa.files import JSON, PathLike, provenance_of, read_table, trace_of
from papa.results.conclusion import Conclusion
from papa.results.page import config_told

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Found:
    """An order of the results: `path` of its file, and what it is of."""

    path: Path
    model: str
    task: str
    constant: str
    order: str

    @property
    def names(self) -> list[str]:
        """What the order is of, and what it is called."""
        return [self.model, self.task, self.constant, self.order]


def heads_of(results: PathLike, of: str | None = None, fraction: str = "1/2") -> JSON:
    """The heads of one order, in plain values.

    Args:
        results: a folder of results.
        of: MODEL/TASK/CONSTANT/ORDER, such as `bert/mood/average/lambda-0`, or so much of its beginning as tells one
            order from all others.
        fraction: the share of heads that is kept.

    Returns:
        `model`, `task`, `constant`, `order`, `fraction`; `kept` and `replaced`, pairs (layer, head); `prune`, the
        replaced heads of each layer; `values` `[layer][head]`, what each head weighs; `unit_size`, how many heads are
        replaced at once.

    Raises:
        InputError: there is no such order, or there are several.
    """
    own = _chosen(_orders(Path(results)), of)
    table = read_table(own.path)
    facts = provenance_of(table)
    ranked = list(zip(table.column("layer").to_pylist(), table.column("head").to_pylist(), strict=True))
    kept, size = Fraction(fraction_of(fraction)), int(facts.get("unit_size", 1))
    number = len(ranked) - size * floor(kept * (len(ranked) // size))
    replaced, stay = sorted(ranked[:number]), sorted(ranked[number:])
    layers = 1 + max(layer for layer, _ in ranked)
    prune = {str(layer): [head for one, head in replaced if one == layer] for layer in range(layers)}
    return {
        "model": own.model,
        "task": own.task,
        "constant": own.constant,
        "order": own.order,
        "fraction": str(kept),
        "kept": stay,
        "replaced": replaced,
        "prune": {layer: heads for layer, heads in prune.items() if heads},
        "values": _values(own, ranked),
        "unit_size": size,
    }


def _orders(results: Path) -> list[Found]:
    """All orders that are made of weights, in a folder of results."""
    names = ("model", "task", "constant", "order")
    pattern = ARTEFACTS["order"].path(**dict.fromkeys(names, "*"))
    places = [part for part, own in enumerate(Path(pattern).parts) if own == "*"]
    found = []
    for path in sorted(results.glob(pattern)):
        parts = path.relative_to(results).parts
        found.append(Found(path, **dict(zip(names, (parts[place] for place in places), strict=True))))
    if not found:
        raise InputError(f"{results} has no order of heads; give a folder of results with fractions between 0 and 1.")
    return found


def _chosen(orders: Sequence[Found], of: str | None) -> Found:
    wanted = (of or "").split("/") if of else []
    fitting = [own for own in orders if own.names[: len(wanted)] == wanted]
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join("/".join(own.names) for own in (fitting or orders)[:8])
    more = ", …" if len(fitting or orders) > 8 else ""
    what = "There are several such orders" if fitting else "There is no such order"
    raise InputError(f"{what}; name one by --of MODEL/TASK/CONSTANT/ORDER: {listed}{more}.")


def _values(own: Found, ranked: Sequence[tuple[int, int]]) -> list[list[float]]:
    """What each head weighs, `[layer][head]`: λ after the last epoch, or what else the order is made of."""
    seed = own.order.rpartition("-")[2]
    about = {"model": own.model, "task": own.task, "constant": own.constant}
    if own.order.startswith("lambda"):
        place = ARTEFACTS["lambda"].path(**about, seed=seed)
    else:
        place = ARTEFACTS["weights"].path(**about, weights=own.order)
    levels = len(Path(ARTEFACTS["order"].path(**about, order=own.order)).parts)
    rows = read_table(own.path.parents[levels - 1] / place).to_pandas()
    rows = rows[rows["epoch"] == rows["epoch"].max()].set_index(["layer", "head"])["value"]
    layers, heads = (1 + max(pair[axis] for pair in ranked) for axis in (0, 1))
    return [[float(rows[layer, head]) for head in range(heads)] for layer in range(layers)]


def as_tsv(found: Mapping[str, JSON]) -> str:
    """What each head weighs as DuoAttention reads it: a line for each layer, a column for each head, tabs between."""
    return "\n".join("\t".join(f"{value:.6f}" for value in row) for row in found["values"])


def print_heads(found: Mapping[str, JSON], out: Console) -> None:
    """Print which heads of each layer are kept, and which replaced."""
    about = f"{found['model']} on {found['task']}, {found['constant']} constants, order {found['order']}"
    total = len(found["kept"]) + len(found["replaced"])
    out.print(f"{about}: {len(found['kept'])} of {total} heads kept")
    for layer, row in enumerate(found["values"]):
        stay = {head for one, head in found["kept"] if one == layer}
        marks = " ".join(f"{head}" if head in stay else "·" * len(str(head)) for head in range(len(row)))
        out.print(f"  layer {layer}: {marks}")


# -- a folder for others ----------------------------------------------------------------------------------------------

USE = """```python
import json
import papa
from transformers import AutoTokenizer, {loader}

with open("heads.json") as file:
    heads = [tuple(head) for head in json.load(file)["replaced"]]
{constants}
tokenizer, model = AutoTokenizer.from_pretrained("{place}"), {loader}.from_pretrained("{place}")
inputs = papa.lay_out(tokenizer, {texts}, slots={slots})
with papa.replaced_attention(model, constants, heads):
    outputs = model(**{{name: inputs[name] for name in tokenizer.model_input_names}})
```"""
"""How what lies in the folder is used; a test runs it."""


def save_heads(found: Mapping[str, JSON], results: PathLike, folder: PathLike) -> Path:
    """Write heads, their constants and a card that tells what they are into a new folder, to be shared as it is.

    Args:
        found: what `heads_of` gave.
        results: the folder of results that it was found in, in which the study is complete.
        folder: the new folder: `README.md`, `heads.json`, `heads.tsv`, and `constants.h5` if constants are read from a
            file.

    Returns:
        The folder.

    Raises:
        InputError: the folder is there already, or the study is not complete.
    """
    place, results = Path(folder), Path(results)
    if place.exists():
        raise InputError(f"{place} is there already and is never overwritten; give another folder.")
    page = results / ARTEFACTS["page"].path()
    trace = trace_of(page) if page.exists() else None
    if trace is None:
        raise InputError(f"{results} has no page yet; run the study to its end first.")
    study = Study(config_told(trace.settings["config"]), results)
    made = study.constants(found["model"], study.config.tasks[found["task"]].corpus, Constant.parse(found["constant"]))
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as beside:
        temporary = Path(beside) / place.name
        temporary.mkdir()
        for job in made:
            shutil.copyfile(results / job.output("constants"), temporary / "constants.h5")
        (temporary / "heads.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (temporary / "heads.tsv").write_text(as_tsv(found) + "\n", encoding="utf-8")
        (temporary / "README.md").write_text(_card(found, study, bool(made)), encoding="utf-8")
        temporary.rename(place)
    return place


def _card(found: Mapping[str, JSON], study: Study, saved: bool) -> str:
    """What the folder contains, as the page of a repository on the hub says it."""
    config = study.config
    task = config.tasks[found["task"]]
    model, corpus = config.models[found["model"]], config.corpora[task.corpus]
    kept, total = len(found["kept"]), len(found["kept"]) + len(found["replaced"])
    front = ["---", "library_name: papa", "tags: [attention, interpretability, papa]"]
    front += [f"base_model: {model.hub}"] if model.hub else []
    front += [f"datasets: [{corpus.hub}]"] if corpus.hub else []
    conclusion = Conclusion.read(study.results / study.path("claims_json"))
    base = Order.parse(found["order"]).base
    sentences = [
        line.sentence
        for line in conclusion.lines
        if (line.grid, line.model, line.constant) == (RUN, found["model"], found["constant"])
        and line.order in (None, base)
    ]
    constants = 'constants = papa.ConstantMatrices.load("constants.h5")'
    if not saved:
        layers, heads = len(found["values"]), len(found["values"][0])
        constants = f'constants = papa.constant_matrices("{found["constant"]}", {layers}, {heads}, {corpus.slots})'
    use = USE.format(
        constants=constants,
        place=model.hub or found["model"],
        loader="AutoModel" if task.target.probed else "AutoModelForCausalLM",
        texts='["A text."], ["And a second one."]' if corpus.second else '["A text."]',
        slots=corpus.slots,
    )
    facts = {
        "model": model.hub or found["model"],
        "text that was averaged": f"{corpus.hub or task.corpus}, its training split",
        "slots": f"{corpus.slots}; texts have to be laid out in them as `papa.lay_out` does it",
        "constant": found["constant"],
        "order of heads": found["order"],
        "heads that keep their own attention": f"{kept} of {total}",
    }
    contents = {
        "heads.json": "the kept and the replaced heads, pairs (layer, head), and what each weighs",
        "heads.tsv": "what each head weighs: a line for each layer, a column for each head",
    }
    contents |= {"constants.h5": "the attention that takes the place of each head's own"} if saved else {}
    return "\n".join(
        [
            *front,
            "---",
            f"# Heads of {found['model']} on {task.title or found['task']}",
            "",
            "Attention matrices were replaced by constants, and what was lost was measured, with papa.",
            "",
            *(sentences or [conclusion.sentence]),
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in facts.items()),
            "",
            "| file | what it is |",
            "|---|---|",
            *(f"| `{name}` | {what} |" for name, what in contents.items()),
            "",
            "Inside of this folder:",
            "",
            use,
            "",
            "The method is that of [Hassid et al. 2022](https://doi.org/10.18653/v1/2022.findings-emnlp.101).",
            "",
        ]
    )
