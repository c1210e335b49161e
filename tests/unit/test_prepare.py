"""The table of a corpus: texts, labels by name, subsets, clusters, and a sentence for everything that can be wrong."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter
from refusals import damage_error, input_error
from tiny import TRAINING, corpus_of

from papa.config.settings import Machine, Task
from papa.data import prepare as preparing
from papa.data.prepare import prepared, texts_in
from papa.files import read_table

TEXT = {"text": ["a", "b", "c"], "label": ["yes", "no", "yes"]}
WORDS = {"words": [["a", "b"], ["c"]], "tag": [["X", "Y"], ["Y"]]}


def task_of(**keys):
    return TypeAdapter(Task).validate_python(
        {"corpus": "c", "metric": "accuracy"} | TRAINING | keys
    )


def table_of(corpus, folder, **tasks):
    """The table of a corpus, in a folder that is a mirror of the hub, too."""
    return prepared(corpus, tasks, Machine(hub_mirror=str(folder)), folder / "data", "c")


def write_splits(folder, splits, class_names=()):
    """Write a Parquet file for each split; returns their paths. The labels may be numbered classes with names."""
    features = {"label": {"_type": "ClassLabel", "names": class_names}} if class_names else {}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    folder.mkdir(parents=True, exist_ok=True)
    files = {split: f"{folder}/{split}-00000-of-00001.parquet" for split in splits}
    for split, columns in splits.items():
        pq.write_table(pa.table(columns, metadata=metadata), files[split])
    return files


@pytest.fixture
def prepare(tmp_path):
    """Prepare a corpus of two Parquet files and a task `t`; gives the table, and keeps all else as `prepare.made`."""

    def run(train, validation=None, class_names=(), corpus=None, **task):
        files = write_splits(
            tmp_path, {"train": train, "validation": validation or train}, class_names
        )
        if "words" in train:
            column = {"words": "words"}
            usual = {"label": "tag", "metric": "token_accuracy"}
        else:
            column = {"first": "text"}
            usual = {"label": "label"}
        source = corpus_of(**{"files": files} | column | (corpus or {}))
        run.made = table_of(source, tmp_path, t=task_of(**usual | task))
        return read_table(run.made.path)

    return run


def test_the_table_has_texts_labels_subsets_and_clusters_of_the_same_rows(prepare):
    rows = TEXT | {"kind": ["easy", None, "hard"], "document": [7, 7, 3]}
    table = prepare(
        rows, {"text": ["d"], "label": ["no"], "kind": ["x"], "document": [4]}, subset="kind"
    )
    columns = {
        "split": ["train"] * 3 + ["validation"],
        "row": [0, 1, 2, 0],
        "first": ["a", "b", "c", "d"],
        "label t": [1, 0, 1, 0],
        "subset t": ["easy", "", "hard", "x"],
    }
    assert table.to_pydict() == columns
    assert [*texts_in(prepare.made.path)] == columns["first"]
    facts = prepare.made.facts
    assert facts["rows"] == facts["rows_available"] == {"train": 3, "validation": 1}
    assert facts["labels"] == {"t": {"names": ["no", "yes"], "train_counts": [1, 2]}}
    assert facts["characters"] == {"train": 3, "validation": 1}
    assert facts["warnings"] == []
    assert facts["sizes"]["train"] == {"words": 1, "design_effect": 1}
    by_column = prepare(rows, rows, corpus={"cluster": "document"})
    assert by_column.column_names[-1] == "cluster"
    assert prepare.made.facts["sizes"]["train"]["design_effect"] == pytest.approx(5 / 3)
    prepare(rows, corpus={"cluster": 3})
    assert prepare.made.facts["sizes"]["validation"]["design_effect"] == 3
    assert not prepare(rows, corpus={"cluster": 3}).column_names[4:]


FILES = {
    "train": "text,label,kind,doc\na b,yes,x,1\nc,no,,1\nd,yes,y,2\ne,no,x,3\n",
    "validation": "text,label,kind,doc\na b,yes,x,1\nc,no,,1\nd,yes,y,2\n",
}
FIRST = ("first",)
LABEL = ("label t", "label u")
SUBSET = ("subset t",)
EVERY = (*FIRST, *LABEL, *SUBSET)
TRAIN = ("train", "all")
ONLY_ALL = ("all",)


def table_of_files(folder, files):
    """Prepare files with this content for two tasks with the same labels, one of them with subsets."""
    paths = {split: folder / f"{split}.csv" for split in files}
    for split, content in files.items():
        paths[split].write_text(content)
    corpus = corpus_of(files={split: str(path) for split, path in paths.items()}, first="text")
    return table_of(
        corpus, folder, t=task_of(label="label", subset="kind"), u=task_of(label="label")
    )


@pytest.mark.parametrize(
    ("edited", "pattern", "replacement", "changed", "parts"),
    [
        (["train"], "a b", "a  b", FIRST, TRAIN),
        (["train"], "c,no", "c,yes", LABEL, TRAIN),
        (["train"], "c,no,", "c,no,z", SUBSET, TRAIN),
        (["train"], "c,no,,1", "c,no,,9", (), ()),  # an unused cell
        (["validation"], "a b", "other", FIRST, ONLY_ALL),
        (["validation"], "c,no", "c,yes", LABEL, ONLY_ALL),
        (["validation"], "c,no,", "c,no,z", SUBSET, ONLY_ALL),
        (["train"], "e,no,x,3\n", "", EVERY, TRAIN),
        (["validation"], "d,yes,y,2\n", "", EVERY, ONLY_ALL),
        (["train"], "\n", ",9\n", (), ()),  # a column more
        (FILES, "no,", "maybe,", LABEL, TRAIN),  # a label renamed
        (["train"], "([^,\n]*)([,\n])", r'"\1"\2', (), ()),  # other quotes
    ],
)
def test_an_edit_changes_the_digests_of_what_it_changes(
    tmp_path, edited, pattern, replacement, changed, parts
):
    """Every edit of a file gives a new key."""
    changes = {split: re.sub(pattern, replacement, FILES[split]) for split in edited}
    before = table_of_files(tmp_path, FILES)
    after = table_of_files(tmp_path, FILES | changes)
    different = {
        (part, column)
        for part, digests in before.facts["digests"].items()
        for column, digest in digests.items()
        if digest != after.facts["digests"][part][column]
    }
    assert before.path != after.path
    assert different == {(part, column) for part in parts for column in changed}
    assert table_of_files(tmp_path, FILES) == before
    assert Path(before.path).exists()
    assert Path(after.path).exists()
    for digests in before.facts["digests"].values():
        assert digests["label t"] == digests["label u"], "the name of a task decides nothing"


@pytest.mark.parametrize(
    ("corpus", "task", "key", "digest"),
    [
        ({"slots": 99}, {}, False, False),
        ({}, {"learning_rate": 0.2, "title": "T", "batch_size": 9}, False, False),
        ({}, {"metric": "f1"}, False, False),
        ({}, {"labels": ["no", "yes"]}, True, False),
        ({}, {"labels": ["yes", "no"]}, True, True),
        ({}, {"labels": ["no", "yes", "maybe"]}, True, True),
        ({"cluster": 2}, {}, True, False),
        ({"train_limit": 99}, {}, True, False),
        ({"train_limit": 5}, {}, True, True),
    ],
)
def test_settings_that_decide_on_the_table_are_in_its_key(prepare, corpus, task, key, digest):
    rows = {"text": list("abcdef"), "label": ["yes", "no", "yes"] * 2}
    prepare(rows)
    before = prepare.made
    prepare(rows, corpus=corpus, **task)
    assert (prepare.made.path != before.path) == key
    assert (
        prepare.made.facts["digests"]["train"]["label t"]
        != before.facts["digests"]["train"]["label t"]
    ) == digest


def test_a_table_that_exists_is_not_read_again(prepare, monkeypatch):
    prepare(TEXT, metric="accuracy")
    first = prepare.made
    monkeypatch.setattr(preparing, "load_splits", None)
    prepare(TEXT)
    assert prepare.made == first
    prepare(TEXT, metric="f1")
    assert prepare.made.warnings[1:] == [
        "F1 is that of yes, the class of 67% of the training rows; if no is the class of interest, list it second "
        "under `labels`."
    ]
    assert prepare.made.facts == first.facts, "the metric decides only on sentences"
    Path(first.path).write_bytes(Path(first.path).read_bytes()[:-9])
    with damage_error(f"{first.path} cannot be read"):
        prepare(TEXT)


def test_a_table_need_not_be_stored(tmp_path):
    (tmp_path / "a.txt").write_text("one text\nanother\n")
    corpus = corpus_of(files={"train": f"{tmp_path}/a.txt"})
    made = prepared(corpus, {}, Machine(), tmp_path / "data", "c", save=False)
    assert made.facts["rows"] == {"train": 2}
    assert not (tmp_path / "data").exists()
    assert table_of(corpus, tmp_path).facts == made.facts


def test_a_dataset_that_is_not_here_has_provisional_digests(tmp_path, capsys):
    corpus = corpus_of(hub="some/data", first="text", revision="abc")
    task = task_of(label="label")
    made = table_of(corpus, tmp_path, t=task)
    assert made.facts["rows"] == {}
    assert not Path(made.path).exists()
    assert {*made.facts["digests"]["train"]} == {"first", "label t"}
    write_splits(tmp_path / "some/data", {"train": TEXT, "validation": TEXT})
    here = table_of(corpus, tmp_path, t=task)
    assert here.path != made.path
    assert here.facts["rows"] == {"train": 3, "validation": 3}
    assert not capsys.readouterr().err, "no progress bars"


def test_a_source_that_is_replaced_while_it_is_read_is_refused(monkeypatch, tmp_path):
    load = preparing.load_splits

    def loaded(*given):
        rows = load(*given)
        (tmp_path / "train.csv").write_text(FILES["validation"])
        return rows

    monkeypatch.setattr(preparing, "load_splits", loaded)
    with input_error(r"train\.csv has changed since this run began; run again"):
        table_of_files(tmp_path, FILES)
    assert not (tmp_path / "data").exists()


def test_pairs_and_words_of_all_types_of_strings_and_lists(prepare):
    pairs = {"text": pa.array(TEXT["text"], pa.large_string()), "other": ["x", "y", "z"]}
    prepare(
        pairs | {"label": pa.array(TEXT["label"]).dictionary_encode()}, corpus={"second": "other"}
    )
    assert read_table(prepare.made.path)["second"].to_pylist()[:3] == ["x", "y", "z"]
    large = pa.large_list(pa.large_string())
    plain = pa.large_list(pa.string())
    for words in (
        WORDS,
        {"words": pa.array(WORDS["words"], large), "tag": pa.array(WORDS["tag"], plain)},
    ):
        labels = prepare(words)
        assert labels["words"].to_pylist()[:2] == WORDS["words"]
        assert labels.schema.field("words").type.value_type == pa.string()
        assert labels["label t"].to_pylist()[:2] == [[0, 1], [1]]
        assert labels.schema.field("label t").type.value_type == pa.int64()
        assert prepare.made.facts["characters"]["train"] == 6, "a space before each word"


@pytest.mark.parametrize(
    ("values", "class_names", "given", "expected_names", "expected"),
    [
        (["b", "a", "b"], (), None, ["a", "b"], [1, 0, 1]),
        (["b", "a", "b"], (), ["b", "a"], ["b", "a"], [0, 1, 0]),
        ([1, 0, 1], ["no", "yes"], None, ["no", "yes"], [1, 0, 1]),
        ([1, 0, 1], (), ["no", "yes"], ["no", "yes"], [1, 0, 1]),
        (["1", "0.0", "1"], (), ["no", "yes"], ["no", "yes"], [1, 0, 1]),  # as in CSV
        ([1, 0, 1], (), ["1", "0"], ["1", "0"], [0, 1, 0]),
        (["1.0", "0.0", "1.0"], (), ["1.0", "0.0"], ["1.0", "0.0"], [0, 1, 0]),  # as pandas writes
        ([10, 2, 10], (), None, ["2", "10"], [1, 0, 1]),
        (["1", "01", "1"], (), None, ["01", "1"], [1, 0, 1]),
        ([-1, 1, 0], (), ["-1", "0", "1"], ["-1", "0", "1"], [0, 2, 1]),
        ([True, False, True], (), None, ["false", "true"], [1, 0, 1]),
        ([True, False, True], (), ["no", "yes"], ["no", "yes"], [1, 0, 1]),
    ],
)
def test_labels_go_by_name(prepare, values, class_names, given, expected_names, expected):
    table = prepare(
        TEXT | {"label": values},
        class_names=class_names,
        labels=given,
    )
    assert prepare.made.facts["labels"]["t"]["names"] == expected_names
    assert table["label t"].to_pylist() == expected * 2


def test_train_limit_is_a_fixed_nested_sample_in_order(prepare):
    rows = 97
    train = {"text": [f"text {n}" for n in range(rows)], "label": [n % 2 for n in range(rows)]}

    def numbers(limit):
        texts = prepare(train, TEXT | {"label": [0, 1, 0]}, corpus={"train_limit": limit})
        facts = prepare.made.facts
        assert facts["rows"] == {"train": min(limit, rows), "validation": 3}
        assert facts["rows_available"] == {"train": rows, "validation": 3}
        taken = texts.slice(0, min(limit, rows))
        chosen = taken["row"].to_pylist()
        assert taken["first"].to_pylist() == [f"text {n}" for n in chosen]
        of_rows = [n % 2 for n in chosen]
        assert taken["label t"].to_pylist() == of_rows
        assert facts["labels"]["t"]["train_counts"] == [of_rows.count(0), of_rows.count(1)]
        return chosen

    assert numbers(23) == numbers(23) == sorted(numbers(23))
    assert numbers(5) == [5, 20, 23, 36, 96], "the draws of all versions of papa"
    assert set(numbers(11)) < set(numbers(23)), "a larger limit adds rows and keeps the others"
    assert numbers(rows) == numbers(rows + 5) == list(range(rows))
    assert numbers(23) != list(range(23))


def test_blank_lines_of_running_text_are_left_out(tmp_path):
    pq.write_table(
        pa.table({"text": [" \n", "= a =", "", "b", None, "c"]}), tmp_path / "lines.parquet"
    )
    files = dict.fromkeys(("train", "validation"), f"{tmp_path}/lines.parquet")
    blocks = corpus_of(files=files, first="text", blocks=True, train_limit=2)
    made = table_of(blocks, tmp_path)
    table = read_table(made.path)
    assert table["row"].to_pylist()[2:] == [1, 3, 5]
    assert len(set(table["row"].to_pylist()[:2])) == 2
    assert set(table["first"].to_pylist()) <= {"= a =", "b", "c"}
    assert made.facts["rows_available"] == {"train": 3, "validation": 3}
    assert made.facts["shared"] == {}, "lines of running text recur"
    with input_error("has no text in column text in 3 of 6 rows"):
        table_of(blocks.model_copy(update={"blocks": False}), tmp_path)
    pq.write_table(pa.table({"text": ["", " "]}), tmp_path / "lines.parquet")
    with input_error("has no text; every split needs some"):
        table_of(blocks, tmp_path)


@pytest.mark.parametrize(
    ("train", "validation", "column", "shared"),
    [
        ({"text": ["a", "b", "c"]}, {"text": [" b\n", "d", "b", "B"]}, {"first": "text"}, 2),
        (
            {"text": ["a", "b"], "other": ["x", "y"]},
            {"text": ["a", "b", "x"], "other": ["y", " y", "a"]},
            {"first": "text", "second": "other"},
            1,
        ),
        (
            {"words": [["a", "b"], ["c"]]},
            {"words": [["a"], ["c"], ["b", "a"], ["a b"]]},
            {"words": "words"},
            1,
        ),
    ],
)
def test_validation_rows_that_are_in_training_too_are_a_warning(
    tmp_path, train, validation, column, shared
):
    files = write_splits(tmp_path, {"train": train, "validation": validation})
    made = table_of(corpus_of(files=files, **column), tmp_path)
    assert made.facts["shared"] == {"validation": shared}
    are = "is" if shared == 1 else "are"
    number = len(next(iter(validation.values())))
    assert made.warnings == [f"{shared} of {number} validation rows {are} also in training."]


def test_a_label_that_only_the_limit_leaves_out_is_no_fault(prepare):
    train = {"text": list("abcdefghij"), "label": ["x", "y"] * 4 + ["x", "rare"]}
    table = prepare(train, {"text": ["a"], "label": ["rare"]}, corpus={"train_limit": 4})
    assert prepare.made.facts["labels"]["t"]["names"] == ["rare", "x", "y"], (
        "names do not depend on the limit"
    )
    assert table["label t"].to_pylist()[-1] == 0
    assert ("'rare'" in " ".join(prepare.made.warnings)) == (
        0 not in table["label t"].to_pylist()[:4]
    )
    # nor is one that is listed
    validation = {"text": ["d", "e"], "label": ["no", "maybe"]}
    table = prepare(TEXT, validation, labels=["no", "yes", "maybe"])
    assert table["label t"].to_pylist() == [1, 0, 1, 0, 2]
    assert (
        "'maybe' in validation rows, but in none of the training rows" in prepare.made.warnings[-1]
    )
    refused = r"contains 'maybe' in .*validation-.*\.parquet, but in no training row"
    with input_error(refused):
        prepare(TEXT, validation)
    with input_error(refused):
        numbered = TEXT | {"label": [0, 1, 0]}
        prepare(numbered, validation | {"label": [0, 2]}, class_names=["no", "yes", "maybe"])


@pytest.mark.parametrize(
    ("train", "validation", "cluster", "both"),
    [
        (["p", "q", "p"], ["r", "s", "r"], [0, 1, 0, 2, 3, 2], 0),
        ([7, 7, 3], [7, 4, 3], [0, 0, 1, 0, 2, 1], 2),
    ],
)
def test_rows_with_the_same_value_share_a_cluster(prepare, train, validation, cluster, both):
    other = {"text": ["d", "e", "f"], "label": TEXT["label"], "doc": validation}
    table = prepare(TEXT | {"doc": train}, other, corpus={"cluster": "doc"})
    assert table["cluster"].to_pylist() == cluster
    assert table.schema.field("cluster").type == pa.int32()
    said = "In column doc, 2 of 3 validation rows have the cluster of a training row, so scores may be too high for new"
    assert [sentence.startswith(said) for sentence in prepare.made.warnings] == [True] * bool(both)


def test_subsets_are_of_rows_or_of_words(prepare):
    of_words = [["easy", ""], ["hard"]]
    for kinds, expected in ((of_words, of_words), ([1, 2], ["1", "2"])):
        table = prepare(WORDS | {"kind": kinds}, subset="kind")
        assert table["subset t"].to_pylist() == expected * 2


def test_further_validation_splits_follow_the_validation_split(tmp_path):
    splits = {
        "train": TEXT | {"kind": ["more"] * 3},
        "validation": {"text": ["d"], "label": ["no"], "kind": ["more"]},
        "more": {"text": ["e", "a"], "label": ["yes", "rare"], "kind": ["more"] * 2},
    }
    write_splits(tmp_path / "some/data/data", splits)
    corpus = corpus_of(hub="some/data", first="text", validation=["validation", "more"])
    names = ["no", "yes", "rare"]
    made = table_of(corpus, tmp_path, t=task_of(label="label", labels=names))
    table = read_table(made.path)
    assert table["split"].to_pylist() == ["train"] * 3 + ["validation"] + ["more"] * 2
    assert table["label t"].to_pylist() == [1, 0, 1, 0, 1, 2]
    assert made.facts["rows"] == {"train": 3, "validation": 1, "more": 2}
    assert made.facts["shared"] == {"validation": 0, "more": 1}
    with input_error(r"contains 'rare' in some/data, split more, but in no training row"):
        table_of(corpus, tmp_path, t=task_of(label="label"))
    with input_error("subset 'more', a name reserved for a further validation split"):
        table_of(corpus, tmp_path, t=task_of(label="label", labels=names, subset="kind"))


@pytest.mark.parametrize(
    "values",
    [
        ["pos", " pos", "pos\t"],
        ["pos", "pos\u200b", "\ufeffpos"],
        ["caf\u00e9", "cafe\u0301", "caf\u00e9"],
    ],
)
def test_labels_that_look_the_same_are_one_class(prepare, values):
    rows = {"text": list("abcd"), "label": [*values, "neg"]}
    for names in (None, (f" {values[0]}", "neg")):
        table = prepare(rows, labels=names)
        assert sorted(prepare.made.facts["labels"]["t"]["names"]) == sorted(["neg", values[0]])
        assert len(set(table["label t"].to_pylist()[:3])) == 1


NO_YES = {"class_names": ["no", "yes"]}


@pytest.mark.parametrize(
    ("train", "options", "said"),
    [
        (
            TEXT | {"text": [1, 2, 3]},
            {},
            r"Column text of .*train-.*parquet contains int64, but it must contain a text",
        ),
        (
            TEXT,
            {"corpus": {"first": None, "words": "text"}, "metric": "entity_f1"},
            r"contains string.*list of words",
        ),
        (
            TEXT | {"label": [["x"], ["y"], ["x"]]},
            {},
            r"Column label .* contains list.*one label in each row",
        ),
        (
            TEXT | {"text": ["a", " \t", None]},
            {},
            r"no text in column text in 2 of 3 rows \(counted from 0: 1, 2\)",
        ),
        (
            WORDS | {"words": [[], ["c"]]},
            {},
            r"no words in column words in 1 of 2 rows \(counted from 0: 0\)",
        ),
        (
            WORDS | {"words": [["a", ""], ["c"]]},
            {},
            r"an empty word \(or only spaces\) in column words in 1 of 2",
        ),
        (
            WORDS | {"tag": [["X"], ["Y"]]},
            {},
            r"without one label per word in 1 of 2 rows \(counted from 0: 0\)",
        ),
        (TEXT | {"label": ["yes", "", None]}, {}, r"no label in column label .* in 2 of 3"),
        (
            WORDS | {"tag": [["X", "None"], ["Y"]]},
            {},
            r"has the label None, .* in 1 of 2 .* if it is a class; or remove these rows",
        ),
        (TEXT | {"label": [-1, 1, 0]}, NO_YES, r"no label in column label .* in 1 of 3 rows"),
        (TEXT | {"label": [0, 1, -7]}, NO_YES, r"out of range for 2 classes in 1 of 3"),
        (
            TEXT | {"label": [True, False, True]},
            {"labels": ("True", "False")},
            "'false', 'true', .* only True, False",
        ),
        (
            TEXT,
            {"labels": ("yes", "maybe")},
            r"Column label contains 'no', but `labels` lists only yes, maybe",
        ),
        (TEXT, {"labels": ["yes", "no", " yes"]}, r"`labels` lists a name twice"),
        (TEXT | {"label": ["yes"] * 3}, {}, r"All training rows have the label 'yes'"),
        (
            TEXT | {"doc": [1, None, 2]},
            {"corpus": {"cluster": "doc"}},
            r"no cluster in column doc in 1 of 3 rows",
        ),
        (
            TEXT | {"doc": [[1], [2], [3]]},
            {"corpus": {"cluster": "doc"}},
            r"must contain one cluster in each row",
        ),
        (TEXT, {"corpus": {"cluster": "doc"}}, r"has no column 'doc'"),
        (
            TEXT,
            {"metric": "entity_f1"},
            r"entity_f1 is for tasks with one label per word.*use one of accuracy",
        ),
        (
            TEXT | {"label": ["a", "b", "c"]},
            {"metric": "f1"},
            r"f1 needs two labels, but there are 3 \(a, b, c\)",
        ),
        (WORDS, {"metric": "entity_f1"}, r"needs labels O, B-.*but there is 'X', 'Y'"),
        (
            TEXT | {"kind": ["all", "x", "x"]},
            {"subset": "kind"},
            r"has a subset 'all', a name reserved",
        ),
        (WORDS | {"kind": [["x"], ["y"]]}, {"subset": "kind"}, r"without one subset per word"),
        (
            {"text": pa.array([], pa.string()), "label": pa.array([], pa.string())},
            {},
            r"train-.*parquet has no rows",
        ),
        (
            TEXT | {"kind": ["x", "e\x1bsc", "x"]},
            {"subset": "kind"},
            r"in a subset in column kind in 1 of 3 .*: 1\)",
        ),
        (
            TEXT | {"label": ["yes", "b", "yes"]},
            NO_YES,
            r"contains 'b', but the class names .* are only no, yes",
        ),
    ],
)
def test_bad_input_leaves_nothing(prepare, tmp_path, train, options, said):
    with input_error(said):
        prepare(train, **options)
    assert not (tmp_path / "data").exists()


def test_the_same_rows_have_the_same_digests_in_any_form(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\none,yes\ntwo,no\n")
    (tmp_path / "a.jsonl").write_text(
        '{"text": "one", "label": "yes"}\n{"text": "two", "label": "no"}\n'
    )
    large = pa.large_string()
    table = {"text": pa.array(["one", "two"], large), "label": pa.array(["yes", "no"], large)}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    digests = []
    for form in ("csv", "jsonl", "parquet"):
        files = dict.fromkeys(("train", "validation"), f"{tmp_path}/a.{form}")
        made = table_of(corpus_of(files=files, first="text"), tmp_path, t=task_of(label="label"))
        digests.append(made.facts["digests"])
    assert digests[0] == digests[1] == digests[2]
