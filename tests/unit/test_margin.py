"""Margins of claims: how they are written, and which one applies to a metric; test_config.py has those refused."""

import pytest

from papa.config.margin import Margin, margin_for
from papa.config.settings import margins_of


@pytest.mark.parametrize(
    ("written", "shown", "size", "in_points"),
    [
        (0.07, "7%", 0.07, False),
        ("0.125", "12.5%", 0.125, False),
        ("1 points", "1 point", 0.01, True),
        ("150 nats", "150 nats", 150.0, True),
        ("0.00005 nats", "0.00005 nats", 5e-5, True),
    ],
)
def test_a_margin_is_a_share_or_an_amount(written, shown, size, in_points):
    margin = Margin.parse(written)
    assert (str(margin), margin.size, margin.in_points) == (shown, pytest.approx(size), in_points)
    assert margins_of(written) == (shown,) == margins_of([shown])


def test_each_kind_of_metric_has_its_margin():
    both = ("1 point", "0.05 nats")
    assert [str(margin_for(both, metric)) for metric in ("accuracy", "log_likelihood")] == [*both]
    assert margin_for(("10%",), "log_likelihood") == Margin(10, "%")
