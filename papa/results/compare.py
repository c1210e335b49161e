"""Compare two results: which scores differ, which are equal within a margin, and which comparisons are undecided.

There is one family of tests: the main metric on all reported validation examples, for every model, task and setting
that both results have. Subsets and other metrics are left out, because they are based on the same outcomes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

from papa.config.margin import margin_for
from papa.config.measures import positive_class
from papa.config.settings import margins_of
from papa.errors import DamagedArtefact, InputError, count
from papa.files import PathLike, read_facts, read_table
from papa.results.outcomes import (
    ALL,
    ITEM_COLUMNS,
    ORIGINALS,
    Sample,
    Setting,
    TaskOutcomes,
    joint_spread,
    outcomes_in,
)
from papa.results.phrases import Margins, allowed_text, share_replaced
from papa.results.reliance import SIGNIFICANT, UNMATCHED, effect_of
from papa.results.scores import DATA_COLUMNS, RECIPE_COLUMNS
from papa.results.statistics import LEVEL, SOURCES, Estimate, Spread, holm
from papa.results.table import Row, Table, metric_name, percent, printable, records_of

DIFFERS = "differs"
DIFFERS_BY_LESS = "differs, but by less than δ"
EQUAL = "equal within δ"
IDENTICAL = "identical"
UNDECIDED = "undecided"
VERDICTS = (DIFFERS, DIFFERS_BY_LESS, EQUAL, IDENTICAL, UNDECIDED)
BY_BOTH = "examples and seeds"
BY_EXAMPLE = "examples"
BY_NOTHING = "nothing"
"""Ways in which the two sides of a difference are paired."""
PARAMETERS = (*RECIPE_COLUMNS, *(name for name in DATA_COLUMNS if name != "examples"))
"""The columns of runs that are compared for every model and task."""
OF_TASKS = ("texts", "slots", "fidelity")
"""Columns that the outcomes record for each task, except its title and metric."""
EXAMPLE_KEYS = [name for name in ITEM_COLUMNS if name not in ("trivial", "subset", "cluster")]
"""Examples are the same on both sides if they agree in these columns."""
EXAMPLES_ONLY = [source == "examples" for source in SOURCES]
"""The sources of the main effect of examples."""
OUTCOMES = "tables/outcomes.parquet"
RUNS = "tables/runs.parquet"
MAXIMUM_CHARACTERS = 16
"""The number of characters after which a digest, or another text without spaces, is cut when it is printed."""
MAXIMUM_ROWS = 10
"""The number of settings of one side that are printed."""

Key = tuple[str, str]
"""A model and a task."""
Parameters = dict[tuple[str, str | None], dict[str, list[object]]]
"""All values of each parameter, sorted, by model and task and by name; the task is None for those of a model."""


@dataclass(frozen=True)
class Results:
    """One side of a comparison."""

    outcomes: dict[Key, TaskOutcomes]
    facts: Row
    parameters: Parameters


def compare(a: PathLike, b: PathLike, margin: float | str | Sequence[str] | None = None) -> Row:
    """Return the differences between two results folders as plain values.

    `rows` has a verdict for each setting that both results have; `verdicts` counts them.

    - `identical`: every example adds the same to the score with every seed, so there is nothing to test.
    - `differs`: the p value of the difference is below 5%, after Holm's correction over the family.
    - `equal within δ`: two one-sided tests, against -δ and δ, both have p values below 5%, after Holm's correction
      over all settings that are not identical. A setting can differ and be equal within δ.
    - `undecided`: none of these.

    `only_a` and `only_b` list the settings that only one side has. `settings` lists the hyperparameters, data, weights
    and versions that differ.

    Args:
        a, b: the folders.
        margin: δ as a share of attention's contribution to a task in A (such as 0.1 or "10%"), or in points of its
            metric ("1 point", "0.05 nats"); by default the margin of A's config. If attention's contribution is not
            significant, a share is no δ.

    Raises:
        InputError: a folder has no results, a file is damaged, or the results have no setting in common.
    """
    left = _read(Path(a))
    right = _read(Path(b))
    margins = margins_of(left.facts["margin"] if margin is None else margin)
    common = {
        key: [setting for setting in outcomes.settings() if setting in other.settings()]
        for key, outcomes in left.outcomes.items()
        if (other := right.outcomes.get(key)) is not None and outcomes.metric == other.metric
    }
    if not any(common.values()):
        raise InputError(
            f"{a} and {b} have no setting in common: {_described(left)} and {_described(right)}. To be compared, "
            "results need the same names of models and tasks, and the same metric."
        )
    tested = list[Row]()
    for key, settings in common.items():
        tested += _rows(left, right, key, settings, margins)
    rows = judge(pd.DataFrame(tested))
    verdicts = {name: int(rows["verdict"].eq(name).sum()) for name in VERDICTS}
    return {
        "a": str(a),
        "b": str(b),
        "margin": list(margins),
        "compared": len(rows),
        "tested": int(rows["p_holm"].notna().sum()),
        "tested_equal": int(rows["p_equal_holm"].notna().sum()),
        "same": int(rows["same"].sum()),
        "differ": verdicts[DIFFERS] + verdicts[DIFFERS_BY_LESS],
        "verdicts": verdicts,
        "rows": records_of(rows),
        "only_a": _only(left, common),
        "only_b": _only(right, common),
        "settings": _differing(left.parameters, right.parameters),
    }


# -- reading ----------------------------------------------------------------------------------------------------------


def read_outcomes(path: PathLike) -> tuple[dict[Key, TaskOutcomes], Row]:
    """Return all outcomes in a table by model and task, and the facts of the table."""
    table = read_table(path)
    facts = read_facts(path)
    if facts.get("table") != "outcomes" or not table.num_rows:
        raise DamagedArtefact(
            f"{path} is not a table of outcomes; pass the folder of finished results."
        )
    return {(each.model, each.task): each for each in outcomes_in(table, facts)}, facts


def _read(folder: Path) -> Results:
    if not (folder / OUTCOMES).is_file():
        problem = "does not exist"
        if folder.exists():
            problem = f"has no {OUTCOMES}, so it has no finished results"
        raise InputError(
            f"{folder} {problem}; pass results/NAME, and run its workflow to the end first."
        )
    outcomes, facts = read_outcomes(folder / OUTCOMES)
    runs = read_table(folder / RUNS).to_pandas()
    recorded = Parameters()
    for model, rows in runs.groupby("model", sort=False):
        of_model = {name: [value] for name, value in facts["models"][model].items()}
        recorded[str(model), None] = of_model | _values(rows, ["heads"])
    for (model, task), rows in runs.groupby(["model", "task"], sort=False):
        of_task = {name: [facts["tasks"][task][name]] for name in ("metric", *OF_TASKS)}
        recorded[model, task] = _values(rows, PARAMETERS) | of_task
    return Results(outcomes, facts, recorded)


def _values(rows: pd.DataFrame, names: Sequence[str]) -> dict[str, list[object]]:
    return {name: sorted(rows[name].dropna().unique().tolist()) for name in names}


def _described(results: Results) -> str:
    models, tasks = (dict.fromkeys(names) for names in zip(*results.outcomes, strict=True))
    return f"{', '.join(models)} on {', '.join(tasks)}"


def _differing(left: Parameters, right: Parameters) -> list[Row]:
    """Return a row for each parameter that both sides record with different values."""
    rows = []
    for (model, task), parameters in left.items():
        for name, values in parameters.items():
            others = right.get((model, task), {}).get(name)
            if values and others and values != others:
                of_model = {"model": model, "task": task, "setting": name}
                rows.append(of_model | {"a": values, "b": others})
    return rows


# -- tests ------------------------------------------------------------------------------------------------------------


def _rows(
    left: Results, right: Results, key: Key, settings: Sequence[Setting], margins: Margins
) -> Iterator[Row]:
    """Test the common settings of a model and a task; `judge` adds the verdicts after all tests."""
    outcomes = left.outcomes[key]
    same_seeds = _same_seeds(left, right, key)
    a, b, same_examples = samples_of(outcomes, right.outcomes[key])
    delta, no_delta = _delta(a, outcomes, margins)
    for setting in settings:
        estimate, paired = difference(a, b, setting, same_examples, same_seeds)
        row = _identity(left, outcomes, setting)
        for side, sample in (("a", a), ("b", b)):
            seeds = sample.runs.loc[sample.settings[setting], "seed"]
            row |= {
                side: sample.mean(setting),
                f"seeds_{side}": int(seeds.nunique()),
                f"examples_{side}": sample.examples,
            }
        same = same_examples and _identical(a, b, setting)
        row |= {"paired": paired, "same": same, "delta": delta, "no_delta": no_delta}
        yield row | _tested(estimate, delta)


def _identity(side: Results, outcomes: TaskOutcomes, setting: Setting) -> Row:
    return {
        "model": outcomes.model,
        "task": outcomes.task,
        "title": side.facts["tasks"][outcomes.task]["title"],
        "metric": outcomes.metric,
        "positive": positive_class(outcomes.metric, outcomes.names),
        **setting._asdict(),
    }


def _tested(estimate: Estimate | None, delta: float | None) -> Row:
    """Return a difference with its interval and its p values; `p_equal` is that of a difference of at least δ."""
    row: Row = dict.fromkeys(("difference", "low", "high", "p", "p_equal"))
    if estimate is None:
        return row | {"why": "orders have no common seed"}
    row["difference"] = estimate.mean
    if not estimate.freedom:
        return row | {"why": "a single seed or example has no interval"}
    ends = estimate.interval()
    row |= {"low": ends.low, "high": ends.high, "p": estimate.p()}
    return row | {"p_equal": None if delta is None else estimate.p_within(delta), "why": None}


def judge(rows: pd.DataFrame) -> pd.DataFrame:
    """Add `p_holm`, `p_equal_holm` and `verdict`, with all rows in one family for each kind of test."""
    rows = rows.assign(
        p_holm=holm(rows["p"].astype("float64").tolist()),
        # identical outcomes need no equivalence test
        p_equal_holm=holm(rows["p_equal"].astype("float64").mask(rows["same"]).tolist()),
    )
    differs = rows["p_holm"] < 1 - LEVEL
    equal = rows["p_equal_holm"] < 1 - LEVEL
    # the first case that holds is the verdict
    cases = {
        IDENTICAL: rows["same"],
        DIFFERS_BY_LESS: differs & equal,
        DIFFERS: differs,
        EQUAL: equal,
    }
    return rows.assign(verdict=np.select([*cases.values()], [*cases], UNDECIDED))


def samples_of(a: TaskOutcomes, b: TaskOutcomes) -> tuple[Sample, Sample, bool]:
    """Return the scores of both sides on all reported examples, and whether these are the same examples."""
    samples = []
    examples = []
    clusters = []
    for outcomes in (a, b):
        mask = outcomes.subsets()[ALL]
        sample = outcomes.sample(outcomes.metric, mask)
        items = outcomes.items.loc[mask].reindex(columns=EXAMPLE_KEYS)
        samples.append(sample)
        examples.append(items.reset_index(drop=True).astype(str))
        # renumbered, because only the grouping matters
        clusters.append([] if sample.clusters is None else [*pd.factorize(sample.clusters)[0]])
    first, second = samples
    same = a.names == b.names and examples[0].equals(examples[1])
    if same and clusters[0] != clusters[1]:
        raise InputError(
            f"The two results group the examples of task {a.task} in different clusters; set the same `cluster` in "
            "both configs, and run both again, which recomputes tables and the probes on samples of training rows."
        )
    return first, second, same


def difference(
    a: Sample, b: Sample, setting: Setting, same_examples: bool, same_seeds: bool
) -> tuple[Estimate | None, str]:
    """Estimate B - A and return how it is paired; the estimate is None if the runs of a side share no seed.

    Differences are paired by example if both sides scored the same examples. They are also paired by order and seed if
    both sides have the same ones and a seed has the same effect on both. Otherwise, the sides are independent samples,
    and their variances are added.
    """
    if same_examples and same_seeds and _runs(a, setting).index.equals(_runs(b, setting).index):
        spread = joint_spread([(a, setting), (b, setting)])
        return None if spread is None else spread.estimate([0, -1, 1]), BY_BOTH
    first = joint_spread([(a, setting)])
    second = joint_spread([(b, setting)], a.step if same_examples else None)
    if first is None or second is None:
        return None, BY_NOTHING
    if not same_examples:
        return second.estimate([0, 1]).minus(first.estimate([0, 1])), BY_NOTHING
    return _paired_by_example(first, second), BY_EXAMPLE


def _identical(a: Sample, b: Sample, setting: Setting) -> bool:
    """Whether every example has the same counts on both sides, in all runs of a setting."""
    first = _runs(a, setting)
    second = _runs(b, setting)
    return first.index.equals(second.index) and np.array_equal(a.counts[first], b.counts[second])


def _runs(sample: Sample, setting: Setting) -> pd.Series[int]:
    """Return the index of each run of a setting, by its seed and order."""
    return pd.Series(sample.runs_of[setting].unstack())


def _paired_by_example(a: Spread, b: Spread) -> Estimate:
    """Estimate B - A, paired only by example, from spreads of the trivial classifier and the score.

    Effects of examples that both sides share cancel out. All other effects are independent, so their variances are
    added.
    """
    if a.units is None or b.units is None:
        return b.estimate([0, 1]).minus(a.estimate([0, 1]))
    units = b.units[1] - a.units[1]
    unseen = sum(a.unseen) + sum(b.unseen)
    freedom = len(units) - 1.0
    squares = [float(units @ units) * len(units) / freedom + unseen]
    freedoms = [freedom]
    members = [EXAMPLES_ONLY]
    for side in (a, b):
        others = (side.members != EXAMPLES_ONLY).any(1)
        squares += side.squares[others, 1, 1].tolist()
        freedoms += side.freedoms[others].tolist()
        members += side.members[others].tolist()
    spread = Spread(
        means=b.means[1:] - a.means[1:],
        squares=np.array(squares)[:, None, None],
        freedoms=np.array(freedoms),
        members=np.array(members),
        seeds=min(a.seeds, b.seeds),
        units=units[None],
        unseen=(unseen,),
        seeded=a.seeded,
    )
    return spread.estimate([1.0])


def _same_seeds(left: Results, right: Results, key: Key) -> bool:
    """Whether both sides record the same values of all parameters on which the effect of a seed depends."""
    model, _ = key
    a, b = (side.parameters[model, None] | side.parameters[key] for side in (left, right))
    # that neither side records a parameter does not show that it is the same
    return all(a[name] and a[name] == b[name] for name in ("files", *RECIPE_COLUMNS, *OF_TASKS))


def _delta(sample: Sample, outcomes: TaskOutcomes, margins: Margins) -> tuple[float | None, str]:
    """Return a task's δ, or None and the reason why there is none."""
    margin = margin_for(margins, outcomes.metric)
    if margin.in_points:
        return margin.size, ""
    effect = effect_of(sample, ORIGINALS)
    if effect is None:
        return None, UNMATCHED
    status = effect.status(sample, outcomes.guess(outcomes.metric).words)
    if status != SIGNIFICANT:
        return None, status
    return margin.size * effect.contributed().mean, ""


