"""What a run says in numbers: what is lost without attention to the input, and how many heads are free to go."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import pandas as pd

from papa.files import JSON
from papa.results.summary import fractions_of, half_width, is_main

Drop = dict[str, float | None]
"""A mean relative drop: `mean`, `low` and `high`, which are None if they are not defined."""
Claim = dict[str, JSON]
UNKNOWN: Drop = {"mean": None, "low": None, "high": None}

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


def claims_of(summary: pd.DataFrame, runs: pd.DataFrame) -> list[Claim]:
    """The claims of each line of a grid, from its rows of the summary and of the runs, both with their `line`.

    - `drop`: the mean relative drop at fraction 0 over `tasks` tasks; see `ABOUT_DROP`. None if the line has no such
      row or no task has a drop; `low` and `high` are None if fewer than two seeds are common to all these tasks.
      `without` names the tasks without a drop.
    - `free`: how many of `heads` are free, see `ABOUT_FREE`; None if there are fewer than two seeds, or nothing beside
      the original. `next` is the next measured number, None if there is none, and `lost` names the tasks that lost with
      so many replaced.
    - `part`: as `drop`, with `heads` replaced: the free ones, or the next measured number if none are free. None if
      `free` is.
    """
    return [_claim(own[is_main(own)], runs[runs["line"] == line]) for line, own in summary.groupby("line", sort=False)]


def _claim(rows: pd.DataFrame, runs: pd.DataFrame) -> Claim:
    scores = _scores(runs)
    heads = int(rows["heads"].iloc[0])
    replaced = {fraction: heads - int(kept) for fraction, kept in zip(rows["fraction"], rows["kept"], strict=True)}
    fractions = [fraction for fraction in fractions_of(rows) if replaced[fraction]]
    titles = dict(zip(rows["task"], rows["title"], strict=True))
    free, following, lost = _free(fractions, list(titles), scores)
    partly = following if free == "1" else free
    at_end = rows[rows["fraction"] == "0"]
    part = partly and (_drop(rows, partly, scores) or UNKNOWN)
    return {
        "line": rows["line"].iloc[0],
        "model": rows["model"].iloc[0],
        "constant": next(iter(rows["constant"].dropna()), None),
        "order": next(iter(rows["order"].dropna()), None),
        "heads": heads,
        "seeds": sorted(int(number) for number in rows["seeds"].unique()),
        "tasks": int(at_end["relative_drop"].notna().sum()),
        "without": list(at_end.loc[at_end["relative_drop"].isna(), "title"]),
        "drop": _drop(rows, "0", scores),
        "free": replaced.get(free, 0) if free else None,
        "next": replaced[following] if following else None,
        "lost": [titles[task] for task in lost],
        "part": {"heads": replaced[partly], **part} if partly and part else None,
    }


def _scores(runs: pd.DataFrame) -> pd.DataFrame:
    """The scores of each seed (rows), task and fraction (columns); a seed's is its mean over random orders."""
    known = runs[is_main(runs)].dropna(subset="score")
    return known.groupby(["seed", "task", "fraction"])["score"].agg(fmean).unstack(["task", "fraction"])


def _free(
    fractions: Sequence[str], tasks: Sequence[str], scores: pd.DataFrame
) -> tuple[str | None, str | None, list[str]]:
    """The last of `fractions` (falling) up to which no task lost ("1" if there is none), the one after it, and who lost
    there; None if it cannot be told.
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


def _losses(task: str, fraction: str, scores: pd.DataFrame) -> list[float]:
    """What each seed lost against its own original score."""
    return [] if (task, "1") not in scores else list((scores[task, "1"] - scores[task, fraction]).dropna())


def _drop(rows: pd.DataFrame, fraction: str, scores: pd.DataFrame) -> Drop | None:
    """Mean relative drop at a fraction over the tasks for which it is defined, and its interval over common seeds."""
    own = rows[rows["fraction"].eq(fraction) & rows["relative_drop"].notna()].set_index("task")["relative_drop"]
    if own.empty:
        return None
    means = rows[rows["fraction"] == "1"].set_index("task")["mean"].abs()
    common = scores[[(task, at) for task in own.index for at in ("1", fraction)]].dropna()
    mean = fmean(own)
    if len(common) < 2:
        return {"mean": mean, "low": None, "high": None}
    each = [
        fmean((seed[task, "1"] - seed[task, fraction]) / means[task] for task in own.index)
        for _, seed in common.iterrows()
    ]
    half = half_width(each)
    return {"mean": mean, "low": mean - half, "high": mean + half}
