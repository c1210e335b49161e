"""The wording of conclusions: losses, replaceable heads, excluded tasks, and all percentages.

The HTML report, the terminal and claims.json have the same sentences and notes, all from here. Tables of claims and of
their tasks are those of `papa.results.claims`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, isfinite, isnan

import pandas as pd

from papa.config.variant import AVERAGE_OF, LIST_PREFIX, TRAINED_SUFFIX, Constant
from papa.errors import count

LARGEST_SHOWN_BOUND = 2.0
"""The largest upper bound that is shown as a number. A larger one mostly reflects an uncertain contribution."""
WIDEST_INTERVAL = 2.0
"""The width beyond which an interval of a loss is shown as unbounded: twice all that attention contributes."""
MAXIMUM_DECIMALS = 9
"""The largest number of decimals, less one, to show that a bound is below a margin."""
MAXIMUM_NAMES = 8
"""A note counts tasks instead of naming them if a study has more than this, one for each model."""
MORE_THAN_ALL = "more is lost than attention contributes: worse than no context at all"
"""The meaning of a loss above 100 %."""
LOSS_NOTE = (
    "Loss: (original - score) / (original - context-free), the share of attention's contribution that is lost. "
    "Context-free: the best model tried in which no token sees another. Trivial: the best guess that ignores the "
    "input, based on the training rows. A loss is given only if the original beats every floor (one-sided, 95 %). Its "
    "interval is Fieller's, over probe seeds, validation examples, samples of training rows (`resamples`) and several "
    f"orders of heads; it covers every context-free floor that was run. Above 100 %, {MORE_THAN_ALL}."
)
NO_INTERVAL = "the loss cannot be bounded, because attention's contribution is too uncertain"

ORDER_PHRASES = {
    "lambda": "in the order of λ",
    "lambda-reversed": "in the reverse order of λ",
    "first-layer-first": "from the first layer to the last",
    "last-layer-first": "from the last layer to the first",
    "random": "in a random order",
    "gradient": "in the order of gradients",
}
"""Phrases for orders; an order that is not listed goes by its name."""


def percent(share: float | None, decimals: int | None = 0) -> str:
    """Format a share in percent: "34 %"; "-" if it is unknown, and "no bound" if it is infinite.

    With `decimals` None, as for a number from a config, it is never rounded.
    """
    if share is None or isnan(share):
        return "-"
    if not isfinite(share):
        return "no bound"
    if decimals is None:
        return f"{100 * share:g} %"
    return f"{round(100 * share, decimals) + 0.0:.{decimals}f} %"  # + 0.0 removes a negative zero


def bound_text(bound: float | None, margin: float) -> str:
    """Format an upper bound or a smallest margin, which is never rounded down: "35 %".

    It has the decimals that keep it below the margin of the study, if it is below: 0.0991 at a margin of 0.1 is
    "9.92 %" and not "10 %". A bound far above all that attention contributes is "over 200 %".
    """
    if bound is None or isnan(bound) or not isfinite(bound):
        return percent(bound)
    if bound > LARGEST_SHOWN_BOUND:
        return f"over {percent(LARGEST_SHOWN_BOUND)}"
    for decimals in range(MAXIMUM_DECIMALS):
        scale = 10**decimals
        number = ceil(100 * bound * scale - 1e-9) / scale
        if (number / 100 < margin) == (bound < margin):
            return f"{number + 0.0:.{decimals}f} %"
    return f"just below {percent(margin, None)}"


def interval_text(low: float | None, high: float | None) -> str:
    """Format an interval of shares: "29 to 40 %"; "-" if it is unknown, and "unbounded" if it is inconclusive."""
    if low is None or high is None or isnan(low) or isnan(high):
        return "-"
    if not _informative(low, high):
        return "unbounded"
    return f"{percent(low).removesuffix(' %')} to {percent(high)}"


def _informative(low: float | None, high: float | None) -> bool:
    """Whether an interval has two ends and is at most `WIDEST_INTERVAL` wide."""
    return low is not None and high is not None and high - low <= WIDEST_INTERVAL


def loss_text(loss: float | None, low: float | None, high: float | None) -> str:
    """Format a loss with its interval for a table: "34 % (29 to 40)"; "-" if there is none."""
    bounded = loss is not None and isfinite(loss) and _informative(low, high)
    return percent(loss) + (f" ({interval_text(low, high).removesuffix(' %')})" if bounded else "")


def mean_text(share: float | None) -> str:
    """Format a relative drop or a mean loss over tasks for a table: "24.8 %"."""
    return percent(share, decimals=1)


def with_interval(loss: float, low: float, high: float) -> str:
    """Describe a loss with its interval, or with the reason why there is none."""
    interval = f"95 % interval {interval_text(low, high)}" if _informative(low, high) else NO_INTERVAL
    return f"{percent(loss)} ({interval})"


def constant_name(constant: str, shown_with: Sequence[str] = ()) -> str:
    """Return a constant's name for readers; next to "average, texts of CORPUS", the average is "average, own texts"."""
    if constant.startswith(AVERAGE_OF):
        return f"average, texts of {constant.removeprefix(AVERAGE_OF)}"
    if constant == "average" and any(name.startswith(AVERAGE_OF) for name in shown_with):
        return f"{constant}, own texts"
    return constant.replace(TRAINED_SUFFIX, ", trained").replace("toeplitz", "Toeplitz")


