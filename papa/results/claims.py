"""Claims: how much a model relies on attention, how many heads are replaceable at a margin, and which tasks are
excluded.

k heads are replaceable at margin δ if, for k and every smaller measured number of replaced heads, the one-sided 95%
upper bound of the reliance on every task that counts is below δ. Because all tasks have to pass (intersection-union)
and numbers are tested in ascending order (fixed sequence), this joint claim needs no correction for tasks and numbers.
The claims about single tasks, and those of several lines, are corrected by Holm's method, so the chance of any wrong
claim is at most 5%; see docs/statistics.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from math import inf
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from papa.config.measures import frequent_class
from papa.config.settings import RUN, Config
from papa.config.variant import Constant
from papa.errors import count
from papa.results.outcomes import ALL, ORIGINALS, Sample, Setting, TaskOutcomes, is_probed
from papa.results.phrases import (
    ABOVE_ALL,
    COVERED,
    FORMULA,
    bound_text,
    notes_of,
    points_text,
    reliance_text,
    sentences_of,
)
from papa.results.reliance import (
    COUNTS,
    Reliance,
    examples_needed,
    mean_reliance,
    reliance_of,
    replaceable,
)
from papa.results.statistics import LEVEL, holm
from papa.results.summary import is_main
from papa.results.table import Table, percent, texts
from papa.results.views import GridView, rows_of

CLAIM_COLUMNS = dict.fromkeys(("grid", "line", "model", "constant", "order", "fraction"), "string")
CLAIM_COLUMNS |= {"replaced": "int64", "heads": "int64", "tasks": "int64"}
CLAIM_COLUMNS |= dict.fromkeys(("reliance", "low", "high", "bound", "margin"), "float64") | {
    "worst": "string"
}
CLAIM_COLUMNS |= {
    "task": "string",
    "p": "float64",
    "corrected_p": "float64",
    "corrected_margin": "float64",
}
CLAIM_COLUMNS |= {
    "claims": "int64",
    "contribution": "float64",
    "metric": "string",
    "positive": "string",
}
"""The columns of the table of claims, which has a row for each line and number of replaced heads, first for all tasks
together, then for each task that counts (`task`). `bound` is the one-sided 95% upper bound of the reliance, the largest
of all tasks (`worst`). `margin` is the largest bound of this row and of those with fewer heads: this number is
replaceable at every larger margin. `corrected_margin` and `corrected_p` are corrected for this number of `claims`. A
task has a `contribution` of attention, the original minus the highest floor, in units of its `metric`, with the class
of F1 (`positive`)."""
CUT_SHARE = 0.01
"""A note says that texts were cut, or have only unknown tokens, if more than this share was or has."""

CLAIMS_NOTE = (
    f"{FORMULA} Reliance is averaged over the tasks that count, with its 95% interval over {COVERED}. Largest bound: "
    "the largest of the tasks' one-sided 95% upper bounds. Margin: this number of heads is replaceable at every larger "
    "margin, because no task that counts has a larger bound at this or any smaller measured number. Tasks whose "
    f"original does not beat every floor are excluded. {ABOVE_ALL}"
)
BY_TASK_NOTE = (
    "Each task by itself: the margin of {margin} of attention's contribution in units of the score, and the largest "
    "number of heads that is replaceable at this margin, if only this claim is made, and corrected for the {claims} of "
    "this table (Holm's method). Passes at margins above: the smallest margin for this corrected number. Next: the "
    "next measured number, and the margin above which it would pass. A number that does not pass was not shown to be "
    "replaceable; this does not show that it is not."
)


Samples = Mapping[tuple[str, str], Sample]
"""The scores of each model and task on all validation examples, by the task's main metric."""
Reliances = Sequence[Sequence[Reliance | None]]
"""The reliances that a claim is about at each number of replaced heads, in ascending order; None if one is unknown."""


def samples_of(task_outcomes: Iterable[TaskOutcomes]) -> Samples:
    """Return the scores that claims are about."""
    return {
        (outcomes.model, outcomes.task): outcomes.sample(outcomes.metric, outcomes.subsets()[ALL])
        for outcomes in task_outcomes
    }


