"""Two results held against each other: which scores differ, which are equal within a margin, what cannot be told.

There is one family of tests: the main metric on all examples of the reported validation split, for every model, task
and setting that both results have. Subsets and further readings are no part of it, since they say the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from papa.config.artefacts import ARTEFACTS
from papa.config.settings import Config
from papa.errors import DamagedArtefact, InputError, count
from papa.files import JSON, MEND, PathLike, provenance_of, read_json, read_table, trace_of
from papa.results.losses import COUNTS, status_of
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, RUN, Measured, Sample, Setting, measured_in
from papa.results.runs import ALIKE, TRAINING_COLUMNS, runs_in
from papa.results.statistics import LEVEL, SOURCES, Estimate, Spread, holm, together
from papa.results.table import Table, metric_name, printable

if TYPE_CHECKING:
    from rich.console import Console

DIFFERS, DIFFERS_BY_LESS = "differs", "differs, but by less than δ"
EQUAL, UNKNOWN = "equal within δ", "cannot tell"
VERDICTS = (DIFFERS, DIFFERS_BY_LESS, EQUAL, UNKNOWN)
BY_BOTH, BY_EXAMPLE, BY_NOTHING = "examples and seeds", "examples", "nothing"
"""What a difference is paired by."""
OF_RANGE = 0.01
"""Share of a metric's range that δ is where attention contributes nothing that a share could be taken of."""
FAMILY = "the main metric on all reported validation examples of every model, task and setting that both have"
OF_MODEL = ("weights", "papa_version", "precision", "heads")
"""Settings of a model; all others are of a model and a task."""
SAME_ITEMS = ["split", "example", "word", "gold", "tokens"]
"""What examples have in common that are the same."""
EXAMPLES_ALONE = [source == "examples" for source in SOURCES]
"""The members of what examples make vary by themselves."""
OF_B = "B: "
"""What stands before the constants of B where its runs lie beside those of A."""
OUTCOMES = ARTEFACTS["all_outcomes"].path()
DIGEST = 16
"""Characters that are shown of a digest, or of another text without an end."""
MOST = 10
"""Lines that are printed of what is not a difference."""

Found = dict[str, JSON]
Key = tuple[str, str]
"""A model and a task."""
Made = dict[tuple[str, str | None, str], list[object]]
"""All values of a setting of a model and a task; of a model alone where the task is None."""


@dataclass(frozen=True)
class Results:
    """What is compared.

    Args:
        measured: all outcomes.
        tasks: the `title` and the `metric` of each task.
        made: what the runs were made with; empty if they are not there.
        margin: that of the config; None if claims are not there.
    """

    measured: dict[Key, Measured]
    tasks: dict[str, dict[str, str]]
    made: Made
    margin: float | None


@dataclass(frozen=True)
class Both:
    """The scores of a model on a task in two results.

    Args:
        a, b: the scores of both; the same object, which has all of them, if the examples are the same.
        marked: whether it is the same object, in which settings of B are those of `_of_b`.
        alike: whether a seed means the same on both sides, because all else that it depends on is the same.
    """

    a: Sample
    b: Sample
    marked: bool
    alike: bool

    def difference(self, setting: Setting) -> tuple[Estimate | None, str]:
        """B - A, and what it is paired by; None if the runs of a side have no seed in common.

        Examples that are the same are paired. So are orders and seeds, if both sides have the same ones and a seed
        means the same: a pair of seeds then differs by less than two seeds do. Otherwise both sides are samples of
        their own, and each adds its variance.
        """
        other = _of_b(setting) if self.marked else setting
        if self.marked and self.alike and _runs(self.a, setting).keys() == _runs(self.b, other).keys():
            both = self.a.spread(setting, other)
            return None if both is None else both.estimate([0, -1, 1]), BY_BOTH
        one, two = self.a.spread(setting), self.b.spread(other)
        if one is None or two is None:
            return None, BY_NOTHING
        if not self.marked:
            return together([one.estimate([0, 1]), two.estimate([0, 1])], [-1, 1]), BY_NOTHING
        return _by_example(one, two), BY_EXAMPLE


