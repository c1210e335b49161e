"""Training rows that are moved to validation are other rows than those that train, in all tables of a corpus."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from papa.config.job import Job
from papa.config.settings import Corpus, _check_corpus
from papa.config.stages import ClustersOf, LabelsOf, SubsetsOf, TextsOf
from papa.data.prepare import prepare_clusters, prepare_labels, prepare_subsets, prepare_texts
from papa.errors import InputError
from papa.files import provenance_of, read_table
from papa.results.summary import moved_note

ROWS = {"train": 23, "validation": 5}


def corpus_in(folder: Path, words: bool = False, **keys: Any) -> Corpus:
    """A corpus whose texts name their split and row; odd rows have another label and kind than even ones."""
    files = {}
    for split, rows in ROWS.items():
        records = []
        for row in range(rows):
            texts = {"words": [split, f"w{row}"]} if words else {"text": f"{split} {row}"}
            label = [row % 2, 0] if words else row % 2
            records.append(texts | {"label": label, "kind": "odd" if row % 2 else "even"})
        files[split] = str(folder / f"{split}.json")
        Path(files[split]).write_text(json.dumps(records), encoding="utf-8")
    return Corpus(files=files, **({"words": "words"} if words else {"first": "text"}), **keys)


def prepared(folder: Path, corpus: Corpus, metric: str = "accuracy") -> dict[str, Any]:
    """The tables of a corpus as columns, the facts of its texts, and the line of the report."""
    texts = {"texts": (str(folder / "texts.parquet"),)}
    line = prepare_texts(Job("texts", TextsOf(corpus=corpus, source={}), {}, {"texts": texts["texts"][0]}))
    settings = {
        "labels": (prepare_labels, LabelsOf(corpus=corpus, source={}, label="label", metric=metric)),
        "subsets": (prepare_subsets, SubsetsOf(corpus=corpus, source={}, subset="kind")),
        "clusters": (prepare_clusters, ClustersOf(corpus=corpus, source={}, cluster="kind")),
    }
    for name, (stage, about) in settings.items():
        stage(Job(name, about, texts, {name: str(folder / f"{name}.parquet")}))
    tables = {name: read_table(folder / f"{name}.parquet") for name in ("texts", *settings)}
    facts = {name: provenance_of(table) for name, table in tables.items()}
    return {name: table.to_pydict() for name, table in tables.items()} | {"facts": facts, "line": line}


def texts_of(tables: dict[str, Any], split: str, column: str = "first") -> list[Any]:
    columns = tables["texts"]
    return [text for text, of in zip(columns[column], columns["split"], strict=True) if of == split]


@pytest.mark.parametrize("limit", [None, 11])
def test_moved_rows_are_validation_rows_that_never_train(limit, tmp_path):
    tables = prepared(tmp_path, corpus_in(tmp_path, train_limit=limit, validation_from_train=7))
    train, validation = (texts_of(tables, split) for split in ("train", "validation"))
    assert validation[:5] == [f"validation {row}" for row in range(5)]
    moved = validation[5:]
    assert len(moved) == 7 == len(set(moved)) and all(text.startswith("train ") for text in moved)
    assert not set(train) & set(moved) and len(train) == (limit or 23 - 7)
    facts = tables["facts"]["texts"]
    assert facts["rows"] == {"train": len(train), "validation": 12}
    assert facts["rows_available"] == {"train": 23, "validation": 12} and facts["shared"] == {"validation": 0}
    assert (
        tables["line"] == f"{len(train)} of 23 train rows, 5 of 5 validation rows, 7 training rows moved to validation"
    )
    rows = list(zip(tables["texts"]["split"], tables["texts"]["row"], strict=True))
    assert len(set(rows)) == len(rows), "a row moved from the training split continues the rows of validation"
    assert [row - 5 for split, row in rows if split == "validation"][5:] == [int(text.split()[1]) for text in moved]


def test_tables_of_a_task_have_the_rows_of_its_texts(tmp_path):
    tables = prepared(tmp_path, corpus_in(tmp_path, train_limit=9, validation_from_train=6))
    odd = [int(text.split()[1]) % 2 for text in tables["texts"]["first"]]
    assert tables["labels"]["label"] == odd
    assert tables["subsets"]["subset"] == ["odd" if row else "even" for row in odd]
    assert tables["clusters"]["cluster"] == [int(row != odd[0]) for row in odd]
    assert sum(tables["facts"]["labels"]["train_counts"]) == 9
    for name in ("labels", "subsets", "clusters"):
        assert [tables[name][key] for key in ("split", "row")] == [tables["texts"][key] for key in ("split", "row")]


def test_words_move_with_their_labels(tmp_path):
    tables = prepared(tmp_path, corpus_in(tmp_path, words=True, validation_from_train=4), "token_accuracy")
    assert len(texts_of(tables, "validation", "words")) == 9
    assert tables["labels"]["label"] == [[int(words[1][1:]) % 2, 0] for words in tables["texts"]["words"]]
    assert sum(tables["facts"]["labels"]["train_counts"]) == 2 * 19


def test_a_larger_number_moves_the_same_rows_and_more(tmp_path):
    few, many = (
        set(texts_of(prepared(tmp_path, corpus_in(tmp_path, validation_from_train=number)), "validation"))
        for number in (3, 8)
    )
    assert few < many


def test_training_rows_of_a_limit_stay_what_they_are(tmp_path):
    without, moved = (
        texts_of(prepared(tmp_path, corpus_in(tmp_path, train_limit=11, validation_from_train=number)), "train")
        for number in (None, 12)
    )
    assert without == moved


def test_labels_that_only_train_are_not_missing_in_validation(tmp_path, caplog):
    """The moved rows are read from the training file, but only their labels are labels of validation rows."""
    corpus = corpus_in(tmp_path, train_limit=17, validation_from_train=2)
    with caplog.at_level(logging.WARNING):
        prepared(tmp_path, corpus)
    assert not [record for record in caplog.records if "cluster" not in record.message]


@pytest.mark.parametrize(
    ("limit", "number", "message"),
    [
        (None, 23, "moves 23 rows, but .*train.json has 23 rows, and at least one has to train"),
        (11, 13, "moves 13 rows, but .*train.json has 23 rows, and `train_limit` uses 11 of them"),
        (99, 40, "at least one has to train; lower one of the numbers"),
    ],
)
def test_impossible_numbers_are_refused(limit, number, message, tmp_path):
    with pytest.raises(InputError, match=message):
        prepared(tmp_path, corpus_in(tmp_path, train_limit=limit, validation_from_train=number))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hub": "some/data", "blocks": True}, "is running text, whose rows belong together"),
        ({"hub": "some/data", "validation": ""}, "has no validation split"),
    ],
)
def test_only_a_validation_split_of_texts_can_get_rows(keys, message):
    with pytest.raises(InputError, match=message):
        _check_corpus("corpora.c", Corpus(first="text", validation_from_train=3, **keys))


def test_the_note_says_how_many_rows_were_moved():
    assert moved_note({"t": "SST-2"}, {"t": 10_000}) == (
        "Validation rows from the training split, on which nothing is trained: SST-2, 10,000."
    )
    assert moved_note({}, {}) == ""


def test_consecutive_rows_are_no_clusters_of_random_rows():
    with pytest.raises(InputError) as refused:
        _check_corpus("corpora.c", Corpus(hub="some/data", first="text", validation_from_train=3, cluster=5))
    assert str(refused.value) == (
        "corpora.c.cluster is 5, but `validation_from_train` moves random rows, so consecutive validation rows do not "
        "belong together; set `cluster` to a column, or leave out one of the two keys."
    )
    _check_corpus("corpora.c", Corpus(hub="some/data", first="text", validation_from_train=3, cluster="document"))
    _check_corpus("corpora.c", Corpus(hub="some/data", first="text", validation_from_train=3))
