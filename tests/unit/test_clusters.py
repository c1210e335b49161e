"""Examples that come in clusters are resampled as whole clusters: compared with brute force and with known losses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import labelled, run_record, texts
from test_compare import compared, drawn
from test_compare import outcomes as of_seeds
from test_outcomes import NAMES, write_labels, write_outcomes

from papa.config.job import Job
from papa.config.settings import corpus_of
from papa.config.stages import ClustersOf, TextsOf
from papa.data.prepare import prepare_clusters, prepare_texts
from papa.errors import DamagedArtefact, InputError
from papa.files import provenance_of, read_table, write_table
from papa.results.losses import status_of
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, TaskOutcomes, outcomes_in, read_task_outcomes, table_of


def clusters_of(folder: Path, column: str, train: list[Any], validation: list[Any]) -> tuple[pa.Table, str]:
    files = {}
    for split, values in (("train", train), ("validation", validation)):
        files[split] = str(folder / f"{split}.json")
        rows = [{"text": f"{split} {row}", "document": value} for row, value in enumerate(values)]
        Path(files[split]).write_text(json.dumps(rows), encoding="utf-8")
    corpus, path = corpus_of(files=files, first="text"), str(folder / "texts.parquet")
    prepare_texts(Job("texts", TextsOf(corpus=corpus, source={}), {}, {"texts": path}))
    settings, outputs = ClustersOf(corpus=corpus, source={}, cluster=column), {"clusters": str(folder / "c.parquet")}
    line = prepare_clusters(Job("clusters", settings, {"texts": (path,)}, outputs))
    return read_table(folder / "c.parquet"), line


@pytest.mark.parametrize(
    ("train", "validation", "clusters", "both"),
    [
        (["p", "q", "p"], ["r", "s", "r"], [0, 1, 0, 2, 3, 2], 0),
        ([7, 7, 3], [7, 4, 3], [0, 0, 1, 0, 2, 1], 2),
    ],
)
def test_rows_with_the_same_value_share_a_cluster(tmp_path, caplog, train, validation, clusters, both):
    table, line = clusters_of(tmp_path, "document", train, validation)
    assert table.column_names == ["split", "row", "cluster"] and table["cluster"].to_pylist() == clusters
    facts = provenance_of(table)
    assert facts["column"] == "document"
    assert facts["fingerprint"] == provenance_of(read_table(tmp_path / "texts.parquet"))["fingerprint"]
    shared = f", {both} validation rows in clusters of training rows" * bool(both)
    assert line == f"6 rows, {len(set(clusters))} clusters in column document{shared}"
    assert bool(both) == ("2 of 3 validation rows have the cluster of a training row" in caplog.text)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("none", [1, 2, 3], "has no column 'none'"),
        ("document", [1, None, 2], "no cluster in column document in 1 of 3 rows"),
        ("document", [[1], [2], [3]], "must contain one cluster in each row"),
    ],
)
def test_a_column_without_clusters_is_refused(column, values, message, tmp_path):
    with pytest.raises(InputError, match=message):
        clusters_of(tmp_path, column, values, values)


def test_words_of_a_sentence_get_its_cluster(tmp_path):
    runs = [(run_record(seed=seed), write_outcomes(tmp_path / f"{seed}.p", [0] * 5, seed)) for seed in (1, 2)]
    facts, values = {"label_names": NAMES, "train_counts": [1] * 3}, [[0]] * 2 + [[0] * 3] * 3
    labels = write_labels(tmp_path / "l.p", "by_word", values, **facts)
    clusters = write_labels(tmp_path / "c.p", "cluster", [0, 0, 3, 4, 5])
    by_column, by_number, without = (
        read_task_outcomes(runs, {"t": "token_accuracy"}, {"t": labels}, {}, {"t": cluster} if cluster else None)[0]
        for cluster in (clusters, 2, None)
    )
    assert by_column.items["cluster"].tolist() == [3, 3, 3, 5, 5]
    assert by_number.items["cluster"].tolist() == [0, 0, 0, 1, 1], "sentences 0 and 2"
    assert "cluster" not in without.items
    other = write_labels(tmp_path / "o.p", "cluster", [0] * 5, fingerprint="other")
    with pytest.raises(DamagedArtefact, match="made from different texts"):
        read_task_outcomes(runs, {"t": "token_accuracy"}, {"t": labels}, {}, {"t": other})


def in_clusters(outcomes: TaskOutcomes, cluster: Any) -> TaskOutcomes:
    return replace(outcomes, items=outcomes.items.assign(cluster=np.asarray(cluster)))


def some_runs(size: int, metric: str, clusters: np.ndarray, **fields: Any) -> TaskOutcomes:
    chance = np.random.default_rng(3)
    right = {ORIGINALS: chance.random((2, size)) < 0.8, FLOOR: chance.random((2, size)) < 0.6}
    return in_clusters(labelled(right, chance.random(size) < 0.3, metric=metric, **fields), clusters)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews_correlation"])
def test_the_jackknife_leaves_out_whole_clusters(metric):
    """Clusters of 1 to 9 examples, scattered over the rows: each is left out, and all else is scored again."""
    clusters = np.random.default_rng(5).permutation(np.repeat(np.arange(11), [1, 9, 2, 5, 3, 7, 1, 4, 6, 2, 3]))
    outcomes = some_runs(43, metric, clusters)
    mask = outcomes.subsets()[ALL]
    sample = outcomes.sample(metric, mask)
    groups = len(np.unique(clusters))
    score = sample.scores[2]
    rest = replace(outcomes, items=outcomes.items.drop(columns="cluster"))
    counts = [rest.counts(metric, mask & (clusters != cluster)) for cluster in range(groups)]
    without = [sample.metric.score(left.sum(1))[2] for left in counts]
    values = groups * score - (groups - 1) * np.array(without)
    assert sample.values.shape == (4, groups) and sample.examples == 43
    assert sample.values[2] == pytest.approx(values - values.mean() + score)
    assert sample.scores == pytest.approx(rest.sample(metric, mask).scores)


def test_the_variance_over_clusters_of_many_sizes_is_unbiased():
    """A ratio of sums: clusters are drawn with their sizes, and outcomes in a cluster are alike."""
    chance, spreads, means = np.random.default_rng(11), [], []
    for _ in range(400):
        sizes = chance.integers(1, 8, 47)
        right = np.repeat(chance.random(47) < 0.7, sizes)
        outcomes = in_clusters(labelled({ORIGINALS: right}), np.repeat(np.arange(47), sizes))
        sample = outcomes.sample("accuracy", outcomes.subsets()[ALL])
        means.append(sample.scores[0])
        spreads.append(sample.values[0].var(ddof=1) / 47)
    assert np.mean(spreads) == pytest.approx(np.var(means), rel=0.15)


def test_texts_without_a_token_are_in_no_cluster():
    tokens = np.array([3, 0, 2, 5, 0, 1, 4])
    outcomes = in_clusters(texts({ORIGINALS: [1.0] * 7, FLOOR: [2.0] * 7}, tokens), [0, 1, 1, 2, 3, 2, 0])
    sample = outcomes.sample("log_likelihood", outcomes.subsets()[ALL])
    assert sample.clusters.tolist() == [0, 1, 2, 2, 0] and sample.values.shape == (2, 3)
    assert sample.trivial_values.shape == (3,)


def test_a_single_cluster_has_no_interval():
    outcomes = some_runs(20, "accuracy", np.zeros(20, int))
    sample = outcomes.sample("accuracy", outcomes.subsets()[ALL])
    assert status_of(sample, outcomes, "accuracy").startswith("one cluster")


def test_clusters_are_in_the_table_of_outcomes_only_if_there_are_any(tmp_path):
    outcomes = some_runs(7, "accuracy", np.array([0, 0, 4, 4, 4, 2, 2]))
    plain = labelled({ORIGINALS: [1] * 5}, task="u")
    table, facts = table_of([outcomes, plain])
    write_table(table, tmp_path / "o.parquet", facts)
    table = read_table(tmp_path / "o.parquet")
    [back, other] = outcomes_in(table, {"t": "accuracy", "u": "accuracy"})
    assert back.items["cluster"].tolist() == [0, 0, 4, 4, 4, 2, 2] and "cluster" not in other.items
    assert "cluster" not in table_of([plain])[0].column_names


def test_a_comparison_of_clusters_needs_the_same_on_both_sides(tmp_path):
    a, b = of_seeds(drawn(0.8, 40, 1)), of_seeds(drawn(0.7, 40, 2))
    blocks = np.arange(40) // 4
    both = compared(tmp_path / "both", in_clusters(a, blocks), in_clusters(b, blocks + 3))
    none = compared(tmp_path / "none", a, b)
    assert [row["examples_a"] for row in both["rows"]] == [40]
    assert both["rows"] != none["rows"]
    for name, other in (("differ", in_clusters(a, np.arange(40) // 5)), ("one", a)):
        with pytest.raises(InputError, match="group the examples of task cola in different clusters"):
            compared(tmp_path / name, other, in_clusters(b, blocks))
