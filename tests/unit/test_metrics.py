"""Metrics against counts by hand, scikit-learn and seqeval: scores, what each unit adds, and what is not defined."""

import warnings

import numpy as np
import pytest
import seqeval.metrics
import sklearn.metrics
from refusals import input_error

from papa.config.measures import (
    MEASURES,
    METRICS,
    Outcomes,
    check_metric,
    frequent_class,
    positive_class,
    pseudo_values,
)

ENTITY = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
BIOES = ["O", *(f"{mark}-{kind}" for mark in "BIES" for kind in ("PER", "LOC", "x-y"))]
BILOU, BMES = (
    [name.translate(str.maketrans("IES", marks)) for name in BIOES] for marks in ("ILU", "MES")
)
IOB = ["O", *(f"{mark}-{kind}" for mark in "BI" for kind in ("PER", "ORG"))]
# tags of the Penn Treebank; some begin like the marks of entities
TAGS = ["NN", "DT", "IN", "EX", "SYM", ".", "BES", "O", "I", "VB-D", ":"]


pytestmark = pytest.mark.filterwarnings("error")


def score_of(metric, outcomes):
    return float(MEASURES[metric].score(MEASURES[metric].counts(outcomes).sum(0)))


def of_texts(gold, predicted, names):
    return Outcomes(np.array(gold), np.array(predicted), np.arange(len(gold)), names)


def of_words(gold, predicted, names):
    unit = np.repeat(np.arange(len(gold)), [len(sentence) for sentence in gold])
    return Outcomes(np.concatenate(gold), np.concatenate(predicted), unit, names)


def random_words(names, seed, sentences=20):
    """Labels and predictions that agree on two of three words; runs of one label are frequent."""
    chance = np.random.default_rng(seed)
    unit = np.repeat(
        np.arange(sentences) * 3, chance.integers(1, 12, sentences)
    )  # the units have gaps
    gold = np.maximum.accumulate(np.where(chance.random(len(unit)) < 0.6, np.arange(len(unit)), 0))
    gold = chance.integers(0, len(names), len(unit))[gold]
    other = chance.integers(0, len(names), len(unit))
    return Outcomes(gold, np.where(chance.random(len(unit)) < 0.67, gold, other), unit, names)


def sentences_of(outcomes):
    """The names of the labels `[sentence][word]`, of the gold ones and of the predicted ones."""
    return [
        [
            [outcomes.names[label] for label in labels[outcomes.unit == unit]]
            for unit in np.unique(outcomes.unit)
        ]
        for labels in (outcomes.gold, outcomes.predicted)
    ]


def test_counts_are_those_by_hand_and_undefined_scores_are_zero():
    # true positives 2, false positives 1, false negatives 2
    outcomes = of_texts([1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 0], ["not_equivalent", "equivalent"])
    assert MEASURES["f1"].counts(outcomes).sum(0).tolist() == [2, 3, 4]
    # gold: PER(0-1), LOC(3), LOC(4, begun by I-); predicted: PER(0-1), PER(3), LOC(4)
    outcomes = of_words([[1, 2, 0, 3], [4, 0]], [[1, 2, 0, 1], [3, 0]], ENTITY)
    assert score_of("token_accuracy", outcomes) == pytest.approx(4 / 6)
    assert MEASURES["entity_f1"].counts(outcomes).tolist() == [[1, 2, 2], [1, 1, 1]]
    # one sentence ends in B-LOC, the next begins with I-LOC: two entities, not one
    assert score_of("entity_f1", of_words([[3], [4]], [[3], [0]], ENTITY)) == pytest.approx(2 / 3)
    assert score_of("entity_f1", of_words([[0, 0]], [[0, 0]], ENTITY)) == 0.0, "without any entity"
    for metric in ("f1", "matthews_correlation"):
        undefined = [
            score_of(metric, of_texts(gold, [0, 0, 0], ["a", "b"]))
            for gold in ([0, 0, 0], [0, 1, 0])
        ]
        assert undefined == [0.0, 0.0]


