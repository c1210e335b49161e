"""The wording of conclusions: reliance, replaceable heads and excluded tasks.

The HTML report, the terminal and claims.json have the same sentences and notes, all from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil, isfinite, isnan

import pandas as pd

from papa.config.measures import MEASURES
from papa.config.variant import AVERAGE_OF, LIST_PREFIX, TRAINED_SUFFIX, Constant
from papa.errors import count
from papa.results.reliance import conclusive, narrow, replaceable
from papa.results.table import metric_name, percent

LARGEST_SHOWN_BOUND = 2.0
"""The largest upper bound that is shown as a number. A larger one mostly reflects an uncertain contribution."""
INCONCLUSIVE = "inconclusive"
PROPER = ("F1", "Matthews")  # keep their capital in a sentence
MAXIMUM_DECIMALS = 9
"""The largest number of decimals, less one, to show that a bound is below a margin."""
ABOVE_ALL = "Above 100%, constants are worse than no context at all."
FORMULA = (
    "Reliance: (original - constants) / (original - context-free). 0%: fixed attention does as well; 100%: no better "
    "than a model whose tokens never see each other."
)
COVERED = "probe seeds and validation examples, and samples of training rows and orders of heads if there are several"
"""The sources of variance that intervals cover."""
RELIANCE_NOTE = (
    f"{FORMULA} Context-free: the best model tried in which no token sees another. Trivial: the best guess that "
    "ignores the input, based on the training rows. Excluded: the original does not beat every floor (one-sided, 95%). "
    "Inconclusive: the interval is wider than 50 percentage points; bounds and claims still hold. The interval is "
    f"Fieller's, over {COVERED}; it covers every context-free floor that was run. {ABOVE_ALL}"
)

ORDER_PHRASES = {
    "lambda": "in the order of λ",
    "lambda-reversed": "in the reverse order of λ",
    "first-layer-first": "from the first layer to the last",
    "last-layer-first": "from the last layer to the first",
    "random": "in a random order",
    "gradient": "in the order of gradients",
}
"""Phrases for orders; an order that is not listed goes by its name."""


def bound_text(bound: float | None, margin: float) -> str:
    """Format an upper bound or a smallest margin, which is never rounded down: "35%".

    It has the decimals that keep it below the margin of the study, if it is below: 0.0991 at a margin of 0.1 is
    "9.91%" and not "10%". A bound far above all that attention contributes is "over 200%".
    """
    if bound is None or isnan(bound) or not isfinite(bound):
        return percent(bound)
    if bound > LARGEST_SHOWN_BOUND:
        return f"over {percent(LARGEST_SHOWN_BOUND)}"
    for decimals in range(MAXIMUM_DECIMALS):
        scale = 10**decimals
        number = ceil(100 * bound * scale - 1e-9) / scale
        if (number / 100 < margin) == (bound < margin):
            return f"{number + 0.0:.{decimals}f}%"
    return f"just below {percent(margin, None)}"


def interval_text(low: float | None, high: float | None) -> str:
    """Format an interval of shares: "29 to 40%"; "-" if it is unknown, and "unbounded" if an end is infinite."""
    if low is None or high is None or isnan(low) or isnan(high):
        return "-"
    if not isfinite(high - low):
        return "unbounded"
    return f"{percent(low).removesuffix('%')} to {percent(high)}"


def reliance_text(reliance: float | None, low: float | None, high: float | None) -> str:
    """Format a reliance for a table: "34% (29 to 40)", or "inconclusive (9 to 70)"; "-" if there is none."""
    if reliance is None or isnan(reliance):
        return "-"
    shown = percent(reliance) if conclusive(low, high) else INCONCLUSIVE
    return f"{shown} ({interval_text(low, high).removesuffix('%')})"


def with_interval(reliance: float, low: float, high: float) -> str:
    """Describe a reliance with its interval: "34% (95% interval 29 to 40%)"; one too wide is "inconclusive"."""
    shown = percent(reliance) if conclusive(low, high) else INCONCLUSIVE
    return f"{shown} (95% interval {interval_text(low, high)})"


def points_text(
    margin: float, contribution: float, metric: str, positive: str | None = None
) -> str:
    """Describe a share of attention's contribution in units of the score: "0.55 points of accuracy"."""
    in_nats, name = MEASURES[metric].log_scaled, metric_name(metric, positive)
    points = (1 if in_nats else 100) * margin * contribution
    number = f"{points:.2g}" if points < 0.1 else f"{points:.2f}".rstrip("0").rstrip(".")
    if in_nats:
        return f"{number} nats per token"
    of = name if name.startswith(PROPER) else name[0].lower() + name[1:]
    return f"{number} {'point' if number == '1' else 'points'} of {of}"


