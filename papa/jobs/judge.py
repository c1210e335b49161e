"""`papa judge`: what lists of heads cost on a model if only the heads that they claim keep their attention.

Each list becomes an order in an ordinary study, next to λ, gradients and random orders, so all numbers are those of the
study's tables. The lists have their own grids, because each claims its own number of heads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

import pandas as pd

from papa.config.artefacts import ARTEFACTS
from papa.config.settings import HeadFile, Machine
from papa.config.settings import fraction as fraction_of
from papa.config.stages import ModelId
from papa.config.variant import LIST_NAME_PATTERN, RANDOM, SHUFFLED
from papa.data.head_lists import read_list
from papa.data.named import named
from papa.data.tokenize import shape_of_model
from papa.errors import InputError
from papa.files import PathLike, read_table
from papa.jobs.measure import MeasureOptions, Source, measure
from papa.method.orders import tied_across, tied_ranks
from papa.results.conclusion import Conclusion, LineClaim, Step
from papa.results.phrases import bound_text, loss_text, order_name, percent
from papa.results.statistics import LEVEL, holm
from papa.results.study_results import StudyResults
from papa.results.table import Table

if TYPE_CHECKING:
    from rich.console import Console

DRAWS = 19
"""The number of random orders of each kind: the smallest for a p value of 5 %."""
TIE_DRAWS = 5
"""The number of orders of a list with equal scores on both sides of the cut."""
OTHERS = ("lambda", "gradient")
PASSES, REJECTED, INCONCLUSIVE = "passes", "rejected", "inconclusive"
NOTE = (
    "Loss: the share of attention's contribution that is lost if only the kept heads have their attention, with its "
    "95 % interval. Passes: the loss is below the margin of {margin} (one-sided, 5 %), corrected for all lists by "
    "Holm's method. Rejected: the lower end of the interval is above the margin, uncorrected. Minus λ, minus gradient: "
    "the loss minus that of the same number of heads in another order, measured on the same examples, and its p value, "
    "adjusted for all pairs of orders. Random: how many random lists lose no more, and the one-sided p value, "
    "uncorrected. Same layers: the same for random lists with the same number of heads in each layer."
)


class JudgeOptions(MeasureOptions, total=False):
    """The options of `judge`, whose docstring describes them."""

    settings: Mapping[str, object]
    margin: float | None
    validation: Source | None
    folder: PathLike | None
    constant: str
    draws: int


class Difference(TypedDict):
    """The loss of a list minus that of another order, with its 95 % interval and its corrected p value."""

    difference: float
    low: float | None
    high: float | None
    p: float | None


class Place(TypedDict):
    """The number of random lists, of `draws`, that lose no more than a list, and the p value."""

    draws: int
    smaller: int
    p: float


class Judgement(TypedDict):
    """The verdict on a list; numbers that are not known are None."""

    list: str
    kept: int
    heads: int
    loss: float | None
    low: float | None
    high: float | None
    bound: float | None
    margin: float
    verdict: str
    minus: dict[str, Difference]
    random: Place | None
    same_layers: Place | None


def judge(
    lists: Sequence[str], model: PathLike, train: Source, fraction: str = "1/2", **options: Unpack[JudgeOptions]
) -> tuple[list[Judgement], StudyResults]:
    """Measure what lists of heads cost on a model, next to other orders of the same size.

    Args:
        lists: files of lists, each perhaps after NAME=. A list of only the best heads claims these heads.
        model: a hub id, a folder or an installed package.
        train: texts, as for `measure`.
        fraction: the share of heads (or groups, if all lists have scores of groups) that other lists claim.
        options: those of `measure`, among them `validation`, `folder` and `settings`; `constant`, what replaces the
            other heads, such as `streaming-4-256`; `margin`, the accepted loss; and `draws`, the number of random lists
            of each kind.

    Returns:
        A judgement of each list, and the results of the study.

    Raises:
        InputError: a list does not fit the model, or the model or the texts cannot be used.

    >>> judge(["duo=full_attention_heads.tsv"], "models/mine", "train.csv")  # doctest: +SKIP
    """
    draws, folder = options.pop("draws", DRAWS), options.pop("folder", None)
    margin, validation = options.pop("margin", None), options.pop("validation", None)
    constant = options.pop("constant", "average")
    settings = dict(options.pop("settings", {}))
    run, ranking = (dict(cast("Mapping[str, object]", settings.get(key, {}))) for key in ("run", "ranking"))
    if fixed := sorted({"constants", "orders", "fractions"} & run.keys()):
        raise InputError(f"`settings` contains run.{fixed[0]}, which other arguments of judge determine; leave it out.")
    unit, claimed = _claimed(lists, str(model), fraction)
    first, *others = (
        {
            "constants": [constant],
            "orders": [order.model_dump(exclude_none=True), *OTHERS, RANDOM],
            "fractions": ["1", str(share), "0"],
        }
        for order, share in claimed
    )
    names = [order.base for order, _ in claimed]
    settings |= {"run": run | first, "grids": dict(zip(names[1:], others, strict=True))}
    settings |= {"ranking": ranking | {"draws": draws, "unit": unit}} | ({} if margin is None else {"margin": margin})
    study = measure(model, train, None, validation, settings, folder, **cast("MeasureOptions", options))
    return judgements(study.folder, names), study


def _claimed(lists: Sequence[str], model: str, fraction: str) -> tuple[str, list[tuple[HeadFile, Fraction]]]:
    """Return the unit that is replaced, and the lists as orders, each with the share of units that it claims."""
    given = [_named(written) for written in lists]
    if len({name for name, _ in given}) < len(given):
        raise InputError("Two lists have the same name; give different ones as NAME=FILE.")
    place = named(model)
    identity = ModelId(name="model", hub=place.get("hub"))
    machine = Machine(models={} if "hub" in place else {identity.name: place})
    layers, heads, key_heads = shape = shape_of_model(identity, machine)
    read = {name: read_list(path) for name, path in given}
    by_group = all(not each.partial and each.shape[1] == key_heads for each in read.values())
    claimed = []
    for name, path in given:
        scores = read[name].on(*shape).reshape(layers, key_heads if by_group else heads, -1).max(axis=2).ravel()
        best = Fraction(int((scores > scores.min()).sum()), scores.size)
        share = best if read[name].partial else Fraction(fraction_of(fraction))
        kept = int(share * scores.size)
        if not 0 < kept < scores.size:
            raise InputError(f"{path} would keep {kept} of {scores.size} heads; a list must keep some, but not all.")
        cut = tied_across(tied_ranks(sorted(scores.tolist())), scores.size - kept)
        claimed.append((HeadFile(file=path, name=name, draws=TIE_DRAWS if cut else 1, by_layer=True), share))
    return "group" if by_group else "head", claimed


def _named(written: str) -> tuple[str, str]:
    """Return the name and the path of a list; a name consists of the characters that names of orders have."""
    name, _, path = ("" if Path(written).exists() else written).partition("=")
    name, path = (name, path) if path else (Path(written).stem, written)
    plain = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    plain = plain if re.fullmatch(LIST_NAME_PATTERN, plain) else f"list-{plain}"[:40].strip("-")
    return plain, path


def judgements(folder: Path, orders: Sequence[str]) -> list[Judgement]:
    """Return the judgements of lists, by the names of their orders, from the results of a study."""
    conclusion = Conclusion.read(folder / ARTEFACTS["claims_json"].path())
    path = folder / ARTEFACTS["table"].path(analysis="random_orders")
    places = read_table(path).to_pandas() if path.exists() else pd.DataFrame()
    lines = [next(line for line in conclusion.lines if line.order == order) for order in orders]
    verdicts = verdicts_of(lines, conclusion.margin)
    return [_judgement(conclusion, places, *judged) for judged in zip(lines, verdicts, strict=True)]


def _judgement(conclusion: Conclusion, places: pd.DataFrame, line: LineClaim, verdict: str) -> Judgement:
    orders = {each.line: str(each.order) for each in conclusion.lines if each.grid == line.grid}
    minus = dict[str, Difference]()
    for pair in conclusion.areas:
        if pair.grid == line.grid and line.line in (pair.a, pair.b):
            other, sign = (pair.b, 2) if pair.a == line.line else (pair.a, -2)  # an area is half of the loss
            low, high = (end if isfinite(end) else None for end in sorted((sign * pair.low, sign * pair.high)))
            if orders[other] in OTHERS:
                minus[orders[other]] = {"difference": sign * pair.difference, "low": low, "high": high, "p": pair.p}
    step, order = _cut(line), str(line.order)
    return {
        "list": order_name(order),
        "kept": line.heads - step.replaced if step else 0,
        "heads": line.heads,
        "loss": step.loss if step else None,
        "low": step.low if step else None,
        "high": step.high if step else None,
        "bound": step.bound if step else None,
        "margin": conclusion.margin,
        "verdict": verdict,
        "minus": minus,
        "random": _place(places, line, RANDOM),
        "same_layers": _place(places, line, order + SHUFFLED),
    }


def _cut(line: LineClaim) -> Step | None:
    """Return the step at which the heads of a list are kept; None if it was not measured."""
    return next((step for step in line.steps if step.replaced < line.heads), None)


def verdicts_of(lines: Sequence[LineClaim], margin: float) -> list[str]:
    """Return the verdict on the list of each line; that lists pass is corrected for all of them (Holm's method)."""
    steps, verdicts = [_cut(line) for line in lines], list[str]()
    # the first step of each task; a list passes if it does on all tasks
    p_values = [max((task.steps[0].p for task in line.by_task if _cut(line)), default=1.0) for line in lines]
    for step, p in zip(steps, holm(p_values), strict=True):
        above = step is not None and step.low is not None and step.low > margin
        verdicts.append(PASSES if p < 1 - LEVEL else REJECTED if above else INCONCLUSIVE)
    return verdicts


def _place(places: pd.DataFrame, line: LineClaim, among: str) -> Place | None:
    for row in places.to_dict("records"):
        if (row["grid"], row["order"], row["among"]) == (line.grid, line.order, among):
            return {"draws": row["draws"], "smaller": row["smaller"], "p": row["p"]}
    return None


def print_judged(judged: Sequence[Judgement], console: Console) -> None:
    """Print a table with a row for each list, and a note that explains it."""
    rows = pd.DataFrame(map(_cells, judged))
    Table("Lists", rows, 2).print(console)
    console.print(NOTE.format(margin=percent(judged[0]["margin"], None)))


def _cells(row: Judgement) -> dict[str, str]:
    return {
        "list": row["list"],
        "verdict": row["verdict"],
        "heads kept": f"{row['kept']} of {row['heads']}",
        "loss": loss_text(row["loss"], row["low"], row["high"]) if row["loss"] is not None else "–",
        "bound": "–" if row["bound"] is None else bound_text(row["bound"], row["margin"]),
        **{f"minus {order_name(name)}": _difference(row["minus"].get(name)) for name in OTHERS},
        "random": _place_text(row["random"]),
        "same layers": _place_text(row["same_layers"]),
    }


def _difference(numbers: Difference | None) -> str:
    if numbers is None:
        return "–"
    p = "" if numbers["p"] is None else f" (p = {numbers['p']:.3f})"
    return f"{percent(numbers['difference'])}{p}"


def _place_text(place: Place | None) -> str:
    return "–" if place is None else f"{place['smaller']} of {place['draws']} (p = {place['p']:.2f})"
