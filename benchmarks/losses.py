"""Do intervals of losses hold the truth, with few texts? From the outcomes of a finished study.

    python benchmarks/losses.py results/NAME TASK

The validation texts of a decoder's task are taken as all texts there are. A few of them are drawn, again and again, and
with averages in all heads papa estimates what is lost on these texts. Prints a Markdown table of how often the interval
holds what is lost on all texts, and how often that is above the one-sided bound, which should be 95% and 5%.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from papa.files import read_facts, read_table
from papa.results.outcomes import (
    ALL,
    ORIGINALS,
    Sample,
    Setting,
    by_cluster,
    joint_spread,
    outcomes_in,
)

AVERAGES = Setting("average", None, "0")
SIZES = (10, 20, 40, 80)
DRAWS = 2000


def drawn_from(sample: Sample, units: np.ndarray) -> Sample:
    """Return the sample of some of the texts or clusters."""
    counts = by_cluster(sample.counts, sample.clusters)[:, units]
    return replace(
        sample,
        counts=counts,
        trivial_counts=by_cluster(sample.trivial_counts, sample.clusters)[:, units],
        units=None,
        clusters=None,
    )


def table(results: Path, task: str) -> Iterator[str]:
    """Yield the lines of the table."""
    path = results / "tables/outcomes.parquet"
    [outcomes] = (
        each for each in outcomes_in(read_table(path), read_facts(path)) if each.task == task
    )
    sample = outcomes.sample(outcomes.metric, outcomes.subsets()[ALL])
    settings = sample.settings
    original, averages = (sample.scores[settings[name]].mean() for name in (ORIGINALS, AVERAGES))
    lost = original - averages
    chance = np.random.default_rng(0)
    yield "| texts | interval holds the truth | bound is too low | mean width |"
    yield "|--:|--:|--:|--:|"
    for size in SIZES:
        held = above = width = 0.0
        for _ in range(DRAWS):
            few = drawn_from(sample, chance.integers(sample.values.shape[1], size=size))
            spread = joint_spread([(few, ORIGINALS), (few, AVERAGES)])
            interval = spread.estimate([0, 1, -1]).interval()
            held += interval.low <= lost <= interval.high
            above += lost > interval.bound
            width += interval.high - interval.low
        yield f"| {size} | {held / DRAWS:.1%} | {above / DRAWS:.1%} | {width / DRAWS:.3f} |"


if __name__ == "__main__":
    print(*table(Path(sys.argv[1]), sys.argv[2]), sep="\n")
