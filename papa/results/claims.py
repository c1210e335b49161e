"""What a run says in numbers: what is lost without attention to the input, and how many heads are free to go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from papa.results.summary import Row, fractions_of, is_main, unique
from papa.results.tables import half_width

Scores = dict[int, float]
"""Scores of one task and fraction by seed."""

UNKNOWN: Row = {"mean": None, "low": None, "high": None}
"""A mean relative drop that is not defined."""

ABOUT_DROP = (
    "Mean relative drop: the mean over tasks of (original - score) / |original|, where that is defined. Its interval is"
    " the 95 % Student-t interval over seeds: each seed gives one mean over the tasks, of its own original minus its"
    " own score, in shares of the task's mean original score. It tells how far training the probes again would move the"
    " number, and nothing of other tasks or other texts."
)
ABOUT_FREE = (
    "Free heads: the most heads that were replaced at once, in the order of the line, such that for them and for every"
    " smaller measured number no task lost: the 95 % Student-t interval over seeds of original minus score, seed by"
    " seed, does not lie above 0. It is not corrected for the number of tasks, which would call more heads free. The"
    " true number lies from there up to the next measured one, at which some task lost. That no loss was seen is no"
    " proof that there is none: the mean drop beside it, with its interval, says how much may be hidden."
)


def claims_of(summary: Sequence[Row], runs: Sequence[Row]) -> list[Row]:
    """The claims of each line of a grid, from its rows of the summary and of the runs, both with their `line`.

    - `drop`: `{mean, low, high}` of the mean relative drop at fraction 0 over `tasks` tasks; see `ABOUT_DROP`. None
      where the line has no such row or no task has a drop; `low` and `high` are None where fewer than two seeds are
      common to all these tasks. `without` names the tasks without a drop.
    - `free`: how many of `heads` are free, see `ABOUT_FREE`; None where there are fewer than two seeds, or nothing
      beside the original. `next` is the next measured number, None where there is none, and `lost` names the tasks
      that lost with so many replaced.
    - `part`: as `drop`, with `heads` replaced: the free ones, or the next measured number where none are free. None
      where `free` is.
    """
    return [
        _claim([row for row in summary if row["line"] == line], [row for row in runs if row["line"] == line])
        for line in unique(row["line"] for row in summary)
    ]


def _claim(summary: Sequence[Row], runs: Sequence[Row]) -> Row:
    rows = [row for row in summary if is_main(row)]
    scores = _scores(runs)
    replaced = {row["fraction"]: row["heads"] - row["kept"] for row in rows}
    fractions = [fraction for fraction in fractions_of(rows) if replaced[fraction]]
    titles = {row["task"]: row["title"] for row in rows}
    free, following, lost = _free(fractions, list(titles), scores)
    partly = following if free == "1" else free
    at_end = [row for row in rows if row["fraction"] == "0"]
    return {
        "line": rows[0]["line"],
        "model": rows[0]["model"],
        "constant": next((row["constant"] for row in rows if row["constant"]), None),
        "order": next((row["order"] for row in rows if row["order"]), None),
        "heads": rows[0]["heads"],
        "seeds": sorted({row["seeds"] for row in rows}),
        "tasks": sum(row["relative_drop"] is not None for row in at_end),
        "without": [row["title"] for row in at_end if row["relative_drop"] is None],
        "drop": _drop(rows, "0", scores),
        "free": free and replaced.get(free, 0),
        "next": following and replaced[following],
        "lost": [titles[task] for task in lost],
        "part": {"heads": replaced[partly], **(_drop(rows, partly, scores) or UNKNOWN)} if partly else None,
    }


def _scores(runs: Sequence[Row]) -> dict[tuple[str, str], Scores]:
    """The scores of each task and fraction; a seed's is its mean over the draws of a random order."""
    draws: dict[tuple[str, str], dict[int, list[float]]] = {}
    for run in runs:
        if is_main(run) and run["score"] is not None:
            draws.setdefault((run["task"], run["fraction"]), {}).setdefault(run["seed"], []).append(run["score"])
    return {place: {seed: fmean(own) for seed, own in seeds.items()} for place, seeds in draws.items()}


def _free(
    fractions: Sequence[str], tasks: Sequence[str], scores: Mapping[tuple[str, str], Scores]
) -> tuple[str | None, str | None, list[str]]:
    """The last of `fractions` (falling) up to which no task lost ("1" where there is none), the one after it, and who
    lost there; None where it cannot be told.
    """
    free: str | None = None
    for fraction in fractions:
        losses = {task: _losses(task, fraction, scores) for task in tasks if (task, fraction) in scores}
        if not losses or any(len(own) < 2 for own in losses.values()):
            break
        if lost := [task for task, own in losses.items() if fmean(own) - half_width(own) > 0]:
            return free or "1", fraction, lost
        free = fraction
    return free, None, []


def _losses(task: str, fraction: str, scores: Mapping[tuple[str, str], Scores]) -> list[float]:
    """What each seed lost against its own original score."""
    original, own = scores.get((task, "1"), {}), scores[task, fraction]
    return [original[seed] - own[seed] for seed in sorted(original.keys() & own.keys())]


def _drop(rows: Sequence[Row], fraction: str, scores: Mapping[tuple[str, str], Scores]) -> Row | None:
    """Mean relative drop at a fraction over the tasks where it is defined, and its interval over common seeds."""
    own = [row for row in rows if row["fraction"] == fraction and row["relative_drop"] is not None]
    if not own:
        return None
    means = {row["task"]: abs(row["mean"]) for row in rows if row["fraction"] == "1"}
    by_seed = [scores[row["task"], at] for row in own for at in ("1", fraction)]
    seeds = sorted(set.intersection(*(set(one) for one in by_seed)))
    mean = fmean(row["relative_drop"] for row in own)
    if len(seeds) < 2:
        return {"mean": mean, "low": None, "high": None}
    each = [
        fmean((scores[t, "1"][seed] - scores[t, fraction][seed]) / means[t] for t in (row["task"] for row in own))
        for seed in seeds
    ]
    half = half_width(each)
    return {"mean": mean, "low": mean - half, "high": mean + half}
