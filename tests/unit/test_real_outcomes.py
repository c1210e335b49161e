"""Studies that are drawn from real outcomes have the loss that they are said to have, and few claims are wrong."""

from dataclasses import replace

import numpy as np
import pytest
from builders import labelled

from benchmarks.error_rates import MARGIN, Design, Population, real_rates
from papa.results.outcomes import FLOOR, ORIGINALS, Setting

SEEDS, CLUSTERS = 10, 151


def right(sizes: np.ndarray, rate: float, chance: np.random.Generator) -> np.ndarray:
    """Whether each probe is right about each example, `[seed, example]`: hard clusters are hard for all probes."""
    hard = np.repeat(chance.normal(size=len(sizes)), sizes) + chance.normal(size=sizes.sum())
    noise = 0.4 * chance.normal(size=(SEEDS, sizes.sum())) + 0.02 * chance.normal(size=(SEEDS, 1))
    threshold = np.quantile(hard, 1 - rate)
    return (hard + noise > threshold).astype(int)


@pytest.fixture(scope="module")
def outcomes():
    """Ten seeds of an original and of a floor, on clusters of 1 to 5 examples."""
    chance = np.random.default_rng(2)
    sizes = chance.integers(1, 6, CLUSTERS)
    originals = right(sizes, 0.85, chance)
    floors = np.where(chance.random(originals.shape[1]) < 0.35, 0, originals)
    clusters = np.repeat(np.arange(CLUSTERS), sizes)
    lower = np.where(chance.random(originals.shape[1]) < 0.05, 0, floors)
    return labelled({ORIGINALS: originals, FLOOR: floors, Setting("identity", fraction="0"): lower}), clusters


@pytest.fixture(scope="module")
def population(outcomes):
    clustered = replace(outcomes[0], items=outcomes[0].items.assign(cluster=outcomes[1]))
    return Population.of(clustered, None)


def test_few_claims_are_wrong_if_clusters_are_resampled(population):
    rates = real_rates(population, MARGIN, Design(5, flipped_clusters=True), 300)
    assert rates.wrong <= 0.08 and rates.held >= 0.9 and rates.counts > 0.95
    ignored = real_rates(population, MARGIN, Design(5, True, resampled=False), 300)
    assert ignored.wrong > rates.wrong and ignored.held < rates.held