def compare(a: PathLike, b: PathLike, margin: float | None = None) -> Found:
    """What differs between two results folders, or two tables of outcomes, in plain values.

    `rows` has a verdict for each setting that both have. A setting `differs` if the p of its difference is under 5 % by
    Holm's correction over the family. It is `equal within δ` if two one-sided tests against -δ and δ both have a p
    under 5 %, corrected likewise; if all outcomes are the same it is so by itself. Both can hold. `verdicts` counts
    them; `only_a`, `only_b`: settings that one side has; `settings`: hyperparameters, data, weights and versions that
    differ.

    Args:
        a, b: the results.
        margin: δ as a share of what attention contributes to a task in A (original - contextless); that of A's config
            by default. For a task of A without such a contribution, δ is 1 % of the metric's range.

    Raises:
        InputError: something is no result, is damaged, or nothing can be compared.
    """
    if margin is not None and not 0 < margin < 1:
        raise InputError(f"The margin is {margin:g}, but must lie between 0 and 1; it is a share, such as 0.1.")
    left, right = _read(Path(a)), _read(Path(b))
    share, origin = (margin, "as given") if margin is not None else (left.margin, "of A's config")
    if share is None:
        share, origin = float(Config.model_fields["margin"].default), "the default, because A has no claims"
    there = {key: _settings_of(left, key, right) for key in left.measured}
    if not any(there.values()):
        raise InputError(
            f"{a} and {b} have no setting in common: {_described(left)} and {_described(right)}; results are compared "
            "by the names of models and tasks, and by the same metric."
        )
    rows = [row for key, settings in there.items() if settings for row in _rows(left, right, key, settings, share)]
    _judge(rows)
    verdicts = {name: sum(row["verdict"] == name for row in rows) for name in VERDICTS}
    return {
        "a": str(a),
        "b": str(b),
        "family": FAMILY,
        "confidence": LEVEL,
        "correction": "Holm",
        "margin": share,
        "margin_from": origin,
        "compared": len(rows),
        "tested": sum(row["p"] is not None for row in rows),
        "same": sum(row["same"] for row in rows),
        "differ": verdicts[DIFFERS] + verdicts[DIFFERS_BY_LESS],
        "verdicts": verdicts,
        "rows": rows,
        "only_a": _only(left, right),
        "only_b": _only(right, left),
        "made_known": bool(left.made and right.made),
        "settings": _differing(left, right),
    }


# -- reading ----------------------------------------------------------------------------------------------------------


def read_outcomes(path: PathLike) -> tuple[dict[Key, Measured], dict[str, dict[str, str]]]:
    """All outcomes by model and task from their table, and the `title` and the `metric` of each task.

    Raises:
        DamagedArtefact: the file is damaged, or another table.
    """
    table, trace = read_table(path), trace_of(path)
    tasks = trace.settings.get("tasks") if trace else None
    if provenance_of(table).get("table") != "outcomes" or not isinstance(tasks, dict) or not table.num_rows:
        raise DamagedArtefact(f"{path} is no table of outcomes; give a results folder, or its {OUTCOMES}.")
    metrics = {task: told["metric"] for task, told in tasks.items()}
    return {(own.model, own.task): own for own in measured_in(table, metrics)}, tasks


def _read(place: Path) -> Results:
    """The outcomes of some results, and what lies beside them: runs, and the margin of the claims."""
    if not place.exists():
        raise InputError(f"There is no {place}; give a results folder, or its {OUTCOMES}.")
    path = place / OUTCOMES if place.is_dir() else place
    if not path.is_file():
        raise InputError(
            f"{place} has no {OUTCOMES}, so it is no folder of finished results; give results/NAME, and run its "
            "workflow to the end first."
        )
    measured, tasks = read_outcomes(path)
    if not path.absolute().as_posix().endswith(f"/{OUTCOMES}"):
        return Results(measured, tasks, {}, None)
    folder = path.absolute().parents[1]
    claims, margin = folder / ARTEFACTS["claims_json"].path(), None
    if claims.is_file():
        margin = read_json(claims).get("margin")
        if not isinstance(margin, float):
            raise DamagedArtefact(f"{claims} has no margin, so it has no claims of papa; {MEND}.")
    return Results(measured, tasks, _made(folder), margin)


