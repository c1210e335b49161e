"""Intervals cover the choice of training rows if, and only if, each seed has its own rows."""

import pytest

from benchmarks.training_samples import WAYS, coverage


@pytest.mark.slow
def test_only_own_parts_cover_the_choice_of_training_rows():
    fixed, parts, halves, replaced = (coverage(way, 120, 120) for way in WAYS)
    assert min(parts) >= 90
    assert fixed.score <= 85 and halves.score <= 85 and replaced.score <= 85
