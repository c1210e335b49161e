"""Outcomes of runs are joined with labels and subsets; floors and scores are those worked out by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import labelled, run_record, texts

from papa.config.measures import MEASURES
from papa.errors import DamagedArtefact
from papa.files import Trace, write_table
from papa.results.losses import losses_of
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, Setting, TaskOutcomes, read_task_outcomes

TRACE = Trace("probe", 1, {}, {})
NAMES = ["O", "B-X", "I-X"]
WORDS = {"example": [0, 0, 0, 2, 2], "word": [0, 1, 2, 0, 1], "gold": [0, 1, 2, 1, 0]}
"""Two sentences of the validation split with labelled words; the sentence between them has none."""

RECORD = {name: run_record()[name] for name in ("model", "task", "constant", "order", "fraction")}


def write_outcomes(path: Path, predicted: list[int], seed: int, corpus: str = "c", **columns: Any) -> Path:
    values = {"seed": [seed] * 5, "split": ["validation"] * 5} | WORDS | {"predicted": predicted} | columns
    write_table(pa.table(values), path, {"weights": "w", "corpus": corpus, "label_names": NAMES, **RECORD}, TRACE)
    return path


def write_labels(path: Path, column: str, values: list[Any], **facts: Any) -> Path:
    """Two training rows, of one and two words, and the three validation rows."""
    splits = ["train"] * 2 + ["validation"] * 3
    table = pa.table({"split": splits, "row": [0, 1, 0, 1, 2], column: values})
    write_table(table, path, {"fingerprint": "c"} | facts, TRACE)
    return path


@pytest.fixture
def words(tmp_path: Path) -> TaskOutcomes:
    runs = [
        (run_record(seed=seed), write_outcomes(tmp_path / f"{seed}.parquet", predicted, seed))
        for seed, predicted in ((1, [0, 1, 2, 1, 0]), (2, [0, 1, 0, 1, 1]))
    ]
    tagged = [[0], [0, 1], [0, 1, 1], [0], [1, 1]]
    labels = write_labels(tmp_path / "l.parquet", "by_word", tagged, label_names=NAMES, train_counts=[5, 2, 1])
    marks = [[""], ["", ""], ["new", "", "new"], [""], ["", "new"]]
    subsets = write_labels(tmp_path / "s.parquet", "subset", marks)
    [outcomes] = read_task_outcomes(runs, {"t": "entity_f1"}, {"t": labels}, {"t": subsets})
    return outcomes


def test_words_get_their_marks_and_labels_and_units_their_place_in_the_corpus(words):
    assert words.items["by_word"].tolist() == [0, 1, 1, 1, 1]
    assert words.items["subset"].tolist() == ["new", "", "new", "", "new"]
    masks = words.subsets()
    assert [*masks] == [ALL, "new"] and masks[ALL].all() and masks["new"].tolist() == [True, False, True, False, True]
    assert words.examples(masks["new"]) == 2 and (words.names, words.train_counts) == (tuple(NAMES), (5, 2, 1))
    # so two tasks on one corpus are paired, though each has sentences without a label
    sample = words.sample("entity_f1", masks[ALL])
    assert words.units(masks[ALL]).tolist() == sample.units.tolist() == [0, 2] and sample.values.shape[1] == 2
    assert texts({ORIGINALS: [1.0, 2.0, 3.0]}, [5, 0, 7]).units(np.ones(3, bool)).tolist() == [0, 2]


def test_subsets_are_of_validation_examples_and_further_splits_are_parts():
    outcomes = labelled({ORIGINALS: [1] * 4}, subset=["a", "", "a", ""])
    items = outcomes.items.assign(split=["validation", "validation", "more", "more"])
    parts = {name: np.flatnonzero(part).tolist() for name, part in replace(outcomes, items=items).subsets().items()}
    assert parts == {ALL: [0, 1], "a": [0], "more": [2, 3]}


def test_scores_and_floors_are_those_by_hand(words):
    sample = words.sample("entity_f1", words.subsets()[ALL])
    # gold: an entity of two words and one of one word; the second run has a shorter one, a right and a wrong one
    assert sample.scores.tolist() == [1.0, pytest.approx(2 * 1 / (3 + 2))]
    assert sample.trivial == 0.0, "no entities at all"
    assert sample.by_word == pytest.approx(MEASURES["entity_f1"].score(np.array([1, 4, 2])))
    accuracy = words.sample("token_accuracy", words.subsets()[ALL])
    assert (accuracy.trivial, accuracy.by_word) == (0.4, 0.6)
    assert sample.counts.shape == (2, 2, 3), "two runs, two sentences with words"
    # for F1 everything is called positive
    outcomes = labelled({ORIGINALS: [1, 1, 1, 0]}, gold=[0, 0, 0, 1], metric="f1", train_counts=(9, 1))
    trivial = [outcomes.sample(metric, outcomes.subsets()[ALL]).trivial for metric in ("f1", "accuracy")]
    assert trivial == pytest.approx([2 * 1 / (4 + 1), 0.75])


def test_losses_have_texts_as_units():
    """Of a masked model, whose probes have seeds; texts without a masked token count nothing."""
    tokens, wave = np.arange(40) % 4, 0.01 * np.cos(np.arange(40))
    means = {ORIGINALS: 1.0, FLOOR: 3.0, Setting("average", None, "0"): 2.0}
    nats = {setting: [mean + wave + 0.001 * seed for seed in range(3)] for setting, mean in means.items()}
    metric = "negative_log_perplexity"
    outcomes = texts(nats, tokens, metric=metric)
    sample = outcomes.sample(metric, outcomes.subsets()[ALL])
    assert sample.scores[0] == pytest.approx(-(tokens * (1 + wave)).sum() / tokens.sum()) and sample.trivial == -4.0
    assert sample.values.shape == (9, 30)
    loss = losses_of([outcomes]).set_index("constant").loc["average"]
    assert loss["loss"] == pytest.approx(0.5) and loss["loss_low"] < 0.5 < loss["loss_high"]


@pytest.mark.parametrize(
    ("recorded", "columns", "corpus", "message"),
    [
        (7, {}, "c", "the outcomes of another run"),
        (2, {"example": [0, 0, 0, 2, 1]}, "c", "does not have the same examples as"),
        (2, {}, "other", "and the outcomes were made from different texts"),
    ],
)
def test_what_does_not_belong_together_is_refused(tmp_path, recorded, columns, corpus, message):
    first = write_outcomes(tmp_path / "1.parquet", [0] * 5, 1, corpus)
    second = write_outcomes(tmp_path / "2.parquet", [0] * 5, recorded, **columns)
    labels = write_labels(tmp_path / "l.parquet", "by_word", [[0]] * 5, label_names=NAMES, train_counts=[1, 1, 1])
    runs = [(run_record(seed=1), first), (run_record(seed=2), second)]
    with pytest.raises(DamagedArtefact, match=message):
        read_task_outcomes(runs, {"t": "entity_f1"}, {"t": labels}, {})