def constant_name(constant: str, shown_with: Sequence[str] = ()) -> str:
    """Return a constant's name for readers; next to "average, texts of CORPUS", the average is "average, own texts"."""
    if constant.startswith(AVERAGE_OF):
        return f"average, texts of {constant.removeprefix(AVERAGE_OF)}"
    if constant == "average" and any(name.startswith(AVERAGE_OF) for name in shown_with):
        return f"{constant}, own texts"
    return constant.replace(TRAINED_SUFFIX, ", trained").replace("toeplitz", "Toeplitz")


def floor_name(column: str) -> str:
    """Return the name for readers of a column with the scores of a floor."""
    return column.replace("context_free", "context-free")


def share_replaced(fraction: str) -> str:
    """Return the share of heads that are replaced if this fraction is kept: "none", "15/16", "all"."""
    return {"0": "all", "1": "none"}.get(fraction, str(1 - Fraction(fraction)))


def order_name(order: str) -> str:
    """Return an order's name for readers: `lambda-reversed` is "λ reversed"."""
    return order.replace("lambda", "λ").replace("-", " ")


def in_order(order: str, orders: int) -> str:
    """Describe the order in which heads are replaced, or the number of orders averaged."""
    if orders > 1:
        return f"averaged over {orders} orders ({order_name(order)})"
    listed = (
        f"in the order of the {order_name(order)}"
        if order.startswith(LIST_PREFIX)
        else f"in the order {order}"
    )
    return ORDER_PHRASES.get(order, listed)


def constants(name: str | None) -> str:
    """Describe a constant in a sentence: "average constants"."""
    constant = Constant.parse(str(name))
    if constant.start == "zeros":
        return "zeros"
    words = f"{constant_name(constant.start)} constants"
    if constant.corpus is not None:
        return f"{words} of the texts of {constant.corpus}"
    return f"trained {words}" if constant.trained else words


def sentences_of(claims: pd.DataFrame, tasks: pd.DataFrame, margin: float) -> list[str]:
    """Describe the claims of a grid in at most three sentences.

    They say how much the model relies on attention, how many heads are replaceable and what stopped it, and which
    tasks are excluded or inconclusive.
    """
    if claims.empty:
        return ["No heads are replaced, so there is nothing to conclude."]
    joint = claims[claims["task"].isna() & claims["margin"].notna()]
    sentences = ["Nothing can be concluded, because no task counts."]
    if len(joint):
        sentences = [
            _how_much(claims),
            _what_is_replaceable(joint, margin, claims[claims["task"].notna()]),
        ]
    sentences.append(_what_has_no_result(claims, tasks))
    return [
        sentence.replace("?.", "?") for sentence in sentences if sentence
    ]  # a title may be a question


