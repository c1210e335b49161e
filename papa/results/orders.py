"""Are learned orders of heads better than random ones?"""

from __future__ import annotations

import math

import pandas as pd

from papa.config.variant import RANDOM
from papa.results.scores import without_draws
from papa.results.summary import is_main

LEARNED = ("lambda", "gradient")
"""The orders that are compared with random ones."""
FEWEST_DRAWS = 19
"""The smallest number of random orders with which a p value can be 5%."""
ROUNDING = 1e-12
"""Scores that differ by less are equal."""
COLUMNS = ["model", "title", "constant", "metric"]
RESULTS = ["order", "draws", "difference", "as_good", "p"]


def orders_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Compare the learned orders in a table of runs with random ones, for each model, task and constant.

    The score of an order is its mean over the probe seeds and the numbers of replaced heads that it and the random
    orders have. There are the `difference` between the mean scores of both kinds of orders, the number of random orders
    (`draws`), and how often a random order scores at least as high as a learned one (`as_good`). `p` is that of the
    learned order with the first seed, which is exchangeable with random orders if it knows nothing of the task. With
    few draws, it is null.
    """
    rows = without_draws(runs).assign(draw=runs["order"])
    rows = rows[is_main(rows) & rows["order"].isin([*LEARNED, RANDOM])]
    records = []
    for keys, of_task in rows.groupby(COLUMNS, sort=False):
        # not sorted, so the first seed stays the first
        by_number = of_task.pivot_table(
            "score", ["order", "draw"], ["fraction", "seed"], sort=False
        )
        for order in LEARNED:
            both = by_number[by_number.index.isin([order, RANDOM], level="order")]
            scores = both.dropna(axis="columns").mean(axis="columns").dropna().groupby("order")
            if scores.ngroups < 2:
                continue
            learned, drawn = (scores.get_group(name).to_numpy() for name in (order, RANDOM))
            as_good = drawn >= learned[:, None] - ROUNDING
            # the learned order is one of the exchangeable ones, so p is never 0
            p = (1 + as_good[0].sum()) / (1 + len(drawn))
            if len(drawn) < FEWEST_DRAWS:
                p = math.nan
            difference = learned.mean() - drawn.mean()
            records.append((*keys, order, len(drawn), difference, as_good.mean(), p))
    return pd.DataFrame(records, columns=[*COLUMNS, *RESULTS])
