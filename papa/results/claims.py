"""Claims: what a model loses when heads are replaced, how many heads are replaceable at a margin, and on which tasks.

k heads are replaceable at a margin if, for k and every smaller measured number of replaced heads, the one-sided 95%
upper bound of what is lost on every tested task is below the margin. Because all tasks have to pass
(intersection-union) and numbers are tested in ascending order (fixed sequence), this joint claim needs no correction
for tasks and numbers.
The claims about single tasks, and those of several lines, are corrected by Holm's method, so the chance of any wrong
claim is at most 5%; see docs/statistics.md.

A margin is a share of attention's contribution, or in points (nats) of the metric.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from math import inf

import numpy as np
import pandas as pd

from papa.config.margin import POINTS, Margin, margin_for, unit_of
from papa.config.measures import frequent_class
from papa.config.settings import RUN, Config
from papa.config.variant import Constant
from papa.data.layout import WITHOUT_GAPS
from papa.errors import count
from papa.results.outcomes import ALL, ORIGINALS, Sample, Setting, TaskOutcomes, is_probed
from papa.results.phrases import (
    ABOVE_ALL,
    Margins,
    bound_text,
    effect_texts,
    margin_text,
    notes_of,
    order_sentences,
    sentences_of,
)
from papa.results.reliance import (
    CONTRIBUTED,
    LOST,
    RELIANCE,
    SIGNIFICANT,
    Claim,
    effect_of,
    mean_reliance,
    tested,
)
from papa.results.statistics import LEVEL, holm
from papa.results.summary import is_main
from papa.results.table import (
    Row,
    Table,
    records_of,
    rules_between,
    score_text,
    texts,
    used_columns,
)
from papa.results.views import GridView, rows_of

CLAIM_COLUMNS = dict.fromkeys(
    ["grid", "line", "model", "constant", "order", "fraction", "task", "metric", "positive"],
    "string",
)
CLAIM_COLUMNS |= dict.fromkeys(("replaced", "heads", "tasks", "averaged", "claims"), "int64")
CLAIM_COLUMNS |= dict.fromkeys(("margin", "worst"), "string")
STEP_COLUMNS = [
    "grid",
    "line",
    "model",
    "constant",
    "order",
    "orders",
    "fraction",
    "heads",
    "replaced",
]
"""The columns that all tasks of a line have in common at a number of replaced heads."""
NUMBERS = (*LOST, *CONTRIBUTED, *RELIANCE[:3], "bound", "corrected_margin", "p", "corrected_p")
CLAIM_COLUMNS |= dict.fromkeys(NUMBERS, "float64")
"""The columns of the table of claims, which has a row for each line and number of replaced heads, first for all `tasks`
that are tested together, with the mean reliance over those that have one (`averaged`), then for each task. `lost` and
`contributed` are in units of the task's `metric`, with the class of F1 (`positive`). `bound` is the one-sided 95% upper
bound of what is lost, as a share or in these units, as `margin` is. Of all tasks together it is that of the task
(`worst`) with the largest bound, in multiples of its margin. `p` is that of the claim that less than the margin is lost
with this and every smaller measured number of heads; `corrected_p` is corrected for this number of `claims`, and the
claim passes at every margin above `corrected_margin` after the correction."""
MEAN = "mean"
TOGETHER = "all tested tasks"
"""The names of several tasks in the tables of what is lost and of claims."""
CUT_SHARE = 0.01
"""A note says that texts were cut, or have only unknown tokens, if more than this share was or has."""

GAPS_NOTE = (
    "Tokens have fixed slots, with gaps before separators, as in the paper, also for the original. The layout "
    "natural has none, as in pretraining."
)

CLAIMS_NOTE = (
    f"Reliance is averaged over the tasks to which attention contributes significantly. {ABOVE_ALL}"
)
BOUNDS_NOTE = (
    "Bound: the one-sided 95% upper bound of what is lost; of all tasks together, the largest in multiples of the "
    "task's margin. A claim about a number of heads includes those about smaller numbers. It passes at the margins "
    "above the last column, which are corrected for all claims about lines, or about lines and tasks (Holm's method). "
    "A claim that does not pass was not shown; this does not show that it is wrong."
)


Samples = Mapping[tuple[str, str], Sample]
"""The scores of each model and task on all validation examples, by the task's main metric."""


