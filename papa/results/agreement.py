"""The agreement between lists of heads of one model, next to two yardsticks: a repetition, and chance within layers.

Lists are compared by Kendall's τ, by Spearman's ρ, and by the share of the best units that both have. A unit is a head,
or a group of heads that share keys if one of the two lists has only scores of groups; a group has its largest score.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict, cast

import numpy as np
import pandas as pd

from papa.config.artefacts import ARTEFACTS
from papa.config.settings import Plots
from papa.data.head_lists import HeadList, read_list
from papa.errors import InputError
from papa.files import PathLike
from papa.method.pictures import COLOR_RAMP, inline, styled
from papa.results.analysis import save_figure
from papa.results.stability import RankedUnits, tau_by_chance
from papa.results.table import Table

if TYPE_CHECKING:
    import altair as alt
    from rich.console import Console

REPETITIONS = 200
"""The number of random halves of instances, and of bootstrap samples."""
BEST_SHARE = 4
"""If no list names only its best heads, one in four units counts as best."""
CELL = 44
"""The width of a cell of the matrix in pixels."""
BY_CHANCE, ABOVE, REPEATED = "as by chance", "more than by chance", "as a repetition"
"""Verdicts on two lists."""
NOTE = (
    "τ, ρ: Kendall's and Spearman's correlation, with a 95 % bootstrap interval of τ over instances. In common: of the "
    "best units of one list, the share that is also among the best of the other; among equal scores, the expected "
    "share. By chance: the range of 95 % of all τ, and the expected share, if the units of one list change places "
    "within their layers. Repetition, and the diagonal: the mean τ between random halves of a list's instances; for a "
    "pair, that of the list with the smaller one. Halves have fewer instances, so a real repetition agrees more."
)


class Similarity(NamedTuple):
    """Kendall's τ, Spearman's ρ, and the share of the best units in common."""

    tau: float
    rho: float
    overlap: float


class PairAgreement(TypedDict):
    """The agreement of two lists, or of a list with itself if `a` and `b` are equal.

    `tau_low` and `tau_high` are the ends of the bootstrap interval of τ; for a list with itself, they contain 95 % of τ
    over random halves. `chance_low` and `chance_high` contain 95 % of all τ by chance within layers, and
    `overlap_chance` is the expected overlap. `repetition` is the smaller mean τ of the two lists with themselves.
    Values that are not known are None.
    """

    a: str
    b: str
    unit: str
    units: int
    best: int
    instances: tuple[int, int]
    tau: float | None
    rho: float | None
    overlap: float | None
    tau_low: float | None
    tau_high: float | None
    chance_low: float | None
    chance_high: float | None
    overlap_chance: float | None
    repetition: float | None
    verdict: str | None


class Agreement(TypedDict):
    """The return value of `agree`: the names of the lists, each list with itself, and all pairs of lists."""

    lists: list[str]
    itself: list[PairAgreement]
    pairs: list[PairAgreement]


@dataclass(frozen=True, eq=False)
class NamedList:
    """A list with the name that tables show, for a model of `shape`: its numbers of layers and of heads in a layer."""

    name: str
    listed: HeadList
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        (layers, heads), listed = self.shape, self.listed.shape
        if self.listed.partial:
            fits = listed[0] <= layers and listed[1] <= heads
        else:
            fits = listed[0] == layers and heads % listed[1] == 0
        if not fits:
            raise InputError(
                f"{self.name} lists {listed[0]} layers of {listed[1]} heads or groups, which does not fit {layers} "
                f"layers of {heads}; compare lists of one model, or set --shape."
            )

    @property
    def width(self) -> int:
        """The number of units in a layer; a list of only the best heads is about heads."""
        return self.shape[1] if self.listed.partial else self.listed.shape[1]

    @cached_property
    def scores(self) -> np.ndarray:
        """The scores `[instance, layer, unit]`."""
        return self.listed.filled((self.shape[0], self.width))

    def mean(self, width: int, instances: np.ndarray | None = None) -> np.ndarray:
        """Return the mean scores over all or some instances, `[layer, unit]`, with `width` units in a layer."""
        means = (self.scores if instances is None else self.scores[instances]).mean(axis=0)
        largest: np.ndarray = means.reshape(len(means), width, -1).max(axis=2)
        return largest

    def resampled(self, width: int, chance: np.random.Generator) -> np.ndarray:
        """Return the mean scores over a bootstrap sample of the instances."""
        number = len(self.scores)
        return self.mean(width, chance.integers(number, size=number))

    def halves(self, width: int, best: int) -> np.ndarray:
        """Return the similarity of random halves of the instances, `[half, measure]`; empty without instances."""
        number, chance = len(self.scores), np.random.default_rng(0)
        splits = [np.array_split(chance.permutation(number), 2) for _ in range(REPETITIONS if number > 1 else 0)]
        return np.array([similarity(self.mean(width, a), self.mean(width, b), best) for a, b in splits])


def agree(paths: Sequence[str], best: int | None = None, shape: str | None = None) -> Agreement:
    """Compare lists of heads of one model.

    Args:
        paths: at least two files of lists, each perhaps after NAME=. Seeds of a study's λ are instances of one list.
        best: the number of best units to compare; by default the length of the shorter list of only the best heads, or
            else a quarter of all units.
        shape: the model's numbers LAYERSxHEADS; by default those of the largest list.

    Raises:
        InputError: a list cannot be read, or lists have different shapes.

    >>> agree(["duo=full_attention_heads.tsv", "scores.json"])["pairs"][0]["tau"]  # doctest: +SKIP
    """
    lists = named_lists(paths, shape)
    return {
        "lists": [each.name for each in lists],
        "itself": [_itself(each, best) for each in lists],
        "pairs": [_pair(a, b, best) for a, b in combinations(lists, 2)],
    }


def named_lists(paths: Sequence[str], shape: str | None = None) -> list[NamedList]:
    """Read lists of one model; see `agree`."""
    parts = [("" if Path(path).exists() else path).partition("=") for path in paths]
    given = [(name, path) if path else ("", whole) for (name, _, path), whole in zip(parts, paths, strict=True)]
    stems = Counter(Path(path).stem for _, path in given)
    names = [name or (path if stems[Path(path).stem] > 1 else Path(path).stem) for name, path in given]
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise InputError("Two or more lists with different names are needed; give FILE or NAME=FILE for each.")
    lists = [_seeds_of(path) for _, path in given]
    if shape is None:
        whole = [each.shape for each in lists if not each.partial] or [each.shape for each in lists]
        sizes = max(layers for layers, _ in whole), max(width for _, width in whole)
    elif match := re.fullmatch("([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", shape):
        sizes = int(match[1]), int(match[2])
    else:
        raise InputError(f"{shape!r} is no shape of a model; write LAYERSxHEADS, for example 32x32.")
    return [NamedList(name, each, sizes) for name, each in zip(names, lists, strict=True)]


def _seeds_of(path: str) -> HeadList:
    """Read a list; λ of a study has an instance for each seed."""
    listed, parsed = read_list(path), ARTEFACTS["lambda"].parsed(path)
    if parsed is None:
        return listed
    results, wildcards = parsed
    seeds = sorted(results.glob(ARTEFACTS["lambda"].path(**wildcards | {"seed": "*"})))
    return replace(listed, scores=np.concatenate([read_list(seed).scores for seed in seeds]))


def similarity(a: np.ndarray, b: np.ndarray, best: int) -> Similarity:
    """Compare two arrays of scores of the same units; `best` is the number of best units."""
    from scipy.stats import spearmanr

    tau = _tau(a, b)
    rho = tau if np.isnan(tau) else float(spearmanr(a.ravel(), b.ravel()).statistic)
    return Similarity(tau, rho, float((_kept(a, best) * _kept(b, best)).sum() / best))


def _tau(a: np.ndarray, b: np.ndarray) -> float:
    """Return Kendall's τ; NaN if all scores of a list are equal."""
    from scipy.stats import kendalltau

    a, b = (values.ravel().astype(float) for values in (a, b))  # newer versions of scipy return the given precision
    return np.nan if np.ptp(a) == 0 or np.ptp(b) == 0 else float(kendalltau(a, b).statistic)


