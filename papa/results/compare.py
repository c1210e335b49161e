"""Compare two results: which scores differ, which are equal within a margin, and which comparisons are inconclusive.

There is one family of tests: the main metric on all reported validation examples, for every model, task and setting
that both results have. Subsets and other metrics are left out, because they are based on the same outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from papa.config.artefacts import ARTEFACTS
from papa.config.settings import Config
from papa.errors import DamagedArtefact, InputError, count
from papa.files import PathLike, provenance_of, read_table, trace_of
from papa.method.runs import COMMON_FIELDS, SPLITS, TRAINING_FIELDS, read_runs
from papa.results.conclusion import INCONCLUSIVE, Conclusion
from papa.results.losses import COUNTS, status_of
from papa.results.outcomes import (
    ALL,
    ITEM_COLUMNS,
    ORIGINALS,
    VARIANT_KEYS,
    Sample,
    Setting,
    TaskOutcomes,
    joint_spread,
    outcomes_in,
)
from papa.results.phrases import percent
from papa.results.statistics import LEVEL, SOURCES, Estimate, Spread, combine, holm
from papa.results.table import Table, metric_name, printable

if TYPE_CHECKING:
    from rich.console import Console

DIFFERS, DIFFERS_BY_LESS = "differs", "differs, but by less than δ"
EQUAL, IDENTICAL = "equal within δ", "identical"
VERDICTS = (DIFFERS, DIFFERS_BY_LESS, EQUAL, IDENTICAL, INCONCLUSIVE)
BY_BOTH, BY_EXAMPLE, BY_NOTHING = "examples and seeds", "examples", "nothing"
"""Ways in which the two sides of a difference are paired."""
FALLBACK_MARGIN = 0.01
"""δ as a share of the metric's range, used if attention contributes nothing measurable."""
POWER = 0.8
"""The probability with which the smallest detectable difference is detected."""
FAMILY = "the main metric on all reported validation examples of every model, task and setting that both have"
MODEL_PARAMETERS = ("weights", "papa_version", "precision", "heads")
"""Parameters that belong to a model; all others belong to a model and a task."""
EXAMPLE_KEYS = [name for name in ITEM_COLUMNS if name not in ("by_word", "trivial", "subset", "cluster")]
"""Examples are the same on both sides if they agree in these columns."""
EXAMPLES_ONLY = [source == "examples" for source in SOURCES]
"""The sources of the main effect of examples."""
OUTCOMES = ARTEFACTS["all_outcomes"].path()
MAXIMUM_CHARACTERS = 16
"""The number of characters after which a digest, or another text without spaces, is cut when it is printed."""
MAXIMUM_ROWS = 10
"""The number of rows after which a printed table is cut; tables of differences are never cut."""

Row = dict[str, Any]
Key = tuple[str, str]
"""A model and a task."""
Parameters = dict[tuple[str, str | None, str], list[object]]
"""All values of each parameter, by model, task and name; the task is None for a parameter of a model."""


@dataclass(frozen=True)
class Results:
    """One side of a comparison.

    Args:
        outcomes: all outcomes by model and task.
        tasks: the `title` and `metric` of each task.
        parameters: the recorded parameters of the runs; empty without run files.
        margin: the margin of the config; None without claims.
    """

    outcomes: dict[Key, TaskOutcomes]
    tasks: dict[str, dict[str, str]]
    parameters: Parameters
    margin: float | None


@dataclass(frozen=True)
class Pair:
    """The scores of a model on a task in two results.

    Args:
        a, b: the scores of each side.
        same_examples: whether both sides scored the same examples.
        same_seeds: whether a seed has the same effect on both sides, because all other parameters are the same.
    """

    a: Sample
    b: Sample
    same_examples: bool
    same_seeds: bool

    def difference(self, setting: Setting) -> tuple[Estimate | None, str]:
        """Estimate B - A and return how it is paired; the estimate is None if the runs of a side share no seed.

        Differences are paired by example if both sides scored the same examples. They are also paired by order and seed
        if both sides have the same ones and `same_seeds` holds. Otherwise, the sides are independent samples, and their
        variances are added.
        """
        if self.same_examples and self.same_seeds and _runs(self.a, setting).keys() == _runs(self.b, setting).keys():
            spread = joint_spread([(self.a, setting), (self.b, setting)])
            return None if spread is None else spread.estimate([0, -1, 1]), BY_BOTH
        a = joint_spread([(self.a, setting)])
        b = joint_spread([(self.b, setting)], self.a.step if self.same_examples else None)
        if a is None or b is None:
            return None, BY_NOTHING
        if not self.same_examples:
            return combine([a.estimate([0, 1]), b.estimate([0, 1])], [-1, 1]), BY_NOTHING
        return _paired_by_example(a, b), BY_EXAMPLE

    def identical(self, setting: Setting) -> bool:
        """Whether every example has the same counts on both sides, in all runs of a setting."""
        a, b = _runs(self.a, setting), _runs(self.b, setting)
        return (
            self.same_examples
            and a.keys() == b.keys()
            and all(np.array_equal(self.a.counts[a[run]], self.b.counts[b[run]]) for run in a)
        )