def floor_name(column: str) -> str:
    """Return the name for readers of a column with the scores of a floor."""
    return column.replace("contextless", "context-free").replace("_", " ")


def order_name(order: str) -> str:
    """Return an order's name for readers: `lambda-reversed` is "λ reversed"."""
    return order.replace("lambda", "λ").replace("-", " ")


def in_order(order: str, orders: int) -> str:
    """Describe the order in which heads are replaced, or the number of orders averaged."""
    if orders > 1:
        return f"averaged over {orders} orders ({order_name(order)})"
    listed = f"in the order of the {order_name(order)}" if order.startswith(LIST_PREFIX) else f"in the order {order}"
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


def replaceable(rows: pd.DataFrame, margin: float, column: str = "margin") -> int:
    """Return the largest number of replaced heads whose claim passes at a margin, of one line's claims; 0 if none."""
    return int(max(rows.loc[rows[column] < margin, "replaced"], default=0))


def sentences_of(claims: pd.DataFrame, tasks: pd.DataFrame, margin: float) -> list[str]:
    """Describe the claims of a grid in at most three sentences.

    They say what is lost with every head replaced, how many heads are replaceable and what stopped it, and which tasks
    are excluded or inconclusive.
    """
    if claims.empty:
        return ["No heads are replaced, so there is nothing to conclude."]
    joint = claims[claims["task"].isna() & claims["margin"].notna()]
    sentences = ["Nothing can be concluded, because no task counts."]
    if len(joint):
        sentences = [_what_is_lost(claims), _what_is_replaceable(joint, margin)]
    sentences.append(_what_has_no_result(claims, tasks))
    return [sentence.replace("?.", "?") for sentence in sentences if sentence]  # a title may be a question


def _what_is_lost(claims: pd.DataFrame) -> str:
    """Describe the losses with every head replaced, which do not depend on the order; empty if there are none."""
    end = claims[claims["replaced"].eq(claims["heads"]) & claims["loss"].notna()]
    end = end.drop_duplicates(["model", "constant", "task"]).sort_values("loss", ascending=False, kind="stable")
    means, by_task = end[end["task"].isna()], end[end["task"].notna()]
    if means.empty:
        return ""
    first, last = means.iloc[0], means.iloc[-1]
    if len(means) > 1:
        most, least = (
            f"in {row['model']} with {constants(row['constant'])}, {with_interval(*row[['loss', 'low', 'high']])}"
            for row in (first, last)
        )
        return f"With every head replaced, most of what attention contributes is lost {most}; least {least}."
    replaced = (
        f"With all {count(first['heads'], 'head')} of {first['model']} replaced by {constants(first['constant'])}"
    )
    if first["low"] == first["high"] == 1:
        return f"{replaced}, all that attention contributes is lost, by definition."
    lost = f"{replaced}, {with_interval(*first[['loss', 'low', 'high']])} of what attention contributes is lost"
    tasks = [f"{task} ({percent(loss)})" for task, loss in zip(by_task["task"], by_task["loss"], strict=True)]
    if len(tasks) == 1:
        return f"{lost} on {by_task['task'].iloc[0]}."
    return f"{lost} on average over {len(tasks)} tasks: most on {tasks[0]}, least on {tasks[-1]}."