@pytest.mark.parametrize("names", [BIOES, IOB, TAGS], ids=["bioes", "iob", "bare tags"])
@pytest.mark.parametrize("seed", range(10))
def test_entities_are_those_of_seqeval(names, seed):
    outcomes = random_words(names, seed)
    gold, predicted = sentences_of(outcomes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns at every bare tag
        expected = seqeval.metrics.f1_score(gold, predicted, average="micro", zero_division=0)
    assert score_of("chunk_f1", outcomes) == pytest.approx(expected, abs=1e-12)
    assert score_of("entity_f1", outcomes) == score_of("chunk_f1", outcomes)


@pytest.mark.parametrize("names", [BILOU, BMES], ids=["bilou", "bmes"])
@pytest.mark.parametrize("seed", range(3))
def test_entities_of_other_tags_are_those_of_the_same_tags_in_seqeval(names, seed):
    outcomes = random_words(names, seed)
    same = dict(zip(names, BIOES, strict=True))
    expected = seqeval.metrics.f1_score(
        *([[same[tag] for tag in row] for row in rows] for rows in sentences_of(outcomes))
    )
    assert score_of("entity_f1", outcomes) == pytest.approx(expected, abs=1e-12)
    check_metric("entity_f1", METRICS["entity_f1"].target, names)


@pytest.mark.parametrize(
    ("metric", "names", "counts", "positive", "warning"),
    [
        (
            "f1",
            ["hate", "no-hate"],
            [40, 200],
            "no-hate",
            "F1 is that of no-hate, the class of 83% of the",
        ),
        ("f1", ["no", "yes"], [200, 40], "yes", ""),
        ("f1", ["no", "yes"], [50, 50], "yes", ""),
        ("accuracy", ["hate", "no-hate"], [40, 200], None, ""),
    ],
)
def test_f1_names_its_class_and_warns_if_it_is_the_more_frequent_one(
    metric, names, counts, positive, warning
):
    assert positive_class(metric, names) == positive
    assert bool(frequent_class(metric, names, counts)) == bool(warning)
    assert frequent_class(metric, names, counts).startswith(warning)


@pytest.mark.parametrize("labels", [2, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_scores_of_texts_are_those_of_scikit_learn(labels, seed):
    chance = np.random.default_rng(seed)
    gold = chance.integers(0, labels, 40)
    predicted = np.where(chance.random(40) < 0.5, gold, chance.integers(0, labels, 40))
    outcomes = of_texts(
        gold.tolist(), predicted.tolist(), [f"class {number}" for number in range(labels)]
    )
    assert score_of("accuracy", outcomes) == sklearn.metrics.accuracy_score(gold, predicted)
    correlation = sklearn.metrics.matthews_corrcoef(gold, predicted)
    assert score_of("matthews_correlation", outcomes) == pytest.approx(correlation, abs=1e-12)
    f1 = sklearn.metrics.f1_score(gold, predicted, labels=[1], average="micro", zero_division=0.0)
    assert score_of("f1", outcomes) == pytest.approx(f1, abs=1e-12)


def test_losses_are_summed_over_tokens_and_turned_round():
    losses = np.array([1.0, 2.0, 3.0, 1.0])
    outcomes = Outcomes(np.arange(4), losses, np.array([0, 0, 0, 1]), ())
    for metric, score in (
        ("negative_log_perplexity", -7 / 4),
        ("log_likelihood", -7 / 4),
        ("perplexity", np.exp(7 / 4)),
    ):
        counts = MEASURES[metric].counts(outcomes)
        assert counts.tolist() == [[6, 3], [1, 1]]
        assert float(MEASURES[metric].score(counts.sum(0))) == score
    assert pseudo_values(MEASURES["log_likelihood"], counts).mean() == pytest.approx(-7 / 4)


def test_labels_that_are_all_missing_are_named():
    with input_error("nothing to score, because no example has a label"):
        of_texts([], [], ["O", "B-X"])