Claims = Sequence[Sequence[Claim | None]]
"""The claims about the tasks at each number of replaced heads, in ascending order; None if an effect is unknown."""


def samples_of(task_outcomes: Iterable[TaskOutcomes]) -> Samples:
    """Return the scores that claims are about."""
    return {
        (outcomes.model, outcomes.task): outcomes.sample(outcomes.metric, outcomes.subsets()[ALL])
        for outcomes in task_outcomes
    }


def claims_of(
    grid: GridView, summary: pd.DataFrame, samples: Samples, margins: Margins
) -> pd.DataFrame:
    """Return the claims about the lines of a grid (`CLAIM_COLUMNS`), with the number of `orders` that were run.

    Claims about single tasks are corrected for all tested tasks and lines of the grid, and joint claims for all lines.
    """
    rows = rows_of(grid, summary[is_main(summary)])
    rows = rows.assign(
        grid=grid.name, corpus=rows["task"].map(grid.tasks), replaced=rows["heads"] - rows["kept"]
    )
    # fractions may round to the same number of heads, which is one claim and not two
    rows = rows[rows["replaced"] > 0].drop_duplicates(["line", "task", "replaced"])
    # a Setting is looked up in dictionaries, in which pandas' missing values are not None
    rows["setting"] = [
        Setting(
            constant=Constant.parse(row["constant"]).for_corpus(row["corpus"]).name,
            order=row["order"],
            fraction=row["fraction"],
        )
        for row in records_of(rows)
    ]
    frames = []
    joint = []
    single = []
    for _, unordered in rows.groupby("line", sort=False):
        of_line = unordered.sort_values("replaced", kind="stable")
        of_line["order"] = next(iter(of_line["order"].dropna()), None)
        of_line["orders"] = max(
            len(samples[row["model"], row["task"]].runs_of[row["setting"]])
            for _, row in of_line.iterrows()
        )
        by_task = [
            _claims_on_task(of_task, samples, margins)
            for _, of_task in of_line.groupby("task", sort=False)
        ]
        of_tested = [frame for frame in by_task if frame["tasks"].all()]
        together = _joint_claims(of_line, of_tested, samples)
        frames += [together, *by_task]
        joint += [together] if of_tested else []
        single += of_tested
    for family in (joint, single):
        _test(family)
    records = [row for frame in frames for row in frame.to_dict("records")]
    claims = pd.DataFrame(records, columns=[*CLAIM_COLUMNS, "orders"])
    # columns of whole numbers have no missing values
    return claims.fillna({"claims": 0, "averaged": 0})


def _test(family: Sequence[pd.DataFrame]) -> None:
    """Add the bounds and p values of sequences of claims, and both corrected for the whole family."""
    sequences = [frame["tests"].tolist() for frame in family]
    p_values = [p_values_of(claims) for claims in sequences]
    corrected_p = corrected_p_values(p_values)
    margins = corrected_margins(sequences)
    for place, frame in enumerate(family):
        sizes = frame["margin"].map(lambda margin: Margin.parse(margin).size)
        frame["claims"] = len(family)
        frame["bound"] = sizes * [_largest_bound(claims, LEVEL) for claims in frame["tests"]]
        frame["corrected_margin"] = sizes * margins[place]
        frame["p"] = p_values[place]
        frame["corrected_p"] = corrected_p[place]


def _claims_on_task(rows: pd.DataFrame, samples: Samples, margins: Margins) -> pd.DataFrame:
    """Return the claims about a task of a line with their `tests`; an untested task has 0 `tasks`."""
    first = rows.iloc[0]
    margin = margin_for(margins, first["metric"])
    sample = samples[first["model"], first["task"]]
    effects = [effect_of(sample, setting) for setting in rows["setting"]]
    claims = [[Claim(effect, margin) if effect else None] for effect in effects]
    return rows.assign(
        task=first["title"],
        margin=str(margin),
        tasks=int(tested(rows["status"], margin).any()),
        tests=pd.Series(claims, rows.index),
    )