def compare(a: PathLike, b: PathLike, margin: float | None = None) -> Row:
    """Return the differences between two results folders, or two tables of outcomes, as plain values.

    `rows` has a verdict for each setting that both results have; `verdicts` counts them.

    - `identical`: all outcomes are the same, so there is nothing to test.
    - `differs`: the p value of the difference is below 5 %, after Holm's correction over the family.
    - `equal within δ`: two one-sided tests, against -δ and δ, both have p values below 5 %, after Holm's correction
      over all settings that are not identical. A setting can differ and be equal within δ.
    - `cannot tell`: none of these, so the comparison is inconclusive.

    `only_a` and `only_b` list the settings that only one side has. `settings` lists the hyperparameters, data, weights
    and versions that differ.

    Args:
        a, b: the results.
        margin: δ as a share of attention's contribution to a task in A, which is the original minus its floor; by
            default the margin of A's config. If attention contributes nothing measurable, δ is 1 % of the metric's
            range.

    Raises:
        InputError: a path has no results, a file is damaged, or the results have no setting in common.
    """
    if margin is not None and not 0 < margin < 1:
        raise InputError(f"The margin is {margin:g}, but must be between 0 and 1; it is a share, such as 0.1.")
    left, right = _read(Path(a)), _read(Path(b))
    share, origin = (margin, "as given") if margin is not None else (left.margin, "from A's config")
    if share is None:
        share, origin = float(Config.model_fields["margin"].default), "the default, because A has no claims"
    common = {key: _common_settings(left, key, right) for key in left.outcomes}
    if not any(common.values()):
        raise InputError(
            f"{a} and {b} have no setting in common: {_described(left)} and {_described(right)}. To be compared, "
            "results need the same names of models and tasks, and the same metric."
        )
    rows = [row for key, settings in common.items() if settings for row in _rows(left, right, key, settings, share)]
    judge(rows)
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
        "tested": sum(row["p_holm"] is not None for row in rows),
        "tested_equal": sum(row["p_equal_holm"] is not None for row in rows),
        "same": sum(row["same"] for row in rows),
        "differ": verdicts[DIFFERS] + verdicts[DIFFERS_BY_LESS],
        "verdicts": verdicts,
        "rows": rows,
        "only_a": _only(left, right),
        "only_b": _only(right, left),
        "made_known": bool(left.parameters and right.parameters),
        "settings": _differing(left, right),
    }


# -- reading ----------------------------------------------------------------------------------------------------------


def read_outcomes(path: PathLike) -> tuple[dict[Key, TaskOutcomes], dict[str, dict[str, str]]]:
    """Return all outcomes by model and task, and the `title` and `metric` of each task.

    Raises:
        DamagedArtefact: the file is damaged, or holds another table.
    """
    table, trace = read_table(path), trace_of(path)
    tasks = trace.settings.get("tasks") if trace else None
    if provenance_of(table).get("table") != "outcomes" or not isinstance(tasks, dict) or not table.num_rows:
        raise DamagedArtefact(f"{path} is not a table of outcomes; pass a results folder, or its {OUTCOMES}.")
    metrics = {name: task["metric"] for name, task in tasks.items()}
    return {(outcomes.model, outcomes.task): outcomes for outcomes in outcomes_in(table, metrics)}, tasks