def claims_of(
    grid: GridView, summary: pd.DataFrame, samples: Samples, margin: float
) -> pd.DataFrame:
    """Return the claims about the lines of a grid (`CLAIM_COLUMNS`), with the number of `orders` that were run.

    Claims about single tasks are corrected for all tasks and lines of the grid, and joint claims for all lines.
    """
    rows = rows_of(grid, summary[is_main(summary)])
    rows = rows.assign(
        grid=grid.name, corpus=rows["task"].map(grid.tasks), replaced=rows["heads"] - rows["kept"]
    )
    rows = rows[rows["replaced"] > 0].drop_duplicates(["line", "task", "replaced"])
    names = rows[["constant", "corpus", "order", "fraction"]].astype(object)
    rows["setting"] = [
        Setting(Constant.parse(constant).for_corpus(corpus).name, order, fraction)
        for constant, corpus, order, fraction in names.where(names.notna(), None).itertuples(
            index=False
        )
    ]
    lines = [_claims_of_line(of_line, samples) for _, of_line in rows.groupby("line", sort=False)]
    joint = [together for together, *by_task in lines if by_task]
    single = [frame for _, *by_task in lines for frame in by_task]
    p_values = [p_values_of(frame["reliances"].tolist(), margin) for frame in single]
    for frame, p, corrected_p in zip(single, p_values, corrected_p_values(p_values), strict=True):
        frame["p"], frame["corrected_p"] = p, corrected_p
    for frames in (joint, single):
        margins = corrected_margins([frame["reliances"].tolist() for frame in frames])
        for frame, corrected_margin in zip(frames, margins, strict=True):
            frame["claims"], frame["corrected_margin"] = len(frames), corrected_margin
    records = [
        row
        for of_line in lines
        for frame in of_line
        for row in frame.reset_index().to_dict("records")
    ]
    claims = pd.DataFrame(records, columns=[*CLAIM_COLUMNS, "orders"])
    return claims.assign(claims=claims["claims"].fillna(len(joint)))


def _claims_of_line(rows: pd.DataFrame, samples: Samples) -> list[pd.DataFrame]:
    """Return the claims about a line, uncorrected and with their `reliances`: about all tasks, then about each."""
    model, order = rows["model"].iloc[0], next(iter(rows["order"].dropna()), None)
    steps = rows.drop_duplicates("replaced").set_index("replaced").sort_index()
    steps = steps[["grid", "line", "model", "constant", "fraction", "heads"]].assign(order=order)
    runs = [
        samples[model, task].runs_of(setting)
        for task, setting in zip(rows["task"], rows["setting"], strict=True)
    ]
    steps["orders"] = max(map(len, runs))
    counting, by_task = rows[rows["status"].eq(COUNTS)], list[pd.DataFrame]()
    for task, of_task in counting.groupby("task", sort=False):
        sample, at = samples[model, str(task)], of_task.set_index("replaced").reindex(steps.index)
        values = [
            [reliance_of(sample, setting) if isinstance(setting, Setting) else None]
            for setting in at["setting"]
        ]
        claim = {
            "task": of_task["title"].iloc[0],
            "tasks": 1,
            "reliance": at["reliance"],
            "low": at["reliance_low"],
        }
        claim |= {
            "high": at["reliance_high"],
            "bound": at["reliance_bound"].fillna(inf),
            "reliances": values,
        }
        claim |= dict(of_task[["metric", "positive"]].iloc[0])
        claim["contribution"] = sample.contribution
        by_task.append(steps.assign(**claim))  # an unknown reliance passes at no margin
    terms = {number: list[tuple[Sample, str, Setting]]() for number in steps.index}
    for number, task, corpus, setting in counting[
        ["replaced", "task", "corpus", "setting"]
    ].itertuples(index=False):
        terms[number].append((samples[model, task], corpus, setting))
    means = pd.DataFrame(
        [_mean(of_number) for of_number in terms.values()],
        steps.index,
        ["tasks", "reliance", "low", "high"],
    )
    together = steps.join(means)
    if by_task:
        titles = [frame["task"].iloc[0] for frame in by_task]
        bounds = pd.concat([frame["bound"] for frame in by_task], axis=1, keys=titles)
        together["bound"], together["worst"] = bounds.max(axis=1), bounds.idxmax(axis=1)
        together["reliances"] = [
            [reliance for [reliance] in of_number]
            for of_number in zip(*(frame["reliances"] for frame in by_task), strict=True)
        ]
    frames = [together, *by_task]
    return (
        [frame.assign(margin=frame["bound"].clip(lower=0).cummax()) for frame in frames]
        if by_task
        else frames
    )


