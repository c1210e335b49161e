"""Outcomes of runs are joined with labels and subsets; floors and scores are those worked out by hand."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from builders import labelled, sample_of, texts
from scipy import stats
from tiny import TRAINING

from papa.config.settings import Config
from papa.files import write_table
from papa.results.finished import Finished
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, Setting, joint_spread
from papa.results.reliance import effects_of
from papa.stages import Job, Probe, Training

NAMES = ["O", "B-X", "I-X"]
ITEMS = {"example": [0, 0, 0, 2, 2], "word": [0, 1, 2, 0, 1]}
"""Words of two sentences of the validation split; the sentence between them has no word with a token."""
GOLD = [[0], [0, 1], [0, 1, 2], [0], [1, 0]]
WORDS = [["a"], ["b", "c"], ["x", "c", "c"], ["b"], ["c", "c"]]
"""Two training rows, of one and two words, and the three validation rows, with their labels."""


def finished_words(folder, predicted, cluster=None, metric="entity_f1"):
    """A finished study with a run for each list of predictions."""
    files = {"train": "a.jsonl", "validation": "b.jsonl"}
    config = Config.model_validate(
        {
            "name": "words",
            "run": {"models": ["m"], "tasks": ["t"], "fractions": ["1"], "seeds": [1, 2]},
            "models": {"m": {"path": "m"}},
            "corpora": {"c": {"files": files, "words": "w", "slots": 9, "cluster": cluster}},
            "tasks": {
                "t": {"corpus": "c", "label": "l", "subset": "s", "metric": metric} | TRAINING
            },
        }
    )
    marks = [[""], ["", ""], ["new", "", "new"], [""], ["", "new"]]
    columns = {
        "split": ["train"] * 2 + ["validation"] * 3,
        "row": [0, 1, 0, 1, 2],
        "words": WORDS,
        "label t": GOLD,
        "subset t": marks,
    }
    if isinstance(cluster, str):
        columns["cluster"] = [0, 0, 3, 4, 5]
    table = folder / "c.parquet"
    write_table(
        pa.table(columns), table, {"labels": {"t": {"names": NAMES, "train_counts": [5, 2, 1]}}}
    )
    probes = []
    about = {
        "model": "m",
        "task": "t",
        "corpus": "c",
        "constant": None,
        "order": None,
        "fraction": "1",
    }
    for seed, labels in enumerate(predicted, start=1):
        settings = Probe(kind="word", training=Training(**TRAINING), seed=seed)
        path = f"{folder}/p-{seed}.parquet"
        job = Job(settings, settings.record({}), {}, path, about | {"seed": seed, "sample": 0})
        write_table(
            pa.table({"split": ["validation"] * 5} | ITEMS | {"predicted": labels}),
            job.output,
            {},
            job.record,
        )
        probes.append(job)
    return Finished(config, folder, probes, {"c": table})


@pytest.fixture
def words(tmp_path):
    [outcomes] = finished_words(tmp_path, [[0, 1, 2, 1, 0], [0, 1, 0, 1, 1]]).outcomes
    return outcomes


def test_words_get_their_marks_and_labels_and_units_their_place_in_the_corpus(words):
    assert words.items["subset"].tolist() == ["new", "", "new", "", "new"]
    masks = words.subsets()
    assert [*masks] == [ALL, "new"]
    assert masks[ALL].all()
    assert masks["new"].tolist() == [True, False, True, False, True]
    assert len(words.units(masks["new"])) == 2
    assert (words.names, words.train_counts) == (
        tuple(NAMES),
        (5, 2, 1),
    )
    # so two tasks on one corpus are paired, though each has sentences without a label
    sample = words.sample("entity_f1", masks[ALL])
    assert words.units(masks[ALL]).tolist() == sample.units.tolist() == [0, 2]
    assert sample.values.shape[1] == 2
    assert texts({ORIGINALS: [1.0, 2.0, 3.0]}, [5, 0, 7]).units(np.ones(12, bool)).tolist() == [
        0,
        2,
    ]


def test_subsets_are_of_validation_examples_and_further_splits_are_parts():
    outcomes = labelled({ORIGINALS: [1] * 4}, subset=["a", "", "a", ""])
    items = outcomes.items.assign(split=["validation", "validation", "more", "more"])
    parts = {
        name: np.flatnonzero(part).tolist()
        for name, part in replace(outcomes, items=items).subsets().items()
    }
    assert parts == {ALL: [0, 1], "a": [0], "more": [2, 3]}


def test_scores_and_floors_are_those_by_hand(words):
    sample = sample_of(words, "entity_f1")
    # gold: an entity of two words and one of one word; the second run has a shorter one, a right and a wrong one
    assert sample.scores.tolist() == [1.0, pytest.approx(2 * 1 / (3 + 2))]
    assert sample.trivial == 0.0, "no entities at all"
    assert sample_of(words, "token_accuracy").trivial == 0.4
    assert sample.counts.shape == (2, 2, 3), "two runs, two sentences with words"
    # for F1 everything is called positive
    outcomes = labelled(
        {ORIGINALS: [1, 1, 1, 0]}, gold=[0, 0, 0, 1], metric="f1", train_counts=(9, 1)
    )
    trivial = [sample_of(outcomes, metric).trivial for metric in ("f1", "accuracy")]
    assert trivial == pytest.approx([2 * 1 / (4 + 1), 0.75])


def test_losses_have_texts_as_units():
    """Of a masked model, whose probes have seeds; texts without a masked token count nothing."""
    tokens = np.arange(40) % 4
    means = {ORIGINALS: 1.0, FLOOR: 3.0, Setting("average", None, "0"): 2.0}
    waves = {setting: 0.01 * np.cos(mean * np.arange(40)) for setting, mean in means.items()}
    nats = {
        setting: [mean + waves[setting] + 0.001 * seed for seed in range(3)]
        for setting, mean in means.items()
    }
    metric = "negative_log_perplexity"
    outcomes = texts(nats, tokens, metric=metric)
    sample = sample_of(outcomes, metric)
    assert sample.scores[0] == pytest.approx(
        -(tokens * (1 + waves[ORIGINALS])).sum() / tokens.sum()
    )
    assert sample.trivial == -4.0
    assert sample.values.shape == (9, 30)
    reliance = effects_of([outcomes]).set_index("constant").loc["average"]
    assert reliance["reliance"] == pytest.approx(0.5, abs=0.001)
    assert reliance["reliance_low"] < 0.5 < reliance["reliance_high"]


def test_what_few_texts_lose_alike_is_bounded_by_how_they_differ():
    """As by a t interval; a loss changes in every text, so nothing is hidden in texts without a change."""
    chance = np.random.default_rng(0)
    original = 1 + chance.random(20)
    lost = 1.2 + 0.1 * chance.standard_normal(20)
    averages = Setting("average", None, "0")
    nats = {ORIGINALS: [original], averages: [original + lost], FLOOR: [original + 2]}
    outcomes = texts(nats, np.full(20, 50))
    sample = sample_of(outcomes, "log_likelihood")
    spread = joint_spread([(sample, ORIGINALS), (sample, averages)])
    interval = spread.estimate([0, 1, -1]).interval()
    assert interval.mean == pytest.approx(lost.mean())
    half = stats.t.ppf(0.975, 19) * lost.std(ddof=1) / 20**0.5
    assert half < interval.high - interval.mean < 1.1 * half
