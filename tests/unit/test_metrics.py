"""Metrics against counts by hand: main score, further readings, subsets, and what is not defined."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from papa.errors import InputError
from papa.method.metrics import METRICS, evaluate

ENTITY = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


@pytest.fixture(autouse=True)
def no_warnings() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_accuracy() -> None:
    assert evaluate("accuracy", [0, 1, 2, 2], [0, 1, 2, 0], ["a", "b", "c"]) == {
        "score": 0.75,
        "scores": {"accuracy": 0.75},
        "subsets": {},
    }


def test_f1_is_of_the_second_label() -> None:
    # true positives 2, false positives 1, false negatives 2
    result = evaluate(
        "f1", np.array([1, 1, 1, 1, 0, 0]), np.array([1, 1, 0, 0, 1, 0]), ["not_equivalent", "equivalent"]
    )
    assert result["score"] == pytest.approx(4 / 7)
    assert result["scores"] == {"f1": result["score"], "accuracy": 0.5}


def test_matthews_correlation() -> None:
    tp, tn, fp, fn = 5, 3, 2, 1
    gold = [1] * (tp + fn) + [0] * (tn + fp)
    predicted = [1] * tp + [0] * fn + [0] * tn + [1] * fp
    expected = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    result = evaluate("matthews_correlation", gold, predicted, ["bad", "good"])
    assert result["score"] == pytest.approx(expected)
    assert result["scores"]["accuracy"] == pytest.approx(8 / 11)


@pytest.mark.parametrize("metric", ["f1", "matthews_correlation"])
@pytest.mark.parametrize("gold", [[0, 0, 0], [0, 1, 0]])
def test_undefined_scores_are_zero(metric: str, gold: list[int]) -> None:
    assert evaluate(metric, gold, [0, 0, 0], ["a", "b"])["score"] == 0.0


def test_entities_without_any_are_zero() -> None:
    assert evaluate("entity_f1", [[0, 0]], [[0, 0]], ENTITY)["score"] == 0.0


def test_entity_f1_counts_whole_entities_within_their_sentence() -> None:
    gold = [np.array([1, 2, 0, 3]), np.array([4, 0])]
    predicted = [np.array([1, 2, 0, 1]), np.array([3, 0])]
    # gold: PER(0-1), LOC(3), LOC(4, begun by I-); predicted: PER(0-1), PER(3), LOC(4)
    result = evaluate("entity_f1", gold, predicted, ENTITY)
    assert result["score"] == pytest.approx(2 / 3)
    assert result["scores"] == {"entity_f1": result["score"], "token_accuracy": pytest.approx(4 / 6)}
    # one sentence ends in B-LOC, the next begins with I-LOC: two entities, not one
    apart = evaluate("entity_f1", [[3], [4]], [[3], [0]], ENTITY)["score"]
    assert apart == pytest.approx(2 / 3)


def test_token_accuracy_and_the_chunks_of_bare_tags() -> None:
    # seqeval reads the run DT NN NN JJ as chunks of equal tags: DT, NN NN, JJ
    names = ["DT", "NN", "JJ"]
    result = evaluate("token_accuracy", [[0, 1, 1, 2]], [[0, 1, 2, 2]], names)
    assert result["score"] == result["scores"]["token_accuracy"] == 0.75
    # predicted chunks: DT, NN, JJ JJ; one of three is right
    assert result["scores"]["chunk_f1"] == pytest.approx(1 / 3)


def test_words_without_a_label_are_left_out() -> None:
    result = evaluate("token_accuracy", [[0, -100, 1], [-1], []], [[0, 1, 1], [0], []], ["X", "Y"], ["p", "q", "q"])
    assert result["score"] == 1.0
    assert result["subsets"] == {"p": {"score": 1.0, "examples": 1}}


def test_subsets_of_examples() -> None:
    result = evaluate(
        "accuracy", [0, 1, 1, 0, 1], [0, 1, 0, 1, 1], ["a", "b"], ["fixed", "fixed", "lookup", "lookup", ""]
    )
    assert result["score"] == 0.6
    assert result["subsets"] == {"fixed": {"score": 1.0, "examples": 2}, "lookup": {"score": 0.0, "examples": 2}}


def test_subsets_of_words_cut_sentences_down() -> None:
    gold, predicted = [[1, 0, 3], [0, -1, 3]], [[1, 0, 1], [0, 0, 3]]
    marks = [["p", "q", "q"], ["p", "p", "q"]]
    result = evaluate("entity_f1", gold, predicted, ENTITY, marks)
    assert result["subsets"]["p"] == {"score": 1.0, "examples": 2}
    assert result["subsets"]["q"] == {"score": pytest.approx(0.5), "examples": 2}
    whole = evaluate("entity_f1", gold, predicted, ENTITY, ["p", "q"])["subsets"]
    assert whole == {"p": {"score": pytest.approx(0.5), "examples": 1}, "q": {"score": 1.0, "examples": 1}}


@pytest.mark.parametrize("metric", [metric for metric, kind in METRICS.items() if kind != "masked"])
def test_every_metric_gives_plain_floats_and_stands_first(metric: str) -> None:
    by_word = METRICS[metric] == "token"
    names = ["O", "B-X"]
    gold = [np.array([0, 1]), np.array([1])] if by_word else np.array([0, 1, 1])
    result = evaluate(metric, gold, gold, names, ["u", "v"] if by_word else ["u", "v", "v"])
    assert result["score"] == 1.0
    assert next(iter(result["scores"])) == metric
    assert all(type(score) is float for score in result["scores"].values())
    assert all(type(its["score"]) is float and type(its["examples"]) is int for its in result["subsets"].values())


@pytest.mark.parametrize(
    ("metric", "gold", "predicted", "subset", "said"),
    [
        ("bleu", [0], [0], None, r"no metric 'bleu'; there are accuracy"),
        ("accuracy", [0, 1], [0], None, r"one prediction for each label"),
        ("token_accuracy", [[0, 1]], [[0]], None, r"one prediction for each label"),
        ("accuracy", [[0, 1]], [[0, 1]], None, r"one label per example"),
        ("accuracy", [], [], None, r"nothing to score"),
        ("token_accuracy", [], [], None, r"nothing to score"),
        ("token_accuracy", [[-1]], [[0]], None, r"nothing to score"),
        ("accuracy", [0, 2], [0, 1], None, r"indices of the 2 label names"),
        ("accuracy", [0, 1], [0, -1], None, r"indices of the 2 label names"),
        ("accuracy", [0, 1], [0, 1], ["a"], r"2 examples, but subsets of 1"),
        ("token_accuracy", [[0, 1]], [[0, 1]], [["a"]], r"one for each word"),
    ],
)
def test_bad_arguments_are_named(metric: str, gold: list, predicted: list, subset: list | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        evaluate(metric, gold, predicted, ["O", "B-X"], subset)
