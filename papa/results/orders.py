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
    orders have. Only the first seed of a learned order counts: if it knows nothing of the task, it is exchangeable with
    random orders, and a mean over seeds is not. There are the `difference` from the mean score of random orders, their
    number (`draws`), the share of them that score at least as high (`as_good`), and `p`. With few draws, `p` is null.
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
            learned = scores.get_group(order).iloc[0]
            drawn = scores.get_group(RANDOM)
            as_good = drawn >= learned - ROUNDING
            # the learned order is one of the exchangeable ones, so p is never 0
            p = (1 + as_good.sum()) / (1 + len(drawn))
            if len(drawn) < FEWEST_DRAWS:
                p = math.nan
            difference = learned - drawn.mean()
            records.append((*keys, order, len(drawn), difference, as_good.mean(), p))
    return pd.DataFrame(records, columns=[*COLUMNS, *RESULTS])