def _joint_claims(
    rows: pd.DataFrame, tested: Sequence[pd.DataFrame], samples: Samples
) -> pd.DataFrame:
    """Return the claims about all tested tasks of a line together, with their `tests`."""
    means = dict[Hashable, dict[str, float]]()
    for number, at in rows[rows["status"].eq(SIGNIFICANT)].groupby("replaced"):
        terms = [
            (samples[row["model"], row["task"]], row["corpus"], row["setting"])
            for _, row in at.iterrows()
        ]
        mean = mean_reliance(terms)
        names = ("averaged", *RELIANCE[:3])
        means[number] = dict(zip(names, (len(terms), *mean[:3]), strict=True)) if mean else {}
    steps = rows[STEP_COLUMNS].drop_duplicates("replaced")
    joint = steps.join(pd.DataFrame.from_dict(means, "index"), "replaced")
    joint["tasks"] = len(tested)
    if tested:
        tests = zip(*(frame["tests"] for frame in tested), strict=True)
        joint["tests"] = [[claim for [claim] in at_number] for at_number in tests]
        bounds = [[_largest_bound([claim], LEVEL) for claim in at] for at in joint["tests"]]
        worst = [tested[at.index(max(at))].iloc[0] for at in bounds]
        joint["worst"] = [row["task"] for row in worst]
        joint["margin"] = [row["margin"] for row in worst]
    return joint


def tasks_of(
    grid: GridView, summary: pd.DataFrame, samples: Samples, margins: Margins
) -> pd.DataFrame:
    """Return a row for each model and task of a grid, with the reason if it is `untested`.

    `needed` is the number of validation examples that would change this. There are also the numbers of validation
    examples, clusters, probe seeds and samples of training rows, the scores of the floors, the highest first, the
    score of a blind `guess` if it replaces any, and the number of clusters that the margin amounts to (`at_stake`).
    """
    rows = rows_of(grid, summary[is_main(summary)])
    records = []
    for (model, task), of_task in rows.groupby(["model", "task"], sort=False):
        sample = samples[str(model), str(task)]
        first = of_task.iloc[0]
        margin = margin_for(margins, first["metric"])
        probed = is_probed(of_task["metric"]) & of_task["fraction"].ne("1")
        constants = of_task["constant"].unique()
        used = [each for each in sample.settings if each.constant in constants]
        scores = [
            f"{floor.constant} {score_text(sample.mean(floor))}" for floor in sample.floor_settings
        ]
        record = {
            "grid": grid.name,
            "model": model,
            "task": first["title"],
            "examples": sample.examples,
            "seeds": of_task.loc[probed, "seeds"].min(),
            "samples": min(len(sample.samples_of(each)) for each in (ORIGINALS, *used)),
            "floors": ", ".join(scores),
            "guess": sample.trivial if sample.guesses else np.nan,
            "untested": None,
            "needed": None,
            "clusters": None,
            "at_stake": np.nan,
        }
        if not tested(of_task["status"], margin).any():
            record["untested"] = first["status"]
            original = effect_of(sample, ORIGINALS)
            record["needed"] = original and original.examples_needed(
                sample.examples, margin.in_points
            )
        if sample.clusters is not None:
            record["clusters"] = len(sample.trivial_values)
            size = margin.size if margin.in_points else margin.size * first["contributed"]
            # a log-likelihood has no share
            score = np.nan if sample.metric.log_scaled else sample.mean(ORIGINALS) or np.nan
            record["at_stake"] = size / score * len(sample.trivial_values)
        records.append(record)
    types = dict.fromkeys(("needed", "clusters", "seeds"), "Int64")
    return pd.DataFrame(records).astype(types)


