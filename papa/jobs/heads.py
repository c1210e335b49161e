"""`papa heads`: the kept and the replaced heads at a fraction, and the weight of each head, for other tools.

DuoAttention and similar tools read a table with a number for each layer and head of keys. Head pruning reads the heads
of each layer. Both follow from an order of heads and its weights.
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
from papa.config.stages import ModelId
from papa.config.study import Study
from papa.config.variant import Constant, Order
from papa.data.weights import place_of
from papa.errors import InputError
from papa.files import JSON, PathLike, provenance_of, read_table, trace_of
from papa.jobs.start import PLACES
from papa.results.conclusion import Conclusion
from papa.results.page import reported_config

if TYPE_CHECKING:
    from rich.console import Console

CARD = Path(__file__).with_name("card.md")
"""Template of the README in a shared folder; a test runs its code."""


@dataclass(frozen=True)
class OrderFile:
    """An order of heads in a folder of results, and its file."""

    path: Path
    model: str
    task: str
    constant: str
    order: str

    @property
    def names(self) -> list[str]:
        """The parts of MODEL/TASK/CONSTANT/ORDER."""
        return [self.model, self.task, self.constant, self.order]


def heads_of(results: PathLike, of: str | None = None, fraction: str = "1/2") -> JSON:
    """Return the heads of one order, in plain values.

    Args:
        results: a folder of results.
        of: MODEL/TASK/CONSTANT/ORDER, such as `bert/mood/average/lambda-0`, or a beginning that only one order has.
        fraction: the share of heads that is kept.

    Returns:
        `model`, `task`, `constant`, `order`, `fraction`; `kept` and `replaced`, pairs (layer, head); `prune`, the
        replaced heads of each layer; `values` `[layer][head]`, the weight of each head; `unit_size`, the number of
        heads that are replaced together.

    Raises:
        InputError: there is no such order, or there are several.
    """
    chosen = _chosen(_orders(Path(results)), of)
    table = read_table(chosen.path)
    facts = provenance_of(table)
    ranked = list(zip(table.column("layer").to_pylist(), table.column("head").to_pylist(), strict=True))
    kept, size = Fraction(fraction_of(fraction)), int(facts.get("unit_size", 1))
    number = len(ranked) - size * floor(kept * (len(ranked) // size))
    replaced, stay = sorted(ranked[:number]), sorted(ranked[number:])
    layers = 1 + max(layer for layer, _ in ranked)
    prune = {str(layer): [head for where, head in replaced if where == layer] for layer in range(layers)}
    return {
        "model": chosen.model,
        "task": chosen.task,
        "constant": chosen.constant,
        "order": chosen.order,
        "fraction": str(kept),
        "kept": stay,
        "replaced": replaced,
        "prune": {layer: heads for layer, heads in prune.items() if heads},
        "values": _values(chosen, ranked),
        "unit_size": size,
    }


def _orders(results: Path) -> list[OrderFile]:
    """List all orders in a folder of results that are made of weights."""
    names = ("model", "task", "constant", "order")
    pattern = ARTEFACTS["order"].path(**dict.fromkeys(names, "*"))
    places = [place for place, part in enumerate(Path(pattern).parts) if part == "*"]
    orders = []
    for path in sorted(results.glob(pattern)):
        parts = path.relative_to(results).parts
        orders.append(OrderFile(path, **dict(zip(names, (parts[place] for place in places), strict=True))))
    if not orders:
        raise InputError(f"{results} has no order of heads; give a folder of results with fractions between 0 and 1.")
    return orders


def _chosen(orders: Sequence[OrderFile], of: str | None) -> OrderFile:
    wanted = of.split("/") if of else []
    fitting = [order for order in orders if order.names[: len(wanted)] == wanted]
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join("/".join(order.names) for order in (fitting or orders)[:8])
    more = ", …" if len(fitting or orders) > 8 else ""
    problem = "There are several such orders" if fitting else "There is no such order"
    raise InputError(f"{problem}; name one by --of MODEL/TASK/CONSTANT/ORDER: {listed}{more}.")


def _values(chosen: OrderFile, ranked: Sequence[tuple[int, int]]) -> list[list[float]]:
    """Return the weight of each head, `[layer][head]`: λ after the last epoch, or what else made the order."""
    seed = chosen.order.rpartition("-")[2]
    about = {"model": chosen.model, "task": chosen.task, "constant": chosen.constant}
    if chosen.order.startswith("lambda"):
        place = ARTEFACTS["lambda"].path(**about, seed=seed)
    else:
        place = ARTEFACTS["weights"].path(**about, weights=chosen.order)
    levels = len(Path(ARTEFACTS["order"].path(**about, order=chosen.order)).parts)
    rows = read_table(chosen.path.parents[levels - 1] / place).to_pandas()
    rows = rows[rows["epoch"] == rows["epoch"].max()].set_index(["layer", "head"])["value"]
    layers, heads = (1 + max(pair[axis] for pair in ranked) for axis in (0, 1))
    return [[float(rows[layer, head]) for head in range(heads)] for layer in range(layers)]


def as_tsv(chosen: Mapping[str, JSON]) -> str:
    """Return the weights as DuoAttention reads them: a line for each layer, a column for each head, tabs between."""
    return "\n".join("\t".join(f"{value:.6f}" for value in row) for row in chosen["values"])


def print_heads(chosen: Mapping[str, JSON], out: Console) -> None:
    """Print the kept heads of each layer; a dot is a replaced head."""
    about = f"{chosen['model']} on {chosen['task']}, {chosen['constant']} constants, order {chosen['order']}"
    total = len(chosen["kept"]) + len(chosen["replaced"])
    out.print(f"{about}: {len(chosen['kept'])} of {total} heads kept (a dot is a replaced head)")
    for layer, row in enumerate(chosen["values"]):
        stay = {head for where, head in chosen["kept"] if where == layer}
        marks = " ".join(f"{head}" if head in stay else "·" * len(str(head)) for head in range(len(row)))
        out.print(f"  layer {layer}: {marks}")


# -- a folder for others ----------------------------------------------------------------------------------------------


def save_heads(chosen: Mapping[str, JSON], results: PathLike, folder: PathLike) -> Path:
    """Write heads, their constants and a README into a new folder, which can be shared as it is.

    Args:
        chosen: the return value of `heads_of`.
        results: the same folder of results, in which the study is complete.
        folder: the new folder: `README.md`, `heads.json`, `heads.tsv`, and `constants.h5` if constants are read from a
            file.

    Returns:
        The folder.

    Raises:
        InputError: the folder exists, or the study is not complete.
    """
    place, results = Path(folder), Path(results)
    if place.exists():
        raise InputError(f"{place} is there already and is never overwritten; give another folder.")
    report = results / ARTEFACTS["page"].path()
    trace = trace_of(report) if report.exists() else None
    if trace is None:
        raise InputError(f"{results} has no report yet; run the study to its end first.")
    study = Study(reported_config(trace.settings["config"]), results)
    corpus = study.config.tasks[chosen["task"]].corpus
    constants = study.constants(chosen["model"], corpus, Constant.parse(chosen["constant"]))
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as parent:
        temporary = Path(parent) / place.name
        temporary.mkdir()
        for job in constants:
            shutil.copyfile(results / job.output("constants"), temporary / "constants.h5")
        (temporary / "heads.json").write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
        (temporary / "heads.tsv").write_text(as_tsv(chosen) + "\n", encoding="utf-8")
        (temporary / "README.md").write_text(_card(chosen, study, bool(constants)), encoding="utf-8")
        temporary.rename(place)
    return place


def _card(chosen: Mapping[str, JSON], study: Study, saved: bool) -> str:
    """Return the README of a folder of heads, from the template `card.md`."""
    from jinja2 import Environment, StrictUndefined

    task = study.config.tasks[chosen["task"]]
    model, corpus = study.config.models[chosen["model"]], study.config.corpora[task.corpus]
    conclusion = Conclusion.read(study.results / study.path("claims_json"))
    base = Order.parse(chosen["order"]).base
    sentences = [
        line.sentence
        for line in conclusion.lines
        if (line.grid, line.model, line.constant) == (RUN, chosen["model"], chosen["constant"])
        and line.order in (None, base)
    ]
    imports, place = _place(chosen["model"], study)
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(CARD.read_text(encoding="utf-8")).render(
        chosen=chosen,
        corpus=corpus,
        corpus_name=task.corpus,
        hub=model.hub,
        imports=imports,
        loader="AutoModel" if task.target.probed else "AutoModelForCausalLM",
        place=place,
        revision=f", revision={model.revision!r}" if model.hub and model.revision and place == repr(model.hub) else "",
        saved=saved,
        sentences=sentences or [conclusion.sentence],
        texts='["A text."], ["And a second one."]' if corpus.second else '["A text."]',
        title=task.title or chosen["task"],
    )


def _place(name: str, study: Study) -> tuple[str, str]:
    """Return an import and an expression for the place of a model: its hub id, else where it is on this machine."""
    model = study.config.models[name]
    if model.hub:
        return "", repr(model.hub)
    noted = study.results / PLACES
    place = json.loads(noted.read_text(encoding="utf-8")).get(name, {}) if noted.exists() else {}
    if package := place.get("package"):
        return f"import {package}", f"{package}.get_model_path()"
    if model.random or model.known:
        place = {"path": place_of(ModelId.of(name, model), study.config.machine)}
    return "", repr(place.get("path", f"the folder of {name}"))