def _only(side: Results, common: dict[Key, list[Setting]]) -> list[Row]:
    rows = []
    for key, outcomes in side.outcomes.items():
        known = common.get(key, [])
        rows += [
            _identity(side, outcomes, each) for each in outcomes.settings() if each not in known
        ]
    return rows


# -- the terminal -----------------------------------------------------------------------------------------------------


def print_comparison(result: Row, console: Console) -> None:
    """Print the result of `compare`: a headline, tables of scores, other differences, and notes on the tests."""
    console.print(f"A: {printable(result['a'])}\nB: {printable(result['b'])}\n")
    console.print(
        headline(result), "", sep="\n", style="bold red" if result["verdicts"][DIFFERS] else "bold"
    )
    for verdict in (DIFFERS, DIFFERS_BY_LESS, UNDECIDED, EQUAL):
        _print_table(verdict.capitalize(), _rows_of_verdict(result["rows"], verdict), 3, console)
    settings = [
        {name: row[name] or "" for name in ("model", "task", "setting")}
        | {side.upper(): " ".join(map(_value, row[side])) for side in "ab"}
        for row in result["settings"]
    ]
    _print_table("Settings that differ", settings, 5, console)
    for side in "ab":
        only = result[f"only_{side}"]
        title = f"Only in {side.upper()}: {count(len(only), 'setting')}"
        title += f", the first {MAXIMUM_ROWS}" if len(only) > MAXIMUM_ROWS else ""
        _print_table(title, [_names(row) for row in only[:MAXIMUM_ROWS]], 3, console)
    console.print(notes(result))