def _read(path: Path) -> Results:
    if not path.exists():
        raise InputError(f"{path} does not exist; pass a results folder, or its {OUTCOMES}.")
    file = path / OUTCOMES if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            f"{path} has no {OUTCOMES}, so it does not contain finished results; pass results/NAME, and run its "
            "workflow to the end first."
        )
    outcomes, tasks = read_outcomes(file)
    parsed = ARTEFACTS["all_outcomes"].parsed(file)
    if parsed is None:
        return Results(outcomes, tasks, {}, None)
    claims = parsed[0] / ARTEFACTS["claims_json"].path()
    margin = Conclusion.read(claims).margin if claims.is_file() else None
    return Results(outcomes, tasks, _parameters(parsed[0]), margin)


def _parameters(folder: Path) -> Parameters:
    """Return the parameters recorded in the run files of a results folder."""
    parameters: Parameters = {}
    paths = sorted(folder.glob(ARTEFACTS["runs"].path(model="*", task="*", variant="**")))
    for run, trace in ((run, trace_of(path)) for path in paths for run in read_runs(path)):
        recorded = run.model_dump(include={*TRAINING_FIELDS, "heads"}) | run.provenance.model_dump()
        recorded["patience"] = run.patience or 0  # a value, because None means that nothing is recorded
        recorded["precision"] = trace.settings["model"]["precision"] if trace else None
        for name in ("rows", "rows_available", "cut"):
            recorded |= {f"{name}_{split}": getattr(getattr(run, name), split) for split in SPLITS}
        for name, value in recorded.items():
            values = parameters.setdefault((run.model, None if name in MODEL_PARAMETERS else run.task, name), [])
            if value is not None and value not in values:
                values.append(value)
    return parameters


def _common_settings(left: Results, key: Key, right: Results) -> list[Setting]:
    """Return the settings of a model and a task that both results have, scored by the same metric."""
    a, b = left.outcomes[key], right.outcomes.get(key)
    if b is None or a.metric != b.metric:
        return []
    return [setting for setting in a.settings() if setting in b.settings()]


def _described(results: Results) -> str:
    models, tasks = (dict.fromkeys(names) for names in zip(*results.outcomes, strict=True))
    return f"{', '.join(models)} on {', '.join(tasks)}"


# -- tests ------------------------------------------------------------------------------------------------------------


def _rows(left: Results, right: Results, key: Key, settings: Sequence[Setting], share: float) -> list[Row]:
    """Test the common settings of a model and a task; `judge` adds the verdicts after all tests."""
    a, b = left.outcomes[key], right.outcomes[key]
    pair = _pair(a, b, _same_seeds(left, right, key))
    delta, source = _delta(pair.a, a, share)
    rows = []
    for setting in settings:
        estimate, paired = pair.difference(setting)
        row = _identity(left, a, setting)
        for side, sample in (("a", pair.a), ("b", pair.b)):
            runs = sample.runs.loc[sample.settings[setting]]
            row |= {side: sample.mean(setting), f"seeds_{side}": int(runs["seed"].nunique())}
            row[f"examples_{side}"] = sample.examples
        row |= {"paired": paired, "same": pair.identical(setting), "delta": delta, "delta_of": source}
        rows.append(row | tested(estimate, delta))
    return rows


def _identity(side: Results, outcomes: TaskOutcomes, setting: Setting) -> Row:
    task = outcomes.task
    row: Row = {"model": outcomes.model, "task": task, "title": side.tasks[task]["title"], "metric": outcomes.metric}
    return row | dict(zip(VARIANT_KEYS, setting, strict=True))


def tested(estimate: Estimate | None, delta: float | None) -> Row:
    """Return a difference with its intervals, its p values, and the smallest difference that the test detects.

    `p_equal` is the p value of a difference of at least δ.
    """
    names = ("difference", "low", "high", "low_90", "high_90", "p", "detectable", "p_equal")
    if estimate is None or not estimate.freedom:
        why = "orders have no common seed" if estimate is None else "one seed has no interval"
        return dict.fromkeys(names) | {"difference": estimate and float(estimate.mean), "why": why}
    wide, narrow = estimate.interval(), estimate.interval(2 * LEVEL - 1)
    numbers = (estimate.mean, wide.low, wide.high, narrow.low, narrow.high, estimate.p(), detectable(estimate))
    p_equal = None if delta is None else estimate.p_within(delta)
    return dict(zip(names, [*map(float, numbers), p_equal], strict=True)) | {"why": None}