def _made(folder: Path) -> Made:
    """What the runs of a results folder say that they were made with; nothing where they do not say."""
    found: Made = {}
    paths = sorted(folder.glob(ARTEFACTS["runs"].path(model="*", task="*", variant="**")))
    for run, trace in ((run, trace_of(path)) for path in paths for run in runs_in(path)):
        told = run.model_dump(include={*TRAINING_COLUMNS, "heads"}) | run.provenance.model_dump()
        told["precision"] = trace.settings["model"]["precision"] if trace else None
        for name, numbers in run.model_dump(include={"rows", "rows_available", "cut"}).items():
            told |= {f"{name}_{split}": number for split, number in numbers.items()}
        for name, value in told.items():
            values = found.setdefault((run.model, None if name in OF_MODEL else run.task, name), [])
            if value is not None and value not in values:
                values.append(value)
    return found


def _settings_of(left: Results, key: Key, right: Results) -> list[Setting]:
    """The settings of a model and a task that both results have, and scored by the same metric."""
    if key not in right.measured or left.measured[key].metric != right.measured[key].metric:
        return []
    theirs = right.measured[key].settings()
    return [setting for setting in left.measured[key].settings() if setting in theirs]


def _described(results: Results) -> str:
    """Which models on which tasks, for messages."""
    models, tasks = (dict.fromkeys(names) for names in zip(*results.measured, strict=True))
    return f"{', '.join(models)} on {', '.join(tasks)}"


# -- tests ------------------------------------------------------------------------------------------------------------


def _rows(left: Results, right: Results, key: Key, settings: Sequence[Setting], share: float) -> list[Found]:
    """What is found of the settings of a model and a task; verdicts follow when all tests are known."""
    a, b = left.measured[key], right.measured[key]
    both = _both(a, b, _alike(left, right, key))
    delta, of = _delta(both.a, a, share)
    rows = []
    for setting in settings:
        other = _of_b(setting) if both.marked else setting
        estimate, paired = both.difference(setting)
        row: Found = {"model": a.model, "task": a.task, "title": left.tasks[a.task]["title"], "metric": a.metric}
        row |= dict(zip(("constant", "order", "fraction"), setting, strict=True))
        for side, sample, own in (("a", both.a, setting), ("b", both.b, other)):
            runs = sample.runs.loc[sample.settings[own]]
            row |= {side: sample.mean(own), f"seeds_{side}": int(runs["seed"].nunique())}
            row[f"examples_{side}"] = int(sample.values.shape[1])
        row |= {"paired": paired, "same": both.marked and _same(both, setting), "delta": delta, "delta_of": of}
        rows.append(row | _tested(estimate, delta))
    return rows


def _tested(estimate: Estimate | None, delta: float | None) -> Found:
    """A difference with its intervals, and the p of no difference and of one of δ or more, as far as there are any."""
    names = ("difference", "low", "high", "low_90", "high_90", "p", "p_equal")
    if estimate is None or not estimate.freedom:
        why = "orders without a common seed" if estimate is None else "one seed, which has no interval"
        return dict.fromkeys(names) | {"difference": estimate and float(estimate.mean), "why": why}
    wide, narrow = estimate.interval(), estimate.interval(2 * LEVEL - 1)
    numbers = (estimate.mean, wide.low, wide.high, narrow.low, narrow.high, estimate.p())
    equal = None if delta is None else estimate.p_within(delta)
    return dict(zip(names, [*map(float, numbers), equal], strict=True)) | {"why": None}


