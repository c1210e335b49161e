"""The wording of conclusions: losses, replaceable heads, excluded tasks, rising scores, and all percentages.

The HTML report, the terminal and JSON use the same words, because they all call these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil, isfinite, isnan

from papa.config.variant import AVERAGE_OF, TRAINED_SUFFIX, Constant
from papa.errors import count
from papa.results.conclusion import EndLoss, Exclusion, LineClaim, RisingTask, Step, SubsetLosses, TaskLoss

MAXIMUM_SUBSETS = 4
"""A sentence leaves out subsets if there are more than this; tables have all of them."""

MAXIMUM_NUMBERS = 6
"""A sentence names the first, the second and the last number of replaced heads if there are more than this."""
MORE_THAN_ALL = "more is lost than attention contributes: worse than no context at all"
"""The meaning of a loss above 100 %."""
LOSS_NOTE = (
    "Loss: (original - score) / (original - contextless), the share of attention's contribution that is lost. "
    "Contextless: the same probe with zeros in place of all attention, so no token sees another. Trivial: the best "
    "guess that ignores the input, based on the training rows. A loss is given only if the original beats both floors "
    "(one-sided, 95 %). Its interval is Fieller's, over probe seeds, validation examples and, if there are several, "
    f"orders of heads. Above 100 %, {MORE_THAN_ALL}."
)
NO_INTERVAL = "no interval, because attention's contribution is too uncertain"
FLOOR_NAMES = {"contextless floor": "context-free floor"}
"""The words for run names in the JSON of a conclusion."""

ORDER_PHRASES = {
    "lambda": ("in the order of λ", "averaged over {} orders of λ"),
    "lambda-reversed": ("in the reverse order of λ", "averaged over {} reverse orders of λ"),
    "first-layer-first": ("from the first layer to the last", ""),
    "last-layer-first": ("from the last layer to the first", ""),
    "random": ("in a random order", "averaged over {} random orders"),
    "random-by-layer": ("in a random order within layers", "averaged over {} random orders within layers"),
    "gradient": ("in the order of gradients", "averaged over {} orders of gradients"),
    "leave-one-out": ("in the order of leave-one-out", "averaged over {} orders of leave-one-out"),
    "variance": ("in the order of variances", ""),
    "output-norm": ("in the order of output norms", ""),
}
"""Phrases for a single order and for several draws of it; an order that is not listed goes by its name."""


# -- numbers ----------------------------------------------------------------------------------------------------------


def _finite(*numbers: float | None) -> bool:
    return all(number is not None and isfinite(number) for number in numbers)


def percent(share: float | None, decimals: int | None = 0, upper: bool = False) -> str:
    """Format a share in percent: "34 %"; "-" if it is unknown, and "no bound" if it is infinite.

    Args:
        share: the share, from 0 to 1.
        decimals: digits after the point; None for a number from a config, which is never rounded.
        upper: whether the share is an upper bound, which is never rounded down.
    """
    if share is None or isnan(share):
        return "-"
    if not isfinite(share):
        return "no bound"
    if decimals is None:
        return f"{100 * share:g} %"
    number = ceil(100 * share - 1e-9) if upper else round(100 * share, decimals)
    return f"{number + 0.0:.{decimals}f} %"  # + 0.0 removes a negative zero


def interval_text(low: float | None, high: float | None) -> str:
    """Format an interval of shares: "29 to 40 %"; "-" if it is unknown, and "unbounded" if an end is infinite."""
    if low is None or high is None or isnan(low) or isnan(high):
        return "-"
    if not _finite(low, high):
        return "unbounded"
    return f"{percent(low).removesuffix(' %')} to {percent(high)}"


def loss_text(loss: float | None, low: float | None, high: float | None) -> str:
    """Format a loss with its interval for a table: "34 % (29 to 40)"; "-" if there is none."""
    bounded = _finite(loss, low, high)
    return percent(loss) + (f" ({interval_text(low, high).removesuffix(' %')})" if bounded else "")


def mean_text(share: float | None) -> str:
    """Format a relative drop or a mean loss over tasks for a table: "24.8 %"."""
    return percent(share, decimals=1)


def with_interval(low: float, high: float) -> str:
    """Describe an interval in words, or the reason why there is none."""
    return f"95 % interval {interval_text(low, high)}" if _finite(low, high) else NO_INTERVAL


# -- names ------------------------------------------------------------------------------------------------------------


def constant_name(constant: str, shown_with: Sequence[str] = ()) -> str:
    """Return a constant's name for readers; next to averages of other corpora, the average is "average, own texts"."""
    if constant.startswith(AVERAGE_OF):
        return f"average, texts of {constant.removeprefix(AVERAGE_OF)}"
    if constant == "average" and any(name.startswith(AVERAGE_OF) for name in shown_with):
        return "average, own texts"
    return constant.replace(TRAINED_SUFFIX, ", trained").replace("toeplitz", "Toeplitz")


