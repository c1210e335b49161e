"""The words of conclusions."""

import pytest

from papa.config.variant import DRAWN, ORDERS
from papa.results.phrases import in_order


@pytest.mark.parametrize("order", [*ORDERS, "layers-in-turn"])
def test_every_order_has_words(order: str) -> None:
    """Also an order that somebody adds, and then gives seeds or draws."""
    words = [in_order(order, draws) for draws in (0, 1, 3)]
    assert words[0] == words[1] and all(words)
    assert ("3" in words[2]) or order not in DRAWN


def test_words_of_orders_are_sentences_parts() -> None:
    assert in_order("lambda", 1) == "in the order of λ" and in_order("lambda", 3) == "averaged over 3 orders of λ"
    assert in_order("layers-in-turn", 0) == "in the order layers-in-turn"
    assert in_order("layers-in-turn", 2) == "averaged over 2 orders layers-in-turn"
    assert in_order(None, 0) == ""
