"""What is lost between two ends: the original, and a model in which no token learns of another.

Loss = (original - score) / (original - contextless): of what attention contributes to a task, the share that is gone
when it may not depend on its input. A task whose original does not beat both the contextless model and the best guess
without any input has nothing to lose, and no say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from papa.config.measures import MEASURES
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, Measured, Sample, Setting
from papa.results.statistics import SOURCES, Spread
from papa.results.table import metric_name

LOSS_COLUMNS = dict.fromkeys(("trivial", "contextless", "by_word"), "float64") | {"status": "string"}
LOSS_COLUMNS |= dict.fromkeys(("loss", "loss_low", "loss_high", "loss_bound"), "float64")
LOSS_COLUMNS |= {f"share_{name}": "float64" for name in SOURCES}

COUNTS = "counts"
"""The status of a task whose original beats both floors: it has a loss, and a say in claims."""
CEILING = 0.995
"""The share of a metric's range from which on a score is at its ceiling."""
RISING = 0.005
"""A score that gained more than this in the last quarter of its epochs was not trained out."""

MORE_THAN_ALL = "more is lost than attention contributes: worse than no context at all"
"""What a loss above 100 % says."""
ABOUT_LOSS = (
    "Loss: (original - score) / (original - contextless), the share of what attention contributes that is gone. "
    "Contextless: the same probe with zeros in place of all attention, so that no token learns of another. Trivial: "
    "the best guess that ignores the input, going by the training rows. A loss is given only where the original beats "
    "both floors (one-sided, 95 %). Its interval is Fieller's, over probe seeds, validation examples and, where there "
    f"are several, orders of heads. Above 100 %, {MORE_THAN_ALL}."
)


def losses_of(measured: Iterable[Measured]) -> pd.DataFrame:
    """Floors, losses and their intervals: a row for each model, task, metric, subset and setting, with `LOSS_COLUMNS`.

    `status` is `COUNTS`, or says in words why the task has no loss. `loss_low` and `loss_high` are the 95 % interval,
    `loss_bound` the one-sided 95 % upper bound. `share_order`, `share_seed` and `share_examples` are the parts that
    each source has in the variance of original - score. `half` is half of the 95 % interval of a score that no seed
    varies.
    """
    rows = [row for own in measured for row in _rows(own)]
    return pd.DataFrame(
        rows, columns=["model", "task", "metric", "subset", "constant", "order", "fraction", *LOSS_COLUMNS, "half"]
    )


def _rows(measured: Measured) -> Iterator[dict[str, object]]:
    for name, part in measured.subsets().items():
        for metric in measured.readings if name == ALL else measured.readings[:1]:
            if not part.any() or not MEASURES[metric].has_floors:
                continue
            sample = measured.sample(metric, part)
            status = status_of(sample, measured, metric)
            about: dict[str, object] = {
                "model": measured.model,
                "task": measured.task,
                "metric": metric,
                "subset": name,
                "status": status,
            }
            about |= {"trivial": sample.trivial, "contextless": sample.mean(FLOOR), "by_word": sample.by_word}
            for setting in sample.settings:
                found = dict(zip(("constant", "order", "fraction"), setting, strict=True))
                yield about | found | _loss(sample, setting, status) | _sure(sample, setting)


def _loss(sample: Sample, setting: Setting, status: str) -> dict[str, object]:
    """The loss of a setting, if there is one, and where the variance of what is lost comes from."""
    if setting == ORIGINALS or (spread := sample.spread(ORIGINALS, setting)) is None:
        return {}
    shares = spread.estimate([0, 1, -1]).shares
    found: dict[str, object] = {f"share_{name}": shares[name] for name in SOURCES}
    if setting == FLOOR:
        return found | (dict.fromkeys(("loss", "loss_low", "loss_high", "loss_bound"), 1.0) if status == COUNTS else {})
    if status == COUNTS and (spread := sample.spread(ORIGINALS, FLOOR, setting)) is not None:
        loss = spread.ratio([0, 1, 0, -1], [0, 1, -1, 0])
        found |= {"loss": loss.mean, "loss_low": loss.low, "loss_high": loss.high, "loss_bound": loss.bound}
    return found


def _sure(sample: Sample, setting: Setting) -> dict[str, object]:
    """Half of the interval of a score that no seed varies; with seeds the summary has Student's, as the paper does."""
    spread = None if sample.seeded else sample.spread(setting)
    half = spread.estimate([0, 1]).half() if spread is not None and spread.known else np.nan
    return {"half": half}


def status_of(sample: Sample, measured: Measured, metric: str) -> str:
    """`COUNTS` if the original beats both floors beyond chance; else the reason why nothing can be concluded."""
    spread = sample.spread(ORIGINALS, FLOOR)
    original = sample.mean(ORIGINALS)
    if spread is None or original is None:
        return "no contextless floor was measured"
    if spread.seeds < 2 and spread.seeded:
        return "one seed, so no interval"
    if not spread.known:
        return "one validation example, so no interval"
    if not spread.estimate([-1, 1, 0]).above():
        what = "probe" if measured.probed else "model"
        return f"the {what} is no better than {measured.guess(metric).words} ({sample.trivial:.3f})"
    if not spread.estimate([0, 1, -1]).above():
        return "attention contributes nothing measurable"
    return COUNTS


def at_ceiling(sample: Sample) -> bool:
    """Whether the original score is so high that it could hardly be higher."""
    original, metric = sample.mean(ORIGINALS), sample.metric
    if original is None or not np.isfinite(metric.low):
        return False
    return original >= metric.low + CEILING * (metric.high - metric.low)


def spread_along(sample: Sample, settings: Iterable[Setting]) -> Spread | None:
    """How the scores of the trivial guess, the original, the contextless floor and of some settings vary together."""
    return sample.spread(ORIGINALS, FLOOR, *settings)


def metric_and_subset(metric: str, subset: str) -> str:
    """A reading in words."""
    return metric_name(metric) if subset == ALL else f"{metric_name(metric)}, {subset}"