def conclusion_of(
    claims: pd.DataFrame,
    tasks: pd.DataFrame,
    margins: Margins,
    orders: pd.DataFrame,
    notes: Sequence[str] = (),
) -> Row:
    """Return the content of claims.json: sentences, a table and notes about the first grid, and records of all grids.

    Args:
        claims, tasks: the tables of all grids.
        margins: the margins of the study.
        orders: comparisons of learned orders with random ones; see `orders_of`.
        notes: further notes, about the data.
    """
    of_grid, of_tasks = (rows[rows["grid"].eq(tasks["grid"].iloc[0])] for rows in (claims, tasks))
    model = " (" + of_tasks["model"] + ")" if of_tasks["model"].nunique() > 1 else ""
    of_tasks = of_tasks.assign(name=of_tasks["task"] + model)
    lost = next((table.frame for table in tables_of(of_grid)), pd.DataFrame())
    content: Row = {
        "sentences": [*sentences_of(of_grid, of_tasks, margins), *order_sentences(orders)],
        "table": lost.to_dict("split", index=False),
        "notes": [*notes_of(of_grid, of_tasks), *notes],
        "margin": list(margins),
    }
    for name, rows in {"claims": claims, "tasks": tasks, "orders": orders}.items():
        # JSON has neither infinity nor NaN
        content[name] = records_of(rows.mask(rows.isin([inf, -inf])))
    return content


def data_notes(
    config: Config,
    facts: Mapping[str, Row],
    rows: pd.DataFrame,
    laid_out: Mapping[tuple[str, str], Row],
) -> list[str]:
    """Return notes on a study's data: leaked rows, cut or unknown texts, gaps, and F1 of the more frequent class.

    Args:
        config: the config of the study.
        facts: the facts about the table of each corpus.
        rows: the summary.
        laid_out: the facts about the tokens of each model and corpus.
    """
    leaked = []
    frequent = []
    titles: dict[str, Row] = {"cut": {}, "unknown": {}}
    for name in dict.fromkeys(config.tasks[task].corpus for _, task in config.pairs):
        if shared := facts[name]["shared"].get("validation", 0):
            size = facts[name]["rows"]["validation"]
            leaked.append(f"{shared:,} of {count(size, 'row')} of {name}")
    for row in rows[rows["main"]].drop_duplicates(["model", "task"]).to_dict("records"):
        task = config.tasks[row["task"]]
        tokens = laid_out[row["model"], task.corpus]
        for split, noun in (("train", "training row"), ("validation", "validation row")):
            size = row[f"rows_{split}"]
            # tokens of older versions lack this fact
            unknown = tokens.get("unknown", {}).get(split, 0)
            for problem, number in {"cut": row[f"cut_{split}"], "unknown": unknown}.items():
                if number > CUT_SHARE * size:
                    share = f"{number:,} of {count(size, noun)}"
                    key = (task.corpus, share, row["model"])
                    titles[problem].setdefault(key, []).append(row["title"])
        if (labels := facts[task.corpus]["labels"].get(row["task"])) and not task.labels:
            frequent.append(frequent_class(row["metric"], labels["names"], labels["train_counts"]))
    sentences = {
        "Validation rows that are also in training: {}. What is trained may have memorised them.": leaked,
        "Texts cut because they have more tokens than slots: {}.": _listed(titles["cut"]),
        "Texts of only unknown tokens: {}. The model cannot tell them apart.": _listed(
            titles["unknown"]
        ),
    }
    notes = [note.format("; ".join(found)) for note, found in sentences.items() if found]
    if not rows["style"].dropna().isin(WITHOUT_GAPS).all():
        notes.append(GAPS_NOTE)
    return [*notes, *filter(None, dict.fromkeys(frequent))]


def _listed(titles: Row) -> list[str]:
    """Describe shares of rows, each of several tasks with one corpus and model."""
    return [
        f"{share} of {', '.join(of_tasks)} ({model})"
        for (_, share, model), of_tasks in titles.items()
    ]


# -- several claims at once --------------------------------------------------------------------------------------------
#
# A claim includes those about fewer heads, so the numbers of a line need no correction. Holm's method corrects for the
# sequences of claims about lines or tasks. A sequence leaves the correction only when its last number passes; until
# then, one of its claims may still be wrong. This is the closed test of all claims with Bonferroni's test of each
# intersection, so it holds for any dependence between tasks.