def _judge(rows: Sequence[Found]) -> None:
    """Add `p_holm`, `p_equal_holm` and `verdict` to all rows, which are one family of each of both tests."""
    for name in ("p", "p_equal"):
        # what is the same by itself needs no test of equality
        tested = [row for row in rows if row[name] is not None and not (name == "p_equal" and row["same"])]
        corrected = dict(zip(map(id, tested), holm([row[name] for row in tested]), strict=True))
        for row in rows:
            row[f"{name}_holm"] = corrected.get(id(row))
    for row in rows:
        p, p_equal = row["p_holm"], row["p_equal_holm"]
        differs, equal = p is not None and p < 1 - LEVEL, row["same"] or (p_equal is not None and p_equal < 1 - LEVEL)
        row["verdict"] = DIFFERS_BY_LESS if equal and differs else DIFFERS if differs else EQUAL if equal else UNKNOWN


def _both(a: Measured, b: Measured, alike: bool) -> Both:
    """The scores of two sides; if their examples are the same, runs of B stand beside those of A as other settings."""
    parts = [own.subsets()[ALL] for own in (a, b)]
    items = [own.items.loc[part].reset_index(drop=True) for own, part in zip((a, b), parts, strict=True)]
    shown = [own[[name for name in SAME_ITEMS if name in own]].astype(str) for own in items]
    if a.names != b.names or not shown[0].equals(shown[1]):
        one, two = (own.sample(own.metric, part) for own, part in zip((a, b), parts, strict=True))
        return Both(one, two, False, alike)
    marked = b.runs[RUN].assign(constant=[f"{OF_B}{constant or ''}" for constant in b.runs["constant"]])
    runs = pd.concat([a.runs[RUN], marked], ignore_index=True)
    sides = list(zip((a.values, b.values), parts, strict=True))
    values = {name: np.concatenate([own[name][:, part] for own, part in sides]) for name in a.values}
    sample = replace(a, runs=runs, items=items[0], values=values).sample(a.metric, np.ones(len(items[0]), bool))
    return Both(sample, sample, True, alike)


def _of_b(setting: Setting) -> Setting:
    """What a setting of B is called beside those of A."""
    constant, order, fraction = setting
    return (f"{OF_B}{constant or ''}", order, fraction)


def _runs(sample: Sample, setting: Setting) -> dict[tuple[str, int], int]:
    """The runs of a setting by order and seed."""
    places = sample.settings[setting]
    runs = sample.runs.loc[places]
    return dict(zip(zip(runs["order"].fillna(""), runs["seed"], strict=True), places, strict=True))


def _same(both: Both, setting: Setting) -> bool:
    """Whether every example counts the same in all runs of a setting on both sides, so that no score can differ."""
    one, two = (_runs(both.a, own) for own in (setting, _of_b(setting)))
    counts = both.a.counts
    return one.keys() == two.keys() and all(np.array_equal(counts[one[run]], counts[two[run]]) for run in one)


def _by_example(one: Spread, two: Spread) -> Estimate:
    """B - A, paired by examples alone: what examples add to both sides alike counts for neither, all else for both.

    Args:
        one, two: the spreads of A and of B, each with the trivial classifier as its first quantity.
    """
    if one.units is None or two.units is None:
        return together([one.estimate([0, 1]), two.estimate([0, 1])], [-1, 1])
    units, unseen = two.units[1] - one.units[1], one.unseen + two.unseen
    freedom = len(units) - 1.0
    effects = [(float(units @ units) * len(units) / freedom + unseen, 1.0, freedom, np.array(EXAMPLES_ALONE))]
    for side in (one, two):
        rest = (side.members != EXAMPLES_ALONE).any(1)
        own = (side.squares[:, 1, 1], side.signs, side.freedoms, side.members)
        effects += zip(*(numbers[rest] for numbers in own), strict=True)
    squares, signs, freedoms, members = (np.array(own) for own in zip(*effects, strict=True))
    means, seeds = two.means[1:] - one.means[1:], min(one.seeds, two.seeds)
    of_units = {"units": units[None], "unseen": unseen, "seeded": one.seeded}
    joined = Spread(means, squares[:, None, None], signs, freedoms, members, seeds, **of_units)
    return joined.estimate([1.0])


def _alike(left: Results, right: Results, key: Key) -> bool:
    """Whether runs of both sides were made alike in all that a seed depends on, as far as that is known; else not."""
    named = [(key[1] if "task" in owners else None, name) for owners, names in ALIKE.items() for name in names]
    owners = list(dict.fromkeys(named))
    found = [[made.get((key[0], *of), []) for of in owners] for made in (left.made, right.made)]
    return all(found[0]) and all(sorted(map(str, a)) == sorted(map(str, b)) for a, b in zip(*found, strict=True))