def _mean(terms: Sequence[tuple[Sample, str, Setting]]) -> dict[str, float]:
    """Return the mean reliance over tasks with its interval, and the number of tasks."""
    mean = mean_reliance(terms) if terms else None
    return dict(
        zip(
            ("tasks", "reliance", "low", "high"),
            (len(terms), *mean) if mean else (0,),
            strict=False,
        )
    )


def tasks_of(grid: GridView, summary: pd.DataFrame, samples: Samples) -> pd.DataFrame:
    """Return a row for each model and task of a grid, with the reason if it is `excluded`.

    `needed` is the number of validation examples that would include it. There are also the numbers of validation
    examples, clusters, probe seeds and samples of training rows, the floors, the highest first, and whether a blind
    `guess` replaces that one.
    """
    rows, records = rows_of(grid, summary[is_main(summary)]), []
    for (model, task), of_task in rows.groupby(["model", "task"], sort=False):
        sample, status = samples[str(model), str(task)], of_task["status"].iloc[0]
        seeds = of_task.loc[
            is_probed(of_task["metric"]) & of_task["fraction"].ne("1"), "seeds"
        ].min()
        record = {
            "grid": grid.name,
            "model": model,
            "task": of_task["title"].iloc[0],
            "examples": sample.examples,
        }
        if status != COUNTS:
            record |= {"excluded": status, "needed": examples_needed(sample)}
        record |= {"clusters": None if sample.clusters is None else len(sample.trivial_values)}
        used = [
            ORIGINALS,
            *(each for each in sample.settings if each.constant in of_task["constant"].tolist()),
        ]
        record |= {"seeds": seeds, "samples": min(len(sample.samples_of(each)) for each in used)}
        record |= {"floors": [floor.constant for floor in sample.floor_settings]}
        records.append(record | {"guess": bool({*sample.floor_settings[:1]} & sample.guesses)})
    columns = "grid model task excluded needed examples clusters seeds samples floors guess".split()
    tasks = pd.DataFrame(records, columns=columns)
    return tasks.astype(dict.fromkeys(("needed", "clusters", "seeds"), "Int64"))


class Conclusion(TypedDict):
    """The content of claims.json: sentences, a table and notes about the first grid, and the records of all grids."""

    sentences: list[str]
    table: dict[str, list[object]]
    notes: list[str]
    margin: float
    claims: list[dict[Hashable, object]]
    tasks: list[dict[Hashable, object]]


def conclusion_of(
    claims: pd.DataFrame, tasks: pd.DataFrame, margin: float, notes: Sequence[str] = ()
) -> Conclusion:
    """Return the conclusion of a study.

    Args:
        claims, tasks: the tables of all grids.
        margin: the margin of the study.
        notes: further notes, about the data.
    """
    of_grid, of_tasks = (rows[rows["grid"].eq(tasks["grid"].iloc[0])] for rows in (claims, tasks))
    model = " (" + of_tasks["model"] + ")" if of_tasks["model"].nunique() > 1 else ""
    of_tasks = of_tasks.assign(name=of_tasks["task"] + model)
    tables = [table.frame for table in tables_of(of_grid[of_grid["margin"].notna()], margin)]
    return {
        "sentences": sentences_of(of_grid, of_tasks, margin),
        "table": (tables or [pd.DataFrame()])[0].to_dict("split", index=False),
        "notes": [*notes_of(of_grid, of_tasks, margin), *notes],
        "margin": margin,
        "claims": _records(claims),
        "tasks": _records(tasks),
    }


