"""Studies that are drawn from real outcomes have the loss that they are said to have, and few claims are wrong."""

from dataclasses import replace

import numpy as np
import pytest
from builders import labelled

from benchmarks import error_rates
from benchmarks.error_rates import MARGIN, Design, Population, drawn_from, real_rates
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


@pytest.mark.parametrize("by_cluster", [False, True])
@pytest.mark.parametrize("metric", ["accuracy", "f1"])
def test_drawn_studies_have_the_loss_on_average(outcomes, population, by_cluster, metric):
    chance = np.random.default_rng(3)
    if metric == "f1":
        of_f1 = Population.of(replace(outcomes[0], metric=metric), None)
        population = replace(of_f1, clusters=population.clusters)
    score = error_rates.MEASURES[metric].score
    ends = [score(counts.sum(1)).mean() for counts in (population.originals, *population.floors)]
    studies = [drawn_from(population, 0.2, Design(5, by_cluster), chance) for _ in range(400)]
    by_setting = np.array([study.scores.reshape(4, 5).mean(1) for study in studies]).mean(0)
    assert by_setting == pytest.approx([*ends, ends[0] - 0.2 * (ends[0] - max(ends[1:]))], abs=0.006)
    assert set(np.bincount(studies[0].clusters)) <= {1, 2, 3, 4, 5}, "whole clusters"


def test_few_claims_are_wrong_if_clusters_are_resampled(population):
    rates = real_rates(population, MARGIN, Design(5, flipped_clusters=True), 300)
    assert rates.wrong <= 0.08 and rates.held >= 0.9 and rates.counts > 0.95
    ignored = real_rates(population, MARGIN, Design(5, True, resampled=False), 300)
    assert ignored.wrong > rates.wrong and ignored.held < rates.held