def _how_much(claims: pd.DataFrame) -> str:
    """Describe reliance with every head replaced, which does not depend on the order; empty if it is unknown."""
    end = claims[claims["replaced"].eq(claims["heads"]) & claims["reliance"].notna()]
    end = end.drop_duplicates(["model", "constant", "task"]).sort_values(
        "reliance", ascending=False, kind="stable"
    )
    means, by_task = end[end["task"].isna()], end[end["task"].notna()]
    if means.empty:
        return ""
    first = means.iloc[0]
    if len(means) > 1:
        known = means[narrow(means)]
        each = [
            f"{with_interval(*row[['reliance', 'low', 'high']])} in {row['model']} with {constants(row['constant'])}"
            for _, row in (known if len(known) > 1 else means).iterrows()
        ]
        span = f"from {each[-1]} to {each[0]}" if len(known) > 1 else "; ".join(each)
        span += f"; inconclusive: {len(means) - len(known)} of {len(means)} lines" * (
            1 < len(known) < len(means)
        )
        return f"With every head replaced, reliance is {span}."
    heads, words = count(first["heads"], "head"), constants(first["constant"])
    reliance = f"With all {heads} of {first['model']} replaced by {words}, reliance is "
    if first["low"] == first["high"] == 1:
        return f"{reliance}100% by definition."
    reliance += with_interval(*first[["reliance", "low", "high"]])
    if len(by_task) == 1:
        return f"{reliance} on {by_task['task'].iloc[0]}."
    known = by_task[narrow(by_task)]
    ends = [
        f"{task} ({percent(value)})"
        for task, value in known[["task", "reliance"]].itertuples(index=False)
    ]
    among = "" if len(ends) == len(by_task) else "among conclusive tasks, "
    extremes = f": {among}highest on {ends[0]}, lowest on {ends[-1]}" if len(ends) > 1 else ""
    return f"{reliance} on average over {len(by_task)} tasks{extremes}."


def _what_is_replaceable(joint: pd.DataFrame, margin: float, by_task: pd.DataFrame) -> str:
    """Describe the numbers of heads that all tasks together allow; those of several lines are corrected for them."""
    lines, at_margin = (
        joint["line"].unique(),
        f"at a margin of {percent(margin, None)} of attention's contribution",
    )
    contributions = by_task[["task", "contribution", "metric", "positive"]].drop_duplicates()
    if len(contributions) == 1:
        at_margin += f" ({points_text(margin, *contributions.iloc[0, 1:])})"
    if len(lines) > 1:
        return f"{_capitalised(at_margin)}, corrected for {len(lines)} lines: {_clauses(joint, 'line', 'for', margin)}."
    first, number = joint.iloc[0], replaceable(joint, margin)
    order = "" if pd.isna(first["order"]) else f"{in_order(first['order'], first['orders'])}, "
    failed = joint[joint["replaced"] > number]
    stopped = ""
    for replaced, bound, worst in (
        failed[["replaced", "bound", "worst"]].head(1).itertuples(index=False)
    ):
        upper = (
            f"the one-sided upper bound of the reliance on {worst} is {bound_text(bound, margin)}"
        )
        stopped = f"; with {replaced} replaced, {upper if isfinite(bound) else f'reliance on {worst} is unbounded'}"
    return _capitalised(f"{order}{_clause(number, first['heads'])} {at_margin}{stopped}.")


def _what_has_no_result(claims: pd.DataFrame, tasks: pd.DataFrame) -> str:
    """Describe excluded tasks and those with an inconclusive reliance, and what would help; empty if there are none."""
    reasons, models = dict[str, list[str]](), tasks["model"].nunique()
    for (task, why), rows in tasks.groupby(["task", "excluded"], sort=False):
        of_models = f" in {_and(rows['model'])}" if len(rows) < models else ""
        needed = rows["needed"].max()
        would_help = (
            "" if pd.isna(needed) else f" ({needed:,} validation examples may show the difference)"
        )
        reasons.setdefault(f"excluded{of_models}: {why}{would_help}", []).append(str(task))
    parts = [
        f"{_and(names)} {'is' if len(names) == 1 else 'are'} {reason}"
        for reason, names in reasons.items()
    ]
    end = claims[
        claims["task"].notna() & claims["replaced"].eq(claims["heads"]) & claims["reliance"].notna()
    ]
    wide = end[~narrow(end)]
    if len(wide):
        names = wide["task"] + (" (" + wide["line"] + ")" if claims["line"].nunique() > 1 else "")
        why = "the 95% interval is wider than 50 percentage points; more examples, training rows or seeds may narrow it"
        parts.append(
            f"{'reliance' if parts else 'Reliance'} is inconclusive on {_and(names.unique())}: {why}"
        )
    return f"{'; '.join(parts)}." if parts else ""


