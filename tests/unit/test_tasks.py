"""Normalised tables: texts and labels by name, and a sentence for everything that can be wrong with them."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from papa.config.job import Job
from papa.config.settings import Corpus, corpus_of
from papa.config.stages import LabelsOf, SubsetsOf, TextsOf
from papa.data.prepare import prepare_labels, prepare_subsets, prepare_texts
from papa.data.readers import SourceRows
from papa.data.sources import source_digests
from papa.errors import DamagedArtefact, InputError
from papa.files import digest_of, digest_of_table, provenance_of, read_table, trace_of

Prepare = Callable[..., pa.Table]
TEXT = {"text": ["a", "b", "c"], "label": ["yes", "no", "yes"]}
WORDS = {"words": [["a", "b"], ["c"]], "tag": [["X", "Y"], ["Y"]]}
PAIRS = {"text": ["a", "b"], "other": ["x", "y"]}


def texts_of(corpus: Corpus, folder: Path) -> str:
    """Write the texts of a corpus below a folder; returns what the stage says."""
    settings = TextsOf(corpus=corpus, source={})
    return prepare_texts(Job("texts", settings, {}, {"texts": str(folder / "texts.parquet")}))


def labels_of(corpus: Corpus, folder: Path, **task: Any) -> pa.Table:
    """Write labels next to the texts, and subsets if the task has some; returns the table of the last of them."""
    texts = {"texts": (str(folder / "texts.parquet"),)}
    subset = task.pop("subset", None)
    settings = LabelsOf(corpus=corpus, source={}, **task)
    prepare_labels(Job("labels", settings, texts, {"labels": str(folder / "labels.parquet")}))
    if subset is None:
        return read_table(folder / "labels.parquet")
    marked = SubsetsOf(corpus=corpus, source={}, subset=subset)
    prepare_subsets(Job("subsets", marked, texts, {"subsets": str(folder / "subsets.parquet")}))
    return read_table(folder / "subsets.parquet")


@pytest.mark.parametrize("stage", ["texts", "labels", "subsets"])
def test_a_source_that_was_replaced_after_planning_is_refused(stage, tmp_path):
    files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "validation")}
    for path in files.values():
        Path(path).write_text("text,label,kind\na,yes,x\nb,no,y\n", encoding="utf-8")
    corpus = corpus_of(files=files, first="text")
    planned = source_digests(corpus, None)
    texts = Job("texts", TextsOf(corpus=corpus, source=planned), {}, {"texts": str(tmp_path / "texts.parquet")})
    prepare_texts(texts)
    Path(files["train"]).write_text("text,label,kind\na,no,y\nb,yes,x\n", encoding="utf-8")
    late, settings = {
        "texts": (prepare_texts, texts.settings),
        "labels": (prepare_labels, LabelsOf(corpus=corpus, source=planned, label="label", metric="accuracy")),
        "subsets": (prepare_subsets, SubsetsOf(corpus=corpus, source=planned, subset="kind")),
    }[stage]
    new = tmp_path / "new.parquet"
    with pytest.raises(InputError, match=r"train\.csv has changed since this run began; run again"):
        late(Job(stage, settings, {"texts": (texts.output("texts"),)}, {stage: str(new)}))
    assert not new.exists()


@pytest.fixture
def prepare(tmp_path: Path) -> Prepare:
    """Prepare texts and labels of a corpus of two Parquet files; gives the table of labels, or of subsets."""

    def run(
        train: dict[str, Any],
        validation: dict[str, Any] | None = None,
        names: dict[str, Any] | None = None,
        corpus: dict[str, Any] | None = None,
        **task: Any,
    ) -> pa.Table:
        features = {key: {"_type": "ClassLabel", "names": classes} for key, classes in (names or {}).items()}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        files = {"train": tmp_path / "train.parquet", "validation": tmp_path / "validation.parquet"}
        for file, columns in zip(files.values(), (train, validation or train), strict=True):
            pq.write_table(pa.table(columns).replace_schema_metadata(metadata), file)
        column = {"words": "words"} if "words" in train else {"first": "text"}
        paths = {split: str(file) for split, file in files.items()}
        source = corpus_of(**{"files": paths, **column, **(corpus or {})})
        given = {"label": "tag" if "words" in train else "label"}
        given["metric"] = "token_accuracy" if "words" in train else "accuracy"
        texts_of(source, tmp_path)
        return labels_of(source, tmp_path, **(given | task))

    return run


def test_texts_and_labels_have_the_same_rows(prepare, tmp_path):
    labels = prepare(TEXT, {"text": ["d"], "label": ["no"]})
    texts = read_table(tmp_path / "texts.parquet")
    rows = {"split": ["train"] * 3 + ["validation"], "row": [0, 1, 2, 0], "first": ["a", "b", "c", "d"]}
    assert texts.to_pydict() == rows
    assert labels.select(["split", "row"]) == texts.select(["split", "row"])
    assert labels["label"].to_pylist() == [1, 0, 1, 0]
    about, fingerprint = provenance_of(texts), digest_of_table(texts)
    assert about["fingerprint"] == provenance_of(labels)["fingerprint"] == fingerprint
    assert about["rows"] == about["rows_available"] == {"train": 3, "validation": 1}
    assert provenance_of(labels)["label_names"] == ["no", "yes"]
    assert provenance_of(labels)["train_counts"] == [1, 2]
    trace = trace_of(tmp_path / "labels.parquet")
    assert trace is not None and trace.stage == "labels" and "metric" not in trace.settings
    assert trace.inputs == {"texts": digest_of(tmp_path / "texts.parquet")}
    # labels of texts that were read from another state of the source are refused
    files = {split: str(tmp_path / f"{split}.parquet") for split in ("train", "validation")}
    pq.write_table(pa.table(TEXT | {"text": ["a", "b", "changed"]}), files["train"])
    with pytest.raises(DamagedArtefact, match=r"texts\.parquet no longer matches the texts of its source"):
        labels_of(corpus_of(files=files, first="text"), tmp_path, label="label", metric="accuracy")


def test_pairs_and_words_of_all_types_of_strings_and_lists(prepare, tmp_path):
    pairs = {"text": pa.array(TEXT["text"], pa.large_string()), "other": ["x", "y", "z"]}
    prepare(pairs | {"label": pa.array(TEXT["label"]).dictionary_encode()}, corpus={"second": "other"})
    assert read_table(tmp_path / "texts.parquet")["second"].to_pylist()[:3] == ["x", "y", "z"]
    large, plain = pa.large_list(pa.large_string()), pa.large_list(pa.string())
    for words in (WORDS, {"words": pa.array(WORDS["words"], large), "tag": pa.array(WORDS["tag"], plain)}):
        labels = prepare(words)
        assert read_table(tmp_path / "texts.parquet")["words"].to_pylist()[:2] == WORDS["words"]
        assert read_table(tmp_path / "texts.parquet").schema.field("words").type.value_type == pa.string()
        assert labels["label"].to_pylist()[:2] == [[0, 1], [1]]
        assert labels.schema.field("label").type.value_type == pa.int64()


@pytest.mark.parametrize(
    ("values", "class_names", "given", "expected_names", "expected"),
    [
        (["b", "a", "b"], None, None, ["a", "b"], [1, 0, 1]),
        (["b", "a", "b"], None, ["b", "a"], ["b", "a"], [0, 1, 0]),
        ([1, 0, 1], ["no", "yes"], None, ["no", "yes"], [1, 0, 1]),
        ([1, 0, 1], None, ["no", "yes"], ["no", "yes"], [1, 0, 1]),
        ([1, 0, 1], None, ["1", "0"], ["1", "0"], [0, 1, 0]),
        ([10, 2, 10], None, None, ["2", "10"], [1, 0, 1]),
        ([-1, 1, 0], None, ["-1", "0", "1"], ["-1", "0", "1"], [0, 2, 1]),
        ([True, False, True], None, None, ["false", "true"], [1, 0, 1]),
        ([True, False, True], None, ["no", "yes"], ["no", "yes"], [1, 0, 1]),
    ],
)
def test_labels_go_by_name(prepare, values, class_names, given, expected_names, expected):
    table = prepare(TEXT | {"label": values}, names={"label": class_names} if class_names else None, labels=given)
    assert provenance_of(table)["label_names"] == expected_names
    assert table["label"].to_pylist() == expected * 2


def test_train_limit_is_a_fixed_nested_sample_in_order(prepare, tmp_path):
    rows = 97
    train = {"text": [f"text {n}" for n in range(rows)], "label": [n % 2 for n in range(rows)]}

    def numbers(limit):
        labels = prepare(train, TEXT | {"label": [0, 1, 0]}, corpus={"train_limit": limit})
        texts = read_table(tmp_path / "texts.parquet")
        assert provenance_of(texts)["rows"] == {"train": min(limit, rows), "validation": 3}
        assert provenance_of(texts)["rows_available"] == {"train": rows, "validation": 3}
        taken = texts.slice(0, min(limit, rows))
        assert taken["first"].to_pylist() == [f"text {n}" for n in taken["row"].to_pylist()]
        of_rows = [n % 2 for n in taken["row"].to_pylist()]
        assert labels["label"].to_pylist()[: len(taken)] == of_rows
        assert provenance_of(labels)["train_counts"] == [of_rows.count(0), of_rows.count(1)]
        return taken["row"].to_pylist()

    assert numbers(23) == numbers(23) == sorted(numbers(23))
    assert set(numbers(11)) < set(numbers(23)), "a larger limit adds rows and keeps the others"
    assert numbers(rows) == numbers(rows + 5) == list(range(rows))
    assert numbers(23) != list(range(23))


def test_blank_lines_of_running_text_are_left_out(tmp_path):
    pq.write_table(pa.table({"text": [" \n", "= a =", "", "b", None, "c"]}), tmp_path / "lines.parquet")
    files = dict.fromkeys(("train", "validation"), str(tmp_path / "lines.parquet"))
    blocks = corpus_of(files=files, first="text", blocks=True, train_limit=2)
    texts_of(blocks, tmp_path)
    table = read_table(tmp_path / "texts.parquet")
    assert table["row"].to_pylist()[2:] == [1, 3, 5] and len(set(table["row"].to_pylist()[:2])) == 2
    assert set(table["first"].to_pylist()) <= {"= a =", "b", "c"}
    assert provenance_of(table)["rows_available"] == {"train": 3, "validation": 3}
    assert provenance_of(table)["shared"] == {}, "lines of running text recur"
    with pytest.raises(InputError, match="has no text in column text in 3 of 6 rows"):
        texts_of(blocks.model_copy(update={"blocks": False}), tmp_path)
    pq.write_table(pa.table({"text": ["", " "]}), tmp_path / "lines.parquet")
    with pytest.raises(InputError, match="has no text; every split needs some"):
        texts_of(blocks, tmp_path)


@pytest.mark.parametrize(
    ("train", "validation", "column", "shared"),
    [
        ({"text": ["a", "b", "c"]}, {"text": [" b\n", "d", "b", "B"]}, {"first": "text"}, 2),
        (PAIRS, {"text": ["a", "b", "x"], "other": ["y", " y", "a"]}, {"first": "text", "second": "other"}, 1),
        ({"words": [["a", "b"], ["c"]]}, {"words": [["a"], ["c"], ["b", "a"], ["a b"]]}, {"words": "words"}, 1),
    ],
)
def test_validation_rows_that_are_in_training_too_are_a_warning(tmp_path, train, validation, column, shared):
    for split, columns in (("train", train), ("validation", validation)):
        pq.write_table(pa.table(columns), tmp_path / f"{split}.parquet")
    files = {split: str(tmp_path / f"{split}.parquet") for split in ("train", "validation")}
    said = texts_of(corpus_of(files=files, **column), tmp_path)
    assert provenance_of(read_table(tmp_path / "texts.parquet"))["shared"] == {"validation": shared}
    assert f"Warning: {shared} of {len(next(iter(validation.values())))} validation rows" in said


def test_a_label_that_only_the_limit_leaves_out_is_no_fault(prepare, caplog):
    train = {"text": list("abcdefghij"), "label": ["x", "y"] * 4 + ["x", "rare"]}
    with caplog.at_level(logging.WARNING):
        table = prepare(train, {"text": ["a"], "label": ["rare"]}, corpus={"train_limit": 4})
    assert provenance_of(table)["label_names"] == ["rare", "x", "y"], "names do not depend on the limit"
    assert table["label"].to_pylist()[-1] == 0
    assert ("'rare'" in caplog.text) == (0 not in table["label"].to_pylist()[:4])
    # nor is one that is listed
    validation = {"text": ["d", "e"], "label": ["no", "maybe"]}
    table = prepare(TEXT, validation, labels=["no", "yes", "maybe"])
    assert table["label"].to_pylist() == [1, 0, 1, 0, 2]
    assert "'maybe' in validation rows, but in none of the training rows" in caplog.text
    for names, given in ((None, validation), (["no", "yes", "maybe"], validation | {"label": [0, 2]})):
        rows = TEXT | ({"label": [0, 1, 0]} if names else {})
        with pytest.raises(InputError, match=r"contains 'maybe' in .*validation\.parquet, but in no training row"):
            prepare(rows, given, names=names and {"label": names})


def test_every_word_has_its_most_frequent_label_of_the_training_rows(prepare):
    """Of labels as frequent as each other it is the first; a word that no training row has gets the usual label."""
    train = {"words": [["a", "b"], ["a", "b", "c"], ["a", "B"]], "tag": [["X", "Z"], ["Y", "Y", "Y"], ["X", "Y"]]}
    table = prepare(train, {"words": [["b", "a", "new"], ["B", "c"]], "tag": [["Y", "Y", "X"], ["X", "X"]]})
    facts = provenance_of(table)
    assert (facts["label_names"], facts["train_counts"]) == (["X", "Y", "Z"], [2, 4, 1])
    assert table["by_word"].to_pylist() == [[0, 2], [0, 2, 1], [0, 1], [2, 0, 1], [1, 1]]
    assert table.schema.field("by_word").type == table.schema.field("label").type
    words = prepare({"words": [["a", "b"]], "tag": [["Y", "X"]]}, {"words": [["new"]], "tag": [["Y"]]})
    assert words["by_word"].to_pylist() == [[1, 0], [0]], "of labels as frequent, the first of the names"


def test_subsets_leave_labels_as_they_are(prepare, tmp_path):
    rows = TEXT | {"kind": ["easy", None, "hard"]}
    assert prepare(rows).column_names == ["split", "row", "label"]
    before, table = digest_of(tmp_path / "labels.parquet"), prepare(rows, subset="kind")
    assert digest_of(tmp_path / "labels.parquet") == before and table.column_names == ["split", "row", "subset"]
    assert table["subset"].to_pylist() == ["easy", "", "hard"] * 2
    for kinds in ([["easy", ""], ["hard"]], [1, 2]):
        table = prepare(WORDS | {"kind": kinds}, subset="kind")
        assert table["subset"].to_pylist() == [kind if isinstance(kind, list) else str(kind) for kind in kinds] * 2


def test_further_validation_splits_follow_the_validation_split(monkeypatch, tmp_path):
    rows = {
        "train": TEXT,
        "validation": {"text": ["d"], "label": ["no"]},
        "more": {"text": ["e", "a"], "label": ["yes", "rare"]},
    }
    tables = {split: pa.table(columns | {"kind": ["more"] * len(columns["text"])}) for split, columns in rows.items()}

    def loaded(corpus, split, wanted, machine):
        return SourceRows(tables[split], tables[split].column_names)

    monkeypatch.setattr("papa.data.prepare.load_rows", loaded)
    corpus = corpus_of(hub="some/data", first="text", validation=["validation", "more"])
    task = {"label": "label", "metric": "accuracy", "labels": ("no", "yes", "rare")}
    texts_of(corpus, tmp_path)
    labels, texts = labels_of(corpus, tmp_path, **task), read_table(tmp_path / "texts.parquet")
    assert texts["split"].to_pylist() == ["train"] * 3 + ["validation"] + ["more"] * 2
    assert labels["label"].to_pylist() == [1, 0, 1, 0, 1, 2]
    assert provenance_of(texts)["rows"] == {"train": 3, "validation": 1, "more": 2}
    assert provenance_of(texts)["shared"] == {"validation": 0, "more": 1}
    with pytest.raises(InputError, match=r"contains 'rare' in some/data, split more, but in no training row"):
        labels_of(corpus, tmp_path, **task | {"labels": None})
    with pytest.raises(InputError, match="subset 'more', a name reserved for a further validation split"):
        labels_of(corpus, tmp_path, **task, subset="kind")


@pytest.mark.parametrize(
    "values", [["pos", " pos", "pos\t"], ["pos", "pos\u200b", "\ufeffpos"], ["caf\u00e9", "cafe\u0301", "caf\u00e9"]]
)
def test_labels_that_look_the_same_are_one_class(prepare, values):
    rows = {"text": list("abcd"), "label": [*values, "neg"]}
    for names in (None, (f" {values[0]}", "neg")):
        table = prepare(rows, labels=names)
        assert sorted(provenance_of(table)["label_names"]) == sorted(["neg", values[0]])
        assert len(set(table["label"].to_pylist()[:3])) == 1


NO_YES = {"names": {"label": ["no", "yes"]}}


@pytest.mark.parametrize(
    ("train", "options", "said"),
    [
        (TEXT, {"corpus": {"first": "sentence"}}, r"no column 'sentence'; its columns are text, label"),
        (TEXT | {"text": [1, 2, 3]}, {}, r"Column text of .*train.parquet contains int64, but it must contain a text"),
        (TEXT, {"corpus": {"first": None, "words": "text"}, "metric": "entity_f1"}, r"contains string.*list of words"),
        (TEXT | {"label": [0.5, 1.0, 2.0]}, {}, r"Column label .* contains numbers such as 0\.5, but .* no regression"),
        (TEXT | {"label": [["x"], ["y"], ["x"]]}, {}, r"Column label .* contains list.*one label in each row"),
        (TEXT | {"text": ["a", " \t", None]}, {}, r"no text in column text in 2 of 3 rows \(counted from 0: 1, 2\)"),
        (WORDS | {"words": [[], ["c"]]}, {}, r"no words in column words in 1 of 2 rows \(counted from 0: 0\)"),
        (WORDS | {"words": [["a", ""], ["c"]]}, {}, r"an empty word \(or only spaces\) in column words in 1 of 2"),
        (WORDS | {"tag": [["X"], ["Y"]]}, {}, r"without one label per word in 1 of 2 rows \(counted from 0: 0\)"),
        (TEXT | {"label": ["yes", "", None]}, {}, r"no label in column label .* in 2 of 3"),
        (TEXT | {"label": [-1, -1, -1]}, {}, r"Column label .* has no labels \(each is -1\)"),
        (TEXT | {"label": ["-1", "0", "1"]}, {}, r"has the label -1, which may mean no label, .* in 1 of 3 rows"),
        (TEXT | {"label": [-1, 1, 0]}, NO_YES, r"no label in column label .* in 1 of 3 rows"),
        (TEXT | {"label": [0, 1, -7]}, NO_YES, r"out of range for 2 classes in 1 of 3"),
        (TEXT | {"label": [True, False, True]}, {"labels": ("True", "False")}, "'false', 'true', .* only True, False"),
        (TEXT, {"labels": ("yes", "maybe")}, r"Column label contains 'no', but `labels` lists only yes, maybe"),
        (TEXT, {"labels": ["yes", "no", "yes"]}, r"`labels` lists a name twice"),
        (TEXT | {"label": ["yes"] * 3}, {}, r"All training rows have the label 'yes'"),
        (TEXT, {"metric": "entity_f1"}, r"entity_f1 is for tasks with one label per word.*use one of accuracy"),
        (TEXT | {"label": ["a", "b", "c"]}, {"metric": "f1"}, r"f1 needs two labels, but there are 3 \(a, b, c\)"),
        (WORDS, {"metric": "entity_f1"}, r"needs labels O, B-.*but there is 'X', 'Y'"),
        (TEXT | {"kind": ["all", "x", "x"]}, {"subset": "kind"}, r"has a subset 'all', a name reserved"),
        (WORDS | {"kind": [["x"], ["y"]]}, {"subset": "kind"}, r"without one subset per word"),
        ({"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}, {}, r"train.parquet has no rows"),
        (TEXT | {"kind": ["x", "e\x1bsc", "x"]}, {"subset": "kind"}, r"in a subset in column kind in 1 of 3 .*: 1\)"),
        (TEXT | {"label": ["yes", "no", "no\x1b!"]}, {}, r"character in a label in column label in 1 of 3 .* 2\)"),
        (TEXT | {"label": ["yes", "b", "yes"]}, NO_YES, r"contains 'b', but the class names .* are only no, yes"),
    ],
)
def test_bad_input_leaves_nothing(prepare, tmp_path, train, options, said):
    with pytest.raises(InputError, match=said):
        prepare(train, **options)
    assert not (tmp_path / ("subsets.parquet" if "subset" in options else "labels.parquet")).exists()
    assert not list(tmp_path.glob(".*"))


def test_the_same_texts_have_the_same_fingerprint_from_any_form(tmp_path):
    fingerprints = set()
    (tmp_path / "a.csv").write_text("text\none\ntwo\n")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    pq.write_table(pa.table({"text": pa.array(["one", "two"], pa.large_string())}), tmp_path / "a.parquet")
    for form in ("csv", "jsonl", "parquet"):
        files = dict.fromkeys(("train", "validation"), str(tmp_path / f"a.{form}"))
        texts_of(corpus_of(files=files, first="text"), tmp_path)
        fingerprints.add(provenance_of(read_table(tmp_path / "texts.parquet"))["fingerprint"])
    assert len(fingerprints) == 1