def _delta(sample: Sample, measured: Measured, share: float) -> tuple[float | None, str]:
    """The δ of a task, and what it is a share of; None if there is nothing that it could be a share of."""
    status, metric = status_of(sample, measured, measured.metric), sample.metric
    original, floor = sample.mean(ORIGINALS), sample.mean(FLOOR)
    if status == COUNTS and original is not None and floor is not None:
        return share * (original - floor), "attention's contribution"
    if isfinite(metric.high - metric.low):
        return OF_RANGE * (metric.high - metric.low), f"the metric's range, because {status}"
    return None, f"nothing, because {status} and the metric has no range"


def _only(side: Results, other: Results) -> list[Found]:
    """The settings of one side that the other does not have."""
    found = []
    for (model, task), own in side.measured.items():
        theirs: Iterable[Setting] = other.measured[model, task].settings() if (model, task) in other.measured else ()
        about: Found = {"model": model, "task": task, "title": side.tasks[task]["title"], "metric": own.metric}
        found += [
            about | dict(zip(("constant", "order", "fraction"), setting, strict=True))
            for setting in own.settings()
            if setting not in theirs
        ]
    return found


def _differing(left: Results, right: Results) -> list[Found]:
    """Settings of models and tasks that both have, if they are not the same; each value is listed once."""
    sides = []
    for results in (left, right):
        metrics: Made = {(*key, "metric"): [own.metric] for key, own in results.measured.items()}
        sides.append(metrics | results.made)
    return [
        {"model": model, "task": task, "setting": name, "a": values, "b": sides[1][model, task, name]}
        for (model, task, name), values in sides[0].items()
        if values
        and sides[1].get((model, task, name))
        and sorted(map(str, values)) != sorted(map(str, sides[1][model, task, name]))
    ]


# -- as people read it ------------------------------------------------------------------------------------------------


def print_comparison(found: Found, console: Console) -> None:
    """Print what `compare` found: the verdicts in a sentence and in tables, what else differs, how it was tested."""
    console.print(f"A: {printable(found['a'])}\nB: {printable(found['b'])}\n")
    rows = found["rows"]
    console.print(headline(found), style=_colour(found))
    console.print("")
    models = list(dict.fromkeys(row["model"] for row in rows))

    def show(title: str, lines: list[dict[str, str]], names: int) -> None:
        if lines:
            Table(title, pd.DataFrame(lines), names).print(console)

    def scores(verdicts: Sequence[str], title: str, most: int | None = None) -> None:
        level = LEVEL if DIFFERS in verdicts else 2 * LEVEL - 1
        for model in models:
            own = [row for row in rows if row["model"] == model and row["verdict"] in verdicts and not row["same"]]
            cut = "" if most is None or len(own) <= most else f", {most} of {len(own):,} (--json has all)"
            of = f" ({model})" if len(models) > 1 else ""
            show(f"{title}{of}{cut}", [_scores(row, level) for row in sorted(own, key=_place)[:most]], 2)

    scores((DIFFERS, DIFFERS_BY_LESS), "Differ")
    scores((UNKNOWN,), "Cannot be told", MOST)
    scores((EQUAL,), "Equal within δ", MOST)
    settings = [
        {"model": row["model"], "task": row["task"] or "", "setting": row["setting"]}
        | {side.upper(): " ".join(map(_value, row[side])) for side in "ab"}
        for row in found["settings"]
    ]
    show("Settings that differ", settings, 5)
    for side in ("a", "b"):
        only = found[f"only_{side}"]
        title = f"Only in {side.upper()}: {count(len(only), 'setting')}"
        title += f", the first {MOST}" if len(only) > MOST else ""
        show(title, [{"model": row["model"]} | _names(row) for row in only[:MOST]], 3)
    if not found["made_known"]:
        console.print("What runs were made with is not known here, so no setting of theirs is compared.\n")
    console.print(about(found))


