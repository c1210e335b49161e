"""The names of constants, orders and variants, and the heads and rows that they mean."""

import re
from fractions import Fraction

import pytest

from papa.config.variant import (
    AVERAGED,
    CONSTANT_PATTERN,
    DATA_FREE,
    ORDERS,
    TRAINABLE,
    Constant,
    Order,
    Variant,
)
from papa.errors import InputError

CONSTANTS = ("average", "average-of-mnli", *AVERAGED[1:], *DATA_FREE)
CONSTANTS += tuple(f"{start}-trained" for start in TRAINABLE)


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_what_its_name_says(name: str) -> None:
    constant = Constant.parse(name)
    assert constant.name == name
    assert constant.trained == name.endswith("-trained")
    assert constant.data_free == (constant.start in ("identity", "toeplitz", "zeros", "uniform"))
    assert constant.corpus == ("mnli" if name.endswith("-of-mnli") else None)
    assert Constant.parse(constant.untrained).trained is False


NO_CONSTANTS = "mean average-of- sink-of-mnli identity-trained sink-trained Average mean-output-trained"


@pytest.mark.parametrize("name", ["", *NO_CONSTANTS.split()])
def test_another_name_is_no_constant(name: str) -> None:
    with pytest.raises(
        InputError,
        match=r"The constant '.*' does not exist; use one of average, average-of-CORPUS, sink, by",
    ):
        Constant.parse(name)


def test_the_average_of_a_tasks_own_texts_is_the_average() -> None:
    assert Constant.parse("average-of-mnli").for_corpus("mnli") == Constant("average")
    assert Constant.parse("average-of-mnli").for_corpus("cola") == Constant("average", "mnli")


@pytest.mark.parametrize(
    "name", ["first-layer-first", "last-layer-first", "lambda-0", "lambda-reversed-7", "random-13"]
)
def test_an_order_is_what_its_name_says(name: str) -> None:
    order = Order.parse(name)
    assert order.name == name
    assert order.by_lambda == name.startswith("lambda")
    number = name.rpartition("-")[2]
    assert order.draw == (int(number) if number.isdigit() else None)
    assert order.base in ORDERS


@pytest.mark.parametrize(
    "name",
    [
        "random",
        "random-0",
        "random-01",
        "lambda",
        "lambda-reversed",
        "lambda-01",
        "first",
        "first-layer-first-1",
        "list-",
        "list-Mine",
        "",
    ],
)
def test_another_name_is_no_order(name: str) -> None:
    with pytest.raises(
        InputError, match=r"The order '.*' does not exist; use one of lambda, .* \(with a draw: random-1"
    ):
        Order.parse(name)


@pytest.mark.parametrize(
    ("constant", "order", "fraction", "path"),
    [
        (None, None, "1", "original"),
        ("average", None, "0", "average/all"),
        ("average-of-mnli", "random-2", "1/16", "average-of-mnli/random-2/kept-1of16"),
        ("toeplitz-trained", "lambda-reversed-2", "3/7", "toeplitz-trained/lambda-reversed-2/kept-3of7"),
    ],
)
def test_a_variant_is_parsed_from_its_path(constant: str, order: str, fraction: str, path: str) -> None:
    variant = Variant(constant and Constant.parse(constant), order and Order.parse(order), Fraction(fraction))
    assert variant.path == path
    assert Variant.parse(path) == variant
    # a point of a grid names a constant and an order even where neither is used
    grid = Variant.of(Constant.parse(constant or "zeros"), Order.parse(order or "lambda-0"), fraction)
    assert grid == variant


@pytest.mark.parametrize(
    ("constant", "order", "fraction", "message"),
    [
        ("average", None, "1/2", "keeps the fraction 1/2 of heads needs an order; none was given"),
        (None, "lambda-0", "1/2", "keeps the fraction 1/2 of heads needs a constant; none was given"),
        ("average", "lambda-0", "0", "keeps the fraction 0 of heads cannot have an order; lambda-0 was given"),
        (None, None, "0", "keeps the fraction 0 of heads needs a constant; none was given"),
        ("average", None, "1", "keeps the fraction 1 of heads cannot have a constant; average was given"),
        ("average", None, "3/2", "The fraction is 3/2, but must lie between 0 and 1"),
    ],
)
def test_what_is_not_legal_is_refused(constant: str, order: str, fraction: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Variant(constant and Constant.parse(constant), order and Order.parse(order), Fraction(fraction))


@pytest.mark.parametrize("path", ["", "average", "average/some", "average/lambda/kept-2", "a/b/c/d", "mean/all"])
def test_another_path_is_no_variant(path: str) -> None:
    with pytest.raises(InputError, match=r"is not a variant; use original|The constant .* does not exist"):
        Variant.parse(path)


@pytest.mark.parametrize(
    ("fraction", "kept"), [("1", 144), ("1/2", 72), ("1/8", 18), ("1/16", 9), ("0", 0), ("1/7", 20)]
)
def test_kept_heads_are_rounded_down(fraction: str, kept: int) -> None:
    variant = Variant.of(Constant.parse("average"), Order.parse("lambda-0"), fraction)
    assert variant.kept_count(144) == kept
    assert variant.shared_by_tasks == (fraction in "01")


def test_patterns_of_paths_leave_trained_constants_out() -> None:
    stored = [name for name in CONSTANTS if re.fullmatch(CONSTANT_PATTERN, name)]
    assert stored == [name for name in CONSTANTS if not name.endswith("-trained")]