def _records(rows: pd.DataFrame) -> list[dict[Hashable, object]]:
    """Return rows as plain values for JSON, with null for unknown values and for infinity."""
    known = rows.notna() & ~rows.isin([inf, -inf])
    return list(rows.astype(object).where(known, None).to_dict("records"))


def data_notes(
    config: Config,
    facts: Mapping[str, Mapping[str, Any]],
    rows: pd.DataFrame,
    laid_out: Mapping[tuple[str, str], Mapping[str, Any]],
) -> list[str]:
    """Return notes on a study's data: leaked rows, cut or unknown texts, and F1 of the more frequent class.

    Args:
        config: the config of the study.
        facts: the facts about the table of each corpus.
        rows: the summary.
        laid_out: the facts about the tokens of each model and corpus.
    """
    leaked, frequent = list[str](), list[str]()
    cut = defaultdict[tuple[str, str, str], list[str]](list)
    unknown = defaultdict[tuple[str, str, str], list[str]](list)
    for name in dict.fromkeys(config.tasks[task].corpus for _, task in config.pairs):
        if shared := facts[name]["shared"].get("validation", 0):
            size = facts[name]["rows"]["validation"]
            shared_rows = f"{shared:,} of {count(size, 'row')}" if size else count(shared, "row")
            leaked.append(f"{shared_rows} of {name}")
    for row in rows[rows["main"]].drop_duplicates(["model", "task"]).to_dict("records"):
        task = config.tasks[row["task"]]
        for split, noun in (("train", "training row"), ("validation", "validation row")):
            size = row[f"rows_{split}"]
            # tokens of older versions lack this fact
            unread = laid_out[row["model"], task.corpus].get("unknown", {}).get(split, 0)
            for tasks, number in ((cut, row[f"cut_{split}"]), (unknown, unread)):
                if number > CUT_SHARE * size:
                    share = f"{number:,} of {count(size, noun)}"
                    tasks[task.corpus, row["model"], share].append(row["title"])
        if (labels := facts[task.corpus]["labels"].get(row["task"])) and not task.labels:
            frequent.append(frequent_class(row["metric"], labels["names"], labels["train_counts"]))

    def listed(found: Mapping[tuple[str, str, str], Sequence[str]]) -> str:
        parts = (
            f"{share} of {', '.join(each)} ({model})" for (_, model, share), each in found.items()
        )
        return "; ".join(parts)

    notes = [
        f"Validation rows that are also in training: {'; '.join(leaked)}. Probes may have memorised their answers."
        if leaked
        else "",
        f"Texts cut because they have more tokens than slots: {listed(cut)}." if cut else "",
        f"Texts of only unknown tokens: {listed(unknown)}. The model cannot tell them apart."
        if unknown
        else "",
        *dict.fromkeys(frequent),
    ]
    return list(filter(None, notes))


# -- several claims at once --------------------------------------------------------------------------------------------
#
# A claim includes those about fewer heads, so the numbers of a line need no correction. Holm's method corrects for the
# sequences of claims about lines or tasks. A sequence leaves the correction only when its last number passes; until
# then, one of its claims may still be wrong. This is the closed test of all claims with Bonferroni's test of each
# intersection, so it holds for any dependence between tasks.


def p_values_of(reliances: Reliances, margin: float) -> list[float]:
    """Return the p value of the claim at each number that all reliances are below the margin, without a correction."""
    values = [
        max(1.0 if reliance is None else reliance.p_below(margin) for reliance in at_number)
        for at_number in reliances
    ]
    return list(accumulate(values, max))