def detectable(estimate: Estimate) -> float:
    """Return the smallest true difference that a two-sided test at 5 % detects with probability `POWER`."""
    from scipy.special import stdtrit

    return float(stdtrit(estimate.freedom, [(1 + LEVEL) / 2, POWER]).sum() * sqrt(estimate.variance))


def judge(rows: Sequence[Row]) -> None:
    """Add `p_holm`, `p_equal_holm` and `verdict`, with all rows in one family for each kind of test."""
    for name in ("p", "p_equal"):
        # identical outcomes need no equivalence test
        tested = [row for row in rows if row[name] is not None and not (name == "p_equal" and row["same"])]
        corrected = dict(zip(map(id, tested), holm([row[name] for row in tested]), strict=True))
        for row in rows:
            row[f"{name}_holm"] = corrected.get(id(row))
    for row in rows:
        differs, equal = (p is not None and p < 1 - LEVEL for p in (row["p_holm"], row["p_equal_holm"]))
        verdict = DIFFERS_BY_LESS if equal and differs else DIFFERS if differs else EQUAL if equal else INCONCLUSIVE
        row["verdict"] = IDENTICAL if row["same"] else verdict


def _pair(a: TaskOutcomes, b: TaskOutcomes, same_seeds: bool) -> Pair:
    masks = a.subsets()[ALL], b.subsets()[ALL]
    items = [
        outcomes.items.loc[mask].reindex(columns=EXAMPLE_KEYS).reset_index(drop=True).astype(str)
        for outcomes, mask in zip((a, b), masks, strict=True)
    ]
    same_examples = a.names == b.names and items[0].equals(items[1])
    if same_examples:
        a, b = _in_same_clusters(a, b, masks)
    return Pair(a.sample(a.metric, masks[0]), b.sample(b.metric, masks[1]), same_examples, same_seeds)


def _in_same_clusters(
    a: TaskOutcomes, b: TaskOutcomes, masks: tuple[np.ndarray, np.ndarray]
) -> tuple[TaskOutcomes, TaskOutcomes]:
    """Group the same examples of both sides in the same clusters; if one side has clusters, both get them."""
    known = [
        pd.factorize(side.items.loc[mask, "cluster"])[0]
        for side, mask in zip((a, b), masks, strict=True)
        if "cluster" in side.items
    ]
    if not known:
        return a, b
    if not np.array_equal(known[0], known[-1]):
        raise InputError(
            f"The two results group the examples of task {a.task} in different clusters; set the same `cluster` in "
            "both configs, and run both again, which recomputes only tables."
        )
    sides = []
    for side, mask in zip((a, b), masks, strict=True):
        cluster = np.full(len(mask), -1)
        cluster[mask] = known[0]
        sides.append(replace(side, items=side.items.assign(cluster=cluster)))
    return sides[0], sides[1]


def _runs(sample: Sample, setting: Setting) -> dict[tuple[str, int], int]:
    """Map the order and seed of each run of a setting to the run's index."""
    indices = sample.settings[setting]
    runs = sample.runs.loc[indices]
    return dict(zip(zip(runs["order"].fillna(""), runs["seed"], strict=True), indices, strict=True))


def _paired_by_example(a: Spread, b: Spread) -> Estimate:
    """Estimate B - A, paired only by example.

    Effects of examples that both sides share cancel out. All other effects are independent, so their variances are
    added.

    Args:
        a, b: spreads with two quantities: the trivial classifier and the score.
    """
    if a.units is None or b.units is None:
        return combine([a.estimate([0, 1]), b.estimate([0, 1])], [-1, 1])
    units, unseen = b.units[1] - a.units[1], sum(a.unseen) + sum(b.unseen)
    freedom = len(units) - 1.0
    effects = [(float(units @ units) * len(units) / freedom + unseen, 1.0, freedom, np.array(EXAMPLES_ONLY))]
    for side in (a, b):
        others = (side.members != EXAMPLES_ONLY).any(1)
        columns = (side.squares[:, 1, 1], side.signs, side.freedoms, side.members)
        effects += zip(*(column[others] for column in columns), strict=True)
    squares, signs, freedoms, members = (np.array(column) for column in zip(*effects, strict=True))
    means, seeds = b.means[1:] - a.means[1:], min(a.seeds, b.seeds)
    examples = {"units": units[None], "unseen": (unseen,), "seeded": a.seeded}
    return Spread(means, squares[:, None, None], signs, freedoms, members, seeds, **examples).estimate([1.0])