def _rows_of_verdict(rows: Sequence[Row], verdict: str) -> list[dict[str, str]]:
    """Return the cells of the rows with a verdict, those with the smallest p values first."""

    def p_and_size(row: Row) -> tuple[float, float]:
        # rows that were not tested come last
        return 2.0 if row["p"] is None else row["p"], -abs(row["difference"] or 0.0)

    chosen = sorted((row for row in rows if row["verdict"] == verdict), key=p_and_size)
    tested = "p_equal_holm" if verdict == EQUAL else "p_holm"
    return [_scores(row, tested) for row in chosen]


def _print_table(title: str, rows: list[dict[str, str]], names: int, console: Console) -> None:
    if rows:
        Table(title, pd.DataFrame(rows), names).print(console)


def headline(result: Row) -> str:
    """Return the verdicts in a sentence."""
    compared = result["compared"]
    verdicts = result["verdicts"]
    if result["same"] == compared:
        all_common = not (result["only_a"] or result["only_b"])
        scores = "the scores" if all_common else f"the {count(compared, 'score')} that both have"
        return f"The same: {scores} agree to the last digit{'; settings differ' if result['settings'] else ''}."
    less = verdicts[DIFFERS_BY_LESS]
    by_less = f" ({less:,} of them by less than the margin)" if less else ""
    return (
        f"{compared:,} compared: {result['differ']:,} differ{by_less}, {verdicts[IDENTICAL]:,} identical, "
        f"{verdicts[EQUAL]:,} equal within the margin, {verdicts[UNDECIDED]:,} undecided."
    )