def _what_is_replaceable(joint: pd.DataFrame, margin: float) -> str:
    """Describe the numbers of heads that all tasks together allow; those of several lines are corrected for them."""
    lines, at_margin = joint["line"].unique(), f"at a margin of {percent(margin, None)}"
    if len(lines) > 1:
        return f"{_capitalised(at_margin)}, corrected for {len(lines)} lines: {_clauses(joint, 'line', 'for', margin)}."
    first, number = joint.iloc[0], replaceable(joint, margin)
    order = "" if pd.isna(first["order"]) else f"{in_order(first['order'], first['orders'])}, "
    failed = joint[joint["replaced"] > number]
    stopped = ""
    for replaced, bound, worst in failed[["replaced", "bound", "worst"]].head(1).itertuples(index=False):
        upper = f"the one-sided upper bound of the loss on {worst} is {bound_text(bound, margin)}"
        stopped = (
            f"; with {replaced} replaced, {upper if isfinite(bound) else f'the loss on {worst} cannot be bounded'}"
        )
    return _capitalised(f"{order}{_clause(number, first['heads'])} {at_margin}{stopped}.")


def _what_has_no_result(claims: pd.DataFrame, tasks: pd.DataFrame) -> str:
    """Describe the excluded tasks and those whose loss is unbounded, and what would help; empty if there are none."""
    parts, models = list[str](), tasks["model"].nunique()
    for (task, why), rows in tasks.groupby(["task", "excluded"], sort=False):
        of_models = f" with {len(rows)} of {models} models" if len(rows) < models else ""
        needed = rows["needed"].max()
        would_help = "" if pd.isna(needed) else f" ({needed:,} validation examples may show the difference)"
        parts.append(f"{task} is excluded{of_models}: {why}{would_help}")
    end = claims[claims["task"].notna() & claims["replaced"].eq(claims["heads"]) & claims["loss"].notna()]
    unbounded = end[[not _informative(low, high) for low, high in zip(end["low"], end["high"], strict=True)]]
    if len(unbounded):
        parts.append(f"inconclusive on {_and(unbounded['task'].unique())}: more validation examples may bound the loss")
    return f"{'; '.join(parts)}." if parts else ""


def notes_of(claims: pd.DataFrame, tasks: pd.DataFrame, margin: float) -> list[str]:
    """Return notes on the claims of a grid: the data, floors and clusters, each task by itself, and large losses."""
    if claims.empty:
        return []
    examples = _span(tasks["examples"], "validation example")
    seeds, samples = tasks["seeds"].dropna(), tasks["samples"]
    based = [_span(seeds, "seed")] if len(seeds) else []
    based += [_span(samples, "sample") + " of training rows"] if samples.gt(0).all() else []
    based += [examples + (" per task" if tasks["task"].nunique() > 1 else "")]
    notes = [f"The results are based on {_and(based)}."]
    if (without := tasks[samples.eq(0)]["name"].unique()).size:
        on = "" if len(without) == len(tasks) else f" on {_and(without)}"
        notes.append(f"Intervals{on} do not cover the choice of training rows.")
    floors = tasks["floors"].explode().dropna()
    if floors.nunique() > 1:
        highest = tasks.groupby(tasks["floors"].str[0], sort=False)["name"].agg(list)
        listed = [
            f"{floor} on {_and(on) if len(tasks) <= MAXIMUM_NAMES else f'{len(on)} of {len(tasks)} tasks'}"
            for floor, on in highest.items()
        ]
        hold = f"Claims hold against {_and(sorted(floors.unique()))}"
        notes.append(f"{hold}. The highest of these floors: {'; '.join(listed)}.")
    if tasks["guess"].any():
        guess = f"A blind guess is the floor on {_and(tasks.loc[tasks['guess'], 'name'])}"
        notes.append(f"{guess}: it scores higher on the validation examples than the model's own head without context.")
    clusters = tasks.dropna(subset="clusters")
    if len(clusters):
        units = [f"{number:,} on {name}" for number, name in zip(clusters["clusters"], clusters["name"], strict=True)]
        notes.append(f"Intervals resample whole clusters of examples: {_and(units)}.")
    by_task = claims[claims["task"].notna()]
    if by_task["task"].nunique() > 1:
        for line, rows in by_task.groupby("line", sort=False):
            of_line = f" ({line})" if by_task["line"].nunique() > 1 else ""
            corrected = f"Each task by itself{of_line}, corrected for {rows['claims'].iloc[0]} claims"
            notes.append(f"{corrected}: {_clauses(rows, 'task', 'on', margin)}.")
    if (claims["loss"].round(2) > 1).any():
        notes.append(f"Above 100 %, {MORE_THAN_ALL}.")
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
    return f"{'all' if number == heads else f'{number} of'} {heads} heads are replaceable"


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
