"""The wording of conclusions: losses, replaceable heads, excluded tasks, and all percentages.

The HTML report, the terminal and JSON use the same words, because they all call these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, isfinite, isnan

from papa.config.variant import AVERAGE_OF, LIST_PREFIX, TRAINED_SUFFIX, Constant
from papa.errors import count
from papa.results.conclusion import EndLoss, Exclusion, JointStep, LineClaim, TaskLoss

LARGEST_SHOWN_BOUND = 2.0
"""The largest upper bound that is shown as a number. A larger one mostly reflects an uncertain contribution."""
WIDEST_INTERVAL = 2.0
"""The width beyond which an interval of a loss is shown as unbounded: twice all that attention contributes."""
MAXIMUM_DECIMALS = 9
"""The largest number of decimals, less one, to show that a bound is below a margin."""
MAXIMUM_NUMBERS = 6
"""A sentence names only the first and the last number of replaced heads if there are more than this."""
MORE_THAN_ALL = "more is lost than attention contributes: worse than no context at all"
"""The meaning of a loss above 100 %."""
LOSS_NOTE = (
    "Loss: (original - score) / (original - context-free), the share of attention's contribution that is lost. "
    "Context-free: the best model tried in which no token sees another. Trivial: the best guess that ignores the "
    "input, based on the training rows. A loss is given only if the original beats every floor (one-sided, 95 %). Its "
    "interval is Fieller's, over probe seeds, validation examples and, if there are several, orders of heads; it "
    f"covers every context-free floor that was run. Above 100 %, {MORE_THAN_ALL}."
)
NO_INTERVAL = "the loss cannot be bounded, because attention's contribution is too uncertain"

ORDER_PHRASES = {
    "lambda": ("in the order of λ", "averaged over {} orders of λ"),
    "lambda-reversed": ("in the reverse order of λ", "averaged over {} reverse orders of λ"),
    "first-layer-first": ("from the first layer to the last", ""),
    "last-layer-first": ("from the last layer to the first", ""),
    "random": ("in a random order", "averaged over {} random orders"),
    "gradient": ("in the order of gradients", "averaged over {} orders of gradients"),
}
"""Phrases for a single order and for several draws of it; an order that is not listed goes by its name."""


def _finite(*numbers: float | None) -> bool:
    return all(number is not None and isfinite(number) for number in numbers)


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
    return low is not None and high is not None and _finite(low, high) and high - low <= WIDEST_INTERVAL


def loss_text(loss: float | None, low: float | None, high: float | None) -> str:
    """Format a loss with its interval for a table: "34 % (29 to 40)"; "-" if there is none."""
    bounded = _finite(loss) and _informative(low, high)
    return percent(loss) + (f" ({interval_text(low, high).removesuffix(' %')})" if bounded else "")


def mean_text(share: float | None) -> str:
    """Format a relative drop or a mean loss over tasks for a table: "24.8 %"."""
    return percent(share, decimals=1)


def with_interval(low: float, high: float) -> str:
    """Describe an interval in words, or the reason why there is none."""
    return f"95 % interval {interval_text(low, high)}" if _informative(low, high) else NO_INTERVAL


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


def in_order(order: str | None, orders: int) -> str:
    """Describe the order in which heads are replaced, or the number of orders averaged; empty without an order."""
    if order is None:
        return ""
    single, several = ORDER_PHRASES.get(order, ("", ""))
    if order.startswith(LIST_PREFIX):
        single = f"in the order of the {order_name(order)}"
    if orders < 2:
        return single or f"in the order {order}"
    return (several or f"averaged over {{}} orders {order}").format(orders)


def constants(name: str | None) -> str:
    """Describe a constant in a sentence: "average constants"."""
    constant = Constant.parse(str(name))
    if constant.start == "zeros":
        return "zeros"
    words = f"{constant_name(constant.start)} constants"
    if constant.corpus is not None:
        return f"{words} of the texts of {constant.corpus}"
    return f"trained {words}" if constant.trained else words


def conclusion_of(lines: Sequence[LineClaim], margin: float, named: bool) -> str:
    """Describe the conclusion about a model and a constant from the lines of all orders, `named` if several."""
    first = lines[0]
    model = f" ({first.model})" if named else ""
    sentences = [opening(lines), *(replaceable(line, margin, named) for line in lines if line.tasks and line.bounded)]
    sentences += [f"{excluded(exclusion, model, bool(first.tasks))}." for exclusion in first.excluded]
    sentences += [floors_used(first), sample_size(lines)]
    return " ".join(filter(None, sentences)).replace("?.", "?")  # a title may be a question


def floors_used(line: LineClaim) -> str:
    """Name the floors, and the one of each task with the highest score; empty if there is only one and it is used."""
    guess = f"A blind guess is the floor on {', '.join(line.guesses)}: it scores higher on the validation examples"
    sentences = [f"{guess} than the model's own head without context."] * bool(line.guesses)
    run = sorted({floor for floors in line.floors.values() for floor in floors})
    if len(run) > 1:
        tasks: dict[str, list[str]] = {}
        for task, floors in line.floors.items():
            tasks.setdefault(floors[0], []).append(task)
        highest = [*tasks] if len(tasks) == 1 else [f"{floor} on {_and(titles)}" for floor, titles in tasks.items()]
        listed = ", and ".join(highest) if len(highest) < 3 else f"{'; '.join(highest[:-1])}; and {highest[-1]}"
        sentences.insert(0, f"Claims hold against {_and(run)}. The highest of these floors is {listed}.")
    return " ".join(sentences)


def opening(lines: Sequence[LineClaim]) -> str:
    """Describe the loss with every head of a model replaced, which does not depend on the order."""
    first = lines[0]
    end, tasks, words = first.at_end, first.tasks, constants(first.constant)
    if not tasks:
        orders = " or ".join(filter(None, (in_order(line.order, line.orders) for line in lines)))
        return f"Nothing can be concluded about {first.model} with heads replaced by {words}{orders and f' {orders}'}."
    if end is None:
        return "" if first.bounded else f"No loss of {first.model} was measured with heads replaced by {words}."
    replaced = f"With all {count(first.heads, 'head')} of {first.model} replaced by {words}"
    if end.low == end.high == 1:
        return f"{replaced}, all that attention contributes is lost, by definition."
    ranked = sorted(end.tasks, key=lambda task: -task.loss)
    most, least = (f"{task.task} ({percent(task.loss)})" for task in (ranked[0], ranked[-1]))
    on = f"on average over {count(len(tasks), 'task')}. Most is lost on {most}, least on {least}."
    on_tasks = on if len(tasks) > 1 else f"on {tasks[0]}."
    return f"{replaced}, {loss(end)} of what attention contributes is lost {on_tasks}{above_all(ranked[0].loss)}"


def loss(value: EndLoss | TaskLoss) -> str:
    """Describe a loss with its interval."""
    return f"{percent(value.loss)} ({with_interval(value.low, value.high)})"


def above_all(share: float) -> str:
    """Explain a loss above 100 % in a sentence that follows another; empty for any other loss."""
    return f" Above 100 %, {MORE_THAN_ALL}." if round(100 * share) > 100 else ""


def replaceable(line: LineClaim, margin: float, named: bool) -> str:
    """Describe the number of heads of a line that all tasks together allow, and the claims about single tasks."""
    number, heads, by = line.replaceable or 0, "heads", ""
    if named or line.at_end is None:  # otherwise the sentence before has the model and the constant
        heads, by = f"heads of {line.model}", f" by {constants(line.constant)}"
    at = f"replaceable{by} at a margin of {percent(margin, None)}"
    passed, step = line.passed, line.stopped_at
    least = f" (smallest margin that passes: {bound_text(passed.margin, margin)})" if passed else ""
    if number:
        claim = f"{'all' if number == line.heads else f'{number} of'} {line.heads} {heads} are {at}{least}"
        claim += f". {_capitalised(bound(step, margin))}" if step else ""
    else:
        claim = f"no number of {heads} was shown to be {at}" + (f": {bound(step, margin)}" if step else "")
    words = ", ".join(filter(None, [in_order(line.order, line.orders), claim]))
    sentences = [f"{_capitalised(words)} ({tried(line)})."]
    if line.lines > 1 and line.corrected is not None and line.corrected < number:
        sentences.append(f"Corrected for {line.lines} lines: {_number_clause(line.corrected, line.heads)}.")
    return " ".join([*sentences, *filter(None, [by_task(line)])])


def tried(line: LineClaim) -> str:
    """Name the numbers of replaced heads that were measured; nothing is known of others."""
    numbers = [step.replaced for step in line.bounded]
    if len(numbers) > MAXIMUM_NUMBERS:
        return f"tried: {len(numbers)} numbers from {numbers[0]} to {numbers[-1]}"
    return f"tried: {_and(map(str, numbers))}"


def by_task(line: LineClaim) -> str:
    """Describe the claims about single tasks, corrected for all claims of the grid; empty for a line with one task."""
    if len(line.by_task) < 2:
        return ""
    numbers: dict[int, list[str]] = {}
    for claim in sorted(line.by_task, key=lambda claim: -claim.corrected):
        numbers.setdefault(claim.corrected, []).append(claim.task)
    claims = [
        f"{_number_clause(number, line.heads)} on {_and(tasks, 'and' if number else 'or')}"
        for number, tasks in numbers.items()
    ]
    return f"Each task by itself, corrected for {line.task_claims} claims: {'; '.join(claims)}."


def _number_clause(number: int, heads: int) -> str:
    """Return the clause that a number of heads, which may be 0, was shown to be replaceable."""
    if not number:
        return "no number of heads was shown to be replaceable"
    replaced = f"all {heads} heads" if number == heads else count(number, "head")
    return f"{replaced} {'is' if number == 1 else 'are'} replaceable"


def bound(step: JointStep, margin: float) -> str:
    """Describe the largest upper bound of a loss at a step."""
    with_replaced = f"with {step.replaced} replaced"
    if not _finite(step.bound):
        return f"{with_replaced}, the loss on {step.worst} cannot be bounded"
    return f"{with_replaced}, the one-sided upper bound of the loss on {step.worst} is {bound_text(step.bound, margin)}"


def excluded(exclusion: Exclusion, model: str = "", counted: bool = False) -> str:
    """Describe why a task is excluded; if others are `counted`, the words also say that this task is excluded."""
    more = f" ({exclusion.needed:,} validation examples may show the measured difference)" if exclusion.needed else ""
    return f"{exclusion.task}{model}{' is excluded' if counted else ''}: {exclusion.why}{more}"


def without_loss(exclusions: Iterable[Exclusion]) -> str:
    """List the tasks without a loss and the reasons in a sentence; empty if every task has a loss."""
    reasons = "; ".join(map(excluded, exclusions))
    return f"No loss: {reasons}." if reasons else ""


def sample_size(lines: Sequence[LineClaim]) -> str:
    """Describe the numbers of seeds and validation examples that lines are based on."""
    first = lines[0]
    seeds, examples = sorted({line.seeds for line in lines if line.seeds}), first.examples or (0,)
    over = f"{seeds[0]} to {count(seeds[-1], 'seed')} and " if len(seeds) > 1 else ""
    over = f"{count(seeds[0], 'seed')} and " if len(seeds) == 1 else over
    each = " to ".join(dict.fromkeys(f"{number:,}" for number in examples))
    noun = "example" if examples[-1] == 1 else "examples"
    several = len(first.tasks) + len(first.excluded) > 1
    clusters = [f"{number:,} on {task}" for task, number in first.clusters.items()]
    units = f" Intervals resample whole clusters of examples: {_and(clusters)}." if clusters else ""
    return f"The results are based on {over}{each} validation {noun}{' per task' if several else ''}.{units}"


def _and(words: Iterable[str], conjunction: str = "and") -> str:
    """Join words: "a", "a and b", "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def _capitalised(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def leaked(shared: Mapping[str, tuple[int, int]]) -> str:
    """Describe the validation rows that are also in training, `shared` of all rows (0: unknown); empty if none are."""
    parts = [
        f"{number:,} of {count(rows, 'row')} of {corpus}" if rows else f"{count(number, 'row')} of {corpus}"
        for corpus, (number, rows) in shared.items()
        if number
    ]
    if not parts:
        return ""
    return f"Validation rows that are also in training: {'; '.join(parts)}. Probes may have memorised their answers."