def p_values_of(claims: Claims) -> list[float]:
    """Return the p value of all claims at each number, without a correction."""
    # a task whose effect is unknown at this number may lose everything there
    values = [max(1.0 if claim is None else claim.p for claim in at_number) for at_number in claims]
    return list(accumulate(values, max))


def corrected_p_values(sequences: Sequence[Sequence[float]]) -> list[list[float]]:
    """Correct the p values of several sequences; each sequence's p values never fall."""
    last = [values[-1] for values in sequences]
    return [
        [holm([*last[:place], value, *last[place + 1 :]])[place] for value in values]
        for place, values in enumerate(sequences)
    ]


def _largest_bound(claims: Iterable[Claim | None], level: float) -> float:
    """Return the largest bound of several claims in multiples of their margins; infinite if one is unknown."""
    return max(inf if claim is None else claim.bound(level) for claim in claims)


def corrected_margins(sequences: Sequence[Claims]) -> list[list[float]]:
    """Return the margins above which the claim at each number of each sequence passes after the correction.

    They are in multiples of the study's margins.

    This is the same test as `corrected_p_values`: a claim passes at a margin if its corrected p value is below 5%.
    With n sequences left, a claim passes at 5% / n, unless another of these n sequences passes completely.
    """
    levels = [1 - (1 - LEVEL) / left for left in range(len(sequences), 0, -1)]

    @cache
    def margins(place: int, level: float) -> list[float]:
        """Return the margin above which the claim at each number passes at a confidence level."""
        bounds = [_largest_bound(at_number, level) for at_number in sequences[place]]
        return list(accumulate(bounds, max, initial=0.0))[1:]

    def corrected(place: int, number: int) -> float:
        smallest = 0.0
        for passed, level in enumerate(levels):
            bound = margins(place, level)[number]
            others = sorted(
                margins(other, level)[-1] for other in range(len(sequences)) if other != place
            )
            completed = others[passed] if passed < len(others) else inf
            smallest = max(smallest, min(bound, completed))
            if bound <= completed:  # with fewer sequences left, the bound is only lower
                break
        return smallest

    return [
        [corrected(place, number) for number in range(len(claims))]
        for place, claims in enumerate(sequences)
    ]


# -- tables ------------------------------------------------------------------------------------------------------------


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """Return two tables for each grid: what is lost, and which claims pass; all tasks together come first."""
    tables = []
    for grid, rows in frame.groupby("grid", sort=False):
        title = "What is lost" if grid == RUN else str(grid).replace("_", " ").capitalize()
        text = rows[["line"]] if rows["line"].nunique() > 1 else rows[[]]
        text = text.assign(task=rows["task"])
        text["heads replaced"] = texts("{:,} of {:,}".format, rows, "replaced", "heads")
        names = len(text.columns)
        lost = text.fillna({"task": MEAN}).join(effect_texts(rows))
        if rows["metric"].dropna().map(unit_of).eq(POINTS).any():  # nats are in the cells
            lost = lost.rename(columns={"lost": f"lost ({POINTS})"})
        lost = lost[rows["task"].notna() | rows["averaged"].gt(1)]
        tables.append(Table(title, lost, names, rules=rules_between(lost.iloc[:, :1])))
        tested = rows[rows["tasks"].gt(1) | (rows["task"].notna() & rows["tasks"].eq(1))]
        claims = text.loc[tested.index].fillna({"task": TOGETHER})
        claims["margin"] = [margin_text(row) for row in tested.to_dict("records")]
        claims["bound"] = texts(bound_text, tested, "bound", "margin")
        claims["on"] = tested["worst"].fillna("")
        claims["passes at margins above"] = texts(bound_text, tested, "corrected_margin", "margin")
        if len(claims):
            claims = used_columns(claims)
            rules = rules_between(claims.iloc[:, :1])
            tables.append(Table(f"{title}: claims", claims, names, BOUNDS_NOTE, rules))
    return tables
