"""Examples that come in clusters are resampled as whole clusters: compared with brute force and with known reliance."""

from dataclasses import replace

import numpy as np
import pytest
from builders import labelled, sample_of, texts
from refusals import input_error
from test_compare import compared, drawn
from test_compare import outcomes as of_seeds
from test_outcomes import finished_words

from papa.files import read_table, write_table
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, outcomes_in, table_of
from papa.results.reliance import effect_of


@pytest.mark.parametrize(
    ("cluster", "expected"), [("name", [3, 3, 3, 5, 5]), (2, [0, 0, 0, 1, 1]), (None, None)]
)
def test_words_of_a_sentence_get_its_cluster(tmp_path, cluster, expected):
    [outcomes] = finished_words(tmp_path, [[0] * 5] * 2, cluster, "token_accuracy").outcomes
    assert (outcomes.items["cluster"].tolist() if "cluster" in outcomes.items else None) == expected


def in_clusters(outcomes, cluster):
    return replace(outcomes, items=outcomes.items.assign(cluster=np.asarray(cluster)))


def some_runs(size, metric, clusters, **fields):
    chance = np.random.default_rng(3)
    right = {ORIGINALS: chance.random((2, size)) < 0.8, FLOOR: chance.random((2, size)) < 0.6}
    return in_clusters(
        labelled(right, chance.random(size) < 0.3, metric=metric, **fields), clusters
    )


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews_correlation"])
def test_the_jackknife_leaves_out_whole_clusters(metric):
    """Clusters of 1 to 9 examples, scattered over the rows: each is left out, and all else is scored again."""
    clusters = np.random.default_rng(5).permutation(
        np.repeat(np.arange(11), [1, 9, 2, 5, 3, 7, 1, 4, 6, 2, 3])
    )
    outcomes = some_runs(43, metric, clusters)
    mask = outcomes.subsets()[ALL]
    sample = outcomes.sample(metric, mask)
    groups = len(np.unique(clusters))
    score = sample.scores[2]
    rest = replace(outcomes, items=outcomes.items.drop(columns="cluster"))
    counts = [rest.counts(metric, mask & (clusters != cluster)) for cluster in range(groups)]
    without = [sample.metric.score(left.sum(1))[2] for left in counts]
    values = groups * score - (groups - 1) * np.array(without)
    assert sample.values.shape == (4, groups)
    assert sample.examples == 43
    assert sample.values[2] == pytest.approx(values - values.mean() + score)
    assert sample.scores == pytest.approx(rest.sample(metric, mask).scores)


def test_the_variance_over_clusters_of_many_sizes_is_unbiased():
    """A ratio of sums: clusters are drawn with their sizes, and outcomes in a cluster are alike."""
    chance = np.random.default_rng(11)
    spreads = []
    means = []
    for _ in range(400):
        sizes = chance.integers(1, 8, 47)
        right = np.repeat(chance.random(47) < 0.7, sizes)
        outcomes = in_clusters(labelled({ORIGINALS: right}), np.repeat(np.arange(47), sizes))
        sample = sample_of(outcomes)
        means.append(sample.scores[0])
        spreads.append(sample.values[0].var(ddof=1) / 47)
    assert np.mean(spreads) == pytest.approx(np.var(means), rel=0.15)


def test_texts_without_a_token_are_in_no_cluster():
    tokens = np.array([3, 0, 2, 5, 0, 1, 4])
    of_texts = np.array([0, 1, 1, 2, 3, 2, 0])
    outcomes = in_clusters(
        texts({ORIGINALS: [1.0] * 7, FLOOR: [2.0] * 7}, tokens), np.repeat(of_texts, tokens)
    )
    sample = sample_of(outcomes, "log_likelihood")
    assert sample.clusters.tolist() == [0, 1, 2, 2, 0]
    assert sample.values.shape == (2, 3)
    assert sample.trivial_values.shape == (3,)


def test_a_single_cluster_has_no_interval():
    outcomes = some_runs(20, "accuracy", np.zeros(20, int))
    sample = sample_of(outcomes)
    assert effect_of(sample, ORIGINALS).status(sample, "a guess").startswith("one cluster")


def test_clusters_are_in_the_table_of_outcomes_only_if_there_are_any(tmp_path):
    outcomes = some_runs(7, "accuracy", np.array([0, 0, 4, 4, 4, 2, 2]))
    plain = labelled({ORIGINALS: [1] * 5}, task="u")
    table, facts = table_of([outcomes, plain])
    write_table(table, tmp_path / "o.parquet", facts)
    table = read_table(tmp_path / "o.parquet")
    metrics = {task: about | {"metric": "accuracy"} for task, about in facts["tasks"].items()}
    [back, other] = outcomes_in(table, facts | {"tasks": metrics})
    assert back.items["cluster"].tolist() == [0, 0, 4, 4, 4, 2, 2]
    assert "cluster" not in other.items
    assert "cluster" not in table_of([plain])[0].column_names


def test_a_comparison_of_clusters_needs_the_same_on_both_sides(tmp_path):
    a = of_seeds(drawn(0.8, 40, 1))
    b = of_seeds(drawn(0.7, 40, 2))
    blocks = np.arange(40) // 4
    both = compared(tmp_path / "both", in_clusters(a, blocks), in_clusters(b, blocks + 3))
    none = compared(tmp_path / "none", a, b)
    assert [row["examples_a"] for row in both["rows"]] == [40]
    assert both["rows"] != none["rows"]
    for name, other in (("differ", in_clusters(a, np.arange(40) // 5)), ("one", a)):
        with input_error("group the examples of task cola in different clusters"):
            compared(tmp_path / name, other, in_clusters(b, blocks))
