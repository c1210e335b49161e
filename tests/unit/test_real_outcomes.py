"""Studies that are drawn from real outcomes have the loss that they are said to have, and few claims are wrong."""

from dataclasses import replace

import numpy as np
import pytest
from builders import labelled

from benchmarks import error_rates
from benchmarks.error_rates import MARGIN, Design, Population, drawn_from, real_rates, real_table
from papa.files import Trace, write_table
from papa.results.outcomes import FLOOR, ORIGINALS, Setting, table_of

SEEDS, CLUSTERS = 10, 151
METRICS = ("accuracy", "f1")


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


def test_a_population_has_the_outcomes_and_their_clusters(outcomes, population):
    assert population.originals.shape == (SEEDS, len(outcomes[1]), 2) and len(population.members) == CLUSTERS
    assert [len(members) for members in population.members] == np.bincount(outcomes[1]).tolist()
    blocks = Population.of(outcomes[0], 7).clusters
    assert np.bincount(blocks)[:-1].tolist() == [7] * (len(blocks) // 7) and len(population.floors) == 2
    assert len(Population.of(outcomes[0], None).members) == len(outcomes[1])
    with pytest.raises(SystemExit, match="t has matthews_correlation; known are accuracy"):
        Population.of(labelled({ORIGINALS: [[1, 0]]}, metric="matthews_correlation"), None)


@pytest.mark.parametrize("by_cluster", [False, True])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_drawn_studies_have_the_loss_on_average(outcomes, population, by_cluster, metric, loss):
    chance = np.random.default_rng(3)
    if metric == "f1":
        of_f1 = Population.of(replace(outcomes[0], metric=metric), None)
        population = replace(of_f1, clusters=population.clusters)
    score = error_rates.MEASURES[metric].score
    ends = [score(counts.sum(1)).mean() for counts in (population.originals, *population.floors)]
    studies = [drawn_from(population, loss, Design(5, by_cluster), chance) for _ in range(400)]
    by_setting = np.array([study.scores.reshape(4, 5).mean(1) for study in studies]).mean(0)
    assert by_setting == pytest.approx([*ends, ends[0] - loss * (ends[0] - max(ends[1:]))], abs=0.006)


def test_a_study_is_of_whole_clusters_and_of_different_seeds(population):
    study = drawn_from(population, 0.0, Design(5), np.random.default_rng(4))
    sizes = np.bincount(study.clusters)
    assert len(sizes) == CLUSTERS and set(sizes) <= {1, 2, 3, 4, 5} and sizes.max() > 1
    ignored = drawn_from(population, 0.0, Design(5, resampled=False), np.random.default_rng(4))
    assert (
        ignored.clusters is None
        and ignored.counts.shape[1] == sizes.sum()
        and ignored.scores == pytest.approx(study.scores)
    )
    everything = drawn_from(population, 0.0, Design(5), np.random.default_rng(4))
    assert len(np.unique(np.concatenate([everything.scores[:5], everything.scores[15:]]))) > 5


def test_few_claims_are_wrong_if_clusters_are_resampled(population):
    rates = real_rates(population, MARGIN, Design(5, flipped_clusters=True), 300)
    assert rates.wrong <= 0.08 and rates.held >= 0.9 and rates.counts > 0.95
    ignored = real_rates(population, MARGIN, Design(5, True, resampled=False), 300)
    assert ignored.wrong > rates.wrong and ignored.held < rates.held


def test_the_table_is_printed_from_a_folder(outcomes, tmp_path, capsys):
    table, facts = table_of([outcomes[0]])
    settings = {"tasks": {"t": {"title": "T", "metric": "accuracy"}}}
    write_table(table, tmp_path / "tables/outcomes.parquet", {"table": "outcomes"} | facts, Trace("s", 1, settings, {}))
    error_rates.main(["--outcomes", str(tmp_path), "--cluster", "t=3", "--studies", "3"])
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| t ")]
    assert len(lines) == 2 * 2 * 2
    assert {tuple(line[2:5]) for line in lines} == {
        (flipped, unit, seeds)
        for flipped in ("examples", "clusters")
        for unit in ("examples", "clusters")
        for seeds in ("3", "5")
    }


def test_a_table_without_clusters_has_no_rows_of_them(outcomes):
    lines = list(real_table([Population.of(outcomes[0], None)], 2))
    assert len(lines) == 2 + 2 and all("examples | examples" in line for line in lines[2:])