def _kept(scores: np.ndarray, best: int) -> np.ndarray:
    """Return each unit's probability to be among the best, if equal scores are in random order."""
    cut = np.sort(scores, axis=None)[-best]
    above, tied = scores > cut, scores == cut
    probability: np.ndarray = above + tied * (best - above.sum()) / tied.sum()
    return probability


def _best(lists: Sequence[NamedList], best: int | None, units: int) -> int:
    lengths = [len(each.listed.places) for each in lists if each.listed.partial]
    number = best or min(lengths, default=max(1, units // BEST_SHARE))
    if number > units:
        raise InputError(f"The {number} best of {units} units were asked for; give a smaller number.")
    return number


def _itself(each: NamedList, best: int | None) -> PairAgreement:
    width, units = each.width, each.shape[0] * each.width
    number = _best([each], best, units)
    halves = each.halves(width, number)
    means = halves.mean(axis=0) if len(halves) else np.full(3, np.nan)
    low, high = np.quantile(halves[:, 0], (0.025, 0.975)) if len(halves) else (np.nan, np.nan)
    about = {"a": each.name, "b": each.name, "units": units, "best": number, "instances": (len(each.scores),) * 2}
    values = dict(zip(("tau", "rho", "overlap"), means, strict=True)) | {"tau_low": low, "tau_high": high}
    return _row(about | {"unit": _unit([each])}, values)


def _pair(a: NamedList, b: NamedList, best: int | None) -> PairAgreement:
    width = min(a.width, b.width)
    units = a.shape[0] * width
    number, scores = _best([a, b], best, units), (a.mean(width), b.mean(width))
    measured, low, high = similarity(scores[0], scores[1], number), np.nan, np.nan
    if max(len(a.scores), len(b.scores)) > 1:
        chance = np.random.default_rng(0)
        taus = [_tau(a.resampled(width, chance), b.resampled(width, chance)) for _ in range(REPETITIONS)]
        low, high = np.quantile(taus, (0.025, 0.975))
    layers = np.repeat(np.arange(a.shape[0]), width)
    first, second = (RankedUnits(layers, each.ravel(), ()) for each in scores)
    chance_low, chance_high = tau_by_chance(first, second, in_layers=True)
    expected = np.prod([_kept(each, number).sum(axis=1) for each in scores], axis=0).sum() / width / number
    halves = [repeated[:, 0] for each in (a, b) if len(repeated := each.halves(width, number))]
    repetition = min(halves, key=lambda taus: float(taus.mean())) if halves else np.array([np.nan])
    verdict = None if np.isnan(measured.tau) else ABOVE if measured.tau > chance_high else BY_CHANCE
    if verdict == ABOVE and measured.tau >= np.quantile(repetition, 0.025):
        verdict = REPEATED
    about = {"a": a.name, "b": b.name, "unit": _unit([a, b]), "units": units, "best": number, "verdict": verdict}
    about |= {"instances": (len(a.scores), len(b.scores))}
    values = {"tau_low": low, "tau_high": high, "chance_low": chance_low, "chance_high": chance_high}
    values |= {"overlap_chance": expected, "repetition": repetition.mean()}
    return _row(about, measured._asdict() | values)


def _unit(lists: Sequence[NamedList]) -> str:
    """Return the name of the units, which are certainly groups if another list has more scores in a layer."""
    return "groups" if any(each.width < each.shape[1] for each in lists) else "units"


def _row(about: dict[str, object], values: dict[str, float]) -> PairAgreement:
    known = {name: None if np.isnan(value) else float(value) for name, value in values.items()}
    return cast(PairAgreement, dict.fromkeys(PairAgreement.__annotations__) | about | known)


# -- for readers ------------------------------------------------------------------------------------------------------


def print_agreement(result: Agreement, console: Console) -> None:
    """Print the matrix of τ, a table of all pairs, and a note that explains them."""
    taus = {(row["a"], row["b"]): row["tau"] for row in (*result["itself"], *result["pairs"])}
    cells = [[_number(taus.get((b, a), taus.get((a, b)))) for b in result["lists"]] for a in result["lists"]]
    matrix = pd.DataFrame(cells, columns=result["lists"])
    matrix.insert(0, "Kendall's τ", result["lists"])
    pairs = Table("Pairs of lists", pd.DataFrame(map(_cells, result["pairs"])), 2)
    for part in (*Table("Agreement", matrix, 1).fitting(console.width), *pairs.readable(console.width)):
        part.print(console)
    console.print(NOTE)


def _cells(row: PairAgreement) -> dict[str, str]:
    interval = "" if row["tau_low"] is None else f" ({row['tau_low']:.2f} to {row['tau_high']:.2f})"
    chance = "–" if row["chance_low"] is None else f"{row['chance_low']:.2f} to {row['chance_high']:.2f}"
    overlap, expected = row["overlap"] or 0, row["overlap_chance"] or 0
    return {
        "list": row["a"],
        "other list": row["b"],
        "units": f"{row['units']} {row['unit']}",
        "τ": _number(row["tau"]) + interval,
        "ρ": _number(row["rho"]),
        "by chance": chance,
        "repetition": _number(row["repetition"]),
        "best": str(row["best"]),
        "in common": f"{overlap:.0%}",
        "common by chance": f"{expected:.0%}",
        "verdict": row["verdict"] or "–",
    }


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def save_matrix(result: Agreement, path: PathLike) -> None:
    """Draw the matrix of τ to a file; its suffix must be .svg, .png or .html."""
    if Path(path).suffix not in (".svg", ".png", ".html"):
        raise InputError(f"{path} is no figure that papa can write; end its name in .svg, .png or .html.")
    save_figure(matrix_figure(result), {"figure": path}, Plots())


def matrix_figure(result: Agreement) -> alt.TopLevelMixin:
    """Draw Kendall's τ of all pairs of lists, and on the diagonal that between halves of a list's instances."""
    import altair as alt

    names = result["lists"]
    mirrored: list[PairAgreement] = [{**row, "a": row["b"], "b": row["a"]} for row in result["pairs"]]
    rows = pd.DataFrame(
        {**row, "text": _number(row["tau"])} for row in (*result["itself"], *result["pairs"], *mirrored)
    )
    rows = rows[["a", "b", "tau", "rho", "overlap", "best", "verdict", "text"]]
    base = alt.Chart(inline(rows), width=CELL * len(names), height=CELL * len(names)).encode(
        alt.X("b:N", sort=names, title=None, axis=alt.Axis(labelAngle=-40, orient="top")),
        alt.Y("a:N", sort=names, title=None),
    )
    scale = alt.Scale(domain=[0, 0.5, 1], range=COLOR_RAMP, clamp=True)
    formats = {"tau": ("τ", ".2f"), "rho": ("ρ", ".2f"), "overlap": ("in common", ".0%"), "best": ("best", "d")}
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("a", "b", "verdict")]
    tooltip += [alt.Tooltip(f"{name}:Q", title=title, format=shown) for name, (title, shown) in formats.items()]
    cells = base.mark_rect().encode(alt.Color("tau:Q", scale=scale, legend=alt.Legend(title="τ")), tooltip=tooltip)
    light = {"test": "datum.tau > 0.3", "value": "white"}
    text = base.mark_text(fontSize=12).encode(text="text:N", color=alt.ColorValue("black", condition=light))
    return styled(alt.layer(cells, text, title="Kendall's τ between lists of heads"))