def notes(result: Row) -> str:
    """Describe the tests and their margin in sentences."""
    rows = result["rows"]
    paired, untested = (
        Counter(row[name] for row in rows if row[name]) for name in ("paired", "why")
    )
    sentences = [
        "Tested: the main metric of every model, task and setting that both have.",
        f"Paired by {', '.join(f'{name}: {number:,}' for name, number in sorted(paired.items()))}.",
        f"Differs: 5% for {count(result['tested'], 'test')} together (Holm's correction).",
        f"Equal: two one-sided tests with δ = {allowed_text(result['margin'])}, 5% for "
        f"{count(result['tested_equal'], 'test')} together (Holm's correction).",
    ]
    for why in dict.fromkeys(row["no_delta"] for row in rows if row["no_delta"]):
        tasks = dict.fromkeys(row["title"] for row in rows if row["no_delta"] == why)
        sentences.append(f"{', '.join(tasks)}: there is no δ, because {why}.")
    sentences += [f"Not tested, because {why}: {number:,}." for why, number in untested.items()]
    return printable(" ".join(sentences))


def _names(row: Row) -> dict[str, str]:
    replaced = f"{share_replaced(row['fraction'])} replaced"
    setting = ", ".join(filter(None, (replaced, row["constant"], row["order"])))
    return {
        "model": row["model"],
        "task": f"{row['title']} ({metric_name(row['metric'], row['positive'])})",
        "setting": setting,
    }


def _scores(row: Row, tested: str) -> dict[str, str]:
    cells = _names(row) | {side.upper(): _number(row[side]) for side in "ab"}
    interval = "not tested"
    if row["p"] is not None:
        interval = f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
    p = "-" if row[tested] is None else f"{row[tested]:.1g}"
    return cells | {f"B - A [{percent(LEVEL)}]": interval, "p": p, "δ": _number(row["delta"])}


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"


def _value(value: object) -> str:
    text = str(value)
    if len(text) <= MAXIMUM_CHARACTERS or " " in text:
        return text
    return f"{text[:MAXIMUM_CHARACTERS]}…"