def corrected_p_values(sequences: Sequence[Sequence[float]]) -> list[list[float]]:
    """Correct the p values of several sequences; each sequence's p values never fall."""
    last = [values[-1] for values in sequences]
    return [
        [holm([*last[:place], value, *last[place + 1 :]])[place] for value in values]
        for place, values in enumerate(sequences)
    ]


def smallest_margins(reliances: Reliances, level: float) -> list[float]:
    """Return the margin above which the claim at each number passes at a confidence level."""
    bounds = [
        max(inf if reliance is None else reliance.bound(level) for reliance in at_number)
        for at_number in reliances
    ]
    return list(accumulate(bounds, max, initial=0.0))[1:]


def corrected_margins(sequences: Sequence[Reliances]) -> list[list[float]]:
    """Return the margin above which the claim at each number of each sequence passes after the correction.

    This is the same test as `corrected_p_values`: a claim passes at a margin if its corrected p value is below 5%.
    With n sequences left, a claim passes at 5% / n, unless another of these n sequences passes completely.
    """
    levels = [1 - (1 - LEVEL) / left for left in range(len(sequences), 0, -1)]

    @cache
    def margins(place: int, level: float) -> list[float]:
        return smallest_margins(sequences[place], level)

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
        [corrected(place, number) for number in range(len(reliances))]
        for place, reliances in enumerate(sequences)
    ]


# -- tables ------------------------------------------------------------------------------------------------------------


def tables_of(frame: pd.DataFrame, margin: float) -> list[Table]:
    """Return two tables of claims for each grid: of all tasks together, and of each task by itself."""
    tables = []
    for grid, rows in frame.groupby("grid", sort=False):
        title = (
            "Reliance by heads replaced"
            if grid == RUN
            else str(grid).replace("_", " ").capitalize()
        )
        joint, single = rows[rows["task"].isna()], rows[rows["task"].notna()]
        text = pd.DataFrame(
            {
                "line": joint["line"],
                "heads replaced": joint["replaced"].map("{:,}".format)
                + " of "
                + joint["heads"].map("{:,}".format),
                "tasks": joint["tasks"],
                "reliance": texts(reliance_text, joint, "reliance", "low", "high"),
                "largest bound": [bound_text(bound, margin) for bound in joint["bound"]],
                "on": joint["worst"].fillna("-"),
                "margin": [bound_text(least, margin) for least in joint["margin"]],
            }
        )
        if (joint["claims"] > 1).any():
            text["corrected for lines"] = [
                bound_text(least, margin) for least in joint["corrected_margin"]
            ]
        tables.append(Table(title, text, 2, rules=_rules(joint["line"])))
        if len(single):
            note = BY_TASK_NOTE.format(
                margin=percent(margin, None), claims=count(single["claims"].iloc[0], "claim")
            )
            by_task = pd.DataFrame(
                [
                    _task_cells(group, margin)
                    for _, group in single.groupby(["line", "task"], sort=False)
                ]
            )
            tables.append(
                Table(f"{title}, each task by itself", by_task, 2, note, _rules(by_task["line"]))
            )
    return tables


def _task_cells(rows: pd.DataFrame, margin: float) -> dict[str, str]:
    heads = f" of {rows['heads'].iloc[0]:,}"
    single, corrected = (
        replaceable(rows, margin, column) for column in ("margin", "corrected_margin")
    )
    margins = pd.Series(
        [bound_text(least, margin) for least in rows["corrected_margin"]], rows["replaced"]
    )
    following = margins[margins.index > corrected]
    return {
        "line": rows["line"].iloc[0],
        "task": rows["task"].iloc[0],
        "margin in score": points_text(
            margin, *rows[["contribution", "metric", "positive"]].iloc[0]
        ),
        "by itself": f"{single:,}{heads}" if single else "none shown",
        "corrected": f"{corrected:,}{heads}" if corrected else "none shown",
        "passes at margins above": margins.get(corrected, "-"),
        "next": f"{following.index[0]:,}: {following.iloc[0]}" if len(following) else "-",
    }


def _rules(lines: pd.Series[str]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(lines.ne(lines.shift()).to_numpy()).tolist())