def headline(found: Found) -> str:
    """The verdicts in a sentence."""
    compared, verdicts = found["compared"], found["verdicts"]
    if found["same"] == compared:
        everything = not (found["only_a"] or found["only_b"])
        what = "the scores" if everything else f"the {count(compared, 'score')} that both have"
        return f"The same: {what} agree to the last digit{'; settings differ' if found['settings'] else ''}."
    differ, less, equal, unknown = (found["differ"], *(verdicts[name] for name in (DIFFERS_BY_LESS, EQUAL, UNKNOWN)))
    by_less = f" ({less:,} of them by less than the margin)" if less else ""
    of_them = "all" if found["same"] == equal else f"{found['same']:,} of them"
    same = f" ({of_them} to the last digit)" if found["same"] else ""
    return (
        f"{differ:,} of {compared:,} {'differs' if differ == 1 else 'differ'}{by_less}, {equal:,} "
        f"{'is' if equal == 1 else 'are'} equal within the margin{same}, {unknown:,} cannot be told."
    )


def about(found: Found) -> str:
    """What was tested, how, and with which margin."""
    rows = found["rows"]
    paired = {name: sum(row["paired"] == name for row in rows) for name in (BY_BOTH, BY_EXAMPLE, BY_NOTHING)}
    parts = [
        f"Tested: {found['family']}; no subsets, no further readings.",
        f"Paired by {', '.join(f'{name}: {number:,}' for name, number in paired.items() if number)}.",
        f"Differs: 5 % for {count(found['tested'], 'test')} together (Holm's correction).",
        f"Equal: two one-sided tests at 5 % for each setting by itself, of δ = {100 * found['margin']:g} % of what "
        f"attention contributes to a task in A ({found['margin_from']}).",
    ]
    others: dict[tuple[float | None, str], list[str]] = {}
    for row in rows:
        titles = others.setdefault((row["delta"], row["delta_of"]), []) if "because" in row["delta_of"] else []
        titles += [row["title"]] * (row["title"] not in titles)
    for (delta, of), titles in others.items():
        what = "there is no δ: it would be a share of"
        if delta is not None:
            what = f"δ is {delta:.3f}, {100 * OF_RANGE:g} % of"
        parts.append(f"{', '.join(titles)}: {what} {of}.")
    for why in dict.fromkeys(row["why"] for row in rows if row["why"]):
        parts.append(f"Not tested, because of {why}: {sum(row['why'] == why for row in rows):,}.")
    return printable(" ".join(parts))


def _colour(found: Found) -> str:
    verdicts = found["verdicts"]
    return "bold red" if verdicts[DIFFERS] else "bold yellow" if verdicts[EQUAL] < found["compared"] else "bold green"


def _place(row: Found) -> tuple[float, float]:
    """Small p first, and large differences of equal p."""
    return (2.0 if row["p"] is None else row["p"], -abs(row["difference"] or 0.0))


def _names(row: Found) -> dict[str, str]:
    """Which score: its task with its metric, and what was replaced."""
    setting = " ".join(filter(None, (row["fraction"], row["constant"], row["order"])))
    return {"task": f"{row['title']} ({metric_name(row['metric'])})", "setting": setting}


def _scores(row: Found, level: float) -> dict[str, str]:
    """Two scores beside each other, with what is known of their difference and its interval of a level."""
    line, interval = _names(row) | {side.upper(): _number(row[side]) for side in "ab"}, "not tested"
    low, high = ("low", "high") if level == LEVEL else ("low_90", "high_90")
    if row["p"] is not None:
        interval = f"{row['difference']:+.3f} [{row[low]:+.3f}, {row[high]:+.3f}]"
    tested = row["p_holm" if level == LEVEL else "p_equal_holm"]
    p = "-" if tested is None else f"{tested:.1g}"
    return line | {f"B - A [{100 * level:.0f} %]": interval, "p": p, "δ": _number(row["delta"])}


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"


def _value(value: object) -> str:
    text = str(value)
    return text if len(text) <= DIGEST or " " in text else f"{text[:DIGEST]}…"