def _same_seeds(left: Results, right: Results, key: Key) -> bool:
    """Whether both sides record the same values of all parameters on which the effect of a seed depends."""
    named = [(key[1] if "task" in owners else None, name) for owners, names in COMMON_FIELDS.items() for name in names]
    parameters = list(dict.fromkeys(named))
    sides = [[side.parameters.get((key[0], *parameter), []) for parameter in parameters] for side in (left, right)]
    return all(sides[0]) and all(sorted(map(str, a)) == sorted(map(str, b)) for a, b in zip(*sides, strict=True))


def _delta(sample: Sample, outcomes: TaskOutcomes, share: float) -> tuple[float | None, str]:
    """Return a task's δ and the quantity that it is a share of; δ is None if there is no such quantity."""
    status, metric = status_of(sample, outcomes, outcomes.metric), sample.metric
    original, floor = sample.mean(ORIGINALS), sample.floor
    if status == COUNTS and original is not None and floor is not None:
        return share * (original - floor), "attention's contribution"
    if isfinite(metric.high - metric.low):
        return FALLBACK_MARGIN * (metric.high - metric.low), f"the metric's range, because {status}"
    return None, f"nothing, because {status} and the metric has no range"


def _only(side: Results, other_side: Results) -> list[Row]:
    """Return the settings of one side that the other does not have."""
    return [
        _identity(side, outcomes, setting)
        for key, outcomes in side.outcomes.items()
        for setting in outcomes.settings()
        if key not in other_side.outcomes or setting not in other_side.outcomes[key].settings()
    ]


def _differing(left: Results, right: Results) -> list[Row]:
    """Return the parameters with different values on the two sides; each value is listed once."""
    a, b = (
        {(*key, "metric"): [outcomes.metric] for key, outcomes in side.outcomes.items()} | side.parameters
        for side in (left, right)
    )
    return [
        {"model": key[0], "task": key[1], "setting": key[2], "a": values, "b": b[key]}
        for key, values in a.items()
        if values and b.get(key) and sorted(map(str, values)) != sorted(map(str, b[key]))
    ]


# -- the terminal -----------------------------------------------------------------------------------------------------


def print_comparison(result: Row, console: Console) -> None:
    """Print the result of `compare`: a headline, tables of scores, other differences, and notes on the tests."""
    console.print(f"A: {printable(result['a'])}\nB: {printable(result['b'])}\n")
    rows = result["rows"]
    console.print(headline(result), style=headline_colour(result))
    console.print("")
    models = list(dict.fromkeys(row["model"] for row in rows))

    def show(title: str, table_rows: list[dict[str, str]], names: int) -> None:
        if table_rows:
            Table(title, pd.DataFrame(table_rows), names).print(console)

    sections = {"Differ": (DIFFERS, DIFFERS_BY_LESS), "Inconclusive": (INCONCLUSIVE,), "Equal within δ": (EQUAL,)}
    for (title, verdicts), model in product(sections.items(), models):
        level, most = (LEVEL, None) if DIFFERS in verdicts else (2 * LEVEL - 1, MAXIMUM_ROWS)
        chosen = [row for row in rows if row["model"] == model and row["verdict"] in verdicts]
        cut = "" if most is None or len(chosen) <= most else f", {most} of {len(chosen):,} (--json has all)"
        model_text = f" ({model})" if len(models) > 1 else ""
        show(f"{title}{model_text}{cut}", [_scores(row, level) for row in sorted(chosen, key=_sort_key)[:most]], 2)
    settings = [
        {"model": row["model"], "task": row["task"] or "", "setting": row["setting"]}
        | {side.upper(): " ".join(map(_value, row[side])) for side in "ab"}
        for row in result["settings"]
    ]
    show("Settings that differ", settings, 5)
    for side in ("a", "b"):
        only = result[f"only_{side}"]
        title = f"Only in {side.upper()}: {count(len(only), 'setting')}"
        title += f", the first {MAXIMUM_ROWS}" if len(only) > MAXIMUM_ROWS else ""
        show(title, [{"model": row["model"]} | _names(row) for row in only[:MAXIMUM_ROWS]], 3)
    if not result["made_known"]:
        console.print("At least one result does not record the settings of its runs, so they are not compared.\n")
    console.print(notes(result))


