"""`papa heads`: list kept and replaced heads at a fraction, and the weight of each head, for other tools.

DuoAttention and similar tools read a table with a number per layer and key head. Head pruning needs a list of heads per
layer. Both follow from an order of heads and its weights.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING

from papa import __version__
from papa.config.artefacts import ARTEFACTS
from papa.config.settings import RUN
from papa.config.settings import fraction as fraction_of
from papa.config.stages import ModelId
from papa.config.study import Study
from papa.config.variant import Constant, Order, is_drawn, is_list
from papa.data.weights import location_of
from papa.errors import InputError, first_line
from papa.files import PathLike, provenance_of, read_table
from papa.jobs.start import PLACES
from papa.method.averages import CONSTANTS_FILE
from papa.method.shared_heads import HEADS_FILE, Heads
from papa.results.conclusion import Conclusion
from papa.results.phrases import holds_for, with_noun
from papa.results.study_results import study_in

if TYPE_CHECKING:
    from rich.console import Console

CARD = Path(__file__).parent / "card.md"
"""Template for the README.md in a shared folder; a test runs its code."""
LISTED_ORDERS = 8
"""Maximum number of orders in an error message."""


def heads_of(results: PathLike, of: str | None = None, fraction: str = "1/2") -> Heads:
    """Split the heads of one order into kept and replaced ones.

    Args:
        results: a results folder.
        of: MODEL/TASK/CONSTANT/ORDER, such as `bert/mood/average/lambda-0`, or a unique beginning of it.
        fraction: share of heads to keep.

    Raises:
        InputError: no order matches, or several do.
    """
    names = _order_names(Path(results), of)
    table = read_table(Path(results, ARTEFACTS["order"].path(**names)))
    ranked = list(zip(table["layer"].to_pylist(), table["head"].to_pylist(), strict=True))
    kept, unit_size = Fraction(fraction_of(fraction)), int(provenance_of(table).get("unit_size", 1))
    replaced_count = len(ranked) - unit_size * floor(kept * (len(ranked) // unit_size))
    return Heads(
        model=names["model"],
        task=names["task"],
        constant=names["constant"],
        order=names["order"],
        fraction=str(kept),
        kept=tuple(sorted(ranked[replaced_count:])),
        replaced=tuple(sorted(ranked[:replaced_count])),
        values=_values(Path(results), names),
        unit_size=unit_size,
    )


def _order_names(results: Path, of: str | None) -> dict[str, str]:
    """Return the model, task, constant and order that `of` matches."""
    wildcards = dict.fromkeys(("model", "task", "constant", "order"), "*")
    paths = sorted(results.glob(ARTEFACTS["order"].path(**wildcards)))
    orders = [parsed[1] for path in paths if (parsed := ARTEFACTS["order"].parsed(path))]
    orders = [order for order in orders if not is_drawn(Order.parse(order["order"]).base)]
    if not orders:
        raise InputError(f"{results} has no order of heads; give a results folder with fractions between 0 and 1.")
    wanted = of.split("/") if of else []
    matching = [order for order in orders if list(order.values())[: len(wanted)] == wanted]
    if len(matching) == 1:
        return matching[0]
    listed = ["/".join(order.values()) for order in matching or orders]
    names = ", ".join(listed[:LISTED_ORDERS]) + (", …" if len(listed) > LISTED_ORDERS else "")
    problem = "Several orders match" if matching else "No order matches"
    raise InputError(f"{problem}; choose one with --of MODEL/TASK/CONSTANT/ORDER: {names}.")


def _values(results: Path, names: Mapping[str, str]) -> tuple[tuple[float, ...], ...]:
    """Return the weights that the order was made from, `[layer][head]`: λ after the last epoch, or other weights."""
    base, _, seed = names["order"].rpartition("-")
    artefact = ARTEFACTS["lambda" if base.startswith("lambda") else "weights"]
    weights = base if is_list(base) else names["order"]
    rows = read_table(results / artefact.path(**names, seed=seed, weights=weights)).to_pandas()
    last = rows[rows["epoch"] == rows["epoch"].max()]
    values = last.pivot(index="layer", columns="head", values="value").to_numpy().tolist()
    return tuple(map(tuple, values))


def remark_on(chosen: Heads, results: PathLike) -> str:
    """Return a warning if the study concluded nothing about the model and constant of an order; empty otherwise."""
    path = Path(results, ARTEFACTS["claims_json"].path())
    lines = Conclusion.read(path).lines if path.is_file() else ()
    about = [line for line in lines if (line.model, line.constant) == (chosen.model, chosen.constant)]
    if not about or any(line.tasks for line in about):
        return ""
    return (
        f"Nothing could be concluded about {chosen.model} with {with_noun(chosen.constant, chosen.constant)}, so this "
        f"choice of heads shows nothing; `papa inspect {results}` gives the reason."
    )


def print_heads(chosen: Heads, out: Console, remark: str = "") -> None:
    """Print the kept heads of each layer, with a legend and a remark."""
    about = f"{chosen.model} on {chosen.task}, {with_noun(chosen.constant, chosen.constant)}, order {chosen.order}"
    total = len(chosen.kept) + len(chosen.replaced)
    out.print(f"{about}: {len(chosen.kept)} of {total} heads kept")
    kept = {(layer, head) for layer, head in chosen.kept}
    for layer, row in enumerate(chosen.values):
        marks = [str(head) if (layer, head) in kept else "·" * len(str(head)) for head in range(len(row))]
        out.print(f"  layer {layer}: {' '.join(marks)}")
    out.print("Numbers are heads that keep their attention, from 0; · is a replaced head.", style="dim")
    if remark:
        out.print(remark, style="yellow")


# -- a folder for others ----------------------------------------------------------------------------------------------


def share(chosen: Heads, results: PathLike, folder: PathLike | None, repository: str | None) -> str:
    """Save heads to a folder, upload them to a repository on the hub, or both; return its address, or an empty text."""
    if folder is None and repository is None:
        return ""
    with tempfile.TemporaryDirectory(prefix="papa-") as temporary:
        saved = save_heads(chosen, results, folder or Path(temporary, "heads"), repository)
        return push_heads(saved, repository) if repository else ""


def save_heads(chosen: Heads, results: PathLike, folder: PathLike, repository: str | None = None) -> Path:
    """Write heads, their constants and a README.md to a new folder, which `Heads.load` reads.

    Args:
        chosen: the return value of `heads_of`.
        results: the same results folder; the study in it must be complete.
        folder: the new folder, with `README.md`, `heads.json`, `heads.tsv`, and `constants.h5` if the constants
            are stored in a file.
        repository: the repository on the hub for which the README.md is written, if there is one.

    Returns:
        The folder.

    Raises:
        InputError: the folder exists, or the study is not complete.
    """
    target, results = Path(folder), Path(results)
    if target.exists():
        raise InputError(f"{target} exists, and papa never overwrites a folder; give another folder.")
    if (study := study_in(results)) is None:
        raise InputError(f"{results} has no report yet; complete the run first.")
    corpus = study.config.tasks[chosen.task].corpus
    constants = study.constants(chosen.model, corpus, Constant.parse(chosen.constant))
    shared = chosen.model_copy(update={"slots": study.config.corpora[corpus].slots})
    texts = {
        HEADS_FILE: shared.model_dump_json(indent=1) + "\n",
        "heads.tsv": shared.as_list("duo") + "\n",
        "README.md": _card(shared, study, bool(constants), repository),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as parent:
        temporary = Path(parent, target.name)
        temporary.mkdir()
        for job in constants:
            shutil.copyfile(results / job.output("constants"), temporary / CONSTANTS_FILE)
        for name, text in texts.items():
            (temporary / name).write_text(text, encoding="utf-8")
        temporary.rename(target)
    return target


def push_heads(folder: PathLike, repository: str) -> str:
    """Upload a folder that `save_heads` wrote to a repository on the hub, and return the address of the repository.

    Args:
        folder: the folder.
        repository: id of the repository, owner/name; it is created if it does not exist.

    Raises:
        InputError: the repository cannot be written.
    """
    from huggingface_hub import HfApi

    api = HfApi(library_name="papa", library_version=__version__)
    try:
        address = api.create_repo(repository, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=Path(folder), commit_message="Share heads and their constants"
        )
    except Exception as error:  # libraries report a missing network in many ways
        raise InputError(
            f"{repository} on the hub cannot be written ({first_line(error).rstrip('.')}); check the id (owner/name), "
            "and log in with `hf auth login`."
        ) from error
    return str(address)


def _card(chosen: Heads, study: Study, saved: bool, repository: str | None) -> str:
    """Render the README.md of a folder of heads from the template `card.md`."""
    from jinja2 import Environment, StrictUndefined

    task = study.config.tasks[chosen.task]
    model, corpus = study.config.models[chosen.model], study.config.corpora[task.corpus]
    conclusion = Conclusion.read(study.results / study.path("claims_json"))
    base = Order.parse(chosen.order).base
    sentences = [
        line.sentence
        for line in conclusion.lines
        if (line.grid, line.model, line.constant) == (RUN, chosen.model, chosen.constant) and line.order in (None, base)
    ]
    frame = filter(None, (holds_for(conclusion.training), conclusion.declared))
    imports, place = _place(chosen.model, study, repository is None)
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(CARD.read_text(encoding="utf-8")).render(
        chosen=chosen,
        constant=Constant.parse(chosen.constant),
        corpus=corpus,
        averaged=Constant.parse(chosen.constant).corpus or task.corpus,
        corpora=study.config.corpora,
        hub=model.hub,
        imports=imports,
        loader="AutoModel" if task.target.probed else "AutoModelForCausalLM",
        place=place,
        repository=repository,
        revision=f", revision={model.revision!r}" if model.revision and place == repr(model.hub) else "",
        saved=saved,
        sentences=[*sentences, *frame] if sentences else [conclusion.sentence],
        texts='["A text."], ["And a second one."]' if corpus.second else '["A text."]',
        title=task.title or chosen.task,
    )


def _place(name: str, study: Study, here: bool) -> tuple[str, str]:
    """Return an import and an expression for a model's location: its hub id, its package, or its path if it is `here`.

    A path means nothing on another machine, so a comment asks the reader to replace it.
    """
    model = study.config.models[name]
    if model.hub:
        return "", repr(model.hub)
    file = study.results / PLACES
    place = json.loads(file.read_text(encoding="utf-8")).get(name, {}) if file.exists() else {}
    if package := place.get("package"):
        return f"import {package}", f"{package}.get_model_path()"
    if model.random or model.known:
        place = {"path": location_of(ModelId.of(name, model), study.config.machine)}
    path = place.get("path") if here else None
    return "", f"{(path or name)!r}  # replace this by the folder of {name}"
