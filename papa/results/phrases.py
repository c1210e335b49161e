"""The wording of conclusions: what is lost, reliance, replaceable heads and untested tasks.

The HTML report, the terminal and claims.json have the same sentences and notes, all from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from math import ceil, isfinite, isnan

import pandas as pd

from papa.config.margin import NATS, POINTS, SHARE, Margin, unit_of
from papa.config.variant import AVERAGE_OF, LIST_PREFIX, TRAINED_SUFFIX, Constant
from papa.errors import count
from papa.results.reliance import CONTRIBUTED, LOST, NOT_SIGNIFICANT, replaceable
from papa.results.statistics import LEVEL, holm
from papa.results.table import Row, metric_name, percent, texts

Margins = Sequence[str]
"""The margins of a study: one share, or at most one margin in points and one in nats."""
DECIMALS = {SHARE: 0, POINTS: 1, NATS: 2}
"""The number of decimals of numbers in each unit."""
PROPER = ("F1", "Matthews")  # keep their capital in a sentence
MAXIMUM_DECIMALS = 9
"""The largest number of decimals, less one, to show that a bound is below a margin."""
FEW_CLUSTERS = 3
"""If a margin amounts to fewer clusters of examples, claims are wrong more often than 5%; see docs/error-rates.md."""
CONTRIBUTES = "attention contributes"
"""The heading of what attention contributes, in points or nats."""
NO_SHARE = "no share"
"""The cell of a reliance that is not defined; attention's contribution has a cell of its own."""
ABOVE_ALL = "Above 100%, constants are worse than no context at all."
FORMULA = (
    "Lost: original - constants. Attention contributes: original - context-free. Reliance: lost / contributed. 0%: "
    "fixed attention does as well; 100%: no better than a model whose tokens never see each other."
)
POINTS_NOTE = "A point is a hundredth of the score; scores on a log scale are in nats per token."
RELIANCE_NOTE = (
    f"{FORMULA} {POINTS_NOTE} Context-free: the best model tried in which no token sees another; for a model's "
    "own head, the trivial floor if it is higher. Trivial: the best guess that ignores the input, based on the "
    "training rows. No share: attention's contribution is not significant against every floor (one-sided, 95%), or "
    "the original is not significantly above the trivial floor. "
    "Intervals of the contribution and of the reliance (Fieller's) cover every context-free floor that was run. "
    f"{ABOVE_ALL}"
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


def _number(value: float, metric: str) -> str:
    """Format a difference of scores in the unit of a metric, without the unit: 0.048 is "4.8" points."""
    unit = unit_of(metric)
    decimals = DECIMALS[unit]
    rounded = round(value if unit == NATS else 100 * value, decimals)
    return f"{rounded + 0.0:.{decimals}f}"  # + 0.0 removes a negative zero


def _amount(row: Row, names: Sequence[str], words: str) -> str:
    """Format a difference of scores with its interval; `names` are those of the value and of both ends."""
    value, low, high = (row[name] for name in names)
    if pd.isna(value):
        return "-"
    metric = row["metric"]
    text = f"{_number(value, metric)} {words or unit_of(metric).replace(POINTS, '')}".strip()
    if not isfinite(high - low):
        return text
    return f"{text} ({_number(low, metric)} to {_number(high, metric)})"


def lost_text(row: Row, words: str = "") -> str:
    """Format what is lost for a table: "4.8 (4.0 to 5.7)" points, or "1.16 nats (1.10 to 1.22)".

    `words` replace the unit. An unknown amount is "-", and an unknown interval is left out.
    """
    return _amount(row, LOST[:3], words)


def contributed_text(row: Row, words: str = "") -> str:
    """Format what attention contributes; see `lost_text`."""
    return _amount(row, CONTRIBUTED, words)


def amounts_text(row: Row) -> str:
    """Describe what is lost, of what attention contributes: "4.8 points (4.0 to 5.7) of 5.5"; empty for a mean."""
    if pd.isna(row["lost"]):
        return ""
    lost = lost_text(row, unit_of(row["metric"]))
    if pd.isna(row["reliance"]):
        return lost
    return f"{lost} of {_number(row['contributed'], row['metric'])}"


def share_text(row: Row) -> str:
    """Format a reliance for a table that also shows what attention contributes: "34% (29 to 40)", or "no share"."""
    if not pd.isna(row["reliance"]):
        interval = interval_text(row["reliance_low"], row["reliance_high"]).removesuffix("%")
        return f"{percent(row['reliance'])} ({interval})"
    return "-" if pd.isna(row.get("contributed")) else NO_SHARE


def reliance_text(row: Row) -> str:
    """Format a reliance by itself: "34% (29 to 40)", or "88% (52% or more)".

    Without a reliance, the text says what attention contributes: "attention contributes 0.6 points (-0.2 to 1.4)".
    """
    share = share_text(row)
    if share != NO_SHARE:
        return share
    return f"attention contributes {contributed_text(row, unit_of(row['metric']))}"


def covered(probed: bool, resampled: bool, ordered: bool) -> str:
    """Name the sources of variance of intervals: seeds if probes are trained, samples of training rows, and orders."""
    sources = {
        "probe seeds": probed,
        "samples of training rows": resampled,
        "orders of heads (of lines with several)": ordered,
        "validation examples": True,
    }
    return _and(name for name, varies in sources.items() if varies)


def effects_note(sources: str) -> str:
    """Return the note on amounts and on their intervals, which cover these `sources` of variance."""
    return f"{FORMULA} {POINTS_NOTE} In brackets: 95% intervals over {sources}."


def effect_texts(rows: pd.DataFrame, reliance: Callable[[Row], str] = share_text) -> pd.DataFrame:
    """Return the cells of what is lost, what attention contributes, and reliance, with a column for each.

    `reliance` formats the last; `reliance_text` does so in a table that does not show what attention contributes.
    """
    records = rows.to_dict("records")
    formats = {"lost": lost_text, CONTRIBUTES: contributed_text, "reliance": reliance}
    cells = {name: list(map(text, records)) for name, text in formats.items()}
    return pd.DataFrame(cells, rows.index)


def bound_text(bound: float | None, margin: str) -> str:
    """Format an upper bound, which is never rounded down, in the unit of a margin: "35%", "1.4 points".

    It has the decimals that keep it below the margin, if it is below: 0.0991 at a margin of 10% is "9.91%" and not
    "10%".
    """
    if bound is None or isnan(bound):
        return "-"
    if not isfinite(bound):
        return "no bound"
    limit = Margin.parse(margin)
    shown = bound * limit.number / limit.size
    for decimals in range(DECIMALS[limit.unit], MAXIMUM_DECIMALS):
        scale = 10**decimals
        # a rounding error must not add a step
        number = ceil(shown * scale - 1e-9) / scale
        if (number < limit.number) == (bound < limit.size):
            return f"{number + 0.0:.{decimals}f}{'%' if limit.unit == SHARE else f' {limit.unit}'}"
    return f"just below {limit}"


def interval_text(low: float, high: float) -> str:
    """Format an interval of shares: "29 to 40%", or, with an infinite end, "29% or more" or "40% or less"."""
    if isfinite(low) and isfinite(high):
        return f"{percent(low).removesuffix('%')} to {percent(high)}"
    if isfinite(low):
        return f"{percent(low)} or more"
    return f"{percent(high)} or less" if isfinite(high) else "no bounds"


def in_words(number: str, metric: str, positive: object = None) -> str:
    """Add what a number of points is of: "4.8 points of accuracy", "0.3 nats per token"."""
    if unit_of(metric) == NATS:
        return f"{number} nats per token"
    name = metric_name(metric, positive)
    of = name if name.startswith(PROPER) else name[0].lower() + name[1:]
    return f"{number} {'point' if number == '1' else 'points'} of {of}"


def margin_text(row: Row) -> str:
    """Describe a task's margin in units of its score: "0.55 points of accuracy"; several tasks have it as written."""
    margin = Margin.parse(row["margin"])
    if pd.isna(row["metric"]):
        return str(margin)
    number = f"{margin.number:.12g}"
    if not margin.in_points:
        amount = margin.size * row["contributed"] * (1 if unit_of(row["metric"]) == NATS else 100)
        number = f"{amount:.2g}" if amount < 0.1 else f"{amount:.2f}".rstrip("0").rstrip(".")
    return in_words(number, row["metric"], row["positive"])


def allowed_text(margins: Margins) -> str:
    """Describe the margins of a study: "10% of attention's contribution", "1 point or 0.05 nats"."""
    allowed = " or ".join(margins)
    return f"{allowed} of attention's contribution" if allowed.endswith(SHARE) else allowed


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
    if order.startswith(LIST_PREFIX):
        return f"in the order of the {order_name(order)}"
    return ORDER_PHRASES.get(order, f"in the order {order}")


def constants(name: str | None) -> str:
    """Describe a constant in a sentence: "average constants"."""
    constant = Constant.parse(str(name))
    if constant.start == "zeros":
        return "zeros"
    words = f"{constant_name(constant.start)} constants"
    if constant.corpus is not None:
        return f"{words} of the texts of {constant.corpus}"
    return f"trained {words}" if constant.trained else words


def sentences_of(claims: pd.DataFrame, tasks: pd.DataFrame, margins: Margins) -> list[str]:
    """Describe the claims of a grid in a few sentences.

    They say what is lost with every head replaced, how many heads are replaceable and what stopped it, and which tasks
    are not tested.
    """
    if claims.empty:
        return ["No heads are replaced, so there is nothing to conclude."]
    joint = claims[claims["task"].isna()]
    by_task = claims[claims["task"].notna()]
    sentences = [
        _how_much(by_task),
        _mean_reliance(joint),
        _what_is_replaceable(joint.dropna(subset="p"), margins, by_task),
        _few_clusters(by_task, tasks),
        _what_is_untested(tasks),
    ]
    # a title may be a question
    return [sentence.replace("?.", "?") for sentence in sentences if sentence]


def _at_end(claims: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return claims with every head replaced, which do not depend on the order, if a column is known."""
    end = claims[claims["replaced"].eq(claims["heads"])].dropna(subset=column)
    return end.drop_duplicates(["model", "constant", "task"])


def _how_much(by_task: pd.DataFrame) -> str:
    """Describe what is lost with every head replaced, on the tasks that lose most and least; empty if unknown.

    Points and nats are not compared, so a study of both has the most and the least of each.
    """
    end = _at_end(by_task, "lost")
    if end.empty:
        return ""
    first = end.to_dict("records")[0]
    several = len(end[["model", "constant"]].drop_duplicates()) > 1
    parts = []
    for _, rows in end.groupby(end["metric"].map(unit_of), sort=False):
        parts += _extremes(rows.sort_values("lost", kind="stable").to_dict("records"), several)
    verbs = [verb for verb, _ in parts]
    clauses = [
        change if verb == before else f"{verb} {change}"
        for before, (verb, change) in zip(["", *verbs], parts, strict=False)
    ]
    lost = "; and ".join(clauses)
    if several:
        return f"With every head replaced, models {lost}."
    heads = f"With all {count(first['heads'], 'head')} replaced by {constants(first['constant'])}"
    single = len(end) == 1 and not isnan(first["reliance"])
    share = f": a reliance of {reliance_text(first)}" if single else ""
    return f"{heads}, {first['model']} {lost}{share}."


def _extremes(ranked: Sequence[Row], named: bool) -> list[tuple[str, str]]:
    """Describe the tasks that lose most and least, of those `ranked` by what they lose, each with its verb.

    `named` adds models and constants, of which there are several.
    """
    ends = [ranked[-1], ranked[0]]
    if _gains(ends[0]):  # all scores rise, so the task that loses least gains most
        ends.reverse()
    verbs = [("gain" if _gains(row) else "lose") + ("" if named else "s") for row in ends]
    changes = [_change_on(row, named) for row in ends]
    if len(ranked) == 1:
        return [(verbs[0], changes[0])]
    second = "least" if verbs[0] == verbs[1] else "most"
    return [(verbs[0], f"most, {changes[0]}"), (verbs[1], f"{second}, {changes[1]}")]


def _gains(row: Row) -> bool:
    """Return whether the score rises, by more than rounds to 0; "loses -2.0 points" would be read as a loss."""
    return _number(row["lost"], row["metric"]).startswith("-")


def _change_on(row: Row, named: bool) -> str:
    """Describe what is lost on a task, of what attention contributes, or gained; `named` adds model and constants."""
    words = in_words("", row["metric"], row["positive"]).strip()
    where = row["task"]
    if named:
        where = f"{where} in {row['model']} with {constants(row['constant'])}"
    amount = dict(row)
    if _gains(row):
        for name, opposite in zip(LOST[:3], ("lost", "lost_high", "lost_low"), strict=True):
            amount[name] = -row[opposite]
    change = lost_text(amount, f"{words} on {where}")
    if isnan(row["contributed"]):
        return change
    if row["contributed"] < 0:
        return f"{change}, where the original scores below the context-free floor"
    if isnan(row["reliance"]) or _gains(row):
        return f"{change}, where attention contributes {contributed_text(row)}"
    lost, contributed = (_number(row[name], row["metric"]) for name in ("lost", "contributed"))
    # compared as printed, or a number would be more than itself
    relation = "more than" if float(lost) > float(contributed) else "of"
    return f"{change}, {relation} the {contributed} that attention contributes"


def _mean_reliance(joint: pd.DataFrame) -> str:
    """Describe the mean reliance over several tasks with every head replaced, if there is one line."""
    end = _at_end(joint[joint["averaged"].gt(1)], "reliance").to_dict("records")
    if len(end) != 1:
        return ""
    return f"Mean reliance on {end[0]['averaged']:.0f} tasks is {reliance_text(end[0])}."


def _what_is_replaceable(joint: pd.DataFrame, margins: Margins, by_task: pd.DataFrame) -> str:
    """Describe the numbers of heads that all tasks together allow; those of several lines are corrected for them."""
    if joint.empty:
        return ""
    allowed = allowed_text(margins)
    tested = by_task[by_task["tasks"].gt(0)]
    amounts = set(map(margin_text, tested.to_dict("records")))
    if len(amounts) == 1:
        [in_score] = amounts
        allowed = f"{allowed} ({in_score})" if allowed not in in_score else in_score
    lines = joint["line"].nunique()
    if lines > 1:
        clauses = _clauses(joint, "line", "for")
        return f"At a margin of {allowed}, corrected for {lines} lines: {clauses}."
    first = joint.iloc[0]
    number = replaceable(joint)
    order = "" if pd.isna(first["order"]) else f"{in_order(first['order'], first['orders'])}, "
    shown = f"{order}{_clause(number, first['heads'])}"
    shown += "" if number else f" at a margin of {allowed}"
    parts = []
    for row in joint[joint["replaced"].eq(number)].to_dict("records"):
        bound = bound_text(row["bound"], row["margin"])
        parts.append(
            f"no task loses more than {allowed}, with an upper bound of {bound} on {row['worst']}"
        )
    for row in joint[joint["replaced"] > number].head(1).to_dict("records"):
        amount = f"up to {bound_text(row['bound'], row['margin'])}"
        amount = amount if isfinite(row["bound"]) else "any amount"
        parts.append(f"with {row['replaced']:,} replaced, {amount} may be lost on {row['worst']}")
    bounds = "bounds" if len(parts) > 1 else "bound"
    return f"{shown[0].upper()}{shown[1:]}: {'; '.join(parts)} (one-sided 95% {bounds})."


def _few_clusters(by_task: pd.DataFrame, tasks: pd.DataFrame) -> str:
    """Warn of claims that few clusters of examples decide; empty if there are none."""
    claimed = by_task.loc[by_task["p"] < 1 - LEVEL, ["model", "task"]]
    few = tasks[tasks["at_stake"].lt(FEW_CLUSTERS)].merge(claimed.drop_duplicates())
    if few.empty:
        return ""
    at_stake = texts("{:.1f} of {:,} on {}".format, few, "at_stake", "clusters", "name")
    return (
        f"Few clusters: the margin is worth about {_and(at_stake)}; where it was worth 1.6, 12% of such claims "
        "were wrong in simulations (docs/error-rates.md)."
    )


def _what_is_untested(tasks: pd.DataFrame) -> str:
    """Describe the tasks that claims are not about; empty if there are none."""
    reasons = dict[str, list[str]]()
    models = tasks["model"].nunique()
    for (task, why), rows in tasks.groupby(["task", "untested"], sort=False):
        of_models = f" in {_and(rows['model'])}" if len(rows) < models else ""
        advice = "; a margin in points can test it" if why == NOT_SIGNIFICANT else ""
        if not pd.isna(needed := rows["needed"].max()):
            advice += f"; {needed:,} validation examples may show the difference"
        reasons.setdefault(f"{of_models} ({why}{advice})", []).append(str(task))
    parts = [f"{_and(names)}{reason}" for reason, names in reasons.items()]
    nothing = tasks["untested"].notna().all()
    heading = "Nothing is claimed, because no task allows a test" if nothing else "Not tested"
    return f"{heading}: {', '.join(parts)}." if parts else ""


def order_sentences(orders: pd.DataFrame) -> list[str]:
    """Compare learned orders with random ones; an order beats them if its corrected p value (Holm) is at most 5%."""
    rows = orders.to_dict("records")
    several = len({row["constant"] for row in rows}) > 1
    sentences = []
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        verdict = "beats" if p <= 1 - LEVEL else "does not significantly beat"
        test = "too few for a p value" if isnan(p) else f"corrected p = {p:.2g}"
        amount = in_words(_number(abs(row["difference"]), row["metric"]), row["metric"])
        direction = "higher" if row["difference"] > 0 else "lower"
        replaced = f", {constants(row['constant'])}" if several else ""
        where = f"On {row['title']} ({row['model']}{replaced}), {order_name(row['order'])}"
        sentences.append(
            f"{where} (first seed) {verdict} random orders: averaged over numbers of heads, its score is {amount} "
            f"{direction}, and {percent(row['as_good'])} of {row['draws']} random orders are as good ({test})."
        )
    return sentences


def notes_of(claims: pd.DataFrame, tasks: pd.DataFrame) -> list[str]:
    """Return notes on the claims of a grid: the data, floors and clusters, each task by itself, and large reliance."""
    if claims.empty:
        return []
    examples = span(tasks["examples"], "validation example")
    seeds = tasks["seeds"].dropna()
    samples = tasks["samples"]
    based = [span(seeds, "seed")] if len(seeds) else []
    based += [span(samples, "sample") + " of training rows"] if samples.gt(1).all() else []
    based += [examples + (" per task" if tasks["task"].nunique() > 1 else "")]
    notes = [f"The results, with 95% intervals in brackets, are based on {_and(based)}."]
    without = tasks.loc[samples.lt(2), "name"].unique()
    if len(without):
        on = "" if len(without) == len(tasks) else f" on {_and(without)}"
        notes.append(f"Intervals{on} do not cover the choice of training rows.")
    notes += _floor_notes(tasks)
    clusters = tasks.dropna(subset="clusters")
    if len(clusters):
        units = texts("{:,} on {}".format, clusters, "clusters", "name")
        notes.append(f"Intervals resample whole clusters of examples: {_and(units)}.")
    single = claims[claims["task"].notna() & claims["tasks"].gt(0)]
    named = single.merge(tasks[["model", "task", "name"]])
    for row in named.drop_duplicates("name").to_dict("records"):
        margin = Margin.parse(row["margin"])
        if margin.in_points and margin.size > row["contributed"]:
            contributed = _number(row["contributed"], row["metric"])
            notes.append(
                f"On {row['name']} the margin, {margin}, is more than the {contributed} that attention contributes, so "
                "a model without attention might pass, and the claim says little."
            )
    if single["task"].nunique() > 1:
        for line, rows in single.groupby("line", sort=False):
            of_line = f" ({line})" if single["line"].nunique() > 1 else ""
            corrected = f"Each task by itself{of_line}, corrected for {rows['claims'].max()} claims"
            notes.append(f"{corrected}: {_clauses(rows, 'task', 'on')}.")
    if (claims["reliance"].round(2) > 1).any():
        notes.append(ABOVE_ALL)
    return notes


def _floor_notes(tasks: pd.DataFrame) -> list[str]:
    """Return notes on the scores of several floors, and on guesses that replace floors."""
    notes = []
    several = tasks[tasks["floors"].str.contains(", ")]
    if len(several):
        scores = "; ".join(texts("{} on {}".format, several, "floors", "name"))
        notes.append(
            f"Claims must hold against every floor: {scores}. What attention contributes is measured against the "
            "highest floor. Its interval covers all floors, so it may be lopsided."
        )
    guesses = tasks.dropna(subset="guess")
    if len(guesses):
        scores = "; ".join(texts("{:.3f} on {}".format, guesses, "guess", "name"))
        notes.append(f"A blind guess replaces the floors that score lower: {scores}.")
    return notes


def _clauses(rows: pd.DataFrame, column: str, preposition: str) -> str:
    """Describe the corrected claims about each line or task in `column`, the largest number of heads first."""
    claims = [
        (str(name), of_name["heads"].iloc[0], replaceable(of_name, "corrected_p"))
        for name, of_name in rows.groupby(column, sort=False)
    ]
    named: dict[str, list[str]] = {}
    for name, heads, number in sorted(claims, key=lambda claim: -claim[2]):
        named.setdefault(_clause(number, heads), []).append(name)
    clauses = []
    for clause, names in named.items():
        conjunction = "or" if clause.startswith("no ") else "and"
        clauses.append(f"{clause} {preposition} {_and(names, conjunction)}")
    return "; ".join(clauses)


def _clause(number: int, heads: int) -> str:
    """Return the clause that a number of heads, which may be 0, was shown to be replaceable."""
    if not number:
        return "no number of heads was shown to be replaceable"
    which = "all" if number == heads else f"{number:,} of"
    return f"{which} {count(heads, 'head')} {'is' if number == 1 else 'are'} replaceable"


def span(numbers: pd.Series[int], noun: str) -> str:
    """Describe a range of numbers: "2 to 5 seeds", or "5 seeds" if all are equal."""
    least = numbers.min()
    most = numbers.max()
    return f"{least:,} to {count(most, noun)}" if least < most else count(most, noun)


def _and(words: Iterable[str], conjunction: str = "and") -> str:
    """Join words: "a", "a and b", "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last
