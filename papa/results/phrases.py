"""The phrases of conclusions: the words for orders, losses, bounds and excluded tasks, and how percentages are written.

The report, the terminal and JSON use the same words, because they all call these functions.
"""

from __future__ import annotations

ORDER_PHRASES = {
    "lambda": ("in the order of λ", "averaged over {} orders of λ"),
    "lambda-reversed": ("in the reverse order of λ", "averaged over {} reverse orders of λ"),
    "first-layer-first": ("from the first layer to the last", ""),
    "last-layer-first": ("from the last layer to the first", ""),
    "random": ("in a random order", "averaged over {} random orders"),
    "gradient": ("in the order of gradients", "averaged over {} orders of gradients"),
    "leave-one-out": ("in the order of leave-one-out", "averaged over {} orders of leave-one-out"),
    "variance": ("in the order of variances", ""),
    "output-norm": ("in the order of output norms", ""),
}
"""Phrases for a single order of a name and for several; an order that is not listed is called by its name."""


def in_order(order: str | None, orders: int) -> str:
    """The order in which heads are replaced, or the number of orders that are averaged over; empty without an order."""
    if order is None:
        return ""
    single, several = ORDER_PHRASES.get(order, ("", ""))
    if orders < 2:
        return single or f"in the order {order}"
    return (several or f"averaged over {{}} orders {order}").format(orders)