def headline(result: Row) -> str:
    """Return the verdicts in a sentence."""
    compared, verdicts = result["compared"], result["verdicts"]
    if result["same"] == compared:
        all_common = not (result["only_a"] or result["only_b"])
        scores = "the scores" if all_common else f"the {count(compared, 'score')} that both have"
        return f"The same: {scores} agree to the last digit{'; settings differ' if result['settings'] else ''}."
    differ, less = result["differ"], verdicts[DIFFERS_BY_LESS]
    by_less = f" ({less:,} of them by less than the margin)" if less else ""
    phrases = [f"{differ:,} of {compared:,} {'differs' if differ == 1 else 'differ'}{by_less}"]
    words = {IDENTICAL: "identical", EQUAL: "equal within the margin", INCONCLUSIVE: "inconclusive"}
    phrases += [f"{verdicts[name]:,} {'is' if verdicts[name] == 1 else 'are'} {word}" for name, word in words.items()]
    return f"{', '.join(phrases)}."


def notes(result: Row) -> str:
    """Describe the tests and their margin in sentences."""
    rows = result["rows"]
    paired = {name: sum(row["paired"] == name for row in rows) for name in (BY_BOTH, BY_EXAMPLE, BY_NOTHING)}
    sentences = [
        f"Tested: {result['family']}; no subsets, no other metrics.",
        f"Paired by {', '.join(f'{name}: {number:,}' for name, number in paired.items() if number)}.",
        f"Differs: 5 % for {count(result['tested'], 'test')} together (Holm's correction).",
        f"Equal: two one-sided tests with δ = {percent(result['margin'], None)} of attention's contribution to a task "
        f"in A ({result['margin_from']}), 5 % for {count(result['tested_equal'], 'test')} together (Holm's "
        "correction).",
    ]
    titles: dict[tuple[float | None, str], list[str]] = {}
    for row in rows:
        if "because" in row["delta_of"]:
            titles.setdefault((row["delta"], row["delta_of"]), []).append(row["title"])
    for (delta, source), tasks in titles.items():
        margin = "there is no δ: it would be a share of"
        if delta is not None:
            margin = f"δ is {delta:.3f}, {percent(FALLBACK_MARGIN, None)} of"
        sentences.append(f"{', '.join(dict.fromkeys(tasks))}: {margin} {source}.")
    for why in dict.fromkeys(row["why"] for row in rows if row["why"]):
        sentences.append(f"Not tested, because {why}: {sum(row['why'] == why for row in rows):,}.")
    return printable(" ".join(sentences))


def headline_colour(result: Row) -> str:
    verdicts = result["verdicts"]
    settled = verdicts[EQUAL] + verdicts[IDENTICAL] == result["compared"]
    return "bold red" if verdicts[DIFFERS] else "bold green" if settled else "bold yellow"


def _sort_key(row: Row) -> tuple[float, float]:
    """Sort by ascending p value, then by descending difference."""
    return (2.0 if row["p"] is None else row["p"], -abs(row["difference"] or 0.0))


def _names(row: Row) -> dict[str, str]:
    setting = " ".join(filter(None, (row["fraction"], row["constant"], row["order"])))
    return {"task": f"{row['title']} ({metric_name(row['metric'])})", "setting": setting}


def _scores(row: Row, level: float) -> dict[str, str]:
    """Return both scores, their difference with its interval at a level, and the p value behind the verdict."""
    cells, interval = _names(row) | {side.upper(): _number(row[side]) for side in "ab"}, "not tested"
    low, high = ("low", "high") if level == LEVEL else ("low_90", "high_90")
    if row["p"] is not None:
        interval = f"{row['difference']:+.3f} [{row[low]:+.3f}, {row[high]:+.3f}]"
    tested = row["p_holm" if level == LEVEL else "p_equal_holm"]
    p = "-" if tested is None else f"{tested:.1g}"
    return cells | {f"B - A [{percent(level)}]": interval, "p": p, "δ": _number(row["delta"])}


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"


def _value(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAXIMUM_CHARACTERS or " " in text else f"{text[:MAXIMUM_CHARACTERS]}…"