def order_name(order: str) -> str:
    """Return an order's name for readers: `lambda-reversed` is "λ reversed"."""
    return order.replace("lambda", "λ").replace("-", " ")


def in_order(order: str | None, orders: int) -> str:
    """Describe the order in which heads are replaced, or the number of orders averaged; empty without an order."""
    if order is None:
        return ""
    single, several = ORDER_PHRASES.get(order, ("", ""))
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


# -- sentences --------------------------------------------------------------------------------------------------------


def conclusion_of(lines: Sequence[LineClaim], margin: float, named: bool) -> str:
    """Describe the conclusion about a model and a constant from the lines of all orders.

    Args:
        lines: at least one line.
        margin: the accepted loss.
        named: whether each sentence names the model and the constant, because there are others.
    """
    first = lines[0]
    model = f" ({first.model})" if named else ""
    sentences = [opening(lines), *(replaceable(line, margin, named) for line in lines if line.tasks and line.measured)]
    sentences += [f"{excluded(exclusion, model, bool(first.tasks))}." for exclusion in first.excluded]
    if still_rising := dict.fromkeys(rising(task) for line in lines for task in line.rising):
        sentences.append(f"Still rising{model}, train longer: {', '.join(still_rising)}.")
    sentences.append(sample_size(lines))
    return " ".join(filter(None, sentences)).replace("?.", "?")  # a title may be a question


def opening(lines: Sequence[LineClaim]) -> str:
    """Describe the loss with every head of a model replaced, which does not depend on the order."""
    first = lines[0]
    end, tasks, words = first.at_end, first.tasks, constants(first.constant)
    if not tasks:
        orders = " or ".join(filter(None, (in_order(line.order, line.orders) for line in lines)))
        return f"Nothing can be concluded about {first.model} with heads replaced by {words}{orders and f' {orders}'}."
    if end is None:
        return "" if first.measured else f"No loss of {first.model} was measured with heads replaced by {words}."
    replaced = f"With all {count(first.heads, 'head')} of {first.model} replaced by {words}"
    if end.low == end.high == 1:
        return f"{replaced}, all that attention contributes is lost, by definition."
    on_tasks = f"on average over {count(len(tasks), 'task')}" if len(tasks) > 1 else f"on {tasks[0]}"
    sentence = f"{replaced}, {loss(end)} of what attention contributes is lost {on_tasks}."
    if len(tasks) < 2:
        return f"{sentence}{above_all(end.loss)}{by_subset(end.subsets)}"
    ranked = sorted(end.tasks, key=lambda task: -task.loss)
    most, least = (f"{task.task} ({percent(task.loss)})" for task in (ranked[0], ranked[-1]))
    return f"{sentence} Most is lost on {most}, least on {least}.{above_all(ranked[0].loss)}{by_subset(end.subsets)}"


def loss(value: EndLoss | TaskLoss) -> str:
    """Describe a loss with its interval."""
    return f"{percent(value.loss)} ({with_interval(value.low, value.high)})"


def above_all(share: float) -> str:
    """Explain a loss above 100 % in a sentence that follows another; empty for any other loss."""
    return f" Above 100 %, {MORE_THAN_ALL}." if round(100 * share) > 100 else ""


def by_subset(subsets: Sequence[SubsetLosses]) -> str:
    """Describe the losses on subsets in a sentence that follows another; empty if there are none or too many."""
    if not 0 < len(subsets) <= MAXIMUM_SUBSETS:
        return ""
    return f" By subset: {'; '.join(map(_on_subset, subsets))}."


