"""The names of constants, orders and variants, and the heads that they mean."""

import pytest
from refusals import input_error

from papa.config.variant import AVERAGED, ORIGINAL, TIED, Constant, Order, Variant

NO_CONSTANTS = " mean average-of- sink-of-mnli identity-trained sink-trained Average mean-output-trained".split(
    " "
)
NO_ORDERS = " random random-0 random-01 lambda lambda-reversed lambda-01 first first-layer-first-1 list- list-Mine"


@pytest.mark.parametrize(
    ("kind", "names", "message"),
    [
        (
            Constant,
            NO_CONSTANTS,
            r"The constant '.*' does not exist; use one of average, average-of-CORPUS, sink, by",
        ),
        (
            Order,
            NO_ORDERS.split(" "),
            r"The order '.*' does not exist; use one of lambda, .* \(with a draw: random-1",
        ),
    ],
)
def test_other_names_are_refused(kind, names, message):
    for name in names:
        with input_error(message):
            kind.parse(name)


def test_averages_have_files_of_their_own_but_for_tied_ones():
    files = {kind: Constant(kind).averaged for kind in AVERAGED}
    assert files == {kind: "average" if kind in TIED else kind for kind in AVERAGED}


@pytest.mark.parametrize(
    ("fraction", "path"),
    [
        ("1", "original"),
        ("0", "toeplitz-trained/all"),
        ("3/7", "toeplitz-trained/lambda-reversed-2/kept-3of7"),
    ],
)
def test_a_point_of_a_grid_names_only_what_it_needs(fraction, path):
    variant = Variant.of(
        Constant.parse("toeplitz-trained"), Order.parse("lambda-reversed-2"), fraction
    )
    assert variant.path == path
    assert variant.trained == (fraction != "1")
    assert (variant == ORIGINAL) == (fraction == "1")