def notes_of(claims: pd.DataFrame, tasks: pd.DataFrame, margin: float) -> list[str]:
    """Return notes on the claims of a grid: the data, floors and clusters, each task by itself, and large reliance."""
    if claims.empty:
        return []
    examples = _span(tasks["examples"], "validation example")
    seeds, samples = tasks["seeds"].dropna(), tasks["samples"]
    based = [_span(seeds, "seed")] if len(seeds) else []
    based += [_span(samples, "sample") + " of training rows"] if samples.gt(1).all() else []
    based += [examples + (" per task" if tasks["task"].nunique() > 1 else "")]
    notes = [f"The results are based on {_and(based)}."]
    if (without := tasks[samples.lt(2)]["name"].unique()).size:
        on = "" if len(without) == len(tasks) else f" on {_and(without)}"
        notes.append(f"Intervals{on} do not cover the choice of training rows.")
    floors = sorted(tasks["floors"].explode().dropna().unique())
    if len(floors) > 1:
        notes.append(f"Claims must hold against every floor: {_and(floors)}.")
    if tasks["guess"].any():
        guess = f"A blind guess is the floor on {_and(tasks.loc[tasks['guess'], 'name'])}"
        notes.append(
            f"{guess}: it scores higher on the validation examples than the model's own head without context."
        )
    clusters = tasks.dropna(subset="clusters")
    if len(clusters):
        units = [
            f"{number:,} on {name}"
            for number, name in zip(clusters["clusters"], clusters["name"], strict=True)
        ]
        notes.append(f"Intervals resample whole clusters of examples: {_and(units)}.")
    by_task = claims[claims["task"].notna()]
    if by_task["task"].nunique() > 1:
        for line, rows in by_task.groupby("line", sort=False):
            of_line = f" ({line})" if by_task["line"].nunique() > 1 else ""
            corrected = (
                f"Each task by itself{of_line}, corrected for {rows['claims'].iloc[0]} claims"
            )
            notes.append(f"{corrected}: {_clauses(rows, 'task', 'on', margin)}.")
    if (claims.loc[narrow(claims), "reliance"].round(2) > 1).any():
        notes.append(ABOVE_ALL)
    return notes


def _clauses(rows: pd.DataFrame, column: str, preposition: str, margin: float) -> str:
    """Describe the corrected claims about each line or task in `column`, the largest number of heads first."""
    claims = [
        (str(name), of_name["heads"].iloc[0], replaceable(of_name, margin, "corrected_margin"))
        for name, of_name in rows.groupby(column, sort=False)
    ]
    named: dict[str, list[str]] = {}
    for name, heads, number in sorted(claims, key=lambda claim: -claim[2]):
        named.setdefault(_clause(number, heads), []).append(name)
    return "; ".join(
        f"{clause} {preposition} {_and(names, 'or' if clause.startswith('no ') else 'and')}"
        for clause, names in named.items()
    )


def _clause(number: int, heads: int) -> str:
    """Return the clause that a number of heads, which may be 0, was shown to be replaceable."""
    if not number:
        return "no number of heads was shown to be replaceable"
    which = "all" if number == heads else f"{number:,} of"
    return f"{which} {count(heads, 'head')} {'is' if number == 1 else 'are'} replaceable"


def _span(numbers: pd.Series[int], noun: str) -> str:
    """Describe a range of numbers: "2 to 5 seeds", or "5 seeds" if all are equal."""
    least, most = numbers.min(), numbers.max()
    return f"{least:,} to {count(most, noun)}" if least < most else count(most, noun)


def _and(words: Iterable[str], conjunction: str = "and") -> str:
    """Join words: "a", "a and b", "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def _capitalised(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"