def _on_subset(subset: SubsetLosses) -> str:
    on, tasks = f"on {subset.subset}", sorted(subset.tasks, key=lambda task: task.loss)
    reasons = {exclusion.why for exclusion in subset.excluded}
    why = reasons.pop() if len(reasons) == 1 else "nothing can be concluded"
    if not tasks:
        return f"{on} {why}"
    if len(tasks) + len(subset.excluded) == 1:
        return f"{on} {loss(tasks[0])}"
    low, high = percent(tasks[0].loss), percent(tasks[-1].loss)
    span = high if low == high else interval_text(tasks[0].loss, tasks[-1].loss)
    rest = f"; in {len(subset.excluded)} more {why}" if subset.excluded else ""
    return f"{on} {span} ({count(len(tasks), 'task')}{rest})"


def replaceable(line: LineClaim, margin: float, named: bool) -> str:
    """Describe the number of replaceable heads of a line, and the bound that rules out the next larger number."""
    number, heads, by = line.replaceable or 0, "heads", ""
    if named or line.at_end is None:  # otherwise the sentence before has the model and the constant
        heads, by = f"heads of {line.model}", f" by {constants(line.constant)}"
    at = f"replaceable{by} at a margin of {percent(margin, None)}"
    step = line.stopped_at
    if step is not None:
        claim = f"{number} of {line.heads} {heads} are {at}; " if number else f"no measured number of {heads} is {at}: "
        claim += bound(step)
    elif number == line.heads:
        claim = f"all {line.heads} {heads} are {at}"
    else:
        claim = f"{number} of {line.heads} {heads} are {at}"
    words = ", ".join(filter(None, [in_order(line.order, line.orders), claim]))
    return f"{words[0].upper()}{words[1:]} ({tried(line)})."


def tried(line: LineClaim) -> str:
    """Name the numbers of replaced heads that were measured; nothing is known of others."""
    numbers = sorted(line.measured)
    if len(numbers) > MAXIMUM_NUMBERS:
        steps = {after - before for before, after in pairwise(numbers)}
        return (
            f"tried: {numbers[0]}, {numbers[1]}, … {numbers[-1]}"
            if len(steps) == 1
            else (f"tried: {len(numbers)} numbers from {numbers[0]} to {numbers[-1]}")
        )
    return f"tried: {' and '.join(filter(None, [', '.join(map(str, numbers[:-1])), str(numbers[-1])]))}"


def bound(step: Step) -> str:
    """Describe the largest upper bound of a loss at a step."""
    with_replaced = f"with {step.replaced} replaced"
    if not _finite(step.bound):
        return f"{with_replaced}, the loss on {step.worst} has no upper bound"
    return f"{with_replaced}, the upper bound of the loss on {step.worst} is {percent(step.bound, upper=True)}"


def excluded(exclusion: Exclusion, model: str = "", counted: bool = False) -> str:
    """Describe the reason why a task is excluded.

    Args:
        exclusion: the task and the reason.
        model: the model in parentheses, if there are several.
        counted: whether other tasks count; then the words also say that this task is excluded.
    """
    return f"{exclusion.task}{model}{' is excluded' if counted else ''}: {exclusion.why}"


def without_loss(exclusions: Iterable[Exclusion]) -> str:
    """List the tasks without a loss and the reasons in a sentence; empty if every task has a loss."""
    reasons = "; ".join(map(excluded, exclusions))
    return f"No loss: {reasons}." if reasons else ""


def rising(task: RisingTask) -> str:
    """Describe which probes of a task still improved, and the direction in which its loss may change."""
    runs = [FLOOR_NAMES.get(run, run) for run in task.runs]
    probes = " and ".join(filter(None, [", ".join(runs[:-1]), runs[-1]]))
    return f"{task.task} ({probes}{f': its loss may be {task.loss} than measured' if task.loss else ''})"


def sample_size(lines: Sequence[LineClaim]) -> str:
    """Describe the numbers of seeds and validation examples that lines are based on."""
    first = lines[0]
    seeds, examples = sorted({line.seeds for line in lines if line.seeds}), first.examples or (0,)
    over = f"{seeds[0]} to {count(seeds[-1], 'seed')} and " if len(seeds) > 1 else ""
    over = f"{count(seeds[0], 'seed')} and " if len(seeds) == 1 else over
    each = " to ".join(dict.fromkeys(f"{number:,}" for number in examples))
    noun = "example" if examples[-1] == 1 else "examples"
    several = len(first.tasks) + len(first.excluded) > 1
    return f"From {over}{each} validation {noun}{' per task' if several else ''}."
