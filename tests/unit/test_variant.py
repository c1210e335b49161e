"""The names of constants, orders and variants, and the heads that they mean."""

from fractions import Fraction

import pytest

from papa.config.variant import Constant, Order, Variant
from papa.errors import InputError

NO_CONSTANTS = " mean average-of- sink-of-mnli identity-trained sink-trained Average mean-output-trained".split(" ")
NO_ORDERS = " random random-0 random-01 lambda lambda-reversed lambda-01 first first-layer-first-1 list- list-Mine"
NO_VARIANTS = ("", "average", "average/some", "average/lambda/kept-2", "a/b/c/d", "mean/all")


@pytest.mark.parametrize(
    ("kind", "names", "message"),
    [
        (Constant, NO_CONSTANTS, r"The constant '.*' does not exist; use one of average, average-of-CORPUS, sink, by"),
        (Order, NO_ORDERS.split(" "), r"The order '.*' does not exist; use one of lambda, .* \(with a draw: random-1"),
        (Variant, NO_VARIANTS, r"is not a variant; use original|The constant .* does not exist"),
    ],
)
def test_other_names_are_refused(kind: type[Constant | Order | Variant], names: list[str], message: str) -> None:
    for name in names:
        with pytest.raises(InputError, match=message):
            kind.parse(name)


@pytest.mark.parametrize(
    ("constant", "order", "fraction", "path"),
    [
        (None, None, "1", "original"),
        ("average", None, "0", "average/all"),
        ("toeplitz-trained", "lambda-reversed-2", "3/7", "toeplitz-trained/lambda-reversed-2/kept-3of7"),
        # what is not legal is refused
        ("average", None, "1/2", "keeps the fraction 1/2 of heads needs an order; none was given"),
        ("average", "lambda-0", "0", "keeps the fraction 0 of heads cannot have an order; lambda-0 was given"),
        ("average", None, "1", "keeps the fraction 1 of heads cannot have a constant; average was given"),
    ],
)
def test_a_variant_has_a_path_or_is_refused(constant: str, order: str, fraction: str, path: str) -> None:
    given = constant and Constant.parse(constant), order and Order.parse(order), Fraction(fraction)
    if " " in path:
        with pytest.raises(InputError, match=path):
            Variant(*given)
        return
    assert Variant(*given).path == path and Variant.parse(path) == Variant(*given)
    # a point of a grid names a constant and an order even where neither is used
    grid = Variant.of(Constant.parse(constant or "zeros"), Order.parse(order or "lambda-0"), fraction)
    assert grid == Variant(*given)
